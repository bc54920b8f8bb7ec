"""Checking the sealed segments little by little: opening a log does not read them, and disks forget."""

from __future__ import annotations

import numpy as np

from quorum.log.errors import Damage, LogDamaged
from quorum.log.index import Columns, Part, Sealed
from quorum.log.reader import read_body
from quorum.log.record import HEADER_BYTES, RecordKind
from quorum.log.store import Store
from quorum.log.table import PLACE_SHIFT, Ints, Rows

_OFFSET_MASK = (1 << PLACE_SHIFT) - 1


class Scrubber:
    """Goes round through what is live in the sealed segments. One thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lsn = 0
        """Everything up to here was checked in this round."""

    def scrub(self, budget_bytes: int) -> int:
        """Check about so many bytes; how many were, 0 at the end of a round."""
        store = self._store
        with store.mutex:
            found = next(
                (sealed for sealed in store.history.sealed if (sealed.listed.last_lsn or 0) > self._lsn), None
            )
            if found is None:
                self._lsn = 0
                return 0
            store.hold(found)
        try:
            return self._check(found, budget_bytes)
        finally:
            store.let_go(found.segment)

    def _check(self, sealed: Sealed, budget_bytes: int) -> int:
        columns = self._store.history.columns(sealed)
        last = sealed.listed.last_lsn
        assert last is not None
        upto = self._end(columns, budget_bytes, last)
        checked = 1  # even a piece without anything live is a step
        for part in sealed.parts.values():
            with self._store.mutex:
                liveness = self._store.liveness(part.group)
            rows = columns.rows(part)
            live = liveness.pages(rows) if part.is_page else liveness.bodies(rows)
            chosen = rows.take(live & (rows.lsns > self._lsn) & (rows.lsns <= upto))
            for at in range(len(chosen.keys)):
                checked += self._check_record(sealed, part, chosen, at)
        self._lsn = upto
        return checked

    def _end(self, columns: Columns, budget_bytes: int, last: int) -> int:
        """The LSN up to which this piece goes."""
        order = np.argsort(columns.offsets, kind="stable")
        lsns: Ints = columns.lsns[order]  # type: ignore[assignment]
        rest = lsns > self._lsn
        sizes = np.cumsum(columns.lengths[order][rest].astype(np.int64) + HEADER_BYTES)
        if not len(sizes) or int(sizes[-1]) <= budget_bytes:
            return last
        return int(lsns[rest][min(len(sizes) - 1, int(np.searchsorted(sizes, budget_bytes)))])

    def _check_record(self, sealed: Sealed, part: Part, rows: Rows, at: int) -> int:
        key, lsn, length, kind = (
            int(rows.keys[at]),
            int(rows.lsns[at]),
            int(rows.lengths[at]),
            int(rows.kinds[at]),
        )
        index = 0 if part.is_page else key
        offset = int(rows.places[at]) & _OFFSET_MASK
        try:
            read_body(sealed.segment, offset, lsn=lsn, group=part.group, index=index, length=length)
        except LogDamaged as error:
            known = (part.group, int(rows.terms[at]), index)
            path = str(sealed.segment.path)
            reason = error.damages[0].reason
            self._store.note_damage(Damage(path, offset, lsn, reason, known, RecordKind(kind).name))
        return HEADER_BYTES + length
