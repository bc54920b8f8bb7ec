"""Single messages of many threads through the blocking client: gathered as those of tasks, with the same outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import quorum.sync
from quorum.client.errors import ClosedError, PublishRejected, PublishUnknown, TimedOut, UsageError
from quorum.client.messages.batch import Message
from support.fake_server.harness import EVENTUALLY_S, LIMIT_MS, World, eventually, on_cluster, pass_limit

THREADS = 24


class Threads:
    """A blocking client, and threads that use it beside the test's loop."""

    def __init__(self, client: quorum.sync.Client, pool: ThreadPoolExecutor) -> None:
        self.client = client
        self._pool = pool

    def run(self, function: Any, *args: Any, **named: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **named))

    def publish(self, body: bytes, **named: Any) -> asyncio.Future[Any]:
        return self.run(self.client.publish, "q", body, **named)

    @property
    def gathered(self) -> int:
        """Messages in the open batch."""
        session = self.client._client._session
        batch = None if session is None else session.publisher.gathering._open.get("q")
        return 0 if batch is None else batch.count

    async def under_way(self, world: World) -> asyncio.Future[Any]:
        """Publish a message that is not answered until the test says so."""
        world.cluster.holds_confirms = True
        first = self.publish(b"first")
        await eventually(lambda: world.cluster.queues["q"].arrived == [b"first"], "accepted")
        return first


@asynccontextmanager
async def threads(world: World) -> AsyncIterator[Threads]:
    with ThreadPoolExecutor(THREADS + 1) as pool:
        loop = asyncio.get_running_loop()
        client = await loop.run_in_executor(pool, quorum.sync.connect, world.url)
        try:
            yield Threads(client, pool)
        finally:
            await loop.run_in_executor(pool, client.close)


def answer(world: World) -> None:
    world.cluster.holds_confirms = False
    world.cluster.release_confirms()


@on_cluster()
async def test_what_many_threads_publish_at_a_time_is_one_batch(world: World) -> None:
    async with threads(world) as here:
        first = await here.under_way(world)
        bodies = [b"%d" % number for number in range(THREADS)]
        rest = asyncio.gather(*(here.publish(body) for body in bodies))
        await eventually(lambda: here.gathered == THREADS, "gathered")
        answer(world)
        await asyncio.gather(first, rest)
    assert sorted(world.cluster.queues["q"].arrived[1:]) == sorted(bodies)
    assert len(world.cluster.publish_requests) == 2


@on_cluster()
async def test_the_messages_of_a_thread_stay_in_order(world: World) -> None:
    def publisher(client: quorum.sync.Client, number: int) -> None:
        for turn in range(20):
            client.publish("q", b"%d:%d" % (number, turn))

    async with threads(world) as here:
        await asyncio.gather(*(here.run(publisher, here.client, number) for number in range(8)))
    found = [body.split(b":") for body in world.cluster.queues["q"].arrived]
    assert len(found) == 160
    for number in range(8):
        assert [int(turn) for who, turn in found if int(who) == number] == [*range(20)]


@on_cluster()
async def test_each_thread_has_the_outcome_of_its_message(world: World) -> None:
    async with threads(world) as here:
        first = await here.under_way(world)
        world.cluster.queues["q"].max_length = 4
        rest = asyncio.gather(*(here.publish(b"x") for _ in range(10)), return_exceptions=True)
        await eventually(lambda: here.gathered == 10, "gathered")
        answer(world)
        await first
        outcomes = await rest
    assert outcomes.count(None) == 3
    for refused in outcomes:
        if refused is not None:
            assert isinstance(refused, PublishRejected)
            assert (refused.reason, refused.rejected) == ("QUEUE_FULL", ((0, 0),))


@on_cluster()
async def test_a_message_that_can_never_be_sent_is_refused_beside_others(world: World) -> None:
    async with threads(world) as here:
        wrong = here.publish(b"x", properties={"no-such-property": 1})
        large = here.publish(bytes(19 << 20))
        right = here.publish(b"x")
        for refused in (wrong, large):
            with pytest.raises(UsageError):
                await refused
        await right
    assert world.cluster.queues["q"].arrived == [b"x"]


@on_cluster()
async def test_a_message_that_was_not_sent_in_time_is_taken_back(world: World) -> None:
    async with threads(world) as here:
        first = await here.under_way(world)
        with pytest.raises(TimedOut, match="nothing was sent to 'q'"):
            await here.publish(b"late", timeout_ms=30)
        answer(world)
        await first
    assert world.cluster.queues["q"].arrived == [b"first"]


@on_cluster()
async def test_a_message_that_was_sent_may_still_be_confirmed_when_its_time_is_up(world: World) -> None:
    async with threads(world) as here:
        world.cluster.holds_confirms = True
        hasty = here.publish(b"hasty", timeout_ms=LIMIT_MS)
        await eventually(lambda: world.cluster.queues["q"].arrived == [b"hasty"], "accepted")
        loop = here.client._loop._loop
        loop.call_soon_threadsafe(pass_limit, loop)
        with pytest.raises(PublishUnknown) as caught:
            await hasty
        confirmation = caught.value.confirmation
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(confirmation.result, 0.01)
        answer(world)
        assert await asyncio.to_thread(confirmation.result, EVENTUALLY_S) == 1
    assert world.cluster.queues["q"].arrived == [b"hasty"]


@on_cluster()
async def test_a_thread_that_is_interrupted_takes_its_message_back(world: World) -> None:
    """As when a KeyboardInterrupt ends the wait."""
    async with threads(world) as here:
        first = await here.under_way(world)
        work = partial(here.client._client.gather, "q", Message(b"dropped"), None)
        waiting = here.client._loop._inbox.leave(work)
        kept = here.publish(b"kept")
        await eventually(lambda: here.gathered == 2, "gathered")
        waiting.give_up()
        answer(world)
        await asyncio.gather(first, kept)
    assert world.cluster.queues["q"].arrived == [b"first", b"kept"]


@on_cluster()
async def test_threads_that_wait_when_the_client_is_closed_are_told(world: World) -> None:
    async with threads(world) as here:
        first = await here.under_way(world)
        rest = [here.publish(b"x") for _ in range(5)]
        await eventually(lambda: here.gathered == 5, "gathered")
        await here.run(here.client.close, timeout_ms=0)
        for waiting in (first, *rest, here.publish(b"late")):
            with pytest.raises(ClosedError):
                await waiting
