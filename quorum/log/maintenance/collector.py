"""Garbage collection: copy the live records of sealed segments into a new segment, and delete the old ones.

- Survey, in any thread: count the live bytes of each sealed segment. The log's thread plans from these counts.
- Plan: segments without live records are deleted. Two neighbours that are each more than half garbage are merged. A
  single such segment is copied by itself, or together with a small neighbour if that costs no more than is freed. So
  copying writes at most twice what it frees. When nothing is left to plan, the sealed segments hold at most twice their
  live bytes.
- Copy (`run`), in any thread: records keep their LSNs, are checked, and get the new file's identity. Records that died
  since the plan are skipped, chunk by chunk. The new file is complete and durable, but no manifest lists it: a restart
  would remove it.
- Adopt, in the log's thread: sync, write the manifest, and switch under the lock. The manifest states the groups'
  present journals, so that the records which led there are no longer needed. A crash before the manifest's rename is
  durable leaves the old segments in force, a later one the new. The other files begin before the active segment, and
  opening removes them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from quorum.log.errors import Damage, LogDamaged, LogError
from quorum.log.files import NO_ROOM, Files, commit_file, temporary_path, write_fully
from quorum.log.maintenance.examining import Finding, Findings, Remedy
from quorum.log.record import HEADER_BYTES, RecordKind, body_is_good
from quorum.log.segment_files.index import (
    Part,
    Sealed,
    arrange,
    encode_index,
    index_path,
    write_index_if_room,
)
from quorum.log.segment_files.reserve import Reserve
from quorum.log.segment_files.scanner import Scanner
from quorum.log.segment_files.segments import HEADER_BLOCK, Listed, Segment, SegmentHeader, segment_path
from quorum.log.store import Store
from quorum.log.table import PLACE_SHIFT, Body, GroupTable, Rows

COPY_BYTES = 4 << 20
"""Bytes of records whose references are looked up at once, and bytes written at once."""
SURVEY_ROWS = 1 << 14
"""Rows that the survey reads at once: under a millisecond, so that other threads get their turns."""
MOST_AT_ONCE = 64
"""Maximum number of segments that one collection deletes."""


class Survey:
    """The live bytes of each sealed segment, as last surveyed. A segment's live bytes only decrease."""

    def __init__(self, store: Store, findings: Findings) -> None:
        self._store = store
        self._findings = findings
        self._unreadable: set[bytes] = set()
        """Segments of which neither the index file nor the records say what is in them. They are collected when nothing
        in them is live."""
        self._known: dict[bytes, tuple[int, int]] = {}
        self._pages: dict[bytes, dict[int, Rows]] = {}
        """The rows of each segment's pages by group: few, and in nearly every segment some have died."""
        self._spoiled: dict[bytes, int] = {}
        self._epoch = 0

    def spoiled(self, sealed: Sealed) -> None:
        """Note that the segment cannot be copied. It is tried again when something else has changed."""
        self._spoiled[sealed.listed.file_id] = self._epoch

    def is_spoiled(self, sealed: Sealed) -> bool:
        """Whether the segment is unreadable, or a collection failed at it and nothing has changed since."""
        file_id = sealed.listed.file_id
        return file_id in self._unreadable or self._spoiled.get(file_id) == self._epoch

    def changed(self) -> None:
        """Note that bodies or pages may have become garbage."""
        self._epoch += 1

    def live_bytes(self, sealed: Sealed) -> int:
        """The live bytes as last surveyed; all readable bytes if the segment was never surveyed."""
        known = self._known.get(sealed.listed.file_id)
        return sum(part.size for part in sealed.parts.values()) if known is None else known[1]

    def refresh(self) -> None:
        """Survey the segments that may have changed. Any thread, one at a time, and not while the log is scrubbed."""
        for sealed in list(self._store.history.sealed):
            file_id = sealed.listed.file_id
            if self._known.get(file_id, (-1, 0))[0] == self._epoch:
                continue
            if file_id in self._unreadable and not self.has_died(sealed):
                continue
            try:
                self.look_at(sealed)
                self._unreadable.discard(file_id)
            except LogDamaged as error:
                self._unreadable.add(file_id)
                self._known.pop(file_id, None)
                self._findings.add([Finding(damage, Remedy.NONE) for damage in error.damages])

    def look_at(self, sealed: Sealed) -> None:
        """Survey one segment. Any thread. LogDamaged if nothing says what is in it."""
        live, unclear = 0, []
        with self._store.mutex:
            if not self._store.has(sealed):
                return  # replaced, or the log was closed
            epoch = self._epoch
            for part in sealed.parts.values():
                liveness = self._store.liveness(part.group)
                guess = liveness.guess(part, sealed.listed.first_lsn)
                if guess is None:
                    unclear.append((part, liveness))
                else:
                    live += guess
            self._store.hold(sealed)
        try:
            for part, liveness in unclear:
                if part.is_page:
                    rows = self._page_rows(sealed, part)
                    needed = rows.lengths[liveness.pages(rows)]
                    live += int(needed.sum()) + HEADER_BYTES * len(needed)
                    continue
                columns = self._store.history.columns(sealed)
                for start in range(part.start, part.start + part.count, SURVEY_ROWS):
                    count = min(SURVEY_ROWS, part.start + part.count - start)
                    rows = columns.rows(replace(part, start=start, count=count))
                    needed = rows.lengths[liveness.bodies(rows)]
                    live += int(needed.sum()) + HEADER_BYTES * len(needed)
        finally:
            self._store.release(sealed.segment)
        self._known[sealed.listed.file_id] = (epoch, live)

    def _page_rows(self, sealed: Sealed, part: Part) -> Rows:
        kept = self._pages.setdefault(sealed.listed.file_id, {})
        if part.group not in kept:
            rows = self._store.history.columns(sealed).rows(part)
            kept[part.group] = rows.take(np.arange(part.count))  # copies, so that the other rows can be freed
        return kept[part.group]

    def has_died(self, sealed: Sealed) -> bool:
        """Whether certainly nothing of this segment is live; cheap."""
        with self._store.mutex:
            return self._store.is_dead(sealed)

    def forget(self, sealed: Sealed) -> None:
        """Forget a segment that was deleted."""
        self._known.pop(sealed.listed.file_id, None)
        self._pages.pop(sealed.listed.file_id, None)
        self._spoiled.pop(sealed.listed.file_id, None)
        self._unreadable.discard(sealed.listed.file_id)


class Collection:
    """Some neighbouring segments, to be replaced by a copy of their live records."""

    def __init__(
        self,
        files: Files,
        store: Store,
        sources: Sequence[Sealed],
        *,
        number: int,
        file_id: bytes,
        expected_bytes: int,
        reserve: Reserve | None,
        refused: Callable[[OSError], LogError],
    ) -> None:
        self.sources = tuple(sources)
        self.result: Sealed | None = None
        """The segment that replaces them; None if they had nothing live."""
        self.is_run = False
        self.damage: Damage | None = None
        """Damage of a live body that cannot be copied; the collection then changes nothing."""
        self._store = store
        header = SegmentHeader(number, sources[0].listed.first_lsn, HEADER_BLOCK, file_id)
        path = segment_path(sources[0].segment.path.parent, number)
        self._copy = _Copy(files, Segment(path, header), HEADER_BLOCK + expected_bytes, reserve)
        self._refused = refused

    def run(self) -> None:
        """Copy, once, from any thread. LogFull if there is no space: the collection then leaves no trace. LogFailed is
        final."""
        with self._store.mutex:
            if any(sealed.segment.is_replaced for sealed in self.sources):
                self.is_run = True  # another collection was faster: this one will not be adopted
                return
            for sealed in self.sources:
                self._store.hold(sealed)
        try:
            self._run()
        except OSError as error:
            raise self._refused(error) from error
        finally:
            for sealed in self.sources:
                self._store.release(sealed.segment)

    def _run(self) -> None:
        try:
            for sealed in self.sources:
                self._copy_from(sealed)
            last = self.sources[-1].listed.last_lsn
            assert last is not None
            self.result = self._copy.finish(last)
        except LogDamaged as error:
            self.damage = error.damages[0]
            self._copy.abandon()
        except OSError:
            self._copy.abandon()
            raise
        if self.result is not None:
            self._store.history.cache.put(self.result, self._copy.columns)
        self.is_run = True

    def move(self, tables: Mapping[int, GroupTable]) -> None:
        """Point the tails of the groups' journals to the copies."""
        assert self.result is not None
        for part in self.result.parts.values():
            if not part.is_page:
                tables[part.group].move(self._copy.columns.rows(part))

    def discard(self) -> None:
        """Remove the copy if it will not be adopted. The log's thread."""
        self._copy.abandon()
        if self.result is not None:
            self._store.history.cache.drop(self.result)
            self.result = None

    def _copy_from(self, sealed: Sealed) -> None:
        """Copy the live records of one segment, a chunk's worth at a time."""
        with self._store.mutex:
            if self._store.is_dead(sealed):
                return  # also if nothing can say what is in it
        columns = self._store.history.columns(sealed)
        order = np.argsort(columns.offsets, kind="stable")
        groups = np.zeros(len(columns.offsets), np.int64)
        pages = np.zeros(len(columns.offsets), np.bool_)
        for part in sealed.parts.values():
            groups[part.start : part.start + part.count] = part.group
            pages[part.start : part.start + part.count] = part.is_page
        bounds = np.cumsum(columns.lengths[order].astype(np.int64) + HEADER_BYTES) // COPY_BYTES
        scanner = Scanner(sealed.segment.path, sealed.segment.file, sealed.end)
        for piece in np.split(order, np.flatnonzero(np.diff(bounds)) + 1):
            live = np.zeros(len(piece), np.bool_)
            rows = Rows(
                columns.keys[piece],  # type: ignore[arg-type]
                columns.lsns[piece],  # type: ignore[arg-type]
                columns.terms[piece],  # type: ignore[arg-type]
                columns.offsets[piece].astype(np.int64),
                columns.lengths[piece].astype(np.int64),
                columns.kinds[piece],  # type: ignore[arg-type]
            )
            for is_page, group in {(bool(pages[at]), int(groups[at])) for at in piece.tolist()}:
                mine = (groups[piece] == group) & (pages[piece] == is_page)
                with self._store.mutex:
                    liveness = self._store.liveness(group)
                chosen = rows.take(mine)
                live[mine] = liveness.pages(chosen) if is_page else liveness.bodies(chosen)
            for at in np.flatnonzero(live).tolist():
                self._copy_record(
                    sealed, scanner, int(groups[piece[at]]), [int(column[at]) for column in rows]
                )

    def _copy_record(self, sealed: Sealed, scanner: Scanner, group: int, row: list[int]) -> None:
        key, lsn, term, offset, length, kind = row
        chunk, at = scanner.window(offset, HEADER_BYTES + length)
        header = sealed.segment.stamp.decode(chunk, at)
        body = chunk[at + HEADER_BYTES : at + HEADER_BYTES + length]
        if header is None or header.lsn != lsn or not body_is_good(header, body):
            is_page = kind == RecordKind.PAGE
            known = (group, term, 0 if is_page else key)
            damage = Damage(
                str(sealed.segment.path),
                offset,
                lsn,
                "met a bad record while collecting",
                known,
                RecordKind(kind).name,
            )
            found, held = self._store.look_up(group, key, is_page=is_page)
            if held is not None:
                self._store.release(held)
            if found is not None and found.lsn == lsn:
                self._store.note_damage(damage)
                raise LogDamaged(damage)
            return  # a copy from another member is valid instead
        self._copy.add(body, key, Body(lsn, 0, length, term, kind), group, header.synced)


class _Copy:
    """A segment that grows under a temporary name, in space that was allocated beforehand."""

    def __init__(self, files: Files, segment: Segment, allocated: int, reserve: Reserve | None) -> None:
        self._files = files
        self._allocated = allocated
        self._reserve = reserve
        self._segment = segment
        self._buffers: list[bytes] = []
        self._buffered = 0
        self._written = 0
        self._position = HEADER_BLOCK
        self._bodies: dict[int, list[tuple[int, Body]]] = {}
        self._pages: dict[int, list[tuple[int, Body]]] = {}
        self._is_created = False
        self._is_renamed = False

    def add(self, body: bytes, key: int, found: Body, group: int, synced: int) -> None:
        """Append one record."""
        is_page = found.kind == RecordKind.PAGE
        index = 0 if is_page else key
        header = self._segment.stamp.encode(
            body, kind=found.kind, lsn=found.lsn, synced=synced, group=group, term=found.term, index=index
        )
        place = self._segment.number << PLACE_SHIFT | self._position
        rows = (self._pages if is_page else self._bodies).setdefault(group, [])
        rows.append((key, found._replace(place=place)))
        self._buffers += (header, body)
        self._buffered += len(header) + len(body)
        self._position += len(header) + len(body)
        if self._buffered >= COPY_BYTES:
            self._flush()

    def finish(self, last_lsn: int) -> Sealed | None:
        """Make the file durable under its name and return the segment; None if it would be empty."""
        if self._position == HEADER_BLOCK:
            return None
        self._flush()
        self._segment.file.truncate(self._position)
        self._segment.file.sync()
        commit_file(self._files, self._segment.path)
        self._is_renamed = True
        header = self._segment.header
        listed = Listed(header.number, header.file_id, header.first_lsn, last_lsn, self._position)
        by_key = {
            group: Rows.of(sorted(rows, key=lambda pair: (pair[0], pair[1].lsn)))
            for group, rows in self._bodies.items()
        }
        pages = {group: Rows.of(rows) for group, rows in self._pages.items()}
        parts, self.columns = arrange(by_key.items(), pages.items(), header.number)
        write_index_if_room(self._files, self._segment.path, encode_index(listed, parts, self.columns))
        return Sealed(self._segment, listed, parts)

    def abandon(self) -> None:
        """Remove the file."""
        if self._is_created:
            self._is_created = False
            self._segment.file.close()
            path = self._segment.path
            self._files.unlink(path if self._is_renamed else temporary_path(path))
            if index_path(path).name in self._files.list_directory(path.parent):
                self._files.unlink(index_path(path))

    def _create(self) -> None:
        """Allocate the file from the disk; if that has no space, from the reserve."""
        temporary = temporary_path(self._segment.path)
        self._segment.file = self._files.create(temporary)
        self._is_created = True
        try:
            self._segment.file.allocate(self._allocated)
        except OSError as error:
            reserve = self._reserve
            if error.errno not in NO_ROOM or reserve is None:
                raise
            if not reserve.take(self._segment.path, self._allocated, for_collector=True):
                raise
            self._segment.file.close()
            self._segment.file = self._files.open(temporary, writable=True)

    def _flush(self) -> None:
        if not self._is_created:
            self._create()
            self._written = write_fully(self._segment.file, [self._segment.header.encode()], 0)
        self._written = write_fully(self._segment.file, self._buffers, self._written)
        self._buffers = []
        self._buffered = 0


class Collector:
    """Decides which segments are worth collecting. The log's thread."""

    def __init__(self, store: Store, segment_bytes: int, findings: Findings) -> None:
        self.survey = Survey(store, findings)
        self._store = store
        self._segment_bytes = segment_bytes
        self._outstanding: weakref.ref[Collection] | None = None

    def choose(self) -> list[Sealed]:
        """Neighbouring segments worth replacing, or any number without live records, as last surveyed; empty if
        collecting is not worthwhile."""
        if self.is_busy:
            return []
        with self._store.mutex:
            damaged = {damage.path for damage in self._store.damages.values()}
        sealed = self._store.history.sealed
        free = [
            str(found.segment.path) not in damaged and not self.survey.is_spoiled(found) for found in sealed
        ]
        live = [self.survey.live_bytes(found) for found in sealed]
        size = [found.end - HEADER_BLOCK for found in sealed]
        for at, found in enumerate(sealed):
            if not live[at] and free[at]:
                end = at + 1
                while end < len(sealed) and not live[end] and free[end] and end - at < MOST_AT_ONCE:
                    end += 1
                return [found, *sealed[at + 1 : end]]
        is_poor = [2 * some < whole and fit for some, whole, fit in zip(live, size, free, strict=True)]
        for at in np.flatnonzero(is_poor).tolist():
            for other in (at + 1, at - 1):
                if not 0 <= other < len(sealed) or not free[other]:
                    continue
                together = live[at] + live[other]
                is_cheap = 2 * together <= self._segment_bytes and live[other] <= size[at] - live[at]
                if is_cheap or (is_poor[other] and together <= self._segment_bytes):
                    return sealed[min(at, other) : max(at, other) + 1]
            return [sealed[at]]
        return []

    @property
    def is_busy(self) -> bool:
        """Whether a planned collection is still in use."""
        return self._outstanding is not None and self._outstanding() is not None

    def planned(self, collection: Collection) -> None:
        """Note the planned collection; there is only one at a time."""
        self._outstanding = weakref.ref(collection)

    def done(self) -> None:
        """Note that the planned collection was adopted or discarded."""
        self._outstanding = None
