"""The publishing side of a client's session: the numbers of its messages, its window, and what becomes of each batch.

Batches are serialized `MessageBatch`es, because the log stores these bytes and a consumer receives them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from fifo import commands as c
from fifo.effects import Confirmed, Refused, Reply
from fifo.limits import PRODUCTION
from quorum.api import status
from quorum.api.filters import kept_fields
from quorum.api.hub import Hub
from quorum.api.producer_numbers import ProducerNumbers
from quorum.api.session_commands import SessionCommands
from quorum.catalog.queues import CatalogQueue
from quorum.node.queries import FindTaken
from quorum.node.wire import batches
from quorum_selectors.known_fields import KeptFields

MAX_UINT64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class _Published:
    """A batch: client sequences first..last, of `size` bytes."""

    publisher: SessionPublisher
    queue: CatalogQueue
    first: int
    last: int
    size: int

    def answered(self, reply: Reply | None) -> None:
        self.publisher.decided(self, reply)


@dataclass(frozen=True, slots=True)
class _Registering:
    """A group has to know the session before it can say which messages it has taken."""

    commands: SessionCommands
    registered: asyncio.Future[Reply | None]
    queue: None = None

    def answered(self, reply: Reply | None) -> None:
        self.commands.answered()
        if not self.registered.done():
            self.registered.set_result(reply)


class SessionPublisher:
    """The producer of one session."""

    def __init__(self, hub: Hub, commands: SessionCommands) -> None:
        self._hub = hub
        self._commands = commands
        self._outbox = commands.outbox
        self._kept: dict[int, tuple[KeptFields | None, int]] = {}
        """by queue id: see _look_up_kept"""
        self._numbers = ProducerNumbers()
        self._new_from = 0
        """The client says: numbers from here on were sent in no earlier session. 0: not told."""
        self._taken_to: dict[int, int] = {}
        """By id of each queue whose group was asked: numbers above it were taken in no earlier session."""
        self._origin = (b"", 0)
        """producer, epoch"""
        self.undecided = 0
        """batches that their groups have not decided"""
        self.size_bytes = 0
        """of these batches"""
        self._bytes_of: Counter[int] = Counter()
        """the same by group: the session's part of the node's window"""

    def begin(self, producer: bytes, epoch: int, first_new: int) -> None:
        """See ClientSession.open."""
        self._new_from = first_new or int(epoch == 1)
        self._origin = (producer, epoch)

    def release(self) -> None:
        """Give back the session's part of the node's window."""
        for group, size in self._bytes_of.items():
            if size:
                self._hub.publishing.give(size, group)
        self._bytes_of.clear()

    async def publish(self, name: str, first: int, lowest_unconfirmed: int, batch: bytes) -> None:
        """Messages for the queue of this name, numbered from `first` on. The outcome is among Confirms. StatusError
        (UNAVAILABLE) if the session has to end, so that its client sends the batch again, in order."""
        self._commands.resume()
        queue = None
        try:
            queue = await self._hub.requests.queue(name)
            kept, max_bytes = self._kept.get(queue.id) or await self._look_up_kept(queue)
            checked = batches.check(batch, self._hub.limits, kept, max_bytes)
            count = checked.count
            self._numbers.check(first, count, lowest_unconfirmed)
            self._hub.published.check_disks(queue.group)
        except batches.BatchError as error:
            await self._refuse_batch(batch, first, lowest_unconfirmed, queue, status.of_error(error))
            return
        except status.StatusError as error:
            if error.status.code == status.Code.UNAVAILABLE:
                raise
            await self._refuse_batch(batch, first, lowest_unconfirmed, queue, error.status)
            return
        self._numbers.use(first + count - 1)
        size = len(batch)
        await self._hub.publishing.take_room(size, queue.group)
        self.undecided += 1
        self.size_bytes += size
        self._bytes_of[queue.group] += size
        enqueue = c.Enqueue(
            queue.id,
            first,
            lowest_unconfirmed,
            count,
            checked.size_bytes,
            checked.ttl_ms,
            checked.ttls_ms,
            checked.columns,
        )
        token = _Published(self, queue, first, first + count - 1, size)
        self._commands.publish(queue.group, enqueue, token, batch)

    def decided(self, batch: _Published, reply: Reply | None) -> None:
        """The group has taken or refused a batch, or parts of it."""
        group, size = batch.queue.group, batch.size
        self.undecided -= 1
        self.size_bytes -= size
        self._bytes_of[group] -= size
        self._hub.publishing.give(size, group)
        self._commands.room.set()
        if isinstance(reply, Refused):
            self._outbox.reject(batch.first, batch.last, status.of_refused(reply))
            return
        assert isinstance(reply, Confirmed)
        first = batch.first
        for start, end, refused in reply.refused:
            if first < start:
                self._outbox.confirm(first, start - 1)
            self._outbox.reject(start, end, status.of_refused(refused))
            first = end + 1
        if first <= batch.last:
            self._outbox.confirm(first, batch.last)

    async def _look_up_kept(self, queue: CatalogQueue) -> tuple[KeptFields | None, int]:
        """The fields that this session extracts for a queue: those that the queue keeps when the session first
        publishes to it."""
        if queue.config.filter_enabled:  # a change of policies that was answered elsewhere counts
            kept = kept_fields(await self._hub.requests.current_catalog(), queue)
        else:
            kept = kept_fields(self._hub.catalog, queue)
        self._kept[queue.id] = kept
        return kept

    # ---- batches that are refused here

    async def _refuse_batch(
        self,
        batch: bytes,
        first: int,
        lowest_unconfirmed: int,
        queue: CatalogQueue | None,
        why: status.Status,
    ) -> None:
        """Reject the messages of a batch, except those that were taken in an earlier session: these are confirmed,
        because their producer would publish them once more under new numbers."""
        count = min(batches.claimed_count(batch), PRODUCTION.window)
        last = min(first + count - 1, MAX_UINT64)
        taken: tuple[tuple[int, int], ...] = ()
        if queue is not None and self._numbers.may_have(first, count, lowest_unconfirmed):
            taken = await self._taken_before(queue, first, last)
        self._numbers.use(last)
        for start, end in taken:
            if first < start:
                self._outbox.reject(first, start - 1, why)
            self._outbox.confirm(start, end)
            first = end + 1
        if first <= last:
            self._outbox.reject(first, last, why)
        self._commands.work.set()

    async def _taken_before(self, queue: CatalogQueue, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """The ranges of these messages that the queue's group has taken in an earlier session. It knows when this
        session is registered there: earlier sessions are fenced from then on, and it takes no more of theirs."""
        if 0 < self._new_from <= first or first > self._taken_to.get(queue.id, MAX_UINT64):
            return ()
        group = queue.group
        if queue.id not in self._taken_to:
            current = (await self._hub.requests.current_catalog()).queue(queue.name)
            if current is None or current.id != queue.id:
                raise status.of_ended("outdated")  # another group may know of these messages
            registered: asyncio.Future[Reply | None] = self._hub.loop.create_future()
            self._commands.submit(group, c.Wake(), _Registering(self._commands, registered))
            await self._hub.requests.decided((group,), registered)
        found = await self._hub.requests.query(FindTaken(group, *self._origin, first, last))
        if found is None:
            raise status.of_ended("resync")
        self._taken_to[queue.id] = found.highest
        return found.ranges
