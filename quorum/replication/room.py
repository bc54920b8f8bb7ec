"""Whether this member's log has room for what a leader sends: nothing more is acknowledged until it has."""

from __future__ import annotations

from collections.abc import Callable

from quorum.replication import codec
from quorum.replication.journal_view import NodeLog

BESIDE_ENTRIES = 2
"""Records that one append may write before its entries: a term and a cut."""
FULL_RETRY_S = 0.5
"""How often a member whose log is full looks for room: each look asks the disk for a whole segment."""


class Room:
    """Of one group."""

    def __init__(self, log: NodeLog, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self.is_full = False
        """the log had no room for what the leader sent"""
        self._look_s = 0.0
        self._wanted = (0, 0)
        """bytes and entries that the last append brought"""

    @property
    def is_shut(self) -> bool:
        """There was none, and it is not yet looked for again."""
        return self.is_full and self._clock() < self._look_s

    def ran_out(self) -> None:
        """There was none."""
        self.is_full = True
        self._look_s = self._clock() + FULL_RETRY_S

    def is_there_for(self, m: codec.AppendEntries, last_index: int) -> bool:
        """Whether the log, which ends at last_index, can take what this append brings, or will bring if it is refused.
        False costs the leader a window of entries once, which it sends again when there is room."""
        if not m.entries and m.prev_index <= last_index:
            self.is_full = False  # the leader has nothing more, or begins again
            return True
        if not m.entries and not self.is_full:
            return True
        if self.is_shut:
            return False
        if m.entries:
            self._wanted = sum(len(entry.body) for entry in m.entries), len(m.entries)
        size, count = self._wanted
        if self._log.make_room(size, count + BESIDE_ENTRIES):
            self.is_full = False
        else:
            self.ran_out()
        return not self.is_full
