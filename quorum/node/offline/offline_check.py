"""Checks a member's data directory while no process uses it: every record, every snapshot, and their references to each
other. Changes nothing.

It checks:

  - node.json and the manifest
  - every record of every segment: both CRCs, the order of LSNs, the end of the segment
  - every snapshot file completely, and whether the log has the bodies that its state refers to
  - whether each group's entries follow its newest snapshot without a gap

It reads the files that the log itself reads, with the log's own readers, and holds the directory's lock meanwhile.

Memory: some 60 bytes for each Raft entry, and the state of one snapshot at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path

from fifo.frozen_dataclasses import dataclass
from quorum.catalog.machine import CatalogMachine
from quorum.errors import OperatorError
from quorum.log import LogDamaged, LogUnknown, RealFiles, RecordInfo, inspect
from quorum.log.files import TEMPORARY, read_file
from quorum.log.log import LOCK
from quorum.log.record import HEADER_BYTES
from quorum.log.segment_files.index import decode_index, index_path
from quorum.log.segment_files.manifest import MANIFEST, read_manifest
from quorum.log.segment_files.reserve import reserve_names
from quorum.log.segment_files.segments import (
    HEADER_BLOCK,
    SNAPSHOTS,
    Listed,
    decode_header,
    open_segment,
    segment_numbers,
    segment_path,
)
from quorum.log.snapshots.received import parse_received_name
from quorum.log.snapshots.snapshot_files import SnapshotDamaged, decode_snapshot, parse_name
from quorum.log.table import Cut, GroupState
from quorum.node.identity.identity import FILE, IdentityError, read_identity
from quorum.node.identity.log_owner import OWNER, check_owner
from quorum.node.replica.checkpoints import contents
from quorum.node.replica.replica import SYSTEM_GROUP, machine_state
from quorum.replication.configuration import unwrap_state
from quorum.replication.errors import WireError

MAX_LISTED = 5
"""Maximum number of ranges of missing entries that a report names."""

REPLACE = "do not start this member: replace it while the others are well (quorum cluster replace)"
FETCH = "start it while the other members run: it takes what is damaged from them"
START = (
    "start it while all other members run and are well: it sets aside what it cannot use, takes everything from the "
    "others, and votes again when it has it; a cluster's only member cannot, and needs a backup"
)
BLOCK = "start it: it writes the segment's first block again"
EXAMINE = "examine the disk first; if it is good, start the member, else replace it (quorum cluster replace)"
SNAPSHOT = (
    "start it while all other members run: it uses another snapshot, or takes the state from another member"
)
NO_MANIFEST = "the list of segments cannot be read: it is unknown which records are valid"
LOST_PROMISE = "this member may have voted for or acknowledged what it no longer knows"
NOTHING_LOST = "the list of segments has what this block had"
NOT_SERVED = "these messages cannot be read from this member"


class CannotCheck(OperatorError):
    """The directory is in use, its format is unknown, or it holds nothing that can be checked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: where, what, what it means, and what to do about it. follows: it follows from
    damage that the report names before it."""

    file: str
    offset: int | None
    what: str
    means: str
    advice: str
    follows: bool = False


@dataclass(slots=True)
class Report:
    """The result of a check. notes: facts that are no damage and still worth knowing."""

    directory: str
    member: str = ""
    segments: int = 0
    records: int = 0
    record_bytes: int = 0
    last_lsn: int = 0
    groups: int = 0
    snapshots: int = 0
    last_entries: dict[int, int] = field(default_factory=dict)
    """group -> the last entry of its journal"""
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.findings

    @property
    def causes(self) -> list[Finding]:
        """The findings without those that follow from others."""
        return [each for each in self.findings if not each.follows]


@dataclass(slots=True)
class _Group:
    bodies: set[int] = field(default_factory=set)
    """entries whose body is here and good"""
    pages: set[int] = field(default_factory=set)
    """good pages, by their LSN"""
    stated: int = 0
    """Up to this LSN the manifest states the result of the group's records: the records themselves may be gone."""
    cuts: tuple[Cut, ...] = ()
    first_index: int | None = None
    """first index of the journal; None where it was never moved"""
    last_index: int = 0
    snapshots: list[tuple[int, Path]] = field(default_factory=list)
    """the good ones: (index, file)"""

    @classmethod
    def of(cls, state: GroupState, stated: int) -> _Group:
        """A group as the manifest describes it. Later cuts are records."""
        return cls(stated=stated, cuts=state.cuts, first_index=state.first_index, last_index=state.last_index)

    def take(self, record: RecordInfo) -> None:
        if record.problem is None and (
            record.kind == "COPY" or (record.kind == "ENTRY" and not self._is_cut(record))
        ):
            self.bodies.add(record.index)
        if record.kind == "PAGE" and record.problem is None:
            self.pages.add(record.lsn)
        if record.lsn <= self.stated:
            return
        if record.kind == "ENTRY":
            self.last_index = record.index
        elif record.kind == "TRUNCATE":
            self.bodies = {index for index in self.bodies if index < record.index}
            self.last_index = record.index - 1
        elif record.kind == "COMPACT":
            self.first_index = record.index
        elif record.kind == "RESET":
            self.first_index, self.last_index = record.index + 1, record.index

    def _is_cut(self, record: RecordInfo) -> bool:
        return any(cut.first <= record.index <= cut.last and record.lsn < cut.lsn for cut in self.cuts)

    def missing(self, wanted: Iterable[int]) -> list[tuple[int, int]]:
        """Ranges of the wanted entries (ascending) that are not here."""
        found: list[tuple[int, int]] = []
        for index in wanted:
            if index in self.bodies:
                continue
            if found and found[-1][1] == index - 1:
                found[-1] = (found[-1][0], index)
            else:
                found.append((index, index))
        return found


def check(directory: Path) -> Report:
    """Checks all of this member's data directory. Raises CannotCheck if there is nothing to check, a process uses
    it, or its format is unknown."""
    with locked(directory):
        return check_locked(directory)


def check_locked(directory: Path) -> Report:
    """The same for a directory whose lock the caller holds."""
    return _Checker(directory).run()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the lock of a stopped member's data directory. Raises CannotCheck if it is none, or a process uses it."""
    log = directory / "log"
    if not log.is_dir():
        hint = ""
        if (directory / MANIFEST).exists():
            hint = "; this is the log itself, name the folder above it"
        elif (directory / "data" / "log").is_dir():  # the folder of a local cluster's member
            hint = f"; name the folder {directory / 'data'}"
        raise CannotCheck(f"{directory} is no member's data directory: it has no folder 'log'{hint}")
    try:
        lock = RealFiles().lock(log / LOCK)
    except BlockingIOError:
        raise CannotCheck(f"a process uses {directory}; stop the member first") from None
    except OSError as error:
        raise CannotCheck(f"{log / LOCK} cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


class _Checker:
    def __init__(self, directory: Path) -> None:
        self._files = RealFiles()
        self._directory = directory
        self._log = directory / "log"
        self._groups: dict[int, _Group] = {}
        self._report = Report(str(directory))

    def run(self) -> Report:
        self._check_identity()
        listed = self._check_manifest()
        if listed is not None:
            for item in listed:
                self._check_segment(item)
            self._check_names(listed)
            self._check_snapshots()
            self._check_groups()
        self._report.groups = len(self._groups)
        self._report.last_entries = {number: each.last_index for number, each in sorted(self._groups.items())}
        return self._report

    def _find(
        self, path: Path, offset: int | None, what: str, means: str, advice: str, *, follows: bool = False
    ) -> None:
        self._report.findings.append(Finding(str(path), offset, what, means, advice, follows))

    def _damaged(self, error: LogDamaged | LogUnknown, means: str) -> None:
        if isinstance(error, LogUnknown):
            raise CannotCheck(str(error)) from error
        for damage in error.damages:
            self._find(Path(damage.path), damage.offset, damage.reason, means, START)

    # ---- one file each

    def _check_identity(self) -> None:
        path = self._directory / FILE
        try:
            known = read_identity(self._directory, self._files)
        except IdentityError as error:
            means = (
                "whose data this is, and how often it was started, cannot be read; the member will not start"
            )
            self._find(path, 0, str(error), means, REPLACE)
            return
        if known is None:
            self._find(path, None, "it is gone", "the owner of this data is unknown", REPLACE)
            return
        self._report.member = f"{known.name} of cluster {known.founding.cluster}"
        try:
            check_owner(self._directory, self._log, self._files)
        except IdentityError as error:
            means = f"{LOST_PROMISE}; the member will not start"
            self._find(self._log / OWNER, None, str(error), means, "put back the member's own log")

    def _check_manifest(self) -> list[Listed] | None:
        try:
            manifest = read_manifest(self._files, self._log)
        except (LogDamaged, LogUnknown) as error:
            self._damaged(error, NO_MANIFEST)
            return None
        if manifest is None:
            self._find(self._log / MANIFEST, None, "it is gone", NO_MANIFEST, START)
            return None
        self._groups = {
            number: _Group.of(state, manifest.stated) for number, state in manifest.groups.items()
        }
        return list(manifest.segments)

    def _check_segment(self, item: Listed) -> None:
        """Checks every record. In the active segment, bytes after the last sync may be bad."""
        path = segment_path(self._log, item.number)
        self._report.segments += 1
        last_lsn, end, stated = item.first_lsn - 1, HEADER_BLOCK, item.first_lsn - 1
        bad: tuple[int, str, RecordInfo] | None = None
        try:
            segment = open_segment(self._files, self._log, item, writable=False)
            segment.file.close()
            if segment.block_damage is not None:
                self._find(path, 0, segment.block_damage.reason, NOTHING_LOST, BLOCK)
            for record in inspect(path, self._files, file_id=item.file_id):
                if item.end is not None and record.offset >= item.end:
                    break  # records after the end of a sealed segment are not valid
                stated = max(stated, record.synced)
                problem = record.problem
                if problem is None and record.lsn <= last_lsn:
                    problem = f"LSN {record.lsn} follows LSN {last_lsn}"
                if problem is not None:
                    if item.end is None:
                        bad = bad or (record.offset, problem, record)
                        continue
                    self._bad_record(path, record, problem)
                if bad is not None:
                    continue
                last_lsn, end = max(last_lsn, record.lsn), record.offset + HEADER_BYTES + record.length
                self._take(record)
        except (LogDamaged, LogUnknown) as error:
            self._damaged(error, LOST_PROMISE)
            return
        except OSError as error:
            self._find(path, None, f"cannot be read: {error.strerror}", LOST_PROMISE, EXAMINE)
            return
        self._check_end(path, item, last_lsn, end, stated, bad)
        if item.end is not None:
            self._check_index(index_path(path), item)

    def _check_index(self, path: Path, item: Listed) -> None:
        """A power cut may tear an index file, which is not synced: that is no damage."""
        try:
            found = decode_index(read_file(self._files, path))
        except OSError:
            found = None
        if found is None or found[0] != item.number:
            self._report.notes.append(
                f"{path}: missing or not whole; the next start makes it from its segment"
            )

    def _bad_record(self, path: Path, record: RecordInfo, problem: str) -> None:
        is_body = record.kind in ("ENTRY", "COPY", "PAGE") and "body" in problem
        what = f"{problem} (LSN {record.lsn}, {record.kind} of group {record.group}, term {record.term}, "
        what += f"index {record.index})"
        self._find(path, record.offset, what, *((NOT_SERVED, FETCH) if is_body else (LOST_PROMISE, START)))

    def _check_end(
        self,
        path: Path,
        item: Listed,
        last_lsn: int,
        end: int,
        stated: int,
        bad: tuple[int, str, RecordInfo] | None,
    ) -> None:
        if item.end is not None:
            if end != item.end or last_lsn > (
                item.last_lsn or 0
            ):  # of a collected segment the last may be gone
                what = f"it ends at byte {end} with LSN {last_lsn}, "
                what += f"the manifest says byte {item.end}, LSN {item.last_lsn}"
                self._find(path, end, what, LOST_PROMISE, START)
        elif stated > last_lsn:
            what = f"bad record, and LSN {stated} was synced"
            self._find(path, end, what if bad is None else f"{what}: {bad[1]}", LOST_PROMISE, START)
        elif bad is not None:
            self._report.notes.append(
                f"{path}: the bytes after byte {end} were never synced; the next start cuts them"
            )

    def _take(self, record: RecordInfo) -> None:
        report = self._report
        report.records += 1
        report.record_bytes += HEADER_BYTES + record.length
        report.last_lsn = max(report.last_lsn, record.lsn)
        if record.kind != "MARK":
            self._groups.setdefault(record.group, _Group()).take(record)

    def _check_names(self, listed: list[Listed]) -> None:
        known = {item.number for item in listed}
        for number in segment_numbers(self._files, self._log):
            if number in known:
                continue
            path = segment_path(self._log, number)
            try:
                header = decode_header(read_file(self._files, path)[:HEADER_BLOCK], path)
                if header.first_lsn <= listed[-1].first_lsn:
                    note = "made or replaced by a collection and not in use; the next start removes it"
                    self._report.notes.append(f"{path}: {note}")
                    continue
                first = next(inspect(path, self._files), None)
            except (LogDamaged, LogUnknown) as error:
                self._damaged(error, "a segment that no manifest lists cannot be read")
                continue
            if first is None:
                self._report.notes.append(f"{path}: empty and not in use; the next start removes it")
            else:
                means = "the manifest is not the newest: " + LOST_PROMISE
                what = "a record in a segment that the manifest does not list"
                self._find(path, first.offset, what, means, START)
        names = self._files.list_directory(self._log)
        for name in names:
            if name.endswith(TEMPORARY):
                self._report.notes.append(f"{self._log / name}: left by a crash; the next start removes it")
        if not reserve_names(names):
            self._report.notes.append("no reserve for a full disk exists; the next start creates it")

    # ---- snapshots and groups

    def _check_snapshots(self) -> None:
        folder = self._log / SNAPSHOTS
        for name in self._files.list_directory(folder) if folder.is_dir() else []:
            path = folder / name
            found = parse_name(name)
            if found is None:
                if parse_received_name(name) is not None:
                    what = "part of a snapshot that another member was sending; it is completed or removed"
                else:
                    left = name.endswith(TEMPORARY)
                    what = "left by a crash" if left else "unknown file; it is never changed"
                self._report.notes.append(f"{path}: {what}")
                continue
            group, index, _ = found
            self._report.snapshots += 1
            try:
                decode_snapshot(read_file(self._files, path), group)
            except (SnapshotDamaged, OSError) as error:
                self._find(path, None, str(error), "this snapshot cannot be used", SNAPSHOT)
                continue
            self._groups.setdefault(group, _Group()).snapshots.append((index, path))

    def _check_groups(self) -> None:
        has_cause = not self._report.is_good
        for number, group in sorted(self._groups.items()):
            group.snapshots.sort()
            for _, path in group.snapshots:
                self._check_references(number, group, path, has_cause)
            newest = group.snapshots[-1][0] if group.snapshots else 0
            gaps = group.missing(range(newest + 1, group.last_index + 1))
            if gaps:
                what = f"group {number} ends at entry {group.last_index}, and lacks {_ranges(gaps)} "
                what += f"behind its newest good snapshot, {newest}"
                self._find(self._log, None, what, LOST_PROMISE, START, follows=has_cause)
            begins = newest + 1 if group.first_index is None else group.first_index
            gaps = group.missing(range(begins, min(newest, group.last_index) + 1))
            if gaps:
                what = f"group {number} has a journal from entry {begins} to {group.last_index}, "
                what += f"and lacks {_ranges(gaps)}"
                self._find(self._log, None, what, LOST_PROMISE, START, follows=has_cause)

    def _check_references(self, number: int, group: _Group, path: Path, has_cause: bool) -> None:
        """Checks the bodies of a snapshot's messages, and the pages of its blocks."""
        try:
            index, _, data = decode_snapshot(read_file(self._files, path), number)
            state = machine_state(unwrap_state(data)[1])
            if number == SYSTEM_GROUP:
                CatalogMachine.restore(state)
            entries, pages = contents(state)
        except (WireError, ValueError, LookupError, SnapshotDamaged, OSError) as error:
            what = f"its state cannot be read: {error}"
            self._find(path, None, what, "this snapshot cannot be used", REPLACE)
            return
        missing = group.missing(entries)
        if missing:
            what = f"group {number}: the log lacks {_ranges(missing)}, "
            what += f"which messages in the snapshot at {index} refer to"
            self._find(path, None, what, NOT_SERVED, FETCH, follows=has_cause)
        lost = [page for page in pages if page not in group.pages]
        if lost:
            what = f"group {number}: the log lacks {len(lost)} pages of the snapshot at {index}, LSN {lost[0]} first"
            self._find(path, None, what, "this snapshot cannot be used", SNAPSHOT, follows=has_cause)


def _ranges(ranges: list[tuple[int, int]]) -> str:
    named = [str(first) if first == last else f"{first}..{last}" for first, last in ranges[:MAX_LISTED]]
    more = f" and {len(ranges) - MAX_LISTED} more ranges" if len(ranges) > MAX_LISTED else ""
    return f"entries {', '.join(named)}{more}"
