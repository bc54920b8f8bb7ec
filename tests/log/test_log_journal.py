"""What a journal answers: entries, terms, cuts, hard state, snapshots, and what it costs in memory."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum.log import EntryMissing, Journal, Log, LogDamaged, LogFailed, RecordKind
from quorum.log.reader import ENTRY_OVERHEAD_BYTES, RecentBodies
from quorum.log.snapshots.snapshot_files import CHUNK_BYTES, SnapshotDamaged, decode_snapshot, encode_snapshot
from support.log.damage import make_unreadable
from support.log.disk import Crashed, SimDisk
from support.log.model import DIRECTORY

STATE = bytes(range(256)) * 10


def opened(disk: SimDisk, recent_bytes: int = 1 << 20, segment_bytes: int = 1 << 20) -> Log:
    disk.restart()
    return Log.open(DIRECTORY, disk, segment_bytes=segment_bytes, recent_bytes=recent_bytes)


def filled(log: Log, last: int = 10, group: int = 1) -> Journal:
    """Entries 1..last, two a term."""
    journal = log.journal(group)
    for index in range(1, last + 1):
        journal.append([f"body {index}".encode()], index, (index + 1) // 2)
    log.sync()
    return journal


def snapshot_files(disk: SimDisk) -> list[str]:
    return sorted(name.name for name in disk.names if name.parent.name == "snapshots")


def test_a_new_journal_is_empty() -> None:
    journal = opened(SimDisk()).journal(1)
    assert (journal.first_index, journal.last_index, journal.hard_state) == (1, 0, (0, None))
    assert journal.term_at(0) == 0
    assert journal.hard_state_lsn == 0
    assert journal.load_snapshot() is None
    for ask in (journal.term_at, journal.length_at, journal.lsn_at, journal.read):
        with pytest.raises(EntryMissing):
            ask(1)


def test_entries_are_answered_before_and_after_the_sync_and_the_reopening() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = log.journal(4)
    lsn = journal.append([b"ab", memoryview(b"cd"), b""], 1, 3)
    assert journal.read(1) == b"abcd"
    log.sync()
    for again in (journal, opened(disk, recent_bytes=0).journal(4)):
        assert again.read(1) == b"abcd"
        assert (again.length_at(1), again.term_at(1), again.lsn_at(1)) == (4, 3, lsn)


def test_a_single_bytes_object_is_not_copied() -> None:
    log = opened(SimDisk())
    body = b"x" * 1000
    log.journal(1).append([body], 1, 1)
    assert log.read(1, 1) is body


@pytest.mark.parametrize(("index", "term"), [(10, 9), (12, 9), (11, 4)])
def test_an_entry_that_does_not_follow_is_refused_and_leaves_no_trace(index: int, term: int) -> None:
    log = opened(SimDisk())
    journal = filled(log)
    before = log.last_lsn
    with pytest.raises(ValueError):
        journal.append([b"x"], index, term)
    assert (log.last_lsn, journal.last_index) == (before, 10)


def test_groups_do_not_see_each_other() -> None:
    log = opened(SimDisk())
    filled(log, 3, group=1)
    filled(log, 5, group=9)
    log.journal(5)
    log.journal(1).truncate_from(2)
    assert (log.journal(1).last_index, log.journal(9).last_index) == (1, 5)
    assert log.groups() == [1, 9]
    with pytest.raises(ValueError):
        log.journal(1 << 32)


def test_a_cut_is_remembered_and_the_new_entries_win() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    journal.truncate_from(6)
    assert journal.last_index == 5
    with pytest.raises(EntryMissing):
        journal.read(6)
    journal.append([b"other 6"], 6, 7)
    log.sync()
    for again in (journal, opened(disk, recent_bytes=0).journal(1)):
        assert again.last_index == 6
        assert again.read(6) == b"other 6"
        assert [again.term_at(index) for index in range(7)] == [0, 1, 1, 2, 2, 3, 7]
        with pytest.raises(EntryMissing):
            again.read(7)


@pytest.mark.parametrize("index", [0, 3, 11])
def test_a_cut_outside_the_view_is_refused(index: int) -> None:
    log = opened(SimDisk())
    journal = filled(log)
    journal.compact_to(4, 2)
    with pytest.raises(ValueError):
        journal.truncate_from(index)
    assert journal.last_index == 10


def test_after_compaction_the_view_is_shorter_and_bodies_stay() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    journal.compact_to(6, 3)
    log.sync()
    for again in (journal, opened(disk, recent_bytes=0).journal(1)):
        assert (again.first_index, again.last_index) == (6, 10)
        assert again.term_at(5) == 3
        assert again.read(2) == b"body 2"
        with pytest.raises(EntryMissing):
            again.term_at(4)
        with pytest.raises(EntryMissing):
            again.length_at(5)


def test_compaction_checks_the_term_and_repeats_cost_nothing() -> None:
    log = opened(SimDisk())
    journal = filled(log)
    with pytest.raises(ValueError):
        journal.compact_to(6, 9)
    with pytest.raises(ValueError):
        journal.compact_to(11, 5)
    lsn = journal.compact_to(6, 3)
    assert journal.compact_to(6, 3) == lsn
    assert journal.compact_to(2, 1) == lsn
    assert journal.first_index == 6


def test_an_installed_snapshot_replaces_the_view() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    journal.reset_to_snapshot(100, 20, keep_bodies_to=7)
    assert (journal.first_index, journal.last_index) == (101, 100)
    journal.append([b"next"], 101, 20)
    log.sync()
    for again in (journal, opened(disk, recent_bytes=0).journal(1)):
        assert (again.first_index, again.last_index, again.term_at(100), again.term_at(101)) == (
            101,
            101,
            20,
            20,
        )
        assert (again.read(7), again.read(101)) == (b"body 7", b"next")
        for index in (8, 10, 50, 100, 102):
            with pytest.raises(EntryMissing):
                again.read(index)


@pytest.mark.parametrize(("kept", "readable"), [((6, 4), 4), ((6, 6), 6), ((6, 9), 6), ((15, 12), 10)])
def test_what_one_installed_snapshot_removed_stays_removed_with_the_next(
    kept: tuple[int, int], readable: int
) -> None:
    disk = SimDisk()
    log = opened(disk)
    log.put_copy(1, 2, 9, [b"of another history"])
    journal = filled(log)
    for index, keep_to in zip((20, 30), kept, strict=True):
        journal.reset_to_snapshot(index, 5, keep_bodies_to=keep_to)
    log.sync()
    for again in (log, opened(disk)):
        for index in range(1, readable + 1):
            assert again.read(1, index) == b"body %d" % index
        for index in range(readable + 1, 11):
            with pytest.raises(EntryMissing):
                again.read(1, index)


def test_hard_state_is_durable_at_its_lsn() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = log.journal(2)
    assert journal.set_hard_state(3, "nöde") == journal.hard_state_lsn == 1
    log.sync()
    journal.set_hard_state(4, None)
    assert journal.hard_state == (4, None)
    with pytest.raises(ValueError):
        journal.set_hard_state(3, None)
    assert opened(disk).journal(2).hard_state == (3, "nöde")


def test_unsynced_records_of_a_closed_log_are_gone() -> None:
    disk = SimDisk()
    log = opened(disk)
    filled(log, 2)
    log.journal(1).append([b"lost"], 3, 2)
    log.close()
    assert opened(disk).journal(1).last_index == 2


def test_unknown_kinds_and_oversized_bodies_are_refused() -> None:
    log = opened(SimDisk())
    with pytest.raises(ValueError):
        log.append(99, 1, 1, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        log.append(RecordKind.HARD_STATE, 1, 1, 1, [b"rubbish"])
    assert log.last_lsn == 0


def test_recent_bodies_are_read_without_the_disk_and_bounded_by_bytes() -> None:
    disk = SimDisk()
    log = opened(disk, recent_bytes=50_000, segment_bytes=4 << 20)
    for index in range(1, 301):
        log.journal(1).append([bytes(1000)], index, 1)
    log.sync()
    disk.reads = 0
    for index in range(270, 301):
        log.read(1, index)
    assert disk.reads == 0
    log.read(1, 5)
    assert disk.reads == 1


def test_recent_bodies_never_drop_what_is_not_written() -> None:
    recent = RecentBodies(1000)
    for lsn in range(1, 50):
        recent.add(lsn, bytes(100), 20)
    assert [lsn for lsn in range(1, 50) if recent.get(lsn) is not None] == list(range(21, 50))
    recent.trim(49)
    assert recent.size_bytes <= 1000
    recent = RecentBodies(100_000)
    for lsn in range(1, 5000):
        recent.add(lsn, b"", lsn)
    assert recent.size_bytes <= 100_000
    assert ENTRY_OVERHEAD_BYTES * sum(recent.get(lsn) is not None for lsn in range(1, 5000)) <= 100_000


def test_an_entry_costs_about_twenty_bytes_of_memory() -> None:
    log = opened(SimDisk(), recent_bytes=0, segment_bytes=32 << 20)
    journal = log.journal(1)
    for index in range(1, 20_001):
        journal.append([b"0123456789" * 20], index, 1 + index // 5000)
        if not index % 500:
            log.sync()
    assert journal.memory_bytes() / 20_000 < 24


# ---- the quiet mark


def test_the_mark_is_written_once_after_ten_quiet_milliseconds() -> None:
    log = opened(SimDisk())
    assert not log.mark_if_quiet(0)
    log.journal(1).append([b"x"], 1, 1)
    assert [log.mark_if_quiet(now) for now in (0, 20, 40)] == [False] * 3, "not synced: not quiet"
    log.sync()
    assert [log.mark_if_quiet(now) for now in (45, 49)] == [False] * 2
    assert log.mark_if_quiet(50)
    assert log.synced_lsn == log.last_lsn == 2
    assert [log.mark_if_quiet(now) for now in (60, 100)] == [False] * 2
    log.journal(1).append([b"x"], 2, 1)
    log.sync()
    assert [log.mark_if_quiet(now) for now in (105, 114, 115)] == [False, False, True]


# ---- snapshots


@given(state=st.binary(max_size=3000), index=st.integers(1, 1 << 40), term=st.integers(0, 1 << 40))
def test_a_snapshot_file_decodes_to_what_went_in(state: bytes, index: int, term: int) -> None:
    assert decode_snapshot(b"".join(encode_snapshot(5, index, term, state)), 5) == (index, term, state)


def test_any_flipped_bit_or_cut_of_a_snapshot_is_noticed() -> None:
    state = bytes(range(256)) * (CHUNK_BYTES // 256) + b"second chunk"
    data = b"".join(encode_snapshot(5, 7, 2, state))
    assert decode_snapshot(data, 5) == (7, 2, state)
    places = [*range(120), *range(120, len(data), 50_021), *range(len(data) - 40, len(data))]
    for place in places:
        bad = bytearray(data)
        bad[place] ^= 1 << place % 8
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(bytes(bad), 5)
    for length in (0, 10, 51, 60, CHUNK_BYTES, len(data) - 1):
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(data[:length], 5)
    for wrong in (data + b"x", data):
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(wrong, 6)


def test_the_last_two_snapshots_are_kept_and_the_newest_is_loaded() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    for index in (2, 4, 6):
        journal.save_snapshot(index, index // 2, STATE + bytes([index]))
    log.journal(2).save_snapshot(1, 1, b"other group")
    assert len(snapshot_files(disk)) == 3
    assert opened(disk).journal(1).load_snapshot() == (6, 3, STATE + b"\6")
    assert opened(disk).journal(2).load_snapshot() == (1, 1, b"other group")


def damage_newest(disk: SimDisk, which: int = -1) -> None:
    name = snapshot_files(disk)[which]
    disk.flip(DIRECTORY / "snapshots" / name, 8 * 60)


def test_a_damaged_snapshot_falls_back_and_the_view_begins_earlier_again() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    journal.save_snapshot(4, 2, b"at 4")
    journal.compact_to(4, 2)
    journal.save_snapshot(8, 4, b"at 8")
    journal.compact_to(8, 4)
    log.sync()
    damage_newest(disk)
    journal = opened(disk).journal(1)
    assert journal.first_index == 8
    assert journal.load_snapshot() == (4, 2, b"at 4")
    assert len(journal.damaged_snapshots) == 1
    assert (journal.first_index, journal.last_index, journal.term_at(5)) == (5, 10, 3)
    journal.save_snapshot(9, 5, b"at 9")
    assert [name[:38] for name in snapshot_files(disk)] == [
        "group-00000001-index-0000000000000004-",
        "group-00000001-index-0000000000000009-",
    ]
    log = opened(disk)
    journal = log.journal(1)
    assert (journal.first_index, journal.load_snapshot()) == (5, (9, 5, b"at 9"))
    journal.compact_to(6, 3)
    log.sync()
    assert opened(disk).journal(1).first_index == 6


@pytest.mark.parametrize("rolls", [(), (4,), (7, 10)])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_view_that_begins_earlier_again_has_all_its_entries(
    rolls: tuple[int, ...], *, is_open: bool
) -> None:
    """Those in the active segment and those in sealed ones, in the log that is open and at the next start."""
    disk = SimDisk()
    log = opened(disk, recent_bytes=0)
    journal = filled(log, 2)
    journal.save_snapshot(2, 1, b"at 2")
    for index in range(3, 13):
        if index in rolls:
            log._roll(0, 1)
        journal.append([b"body" * index], index, (index + 1) // 2)
    journal.save_snapshot(11, 6, b"at 11")
    journal.compact_to(12, 6)
    log.sync()
    damage_newest(disk)
    for _ in range(2):
        if not is_open:
            journal = opened(disk, recent_bytes=0).journal(1)
        is_open = False
        assert journal.load_snapshot() == (2, 1, b"at 2")
        assert (journal.first_index, journal.last_index) == (3, 12)
        assert [journal.term_at(index) for index in range(2, 13)] == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
        assert [journal.read(index) for index in range(3, 13)] == [b"body" * index for index in range(3, 13)]
        assert [journal.length_at(index) for index in range(3, 13)] == [4 * index for index in range(3, 13)]


def test_a_view_that_was_found_to_be_whole_begins_earlier_whatever_is_damaged_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    journal.save_snapshot(8, 4, b"at 8")
    log._roll(0, 1)
    journal.compact_to(8, 4)
    log.sync()
    damage_newest(disk)
    log = opened(disk)
    fold = log._contents.fold
    [sealed] = log._store.history.sealed

    def damaged(*given: Any, **named: Any) -> None:
        make_unreadable(disk, log, sealed)
        fold(*given, **named)

    monkeypatch.setattr(log._contents, "fold", damaged)
    journal = log.journal(1)
    assert journal.load_snapshot() is None
    assert (journal.first_index, journal.last_index, journal.term_at(0)) == (1, 10, 0)


@pytest.mark.parametrize("seed", range(4))
def test_wrong_snapshots_are_removed_durably_and_the_first_right_one_stays(seed: int) -> None:
    disk = SimDisk()
    journal = filled(opened(disk))
    for index, term in ((4, 2), (8, 4)):
        journal.save_snapshot(index, term, b"state")
    journal.remove_snapshots_before(8)
    assert journal.snapshot_indices() == [8]
    disk.power_cut(seed)
    assert len(snapshot_files(disk)) == 1
    assert opened(disk).journal(1).load_snapshot() == (8, 4, b"state")


def test_a_disk_error_while_wrong_snapshots_are_removed_is_final() -> None:
    disk = SimDisk()
    journal = filled(log := opened(disk))
    journal.save_snapshot(4, 2, b"at 4")
    disk.fail_at[len(disk.operations)] = errno.EIO
    with pytest.raises(LogFailed, match="remove snapshots of group 1"):
        journal.remove_snapshots_before(5)
    assert isinstance(log.failure, LogFailed)


def test_with_all_snapshots_damaged_the_whole_log_is_the_state_as_long_as_it_is_there() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    journal.save_snapshot(8, 4, b"at 8")
    journal.compact_to(8, 4)
    log.sync()
    damage_newest(disk)
    journal = opened(disk).journal(1)
    assert journal.load_snapshot() is None
    assert (journal.first_index, journal.term_at(0)) == (1, 0)


def test_a_damaged_snapshot_that_nothing_can_replace_is_damage() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    journal.save_snapshot(100, 9, b"installed")
    journal.reset_to_snapshot(100, 9)
    log.sync()
    damage_newest(disk)
    with pytest.raises(LogDamaged, match="needs a snapshot at 100"):
        opened(disk).journal(1).load_snapshot()


def test_a_fallback_to_an_installed_snapshot_finds_the_entries_behind_it() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log)
    journal.save_snapshot(100, 9, b"installed")
    journal.reset_to_snapshot(100, 9)
    for index in range(101, 106):
        journal.append([b"x"], index, 9)
    journal.save_snapshot(103, 9, b"own")
    journal.compact_to(103, 9)
    log.sync()
    damage_newest(disk)
    journal = opened(disk).journal(1)
    assert journal.load_snapshot() == (100, 9, b"installed")
    assert (journal.first_index, journal.last_index, journal.term_at(100)) == (101, 105, 9)


@pytest.mark.parametrize(("index", "term"), [(100, 9), (6, 9)])
def test_an_installation_cut_short_by_a_crash_is_finished(index: int, term: int) -> None:
    """The snapshot is in place, the journal still has the entries of before, or of another history."""
    disk = SimDisk()
    filled(opened(disk)).save_snapshot(index, term, b"installed")
    journal = opened(disk).journal(1)
    assert journal.load_snapshot() == (index, term, b"installed")
    assert (journal.first_index, journal.last_index, journal.term_at(index)) == (index + 1, index, term)
    with pytest.raises(EntryMissing):
        journal.read(3)
    assert opened(disk).journal(1).last_index == index


def test_a_snapshot_never_knows_more_of_the_log_than_the_log() -> None:
    disk = SimDisk()
    log = opened(disk)
    journal = filled(log, 3)
    journal.append([b"four"], 4, 2)
    journal.save_snapshot(4, 2, STATE)
    assert log.synced_lsn == 4
    disk.power_cut(0)
    journal = opened(disk).journal(1)
    assert journal.load_snapshot() == (4, 2, STATE)
    assert journal.read(4) == b"four"


def test_a_crash_at_any_point_of_saving_leaves_the_old_or_the_new_snapshot() -> None:
    seen = set()
    for point in range(20):
        for seed in range(6):
            disk = SimDisk(seed)
            journal = filled(opened(disk), 6)
            journal.save_snapshot(2, 1, b"old")
            journal.save_snapshot(4, 2, b"middle")
            disk.crash_at = len(disk.operations) + point
            done = False
            with suppress(Crashed):
                journal.save_snapshot(6, 3, b"new" * 1000)
                done = True
            disk.power_cut(seed)
            found = opened(disk).journal(1).load_snapshot()
            assert found in [(4, 2, b"middle"), (6, 3, b"new" * 1000)]
            if done:
                assert found == (6, 3, b"new" * 1000)
            seen.add((done, found[0]))
    assert seen == {(True, 6), (False, 4), (False, 6)}
