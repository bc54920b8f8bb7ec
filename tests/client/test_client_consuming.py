"""Consuming: credit, dispositions, attachments that end, get."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import patch

import grpc
import pytest
from google.rpc import code_pb2

import quorum
from quorum.client import Client, Consumer, DeliveredMessage, Delivery
from quorum.client.errors import (
    ClosedError,
    NotFound,
    QuorumError,
    RefusedError,
    ServiceError,
    TimedOut,
    UsageError,
    VoidDelivery,
)
from quorum.client.messages.delivery import GetHolder, Link
from quorum.client.session import session
from quorum.client.values import property_filter
from quorum.v1 import queue_pb2
from support.fake_server.cluster import FakeConsumer, Refusal
from support.fake_server.harness import EVENTUALLY_S, LIMIT_MS, World, eventually, on_cluster


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def filled(client: Client, count: int) -> None:
    await client.publish_batch("q", numbered(0, count))


async def take(consumer: Consumer, count: int) -> list[DeliveredMessage]:
    """The next messages, not settled."""
    taken: list[DeliveredMessage] = []
    while len(taken) < count:
        delivery = await consumer.next_delivery()
        assert delivery is not None
        taken.extend(delivery)
    assert len(taken) == count
    return taken


def settled(world: World) -> list[int]:
    return world.cluster.queues["q"].settled


@on_cluster()
async def test_messages_come_in_order_with_all_they_carry(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish(
            "q", b"a", quorum.Properties(subject="s", ttl_ms=5), {"f": 1.5, "n": 1, "b": True}
        )
        await client.publish("q", b"")
        async with client.consume("q") as consumer:
            messages = [*(await take(consumer, 2))]
            first, second = messages
            assert (first.body, first.sequence, first.tag, first.redelivered) == (b"a", 1, 1, False)
            assert first.properties.to_dict() == {"ttl": 5, "subject": "s"}
            assert first.application_properties == {"b": True, "f": 1.5, "n": 1}
            assert [type(value) for value in first.application_properties.values()] == [bool, float, int]
            assert (second.body, second.application_properties) == (b"", {})
            assert second.properties == quorum.Properties()


@on_cluster()
async def test_no_more_than_the_prefetch_is_ever_held(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 100)
        async with client.consume("q", prefetch=10) as consumer:
            waiting: list[DeliveredMessage] = []
            seen = 0
            while seen < 100:
                delivery = await consumer.next_delivery()
                assert delivery is not None
                waiting.extend(delivery)
                seen += delivery.count
                [server_side] = world.cluster.queues["q"].consumers
                assert len(server_side.held) <= 10
                await consumer.settle(waiting.pop())  # the newest, so the oldest stay held
                while len(waiting) > 7:
                    await consumer.settle(waiting.pop(0))
            await consumer.settle(waiting, wait=True)
    assert sorted(settled(world)) == list(range(1, 101))


@on_cluster()
async def test_credit_is_raised_in_halves_of_the_prefetch(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 60)
        async with client.consume("q", prefetch=20) as consumer:
            count = 0
            async for message in consumer:
                await message.settle(wait=True)
                count += 1
                if count == 60:
                    break
    raised = [request.credit_to for request in world.cluster.dispositions if request.credit_to]
    assert raised == [30, 40, 50, 60, 70, 80]


@on_cluster()
async def test_settling_message_by_message_travels_as_ranges(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 500)
        async with client.consume("q") as consumer:
            for message in await take(consumer, 500):
                await message.settle()
            await eventually(lambda: len(settled(world)) == 500, "all settled")
    assert len(world.cluster.dispositions) == 1
    assert [(r.first, r.last) for r in world.cluster.dispositions[0].tags] == [(1, 500)]


@on_cluster()
async def test_outcomes_in_turn_stay_in_order(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 6)
        async with client.consume("q", prefetch=6) as consumer:
            messages = await take(consumer, 6)
            await client.settle(messages[0])
            await client.discard(messages[1])
            await client.settle([messages[3], messages[2]])
            await client.modify(messages[4], delivery_failed=True)
            await client.modify(messages[5], undeliverable_here=True, wait=True)
            queue = world.cluster.queues["q"]
            assert (queue.settled, queue.discarded) == ([1, 3, 4], [2, 6])
            [again] = await take(consumer, 1)
            assert (again.sequence, again.redelivered, again.delivery_count) == (5, True, 1)
            await again.return_(wait=True)
            [again] = await take(consumer, 1)
            assert (again.sequence, again.delivery_count) == (5, 1)


@on_cluster()
async def test_a_whole_delivery_is_settled_at_once(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 50)
        async with client.consume("q") as consumer:
            async for delivery in consumer.deliveries():
                assert (delivery.count, delivery.first_tag, delivery.last_tag) == (50, 1, 50)
                assert queue_pb2.MessageBatch.FromString(delivery.batch_bytes).count == 50
                await delivery[3].settle()
                for wrong in (-1, delivery.count):
                    with pytest.raises(IndexError):
                        delivery[wrong]
                assert await consumer.settle_batch(delivery, wait=True)
                break
    assert sorted(settled(world)) == list(range(1, 51))


@on_cluster()
async def test_ranges_and_everything_up_to_a_tag(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 20)
        async with client.consume("q") as consumer:
            await take(consumer, 20)
            assert await consumer.settle_ranges([(5, 6), (9, 9)], wait=True) == 3
            assert await consumer.settle_up_to(10, wait=True) == 7
            assert await consumer.settle_up_to(10) == 0
    assert sorted(settled(world)) == list(range(1, 11))


@on_cluster()
async def test_a_tag_that_the_caller_was_not_given_is_not_settled(world: World) -> None:
    """After a reconnect the tags of earlier deliveries are those of other messages."""
    async with quorum.connect(world.url) as client:
        await filled(client, 3)
        async with client.consume("q") as consumer:
            first, _, _ = await take(consumer, 3)
            await first.settle(wait=True)
            world.nodes[0].cut()
            await eventually(lambda: consumer.generation == 1 and bool(consumer.held), "attached again")
            assert await consumer.settle_up_to(2) == 0
            assert await consumer.settle_ranges([(1, 2)]) == 0
            assert str(consumer.held) == "1..2"
            await take(consumer, 2)
            assert await consumer.settle_ranges([(2, 1)]) == 0
            assert await consumer.settle_up_to(9, wait=True) == 2
    assert sorted(settled(world)) == [1, 2, 3]


@on_cluster()
async def test_settling_twice_is_refused_and_says_what_is_held(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 3)
        async with client.consume("q", consumer_tag="billing") as consumer:
            messages = await take(consumer, 3)
            await messages[0].settle()
            with pytest.raises(UsageError, match=r"'billing' of 'q' has no delivery 1; held: 2\.\.3"):
                await messages[0].settle()
            async with client.consume("q", consumer_tag="other") as other:
                with pytest.raises(UsageError, match="cannot settle a message"):
                    await other.settle(messages[1])


@on_cluster()
async def test_settling_what_is_no_message_is_refused_and_says_what_is_wanted(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 1)
        async with client.consume("q") as consumer:
            [message] = await take(consumer, 1)
            for holder in (client, consumer):
                for given, kind in (("x", "str"), (None, "NoneType"), (7, "int"), ([message, "x"], "str")):
                    with pytest.raises(UsageError, match=f"several messages; not {kind}"):
                        await holder.settle(given)  # type: ignore[attr-defined]
            await message.settle(wait=True)


@on_cluster()
async def test_a_selector_that_is_no_text_is_refused_by_name(world: World) -> None:
    async with quorum.connect(world.url) as client:
        with pytest.raises(UsageError, match=r"^a selector is text, not int"):
            await client.consume("q", selector=3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"^a selector is text, not int"):
            await anext(client.browse("q", 3))  # type: ignore[arg-type]


@on_cluster()
async def test_arguments_of_a_wrong_type_are_refused_with_what_is_allowed(world: World) -> None:
    async with quorum.connect(world.url) as client:
        any_client: Any = client
        whole = "allowed: a whole number from"
        for call, said in (
            (lambda: any_client.consume("q", prefetch=None), f"prefetch None; {whole} 1 to 4294967295"),
            (lambda: any_client.consume("q", prefetch="5"), f"prefetch '5'; {whole} 1 to"),
            (lambda: any_client.consume("q", prefetch=True), f"prefetch True; {whole} 1 to"),
            (lambda: any_client.consume("q", prefetch=1.5), f"prefetch 1.5; {whole} 1 to"),
            (lambda: any_client.consume("q", priority="1"), f"priority '1'; {whole} -10 to 10"),
            (lambda: any_client.consume(5), "is text, not int"),
            (lambda: any_client.consume("q", None, ["x"]), "a property filter are a mapping .*, not list"),
            (lambda: any_client.consume("q", None, {"properties": 1}), "the properties of a property filter"),
            (lambda: anext(any_client.browse("q", None, -1)), f"start_sequence -1; {whole} 0 to"),
            (lambda: anext(any_client.browse("q", None, 0, "5")), f"limit '5'; {whole} 0 to"),
            (lambda: any_client.get("q", "5"), f"count '5'; {whole} 1 to"),
            (lambda: any_client.declare(["q"]), "is text, not list"),
            (lambda: any_client.describe(None), "is text, not NoneType"),
            (lambda: any_client.publish("q", b"x", "text/plain"), "properties are a mapping .*, not str"),
            (lambda: any_client.publish("q", b"x", {5: "x"}), "properties: the name 5 is not text"),
            (lambda: any_client.publish("q", b"x", None, [1]), "application properties are a mapping"),
            (lambda: any_client.publish_batch("q", None), "a batch is messages, .*, not NoneType"),
            (lambda: any_client.set_policy("p", "*", {}, "1"), f"priority '1'; {whole}"),
        ):
            with pytest.raises(UsageError, match=said):
                await call()


@on_cluster()
async def test_messages_stay_held_if_one_beside_them_cannot_be_settled(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 3)
        async with client.consume("q") as consumer:
            messages = await take(consumer, 3)
            await messages[1].settle()
            with pytest.raises(UsageError, match="has no delivery 2"):
                await consumer.settle(messages)
            await consumer.settle([messages[0], messages[2]], wait=True)
    assert sorted(settled(world)) == [1, 2, 3]


@on_cluster()
async def test_after_a_lost_stream_what_was_held_is_void_and_comes_again(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 10)
        async with client.consume("q", prefetch=10) as consumer:
            delivery = await consumer.next_delivery()
            assert delivery is not None
            await delivery[0].settle(wait=True)
            world.nodes[0].cut()
            again = await take(consumer, 9)
            assert client.node == "n2"
            assert delivery.is_void
            with pytest.raises(VoidDelivery):
                await delivery[1].settle()
            assert await consumer.settle_batch(delivery) is False
            assert [message.sequence for message in again] == list(range(2, 11))
            assert [message.tag for message in again] == list(range(1, 10))
            assert all(message.redelivered for message in again)
            await consumer.settle(again, wait=True)
    assert sorted(settled(world)) == list(range(1, 11))


@on_cluster()
async def test_the_rest_of_a_void_delivery_is_not_handed_to_the_caller(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 10)
        seen: list[int] = []
        async with client.consume("q", prefetch=10) as consumer:
            async for message in consumer:
                seen.append(message.sequence)
                if len(seen) == 3:
                    world.nodes[0].cut()
                    await eventually(lambda: client.reconnect_count == 1, "reconnected")
                if message.sequence == 10:
                    break
    assert seen == [1, 2, 3, *range(1, 11)]


@on_cluster()
async def test_auto_settle_settles_when_the_next_is_asked_for(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 5)
        consumer = client.consume("q", auto_settle=True)
        async for message in consumer:
            if message.sequence == 4:
                break
        await eventually(lambda: settled(world) == [1, 2, 3], "the three before it")
        await consumer.cancel()
    assert settled(world) == [1, 2, 3]
    assert list(world.cluster.queues["q"].ready) == [4, 5]


@on_cluster()
async def test_auto_settle_settles_a_delivery_when_the_next_is_asked_for(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 5)
        async with client.consume("q", prefetch=2, auto_settle=True) as consumer:
            async for delivery in consumer.deliveries():
                if delivery[0].sequence == 3:
                    break
            await eventually(lambda: settled(world) == [1, 2], "the delivery before it")
    assert settled(world) == [1, 2]


@on_cluster()
async def test_a_consumer_that_is_cancelled_before_it_is_attached_is_not_attached(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 1)
        consumer = client.consume("q")
        await consumer.cancel()
        assert [message async for message in consumer] == []
        await client.publish("q", b"more")
    assert not {"attach", "cancel"} & {kind for node in world.nodes for kind in node.requests}


@on_cluster()
async def test_filters_are_sent_with_consumers_and_browses(world: World) -> None:
    wanted = {"properties": {"subject": "&p:a"}, "application_properties": {"n": 1}}
    async with quorum.connect(world.url) as client:
        async with client.consume("q", property_filter=wanted):
            [attach] = world.cluster.attaches
        assert attach.property_filter == property_filter(wanted)
        assert [message async for message in client.browse("q", "n = 1", delayed=True)] == []
        assert [message async for message in client.browse("q", property_filter=wanted)] == []
        first, second = world.cluster.browses
        assert (first.selector, first.delayed) == ("n = 1", True)
        assert (second.property_filter, second.delayed) == (property_filter(wanted), False)


@on_cluster(nodes=1)
async def test_what_the_service_says_of_what_the_client_has_ended_changes_nothing(world: World) -> None:
    async with quorum.connect(world.url) as client:
        [stream] = world.nodes[0].streams
        deleted = Refusal(code_pb2.NOT_FOUND, "QUEUE_DELETED", "the queue was deleted").status
        stream.answer(attached=queue_pb2.Attached(request_id=99, consumer_tag="gone", attach=9))
        stream.answer(delivery=queue_pb2.Delivery(consumer_tag="gone", attach=9, first_tag=1, count=1))
        stream.answer(drained=queue_pb2.Drained(consumer_tag="gone", next_tag=1))
        stream.answer(active_changed=queue_pb2.ActiveChanged(consumer_tag="gone", attach=9, active=True))
        stream.answer(timed_out=queue_pb2.TimedOut(consumer_tag="gone", attach=9, last_tag=1))
        stream.answer(cancelled=queue_pb2.Cancelled(consumer_tag="gone", status=deleted))
        stream.answer(done=queue_pb2.Done(request_ids=[99]))
        stream.answer(failed=queue_pb2.Failed(request_id=99, status=deleted))
        await client.publish("q", b"one")
        assert client.reconnect_count == 0


@on_cluster()
async def test_a_settle_that_was_not_committed_says_so(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        async with client.consume("q") as consumer:
            messages = await take(consumer, 2)
            world.nodes[0].muted = True
            settling = asyncio.create_task(messages[0].settle(wait=True))
            await eventually(lambda: len(settled(world)) == 1, "taken, not answered")
            world.nodes[0].cut()
            with pytest.raises(QuorumError):
                await settling


@on_cluster()
async def test_settles_written_before_closing_are_taken(world: World) -> None:
    with patch.object(session, "CLOSE_FLUSH_S", EVENTUALLY_S):
        async with quorum.connect(world.url) as client:
            await filled(client, 300)
            consumer = await client.consume("q")
            for message in await take(consumer, 300):
                await message.settle()
    await eventually(lambda: len(settled(world)) == 300, "all settled")


@on_cluster()
async def test_a_bad_selector_is_refused_with_its_reason(world: World) -> None:
    async with quorum.connect(world.url) as client:
        with pytest.raises(RefusedError, match="cannot parse") as refused:
            await client.consume("q", selector="colour = = 'red'")
        assert refused.value.reason == "BAD_SELECTOR"
        assert "why" in refused.value.metadata
        with pytest.raises(NotFound):
            async for _ in client.consume("nowhere"):
                pass
        with pytest.raises(UsageError, match="not both"):
            client.consume("q", "a = 1", {"properties": {"subject": "x"}})
        assert client.reconnect_count == 0


@on_cluster()
async def test_a_selector_picks_messages_and_is_attached_again(world: World) -> None:
    world.cluster.selectors["even"] = lambda message: int(message.body) % 2 == 0
    async with quorum.connect(world.url) as client:
        await filled(client, 10)
        async with client.consume("q", selector="even") as consumer:
            assert [int(message.body) for message in await take(consumer, 5)] == [0, 2, 4, 6, 8]
            world.nodes[0].cut()
            assert [int(message.body) for message in await take(consumer, 5)] == [0, 2, 4, 6, 8]


@on_cluster()
async def test_a_deleted_queue_ends_its_consumers_with_the_reason(world: World) -> None:
    async with quorum.connect(world.url) as client:
        consumer = await client.consume("q")
        await client.delete("q")
        with pytest.raises(NotFound) as ended:
            await consumer.next_delivery()
        assert ended.value.reason == "QUEUE_DELETED"


@on_cluster()
async def test_a_consumer_ended_for_a_passing_reason_is_attached_again(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 3)
        async with client.consume("q", consumer_tag="c") as consumer:
            old = await take(consumer, 3)
            [server_side] = world.cluster.queues["q"].consumers
            _end(server_side)
            again = await take(consumer, 3)
            assert [message.sequence for message in again] == [1, 2, 3]
            with pytest.raises(VoidDelivery):
                await old[0].settle()
            await consumer.settle(again, wait=True)
    assert settled(world) == [1, 2, 3]


def _end(consumer: FakeConsumer) -> None:
    """The service ends a consumer because of its own troubles."""
    passing = Refusal(code_pb2.UNAVAILABLE, "NODE_DOWN", "lease lost")
    stream = consumer.stream
    del stream.consumers[consumer.tag]
    stream.answer(cancelled=queue_pb2.Cancelled(consumer_tag=consumer.tag, status=passing.status))
    stream.cluster.detach(consumer)


@on_cluster()
async def test_after_a_consumer_timeout_the_caller_goes_on_by_asking_for_more(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 3)
        async with client.consume("q", consumer_tag="c") as consumer:
            old = await take(consumer, 3)
            [server_side] = world.cluster.queues["q"].consumers
            _time_out(server_side)
            await eventually(lambda: old[0].delivery.is_void, "the delivery is void")
            with pytest.raises(VoidDelivery):
                await old[0].settle()
            assert not await consumer.settle_batch(old[0].delivery)
            await asyncio.sleep(0.05)
            assert world.nodes[0].requests.count("attach") == 1, "not before the caller asks"
            again = await take(consumer, 3)
            assert [message.sequence for message in again] == [1, 2, 3]
            await consumer.settle(again, wait=True)
    assert settled(world) == [1, 2, 3]


@on_cluster()
async def test_a_caller_that_waits_goes_on_at_once_after_a_consumer_timeout(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        async with client.consume("q", consumer_tag="c") as consumer:
            await take(consumer, 2)
            waiting = asyncio.create_task(consumer.next_delivery())
            await asyncio.sleep(0)
            [server_side] = world.cluster.queues["q"].consumers
            _time_out(server_side)
            delivery = await waiting
            assert delivery is not None and delivery.count == 2


@on_cluster()
async def test_what_an_attachment_gives_after_its_timeout_is_void(world: World) -> None:
    """A late settlement answers what has timed out: then the service goes on under the same attachment."""
    async with quorum.connect(world.url) as client:
        await filled(client, 4)
        async with client.consume("q", consumer_tag="c", prefetch=2) as consumer:
            await take(consumer, 2)
            [server_side] = world.cluster.queues["q"].consumers
            _time_out(server_side)
            server_side.credit_to = 4
            world.cluster.serve(server_side.queue)
            again = await take(consumer, 2)
            attaches = {each.delivery.attach for each in again}
            assert server_side.attach not in attaches
            assert [(message.sequence, message.tag) for message in again] == [(1, 1), (2, 2)]
            await consumer.settle(again, wait=True)
    assert settled(world) == [1, 2]


@on_cluster()
async def test_a_consumer_takes_nothing_from_the_attachment_of_one_before(world: World) -> None:
    """Both have the same tag, and the answer to the first one's attachment is late."""
    async with quorum.connect(world.url) as client:
        await filled(client, 3)
        world.cluster.holds_attaches = True
        late = asyncio.ensure_future(client.consume("q", consumer_tag="c", timeout_ms=LIMIT_MS).start())
        await eventually(lambda: len(world.cluster.held_attaches) == 1, "requested")
        world.pass_limit()
        with pytest.raises(TimedOut):
            await late
        attaching = asyncio.ensure_future(client.consume("q", consumer_tag="c").start())
        await eventually(lambda: len(world.cluster.held_attaches) == 2, "attached again")
        world.cluster.release_attaches()
        consumer = await attaching
        [earlier, server_side] = world.cluster.queues["q"].consumers
        assert not server_side.held, "the attachment before holds all of them"
        world.cluster.detach(earlier)
        messages = await take(consumer, 3)
        assert {message.delivery.attach for message in messages} == {server_side.attach}
        await consumer.settle(messages, wait=True)
    assert settled(world) == [1, 2, 3]


@on_cluster()
async def test_a_settlement_that_came_after_the_consumer_timeout_is_no_success(world: World) -> None:
    """The service answers it as one that has an effect, after it has told the timeout."""
    async with quorum.connect(world.url) as client, client.consume("q", consumer_tag="c") as consumer:
        await filled(client, 3)
        messages = await take(consumer, 3)
        [server_side] = world.cluster.queues["q"].consumers
        world.cluster.holds_dispositions = True
        stream, sent = server_side.stream, world.cluster.dispositions
        settling: list[asyncio.Task[None]] = []
        for message in messages:
            settling.append(asyncio.create_task(consumer.settle(message, wait=True)))
            await eventually(lambda: len(sent) == len(settling), "it is sent")
        in_time, late, received_later = (queue_pb2.Done(request_ids=[each.request_id]) for each in sent)
        stream.answer(done=in_time)
        stream.answer(timed_out=queue_pb2.TimedOut(consumer_tag="c", attach=server_side.attach, last_tag=2))
        stream.answer(done=late)
        stream.answer(done=received_later)
        outcomes = await asyncio.gather(*settling, return_exceptions=True)
        assert [type(each) for each in outcomes] == [type(None), VoidDelivery, type(None)]
        world.cluster.holds_dispositions = False


@on_cluster()
async def test_a_settlement_is_no_success_if_its_message_timed_out_after_others_of_the_consumer(
    world: World,
) -> None:
    """All messages are void for the client at the first timeout. The service requeues the later ones when their own
    time has passed, and says so."""
    async with quorum.connect(world.url) as client, client.consume("q", consumer_tag="c") as consumer:
        await filled(client, 2)
        _, later = await take(consumer, 2)
        [server_side] = world.cluster.queues["q"].consumers
        world.cluster.holds_dispositions = True
        settling = asyncio.create_task(consumer.settle(later, wait=True))
        await eventually(lambda: len(world.cluster.dispositions) == 1, "it is sent")
        for tag in (1, 2):
            timed_out = queue_pb2.TimedOut(consumer_tag="c", attach=server_side.attach, last_tag=tag)
            server_side.stream.answer(timed_out=timed_out)
        [sent] = world.cluster.dispositions
        server_side.stream.answer(done=queue_pb2.Done(request_ids=[sent.request_id]))
        with pytest.raises(VoidDelivery, match="delivery 2 had timed out before"):
            await settling
        world.cluster.holds_dispositions = False


def _time_out(consumer: FakeConsumer) -> None:
    """The service says that all messages that a consumer holds have timed out."""
    timed_out = queue_pb2.TimedOut(
        consumer_tag=consumer.tag, attach=consumer.attach, last_tag=max(consumer.held)
    )
    consumer.stream.answer(timed_out=timed_out)


@on_cluster()
async def test_a_consumer_knows_whether_it_is_the_active_one(world: World) -> None:
    async with quorum.connect(world.url) as client, client.consume("q", consumer_tag="c") as consumer:
        assert not consumer.is_active
        [server_side] = world.cluster.queues["q"].consumers
        for active in (True, False, True):
            changed = queue_pb2.ActiveChanged(consumer_tag="c", attach=server_side.attach, active=active)
            server_side.stream.answer(active_changed=changed)
            await eventually(lambda: consumer.is_active is active, "the consumer is told")  # noqa: B023
        world.nodes[0].cut()
        await eventually(lambda: not consumer.is_active, "it is not active on a new stream")


@on_cluster()
async def test_a_priority_is_sent_and_has_limits(world: World) -> None:
    async with quorum.connect(world.url) as client:
        assert client.consume("q", priority=-10).attach_request(1).priority == -10
        assert client.consume("q").attach_request(1).priority == 0
        with pytest.raises(UsageError, match=r"priority 11; allowed: a whole number from -10 to 10"):
            client.consume("q", priority=11)


@on_cluster()
async def test_cancelling_returns_what_is_held(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 5)
        consumer = await client.consume("q")
        messages = await take(consumer, 5)
        await messages[0].settle()
        await consumer.cancel()
        assert list(world.cluster.queues["q"].ready) == [2, 3, 4, 5]
        assert await consumer.next_delivery() is None
        with pytest.raises(VoidDelivery):
            await messages[1].settle()


@on_cluster()
async def test_a_consumer_whose_cancel_is_not_answered_has_ended(world: World) -> None:
    async with quorum.connect(world.url, timeout_ms=LIMIT_MS, silence_ms=60_000) as client:
        await filled(client, 1)
        consumer = await client.consume("q", consumer_tag="mine")
        [message] = await take(consumer, 1)
        world.nodes[0].muted = True
        cancelling = asyncio.ensure_future(consumer.cancel())
        await eventually(lambda: "cancel" in world.nodes[0].requests, "requested")
        world.pass_limit()
        with pytest.raises(TimedOut):
            await cancelling
        world.nodes[0].muted = False
        with pytest.raises(VoidDelivery):
            await message.settle()
        async with client.consume("q", consumer_tag="mine") as again:
            [message] = await take(again, 1)
            assert message.redelivered


@on_cluster()
async def test_a_cancelled_consumer_may_still_settle_if_asked_so(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 5)
        consumer = await client.consume("q")
        messages = await take(consumer, 5)
        await consumer.cancel(requeue=False)
        await consumer.settle(messages, wait=True)
    assert settled(world) == [1, 2, 3, 4, 5]


@on_cluster()
async def test_draining_ends_the_iteration_after_what_is_there(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 7)
        async with client.consume("q") as consumer:
            await consumer.drain()
            seen = []
            async for message in consumer:
                seen.append(message.sequence)
                await message.settle()
        assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert settled(world) == seen


@on_cluster(nodes=1)
async def test_a_drained_consumer_has_ended_when_its_stream_is_lost(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        consumer = client.consume("q", consumer_tag="c")
        await consumer.drain()
        await eventually(lambda: consumer.is_drained, "drained")
        world.nodes[0].cut()
        await eventually(lambda: client.reconnect_count == 1, "another stream")
        assert [message async for message in consumer] == []
        assert len(world.cluster.attaches) == 1, "what arrived later is not for it"
        async with client.consume("q", consumer_tag="c") as other:
            assert len(await take(other, 2)) == 2


@on_cluster(nodes=1)
async def test_what_was_got_is_void_when_its_stream_is_lost(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 1)
        [message] = await client.get("q")
        world.nodes[0].cut()
        await eventually(lambda: client.reconnect_count == 1, "another stream")
        with pytest.raises(VoidDelivery):
            await client.settle(message)
        [again] = await client.get("q")
        await client.settle(again, wait=True)
    assert settled(world) == [1]


@on_cluster()
async def test_a_consumer_tag_is_used_once_in_a_client(world: World) -> None:
    async with quorum.connect(world.url) as client, client.consume("q", consumer_tag="c"):
        with pytest.raises(UsageError, match="in use"):
            await client.consume("q", consumer_tag="c")


@on_cluster()
async def test_a_cancelled_wait_loses_no_message(world: World) -> None:
    async with quorum.connect(world.url) as client, client.consume("q") as consumer:
        waiting = asyncio.create_task(consumer.next_delivery())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await filled(client, 1)
        assert [message.body for message in await take(consumer, 1)] == [b"0"]


@on_cluster()
async def test_get_takes_what_is_there_and_no_more(world: World) -> None:
    async with quorum.connect(world.url) as client:
        assert await client.get("q", 5) == []
        await filled(client, 7)
        first, second = await asyncio.gather(client.get("q", 3), client.get("q", 3))
        assert [message.sequence for message in [*first, *second]] == [1, 2, 3, 4, 5, 6]
        await client.settle([first[0], second[0]], wait=True)
        await client.return_(first[1], wait=True)
        assert settled(world) == [1, 4]
        assert list(world.cluster.queues["q"].ready) == [2, 7]
        with pytest.raises(NotFound):
            await client.get("nowhere")


@on_cluster()
async def test_a_settled_get_leaves_nothing_to_settle(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        [message] = await client.get("q", 1, settled=True)
        with pytest.raises(UsageError, match="no delivery"):
            await message.settle()
        world.nodes[0].cut()
        await eventually(lambda: client.reconnect_count == 1, "reconnected")
        assert [message.sequence for message in await client.get("q", 5)] == [2]


@on_cluster()
async def test_a_get_under_way_when_the_stream_breaks_is_repeated(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        world.cluster.holds_gets = True
        getting = asyncio.create_task(client.get("q", 2))
        await eventually(lambda: "get" in world.nodes[0].requests, "asked")
        world.cluster.holds_gets = False
        world.nodes[0].cut()
        assert [message.sequence for message in await getting] == [1, 2]


@on_cluster()
async def test_what_a_given_up_get_takes_goes_back(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        stream = world.nodes[0].streams[0]
        held: list[Any] = []
        answer = stream.answer
        stream.answer = lambda **response: held.append(response)  # type: ignore[method-assign]
        getting = asyncio.create_task(client.get("q", 2, timeout_ms=LIMIT_MS))
        await eventually(lambda: len(held) == 2, "taken, not answered")
        world.pass_limit()
        with pytest.raises(TimedOut):
            await getting
        stream.answer = answer  # type: ignore[method-assign]
        assert not world.cluster.queues["q"].ready
        for response in held:
            answer(**response)
        queue = world.cluster.queues["q"]
        await eventually(lambda: len(queue.ready) == 2, "given back")
        assert [message.failed for message in queue.ready.values()] == [0, 0]


@on_cluster()
async def test_a_get_cancelled_by_its_caller_holds_nothing(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        stream = world.nodes[0].streams[0]
        held: list[Any] = []
        answer = stream.answer
        stream.answer = lambda **response: held.append(response)  # type: ignore[method-assign]
        getting = asyncio.create_task(client.get("q", 2))
        await eventually(lambda: len(held) == 2, "taken, not answered")
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        stream.answer = answer  # type: ignore[method-assign]
        for response in held:
            answer(**response)
        await eventually(lambda: len(world.cluster.queues["q"].ready) == 2, "given back")


@on_cluster()
async def test_an_attach_that_took_too_long_is_taken_back(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        world.nodes[0].muted = True
        attaching = asyncio.create_task(client.consume("q", timeout_ms=LIMIT_MS).start())
        await eventually(lambda: "attach" in world.nodes[0].requests, "requested")
        world.pass_limit()
        with pytest.raises(TimedOut):
            await attaching
        world.nodes[0].muted = False
        await eventually(lambda: not world.cluster.queues["q"].consumers, "detached")
        assert list(world.cluster.queues["q"].ready) == [1, 2]


@on_cluster()
async def test_a_defect_in_an_attachment_ends_the_consumer(world: World) -> None:
    """Also one that is attached again while its caller waits for messages."""
    async with quorum.connect(world.url) as client:
        consumer = await client.consume("q").start()
        waiting = asyncio.create_task(consumer.next_delivery())
        with patch.object(Consumer, "attach_request", side_effect=RuntimeError("a defect")):
            async with asyncio.timeout(EVENTUALLY_S):
                with pytest.raises(ServiceError, match="a defect"):
                    await client.consume("q").start()
                world.nodes[0].cut()
                with pytest.raises(ServiceError, match="a defect"):
                    await waiting
        await client.publish("q", b"the client goes on")


@on_cluster()
async def test_an_attach_that_is_cancelled_by_its_caller_is_taken_back(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        world.cluster.holds_attaches = True
        attaching = asyncio.create_task(client.consume("q").start())
        await eventually(lambda: bool(world.cluster.held_attaches), "requested")
        attaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attaching
        world.cluster.release_attaches()
        await eventually(lambda: "cancel" in world.nodes[0].requests, "taken back")
        assert list(world.cluster.queues["q"].ready) == [1, 2]
        assert not world.cluster.queues["q"].consumers


@on_cluster(nodes=1)
async def test_a_get_that_was_given_up_before_it_was_requested_takes_nothing(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 3)
        await world.nodes[0].stop()
        await eventually(lambda: not client._live().is_up, "the stream is lost")
        with pytest.raises(TimedOut):
            await client.get("q", settled=True, timeout_ms=50)
        getting = asyncio.create_task(client.get("q", settled=True))
        await asyncio.sleep(0.01)
        getting.cancel()
        await world.nodes[0].start()
        [message] = await client.get("q", settled=True)
        assert message.sequence == 1


@on_cluster()
async def test_a_settle_without_an_answer_has_a_deadline(world: World) -> None:
    async with quorum.connect(world.url, timeout_ms=LIMIT_MS, silence_ms=60_000) as client:
        await filled(client, 1)
        async with client.consume("q") as consumer:
            [message] = await take(consumer, 1)
            world.nodes[0].muted = True
            settling = asyncio.ensure_future(message.settle(wait=True))
            await eventually(lambda: "disposition" in world.nodes[0].requests, "requested")
            world.pass_limit()
            with pytest.raises(TimedOut):
                await settling
            world.nodes[0].muted = False


@on_cluster()
async def test_a_client_that_is_reconnecting_can_be_closed(world: World) -> None:
    client = await quorum.connect(world.url)
    consumer = await client.consume("q")
    for node in world.nodes:
        await node.stop()
    beginning = asyncio.create_task(client.consume("q").start())
    await asyncio.sleep(0.05)
    await client.close()
    assert await consumer.next_delivery() is None
    with pytest.raises(ClosedError):
        await beginning


@on_cluster()
async def test_a_client_whose_close_is_cancelled_is_closed_all_the_same(world: World) -> None:
    client = await quorum.connect(world.url)
    world.cluster.holds_confirms = True
    publishing = asyncio.create_task(client.publish("q", b"never confirmed"))
    consumer = await client.consume("q")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.close()
    with pytest.raises(ClosedError):
        await publishing
    assert await consumer.next_delivery() is None
    await eventually(lambda: not world.cluster.queues["q"].consumers, "its messages are given back")


@on_cluster()
async def test_a_stream_that_breaks_while_its_client_closes_is_no_error(world: World) -> None:
    client = await quorum.connect(world.url)
    session = client._live()

    def breaks() -> bool:
        session._call = None
        return True

    session._is_flushed = breaks  # type: ignore[method-assign]
    await client.close(timeout_ms=0)


@on_cluster()
async def test_a_stream_that_breaks_while_it_is_half_closed_is_no_error(world: World) -> None:
    client = await quorum.connect(world.url)
    session = client._live()
    asked = []

    async def breaks() -> None:
        asked.append("done_writing")
        raise grpc.aio.InternalError("execute_batch")

    session._call.done_writing = breaks
    await client.close()
    assert asked


@on_cluster()
async def test_an_iteration_that_is_broken_off_is_continued_by_the_next_one(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 6)
        async with client.consume("q") as consumer:
            seen: list[tuple[int, int, bytes]] = []
            for _ in range(2):
                async for message in consumer:
                    seen.append((message.tag, message.sequence, message.body))
                    if len(seen) % 2 == 0:
                        break
            seen += [(each.tag, each.sequence, each.body) for each in await take(consumer, 2)]
            assert seen == [(number, number, b"%d" % (number - 1)) for number in range(1, 7)]
            assert await consumer.settle_up_to(6) == 6


@on_cluster()
async def test_an_iteration_goes_on_after_a_wait_that_was_cancelled(world: World) -> None:
    async with quorum.connect(world.url) as client, client.consume("q", auto_settle=True) as consumer:
        messages, deliveries = aiter(consumer), aiter(consumer.deliveries())
        for received in (messages, deliveries):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(received), 0.01)
        await filled(client, 2)
        assert (await anext(messages)).body == b"0"
        [rest] = await anext(deliveries)
        assert rest.body == b"1"


@on_cluster()
async def test_the_rest_of_a_delivery_is_void_with_its_attachment(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 3)
        async with client.consume("q") as consumer:
            async for _ in consumer:
                break
            world.nodes[0].cut()
            await eventually(lambda: client.reconnect_count == 1 and bool(consumer.attach), "attached again")
            messages = await take(consumer, 3)
            assert [(each.tag, each.redelivered) for each in messages] == [(1, True), (2, True), (3, True)]


def test_the_rest_of_a_delivery_has_its_own_sequences() -> None:
    batch = quorum.encode_batch(numbered(0, 6)).data
    wire = queue_pb2.Delivery(attach=1, first_tag=11, count=6, batch=batch)
    for first, last in ((1, 2), (5, 5), (7, 9)):
        wire.sequences.add(first=first, last=last)
    delivery = Delivery(GetHolder(cast(Link, None), "q", 1), wire, 0)
    for place in range(6):
        rest = delivery.rest(place)
        assert [(each.tag, each.sequence, each.body) for each in rest] == [
            (each.tag, each.sequence, each.body) for each in list(delivery)[place:]
        ]


@on_cluster()
async def test_a_consumer_that_could_not_begin_says_so_each_time(world: World) -> None:
    client = await quorum.connect(world.url)
    first, second = (client.consume("q", consumer_tag="same") for _ in range(2))
    late = client.consume("q")
    async with first, asyncio.timeout(EVENTUALLY_S):
        for _ in range(2):
            with pytest.raises(UsageError, match="in use"):
                await second.next_delivery()
    await second  # its tag is free
    await client.close()
    async with asyncio.timeout(EVENTUALLY_S):
        for _ in range(2):
            with pytest.raises(ClosedError):
                await late.next_delivery()


@on_cluster()
async def test_the_client_forgets_a_queue_whose_messages_are_settled(world: World) -> None:
    """A program may get from a new queue each time."""
    async with quorum.connect(world.url) as client:
        for name in ("a", "b", "q"):
            world.cluster.declare(name)
            await client.publish(name, b"x")
            [message] = await client.get(name)
            await message.settle(wait=True)
        await eventually(lambda: len(client._live().gets._holders) == 1, "forgotten")


@on_cluster()
async def test_a_settlement_that_was_void_before_it_was_sent_awaits_no_answer(world: World) -> None:
    """The client would take the service for silent, and reconnect."""
    async with quorum.connect(world.url) as client, client.consume("q") as consumer:
        await filled(client, 1)
        [message] = await take(consumer, 1)
        settling = asyncio.create_task(message.settle(wait=True))
        await asyncio.sleep(0)  # it is queued, and the writer has not run
        consumer.timed_out(consumer.attach, 1)
        with pytest.raises(VoidDelivery):
            await settling
        assert not client._live()._stream.requests


@on_cluster()
async def test_arguments_of_wrong_types_are_refused_by_their_call_and_end_nothing(world: World) -> None:
    """A request is made when it is sent, so a wrong value would end the session there."""
    wrong: Any = "yes"
    async with quorum.connect(world.url) as client, client.consume("q") as consumer:
        await filled(client, 1)
        [message] = await take(consumer, 1)
        transaction = client.transaction()
        for call in (
            lambda: message.modify(delivery_failed=wrong),
            lambda: message.modify(undeliverable_here=wrong),
            lambda: transaction.modify(message, delivery_failed=wrong),
            lambda: consumer.settle_ranges([(1.0, 2.5)]),  # type: ignore[list-item]  # the case
            lambda: consumer.settle_ranges([3]),  # type: ignore[list-item]
            lambda: consumer.settle_up_to(1.5),  # type: ignore[arg-type]
            lambda: consumer.cancel(requeue=wrong),
            lambda: client.get("q", settled=wrong),
            lambda: client.get("q", 1.5),  # type: ignore[arg-type]
            lambda: client.publish(("q",), b"x"),  # type: ignore[arg-type]
            lambda: client.publish_to("", ("q",), b"x"),  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError):
                await call()
        assert not client._live()._stream.requests
        await message.settle(wait=True)
        await client.publish("q", b"more")
        assert (settled(world), client.reconnect_count) == ([1], 0)
