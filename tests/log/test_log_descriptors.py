"""A process with no file descriptors left: the log has some of its own, and its disk has not failed."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from quorum.log import Log, LogDamaged, LogFull, RealFiles
from quorum.log.files import SpareDescriptors
from support.log.disk import SimDisk
from support.log.model import DIRECTORY

LIMIT = 200


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Somebody else has all that this process may have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, before[1]))
    held: list[int] = []
    try:
        with suppress(OSError):
            while len(held) < LIMIT:
                held.append(os.open(os.devnull, os.O_RDONLY))
        assert len(held) < LIMIT
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_segments_and_snapshots_are_written_without_a_free_descriptor(tmp_path: Path) -> None:
    files = RealFiles(spare=8)
    log = Log.open(tmp_path, files, segment_bytes=20_000, recent_bytes=1 << 20)
    journal = log.journal(1)
    with no_descriptors_left():
        index = 0
        for number in range(12):
            for _ in range(4):
                index += 1
                journal.append([bytes(1_000)], index, 1)
                log.sync()
            journal.save_snapshot(index, 1, b"state %d" % number)
        assert len(files.spare) >= 4, "what is open for a moment is spare again"
        assert log.read(1, index) == bytes(1_000)
    journal.append([b"more"], index + 1, 1)
    log.sync()
    journal.save_snapshot(index + 1, 1, b"the last state")
    assert len(files.spare) == 8
    log.close()
    again = Log.open(tmp_path, RealFiles(), segment_bytes=20_000)
    assert again.journal(1).load_snapshot() == (index + 1, 1, b"the last state")
    again.close()


def test_a_log_that_cannot_be_opened_leaves_no_file_open(tmp_path: Path) -> None:
    """A member sets such a log aside and begins another one, in the same process."""
    files = RealFiles()
    log = Log.open(tmp_path, files, segment_bytes=20_000)
    for index in range(1, 31):
        log.journal(1).append([bytes(1_000)], index, 1)
    log.journal(1).set_hard_state(1, "candidate")
    log.sync()
    log.close()
    Log.open(tmp_path, files).close()  # which says that all of it is synced
    newest = max(tmp_path.glob("segment-*.log"))
    data = bytearray(newest.read_bytes())
    data[data.rindex(b"candidate")] ^= 1
    newest.write_bytes(data)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(LogDamaged):
        Log.open(tmp_path, files)
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_snapshot_that_finds_no_descriptor_may_be_tried_again(number: int) -> None:
    disk = SimDisk()
    log = Log.open(DIRECTORY, disk, segment_bytes=20_000, reserve_segments=3)
    log.refill_reserve()
    journal = log.journal(1)
    journal.append([b"one"], 1, 1)
    log.sync()
    before = log.space().reserve_bytes
    disk.fail_at[len(disk.operations)] = number
    with pytest.raises(LogFull):
        journal.save_snapshot(1, 1, b"state")
    assert log.failure is None
    assert log.space().reserve_bytes == before > 0, "room on the disk would not have helped"
    journal.save_snapshot(1, 1, b"state")
    assert journal.load_snapshot() == (1, 1, b"state")


def test_a_spare_descriptor_is_closed_for_another_and_had_again() -> None:
    spare = SpareDescriptors(2)
    assert (spare.release(), spare.release(), spare.release()) == (True, True, False)
    descriptor = os.open(os.devnull, os.O_RDONLY)
    spare.close(descriptor)
    assert len(spare) == 1
    os.fstat(descriptor)
    spare.refill()
    assert len(spare) == 2
    spare.close(extra := os.open(os.devnull, os.O_RDONLY))
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(extra)
