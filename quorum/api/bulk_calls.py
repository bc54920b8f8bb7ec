"""What all bulk calls have in common: asking again, reads that wait for their replica, streams of blocks."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import TypeVar

from fifo.commands import Command
from fifo.effects import Done, Refused, Reply
from quorum.api import status
from quorum.api.hub import Hub
from quorum.api.reading import Answer
from quorum.catalog.queues import CatalogQueue
from quorum.node.errors import BodyUnreadable
from quorum.node.member import Member
from quorum.v1 import bulk_pb2 as pb

T = TypeVar("T")

BEHIND_S = 5.0
"""So long a read waits for this node's replica; then another node is better."""
LOOK_S = 0.005
MOST_LOOK_S = 0.1


async def again(hub: Hub, group: int, command: Command, kind: type[T]) -> T:
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


async def applied(hub: Hub, group: int, index: int) -> None:
    """Returns when this node's replica has applied the entry. UNAVAILABLE where that takes too long."""
    if not index:
        return
    deadline = hub.loop.time() + BEHIND_S
    pause = LOOK_S
    while True:
        at = await hub.ask(lambda member: member.queue_machine(group).index, group)
        if at >= index:
            return
        if hub.loop.time() >= deadline:
            raise status.unavailable(
                "behind", f"this node has group {group} up to entry {at}, not up to {index}; ask another node"
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, MOST_LOOK_S)


async def index_of(hub: Hub, group: int) -> int:
    """How far this node's replica is: it has applied what was answered here."""
    return await hub.ask(lambda member: member.queue_machine(group).index, group)


async def look(hub: Hub, group: int, question: Callable[[Member], T | Refused]) -> T:
    """A view of this node's replica; StatusError where it is refused."""
    found = await hub.ask(question, group)
    if isinstance(found, Refused):
        raise status.StatusError(status.of_refused(found))
    return found


async def blocks(
    hub: Hub, answer: Answer, steps: Iterator[pb.Block | BodyUnreadable]
) -> AsyncIterator[pb.Block]:
    """The blocks, each made in a thread: reading may wait for the disk, and building takes some milliseconds."""
    while (block := await answer.step(steps, _size_of)) is not None:
        if isinstance(block, BodyUnreadable):
            await hub.mend(block)
        else:
            yield block


def _size_of(block: pb.Block | BodyUnreadable) -> int:
    return 0 if isinstance(block, BodyUnreadable) else block.ByteSize()


async def load(name: str) -> ModuleType:
    """quorum.api.<name>, which needs pyarrow: imported when it is first asked for, beside the event loop."""
    return await asyncio.to_thread(importlib.import_module, f"quorum.api.{name}")


def endpoints(member: Member, group: int, own: tuple[str, str]) -> list[pb.Endpoint]:
    """The members that can be asked, by name. own: this node's name and address."""
    leader = member.replicas[group].raft.leader
    found = []
    for each in sorted(member.membership.roster.by_id.values(), key=lambda each: each.name):
        is_own = each.id == member.config.name
        address = own[1] if is_own else each.client
        if address and not each.is_drained and (is_own or member.is_reachable(each.id)):
            found.append(pb.Endpoint(name=each.name, address=address, leader=each.id == leader))
    return found


class BulkCalls:
    """What the parts of the service share."""

    _hub: Hub
    _own: tuple[str, str]

    async def _queue(self, name: str, index: int = 0) -> CatalogQueue:
        """The queue, once this node's replica of its group is as far as `index`."""
        queue = await self._hub.queue(name)
        await applied(self._hub, queue.group, index)
        return queue
