"""One segment or index file, record by record, for people. Reads only, believes nothing, needs no manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quorum.log.errors import Damage, LogDamaged
from quorum.log.files import Files, RealFiles, read_file
from quorum.log.index import decode_index
from quorum.log.record import HEADER_BYTES, Header, RecordKind, Stamp, body_is_good
from quorum.log.scanner import Scanner, headers_from
from quorum.log.segments import HEADER_BLOCK, decode_header
from quorum.log.table import PLACE_SHIFT


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """One record as it stands in a segment file, or as its index file has it (`synced` is 0 then)."""

    offset: int
    kind: str
    lsn: int
    synced: int
    group: int
    term: int
    index: int
    length: int
    problem: str | None = None


def inspect(path: Path, files: Files | None = None) -> Iterator[RecordInfo]:
    """The records of a segment file in order, bad and left-over ones included, each with its problem if any; or
    what an index file says of its segment, by offset.

    LogDamaged or LogUnknown if the file does not begin as a segment does, LogDamaged if an index file is not whole.
    """
    if path.suffix == ".index":
        yield from _inspect_index(path, RealFiles() if files is None else files)
        return
    file = (RealFiles() if files is None else files).open(path)
    try:
        stamp = Stamp(decode_header(file.pread(HEADER_BLOCK, 0), path).file_id)
        scanner = Scanner(path, file, file.size())
        expected = HEADER_BLOCK
        for offset, header in headers_from(scanner, stamp, HEADER_BLOCK):
            if offset < expected:
                continue  # inside a body: a copy of a header that somebody stored
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


def _inspect_index(path: Path, files: Files) -> Iterator[RecordInfo]:
    decoded = decode_index(read_file(files, path))
    if decoded is None:
        raise LogDamaged(Damage(str(path), 0, None, "not a whole index file; opening the log makes it again"))
    _, parts, columns = decoded
    found = []
    for part in parts:
        rows = columns.rows(part)
        for at in range(part.count):
            key, lsn, term, place, length, kind = (int(column[at]) for column in rows)
            index = 0 if part.is_page else key
            offset = place & (1 << PLACE_SHIFT) - 1
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
