"""What the groups still refer to: told by whoever keeps their snapshots, never counted, never on disk.

With each durable snapshot comes the sorted list of entries whose bodies its state refers to and of the pages that
hold its blocks. A body or page is garbage when none of the snapshots that count needs it. Until a group's lists were
told in this life, nothing of it that can be read is garbage.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retained:
    """What one snapshot refers to. Both arrays are ascending and are not changed any more."""

    index: int
    """Where the snapshot stands: entries behind it are needed to go on from it."""
    entries: array[int]
    """Indexes, at or below `index`, whose bodies its state refers to (array of type Q)."""
    pages: array[int]
    """Its pages (array of type Q)."""


class Retention:
    """What one group's snapshots retain."""

    def __init__(self, opened_lsn: int) -> None:
        self.kept: tuple[Retained, ...] = ()
        """Ascending by index; empty until told."""
        self.pages_to = 0
        """A page with a higher LSN may belong to the next snapshot, whatever the present ones name."""
        self._told_lsn = opened_lsn

    @property
    def is_told(self) -> bool:
        """Whether anything was told in this life."""
        return bool(self.kept)

    def tell(self, kept: Sequence[Retained], last_lsn: int) -> None:
        """Replace what was told before. A snapshot is begun only after the one before it was told: so the pages
        written until then are either named by it or by nobody any more."""
        if not kept:
            raise ValueError("at least one snapshot counts once any was made")
        for retained in kept:
            if retained.entries.typecode != "Q" or retained.pages.typecode != "Q":
                raise ValueError("the lists of entries and pages are arrays of type Q")
        newest = self.kept[-1].index if self.kept else -1
        self.kept = tuple(sorted(kept, key=lambda retained: retained.index))
        if self.kept[-1].index > newest:
            self.pages_to, self._told_lsn = self._told_lsn, last_lsn
