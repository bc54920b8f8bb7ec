"""One segment file, record by record, for people. Reads only, believes nothing, needs no manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quorum.log.files import Files, RealFiles
from quorum.log.record import HEADER_BYTES, Header, RecordKind, Stamp, body_is_good
from quorum.log.scanner import Scanner, headers_from
from quorum.log.segments import HEADER_BLOCK, decode_header


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """One record as it stands in a segment file."""

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
    """The records of a segment file in order, bad and left-over ones included, each with its problem if any.

    LogDamaged or LogUnknown if the file does not begin as a segment does.
    """
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


def _info(offset: int, header: Header, problem: str | None) -> RecordInfo:
    kind = RecordKind(header.kind).name if header.kind in set(RecordKind) else f"kind {header.kind}"
    return RecordInfo(
        offset,
        kind,
        header.lsn,
        header.synced,
        header.group,
        header.term,
        header.raft_index,
        header.length,
        problem,
    )
