"""A new session moves to the node that leads the group of its first queue (quorum/client/session.py)."""

from __future__ import annotations

import quorum
from support.fake_server_harness import World, on_cluster


def requests(world: World, number: int) -> list[str]:
    """What the sessions at a node were asked for."""
    return [kind for stream in world.nodes[number].streams for kind in stream.requests if kind != "open"]


@on_cluster()
async def test_a_publisher_goes_to_the_leader(world: World) -> None:
    world.cluster.leaders["q"] = world.nodes[1]
    async with quorum.connect(world.url) as client:
        assert client.node == "n1"
        await client.publish("q", b"one")
        await client.publish_batch("q", [b"two"])
        assert client.node == "n2"
        assert client.reconnect_count == 0, "nothing was lost"
    assert world.cluster.queues["q"].arrived == [b"one", b"two"]
    assert not requests(world, 0)


@on_cluster()
async def test_a_consumer_goes_to_the_leader_with_everything_that_the_client_does_at_once(
    world: World,
) -> None:
    world.cluster.leaders["q"] = world.nodes[1]
    async with quorum.connect(world.url) as client, quorum.connect(world.url) as taker:
        async with client.consume("q") as consumer:
            assert client.node == "n2"
            await client.publish("q", b"one")
            message = await anext(aiter(consumer))
            await message.settle(wait=True)
        assert await taker.get("q") == []
        assert taker.node == "n2"
    assert not requests(world, 0)


@on_cluster()
async def test_a_session_moves_once(world: World) -> None:
    world.cluster.declare("other")
    world.cluster.leaders |= {"q": world.nodes[0], "other": world.nodes[1]}
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"one")
        await client.publish("other", b"two")
        assert client.node == "n1"


@on_cluster()
async def test_a_session_stays_if_it_is_told_to(world: World) -> None:
    world.cluster.leaders["q"] = world.nodes[1]
    async with quorum.connect(world.url, near_leader=False) as client:
        await client.publish("q", b"one")
        assert client.node == "n1"


@on_cluster(nodes=3)
async def test_a_session_goes_only_to_endpoints_of_its_url(world: World) -> None:
    world.cluster.leaders["q"] = world.nodes[2]
    async with quorum.connect("quorum://" + ",".join(each.address for each in world.nodes[:2])) as client:
        await client.publish("q", b"one")
        assert client.node == "n1"


@on_cluster(nodes=3)
async def test_a_leader_that_is_gone_is_passed_over(world: World) -> None:
    world.cluster.leaders["q"] = world.nodes[1]
    await world.nodes[1].stop()
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"one")
        assert client.node == "n3"
    assert world.cluster.queues["q"].arrived == [b"one"]
