"""Queues and the cluster, browsing: unary calls that move to another node when theirs is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

import quorum
from quorum.client.admin.exchanges import ExchangeCalls
from quorum.client.admin.records import BrowsedMessage
from quorum.client.client import DOING, Client
from quorum.client.errors import ClosedError, NotFound, TimedOut, UnavailableError, UsageError
from quorum.v1 import admin_pb2
from support.fake_server.harness import LIMIT_MS, World, eventually, on_cluster


@on_cluster()
async def test_queues_are_declared_listed_described_purged_and_deleted(world: World) -> None:
    async with quorum.connect(world.url) as client:
        assert await client.declare("a.one", {"x-max-length": 10, "x-filter-enabled": True}) is True
        assert await client.declare("a.one", {"x-max-length": 10, "x-filter-enabled": True}) is False
        await client.publish_batch("a.one", [b"1", b"2", b"3"])
        [info] = await client.queues("a.")
        assert (info.name, info.ready, info.total) == ("a.one", 3, 3)
        assert info.arguments == {"x-filter-enabled": True, "x-max-length": 10}
        assert [queue.name for queue in await client.queues()] == ["a.one", "q"]
        async with client.consume("a.one", prefetch=2, consumer_tag="c") as consumer:
            await consumer.next_delivery()
            description = await client.describe("a.one")
            assert [(each.consumer_tag, each.checked_out) for each in description.consumers] == [("c", 2)]
            assert (description.queue.ready, description.queue.checked_out) == (1, 2)
            assert await client.purge("a.one") == 1
            async with client.consume("a.one", consumer_tag="d"):
                description = await client.describe("a.one")
                assert [each.consumer_tag for each in description.consumers] == ["c", "d"]
        assert await client.delete("a.one") == 2
        with pytest.raises(NotFound) as missing:
            await client.describe("a.one")
        assert missing.value.reason == "NOT_FOUND"


@on_cluster()
async def test_the_cluster_says_who_answers(world: World) -> None:
    async with quorum.connect(world.url) as client:
        status = await client.cluster_status()
        assert status.answering_node == "n1"
        assert status.members[0].reachable
        assert status.groups[0].members == ("n1",)


@on_cluster()
async def test_a_call_moves_on_while_a_node_is_unavailable(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.nodes[0].unavailable_calls = 2
        world.nodes[1].unavailable_calls = 1
        assert await client.declare("new") is True
        world.nodes[0].unavailable_calls = world.nodes[1].unavailable_calls = 10**6
        with pytest.raises(UnavailableError):
            await client.declare("never", timeout_ms=200)


@on_cluster()
async def test_a_delete_that_an_earlier_try_did_is_done(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.nodes[0].losing = lambda: None
        assert await client.delete("q") == 0
        with pytest.raises(NotFound, match="deleting queue 'q'"):
            await client.delete("q")


@on_cluster()
async def test_a_delete_that_is_repeated_leaves_a_queue_that_was_declared_since(world: World) -> None:
    async with quorum.connect(world.url) as client:
        world.nodes[0].losing = lambda: world.cluster.declare("q")
        assert await client.delete("q") == 0
        assert [queue.name for queue in await client.queues()] == ["q"]


@on_cluster()
async def test_a_purge_that_is_repeated_leaves_what_was_published_since(world: World) -> None:
    async with quorum.connect(world.url) as client, quorum.connect(world.url) as other:
        await client.publish_batch("q", [b"old"])
        late: list[asyncio.Task[None]] = []

        def publish() -> None:
            late.append(asyncio.ensure_future(other.publish_batch("q", [b"new"])))
            world.nodes[1].unavailable_calls = 1  # the repeat comes after it

        world.nodes[0].losing = publish
        assert await client.purge("q") == 0
        await asyncio.gather(*late)
        assert [message.body for message in await client.get("q", 10)] == [b"new"]


@on_cluster()
async def test_a_purge_that_is_repeated_leaves_a_queue_that_was_declared_since(world: World) -> None:
    async with quorum.connect(world.url) as client, quorum.connect(world.url) as other:
        await client.publish_batch("q", [b"old"])

        def declare_again() -> None:
            world.cluster.declare("q")

        world.nodes[0].losing = declare_again
        with pytest.raises(NotFound):
            await client.purge("q")
        assert (await other.describe("q")).queue.next_sequence == 1


@on_cluster()
async def test_a_member_that_an_earlier_try_removed_is_removed(world: World) -> None:
    """Who removes the member that is asked hears no answer, and asks another one."""
    async with quorum.connect(world.url) as client:
        world.nodes[0].unavailable_calls = 1
        await client.remove_member("node-3")
        with pytest.raises(NotFound, match="no member 'node-3'"):
            await client.remove_member("node-3")


@on_cluster()
async def test_browsing_reads_in_order_and_removes_nothing(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish_batch(
            "q", [quorum.Message(b"%d" % n, {"subject": "s"}, {"n": n}) for n in range(6)]
        )
        seen = [message async for message in client.browse("q", start_sequence=2, limit=3)]
        assert [(message.sequence, message.body) for message in seen] == [(2, b"1"), (3, b"2"), (4, b"3")]
        assert seen[0].application_properties == {"n": 1}
        assert seen[0].properties.subject == "s"
        assert len([message async for message in client.browse("q")]) == 6
        with pytest.raises(NotFound):
            _ = [message async for message in client.browse("nowhere")]


@on_cluster()
async def test_browsing_goes_on_where_it_was_when_a_node_fails(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish_batch("q", [b"%d" % n for n in range(6)])
        seen = []
        async for message in client.browse("q", limit=5):
            seen.append(message.sequence)
            if len(seen) == 2:
                world.nodes[0].unavailable_calls = 1
        assert seen == [1, 2, 3, 4, 5]


async def browsed(client: Client) -> list[BrowsedMessage]:
    return [message async for message in client.browse("q", timeout_ms=LIMIT_MS)]


@on_cluster(1)
async def test_browsing_waits_for_a_node_until_its_time_limit(world: World) -> None:
    """As long as a node restarts, or a leader is elected."""
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"x")
        world.nodes[0].unavailable_calls = 12
        assert [message.body async for message in client.browse("q")] == [b"x"]
        world.nodes[0].unavailable_calls = 1_000_000
        browsing = asyncio.create_task(browsed(client))
        await eventually(
            lambda: world.nodes[0].unavailable_calls < 999_999, "asked again: it has heard the first answer"
        )
        world.pass_limit()
        with pytest.raises(UnavailableError, match="not now"):
            await browsing


@on_cluster()
async def test_a_client_that_is_not_open_says_so(world: World) -> None:
    client = quorum.connect(world.url)
    with pytest.raises(UsageError, match="not open"):
        await client.declare("x")
    async with client:
        assert client.node == "n1"
        assert client.endpoint == world.nodes[0].address


@on_cluster()
async def test_policies_are_set_listed_and_deleted(world: World) -> None:
    async with quorum.connect(world.url) as client:
        fields = {"x-filter-field-names": ["colour", "header.priority"], "x-max-length": 9}
        assert await client.set_policy("p", "a.*", fields, 7) is True
        assert await client.set_policy("p", "a.*", fields, 7) is False
        [found] = await client.policies()
        assert (found.name, found.pattern, found.priority) == ("p", "a.*", 7)
        assert found.arguments == {"x-filter-field-names": "colour,header.priority", "x-max-length": 9}
        with pytest.raises(UsageError):
            await client.set_policy("p", "*", fields, 1 << 31)
        await client.delete_policy("p")
        with pytest.raises(NotFound):
            await client.delete_policy("p")
        world.nodes[0].unavailable_calls = 1
        await client.delete_policy("p")  # an earlier try may have done it
        assert await client.policies() == []


def test_every_call_of_the_operators_has_words_for_its_errors() -> None:
    assert set(DOING) == {method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods}


@on_cluster()
async def test_numbers_that_no_request_can_hold_are_refused(world: World) -> None:
    async with quorum.connect(world.url) as client:
        for group in (-1, 1 << 32):
            with pytest.raises(UsageError, match=r"allowed: a whole number from 0 to 4294967295"):
                await client.transfer_leadership(group, "n1")
        for times in ((-1, 1_000), (1_000, -1), (1 << 64, 1_000)):
            with pytest.raises(UsageError, match=r"allowed: a whole number from 0 to 18446744073709551615"):
                await client.set_lease_times(*times)


@on_cluster()
async def test_a_client_without_a_session_administers_and_does_nothing_else(world: World) -> None:
    """As an operator needs it while the members that run are drained."""
    async with Client(world.url, has_session=False) as client:
        world.nodes[0].unavailable_calls = 1
        assert await client.declare("new") is True
        with pytest.raises(UsageError, match="no session"):
            await client.publish("new", b"1")
        assert not any(node.streams for node in world.nodes)
    with pytest.raises(ClosedError):
        await client.declare("never")


@on_cluster(2)
async def test_all_tries_of_a_browse_share_its_time_limit(world: World) -> None:
    """The second node says nothing until the time is over. What the first one has said is told."""
    first, second = world.nodes
    async with quorum.connect(world.url) as client:
        first.unavailable_calls, second.has_no_majority = 1, True
        browsing = asyncio.create_task(browsed(client))
        await eventually(lambda: second.unanswered_calls == 1, "the second one is asked")
        world.pass_limit()
        with pytest.raises(TimedOut, match=f"no answer for {LIMIT_MS} ms; last error: browsing 'q': not now"):
            await browsing


def test_all_calls_for_one_answer_share_its_time_limit() -> None:
    limits: list[int] = []

    class Exchanges(ExchangeCalls):
        """Each call takes 1 ms."""

        def _time_left(self, timeout_ms: int | None) -> Callable[[], int]:
            left = count(timeout_ms or 0, -1)
            return lambda: next(left)

        async def _admin(self, method: str, request: Any, timeout_ms: int | None) -> Any:
            assert timeout_ms is not None
            limits.append(timeout_ms)
            if method == "ListBindings":
                return admin_pb2.ListBindingsResponse(next_after=0 if request.after else 7)
            return admin_pb2.ListExchangesResponse(exchanges=[admin_pb2.ExchangeInfo(name="e")])

    asyncio.run(Exchanges().describe_exchange("e", timeout_ms=100))
    assert limits == [100, 99, 98, 98, 97]
