"""Opening a log: begin with the manifest's state, apply the later records, and clean up the end.

The manifest states every group's journal at its stated LSN. The index files of the sealed segments state where bodies
are stored. So only the active segment is read. An index file that is missing or bad is rebuilt from its segment.

Every record states an LSN known to be synced when the record was made. If the active segment has a bad record, recovery
searches everything after it for more headers of this segment. The highest LSN stated anywhere (the manifest included)
decides:

- If the bad record comes after that LSN, it belongs to writes that no sync ever covered. The disk may have kept any of
  their sectors in any order. Nothing that left this node depended on them, so the log is *cut* there: everything after
  it, good records included, is overwritten with zeros, so that no later record can be confused with it.
- If the bad record is at or before that LSN, synced bytes have changed. That is *damage*. For a body, copy or page with
  a good header, everything but the bytes is known: the log opens and reports it, and only reading it fails. Any other
  record may have been a vote or a cut: recovery raises `LogDamaged`, which says where, and changes nothing.

The records between the highest stated LSN and the end were written by the last process. They may be synced, they may be
held only by the operating system, or the disk may have refused them, with the failed sync reported once and then
forgotten. So recovery writes the same bytes to the same place again, and syncs them, before any member relies on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from quorum.log.contents import Contents
from quorum.log.errors import Damage, LogDamaged
from quorum.log.files import TEMPORARY, Files, write_fully
from quorum.log.record import HEADER_BYTES, MAX_BODY_BYTES, WITH_BODY, Header, RecordKind, Stamp
from quorum.log.segment_files.history import History
from quorum.log.segment_files.index import Sealed, encode_index, read_parts, write_index_if_room
from quorum.log.segment_files.manifest import (
    MANIFEST,
    Manifest,
    commit_manifest,
    prepare_manifest,
    read_manifest,
)
from quorum.log.segment_files.scanner import (
    CHUNK_BYTES,
    Scanner,
    damage_of,
    header_at,
    headers_from,
    is_zero,
    rebuild,
    require_known_kind,
    scan,
)
from quorum.log.segment_files.segments import (
    HEADER_BLOCK,
    SNAPSHOTS,
    Listed,
    Segment,
    create_segment,
    decode_header,
    index_numbers,
    open_segment,
    segment_numbers,
    segment_path,
    write_first_block,
)
from quorum.log.table import PLACE_SHIFT, Body, GroupState


@dataclass(slots=True)
class Recovered:
    """A log that is ready for use. position: where its active segment continues."""

    active: Segment
    listed: list[Listed]
    history: History
    contents: Contents
    damages: list[Damage]
    last_lsn: int
    position: int
    block_damages: list[Damage]
    """The first blocks of sealed segments that were bad. They are written again."""


def recover(
    files: Files,
    directory: Path,
    *,
    segment_bytes: int,
    cache_bytes: int,
    random_bytes: Callable[[int], bytes],
) -> Recovered:
    """Open, or begin, the log in this directory. LogDamaged leaves every file unchanged."""
    history = History(files, cache_bytes)
    contents = Contents(history)
    files.sync_directory(directory)  # a process that died may have left a manifest that only the cache knows
    manifest = read_manifest(files, directory)
    if manifest is None:
        return _begin(files, directory, segment_bytes, random_bytes, contents, history)
    listed = list(manifest.segments)
    _refuse_strangers(files, directory, listed)
    opened: list[Segment] = []
    damages: list[Damage] = []
    try:
        rebuilt: list[tuple[Sealed, list[bytes]]] = []
        sealed: list[Sealed] = []
        for item in listed[:-1]:
            segment = _open_sealed(files, directory, item)
            opened.append(segment)
            parts = read_parts(files, segment.path, item)
            if parts is None:
                parts, columns, found = rebuild(segment, item)
                sealed.append(Sealed(segment, item, parts))
                rebuilt.append((sealed[-1], encode_index(item, parts, columns)))
                history.cache.put(sealed[-1], columns)
                damages += found
            else:
                sealed.append(Sealed(segment, item, parts))
        history.set(sealed)
        active = open_segment(files, directory, listed[-1], writable=True)
        opened.append(active)
        reading = _Active(active, manifest, contents)
        end = reading.read()
        damages += reading.damages
        _clean_end(active, end)
        bad_blocks = [segment for segment in opened if segment.block_damage is not None]
        for segment in bad_blocks:
            write_first_block(files, segment)
        for item_sealed, pieces in rebuilt:
            write_index_if_room(files, item_sealed.segment.path, pieces)
        _remove_strangers(files, directory, listed)
    except BaseException:
        for segment in opened:
            segment.file.close()
        raise
    return Recovered(
        active,
        listed,
        history,
        contents,
        damages,
        end.last_lsn,
        end.position,
        [segment.block_damage for segment in bad_blocks if segment.block_damage is not None],
    )


def _open_sealed(files: Files, directory: Path, item: Listed) -> Segment:
    """A sealed segment's file; LogDamaged names the groups it held, if its index file is there."""
    try:
        return open_segment(files, directory, item, writable=False)
    except LogDamaged as error:
        parts = read_parts(files, segment_path(directory, item.number), item)
        if parts is None:
            raise
        groups = tuple(sorted({part.group for part in parts}))
        raise LogDamaged(*(replace(damage, groups=groups) for damage in error.damages)) from error


def _begin(
    files: Files,
    directory: Path,
    segment_bytes: int,
    random_bytes: Callable[[int], bytes],
    contents: Contents,
    history: History,
) -> Recovered:
    """Begin a log where there was none. Files that a crash left of an earlier first start hold no record."""
    _refuse_strangers(files, directory, [])
    if SNAPSHOTS in files.list_directory(directory) and files.list_directory(directory / SNAPSHOTS):
        reason = "the manifest is missing, but there are snapshots: this log was not new"
        raise LogDamaged(Damage(str(directory / MANIFEST), 0, None, reason))
    _remove_strangers(files, directory, [])
    segment = create_segment(
        files, directory, 1, first_lsn=1, allocated=segment_bytes, random_bytes=random_bytes
    )
    listed = [Listed(1, segment.header.file_id, 1)]
    prepare_manifest(files, directory, Manifest(listed))
    commit_manifest(files, directory)
    return Recovered(segment, listed, history, contents, [], 0, HEADER_BLOCK, [])


def _strangers(files: Files, directory: Path, listed: list[Listed]) -> list[Path]:
    known = {item.number for item in listed}
    numbers = segment_numbers(files, directory)
    return [segment_path(directory, number) for number in numbers if number not in known]


def _refuse_strangers(files: Files, directory: Path, listed: list[Listed]) -> None:
    """Raise LogDamaged if an unlisted segment file holds a record and begins after all listed ones: then the manifest
    is not the newest. An unlisted file that begins earlier was made or replaced by a collection."""
    active_from = listed[-1].first_lsn if listed else 0
    for path in _strangers(files, directory, listed):
        file = files.open(path)
        try:
            header = decode_header(file.pread(HEADER_BLOCK, 0), path)
            if header.first_lsn <= active_from:
                continue
            scanner = Scanner(path, file, file.size())
            for offset, record in headers_from(scanner, Stamp(header.file_id), HEADER_BLOCK):
                raise LogDamaged(
                    Damage(
                        str(path), offset, record.lsn, "a record in a segment that the manifest does not list"
                    )
                )
        finally:
            file.close()


def _remove_strangers(files: Files, directory: Path, listed: list[Listed]) -> None:
    """Remove files that a crash left between making or replacing a file and listing it."""
    for path in _strangers(files, directory, listed):
        files.unlink(path)
    known = {item.number for item in listed[:-1]}
    for number, name in index_numbers(files, directory):
        if number not in known:
            files.unlink(directory / name)
    for name in files.list_directory(directory):
        if name.endswith(TEMPORARY):
            files.unlink(directory / name)


@dataclass(slots=True)
class _End:
    last_lsn: int
    position: int
    rewrite_from: int
    """Offset of the first record that no statement covers."""
    dirty_to: int
    """Between position and this offset there may be bytes that are not zero."""


class _Active:
    """Reads the active segment. Records that the manifest already states give only places; later ones are applied."""

    def __init__(self, segment: Segment, manifest: Manifest, contents: Contents) -> None:
        self._segment = segment
        self._manifest = manifest
        self._contents = contents
        self._scanner = Scanner(segment.path, segment.file, segment.header.allocated)
        self._expected = manifest.segments[-1].first_lsn
        self._stated = max(manifest.stated, self._expected - 1)
        self._unstated: deque[tuple[int, int]] = deque()
        self._places: dict[int, dict[int, Body]] = {}
        """Entries up to the stated LSN, by group and index, cut ones included."""
        self._is_begun = False
        self.damages: list[Damage] = []

    def read(self) -> _End:
        """Apply all records up to the end, which is found by the rule in the module's text."""
        segment, scanner = self._segment, self._scanner
        offset = HEADER_BLOCK
        is_searched = False
        while True:
            records = scan(scanner, segment.stamp, offset)
            while True:
                try:
                    at, header, body = next(records)
                except StopIteration as stop:
                    offset = stop.value
                    break
                self._take(at, header, body)
            if not is_searched:
                for _, header in headers_from(scanner, segment.stamp, offset):
                    self._stated = max(self._stated, header.synced)
                is_searched = True
            if self._stated < self._expected:
                break
            offset = self._step_over_damage(offset)
        self._begin()
        unstated = self._unstated
        rewrite_from = next((place for lsn, place in unstated if lsn > self._stated), offset)
        return _End(self._expected - 1, offset, rewrite_from, _last_dirty(scanner, offset))

    def _step_over_damage(self, offset: int) -> int:
        """The offset of the next record, if everything but the bytes of the bad record here is known."""
        segment = self._segment
        bad = header_at(self._scanner, segment.stamp, offset)
        reason = f"bad record, and LSN {self._stated} was synced"
        damage = damage_of(segment.path, offset, self._expected, reason, bad)
        if bad is None or bad.lsn != self._expected or bad.kind not in WITH_BODY:
            raise LogDamaged(damage)
        if offset + HEADER_BYTES + bad.length > self._scanner.end:
            raise LogDamaged(damage)
        self._take(offset, bad, None)
        self.damages.append(damage)
        return offset + HEADER_BYTES + bad.length

    def _take(self, offset: int, header: Header, body: bytes | None) -> None:
        """Apply one record; LogDamaged if it does not follow from those before it."""
        path = self._segment.path
        if header.lsn != self._expected:
            raise LogDamaged(
                damage_of(path, offset, header.lsn, f"expected LSN {self._expected} here", header)
            )
        require_known_kind(path, offset, header)
        place = self._segment.number << PLACE_SHIFT | offset
        if header.lsn <= self._manifest.stated:
            self._take_stated(header, place)
        else:
            if not self._is_begun:
                self._begin()
            kind, group, term, index = header.kind, header.group, header.term, header.raft_index
            try:
                table = self._contents.check(
                    kind, group, term, index, b"" if body is None else body, header.length
                )
            except ValueError as error:
                raise LogDamaged(damage_of(path, offset, header.lsn, str(error), header)) from error
            self._contents.fold(
                table,
                body or b"",
                kind=kind,
                group=group,
                lsn=header.lsn,
                term=term,
                index=index,
                place=place,
                length=header.length,
            )
        self._stated = max(self._stated, header.synced)
        unstated = self._unstated
        unstated.append((header.lsn, offset))
        while unstated and unstated[0][0] <= self._stated:
            unstated.popleft()
        self._expected = header.lsn + 1

    def _take_stated(self, header: Header, place: int) -> None:
        """Take the place of a body from a record whose meaning the manifest states."""
        if header.kind not in WITH_BODY:
            return
        found = Body(header.lsn, place, header.length, header.term, header.kind)
        if header.kind == RecordKind.PAGE:
            self._contents.table(header.group).pages[header.lsn] = found
        elif header.kind == RecordKind.COPY:
            self._contents.table(header.group).loose[header.raft_index] = found
        else:
            self._places.setdefault(header.group, {})[header.raft_index] = found

    def _begin(self) -> None:
        """Set every group to the state in the manifest, once all records up to the stated LSN were read."""
        if self._is_begun:
            return
        self._is_begun = True
        if self._expected <= self._manifest.stated:
            raise AssertionError("the rule above does not end before the stated LSN")
        for group, state in self._manifest.groups.items():
            self._restore(group, state)

    def _restore(self, group: int, state: GroupState) -> None:
        table = self._contents.table(group)
        table.restore(state)
        copies = dict(table.loose)
        for index, body in self._places.get(group, {}).items():
            cut = any(cut.first <= index <= cut.last and body.lsn < cut.lsn for cut in state.cuts)
            if cut or (index in copies and index < state.first_index):
                continue
            if index < state.first_index:
                table.loose[index] = body
            else:
                held = copies.get(index)
                if held is None or held.lsn < body.lsn or held.term != body.term:
                    copies[index] = body
        rows = self._contents.history.gather(group, state.first_index, state.last_index, state.cuts, copies)
        if rows is None or not np.array_equal(rows.terms, table.terms_in_tail(rows.keys)):
            path = str(self._segment.path.with_name(MANIFEST))
            reason = f"entries {state.first_index}..{state.last_index} of group {group} are not all here"
            raise LogDamaged(Damage(path, 0, None, reason, groups=(group,)))
        table.fill(rows, self._segment.number)


def _last_dirty(scanner: Scanner, offset: int) -> int:
    """The end of the last chunk from offset on that is not all zeros; offset if all are zeros."""
    dirty = offset
    while offset < scanner.end:
        chunk, at = scanner.window(offset, min(CHUNK_BYTES, scanner.end - offset))
        if not is_zero(chunk, at):
            dirty = offset + len(chunk) - at
        offset += len(chunk) - at
    return dirty


def _clean_end(segment: Segment, end: _End) -> None:
    """Write the possibly unsynced records again, overwrite the cut with zeros, and sync."""
    file = segment.file
    offset = end.rewrite_from
    while offset < end.position:
        data = file.pread(min(CHUNK_BYTES, end.position - offset), offset)
        offset = write_fully(file, [data], offset)
    while offset < end.dirty_to:
        offset = write_fully(file, [bytes(min(CHUNK_BYTES, end.dirty_to - offset))], offset)
    file.sync()


assert MAX_BODY_BYTES < 1 << PLACE_SHIFT
