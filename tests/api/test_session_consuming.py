"""What a client's session is given and told (quorum/api/session/consumers.py)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Notify, Ok, Refused
from fifo.limits import PRODUCTION
from quorum.api.hub.deliveries import DeliveredBatch
from quorum.api.hub.filters import SelectorText
from quorum.api.session import consumers as session_consumers
from quorum.api.session.consumers import Disposition
from quorum.api.session.outcomes import ActiveChanged, Attached, Cancelled, Done, Drained, Failed, TimedOut
from quorum.api.status import StatusError
from quorum.catalog.queues import CatalogQueue
from quorum.node import events as ev
from support.members.cluster import batch
from support.members.session_node import ADDRESS, GROUP, QUEUE, Node, holding, on_node


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


def test_a_get_of_too_many_messages_is_told_how_many_its_group_would_give() -> None:
    async def scenario(node: Node) -> None:
        node.hub.limits = replace(node.hub.limits, max_messages=2 * PRODUCTION.max_get)
        for asked in (PRODUCTION.max_get + 1, 2 * PRODUCTION.max_get + 1):
            await node.session.consumers.get(1, "orders", asked, settled=False)
            [failed] = node.told()
            assert isinstance(failed, Failed)
            assert failed.why.message == f"get {asked} messages; allowed: 1..{PRODUCTION.max_get}"
        assert not node.submitted

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
