"""The log as a store: pages, bodies from other members, and what is not here."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from quorum.log import EntryMissing, Journal, Log, LogDamaged, NotCached, Retained, writer
from quorum.log.segment_files.segments import HEADER_BLOCK, segment_path
from quorum.replication.log_space import BESIDE_ENTRIES
from support.log.disk import SimDisk
from support.log.model import DIRECTORY
from support.log.usage import usage


def opened(disk: SimDisk, recent_bytes: int = 0, segment_bytes: int = 1 << 20) -> Log:
    disk.restart()
    return Log.open(DIRECTORY, disk, segment_bytes=segment_bytes, recent_bytes=recent_bytes)


def filled(log: Log, last: int = 10, group: int = 1) -> Journal:
    """Entries 1..last of term 1."""
    journal = log.journal(group)
    for index in range(1, last + 1):
        journal.append([b"body %d" % index], index, 1)
    log.sync()
    return journal


def both_lives(log: Log, disk: SimDisk, recent_bytes: int = 0) -> Iterator[Log]:
    """The log as it is, then reopened."""
    yield log
    yield opened(disk, recent_bytes)


def of(*numbers: int) -> array[int]:
    return array("Q", numbers)


@pytest.mark.parametrize("recent_bytes", [0, 1 << 20])
def test_a_page_is_readable_at_once_and_after_the_reopening(recent_bytes: int) -> None:
    disk = SimDisk()
    log = opened(disk, recent_bytes)
    filled(log, 3)
    page = log.write_page(1, [b"block ", b"bytes"])
    other = log.write_page(2, [b""])
    assert (page, other) == (4, 5)
    assert log.read_page(1, page) == b"block bytes"
    log.sync()
    for again in both_lives(log, disk, recent_bytes):
        assert again.read_page(1, page) == b"block bytes"
        assert again.read_page(2, other) == b""
        for group, missing in [(1, 5), (2, 4), (1, 3), (1, 99), (3, 4)]:
            with pytest.raises(EntryMissing):
                again.read_page(group, missing)
        assert again.journal(1).last_index == 3


def test_a_page_that_changed_on_the_disk_is_not_served() -> None:
    disk = SimDisk()
    log = opened(disk)
    page = log.write_page(1, [b"x" * 500])
    log.sync()
    disk.flip(segment_path(DIRECTORY, 1), (HEADER_BLOCK + 200) * 8)
    with pytest.raises(LogDamaged, match="LSN 1"):
        log.read_page(1, page)


def test_a_copy_holds_instead_of_a_damaged_body_and_changes_no_journal() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    disk.flip(segment_path(DIRECTORY, 1), (HEADER_BLOCK + 60) * 8)
    with pytest.raises(LogDamaged):
        log.read(1, 1)
    log.put_copy(1, 1, 1, [b"body ", b"1"])
    log.sync()
    assert log.read(1, 1) == b"body 1"
    assert (journal.first_index, journal.last_index, journal.term_at(1)) == (1, 10, 1)
    with pytest.raises(ValueError, match="6 bytes"):
        log.put_copy(1, 1, 1, [b"other"])
    with pytest.raises(ValueError, match="a copy is of an entry"):
        log.put_copy(1, 0, 1, [b""])


def test_copies_for_a_snapshot_stand_beside_entries_of_another_history() -> None:
    """Bodies come before the snapshot: the journal's own entries hold until the snapshot is in place."""
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    for index in (8, 9, 50):
        log.put_copy(1, index, 3, [b"theirs %d" % index])
    log.sync()
    for again in both_lives(log, disk):
        assert again.read(1, 8) == b"body 8"
        assert again.read(1, 50) == b"theirs 50"
        assert again.read_entry(1, 8) == (1, b"body 8")
        assert again.missing(1, of(5, 6, 8, 10, 11, 50)) == of(11)
        assert again.missing(1, of(5, 6, 8, 10, 11, 50), committed=5) == of(6, 10, 11)
        log = again
    journal = log.journal(1)
    journal.save_snapshot(60, 3, b"state")
    journal.reset_to_snapshot(60, 3, keep_bodies_to=7)
    journal.append([b"next"], 61, 3)
    log.sync()
    for again in both_lives(log, disk):
        assert [again.read(1, index) for index in (7, 8, 9, 50, 61)] == [
            b"body 7",
            b"theirs 8",
            b"theirs 9",
            b"theirs 50",
            b"next",
        ]
        assert again.missing(1, of(1, 7, 8, 9, 10, 50, 60, 61)) == of(10, 60)


def test_an_entry_written_after_the_copy_holds() -> None:
    log = opened(SimDisk())
    journal = filled(log)
    log.put_copy(1, 10, 2, [b"theirs"])
    journal.truncate_from(10)
    assert log.read(1, 10) == b"theirs"
    journal.append([b"theirs"], 10, 2)
    assert log.read_entry(1, 10) == (2, b"theirs")


def test_a_group_that_is_not_here_lacks_everything() -> None:
    log = opened(SimDisk())
    assert log.missing(5, of(1, 2)) == of(1, 2)


def test_what_is_retained_is_told_as_sorted_arrays() -> None:
    log = opened(SimDisk())
    filled(log)
    log.retain(1, [Retained(5, of(1, 3), of()), Retained(8, of(3), of())])
    with pytest.raises(ValueError):
        log.retain(1, [])
    with pytest.raises(ValueError):
        log.retain(1, [Retained(5, array("L", [1]), of())])
    assert log.read(1, 3) == b"body 3"
    used = usage(log)
    assert used.segments == 1
    assert used.total_bytes == used.live_bytes + used.garbage_bytes


def test_a_segment_takes_so_many_records_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SEGMENT_RECORDS", 8)
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log, 20)
    assert log.stats.rolls == 2
    assert log.make_room(10, count=5) and log.stats.rolls == 3, (
        "room is made for all of them before the first"
    )
    for index in range(21, 26):
        journal.append([b"body"], index, 1)
    assert log.stats.rolls == 3
    for again in both_lives(log, disk):
        assert [again.read_entry(1, index)[1] for index in (1, 9, 20)] == [b"body 1", b"body 9", b"body 20"]


@pytest.mark.parametrize("first", ["a term", "a cut"])
def test_room_for_an_append_is_room_for_what_it_writes_before_its_entries(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_RECORDS", 40)
    answers = set()
    for filled_to in range(20, 40):
        disk = SimDisk()
        log = opened(disk)
        journal = filled(log, filled_to)
        disk.room = 0
        has_room = log.make_room(0, 5 + BESIDE_ENTRIES)
        answers.add(has_room)
        if has_room:
            if first == "a term":
                journal.set_hard_state(2, None)
            else:
                journal.truncate_from(filled_to)
            begin = journal.last_index + 1
            for index in range(begin, begin + 5):
                journal.append([b"body"], index, 2)
    assert answers == {True, False}


@pytest.mark.parametrize("size", [10, 100_000])
def test_who_does_not_wait_for_the_disk_is_told_that_a_body_is_there_only(size: int) -> None:
    disk = SimDisk()
    log = opened(disk)
    body = bytes([7]) * size
    log.journal(1).append([body], 1, 1)
    log.sync()
    disk.is_cold = True
    with pytest.raises(NotCached):
        log.read(1, 1, waits=False)
    assert log.read(1, 1) == body
    disk.is_cold = False
    assert log.read(1, 1, waits=False) == body
    assert not log.damages
    disk.is_cold = True
    kept = opened(disk, recent_bytes=1 << 20)
    kept.journal(1).append([body], 2, 1)
    assert kept.read(1, 2, waits=False) == body, "it is in the memory of the log"
