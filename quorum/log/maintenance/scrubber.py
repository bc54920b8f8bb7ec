"""Scrubbing: the log's files are checked little by little, because opening a log does not read sealed segments, and
disks lose data.

A round checks the manifest and the snapshots; each sealed segment's file, index file and live records; and the written
part of the active segment. The position is kept in a file of its own, so that a process that restarts often reaches the
last segments too. The file is not synced, because losing it costs only a part of a round.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from quorum.log.errors import Damage, LogDamaged, LogError
from quorum.log.files import NO_ROOM, Files, read_file, replace_unsynced
from quorum.log.maintenance.examining import (
    ActiveExamination,
    Finding,
    Findings,
    Remedy,
    examine_file,
    examine_index,
    examine_manifest,
)
from quorum.log.reader import read_body
from quorum.log.record import HEADER_BYTES, RecordKind, crc32c
from quorum.log.segment_files.index import Columns, Part, Sealed
from quorum.log.segment_files.segments import Segment
from quorum.log.store import Store
from quorum.log.table import OFFSET_MASK, Ints, Rows

SCRUBBED = "SCRUBBED"
"""The file with the position of the round."""
REMEMBER_BYTES = 16 << 20
"""Maximum number of bytes that are checked again after a restart."""
STEP_BYTES = 1
"""Size that a step counts for if it reads next to nothing, because it is a step all the same."""


class Scrubber:
    """Checks the files of a log in rounds. One thread at a time."""

    def __init__(
        self,
        store: Store,
        files: Files,
        directory: Path,
        findings: Findings,
        *,
        extent: Callable[[], tuple[Segment, int]],
        check_snapshots: Callable[[], tuple[int, list[Damage]]],
        refused: Callable[[OSError, str], LogError],
    ) -> None:
        """extent(): the active segment and the end of its written part. check_snapshots(): reads the valid snapshots;
        returns the bytes read, and the damages."""
        self._findings = findings
        self._store = store
        self._files = files
        self._directory = directory
        self._extent = extent
        self._check_snapshots = check_snapshots
        self._refused = refused
        self._lsn = self._recall()
        """Everything up to this LSN was checked in this round."""
        self._since_remembered = 0
        self._upto: int | None = None
        """The last sealed LSN when the round began, so that the round ends despite new records; None before it."""
        self._active: ActiveExamination | None = None

    def scrub(self, budget_bytes: int) -> int:
        """Check about budget_bytes; returns how many were checked, 0 at the end of a round."""
        checked = 0
        while checked < budget_bytes:
            step = self._step(budget_bytes - checked)
            if step:
                checked += step
            elif checked:
                return checked  # the next call reports the end of the round
            else:
                self._upto, self._active, self._lsn = None, None, 0
                self._remember()
                return 0
        return checked

    def _step(self, budget_bytes: int) -> int:
        store = self._store
        if self._upto is None:
            with store.mutex:
                self._upto = max((sealed.listed.last_lsn or 0 for sealed in store.history.sealed), default=0)
            return STEP_BYTES + self._check_small_files()
        with store.mutex:
            found = next(
                (sealed for sealed in store.history.sealed if (sealed.listed.last_lsn or 0) > self._lsn), None
            )
            if found is not None and found.listed.first_lsn > self._upto:
                found = None
            if found is not None:
                store.hold(found)
        if found is None:
            return self._check_active(budget_bytes)
        try:
            checked = self._check(found, budget_bytes)
        finally:
            store.release(found.segment)
        self._since_remembered += checked
        if self._since_remembered >= REMEMBER_BYTES:
            self._remember()
        return checked

    def _check_small_files(self) -> int:
        self._findings.add(list(examine_manifest(self._files, self._directory)))
        checked, damages = self._check_snapshots()
        self._findings.add([Finding(damage, Remedy.SNAPSHOT) for damage in damages])
        return checked

    # ---- sealed segments

    def _check(self, sealed: Sealed, budget_bytes: int) -> int:
        last = sealed.listed.last_lsn
        assert last is not None
        checked = STEP_BYTES
        try:
            columns = self._store.history.columns(sealed)
        except LogDamaged as error:  # neither the index file nor the segment says what is in it
            self._findings.add([Finding(damage, Remedy.NONE) for damage in error.damages])
            self._lsn = last
            return checked
        if self._lsn < sealed.listed.first_lsn:
            self._findings.add(list(examine_file(self._files, sealed.segment, sealed.end)))
            self._findings.add(list(examine_index(self._files, sealed, columns)))
            checked += columns.size
        upto = self._end(columns, budget_bytes, last)
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
        """The LSN up to which this piece extends."""
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
        offset = int(rows.places[at]) & OFFSET_MASK
        try:
            read_body(sealed.segment, offset, lsn=lsn, group=part.group, index=index, length=length)
        except LogDamaged as error:
            known = (part.group, int(rows.terms[at]), index)
            path = str(sealed.segment.path)
            reason = error.damages[0].reason
            self._store.note_damage(Damage(path, offset, lsn, reason, known, RecordKind(kind).name))
        return HEADER_BYTES + length

    # ---- the active segment

    def _check_active(self, budget_bytes: int) -> int:
        """Check what was written of the active segment when the round reached it; 0 if nothing is left."""
        segment, written = self._extent()
        if not self._store.hold_active(segment):
            return 0  # it is just becoming one of the log's segments
        try:
            checked = 0
            if self._active is None or self._active.segment is not segment:
                self._findings.add(list(examine_file(self._files, segment, segment.header.allocated)))
                self._active = ActiveExamination(self._store, segment, written)
                checked = STEP_BYTES
            checked += self._active.go_on(budget_bytes)
            self._findings.add(self._active.findings)
            self._active.findings = []
            return checked
        finally:
            self._store.release(segment)

    # ---- the position

    def _remember(self) -> None:
        self._since_remembered = 0
        text = f"{self._lsn}\n".encode()
        path = self._directory / SCRUBBED
        try:
            replace_unsynced(self._files, path, [text, f"crc32c {crc32c(text):08x}\n".encode()])
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self._refused(error, f"write {path}") from error

    def _recall(self) -> int:
        """The stored position; 0, the beginning, if the file is missing or damaged."""
        try:
            text, end, check = read_file(self._files, self._directory / SCRUBBED).partition(b"\n")
        except OSError:
            return 0
        if check != f"crc32c {crc32c(text + end):08x}\n".encode():
            return 0
        return int(text)
