"""Gets: what they take, and what becomes of it when nobody waits any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import quorum
from quorum.client.errors import NotFound, TimedOut, UsageError
from support.fake_server.consuming import filled, settled
from support.fake_server.harness import LIMIT_MS, World, eventually, on_cluster


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


class HeldAnswers:
    """Holds the answers of a node's first stream, until it lets them go."""

    def __init__(self, world: World) -> None:
        self._stream = world.nodes[0].streams[0]
        self._answer = self._stream.answer
        self._held: list[Any] = []
        self._stream.answer = lambda **response: self._held.append(response)  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self._held)

    def let_go(self) -> None:
        self._stream.answer = self._answer  # type: ignore[method-assign]
        for response in self._held:
            self._answer(**response)


@on_cluster()
async def test_what_a_given_up_get_takes_goes_back(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        held = HeldAnswers(world)
        getting = asyncio.create_task(client.get("q", 2, timeout_ms=LIMIT_MS))
        await eventually(lambda: len(held) == 2, "taken, not answered")
        world.pass_limit()
        with pytest.raises(TimedOut):
            await getting
        assert not world.cluster.queues["q"].ready
        held.let_go()
        queue = world.cluster.queues["q"]
        await eventually(lambda: len(queue.ready) == 2, "given back")
        assert [message.failed for message in queue.ready.values()] == [0, 0]


@on_cluster()
async def test_a_get_cancelled_by_its_caller_holds_nothing(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        held = HeldAnswers(world)
        getting = asyncio.create_task(client.get("q", 2))
        await eventually(lambda: len(held) == 2, "taken, not answered")
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        held.let_go()
        await eventually(lambda: len(world.cluster.queues["q"].ready) == 2, "given back")


@on_cluster(nodes=1)
async def test_a_get_that_nobody_waits_for_is_not_repeated_on_another_stream(world: World) -> None:
    """It would take messages, and return them: they are redelivered then, or delayed."""
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        node = world.nodes[0]
        world.cluster.holds_gets = True
        getting = asyncio.create_task(client.get("q", 2))
        await eventually(lambda: node.requests.count("get") == 1, "requested")
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        node.cut()
        world.cluster.holds_gets = False
        messages = await client.get("q", 2)
        assert [message.redelivered for message in messages] == [False, False]
        assert node.requests.count("get") == 2


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
