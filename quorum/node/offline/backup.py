"""Backups of a stopped member's data directory.

A backup is a directory with the member's node.json and log, and a manifest (`backup.json`) that names each file with
its size and SHA-256. It leaves out what a member makes again: the reserve, the lock, and what a crash has left.

A member does not start on a backup (`refuse_backup`). A copy of a member has forgotten what the member has promised
since, so the only way back is a new cluster (new_cluster.py).

A backup, or a data directory made from one, has its name only when it is complete and on disk. Until then it is called
NAME.partial. The next attempt removes what an interrupted one has left.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fifo.frozen_dataclasses import dataclass
from quorum.errors import ConfigError, OperatorError
from quorum.log.files import TEMPORARY, RealFiles, commit_file, prepare_file, read_file
from quorum.log.log import LOCK
from quorum.log.segment_files.reserve import reserve_names
from quorum.log.segment_files.segments import SNAPSHOTS
from quorum.log.snapshots.received import parse_received_name
from quorum.node.identity.identity import FILE, decode_line, encode_line, read_identity
from quorum.node.offline.lost_log import LOG
from quorum.node.offline.offline_check import Report, check_locked, locked

MANIFEST = "backup.json"
FORMAT = 1
PARTIAL = ".partial"
PIECE_BYTES = 1 << 20
MAX_LISTED = 5
"""Maximum number of problems that an error names."""


class BackupError(OperatorError):
    """A backup that cannot be made, or is not whole."""


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup. name: relative to the data directory."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Backup:
    """The manifest. made: when, in UTC. last_entries: group -> the last entry that the member had on disk."""

    cluster: str
    member: str
    incarnation: str
    made: str
    last_lsn: int
    last_entries: dict[int, int]
    files: tuple[BackupFile, ...]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files)


def create_backup(data_dir: Path, target: Path) -> Backup:
    """Copies a stopped member's data directory, checked, to a new directory. OperatorError if the member runs, its data
    is damaged, or the target exists."""
    refuse_backup(data_dir)
    with locked(data_dir), building(target, apart_from=data_dir) as partial:
        report = check_locked(data_dir)
        refuse_damage(report)
        known = read_identity(data_dir, RealFiles())
        assert known is not None, "a good directory has one"
        backup = Backup(
            known.founding.cluster,
            known.name,
            known.node_state.incarnation,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            report.last_lsn,
            report.last_entries,
            copy_data(data_dir, partial),
        )
        fields = {"quorum_backup": FORMAT, **asdict(backup)}
        prepare_file(RealFiles(), partial / MANIFEST, [encode_line(fields)])
        commit_file(RealFiles(), partial / MANIFEST)
    return backup


def verify_backup(directory: Path) -> Backup:
    """Reads every byte of a backup. BackupError if it is not what was written."""
    backup = read_manifest(directory)
    compare(directory, backup, tuple(_read(directory / name, name) for name in _names(directory)))
    return backup


def read_manifest(directory: Path) -> Backup:
    path = directory / MANIFEST
    try:
        fields: dict[str, Any] = decode_line(read_file(RealFiles(), path))
        if fields["quorum_backup"] != FORMAT:
            raise BackupError(f"{path} has format {fields['quorum_backup']}; this release reads {FORMAT}")
        return Backup(
            str(fields["cluster"]),
            str(fields["member"]),
            str(fields["incarnation"]),
            str(fields["made"]),
            int(fields["last_lsn"]),
            {int(group): int(index) for group, index in fields["last_entries"].items()},
            tuple(BackupFile(**each) for each in fields["files"]),
        )
    except FileNotFoundError:
        raise BackupError(f"{directory} is no backup: it has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupError(f"{path} cannot be read: {error}") from error


def compare(directory: Path, backup: Backup, found: tuple[BackupFile, ...]) -> None:
    """Compares the files found in a backup with its manifest. BackupError if they differ."""
    here = {each.name: each for each in found}
    listed = {each.name: each for each in backup.files}
    problems = [f"{name} is missing" for name in sorted(listed.keys() - here.keys())]
    problems += [f"{name} does not belong to it" for name in sorted(here.keys() - listed.keys())]
    problems += [
        f"{name} has changed" for name in sorted(here.keys() & listed.keys()) if here[name] != listed[name]
    ]
    if problems:
        more = f", and {len(problems) - MAX_LISTED} more" if len(problems) > MAX_LISTED else ""
        raise BackupError(f"the backup {directory} is damaged: {', '.join(problems[:MAX_LISTED])}{more}")


def is_backup(directory: Path) -> bool:
    return (directory / MANIFEST).exists()


def refuse_backup(data_dir: Path) -> None:
    """ConfigError if the directory is a backup: a member that ran on it would have forgotten what it has promised."""
    if is_backup(data_dir):
        raise ConfigError(
            f"{data_dir} is a backup, and no member runs on one; `quorum cluster recover` makes the data directory of "
            "a new cluster from it"
        )


def refuse_damage(report: Report) -> None:
    """BackupError if a check has found damage."""
    if not report.is_good:
        first = report.causes[0]
        count = f"{len(report.causes)} findings" if len(report.causes) > 1 else "1 finding"
        raise BackupError(
            f"{report.directory} is damaged ({count}; the first: {first.file}: {first.what}); "
            f"`quorum check {report.directory}` shows all"
        )


@contextmanager
def building(target: Path, apart_from: Path) -> Iterator[Path]:
    """An empty directory that gets its name, durably, when the block ends. After an exception it is removed.
    BackupError if the target exists, or is inside of the other directory."""
    target = target.absolute()
    partial = target.with_name(target.name + PARTIAL)
    if target.exists():
        raise BackupError(f"{target} exists; name a new directory")
    if not target.parent.is_dir():
        raise BackupError(f"{target.parent} is no directory")
    if target.resolve().is_relative_to(apart_from.resolve()):
        raise BackupError(f"{target} is inside of {apart_from}; name a directory elsewhere")
    if partial.exists():
        strange = set(os.listdir(partial)) - {FILE, FILE + TEMPORARY, MANIFEST, MANIFEST + TEMPORARY, LOG}
        if strange:
            raise BackupError(f"{partial} is in the way, and holds other files: {', '.join(sorted(strange))}")
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        yield partial
        _sync_directories(partial)
        os.rename(partial, target)
    except BaseException:
        if partial.exists():
            shutil.rmtree(partial)
        raise
    RealFiles().sync_directory(target.parent)


def copy_data(source: Path, target: Path) -> tuple[BackupFile, ...]:
    """Copies what belongs to a data directory, each file synced. The source does not change meanwhile."""
    (target / LOG / SNAPSHOTS).mkdir(parents=True)
    return tuple(_read(source / name, name, target / name) for name in _names(source))


def _names(directory: Path) -> list[str]:
    """The files that belong to a data directory, relative to it."""
    folder = directory / LOG
    names = os.listdir(folder) if folder.is_dir() else []
    left_out = {LOCK, *reserve_names(names)}
    kept = [f"{LOG}/{name}" for name in names if name not in left_out and (folder / name).is_file()]
    snapshots = folder / SNAPSHOTS
    for name in os.listdir(snapshots) if snapshots.is_dir() else ():
        if parse_received_name(name) is None:
            kept.append(f"{LOG}/{SNAPSHOTS}/{name}")
    kept += [FILE] if (directory / FILE).exists() else []
    return sorted(name for name in kept if not name.endswith(TEMPORARY))


def _read(path: Path, name: str, copy: Path | None = None) -> BackupFile:
    """Reads a file, and copies it if `copy` names a place; OSError if the disk fails, or is full."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        descriptor = None if copy is None else os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        try:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
                while descriptor is not None and piece:
                    piece = piece[os.write(descriptor, piece) :]
            if descriptor is not None:
                os.fsync(descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)
    return BackupFile(name, size, digest.hexdigest())


def _sync_directories(directory: Path) -> None:
    for each in (directory / LOG / SNAPSHOTS, directory / LOG, directory):
        RealFiles().sync_directory(each)
