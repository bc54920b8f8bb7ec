"""Single publishes that the client gathers into batches: their order, their outcomes, and what is sent when."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from google.rpc import code_pb2

import quorum
from quorum.client.client import Client
from quorum.client.errors import ClosedError, PublishRejected, PublishUnknown, TimedOut, UsageError
from quorum.client.session.gathering import ALONE_BYTES
from support.fake_server.cluster import Refusal
from support.fake_server.harness import LIMIT_MS, World, eventually, on_cluster


def arrived(world: World, queue: str = "q") -> list[bytes]:
    return world.cluster.queues[queue].arrived


async def publish_all(client: Client, bodies: list[bytes], queue: str = "q") -> list[BaseException | None]:
    """The outcome of each, published by a task each, in this order."""
    return await asyncio.gather(*(client.publish(queue, each) for each in bodies), return_exceptions=True)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@on_cluster()
async def test_what_many_tasks_publish_in_one_turn_is_one_batch_in_order(world: World) -> None:
    async with quorum.connect(world.url) as client:
        assert await publish_all(client, numbered(50)) == [None] * 50
    assert arrived(world) == numbered(50)
    assert len(world.cluster.publish_requests) == 1


@on_cluster()
async def test_a_lone_message_leaves_at_once(world: World) -> None:
    async with quorum.connect(world.url) as client:
        for body in numbered(3):
            await client.publish("q", body)
    assert len(world.cluster.publish_requests) == 3


@on_cluster()
async def test_messages_gather_while_a_batch_is_under_way(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        first = asyncio.create_task(client.publish("q", b"first"))
        await eventually(lambda: arrived(world) == [b"first"], "accepted")
        rest = asyncio.gather(*(client.publish("q", each) for each in numbered(20)))
        await asyncio.sleep(0.05)
        assert arrived(world) == [b"first"]
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await asyncio.gather(first, rest)
    assert arrived(world) == [b"first", *numbered(20)]
    assert len(world.cluster.publish_requests) == 2


@on_cluster()
async def test_tasks_that_an_answer_woke_are_in_the_next_batch(world: World) -> None:
    async def publisher(client: Client, number: int) -> None:
        for turn in range(5):
            await client.publish("q", b"%d:%d" % (number, turn))

    async with quorum.connect(world.url) as client:
        await asyncio.gather(*(publisher(client, number) for number in range(30)))
    assert len(arrived(world)) == 150
    assert len(world.cluster.publish_requests) == 5


@on_cluster()
async def test_a_full_batch_does_not_wait_for_the_one_before(world: World) -> None:
    world.cluster.limits.max_batch_messages = 4
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        tasks = [asyncio.create_task(client.publish("q", each)) for each in numbered(10)]
        await eventually(lambda: len(arrived(world)) == 8, "two full batches")
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await asyncio.gather(*tasks)
    assert arrived(world) == numbered(10)


@on_cluster()
async def test_a_batch_is_full_too_if_the_service_allows_fewer_messages_since_a_reconnect(
    world: World,
) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        tasks = [asyncio.create_task(client.publish("q", b"first"))]
        await eventually(lambda: arrived(world) == [b"first"], "accepted")
        tasks += [asyncio.create_task(client.publish("q", each)) for each in numbered(3)]
        await asyncio.sleep(0)
        client._live().publisher.limits.max_batch_messages = 2
        tasks.append(asyncio.create_task(client.publish("q", b"last")))
        await eventually(
            lambda: len(arrived(world)) == 5, "the full batch, without the answer to the one before"
        )
        world.cluster.release_confirms()
        await asyncio.gather(*tasks)


@on_cluster()
async def test_a_large_message_travels_alone_and_in_its_place(world: World) -> None:
    world.cluster.limits.max_message_bytes = ALONE_BYTES
    bodies = [b"a", b"b" * ALONE_BYTES, b"c"]
    async with quorum.connect(world.url) as client:
        assert await publish_all(client, bodies) == [None] * 3
    assert arrived(world) == bodies
    assert len(world.cluster.publish_requests) == 3


@on_cluster()
async def test_each_message_has_its_own_outcome(world: World) -> None:
    world.cluster.queues["q"].max_length = 3
    async with quorum.connect(world.url) as client:
        outcomes = await publish_all(client, numbered(5))
        assert outcomes[:3] == [None] * 3
        for refused in outcomes[3:]:
            assert isinstance(refused, PublishRejected)
            assert refused.reason == "QUEUE_FULL"
    assert arrived(world) == numbered(3)


@on_cluster()
async def test_a_batch_of_the_caller_keeps_its_place_among_single_messages(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        tasks = [asyncio.create_task(client.publish("q", b"1"))]
        await eventually(lambda: arrived(world) == [b"1"], "accepted")
        tasks.append(asyncio.create_task(client.publish("q", b"2")))
        await asyncio.sleep(0)
        batch = await client.send_batch("q", [b"3", b"4"])
        tasks.append(asyncio.create_task(client.publish("q", b"5")))
        await asyncio.sleep(0)
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await asyncio.gather(*tasks, batch)
    assert arrived(world) == [b"1", b"2", b"3", b"4", b"5"]


@on_cluster()
async def test_queues_gather_by_themselves(world: World) -> None:
    world.cluster.declare("other")
    async with quorum.connect(world.url) as client:
        found = asyncio.gather(publish_all(client, numbered(9)), publish_all(client, numbered(7), "other"))
        assert await found == [[None] * 9, [None] * 7]
    assert arrived(world) == numbered(9)
    assert arrived(world, "other") == numbered(7)
    assert len(world.cluster.publish_requests) == 2


@on_cluster()
async def test_a_caller_that_stops_waiting_before_its_message_is_sent_takes_it_back(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        first = asyncio.create_task(client.publish("q", b"first"))
        await eventually(lambda: arrived(world) == [b"first"], "accepted")
        kept, dropped = (asyncio.create_task(client.publish("q", each)) for each in (b"kept", b"dropped"))
        late = asyncio.create_task(client.publish("q", b"late", timeout_ms=30))
        await asyncio.sleep(0)
        dropped.cancel()
        with pytest.raises(TimedOut, match="nothing was sent to 'q'"):
            await late
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await asyncio.gather(first, kept)
    assert arrived(world) == [b"first", b"kept"]


@on_cluster()
async def test_messages_that_are_all_taken_back_hold_up_no_later_one(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        first = asyncio.create_task(client.publish("q", b"first"))
        await eventually(lambda: arrived(world) == [b"first"], "accepted")
        dropped = asyncio.create_task(client.publish("q", b"dropped"))
        await asyncio.sleep(0)
        dropped.cancel()
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await first
        await client.publish("q", b"later", timeout_ms=LIMIT_MS)
    assert arrived(world) == [b"first", b"later"]


@on_cluster()
async def test_a_message_that_was_sent_may_still_be_confirmed_when_its_time_is_up(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        other = asyncio.create_task(client.publish("q", b"patient"))
        hasty = asyncio.create_task(client.publish("q", b"hasty", timeout_ms=LIMIT_MS))
        await eventually(lambda: len(arrived(world)) == 2, "accepted")
        world.pass_limit()
        with pytest.raises(PublishUnknown) as caught:
            await hasty
        assert not other.done()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(caught.value.confirmation, 0.01)
        world.cluster.release_confirms()
        assert await caught.value.confirmation == 1
        await other
    assert arrived(world) == [b"patient", b"hasty"]


@on_cluster()
async def test_an_outcome_that_nobody_awaits_again_is_not_reported(world: World) -> None:
    reported: list[dict[str, Any]] = []
    world.loop.set_exception_handler(lambda _, context: reported.append(context))
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        hasty = asyncio.create_task(client.publish("q", b"hasty", timeout_ms=LIMIT_MS))
        await eventually(lambda: arrived(world) == [b"hasty"], "accepted")
        world.pass_limit()
        with pytest.raises(PublishUnknown):
            await hasty
        del hasty
        world.nodes[0].cut(Refusal(code_pb2.FAILED_PRECONDITION, "SESSION_EXPIRED", "forgotten"))
        await eventually(lambda: client._live().publisher.is_idle, "failed")
    gc.collect()
    assert reported == []


@on_cluster()
async def test_gathered_messages_are_published_once_over_a_broken_stream(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"0")
        world.cluster.cut_after = 1
        published = asyncio.create_task(publish_all(client, numbered(20)))
        await eventually(lambda: len(arrived(world)) == 21, "accepted")
        world.cluster.cut_after = -1
        assert await published == [None] * 20
    assert arrived(world) == [b"0", *numbered(20)]


@on_cluster()
async def test_a_message_that_was_refused_is_not_sent_again_with_its_neighbours(world: World) -> None:
    queue = world.cluster.queues["q"]
    queue.max_length = 3
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        tasks = [asyncio.create_task(client.publish("q", each)) for each in numbered(5)]
        await eventually(tasks[4].done, "refused")
        queue.max_length = -1
        world.cluster.holds_confirms = False
        world.nodes[0].cut()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[:3] == [None] * 3
    assert all(isinstance(each, PublishRejected) for each in outcomes[3:])
    assert arrived(world) == numbered(3)


@on_cluster()
async def test_messages_between_decided_ones_are_sent_again_with_their_numbers(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        tasks = [asyncio.create_task(client.publish("q", each)) for each in numbered(6)]
        await eventually(lambda: len(arrived(world)) == 6, "accepted")
        [stream] = world.nodes[0].streams
        stream.confirm(1, 2)
        stream.confirm(4, 4)
        await eventually(tasks[3].done, "confirmed")
        world.nodes[0].cut()
        await eventually(lambda: len(world.cluster.publish_requests) == 3, "sent again")
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        assert await asyncio.gather(*tasks) == [None] * 6
    assert arrived(world) == numbered(6)
    assert [request[1:] for request in world.cluster.publish_requests] == [(1, 1), (3, 3), (5, 3)]


@on_cluster()
async def test_closing_sends_what_is_gathered(world: World) -> None:
    client = await quorum.connect(world.url)
    world.cluster.holds_confirms = True
    tasks = [asyncio.create_task(client.publish("q", b"first"))]
    await eventually(lambda: arrived(world) == [b"first"], "accepted")
    tasks.append(asyncio.create_task(client.publish("q", b"second")))
    await asyncio.sleep(0)
    closing = asyncio.create_task(client.close())
    await eventually(lambda: arrived(world) == [b"first", b"second"], "sent")
    world.cluster.holds_confirms = False
    world.cluster.release_confirms()
    await asyncio.gather(*tasks, closing)


@on_cluster()
async def test_a_closed_client_fails_what_is_gathered(world: World) -> None:
    client = await quorum.connect(world.url)
    world.cluster.holds_confirms = True
    tasks = [asyncio.create_task(client.publish("q", each)) for each in numbered(3)]
    await eventually(lambda: len(arrived(world)) == 3, "accepted")
    tasks.append(asyncio.create_task(client.publish("q", b"open")))
    await asyncio.sleep(0)
    await client.close(timeout_ms=0)
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, ClosedError)


@on_cluster()
async def test_what_cannot_be_sent_is_refused_to_its_caller_alone(world: World) -> None:
    world.cluster.limits.max_batch_bytes = 1_000
    async with quorum.connect(world.url) as client:
        outcomes = await publish_all(client, [b"1", b"x" * 1_001, b"2"])
        assert isinstance(outcomes[1], UsageError)
        with pytest.raises(UsageError, match="a body is bytes"):
            await client.publish("q", "text")  # type: ignore[arg-type]
    assert arrived(world) == [b"1", b"2"]


@on_cluster()
async def test_gathered_messages_fit_into_a_batch_that_the_service_takes(world: World) -> None:
    world.cluster.limits.max_batch_bytes = 1_000
    async with quorum.connect(world.url) as client:
        assert await publish_all(client, [b"x" * 100] * 50) == [None] * 50
    assert arrived(world) == [b"x" * 100] * 50
    assert len(world.cluster.publish_requests) >= 6  # of at most 1,000 bytes each
