"""What all bulk calls share: commands that are retried, reads that wait for their replica, streams of blocks."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable, Iterator
from types import ModuleType
from typing import TypeVar

from fifo.commands import Command
from fifo.effects import Done, Refused, Reply
from quorum.api import status
from quorum.api.hub import Hub
from quorum.api.reading import Answer
from quorum.catalog.queues import CatalogQueue
from quorum.node.errors import BodyUnreadable
from quorum.node.queries import AppliedIndex, Endpoint, Query
from quorum.v1 import bulk_pb2 as pb

T = TypeVar("T")

BEHIND_S = 5.0
"""So long a read waits for this node's replica; then another node is better."""
POLL_S = 0.005
MOST_POLL_S = 0.1


async def retry_until_answered(hub: Hub, group: int, command: Command, kind: type[T]) -> T:
    """What the group answers to a command that may be repeated: it is, where its answer was lost."""
    while True:
        reply = await hub.call(group, command)
        found = answer(reply, kind)
        if found is not None:
            return found


def answer(reply: Reply | None, kind: type[T]) -> T | None:
    """None: the answer was lost."""
    if isinstance(reply, kind):
        return reply
    assert reply is None or isinstance(reply, Done), reply
    return None


async def wait_applied(hub: Hub, group: int, index: int) -> None:
    """Returns when this node's replica has applied the entry. UNAVAILABLE where that takes too long."""
    if not index:
        return
    deadline = hub.loop.time() + BEHIND_S
    pause = POLL_S
    while True:
        at = await hub.query(AppliedIndex(group))
        if at >= index:
            return
        if hub.loop.time() >= deadline:
            raise status.unavailable(
                "behind", f"this node has group {group} up to entry {at}, not up to {index}; ask another node"
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, MOST_POLL_S)


async def index_of(hub: Hub, group: int) -> int:
    """How far this node's replica is: it has applied what was answered here."""
    return await hub.query(AppliedIndex(group))


async def query_replica(hub: Hub, query: Query[T | Refused]) -> T:
    """The answer of this node's replica; StatusError where it is refused."""
    found = await hub.query(query)
    if isinstance(found, Refused):
        raise status.StatusError(status.of_refused(found))
    return found


async def stream_blocks(
    hub: Hub, answer: Answer, steps: Iterator[pb.Block | BodyUnreadable]
) -> AsyncIterator[pb.Block]:
    """The blocks, each made in a thread: reading may wait for the disk, and building takes some milliseconds."""
    while (block := await answer.step(steps, _size_of)) is not None:
        if isinstance(block, BodyUnreadable):
            await hub.repair(block)
        else:
            yield block


def _size_of(block: pb.Block | BodyUnreadable) -> int:
    return 0 if isinstance(block, BodyUnreadable) else block.ByteSize()


async def load(name: str) -> ModuleType:
    """quorum.api.<name>, which needs pyarrow: imported when it is first asked for, beside the event loop."""
    return await asyncio.to_thread(importlib.import_module, f"quorum.api.{name}")


def endpoints(found: Iterable[Endpoint], own_address: str) -> list[pb.Endpoint]:
    """The members that can be asked. own_address: of this node, whatever the catalog has."""
    shown = ((each, own_address if each.is_own else each.address) for each in found)
    return [
        pb.Endpoint(name=each.name, address=address, leader=each.is_leader)
        for each, address in shown
        if address
    ]


class BulkCalls:
    """What the parts of the service share."""

    _hub: Hub
    _own_address: str

    async def _queue(self, name: str, index: int = 0) -> CatalogQueue:
        """The queue, once this node's replica of its group is as far as `index`."""
        queue = await self._hub.queue(name)
        await wait_applied(self._hub, queue.group, index)
        return queue
