"""The sealed segments, oldest first, and the lookup of records in them.

The list of segments belongs to the log's own thread. Other threads read it under the log's lock, and hold a segment
while they read from it. Columns come through a bounded cache, from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from quorum.log.errors import LogDamaged
from quorum.log.files import Files
from quorum.log.record import RecordKind
from quorum.log.segment_files.index import Columns, IndexCache, Sealed
from quorum.log.segment_files.scanner import rebuild
from quorum.log.table import Body, Cut, Ints, Rows, not_cut


class _Ranges:
    """The segments that have bodies of one group, with the range of their indexes."""

    def __init__(self, sealed: list[Sealed], group: int) -> None:
        self.sealed = [found for found in sealed if (False, group) in found.parts]
        parts = [found.parts[False, group] for found in self.sealed]
        self.lows = np.array([part.low for part in parts], np.int64)
        self.highs = np.array([part.high for part in parts], np.int64)

    def overlapping(self, low: int, high: int) -> list[Sealed]:
        """The segments that may have bodies from low to high, oldest first."""
        found = np.flatnonzero((self.lows <= high) & (self.highs >= low))
        return [self.sealed[at] for at in found.tolist()]


class History:
    """The sealed segments of a log."""

    def __init__(self, files: Files, cache_bytes: int) -> None:
        self.cache = IndexCache(files, cache_bytes)
        self.sealed: list[Sealed] = []
        self._ranges: dict[int, _Ranges] = {}
        self._unreadable: dict[bytes, LogDamaged] = {}
        """Why a segment cannot be read, by file id: it is read to its bad place only once, because that takes long."""

    def set(self, sealed: list[Sealed]) -> None:
        """Replace the list of segments."""
        self.sealed = sealed
        self._ranges = {}

    def overlapping(self, group: int, low: int, high: int) -> list[Sealed]:
        """The segments that may have bodies of a group with indexes from low to high, oldest first."""
        ranges = self._ranges.get(group)
        if ranges is None:
            ranges = self._ranges[group] = _Ranges(self.sealed, group)
        return ranges.overlapping(low, high)

    def page_owner(self, group: int, page: int) -> Sealed | None:
        """The segment that may have this page."""
        for sealed in reversed(self.sealed):
            part = sealed.parts.get((True, group))
            if part is not None and part.low <= page <= part.high:
                return sealed
        return None

    def columns(self, sealed: Sealed) -> Columns:
        """All rows of a segment; LogDamaged if neither the index file nor the segment can be read."""
        found = self.cache.get(sealed)
        if found is not None:
            return found
        file_id = sealed.listed.file_id
        known = self._unreadable.get(file_id)
        if known is not None:
            raise LogDamaged(*known.damages)
        try:
            _, found, _ = rebuild(sealed.segment, sealed.listed)
        except LogDamaged as error:
            self._unreadable[file_id] = error
            raise
        self.cache.put(sealed, found)
        return found

    def gather(
        self, group: int, first: int, last: int, cuts: Sequence[Cut], loose: Mapping[int, Body]
    ) -> Rows | None:
        """The rows of all entries first..last, with a copy instead of the entry it copies; None if one is missing.
        LogDamaged if a segment that may have one cannot be read."""
        count = max(0, last - first + 1)
        found = Rows.zeros(count)
        for sealed in self.overlapping(group, first, last):
            part = sealed.parts[False, group]
            put(found, self.columns(sealed).rows(part, first, last), first, cuts)
        inside = sorted((index, body) for index, body in loose.items() if first <= index <= last)
        put(found, Rows.of(inside), first, cuts)
        return found if bool((found.lsns > 0).all()) else None


def put(found: Rows, rows: Rows, first: int, cuts: Sequence[Cut]) -> None:
    """Put rows of later LSNs into dense columns that begin at index `first`: entries always, a copy unless another
    entry is there."""
    rows = rows.take(not_cut(cuts, rows))
    is_entry = rows.kinds == RecordKind.ENTRY
    for mine in (is_entry, ~is_entry):
        chosen = rows.take(mine)
        at = chosen.keys - first
        fits = (found.lsns[at] < chosen.lsns) & (
            (chosen.kinds == RecordKind.ENTRY) | (found.lsns[at] == 0) | (found.terms[at] == chosen.terms)
        )
        at = at[fits]
        chosen = chosen.take(fits)
        found.keys[at], found.lsns[at], found.terms[at] = chosen.keys, chosen.lsns, chosen.terms
        found.places[at], found.lengths[at], found.kinds[at] = chosen.places, chosen.lengths, chosen.kinds


def find_body(columns: Columns, sealed: Sealed, group: int, index: int, cuts: Iterable[Cut]) -> Body | None:
    """The body of an entry in this segment with the highest LSN; None if there is none."""
    rows = columns.rows(sealed.parts[False, group], index, index)
    for at in range(len(rows.keys) - 1, -1, -1):
        kind, lsn = int(rows.kinds[at]), int(rows.lsns[at])
        if kind == RecordKind.ENTRY and any(cut.first <= index <= cut.last and lsn < cut.lsn for cut in cuts):
            continue
        return Body(lsn, int(rows.places[at]), int(rows.lengths[at]), int(rows.terms[at]), kind)
    return None


def find_page(columns: Columns, sealed: Sealed, group: int, page: int) -> Body | None:
    """A page in this segment."""
    rows = columns.rows(sealed.parts[True, group], page, page)
    if not len(rows.keys):
        return None
    return Body(page, int(rows.places[0]), int(rows.lengths[0]), 0, RecordKind.PAGE)


def is_here(rows: Rows, cuts: Sequence[Cut], trusted: int) -> Ints:
    """The indexes of these rows whose bodies can be relied on: entries up to `trusted`, and copies."""
    good = (rows.keys <= trusted) | (rows.kinds == RecordKind.COPY)
    here: Ints = rows.keys[good & not_cut(cuts, rows)]
    return here
