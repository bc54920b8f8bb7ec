"""Attachments that end: with a stream, a queue, a consumer timeout, a cancel, or the client."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import grpc
import pytest
from google.rpc import code_pb2

import quorum
from quorum.client import Consumer
from quorum.client.errors import ClosedError, NotFound, ServiceError, TimedOut, UsageError, VoidDelivery
from quorum.v1 import queue_pb2
from support.fake_server.cluster import FakeConsumer, Refusal
from support.fake_server.consuming import filled, settled, take
from support.fake_server.harness import EVENTUALLY_S, LIMIT_MS, World, eventually, on_cluster


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
async def test_a_deleted_queue_ends_its_consumers_with_the_reason(world: World) -> None:
    async with quorum.connect(world.url) as client:
        consumer = await client.consume("q")
        await client.delete("q")
        with pytest.raises(NotFound) as ended:
            await consumer.next_delivery()
        assert ended.value.reason == "QUEUE_DELETED"


@on_cluster()
async def test_the_tag_of_a_consumer_that_was_ended_or_refused_is_free(world: World) -> None:
    async with quorum.connect(world.url) as client:
        consumer = await client.consume("q", consumer_tag="same")
        await client.delete("q")
        with pytest.raises(NotFound):
            await consumer.next_delivery()
        for _ in range(2):
            with pytest.raises(NotFound):
                await client.consume("q", consumer_tag="same")
        world.cluster.declare("q")
        await client.consume("q", consumer_tag="same")


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
            waiting = asyncio.create_task(consumer.next_delivery())
            await client.publish("q", b"4")
            await waiting
            assert world.nodes[0].requests.count("attach") == 2, "once for the timeout"
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


@on_cluster(nodes=1)
async def test_a_task_that_is_cancelled_ends_its_consumer_without_waiting_for_an_answer(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 3)
        has_taken = asyncio.Event()

        async def works() -> None:
            async with client.consume("q", consumer_tag="c") as consumer:
                await (await take(consumer, 3))[0].settle()
                has_taken.set()
                await asyncio.Event().wait()

        working = asyncio.create_task(works())
        await has_taken.wait()
        world.nodes[0].muted = True
        working.cancel()
        await asyncio.sleep(0)
        assert working.cancelled()
        world.nodes[0].muted = False
        async with client.consume("q", consumer_tag="c") as other:
            assert [message.sequence for message in await take(other, 2)] == [2, 3]
    assert settled(world) == [1]


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
async def test_a_task_that_is_cancelled_while_there_is_no_stream_ends_its_consumer(world: World) -> None:
    async with quorum.connect(world.url) as client:
        has_begun = asyncio.Event()

        async def works() -> None:
            async with client.consume("q", consumer_tag="c"):
                has_begun.set()
                await asyncio.Event().wait()

        working = asyncio.create_task(works())
        await has_begun.wait()
        for node in world.nodes:
            await node.stop()
        await eventually(lambda: not client._live().is_up, "the stream is lost")
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await world.nodes[1].start()
        async with client.consume("q", consumer_tag="c"):
            assert len(world.cluster.queues["q"].consumers) == 1


@on_cluster()
async def test_a_drain_waits_until_the_service_has_answered(world: World) -> None:
    async with quorum.connect(world.url, timeout_ms=LIMIT_MS) as client:
        consumer = await client.consume("q")
        world.nodes[0].muted = True
        draining = asyncio.create_task(consumer.drain())
        await eventually(lambda: "credit" in world.nodes[0].requests, "requested")
        assert not draining.done()
        world.pass_limit()
        with pytest.raises(TimedOut, match="draining"):
            await draining
        world.nodes[0].muted = False
