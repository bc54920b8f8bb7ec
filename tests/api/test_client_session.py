"""A client's session without any protocol (quorum/api/session): publishing, settlements that nobody waits for, and
its life."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import Confirmed, Notify, Refused
from fifo.group_machine import MAX_CLIENT_SEQUENCE
from fifo.limits import PRODUCTION
from quorum.api.hub import raft_thread
from quorum.api.session.client_session import ClientSession
from quorum.api.session.consumers import Disposition
from quorum.api.session.outcomes import Confirms, Outcome, Span
from quorum.api.session.producer_numbers import ProducerNumbers
from quorum.api.status import Code, StatusError
from quorum.node import events as ev
from quorum.node.wire.batches import messages
from support.members.cluster import batch
from support.members.session_node import ADDRESS, GROUP, QUEUE, Node, holding, on_node

# ---- settlements that nobody waits for


def test_a_settlement_waits_for_the_next_input() -> None:
    async def scenario(node: Node) -> None:
        consumer = await holding(node)
        node.session.consumers.settle(0, consumer, Disposition(c.Settle, 5, ((1, 1),), 11))
        assert not node.submitted
        await independent(node, b"a")
        assert [type(each.command) for each in node.submitted] == [c.Settle, c.Enqueue]

    on_node(scenario)


def test_a_settlement_does_not_wait_long() -> None:
    async def scenario(node: Node) -> None:
        consumer = await holding(node)
        for tag in (1, 2):
            node.session.consumers.settle(0, consumer, Disposition(c.Settle, 5, ((tag, tag),)))
        assert not node.submitted
        await asyncio.sleep(10 * raft_thread.MAX_DELAY_S)
        assert [each.command for each in node.submitted] == [
            c.Settle(7, "c", 5, ((1, 1),), 0),
            c.Settle(7, "c", 5, ((2, 2),), 0),
        ]

    on_node(scenario)


def test_a_session_that_ends_has_settled_before() -> None:
    async def scenario(node: Node) -> None:
        consumer = await holding(node)
        node.session.consumers.settle(0, consumer, Disposition(c.Settle, 5, ((1, 2),)))
        node.session.release()
        assert [type(each) for each in node.items] == [ev.Submit, ev.EndSession]

    on_node(scenario)


@pytest.mark.parametrize(
    ("request_id", "disposition", "why"),
    [
        (3, Disposition(c.Settle, 5, ((1, 1),)), "its answer is awaited"),
        (0, Disposition(c.Settle, 5, ((1, 1),), 3), "the consumer has no credit until then"),
        (0, Disposition(c.Return, 5, ((1, 1),)), "another consumer may wait for the message"),
        (0, Disposition(c.Discard, 5, ((1, 1),)), "its dead letter may be awaited"),
    ],
)
def test_a_disposition_that_somebody_waits_for_leaves_at_once(
    request_id: int, disposition: Disposition, why: str
) -> None:
    async def scenario(node: Node) -> None:
        consumer = await holding(node, credit_to=2)
        node.session.consumers.settle(request_id, consumer, disposition)
        assert len(node.submitted) == 1, why

    on_node(scenario)


def test_a_settlement_that_frees_a_message_group_leaves_at_once() -> None:
    async def scenario(node: Node) -> None:
        consumer = await holding(node)
        grouped = replace(QUEUE, config=replace(QUEUE.config, message_groups=True))
        node.say(ev.CatalogChanged((grouped,), (), (), 9, 0, 0, 0, (GROUP,), is_whole=True))
        node.session.consumers.settle(0, consumer, Disposition(c.Settle, 5, ((1, 1),)))
        assert len(node.submitted) == 1

    on_node(scenario)


# ---- publishing


def independent(node: Node, *bodies: bytes, first: int = 1) -> Coroutine[Any, Any, None]:
    return node.session.publisher.publish("orders", first, 1, batch(list(bodies)), independent=True)


def test_independent_messages_are_one_command() -> None:
    async def scenario(node: Node) -> None:
        await independent(node, b"a", b"b", b"c")
        [sent] = node.submitted
        assert isinstance(sent.command, c.Enqueue)
        assert (sent.command.first_client_sequence, sent.command.count, sent.command.independent) == (
            1,
            3,
            True,
        )
        node.answer(Confirmed(1, 3, ((2, 3, Refused("queue_full", "it is full")),)))
        [confirms] = node.told()
        assert isinstance(confirms, Confirms)
        assert confirms.confirmed == (Span(1, 1),)
        assert [each.span for each in confirms.rejected] == [Span(2, 3)]

    on_node(scenario)


def test_a_message_that_is_refused_does_not_take_its_neighbours_along() -> None:
    async def scenario(node: Node) -> None:
        await independent(node, b"a", b"b", b"x" * 1_001, b"d", first=5)
        [sent] = node.submitted
        assert isinstance(sent.command, c.Enqueue)
        assert (sent.command.numbers, sent.command.targets) == (
            ((5, 2), (8, 1)),
            (c.Target(QUEUE.id, ((0, 3),)),),
        )
        assert bodies_of(sent.batch) == [b"a", b"b", b"d"]
        node.answer(Confirmed(5, 8))
        [confirms] = node.told()
        assert isinstance(confirms, Confirms)
        assert confirms.confirmed == (Span(5, 6), Span(8, 8))
        [rejection] = confirms.rejected
        assert (rejection.span, rejection.why.reason) == (Span(7, 7), "message_too_large")

    on_node(scenario)


def test_without_the_word_all_messages_of_a_batch_are_refused() -> None:
    async def scenario(node: Node) -> None:
        await node.session.publisher.publish("orders", 1, 1, batch([b"a", b"x" * 1_001]))
        assert not node.submitted
        [confirms] = node.told()
        assert isinstance(confirms, Confirms)
        assert [each.span for each in confirms.rejected] == [Span(1, 2)]

    on_node(scenario)


def bodies_of(data: bytes) -> list[bytes]:
    return [body for body, _ in messages(data)]


def test_decisions_are_merged_into_ranges_in_whatever_order_they_come() -> None:
    async def scenario(node: Node) -> None:
        for first in (1, 3, 5):
            await node.session.publisher.publish("orders", first, 1, batch([b"x", b"y"]))
        full = Refused("queue_full", "full")
        node.answer(Confirmed(5, 6), 2)
        node.answer(Confirmed(1, 2), 0)
        node.answer(Confirmed(3, 4, ((4, 4, full),)), 1)
        [confirms] = node.told()
        assert isinstance(confirms, Confirms)
        assert confirms.confirmed == (Span(1, 3), Span(5, 6))
        assert [(each.span, each.why.reason) for each in confirms.rejected] == [(Span(4, 4), "queue_full")]
        assert node.told() == []

    on_node(scenario)


def test_a_batch_that_is_wrong_in_itself_is_rejected_and_uses_its_numbers() -> None:
    async def scenario(node: Node) -> None:
        await node.session.publisher.publish("orders", 1, 1, batch([b"x", bytes(1_001)]))
        [confirms] = node.told()
        assert isinstance(confirms, Confirms)
        assert [(each.span, each.why.reason) for each in confirms.rejected] == [
            (Span(1, 2), "message_too_large")
        ]
        await node.session.publisher.publish("orders", 2, 1, batch([b"x"]))
        [confirms] = node.told()
        assert isinstance(confirms, Confirms)
        assert confirms.rejected[0].why.reason == "wrong_sequence"
        await node.session.publisher.publish("orders", 3, 3, batch([b"x"]))
        assert len(node.submitted) == 1

    on_node(scenario)


def test_batches_that_nobody_decides_fill_the_session_and_are_given_back_with_it() -> None:
    async def scenario(node: Node) -> None:
        first = 1
        while not node.session.is_full:
            await node.session.publisher.publish("orders", first, 1, batch([bytes(900)]))
            first += 1
        waiting = asyncio.create_task(node.session.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        node.answer(Confirmed(1, 1), 0)
        await waiting
        assert node.hub.publishing.used > 0
        node.session.release()
        assert node.hub.publishing.used == 0
        [end] = [item for item in node.items if isinstance(item, ev.EndSession)]
        assert not end.is_clean

    on_node(scenario)


@pytest.mark.parametrize(
    ("first", "count", "lowest", "problem"),
    [
        (4, 1, 1, "was used before; the next is 5"),
        (5, 1, 0, "lowest_unconfirmed 0; allowed: 1..5"),
        (5, 1, 6, "lowest_unconfirmed 6; allowed: 1..5"),
        (PRODUCTION.window, 2, 1, "may be unconfirmed"),
        (MAX_CLIENT_SEQUENCE - 3, 4, MAX_CLIENT_SEQUENCE - 3, "a producer's numbers end at"),
        (MAX_CLIENT_SEQUENCE - 3, 3, MAX_CLIENT_SEQUENCE - 3, ""),
        (5, 1, 5, ""),
        (PRODUCTION.window, 1, 1, ""),
    ],
)
def test_numbers_go_upwards_within_the_window(first: int, count: int, lowest: int, problem: str) -> None:
    numbers = ProducerNumbers()
    numbers.use(4)
    assert numbers.may_have(first, count, lowest) == (not problem)
    if problem:
        with pytest.raises(StatusError, match=problem):
            numbers.check(first, count, lowest)
    numbers.use(2)
    assert numbers.next == 5, "numbers do not come back"


# ---- its life


def test_the_outcomes_end_when_the_requests_are_over_and_everything_is_decided() -> None:
    async def scenario(node: Node) -> None:
        session = node.session
        await session.publisher.publish("orders", 1, 1, batch([b"x"]))
        told: list[Outcome] = []

        async def listen() -> None:
            told.extend([outcome async for turn in session.outcomes() for outcome in turn])

        listening = asyncio.create_task(listen())
        session.client_closes()
        session.input_over(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not listening.done(), "a batch is not decided"
        node.answer(Confirmed(1, 1))
        await listening
        assert told == [Confirms((Span(1, 1),), ())]

    on_node(scenario)


def test_a_request_that_was_wrong_ends_the_outcomes_after_what_was_decided_before() -> None:
    async def scenario(node: Node) -> None:
        await node.session.publisher.publish("orders", 1, 1, batch([b"x"]))
        node.answer(Confirmed(1, 1))
        node.session.input_over(ValueError("wrong"))
        outcomes = node.session.outcomes()
        assert await anext(outcomes) == [Confirms((Span(1, 1),), ())]
        with pytest.raises(ValueError, match="wrong"):
            await anext(outcomes)

    on_node(scenario)


def test_what_the_service_ends_is_told_with_a_code() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        node.say(ev.LeaseLapsed(GROUP))
        with pytest.raises(StatusError) as ended:
            await anext(node.session.outcomes())
        assert ended.value.status.code == Code.UNAVAILABLE

    on_node(scenario)


def test_a_session_that_a_group_has_fenced_ends_and_delivers_nothing_more() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        node.say(ev.Notified(node.session.number, Notify(ADDRESS, 0, "", 0, "fenced")))
        node.deliver("c", 5)
        with pytest.raises(StatusError) as ended:
            await anext(node.session.outcomes())
        assert ended.value.status.reason == "session_fenced"
        assert node.hub.delivering.of(9, node.session) == 0

    on_node(scenario)


@pytest.mark.parametrize(
    ("producer", "epoch", "problem"),
    [(b"short", 1, "it must have 16"), (bytes(16), 0, "epoch must be 1 or more")],
)
def test_a_session_of_no_producer_is_not_opened(producer: bytes, epoch: int, problem: str) -> None:
    async def scenario(node: Node) -> None:
        with pytest.raises(StatusError, match=problem):
            ClientSession(node.hub).open(producer, epoch, owner=9)

    on_node(scenario)


def test_a_node_that_is_no_member_opens_no_session() -> None:
    async def scenario(node: Node) -> None:
        node.say(ev.StandingChanged("drained"))
        with pytest.raises(StatusError, match="this node is drained"):
            ClientSession(node.hub).open(bytes(16), 1, owner=9)

    on_node(scenario)
