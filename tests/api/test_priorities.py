"""A queue with priorities as its clients see it: through the services of a member."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quorum.api.services import queue_service
from quorum.v1 import admin_pb2
from quorum.v1 import queue_pb2 as pb
from support.members.cluster import Cluster
from support.members.services import Api, Context, collected

LARGE = 1_000
"""Bytes of a message; a get takes less than two of them at a time."""


def on_member(run: Callable[[Api], Awaitable[None]], **arguments: Any) -> None:
    cluster = Cluster(queue_groups=1)

    async def body() -> None:
        cluster.ready()
        cluster.declare("orders", **arguments)
        cluster.settle()
        api = Api(cluster, cluster.names[0])
        cluster.run(1_000)  # its lease is renewed
        await run(api)

    asyncio.run(body())


async def publish(api: Api, *messages: tuple[bytes, int | None]) -> None:
    made = [
        pb.Message(body=body, properties=None if priority is None else pb.Properties(priority=priority))
        for body, priority in messages
    ]
    request = pb.PublishRequest(queue="orders", messages=made)
    await api.call(api.queues.Publish(request, Context()))  # type: ignore[arg-type]


async def get(api: Api, count: int) -> list[bytes]:
    request = pb.GetRequest(queue="orders", count=count)
    taken = await api.call(api.queues.Get(request, Context()))  # type: ignore[arg-type]
    return [each.message.body for each in taken.messages]


async def info(api: Api) -> admin_pb2.QueueInfo:
    request = admin_pb2.DescribeQueueRequest(queue="orders")
    found = await api.call(api.admin.DescribeQueue(request, Context()))  # type: ignore[arg-type]
    return found.queue  # type: ignore[no-any-return]


def test_urgent_messages_are_first_and_are_counted_by_priority() -> None:
    async def run(api: Api) -> None:
        await publish(api, (b"a", None), (b"b", 3), (b"c", 200), (b"d", 9), (b"e", 3))
        await publish(api, (b"f", 3))
        counts = [(each.priority, each.ready) for each in (await info(api)).ready_by_priority]
        assert counts == [(9, 2), (3, 3), (0, 1)]
        found = await api.call(
            collected(api.queues.Browse(pb.BrowseRequest(queue="orders"), Context()))  # type: ignore[arg-type]
        )
        shown = [each.message for response in found for each in response.messages]
        assert [each.body for each in shown] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert shown[2].properties.priority == 200
        assert await get(api, 3) == [b"c", b"d", b"b"]
        assert await get(api, 10) == [b"e", b"f", b"a"]

    on_member(run, max_priority=9)


def test_a_get_counts_the_bytes_of_the_messages_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_service, "GET_BYTES", 2 * LARGE)

    async def run(api: Api) -> None:
        for number in range(3):
            await publish(api, (b"%d" % number, None))
        for _ in range(2):
            await publish(api, (bytes(LARGE), 5))
        assert [len(body) for body in await get(api, 5)] == [LARGE]
        assert [len(body) for body in await get(api, 5)] == [LARGE, 1, 1, 1]

    on_member(run, max_priority=9)


def test_a_queue_without_priorities_shows_none() -> None:
    async def run(api: Api) -> None:
        await publish(api, (b"a", None), (b"b", 9))
        assert not (await info(api)).ready_by_priority
        assert await get(api, 2) == [b"a", b"b"]

    on_member(run)
