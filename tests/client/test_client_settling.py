"""Settlements: how they travel, which are refused, and what their caller learns."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest
from google.rpc import code_pb2

import quorum
from quorum.client.errors import QuorumError, TimedOut, UsageError, VoidDelivery
from quorum.client.session import session
from quorum.client.values import property_filter
from quorum.v1 import queue_pb2
from support.fake_server.cluster import Refusal
from support.fake_server.consuming import filled, settled, take
from support.fake_server.harness import EVENTUALLY_S, LIMIT_MS, World, eventually, on_cluster


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
