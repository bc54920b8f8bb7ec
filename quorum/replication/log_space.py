"""Whether the node's log has space for what a leader sends."""

from __future__ import annotations

from collections.abc import Callable

from quorum.replication import codec
from quorum.replication.storage import NodeLog

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
