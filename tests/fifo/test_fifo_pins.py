"""Pins: what was ready stays to be read, whatever becomes of it."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest

from fifo import pins
from fifo.commands import UNKNOWN, DeleteQueue, Get, Pin, Purge, Return, Settle, Unpin, UpdateConfig
from fifo.effects import Ok, Pinned, Refused
from fifo.group_machine import GroupMachine
from fifo.limits import PRODUCTION, SMALL, Limits
from fifo.persistence import snapshot
from fifo.persistence.references import references
from fifo.queries import group as queries
from fifo.results import BrowsePage
from support.fifo.local_parts import drop_columns, drop_summaries
from support.fifo.world import World, bodies_of, nth_number, selector

HOUR_MS = 3600 * 1000


@pytest.fixture
def world() -> World:
    return world_of(PRODUCTION)


def world_of(limits: Limits) -> World:
    found = World(limits)
    found.queue(filter_enabled=True)
    found.session()
    return found


def name_of(world: World) -> bytes:
    return next(iter(world.epochs))


def pin(world: World, ttl_ms: int = HOUR_MS, owner: int = UNKNOWN) -> Pinned:
    reply = world.do(name_of(world), Pin(1, ttl_ms, owner))
    assert isinstance(reply, Pinned)
    return reply


def pins_of(machine: GroupMachine) -> list[pins.QueuePin]:
    return list(machine.queues[1].pins.by_number.values())


def shown(machine: GroupMachine, made: Pinned, text: str = "", limit: int = 1 << 30) -> list[tuple[int, ...]]:
    """Everything that a pin shows: (sequence, index, operation, ordinal)."""
    found: list[tuple[int, ...]] = []
    place: int | None = made.first_sequence
    while place is not None:
        page = queries.pinned(machine, 1, made.pin, place, made.end_sequence, limit, selector(text))
        assert isinstance(page, BrowsePage)
        found += bodies_of(page.runs)
        place = page.next_sequence
    return found


def waiting(world: World) -> list[tuple[int, ...]]:
    page = queries.browse(world.machine, 1, 0, 1 << 30)
    assert isinstance(page, BrowsePage)
    assert page.next_sequence is None
    return list(bodies_of(page.runs))


def refusal(reply: object) -> str:
    assert isinstance(reply, Refused)
    assert reply.detail
    return reply.reason


def test_a_pin_shows_what_was_ready_whatever_comes_after(world: World) -> None:
    name = name_of(world)
    world.publish(name, 10, ttl_ms=5_000)
    attach, _ = world.attach(name, "a", 3)  # holds 1..3, which are not ready then
    before = waiting(world)
    made = pin(world)
    assert made == Pinned(nth_number(1), world.index, 1, 11, 7)
    config = world.machine.config_of(1)
    assert config is not None
    for happening in (
        lambda: world.publish(name, 5),
        lambda: world.do(name, Settle(1, "a", attach, ((1, 1),), credit_to=6)),
        lambda: world.session(1, epoch=2),  # what was held comes back
        lambda: world.do(name, Get(1, 2, settled=True)),
        lambda: world.apply([(None, UpdateConfig(1, replace(config, max_length=6)))]),
        lambda: world.wake(10_000),  # expired
        lambda: world.apply([(None, Purge(1))]),
        lambda: world.publish(name, 5),
    ):
        happening()
        assert shown(world.machine, made) == before
        assert shown(world.machine, made, limit=2) == before
    assert [body[0] for body in waiting(world)] == [16, 17, 18, 19, 20]


def test_what_was_held_then_and_comes_back_is_not_shown(world: World) -> None:
    name = name_of(world)
    world.publish(name, 4)
    attach, _ = world.attach(name, "a", 2)
    made = pin(world)
    world.do(name, Return(1, "a", attach, ((1, 2),)))
    assert [body[0] for body in waiting(world)] == [1, 2, 3, 4]
    assert [body[0] for body in shown(world.machine, made)] == [3, 4]


def test_only_a_part_of_what_is_pinned_may_be_asked_for(world: World) -> None:
    world.publish(name_of(world), 10)
    made = pin(world)
    world.apply([(None, Purge(1))])
    page = queries.pinned(world.machine, 1, made.pin, 3, 7, 100)
    assert [body[0] for body in bodies_of(page.runs)] == [3, 4, 5, 6]  # type: ignore[union-attr]
    assert page.next_sequence is None  # type: ignore[union-attr]
    page = queries.pinned(world.machine, 1, made.pin, 0, 1 << 60, 4)
    assert ([body[0] for body in bodies_of(page.runs)], page.next_sequence) == ([1, 2, 3, 4], 5)  # type: ignore[union-attr]
    assert refusal(queries.pinned(world.machine, 9, made.pin, 0, 1, 1)) == "not_found"
    assert refusal(queries.pinned(world.machine, 1, made.pin, 0, 1, 1, b"rubbish")) == "bad_argument"


def test_a_page_has_a_limited_number_of_runs() -> None:
    world = world_of(replace(PRODUCTION, page_runs=3))
    for count in (1, 1, 4, 2, 1, 1, 1):  # each batch is a run
        world.publish(name_of(world), count)
    made = pin(world)
    pages: list[list[int]] = []
    place: int | None = made.first_sequence
    while place is not None:
        page = queries.pinned(world.machine, 1, made.pin, place, made.end_sequence, 1 << 30)
        assert isinstance(page, BrowsePage)
        pages.append([run.count for run in page.runs])
        place = page.next_sequence
    assert pages == [[1, 1, 4], [2, 1, 1], [1]]
    assert [body[0] for body in shown(world.machine, made)] == list(range(1, 12))


def test_a_page_of_fragments_ends_after_the_runs_of_a_page() -> None:
    world = world_of(PRODUCTION)
    world.checks = False
    name = name_of(world)
    count = 3 * PRODUCTION.page_runs
    world.publish(name, 2 * count, ttls_ms=tuple([HOUR_MS + 2 * number for number in range(2 * count)]))
    made = pin(world)
    page = queries.pinned(world.machine, 1, made.pin, 0, made.end_sequence, 16_384)
    assert isinstance(page, BrowsePage)
    assert (len(page.runs), page.next_sequence) == (PRODUCTION.page_runs, PRODUCTION.page_runs + 1)


def test_a_selector_over_a_pin_sees_the_fields_of_what_is_gone(world: World) -> None:
    world.checks = False
    rows = [{"application-properties.colour": ("red", "green")[i % 2]} for i in range(PRODUCTION.block_size)]
    world.publish(name_of(world), PRODUCTION.block_size, rows)
    made = pin(world)
    world.do(name_of(world), Get(1, 10_000, settled=True))
    world.publish(name_of(world), PRODUCTION.block_size, rows)
    world.machine.page_out(1, 0)
    for _ in range(2):
        assert len(shown(world.machine, made, "colour = 'red'")) == PRODUCTION.block_size // 2
        drop_columns(world.machine)
        drop_summaries(world.machine)


def test_blocks_that_are_pinned_live_on_cold_in_snapshots_and_checkpoints(world: World) -> None:
    world.checks = False
    name = name_of(world)
    for _ in range(6):
        world.publish(name, PRODUCTION.block_size // 2)
    before = waiting(world)
    entries = sorted({body[1] for body in before})
    made = pin(world)
    for block in world.machine.queues[1].messages.blocks.warm():
        world.machine.page_out(1, block.number)
    world.apply([(None, Purge(1))])
    assert world.info().total == 0
    for block in world.machine.queues[1].messages.blocks.warm():
        world.machine.page_out(1, block.number)
    assert list(references(snapshot.encode(world.machine))) == entries
    found = world.checkpointer(world.machine).take()
    assert list(found.entries) == entries
    for again in (
        world.machine,
        world.restored(snapshot.encode(world.machine)),
        world.resumed(found.state, world.machine.memory.pages),
    ):
        assert shown(again, made) == before
        assert list(map(astuple, pins_of(again))) == list(map(astuple, pins_of(world.machine)))
    assert world.do(name, Unpin(1, made.pin)) == Ok()
    assert list(references(snapshot.encode(world.machine))) == []
    assert refusal(queries.pinned(world.machine, 1, made.pin, 0, 100, 1)) == "not_found"
    assert len(world.machine.queues[1].messages.blocks) == 1
    assert world.do(name, Unpin(1, made.pin)) == Ok()


def test_a_purge_of_cold_delayed_messages_leaves_what_a_pin_shows() -> None:
    world = World(SMALL)
    world.queue(delayed_retry_min_ms=100)
    name = world.session()
    world.publish(name, 16)
    before = waiting(world)
    made = pin(world)
    attach, _ = world.attach(name, "a", 8)
    while held := world.info().checked_out:
        world.do(name, Return(1, "a", attach, ((1, held),)))
    assert world.info().delayed == 8
    world.machine.page_out(1, 0)
    world.apply([(None, Purge(1))])
    assert world.info().total == 0
    assert shown(world.machine, made) == before


def test_a_pin_reads_no_page_and_consumers_pass_what_is_pinned_alone(world: World) -> None:
    world.checks = False
    name = name_of(world)
    for _ in range(4):
        world.publish(name, PRODUCTION.block_size)
    machine = world.machine
    for block in machine.queues[1].messages.blocks.warm():
        machine.page_out(1, block.number)
    loads = machine.memory.loads
    made = pin(world)
    assert machine.memory.loads == loads
    attach, _ = world.attach(name, "a", 3 * PRODUCTION.block_size)
    world.wake_until_done()
    world.do(name, Settle(1, "a", attach, ((1, 3 * PRODUCTION.block_size),)))
    for block in machine.queues[1].messages.blocks.warm():
        machine.page_out(1, block.number)
    loads = machine.memory.loads
    world.do(name, Get(1, 10, settled=True))
    assert machine.memory.loads == loads + 1
    assert len(shown(machine, made)) == 4 * PRODUCTION.block_size


def test_a_pin_ends_after_its_time(world: World) -> None:
    world.publish(name_of(world), 3)
    made = pin(world, 1_000)
    world.apply([(None, Purge(1))])
    assert world.machine.next_wake() == made_at(world, made) + 1_000
    world.wake(998)
    assert len(shown(world.machine, made)) == 3
    world.wake(1)
    assert refusal(queries.pinned(world.machine, 1, made.pin, 0, 100, 1)) == "not_found"
    assert pins_of(world.machine) == []
    assert world.machine.next_wake() is None


def made_at(world: World, made: Pinned) -> int:
    return world.machine.queues[1].pins.by_number[made.pin].made_ms


def test_the_copies_of_a_pin_over_many_blocks_are_removed_in_several_entries(world: World) -> None:
    world.checks = False
    name = name_of(world)
    for _ in range(70):
        world.publish(name, PRODUCTION.block_size)
    made = pin(world)
    for _ in range(2):  # 71 blocks; one purge passes 64
        world.apply([(None, Purge(1))])
    world.do(name, Unpin(1, made.pin))
    blocks = world.machine.queues[1].messages.blocks
    assert len(blocks) == 7  # of 71, 64 went in the entry of Unpin
    assert world.machine.next_wake() == world.now_ms
    world.machine = world.restored(snapshot.encode(world.machine))
    world.wake_until_done()
    assert len(world.machine.queues[1].messages.blocks) == 1
    assert world.machine.next_wake() is None


def test_of_two_pins_each_shows_its_own_time(world: World) -> None:
    name = name_of(world)
    world.publish(name, 4)
    first = pin(world)
    world.do(name, Get(1, 2, settled=True))
    second = pin(world)
    world.publish(name, 2)
    world.apply([(None, Purge(1))])
    assert [body[0] for body in shown(world.machine, first)] == [1, 2, 3, 4]
    assert [body[0] for body in shown(world.machine, second)] == [3, 4]
    world.do(name, Unpin(1, first.pin))
    assert [body[0] for body in shown(world.machine, second)] == [3, 4]
    assert [each.number for each in pins_of(world.machine)] == [second.pin]


def test_the_oldest_pin_ends_where_copies_take_too_much() -> None:
    world = world_of(replace(PRODUCTION, max_copy_bytes=70))
    name = name_of(world)
    world.publish(name, 5)
    first, second = pin(world), pin(world)
    world.do(name, Get(1, 1, settled=True))
    assert [each.copy_bytes for each in pins_of(world.machine)] == [33, 33]
    third = pin(world)
    world.do(name, Get(1, 1, settled=True))
    answer = queries.pinned(world.machine, 1, first.pin, 0, 100, 1)
    assert refusal(answer) == "not_found"
    assert "70 bytes" in answer.detail  # type: ignore[union-attr]
    assert len(shown(world.machine, second)) == 5
    assert len(shown(world.machine, third)) == 4


@pytest.mark.parametrize("ttl_ms", [999, 0, pins.MAX_TTL_MS + 1])
def test_a_time_that_is_not_allowed_is_told(world: World, ttl_ms: int) -> None:
    reply = world.do(name_of(world), Pin(1, ttl_ms))
    assert refusal(reply) == "bad_argument"
    assert "1000 to 86400000" in reply.detail  # type: ignore[union-attr]


def test_a_queue_has_so_many_pins_and_takes_them_along(world: World) -> None:
    world.publish(name_of(world), 5)
    owners = [77] * 8 + [78] * 4 + [79] * 2 + [80, 81]
    made = [pin(world, owner=owner) for owner in owners]
    assert refusal(world.do(name_of(world), Pin(1, HOUR_MS, 82))) == "limit"
    world.do(name_of(world), Unpin(1, made[3].pin))
    assert pin(world, owner=82).pin == nth_number(PRODUCTION.max_pins + 1)  # numbers are not used again
    world.apply([(None, Purge(1)), (None, DeleteQueue(1))])
    assert not world.machine.queues
    assert refusal(queries.pinned(world.machine, 1, made[0].pin, 0, 9, 9)) == "not_found"
    assert list(references(snapshot.encode(world.machine))) == []
    commands: list[Any] = [Pin(1, HOUR_MS), Unpin(1, 1)]
    for command in commands:
        assert refusal(world.do(name_of(world), command)) == "not_found"


def test_one_owner_has_as_many_pins_as_are_left_free_and_the_others_still_come_in(world: World) -> None:
    for _ in range(8):
        pin(world, owner=77)
    world.machine = world.restored(snapshot.encode(world.machine))
    assert refusal(world.do(name_of(world), Pin(1, HOUR_MS, 77))) == "limit"
    assert pin(world, owner=78).pin == nth_number(9)


def test_a_pin_of_an_empty_queue_shows_nothing(world: World) -> None:
    made = pin(world)
    assert (made.first_sequence, made.end_sequence, made.count) == (1, 1, 0)
    world.publish(name_of(world), 3)
    assert shown(world.machine, made) == []
