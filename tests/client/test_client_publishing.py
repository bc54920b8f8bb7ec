"""Publishing: numbers, the window, rejections, and what becomes of batches when a stream is lost."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from unittest.mock import patch

import pytest
from google.rpc import code_pb2

import quorum
from quorum.client.client import Client
from quorum.client.errors import (
    ClosedError,
    NotFound,
    OutcomeUnknown,
    PermissionRefused,
    PublishRejected,
    PublishUnknown,
    RefusedError,
    ServiceError,
    TimedOut,
    UnavailableError,
    UsageError,
)
from quorum.client.session import session
from quorum.v1 import queue_pb2
from support.fake_server.cluster import Refusal
from support.fake_server.consuming import bodies, numbered
from support.fake_server.harness import EVENTUALLY_S, LIMIT_MS, World, eventually, on_cluster

QUICK = {"silence_ms": 2_000}


@on_cluster()
async def test_a_confirmed_publish_is_in_the_queue(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"one", {"message-id": "m1", "priority": 4}, {"n": 1, "flag": True})
        [message] = world.cluster.queues["q"].ready.values()
        assert message.body == b"one"
        assert (message.properties.message_id, message.properties.priority) == ("m1", 4)
        assert message.properties.application_properties["flag"].WhichOneof("kind") == "boolean"
        assert message.properties.application_properties["n"].integer == 1


@on_cluster()
async def test_a_message_is_published_with_a_delay_or_a_time(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"one", {"subject": "s"}, delay=1.5)
        await client.publish("q", b"two", at=datetime(2027, 1, 1, tzinfo=UTC))
        async with client.transaction() as transaction:
            await transaction.publish("q", b"three", delay=timedelta(seconds=2))
        one, two, three = (message.properties for message in world.cluster.queues["q"].ready.values())
        assert (one.delivery_delay_ms, one.subject) == (1_500, "s")
        assert two.delivery_time == 1_798_761_600_000
        assert three.delivery_delay_ms == 2_000
        with pytest.raises(UsageError, match="exclude each other"):
            await client.publish("q", b"", delay=1, at=datetime.now(UTC))


@on_cluster()
async def test_numbers_are_dense_over_all_queues(world: World) -> None:
    world.cluster.declare("other")
    async with quorum.connect(world.url) as client:
        assert await client.publish_batch("q", numbered(0, 3)) == 3
        assert await client.publish_batch("other", numbered(0, 2)) == 2
        assert await client.publish_batch("q", quorum.encode_batch(numbered(3, 4)).data) == 4
    assert [first for _, first, _ in world.cluster.publish_requests] == [1, 4, 6]
    assert [lowest for _, _, lowest in world.cluster.publish_requests] == [1, 4, 6]


@on_cluster()
async def test_lowest_unconfirmed_waits_for_the_slowest(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        first = await client.send_batch("q", numbered(0, 5))
        await eventually(lambda: len(bodies(world)) == 5, "accepted")
        world.cluster.holds_confirms = False
        assert await client.publish_batch("q", numbered(5, 5)) == 5
        assert await client.publish_batch("q", numbered(10, 5)) == 5
        world.cluster.release_confirms()
        assert await first == 5
        await client.publish("q", b"last")
    assert world.cluster.publish_requests == [(1, 1, 1), (1, 6, 1), (1, 11, 1), (1, 16, 16)]


@on_cluster()
async def test_a_batch_accepted_before_the_stream_broke_is_not_published_twice(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"0")
        world.cluster.cut_after = 1
        sending = asyncio.create_task(client.publish_batch("q", numbered(1, 3)))
        await eventually(lambda: len(world.cluster.publish_requests) >= 2, "sent")
        world.cluster.cut_after = -1
        assert await sending == 3
        assert client.reconnect_count >= 1
        assert bodies(world) == numbered(0, 4)
        sent = [(first, lowest) for _, first, lowest in world.cluster.publish_requests]
        assert sent[:2] == [(1, 1), (2, 2)]
        assert set(sent[2:]) == {(2, 2)}, "sent again with the same numbers"


@on_cluster()
async def test_many_batches_under_way_survive_repeated_cuts_in_order(world: World) -> None:
    async with quorum.connect(world.url) as client:
        confirmations = []
        for number in range(40):
            if number % 13 == 5:
                world.cluster.cut_after = 2
            if number % 13 == 11:
                world.cluster.cut_after = -1
            confirmations.append(await client.send_batch("q", numbered(10 * number, 10)))
            await asyncio.sleep(0.004)
            if number % 13 == 10:
                await eventually(lambda: world.cluster.cut_after == 0, "the stream is cut")
        world.cluster.cut_after = -1
        assert await asyncio.gather(*confirmations) == [10] * 40
        assert client.reconnect_count >= 1
    assert bodies(world) == numbered(0, 400)


@on_cluster()
async def test_publishing_waits_while_the_message_window_is_full(world: World) -> None:
    world.cluster.limits.max_window_messages = 30
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        confirmations = [await client.send_batch("q", numbered(10 * n, 10)) for n in range(3)]
        with pytest.raises(TimedOut) as failed:
            await client.send_batch("q", [b"too much"], timeout_ms=50)
        assert not isinstance(failed.value, PublishUnknown)
        waiting = asyncio.create_task(client.publish_batch("q", numbered(30, 10)))
        await eventually(lambda: len(bodies(world)) == 30, "three batches accepted")
        assert not waiting.done()
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        assert await waiting == 10
        await asyncio.gather(*confirmations)
    assert bodies(world) == numbered(0, 40)
    assert world.cluster.max_unconfirmed_seen <= 30


@on_cluster()
async def test_a_batch_has_a_queue_for_each_of_its_messages(world: World) -> None:
    world.cluster.declare("r")
    async with quorum.connect(world.url) as client:
        assert await client.publish_batch(["q", "r", "r", "q"], numbered(0, 4)) == 4
        with pytest.raises(PublishRejected, match="3 of 3 messages to 'q', 'nobody' were refused"):
            await client.publish_batch(["q", "nobody", "q"], numbered(4, 3))
        for wrong in (["q"], ["q", "r", "q"], []):
            with pytest.raises(UsageError, match="2 messages; give one for all, or one each"):
                await client.publish_batch(wrong, numbered(7, 2))
    assert world.cluster.queues["q"].arrived == [b"0", b"3"]
    assert world.cluster.queues["r"].arrived == [b"1", b"2"]


@on_cluster()
async def test_what_is_sent_again_of_a_batch_goes_to_its_own_queues(world: World) -> None:
    world.cluster.declare("r")
    world.cluster.holds_confirms = True
    async with quorum.connect(world.url) as client:
        confirmation = await client.send_batch(["q", "r", "q", "r"], numbered(0, 4))
        await eventually(lambda: len(bodies(world)) == 2, "it was taken")
        sender = client._live().publisher
        sender.decide(queue_pb2.Confirms(confirmed=[queue_pb2.Range(first=2, last=2)]))
        sender.resend_all()
        requests = iter(sender.next_request, None)
        sent = [(each.publish.first_sequence, list(each.publish.routing_keys)) for each in requests]
        assert sent == [(1, ["q"]), (3, ["q", "r"])]
        world.cluster.release_confirms()
        assert await confirmation == 4


@on_cluster()
async def test_publishing_waits_before_the_service_would_remember_too_many_ranges(world: World) -> None:
    world.cluster.declare("r")
    async with quorum.connect(world.url) as client:
        client._live().publisher.limits.max_window_ranges = 4
        world.cluster.holds_confirms = True
        first = await client.send_batch(["q", "q", "r", "q"], numbered(0, 4))
        second = await client.send_batch("q", numbered(4, 50))
        with pytest.raises(TimedOut):
            await client.send_batch("r", [b"one more range"], timeout_ms=20)
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await asyncio.gather(first, second)
        await (await client.send_batch("r", [b"there is room"]))


@on_cluster()
async def test_publishing_waits_while_the_byte_window_is_full(world: World) -> None:
    world.cluster.limits.window_bytes = 2500
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        big = bytes(1000)
        confirmations = [await client.send_batch("q", [big]) for _ in range(2)]
        waiting = asyncio.create_task(client.send_batch("q", [big]))
        await eventually(lambda: len(bodies(world)) == 2, "two accepted")
        assert not waiting.done()
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await (await waiting)
        await asyncio.gather(*confirmations)
        assert await client.publish_batch("q", [bytes(3000)]) == 1, "larger than the window, so alone"


@on_cluster()
async def test_a_publish_given_up_while_waiting_leaves_no_gap(world: World) -> None:
    world.cluster.limits.max_window_messages = 10
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        first = await client.send_batch("q", numbered(0, 10))
        given_up = asyncio.create_task(client.send_batch("q", [b"given up"]))
        behind = asyncio.create_task(client.publish_batch("q", [b"10"]))
        await eventually(lambda: len(bodies(world)) == 10, "accepted")
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await first
        await behind
    assert bodies(world) == numbered(0, 11)
    assert [number for _, number, _ in world.cluster.publish_requests] == [1, 11]


@on_cluster()
async def test_a_publish_past_its_deadline_is_unknown_and_can_be_awaited_again(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        publishing = asyncio.create_task(client.publish_batch("q", numbered(0, 2), timeout_ms=LIMIT_MS))
        await eventually(lambda: len(bodies(world)) == 2, "accepted")
        world.pass_limit()
        with pytest.raises(PublishUnknown) as unknown:
            await publishing
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        assert await unknown.value.confirmation == 2
    assert bodies(world) == numbered(0, 2)


FORGOTTEN = Refusal(code_pb2.FAILED_PRECONDITION, "SESSION_EXPIRED", "forgotten")


@on_cluster()
async def test_the_failure_of_a_batch_whose_caller_was_cancelled_is_not_reported(world: World) -> None:
    reported: list[dict[str, Any]] = []
    world.loop.set_exception_handler(lambda _, context: reported.append(context))
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        publishing = asyncio.create_task(client.publish_batch("q", numbered(0, 2)))
        await eventually(lambda: len(bodies(world)) == 2, "accepted")
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        del publishing
        world.nodes[0].cut(FORGOTTEN)
        await eventually(lambda: client._live().publisher.is_idle, "failed")
    gc.collect()
    assert reported == []


@on_cluster()
async def test_the_failure_of_a_batch_that_was_cancelled_when_the_window_had_room_is_not_reported(
    world: World,
) -> None:
    reported: list[dict[str, Any]] = []
    world.loop.set_exception_handler(lambda _, context: reported.append(context))
    world.cluster.limits.max_window_messages = 2
    async with quorum.connect(world.url) as client:
        publisher = client._live().publisher
        world.cluster.holds_confirms = True
        first = await client.send_batch("q", numbered(0, 2))
        await eventually(lambda: len(bodies(world)) == 2, "accepted")
        cancelled = asyncio.create_task(client.send_batch("q", numbered(2, 2)))
        await eventually(lambda: len(publisher._waiters) == 1, "it waits for room")
        publisher.decide(queue_pb2.Confirms(confirmed=[queue_pb2.Range(first=1, last=2)]))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        del cancelled
        assert await first == 2
        await eventually(lambda: len(bodies(world)) == 4, "sent all the same")
        world.nodes[0].cut(FORGOTTEN)
        await eventually(lambda: publisher.is_idle, "failed")
    gc.collect()
    assert reported == []


@on_cluster()
async def test_a_rejected_batch_says_why_and_the_next_one_goes_through(world: World) -> None:
    world.cluster.declare("small").max_length = 1
    async with quorum.connect(world.url) as client:
        with pytest.raises(PublishRejected) as rejected:
            await client.publish_batch("small", numbered(0, 3))
        assert rejected.value.reason == "QUEUE_FULL"
        assert rejected.value.rejected == ((0, 2),)
        with pytest.raises(PublishRejected) as rejected:
            await client.publish("nowhere", b"x")
        assert rejected.value.reason == "NOT_FOUND"
        assert isinstance(rejected.value.__cause__, NotFound)
        with pytest.raises(PublishRejected) as rejected:
            await client.publish("q", bytes(world.cluster.limits.max_message_bytes + 1))
        assert rejected.value.reason == "MESSAGE_TOO_LARGE"
        await client.publish("q", b"fine")
        assert client.reconnect_count == 0
    assert bodies(world) == [b"fine"]


@on_cluster()
async def test_a_rejection_that_says_unavailable_is_sent_again(world: World) -> None:
    async with quorum.connect(world.url) as client:
        accept = world.cluster.accept
        refusals = 0

        def refuse_first(*args: object) -> None:
            nonlocal refusals
            if refusals < 2:
                refusals += 1
                raise Refusal(code_pb2.UNAVAILABLE, "NO_LEADER", "no leader now")
            accept(*args)  # type: ignore[arg-type]  # passed on as they came

        world.cluster.accept = refuse_first  # type: ignore[method-assign]
        assert await client.publish_batch("q", numbered(0, 2)) == 2
        assert client.reconnect_count == 2
    assert bodies(world) == numbered(0, 2)


@on_cluster()
async def test_what_can_never_work_is_refused_before_it_is_sent(world: World) -> None:
    async with quorum.connect(world.url) as client:
        with pytest.raises(UsageError, match="at least one message"):
            await client.publish_batch("q", [])
        with pytest.raises(UsageError, match="not a serialized"):
            await client.publish_batch("q", b"\xff\xff rubbish")
        with pytest.raises(UsageError, match="1001 messages; allowed: 1000"):
            await client.publish_batch("q", numbered(0, 1001))
        with pytest.raises(UsageError, match="did you mean 'subject'"):
            await client.publish("q", b"", {"subjekt": "x"})
    assert world.cluster.publish_requests == []


@on_cluster()
async def test_a_silent_node_is_left_for_another(world: World) -> None:
    async with quorum.connect(world.url, **QUICK) as client:
        await client.publish("q", b"0")
        world.nodes[0].muted = True
        await client.publish("q", b"1")
        assert client.node == "n2"
    assert bodies(world) == numbered(0, 2)


@on_cluster()
async def test_a_dead_node_is_left_for_another(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"0")
        await world.nodes[0].stop()
        await client.publish("q", b"1")
        assert client.node == "n2"
    assert bodies(world) == numbered(0, 2)


@on_cluster()
async def test_publishing_goes_on_after_all_nodes_were_away(world: World) -> None:
    async with quorum.connect(world.url) as client:
        for node in world.nodes:
            await node.stop()
        sending = asyncio.create_task(client.publish_batch("q", numbered(0, 3)))
        await asyncio.sleep(0.2)
        assert not sending.done()
        await world.nodes[1].start()
        assert await sending == 3
    assert bodies(world) == numbered(0, 3)


@on_cluster()
async def test_an_unreachable_service_is_reported_within_the_time_given(world: World) -> None:
    for node in world.nodes:
        await node.stop()
    with pytest.raises(UnavailableError):
        await quorum.connect(world.url, connect_timeout_ms=300)


@on_cluster()
async def test_a_refused_session_is_an_error_of_connect(world: World) -> None:
    refusal = Refusal(code_pb2.PERMISSION_DENIED, "NOT_ALLOWED", "go away")
    world.nodes[0].refuses_sessions = refusal
    with pytest.raises(PermissionRefused, match="go away") as refused:
        await quorum.connect(world.url)
    assert refused.value.reason == "NOT_ALLOWED"


@on_cluster()
async def test_a_stream_refused_again_and_again_fails_the_client(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        sending = asyncio.create_task(client.publish("q", b"poison"))
        for node in world.nodes:
            node.refuses_sessions = Refusal(code_pb2.INVALID_ARGUMENT, "BAD_SESSION", "no such thing")
            node.cut(node.refuses_sessions)
        with pytest.raises(RefusedError, match="no such thing"):
            await sending
        with pytest.raises(RefusedError, match="no such thing"):
            await client.publish("q", b"more")


@on_cluster()
async def test_refusals_with_much_time_between_them_do_not_add_up(world: World) -> None:
    with patch.object(session, "HEALTHY_S", 0.0):
        async with quorum.connect(world.url) as client, client.consume("q") as consumer:
            for n in range(session.REFUSALS_BEFORE_GIVING_UP + 1):
                streams = client.reconnect_count
                for node in world.nodes:
                    node.cut(Refusal(code_pb2.INVALID_ARGUMENT, "BAD_SESSION", "no such thing"))
                await eventually(lambda before=streams: client.reconnect_count > before, f"reconnect {n}")
            await client.publish("q", b"there")
            assert (await anext(aiter(consumer))).body == b"there"


@on_cluster()
async def test_a_forgotten_producer_begins_again_and_says_what_is_unknown(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"0")
        world.cluster.holds_confirms = True
        under_way = await client.send_batch("q", [b"1"])
        await eventually(lambda: len(bodies(world)) == 2, "accepted")
        world.cluster.holds_confirms = False
        world.nodes[0].cut(Refusal(code_pb2.FAILED_PRECONDITION, "SESSION_EXPIRED", "forgotten"))
        with pytest.raises(RefusedError, match="forgotten") as unknown:
            await under_way
        assert unknown.value.reason == "SESSION_EXPIRED"
        await client.publish("q", b"2")
    assert len(world.cluster.producers) == 2
    assert world.cluster.publish_requests[-1] == (1, 1, 1)


@on_cluster()
async def test_what_waits_for_room_when_the_producer_is_forgotten_is_published_by_the_next_one(
    world: World,
) -> None:
    world.cluster.limits.max_window_messages = 3
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        under_way = await client.send_batch("q", numbered(0, 3))
        await eventually(lambda: len(bodies(world)) == 3, "accepted")
        waiting = [asyncio.create_task(client.publish_batch("q", numbered(3, 2)))]
        waiting.append(asyncio.create_task(client.publish_batch("q", numbered(5, 2))))
        await asyncio.sleep(0.02)
        world.cluster.holds_confirms = False
        world.nodes[0].cut(Refusal(code_pb2.FAILED_PRECONDITION, "SESSION_EXPIRED", "forgotten"))
        with pytest.raises(RefusedError, match="forgotten"):
            await under_way
        assert await asyncio.gather(*waiting) == [2, 2]
    assert bodies(world) == numbered(0, 7)


HOUR_S = 3600.0


@on_cluster()
async def test_what_was_unanswered_for_23_hours_is_given_up_and_not_sent_again(world: World) -> None:
    now_s = [1_000.0]
    async with Client(world.url, clock_s=lambda: now_s[0]) as client:
        world.cluster.holds_confirms = True
        old = await client.send_batch("q", [b"old"])
        now_s[0] += 22 * HOUR_S
        young = await client.send_batch("q", [b"young"])
        await eventually(lambda: len(world.cluster.publish_requests) == 2, "sent")
        now_s[0] += HOUR_S
        world.cluster.holds_confirms = False
        world.nodes[0].cut(Refusal(code_pb2.UNAVAILABLE, "SESSION_NODE_DOWN", "gone"))
        with pytest.raises(OutcomeUnknown, match="were not answered for 23 hours") as unknown:
            await old
        assert unknown.value.reason == "OUTCOME_UNKNOWN"
        assert await young == 1
        await client.publish("q", b"new")
    numbers = [first for _, first, _ in world.cluster.publish_requests]
    assert numbers == [1, 2, 2, 3]
    assert world.cluster.publish_requests[-1] == (2, 3, 3), "the same producer, its lowest number moves on"


@on_cluster()
async def test_what_is_unanswered_for_23_hours_on_one_stream_is_given_up_too(world: World) -> None:
    now_s = [1_000.0]
    async with Client(world.url, silence_ms=60_000, clock_s=lambda: now_s[0]) as client:
        world.cluster.holds_confirms = True
        old = await client.send_batch("q", [b"old"])
        now_s[0] += 23 * HOUR_S
        with pytest.raises(OutcomeUnknown):
            await old
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await client.publish("q", b"new")


@on_cluster()
async def test_a_client_that_knows_the_outcome_of_everything_closes_its_session_cleanly(world: World) -> None:
    client = await quorum.connect(world.url)
    await client.publish("q", b"one")
    with patch.object(session, "CLOSE_FLUSH_S", EVENTUALLY_S):
        await client.close()
    assert world.nodes[0].requests[-1] == "close"


@on_cluster()
async def test_a_client_with_something_unconfirmed_does_not(world: World) -> None:
    client = await quorum.connect(world.url)
    world.cluster.holds_confirms = True
    confirmation = await client.send_batch("q", [b"x"])
    await eventually(lambda: bool(bodies(world)), "accepted")
    await client.close(timeout_ms=20)
    assert "close" not in world.nodes[0].requests
    with pytest.raises(ClosedError):
        await confirmation


@on_cluster()
async def test_closing_waits_for_what_is_under_way(world: World) -> None:
    client = await quorum.connect(world.url)
    confirmation = await client.send_batch("q", numbered(0, 500))
    await client.close()
    assert await confirmation == 500
    with pytest.raises(ClosedError):
        await client.publish("q", b"late")
    await client.close()


@on_cluster()
async def test_closing_without_an_answer_gives_up_what_is_under_way(world: World) -> None:
    client = await quorum.connect(world.url)
    world.cluster.holds_confirms = True
    confirmation = await client.send_batch("q", [b"x"])
    await client.close(timeout_ms=50)
    with pytest.raises(ClosedError):
        await confirmation


@on_cluster()
async def test_what_waits_for_room_fails_when_the_client_is_closed(world: World) -> None:
    world.cluster.limits.max_window_messages = 1
    world.cluster.holds_confirms = True
    client = await quorum.connect(world.url)
    first = await client.send_batch("q", [b"1"])
    waiting = [
        asyncio.create_task(client.send_batch("q", [b"2"])),
        asyncio.create_task(client.publish("q", b"3")),
    ]
    await eventually(lambda: len(client._live().publisher._waiters) == 2, "both wait")
    await eventually(lambda: bodies(world) == [b"1"], "accepted")
    await client.close(timeout_ms=0)
    for outcome in await asyncio.gather(first, *waiting, return_exceptions=True):
        assert isinstance(outcome, ClosedError)
    assert bodies(world) == [b"1"]


@on_cluster()
async def test_a_defect_of_the_client_leaves_nobody_waiting(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.cluster.holds_confirms = True
        consumer = await client.consume("q")
        under_way = await client.send_batch("q", [b"x"])
        waiting = asyncio.create_task(consumer.next_delivery())
        session = client._session
        assert session is not None

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a defect")

        session._opened = broken  # type: ignore[method-assign]
        world.nodes[0].cut()
        for answer in (under_way, waiting, client.publish("q", b"y"), client.get("q")):
            with pytest.raises(ServiceError, match="a defect"):
                await answer


@on_cluster()
async def test_a_batch_too_large_for_the_service_is_refused_before_it_is_sent(world: World) -> None:
    """The transport would refuse it on every stream, and everything behind it would wait for ever."""
    world.cluster.limits.max_batch_bytes = 10_000
    async with quorum.connect(world.url) as client:
        with pytest.raises(UsageError, match=r"a message of 100\d\d bytes.*allowed: 10000, and 65536"):
            await client.publish("q", bytes(10_000))
        assert await client.publish_batch("q", numbered(0, 3)) == 3
        assert client.reconnect_count == 0
    assert world.cluster.publish_requests == [(1, 1, 1)]


@on_cluster()
async def test_a_service_that_tells_no_largest_batch_has_the_default(world: World) -> None:
    async with quorum.connect(world.url) as client:
        with pytest.raises(UsageError, match="allowed: 18874368"):
            await client.publish("q", bytes(19 << 20))


@on_cluster()
async def test_a_refusal_says_what_the_service_said_and_nothing_twice(world: World) -> None:
    async with quorum.connect(world.url) as client:
        with pytest.raises(PublishRejected) as caught:
            await client.publish("none", b"x")
    assert str(caught.value) == "the message to 'none' was refused: there is no queue 'none'"


@on_cluster()
async def test_a_name_that_no_request_can_carry_is_refused_and_the_client_goes_on(world: World) -> None:
    bad, none = "half \ud800", cast(str, None)
    async with quorum.connect(world.url) as client:
        for call in (
            client.publish(bad, b""),
            client.publish(none, b""),
            client.publish_to(bad, "key", b""),
            client.publish_to("e", none, b""),
            client.publish_to("e", "key", b"", mandatory=cast(bool, "yes")),
            client.publish_batch(bad, [b""]),
            client.publish_batch(["q", bad], [b"", b""]),
            client.publish_batch(["q", none], [b"", b""]),
            client.publish_batch_to("e", bad, [b""]),
            client.transaction().publish(bad, b""),
            client.transaction().publish_to("e", bad, b""),
            client.get(bad),
            client.get("q", 1 << 40),
        ):
            with pytest.raises(UsageError):
                await call
        with pytest.raises(UsageError):
            client.consume("q", prefetch=1 << 64)
        with pytest.raises(UsageError):
            client.consume(bad)
        with pytest.raises(UsageError):
            client.consume("q", f"a = '{bad}'")
        with pytest.raises(UsageError):
            client.consume("q", consumer_tag=bad)
        await client.publish("q", b"one")
        assert client.reconnect_count == 0
    assert bodies(world) == [b"one"]


@on_cluster()
async def test_close_waits_for_open_publishes_over_another_stream(world: World) -> None:
    client = await quorum.connect(world.url)
    world.cluster.holds_confirms = True
    confirmation = await client.send_batch("q", [b"one"])
    await eventually(lambda: bodies(world) == [b"one"], "taken, not answered")
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.01)
    world.cluster.holds_confirms = False
    for node in world.nodes:
        node.cut()
    await closing
    assert await confirmation == 1
    assert bodies(world) == [b"one"]
