"""Reading a segment file from one end to the other: its good records, every header in it, its rows."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

from quorum.log.errors import Damage, LogDamaged, LogUnknown
from quorum.log.files import File
from quorum.log.record import HEADER_BYTES, WITH_BODY, Header, RecordKind, Stamp, body_is_good
from quorum.log.segment_files.index import Columns, Part, arrange
from quorum.log.segment_files.segments import HEADER_BLOCK, Listed, Segment
from quorum.log.table import PLACE_SHIFT, Body, Rows

CHUNK_BYTES = 256 << 10
"""Bytes read at once. Larger pieces take longer: the memory of each is new to the process."""

_KINDS = frozenset(RecordKind)
_ZEROS = bytes(CHUNK_BYTES)


class Scanner:
    """Reads one segment file in big pieces."""

    def __init__(self, path: Path, file: File, end: int) -> None:
        self._path = path
        self._file = file
        self.end = end
        self._chunk = b""
        self._start = 0

    def window(self, offset: int, length: int) -> tuple[bytes, int]:
        """A chunk and the position of offset in it; length bytes follow there, or fewer before the end."""
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


def is_zero(chunk: bytes, at: int) -> bool:
    """Whether the chunk has only zeros from `at` on, as most of an active segment has. A comparison is ten times as
    fast as a search."""
    rest = chunk[at:]
    return rest == (_ZEROS if len(rest) == CHUNK_BYTES else bytes(len(rest)))


def scan(scanner: Scanner, stamp: Stamp, offset: int) -> Generator[tuple[int, Header, bytes], None, int]:
    """Yield offset, header and body of each good record; returns the offset of the first bad one."""
    while scanner.end - offset >= HEADER_BYTES:
        chunk, at = scanner.window(offset, HEADER_BYTES)
        header = stamp.decode(chunk, at)
        if header is None:
            return offset
        size = HEADER_BYTES + header.length
        if at + size > len(chunk):
            chunk, at = scanner.window(offset, size)
        body = chunk[at + HEADER_BYTES : at + size]
        if not body_is_good(header, body):
            return offset
        yield offset, header, body
        offset += size
    return offset


def headers_from(scanner: Scanner, stamp: Stamp, offset: int) -> Iterator[tuple[int, Header]]:
    """Every valid header at or after offset, at any position."""
    while offset < scanner.end:
        chunk, at = scanner.window(offset, min(CHUNK_BYTES, scanner.end - offset))
        base = offset - at
        found = -1 if is_zero(chunk, at) else chunk.find(stamp.magic, at)
        while found >= 0 and found + HEADER_BYTES <= len(chunk):
            header = stamp.decode(chunk, found)
            if header is not None:
                yield base + found, header
            found = chunk.find(stamp.magic, found + 1)
        after = base + len(chunk) - HEADER_BYTES + 1
        if base + len(chunk) >= scanner.end or after <= offset:  # the file was cut while it was read
            return
        offset = after


def header_at(scanner: Scanner, stamp: Stamp, offset: int) -> Header | None:
    """The header at this offset; None if no valid one is there."""
    chunk, at = scanner.window(offset, min(HEADER_BYTES, scanner.end - offset))
    return stamp.decode(chunk, at)


def damage_of(path: Path, offset: int, lsn: int | None, reason: str, header: Header | None) -> Damage:
    """Damage of the record at this place, with its header's fields if the header is good."""
    if header is None:
        return Damage(str(path), offset, lsn, reason)
    known = (header.group, header.term, header.raft_index)
    kind = RecordKind(header.kind).name if header.kind in _KINDS else None
    return Damage(str(path), offset, lsn, reason, known, kind)


def require_known_kind(path: Path, offset: int, header: Header) -> None:
    """LogUnknown if a newer program wrote this record."""
    if header.kind not in _KINDS:
        raise LogUnknown(f"{path} at byte {offset}: record kind {header.kind} is not known to this program")


class _GroupRows:
    """One group's rows while its segment is read."""

    def __init__(self) -> None:
        self.entries: dict[int, Body] = {}
        self.copies: dict[int, Body] = {}
        self.pages: dict[int, Body] = {}

    def cut(self, first: int) -> None:
        """Remove the entries from first on."""
        for index in [index for index in self.entries if index >= first]:
            del self.entries[index]

    def take(self, header: Header, body: bytes, place: int) -> None:
        """Apply one record, as far as it tells what the segment holds."""
        found = Body(header.lsn, place, header.length, header.term, header.kind)
        if header.kind == RecordKind.ENTRY:
            self.entries[header.raft_index] = found
        elif header.kind == RecordKind.COPY:
            self.copies[header.raft_index] = found
        elif header.kind == RecordKind.PAGE:
            self.pages[header.lsn] = found
        elif header.kind == RecordKind.TRUNCATE:
            self.cut(header.raft_index)
        elif header.kind == RecordKind.RESET:
            self.cut(int.from_bytes(body, "little") + 1)

    def rows(self) -> Rows:
        """The bodies, by index and LSN."""
        both = [*self.entries.items(), *self.copies.items()]
        return Rows.of(sorted(both, key=lambda pair: (pair[0], pair[1].lsn)))


def rebuild(segment: Segment, listed: Listed) -> tuple[list[Part], Columns, list[Damage]]:
    """The right content of a sealed segment's index file, from the segment itself, and the damages met.

    A bad body with a good header is one damage, and its row is known. At any other bad place the record is unknown:
    LogDamaged.
    """
    assert listed.end is not None
    assert listed.last_lsn is not None
    scanner = Scanner(segment.path, segment.file, listed.end)
    groups: dict[int, _GroupRows] = {}
    damages: list[Damage] = []
    offset, last = HEADER_BLOCK, listed.first_lsn - 1

    def take(at: int, header: Header, body: bytes) -> None:
        nonlocal last
        require_known_kind(segment.path, at, header)
        if not last < header.lsn <= listed.last_lsn:  # type: ignore[operator]
            reason = f"expected an LSN from {last + 1} to {listed.last_lsn} here"
            raise LogDamaged(damage_of(segment.path, at, header.lsn, reason, header))
        last = header.lsn
        if header.kind != RecordKind.MARK:
            rows = groups.setdefault(header.group, _GroupRows())
            rows.take(header, body, segment.number << PLACE_SHIFT | at)

    while offset < listed.end:
        records = scan(scanner, segment.stamp, offset)
        while True:
            try:
                at, header, body = next(records)
            except StopIteration as stop:
                offset = stop.value
                break
            take(at, header, body)
        if offset >= listed.end:
            break
        bad = header_at(scanner, segment.stamp, offset)
        reason = "bad record in a sealed segment"
        damage = damage_of(segment.path, offset, last + 1 if bad is None else bad.lsn, reason, bad)
        if bad is None or bad.kind not in WITH_BODY | {RecordKind.HARD_STATE}:
            raise LogDamaged(damage)
        take(offset, bad, b"")
        if bad.kind in WITH_BODY:
            damages.append(damage)
        offset += HEADER_BYTES + bad.length
    parts, columns = arrange(
        [(group, rows.rows()) for group, rows in groups.items()],
        [(group, Rows.of(rows.pages.items())) for group, rows in groups.items()],
        segment.number,
    )
    return parts, columns, damages
