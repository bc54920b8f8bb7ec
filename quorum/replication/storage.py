"""What replication needs of the node's log: journals, snapshots and space. `quorum.log` implements all of it.

The protocols define the calls; `LogSpaceGate` decides whether the log has space for what a leader sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quorum.replication import codec


class SnapshotUnsendable(Exception):
    """The snapshot's file is complete, but something that it refers to cannot be read here."""


class SnapshotSource(Protocol):
    """A snapshot that can be read piece by piece (quorum.log has it). read raises OSError, ValueError if it is damaged,
    and SnapshotUnsendable."""

    @property
    def index(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def crc(self) -> int: ...
    def prepare(self) -> bool:
        """Do a little of the work that is needed before size and crc are known; True if they are. Raises the errors of
        read."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """At most length bytes from offset; none only at the end."""
        ...

    def close(self) -> None: ...


class Received(Protocol):
    """A snapshot that is being received, on disk (quorum.log has it). LogFull from everything that writes."""

    @property
    def received(self) -> int:
        """The number of bytes that are here, in order."""
        ...

    @property
    def is_whole(self) -> bool: ...
    def check(self) -> bool:
        """Check a part of what an earlier process has left; True once nothing is left to check."""
        ...

    def add(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Take a piece that begins where the last one ended, nothing else."""
        ...

    def finish(self) -> bool:
        """Make the complete snapshot durable; False if its CRC is wrong."""
        ...

    def open(self) -> SnapshotSource:
        """Open the finished snapshot."""
        ...

    def keep(self) -> None:
        """Put the finished snapshot in place."""
        ...

    def drop(self) -> None:
        """Remove a snapshot that is no longer wanted."""
        ...


class GroupJournal(Protocol):
    """What replication needs of a group's journal (quorum.log.Journal has it)."""

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def hard_state(self) -> tuple[int, str | None]: ...
    @property
    def hard_state_lsn(self) -> int: ...
    def term_at(self, index: int) -> int: ...
    def length_at(self, index: int) -> int: ...
    def indices_of_length(self, length: int) -> list[int]: ...
    def append(self, parts: Sequence[bytes | memoryview], index: int, term: int) -> int: ...
    def truncate_from(self, index: int) -> int: ...
    def compact_to(self, index: int, term: int) -> int: ...
    def reset_to_snapshot(self, index: int, term: int, *, keep_bodies_to: int = 0) -> int: ...
    def set_hard_state(self, term: int, vote: str | None) -> int: ...
    def save_snapshot(self, index: int, term: int, state: bytes) -> None: ...
    def receive_snapshot(self, index: int, term: int, size: int, crc: int) -> Received: ...
    def load_snapshot(self) -> tuple[int, int, bytes] | None: ...
    def open_snapshot(self) -> SnapshotSource | None: ...
    def note_damaged_snapshot(self, index: int, term: int, reason: str) -> None: ...


class NodeLog(Protocol):
    """What replication needs of the node's log (quorum.log.Log has it)."""

    @property
    def last_lsn(self) -> int: ...
    @property
    def synced_lsn(self) -> int: ...
    def journal(self, group: int) -> GroupJournal: ...
    def read(self, group: int, index: int) -> bytes: ...
    def sync(self) -> int: ...
    def make_room(self, length: int, count: int = 1) -> bool: ...


BESIDE_ENTRIES = 2
"""Records that one append may write before its entries: a term and a cut."""
FULL_RETRY_S = 0.5
"""Interval in seconds at which a member with a full log looks for space, because each look asks the disk for a whole
segment."""


class LogSpaceGate:
    """Decides whether this member's log has space for what a leader sends. While it has none, nothing more is
    acknowledged."""

    def __init__(self, log: NodeLog, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self.is_full = False
        """The log had no space for what the leader sent."""
        self._look_s = 0.0
        self._wanted = (0, 0)
        """bytes and entries of the last append"""

    @property
    def is_closed(self) -> bool:
        """Whether there was no space, and it is not yet time to look again."""
        return self.is_full and self._clock() < self._look_s

    def mark_free(self) -> None:
        """Note that the log has space, or that a new leader's entries are another matter."""
        self.is_full = False

    def mark_full(self) -> None:
        """Note that the log had no space now."""
        self.is_full = True
        self._look_s = self._clock() + FULL_RETRY_S

    def admits(self, m: codec.AppendEntries, last_index: int) -> bool:
        """Whether the log, which ends at last_index, has space for this append or, after a refused one, for the entries
        that the leader will send again. If False, the leader sends at most one window again."""
        if not m.entries and m.prev_index <= last_index:
            self.mark_free()  # the leader has nothing more, or begins again
            return True
        if not m.entries and not self.is_full:
            return True
        if self.is_closed:
            return False
        if m.entries:
            self._wanted = sum(len(entry.body) for entry in m.entries), len(m.entries)
        size, count = self._wanted
        if self._log.make_room(size, count + BESIDE_ENTRIES):
            self.mark_free()
        else:
            self.mark_full()
        return not self.is_full
