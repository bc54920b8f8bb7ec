"""Crashes: whatever the disk kept of unsynced writes, a reopened log holds all that was synced and nothing
invented."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorum.log import Log
from quorum.log.segment_files.segments import segment_path
from support.examples import examples
from support.log.disk import Crashed, SimDisk
from support.log.model import DIRECTORY, Script, observe, visible


def run_until_crash(seed: int, crash_at: int | None, steps: int) -> Script:
    """A seeded script that the machine may interrupt at its n-th disk operation."""
    script = Script(SimDisk(seed), seed)
    script.disk.crash_at = crash_at
    try:
        script.open()
        script.steps(steps)
    except Crashed:
        pass
    return script


def test_every_crash_point_of_a_script_with_power_cut_and_with_process_death() -> None:
    whole = run_until_crash(1, None, 70)
    points = len(whole.disk.operations)
    kinds = set(whole.disk.operations)
    assert {"write", "sync", "rename", "sync directory", "allocate", "truncate", "create"} <= kinds
    cut = kept = 0
    for point in range(points + 1):
        for fate in range(3):
            script = run_until_crash(1, point if point < points else None, 70)
            written, acknowledged = len(script.model.states) - 1, script.acknowledged
            if fate == 0:
                script.disk.restart()
            else:
                script.disk.power_cut(point * 10 + fate)
            recovered = script.reopen_and_compare()
            cut += recovered < written
            kept += recovered > acknowledged
            script.steps(5)
            script.compare()
    assert cut > 50
    assert kept > 50


def test_a_crash_inside_recovery_changes_nothing() -> None:
    interrupted = 0
    for point in range(5, 90, 3):
        for inside in range(12):
            script = run_until_crash(2, point, 60)
            acknowledged = script.acknowledged
            script.disk.power_cut(point)
            script.disk.crash_at = len(script.disk.operations) + inside
            try:
                script.open_log()
            except Crashed:
                interrupted += 1
                script.disk.power_cut(inside)
                check_reopened(script, acknowledged)
    assert interrupted > 100


def check_reopened(script: Script, acknowledged: int) -> None:
    """Reopen where an interrupted opening may have left its own mark behind the records of the script."""
    script.open()
    states = script.model.states
    recovered = min(script.log.last_lsn - 1, len(states) - 1) if script.log.last_lsn else 0
    seen = visible(observe(script.log, script.groups))
    assert any(seen == visible(state) for state in states[acknowledged : recovered + 1])


@settings(max_examples=examples(150))
@given(
    seed=st.integers(0, 1 << 32),
    lives=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 60), st.booleans()), min_size=1, max_size=4),
    short_writes=st.booleans(),
)
@example(seed=1 << 32, lives=[(0, 0, False), (0, 7, False), (55, 16, False), (0, 0, True)], short_writes=True)
def test_many_lives_in_a_row(seed: int, lives: list[tuple[int, int, bool]], short_writes: bool) -> None:
    script = Script(SimDisk(seed), seed)
    script.disk.short_writes = short_writes
    script.open()
    script.live(lives)


def test_names_that_only_the_cache_knew_are_made_durable_before_they_are_relied_on() -> None:
    """A process dies between a rename and the sync of the directory; the next one goes on; the power goes."""
    caught = with_snapshot = 0
    for number in count():
        point, disk = number // 4, SimDisk(number)
        log = Log.open(DIRECTORY, disk, segment_bytes=10_000)
        journal = log.journal(1)
        disk.crash_at = len(disk.operations) + point
        with suppress(Crashed):
            for index in range(1, 8):
                journal.append([b"x" * 3000], index, 1)
                log.sync()
            journal.save_snapshot(20, 2, b"installed")
            journal.reset_to_snapshot(20, 2)
            log.sync()
        if disk.crash_at >= len(disk.operations):
            break
        caught += disk.operations[disk.crash_at] == "sync directory"
        disk.restart()
        log = Log.open(DIRECTORY, disk, segment_bytes=10_000)
        found = log.journal(1).load_snapshot()
        with_snapshot += found is not None
        last = log.journal(1).last_index + 1
        log.journal(1).append([b"later"], last, 2)
        log.sync()
        disk.power_cut(number)
        log = Log.open(DIRECTORY, disk, segment_bytes=10_000)
        assert log.read(1, last) == b"later"
        assert log.journal(1).load_snapshot() == found
    assert caught >= 20
    assert with_snapshot >= 10


def test_a_failed_sync_that_the_cache_forgot_is_written_again_by_recovery() -> None:
    """The kernel reports a failed sync once and shows the lost bytes as if they were on the disk.
    The entry has several sectors, because what recovery appends is synced with the sector in which the entry ends."""
    second = bytes(range(256)) * 16
    disk = SimDisk(1)
    log = Log.open(DIRECTORY, disk, segment_bytes=100_000)
    log.journal(1).append([b"first"], 1, 1)
    log.sync()
    log.journal(1).append([second], 2, 1)
    disk.fail_at[len(disk.operations) + 1] = 5
    with pytest.raises(Exception, match="refuses every later call"):
        log.sync()
    disk.restart()
    log = Log.open(DIRECTORY, disk, segment_bytes=100_000)
    assert log.read(1, 2) == second
    for seed in range(20):
        disk.power_cut(seed)
        log = Log.open(DIRECTORY, disk, segment_bytes=100_000)
        assert log.read(1, 2) == second


def test_what_was_cut_can_never_come_back() -> None:
    """Behind a lost record others are whole on the disk. After the cut, new records of just the same lengths
    lead to where they stood, with the LSN that would be next: only overwriting keeps them away."""
    stood_behind = 0
    for seed in range(150):
        disk = SimDisk(seed)
        log = Log.open(DIRECTORY, disk, segment_bytes=200_000)
        journal = log.journal(1)
        for index in (1, 2):
            journal.append([b"kept"], index, 1)
        log.sync()
        journal.truncate_from(2)  # LSN 3, as long as the mark that opening writes
        journal.append([b"o" * 1000], 2, 1)  # LSN 4
        for index in range(3, 12):
            journal.append([b"old" * 150], index, 1)
        disk.crash_at = len(disk.operations) + 1  # the sync: everything is written, nothing synced
        with pytest.raises(Crashed):
            log.sync()
        disk.power_cut(seed)
        is_there = b"old" * 150 in bytes(disk.names[segment_path(DIRECTORY, 1)].data)
        log = Log.open(DIRECTORY, disk, segment_bytes=200_000)
        if not is_there or log.last_lsn != 3:
            continue
        stood_behind += 1
        log.journal(1).set_hard_state(2, "v" * 999)  # LSN 4 again, with a body of 1,000 bytes
        log.sync()
        disk.power_cut(seed + 1)
        log = Log.open(DIRECTORY, disk, segment_bytes=200_000)
        assert log.journal(1).last_index == 2
        assert log.journal(1).hard_state == (2, "v" * 999)
    assert stood_behind > 20
