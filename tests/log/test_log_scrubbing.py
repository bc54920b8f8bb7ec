"""A log that is open looks at all of its files, whatever their kind, and puts right what it knows."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quorum.log import Damage, Log, LogFailed, inspect
from quorum.log.maintenance.examining import Finding, Remedy
from quorum.log.maintenance.scrubber import REMEMBER_BYTES, SCRUBBED
from quorum.log.record import HEADER_BYTES, Stamp
from quorum.log.segment_files.index import index_path
from quorum.log.segment_files.manifest import MANIFEST
from quorum.log.segment_files.scanner import Scanner, headers_from
from quorum.log.segment_files.segments import HEADER_BLOCK, decode_header, segment_path
from support.log.damage import make_unreadable
from support.log.disk import SimDisk, SimFile
from support.log.model import DIRECTORY

ENTRIES = 12


def new_log(disk: SimDisk) -> Log:
    return Log.open(DIRECTORY, disk, segment_bytes=20_000, recent_bytes=0, random_bytes=disk.chance.randbytes)


def filled(disk: SimDisk) -> Log:
    """Twelve entries of 3,000 bytes and a page in two sealed segments and the active one, a vote, two snapshots."""
    log = new_log(disk)
    journal = log.journal(7)
    journal.set_hard_state(1, "somebody")
    for index in range(1, ENTRIES + 1):
        journal.append([body(index)], index, 1)
        log.sync()
        if index in (6, 9):
            journal.save_snapshot(index, 1, b"state" * 1000)
    journal.set_hard_state(2, "another")
    log.sync()
    log.mark_if_quiet(0)
    assert log.mark_if_quiet(10)
    return log


def body(index: int) -> bytes:
    return bytes([index]) * 3000


def scrubbed(log: Log) -> list[Finding]:
    """A round, to its end, and what was mended after it."""
    while log.scrub(4_000):
        pass
    return log.repair()


def active(disk: SimDisk) -> Path:
    return max(name for name in disk.names if name.suffix == ".log")


def flipped(disk: SimDisk, path: Path, byte: int) -> None:
    disk.flip(path, byte * 8 + byte % 8)


def reopened(disk: SimDisk) -> Log:
    disk.restart()
    return new_log(disk)


def is_as_it_was(log: Log) -> None:
    journal = log.journal(7)
    assert (journal.first_index, journal.last_index, journal.hard_state) == (1, ENTRIES, (2, "another"))
    damaged = {damage.known[2] for damage in log.damages if damage.known}
    for index in range(1, ENTRIES + 1):
        if index not in damaged:
            assert log.read(7, index) == body(index)


def test_a_log_that_is_well_is_left_alone() -> None:
    disk = SimDisk()
    log = filled(disk)
    before = {name: bytes(inode.data) for name, inode in disk.names.items()}
    assert scrubbed(log) == []
    assert log.damages == ()
    after = {name: bytes(inode.data) for name, inode in disk.names.items() if name.name != SCRUBBED}
    assert after == before


def heal(log: Log) -> None:
    """What a member does with bodies that others have."""
    for _, term, index in [damage.known for damage in log.damages if damage.known]:
        log.put_copy(7, index, term, [body(index)])
    log.sync()


def used(disk: SimDisk) -> dict[Path, int]:
    """The files in which every bit counts, and how far."""
    last = list(inspect(active(disk), disk))[-1]
    lengths = {
        name: len(inode.data)
        for name, inode in disk.names.items()
        if name.suffix in (".log", ".index", ".snapshot") or name.name == MANIFEST
    }
    lengths[active(disk)] = last.offset + HEADER_BYTES + last.length
    return lengths


def test_every_bit_is_noticed_while_the_log_is_open_and_nothing_is_left_to_repair() -> None:
    """Every sixty-first byte. What the log knows is put back, and what it does not know, bodies, is told; then it opens
    as if nothing had been. Only what a sealed segment has beside bodies may change: nobody needs it any more."""
    noticed: dict[str, int] = {}
    unneeded = {"HARD_STATE", "MARK"}
    disk = SimDisk()
    filled(disk)
    sealed = [name for name in disk.names if name.suffix == ".log" and name != active(disk)]
    garbage = {
        name: [
            range(record.offset, record.offset + HEADER_BYTES + record.length)
            for record in inspect(name, disk)
            if record.kind in unneeded
        ]
        for name in sealed
    }
    for path, length in sorted(used(disk).items()):
        for byte in range(0, length, 61):
            disk = SimDisk()
            log = filled(disk)
            flipped(disk, path, byte)
            told = [str(each) for each in scrubbed(log)] + [str(damage) for damage in log.damages]
            if any(byte in place for place in garbage.get(path, ())):
                assert told == []
                continue
            assert len(told) in (1, 2), f"{path} at byte {byte}: {told}"
            assert all(str(path) in each for each in told), f"{path} at byte {byte}: {told}"
            assert not scrubbed(log), "it was put right"
            is_as_it_was(log)
            heal(log)
            log.journal(7).save_snapshot(ENTRIES, 1, b"newer")
            assert log.journal(7).damaged_snapshots == ()
            is_as_it_was(reopened(disk))
            noticed[path.suffix] = noticed.get(path.suffix, 0) + 1
    assert min(noticed[suffix] for suffix in (".log", ".index", ".snapshot", "")) > 5
    assert noticed[".log"] > 500


def cut_off(disk: SimDisk, path: Path) -> None:
    """The second half of a file is gone."""
    data = disk.names[path].data
    del data[len(data) // 2 :]


def remove(disk: SimDisk, path: Path) -> None:
    del disk.names[path]


@pytest.mark.parametrize("harm", [cut_off, remove])
def test_a_file_that_is_gone_or_cut_off_under_an_open_log_is_put_back(
    harm: Callable[[SimDisk, Path], None],
) -> None:
    disk = SimDisk()
    filled(disk)
    for path in sorted(used(disk)):
        disk = SimDisk()
        log = filled(disk)
        harm(disk, path)
        told = [str(each) for each in scrubbed(log)]
        assert any(str(path) in each for each in told), f"{path}: {told}"
        while scrubbed(log):
            pass
        if harm is remove or path.suffix != ".log":
            assert not log.damages, "what the process has open is copied back"
        heal(log)
        log.journal(7).save_snapshot(ENTRIES, 1, b"newer")
        log = reopened(disk)
        is_as_it_was(log)
        assert log.damages == ()
        assert log.journal(7).load_snapshot() == (ENTRIES, 1, b"newer")


def test_what_changes_under_the_look_is_no_damage() -> None:
    """A roll gives back the end of the old segment, its index file comes a moment later; a collection replaces it."""
    disk = SimDisk()
    log = filled(disk)
    store = log._store
    first, segment = store.history.sealed[0], store.history.sealed[0].segment
    missing = Damage(str(segment.path), 0, None, "it looked so")
    findings = [
        Finding(missing, remedy, segment.number) for remedy in (Remedy.LENGTH, Remedy.NAME, Remedy.BLOCK)
    ]
    index = Finding(replace(missing, path=str(index_path(segment.path))), Remedy.INDEX, first.number)
    active_number = log._writer.active.number
    active_one = Finding(replace(missing, path="active"), Remedy.LENGTH, active_number)
    gone = Finding(replace(missing, path="gone"), Remedy.NAME, 4711)
    log._scrubber._findings.add([*findings, index, active_one, gone])
    before = {name: bytes(inode.data) for name, inode in disk.names.items()}
    assert log.repair() == []
    assert {name: bytes(inode.data) for name, inode in disk.names.items()} == before


def test_an_index_file_is_written_again_although_its_segment_cannot_be_read_any_more() -> None:
    disk = SimDisk()
    log = filled(disk)
    first = log._store.history.sealed[0]
    remove(disk, index_path(first.segment.path))
    while log.scrub(4_000):
        pass
    make_unreadable(disk, log, first)
    assert [finding.remedy for finding in log.repair()] == [Remedy.INDEX]
    scrubbed(log)
    heal(log)
    is_as_it_was(reopened(disk))


def test_a_file_that_is_removed_between_its_check_and_its_repair_is_copied_back() -> None:
    disk = SimDisk()
    log = filled(disk)
    path = log._store.history.sealed[0].segment.path
    flipped(disk, path, 20)
    while log.scrub(4_000):
        pass
    remove(disk, path)
    assert [finding.remedy for finding in log.repair()] == [Remedy.BLOCK]
    assert scrubbed(log) == []
    is_as_it_was(reopened(disk))


def test_a_removed_file_is_copied_back_as_far_as_it_can_be_read() -> None:
    disk = SimDisk()
    log = filled(disk)
    segment = log._store.history.sealed[0].segment
    bad = disk.names[segment.path]
    place = HEADER_BLOCK + 2 * (HEADER_BYTES + 3000) + 1500
    bad.unreadable = range(place, place + 1)
    remove(disk, segment.path)
    scrubbed(log)
    assert disk.names[segment.path] is not bad
    damaged = {damage.known[2] for damage in log.damages if damage.known}
    heal(log)
    is_as_it_was(reopened(disk))
    assert damaged == {3}


def test_a_damaged_body_is_noted_although_the_segment_of_its_copy_cannot_be_read() -> None:
    """A segment of copies covers the indexes of all earlier segments."""
    disk = SimDisk()
    log = filled(disk)
    for index in (1, ENTRIES):
        log.put_copy(7, index, 1, [body(index)])
    log.journal(7).compact_to(ENTRIES, 1)
    log._roll(0, 1)
    first, *_, copies = log._store.history.sealed
    flipped(disk, first.segment.path, HEADER_BLOCK + 2 * (HEADER_BYTES + 3000))
    make_unreadable(disk, log, copies)
    assert any(str(copies.segment.path) in str(finding) for finding in scrubbed(log))
    assert [damage.known for damage in log.damages] == [(7, 1, 2)]
    heal(log)
    assert log.read(7, 2) == body(2)


def test_a_segment_that_was_checked_is_held_no_longer() -> None:
    """Else its file would stay open, and on the disk, after it was collected."""
    log = filled(SimDisk())
    store, (active_segment, _) = log._store, log._writer.extent
    segments = [*(sealed.segment for sealed in store.history.sealed), active_segment]
    before = [segment.holders for segment in segments]
    scrubbed(log)
    assert [segment.holders for segment in segments] == before


def test_a_piece_of_a_round_is_about_as_large_as_allowed() -> None:
    disk = SimDisk()
    log = Log.open(DIRECTORY, disk, segment_bytes=100_000, recent_bytes=0)
    for index in range(1, 61):
        log.journal(7).append([body(index)], index, 1)
        log.sync()
    record = HEADER_BYTES + 3_000
    bodies = [path for path in disk.names if path.suffix == ".log"]
    assert len(bodies) == 2
    budget = 10 * record
    reads: list[int] = []
    while True:
        before = disk.reads
        if not log.scrub(budget):
            break
        reads.append(disk.reads - before)
    assert 60 // 11 <= len(reads) <= 60 // 9 + 4
    assert max(reads) <= 10 + 10, "bodies, and what is read of other files"


def test_a_round_ends_however_much_comes_in() -> None:
    disk = SimDisk()
    log = filled(disk)
    store, index, checked, calls = log._store, ENTRIES, 0, 0
    there_at_first = ENTRIES * (HEADER_BYTES + 3000)
    flipped(disk, store.history.sealed[0].segment.path, HEADER_BLOCK + HEADER_BYTES + 500)
    while (done := log.scrub(1_000)) and calls < 40:
        calls += 1
        checked += done
        for _ in range(3):
            index += 1
            log.journal(7).append([bytes(3000)], index, 2)
            log.sync()
    assert calls < 40, "the round never ends"
    assert there_at_first <= checked < there_at_first + index * 3000 // 2
    assert len(log.damages) == 1, "the round has looked at what was there when it began"


def test_scrubbing_goes_on_after_a_restart_where_it_was() -> None:
    """A member that is started again and again still looks at its last segments."""
    disk = SimDisk()
    log = Log.open(DIRECTORY, disk, segment_bytes=1 << 20, recent_bytes=0, random_bytes=disk.chance.randbytes)
    journal = log.journal(7)
    count = 4 * REMEMBER_BYTES // (512 << 10)
    for index in range(1, count + 1):
        journal.append([bytes([index % 250]) * (512 << 10)], index, 1)
        log.sync()
    last = sorted(name for name in disk.names if name.suffix == ".log")[-2]
    flipped(disk, last, HEADER_BLOCK + HEADER_BYTES + 100)
    for _ in range(10):
        disk.restart()
        log = Log.open(DIRECTORY, disk, segment_bytes=1 << 20, recent_bytes=0)
        checked = 0
        while checked < REMEMBER_BYTES + (2 << 20) and (piece := log.scrub(1 << 20)):
            checked += piece
        if log.damages:
            return
    raise AssertionError("it never comes to the last segment")


@pytest.mark.parametrize("data", [b"", b"17\n", b"17\ncrc32c 00000000\n", b"\xff" * 40])
def test_a_bad_file_about_how_far_it_has_come_means_the_beginning(data: bytes) -> None:
    disk = SimDisk()
    log = filled(disk)
    assert scrubbed(log) == []
    disk.names[DIRECTORY / SCRUBBED].data[:] = data
    flipped(disk, segment_path(DIRECTORY, 1), HEADER_BLOCK + 100 + HEADER_BYTES)
    log = reopened(disk)
    scrubbed(log)
    assert len(log.damages) == 1


@pytest.mark.parametrize("later", [0, 1])
def test_a_failed_disk_ends_the_log_also_where_the_place_of_a_round_is_kept(later: int) -> None:
    disk = SimDisk()
    log = filled(disk)
    disk.fail_at[len(disk.operations) + later] = errno.EIO
    with pytest.raises(LogFailed, match=f"could not write {DIRECTORY / SCRUBBED}"):
        scrubbed(log)
    assert isinstance(log.failure, LogFailed)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_round_ends_without_room_for_its_place(number: int) -> None:
    disk = SimDisk()
    log = filled(disk)
    disk.fail_at[len(disk.operations)] = number
    assert scrubbed(log) == []
    assert DIRECTORY / SCRUBBED not in disk.names
    assert log.failure is None
    assert scrubbed(log) == []
    assert DIRECTORY / SCRUBBED in disk.names


def test_a_segment_that_is_cut_while_it_is_read_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    filled(disk)
    path = segment_path(DIRECTORY, 1)
    file = disk.open(path)
    stamp = Stamp(decode_header(file.pread(HEADER_BLOCK, 0), path).file_id)
    whole = list(headers_from(Scanner(path, file, file.size()), stamp, HEADER_BLOCK))
    pread, before = SimFile.pread, disk.reads

    def limited(file: SimFile, length: int, offset: int) -> bytes:
        assert disk.reads < before + 10, "it reads for ever"
        return pread(file, length, offset)

    monkeypatch.setattr(SimFile, "pread", limited)
    was_longer = Scanner(path, file, file.size() + 1_000)
    assert list(headers_from(was_longer, stamp, HEADER_BLOCK)) == whole
