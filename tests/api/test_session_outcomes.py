"""How the outcomes of a client's session leave: in turns, within its share of memory, merged and cut
(quorum/api/session/outcomes.py)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fifo.effects import Confirmed, Deliver, Notify, Run
from quorum.api.hub.deliveries import DeliveredBatch
from quorum.api.services.session_service import _response
from quorum.api.session.client_session import ClientSession
from quorum.api.session.outcomes import (
    ActiveChanged,
    Attached,
    Cancelled,
    Confirms,
    Done,
    Drained,
    Failed,
    Outbox,
    Outcome,
    PendingDelivery,
    Rejection,
    Span,
    TimedOut,
    merged,
    weigh,
)
from quorum.api.shares import DeliveryWindow
from quorum.api.status import Code, StatusError, make
from quorum.node import events as ev
from support.members.cluster import batch
from support.members.session_node import ADDRESS, GROUP, Node, on_node

# ---- turns


def test_what_is_ready_at_one_moment_is_one_turn() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        await node.session.publisher.publish("orders", 1, 1, batch([b"x"]))
        node.answer(Confirmed(1, 1))
        node.deliver("c", 5)
        turns = node.session.outcomes()
        confirms, delivery = await anext(turns)
        assert confirms == Confirms((Span(1, 1),), ())
        assert isinstance(delivery, DeliveredBatch)

    on_node(scenario)


def test_many_small_deliveries_are_sent_in_turns_of_some_hundreds() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        for _ in range(600):
            node.deliver("c", 5)
        node.session.input_over(None)
        assert [len(turn) async for turn in node.session.outcomes()] == [256, 256, 88]

    on_node(scenario)


def test_outcomes_with_long_texts_are_sent_in_turns_of_about_a_megabyte() -> None:
    async def scenario(node: Node) -> None:
        why = make(Code.NOT_FOUND, "not_found", "x" * 10_000, **{f"key {n}": "y" * 255 for n in range(10)})
        for number in range(500):
            node.session.outbox.add(Failed(number, why))
        node.session.input_over(None)
        found = [len(turn) async for turn in node.session.outcomes()]
        assert sum(found) == 500
        assert max(found) < 250

    on_node(scenario)


@pytest.mark.parametrize(
    "outcome",
    [
        Attached(7, "t" * 255, 5),
        Drained("t" * 255, 8),
        ActiveChanged("t" * 255, 5, True),
        TimedOut("t" * 255, 5, 8),
        Cancelled("t" * 255, make(Code.NOT_FOUND, "not_found", "x" * 500)),
        Failed(7, make(Code.NOT_FOUND, "not_found", "x" * 500, queue="q" * 200)),
        Done(tuple(range(1 << 40, (1 << 40) + 1_000))),
        Confirms(tuple(Span(3 * n, 3 * n + 1) for n in range(100_000, 101_000)), ()),
        Confirms((), (Rejection(Span(1, 2), make(Code.NOT_FOUND, "not_found", "x" * 200)),) * 100),
        DeliveredBatch(
            "t" * 255, 5, 1, 2, b"x" * 1_000, ((1, 1), (3, 3)) * 50, ((1, 1),) * 50, ((1, 2),) * 50
        ),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_the_bytes_that_an_outcome_counts_are_about_those_on_the_wire(outcome: Outcome) -> None:
    _, size = weigh(outcome)
    on_wire = _response([outcome]).ByteSize()
    assert on_wire / 2 < size < 4 * on_wire


def test_a_client_that_takes_no_turns_gets_one_outcome_at_a_time() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        await node.session.publisher.publish("orders", 1, 1, batch([b"x"]))
        node.answer(Confirmed(1, 1))
        node.deliver("c", 5)
        turns = node.session.outcomes(together=False)
        assert await anext(turns) == [Confirms((Span(1, 1),), ())]
        [delivery] = await anext(turns)
        assert isinstance(delivery, DeliveredBatch)

    on_node(scenario)


def test_what_was_ready_is_told_before_the_session_ends() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        await node.session.publisher.publish("orders", 1, 1, batch([b"x"]))
        node.answer(Confirmed(1, 1))
        node.deliver("c", 5)
        node.hub.published.lease_granted(ev.LeaseGranted(GROUP, 0))
        turns = node.session.outcomes()
        assert await anext(turns) == [Confirms((Span(1, 1),), ())]
        with pytest.raises(StatusError):
            await anext(turns)

    on_node(scenario)


def test_a_lease_that_ends_while_a_turn_is_read_keeps_its_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        await node.session.publisher.publish("orders", 1, 1, batch([b"x"]))
        node.answer(Confirmed(1, 1))
        for _ in range(10):
            node.deliver("c", 5)
        read = node.session.consumers.read

        def slowly(item: PendingDelivery) -> Any:
            yield from read(item)
            node.say(ev.LeaseLapsed(GROUP))

        monkeypatch.setattr(node.session.consumers, "read", slowly)
        turns = node.session.outcomes()
        assert await anext(turns) == [Confirms((Span(1, 1),), ())]
        with pytest.raises(StatusError):
            await anext(turns)

    on_node(scenario)


# ---- a client that does not read its deliveries


def test_deliveries_that_wait_fill_the_session() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        delivered = 0
        while not node.session.is_full:
            assert delivered < 1_000_000
            node.deliver_singles(node.session, 4_096, delivered + 1)
            delivered += 4_096
        waiting = asyncio.create_task(node.session.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        node.say(ev.Notified(node.session.number, Notify(ADDRESS, 7, "c", 5, "timed_out", delivered)))
        assert node.told() == [TimedOut("c", 5, delivered)]
        await waiting
        assert node.hub.delivering.used == 0

    on_node(scenario)


def test_a_session_whose_deliveries_take_the_share_of_its_address_ends_and_drops_them() -> None:
    async def scenario(node: Node) -> None:
        node.hub.delivering = DeliveryWindow(100_000)
        await node.attach()
        await node.session.publisher.publish("orders", 1, 1, batch([b"x"]))
        node.deliver_singles(node.session, 200)
        node.answer(Confirmed(1, 1))
        node.deliver_singles(node.session, 200, 201)
        node.deliver_singles(node.session, 1, 401)
        assert node.hub.delivering.used == 0
        assert len(node.session.outbox) == 1
        turns = node.session.outcomes()
        assert await anext(turns) == [Confirms((Span(1, 1),), ())]
        with pytest.raises(StatusError) as ended:
            await anext(turns)
        assert (ended.value.status.code, ended.value.status.reason) == (
            Code.UNAVAILABLE,
            "session_overloaded",
        )

    on_node(scenario)


def test_a_session_whose_client_reads_outlives_another_one_of_its_address() -> None:
    async def scenario(node: Node) -> None:
        node.hub.delivering = DeliveryWindow(100_000)
        slow = ClientSession(node.hub)
        slow.open(b"q" * 16, 1, owner=9)
        await node.attach()
        node.deliver_singles(slow, 250)
        node.deliver("c", 5)
        node.deliver_singles(node.session, 250)
        with pytest.raises(StatusError, match="too many deliveries"):
            await anext(slow.outcomes())
        delivery, *_ = node.told()
        assert isinstance(delivery, DeliveredBatch)
        assert node.hub.delivering.used == 0

    on_node(scenario)


def test_a_session_that_is_over_gives_back_the_room_of_its_deliveries() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        node.deliver_singles(node.session, 200)
        assert node.hub.delivering.used > 20_000
        node.session.release()
        assert node.hub.delivering.used == 0

    on_node(scenario)


# ---- the outbox


def test_an_outbox_counts_what_waits_and_nothing_once_it_is_taken() -> None:
    outbox = Outbox()
    why = make(Code.NOT_FOUND, "not_found", "x" * 500)
    outbox.confirm(1, 2)
    outbox.reject(3, 4, why)
    outbox.done(0)
    outbox.done(5)
    outbox.add(Failed(6, why))
    outbox.deliver(PendingDelivery(GROUP, Deliver(ADDRESS, 7, "c", 5, 1, ()), 0))
    assert len(outbox) == 5
    assert 1_000 < outbox.size_bytes < 1_500
    assert outbox.has_decisions and outbox.is_owed
    taken = outbox.take()
    assert isinstance(next(taken), Confirms)
    outbox.confirm(7, 7)  # while the client takes its time
    assert [type(each) for each in taken] == [Done, Failed, Confirms, PendingDelivery]
    assert (len(outbox), outbox.size_bytes) == (0, 0)
    assert not outbox.is_owed


def test_a_delivery_that_waits_takes_memory_for_its_runs_and_its_counts_of_failures() -> None:
    runs = tuple(Run(number, 1, 5, 0, 0) for number in (1, 3))
    deliver = Deliver(ADDRESS, 7, "c", 5, 1, runs)
    sizes = [
        PendingDelivery(GROUP, replace(deliver, delivery_counts=counts), 0).size_bytes
        for counts in ((), ((0, 1),), ((0, 1), (1, 1)))
    ]
    assert 0 < 2 * (sizes[1] - sizes[0]) == sizes[2] - sizes[0] < sizes[0]


def test_many_refusals_are_cut_into_several_confirms() -> None:
    outbox = Outbox()
    for number in range(1, 2_501):
        outbox.reject(number, number, make(Code.NOT_FOUND, "not_found", f"there is no queue {number}"))
        outbox.confirm(2 * number + 10_000, 2 * number + 10_000)
    taken = [each for each in outbox.take() if isinstance(each, Confirms)]
    assert [(len(each.confirmed), len(each.rejected)) for each in taken] == [(1_000, 1_000)] * 2 + [
        (500, 500)
    ]
    assert [each.span.first for confirms in taken for each in confirms.rejected] == [*range(1, 2_501)]
    assert (len(outbox), outbox.size_bytes) == (0, 0)


def test_refusals_with_long_texts_are_cut_into_confirms_of_about_a_megabyte() -> None:
    outbox = Outbox()
    for number in range(1, 1_001):
        outbox.reject(number, number, make(Code.NOT_FOUND, "not_found", f"{number:>2000}"))
    sizes = [_response([each]).ByteSize() for each in outbox.take() if not isinstance(each, PendingDelivery)]
    assert len(sizes) == 2
    assert max(sizes) < 1_200_000


def test_neighbours_that_are_refused_for_one_reason_are_one_rejection() -> None:
    outbox = Outbox()
    full = Code.FAILED_PRECONDITION, "queue_full"
    for number, text in enumerate(["a", "a", "a", "b", "b", "a"], 1):
        outbox.reject(number, number, make(*full, text))
    outbox.reject(8, 9, make(*full, "a"))
    size = outbox.size_bytes
    [confirms] = outbox.take()
    assert isinstance(confirms, Confirms)
    found = [(*each.span, each.why.message) for each in confirms.rejected]
    assert found == [(1, 3, "a"), (4, 5, "b"), (6, 6, "a"), (8, 9, "a")]
    assert (size, outbox.size_bytes) == (weigh(confirms)[1], 0)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(5, 6), (1, 2)], [(1, 2), (5, 6)]),
        ([(3, 4), (1, 2), (5, 5)], [(1, 5)]),
    ],
)
def test_neighbours_are_merged(spans: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    assert [*merged([Span(*each) for each in spans])] == expected
