"""Collections: what is live stays, whatever happens meanwhile; what is not goes."""

from __future__ import annotations

import random
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.log import Collection, EntryMissing, Log, LogDamaged, LogFailed, LogFull, Retained, Retention
from quorum.log.files import TEMPORARY
from quorum.log.record import HEADER_BYTES
from quorum.log.segment_files.index import Columns, Sealed, index_path
from quorum.log.segment_files.segments import HEADER_BLOCK, segment_path
from support.examples import examples
from support.log.damage import make_unreadable
from support.log.disk import Crashed, SimDisk
from support.log.model import DIRECTORY, Script, segment_of
from support.log.usage import usage

EVERY = 16
"""Crash points that are tried: one of so many, so that the test takes seconds."""


def run_until_crash(seed: int, crash_at: int | None, steps: int, **options: Any) -> Script:
    """A seeded script that the machine may interrupt at its n-th disk operation."""
    script = Script(SimDisk(seed), seed, is_store=True, segment_bytes=6_000, **options)
    script.disk.crash_at = crash_at
    try:
        script.open()
        script.steps(steps)
        script.compare()
    except Crashed:
        pass
    return script


def test_a_long_script_with_collections_keeps_what_is_live() -> None:
    collected = 0
    for seed in range(5):
        script = run_until_crash(seed, None, 400)
        collected += script.collected
        for _ in range(3):
            script.disk.restart()
            script.reopen_and_compare()
            script.steps(60)
            script.compare()
    assert collected > 30


def test_every_crash_point_of_a_script_with_collections() -> None:
    whole = run_until_crash(3, None, 260)
    assert whole.collected > 5
    points = len(whole.disk.operations)
    for point in range(3, points, EVERY):
        script = run_until_crash(3, point, 260)
        if point % 3:
            script.disk.power_cut(point)
        else:
            script.disk.restart()
        script.reopen_and_compare()
        script.steps(8)
        script.compare()


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    lives=st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 150), st.booleans()), min_size=1, max_size=4
    ),
    short_writes=st.booleans(),
)
def test_many_lives_in_a_row(seed: int, lives: list[tuple[int, int, bool]], short_writes: bool) -> None:
    script = Script(SimDisk(seed), seed, is_store=True, segment_bytes=6_000)
    script.disk.short_writes = short_writes
    script.open()
    script.live(lives)


def test_the_model_notices_a_collector_that_drops_live_messages() -> None:
    class Careless(Retention):
        def is_live(self, indexes: Any, view_from: int) -> Any:
            """Forgets every second body that only a snapshot refers to."""
            return super().is_live(indexes, view_from) & ((indexes >= view_from) | (indexes % 2 == 0))

    def try_seeds() -> None:
        for seed in range(12):
            run_until_crash(seed, None, 400, retention=Careless)

    with pytest.raises(AssertionError, match="live bodies are gone"):
        try_seeds()


# ---- a log of one group, twelve entries of 1,000 bytes a segment


SEGMENT = HEADER_BLOCK + 12 * (HEADER_BYTES + 1000) + 100


KEPT = (3, 15, 27, 39, 51, 63, 75, 87)
"""One entry of each segment of a hundred entries."""


def body(index: int) -> bytes:
    return index.to_bytes(4, "little") * 250


def filled(disk: SimDisk, last: int = 100, **options: Any) -> Log:
    log = Log.open(DIRECTORY, disk, segment_bytes=SEGMENT, recent_bytes=0, **options)
    for index in range(1, last + 1):
        log.journal(1).append([body(index)], index, 1)
    log.sync()
    return log


def reopened(disk: SimDisk) -> Log:
    disk.restart()
    return Log.open(DIRECTORY, disk, segment_bytes=SEGMENT, recent_bytes=0)


def both_lives(log: Log, disk: SimDisk) -> Iterator[Log]:
    """The log as it is, then reopened."""
    yield log
    yield reopened(disk)


def retain(log: Log, index: int, *entries: int) -> None:
    log.sync()
    log.journal(1).compact_to(index, 1)
    log.retain(1, [Retained(index, array("Q", entries), array("Q"))])


def planned(log: Log) -> Collection | None:
    log.survey()
    return log.plan_collection()


def collect(log: Log) -> int:
    count = 0
    while (collection := planned(log)) is not None:
        collection.run()
        count += log.adopt(collection)
        del collection
    return count


def readable(log: Log, last: int = 100, group: int = 1) -> list[int]:
    found = []
    for index in range(1, last + 1):
        try:
            assert log.read(group, index) == body(index)
        except EntryMissing:
            continue
        found.append(index)
    return found


def files(disk: SimDisk) -> list[str]:
    return sorted(name.name for name in disk.names if name.suffix in {".log", ".index", ".new"})


def test_until_told_nothing_is_garbage() -> None:
    disk = SimDisk()
    log = filled(disk)
    log.journal(1).compact_to(90, 1)
    assert planned(log) is None
    assert usage(log).garbage_bytes == 0
    retain(log, 90, 3)
    assert collect(log) > 0
    found = readable(log)
    assert found == [3, *range(85, 101)], "the segment that the view begins in is half full"
    log = reopened(disk)
    assert planned(log) is None
    assert readable(log) == found


def test_space_is_low_near_the_logs_maximum_until_garbage_was_collected() -> None:
    log = filled(SimDisk(), max_bytes=10 * SEGMENT, free_limit_bytes=2 * SEGMENT)
    assert log.space().free_bytes == 10 * SEGMENT - log.size_bytes
    assert log.space().is_low
    log.journal(1).append([body(101)], 101, 1)  # it may still grow
    retain(log, 90)
    assert collect(log) > 0
    assert not log.space().is_low


def test_a_survey_looks_into_segments_only_where_it_is_not_plain_what_is_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of one, nothing of another, and some of a third."""
    disk = SimDisk()
    log = filled(disk, 400)
    looked: list[int] = []
    history = log._store.history
    columns = history.columns

    def counted(sealed: Sealed) -> Columns:
        looked.append(sealed.number)
        return columns(sealed)

    monkeypatch.setattr(history, "columns", counted)
    parts = {sealed.number: sealed.parts[False, 1] for sealed in history.sealed if (False, 1) in sealed.parts}
    numbers = sorted(parts)
    whole, empty, mixed = numbers[0], numbers[1], numbers[2]
    live = [*range(parts[whole].low, parts[whole].high + 1), parts[mixed].low]
    retain(log, parts[numbers[3]].low, *live)
    log.survey()
    assert looked == [mixed]
    survey = log._collector.survey
    found = {sealed.number: survey.live_bytes(sealed) for sealed in history.sealed}
    assert (found[whole], found[empty]) == (parts[whole].size, 0)
    assert 0 < found[mixed] < parts[mixed].size
    log.survey()
    assert looked == [mixed]


def test_one_forgotten_message_does_not_hold_the_log() -> None:
    disk = SimDisk()
    log = filled(disk, 400)
    retain(log, 390, 7)
    assert collect(log) > 0
    found = readable(log, 400)
    assert found[0] == 7
    assert set(found[1:]) >= set(range(390, 401))
    assert found[1] > 390 - 12
    used = usage(log)
    assert used.segments <= 4
    assert used.total_bytes < 4 * SEGMENT
    assert len(files(disk)) == 2 * used.segments - 1
    assert readable(reopened(disk), 400) == found


def test_entries_behind_the_oldest_kept_snapshot_stay() -> None:
    log = filled(SimDisk())
    log.journal(1).compact_to(90, 1)
    log.sync()
    log.retain(1, [Retained(40, array("Q", [2]), array("Q")), Retained(90, array("Q"), array("Q"))])
    assert collect(log) > 0
    assert set(readable(log)) >= {2, *range(40, 101)}
    assert not set(readable(log)) & set(range(3, 37))


def test_what_was_cut_is_garbage_before_anything_is_told() -> None:
    disk = SimDisk()
    log = filled(disk)
    log.journal(1).truncate_from(20)
    log.sync()
    before = log.size_bytes
    assert collect(log) > 0
    assert log.size_bytes < before // 2
    for again in both_lives(log, disk):
        assert readable(again) == list(range(1, 20))


def test_pages_go_when_no_snapshot_names_them_and_later_ones_stay() -> None:
    disk = SimDisk()
    log = filled(disk, 2)
    none = array("Q")
    pages = [log.write_page(1, [bytes([number]) * 900]) for number in range(60)]
    log.sync()
    log.retain(1, [Retained(1, none, array("Q", pages[::20]))])
    assert collect(log) == 0, "the next snapshot may name them"
    log.retain(1, [Retained(1, none, array("Q", pages[::20])), Retained(2, none, array("Q", pages[::30]))])
    assert collect(log) > 0
    later = log.write_page(1, [b"later"])
    log.sync()
    gone = 0
    for number, page in enumerate(pages):
        try:
            assert log.read_page(1, page) == bytes([number]) * 900
        except EntryMissing:
            gone += 1
            assert number % 20
            assert number % 30
    assert gone > 30
    for again in both_lives(log, disk):
        assert again.read_page(1, pages[20]) == bytes([20]) * 900
        assert again.read_page(1, later) == b"later"
        log = again


def test_what_died_between_plan_and_copy_is_not_written() -> None:
    disk = SimDisk()
    log = filled(disk)
    retain(log, 90, *KEPT)
    collection = planned(log)
    assert collection is not None
    retain(log, 91, *KEPT[1:])
    collection.run()
    assert collection.result is not None
    assert [part.low for part in collection.result.parts.values()] == [15]
    assert [part.count for part in collection.result.parts.values()] == [1]
    assert log.adopt(collection)
    assert 3 not in readable(log)
    assert 15 in readable(log)


def test_a_copy_of_which_everything_has_died_is_not_adopted() -> None:
    disk = SimDisk()
    log = filled(disk)
    retain(log, 90, *KEPT)
    collection = planned(log)
    assert collection is not None
    collection.run()
    assert collection.result is not None
    path = collection.result.segment.path
    assert path.name in files(disk)
    retain(log, 91)
    assert log.adopt(collection)
    assert path.name not in files(disk)
    assert path.with_suffix(".index").name not in files(disk)
    del collection
    collect(log)
    assert readable(log)[0] > 80


def test_a_reader_keeps_what_it_reads_until_it_is_done() -> None:
    disk = SimDisk()
    log = filled(disk)
    retain(log, 90, 3)
    segment = segment_of(log, 1)
    read = segment.file.pread
    seen = []

    def slow(length: int, offset: int) -> bytes:
        segment.file.pread = read  # type: ignore[method-assign]
        collect(log)
        seen.append(segment.path in disk.names)
        return read(length, offset)

    segment.file.pread = slow  # type: ignore[method-assign]
    assert log.read(1, 3) == body(3)
    assert seen == [True]
    planned(log)
    assert segment.path not in disk.names
    assert log.read(1, 3) == body(3)


def test_a_reader_that_looked_into_several_segments_keeps_none_of_them() -> None:
    disk = SimDisk()
    log = filled(disk, 30)
    log.journal(1).truncate_from(20)
    for index in range(20, 60):
        log.journal(1).append([body(index)], index, 2)
    log.sync()
    log.journal(1).compact_to(55, 2)
    assert log.read(1, 21) == body(21), "another entry 21 is in an earlier segment"
    log.retain(1, [Retained(55, array("Q"), array("Q"))])
    assert collect(log) > 0
    segments = [name for name in files(disk) if name.endswith(".log")]
    assert len(segments) == len(log._store.history.sealed) + 1


def test_the_journal_follows_its_entries_to_where_they_were_copied() -> None:
    """A view that begins in old segments, because others of the group's neighbours are garbage."""
    disk = SimDisk()
    log = Log.open(DIRECTORY, disk, segment_bytes=SEGMENT, recent_bytes=0)
    for index in range(1, 61):
        log.journal(1).append([body(index)], index, 1)
        if index % 10 == 0:
            log.journal(2).append([body(index)], index // 10, 1)
    log.sync()
    retain(log, 59)
    assert collect(log) > 0
    for again in both_lives(log, disk):
        journal = again.journal(2)
        assert (journal.first_index, journal.last_index) == (1, 6)
        assert [journal.read(index) for index in range(1, 7)] == [body(index * 10) for index in range(1, 7)]
        assert [journal.length_at(index) for index in range(1, 7)] == [1000] * 6


def test_a_collection_that_is_never_adopted_leaves_only_files_that_opening_removes() -> None:
    disk = SimDisk()
    log = filled(disk)
    retain(log, 90, *KEPT)
    before = files(disk)
    collection = planned(log)
    assert collection is not None
    assert planned(log) is None, "one at a time"
    collection.run()
    assert len(files(disk)) > len(before)
    del collection
    assert planned(log) is not None
    disk.create(index_path(segment_path(DIRECTORY, 99)))
    disk.create(DIRECTORY / f"MANIFEST{TEMPORARY}")
    log = reopened(disk)
    assert files(disk) == before
    assert set(readable(log)) == set(range(1, 101))


def test_a_full_disk_refuses_a_collection_and_harms_nothing() -> None:
    outcomes = set()
    for fault in range(60):
        disk = SimDisk()
        log = filled(disk)
        retain(log, 90, *KEPT)
        collection = planned(log)
        assert collection is not None
        disk.fail_at[len(disk.operations) + fault] = 28
        try:
            collection.run()
            log.adopt(collection)
            outcome = "done"
        except LogFull:
            outcome = "full"
        except LogFailed:
            outcome = "failed"
        outcomes.add(outcome)
        assert (log.failure is not None) == (outcome == "failed")
        del collection
        if outcome != "failed":
            disk.fail_at = {}
            assert collect(log) > 0
        disk.restart()
        found = readable(reopened(disk))
        assert set(found) >= {*KEPT, *range(90, 101)}
    assert outcomes == {"done", "full", "failed"}


def test_a_failing_disk_stops_the_log_in_a_collection_too() -> None:
    disk = SimDisk()
    log = filled(disk)
    retain(log, 90, *KEPT)
    collection = planned(log)
    assert collection is not None
    disk.fail_at[len(disk.operations) + 1] = 5
    with pytest.raises(LogFailed):
        collection.run()
    with pytest.raises(LogFailed):
        log.sync()


def test_a_damaged_body_is_not_copied_until_it_is_healed() -> None:
    disk = SimDisk()
    log = filled(disk)
    disk.flip(segment_path(DIRECTORY, 1), (HEADER_BLOCK + 2 * (HEADER_BYTES + 1000) + 100) * 8)
    retain(log, 90, *KEPT)
    collection = planned(log)
    assert collection is not None
    collection.run()
    assert not log.adopt(collection)
    del collection
    assert [damage.known for damage in log.damages] == [(1, 1, 3)]
    collect(log)
    assert segment_path(DIRECTORY, 1) in disk.names, "as it is, for whoever wants to look at it"
    with pytest.raises(LogDamaged):
        log.read(1, 3)
    log.put_copy(1, 3, 1, [body(3)])
    log.sync()
    assert log.damages == ()
    assert collect(log) > 0
    assert segment_path(DIRECTORY, 1) not in disk.names
    for again in both_lives(log, disk):
        assert set(readable(again)) >= {*KEPT, *range(90, 101)}


def unreadable_segment(disk: SimDisk, log: Log) -> Sealed:
    bad = log._store.history.sealed[1]
    make_unreadable(disk, log, bad)
    return bad


def test_a_segment_that_cannot_be_copied_is_tried_again_only_when_something_has_changed() -> None:
    """It holds no other up meanwhile."""
    disk = SimDisk()
    log = filled(disk, 400)
    retain(log, 390, *range(1, 400, 5))
    collection = planned(log)
    assert collection is not None
    bad = collection.sources[0]
    assert not log._store.is_dead(bad)
    make_unreadable(disk, log, bad)
    collection.run()
    assert not log.adopt(collection)
    tried = [each.listed.file_id for each in collection.sources]
    del collection
    following = log.plan_collection()
    assert following is None or not {each.listed.file_id for each in following.sources} & {*tried}
    del following
    log._collector.survey.changed()
    following = log.plan_collection()
    assert following is not None
    assert bad in following.sources
    del following
    log.survey()  # now it is known that nothing says what is in it
    assert log._collector.survey.is_spoiled(bad)
    log.retain(1, [Retained(390, array("Q"), array("Q"))])
    assert collect(log) > 0
    assert bad not in log._store.history.sealed
    assert remembered(log) <= {each.listed.file_id for each in log._store.history.sealed}


def remembered(log: Log) -> set[bytes]:
    """The segments that the survey knows something of."""
    survey = log._collector.survey
    return {*survey._known, *survey._pages, *survey._spoiled, *survey._unreadable}


def test_what_an_unreadable_segment_had_is_missing() -> None:
    """So it is fetched from another member."""
    disk = SimDisk()
    log = filled(disk, 400)
    bad = unreadable_segment(disk, log)
    retain(log, 390)
    lost = range(bad.parts[False, 1].low, bad.parts[False, 1].high + 1)
    assert list(log.missing(1, array("Q", range(1, 401)))) == [*lost]


def test_a_body_is_found_beside_an_unreadable_segment_that_may_have_it_too() -> None:
    disk = SimDisk()
    log = filled(disk, 30)
    for index in (1, 30):
        log.put_copy(1, index, 1, [body(index)])
    log._roll(0, 1)
    retain(log, 30)
    make_unreadable(disk, log, log._store.history.sealed[-1])
    assert not log.missing(1, array("Q", [5]))


def test_an_unreadable_segment_is_read_to_its_bad_place_only_once() -> None:
    disk = SimDisk()
    log = filled(disk, 400)
    bad = unreadable_segment(disk, log)
    retain(log, 390)
    index = bad.parts[False, 1].low
    for first in (True, False):
        before = disk.reads
        with pytest.raises(LogDamaged, match="bad record in a sealed segment"):
            log.read(1, index)
        assert (disk.reads > before) == first


def test_an_unreadable_segment_goes_when_nothing_in_it_is_live() -> None:
    """Otherwise the log could not be opened again."""
    disk = SimDisk()
    log = filled(disk, 400)
    bad = unreadable_segment(disk, log)
    retain(log, 390, bad.parts[False, 1].low)
    collect(log)
    assert bad in log._store.history.sealed
    log.retain(1, [Retained(390, array("Q"), array("Q"))])
    assert collect(log) > 0
    assert bad not in log._store.history.sealed
    assert set(readable(reopened(disk), 400)) >= {*range(390, 401)}


def test_a_segment_whose_file_was_removed_is_collected_as_any_other() -> None:
    disk = SimDisk()
    log = filled(disk)
    del disk.names[segment_path(DIRECTORY, 1)]
    retain(log, 90, *KEPT)
    assert collect(log) > 0
    for again in both_lives(log, disk):
        assert set(readable(again)) >= {*KEPT, *range(90, 101)}


def test_a_segment_without_index_file_and_with_a_bad_header_stays_and_holds_no_other_up() -> None:
    disk = SimDisk()
    log = filled(disk, 400)
    history, bad = log._store.history, unreadable_segment(disk, log)
    retain(log, 390, bad.parts[False, 1].low)
    assert collect(log) > 0
    assert bad in history.sealed
    assert usage(log).segments <= 4
    [finding] = log.repair()
    assert finding.damage.path == str(bad.segment.path)
    log._collector.survey.changed()
    assert collect(log) == 0
    assert log.repair() == [], "it is told once"
    log.journal(1).append([body(401)], 401, 1)
    log.sync()
    assert log.read(1, 401) == body(401)


def test_damage_of_what_is_garbage_holds_nothing_up() -> None:
    disk = SimDisk()
    log = filled(disk)
    disk.flip(segment_path(DIRECTORY, 1), (HEADER_BLOCK + 2 * (HEADER_BYTES + 1000) + 100) * 8)
    retain(log, 90, 4)
    assert collect(log) > 0
    assert log.damages == ()
    assert set(readable(log)) >= {4, *range(90, 101)}


def test_a_cut_entry_does_not_come_back_when_the_record_that_cut_it_is_gone() -> None:
    disk = SimDisk()
    log = filled(disk, 30)
    log.journal(1).truncate_from(20)
    for index in range(20, 60):
        log.journal(1).append([b"other" + body(index)], index, 2)
    log.sync()
    log.retain(1, [Retained(50, array("Q", [5, 21]), array("Q"))])
    log.journal(1).compact_to(50, 2)
    assert collect(log) > 0
    for _ in range(2):
        assert log.read_entry(1, 21) == (2, b"other" + body(21))
        for name in [name for name in disk.names if name.suffix == ".index"]:
            del disk.names[name]
        log = reopened(disk)


def test_what_an_installed_snapshot_removed_does_not_come_back_with_the_manifest_of_a_collection() -> None:
    disk = SimDisk()
    log = filled(disk, 26)
    journal = log.journal(2)
    for index in range(1, 7):
        journal.append([body(index)], index, 1)
    journal.reset_to_snapshot(20, 5, keep_bodies_to=3)
    retain(log, 26)
    assert collect(log) > 0
    for again in both_lives(log, disk):
        assert readable(again, 6, group=2) == [1, 2, 3]


def test_a_copy_does_not_take_the_place_of_another_historys_entry_with_the_manifest_of_a_collection() -> None:
    disk = SimDisk()
    log = filled(disk, 26)
    log.put_copy(2, 2, 9, [b"of term 9"])
    for index in range(1, 4):
        log.journal(2).append([body(index)], index, 1)
    retain(log, 26)
    assert collect(log) > 0
    for again in both_lives(log, disk):
        assert readable(again, 3, group=2) == [1, 2, 3]
        assert again.read_entry(2, 2) == (1, body(2))
        assert not again.missing(2, array("Q", [2]), committed=1), "the copy is kept as well"


def test_space_stays_within_twice_what_is_live() -> None:
    """FIFO and random consumption, several sizes: when nothing is left to plan, sealed segments hold at most twice
    what is live in them, beside a block each."""
    for seed in range(6):
        chance = np.random.default_rng(seed)
        disk = SimDisk(seed)
        log = Log.open(DIRECTORY, disk, segment_bytes=20_000, recent_bytes=0)
        journal = log.journal(1)
        live: set[int] = set()
        for _ in range(12):
            for _ in range(60):
                index = journal.last_index + 1
                journal.append([bytes(int(chance.choice([10, 200, 3000])))], index, 1)
                live.add(index)
            order = sorted(live)
            for index in (
                order[: len(order) // 2] if seed % 2 else chance.permutation(order)[: len(order) // 2]
            ):
                live.discard(int(index))
            log.sync()
            at = journal.last_index
            journal.compact_to(at, 1)
            log.retain(1, [Retained(at, array("Q", sorted(live)), array("Q"))])
            collect(log)
            bodies = sum(len(log.read(1, index)) + HEADER_BYTES for index in sorted(live))
            used = usage(log)
            assert used.total_bytes <= 2 * bodies + 20_000 + used.segments * HEADER_BLOCK + 2 * HEADER_BYTES
            assert used.segments <= used.total_bytes // 5_000 + 3
            assert used.total_bytes == used.live_bytes + used.garbage_bytes


def test_memory_does_not_grow_with_the_history() -> None:
    log = Log.open(DIRECTORY, SimDisk(), segment_bytes=200_000, recent_bytes=0)
    journal = log.journal(1)
    most = 0
    for index in range(1, 20_001):
        journal.append([b"0123456789"], index, 1 + index // 1000)
        if index % 500 == 0:
            log.sync()
            journal.compact_to(index - 100, journal.term_at(index - 100))
            most = max(most, journal.memory_bytes())
    assert most < 2 * 22 * (200_000 // 66)
    assert log.read(1, 3) == b"0123456789"


def test_appends_and_reads_go_on_in_other_threads_while_segments_are_replaced(tmp_path: Path) -> None:
    """Bodies say their own index; a reader always finds what is retained, and nothing wrong."""
    log = Log.open(tmp_path, segment_bytes=60_000, recent_bytes=0, cache_bytes=20_000)
    journal = log.journal(1)
    stop = threading.Event()
    wrong: list[object] = []
    kept: list[int] = [1]
    counts = [0, 0, 0]

    def reader(which: int) -> None:
        chance = random.Random(which)
        while not stop.is_set() or counts[which] <= 50:
            index = kept[chance.randrange(len(kept))]
            try:
                found = log.read(1, index)
            except Exception as error:
                wrong.append(error)
                return
            if found != body(index):
                wrong.append(index)
            counts[which] += 1

    def scrubber() -> None:
        while not stop.is_set():
            counts[2] += log.scrub(10_000) == 0

    def append() -> None:
        index = journal.last_index + 1
        journal.append([body(index)], index, 1)

    append()
    log.sync()
    threads = [threading.Thread(target=reader, args=(which,)) for which in range(2)]
    threads.append(threading.Thread(target=scrubber))
    for thread in threads:
        thread.start()
    adopted = 0
    for _ in range(60):
        for _ in range(40):
            append()
        log.sync()
        at = journal.last_index
        journal.compact_to(at - 10, 1)
        kept.append(at - 5)
        log.retain(
            1, [Retained(at - 20, array("Q", [index for index in kept if index < at - 20]), array("Q"))]
        )
        collection = planned(log)
        if collection is not None:
            runner = threading.Thread(target=collection.run)
            runner.start()
            append()
            log.sync()
            runner.join()
            adopted += log.adopt(collection)
            del collection
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert adopted > 20
    assert min(counts[:2]) > 50
    assert log.damages == ()
    log.close()
    assert not list(tmp_path.glob("*.new"))
