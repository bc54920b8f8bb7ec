"""Operations that a leader packs into entries: those of sessions and its own, in their order.

Nothing here is durable. The nodes of the sessions resend operations that are dropped; the leader finds its own
operations due again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from fifo import commands as c
from quorum.node.sessions.conversation import RESEND_AFTER_MS
from quorum.node.wire.operations import (
    COMMAND_BYTES,
    MAX_OPERATIONS,
    MAX_RANGES,
    command_bytes,
    encode,
    range_count,
)
from quorum.replication.configuration import CONFIGURATION_BYTES

FULL_RETRY_MS = 500
"""Interval between a full leader's attempts to find room: each attempt asks the disk for a whole segment."""


@dataclass(slots=True)
class Proposals:
    """The proposals of one group's replica."""

    pending: deque[bytes] = field(default_factory=deque)
    """operations that are in no entry yet, encoded"""
    in_flight_bytes: int = 0
    """of own proposals not yet applied"""
    full_until_ms: int = 0
    """the log had no room for an entry: no entry is packed before this time"""
    is_wake_pending: bool = False
    """a Wake is pending or in flight"""
    _in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """(index, bytes) of own proposals not yet applied"""
    _announced_commit: int = 0
    """the commit index that the last entry, or a message of its own, carried"""
    _down_ms: dict[tuple[int, int], int] = field(default_factory=dict)
    """(node, boot) -> when its NodeDown was proposed"""

    def add(self, operations: Iterable[bytes]) -> None:
        """Operations of sessions, encoded."""
        self.pending.extend(operations)

    def begin_term(self) -> None:
        """The leader or the term has changed: nothing of the old term is waited for."""
        self.pending.clear()
        self._in_flight.clear()
        self.in_flight_bytes = 0
        self.is_wake_pending = False
        self._down_ms.clear()

    def refuse(self, now_ms: int) -> None:
        """The log had no room."""
        self.full_until_ms = now_ms + FULL_RETRY_MS
        self.drop_pending()

    def drop_pending(self) -> None:
        """Drops pending operations, as if they were lost on the way: the sessions' nodes resend them."""
        self.pending.clear()
        self.is_wake_pending = False

    def announce(self, commit_index: int) -> bool:
        """Records that the next entry carries the commit index. Returns whether it is new to the followers."""
        is_news = commit_index > self._announced_commit
        self._announced_commit = commit_index
        return is_news

    def next_entry(self) -> tuple[list[bytes], int]:
        """Takes the operations of the next entry from the pending ones. Returns them and their bytes. Every member
        applies an entry in one go, so its bytes, operations and ranges are limited."""
        pending = self.pending
        operations = [pending.popleft()]
        size, ranges = len(operations[0]), range_count(operations[0])
        while pending and size + len(pending[0]) <= COMMAND_BYTES and len(operations) < MAX_OPERATIONS:
            ranges += range_count(pending[0])
            if ranges > MAX_RANGES:
                break
            operations.append(pending.popleft())
            size += len(operations[-1])
        if command_bytes(len(operations), size) + 1 == CONFIGURATION_BYTES:
            operations.append(encode(c.Wake(), None))  # no command has a configuration's size
            size += len(operations[-1])
        return operations, size

    def sent(self, index: int, size: int) -> None:
        """An entry with `size` bytes of operations was appended to the log."""
        self._in_flight.append((index, size))
        self.in_flight_bytes += size

    def taken(self, index: int) -> None:
        """Entries up to this one are committed, and taken to be applied."""
        while self._in_flight and self._in_flight[0][0] <= index:
            self.in_flight_bytes -= self._in_flight.popleft()[1]

    # ---- the leader's own

    def wake(self) -> None:
        """Proposes a Wake, unless one is pending: a time of the machine has come, or it has work left."""
        if not self.is_wake_pending:
            self.is_wake_pending = True
            self.pending.append(encode(c.Wake(), None))

    def wake_applied(self) -> None:
        self.is_wake_pending = False

    def down(
        self, live: Collection[tuple[int, int]], is_down: Collection[tuple[int, int]], now_ms: int
    ) -> None:
        """Proposes NodeDown for nodes whose leases have ended, again where an answer is overdue. live: the (node, boot)
        that the machine knows."""
        for gone in self._down_ms.keys() - set(live):
            del self._down_ms[gone]
        for node in is_down:
            last = self._down_ms.get(node)
            if last is None or now_ms - last > RESEND_AFTER_MS:
                self._down_ms[node] = now_ms
                self.pending.append(encode(c.NodeDown(*node), None))
