"""Opening a log again: read every record, tell an unsynced end from damage, and make the end clean.

Every record states an LSN known to be synced when it was made. When the active segment has a bad place,
everything behind it is searched for more headers of this segment, and the highest statement of all decides:

- if the bad place comes after that LSN, it was in writes that no sync ever covered. The disk may have kept
  any of their sectors in any order. Nothing that left this node depended on them, so the log is *cut* there:
  everything behind, good records included, is overwritten with zeros, so that no later record can ever be
  confused with it;
- if the bad place is at or before that LSN, or in a sealed segment, synced bytes have changed. That is
  *damage*: `LogDamaged` says where, and nothing is touched.

What stands between the highest stated LSN and the end was written by the last process and perhaps synced,
perhaps only held by the operating system, perhaps even refused by the disk with the failed sync reported once
and forgotten. So it is written again, the same bytes to the same place, and synced, before anybody relies on
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from quorum.log.contents import Contents
from quorum.log.errors import Damage, LogDamaged, LogUnknown
from quorum.log.files import TEMPORARY, File, Files, write_fully
from quorum.log.record import HEADER_BYTES, MAX_BODY_BYTES, Header, RecordKind, Stamp, body_is_good
from quorum.log.segments import (
    HEADER_BLOCK,
    MANIFEST,
    SNAPSHOTS,
    Listed,
    Segment,
    commit_manifest,
    create_segment,
    decode_header,
    open_segment,
    prepare_manifest,
    read_manifest,
    segment_numbers,
    segment_path,
)

CHUNK_BYTES = 4 << 20
"""How much is read at once."""
PLACE_SHIFT = 32
"""A place is segment number << 32 | offset of the record's header."""

_KINDS = frozenset(RecordKind)


class Scanner:
    """Reads one segment file in big pieces."""

    def __init__(self, path: Path, file: File, end: int) -> None:
        self._path = path
        self._file = file
        self.end = end
        self._chunk = b""
        self._start = 0

    def window(self, offset: int, length: int) -> tuple[bytes, int]:
        """A chunk and the place of offset in it; length bytes follow there, or fewer before the end."""
        position = offset - self._start
        if position < 0 or position + length > len(self._chunk):
            wanted = min(max(length, CHUNK_BYTES), self.end - offset)
            try:
                self._chunk = self._file.pread(wanted, offset)
            except OSError as error:
                raise LogDamaged(Damage(str(self._path), offset, None, f"cannot be read: {error}")) from error
            self._start = offset
            position = 0
        return self._chunk, position


def scan(scanner: Scanner, stamp: Stamp, offset: int) -> Generator[tuple[int, Header, bytes], None, int]:
    """Offset, header and body of one good record after the other; returns the offset of the first that is
    not."""
    while scanner.end - offset >= HEADER_BYTES:
        chunk, at = scanner.window(offset, HEADER_BYTES)
        header = stamp.decode(chunk, at)
        if header is None:
            return offset
        size = HEADER_BYTES + header.length
        chunk, at = scanner.window(offset, size)
        body = chunk[at + HEADER_BYTES : at + size]
        if not body_is_good(header, body):
            return offset
        yield offset, header, body
        offset += size
    return offset


def headers_from(scanner: Scanner, stamp: Stamp, offset: int) -> Iterator[tuple[int, Header]]:
    """Every valid header at or behind offset, wherever it stands."""
    while offset < scanner.end:
        chunk, at = scanner.window(offset, min(CHUNK_BYTES, scanner.end - offset))
        base = offset - at
        found = chunk.find(stamp.magic, at)
        while found >= 0 and found + HEADER_BYTES <= len(chunk):
            header = stamp.decode(chunk, found)
            if header is not None:
                yield base + found, header
            found = chunk.find(stamp.magic, found + 1)
        if base + len(chunk) >= scanner.end or not chunk:
            return
        offset = base + len(chunk) - HEADER_BYTES + 1


@dataclass(slots=True)
class Recovered:
    """A log that was made ready: the last segment is the active one, position is where it goes on."""

    segments: list[Segment]
    listed: list[Listed]
    contents: Contents
    last_lsn: int
    position: int
    cut_records: int
    """How many whole unsynced records were cut, as far as they could be read."""


def recover(
    files: Files, directory: Path, segment_bytes: int, random_bytes: Callable[[int], bytes]
) -> Recovered:
    """Open, or begin, the log in this directory. LogDamaged leaves every file as it was."""
    contents = Contents()
    files.sync_directory(directory)  # a process that died may have left a manifest that only the cache knows
    listed = read_manifest(files, directory)
    if listed is None:
        return _begin(files, directory, segment_bytes, random_bytes, contents)
    _refuse_strangers(files, directory, listed)
    segments: list[Segment] = []
    try:
        expected = 1
        for item in listed[:-1]:
            segment = open_segment(files, directory, item, writable=False)
            segments.append(segment)
            expected = _read_sealed(segment, item, expected, contents)
        segment = open_segment(files, directory, listed[-1], writable=True)
        segments.append(segment)
        end = _read_active(segment, expected, contents)
        _clean_end(segment, end)
        _remove_strangers(files, directory, listed)
    except BaseException:
        for segment in segments:
            segment.file.close()
        raise
    return Recovered(segments, listed, contents, end.last_lsn, end.position, end.cut_records)


def _begin(
    files: Files,
    directory: Path,
    segment_bytes: int,
    random_bytes: Callable[[int], bytes],
    contents: Contents,
) -> Recovered:
    """A log where there was none. What a crash left of an earlier first start holds no record."""
    _refuse_strangers(files, directory, [])
    if SNAPSHOTS in files.list_directory(directory) and files.list_directory(directory / SNAPSHOTS):
        reason = "it is gone, and there are snapshots: this log was not new"
        raise LogDamaged(Damage(str(directory / MANIFEST), 0, None, reason))
    _remove_strangers(files, directory, [])
    segment = create_segment(
        files, directory, 1, first_lsn=1, allocated=segment_bytes, random_bytes=random_bytes
    )
    listed = [Listed(1, segment.header.file_id, 1)]
    prepare_manifest(files, directory, listed)
    commit_manifest(files, directory)
    return Recovered([segment], listed, contents, 0, HEADER_BLOCK, 0)


def _strangers(files: Files, directory: Path, listed: list[Listed]) -> list[Path]:
    known = {item.number for item in listed}
    numbers = segment_numbers(files, directory)
    return [segment_path(directory, number) for number in numbers if number not in known]


def _refuse_strangers(files: Files, directory: Path, listed: list[Listed]) -> None:
    """LogDamaged if a segment file that no manifest lists holds a record."""
    for path in _strangers(files, directory, listed):
        file = files.open(path)
        try:
            header = decode_header(file.pread(HEADER_BLOCK, 0), path)
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
    """Remove what a crash left behind between making a file and listing it."""
    for path in _strangers(files, directory, listed):
        files.unlink(path)
    for name in files.list_directory(directory):
        if name.endswith(TEMPORARY):
            files.unlink(directory / name)


def _take(segment: Segment, found: tuple[int, Header, bytes], expected: int, contents: Contents) -> None:
    """Fold one good record; LogDamaged if it does not follow from those before it."""
    offset, header, body = found
    path = str(segment.path)
    if header.lsn != expected:
        raise LogDamaged(Damage(path, offset, header.lsn, f"expected LSN {expected} here"))
    if header.kind not in _KINDS:
        raise LogUnknown(f"{path} at byte {offset}: record kind {header.kind} is not known to this program")
    try:
        table = contents.check(header.kind, header.group, header.term, header.raft_index, body)
    except ValueError as error:
        known = (header.group, header.term, header.raft_index)
        raise LogDamaged(Damage(path, offset, header.lsn, str(error), known)) from error
    place = segment.number << PLACE_SHIFT | offset
    contents.fold(
        table, body, kind=header.kind, lsn=header.lsn, term=header.term, index=header.raft_index, place=place
    )


def _read_sealed(segment: Segment, item: Listed, expected: int, contents: Contents) -> int:
    """Fold a sealed segment's records; the LSN that follows. Anything bad is damage."""
    assert item.end is not None
    assert item.last_lsn is not None
    scanner = Scanner(segment.path, segment.file, item.end)
    records = scan(scanner, segment.stamp, HEADER_BLOCK)
    while True:
        try:
            found = next(records)
        except StopIteration as stop:
            offset = stop.value
            break
        _take(segment, found, expected, contents)
        expected += 1
    if offset != item.end or expected != item.last_lsn + 1:
        raise LogDamaged(_describe(scanner, segment, offset, expected, "bad record in a sealed segment"))
    return expected


def _describe(scanner: Scanner, segment: Segment, offset: int, lsn: int, reason: str) -> Damage:
    """Damage at this offset, with the record's term and index if its header is whole."""
    chunk, at = scanner.window(offset, min(HEADER_BYTES, scanner.end - offset))
    header = segment.stamp.decode(chunk, at)
    known = None if header is None else (header.group, header.term, header.raft_index)
    return Damage(str(segment.path), offset, lsn, reason, known)


@dataclass(slots=True)
class _End:
    last_lsn: int
    position: int
    rewrite_from: int
    """Where the first record stands that no statement covers."""
    dirty_to: int
    """Behind position and before this there may be bytes that are not zero."""
    cut_records: int


def _read_active(segment: Segment, expected: int, contents: Contents) -> _End:
    """Fold the active segment's records up to its end, as the rule above says."""
    scanner = Scanner(segment.path, segment.file, segment.header.allocated)
    stated = expected - 1
    unstated: deque[tuple[int, int]] = deque()
    records = scan(scanner, segment.stamp, HEADER_BLOCK)
    while True:
        try:
            found = next(records)
        except StopIteration as stop:
            offset = stop.value
            break
        _take(segment, found, expected, contents)
        header = found[1]
        stated = max(stated, header.synced)
        unstated.append((header.lsn, found[0]))
        while unstated and unstated[0][0] <= stated:
            unstated.popleft()
        expected += 1
    cut_records = 0
    for _, header in headers_from(scanner, segment.stamp, offset):
        stated = max(stated, header.synced)
        cut_records += 1
    if stated >= expected:
        reason = f"bad record, and LSN {stated} was synced"
        raise LogDamaged(_describe(scanner, segment, offset, expected, reason))
    rewrite_from = next((place for lsn, place in unstated if lsn > stated), offset)
    return _End(expected - 1, offset, rewrite_from, _last_dirty(scanner, offset), cut_records)


def _last_dirty(scanner: Scanner, offset: int) -> int:
    """The end of the last chunk from offset on that is not all zeros; offset if all are."""
    dirty = offset
    while offset < scanner.end:
        chunk, at = scanner.window(offset, min(CHUNK_BYTES, scanner.end - offset))
        if chunk.count(0, at) != len(chunk) - at:
            dirty = offset + len(chunk) - at
        offset += len(chunk) - at
    return dirty


def _clean_end(segment: Segment, end: _End) -> None:
    """Write again what was perhaps not synced, overwrite what was cut with zeros, sync."""
    file = segment.file
    offset = end.rewrite_from
    while offset < end.position:
        data = file.pread(min(CHUNK_BYTES, end.position - offset), offset)
        offset = write_fully(file, [data], offset)
    while offset < end.dirty_to:
        offset = write_fully(file, [bytes(min(CHUNK_BYTES, end.dirty_to - offset))], offset)
    file.sync()


assert MAX_BODY_BYTES < 1 << PLACE_SHIFT
