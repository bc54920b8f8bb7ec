"""A new session moves to the node that leads the group of its first queue (quorum/client/session/session.py)."""

from __future__ import annotations

import asyncio

import pytest
from google.rpc import code_pb2

import quorum
from quorum.client.errors import UnavailableError
from quorum.client.session import placement
from quorum.client.session.stream_state import StreamState
from support import virtual_time
from support.fake_server.cluster import Refusal
from support.fake_server.harness import EVENTUALLY_S, World, eventually, on_cluster


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session stays if it does not find the leader soon. On a busy machine it may take longer."""
    monkeypatch.setattr(placement, "FIND_LEADER_S", EVENTUALLY_S)


def requests(world: World, number: int) -> list[str]:
    """The requests of all sessions at a node, but for those that open one."""
    return [kind for kind in world.nodes[number].requests if kind != "open"]


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


def test_a_session_that_was_used_for_an_exchange_first_stays() -> None:
    """Its queues may have any leaders."""
    asked: list[str] = []

    async def find_leader(queue: str) -> tuple[str, str]:
        asked.append(queue)
        return "n2", "n2:1"

    async def scenario() -> None:
        place = placement.Placement(StreamState(lambda: 1_000), ("n1:1", "n2:1"), find_leader)
        place.use_exchange()
        assert place.is_settled
        await place.settled_for("q")
        await asyncio.sleep(1)
        assert (place.endpoint, asked) == ("n1:1", [])

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    "problem", [UnavailableError("no leader"), None], ids=["an error", "no answer in time"]
)
def test_a_session_stays_if_the_leader_cannot_be_found_out(
    problem: UnavailableError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "FIND_LEADER_S", 0.5)

    async def find_leader(queue: str) -> tuple[str, str]:
        if problem is not None:
            raise problem
        return await asyncio.Event().wait(), ""  # type: ignore[return-value]

    async def scenario() -> None:
        place = placement.Placement(StreamState(lambda: 1_000), ("n1:1", "n2:1"), find_leader)
        await place.settled_for("q")
        assert place.endpoint == "n1:1"
        assert asyncio.get_running_loop().time() == (0.5 if problem is None else 0)
        assert place._moving is not None
        await place._moving

    virtual_time.run(scenario())


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


@on_cluster(nodes=3)
async def test_a_leader_that_refuses_the_session_is_passed_over(world: World) -> None:
    world.cluster.leaders["q"] = world.nodes[1]
    world.nodes[1].refuses_sessions = Refusal(code_pb2.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", "no place")
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"one")
        assert client.node == "n3"
        assert client.reconnect_count == 0
        assert await client.get("q")
    assert world.cluster.queues["q"].arrived == [b"one"]


@on_cluster()
async def test_closing_waits_for_what_is_published_during_the_move(world: World) -> None:
    world.cluster.leaders["q"] = world.nodes[1]
    world.nodes[1].opens.clear()
    client = await quorum.connect(world.url)
    outcome = await client.send_batch("q", [b"one"])
    await eventually(lambda: bool(world.nodes[1].streams), "the session has moved")
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.05)
    world.nodes[1].opens.set()
    await closing
    assert await outcome == 1
    assert world.cluster.queues["q"].arrived == [b"one"]


@on_cluster()
async def test_a_session_that_is_closed_at_once_does_not_move(world: World) -> None:
    world.cluster.leaders["q"] = world.nodes[1]
    client = await quorum.connect(world.url)
    outcome = await client.send_batch("q", [b"one"])
    await client.close()
    assert await outcome == 1
    assert not requests(world, 1)


@on_cluster()
async def test_a_request_that_the_old_node_has_not_answered_is_not_waited_for(world: World) -> None:
    world.cluster.leaders["q"] = world.nodes[1]
    async with quorum.connect(world.url, silence_ms=60_000) as client:
        world.nodes[0].muted = True
        consumer = client.consume("q")
        starting = asyncio.create_task(consumer.start())
        for _ in range(3):  # until the leader is asked for
            await asyncio.sleep(0)
        await consumer.cancel(timeout_ms=10_000)
        await asyncio.gather(starting, return_exceptions=True)
        await eventually(lambda: client.node == "n2", "the session has moved")
