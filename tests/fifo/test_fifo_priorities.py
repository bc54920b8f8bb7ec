"""A queue with priorities: the highest first, and of one priority the oldest."""

from __future__ import annotations

from typing import Any

import pytest

from fifo.commands import (
    Attach,
    Commit,
    Credit,
    Enqueue,
    Get,
    Modify,
    OpenSubscription,
    Pin,
    Purge,
    Reserve,
    Return,
    Settle,
    Stage,
)
from fifo.effects import Deliver, Ok, Pinned, Refused
from fifo.limits import PRODUCTION, SMALL, Limits
from fifo.messages.ready_order import PriorityOrder, SequenceOrder
from fifo.persistence import snapshot
from fifo.queries import group as queries
from fifo.results import BrowsePage
from support.fifo.world import (
    World,
    bodies_of,
    in_transaction,
    nth_number,
    part_name,
    selector,
    sequences,
)

RED = {"application-properties.colour": "red"}
GREEN = {"application-properties.colour": "green"}


def prepared(limits: Limits = PRODUCTION, **arguments: Any) -> tuple[World, bytes]:
    world = World(limits, has_model=True)
    world.queue(**{"max_priority": 9, **arguments})
    return world, world.session()


def publish(world: World, name: bytes, priorities: str, **more: Any) -> list[int]:
    """A message for each digit. Returns the sequences that the entry has delivered."""
    own = bytes([int(digit) for digit in priorities])
    return sequences(world.publish(name, len(own), more.pop("rows", ()), priorities=own, **more))


def got(world: World, name: bytes, count: int) -> list[int]:
    return sequences(world.apply([world.op(name, Get(1, count, True))]))


# ---- the order


def test_the_highest_priority_is_first_and_of_one_priority_the_oldest() -> None:
    world, name = prepared()
    publish(world, name, "0305")
    publish(world, name, "53")
    _, applied = world.attach(name, "a", 100)
    assert sequences(applied) == [4, 5, 2, 6, 1, 3]
    assert world.info().total == 6


def test_a_consumer_with_little_credit_gets_the_most_urgent_each_time() -> None:
    world, name = prepared()
    publish(world, name, "123")
    _, applied = world.attach(name, "a", 1)
    assert sequences(applied) == [3]
    publish(world, name, "9")
    assert [sequences(world.apply([world.op(name, Credit(1, "a", to))])) for to in (2, 3, 4)] == [
        [4],
        [2],
        [1],
    ]


def test_the_order_holds_across_blocks() -> None:
    world, name = prepared(SMALL)
    for _ in range(4):
        publish(world, name, "012101")
    order: list[int] = []
    while world.info().ready:
        order += got(world, name, 3)
    levels = dict(enumerate("012101" * 4, 1))
    assert order == sorted(levels, key=lambda sequence: (-int(levels[sequence]), sequence))


def test_a_priority_above_the_highest_of_the_queue_is_lowered() -> None:
    world, name = prepared(max_priority=3)
    publish(world, name, "5349")
    assert dict(world.info().ready_levels) == {3: 4}
    assert got(world, name, 10) == [1, 2, 3, 4]


def test_a_batch_may_have_one_priority_for_all_messages() -> None:
    world, name = prepared()
    world.publish(name, 3)
    world.publish(name, 3, priorities=b"\x07")
    assert world.info().ready_levels == ((7, 3), (0, 3))
    assert got(world, name, 10) == [4, 5, 6, 1, 2, 3]


@pytest.mark.parametrize("answer", [Return, Modify])
def test_a_returned_message_keeps_its_priority_and_its_place(answer: type[Settle]) -> None:
    world, name = prepared()
    publish(world, name, "5275")
    attach, applied = world.attach(name, "a", 2)
    assert sequences(applied) == [3, 1]
    publish(world, name, "5")
    world.do(name, answer(1, "a", attach, ((1, 2),)))
    assert world.info().ready_levels == ((7, 1), (5, 3), (2, 1))
    assert got(world, name, 10) == [3, 1, 4, 5, 2]


def test_consumers_take_turns_as_in_any_queue() -> None:
    world, name = prepared()
    world.attach(name, "a", 100)
    world.attach(name, "b", 100)
    applied = world.publish(name, 4, priorities=b"\x01\x04\x03\x02")
    assert (sequences(applied, "a"), sequences(applied, "b")) == ([2, 3], [4, 1])


def test_a_queue_without_priorities_ignores_them() -> None:
    world, name = prepared(max_priority=-1)
    publish(world, name, "053")
    assert isinstance(world.machine.queues[1].messages.order, SequenceOrder)
    assert not world.machine.queues[1].messages.blocks.get(0).levels
    assert world.info().ready_levels == ()
    assert got(world, name, 10) == [1, 2, 3]


def test_each_queue_of_a_batch_lowers_the_priorities_by_itself() -> None:
    world, name = prepared(max_priority=2)
    world.queue(2, max_priority=9)
    world.queue(3)
    world.apply([world.routed(name, [(1, 2, 3), (1, 2), (2, 3), (1,)], priorities=bytes([1, 5, 9, 2]))])
    levels = {queue: world.info(queue).ready_levels for queue in (1, 2, 3)}
    assert levels == {1: ((2, 2), (1, 1)), 2: ((9, 1), (5, 1), (1, 1)), 3: ()}


# ---- what leaves


def test_drop_head_drops_the_oldest_of_the_lowest_priority() -> None:
    world, name = prepared(max_length=3)
    publish(world, name, "0505")
    assert got(world, name, 1) == [2]
    publish(world, name, "99")
    assert world.info().ready_levels == ((9, 2), (5, 1))
    publish(world, name, "1")
    assert world.info().ready_levels == ((9, 2), (5, 1))
    assert world.info().totals.maxlen == 3
    assert got(world, name, 10) == [5, 6, 4]


def test_a_full_queue_refuses_urgent_messages_too() -> None:
    world, name = prepared(max_length=2, overflow="reject_publish")
    publish(world, name, "00")
    publish(world, name, "9")
    assert world.info().ready_levels == ((0, 2),)


def test_messages_of_any_priority_expire() -> None:
    world, name = prepared()
    world.publish(name, 4, priorities=bytes([0, 9, 0, 9]), ttls_ms=(10, 10, -1, -1))
    world.wake(100)
    assert (world.info().ready_levels, world.info().totals.expired) == (((9, 1), (0, 1)), 2)
    assert got(world, name, 10) == [4, 3]


def test_a_purge_removes_all_priorities_also_of_cold_blocks() -> None:
    world, name = prepared(SMALL)
    for _ in range(5):
        publish(world, name, "012")
    world.machine.page_out(1, 0)
    world.machine.page_out(1, 1)
    assert world.info().ready_levels == ((2, 5), (1, 5), (0, 5))
    assert world.apply([(None, Purge(1, 10))]).replies == (Ok(9),)
    assert world.info().ready_levels == ((2, 2), (1, 2), (0, 2))
    order = world.machine.queues[1].messages.order
    assert isinstance(order, PriorityOrder)
    assert list(order.index) == [(-2, 1), (-1, 1), (0, 1)]


def test_a_message_that_failed_too_often_leaves() -> None:
    world, name = prepared(delivery_limit=0)
    publish(world, name, "19")
    attach, _ = world.attach(name, "a", 1)
    world.do(name, Modify(1, "a", attach, ((1, 1),), delivery_failed=True))
    assert (world.info().ready_levels, world.info().totals.delivery_limit) == (((1, 1),), 1)


# ---- looking, pinning, reserving, staging


@pytest.mark.parametrize("message_groups", [False, True])
def test_a_browse_is_by_sequence_and_what_comes_next_is_by_priority(message_groups: bool) -> None:
    world, name = prepared(message_groups=message_groups)
    publish(world, name, "0505")
    page = queries.browse(world.machine, 1, 0, 10)
    assert isinstance(page, BrowsePage)
    assert [body[0] for body in bodies_of(page.runs)] == [1, 2, 3, 4]
    for limit, wanted in ((10, [2, 4, 1, 3]), (3, [2, 4, 1]), (1, [2])):
        found = queries.upcoming(world.machine, 1, limit)
        assert isinstance(found, BrowsePage)
        assert [body[0] for body in bodies_of(found.runs)] == wanted
    assert isinstance(queries.upcoming(world.machine, 7, 1), Refused)


def test_a_pin_shows_all_priorities_by_sequence() -> None:
    world, name = prepared()
    publish(world, name, "0505")
    pin = world.do(name, Pin(1, 60_000))
    assert isinstance(pin, Pinned)
    assert (pin.first_sequence, pin.count) == (1, 4)
    got(world, name, 3)
    page = queries.pinned(world.machine, 1, pin.pin, 0, 100, 10)
    assert isinstance(page, BrowsePage)
    assert [body[0] for body in bodies_of(page.runs)] == [1, 2, 3, 4]


@pytest.mark.parametrize("text", ["", "colour = 'red'"])
def test_a_reservation_is_by_sequence(text: str) -> None:
    world, name = prepared(filter_enabled=True)
    publish(world, name, "0505", rows=[RED] * 4)
    world.do(name, OpenSubscription(1, "spark", selector(text), "earliest", 60_000, "keep"))
    world.do(name, Reserve(1, "spark", nth_number(1), 0, 3, 10_000))
    page = queries.reserved(world.machine, 1, "spark", 1, 0, 10)
    assert not isinstance(page, Refused)
    assert [body[0] for body in bodies_of(page.runs)] == [1, 2, 3]
    assert got(world, name, 10) == [4]


def test_staged_messages_have_their_priorities_when_they_are_published() -> None:
    world, name = prepared(max_priority=3)
    world.stage(name, 1, 1, 0, 3, priorities=bytes([1, 9, 0]))
    world.stage(name, 1, 1, 1, 2)
    world.stage(name, 1, 2, 0, 2, priorities=b"\x02", ttls_ms=(50, -1))
    world.machine = world.restored(snapshot.encode(world.machine))
    world.publish_staged(name, 1, (1, 5), (2, 2))
    assert world.info().ready_levels == ((3, 1), (2, 2), (1, 1), (0, 3))
    assert got(world, name, 10) == [2, 6, 7, 1, 3, 4, 5]


def test_messages_of_a_transaction_have_their_priorities_when_it_commits() -> None:
    world, name = prepared(max_priority=3)
    world.queue(2, max_priority=3)
    world.apply([in_transaction(1, world.batch(name, 3, priorities=bytes([1, 9, 0]), first=0))])
    world.apply([in_transaction(1, world.batch(name, 2, priorities=b"\x02", first=0))])
    world.apply([in_transaction(1, world.routed(name, [(1,), (2,)], priorities=b"\x03"))])
    world.machine = world.restored(snapshot.encode(world.machine))
    world.do(name, Commit(1))
    assert world.info().ready_levels == ((3, 2), (2, 2), (1, 1), (0, 1))
    assert world.info(2).ready_levels == ((3, 1),)
    assert got(world, name, 10) == [2, 6, 4, 5, 1, 3]


def test_a_queue_without_priorities_keeps_none_of_staged_messages() -> None:
    world, name = prepared(max_priority=-1)
    plain, other = prepared(max_priority=-1)
    world.stage(name, 1, 1, 0, 3, priorities=bytes([1, 9, 0]))
    plain.stage(other, 1, 1, 0, 3)
    assert snapshot.encode(world.machine) == snapshot.encode(plain.machine)


# ---- selectors


def test_of_its_matches_a_consumer_gets_the_most_urgent() -> None:
    world, name = prepared(filter_enabled=True)
    publish(world, name, "195319", rows=[RED, GREEN, RED, RED, RED, RED])
    _, applied = world.attach(name, "red", 2, "colour = 'red'")
    assert sequences(applied) == [6, 3]
    publish(world, name, "8", rows=[RED])
    assert sequences(world.apply([world.op(name, Credit(1, "red", 4))])) == [7, 4]
    _, applied = world.attach(name, "all", 10)
    assert sequences(applied) == [2, 1, 5]


def test_a_match_far_behind_is_found_before_less_urgent_ones_are_handed_out() -> None:
    world, name = prepared(filter_enabled=True)
    for _ in range(3):
        publish(world, name, "0" * 20, rows=[RED] * 20)
    publish(world, name, "5", rows=[RED])
    _, applied = world.attach(name, "red", 1, "colour = 'red'")
    assert sequences(applied) == [61]


def test_a_scan_that_the_budget_ends_hands_out_the_most_urgent_that_it_has_found() -> None:
    world, name = prepared(SMALL, filter_enabled=True)
    for _ in range(12):
        publish(world, name, "00010", rows=[RED] * 5)
    publish(world, name, "5", rows=[RED])
    world.attach(name, "red", 0, "colour = 'red'")
    given = []
    for credit in range(1, 41):
        given += sequences(world.apply([world.op(name, Credit(1, "red", credit))]))
    assert len(given) == 40, "it waits for no end of the scan"
    assert 61 in given, "the scan goes further than the deliveries"


def test_a_requeued_match_is_first_again() -> None:
    world, name = prepared(filter_enabled=True)
    publish(world, name, "529", rows=[RED, RED, GREEN])
    attach, applied = world.attach(name, "red", 1, "colour = 'red'")
    assert sequences(applied) == [1]
    applied = world.apply([world.op(name, Return(1, "red", attach, ((1, 1),), 3))])
    assert sequences(applied) == [1, 2]


# ---- state


def test_a_state_with_priorities_goes_through_pages_checkpoints_and_snapshots() -> None:
    world, name = prepared(SMALL)
    publish(world, name, "012345678901234567")
    attach, _ = world.attach(name, "a", 4)
    world.twin = world.restored(snapshot.encode(world.machine))
    for number in (0, 1, 2):
        world.twin.page_out(1, number)
    assert queries.info(world.twin, 1) == world.info()
    world.do(name, Settle(1, "a", attach, ((1, 2),)))
    taken = world.checkpointer(world.twin).take()
    world.twin = world.resumed(taken.state, world.twin.memory.pages)
    assert queries.info(world.twin, 1) == world.info()
    world.do(name, Return(1, "a", attach, ((3, 4),)))
    publish(world, name, "99")
    while world.info().ready:
        got(world, name, 3)


@pytest.mark.parametrize(
    "command",
    [
        Enqueue(1, 1, 1, 3, 300, priorities=b"\x01\x02"),
        Enqueue(1, 1, 1, 1, 300, priorities=b"\x01\x02"),
        Stage(1, "writer", 1, part_name(1), 0, 3, 300, priorities=b"\x01\x02"),
    ],
)
def test_priorities_are_one_for_all_messages_or_one_each(command: Enqueue | Stage) -> None:
    world = World()
    world.queue(max_priority=9)
    reply = world.do(world.session(), command)
    assert isinstance(reply, Refused)
    assert (reply.reason, reply.detail) == ("bad_argument", f"2 priorities for {command.count} messages")


def test_a_delivery_lists_its_messages_in_the_order_of_its_tags() -> None:
    world, name = prepared()
    publish(world, name, "0011")
    attach, applied = world.attach(name, "a", 10)
    [effect] = applied.effects
    assert isinstance(effect, Deliver)
    assert [(run.first_sequence, run.count) for run in effect.runs] == [(3, 2), (1, 2)]
    world.do(name, Settle(1, "a", attach, ((1, 2),)))
    assert world.info().first_sequence == 1
    world.do(name, Attach(1, "b", b"", 10))
    assert world.info().checked_out == 2
