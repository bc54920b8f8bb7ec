"""A client with a linger time: when its single messages leave (quorum/client/session/gathering.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import quorum
from quorum.client.connection.endpoints import parse_url
from quorum.client.errors import TimedOut, UsageError
from quorum.client.messages.batch import Message, encode_batch
from quorum.client.session.publisher import Publisher
from quorum.v1 import queue_pb2
from support import virtual_time
from support.fake_server.harness import World as ServedWorld
from support.fake_server.harness import on_cluster

LINGER_MS = 20


class World:
    """A publisher on a loop whose clock jumps, and what its stream writes in each millisecond."""

    def __init__(self) -> None:
        self.publisher = Publisher(lambda: None, linger_s=LINGER_MS / 1000)
        self.sent: list[tuple[int, str, bytes]] = []
        """the time in ms, the queue, and the bodies, one after the other"""

    def publish(self, body: bytes, queue: str = "q", timeout_ms: int = 60_000) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.publisher.publish(queue, Message(body), timeout_ms, future)
        return future

    async def run_until(self, ms: int) -> None:
        loop = asyncio.get_running_loop()
        while (now_ms := round(loop.time() * 1000)) < ms:
            for _ in range(5):
                await asyncio.sleep(0)
            self._write(now_ms)
            await asyncio.sleep(0.001)

    def confirm(self) -> None:
        """All that was sent."""
        last = self.publisher.first_new - 1
        self.publisher.decide(queue_pb2.Confirms(confirmed=[queue_pb2.Range(first=1, last=last)]))

    def _write(self, now_ms: int) -> None:
        while (request := self.publisher.next_request()) is not None:
            batch = queue_pb2.MessageBatch.FromString(request.publish.batch)
            self.sent.append((now_ms, request.publish.routing_key, batch.bodies))


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await scenario(World())

    virtual_time.run(body())


def test_what_follows_a_batch_leaves_together_when_the_linger_time_is_over() -> None:
    async def scenario(world: World) -> None:
        world.publish(b"a")
        await world.run_until(2)
        world.confirm()
        world.publish(b"b")
        await world.run_until(12)
        world.publish(b"c")
        await world.run_until(30)
        assert world.sent == [(0, "q", b"a"), (20, "q", b"bc")]

    run(scenario)


def test_a_message_after_the_linger_time_leaves_at_once() -> None:
    async def scenario(world: World) -> None:
        world.publish(b"a")
        await world.run_until(2)
        world.confirm()
        await world.run_until(25)
        world.publish(b"b")
        await world.run_until(30)
        assert world.sent == [(0, "q", b"a"), (25, "q", b"b")]

    run(scenario)


def test_a_batch_under_way_is_waited_for_longer_than_the_linger_time() -> None:
    async def scenario(world: World) -> None:
        world.publish(b"a")
        await world.run_until(2)
        world.publish(b"b")
        await world.run_until(50)
        world.confirm()
        await world.run_until(60)
        assert world.sent == [(0, "q", b"a"), (50, "q", b"b")]

    run(scenario)


def test_a_queue_does_not_wait_for_another_one() -> None:
    async def scenario(world: World) -> None:
        world.publish(b"a")
        await world.run_until(2)
        world.publish(b"b", "other")
        await world.run_until(5)
        assert world.sent == [(0, "q", b"a"), (2, "other", b"b")]

    run(scenario)


def test_a_full_batch_does_not_linger_and_the_next_one_does() -> None:
    async def scenario(world: World) -> None:
        world.publisher.limits.max_batch_messages = 2
        for body in (b"a", b"b", b"c"):
            world.publish(body)
        await world.run_until(5)
        world.publish(b"d")
        await world.run_until(10)
        world.confirm()
        world.publish(b"e")
        await world.run_until(40)
        assert world.sent == [(0, "q", b"ab"), (5, "q", b"cd"), (25, "q", b"e")]

    run(scenario)


def test_a_batch_of_the_caller_does_not_linger_and_takes_what_came_before_it_along() -> None:
    async def scenario(world: World) -> None:
        world.publish(b"a")
        await world.run_until(2)
        world.confirm()
        world.publish(b"b")
        await world.publisher.admit("q", encode_batch([b"c"]), None)
        await world.run_until(5)
        assert world.sent == [(0, "q", b"a"), (2, "q", b"b"), (2, "q", b"c")]

    run(scenario)


def test_a_message_whose_time_ends_while_it_lingers_is_not_sent() -> None:
    async def scenario(world: World) -> None:
        world.publish(b"a")
        await world.run_until(2)
        world.confirm()
        late = world.publish(b"b", timeout_ms=10)
        await world.run_until(30)
        assert isinstance(late.exception(), TimedOut)
        assert world.sent == [(0, "q", b"a")]

    run(scenario)


@on_cluster()
async def test_closing_a_client_sends_what_lingers(world: ServedWorld) -> None:
    async with quorum.connect(world.url, linger_ms=1_000) as client:
        await client.publish("q", b"a")
        lingers = asyncio.create_task(client.publish("q", b"b"))
        await asyncio.sleep(0)
        assert world.cluster.queues["q"].arrived == [b"a"]
    await lingers
    assert world.cluster.queues["q"].arrived == [b"a", b"b"]


@on_cluster()
async def test_the_linger_time_may_be_in_the_url(world: ServedWorld) -> None:
    async with quorum.connect(f"{world.url}/?linger_ms=1000") as client:
        await client.publish("q", b"a")
        await asyncio.gather(*(client.publish("q", body) for body in (b"b", b"c")), client.close())
    assert len(world.cluster.publish_requests) == 2


def test_a_linger_time_in_the_url_is_a_whole_number_of_milliseconds_up_to_a_second() -> None:
    assert parse_url("quorum://a").linger_ms == 0
    for scheme in ("quorum", "quorums"):
        found = parse_url(f"{scheme}://a:1,b:1/?linger_ms=20")
        assert found.linger_ms == 20
        assert parse_url(found.url_of("b:1")).linger_ms == 20
    for wrong in ("", "-1", "0.5", "1001", "99999999999", "²", "soon"):
        with pytest.raises(UsageError, match="allowed: a whole number from 0 to 1000"):
            parse_url(f"quorum://a/?linger_ms={wrong}")
    with pytest.raises(UsageError, match="linger_ms; files only with TLS"):
        parse_url("quorum://a/?ca_file=x")


@pytest.mark.parametrize("wrong", [-1, 1_001, 0.5, "20", True])
def test_a_wrong_linger_time_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="linger_ms"):
        quorum.connect("quorum://a", linger_ms=wrong)
