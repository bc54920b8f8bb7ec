"""The services of one member of a simulated cluster, without gRPC between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from quorum.api.bulk.service import BulkService
from quorum.api.hub.hub import Hub
from quorum.api.services.admin_service import AdminService
from quorum.api.services.queue_service import QueueService
from quorum.node import events as ev
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import admin_pb2, queue_pb2
from support.members.cluster import Cluster


class Aborted(Exception):
    pass


class Context:
    """Of a call from this peer."""

    def __init__(self, peer: str = "ipv4:10.0.0.7:51234") -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    async def abort_with_status(self, status: Any) -> None:
        raise Aborted(status.code, status.details)


LIMITS = BatchLimits(100, 10_000, 100_000)


class Api:
    """The services of one member of a cluster, whose time goes on with the event loop."""

    def __init__(self, cluster: Cluster, name: str, limits: BatchLimits = LIMITS) -> None:
        self.cluster = cluster
        self.name = name
        member = cluster.members[name]
        self.hub = Hub(
            member.config.name,
            cluster.logs[name],
            limits,
            10_000,
            10_000,
            clock_s=lambda: cluster.clock_ms(name) / 1000,
        )
        self.hub.attach(self)  # type: ignore[arg-type]
        self.hub._dispatch(member.published())
        address = SimpleNamespace(client=f"{name}:1", peer=f"{name}:2")
        config = SimpleNamespace(
            name=name, members={name: address}, max_queues=None, max_queues_per_user=None
        )
        self.admin = AdminService(self.hub, config)  # type: ignore[arg-type]
        self.queues = QueueService(self.hub)
        self.bulk = BulkService(self.hub, config)  # type: ignore[arg-type]
        hear = cluster._hear

        def listen(at: str, output: ev.Output) -> None:
            if at == name:
                self.hub._dispatch([output])
            hear(at, output)

        cluster._hear = listen  # type: ignore[method-assign]

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        self.cluster.submit(self.name, *items)

    def leave(self, item: ev.Input) -> None:
        self.submit((item,))

    async def call(self, answer: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(answer)
        while not task.done():
            self.cluster.run(5)
            for _ in range(5):
                await asyncio.sleep(0)
        return task.result()

    async def publish(self, *messages: queue_pb2.Message) -> None:
        """To the queue `orders`, as are the next two."""
        request = queue_pb2.PublishRequest(queue="orders", messages=messages)
        await self.call(self.queues.Publish(request, Context()))  # type: ignore[arg-type]

    async def get(self, count: int) -> list[bytes]:
        request = queue_pb2.GetRequest(queue="orders", count=count)
        taken = await self.call(self.queues.Get(request, Context()))  # type: ignore[arg-type]
        return [each.message.body for each in taken.messages]

    async def info(self) -> admin_pb2.QueueInfo:
        request = admin_pb2.DescribeQueueRequest(queue="orders")
        found = await self.call(self.admin.DescribeQueue(request, Context()))  # type: ignore[arg-type]
        return found.queue  # type: ignore[no-any-return]

    async def list(self, **request: Any) -> admin_pb2.ListQueuesResponse:
        found = await self.call(self.admin.ListQueues(admin_pb2.ListQueuesRequest(**request), Context()))  # type: ignore[arg-type]
        assert isinstance(found, admin_pb2.ListQueuesResponse)
        return found


async def collected(answers: AsyncIterator[Any]) -> list[Any]:
    return [answer async for answer in answers]


def on_member(cluster: Cluster, run: Callable[[Api], Awaitable[None]]) -> None:
    """Runs it with the services of the member n1."""

    async def body() -> None:
        await run(Api(cluster, "n1"))

    asyncio.run(body())


def with_queue(run: Callable[[Api], Awaitable[None]], **arguments: Any) -> None:
    """Runs it with the services of a member of a new cluster that has the queue `orders`."""
    cluster = Cluster(queue_groups=1)
    cluster.ready()
    cluster.declare("orders", **arguments)
    cluster.settle()

    async def once_leased(api: Api) -> None:
        cluster.run(1_000)  # the member's lease is renewed
        await run(api)

    on_member(cluster, once_leased)
