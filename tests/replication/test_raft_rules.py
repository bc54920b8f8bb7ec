"""Raft's rules on our groups, one test a rule: terms, elections, replication, and changes of leadership. Sections are
those of "In Search of an Understandable Consensus Algorithm" (Raft) and of Ongaro's thesis."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from quorum.log.errors import EntryMissing
from quorum.replication import codec
from quorum.replication.codec import (
    AppendAnswer,
    AppendEntries,
    Entry,
    Outcome,
    PreVote,
    PreVoteRequest,
    SnapshotChunk,
    StaleTerm,
    Vote,
    VoteRequest,
)
from quorum.replication.group_config import GroupConfig
from support.raft.log import ModelDisk
from support.raft.lone import Lone
from support.raft.world import GROUP, QUICK, World, pack

# ---- §5.1 terms


def test_a_higher_term_makes_a_leader_follow() -> None:
    lone = Lone()
    lone.become_leader()
    lone.hear("n2", AppendEntries(9, 1, 1, 1, 0, 0, []))
    assert (lone.group.is_leader, lone.group.term, lone.group.leader) == (False, 9, "n2")


def test_a_leader_of_the_past_is_told_the_term() -> None:
    lone = Lone(hard_state=(5, None))
    assert lone.ask(AppendEntries(4, 1, 1, 1, 0, 0, [])) == [StaleTerm(5)]
    assert lone.ask(SnapshotChunk(4, 1, 9, 3, 0, 0, 0, b"")) == [StaleTerm(5)]
    leader = Lone()
    leader.become_leader()
    leader.hear("n2", StaleTerm(7))
    assert (leader.group.is_leader, leader.group.term) == (False, 7)


def test_term_and_vote_survive_a_restart() -> None:
    world = World(3)
    world.elect("n1")
    term = world.nodes["n1"].group.term
    world.crash("n2")
    assert world.start("n2").group.term == term


# ---- §5.2 election


def test_one_vote_a_term() -> None:
    lone = Lone()
    assert lone.ask(VoteRequest(3, 1, 0, False), "n2") == [Vote(3)]
    assert lone.ask(VoteRequest(3, 9, 2, False), "n3") == []
    assert lone.ask(VoteRequest(4, 9, 2, False), "n3") == [Vote(4)]


def test_a_vote_waits_for_the_disk() -> None:
    lone = Lone()
    lone.hear("n2", VoteRequest(3, 1, 0, False))
    lone.group.flush_early()
    lone.group.flush()
    assert lone.sent == []
    assert lone.answers() == [("n2", Vote(3))]


def test_a_new_leader_is_there_soon_after_the_old_one_dies() -> None:
    gaps = []
    for seed in range(20):
        world = World(3, seed, config=GroupConfig())
        while not world.leaders():
            world.run(0.05)
        world.run(0.5)
        world.crash(world.leaders()[0])
        began = world.now
        while not any(node.group.leader_ready for node in world.nodes.values()):
            world.run(0.01)
        gaps.append(world.now - began)
    assert max(gaps) < 2.0


def test_after_a_start_the_voters_campaign_in_turn_once_a_majority_is_connected() -> None:
    world = World(3)
    lonely = world.nodes["n1"].group
    for name in ("n2", "n3"):
        lonely.peer_disconnected(name)

    def timers() -> dict[str, float]:
        for node in world.nodes.values():
            node.group.campaign_in_turn()
        return {name: node.group.campaign.next_due() for name, node in world.nodes.items()}

    alone = lonely.campaign.next_due()
    first = timers()
    assert first["n1"] == alone, "it is connected to no other voter"
    assert world.now + QUICK.heartbeat_s < first["n2"] < first["n3"], "the order in group 7"
    lonely.peer_connected("n2")
    second = timers()
    assert second == {**first, "n1": second["n1"]}
    assert second["n3"] < second["n1"] != alone
    world.now += 0.05
    assert timers() == second, "each timer is set once"


def test_the_only_voter_leads_soon_also_if_it_should_campaign_last() -> None:
    lone = Lone(size=1)
    lone.group.campaign.campaigns_last = True
    lone.now += QUICK.election_max_s
    lone.group.tick()
    assert lone.group.is_leader


def test_heartbeats_come_slowly_only_while_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3)
    world.elect("n1")
    carry = world.carry
    heartbeats: list[bool] = []

    def listen(sender: str, to: str, data: bytes) -> None:
        message = codec.decode(data)
        if isinstance(message, AppendEntries) and not message.entries and not message.is_quiet:
            heartbeats.append(message.is_slow)
        carry(sender, to, data)

    monkeypatch.setattr(world, "carry", listen)
    for seconds, is_slow in ((0.8, False), (1.0, None), (1.0, True)):
        heartbeats.clear()
        world.run(seconds)
        assert heartbeats
        assert is_slow is None or set(heartbeats) == {is_slow}
    world.propose("n1", b"a")
    heartbeats.clear()
    world.run(0.8)
    assert set(heartbeats) == {False}


def test_a_leader_without_a_majority_steps_down() -> None:
    world = World(3)
    group = world.elect("n1")
    world.isolate("n1")
    world.run(1.0 + 0.2)
    assert not group.is_leader
    assert group.propose([b"x"]) is None


# ---- §5.3 replication


def test_entries_reach_all_in_order() -> None:
    world = World(3)
    world.elect("n1")
    commands = [b"%d" % number for number in range(50)]
    world.propose("n1", *commands)
    world.run(0.5)
    assert all(node.commands == commands for node in world.nodes.values())


def test_a_gap_is_refused_with_the_place_to_go_on() -> None:
    lone = Lone("0111")
    assert lone.ask(AppendEntries(2, 1, 1, 9, 1, 0, [])) == [AppendAnswer(2, 1, 5, Outcome.RESET)]


def test_a_conflict_is_refused_at_its_terms_first_entry() -> None:
    lone = Lone("01122222")
    assert lone.ask(AppendEntries(3, 1, 1, 7, 3, 0, [])) == [AppendAnswer(3, 1, 4, Outcome.RESET)]


def test_a_conflict_is_refused_no_lower_than_what_is_committed_or_compacted() -> None:
    lone = Lone("0" + "2" * 19, hard_state=(2, None))
    lone.hear("n2", AppendEntries(2, 1, 10, 20, 2, 0, []))
    lone.group.take_committed(1 << 20, 9)
    lone.group.save_snapshot(pack([]))
    assert lone.group._view.base > 1
    assert lone.ask(AppendEntries(3, 2, 10, 20, 3, 0, [])) == [AppendAnswer(3, 2, 11, Outcome.RESET)]


def test_a_conflicting_tail_is_replaced() -> None:
    lone = Lone("0112222")
    entries = [Entry(3, b"\0a"), Entry(3, b"\0b")]
    assert lone.ask(AppendEntries(3, 1, 1, 3, 1, 0, entries)) == [AppendAnswer(3, 1, 6, Outcome.MATCHES)]
    view = lone.group._view
    assert [view.term_at(index) for index in range(1, view.last_index + 1)] == [0, 1, 1, 3, 3]


def test_a_follower_far_apart_is_brought_back() -> None:
    world = World(3)
    world.elect("n1")
    world.isolate("n1")
    world.propose("n1", *(b"lost %d" % number for number in range(30)))
    world.run(0.2)
    world.elect("n2")
    world.propose("n2", *(b"kept %d" % number for number in range(30)))
    world.run(0.3)
    world.heal()
    world.run(1.5)
    assert world.nodes["n1"].commands == [b"kept %d" % number for number in range(30)]
    assert world.entries("n1") == world.entries("n2")


def test_a_lost_append_is_sent_again() -> None:
    world = World(2)
    world.elect("n1")
    world.propose("n1", b"a")
    world.turn("n1")
    world.links["n1", "n2"].clear()
    world.run(0.4)
    assert world.nodes["n2"].commands == [b"a"]


def test_an_entry_that_cannot_be_read_is_named_and_sent_once_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(3, config=replace(QUICK, keep_entries=100))
    group = world.elect("n1")
    world.isolate("n3")
    world.propose("n1", b"a", b"b", b"c", b"d")
    world.run(0.3, "n1", "n2")
    bad, read = group.last_index - 1, group._view.read

    def read_all_but_one(index: int) -> bytes:
        if index == bad:
            raise EntryMissing("it is damaged")
        return read(index)

    monkeypatch.setattr(group._view, "read", read_all_but_one)
    world.heal()
    world.run(1.0)
    assert world.nodes["n3"].group.last_index == bad - 1
    assert group.take_unreadable() == (bad, group.term, "it is damaged")
    monkeypatch.setattr(group._view, "read", read)
    world.run(0.5)
    assert world.nodes["n3"].commands == world.nodes["n1"].commands


def test_what_is_under_way_is_not_sent_again_with_every_acknowledgement() -> None:
    world = World(2, config=replace(QUICK, window_bytes=1 << 20))
    world.elect("n1")
    sent = []
    for number in range(10):
        world.propose("n1", b"%d" % number + b"." * 300)
        world.turn("n1")
    sent = [entry for data in world.links["n1", "n2"] for entry in entries_of(data)]
    world.deliver("n1", "n2")
    world.turn("n2")
    world.deliver("n2", "n1")
    world.turn("n1")
    assert len(sent) == 10
    again = [entry for data in world.links["n1", "n2"] for entry in entries_of(data)]
    assert again == sent[1:], "nine are still under way, none was sent twice"


def entries_of(data: bytes) -> list[bytes]:
    message = codec.decode(data)
    return [bytes(entry.body) for entry in message.entries] if isinstance(message, AppendEntries) else []


def test_a_member_that_denies_what_it_acknowledged_is_no_busy_loop() -> None:
    """It lost its disk and came back under its old name. (It has to come back under a new one.)"""
    world = World(3)
    group = world.elect("n1")
    world.propose("n1", *(b"%d" % number for number in range(20)))
    world.run(0.5)
    world.isolate("n3")
    world.crash("n3")
    world.disks["n3"] = ModelDisk()
    world.propose("n1", b"more")
    world.heal()
    world.start("n3")
    began = group._guard.seq
    world.run(2.0)
    assert group.is_leader
    assert group._guard.seq - began < 90, "some per heartbeat, not some per turn"


def test_commands_have_a_size() -> None:
    world = World(1)
    world.run(1.0)
    group = world.nodes["n1"].group
    for parts in ([], [b""], [bytes(codec.MAX_BODY_BYTES)]):
        with pytest.raises(ValueError, match="a command has"):
            group.propose(parts)


def test_unacknowledged_bytes_are_bounded() -> None:
    world = World(2)
    world.elect("n1")
    world.propose("n1", *(b"." * 250 for _ in range(40)))
    for _ in range(5):
        world.turn("n1")
    size = sum(len(body) for data in world.links["n1", "n2"] for body in entries_of(data))
    assert QUICK.window_bytes <= size < QUICK.window_bytes + 2 * QUICK.frame_bytes
    world.run(1.0)
    assert len(world.nodes["n2"].commands) == 40


def test_followers_hear_of_a_commit_at_once() -> None:
    world = World(3)
    world.elect("n1")
    world.run(0.1)
    world.propose("n1", b"a")
    began = world.now
    while not all(node.commands for node in world.nodes.values()):
        world.run(0.01)
    assert world.now - began < 0.06, "five turns of 10 ms, not a heartbeat of 100"


def test_commits_are_announced_at_once_to_the_members_that_were_named() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.3)

    def hear_at_once(command: bytes) -> set[str]:
        group._engine.next_append_s = world.now + 1.0  # no heartbeat meanwhile
        world.propose("n1", command)
        world.run(0.06)
        return {name for name in ("n2", "n3") if command in world.nodes[name].commands}

    assert hear_at_once(b"a") == {"n2", "n3"}
    group.announce_commits_to(["n2"])
    assert hear_at_once(b"b") == {"n2"}
    group.announce_commits_also_to(["n3"])
    assert hear_at_once(b"c") == {"n2", "n3"}
    group.announce_commits_to(["n2"])
    assert hear_at_once(b"d") == {"n2", "n3"}, "named since the last call but one"
    group.announce_commits_to(["n2"])
    assert hear_at_once(b"e") == {"n2"}
    world.run(1.1)
    assert world.nodes["n3"].commands == [b"a", b"b", b"c", b"d", b"e"], "the next heartbeat tells it"


def test_news_of_a_commit_needs_no_answer_unless_something_is_missing() -> None:
    lone = Lone("011")
    assert lone.ask(AppendEntries(2, 1, 3, 3, 1, 0, [], True)) == []
    assert lone.group.commit_index == 3
    assert lone.ask(AppendEntries(2, 2, 3, 7, 1, 0, [], True)) == [AppendAnswer(2, 2, 4, Outcome.RESET)]


# ---- §5.4.1 the election restriction


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"), [(4, 2, True), (3, 2, False), (9, 1, False), (1, 3, True)]
)
def test_votes_go_to_logs_at_least_as_far(last_index: int, last_term: int, granted: bool) -> None:
    assert bool(Lone("0122").ask(VoteRequest(5, last_index, last_term, False))) is granted
    assert Lone("0122").ask(PreVoteRequest(5, 1, last_index, last_term)) == [PreVote(2, 1, granted)]


# ---- §5.4.2 entries of earlier terms


def test_an_entry_of_an_earlier_term_commits_only_with_one_of_this_term() -> None:
    lone = Lone("0122")
    lone.become_leader()
    term = lone.group.term
    (append,) = [message for to, message in lone.answers() if to == "n2"]
    assert isinstance(append, AppendEntries)
    lone.hear("n2", AppendAnswer(term, append.seq, 5, Outcome.MATCHES))
    lone.group.tick()
    assert lone.group.commit_index == 1, "a majority has entry 4, of term 2"
    assert not lone.group.leader_ready
    lone.hear("n2", AppendAnswer(term, append.seq, 6, Outcome.MATCHES))
    lone.group.tick()
    assert lone.group.commit_index == 5
    assert lone.group.leader_ready


# ---- thesis §9.6 and §4.2.3


def test_a_member_that_was_cut_off_raises_no_term() -> None:
    world = World(3)
    group = world.elect("n1")
    world.isolate("n3")
    world.run(5.0)
    term = group.term
    assert world.nodes["n3"].group.term == term
    assert world.nodes["n3"].group.leader is None
    world.heal()
    world.run(1.0)
    assert group.is_leader
    assert (group.term, world.nodes["n3"].group.leader) == (term, "n1")


def test_pre_votes_that_come_after_a_leader_was_heard_elect_nobody() -> None:
    lone = Lone(hard_state=(1, None))
    lone.now += 1.0
    lone.group.tick()
    ((_, asked), _) = lone.answers()
    assert isinstance(asked, PreVoteRequest)
    lone.hear("n2", AppendEntries(1, 1, 1, 1, 0, 0, []))
    for peer in ("n2", "n3"):
        lone.hear(peer, PreVote(1, asked.round, True))
    lone.answers()
    lone.now += 1.0
    lone.group.tick()
    assert [type(message) for _, message in lone.answers()] == [PreVoteRequest] * 2
    assert lone.group.term == 1


def test_votes_are_not_heard_while_a_leader_is() -> None:
    lone = Lone()
    lone.hear("n2", AppendEntries(1, 1, 1, 1, 0, 0, []))
    assert lone.ask(VoteRequest(9, 9, 8, False), "n3") == []
    assert lone.group.term == 1
    assert lone.ask(PreVoteRequest(9, 4, 9, 8), "n3") == [PreVote(1, 4, False)]
    lone.now += QUICK.election_min_s
    assert lone.ask(VoteRequest(9, 9, 8, False), "n3") == [Vote(9)]


def test_a_leader_with_a_majority_hears_no_votes() -> None:
    lone = Lone()
    lone.become_leader()
    term = lone.group.term
    assert lone.ask(VoteRequest(term + 5, 99, term, False)) == []
    assert lone.group.is_leader


def test_a_member_ahead_in_terms_is_taken_back() -> None:
    """The leader must hear of the higher term: its own appends would be refused for ever."""
    world = World(3)
    world.elect("n1")
    group = world.nodes["n3"].group
    world.crash("n3")
    log = world.open_log("n3")
    log.journal(GROUP).set_hard_state(group.term + 3, None)
    log.sync()
    log.crash(random.Random(1))  # type: ignore[union-attr]
    world.start("n3")
    world.run(3.0)
    assert {node.group.leader for node in world.nodes.values()} == {world.leaders()[0]}
    world.propose(world.leaders()[0], b"a")
    world.run(0.5)
    assert all(node.commands == [b"a"] for node in world.nodes.values())


# ---- thesis §3.10 and §10.2.1


def test_leadership_moves_when_asked() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.3)
    assert group.transfer_leadership("n3")
    world.run(0.2)
    assert world.leaders() == ["n3"]


def test_appends_leave_before_the_sync_and_count_after_it() -> None:
    lone = Lone()
    lone.become_leader()
    lone.answers()
    index = lone.group.propose([b"a"])
    assert index == 3
    lone.group.tick()
    lone.group.flush_early()
    (append,) = [message for to, message in lone.sent if to == "n2"]
    assert isinstance(append, AppendEntries)
    assert len(append.entries) == 1
    lone.hear("n2", AppendAnswer(lone.group.term, append.seq, 4, Outcome.MATCHES))
    lone.group.tick()
    assert lone.group.commit_index < 3, "one of three disks has it"
    lone.answers()
    assert lone.group.commit_index == 3


def test_nothing_leaves_before_term_and_vote_are_synced() -> None:
    lone = Lone()
    lone.now += 1.0
    lone.group.tick()
    (request,) = {message.round for _, message in lone.answers() if isinstance(message, PreVoteRequest)}
    lone.hear("n2", PreVote(0, request, True))
    lone.group.tick()
    lone.group.flush_early()
    assert lone.sent == [], "the vote request waits for its own vote"
    assert len(lone.answers()) == 2


def test_an_acknowledgement_waits_for_the_disk() -> None:
    lone = Lone()
    lone.hear("n2", AppendEntries(2, 1, 1, 1, 0, 0, [Entry(2, b"\0a")]))
    lone.group.flush_early()
    lone.group.flush()
    assert lone.sent == []
    assert lone.answers() == [("n2", AppendAnswer(2, 1, 3, Outcome.MATCHES))]


def test_an_acknowledgement_of_a_lost_life_does_not_count_once_the_leaders_disk_has_the_entry() -> None:
    lone = Lone()
    lone.become_leader()
    index = lone.group.propose([b"a"])
    assert index is not None
    lone.group.tick()
    lone.hear("n2", AppendAnswer(lone.group.term, 1, index + 1, Outcome.MATCHES))
    lone.group.recovery_response("n2", 7)
    lone.answers()
    assert lone.group.commit_index < index
    lone.hear("n2", AppendAnswer(lone.group.term, lone.group._guard.seq, index + 1, Outcome.MATCHES))
    lone.group.tick()
    assert lone.group.commit_index == index, "it has the entry again"


# ---- one and five members


def test_alone_an_entry_is_committed_when_it_is_synced() -> None:
    world = World(1)
    world.run(1.0)
    node = world.nodes["n1"]
    assert node.group.leader_ready
    node.group.propose([b"a"])
    node.group.tick()
    node.group.flush_early()
    node.apply()
    assert node.commands == []
    node.sync()
    node.apply()
    assert node.commands == [b"a"]


def test_five_members_go_on_without_two() -> None:
    world = World(5)
    world.elect("n1")
    world.propose("n1", b"a")
    world.run(0.3)
    world.crash("n1")
    world.crash("n2")
    world.run(3.0)
    (leader,) = world.leaders()
    world.propose(leader, b"b")
    world.run(0.3)
    assert all(node.commands == [b"a", b"b"] for node in world.nodes.values())
    world.start("n1")
    world.start("n2")
    world.run(1.0)
    assert all(node.commands == [b"a", b"b"] for node in world.nodes.values())
