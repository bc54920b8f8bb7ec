"""Every place where PySyncObj 0.3.17 departs from Raft: what happens without our rule, and that it does not with it.

The numbers D1..D14 are those of docs/replication.md. Each scenario runs twice: with a rule taken away in a subclass
(here or in support.raft.ablations), where it must go wrong, and as the product is, where it must not.
"""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from pathlib import Path

import pytest

from quorum.log import Log
from quorum.log.record import crc32c
from quorum.replication import codec, library
from quorum.replication.codec import AppendAnswer, AppendEntries, Entry, Outcome, SnapshotChunk, VoteRequest
from quorum.replication.configuration import State
from quorum.replication.errors import ReplicationFailed, TruncationError, WireError
from quorum.replication.group import Group
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.library import LibraryNode
from support.log.disk import SimDisk
from support.raft.ablations import (
    AnswersOfAnyTerm,
    AnyAnswerConfirmsReads,
    AnySnapshotIsTaken,
    EveryResetCounts,
    EveryVoteMessageCounts,
    GroupLibraryApplies,
    GroupLibraryForwards,
    GroupLibrarySends,
    GroupSwallowsBadSnapshots,
    LibraryRestart,
    NoAcknowledgementClamp,
    NoCommitClamp,
    NoConflictRule,
    NothingWaitsForTheDisk,
    SnapshotMovesCommit,
    guarded_by,
    stock,
    unfit,
)
from support.raft.checks import Violation
from support.raft.log import ModelDisk, ModelLog
from support.raft.world import GROUP, QUICK, World, as_kept

HASTY = replace(QUICK, keep_entries=0)
"""Compaction waits for nobody."""


def frame(message: codec.Message) -> bytes:
    return b"".join(codec.encode(message))


# ---- D1


def a_late_duplicate_of_a_heartbeat(group_class: type[Group]) -> World:
    world = World(3, group_class=group_class)
    world.elect("n1")
    world.separate("n1", "n3")
    world.now += 0.11
    world.turn("n1")
    duplicate = world.links["n1", "n2"][-1]
    world.deliver_all()
    world.propose("n1", b"a", b"b", b"c")
    world.run(0.3)
    assert world.nodes["n1"].commands == [b"a", b"b", b"c"], "they are acknowledged to clients"
    world.nodes["n2"].group.receive("n1", duplicate)
    world.nodes["n2"].sync()
    world.crash("n1")
    world.heal()
    world.run(3.0)
    return world


def test_d1_a_duplicated_heartbeat_removes_no_acknowledged_entries() -> None:
    with pytest.raises(Violation):
        a_late_duplicate_of_a_heartbeat(guarded_by(NoConflictRule))
    world = a_late_duplicate_of_a_heartbeat(Group)
    assert world.nodes["n3"].commands == [b"a", b"b", b"c"]


def follower_with_a_doubtful_tail(guard: type[Guard]) -> tuple[Group, ModelLog, list[codec.Message]]:
    """n2 with entries 1..6, of which 4..6 (term 1) differ from the leader's; the message proves 1..3 only."""
    log = ModelLog(ModelDisk())
    journal = log.journal(GROUP)
    for index in range(1, 7):
        journal.append([b"\1"], index, 0 if index == 1 else 1)
    journal.set_hard_state(1, None)
    log.sync()
    sent: list[codec.Message] = []
    group = guarded_by(guard)(
        GROUP,
        "n2",
        ["n1", "n2", "n3"],
        log,
        lambda: 1.0,
        random.Random(1),
        lambda peer, parts: sent.append(codec.decode(b"".join(parts))),
        lambda state, index, term: None,
        QUICK,
    )
    group.start()
    group.receive("n1", frame(AppendEntries(2, 1, 6, 2, 1, 0, [Entry(1, b"\1")])))
    log.sync()
    group.flush()
    return group, log, sent


def test_d1_a_follower_acknowledges_no_more_than_was_proved() -> None:
    for guard, acknowledged in ((NoAcknowledgementClamp, 6), (Guard, 3)):
        _, _, sent = follower_with_a_doubtful_tail(guard)
        assert sent == [AppendAnswer(2, 1, acknowledged + 1, Outcome.MATCHES)]


def test_d1_a_follower_commits_no_more_than_was_proved() -> None:
    for guard, committed in ((NoCommitClamp, 6), (Guard, 3)):
        group, _, _ = follower_with_a_doubtful_tail(guard)
        assert (group.commit_index, group.last_index) == (committed, 6)


class PartialTruncation(Guard):
    """The rule that committed entries stay, taken away."""

    def never_below_commit(self, index: int) -> None:
        return


def test_d1_a_leader_that_differs_in_committed_entries_stops_the_follower() -> None:
    wrong = frame(AppendEntries(3, 2, 3, 2, 1, 0, [Entry(3, b"\0other")]))
    group, _, _ = follower_with_a_doubtful_tail(PartialTruncation)
    group.receive("n1", wrong)
    assert group._view.term_at(3) == 3, "without the rule a committed entry is replaced"
    group, _, _ = follower_with_a_doubtful_tail(Guard)
    with pytest.raises(TruncationError):
        group.receive("n1", wrong)
    assert group._view.term_at(3) == 1
    with pytest.raises(ReplicationFailed):
        group.tick()


def late_resets(group_class: type[Group]) -> int:
    """Several appends are refused at once; how far back the leader goes again for refusals that come late."""
    world = World(2, group_class=group_class)
    world.elect("n1")
    world.propose("n1", b"x" * 300)
    world.turn("n1")
    world.links["n1", "n2"].clear()  # lost with a connection
    for _ in range(2):
        world.propose("n1", b"x" * 300)
        world.turn("n1")
    while world.links["n1", "n2"]:
        world.deliver("n1", "n2")
    world.turn("n2")
    assert len(world.links["n2", "n1"]) == 2, "both are refused"
    world.deliver("n2", "n1")
    world.turn("n1")  # sends all again
    before = world.nodes["n1"].group._engine.next_index("n2")
    world.deliver("n2", "n1")
    after = world.nodes["n1"].group._engine.next_index("n2")
    return before - after


def test_d1_late_resets_send_nothing_again() -> None:
    assert late_resets(guarded_by(EveryResetCounts)) == 3
    assert late_resets(Group) == 0


# ---- D2


def a_snapshot_reaches_a_deposed_leader(group_class: type[Group]) -> World:
    world = World(3, group_class=group_class, config=HASTY)
    world.elect("n1")
    world.isolate("n1")
    world.propose("n1", b"never 1", b"never 2", b"never 3")
    world.run(0.1)
    world.elect("n2")
    world.propose("n2", *(b"good %d" % number + b"." * 100 for number in range(20)))
    world.run(0.3)
    world.nodes["n2"].snapshot()
    world.heal()
    world.run(2.0)
    return world


def test_d2_a_snapshot_on_its_way_commits_nothing() -> None:
    with pytest.raises(Violation, match="applied"):
        a_snapshot_reaches_a_deposed_leader(guarded_by(SnapshotMovesCommit))
    world = a_snapshot_reaches_a_deposed_leader(Group)
    assert [command.split(b".")[0] for command in world.nodes["n1"].commands] == [
        b"good %d" % n for n in range(20)
    ]


# ---- D3


def an_acknowledgement_from_an_earlier_office(group_class: type[Group]) -> World:
    world = World(5, group_class=group_class)
    world.elect("n1")
    for other in ("n3", "n4", "n5"):
        world.separate("n1", other)
    world.propose("n1", b"a0", b"a1", b"a2", b"a3", b"a4")
    world.turn("n1")
    world.deliver("n1", "n2")
    world.turn("n2")
    late = list(world.links["n2", "n1"])
    world.isolate("n1")
    world.isolate("n2")
    world.run(1.2, "n1", "n2")
    assert not world.nodes["n1"].group.is_leader
    # n3 wins term 2 with n4 and n5, but its first entry reaches n1 and n2 only
    n3 = world.nodes["n3"].group
    while not n3.is_leader:
        world.now += 0.01
        world.nodes["n3"].group._engine.election_deadline_s = 0
        world.turn("n3", "n4", "n5")
        for link in (("n3", "n4"), ("n4", "n3"), ("n3", "n5"), ("n5", "n3")):
            while world.links[link] and not n3.is_leader:
                world.deliver(*link)
    for other in ("n4", "n5"):
        world.separate("n3", other)
    for other in ("n1", "n2"):
        world.heal("n3", other)
    world.run(0.5, "n1", "n2", "n3", hold=[("n1", "n3"), ("n2", "n3")])
    world.run(0.3, "n1", "n2", "n3", hold=[("n3", "n1")])
    world.run(0.3, "n1", "n2", "n3")
    return finish_the_earlier_office(world, late)


def finish_the_earlier_office(world: World, late: list[bytes]) -> World:
    world.isolate("n3")
    for other in ("n4", "n5"):
        world.heal("n1", other)
    world.elect("n1")
    world.separate("n1", "n5")
    world.propose("n1", b"b0", b"b1", b"b2", b"b3", b"b4")
    world.turn("n1")
    for message in late:
        world.nodes["n1"].group.receive("n2", message)
    world.run(0.5, "n1", "n4")
    return world


def test_d3_an_acknowledgement_counts_in_its_own_term_only() -> None:
    with pytest.raises(Violation, match=r"only the disks of \['n1', 'n4'\] hold"):
        an_acknowledgement_from_an_earlier_office(guarded_by(AnswersOfAnyTerm))
    world = an_acknowledgement_from_an_earlier_office(Group)
    assert b"b0" not in world.nodes["n1"].commands


# ---- D4


def one_vote_that_arrives_twice(group_class: type[Group]) -> World:
    world = World(5, group_class=group_class)
    group = world.nodes["n1"].group
    group._engine.election_deadline_s = world.now - 1
    world.turn()
    world.deliver_all()
    world.turn("n2", "n3", "n4", "n5")
    world.deliver_all()  # the pre-vote is won
    world.turn("n1")
    for other in ("n3", "n4", "n5"):
        world.links["n1", other].clear()
    world.deliver("n1", "n2")
    world.turn("n2")
    assert codec.decode(world.links["n2", "n1"][0]) == codec.Vote(1)
    world.deliver("n2", "n1", keep=True)
    world.deliver("n2", "n1")
    return world


def test_d4_a_vote_counts_once_a_voter() -> None:
    with pytest.raises(Violation, match="2 votes of 5"):
        one_vote_that_arrives_twice(guarded_by(EveryVoteMessageCounts))
    assert one_vote_that_arrives_twice(Group).leaders() == []


# ---- D5


def restarted_behind_a_snapshot(group_class: type[Group]) -> World:
    world = World(3, group_class=group_class)
    world.elect("n1")
    world.propose("n1", *(b"%d" % number for number in range(10)))
    world.run(0.3)
    world.nodes["n2"].snapshot()
    world.propose("n1", *(b"%d" % number for number in range(10, 15)))
    world.run(0.3)
    world.crash("n2")
    world.start("n2")
    return world


def test_d5_a_restart_behind_a_snapshot_keeps_the_journal() -> None:
    world = restarted_behind_a_snapshot(LibraryRestart)
    assert world.nodes["n2"].group.last_index == 12, "what followed the snapshot is gone"
    world = restarted_behind_a_snapshot(Group)
    assert world.nodes["n2"].group.last_index == 17


# ---- D6


def votes_given_across_a_power_cut(group_class: type[Group]) -> list[str]:
    """Who got a vote of term 5, on the real log: n1 asks, the power goes, n3 asks."""
    disk, votes = SimDisk(1), []
    for candidate in ("n1", "n3"):
        log = Log.open(Path("/log"), disk)

        def send(peer: str, parts: list[bytes]) -> None:
            if isinstance(codec.decode(b"".join(parts)), codec.Vote):
                votes.append(peer)

        group = group_class(
            GROUP, "n2", ["n1", "n2", "n3"], log, lambda: 1.0, random.Random(1), send, lambda *_: None, QUICK
        )
        group.start()
        log.sync()
        group.receive(candidate, frame(VoteRequest(5, 1, 0, False)))
        group.flush_early()
        if group_class is Group:
            log.sync()
        group.flush()
        disk.power_cut(3)
    return votes


def test_d6_term_and_vote_are_on_disk_before_the_vote_leaves() -> None:
    assert votes_given_across_a_power_cut(NothingWaitsForTheDisk) == ["n1", "n3"]
    assert votes_given_across_a_power_cut(Group) == ["n1"]


# ---- D7


def test_d7_no_entry_is_executed_inside_a_tick() -> None:
    world = World(3, group_class=GroupLibraryApplies)
    with pytest.raises((ValueError, AttributeError)):
        world.elect("n1")
    world = World(3)
    world.elect("n1")
    world.propose("n1", b"poison")
    world.run(0.3)
    assert all(node.commands == [b"poison"] for node in world.nodes.values())


class GoesOn(Group):
    """An exception stops nothing."""

    def receive(self, peer: str, frame: bytes | bytearray | memoryview) -> None:
        try:
            super().receive(peer, frame)
        finally:
            self._call.failure = None


def after_an_exception_in_a_callback(group_class: type[Group]) -> World:
    world = World(1)
    log = ModelLog(ModelDisk())

    def broken(state: State, index: int, term: int) -> None:
        raise RuntimeError("no such state")

    group = group_class(
        GROUP, "n2", ["n1", "n2"], log, lambda: 1.0, random.Random(1), lambda *_: None, broken, QUICK
    )
    group.start()
    state = as_kept([b"a"], ("n1", "n2"))
    with pytest.raises(RuntimeError):
        group.receive("n1", frame(SnapshotChunk(2, 1, 5, 1, len(state), crc32c(state), 0, state)))
    world.group = group  # type: ignore[attr-defined]
    return world


def test_d7_an_exception_in_a_callback_is_the_end_of_the_replica() -> None:
    heartbeat = frame(AppendEntries(2, 2, 5, 5, 1, 0, []))
    world = after_an_exception_in_a_callback(GoesOn)
    world.group.receive("n1", heartbeat)  # type: ignore[attr-defined]
    assert world.group.commit_index == 5, "goes on with the state it does not have"  # type: ignore[attr-defined]
    world = after_an_exception_in_a_callback(Group)
    for call in (
        lambda: world.group.receive("n1", heartbeat),  # type: ignore[attr-defined]
        world.group.tick,  # type: ignore[attr-defined]
        world.group.flush,  # type: ignore[attr-defined]
        lambda: world.group.propose([b"x"]),  # type: ignore[attr-defined]
    ):
        with pytest.raises(ReplicationFailed, match="no such state"):
            call()


# ---- D8


def test_d8_a_snapshot_that_cannot_be_loaded_stops_the_replica() -> None:
    def broken(state: bytes, index: int, term: int) -> None:
        raise RuntimeError("unreadable")

    state = as_kept([b"a"], ("n1", "n2"))
    chunk = frame(SnapshotChunk(2, 1, 5, 1, len(state), crc32c(state), 0, state))
    for group_class in (GroupSwallowsBadSnapshots, Group):
        group = group_class(
            GROUP,
            "n2",
            ["n1", "n2"],
            ModelLog(ModelDisk()),
            lambda: 1.0,
            random.Random(1),
            lambda *_: None,
            broken,
            QUICK,
        )
        group.start()
        if group_class is Group:
            with pytest.raises(RuntimeError):
                group.receive("n1", chunk)
            with pytest.raises(ReplicationFailed):
                group.tick()
        else:
            group.receive("n1", chunk)
            group.tick()  # a zombie: it has no state, and votes


# ---- D9


@pytest.mark.parametrize("size", [65_535, 131_071, 524_287, 1_048_575])
def test_d9_entries_of_any_size_travel_whole(size: int) -> None:
    body = random.Random(size).randbytes(size)
    world = World(3)
    world.elect("n1")
    world.propose("n1", body)
    world.run(0.3)
    assert all(node.commands == [body] for node in world.nodes.values())


def test_d9_the_librarys_pieces_never_leave() -> None:
    sent: list[object] = []
    world = World(1)
    group = world.nodes["n1"].group
    with pytest.raises(ReplicationFailed, match="pieces"):
        group._messages.send("n2", {"type": "append_entries", "transmission": "start", "data": b""})
    assert sent == []
    world = World(2, group_class=GroupLibrarySends)
    with pytest.raises((ReplicationFailed, WireError)):
        world.elect("n1")


# ---- D10


class LibraryMembership(LibraryNode):
    def _SyncObj__parseChangeClusterRequest(self, command: object) -> object:  # type: ignore[override]
        return stock("_SyncObj__parseChangeClusterRequest")(self, command)  # type: ignore[operator]

    def _SyncObj__doChangeCluster(self, request: object, reverse: bool = False) -> object:  # type: ignore[override]
        self._SyncObj__transport.dropNode = lambda node: None  # type: ignore[attr-defined]
        return stock("_SyncObj__doChangeCluster")(self, request, reverse)  # type: ignore[operator]


class GroupLibraryMembership(Group):
    library_class = LibraryMembership


def test_d10_no_entry_changes_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    removal = AppendEntries(2, 1, 1, 1, 0, 0, [Entry(2, b"\2" + pickle.dumps(["rem", "n3"], 2))])
    world = World(3)
    follower = world.nodes["n2"].group
    with pytest.raises(WireError, match="type 2"):
        follower.receive("n1", frame(removal))
    assert len(follower._engine._node._SyncObj__otherNodes) == 2
    with monkeypatch.context() as patch:
        settings = library.configuration

        def dynamic(**given: object) -> object:
            made = settings(**given)
            made.dynamicMembershipChange = True
            return made

        patch.setattr(library, "configuration", dynamic)
        patch.setattr(codec, "decode", lambda data: removal)
        world = World(3, group_class=GroupLibraryMembership)
        follower = world.nodes["n2"].group
        node = follower._engine._node
        node._SyncObj__nodeClass = lambda name: follower._engine.others[name]  # type: ignore[attr-defined]
        follower.receive("n1", b"")
        assert len(node._SyncObj__otherNodes) == 1, "a pickle from the network changed the members"


# ---- D11


def a_stale_reset(group_class: type[Group]) -> World:
    world = World(3, group_class=group_class, config=HASTY)
    group = world.elect("n1")
    stale = AppendAnswer(group.term, 1, 3, Outcome.RESET)
    world.separate("n1", "n3")
    world.propose("n1", *(b"a%d" % number for number in range(10)))
    world.run(0.3)
    world.nodes["n1"].snapshot()
    world.propose("n1", *(b"b%d" % number for number in range(5)))
    world.run(0.3)
    assert len(world.nodes["n1"].commands) == 15, "acknowledged to clients"
    group.receive("n2", frame(stale))
    world.run(0.5)
    return world


class NoRuleAgainstGoingBack(EveryResetCounts, AnySnapshotIsTaken):
    """Both rules that hold."""


def test_d11_a_stale_reset_moves_nobody_back() -> None:
    with pytest.raises(Violation, match="went back"):
        a_stale_reset(guarded_by(NoRuleAgainstGoingBack))
    world = a_stale_reset(Group)
    assert len(world.nodes["n2"].commands) == 15


def an_old_snapshot(group_class: type[Group]) -> World:
    world = World(3, group_class=group_class)
    group = world.elect("n1")
    world.propose("n1", *(b"a%d" % number for number in range(10)))
    world.run(0.3)
    index, state = group.applied_index, as_kept(world.nodes["n1"].commands)
    world.propose("n1", *(b"b%d" % number for number in range(5)))
    world.run(0.3)
    chunk = SnapshotChunk(
        group.term, group._guard.seq, index, group.term, len(state), crc32c(state), 0, state
    )
    world.nodes["n2"].group.receive("n1", frame(chunk))
    world.run(0.2)
    return world


def test_d11_an_old_snapshot_is_refused() -> None:
    with pytest.raises(Violation, match="went back"):
        an_old_snapshot(guarded_by(AnySnapshotIsTaken))
    assert len(an_old_snapshot(Group).nodes["n2"].commands) == 15


# ---- D12


def test_d12_nothing_is_forwarded() -> None:
    world = World(3, group_class=GroupLibraryForwards)
    world.elect("n1")
    follower = world.nodes["n2"].group
    follower._engine._node._applyCommand(b"x", None, 0)
    follower._engine.tick_soon()
    with pytest.raises(ReplicationFailed, match="forward"):
        follower.tick()
    world = World(3)
    world.elect("n1")
    follower = world.nodes["n2"].group
    assert follower.propose([b"x"]) is None
    with pytest.raises(ReplicationFailed):
        follower._engine._node._applyCommand(b"x", None, 0)


# ---- D14 (D13 is in test_connection.py)


class RestoresCommitIndex(JournalView):
    def getRaftCommitIndex(self) -> int:
        return 10


class GroupRestoresCommitIndex(Group):
    view_class = RestoresCommitIndex


def test_d14_a_commit_index_beyond_the_journal_is_not_believed() -> None:
    for group_class, applied in ((GroupRestoresCommitIndex, [6, 7]), (Group, [])):
        log = ModelLog(ModelDisk())
        for index in range(1, 6):
            log.journal(GROUP).append([b"\0c"], index, 0 if index == 1 else 1)
        log.sync()
        group = group_class(
            GROUP,
            "n2",
            ["n1", "n2", "n3"],
            log,
            lambda: 1.0,
            random.Random(1),
            lambda *_: None,
            lambda *_: None,
        )
        group.start()
        entries = [Entry(2, b"\0d"), Entry(2, b"\0e")]
        group.receive("n1", frame(AppendEntries(2, 1, 5, 5, 1, 0, entries)))
        group.tick()
        found = [index for index, _, _ in group.take_committed(1 << 20, 100)]
        assert [index for index in found if index > 5] == applied, "the leader has committed 5"


# ---- found here: answers must be to later questions


def a_read_on_a_deposed_leader(group_class: type[Group]) -> list[int | None]:
    world = World(3, group_class=group_class)
    old = world.elect("n1")
    world.run(0.1, hold=[("n2", "n1")])
    late = list(world.links["n2", "n1"])
    assert late
    world.isolate("n1")
    world.elect("n2")
    world.propose("n2", b"new")
    world.run(0.2, "n2", "n3")
    assert old.is_leader, "it has not heard of its end"
    answers: list[int | None] = []
    old.read_barrier(answers.append)
    old.tick()
    for message in late:
        old.receive("n2", message)
    return [answer for answer in answers if answer is not None]


def test_a_read_is_confirmed_by_answers_to_later_questions_only() -> None:
    assert a_read_on_a_deposed_leader(AnyAnswerConfirmsReads) != []
    assert a_read_on_a_deposed_leader(Group) == []


# ---- the rules that are taken away are there


def test_every_rule_that_is_taken_away_here_is_one_of_the_product() -> None:
    assert unfit(globals().values()) == []


def test_a_rule_under_a_name_of_the_past_would_be_noticed() -> None:
    class Old(Guard):
        def rule_of_yesterday(self) -> None:
            return

    class Older(LibraryNode):
        def _SyncObj__ofYesterday(self) -> None:
            return

    assert unfit([Old, Older]) == [
        "Old.rule_of_yesterday replaces nothing",
        "Older._SyncObj__ofYesterday replaces nothing",
    ]
    with pytest.raises(AssertionError):
        guarded_by(Old)


def test_what_the_facade_does_not_have_cannot_be_set_on_it() -> None:
    """So a test that reaches past it under a wrong name fails instead of changing nothing."""
    engine = World(1).nodes["n1"].group._engine
    with pytest.raises(AttributeError):
        engine._SyncObj__votedForNodeId = None  # type: ignore[attr-defined]
