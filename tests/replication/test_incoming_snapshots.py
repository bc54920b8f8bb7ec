"""What a follower has of its leader's snapshot (`Incoming`), on a disk with faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quorum.log import Log
from quorum.log.record import crc32c
from quorum.replication.codec import SnapshotChunk
from quorum.replication.snapshots import Incoming
from support.log.disk import SimDisk

STATE = b"state" * 1_000


def chunk(start: int, end: int) -> SnapshotChunk:
    return SnapshotChunk(4, 1, 9, 3, len(STATE), crc32c(STATE), start, STATE[start:end])


def test_a_complete_snapshot_that_cannot_be_read_back_is_received_again() -> None:
    disk = SimDisk()
    incoming = Incoming(Log.open(Path("/log"), disk).journal(1).receive_snapshot)
    assert incoming.take(chunk(0, 2_000)) is None
    [path] = [path for path in disk.names if path.suffix == ".received"]
    disk.names[path].unreadable = range(1)
    assert incoming.take(chunk(2_000, len(STATE))) is None
    assert not incoming.is_begun
    source = incoming.take(chunk(0, len(STATE)))
    assert source is not None
    assert source.read(0, len(STATE)) == STATE


def test_another_snapshot_replaces_a_complete_one_from_its_first_chunk_on() -> None:
    incoming = Incoming(Log.open(Path("/log"), SimDisk()).journal(1).receive_snapshot)
    assert incoming.take(chunk(0, len(STATE))) is not None
    newer = replace(chunk(0, 2_000), index=10)
    assert incoming.take(newer) is None
    assert (incoming.received(newer), incoming.received(chunk(0, 2_000))) == (2_000, 0)
