"""When a replica's next snapshot is due."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SnapshotPlan:
    """The plan of one replica."""

    bytes_since: int = 0
    """of entries applied since the last snapshot, with ENTRY_COST_BYTES for each"""
    is_demanded: bool = False
    """a snapshot that is kept, or a page that it refers to, is damaged"""
    not_before_ms: int = 0
    """the last one found no room, or was taken early to make some"""
    saved_ms: int = 0
    """when the last snapshot was taken, or the first change after it seen"""

    def is_due(self, now_ms: int, after_bytes: int, after_ms: int) -> bool:
        """Whether a snapshot is due: after_bytes were applied since the last one, or anything after_ms ago. Settled
        messages become garbage only once a snapshot reflects that."""
        if not self.bytes_since:
            self.saved_ms = now_ms
        return self.bytes_since > after_bytes or now_ms - self.saved_ms >= after_ms

    def demand(self) -> None:
        """The next review takes a snapshot, because one that is kept is damaged."""
        self.is_demanded = True

    def postpone(self, to_ms: int) -> None:
        """No snapshot is taken before this."""
        self.not_before_ms = to_ms

    def saved(self, now_ms: int) -> None:
        """A snapshot was taken."""
        self.is_demanded = False
        self.bytes_since = 0
        self.saved_ms = now_ms
