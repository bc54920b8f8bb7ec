"""Checking the files of an open log: the bytes on the disk now are compared with what the log knows.

Damaged bodies and pages are added to the log's damages. Everything else is a `Finding`: the log knows the right
content, so its own thread can restore it (`repairing`). Nothing in this module writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from quorum.log.errors import Damage, LogDamaged, LogUnknown
from quorum.log.files import Files, read_file
from quorum.log.record import HEADER_BYTES, WITH_BODY, RecordKind
from quorum.log.segment_files.index import Columns, Sealed, decode_index, encode_index, index_path
from quorum.log.segment_files.manifest import MANIFEST, read_manifest
from quorum.log.segment_files.scanner import Scanner, header_at, headers_from, scan
from quorum.log.segment_files.segments import HEADER_BLOCK, Segment
from quorum.log.store import Store
from quorum.log.table import PLACE_SHIFT, Rows


class Remedy(Enum):
    """The repair of a finding."""

    MANIFEST = "the manifest is written again"
    BLOCK = "the segment's first block is written again"
    LENGTH = "the segment gets its old length again; the lost records are fetched"
    NAME = "the file is copied back from the one that this process has open"
    INDEX = "the index file is made again"
    ROLL = "the segment is sealed: what its records led to stands in the manifest then"
    SNAPSHOT = "the next snapshot takes its place"
    NONE = "nothing here"


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect in the log's own files."""

    damage: Damage
    remedy: Remedy
    segment: int = 0
    pieces: list[bytes] = field(default_factory=list)
    """the correct content of an index file"""

    def __str__(self) -> str:
        return f"{self.damage}; {self.remedy.value}"


class Findings:
    """Findings that wait for repair. The threads that scrub and survey add, the log's thread takes; never two of them
    at a time."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, Remedy], Finding] = {}

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings; a file found twice with the same remedy waits once."""
        for finding in findings:
            self._waiting.setdefault((finding.damage.path, finding.remedy), finding)

    def take(self) -> list[Finding]:
        """Remove and return all findings."""
        found, self._waiting = list(self._waiting.values()), {}
        return found


def examine_manifest(files: Files, directory: Path) -> Iterator[Finding]:
    """Findings in the list of segments."""
    path = directory / MANIFEST
    try:
        if read_manifest(files, directory) is not None:
            return
        reason = "the file is missing"
    except LogDamaged as error:
        reason = error.damages[0].reason
    except (LogUnknown, OSError) as error:
        reason = f"cannot be read: {error}"
    yield Finding(Damage(str(path), 0, None, reason), Remedy.MANIFEST)


def examine_file(files: Files, segment: Segment, end: int) -> Iterator[Finding]:
    """Findings in a segment's name, first block and length. The segment must be held."""
    path, number, block = segment.path, segment.number, segment.header.encode()
    try:
        with closing(files.open(path)) as file:
            found, size = file.pread(HEADER_BLOCK, 0), file.size()
    except FileNotFoundError:
        yield Finding(Damage(str(path), 0, None, "the file is missing"), Remedy.NAME, number)
        return
    except OSError as error:
        yield Finding(Damage(str(path), 0, None, f"cannot be read: {error}"), Remedy.NONE, number)
        return
    if found != block:
        is_other = _first_block(segment) == block
        reason = (
            "another file has its name" if is_other else "the segment's first block is not what was written"
        )
        yield Finding(Damage(str(path), 0, None, reason), Remedy.NAME if is_other else Remedy.BLOCK, number)
    elif size < end:
        reason = f"the file is shorter than the {end} bytes it had"
        yield Finding(Damage(str(path), size, None, reason), Remedy.LENGTH, number)


def _first_block(segment: Segment) -> bytes:
    try:
        return segment.file.pread(HEADER_BLOCK, 0)
    except OSError:
        return b""


def examine_index(files: Files, sealed: Sealed, columns: Columns) -> Iterator[Finding]:
    """Findings in a sealed segment's index file."""
    reason = index_defect(files, sealed)
    if reason is not None:
        damage = Damage(str(index_path(sealed.segment.path)), 0, None, reason)
        pieces = encode_index(sealed.listed, list(sealed.parts.values()), columns)
        yield Finding(damage, Remedy.INDEX, sealed.number, pieces)


def index_defect(files: Files, sealed: Sealed) -> str | None:
    """The reason why a sealed segment's index file cannot be used; None if it is right."""
    try:
        decoded = decode_index(read_file(files, index_path(sealed.segment.path)))
    except FileNotFoundError:
        return "the file is missing"
    except OSError as error:
        return f"cannot be read: {error}"
    number, parts, _ = decoded or (None, [], None)
    if number == sealed.number and {(part.is_page, part.group): part for part in parts} == sealed.parts:
        return None
    return "not a complete index file of its segment"


class ActiveExamination:
    """Checks the written part of the active segment. A defect at which opening the log would fail is a finding."""

    def __init__(self, store: Store, segment: Segment, written: int) -> None:
        """written: the end of the check; later records belong to the next round."""
        self.segment = segment
        self._store = store
        self._written = written
        self._offset = HEADER_BLOCK
        self._lsn = segment.header.first_lsn
        self.findings: list[Finding] = []

    def go_on(self, budget_bytes: int) -> int:
        """Check about budget_bytes; returns how many were checked, 0 at the end. The segment must be held."""
        written = self._written
        scanner = Scanner(self.segment.path, self.segment.file, written)
        begin = self._offset
        while self._offset < written and self._offset - begin < budget_bytes:
            try:
                if not self._good_ones(scanner, begin + budget_bytes):
                    self._bad_one(scanner)
            except LogDamaged as error:  # the disk cannot read this place
                self.findings.append(Finding(error.damages[0], Remedy.ROLL, self.segment.number))
                self._offset = written
        return self._offset - begin

    def _good_ones(self, scanner: Scanner, upto: int) -> bool:
        """Check records up to an offset; False at a bad record."""
        for offset, header, _ in scan(scanner, self.segment.stamp, self._offset):
            self._offset, self._lsn = offset + HEADER_BYTES + header.length, header.lsn + 1
            if self._offset >= upto:
                return True
        return self._offset >= scanner.end

    def _bad_one(self, scanner: Scanner) -> None:
        offset, lsn, path = self._offset, self._lsn, str(self.segment.path)
        header = header_at(scanner, self.segment.stamp, offset)
        row = self._row(offset)
        if row is not None:
            length, damage = row
            self._store.note_damage(damage)
        elif header is not None:
            length = header.length
            known = (header.group, header.term, header.raft_index)
            damage = Damage(path, offset, lsn, "the record's body fails its CRC", known)
        else:
            damage = Damage(path, offset, lsn, "the record's header is damaged")
            following = (at for at, _ in headers_from(scanner, self.segment.stamp, offset + 1))
            length = next(following, scanner.end) - offset - HEADER_BYTES
        if header is None or header.kind not in WITH_BODY:
            self.findings.append(Finding(damage, Remedy.ROLL, self.segment.number))
        self._offset = min(offset + HEADER_BYTES + length, scanner.end)
        self._lsn = lsn + 1

    def _row(self, offset: int) -> tuple[int, Damage] | None:
        """The length of the body whose record begins at this offset, and its damage; None if the log knows no such
        record."""
        place = self.segment.number << PLACE_SHIFT | offset
        with self._store.mutex:
            found: list[tuple[int, Rows]] = []
            for group, table in self._store.contents.tables.items():
                bodies, pages = table.active_rows()
                found += [(group, bodies), (group, pages)]
        for group, rows in found:
            for at in (rows.places == place).nonzero()[0].tolist():
                kind = RecordKind(int(rows.kinds[at]))
                index = 0 if kind == RecordKind.PAGE else int(rows.keys[at])
                known = (group, int(rows.terms[at]), index)
                reason = "the record's header or body fails its CRC"
                path = str(self.segment.path)
                return int(rows.lengths[at]), Damage(
                    path, offset, int(rows.lsns[at]), reason, known, kind.name
                )
        return None
