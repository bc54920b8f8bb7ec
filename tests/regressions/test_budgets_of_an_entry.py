"""An entry's work is bounded whatever it touches: its queues share one budget.

Each queue had a budget of its own, and an entry has room for ten thousand queues. A message that was published alone
costs a run to hand out, a hundred times as much as one of a batch, and was counted like any other.
"""

from __future__ import annotations

from fifo.commands import Attach, Get, Wake
from fifo.effects import Applied, Deliver, Ok
from fifo.limits import PRODUCTION
from fifo.persistence import snapshot
from support.fifo.world import World, sequences

SIZE = "application-properties.size"


def world_of(queues: int) -> tuple[World, bytes]:
    world = World()
    world.checks = False
    for queue in range(1, queues + 1):
        world.queue(queue, filter_enabled=True)
    return world, world.session()


def runs(applied: Applied) -> int:
    return sum(len(effect.runs) for effect in applied.effects if isinstance(effect, Deliver))


def deliveries(entries: list[Applied], queue: int) -> list[int]:
    return [
        sequence
        for applied in entries
        for effect in applied.effects
        if isinstance(effect, Deliver) and effect.queue == queue
        for sequence in sequences(Applied((), (effect,)))
    ]


def attach_to_all(world: World, name: bytes, queues: int, text: bytes = b"") -> Applied:
    operations = [
        world.op(name, Attach(queue, "c", text, 10 * PRODUCTION.message_budget))
        for queue in range(1, queues + 1)
    ]
    return world.apply(operations)


def different_ttls(count: int) -> tuple[int, ...]:
    return tuple([10_000_000 + 2 * place for place in range(count)])


def test_an_entry_hands_out_a_number_of_messages_over_all_its_queues() -> None:
    world, name = world_of(6)
    for queue in range(1, 7):
        world.publish(name, PRODUCTION.message_budget // 4, queue=queue)
    entries = [attach_to_all(world, name, 6)]
    entries += world.wake_until_done()
    assert max(len(sequences(applied)) for applied in entries) <= PRODUCTION.message_budget
    for queue in range(1, 7):
        assert deliveries(entries, queue) == list(range(1, PRODUCTION.message_budget // 4 + 1))


def test_an_entry_hands_out_a_number_of_runs_over_all_its_queues() -> None:
    world, name = world_of(5)
    for queue in range(1, 6):
        world.publish(name, PRODUCTION.run_budget, queue=queue, ttls_ms=different_ttls(PRODUCTION.run_budget))
    entries = [attach_to_all(world, name, 5)]
    entries += world.wake_until_done()
    assert [runs(applied) for applied in entries[:5]] == [PRODUCTION.run_budget] * 5
    for queue in range(1, 6):
        assert deliveries(entries, queue) == list(range(1, PRODUCTION.run_budget + 1))


def test_messages_that_a_selector_takes_out_of_batches_are_runs() -> None:
    world, name = world_of(1)
    world.attach(name, "odd", PRODUCTION.message_budget, "size = 1")
    entries = [world.publish(name, 16_000, [{SIZE: place % 2} for place in range(16_000)])]
    entries += world.wake_until_done()
    assert max(runs(applied) for applied in entries) <= PRODUCTION.run_budget
    assert deliveries(entries, 1) == list(range(2, 16_001, 2))


def test_selectors_of_many_queues_share_the_steps_of_an_entry() -> None:
    world, name = world_of(20)
    for queue in range(1, 21):
        world.publish(name, 16_000, [{SIZE: place} for place in range(16_000)], queue=queue)
    text = " AND ".join(f"size + {place} < 20000" for place in range(8))
    for queue in range(1, 21):
        world.attach(name, "c", 0, text, queue)
    operations = [world.op(name, Attach(queue, "c", selector_of(world, queue), 1)) for queue in range(1, 21)]
    entries, steps = [world.apply(operations)], [world.machine.last_steps]
    while world.machine.next_wake() == world.now_ms:
        entries.append(world.wake())
        steps.append(world.machine.last_steps)
    assert max(steps) <= 2 * (PRODUCTION.step_budget + PRODUCTION.arrival_budget)
    assert len(entries) <= 25, "each entry serves as many queues as it can"
    for queue in range(1, 21):
        assert deliveries(entries, queue) == [1]


def selector_of(world: World, queue: int) -> bytes:
    return next(iter(world.machine.queues[queue].groups.by_selector))


def test_a_queue_with_much_work_does_not_keep_others_waiting() -> None:
    """The second queue waits for a Wake at most, however often the first one is touched."""
    world, name = world_of(2)
    world.publish(name, 10 * PRODUCTION.run_budget, ttls_ms=different_ttls(10 * PRODUCTION.run_budget))
    world.publish(name, 3, queue=2)
    first = attach_to_all(world, name, 2)
    assert runs(first) == PRODUCTION.run_budget
    assert deliveries([first], 2) == []
    assert 2 in world.machine.backlog
    found = [world.wake(), world.wake()]
    assert deliveries(found, 2) == [1, 2, 3]
    operation = world.batch(name, 1, queue=2)
    applied = world.apply([operation, (None, Wake())])
    assert deliveries([applied], 2)[-1:] == [4], "what is touched does not wait for what Wake continues"
    assert deliveries([applied], 1), "and does not keep it waiting"
    touch = world.op(name, Attach(1, "c", b"", 10 * PRODUCTION.message_budget))
    applied = world.apply([touch, world.batch(name, 1, queue=2, place=1)])
    assert deliveries([applied], 2) == [5], "nor does it wait for one that has unfinished work"


def test_every_queue_gets_its_turn_while_one_is_touched_in_every_entry() -> None:
    world, name = world_of(3)
    for queue in (1, 2, 3):
        world.publish(
            name, 8 * PRODUCTION.run_budget, queue=queue, ttls_ms=different_ttls(8 * PRODUCTION.run_budget)
        )
    entries = [attach_to_all(world, name, 3)]
    for _ in range(6):
        touch = world.op(name, Attach(1, "c", b"", 10 * PRODUCTION.message_budget))
        entries.append(world.apply([touch, (None, Wake())]))
    for queue in (1, 2, 3):
        assert len(deliveries(entries, queue)) >= 2 * PRODUCTION.run_budget


def test_gets_of_one_entry_share_its_budget_and_find_something_all_the_same() -> None:
    world, name = world_of(2)
    for queue in (1, 2):
        for _ in range(3):
            world.publish(name, PRODUCTION.message_budget // 2, queue=queue)
    operations = [world.op(name, Get(1 + place % 2, 10_000, True)) for place in range(16)]
    applied = world.apply(operations)
    taken = [reply.count for reply in applied.replies if isinstance(reply, Ok)]
    assert sum(taken) <= PRODUCTION.message_budget + 16
    assert min(taken) == 1, "zero would say that nothing is there"


def test_expiry_in_many_queues_goes_through_a_number_of_blocks() -> None:
    queues = PRODUCTION.block_budget + 10
    world, name = world_of(queues)
    for queue in range(1, queues + 1):
        world.publish(name, 1, queue=queue, ttl_ms=100)
    expired = []
    world.wake(passed_ms=1_000)
    while True:
        expired.append(
            sum(world.machine.queues[queue].messages.dropped["expired"] for queue in range(1, queues + 1))
        )
        if world.machine.next_wake() is None:
            break
        world.wake()
    assert expired == [PRODUCTION.block_budget, queues]


def test_a_member_that_restarts_between_two_queues_serves_them_in_the_same_order() -> None:
    world, name = world_of(3)
    for queue in (1, 2, 3):
        world.publish(
            name, 2 * PRODUCTION.run_budget, queue=queue, ttls_ms=different_ttls(2 * PRODUCTION.run_budget)
        )
    attach_to_all(world, name, 3)
    world.twin = world.restored(snapshot.encode(world.machine))
    world.wake_until_done()  # compares both after each entry
    assert not world.machine.backlog
