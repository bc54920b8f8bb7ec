"""The journal as the library sees it, over the log in memory and over the real one: the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from quorum.log import EntryMissing, Log
from quorum.replication.configuration import CONFIGURATION, Configuration, wrap_state
from quorum.replication.errors import ReplicationFailed
from quorum.replication.journal_view import JournalView, NodeLog
from support.log.disk import SimDisk
from support.raft.log import ModelDisk, ModelLog

GROUP = 3
MEMBERS = Configuration(("n1", "n2", "n3"))

Opener = Callable[[], NodeLog]


def model() -> Opener:
    disk = ModelDisk()
    logs: list[ModelLog] = []

    def reopen() -> NodeLog:
        if logs:
            logs[-1].crash(random.Random(0), keep_nothing=True)
        logs.append(ModelLog(disk))
        return logs[-1]

    return reopen


def real() -> Opener:
    disk = SimDisk(4)
    lives = iter(range(100))

    def reopen() -> NodeLog:
        disk.restart()
        return Log.open(
            Path("/log"), disk, segment_bytes=64 << 10, random_bytes=random.Random(next(lives)).randbytes
        )

    return reopen


@pytest.fixture(params=[model, real])
def opener(request: pytest.FixtureRequest) -> Opener:
    made: Opener = request.param()
    return made


def filled(log: NodeLog, count: int = 10, term: int = 1) -> JournalView:
    view = JournalView(log, GROUP)
    view.add(b"\1", 1, 0)
    for index in range(2, count + 1):
        view.append([b"\0", b"body %d" % index], index, term)
    return view


def shape(view: JournalView) -> tuple[int, int, list[int]]:
    return (
        view.base,
        view.last_index,
        [view.term_at(index) for index in range(view.base, view.last_index + 1)],
    )


def test_it_is_a_list_of_entries(opener: Opener) -> None:
    view = filled(opener())
    assert len(view) == 10
    assert view[0][1:] == (1, 0)
    assert view[-1][1:] == (10, 1)
    assert [index for _, index, _ in view[3:5]] == [4, 5]
    assert [index for _, index, _ in view[8:100]] == [9, 10]
    assert len(view[20:]) == 0
    assert view[4:][0][1] == 5
    body = view[4][0]
    assert (len(body), body.read()) == (7, b"\0body 5")


def test_an_empty_journal_is_empty(opener: Opener) -> None:
    view = JournalView(opener(), GROUP)
    assert len(view) == 0
    assert (view.getRaftCommitIndex(), view.getCurrentTerm(), view.getVotedForNodeId()) == (1, 0, None)


def test_bodies_are_not_read_by_looking_at_entries(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opener()
    view = filled(log)
    monkeypatch.setattr(type(log), "read", lambda *_: pytest.fail("a body was read"))
    assert sum(len(body) for body, _, _ in view[:]) > 50


def test_entries_from_a_place_are_cut(opener: Opener) -> None:
    view = filled(opener())
    view.deleteEntriesFrom(6)
    assert view.last_index == 6
    view.deleteEntriesFrom(6)
    assert view.last_index == 6
    view.append([b"\0new"], 7, 4)
    assert view.read(7) == b"\0new"
    assert shape(view)[2][-2:] == [1, 4]


def test_durable_is_what_the_log_has_synced(opener: Opener) -> None:
    log = opener()
    view = filled(log)
    assert view.note_synced() == 0
    log.sync()
    assert view.note_synced() == 10
    view.append([b"\0x"], 11, 1)
    view.deleteEntriesFrom(7)
    assert view.note_synced() == 7
    view.append([b"\0y"], 8, 2)
    assert view.note_synced() == 7
    log.sync()
    assert view.note_synced() == 8


def test_a_snapshot_lets_entries_go(opener: Opener) -> None:
    log = opener()
    view = filled(log)
    view.save_snapshot(8, b"state")
    view.compact(5)
    assert shape(view) == (4, 10, [1] * 7)
    assert view[0][1] == 4
    view.compact(100)
    assert view.base == 7, "not beyond the snapshot"
    assert view.getRaftCommitIndex() == 8
    log.sync()
    again = JournalView(opener(), GROUP)
    assert (again.snapshot_index, again.snapshot_term, again.snapshot_state) == (8, 1, b"state")
    assert shape(again) == (7, 10, [1] * 4)
    assert again.getRaftCommitIndex() == 8


def test_a_snapshot_saved_and_nothing_else_survives_a_crash(opener: Opener) -> None:
    view = filled(opener())
    view.save_snapshot(8, b"state")
    view.compact(8)
    again = JournalView(opener(), GROUP)
    assert again.snapshot_index == 8
    assert again.last_index >= 8
    assert again.term_at(8) == 1


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize(("index", "term", "kept"), [(20, 5, []), (8, 5, []), (8, 1, [9, 10])])
def test_an_installed_snapshot_replaces_what_does_not_follow_from_it(
    opener: Opener, index: int, term: int, kept: list[int], *, is_noted: bool
) -> None:
    log = opener()
    view = filled(log)
    log.sync()
    if is_noted:
        view.note_synced()
    log.journal(GROUP).save_snapshot(index, term, b"theirs")
    view.install_snapshot(index, term, 6, MEMBERS)
    assert view.last_index == (kept[-1] if kept else index)
    assert view.term_at(index) == term
    assert (view.configurations.current, view.configurations.index) == (MEMBERS, index)
    if not kept:
        assert view.note_synced() <= 6, "the sync was of the entries that were replaced"
    log.sync()
    assert view.note_synced() == view.last_index
    view.append([b"\0next"], view.last_index + 1, 6)
    log.sync()
    last = view.last_index
    again = JournalView(opener(), GROUP)
    assert (again.snapshot_index, again.snapshot_state, again.last_index) == (index, b"theirs", last)
    assert again.read(last) == b"\0next"


@pytest.mark.parametrize(
    ("index", "committed", "proven", "readable"), [(20, 6, 0, 6), (20, 6, 8, 8), (20, 6, 4, 6), (8, 6, 9, 8)]
)
def test_bodies_of_an_installed_snapshots_history_stay_readable(
    index: int, committed: int, proven: int, readable: int
) -> None:
    """Those that are committed here or proven, up to the snapshot; the others may be of another history."""
    log = real()()
    view = filled(log)
    log.sync()
    log.journal(GROUP).save_snapshot(index, 5, b"theirs")
    view.install_snapshot(index, 5, committed, MEMBERS, proven)
    for each in range(2, readable + 1):
        assert view.read(each) == b"\0body %d" % each
    for each in range(readable + 1, 11):
        with pytest.raises(EntryMissing):
            view.read(each)


def test_an_installation_cut_short_is_finished_at_the_next_start(opener: Opener) -> None:
    log = opener()
    view = filled(log)
    log.sync()
    log.journal(GROUP).save_snapshot(20, 5, b"theirs")
    view.install_snapshot(20, 5, 6, MEMBERS)
    again = JournalView(opener(), GROUP)
    assert (again.snapshot_index, again.base, again.last_index, again.term_at(20)) == (20, 20, 20, 5)


def test_a_start_finds_the_configurations_behind_a_snapshot_whatever_stays_below_it(opener: Opener) -> None:
    view = filled(opener())
    below, behind = MEMBERS.with_learner("n4"), MEMBERS.with_learner("n5")
    for index, members in ((11, below), (13, behind)):
        view.add(bytes([CONFIGURATION]) + members.encode(), index, 1)
        view.append([b"\0"], index + 1, 1)
    view.save_snapshot(12, wrap_state(below, b"state"))
    view.log.sync()
    again = JournalView(opener(), GROUP)
    again.begin(MEMBERS)
    known = again.configurations
    assert (again.base, known.at(12), known.current, known.index) == (1, below, behind, 13)


def test_an_unreadable_entry_that_is_gone_may_be_a_configuration_no_longer(opener: Opener) -> None:
    view = filled(opener(), 14)
    view.unread = {11: "damaged", 13: "damaged"}
    view.deleteEntriesFrom(12)
    assert (view.last_index, view.unread.keys()) == (12, {11})
    view.journal.save_snapshot(11, 1, b"theirs")
    view.install_snapshot(11, 1, 11, MEMBERS)
    assert (view.last_index, view.unread) == (12, {})


def test_term_and_vote_are_kept(opener: Opener) -> None:
    log = opener()
    view = filled(log)
    view.setCurrentTerm(4, "n2")
    assert view.last_lsn == log.last_lsn
    log.sync()
    again = JournalView(opener(), GROUP)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (4, "n2")


def test_the_library_may_not_clear_or_compact(opener: Opener) -> None:
    view = filled(opener())
    with pytest.raises(ReplicationFailed, match="the library wanted"):
        view.clear()
    with pytest.raises(ReplicationFailed, match="the library wanted"):
        view.deleteEntriesTo(3)
