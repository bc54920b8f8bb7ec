"""Shared parts of all bulk calls: commands that are retried, reads that wait for their replica, streams of blocks."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from types import ModuleType
from typing import TypeVar

from fifo.commands import Command
from fifo.effects import Refused, Reply
from quorum.api import status
from quorum.api.hub.hub import Hub
from quorum.api.hub.reading import Answer
from quorum.catalog.queues import CatalogQueue
from quorum.node.errors import BodyUnreadable
from quorum.node.queries import AppliedIndex, Endpoint, Query
from quorum.v1 import bulk_pb2 as pb

T = TypeVar("T")

BEHIND_S = 5.0
"""Time that a read waits for this node's replica; after it the client should ask another node."""
POLL_S = 0.005
MOST_POLL_S = 0.1
LOST = ("session_resync", "session_node_down")
"""Why the node's own session ends in the middle of calls: a snapshot has replaced entries with answers, the session was
silent for a day, or a group has declared this process down. The next session of this node can carry out the command."""
PAGE = 16_384
"""Messages of a view or a reservation that are looked up in one query."""


async def retry_until_answered(hub: Hub, group: int, command: Command, kind: type[T]) -> T:
    """Return the group's answer to an idempotent command, which is repeated if its answer was lost."""
    return await repeat_while_lost(lambda: hub.own_session.call(group, command), kind)


async def repeat_while_lost(call: Callable[[], Awaitable[Reply | None]], kind: type[T]) -> T:
    """Return the answer to an idempotent call of the node's own session, which is repeated if its answer was lost."""
    while True:
        try:
            return expected(await call(), kind)
        except status.StatusError as error:
            if not is_lost(error):
                raise


def is_lost(error: status.StatusError) -> bool:
    """Whether the answer was lost: the node's own session has ended before it came, and was opened again."""
    return error.status.reason in LOST


def expected(reply: Reply | None, kind: type[T]) -> T:
    """The answer to a command that was accepted."""
    assert isinstance(reply, kind), reply
    return reply


async def wait_applied(hub: Hub, group: int, index: int) -> None:
    """Wait until this node's replica has applied the entry. UNAVAILABLE if that takes too long."""
    if not index:
        return
    deadline = hub.loop.time() + BEHIND_S
    pause = POLL_S
    while True:
        at = await hub.requests.query(AppliedIndex(group))
        if at >= index:
            return
        if hub.loop.time() >= deadline:
            raise status.unavailable(
                "behind",
                f"this node has applied group {group} up to entry {at}, not to {index}; ask another node",
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, MOST_POLL_S)


async def index_of(hub: Hub, group: int) -> int:
    """Return the applied index of this node's replica, which includes everything answered here."""
    return await hub.requests.query(AppliedIndex(group))


async def query_replica(hub: Hub, query: Query[T | Refused]) -> T:
    """Return the answer of this node's replica; StatusError if it is refused."""
    found = await hub.requests.query(query)
    if isinstance(found, Refused):
        raise status.StatusError(status.of_refused(found))
    return found


async def stream_blocks(
    hub: Hub, answer: Answer, steps: Iterator[pb.Block | BodyUnreadable]
) -> AsyncIterator[pb.Block]:
    """Yield the blocks. A thread makes them: reading may wait for the disk, and building takes some milliseconds."""
    while (block := await answer.step(steps, _size_of)) is not None:
        if isinstance(block, BodyUnreadable):
            await hub.requests.repair(block)
        else:
            yield block


def _size_of(block: pb.Block | BodyUnreadable) -> int:
    return 0 if isinstance(block, BodyUnreadable) else block.ByteSize()


async def load(name: str) -> ModuleType:
    """quorum.api.bulk.<name>, which needs pyarrow: imported in a thread at its first use."""
    return await asyncio.to_thread(importlib.import_module, f"quorum.api.bulk.{name}")


def endpoints(found: Iterable[Endpoint], own_address: str) -> list[pb.Endpoint]:
    """Return the reachable members. own_address: this node's address, which overrides the catalog's."""
    shown = ((each, own_address if each.is_own else each.address) for each in found)
    return [
        pb.Endpoint(name=each.name, address=address, leader=each.is_leader)
        for each, address in shown
        if address
    ]


class BulkCalls:
    """State shared by the parts of the service."""

    _hub: Hub
    _own_address: str

    async def _queue(self, name: str, index: int = 0) -> CatalogQueue:
        """Return the queue once this node's replica of its group has applied `index`."""
        queue = await self._hub.requests.queue(name)
        await wait_applied(self._hub, queue.group, index)
        return queue
