"""Reads are linearizable: one never answers an older state than an earlier read or confirm has shown.

Nothing leaves the queue `tally`, so its count of messages only grows. Every read (describe, list, browse, at any
member) counts at least what was confirmed before it began, and what any read counted that ended before it began; and at
most what was sent before it ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import grpc

from quorum.client.client import Client
from quorum.client.errors import UnavailableError
from quorum.v1 import admin_pb2, admin_pb2_grpc, queue_pb2, queue_pb2_grpc
from simulator.clients.apps import App, excuse
from simulator.rules.rules import Broken

if TYPE_CHECKING:
    from simulator.world import World

QUEUE = "tally"
PAUSES_S = (0.05, 0.2, 0.5)
TIMEOUT_S = 3.0


class Tally:
    """What is known of the queue's count."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.is_declared = False
        self.sent = 0
        self.shown = 0
        """what a confirm or a read has shown so far: the least that a read which begins now may count"""
        self._confirmed = 0

    def confirm(self) -> None:
        self._confirmed += 1
        self.shown = max(self.shown, self._confirmed)

    def read(self, how: str, least: int, count: int) -> None:
        """A read has ended. least: `shown` when it began."""
        if count < least:
            raise Broken(f"{how} counts {count} messages where {least} were shown before it began")
        if count > self.sent:
            raise Broken(f"{how} counts {count} messages where {self.sent} were sent")
        self.shown = max(self.shown, count)
        self._counts["reads compared"] += 1


class Teller(App):
    """Publishes to the queue, one message at a time."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        super().__init__(world, f"teller-{number}")

    def successor(self, name: str) -> App:
        return Teller(self.world, self.world.next_producer())

    async def work(self, client: Client) -> None:
        tally = self.world.tally
        while True:
            await asyncio.sleep(self.chance.choice(PAUSES_S))
            if self.world.is_draining:
                continue
            try:
                if not tally.is_declared:
                    await client.declare(QUEUE)
                    tally.is_declared = True
                name = self.chance.choice(list(self.world.machines))
                stub = queue_pb2_grpc.QueueStub(self.channel(f"{name}:7400"))
                tally.sent += 1
                message = queue_pb2.Message(body=b"%d:0:tally" % self.number)
                await stub.Publish(
                    queue_pb2.PublishRequest(queue=QUEUE, messages=[message]), timeout=TIMEOUT_S
                )
                tally.confirm()
            except UnavailableError:
                continue
            except grpc.aio.AioRpcError as error:
                excuse(error, grpc.StatusCode.RESOURCE_EXHAUSTED)


class Auditor(App):
    """Reads the queue's count, at any member."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        super().__init__(world, f"auditor-{number}")

    def successor(self, name: str) -> App:
        return Auditor(self.world, self.world.next_producer())

    async def work(self, client: Client) -> None:
        tally = self.world.tally
        reads: list[Callable[[str], Coroutine[Any, Any, int]]] = [self._describe, self._list, self._browse]
        while True:
            await asyncio.sleep(self.chance.choice(PAUSES_S))
            if not tally.is_declared:
                continue
            read = self.chance.choice(reads)
            endpoint = f"{self.chance.choice(list(self.world.machines))}:7400"
            least = tally.shown
            try:
                tally.read(f"{read.__name__[1:]} at {endpoint}", least, await read(endpoint))
            except grpc.aio.AioRpcError as error:
                excuse(error)

    async def _describe(self, endpoint: str) -> int:
        stub = admin_pb2_grpc.AdminStub(self.channel(endpoint))
        answer = await stub.DescribeQueue(admin_pb2.DescribeQueueRequest(queue=QUEUE), timeout=TIMEOUT_S)
        return int(answer.queue.total)

    async def _list(self, endpoint: str) -> int:
        stub = admin_pb2_grpc.AdminStub(self.channel(endpoint))
        answer = await stub.ListQueues(admin_pb2.ListQueuesRequest(prefix=QUEUE), timeout=TIMEOUT_S)
        if [each.name for each in answer.queues] != [QUEUE]:
            raise Broken(f"the list at {endpoint} has {[each.name for each in answer.queues]}")
        return int(answer.queues[0].total)

    async def _browse(self, endpoint: str) -> int:
        stub = queue_pb2_grpc.QueueStub(self.channel(endpoint))
        pages = stub.Browse(queue_pb2.BrowseRequest(queue=QUEUE), timeout=TIMEOUT_S)
        count = 0
        try:
            while (page := await pages.read()) is not grpc.aio.EOF:
                count += len(page.messages)
        finally:
            pages.cancel()
        return count
