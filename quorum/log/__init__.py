"""The node's one append-only log: write-ahead log, Raft journal and message store for all its groups.

`Log` is the entry point. The package knows groups and entries, and nothing of queues. docs/log-format.md describes the
bytes.
"""

from quorum.log.errors import (
    Damage,
    DiskFull,
    EntryMissing,
    LogClosed,
    LogDamaged,
    LogError,
    LogFailed,
    LogFull,
    LogLocked,
    LogUnknown,
    NotCached,
)
from quorum.log.files import RealFiles
from quorum.log.inspection import RecordInfo, inspect
from quorum.log.journal import Journal
from quorum.log.log import Log, Space
from quorum.log.maintenance.collector import Collection
from quorum.log.record import RecordKind
from quorum.log.references import Retained, Retention
from quorum.log.segment_files.reserve import RESERVE_SEGMENTS
from quorum.log.snapshots.snapshot_files import SnapshotDamaged, SnapshotFile

__all__ = [
    "RESERVE_SEGMENTS",
    "Collection",
    "Damage",
    "DiskFull",
    "EntryMissing",
    "Journal",
    "Log",
    "LogClosed",
    "LogDamaged",
    "LogError",
    "LogFailed",
    "LogFull",
    "LogLocked",
    "LogUnknown",
    "NotCached",
    "RealFiles",
    "RecordInfo",
    "RecordKind",
    "Retained",
    "Retention",
    "SnapshotDamaged",
    "SnapshotFile",
    "Space",
    "inspect",
]
