"""The number by which members compare their states (fifo/persistence/state_crc.py): made in parts, equal for equal
states."""

from __future__ import annotations

from fifo.commands import CreateQueue, QueueConfig
from fifo.limits import SMALL
from fifo.persistence import snapshot
from fifo.persistence.state_crc import FEW_QUEUES, QUEUE_COST_BYTES, StateCrc
from support.fifo.world import World, producer

MANY = 2 * FEW_QUEUES + 40


def crowded() -> World:
    """Many queues, and a session that publishes to the first one."""
    world = World(SMALL)
    world.checks = False  # they look at every queue, after each entry
    world.apply(
        [(None, CreateQueue(number, QueueConfig(f"queue-{number}"))) for number in range(1, MANY + 1)]
    )
    world.session()
    return world


def publish(world: World) -> None:
    world.apply([world.batch(producer(1), 1)])


def number_of(world: World) -> int:
    return StateCrc(world.machine).take()


def test_a_restored_state_has_the_same_number() -> None:
    world = crowded()
    again = world.restored(snapshot.encode(world.machine))
    assert StateCrc(again).take() == number_of(world)


def test_another_state_has_another_number() -> None:
    world = crowded()
    before = number_of(world)
    publish(world)
    assert number_of(world) != before


def test_it_is_made_in_parts() -> None:
    state = StateCrc(crowded().machine)
    parts = 1
    while not state.prepare(100 * QUEUE_COST_BYTES):
        parts += 1
    assert parts >= MANY // 100


def test_queues_that_are_touched_meanwhile_are_done_again() -> None:
    world = crowded()
    state = StateCrc(world.machine)
    while not state.prepare(100 * QUEUE_COST_BYTES):
        publish(world)
    assert state.take() == number_of(world)


def test_it_is_made_although_everything_is_touched_all_the_time() -> None:
    world = crowded()
    state = StateCrc(world.machine)
    looks = 0
    while not state.prepare(1 << 40):
        for machine in world.machine.queues.values():
            machine.changes += 1  # as each entry that touches the queue does
        looks += 1
        assert looks < 20
    assert state.take() == number_of(world)
