"""A queue with message groups as its clients see it: through the services of a member."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from quorum.node.wire.batches import group_key
from quorum.v1 import admin_pb2
from quorum.v1 import queue_pb2 as pb
from support.members.cluster import Cluster
from support.members.services import Api, Context


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


async def publish(api: Api, *groups: str) -> None:
    """A message for each name of a group; empty: none."""
    made = [
        pb.Message(body=b"%d" % number, properties=pb.Properties(group_id=group) if group else None)
        for number, group in enumerate(groups)
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


def test_the_names_of_groups_reach_the_queue_as_keys() -> None:
    async def run(api: Api) -> None:
        await publish(api, "x", "", "y", "x")
        await publish(api, "x")
        found = await info(api)
        machine = api.cluster.members[api.name].queue_machine(found.group)
        keys = machine.queues[found.id].messages.blocks.view(0).live_keys
        assert keys is not None
        names = [int.from_bytes(group_key(name), "little") for name in ("x", "", "y", "x", "x")]
        assert keys.tolist() == names
        assert found.held_groups == 0
        assert await get(api, 10) == [b"0", b"1", b"2", b"3", b"0"]

    on_member(run, message_groups=True)


def test_a_queue_without_message_groups_shows_none() -> None:
    async def run(api: Api) -> None:
        await publish(api, "x", "x")
        assert (await info(api)).held_groups == 0
        assert await get(api, 2) == [b"0", b"1"]

    on_member(run)
