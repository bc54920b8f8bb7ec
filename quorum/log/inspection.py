"""One file of a log, decoded for people, piece by piece. Reads only, checks everything, and needs no other file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from quorum.log.errors import Damage, LogDamaged
from quorum.log.files import Files, RealFiles, read_file
from quorum.log.record import HEADER_BYTES, Header, RecordKind, Stamp, body_is_good
from quorum.log.segment_files.index import decode_index
from quorum.log.segment_files.manifest import decode_manifest
from quorum.log.segment_files.reserve import reserve_names
from quorum.log.segment_files.scanner import Scanner, headers_from
from quorum.log.segment_files.segments import HEADER_BLOCK, Listed, decode_header
from quorum.log.snapshots.snapshot_files import SnapshotDamaged, decode_snapshot, decode_snapshot_header
from quorum.log.table import OFFSET_MASK


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """One record as it is in a segment file, or as its index file has it (`synced` is 0 then)."""

    offset: int
    kind: str
    lsn: int
    synced: int
    group: int
    term: int
    index: int
    length: int
    problem: str | None = None


def inspect(path: Path, files: Files | None = None, *, file_id: bytes | None = None) -> Iterator[RecordInfo]:
    """The records of a segment file in order, bad and left-over ones included, each with its problem if any; or the
    rows of an index file, by offset.

    file_id: of a segment whose first block is not to be read. LogDamaged or LogUnknown if the file does not begin as a
    segment does. LogDamaged if an index file is not complete.
    """
    if path.suffix == ".index":
        yield from _inspect_index(path, RealFiles() if files is None else files)
        return
    file = (RealFiles() if files is None else files).open(path)
    try:
        stamp = Stamp(file_id or decode_header(file.pread(HEADER_BLOCK, 0), path).file_id)
        scanner = Scanner(path, file, file.size())
        expected = HEADER_BLOCK
        for offset, header in headers_from(scanner, stamp, HEADER_BLOCK):
            if offset < expected:
                continue  # inside a body: a client stored a copy of a header
            body = file.pread(header.length, offset + HEADER_BYTES)
            good = body_is_good(header, body)
            problem = None if good else "the body fails its CRC"
            if good and offset != expected:
                problem = f"{offset - expected} bytes before it are no record"
            if good or offset == expected:
                expected = offset + HEADER_BYTES + header.length
            yield _info(offset, header, problem)
    finally:
        file.close()


class FileKind(Enum):
    """The kinds of a log's files, as their first bytes say."""

    SEGMENT = "segment"
    SNAPSHOT = "snapshot"
    MANIFEST = "manifest"
    RESERVE = "reserve"
    INDEX = "index"


_FIRST_BYTES = {
    b"QUORUMLG": FileKind.SEGMENT,
    b"QUORUMSN": FileKind.SNAPSHOT,
    b"quorum-l": FileKind.MANIFEST,
    b"QUORUMIX": FileKind.INDEX,
}


def kind_of(path: Path) -> FileKind | None:
    """The kind of this file; None if it is none of a log's files, or its first bytes are damaged."""
    file = RealFiles().open(path)
    try:
        first = file.pread(8, 0)
    finally:
        file.close()
    if reserve_names([path.name]) and first == bytes(8):
        return FileKind.RESERVE
    return _FIRST_BYTES.get(first)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot file: the group's state at (index, term)."""

    group: int
    index: int
    term: int
    length: int
    problem: str | None = None


def inspect_snapshot(path: Path) -> SnapshotInfo:
    """The content of a snapshot file, all of it checked. LogDamaged if its header cannot be read."""
    data = read_file(RealFiles(), path)
    try:
        group, index, term, length = decode_snapshot_header(data)
    except SnapshotDamaged as error:
        raise LogDamaged(Damage(str(path), 0, None, str(error))) from error
    try:
        decode_snapshot(data, group)
    except SnapshotDamaged as error:
        return SnapshotInfo(group, index, term, length, str(error))
    return SnapshotInfo(group, index, term, length)


def inspect_manifest(path: Path) -> list[Listed]:
    """The segments that a manifest lists. LogDamaged, LogUnknown."""
    return list(decode_manifest(read_file(RealFiles(), path), path).segments)


def _inspect_index(path: Path, files: Files) -> Iterator[RecordInfo]:
    decoded = decode_index(read_file(files, path))
    if decoded is None:
        raise LogDamaged(Damage(str(path), 0, None, "not a complete index file; opening the log rebuilds it"))
    _, parts, columns = decoded
    found = []
    for part in parts:
        rows = columns.rows(part)
        for at in range(part.count):
            key, lsn, term, place, length, kind = (int(column[at]) for column in rows)
            index = 0 if part.is_page else key
            offset = place & OFFSET_MASK
            found.append(RecordInfo(offset, _name(kind), lsn, 0, part.group, term, index, length))
    yield from sorted(found, key=lambda info: info.offset)


def _name(kind: int) -> str:
    return RecordKind(kind).name if kind in set(RecordKind) else f"kind {kind}"


def _info(offset: int, header: Header, problem: str | None) -> RecordInfo:
    return RecordInfo(
        offset,
        _name(header.kind),
        header.lsn,
        header.synced,
        header.group,
        header.term,
        header.raft_index,
        header.length,
        problem,
    )
