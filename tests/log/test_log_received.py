"""Snapshots that come from another member (quorum/log/snapshots/received.py): on disk as they come, and taken only when
whole."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quorum.log import Log, LogFailed, LogFull
from quorum.log.record import crc32c
from quorum.log.snapshots.received import SYNC_CHUNKS, ReceivedSnapshot
from quorum.log.snapshots.snapshot_files import CHUNK_BYTES
from support.log.disk import SimDisk, SimFile

GROUP = 1
PIECE = 256 << 10
STATE = bytes(range(256)) * (11 * CHUNK_BYTES // 1024) + b"the end"
"""Between two and three chunks."""


def opened(disk: SimDisk) -> Log:
    return Log.open(Path("/log"), disk)


def begun(log: Log, state: bytes = STATE, index: int = 9) -> ReceivedSnapshot:
    return log.journal(GROUP).receive_snapshot(index, 3, len(state), crc32c(state))


def send(received: ReceivedSnapshot, state: bytes = STATE, to: int | None = None) -> None:
    while received.received < (len(state) if to is None else to):
        at = received.received
        received.add(at, state[at : at + PIECE])


def files(disk: SimDisk) -> list[str]:
    return sorted(
        path.name.split(".")[-1] for path in disk.names if "snapshots" in path.parts and path.suffix
    )


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, len(STATE)])
def test_what_was_received_whole_is_the_snapshot_that_saving_would_have_made(size: int) -> None:
    state = STATE[:size]
    disk, other = SimDisk(), SimDisk()
    log = opened(disk)
    received = begun(log, state)
    assert received.check()
    send(received, state)
    assert received.is_whole
    assert received.finish()
    source = received.open()
    received.keep()
    assert b"".join(source.read(at, PIECE) for at in range(0, size, PIECE)) == state
    source.close()
    opened(other).journal(GROUP).save_snapshot(9, 3, state)
    (path,) = (path for path in disk.names if path.suffix == ".snapshot")
    assert disk.open(path).pread(1 << 30, 0) == other.open(path).pread(1 << 30, 0)
    log.close()
    disk.power_cut(1)
    assert opened(disk).journal(GROUP).load_snapshot() == (9, 3, state)
    assert files(disk) == ["snapshot"]


def test_no_more_than_a_chunk_of_it_waits_in_memory() -> None:
    received = begun(opened(SimDisk()))
    assert received.check()
    while not received.is_whole:
        at = received.received
        received.add(at, STATE[at : at + PIECE])
        assert len(received._begun) < CHUNK_BYTES


def test_pieces_that_do_not_follow_change_nothing() -> None:
    received = begun(opened(SimDisk()))
    assert received.check()
    send(received, to=2 * PIECE)
    for offset in (0, PIECE, 3 * PIECE, len(STATE)):
        received.add(offset, b"wrong")
    received.add(2 * PIECE, STATE + b"too long")
    assert received.received == 2 * PIECE
    send(received)
    assert received.finish()


def test_another_process_goes_on_behind_the_last_chunk_that_is_good() -> None:
    disk = SimDisk()
    log = opened(disk)
    received = begun(log)
    assert received.check()
    send(received, to=2 * CHUNK_BYTES + PIECE)
    log.close()
    disk.restart()
    received = begun(opened(disk))
    looks = 1
    while not received.check():
        looks += 1
    assert looks == 3, "a chunk at a time, and one that is not there"
    assert received.received == 2 * CHUNK_BYTES
    send(received)
    assert received.finish()


def test_what_an_earlier_process_has_left_and_the_disk_cannot_read_is_received_again() -> None:
    disk = SimDisk()
    received = begun(opened(disk))
    assert received.check()
    send(received, to=2 * CHUNK_BYTES)
    disk.restart()
    log = opened(disk)
    disk.bad_reads = True
    received = begun(log)
    disk.bad_reads = False
    assert received.check()
    assert received.received == 0
    send(received)
    assert received.finish()


def test_a_received_snapshot_whose_file_was_removed_can_be_dropped() -> None:
    disk = SimDisk()
    received = begun(opened(disk))
    del disk.names[received.path]
    received.drop()
    assert files(disk) == []


def test_a_damaged_chunk_and_all_behind_it_are_received_again() -> None:
    disk = SimDisk()
    log = opened(disk)
    received = begun(log)
    assert received.check()
    send(received, to=2 * CHUNK_BYTES)
    log.close()
    disk.restart()
    disk.flip(received.path, 8 * (CHUNK_BYTES + 100))
    received = begun(opened(disk))
    while not received.check():
        pass
    assert received.received == CHUNK_BYTES
    send(received)
    assert received.finish()


@pytest.mark.parametrize("seed", range(4))
def test_what_a_failed_sync_has_left_in_the_cache_only_is_written_again(seed: int) -> None:
    """A failed sync leaves the bytes in the cache, where the next process reads them, but no later sync writes them."""
    disk = SimDisk(seed)
    log = opened(disk)
    received = begun(log)
    assert received.check()
    send(received)
    disk.fail_at = {len(disk.operations) + 1: errno.EIO}
    with pytest.raises(LogFailed):
        received.finish()
    assert disk.operations[-1] == "sync"
    disk.restart()
    log = opened(disk)
    received = begun(log)
    while not received.check():
        pass
    send(received)
    assert received.finish()
    received.keep()
    log.close()
    disk.power_cut(seed)
    assert opened(disk).journal(GROUP).load_snapshot() == (9, 3, STATE)


def test_a_power_cut_at_any_write_leaves_what_can_be_gone_on_with() -> None:
    state = STATE[: CHUNK_BYTES + 1]
    for seed in range(6):
        disk = SimDisk(seed)
        received = begun(opened(disk), state)
        assert received.check()
        send(received, state)
        if seed % 2:
            assert received.finish()
        disk.power_cut(seed)
        log = opened(disk)
        assert log.journal(GROUP).load_snapshot() is None
        received = begun(log, state)
        while not received.check():
            pass
        send(received, state)
        assert received.finish()
        received.keep()
        assert log.journal(GROUP).load_snapshot() == (9, 3, state)


def test_a_whole_with_another_crc_than_was_said_is_not_taken() -> None:
    log = opened(SimDisk())
    received = log.journal(GROUP).receive_snapshot(9, 3, len(STATE), crc32c(STATE) ^ 1)
    assert received.check()
    send(received)
    assert received.is_whole
    assert not received.finish()
    received.drop()
    assert log.journal(GROUP).load_snapshot() is None


def test_one_is_received_at_a_time_and_what_was_begun_before_is_removed() -> None:
    disk = SimDisk()
    log = opened(disk)
    assert begun(log).check()
    assert begun(log, index=12).check()
    assert files(disk) == ["received"]
    log.close()
    disk.restart()
    log = opened(disk)
    log.journal(GROUP).save_snapshot(20, 3, b"own")  # it was brought up by other means meanwhile
    assert files(disk) == ["snapshot"]


def test_without_room_it_waits_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    log = opened(disk)
    received = begun(log)
    assert received.check()
    send(received, to=CHUNK_BYTES - PIECE)
    with monkeypatch.context() as full:

        def no_room(*_: object) -> int:
            raise OSError(errno.ENOSPC, "no room")

        full.setattr("quorum.log.snapshots.received.write_fully", no_room)
        full.setattr(type(log), "release_reserve", lambda log: False)
        for _ in range(3):
            at = received.received
            with pytest.raises(LogFull):
                received.add(at, STATE[at : at + PIECE])
        assert received.received == CHUNK_BYTES
    send(received)
    assert received.finish()
    received.keep()
    assert log.journal(GROUP).load_snapshot() == (9, 3, STATE)


def test_without_room_for_the_header_no_file_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    log = opened(disk)
    received = begun(log)
    assert received.check()
    send(received, to=CHUNK_BYTES)
    log.close()
    disk.restart()
    log = opened(disk)
    handles: list[SimFile] = []
    open_file = SimDisk.open

    def noted(disk: SimDisk, path: Path, *, writable: bool = False) -> SimFile:
        handles.append(open_file(disk, path, writable=writable))
        return handles[-1]

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(SimDisk, "open", noted)
    monkeypatch.setattr("quorum.log.snapshots.received.write_fully", no_room)
    monkeypatch.setattr(type(log), "release_reserve", lambda log: False)
    with pytest.raises(LogFull):
        begun(log)
    [handle] = handles
    with pytest.raises(OSError, match="the handle is closed"):
        handle.size()


def test_chunks_that_are_written_again_are_synced_a_few_at_a_time() -> None:
    disk = SimDisk()
    state = bytes((SYNC_CHUNKS + 1) * CHUNK_BYTES)
    log = opened(disk)
    received = begun(log, state)
    assert received.check()
    send(received, state)
    log.close()
    disk.restart()
    received = begun(opened(disk), state)
    before = disk.syncs
    while not received.check():
        pass
    assert received.is_whole
    assert disk.syncs == before + 1
