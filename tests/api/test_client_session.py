"""A client's session without any protocol (quorum/api/session)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Confirmed, Deliver, Notify, Ok, Refused, Run
from fifo.group_machine import MAX_CLIENT_SEQUENCE
from fifo.limits import PRODUCTION
from quorum.api.hub import raft_thread
from quorum.api.hub.deliveries import DeliveredBatch
from quorum.api.hub.filters import SelectorText
from quorum.api.hub.hub import Hub
from quorum.api.services.session_service import _response
from quorum.api.session import consumers as session_consumers
from quorum.api.session.client_session import ClientSession
from quorum.api.session.consumers import Disposition
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
from quorum.api.session.producer_numbers import ProducerNumbers
from quorum.api.shares import DeliveryWindow
from quorum.api.status import Code, StatusError, make
from quorum.catalog.queues import CatalogQueue
from quorum.node import events as ev
from quorum.node.wire.batches import BatchLimits, messages
from quorum.node.wire.operations import command_parts, encode
from support import virtual_time
from support.members.cluster import batch

GROUP = 1
QUEUE = CatalogQueue(7, "orders", GROUP, (), c.QueueConfig("orders"))
ADDRESS = c.Address(1, 1, 1)


class Log:
    """Entry 5 has a batch of two messages."""

    def read(self, group: int, index: int, *, waits: bool = True) -> bytes:
        operation = encode(c.Enqueue(7, 1, 1, 2, 2), c.Origin(bytes(16), 1, 1), batch([b"a", b"b"]))
        return b"\0" + b"".join(command_parts([operation], 0, 1))


class Node:
    """A node whose Raft thread is the test."""

    def __init__(self) -> None:
        self.items: list[ev.Input] = []
        self.hub = Hub("n1", Log(), BatchLimits(10, 1_000, 10_000), 2_000, 100_000)  # type: ignore[arg-type]
        self.hub.attach(self)
        self.say(
            ev.CatalogChanged((QUEUE,), (), (), 8, 0, 0, 0, (GROUP,), is_whole=True),
            ev.StandingChanged("member"),
            ev.LeaseGranted(GROUP, 1 << 60),
        )
        self.session = ClientSession(self.hub)
        self.session.open(b"p" * 16, 1, owner=9)

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        self.items += items

    def say(self, *outputs: ev.Output) -> None:
        self.hub._dispatch(outputs)

    @property
    def submitted(self) -> list[ev.Submit]:
        return [item for item in self.items if isinstance(item, ev.Submit)]

    def answer(self, reply: Any, number: int = -1) -> None:
        item = self.submitted[number]
        self.say(ev.Answered(item.session, item.token, reply))

    def deliver(self, tag: str, attach: int, first_tag: int = 1) -> None:
        deliver = Deliver(ADDRESS, 7, tag, attach, first_tag, (Run(30, 2, 5, 0, 0),))
        self.say(ev.Delivered(self.session.number, GROUP, deliver))

    def deliver_singles(self, session: ClientSession, count: int, first_tag: int = 1) -> None:
        """A delivery of single messages that are no neighbours, to consumer c."""
        runs = tuple(Run(first_tag + 2 * number, 1, 5, 0, 0) for number in range(count))
        self.say(ev.Delivered(session.number, GROUP, Deliver(ADDRESS, 7, "c", 5, first_tag, runs)))

    def told(self) -> list[Outcome]:
        """What there is to tell the client now."""
        return [each for each, _ in self.session._ready() if not isinstance(each, Exception)]

    async def attach(self, tag: str = "c") -> None:
        await self.session.consumers.attach(1, tag, "orders", None, 10)
        self.answer(AttachedReply(5))
        assert self.told() == [Attached(1, tag, 5)]


def on_node(scenario: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await scenario(Node())

    virtual_time.run(body())


# ---- settlements that nobody waits for


async def holding(node: Node, credit_to: int = 10) -> session_consumers.Consumer:
    """A consumer that holds tags 1 and 2, and has credit up to `credit_to`."""
    await node.session.consumers.attach(1, "c", "orders", None, credit_to)
    node.answer(AttachedReply(5))
    node.deliver("c", 5)
    node.items.clear()
    consumer = node.session.consumers.find(0, "c")
    assert consumer is not None
    return consumer


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


# ---- consuming


def test_a_consumer_is_attached_delivered_to_settled_and_cancelled() -> None:
    async def scenario(node: Node) -> None:
        session = node.session
        await node.attach()
        node.deliver("c", 5)
        [delivered] = node.told()
        assert delivered == DeliveredBatch("c", 5, 1, 2, batch([b"a", b"b"]), ((30, 31),))
        consumer = session.consumers.find(2, "c")
        assert consumer is not None
        session.consumers.settle(2, consumer, Disposition(c.Modify, 5, ((1, 2),), 12, delivery_failed=True))
        assert node.submitted[-1].command == c.Modify(7, "c", 5, ((1, 2),), 12, True, False)
        node.answer(Ok(2))
        assert node.told() == [Done((2,))]
        session.consumers.cancel(3, "c", requeue=True)
        assert session.consumed_groups() == set()
        node.deliver("c", 5, 3)
        assert node.told() == [], "it has been given back"

    on_node(scenario)


def test_consumers_that_were_cancelled_do_not_use_up_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service cannot know whether they still hold something: beyond the limit, that returns to the queue."""
    monkeypatch.setattr(session_consumers, "MAX_CONSUMERS", 2)

    async def scenario(node: Node) -> None:
        consumers = node.session.consumers
        for tag in ("a", "b"):
            await node.attach(tag)
        await consumers.attach(2, "c", "orders", None, 10)
        [refusal] = node.told()
        assert isinstance(refusal, Failed) and "at most 2 consumers" in refusal.why.message
        for tag in ("b", "a"):
            consumers.cancel(3, tag, requeue=False)
            node.answer(Ok())
        assert consumers.find(4, "a") and consumers.find(4, "b")
        node.told()
        node.items.clear()
        await consumers.attach(5, "c", "orders", None, 10)
        sent = [each.command for each in node.submitted]
        assert sent == [c.Cancel(7, "b", True), c.Attach(7, "c", b"", 10)]
        node.answer(Refused("not_attached", "no consumer"), 0)
        node.answer(AttachedReply(6), 1)
        assert node.told() == [Attached(5, "c", 6)]
        assert list(consumers.by_tag) == ["a", "c"]

    on_node(scenario)


def test_a_refused_request_to_attach_leaves_the_other_one_of_its_consumer() -> None:
    async def scenario(node: Node) -> None:
        consumers = node.session.consumers
        await consumers.attach(1, "c", "orders", None, 10)
        await consumers.attach(2, "c", "orders", None, 10)
        node.answer(Refused("limit", "too many consumers"), 0)
        node.answer(AttachedReply(5), 1)
        failed, attached = node.told()
        assert isinstance(failed, Failed) and failed.request_id == 1
        assert attached == Attached(2, "c", 5)
        node.deliver("c", 5)
        assert [type(each) for each in node.told()] == [DeliveredBatch]
        await consumers.attach(3, "c", "orders", None, 10)
        node.answer(Refused("limit", "too many consumers"))
        assert list(consumers.by_tag) == ["c"], "it is attached as before"
        await consumers.attach(4, "d", "orders", None, 10)
        node.answer(Refused("limit", "too many consumers"))
        assert list(consumers.by_tag) == ["c"]

    on_node(scenario)


def test_a_consumer_has_the_priority_that_its_client_wants() -> None:
    async def scenario(node: Node) -> None:
        await node.session.consumers.attach(1, "c", "orders", None, 10, -3)
        assert node.submitted[-1].command == c.Attach(7, "c", b"", 10, -3)

    on_node(scenario)


def test_messages_that_have_timed_out_before_they_were_sent_are_not_sent() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        number = node.session.number
        node.deliver("c", 5)
        node.say(ev.Notified(number, Notify(ADDRESS, 7, "c", 4, "timed_out", 9)))
        node.say(ev.Notified(number, Notify(ADDRESS, 7, "c", 5, "timed_out", 2)))
        node.deliver("c", 5, 3)
        timed_out, delivered = node.told()
        assert timed_out == TimedOut("c", 5, 2), "the other one is of an earlier attachment"
        assert isinstance(delivered, DeliveredBatch)
        assert delivered.first_tag == 3
        await node.session.consumers.attach(2, "c", "orders", None, 10)
        node.answer(AttachedReply(6))
        node.deliver("c", 6)
        attached, delivered = node.told()
        assert attached == Attached(2, "c", 6)
        assert isinstance(delivered, DeliveredBatch)
        assert delivered.first_tag == 1

    on_node(scenario)


def test_an_answer_does_not_overtake_a_consumer_timeout() -> None:
    """A client takes a settlement that is answered first for one that has an effect."""

    async def scenario(node: Node) -> None:
        consumer = await holding(node)
        node.told()
        for request_id, tag in ((2, 1), (3, 2)):
            node.session.consumers.settle(request_id, consumer, Disposition(c.Settle, 5, ((tag, tag),)))
        node.answer(Ok(1), 0)
        node.say(ev.Notified(node.session.number, Notify(ADDRESS, 7, "c", 5, "timed_out", 2)))
        node.answer(Ok(0), 1)
        assert node.told() == [Done((2,)), TimedOut("c", 5, 2), Done((3,))]
        assert node.session.outbox.size_bytes == 0
        node.session.consumers.settle(4, consumer, Disposition(c.Settle, 5, ((2, 2),)))
        node.answer(Ok(0))
        assert node.told() == [Done((4,))]

    on_node(scenario)


def test_a_consumer_timeout_is_told_although_the_consumer_is_being_cancelled() -> None:
    """A settlement that was sent before the cancel may come after the timeout, and is answered all the same. A client
    cancels a consumer and attaches it again after an earlier timeout."""

    async def scenario(node: Node) -> None:
        consumer = await holding(node)
        consumers = node.session.consumers
        node.told()
        consumers.settle(2, consumer, Disposition(c.Settle, 5, ((2, 2),)))
        consumers.cancel(3, "c", requeue=True)
        await consumers.attach(4, "c", "orders", None, 10)
        for event in ("drained", "active", "timed_out"):
            node.say(ev.Notified(node.session.number, Notify(ADDRESS, 7, "c", 5, event, 2)))  # type: ignore[arg-type]
        node.answer(Ok(0), 0)
        node.answer(Ok(0), 1)
        node.say(ev.Notified(node.session.number, Notify(ADDRESS, 7, "c", 5, "timed_out", 2)))
        node.answer(AttachedReply(6), 2)
        assert node.told() == [TimedOut("c", 5, 2), Done((2,)), Done((3,)), Attached(4, "c", 6)]

    on_node(scenario)


def test_what_is_about_another_queue_that_had_the_tag_before_means_nothing() -> None:
    async def scenario(node: Node) -> None:
        bills = CatalogQueue(8, "bills", 1, (), c.QueueConfig("bills"))
        node.say(ev.CatalogChanged((bills,), (), (), 9, 0, 1, 0, (1,)))
        await node.attach()
        consumers = node.session.consumers
        consumers.cancel(2, "c", requeue=True)
        node.answer(Ok())
        await consumers.attach(3, "c", "bills", None, 10)
        node.answer(AttachedReply(5))
        node.told()
        node.deliver("c", 5)
        for event in ("drained", "active", "timed_out", "queue_deleted"):
            node.say(ev.Notified(node.session.number, Notify(ADDRESS, 7, "c", 5, event, 3)))  # type: ignore[arg-type]
        assert node.told() == []
        assert consumers.by_tag["c"].queue == 8

    on_node(scenario)


def test_a_settled_get_takes_nothing_before_the_first_lease() -> None:
    async def scenario(node: Node) -> None:
        consumers, published = node.session.consumers, node.hub.published
        published.lease_lapsed(ev.LeaseLapsed(GROUP))
        get = asyncio.create_task(consumers.get(3, "orders", 2, settled=True))
        await asyncio.sleep(1)
        assert not node.submitted
        node.say(ev.LeaseGranted(GROUP, 1 << 60))
        await get
        node.answer(Ok(2))
        node.deliver("", 1)
        assert node.told()[-1] == Done((3,))
        published.lease_lapsed(ev.LeaseLapsed(GROUP))
        await consumers.get(4, "orders", 2, settled=False)
        assert [each.command for each in node.submitted] == [c.Get(7, 2, True), c.Get(7, 2, False)]

    on_node(scenario)


def test_a_settled_get_without_a_lease_ends_the_session_and_takes_nothing() -> None:
    async def scenario(node: Node) -> None:
        node.hub.published.lease_lapsed(ev.LeaseLapsed(GROUP))
        with pytest.raises(StatusError, match="open the session again"):
            await node.session.consumers.get(3, "orders", 2, settled=True)
        assert not node.submitted

    on_node(scenario)


@pytest.mark.parametrize("what", ["get", "drain"])
def test_nothing_that_follows_a_delivery_is_told_without_it(what: str) -> None:
    """The lease ends while the bodies are read: the end of a get or a drain would say that there were none."""

    async def scenario(node: Node) -> None:
        consumers, published = node.session.consumers, node.hub.published
        if what == "get":
            await consumers.get(3, "orders", 2, settled=True)
            node.answer(Ok(2))
            node.deliver("", 1)
        else:
            await node.attach()
            consumers.credit(4, "c", 10, drain=True)
            node.answer(Ok())
            node.told()
            node.deliver("c", 5)
            node.say(ev.Notified(node.session.number, Notify(ADDRESS, 7, "c", 5, "drained", 3)))
        asked = count()
        published.may_deliver = lambda group: next(asked) == 0  # type: ignore[method-assign]
        with pytest.raises(StatusError, match="lease"):
            await anext(node.session.outcomes())

    on_node(scenario)


def test_what_a_consumer_is_told_beside_deliveries() -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        number = node.session.number
        node.say(ev.Notified(number, Notify(ADDRESS, 7, "c", 5, "drained", 44)))
        assert node.told() == [Drained("c", 44)]
        for event in ("active", "inactive"):
            node.say(ev.Notified(number, Notify(ADDRESS, 7, "c", 5, event)))
        assert node.told() == [ActiveChanged("c", 5, True), ActiveChanged("c", 5, False)]
        node.say(ev.Notified(number, Notify(ADDRESS, 7, "c", 5, "queue_deleted")))
        [cancelled] = node.told()
        assert isinstance(cancelled, Cancelled)
        assert cancelled.why.reason == "queue_deleted"
        node.session.consumers.credit(4, "c", 50, drain=False)
        [failed] = node.told()
        assert isinstance(failed, Failed)
        assert (failed.request_id, failed.why.reason) == (4, "not_attached")

    on_node(scenario)


def test_a_get_is_done_when_its_messages_have_been_told() -> None:
    async def scenario(node: Node) -> None:
        session = node.session
        assert session.consumers.find_getter(1, "orders") is None
        [refused] = node.told()
        assert isinstance(refused, Failed)
        await session.consumers.get(2, "orders", 2, settled=False)
        node.answer(Ok(2))
        assert node.told() == []
        node.deliver("", 9)
        [delivered, done] = node.told()
        assert isinstance(delivered, DeliveredBatch)
        assert done == Done((2,))
        getter = session.consumers.find_getter(3, "orders")
        assert getter is not None and getter.attach == 9
        await session.consumers.get(4, "orders", 2, settled=True)
        node.answer(Ok(0))
        assert node.told() == [Done((4,))], "the queue was empty"

    on_node(scenario)


def test_gets_from_queues_that_are_gone_take_no_memory() -> None:
    async def scenario(node: Node) -> None:
        consumers, most = node.session.consumers, session_consumers.FEW_GETTERS
        await consumers.get(1, "orders", 2, settled=False)
        node.answer(Ok(2))
        node.deliver("", 9)
        assert consumers._gets == {}
        for number in range(8, 5 * most):
            queue = replace(QUEUE, id=number, name=f"reply-{number}")
            node.say(ev.CatalogChanged((queue,), (), (), number + 1, 0, 0, 0, (GROUP,)))
            await consumers.get(2, queue.name, 1, settled=True)
            node.answer(Ok(0))
            node.say(ev.CatalogChanged((), (number,), (), number + 1, 0, 0, 0, (GROUP,)))
            assert len(consumers._getters) <= most
        assert consumers.find_getter(3, "orders") is not None

    on_node(scenario)


@pytest.mark.parametrize(
    ("disposition", "problem"),
    [
        (Disposition(None, 5, ((1, 2),)), "outcome is not set"),
        (Disposition(c.Settle, 5, ((2, 1),)), r"ranges \[\(2, 1\)\]"),
        (Disposition(c.Settle, 5, ((0, 1),)), r"ranges \[\(0, 1\)\]"),
        (Disposition(c.Settle, 5, ((1, 1),) * (session_consumers.MAX_RANGES + 1)), "10001 ranges"),
    ],
)
def test_a_disposition_that_is_wrong_does_not_reach_the_group(disposition: Disposition, problem: str) -> None:
    async def scenario(node: Node) -> None:
        await node.attach()
        consumer = node.session.consumers.find(2, "c")
        assert consumer is not None
        before = len(node.submitted)
        node.session.consumers.settle(2, consumer, disposition)
        [failed] = node.told()
        assert isinstance(failed, Failed)
        with pytest.raises(AssertionError, match=problem):
            raise AssertionError(failed.why.message)
        assert len(node.submitted) == before

    on_node(scenario)


def test_a_consumer_or_get_that_is_wrong_does_not_reach_the_group() -> None:
    async def scenario(node: Node) -> None:
        bills = CatalogQueue(8, "bills", 1, (), c.QueueConfig("bills"))
        node.say(ev.CatalogChanged((bills,), (), (), 9, 0, 1, 0, (1,)))
        await node.attach()
        consumers = node.session.consumers
        longest = "\xe9" * 127 + "x"
        before = len(node.submitted)
        for tag, name, reason in (
            ("", "orders", "bad_argument"),
            (longest + "x", "orders", "bad_argument"),
            ("c", "bills", "in_use"),
        ):
            await consumers.attach(2, tag, name, None, 10)
            [failed] = node.told()
            assert isinstance(failed, Failed)
            assert failed.why.reason == reason
        for number in (0, 11):
            await consumers.get(3, "orders", number, settled=False)
            [failed] = node.told()
            assert isinstance(failed, Failed)
            assert failed.why.reason == "bad_argument"
        assert len(node.submitted) == before
        assert list(consumers.by_tag) == ["c"]
        await consumers.attach(4, longest, "orders", None, 10)
        await consumers.get(5, "orders", 10, settled=False)
        assert len(node.submitted) == before + 2

    on_node(scenario)


def test_a_refusal_quotes_only_the_beginning_of_a_tag_or_name() -> None:
    async def scenario(node: Node) -> None:
        await node.attach("\x01" * 255)
        consumer = node.session.consumers.find(1, "\x01" * 255)
        assert consumer is not None
        node.session.consumers.settle(2, consumer, Disposition(None, 5, ()))
        node.session.consumers.credit(3, "\x02" * 255, 50, drain=False)
        node.session.consumers.find_getter(4, "\x03" * 255)
        for request_id, failed in enumerate(node.told(), 2):
            assert isinstance(failed, Failed)
            assert failed.request_id == request_id
            assert f"'\\x0{request_id - 1}" in failed.why.message
            assert len(failed.why.message) < 200
        assert request_id == 4

    on_node(scenario)


def test_a_selector_for_a_queue_that_keeps_no_fields_is_refused() -> None:
    async def scenario(node: Node) -> None:
        await node.session.consumers.attach(1, "c", "orders", SelectorText("colour = 'red'"), 10)
        [failed] = node.told()
        assert isinstance(failed, Failed)
        assert failed.why.reason == "filter_not_enabled"
        assert node.submitted == []

    on_node(scenario)


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
