"""The client publishes through exchanges, and declares and binds them."""

from __future__ import annotations

import asyncio

import pytest

import quorum
from quorum.client.errors import NotFound, PublishRejected, UnavailableError, UsageError
from support.fake_server.harness import World, eventually, on_cluster


def bodies(world: World, queue: str) -> list[bytes]:
    return world.cluster.queues[queue].arrived


async def bound(client: quorum.Client) -> None:
    """An exchange that routes the keys p and q to the queues of these names."""
    await client.declare("p")
    assert await client.declare_exchange("e") is True
    for name in ("p", "q"):
        assert await client.bind("e", name, name) is True


@on_cluster()
async def test_exchanges_and_bindings_are_declared_listed_and_removed(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await bound(client)
        assert await client.declare_exchange("e") is False
        assert await client.declare_exchange("f", "topic", {"alternate-exchange": "e"}) is True
        assert await client.bind("f", "e", "#", to="exchange") is True
        assert [(each.name, each.type) for each in await client.exchanges()] == [
            ("e", "direct"),
            ("f", "topic"),
        ]
        assert [each.arguments for each in await client.exchanges("f")] == [{"alternate-exchange": "e"}]
        found, leaving, coming = await client.describe_exchange("e")
        assert found.name == "e"
        assert [(each.to, each.destination, each.routing_key) for each in leaving] == [
            ("queue", "p", "p"),
            ("queue", "q", "q"),
        ]
        assert [(each.source, each.to) for each in coming] == [("f", "exchange")]
        await client.unbind("e", "p", "p")
        assert [each.destination for each in await client.bindings(queue="p")] == []
        await client.delete_exchange("e")
        for call in (client.delete_exchange("e"), client.describe_exchange("e"), client.bind("e", "q")):
            with pytest.raises(NotFound, match="there is no exchange 'e'"):
                await call
        with pytest.raises(UsageError, match="allowed: queue, exchange"):
            await client.bind("f", "q", to="table")


@on_cluster()
async def test_what_an_earlier_try_removed_is_removed(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await bound(client)
        for node in world.nodes:
            node.losing = lambda: None
        await client.unbind("e", "p", "p")
        for node in world.nodes:
            node.losing = lambda: None
        await client.delete_exchange("e")
    assert world.cluster.exchanges == {}


@on_cluster()
async def test_single_messages_for_an_exchange_are_one_batch_whatever_their_keys(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await bound(client)
        keys = ["p", "q", "q", "p"]
        await asyncio.gather(
            *(client.publish_to("e", key, key.encode() + b"%d" % n) for n, key in enumerate(keys))
        )
        assert len(world.cluster.publish_requests) == 1
        assert (bodies(world, "p"), bodies(world, "q")) == ([b"p0", b"p3"], [b"q1", b"q2"])
        await client.publish_to("e", "nobody", b"dropped")
        with pytest.raises(PublishRejected, match="the message to exchange 'e' was refused") as refused:
            await client.publish_to("e", "nobody", b"x", mandatory=True)
        assert refused.value.reason == "UNROUTABLE"
        with pytest.raises(PublishRejected) as unknown:
            await client.publish_to("f", "p", b"x")
        assert unknown.value.reason == "NO_EXCHANGE"


@on_cluster()
async def test_a_message_that_is_taken_back_takes_its_routing_key_with_it(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await bound(client)
        world.cluster.holds_confirms = True
        tasks = [asyncio.create_task(client.publish_to("e", "p", b"first"))]
        await eventually(lambda: bodies(world, "p") == [b"first"], "accepted")
        for key, body in (("p", b"dropped"), ("q", b"1"), ("p", b"2")):
            tasks.append(asyncio.create_task(client.publish_to("e", key, body)))
        await asyncio.sleep(0)
        tasks.pop(1).cancel()
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await asyncio.gather(*tasks)
    assert (bodies(world, "p"), bodies(world, "q")) == ([b"first", b"2"], [b"1"])


@on_cluster()
async def test_mandatory_messages_are_not_gathered_with_others(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await bound(client)
        outcomes = await asyncio.gather(
            client.publish_to("e", "nobody", b"x"),
            client.publish_to("e", "nobody", b"x", mandatory=True),
            client.publish_to("e", "p", b"y", mandatory=True),
            return_exceptions=True,
        )
        assert [type(each) for each in outcomes] == [type(None), PublishRejected, type(None)]
        assert len(world.cluster.publish_requests) == 2


@on_cluster()
async def test_batches_for_an_exchange(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await bound(client)
        assert await client.publish_batch_to("e", "p", [b"1", b"2"]) == 2
        assert await client.publish_batch_to("e", ["q", "p"], [b"3", b"4"]) == 2
        confirmed = await client.send_batch_to("e", "q", [b"5"], mandatory=True)
        assert await confirmed == 1
        assert (bodies(world, "p"), bodies(world, "q")) == ([b"1", b"2", b"4"], [b"3", b"5"])
        with pytest.raises(UsageError, match="1 routing keys for 2 messages"):
            await client.publish_batch_to("e", ["p"], [b"1", b"2"])


@on_cluster()
async def test_an_explicit_batch_follows_the_single_messages_before_it(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await bound(client)
        single = asyncio.create_task(client.publish_to("e", "q", b"first"))
        await asyncio.sleep(0)
        await client.publish_batch_to("e", ["q"], [b"second"])
        await single
    assert bodies(world, "q") == [b"first", b"second"]


@on_cluster()
async def test_after_a_reconnect_undecided_messages_are_sent_with_their_keys(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await bound(client)
        world.cluster.cut_after = 1
        confirmations = [await client.send_batch_to("e", ["p", "q"], [b"1", b"2"]) for _ in range(3)]
        await eventually(lambda: client.reconnect_count >= 1, "the stream was cut")
        world.cluster.cut_after = -1
        assert await asyncio.gather(*confirmations) == [2, 2, 2]
    assert (bodies(world, "p"), bodies(world, "q")) == ([b"1"] * 3, [b"2"] * 3)


@on_cluster()
async def test_messages_are_in_the_order_of_calls_whether_mandatory_or_in_a_batch(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.declare_exchange("e")
        await client.bind("e", "q", "k")
        queue = world.cluster.queues["q"]
        world.cluster.holds_confirms = True
        calls = [client.publish_to("e", "k", b"0"), client.publish("q", b"1")]
        waiting = [asyncio.create_task(call) for call in calls]
        await eventually(lambda: len(queue.arrived) == 2, "both are under way")
        for following in (
            client.publish_to("e", "k", b"2"),
            client.publish_to("e", "k", b"3", mandatory=True),
            client.publish_to("e", "k", b"4"),
            client.send_batch("q", [b"5"]),
            client.publish("q", b"6"),
            client.send_batch_to("e", "k", [b"7"]),
        ):
            waiting.append(asyncio.create_task(following))
            await asyncio.sleep(0)
        await eventually(lambda: len(queue.arrived) == 8, "all are under way")
        assert queue.arrived == [b"%d" % number for number in range(8)]
        world.cluster.holds_confirms = False
        world.cluster.release_confirms()
        await asyncio.gather(*waiting)


@on_cluster(1)
async def test_an_error_of_all_bindings_names_none(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.nodes[0].unavailable_calls = 1_000
        with pytest.raises(UnavailableError, match=r"^listing bindings: "):
            await client.bindings(timeout_ms=150)
        with pytest.raises(UnavailableError, match=r"^listing bindings of 'q': "):
            await client.bindings(queue="q", timeout_ms=150)
