"""A disk that is full: what goes on from the reserve, what is refused, and how the reserve comes back."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quorum.log import Log, LogFailed, LogFull
from quorum.log.segment_files.reserve import COLLECTOR_SEGMENTS, RESERVE_SEGMENTS, Reserve
from quorum.log.segment_files.segments import segment_path
from support.log.disk import SimDisk
from support.log.model import DIRECTORY

SEGMENT = 20_000
RESERVED = SEGMENT + SEGMENT // 4
"""A reserve file: a segment and the margin."""
BODY = bytes(4_828)
IN_A_SEGMENT = 3
"""Entries with such a body fill 20,000 - 4,096 of header - 1,250 for small records, but for two bytes."""
MANIFEST_ROOM = 2_000


def opened(disk: SimDisk, *, limit: int = 0, segments: int = RESERVE_SEGMENTS) -> Log:
    return Log.open(
        DIRECTORY,
        disk,
        segment_bytes=SEGMENT,
        recent_bytes=0,
        reserve_segments=segments,
        free_limit_bytes=limit,
    )


def fill(log: Log) -> int:
    """Entries until one is refused; how many were taken."""
    journal = log.journal(1)
    first = journal.last_index
    while True:
        try:
            journal.append([BODY], journal.last_index + 1, 1)
        except LogFull:
            return journal.last_index - first
        log.sync()


def reserve_files(disk: SimDisk) -> list[str]:
    return [path.name for path in sorted(disk.names) if path.name.startswith("reserve-")]


def full(segments: int = 2) -> tuple[SimDisk, Log]:
    """A log on a disk with room for so many segments, the reserve, and a manifest; nothing is appended yet."""
    disk = SimDisk()
    disk.capacity = segments * SEGMENT + RESERVE_SEGMENTS * RESERVED + MANIFEST_ROOM
    return disk, opened(disk)


def test_the_reserve_is_put_by_at_the_first_start_and_kept() -> None:
    disk = SimDisk()
    log = opened(disk, limit=500)
    assert reserve_files(disk) == ["reserve-1.space", "reserve-2.space", "reserve-3.space"]
    assert log.space().reserve_bytes == RESERVE_SEGMENTS * RESERVED
    assert not log.space().is_low
    before = {path: id(disk.names[path]) for path in disk.names if path.name.startswith("reserve")}
    disk.restart()
    log = opened(disk, limit=500)
    assert {path: id(disk.names[path]) for path in before} == before, "what is there is not made anew"
    disk.room = 499
    assert log.space().is_low


def test_a_reserve_file_that_was_removed_is_missing_and_ends_nothing() -> None:
    """An operator removes it from a full disk, to make room."""
    disk, log = full()
    for name in ("reserve-3.space", "reserve-2.space"):
        del disk.names[DIRECTORY / name]
    disk.capacity = disk.used_bytes()
    assert log.release_reserve()
    assert not log.release_reserve()
    assert log.space().reserve_bytes == 0
    assert log.refill_reserve()
    del disk.names[DIRECTORY / "reserve-1.space"]
    disk.capacity = disk.used_bytes()
    fill(log)
    log.sync()
    assert log.failure is None


def test_entries_do_not_take_the_collectors_part_if_files_of_the_reserve_were_removed() -> None:
    disk, log = full()
    for name in ("reserve-1.space", "reserve-2.space"):
        del disk.names[DIRECTORY / name]
    disk.capacity = disk.used_bytes()
    fill(log)
    assert reserve_files(disk) == ["reserve-3.space"]
    assert log.space().is_low
    reserve = log._reserve
    assert reserve is not None
    assert reserve.take(segment_path(DIRECTORY, 90), SEGMENT, for_collector=True)


def test_when_no_segment_can_be_had_entries_go_on_in_the_reserve_and_leave_the_collectors_part() -> None:
    disk, log = full()
    taken = fill(log)
    assert taken == 3 * IN_A_SEGMENT, "two segments and one of the reserve"
    assert len(reserve_files(disk)) == COLLECTOR_SEGMENTS
    assert log.space().is_low
    assert disk.used_bytes() <= (disk.capacity or 0)
    for lost in (False, True):
        if lost:
            disk.power_cut(5)
        else:
            disk.restart()
        log = opened(disk)
        assert [log.read(1, index) for index in range(1, taken + 1)] == [BODY] * taken


def test_the_collector_may_use_what_entries_may_not() -> None:
    disk, log = full()
    fill(log)
    log.close()
    reserve = Reserve(disk, DIRECTORY, segments=RESERVE_SEGMENTS, segment_bytes=SEGMENT)
    reserve.open()
    path = segment_path(DIRECTORY, 90)
    assert not reserve.take(path, SEGMENT)
    assert not reserve.take(path, SEGMENT + 1, for_collector=True), "none is so large"
    for _ in range(COLLECTOR_SEGMENTS):
        assert reserve.take(path, SEGMENT, for_collector=True)
    assert not reserve.take(path, SEGMENT, for_collector=True)


def test_a_full_log_still_takes_terms_votes_and_the_first_entry_of_an_office() -> None:
    _, log = full()
    fill(log)
    journal = log.journal(1)
    term = 1
    while log.make_small_room():
        term += 1
        journal.set_hard_state(term, "somebody")
        log.sync()
    assert term > 8, "half of what is kept for small records is used up"
    for _ in range(8):
        term += 1
        journal.set_hard_state(term, "somebody")
        log.sync()
    journal.append([b"n"], journal.last_index + 1, term)
    log.sync()
    assert not log.make_room(len(BODY))
    assert journal.hard_state == (term, "somebody")


def test_with_room_again_the_log_goes_on_and_fills_the_reserve_up_without_a_restart() -> None:
    disk, log = full()
    taken = fill(log)
    assert not log.make_room(len(BODY))
    assert not log.refill_reserve()
    disk.capacity = (disk.capacity or 0) + SEGMENT
    assert log.make_room(len(BODY)), "the room that came is taken for a segment"
    assert not log.refill_reserve()
    assert log.space().is_low
    disk.capacity += RESERVED
    assert log.refill_reserve()
    assert not log.refill_reserve()
    assert not log.space().is_low
    more = fill(log)
    assert more == 2 * IN_A_SEGMENT, "the new segment, and one of the reserve"
    disk.power_cut(1)
    log = opened(disk)
    assert log.journal(1).last_index == taken + more


def test_a_restart_on_a_full_disk_uses_what_is_left_of_the_reserve() -> None:
    disk, log = full()
    journal = log.journal(1)
    for index in range(1, 2 * IN_A_SEGMENT + 1):
        journal.append([BODY], index, 1)
        log.sync()
    disk.power_cut(3)
    disk.capacity = disk.used_bytes() + MANIFEST_ROOM // 4
    log = opened(disk)
    assert log.journal(1).last_index == 2 * IN_A_SEGMENT
    assert fill(log) == IN_A_SEGMENT


def test_a_reserve_file_that_a_power_cut_has_shortened_is_made_again() -> None:
    for seed in range(20):
        disk = SimDisk(seed)
        opened(disk)
        disk.power_cut(seed)
        log = opened(disk)
        assert log.space().reserve_bytes == RESERVE_SEGMENTS * RESERVED
        assert {len(disk.names[DIRECTORY / name].data) for name in reserve_files(disk)} == {RESERVED}


def test_a_smaller_reserve_than_before_gives_the_rest_back() -> None:
    disk = SimDisk()
    opened(disk)
    disk.restart()
    opened(disk, segments=1)
    assert reserve_files(disk) == ["reserve-1.space"]


def test_a_snapshot_that_finds_no_room_takes_it_from_the_reserve() -> None:
    disk, log = full()
    fill(log)
    log.journal(1).save_snapshot(2, 1, bytes(SEGMENT))
    assert len(reserve_files(disk)) == COLLECTOR_SEGMENTS - 1
    log.journal(1).save_snapshot(3, 1, bytes(SEGMENT))
    with pytest.raises(LogFull, match="snapshot of group 1 at 4"):
        log.journal(1).save_snapshot(4, 1, bytes(2 * SEGMENT))
    assert log.failure is None
    log.sync()
    disk.power_cut(2)
    assert opened(disk).journal(1).load_snapshot() == (3, 1, bytes(SEGMENT))


def test_a_snapshot_on_a_broken_disk_stops_the_log() -> None:
    disk = SimDisk()
    log = opened(disk)
    log.journal(1).append([BODY], 1, 1)
    log.sync()
    disk.fail_at[len(disk.operations) + 1] = errno.EIO
    with pytest.raises(LogFailed, match="snapshot"):
        log.journal(1).save_snapshot(1, 1, b"state")
    with pytest.raises(LogFailed):
        log.sync()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_every_failing_operation_of_a_roll_from_the_reserve_stops_the_log_or_loses_nothing(
    number: int,
) -> None:
    """And every crash in it."""

    def prepared() -> tuple[SimDisk, Log]:
        disk, log = full()
        journal = log.journal(1)
        for index in range(1, 2 * IN_A_SEGMENT + 1):
            journal.append([BODY], index, 1)
            log.sync()
        return disk, log

    disk, log = prepared()
    start = len(disk.operations)
    log.journal(1).append([BODY], 7, 1)
    log.sync()
    points = range(start, len(disk.operations))
    assert "rename" in disk.operations[start:]
    refused = failed = 0
    for point in points:
        disk, log = prepared()
        disk.fail_at[point] = number
        last = 6
        try:
            log.journal(1).append([BODY], 7, 1)
            log.sync()
            last = 7
        except LogFull:
            refused += 1
            assert log.failure is None
        except LogFailed:
            failed += 1
        disk.power_cut(point)
        log = opened(disk)
        assert log.journal(1).last_index >= last
        assert [log.read(1, index) for index in range(1, last + 1)] == [BODY] * last
    assert failed
    assert refused or number == errno.EIO


def test_on_a_real_file_system(tmp_path: Path) -> None:
    """The calls that the simulated disk stands for: allocated files that are renamed, shortened, written."""
    log = Log.open(tmp_path, segment_bytes=SEGMENT, recent_bytes=0, reserve_segments=RESERVE_SEGMENTS)
    names = {path.name: path.stat() for path in tmp_path.glob("reserve-*")}
    assert {found.st_size for found in names.values()} == {RESERVED}
    assert all(found.st_blocks * 512 >= RESERVED for found in names.values()), "allocated, not only long"
    reserve = Reserve(log.files, tmp_path, segments=RESERVE_SEGMENTS, segment_bytes=SEGMENT)
    reserve.open()
    path = segment_path(tmp_path, 50)
    assert reserve.take(path, SEGMENT)
    assert path.with_name(path.name + ".new").stat().st_ino in {found.st_ino for found in names.values()}
    assert reserve.release()
    assert len(list(tmp_path.glob("reserve-*"))) == 1
    log.close()
