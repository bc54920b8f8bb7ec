"""Found by the simulation, with the real client in it: what a caller asks of a consumer while its stream is being
replaced."""

from __future__ import annotations

import asyncio
import gc

import pytest

import quorum
from quorum.client.errors import ConnectionLost, TimedOut
from quorum.client.messages.requests import Requests, within
from support.fake_server.harness import World, eventually, on_cluster


async def attached_elsewhere(world: World, client: quorum.Client) -> None:
    """The stream is lost; on its successor, the attachment has been asked for and not been answered."""
    before = client.reconnect_count
    world.cluster.holds_attaches = True
    for node in world.nodes:
        node.cut()
    await eventually(lambda: client.reconnect_count > before, "the client has another stream")
    await eventually(lambda: bool(world.cluster.held_attaches), "the consumer is being attached again")


@on_cluster()
async def test_a_consumer_that_is_being_attached_again_can_be_cancelled(world: World) -> None:
    async with quorum.connect(world.url) as client:
        consumer = await client.consume("q")
        await attached_elsewhere(world, client)
        await consumer.cancel()
        world.cluster.release_attaches()
        assert await consumer.next_delivery() is None


@on_cluster()
async def test_a_consumer_that_is_being_attached_again_drains_when_it_is(world: World) -> None:
    async with quorum.connect(world.url) as client:
        consumer = await client.consume("q")
        await attached_elsewhere(world, client)
        await consumer.drain()
        assert not consumer.is_drained
        world.cluster.release_attaches()
        assert await consumer.next_delivery() is None
        assert consumer.is_drained


@on_cluster()
async def test_a_node_that_only_says_that_nobody_leads_is_left_for_another(world: World) -> None:
    """It was removed while it was down, and nobody speaks to it any more."""
    world.nodes[0].is_cut_off = True
    async with quorum.connect(world.url, silence_ms=300) as client:
        consumer = await client.consume("q")
        assert client.node == "n2"
        await consumer.cancel()


def test_an_answer_that_comes_too_late_is_not_reported_as_an_error_that_nobody_looked_at() -> None:
    async def scenario() -> list[str]:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context["message"])
        )
        requests = Requests()
        with pytest.raises(TimedOut):
            await within(0, requests.expect(requests.next_id(), "asking"), "asking")
        requests.lost(ConnectionLost("the stream ended"))
        await asyncio.sleep(0)
        gc.collect()
        return reported

    assert asyncio.run(scenario()) == []
