"""Repair of the log's own files after scrubbing: done by the log's own thread, because it knows their right content.

A repair that fails for lack of space is tried again. A disk error is final, as everywhere in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from quorum.log.contents import Contents
from quorum.log.errors import LogFull
from quorum.log.files import File, Files, commit_file, temporary_file, write_fully
from quorum.log.journal import Journal
from quorum.log.maintenance.examining import Finding, Findings, Remedy, examine_file, index_defect
from quorum.log.segment_files.index import Sealed
from quorum.log.segment_files.segments import HEADER_BLOCK, Segment, write_first_block
from quorum.log.snapshots.snapshot_files import parse_name
from quorum.log.writer import Writer

COPY_BYTES = 1 << 20
"""Bytes read and written in one piece."""
UNREADABLE_BYTES = 512
"""A sector of a disk: bytes that are given up together if they cannot be read."""


def restore(files: Files, remedy: Remedy, segment: Segment, end: int) -> None:
    """Restore a sealed segment's first block, length or name, durably. An OSError for lack of space changes nothing."""
    if remedy is Remedy.NAME:
        _copy_back(files, segment, end)
        return
    if remedy is Remedy.BLOCK:
        write_first_block(files, segment)
        return
    with closing(files.open(segment.path, writable=True)) as file:
        file.allocate(end)  # lost bytes read as zeros, which are no record
        file.sync()


def _copy_back(files: Files, segment: Segment, end: int) -> None:
    with temporary_file(files, segment.path) as file:
        write_fully(file, [segment.header.encode()], 0)
        for offset in range(HEADER_BLOCK, end, COPY_BYTES):
            write_fully(file, [_readable(segment.file, min(COPY_BYTES, end - offset), offset)], offset)
        file.sync()
    commit_file(files, segment.path)


def _readable(file: File, length: int, offset: int) -> bytes:
    """The bytes at this place. Those that the disk cannot read are zeros, which are no record."""
    try:
        return file.pread(length, offset)
    except OSError:
        if length <= UNREADABLE_BYTES:
            return bytes(length)
    half = length // 2
    return _readable(file, half, offset) + _readable(file, length - half, offset + half)


class Repairs:
    """Repairs findings with the log's own state (see the module's text)."""

    def __init__(
        self,
        files: Files,
        writer: Writer,
        contents: Contents,
        findings: Findings,
        *,
        roll: Callable[[], None],
        journal: Callable[[int], Journal],
    ) -> None:
        self._files = files
        self._writer = writer
        self._contents = contents
        self._findings = findings
        self._roll = roll
        self._journal = journal

    def repair(self) -> list[Finding]:
        """Repair everything that waits; returns the findings that were repaired, or that only others can repair."""
        done = []
        for finding in self._findings.take():
            try:
                with self._writer.final(finding.remedy.value):
                    if self._mend(finding):
                        done.append(finding)
            except LogFull:
                self._findings.add([finding])
        return done

    def _mend(self, finding: Finding) -> bool:
        """Repair one finding; False if it was none, because the log's own thread was changing that place when it was
        checked."""
        remedy = finding.remedy
        if remedy is Remedy.MANIFEST:
            active = self._writer.active
            self._writer.write_manifest(self._contents.states(active.header.first_lsn))
        elif remedy is Remedy.SNAPSHOT:
            path = Path(finding.damage.path)
            group, index, term = parse_name(path.name) or (0, 0, 0)
            self._journal(group).note_damaged_snapshot(index, term, finding.damage.reason)
        elif remedy is Remedy.ROLL:
            if finding.segment == self._writer.active.number:
                self._roll()
        elif remedy is Remedy.INDEX:
            return self._mend_index(finding)
        elif remedy is not Remedy.NONE:
            return self._mend_file(finding)
        return True

    def _mend_index(self, finding: Finding) -> bool:
        sealed = self._sealed(finding.segment)
        if sealed is None or index_defect(self._files, sealed) is None:
            return False
        self._writer.write_index(sealed.segment.path, finding.pieces)
        return True

    def _mend_file(self, finding: Finding) -> bool:
        active = self._writer.active
        if finding.segment == active.number:
            if not any(examine_file(self._files, active, active.header.allocated)):
                return False
            self._roll()  # its file is no longer written, and of its records only bodies are still needed
        sealed = self._sealed(finding.segment)
        # what is wrong now, which may be more than what was wrong when the file was checked
        found = None if sealed is None else next(examine_file(self._files, sealed.segment, sealed.end), None)
        if sealed is None or found is None:
            return finding.segment == active.number
        if found.remedy is not Remedy.NONE:
            with self._writer.refusing(found.remedy.value):
                restore(self._files, found.remedy, sealed.segment, sealed.end)
        return True

    def _sealed(self, number: int) -> Sealed | None:
        """The sealed segment of this number; None if a collection has replaced it."""
        return next((each for each in self._contents.history.sealed if each.number == number), None)
