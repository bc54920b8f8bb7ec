"""Attach numbers, generations and numbers of views began at 1 in each queue. A queue that was declared again gave out
those that clients of the earlier one still had: they settled messages of other clients, which were lost, and read and
closed their views."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import quorum
from fifo import commands as c
from fifo.effects import Pinned, SubscriptionState
from fifo.persistence import snapshot
from fifo.versions import UNIQUE_NUMBERS
from quorum.client.errors import RefusedError
from quorum.v1 import admin_pb2, bulk_pb2, queue_pb2
from support.fifo.world import World, nth_number
from support.members.cluster import Cluster
from support.members.served import served
from support.members.services import Aborted, Api, Context, collected

QUEUE = "orders"
SUBSCRIPTION = "archive"


async def declared_again(admin: Any) -> None:
    await admin.delete(QUEUE)
    await admin.declare(QUEUE)


def test_a_late_settlement_of_a_get_settles_nothing_in_a_queue_that_was_declared_again() -> None:
    async def run() -> None:
        async with served() as url, quorum.connect(url) as admin:
            await admin.declare("first")
            await admin.publish("first", b"")
            await admin.get("first")  # it is answered as soon as the member may deliver
            await admin.declare(QUEUE)
            async with quorum.connect(url) as client:
                await client.publish(QUEUE, b"old")
                [old] = await client.get(QUEUE)
                await declared_again(admin)
                await client.publish(QUEUE, b"new")
                [new] = await client.get(QUEUE)
                with pytest.raises(RefusedError, match="is attached as"):
                    await client.settle(old, wait=True)
                assert (await admin.describe(QUEUE)).queue.checked_out == 1
                await client.settle(new, wait=True)
            assert (await admin.describe(QUEUE)).queue.totals.settled == 1

    asyncio.run(run())


class Reader:
    """Bulk calls for one queue of a member."""

    def __init__(self) -> None:
        cluster = Cluster(1)
        cluster.ready()
        self.api = Api(cluster, cluster.names[0])

    async def call(self, call: Any, request: Any) -> Any:
        return await self.api.call(call(request, Context()))

    async def declare(self, *bodies: bytes) -> None:
        await self.call(self.api.admin.DeclareQueue, admin_pb2.DeclareQueueRequest(queue=QUEUE))
        messages = [queue_pb2.Message(body=body) for body in bodies]
        await self.call(self.api.queues.Publish, queue_pb2.PublishRequest(queue=QUEUE, messages=messages))

    async def declare_again(self, *bodies: bytes) -> None:
        await self.call(self.api.admin.DeleteQueue, admin_pb2.DeleteQueueRequest(queue=QUEUE))
        await self.declare(*bodies)

    async def reserve(self) -> int:
        """The generation of a subscription that has reserved up to offset 1."""
        opening = bulk_pb2.OpenSubscriptionRequest(queue=QUEUE, subscription=SUBSCRIPTION)
        generation: int = (await self.call(self.api.bulk.OpenSubscription, opening)).generation
        request = bulk_pb2.ReserveRequest(queue=QUEUE, subscription=SUBSCRIPTION, generation=generation)
        assert (await self.call(self.api.bulk.Reserve, request)).offset == 1
        return generation

    async def settle(self, generation: int) -> int:
        request = bulk_pb2.SettleRequest(queue=QUEUE, subscription=SUBSCRIPTION, generation=generation, to=1)
        settled: int = (await self.call(self.api.bulk.Settle, request)).settled
        return settled

    async def open_view(self) -> int:
        request = bulk_pb2.OpenViewRequest(queue=QUEUE)
        view: int = (await self.call(self.api.bulk.OpenView, request)).view
        return view

    async def rows(self, view: int) -> int:
        request = bulk_pb2.BrowseViewRequest(queue=QUEUE, view=view)
        blocks = await self.api.call(collected(self.api.bulk.Browse(request, Context())))  # type: ignore[arg-type]
        return sum(block.rows for block in blocks)

    async def close_view(self, view: int) -> None:
        await self.call(self.api.bulk.CloseView, bulk_pb2.CloseViewRequest(queue=QUEUE, view=view))


def test_an_earlier_queues_reader_settles_nothing_in_a_queue_that_was_declared_again() -> None:
    async def run() -> None:
        reader = Reader()
        await reader.declare(b"old")
        old = await reader.reserve()
        await reader.declare_again(b"new 1", b"new 2")
        new = await reader.reserve()
        with pytest.raises(Aborted, match="opened by another caller"):
            await reader.settle(old)
        assert await reader.settle(new) == 1

    asyncio.run(run())


def test_a_view_of_an_earlier_queue_shows_and_closes_nothing_of_one_that_was_declared_again() -> None:
    async def run() -> None:
        reader = Reader()
        await reader.declare(b"old")
        old = await reader.open_view()
        await reader.declare_again(b"new 1", b"new 2")
        new = await reader.open_view()
        with pytest.raises(Aborted, match="has no pin"):
            await reader.rows(old)
        await reader.close_view(old)
        assert await reader.rows(new) == 2

    asyncio.run(run())


def numbers(world: World, queue: int) -> tuple[int, int, int]:
    """The queue's next attach number, generation and number of a pin."""
    name = next(iter(world.epochs))
    attach, _ = world.attach(name, f"c{world.index}", 0, queue=queue)
    opened = world.do(name, c.OpenSubscription(queue, SUBSCRIPTION, b"", "earliest", 60_000, "keep"))
    pinned = world.do(name, c.Pin(queue, 60_000))
    assert isinstance(opened, SubscriptionState)
    assert isinstance(pinned, Pinned)
    return attach, opened.generation, pinned.pin


def test_the_numbers_of_two_queues_differ_also_after_a_snapshot() -> None:
    world = World()
    world.session()
    for queue in (1, 2):
        world.queue(queue)
        assert numbers(world, queue) == (nth_number(1, queue),) * 3
    world.machine = world.restored(snapshot.encode(world.machine))
    for queue in (1, 2):
        assert numbers(world, queue) == (nth_number(2, queue),) * 3


def test_a_queue_of_version_1_keeps_its_numbers() -> None:
    world = World()
    world.session()
    world.index += 1
    creation = c.Operation(0, None, c.CreateQueue(1, c.QueueConfig("q")))
    world.machine.apply(c.Meta(world.index, 1, world.now_ms, UNIQUE_NUMBERS - 1), [creation])
    assert numbers(world, 1) == (1, 1, 1)
    world.machine = world.restored(snapshot.encode(world.machine))
    assert numbers(world, 1) == (2, 2, 2)


def test_numbers_have_63_bits_whatever_a_queues_id() -> None:
    world = World()
    world.session()
    for queue in ((1 << 31) - 1, 1 << 31, (1 << 64) - 1):
        world.queue(queue)
        assert numbers(world, queue) == (nth_number(1, queue % (1 << 31)),) * 3
