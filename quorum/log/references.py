"""The bodies and pages that the groups' snapshots refer to: told by the owner of the snapshots, not counted, not on
disk.

With each durable snapshot come two things: the set of entries whose bodies its state refers to, and the sorted list of
the pages that hold its blocks. The set is queried range by range, because ten million entries may wait in a queue. A
body or page is garbage when none of the valid snapshots needs it. Until a group's references were told in this process,
none of its readable bodies and pages is garbage. Garbage stays garbage: a state refers only to entries that the state
before it referred to, and to later ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from quorum.log.segment_files.index import Part
from quorum.log.table import Cut, Ints, Mask, Rows, not_cut


class Indexes(Protocol):
    """An immutable set of entries' indexes. Any thread may query it."""

    def within(self, first: int, last: int) -> Ints:
        """The members from first to last, ascending, each once."""
        ...

    def overlaps(self, first: int, last: int) -> bool:
        """False if certainly no index from first to last is in it; cheap."""
        ...

    def covers(self, first: int, last: int) -> bool:
        """True if certainly every index from first to last is in it; cheap."""
        ...


class ListedIndexes:
    """A few indexes as a list."""

    def __init__(self, indexes: array[int]) -> None:
        """Ascending, each once (array of type Q)."""
        self._numbers: Ints = np.array(indexes, np.int64)

    def within(self, first: int, last: int) -> Ints:
        start, end = np.searchsorted(self._numbers, first), np.searchsorted(self._numbers, last, "right")
        return self._numbers[start:end]

    def overlaps(self, first: int, last: int) -> bool:
        return bool(len(self.within(first, last)))

    def covers(self, first: int, last: int) -> bool:
        return len(self.within(first, last)) == last - first + 1


@dataclass(frozen=True, slots=True)
class Retained:
    """The references of one snapshot. Immutable."""

    index: int
    """The snapshot's index: this entry and all later ones are needed to continue from it."""
    entries: Indexes | array[int]
    """Indexes, at or below `index`, whose bodies its state refers to; ascending as an array (of type Q)."""
    pages: array[int]
    """Its pages, ascending (array of type Q)."""


class _Told(NamedTuple):
    """References as last told; replaced as a whole, so that any thread can read them."""

    needed_from: int
    entries: tuple[Indexes, ...]
    pages: tuple[Ints, ...]
    pages_to: int
    """A page with a higher LSN may belong to the next snapshot, whatever the present ones refer to."""


class Retention:
    """What one group's snapshots retain. Any thread reads it, the log's own thread changes it."""

    def __init__(self, opened_lsn: int) -> None:
        self._newest = -1
        self._told_lsn = opened_lsn
        self._told: _Told | None = None

    @property
    def is_told(self) -> bool:
        """Whether references were told in this process."""
        return self._told is not None

    def tell(self, kept: Sequence[Retained], last_lsn: int) -> None:
        """Replace the references. A snapshot is begun only after the one before it was told. So the pages written until
        then are either referred to by that one, or no longer needed."""
        if not kept:
            raise ValueError("at least one snapshot counts once any was made")
        for retained in kept:
            lists = (retained.entries, retained.pages)
            if any(isinstance(each, array) and each.typecode != "Q" for each in lists):
                raise ValueError("the lists of entries and pages are arrays of type Q")
        pages_to = 0 if self._told is None else self._told.pages_to
        newest = max(retained.index for retained in kept)
        if newest > self._newest:
            pages_to, self._told_lsn, self._newest = self._told_lsn, last_lsn, newest
        self._told = _Told(
            min(retained.index for retained in kept),
            tuple(
                ListedIndexes(each) if isinstance(each, array) else each
                for each in (retained.entries for retained in kept)
            ),
            tuple(np.frombuffer(retained.pages, np.int64) for retained in kept if retained.pages),
            pages_to,
        )

    def is_live(self, indexes: Ints, view_from: int) -> Mask:
        """Which of these entries' bodies are needed, by a journal whose view begins at view_from."""
        told = self._told
        assert told is not None
        live: Mask = indexes >= min(told.needed_from, view_from)
        if live.all():
            return live
        first, last = int(indexes.min()), int(indexes.max())
        for entries in told.entries:
            live |= _is_in(entries.within(first, last), indexes)
        return live

    def is_live_page(self, pages: Ints) -> Mask:
        """Which of these pages are needed."""
        told = self._told
        assert told is not None
        live: Mask = pages > told.pages_to
        for named in told.pages:
            live |= _is_in(named, pages)
        return live

    def may_hold(self, part: Part, view_from: int) -> bool:
        """False if certainly none of this part is needed; cheap."""
        told = self._told
        assert told is not None
        if part.is_page:
            return part.high > told.pages_to or any(
                np.searchsorted(numbers, np.int64(part.low))
                < np.searchsorted(numbers, np.int64(part.high), "right")
                for numbers in told.pages
            )
        return part.high >= min(told.needed_from, view_from) or any(
            entries.overlaps(part.low, part.high) for entries in told.entries
        )

    def needs_all(self, part: Part, view_from: int) -> bool:
        """True if certainly all of this part is needed; cheap."""
        told = self._told
        assert told is not None
        if part.is_page:
            return part.low > told.pages_to
        return part.low >= min(told.needed_from, view_from) or any(
            entries.covers(part.low, part.high) for entries in told.entries
        )


class Liveness(NamedTuple):
    """The needed bodies and pages of one group at a moment."""

    retention: Retention | None
    view_from: int
    cuts: tuple[Cut, ...]

    def bodies(self, rows: Rows) -> Mask:
        """Which of these bodies are needed."""
        live = not_cut(self.cuts, rows)
        if self.retention is not None and self.retention.is_told:
            live &= self.retention.is_live(rows.keys, self.view_from)
        return live

    def pages(self, rows: Rows) -> Mask:
        """Which of these pages are needed."""
        if self.retention is None or not self.retention.is_told:
            return np.ones(len(rows.keys), np.bool_)
        return self.retention.is_live_page(rows.keys)

    def guess(self, part: Part, first_lsn: int) -> int | None:
        """Number of bytes of this part that are needed; None if that depends on its rows."""
        told = self.retention is not None and self.retention.is_told
        if told and self.retention is not None and not self.retention.may_hold(part, self.view_from):
            return 0
        if not part.is_page and any(
            cut.lsn > first_lsn and cut.first <= part.high and cut.last >= part.low for cut in self.cuts
        ):
            return None
        if not told or (self.retention is not None and self.retention.needs_all(part, self.view_from)):
            return part.size
        return None


def _is_in(numbers: Ints, asked: Ints) -> Mask:
    """Which of the asked numbers are among the ascending `numbers`."""
    if not len(numbers):
        return np.zeros(len(asked), np.bool_)
    at = np.searchsorted(numbers, asked)
    found: Mask = numbers[np.minimum(at, len(numbers) - 1)] == asked
    return found
