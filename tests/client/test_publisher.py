"""The publisher alone (quorum/client/session/publisher.py): in which order it takes batches, what has room, and what it
sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from quorum.client import errors
from quorum.client.errors import PublishRejected, ServiceError, TimedOut, UsageError
from quorum.client.messages.batch import PreparedBatch, encode_batch
from quorum.client.messages.routes import Through
from quorum.client.session.limits import Limits
from quorum.client.session.publisher import MAX_ROUTED, Publisher
from quorum.v1 import queue_pb2


class World:
    """A publisher, its clock, and what its stream would write."""

    def __init__(self, **limits: int) -> None:
        self.now_s = 1_000_000.0
        self.publisher = Publisher(lambda: None, lambda: self.now_s)
        self.publisher.limits = Limits(**limits)

    def begin(self, count: int, size: int = 1, route: Any = "q") -> asyncio.Task[asyncio.Future[int]]:
        """A batch of a caller, which waits for room if need be."""
        return asyncio.create_task(self.publisher.admit(route, PreparedBatch(bytes(size), count), None))

    def sent(self) -> list[Any]:
        found = []
        while (request := self.publisher.next_request()) is not None:
            found.append(request.publish)
        return found

    def confirm(self, first: int, last: int) -> None:
        self.publisher.decide(queue_pb2.Confirms(confirmed=[queue_pb2.Range(first=first, last=last)]))

    def refuse(self, reason: str, first: int, last: int, code: int = code_pb2.RESOURCE_EXHAUSTED) -> None:
        self.publisher.decide(queue_pb2.Confirms(rejected=[rejection(reason, first, last, code)]))


def rejection(reason: str, first: int, last: int, code: int = code_pb2.RESOURCE_EXHAUSTED) -> Any:
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason))
    status = status_pb2.Status(code=code, message="full", details=[detail])
    return queue_pb2.Rejection(range=queue_pb2.Range(first=first, last=last), status=status)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


async def pause() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_small_batch_does_not_overtake_one_that_waits_for_room() -> None:
    async def scenario() -> None:
        world = World(max_window_messages=10)
        first, large, small = (world.begin(count) for count in (6, 8, 1))
        await pause()
        assert [task.done() for task in (first, large, small)] == [True, False, False]
        world.confirm(1, 6)
        await pause()
        assert [each.first_sequence for each in world.sent()] == [7, 15]
        world.confirm(7, 15)
        assert (await (await large), await (await small)) == (8, 1)

    run(scenario)


def test_a_batch_that_is_given_up_while_it_waits_lets_the_next_one_in() -> None:
    async def scenario() -> None:
        world = World(max_window_messages=10)
        world.begin(6)
        await pause()
        large = asyncio.create_task(world.publisher.admit("q", PreparedBatch(b"", 8), 1))
        await asyncio.sleep(0)
        small = world.begin(1)
        with pytest.raises(TimedOut):
            await large
        await small
        assert [each.first_sequence for each in world.sent()] == [1, 7]

    run(scenario)


@pytest.mark.parametrize(
    ("limits", "batch", "fits"),
    [
        ({"max_window_messages": 10}, (4, 1), True),
        ({"max_window_messages": 10}, (5, 1), False),
        ({"window_bytes": 100}, (1, 40), True),
        ({"window_bytes": 100}, (1, 41), False),
        ({"max_window_ranges": 2}, (1, 1), True),
        ({"max_window_ranges": 1}, (1, 1), False),
    ],
)
def test_the_window_is_filled_to_its_limits_and_no_further(
    limits: dict[str, int], batch: tuple[int, int], fits: bool
) -> None:
    async def scenario() -> None:
        world = World(**limits)
        world.begin(6, 60)
        second = world.begin(*batch)
        await pause()
        assert second.done() == fits
        world.confirm(1, 6)
        await second

    run(scenario)


def test_a_batch_of_one_message_counts_as_a_range_until_it_is_decided() -> None:
    async def scenario() -> None:
        world = World(max_window_ranges=1)
        await world.begin(1)
        second = world.begin(1)
        await pause()
        assert not second.done()
        world.confirm(1, 1)
        await second

    run(scenario)


def test_a_batch_larger_than_the_window_goes_alone() -> None:
    async def scenario() -> None:
        world = World(window_bytes=100)
        large, next_one = world.begin(1, 200), world.begin(1, 1)
        await pause()
        assert (large.done(), next_one.done()) == (True, False)
        world.confirm(1, 1)
        await next_one

    run(scenario)


def test_decided_messages_between_undecided_ones_count() -> None:
    """The service remembers their numbers as long as an earlier one is open."""

    async def scenario() -> None:
        world = World(max_window_messages=10)
        world.begin(1)
        world.begin(8)
        await pause()
        world.confirm(2, 9)
        assert world.publisher.lowest_unconfirmed == 1
        late = world.begin(2)
        await pause()
        assert not late.done()
        world.confirm(1, 1)
        await late

    run(scenario)


@pytest.mark.parametrize(
    ("limits", "count", "size", "is_allowed"),
    [
        ({"max_batch_messages": 10, "max_window_messages": 20}, 10, 1, True),
        ({"max_batch_messages": 10, "max_window_messages": 20}, 11, 1, False),
        ({"max_batch_messages": 20, "max_window_messages": 10}, 11, 1, False),
        ({"max_batch_bytes": 100}, 1, 100, True),
        ({"max_batch_bytes": 100}, 1, 101, False),
    ],
)
def test_a_batch_that_can_never_be_sent_is_refused(
    limits: dict[str, int], count: int, size: int, is_allowed: bool
) -> None:
    publisher = World(**limits).publisher
    if is_allowed:
        publisher.check("q", PreparedBatch(bytes(size), count))
    else:
        with pytest.raises(UsageError, match="allowed: 10"):
            publisher.check("q", PreparedBatch(bytes(size), count))


@pytest.mark.parametrize(
    ("route", "count", "is_allowed"),
    [
        (("q",) * MAX_ROUTED, MAX_ROUTED, True),
        (("q",) * (MAX_ROUTED + 1), MAX_ROUTED + 1, False),
        (("q",), 2, False),
        ("q", MAX_ROUTED + 1, True),
        (Through("logs", "key"), MAX_ROUTED, True),
        (Through("logs", "key"), MAX_ROUTED + 1, False),
        (Through("", "q", immediate=True), MAX_ROUTED + 1, True),
    ],
)
def test_a_batch_with_several_queues_or_an_exchange_has_a_limit(
    route: Any, count: int, is_allowed: bool
) -> None:
    publisher = World().publisher
    if is_allowed:
        publisher.check(route, PreparedBatch(b"", count))
    else:
        with pytest.raises(UsageError, match=str(MAX_ROUTED)):
            publisher.check(route, PreparedBatch(b"", count))


def test_a_request_has_what_its_route_says() -> None:
    async def scenario() -> None:
        world = World()
        for route in (
            Through("logs", ("a", "b"), mandatory=True),
            Through("", "q", immediate=True),
            ("a", "b"),
            "q",
        ):
            world.begin(2, route=route)
        await pause()
        assert [
            (each.exchange, each.routing_key, [*each.routing_keys], each.mandatory, each.immediate)
            for each in world.sent()
        ] == [
            ("logs", "", ["a", "b"], True, False),
            ("", "q", [], False, True),
            ("", "", ["a", "b"], False, False),
            ("", "q", [], False, False),
        ]

    run(scenario)


def test_a_batch_that_is_larger_than_a_turn_waits_for_its_own_request() -> None:
    async def scenario() -> None:
        world = World()
        world.begin(1, 100)
        await pause()
        assert world.publisher.next_request(99) is None
        assert world.publisher.next_request(100) is not None

    run(scenario)


def test_what_is_decided_on_a_new_stream_before_its_turn_is_not_sent_again() -> None:
    async def scenario() -> None:
        world = World()
        await world.publisher.admit(("a", "b", "c"), encode_batch([b"one", b"two", b"three"]), None)
        world.begin(1)
        await pause()
        assert len(world.sent()) == 2
        world.publisher.resend_all()
        world.confirm(1, 1)
        world.confirm(4, 4)
        [again] = world.sent()
        assert (again.first_sequence, [*again.routing_keys]) == (2, ["b", "c"])

    run(scenario)


def test_the_first_refusal_is_the_one_that_is_told() -> None:
    async def scenario() -> None:
        world = World()
        batch = await world.begin(3)
        world.refuse("FIRST", 2, 2)
        world.refuse("SECOND", 1, 1)
        world.confirm(3, 3)
        with pytest.raises(PublishRejected) as refused:
            await batch
        assert refused.value.reason == "FIRST"
        assert refused.value.rejected == ((0, 0), (1, 1))

    run(scenario)


def test_a_message_that_is_decided_stays_so_when_its_whole_batch_is_answered() -> None:
    async def scenario() -> None:
        world = World()
        batch = await world.begin(3)
        world.confirm(2, 2)
        world.refuse("FULL", 1, 3)
        with pytest.raises(PublishRejected) as refused:
            await batch
        assert refused.value.rejected == ((0, 0), (2, 2))

    run(scenario)


def test_an_answer_with_an_unavailable_part_decides_the_others() -> None:
    async def scenario() -> None:
        world = World()
        first, second, third = [await world.begin(1) for _ in range(3)]
        unavailable = rejection("", 1, 1, code_pb2.UNAVAILABLE)
        answer = queue_pb2.Confirms(
            confirmed=[queue_pb2.Range(first=3, last=3)], rejected=[unavailable, rejection("FULL", 2, 2)]
        )
        with pytest.raises(errors.UnavailableError):
            world.publisher.decide(answer)
        assert (first.done(), await third) == (False, 1)
        with pytest.raises(PublishRejected, match="full"):
            await second

    run(scenario)


@pytest.mark.parametrize("answer", [(0, 1), (1, 3), (3, 3)])
def test_an_answer_for_numbers_that_were_not_sent_is_a_defect_of_the_service(answer: tuple[int, int]) -> None:
    async def scenario() -> None:
        world = World()
        world.begin(2)
        await pause()
        with pytest.raises(ServiceError, match=r"sent so far: 1\.\.2"):
            world.confirm(*answer)

    run(scenario)


def test_what_is_given_up_after_23_hours_makes_room() -> None:
    async def scenario() -> None:
        world = World(window_bytes=200)
        old = await world.begin(1, 150)
        world.now_s += 60
        await world.begin(1, 50)
        waiting = world.begin(1, 150)
        await pause()
        world.now_s += 23 * 3_600 - 61
        world.publisher.give_up_old()
        await pause()
        assert not old.done() and not waiting.done()
        world.now_s += 1
        world.publisher.resend_all()
        with pytest.raises(errors.OutcomeUnknown):
            await old
        await waiting
        assert [each.first_sequence for each in world.sent()] == [2, 3]

    run(scenario)


def test_a_new_identity_begins_at_1_with_an_empty_window() -> None:
    async def scenario() -> None:
        world = World(window_bytes=100, max_window_ranges=2)
        old = [await world.begin(1, 50) for _ in range(2)]
        waiting = world.begin(1, 60)
        await pause()
        assert not waiting.done()
        world.publisher.begin_again(errors.RefusedError("forgotten"))
        for each in old:
            with pytest.raises(errors.RefusedError):
                await each
        await waiting
        assert (await asyncio.wait_for(world.begin(1, 40), 10)) is not None
        assert [each.first_sequence for each in world.sent()] == [1, 2]
        world.confirm(1, 2)
        assert world.publisher.is_idle

    run(scenario)


def test_after_the_end_nothing_is_taken() -> None:
    async def scenario() -> None:
        world = World(max_window_messages=1)
        under_way, waiting = await world.begin(1), world.begin(1)
        await pause()
        world.publisher.fail_all(errors.ClosedError("closed"))
        for each in (under_way, waiting, world.begin(1)):
            with pytest.raises(errors.ClosedError):
                await each
        assert world.publisher.is_idle

    run(scenario)
