"""A disk that fails or is full, a second process, and misuse."""

from __future__ import annotations

import errno
import os
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from quorum.log import (
    DiskFull,
    EntryMissing,
    Log,
    LogClosed,
    LogFailed,
    LogFull,
    LogLocked,
    RealFiles,
    RecordKind,
)
from quorum.log.files import write_fully
from support.log.disk import SimDisk
from support.log.model import DIRECTORY, Script, segment_of


def opened(disk: SimDisk, segment_bytes: int = 20_000, recent_bytes: int = 1 << 20) -> Log:
    return Log.open(DIRECTORY, disk, segment_bytes=segment_bytes, recent_bytes=recent_bytes)


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, LogFailed), (errno.ENOSPC, DiskFull)])
@pytest.mark.parametrize("later", [0, 1])
def test_the_first_failed_write_or_sync_is_final(number: int, kind: type[LogFailed], later: int) -> None:
    disk = SimDisk()
    log = opened(disk)
    log.journal(1).append([b"one"], 1, 1)
    log.sync()
    log.journal(1).append([b"two"], 2, 1)
    disk.fail_at[len(disk.operations) + later] = number
    with pytest.raises(kind):
        log.sync()
    operations = len(disk.operations)
    assert log.synced_lsn == 1
    for attempt in (
        log.sync,
        lambda: log.journal(1).append([b"three"], 3, 1),
        lambda: log.journal(1).set_hard_state(9, None),
        lambda: log.read(1, 1),
        lambda: log.mark_if_quiet(1000),
    ):
        with pytest.raises(kind):
            attempt()
    assert len(disk.operations) == operations, "nothing was tried again"
    assert isinstance(log.failure, kind)


def test_every_failing_operation_stops_the_log_or_changes_nothing() -> None:
    """EIO and ENOSPC at each operation of a script: afterwards all that was acknowledged is there on
    reopening."""
    whole = Script(SimDisk(4), 4)
    whole.open()
    whole.steps(60)
    failed = full = 0
    for point in range(7, len(whole.disk.operations)):
        for number in (errno.EIO, errno.ENOSPC):
            script = Script(SimDisk(4), 4)
            script.disk.fail_at[point] = number
            try:
                script.open()
                script.steps(60)
            except LogFull:
                full += 1
                script.compare()
                assert script.log.failure is None
                script.log.sync()
                script.acknowledged = script.log.synced_lsn
            except LogFailed:
                failed += 1
            script.disk.power_cut(point)
            script.reopen_and_compare()
    assert failed > 60
    assert full > 3


def test_a_full_disk_refuses_the_append_before_anything_of_it_is_taken() -> None:
    disk = SimDisk()
    log = opened(disk)
    log.journal(1).append([bytes(10_000)], 1, 1)
    disk.room = 0
    for _ in range(3):
        with pytest.raises(LogFull):
            log.journal(1).append([bytes(10_000)], 2, 1)
    assert log.last_lsn == 1
    assert log.journal(1).last_index == 1
    log.journal(1).append([b"small"], 2, 1)
    log.journal(1).set_hard_state(3, "b")
    log.sync()
    assert log.read(1, 2) == b"small"
    assert log.free_bytes() == 0
    disk.room = 1 << 30
    log.journal(1).append([bytes(10_000)], 3, 1)
    log.sync()
    disk.power_cut(1)
    log = opened(disk)
    assert log.journal(1).last_index == 3
    assert log.journal(1).hard_state == (3, "b")


def test_a_roll_refused_at_the_manifest_gives_its_segment_back() -> None:
    disk = SimDisk()
    log = opened(disk)
    log.journal(1).append([bytes(10_000)], 1, 1)
    log.sync()
    first = len(disk.operations)
    log.journal(1).append([bytes(10_000)], 2, 1)
    rename = first + disk.operations[first:].index("rename")
    manifest = rename + disk.operations[rename:].index("create")

    disk = SimDisk()
    log = opened(disk)
    log.journal(1).append([bytes(10_000)], 1, 1)
    log.sync()
    disk.fail_at[manifest + 1] = errno.ENOSPC
    with pytest.raises(LogFull, match="manifest"):
        log.journal(1).append([bytes(10_000)], 2, 1)
    assert sorted(path.name for path in disk.names) == ["LOCK", "MANIFEST", "segment-0000000001.log"]
    log.journal(1).append([bytes(10_000)], 2, 1)
    log.sync()
    disk.power_cut(3)
    assert opened(disk).journal(1).last_index == 2


def test_a_log_on_a_full_disk_opens_and_reads() -> None:
    disk = SimDisk()
    log = opened(disk)
    size = 20_000 - 4096 - 56 - 20
    log.journal(1).append([bytes(size)], 1, 1)
    log.sync()
    disk.restart()
    disk.room = 0
    log = opened(disk)
    assert log.read(1, 1) == bytes(size)
    log.mark_if_quiet(0)
    assert not log.mark_if_quiet(10)
    assert log.failure is None


def test_short_writes_are_continued() -> None:
    disk = SimDisk(5)
    disk.short_writes = True
    log = opened(disk, segment_bytes=1_000_000, recent_bytes=0)
    for index in range(1, 200):
        log.journal(1).append([bytes([index]) * index], index, 1)
    log.sync()
    assert [log.read(1, index) for index in range(1, 200)] == [bytes([i]) * i for i in range(1, 200)]


def test_a_write_that_takes_nothing_is_an_error_not_an_endless_loop() -> None:
    class Stuck:
        def pwritev(self, buffers: list[bytes], offset: int) -> int:
            return 0

    with pytest.raises(OSError, match="took no byte"):
        write_fully(Stuck(), [b"abc"], 0)  # type: ignore[arg-type]


def test_more_buffers_than_one_call_may_carry(tmp_path: Path) -> None:
    log = Log.open(tmp_path, recent_bytes=0)
    for index in range(1, 3001):
        log.journal(1).append([str(index).encode()], index, 1)
    log.sync()
    assert log.stats.syncs == 1
    assert all(log.read(1, index) == str(index).encode() for index in range(1, 3001))
    log.close()


def test_one_sync_covers_all_groups_and_an_idle_sync_touches_no_disk() -> None:
    disk = SimDisk()
    log = opened(disk)
    before = disk.syncs
    for group in range(5):
        log.journal(group).append([b"x"], 1, 1)
    assert log.synced_lsn == 0
    assert log.sync() == 5
    assert disk.syncs == before + 1
    operations = len(disk.operations)
    assert log.sync() == 5
    assert len(disk.operations) == operations
    assert log.stats.syncs == 1


def test_two_logs_cannot_share_a_directory(tmp_path: Path) -> None:
    first = Log.open(tmp_path / "a" / "b")
    with pytest.raises(LogLocked, match="running already, or another one has its data_dir"):
        Log.open(tmp_path / "a" / "b")
    first.close()
    second = Log.open(tmp_path / "a" / "b")
    second.close()
    second.close()


def test_a_closed_log_says_so() -> None:
    log = opened(SimDisk(), recent_bytes=1 << 20)
    log.journal(1).append([b"body"], 1, 1)
    log.sync()
    log.close()
    for attempt in (
        log.sync,
        lambda: log.append(RecordKind.MARK, 0, 0, 0),
        lambda: log.read(1, 1),
        lambda: log.read_page(1, 1),
        lambda: log.missing(1, array("Q", [1])),
        lambda: log.scrub(1),
        log.repair,
        log.make_small_room,
        log.plan_collection,
    ):
        with pytest.raises(LogClosed):
            attempt()
    log.survey()
    log.close()


def test_closing_waits_for_readers_before_it_gives_the_file_back() -> None:
    disk = SimDisk()
    log = opened(disk, recent_bytes=0)
    log.journal(1).append([b"body"], 1, 1)
    log.sync()
    segment = segment_of(log, 1)
    read = segment.file.pread
    closed_inside = []

    def slow(length: int, offset: int) -> bytes:
        log.close()
        closed_inside.append(segment.holders)
        return read(length, offset)

    segment.file.pread = slow  # type: ignore[method-assign]
    assert log.read(1, 1) == b"body"
    assert closed_inside == [1]
    assert segment.holders == 0


def test_readers_in_other_threads_see_whole_bodies_while_the_log_grows_and_is_cut(tmp_path: Path) -> None:
    """Bodies say their own index and term, so a reader knows a right one from a wrong one."""
    log = Log.open(tmp_path, segment_bytes=200_000, recent_bytes=3_000)
    journal = log.journal(1)
    stop = threading.Event()
    wrong: list[object] = []
    counts = [0, 0]

    def reader(which: int) -> None:
        index = 1
        while not stop.is_set() or counts[which] < 200:
            index = index % 300 + 1
            try:
                body = log.read(1, index)
            except EntryMissing:
                continue
            except ValueError as error:
                wrong.append(error)
                break
            if body[:8] != index.to_bytes(8, "little") or body[8:] != body[8:9] * (len(body) - 8):
                wrong.append((index, body[:16]))
            counts[which] += 1

    def put(index: int, term: int) -> None:
        journal.append([index.to_bytes(8, "little"), bytes([term]) * (index * 7 % 900)], index, term)

    put(1, 1)
    threads = [threading.Thread(target=reader, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for term in range(1, 60):
        first = journal.last_index + 1
        for index in range(first, first + 20):
            put(index, term)
        if term % 3:
            log.sync()
        journal.truncate_from(max(2, journal.last_index - 15))
    log.sync()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert min(counts) >= 200
    log.close()


def test_a_real_file_reads_what_is_cached_and_says_if_it_would_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealFiles().create(tmp_path / "f")
    file.pwritev([b"abcdef"], 0)
    assert file.pread_cached(3, 1) == b"bcd"  # or the file system cannot tell

    def preadv(error: OSError | None, count: int = 0) -> Callable[..., int]:
        def call(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
            assert sum(map(len, buffers)) == 3
            if error is not None:
                raise error
            return count

        return call

    monkeypatch.setattr(os, "preadv", preadv(BlockingIOError(errno.EAGAIN, "it would wait")))
    assert file.pread_cached(3, 1) is None
    monkeypatch.setattr(os, "preadv", preadv(None, 2))
    assert file.pread_cached(3, 1) is None, "a part is cached"
    monkeypatch.setattr(os, "preadv", preadv(OSError(errno.EOPNOTSUPP, "cannot tell")))
    assert file.pread_cached(3, 1) == b"bcd"
    monkeypatch.setattr(os, "preadv", preadv(OSError(errno.EIO, "the disk has failed")))
    with pytest.raises(OSError, match="has failed"):
        file.pread_cached(3, 1)
    file.close()


def test_the_real_files_do_what_the_log_relies_on(tmp_path: Path) -> None:
    files = RealFiles()
    files.make_directory(tmp_path / "x" / "y")
    files.make_directory(tmp_path / "x" / "y")
    file = files.create(tmp_path / "x" / "f")
    file.allocate(5000)
    assert file.size() == 5000
    assert file.pread(9000, 0) == bytes(5000)
    assert file.pwritev([b"ab", b"", b"cd"], 4998) == 4
    file.sync()
    file.truncate(4999)
    assert file.pread(10, 4990) == bytes(8) + b"a"
    file.close()
    files.rename(tmp_path / "x" / "f", tmp_path / "x" / "g")
    files.sync_directory(tmp_path / "x")
    assert files.list_directory(tmp_path / "x") == ["g", "y"]
    assert files.free_bytes(tmp_path) > 0
    files.unlink(tmp_path / "x" / "g")
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "x" / "g")
    assert os.listdir(tmp_path / "x") == ["y"]
