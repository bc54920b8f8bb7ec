"""Batches for several queues: each message reaches all its queues or none, once, and its one body stays readable."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fifo import queue_machine
from fifo.commands import (
    NODE,
    Attach,
    CloseSession,
    DeleteQueue,
    Enqueue,
    Get,
    Purge,
    Settle,
    Target,
    UpdateConfig,
)
from fifo.effects import Confirmed, Deliver, Refused, Reply
from fifo.limits import PRODUCTION, SMALL, Limits
from fifo.messages.pages import MemoryPages
from fifo.number_ranges import NumberRanges
from fifo.persistence import checkpoint, snapshot
from fifo.persistence.references import references
from fifo.producers import Producer
from fifo.queries import group as queries
from fifo.targets import without
from quorum_selectors.columns import BatchColumns, decode
from support.fifo.local_parts import drop_columns
from support.fifo.world import World, bodies, plain_reply, selector, sequences

SHARED = replace(PRODUCTION, max_ranges=14)
RED = {"application-properties.colour": "red"}
GREEN = {"application-properties.colour": "green"}


def prepared(limits: Limits = PRODUCTION, queues: int = 3, **arguments: Any) -> tuple[World, bytes]:
    world = World(limits, has_model=True)
    for queue in range(1, queues + 1):
        world.queue(queue, **arguments)
    return world, world.session()


def ready(world: World) -> list[int]:
    return [world.info(queue).ready for queue in sorted(world.machine.queues)]


def routed(world: World, name: bytes, routes: list[tuple[int, ...]], *rest: Any, **more: Any) -> Reply | None:
    return world.apply([world.routed(name, routes, *rest, **more)]).replies[0]


def got(world: World, name: bytes, queue: int, count: int = 10) -> list[tuple[int, int, int, int]]:
    """(sequence, index, operation, ordinal) of what a get takes."""
    applied = world.apply([world.op(name, Get(queue, count, True))])
    return [body for effect in applied.effects if isinstance(effect, Deliver) for body in bodies(effect)]


def test_a_message_is_in_each_of_its_queues_and_has_one_body() -> None:
    world, name = prepared()
    assert routed(world, name, [(1,), (1, 2), (2,), (1,)]) == Confirmed(1, 4)
    index = world.index
    assert got(world, name, 1) == [(1, index, 0, 0), (2, index, 0, 1), (3, index, 0, 3)]
    assert got(world, name, 2) == [(1, index, 0, 1), (2, index, 0, 2)]
    assert ready(world) == [0, 0, 0]


def test_a_batch_that_comes_again_is_taken_once() -> None:
    world, name = prepared()
    routes: list[tuple[int, ...]] = [(1,), (1, 2), (2,)]
    routed(world, name, routes)
    assert routed(world, name, routes, numbers=[1, 2, 3]) == Confirmed(1, 3)
    name = world.session(epoch=2)
    assert routed(world, name, routes, numbers=[1, 2, 3]) == Confirmed(1, 3)
    assert ready(world) == [2, 2, 0]


def test_a_message_that_was_confirmed_is_not_taken_again_when_a_late_copy_comes() -> None:
    """The copy says itself that the message is not confirmed yet. It is the last one that was accepted."""
    world, name = prepared(max_length=2, overflow="reject_publish")
    first = world.routed(name, [(1,), (1,)])
    assert world.apply([first]).replies == (Confirmed(1, 2),)
    assert plain_reply(routed(world, name, [(1,)], independent=True)) == (3, 3, [(3, "queue_full")])
    assert len(got(world, name, 1)) == 2
    assert world.apply([world.op(name, first[1])]).replies == (Confirmed(1, 2),)
    assert ready(world) == [0, 0, 0]


def test_numbers_between_those_of_a_batch_were_not_taken() -> None:
    world, name = prepared()
    assert routed(world, name, [(1,), (1,), (2,)], numbers=[1, 3, 4], lowest_unconfirmed=1) == Confirmed(1, 4)
    assert world.machine.taken(name, 1, 1, 9) == ([(1, 1), (3, 4)], 4)
    late = routed(world, name, [(1,), (2,)], numbers=[2, 5], lowest_unconfirmed=1)
    assert plain_reply(late) == (2, 5, [(2, "refused_earlier")])
    assert world.machine.taken(name, 1, 1, 9) == ([(1, 1), (3, 5)], 5)


def test_an_independent_batch_loses_only_what_a_queue_refuses() -> None:
    world, name = prepared()
    world.apply(
        [
            (
                None,
                UpdateConfig(
                    2,
                    replace(world.machine.queues[2].messages.config, max_length=1, overflow="reject_publish"),
                ),
            )
        ]
    )
    reply = routed(world, name, [(1,), (2,), (1, 2), (9,), (1,), (1, 9), (3,)], independent=True)
    assert plain_reply(reply) == (1, 7, [(3, "queue_full"), (4, "not_found"), (6, "not_found")])
    assert ready(world) == [2, 1, 1]


@pytest.mark.parametrize("independent", [True, False])
def test_a_queue_that_was_deleted_takes_a_message_from_no_other_queue(independent: bool) -> None:
    world, name = prepared()
    world.apply([(None, DeleteQueue(2))])
    reply = routed(world, name, [(1, 2), (2, 3), (1,), (1, 2, 3)], independent=independent)
    assert plain_reply(reply) == (1, 4, [])
    assert ready(world) == [3, 2]
    reply = routed(world, name, [(1, 2), (2,)], independent=True)
    assert plain_reply(reply) == (5, 6, [(6, "not_found")])  # it has no queue left


def test_deleted_queues_of_a_batch_are_not_compared_with_each_of_its_targets() -> None:
    """A batch may have thousands of targets, and all of their queues may be deleted while it is on its way."""

    class Place(int):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Place.compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    places = tuple([Place(each) for each in range(1_000)])
    gone = [int(each) for each in places[1:]]
    assert without([(0, 5, places), (5, 1, places[1:])], gone) == [(0, 5, (0,)), (5, 1, places[1:])]
    assert Place.compared < 10_000


def full(queues: int) -> tuple[World, bytes]:
    """No queue has room but the last one."""
    world, name = prepared(queues=0)
    for queue in range(1, queues + 1):
        world.queue(queue, overflow="reject_publish", max_length=0 if queue < queues else -1)
    return world, name


def test_queues_that_refuse_for_the_same_cause_make_one_range_of_refused_messages() -> None:
    world, name = full(3)
    reply = routed(world, name, [(1,), (2,)] * 10 + [(3,)] + [(2,), (1,)] * 10, independent=True)
    assert isinstance(reply, Confirmed)
    assert [(first, last) for first, last, _ in reply.refused] == [(1, 20), (22, 41)]
    assert reply.refused[0][2] == Refused("queue_full", "0 messages are ready, 1 would be; allowed: 0")
    numbers = [*range(101, 141, 2), *range(141, 151)]
    reply = routed(world, name, [(1,), (2,)] * 15, numbers=numbers, independent=True)
    assert isinstance(reply, Confirmed)
    assert [(first, last) for first, last, _ in reply.refused][-2:] == [(139, 139), (141, 150)]


def test_a_queue_refuses_all_its_messages_of_a_batch_with_one_object() -> None:
    world, name = full(2)
    reply = routed(world, name, [(1,), (2,), (9,), (2,)] * 10, independent=True)
    assert isinstance(reply, Confirmed) and len(reply.refused) == 20
    assert len({id(why) for _, _, why in reply.refused}) == 2


@pytest.mark.parametrize(
    ("route", "why"), [((2,), "queue_full"), ((1, 2), "queue_full"), ((1, 9), "not_found")]
)
def test_another_batch_is_taken_or_refused_whole(route: tuple[int, ...], why: str) -> None:
    world, name = prepared()
    world.apply(
        [
            (
                None,
                UpdateConfig(
                    2,
                    replace(world.machine.queues[2].messages.config, max_length=0, overflow="reject_publish"),
                ),
            )
        ]
    )
    reply = routed(world, name, [(1,), route, (3,)])
    assert plain_reply(reply) == (1, 3, [(1, why), (2, why), (3, why)])
    assert ready(world) == [0, 0, 0]
    assert routed(world, name, [(1,), (3,)]) == Confirmed(4, 5)


def test_each_queue_keeps_its_own_fields() -> None:
    """Also when they are read again: of messages whose places in the batch and among the queue's differ."""
    world, name = prepared(filter_enabled=True)
    world.queue(4)
    rows = [RED, GREEN, RED, {}, GREEN]
    world.apply([world.routed(name, [(4,), (1, 2, 4), (2,), (1, 2), (1, 4)], rows, plain=(4,))])
    for _ in range(2):
        for queue, found in ((1, [1, 3]), (2, [1])):
            page = queries.browse(world.machine, queue, 0, 10, selector("colour = 'green'"))
            assert not isinstance(page, Refused)
            assert [run.first_sequence + i for run in page.runs for i in range(run.count)] == found
        drop_columns(world.machine)
    applied = world.apply([world.op(name, Attach(2, "c", selector("colour = 'red'"), 5))])
    assert sequences(applied) == [2]


def test_equal_fields_of_several_queues_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world, name = prepared(filter_enabled=True)
    decoded = []

    def counted(encoded: bytes, count: int) -> BatchColumns:
        decoded.append(encoded)
        return decode(encoded, count)

    monkeypatch.setattr(queue_machine, "decode", counted)
    world.checks = False
    routed(world, name, [(1, 2, 3), (1, 2)], [RED, GREEN])
    assert len(decoded) == 2
    for queue, text in ((1, "green"), (2, "green"), (3, "red")):
        _, applied = world.attach(name, f"c{queue}", 5, f"colour = '{text}'", queue=queue)
        assert len(sequences(applied)) == 1


def test_a_single_message_for_several_queues_has_its_fields_there() -> None:
    world, name = prepared(filter_enabled=True)
    for row in (RED, GREEN, RED):
        world.apply([world.routed(name, [(1, 3)], [row])])
    drop_columns(world.machine)
    assert sequences(world.attach(name, "c", 5, "colour = 'red'", queue=3)[1]) == [1, 3]


def test_times_to_live_are_those_of_the_messages() -> None:
    world, name = prepared()
    routed(world, name, [(1,), (1, 2), (2,)], ttls_ms=(5, 500, 5))
    world.wake(passed_ms=10)
    assert ready(world) == [1, 1, 0]


def test_a_body_is_kept_until_no_queue_needs_it() -> None:
    """Snapshots, checkpoints and a restart know it, by whichever queue still has it."""
    world, name = prepared()
    routed(world, name, [(1, 2), (1,)])
    index = world.index

    def kept() -> bool:
        found = world.checkpointer(world.machine).take().entries
        assert references(snapshot.encode(world.machine)) == found
        return index in list(found)

    attach, _ = world.attach(name, "c", 5)
    world.do(name, Settle(1, "c", attach, ((1, 2),)))
    assert kept()
    world.machine = world.restored(snapshot.encode(world.machine))
    world.model = None
    assert kept()
    pages = MemoryPages()
    state = checkpoint.Checkpointer(paged := world.restored(snapshot.encode(world.machine))).take().state
    pages = paged.memory.pages  # type: ignore[assignment]
    world.machine = world.resumed(state, pages)
    assert kept()
    assert got(world, name, 2) == [(1, index, 0, 0)]
    assert not kept()


def test_more_ranges_of_numbers_than_a_producer_may_have_are_refused() -> None:
    world, name = prepared(replace(SMALL, max_targeted=100))
    numbers = list(range(1, 2 * SMALL.max_accepted + 1, 2))
    routed(world, name, [(1,)] * len(numbers), numbers=numbers, lowest_unconfirmed=1)
    more = routed(world, name, [(1,), (1,)], numbers=[numbers[-1] + 2, numbers[-1] + 4], lowest_unconfirmed=1)
    assert {reason for _, reason in plain_reply(more)[2]} == {"limit"}
    alone = world.apply([world.batch(name, 1, first=numbers[-1] + 6, lowest_unconfirmed=1)]).replies[0]
    assert isinstance(alone, Refused) and alone.reason == "limit"
    assert "publish on when 1 is confirmed" in alone.detail
    assert routed(world, name, [(1,)], numbers=[numbers[-1] + 1], lowest_unconfirmed=1) == Confirmed(10, 10)
    first = numbers[-1] + 10
    assert isinstance(
        world.apply([world.batch(name, 1, first=first, lowest_unconfirmed=4)]).replies[0], Confirmed
    )


class Looked(array):  # type: ignore[type-arg]
    """Numbers that count how often one of them is looked at."""

    count = 0

    def __getitem__(self, place: Any) -> Any:
        self.count += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[int]:
        for each in super().__iter__():
            self.count += 1
            yield each


def test_no_range_of_a_batch_walks_along_all_ranges_that_a_producer_has() -> None:
    known = Producer(b"", 1, None)  # type: ignore[arg-type]
    firsts, lasts = Looked("Q", range(1, 8_192, 2)), Looked("Q", range(1, 8_192, 2))
    known.accepted.firsts, known.accepted.lasts = firsts, lasts
    late = [(ordinal, 2, 4_097 + 4 * ordinal) for ordinal in range(1_000)]
    new = [(1_000 + ordinal, 1, 8_193 + 2 * ordinal) for ordinal in range(1_000)]
    fresh = list(known.fresh_numbers([*late, *new], 1))
    assert fresh == [(ordinal + 1, 1, first + 1) for ordinal, _, first in late] + new
    assert known.taken(8_189, 8_192) == [(8_189, 8_189), (8_191, 8_191)]
    assert firsts.count + lasts.count < 30_000


def test_the_ranges_of_a_producer_that_a_message_adds_are_counted_exactly() -> None:
    known = Producer(b"", 1, None, accepted=NumberRanges([(1, 2), (4, 5), (7, 9)]))  # type: ignore[arg-type]
    assert known.ranges_with([(10, 12), (14, 14)], 0) == (3, 1)
    assert known.ranges_with([(11, 12), (14, 14)], 0) == (3, 2)
    assert known.ranges_with([(11, 12), (14, 14)], 3) == (2, 2)
    assert known.ranges_with([(10, 12)], 10) == (0, 1)


def gaps(world: World, name: bytes, count: int) -> list[tuple[int, str]]:
    """Publishes messages with so many gaps between their numbers. Which of them are refused, and why."""
    first = world.sequences.get(name, 1)
    numbers = range(first, first + 2 * count + 1, 2)
    reply = plain_reply(routed(world, name, [(1,)] * len(numbers), numbers=numbers, lowest_unconfirmed=1))
    refused: list[tuple[int, str]] = reply[2]
    return refused


def test_owners_share_the_ranges_of_all_producers() -> None:
    world, _ = prepared(SHARED)
    names = [world.session(10 + number, owner=10 + number // 2) for number in range(8)]
    assert gaps(world, names[0], 4) == gaps(world, names[1], 3) == []
    assert {why for _, why in gaps(world, names[0], 1)} == {"limit"}, "the first owner has 7 of 14"
    assert gaps(world, names[2], 4) == []
    assert {why for _, why in gaps(world, names[3], 1)} == {"limit"}, "the second owner has 4 of the other 7"
    assert gaps(world, names[4], 2) == gaps(world, names[6], 1) == []
    assert sum(world.machine.sessions.ranges.counts.values()) == 14
    detail = world.apply([world.batch(names[0], 1, first=100, lowest_unconfirmed=1)]).replies[0]
    assert isinstance(detail, Refused) and detail.reason == "limit"
    assert "7 ranges of accepted messages of this client address, 1 more would be" in detail.detail
    assert "as many as are left free of 14, 0 now" in detail.detail


def test_a_producer_with_one_range_is_not_refused_for_those_of_others() -> None:
    world, _ = prepared(replace(SHARED, max_ranges=0))
    for number in range(1, 4):
        name = world.session(number)
        assert world.publish(name, 3, lowest_unconfirmed=1).replies == (Confirmed(1, 3),)
        assert world.publish(name, 3, lowest_unconfirmed=1).replies == (Confirmed(4, 6),)
        assert world.publish(name, 3, first=9, lowest_unconfirmed=8).replies == (Confirmed(9, 11),)
        refused = world.publish(name, 3, first=20, lowest_unconfirmed=8).replies[0]
        assert isinstance(refused, Refused) and refused.reason == "limit"


def test_ranges_that_are_confirmed_or_of_forgotten_producers_leave_their_places() -> None:
    world, _ = prepared(SHARED)
    one, two = world.session(1), world.session(2)
    assert gaps(world, one, 4) == gaps(world, two, 3) == []
    assert gaps(world, two, 1) != []
    world.publish(one, 1, lowest_unconfirmed=7)
    assert gaps(world, two, 1) == []
    world.do(one, CloseSession(is_clean=True))
    assert world.machine.sessions.ranges.total == 5
    assert gaps(world, world.session(3), 2) == []
    world.machine = world.restored(snapshot.encode(world.machine))
    assert world.machine.sessions.ranges.total == 7
    assert gaps(world, world.session(4), 1) != []


def test_the_ranges_of_a_producer_are_its_present_owners() -> None:
    world, _ = prepared(SHARED)
    name = world.session(1, owner=5)
    assert gaps(world, name, 4) == []
    for epoch, owner in ((2, 6), (3, NODE), (4, 7)):
        world.session(1, epoch=epoch, owner=owner)
        counts = {} if owner == NODE else {owner: 4}
        assert world.machine.sessions.ranges.counts == counts


WRONG = {
    "bad_argument": (
        {"targets": (Target(1, ((0, 2),)), Target(1, ((2, 1),)))},
        {"targets": (Target(1, ((0, 2),)),)},
        {"targets": (Target(1, ((1, 2),)),)},
        {"targets": (Target(1, ((0, 1), (2, 1))),)},
        {"targets": (Target(1, ((0, 2), (2, 1))),)},
        {"targets": (Target(1, ((1, 2), (0, 1))),)},
        {"targets": (Target(1, ((0, 4),)),)},
        {"targets": (Target(1, ((0, 0), (1, 2))),)},
        {"numbers": ((1, 2),)},
        {"numbers": ((2, 3),)},
        {"numbers": ((1, 2), (2, 1))},
        {"numbers": ((1, 3), (9, 0))},
        {"numbers": ((1, 2), ((1 << 63), 1))},
        {"ttls_ms": (1, 2)},
        {"size_bytes": -1},
    ),
    "limit": ({"numbers": ((1, 2), (65_600, 1))},),
}


@pytest.mark.parametrize(
    ("why", "change"), [(why, change) for why, changes in WRONG.items() for change in changes]
)
def test_targets_that_do_not_fit_the_batch_are_refused(why: str, change: dict[str, Any]) -> None:
    world, name = prepared(queues=1)
    world.model = None
    right = Enqueue(0, 1, 1, 3, 30, targets=(Target(1, ((0, 3),)),))
    reply = world.do(name, replace(right, **change))
    assert isinstance(reply, Refused) and reply.reason == why, reply
    assert ready(world) == [0]
    assert world.do(name, right) == Confirmed(1, 3)


def test_messages_count_once_for_each_of_their_queues() -> None:
    world, name = prepared(SMALL)
    reply = routed(world, name, [(1, 2, 3)] * (SMALL.max_targeted // 3 + 1))
    assert isinstance(reply, Refused) and reply.reason == "limit"
    assert routed(world, name, [(1, 2, 3)] * (SMALL.max_targeted // 3)) == Confirmed(12, 21)


def test_unreadable_fields_of_one_queue_refuse_the_batch_for_all() -> None:
    world, name = prepared(filter_enabled=True)
    world.model = None
    targets = (Target(1, ((0, 1),)), Target(2, ((0, 2),), b"no columns"))
    reply = world.do(name, Enqueue(0, 1, 1, 2, 30, targets=targets, independent=True))
    assert plain_reply(reply) == (1, 2, [(1, "bad_argument"), (2, "bad_argument")])
    assert ready(world) == [0, 0, 0]


def test_a_purged_queue_leaves_the_messages_of_others() -> None:
    world, name = prepared()
    routed(world, name, [(1, 2)] * 3)
    world.apply([(None, Purge(1))])
    assert ready(world) == [0, 3, 0]
