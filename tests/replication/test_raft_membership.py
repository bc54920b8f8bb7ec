"""Members come and go, leadership is handed over: one rule a test (Raft §6, thesis §3.10 and §4)."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from quorum.replication import codec
from quorum.replication.codec import AppendAnswer, AppendEntries, Entry, Outcome, PreVote, Vote, VoteRequest
from quorum.replication.configuration import (
    CONFIGURATION,
    CONFIGURATION_BYTES,
    CatchUp,
    Configuration,
    Configurations,
    unwrap_state,
    wrap_state,
)
from quorum.replication.errors import ReplicationFailed, WireError
from quorum.replication.group import Group
from quorum.replication.group_members import GroupMembers
from quorum.replication.guard import Guard
from quorum.replication.journal_view import QUARANTINED
from quorum.replication.quarantine import RecoveryResponse
from support.raft.ablations import guarded_by
from support.raft.checks import Violation
from support.raft.fuzz import run
from support.raft.log import ModelDisk, ModelLog
from support.raft.world import GROUP, QUICK, RealLogWorld, World

THREE = Configuration(("n1", "n2", "n3"))


def entry(configuration: Configuration, term: int = 1) -> Entry:
    return Entry(term, bytes([CONFIGURATION]) + configuration.encode())


def frame(message: codec.Message) -> bytes:
    return b"".join(codec.encode(message))


class Alone:
    """One member whose peers are this test."""

    def __init__(self, *members: str, log: ModelLog | None = None) -> None:
        self.now = 1000.0
        self.log = log or ModelLog(ModelDisk())
        self.sent: list[tuple[str, codec.Message]] = []
        self.group = Group(
            GROUP,
            "n1",
            members,
            self.log,
            lambda: self.now,
            random.Random(1),
            lambda peer, parts: self.sent.append((peer, codec.decode(b"".join(parts)))),
            lambda *_: None,
            QUICK,
        )
        self.group.start()
        for name in ("n2", "n3", "n4", "n5"):
            self.group.peer_connected(name)

    def hear(self, peer: str, message: codec.Message) -> list[tuple[str, codec.Message]]:
        self.group.receive(peer, frame(message))
        return self.leaves()

    def leaves(self) -> list[tuple[str, codec.Message]]:
        self.log.sync()
        self.group.flush()
        sent, self.sent = self.sent, []
        return sent

    def wait(self, seconds: float) -> list[tuple[str, codec.Message]]:
        self.now += seconds
        self.group.tick()
        return self.leaves()

    def lead(self, *voters: str) -> None:
        asked = [each for _, each in self.wait(1.0) if isinstance(each, codec.PreVoteRequest)]
        for peer in voters:
            self.hear(peer, PreVote(self.group.term, asked[0].round, True))
        self.wait(0.0)
        for peer in voters:
            self.hear(peer, Vote(self.group.term))
        assert self.group.is_leader

    def acknowledge(self, *peers: str) -> None:
        """They have everything."""
        for peer in peers:
            seq, last = self.group._guard.seq, self.group.last_index
            self.hear(peer, AppendAnswer(self.group.term, seq, last + 1, Outcome.MATCHES))
        self.wait(0.0)


# ---- configurations


def test_majorities_overlap_at_every_step() -> None:
    """Thesis §4.1: what makes one voter at a time safe, for every change that is allowed among six."""
    names = [f"n{number}" for number in range(1, 7)]
    sets = [Configuration(each) for size in range(1, 6) for each in combinations(names, size)]
    allowed = [(one, other) for one in sets for other in sets if other.may_follow(one)]
    assert len(allowed) > 300

    def majorities(of: Configuration) -> list[set[str]]:
        return [set(each) for each in combinations(of.voters, len(of.voters) // 2 + 1)]

    for one, other in allowed:
        assert all(near & far for near in majorities(one) for far in majorities(other)), (one, other)
    assert not Configuration(("n1", "n4")).may_follow(Configuration(("n1", "n2")))
    assert not Configuration(()).may_follow(Configuration(("n1",)))


def test_a_configuration_is_an_entry_of_one_size_and_comes_back() -> None:
    for each in (
        THREE,
        Configuration(),
        Configuration(("é" * 32,), tuple(sorted("x" * 63 + c for c in "abc"))),
    ):
        assert len(each.encode()) == CONFIGURATION_BYTES - 1
        assert Configuration.decode(each.encode()) == each
    assert unwrap_state(wrap_state(THREE, b"state")) == (THREE, b"state")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "has 4098 bytes"),
        (bytes([9, 0, 0]).ljust(4098, b"\0"), "format 9"),
        (bytes([1, 40, 1]).ljust(4098, b"\0"), "at most 40"),
        (bytes([1, 1, 0, 1, 200]).ljust(4098, b"\0"), "no configuration"),
        (bytes([1, 2, 0, 1, 98, 1, 97]).ljust(4098, b"\0"), "must be sorted"),
        (bytes([1, 1, 1, 1, 97, 1, 97]).ljust(4098, b"\0"), "may occur once"),
        (bytes([1, 1, 0, 1, 97]).ljust(4097, b"\0") + b"x", "bytes after the last"),
        (bytes([1, 1, 0, 0]).ljust(4098, b"\0"), "1 to 64 bytes"),
    ],
)
def test_bytes_that_are_no_configuration_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        Configuration.decode(data)
    if len(data) == CONFIGURATION_BYTES - 1:
        with pytest.raises(WireError, match=words):
            codec.decode(frame(AppendEntries(1, 1, 1, 1, 0, 0, [Entry(1, bytes([CONFIGURATION]) + data)])))


def test_who_is_being_removed_has_to_answer_a_quarantined_member_too() -> None:
    """n1's removal of n3 is not committed, and never will be: n3 was elected with n2's voice before. If n2, which has
    lost all that, went by n1's word alone, both would commit what differs from what n3 and n2 have committed."""
    world = World(3)
    world.elect("n1")
    world.propose("n1", b"old")
    world.run(0.3)
    world.isolate("n1")
    old = world.nodes["n1"].group
    assert old.change_members(THREE.without("n3")) is not None
    world.elect("n3")
    world.propose("n3", b"kept")
    world.run(0.1)
    kept = world.nodes["n3"].group.commit_index
    world.crash("n2")
    world.isolate("n3")
    world.heal("n1", "n2")
    world.disks["n2"] = ModelDisk()
    log = ModelLog(world.disks["n2"])
    log.journal(GROUP).set_hard_state(0, QUARANTINED)
    log.sync()
    log.crash(random.Random(0))
    lost = world.start("n2").group
    assert old.is_leader, "it has not noticed yet"
    before = old.commit_index
    for _ in range(60):
        lost.take_recovery_response("n1", old.recovery_response("n2", lost.quarantine.nonce))
        world.now += 0.01
        world.turn("n1", "n2")
        world.deliver_all()
        assert lost.quarantine.is_deaf
    assert old.commit_index == before < kept
    world.heal()
    for _ in range(200):
        for name in ("n1", "n3"):
            lost.take_recovery_response(
                name, world.nodes[name].group.recovery_response("n2", lost.quarantine.nonce)
            )
        world.run(0.01)
    assert not lost.quarantine.is_on
    assert [node.commands for node in world.nodes.values()] == [[b"old", b"kept"]] * 3


def test_a_quarantine_ends_when_the_leaders_entries_are_here_and_on_disk() -> None:
    """Its own entries of another history, however many, and entries that are not synced do not count."""
    log = ModelLog(ModelDisk())
    for index in range(1, 8):
        log.journal(GROUP).append([b"\1"], index, min(index - 1, 1))
    log.journal(GROUP).set_hard_state(1, QUARANTINED)
    log.sync()
    alone = Alone("n1", "n2", "n3", log=log)
    group = alone.group
    for peer in ("n3", "n2"):
        response = RecoveryResponse(
            GROUP, group.quarantine.nonce, 5, 4, peer == "n2", True, 1, ("n1", "n2", "n3")
        )
        group.take_recovery_response(peer, response)
    alone.hear("n2", AppendEntries(5, 1, 1, 2, 1, 0, []))
    assert (group.term, group.last_index, group.quarantine.is_on) == (5, 7, True)
    group.receive("n2", frame(AppendEntries(5, 2, 1, 2, 1, 0, [Entry(5, b"\1"), Entry(5, b"\1")])))
    group.flush()
    assert group.quarantine.is_on
    alone.leaves()
    assert not group.quarantine.is_on
    assert alone.hear("n3", VoteRequest(5, 9, 5, True)) == [], "the vote in this term is spent"


def test_what_held_at_an_index_is_known_until_a_snapshot_covers_it() -> None:
    two, four = Configuration(("n1", "n2")), Configuration(("n1", "n2", "n3", "n4"))
    known = Configurations(THREE)
    known.appended(5, two)
    known.appended(9, four)
    assert [known.at(index) for index in (1, 4, 5, 8, 9, 99)] == [THREE, THREE, two, two, four, four]
    known.cut(9)
    assert (known.current, known.index) == (two, 5)
    known.appended(9, four)
    known.begin_at(7, two, keeps_later=True)
    assert (known.at(7), known.current) == (two, four)
    known.begin_at(12, THREE, keeps_later=False)
    assert (known.current, known.index) == (THREE, 12)


# ---- changes


def test_a_change_holds_when_it_is_appended_at_the_leader_and_at_its_followers() -> None:
    world = World(3, spares=1)
    group = world.elect("n1")
    world.run(0.3)
    wanted = THREE.with_learner("n4")
    assert group.change_members(wanted) is not None
    assert (group.configuration, group.is_settled) == (wanted, False)
    group.send_appends()
    world.nodes["n1"].sync()
    world.deliver("n1", "n2")
    assert world.nodes["n2"].group.configuration == wanted
    assert not world.nodes["n2"].group.is_settled
    world.run(0.3)
    assert all(node.group.configuration == wanted and node.group.is_settled for node in world.nodes.values())


def test_a_change_waits_for_the_one_before() -> None:
    world = World(3, spares=2)
    group = world.elect("n1")
    world.run(0.3)
    assert group.change_members(THREE.with_learner("n4")) is not None
    assert group.change_members(group.configuration.with_learner("n5")) is None
    world.run(0.3)
    assert group.change_members(group.configuration.with_learner("n5")) is not None


def test_a_change_waits_for_an_entry_of_the_leaders_own_term() -> None:
    """The correction to thesis §4.1: without it, a change of an earlier leader may still be about to be committed."""
    alone = Alone("n1", "n2", "n3")
    alone.lead("n2")
    assert alone.group.change_members(THREE.with_learner("n4")) is None
    alone.acknowledge("n2")
    assert alone.group.leader_ready
    assert alone.group.change_members(THREE.with_learner("n4")) is not None


def test_only_one_voter_changes_at_a_time_and_no_leader_removes_itself() -> None:
    alone = Alone("n1", "n2", "n3")
    alone.lead("n2")
    alone.acknowledge("n2")
    for wanted in (Configuration(("n1",)), Configuration(("n1", "n4", "n5")), Configuration(("n2", "n3"))):
        with pytest.raises(ValueError, match="cannot change"):
            alone.group.change_members(wanted)
    follower = Alone("n1", "n2", "n3")
    assert follower.group.change_members(THREE.with_learner("n4")) is None


def test_an_uncommitted_change_that_is_cut_off_never_was() -> None:
    world = World(3, spares=1)
    old = world.elect("n1")
    world.run(0.3)
    world.isolate("n1")
    assert old.change_members(THREE.without("n3")) is not None
    world.turn("n1")
    assert old.configuration.voters == ("n1", "n2")
    new = world.elect("n2")
    world.propose("n2", b"a")
    world.heal()
    world.reconnect("n1", "n2")
    world.reconnect("n1", "n3")
    world.run(1.0)
    assert old.configuration == new.configuration == THREE
    assert world.nodes["n1"].commands == [b"a"]
    assert set(old._engine.others) == {"n2", "n3"}


def test_a_deposed_leader_that_shrank_its_group_commits_nothing_with_it() -> None:
    """A leader cut off with one other member can remove nobody: both majorities have to be in common (D10)."""
    world = World(5)
    old = world.elect("n1")
    world.run(0.3)
    for near in ("n1", "n2"):
        for far in ("n3", "n4", "n5"):
            world.separate(near, far)
    five = old.configuration
    assert old.change_members(five.without("n5")) is not None
    world.propose("n1", b"lost")
    world.run(0.5, "n1", "n2")
    assert not old.is_settled
    assert old.change_members(old.configuration.without("n4")) is None, "never a second one meanwhile"
    world.elect("n3")
    world.propose("n3", b"kept")
    world.heal()
    for near in ("n1", "n2"):
        for far in ("n3", "n4", "n5"):
            world.reconnect(near, far)
    world.run(2.0)
    assert {tuple(node.commands) for node in world.nodes.values()} == {(b"kept",)}
    assert all(node.group.configuration == five for node in world.nodes.values())


@pytest.mark.parametrize("world_class", [World, RealLogWorld])
def test_configurations_are_found_again_after_a_restart(world_class: type[World]) -> None:
    """In the log, and, where that is compacted, in the snapshot."""
    world = world_class(3, spares=1)
    world.elect("n1")
    world.run(0.3)
    world.change("n1", THREE.with_learner("n4"))
    world.propose("n1", b"x" * (CONFIGURATION_BYTES - 1))  # an entry of the same length
    world.change("n1", world.nodes["n1"].group.configuration.with_voter("n4"))
    wanted = Configuration(("n1", "n2", "n3", "n4"))
    for rounds in range(2):
        for name in world.names:
            world.crash(name)
            assert world.start(name).group.configuration == wanted, (name, rounds)
        world.run(2.0)
        for node in world.nodes.values():
            node.snapshot()


def test_a_snapshot_carries_the_members_of_its_index() -> None:
    """Not those of now: what came later is in the entries behind it, and may be cut off."""
    world = World(3, spares=1)
    world.elect("n1")
    world.propose("n1", b"a")
    world.run(0.3)
    node = world.nodes["n1"]
    assert node.group.change_members(THREE.with_learner("n4")) is not None
    node.snapshot()
    kept = world.disks["n1"].snapshots[GROUP][2]
    assert unwrap_state(kept)[0] == THREE
    world.run(0.3)
    node.snapshot()
    assert unwrap_state(world.disks["n1"].snapshots[GROUP][2])[0] == THREE.with_learner("n4")


def test_a_newcomer_far_behind_learns_the_members_from_a_snapshot() -> None:
    """The entry that added it is no longer in the journal either."""
    world = World(3, spares=1)
    group = world.elect("n1")
    world.isolate("n4")
    world.change("n1", THREE.with_learner("n4"), 1.0)
    added = group._view.configurations.index
    world.propose("n1", *(b"%d" % number for number in range(40)))
    world.run(0.5)
    for node in world.nodes.values():
        node.snapshot()
    assert group._view.base > added
    world.heal()
    world.run(1.0)
    newcomer = world.nodes["n4"]
    assert newcomer.commands == world.nodes["n1"].commands
    assert newcomer.group.configuration == THREE.with_learner("n4")


# ---- learners


def test_a_learner_is_fed_and_counts_for_nothing() -> None:
    world = World(3, spares=1)
    group = world.elect("n1")
    world.run(0.3)
    world.change("n1", THREE.with_learner("n4"))
    world.isolate("n2")
    world.isolate("n3")
    (index,) = world.propose("n1", b"a")
    world.run(0.5)
    assert group.match_index("n4") == index
    assert group.commit_index < index, "one voter of three"
    world.run(1.5)
    assert not group.is_leader, "a learner's answers hold no office"


class EverybodyCounts(Guard):
    """Without the rule: a vote counts whoever it comes from."""

    def is_voter(self, peer: str) -> bool:
        return True


def test_a_strangers_and_a_learners_vote_elects_nobody() -> None:
    for group_class, elected in ((guarded_by(EverybodyCounts), True), (Group, False)):
        world = World(3, group_class=group_class, spares=1)
        world.elect("n1")
        world.run(0.3)
        world.change("n1", THREE.with_learner("n4"))
        world.crash("n1")
        world.crash("n2")
        group = world.nodes["n3"].group
        group._engine.is_transfer_target = True  # stands without a pre-vote
        group._engine.election_deadline_s = world.now - 1
        group.tick()
        group.receive("n4", frame(Vote(group.term)))
        assert group.is_leader == elected


def test_a_learner_never_stands() -> None:
    alone = Alone()
    assert alone.group.configuration == Configuration()
    for _ in range(10):
        assert alone.wait(1.0) == []
        assert alone.group.next_due() > alone.now
    alone.hear("n2", AppendEntries(1, 1, 1, 1, 0, 0, [entry(Configuration(("n2", "n3"), ("n1",)))]))
    for _ in range(10):
        assert alone.wait(1.0) == []


def test_a_learner_that_was_promoted_without_hearing_of_it_may_be_asked_for_its_vote() -> None:
    """Thesis §4.2.2: the candidate's configuration says whose votes count, or a leader lost at that moment would take
    the group with it."""
    alone = Alone()
    alone.hear("n2", AppendEntries(1, 1, 1, 1, 0, 0, [entry(Configuration(("n2", "n3"), ("n1",)))]))
    alone.wait(2.0)
    assert alone.hear("n3", VoteRequest(2, 3, 1, False)) == [("n3", Vote(2))]


def test_a_learner_is_caught_up_when_a_round_takes_less_than_an_election_timeout() -> None:
    """Thesis §4.2.1."""
    slow = CatchUp(100, 0.0)
    slow.observe(100, 900, 5.0, 0.4)
    assert (slow.is_done, slow.target) == (False, 900)
    slow.observe(900, 950, 5.3, 0.4)
    assert (slow.is_done, slow.target) == (True, 950)
    slow.observe(940, 2000, 5.6, 0.4)
    assert slow.is_done, "the present round is still short"
    slow.observe(940, 2000, 5.8, 0.4)
    assert not slow.is_done, "it has fallen behind again"


def test_a_voter_that_left_is_neither_fed_nor_counted() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.3)
    world.change("n1", THREE.without("n3"))
    world.links["n1", "n3"].clear()
    world.propose("n1", b"a")
    world.run(1.0)
    assert world.nodes["n1"].commands == world.nodes["n2"].commands == [b"a"]
    assert group._guard.answered.keys() <= {"n2", "n3"}
    group.receive(
        "n3", frame(AppendAnswer(group.term, group._guard.seq, group.last_index + 1, Outcome.MATCHES))
    )
    assert group.match_index("n3") == 0


def test_a_voter_that_left_without_hearing_of_it_unseats_nobody() -> None:
    """Thesis §4.2.3: it stops hearing a leader, and asks; who hears one says no, and no term is spent."""
    world = World(3)
    group = world.elect("n1")
    world.run(0.3)
    world.isolate("n3")
    world.change("n1", THREE.without("n3"))
    term = group.term
    world.heal()
    for name in ("n1", "n2"):
        world.reconnect("n3", name)
    world.run(5.0)
    assert world.nodes["n3"].group.configuration == THREE
    assert (group.is_leader, group.term) == (True, term)


def test_a_lone_voter_commits_what_its_own_disk_has_and_tells_learners_no_more() -> None:
    world = World(1, spares=1)
    group = world.elect("n1")
    world.run(0.2)
    world.change("n1", Configuration(("n1",), ("n2",)))
    (index,) = world.propose("n1", b"a")
    group.tick()
    group.flush_early()
    assert group.commit_index < index
    for _ in range(len(world.links["n1", "n2"])):
        world.deliver("n1", "n2")
    assert world.nodes["n2"].group.last_index == index
    assert world.nodes["n2"].group.commit_index < index
    world.nodes["n1"].sync()
    assert group.commit_index == index


def test_a_group_grows_from_one_to_five_and_shrinks_to_another_one() -> None:
    world = World(1, spares=4)
    world.elect("n1")
    world.run(0.2)
    for number, name in enumerate(("n2", "n3", "n4", "n5")):
        leader = world.leaders()[0]
        world.change(leader, world.nodes[leader].group.configuration.with_learner(name))
        world.propose(leader, b"learn %d" % number)
        world.run(0.5)
        assert world.nodes[leader].group.is_caught_up(name)
        world.change(leader, world.nodes[leader].group.configuration.with_voter(name))
        world.propose(leader, b"vote %d" % number)
    group = world.nodes["n1"].group
    world.run(0.2)
    assert group.transfer_leadership("n5")
    world.run(0.5)
    assert world.leaders() == ["n5"]
    for name in ("n1", "n2", "n3", "n4"):
        world.change("n5", world.nodes["n5"].group.configuration.without(name))
        world.propose("n5", name.encode())
    world.run(0.5)
    assert len(world.nodes["n5"].commands) == 12
    assert world.nodes["n5"].group.configuration == Configuration(("n5",))


def test_a_leader_knows_whether_a_majority_of_some_voters_answers() -> None:
    world = World(3)
    group = world.elect("n1")
    world.isolate("n3")
    world.run(QUICK.election_min_s + 0.2)
    for wanted, answers in ((THREE.voters, True), (("n1", "n3"), False), (("n1",), True), (("n3",), False)):
        assert group.has_majority_of(wanted) == answers, wanted
    assert not world.nodes["n2"].group.has_majority_of(THREE.voters), "it does not lead"


# ---- handing over (thesis §3.10)


def test_a_leader_that_hands_over_proposes_nothing_until_it_is_over() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.3)
    world.propose("n1", b"a")
    assert group.transfer_leadership("n3")
    assert group.is_transferring
    assert group.propose([b"b"]) is None
    assert not group.transfer_leadership("n2")
    assert group.change_members(THREE.with_learner("n4")) is None
    world.run(0.5)
    assert world.leaders() == ["n3"]
    assert not group.is_transferring
    world.propose("n3", b"c")
    world.run(0.3)
    assert {tuple(node.commands) for node in world.nodes.values()} == {(b"a", b"c")}


def test_a_target_that_lacks_something_is_brought_up_to_date_first() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.3)
    world.propose("n1", *(b"%d" % number for number in range(200)))
    assert group.match_index("n3") < group.last_index
    assert group.transfer_leadership("n3")
    world.run(0.7)
    assert world.leaders() == ["n3"]
    assert len(world.nodes["n3"].commands) == 200


def test_a_leader_goes_on_if_nothing_comes_of_it() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.3)
    world.separate("n1", "n3")
    assert group.transfer_leadership("n3"), "nobody knows yet that it cannot be reached"
    world.run(QUICK.election_max_s + 0.1)
    assert group.is_leader
    assert not group.is_transferring
    world.propose("n1", b"a")
    world.run(0.3)
    assert world.nodes["n2"].commands == [b"a"]


def test_only_a_voter_that_is_connected_takes_over() -> None:
    world = World(3, spares=1)
    group = world.elect("n1")
    world.run(0.3)
    world.change("n1", THREE.with_learner("n4"))
    assert not group.transfer_leadership("n4")
    group.peer_disconnected("n2")
    assert not group.transfer_leadership("n2")
    assert not world.nodes["n2"].group.transfer_leadership("n3"), "it does not lead"


def test_who_stands_last_leads_only_when_nobody_else_does() -> None:
    world = World(3)
    world.elect("n1")
    world.run(0.3)
    world.nodes["n2"].group.campaign.campaigns_last = True
    world.crash("n1")
    world.run(2.0)
    assert world.leaders() == ["n3"]
    world.nodes["n3"].group.campaign.campaigns_last = True
    world.crash("n3")
    world.start("n1").group.campaign.campaigns_last = True
    world.run(2.0)
    assert world.leaders() == []
    world.run(6.0)
    assert len(world.leaders()) == 1, "a last resort"


# ---- all of it at random


def test_raft_holds_while_members_come_and_go() -> None:
    changes = sum(run(seed, 4000, 3, spares=2).changes for seed in range(1, 26))
    changes += sum(run(seed, 4000, 5, spares=1).changes for seed in range(1, 11))
    assert changes > 100


class ChangesAtOnce(GroupMembers):
    def _may_change(self) -> bool:
        return self._engine.is_leader


class OverlappingChanges(Group):
    """Without the rule: a change does not wait for the one before (D10)."""

    members_class = ChangesAtOnce


def test_the_fuzz_finds_overlapping_changes() -> None:
    for seed in range(1, 61):
        try:
            run(seed, 6000, 3, OverlappingChanges, spares=2)
        except (Violation, ReplicationFailed):
            return
    pytest.fail("without the rule nothing went wrong")
