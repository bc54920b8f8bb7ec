"""Damage: a changed bit, a lost or foreign file. It is noticed and named, never cut, never served."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorum.log import Damage, Log, LogDamaged, LogError, LogUnknown, inspect
from quorum.log.record import HEADER_BYTES, Stamp, crc32c
from quorum.log.segment_files.index import index_path
from quorum.log.segment_files.manifest import MANIFEST
from quorum.log.segment_files.segments import HEADER_BLOCK, segment_path
from quorum.log.table import OFFSET_MASK
from support.log.disk import Inode, SimDisk
from support.log.model import DIRECTORY, Script, observe, segment_of, visible

ONE, TWO, THREE = (segment_path(DIRECTORY, number) for number in (1, 2, 3))


def filled(disk: SimDisk, *, marked: bool = True, segment_bytes: int = 20_000) -> Log:
    """A log of one group with twelve entries of 3,000 bytes over several segments, each synced by itself."""
    random_bytes = disk.chance.randbytes
    log = Log.open(DIRECTORY, disk, segment_bytes=segment_bytes, recent_bytes=0, random_bytes=random_bytes)
    journal = log.journal(7)
    for index in range(1, 13):
        journal.append([bytes([index]) * 3000], index, 1)
        log.sync()
    if marked:
        log.mark_if_quiet(0)
        assert log.mark_if_quiet(10)
    return log


def reopened(disk: SimDisk, **options: int) -> Log:
    disk.restart()
    return Log.open(DIRECTORY, disk, **({"segment_bytes": 20_000, "recent_bytes": 0} | options))


def bodies(log: Log) -> list[bytes]:
    return [log.read(7, index) for index in range(1, log.journal(7).last_index + 1)]


def test_any_flipped_bit_is_noticed_or_harmless_and_nothing_wrong_is_ever_read() -> None:
    """Every sixty-first byte of every file. Bodies are noticed when they are read, all else that counts by opening;
    harmless are index files, what sealed segments have beside bodies, and unused rests."""
    script = Script(SimDisk(3), 3, segment_bytes=9_000)
    script.open()
    script.steps(80)
    script.log.sync()
    script.log.mark_if_quiet(script.now_ms)
    script.log.mark_if_quiet(script.now_ms + 10)
    disk = script.disk
    expected = visible(observe(script.log, script.groups))
    records = list(inspect(script_active(disk), disk))
    end = max(record.offset + HEADER_BYTES + record.length for record in records)
    in_bodies = {
        place
        for record in records
        if record.kind == "ENTRY"
        for place in range(record.offset + HEADER_BYTES, record.offset + HEADER_BYTES + record.length)
    }
    refused = bad_bodies = 0
    harmless: dict[str, int] = {}
    for path in [name for name in sorted(disk.names) if name.name != "LOCK"]:
        for byte in range(0, len(disk.names[path].data), 61):
            before = {name: (bytes(inode.data), inode) for name, inode in disk.names.items()}
            disk.flip(path, byte * 8 + byte % 8)
            flipped = bytes(disk.names[path].data)
            disk.restart()
            log = log_or_problem(script)
            if isinstance(log, LogError):
                refused += 1
                assert isinstance(log, LogDamaged)
                assert str(path) in str(log)
                assert bytes(disk.names[path].data) == flipped, "damage leaves the files as they are"
                assert path == script_active(disk) or path.name == "MANIFEST"
            elif differs(log, expected, script.groups):
                bad_bodies += 1
                assert path.suffix == ".log"
            else:
                harmless[path.suffix] = harmless.get(path.suffix, 0) + 1
                assert path != script_active(disk) or byte >= end - HEADER_BYTES or byte in in_bodies, (
                    "only behind the last record, in the mark that ends the log, or in an entry that was cut"
                )
            restore(disk, before)
    assert refused > 40
    assert bad_bodies > 200
    assert harmless[".index"] > 20
    assert harmless[".log"] > 2


def restore(disk: SimDisk, before: dict[Path, tuple[bytes, Inode]]) -> None:
    """The disk as it was."""
    disk.names.clear()
    for name, (data, inode) in before.items():
        inode.data[:] = data
        inode.durable[:] = data
        inode.forget()
        disk.names[name] = inode


def differs(log: Log, expected: dict[int, tuple[Any, ...]], groups: int) -> bool:
    """Whether bodies cannot be read. All that can be is as it was, and what cannot is listed and found by scrubbing,
    until a copy of the body heals it."""
    missing = []
    for group in range(groups):
        first, last, hard, bodies, terms = expected[group]
        journal = log.journal(group)
        assert (journal.first_index, journal.last_index, journal.hard_state) == (first, last, hard)
        assert {index: journal.term_at(index) for index in terms} == terms
        for index, body in bodies.items():
            try:
                assert log.read(group, index) == body
            except LogDamaged:
                missing.append((group, index, terms.get(index), body))
    read = {(damage.known[0], damage.known[2]) for damage in log.damages if damage.known}
    assert read == {(group, index) for group, index, _, _ in missing}
    assert [damage.kind for damage in log.damages] == ["ENTRY"] * len(missing)
    while log.scrub(3_000):
        pass
    assert len(log.damages) == len(missing), "reading has found everything that scrubbing finds"
    for group, index, term, body in missing:
        known = next(damage.known for damage in log.damages if damage.known and damage.known[2] == index)
        assert term in {None, known[1]}
        assert list(log.missing(group, array("Q", [index]))) == [index]
        log.put_copy(group, index, known[1], [body])
        assert log.read(group, index) == body
        assert not log.missing(group, array("Q", [index]))
    assert log.damages == ()
    return bool(missing)


def log_or_problem(script: Script) -> Log | LogError:
    try:
        return script.open_log()
    except LogError as error:
        return error


def script_active(disk: SimDisk) -> Path:
    return max(name for name in disk.names if name.suffix == ".log")


def test_a_flipped_bit_while_the_log_is_open_is_noticed_by_the_reader() -> None:
    for place in range(0, HEADER_BYTES + 3000, 101):
        disk = SimDisk()
        log = filled(disk)
        disk.flip(ONE, (HEADER_BLOCK + place) * 8 + 3)
        with pytest.raises(LogDamaged, match="LSN 1"):
            log.read(7, 1)
        assert log.read(7, 2) == b"\2" * 3000


def body_place(index: int) -> int:
    """Where the body of this entry of `filled` begins, in a log of one segment."""
    return HEADER_BLOCK + (index - 1) * (HEADER_BYTES + 3000) + HEADER_BYTES


def test_damage_of_a_body_in_a_sealed_segment_is_found_by_reading_or_scrubbing_and_names_everything() -> None:
    for place, is_read in [(5, True), (5, False), (-20, True), (-20, False)]:
        disk = SimDisk()
        filled(disk)
        disk.flip(ONE, (body_place(2) + place) * 8)
        log = reopened(disk)
        assert log.damages == ()
        if is_read:
            with pytest.raises(LogDamaged):
                log.read(7, 2)
        else:
            while log.scrub(4000):
                pass
        (damage,) = log.damages
        assert (damage.path, damage.offset) == (str(ONE), body_place(2) - HEADER_BYTES)
        assert (damage.lsn, damage.known, damage.kind, damage.affected()) == (2, (7, 1, 2), "ENTRY", (7,))


def test_scrubbing_goes_round_within_its_budget() -> None:
    disk = SimDisk()
    log = filled(disk, segment_bytes=10_000)
    sealed = len([name for name in disk.names if name.suffix == ".log"]) - 1
    for _ in range(2):
        pieces = []
        while checked := log.scrub(3100):
            pieces.append(checked)
        assert len(pieces) >= sealed // 2
        assert max(pieces) < 2 * 3100
        assert sum(pieces) >= sealed * 3056


def flip_block(disk: SimDisk, path: Path) -> None:
    disk.flip(path, 8 * 20)


def flip_padding(disk: SimDisk, path: Path) -> None:
    disk.flip(path, 8 * HEADER_BLOCK - 1)


def lose_block(disk: SimDisk, path: Path) -> None:
    disk.names[path].data[:HEADER_BLOCK] = bytes(HEADER_BLOCK)


def lose_block_and_record(disk: SimDisk, path: Path) -> None:
    """And all of the first record."""
    end = HEADER_BLOCK + HEADER_BYTES + 3000
    disk.names[path].data[:end] = bytes(end)


def lose_block_and_index(disk: SimDisk, path: Path) -> None:
    lose_block(disk, path)
    del disk.names[index_path(path)]


@pytest.mark.parametrize("path", [ONE, TWO])
@pytest.mark.parametrize(
    "harm", [flip_block, flip_padding, lose_block, lose_block_and_record, lose_block_and_index]
)
def test_a_sealed_segment_whose_first_block_is_bad_keeps_its_records(
    harm: Callable[[SimDisk, Path], None], path: Path
) -> None:
    """The manifest has what the block had. A bad record is repaired as everywhere."""
    disk = SimDisk()
    expected = bodies(filled(disk))
    harm(disk, path)
    log = reopened(disk)
    assert [damage.path for damage in log.block_damages] == [str(path)]
    lost = lose_block_and_record is harm
    if lost:
        [(_, _, index)] = [damage.known for damage in scrubbed(log) if damage.known]
        log.put_copy(7, index, 1, [expected[index - 1]])
        log.sync()
    assert bodies(log) == expected
    log = reopened(disk)
    assert log.block_damages == (), "the block was written again"
    assert bodies(log) == expected
    assert not lost or log.damages == ()


def scrubbed(log: Log) -> tuple[Damage, ...]:
    """What a round finds. The log's own files are right."""
    while log.scrub(4_000):
        pass
    assert log.repair() == []
    return log.damages


def test_a_first_block_that_the_disk_cannot_read_is_written_again() -> None:
    disk = SimDisk()
    expected = bodies(filled(disk))
    disk.names[ONE].unreadable = range(HEADER_BLOCK)
    log = reopened(disk)
    assert "cannot be read" in log.block_damages[0].reason
    assert bodies(log) == expected


def test_a_bad_first_block_of_the_active_segment_refuses() -> None:
    """How long the file was is only there."""
    disk = SimDisk()
    filled(disk)
    flip_block(disk, THREE)
    before = {name: bytes(inode.data) for name, inode in disk.names.items()}
    with pytest.raises(LogDamaged, match="first block"):
        reopened(disk)
    assert {name: bytes(inode.data) for name, inode in disk.names.items()} == before


def test_a_log_that_is_refused_keeps_a_bad_first_block_as_it_is() -> None:
    disk = SimDisk()
    filled(disk)
    flip_block(disk, ONE)
    disk.flip(THREE, (HEADER_BLOCK + 5) * 8)
    before = bytes(disk.names[ONE].data)
    with pytest.raises(LogDamaged):
        reopened(disk)
    assert bytes(disk.names[ONE].data) == before


def test_a_missing_or_bad_index_file_is_made_again_and_that_finds_damage() -> None:
    disk = SimDisk()
    filled(disk)
    index = index_path(ONE)
    good = bytes(disk.names[index].data)
    del disk.names[index]
    log = reopened(disk)
    assert bodies(log) == [bytes([number]) * 3000 for number in range(1, 13)]
    assert bytes(disk.names[index].data) == good
    del disk.names[index].data[100:]
    disk.flip(ONE, (body_place(2) + 5) * 8)
    log = reopened(disk)
    assert [damage.known for damage in log.damages] == [(7, 1, 2)]
    log.put_copy(7, 2, 1, [b"\2" * 3000])
    log.sync()
    assert bodies(reopened(disk)) == [bytes([number]) * 3000 for number in range(1, 13)]
    del disk.names[index]
    log = reopened(disk)
    assert log.damages == (), "a copy holds in its place"
    assert log.read(7, 2) == b"\2" * 3000


def test_an_index_file_that_the_disk_cannot_read_is_made_again_at_the_start() -> None:
    disk = SimDisk()
    filled(disk)
    bad = disk.names[index_path(ONE)]
    bad.unreadable = range(len(bad.data))
    log = reopened(disk)
    assert disk.names[index_path(ONE)] is not bad
    assert bodies(log) == [bytes([number]) * 3000 for number in range(1, 13)]


def test_a_damaged_header_in_a_sealed_segment_without_index_file_refuses() -> None:
    disk = SimDisk()
    filled(disk)
    disk.flip(ONE, (HEADER_BLOCK + 33) * 8)
    del disk.names[index_path(ONE)]
    with pytest.raises(LogDamaged) as caught:
        reopened(disk)
    (damage,) = caught.value.damages
    assert (damage.lsn, damage.known, damage.offset) == (1, None, HEADER_BLOCK)
    assert caught.value.groups is None


def test_a_bad_index_column_is_replaced_by_what_the_segment_says() -> None:
    disk = SimDisk()
    filled(disk)
    index = index_path(ONE)
    disk.flip(index, (len(disk.names[index].data) - 40) * 8)
    assert bodies(reopened(disk)) == [bytes([number]) * 3000 for number in range(1, 13)]


def test_in_the_active_segment_a_later_statement_tells_damage_from_a_torn_end() -> None:
    """Entry 12 was synced but nothing later says so: it is cut. Entry 11 is covered by what 12 states."""
    for index, is_damage in [(11, True), (12, False)]:
        disk = SimDisk()
        filled(disk, marked=False, segment_bytes=1_000_000)
        disk.flip(ONE, (body_place(index) + 44) * 8)
        log = reopened(disk, segment_bytes=1_000_000)
        if is_damage:
            assert log.journal(7).last_index == 12
            assert [(damage.lsn, damage.known) for damage in log.damages] == [(11, (7, 1, 11))]
            with pytest.raises(LogDamaged, match="LSN 11"):
                log.read(7, 11)
            assert log.read(7, 12) == b"\x0c" * 3000
        else:
            assert log.journal(7).last_index == 11
            assert log.damages == ()


def test_several_damaged_bodies_are_all_known_and_stay_so() -> None:
    disk = SimDisk()
    filled(disk, segment_bytes=1_000_000)
    for index in (3, 4, 9):
        disk.flip(ONE, (body_place(index) + 44) * 8)
    for _ in range(3):
        log = reopened(disk, segment_bytes=1_000_000)
        assert [damage.known for damage in log.damages] == [(7, 1, 3), (7, 1, 4), (7, 1, 9)]
    log.put_copy(7, 4, 1, [b"\4" * 3000])
    log.sync()
    assert [damage.lsn for damage in log.damages] == [3, 9]
    log = reopened(disk, segment_bytes=1_000_000)
    assert [damage.lsn for damage in log.damages] == [3, 9]
    assert log.read(7, 4) == b"\4" * 3000


@pytest.mark.parametrize("place", [5, 20, 50])
def test_damage_of_a_header_in_the_active_segment_refuses(place: int) -> None:
    disk = SimDisk()
    filled(disk, segment_bytes=1_000_000)
    disk.flip(ONE, (HEADER_BLOCK + place) * 8)
    with pytest.raises(LogDamaged) as caught:
        reopened(disk, segment_bytes=1_000_000)
    assert caught.value.damages[0].known is None
    assert caught.value.damages[0].lsn == 1
    assert caught.value.groups is None


def test_damage_of_a_vote_refuses_and_names_its_group() -> None:
    disk = SimDisk()
    log = filled(disk, segment_bytes=1_000_000)
    log.journal(9).set_hard_state(4, "somebody")
    log.sync()
    log.mark_if_quiet(20)
    assert log.mark_if_quiet(40)
    data = bytes(disk.names[ONE].data)
    disk.flip(ONE, (data.index(b"somebody") + 2) * 8)
    with pytest.raises(LogDamaged) as caught:
        reopened(disk, segment_bytes=1_000_000)
    assert caught.value.damages[0].kind == "HARD_STATE"
    assert caught.value.groups == (9,)


def test_after_ten_quiet_milliseconds_the_last_record_is_covered_too() -> None:
    disk = SimDisk()
    filled(disk, marked=True, segment_bytes=1_000_000)
    disk.flip(ONE, (body_place(12) + 44) * 8)
    assert [damage.lsn for damage in reopened(disk, segment_bytes=1_000_000).damages] == [12]


def test_opening_states_what_it_found_so_it_cannot_be_cut_later() -> None:
    disk = SimDisk()
    filled(disk, marked=False, segment_bytes=1_000_000)
    reopened(disk, segment_bytes=1_000_000)
    disk.flip(ONE, (body_place(12) + 44) * 8)
    assert [damage.lsn for damage in reopened(disk, segment_bytes=1_000_000).damages] == [12]


def test_a_synced_tail_that_became_zeros_is_damage_when_a_statement_is_left() -> None:
    disk = SimDisk()
    filled(disk, marked=True, segment_bytes=1_000_000)
    start = HEADER_BLOCK + 9 * (HEADER_BYTES + 3000)
    inode = disk.names[ONE]
    inode.data[start : start + 2 * (HEADER_BYTES + 3000)] = bytes(2 * (HEADER_BYTES + 3000))
    with pytest.raises(LogDamaged, match="LSN 10"):
        reopened(disk, segment_bytes=1_000_000)


@pytest.mark.parametrize("path", [ONE, TWO, THREE])
def test_a_segment_that_is_gone_is_damage(path: Path) -> None:
    disk = SimDisk()
    filled(disk)
    assert path in disk.names
    del disk.names[path]
    with pytest.raises(LogDamaged, match="is missing") as caught:
        reopened(disk)
    assert caught.value.groups == (None if path == THREE else (7,))


@pytest.mark.parametrize("path", [ONE, TWO, THREE])
def test_a_shortened_segment_is_damage(path: Path) -> None:
    disk = SimDisk()
    filled(disk)
    del disk.names[path].data[-1:]
    with pytest.raises(LogDamaged, match="shorter"):
        reopened(disk)


def test_a_log_without_its_manifest_is_damage_not_a_new_log() -> None:
    disk = SimDisk()
    filled(disk)
    del disk.names[DIRECTORY / MANIFEST]
    with pytest.raises(LogDamaged, match="does not list"):
        reopened(disk)


def test_an_older_manifest_is_damage() -> None:
    disk = SimDisk()
    log = filled(disk, segment_bytes=1_000_000)
    old = bytes(disk.names[DIRECTORY / MANIFEST].data)
    log.journal(7).append([bytes(900_000)], 13, 1)
    log.journal(7).append([bytes(900_000)], 14, 1)
    log.sync()
    disk.names[DIRECTORY / MANIFEST].data[:] = old
    with pytest.raises(LogDamaged, match="does not list"):
        reopened(disk)


def test_damage_of_an_entry_that_is_cut_is_forgotten() -> None:
    disk = SimDisk()
    log = filled(disk)
    for index in (5, 11):
        found, segment = log._store.look_up(7, index)
        assert found is not None
        assert segment is not None
        disk.flip(segment.path, 8 * ((found.place & OFFSET_MASK) + HEADER_BYTES + 100))
        with pytest.raises(LogDamaged):
            log.read(7, index)
    log.journal(7).truncate_from(10)
    assert [damage.known for damage in log.damages] == [(7, 1, 5)]
    log.journal(7).append([b"other"], 10, 2)
    log.journal(7).append([b"other"], 11, 2)
    assert [damage.known for damage in log.damages] == [(7, 1, 5)]


def test_any_changed_bit_in_the_manifests_title_is_damage_and_no_newer_format() -> None:
    disk = SimDisk()
    filled(disk)
    data = disk.names[DIRECTORY / MANIFEST].data
    for bit in range(8 * (data.index(b"\n") + 1)):
        disk.flip(DIRECTORY / MANIFEST, bit)
        with pytest.raises(LogDamaged):
            reopened(disk)
        disk.flip(DIRECTORY / MANIFEST, bit)
    reopened(disk).close()


def test_a_manifest_of_a_newer_format_is_refused_by_its_name() -> None:
    disk = SimDisk()
    filled(disk)
    rest = b'{"stated": 0, "format": 3}\n'
    disk.names[DIRECTORY / MANIFEST].data[:] = f"quorum-log-manifest 3 {crc32c(rest):08x}\n".encode() + rest
    with pytest.raises(LogUnknown, match="format 3, this program knows 2"):
        reopened(disk)


def test_a_segment_of_a_newer_format_is_refused_by_its_name() -> None:
    disk = SimDisk()
    filled(disk)
    data = disk.names[segment_path(DIRECTORY, 1)].data
    data[8] = 3
    data[56:60] = crc32c(bytes(data[:56])).to_bytes(4, "little")
    with pytest.raises(LogUnknown, match="format 3, this program knows 2"):
        reopened(disk)


def test_a_manifest_whose_lines_do_not_name_the_format_is_read() -> None:
    """As 0.1.0 has written it."""
    disk = SimDisk()
    expected = bodies(filled(disk))
    data = disk.names[DIRECTORY / MANIFEST].data
    rest = bytes(data).partition(b"\n")[2].replace(b', "format": 2}', b"}", 1)
    data[:] = f"quorum-log-manifest 2 {crc32c(rest):08x}\n".encode() + rest
    assert bodies(reopened(disk)) == expected


def test_snapshots_without_a_log_are_damage_not_a_new_log() -> None:
    disk = SimDisk()
    log = filled(disk)
    log.journal(7).save_snapshot(3, 1, b"state")
    for path in [name for name in disk.names if name.parent == DIRECTORY]:
        del disk.names[path]
    with pytest.raises(LogDamaged, match="not new"):
        reopened(disk)


def test_a_segment_of_another_log_is_not_believed() -> None:
    mine, other = SimDisk(1), SimDisk(2)
    filled(mine)
    filled(other)
    mine.names[TWO].data[:] = other.names[TWO].data
    with pytest.raises(LogDamaged, match="another file"):
        reopened(mine)


def test_records_of_a_recycled_file_are_not_believed() -> None:
    """Whole valid records with the right LSNs, but made for another file id, behind the end of the log."""
    mine, other = SimDisk(1), SimDisk(2)
    filled(mine, marked=False, segment_bytes=1_000_000)
    log = filled(other, marked=False, segment_bytes=1_000_000)
    for index in range(13, 20):
        log.journal(7).append([b"foreign"], index, 1)
        log.sync()
    end = HEADER_BLOCK + 12 * (HEADER_BYTES + 3000)
    tail = other.names[ONE].data[end:]
    assert b"foreign" in tail
    mine.names[ONE].data[end:] = tail
    log = reopened(mine, segment_bytes=1_000_000)
    assert log.journal(7).last_index == 12
    assert b"foreign" not in mine.names[ONE].data


def test_a_body_that_contains_a_copy_of_this_very_segment_does_no_harm() -> None:
    """A client may publish what it read from a disk. The copy stands in a good record and is skipped; when
    that record itself is torn, the copy's statements are of LSNs that are there."""
    disk = SimDisk()
    log = filled(disk, marked=False, segment_bytes=1_000_000)
    copy = bytes(disk.names[ONE].data[HEADER_BLOCK : HEADER_BLOCK + 9200])
    log.journal(7).append([copy], 13, 1)
    log.sync()
    assert bodies(reopened(disk, segment_bytes=1_000_000))[12] == copy
    disk = SimDisk()
    log = filled(disk, marked=False, segment_bytes=1_000_000)
    log.journal(7).append([copy], 13, 1)
    log.sync()
    disk.flip(ONE, (HEADER_BLOCK + 12 * (HEADER_BYTES + 3000) + 60) * 8)
    assert reopened(disk, segment_bytes=1_000_000).journal(7).last_index == 12


def test_an_unreadable_place_is_damage_of_that_record_only() -> None:
    disk = SimDisk()
    log = filled(disk)
    disk.bad_reads = True
    with pytest.raises(LogDamaged, match="cannot be read"):
        log.read(7, 3)
    disk.bad_reads = False
    assert log.read(7, 3) == b"\3" * 3000
    log.journal(7).append([b"more"], 13, 1)
    log.sync()


def test_inspect_shows_every_record_and_the_bad_ones() -> None:
    disk = SimDisk()
    filled(disk, segment_bytes=1_000_000)
    good = list(inspect(ONE, disk))
    assert [record.lsn for record in good] == list(range(1, 14))
    assert [record.kind for record in good] == ["ENTRY"] * 12 + ["MARK"]
    assert not any(record.problem for record in good)
    disk.flip(ONE, (good[4].offset + 100) * 8)
    disk.flip(ONE, (good[8].offset + 20) * 8)
    shown = list(inspect(ONE, disk))
    assert [record.lsn for record in shown] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13]
    assert [record.lsn for record in shown if record.problem] == [5, 10]


def test_inspect_shows_what_an_index_file_says() -> None:
    disk = SimDisk()
    log = filled(disk)
    log.write_page(7, [b"page"])
    log.put_copy(7, 2, 1, [b"\2" * 3000])
    for index in range(13, 19):
        log.journal(7).append([bytes(3000)], index, 1)
    paths = sorted(name for name in disk.names if name.suffix == ".index")
    for path in paths:
        shown = list(inspect(path, disk))
        there = [record for record in inspect(path.with_suffix(".log"), disk) if record.kind != "MARK"]
        assert [replace(record, synced=0) for record in there] == shown
    kinds = [record.kind for path in paths for record in inspect(path, disk)]
    assert {"ENTRY", "PAGE", "COPY"} == set(kinds)
    disk.flip(paths[0], 400)
    with pytest.raises(LogDamaged, match="rebuilds it"):
        list(inspect(paths[0], disk))


def test_a_record_is_only_believed_in_the_segment_it_was_made_for() -> None:
    """Not by the magic alone: with the magic forged, the CRC still tells the file ids apart."""
    mine, other = Stamp(b"a" * 16), Stamp(b"b" * 16)
    fields = {"kind": 1, "lsn": 5, "synced": 4, "group": 3, "term": 2, "index": 1}
    header = other.encode(b"body", **fields)
    assert mine.decode(mine.encode(b"body", **fields)) == other.decode(header)
    assert mine.decode(header) is None
    assert mine.decode(mine.magic + header[4:]) is None
    assert 0 not in mine.magic


@pytest.mark.parametrize(
    ("lsn", "index", "message"), [(14, 13, "expected LSN 13"), (13, 15, "next entry is 13")]
)
def test_a_whole_record_that_does_not_follow_is_damage(lsn: int, index: int, message: str) -> None:
    disk = SimDisk()
    log = filled(disk, marked=False, segment_bytes=1_000_000)
    stamp = segment_of(log, 1).stamp
    record = stamp.encode(b"x", kind=1, lsn=lsn, synced=0, group=7, term=1, index=index) + b"x"
    end = HEADER_BLOCK + 12 * (HEADER_BYTES + 3000)
    disk.names[ONE].data[end : end + len(record)] = record
    with pytest.raises(LogDamaged, match=message):
        reopened(disk, segment_bytes=1_000_000)


def test_a_record_kind_of_a_newer_program_is_said_to_be_unknown() -> None:
    disk = SimDisk()
    log = filled(disk, marked=False, segment_bytes=1_000_000)
    record = segment_of(log, 1).stamp.encode(b"", kind=77, lsn=13, synced=0, group=7, term=1, index=1)
    end = HEADER_BLOCK + 12 * (HEADER_BYTES + 3000)
    disk.names[ONE].data[end : end + len(record)] = record
    with pytest.raises(LogUnknown, match="kind 77"):
        reopened(disk, segment_bytes=1_000_000)
