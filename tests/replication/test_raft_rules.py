"""Raft's rules on our groups, one test a rule. Sections are those of "In Search of an Understandable Consensus
Algorithm" (Raft) and of Ongaro's thesis."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from quorum.log.errors import EntryMissing
from quorum.log.record import crc32c
from quorum.log.snapshots import kept_snapshots, received, snapshot_files
from quorum.replication import codec, library, replicator
from quorum.replication.codec import (
    AppendAnswer,
    AppendEntries,
    Entry,
    Outcome,
    PreVote,
    PreVoteRequest,
    SnapshotAnswer,
    SnapshotChunk,
    StaleTerm,
    Vote,
    VoteRequest,
)
from quorum.replication.errors import ReentryError, ReplicationFailed, UnsupportedLibrary, WireError
from quorum.replication.group import Group
from quorum.replication.group_config import GroupConfig
from quorum.replication.messages import Messages
from quorum.replication.storage import SnapshotSource, SnapshotUnsendable
from support.raft.log import ModelDisk, ModelJournal, ModelLog, ModelReceived
from support.raft.world import GROUP, QUICK, Node, RealLogWorld, World, as_kept, pack, unpack


def frame(message: codec.Message) -> bytes:
    return b"".join(codec.encode(message))


class Lone:
    """One member whose peers are this test."""

    def __init__(
        self,
        terms: str = "0",
        *,
        size: int = 3,
        hard_state: tuple[int, str | None] = (0, None),
        group_class: type[Group] = Group,
    ) -> None:
        """terms: of the entries from index 1 on, one digit each."""
        self.now = 1000.0
        self.log = ModelLog(ModelDisk())
        for index, term in enumerate(terms, 1):
            self.log.journal(GROUP).append([b"\1"], index, int(term))
        if hard_state != (0, None):
            self.log.journal(GROUP).set_hard_state(*hard_state)
        self.log.sync()
        self.sent: list[tuple[str, codec.Message]] = []
        self.installed: list[tuple[bytes, int, int]] = []
        names = [f"n{number}" for number in range(1, size + 1)]
        self.group = group_class(
            GROUP,
            "n1",
            names,
            self.log,
            lambda: self.now,
            random.Random(1),
            lambda peer, parts: self.sent.append((peer, codec.decode(b"".join(parts)))),
            lambda state, index, term: self.installed.append((state, index, term)),
            QUICK,
        )
        self.group.start()
        for name in names[1:]:
            self.group.peer_connected(name)

    def hear(self, peer: str, message: codec.Message) -> None:
        self.group.receive(peer, frame(message))

    def answers(self) -> list[tuple[str, codec.Message]]:
        """What leaves once all is synced."""
        self.log.sync()
        self.group.flush()
        sent, self.sent = self.sent, []
        return sent

    def ask(self, message: codec.Message, peer: str = "n2") -> list[codec.Message]:
        self.answers()
        self.hear(peer, message)
        return [answer for to, answer in self.answers() if to == peer]

    def become_leader(self) -> None:
        self.now += 1.0
        self.group.tick()
        (request,) = {message.round for _, message in self.answers() if isinstance(message, PreVoteRequest)}
        for peer in self.group._engine.others:
            self.hear(peer, PreVote(self.group.term, request, True))
        self.group.tick()
        self.answers()
        for peer in self.group._engine.others:
            self.hear(peer, Vote(self.group.term))
        assert self.group.is_leader


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


# ---- §7 snapshots


def behind(world: World) -> Node:
    """n3 misses 30 entries that a snapshot of the leader covers."""
    world.elect("n1")
    world.isolate("n3")
    world.propose("n1", *(b"%d" % number + b"." * 40 for number in range(30)))
    world.run(0.3, "n1", "n2")
    world.nodes["n1"].snapshot()
    world.nodes["n2"].snapshot()
    return world.nodes["n3"]


@pytest.mark.parametrize("world_class", [World, RealLogWorld])
def test_a_member_far_behind_gets_the_snapshot_in_pieces(world_class: type[World]) -> None:
    world = world_class(3)
    node = behind(world)
    world.heal()
    world.run(1.5)
    assert node.group._view.snapshot_index == world.nodes["n1"].group._view.snapshot_index
    assert node.commands == world.nodes["n1"].commands
    assert world.nodes["n1"].group.pinned_snapshots() == set(), "it is no longer being sent"
    world.propose("n1", b"after")
    world.run(0.3)
    assert node.commands[-1] == b"after"
    world.crash("n3")
    world.start("n3")
    world.run(0.5)
    assert world.nodes["n3"].commands == world.nodes["n1"].commands


def test_entries_stay_for_a_member_that_lacks_few() -> None:
    world = World(3, config=replace(QUICK, keep_entries=100))
    node = behind(world)
    assert world.nodes["n1"].group._view.base == 1
    world.heal()
    world.run(1.5)
    assert node.group._view.snapshot_index == 0, "it was fed from the journal"
    assert node.commands == world.nodes["n1"].commands
    world.nodes["n1"].snapshot()
    world.nodes["n2"].snapshot()
    assert world.nodes["n1"].group._view.base > 25, "all have them: they may go"
    assert world.nodes["n2"].group._view.base > 25, "a follower hears what all have from the leader"


def test_a_member_that_is_behind_catches_up_while_more_comes_than_a_small_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicator, "TURN_BYTES", 4_000)
    monkeypatch.setattr(replicator, "BEHIND_BYTES", 1_000)
    world = World(3, config=replace(QUICK, keep_entries=10_000, window_bytes=40_000, frame_bytes=1_000))
    world.elect("n1")
    world.isolate("n3")
    world.propose("n1", *[b"x" * 1_000] * 20)
    world.run(0.1, "n1", "n2")
    world.heal()
    lacks = []
    for _ in range(100):
        world.propose("n1", *[b"x" * 1_000] * 4)
        world.run(0.01)
        lacks.append(world.nodes["n1"].group.last_index - world.nodes["n3"].group.last_index)
    assert max(lacks[50:]) <= 8, f"entries it lacks, after each turn: {lacks}"


def test_a_member_that_catches_up_gets_few_entries_a_turn_however_small() -> None:
    config = replace(QUICK, keep_entries=10_000, window_bytes=1 << 20, frame_bytes=1 << 20)
    world = World(3, config=config)
    world.elect("n1")
    world.isolate("n3")
    world.propose("n1", *[b"x"] * (3 * replicator.TURN_ENTRIES))
    world.run(0.3, "n1", "n2")
    world.heal()
    most = 0
    for _ in range(200):
        world.now += 0.01
        world.turn()
        sent = [codec.decode(frame) for frame in world.links["n1", "n3"]]
        most = max(most, sum(len(each.entries) for each in sent if isinstance(each, AppendEntries)))
        world.deliver_all()
    assert world.nodes["n3"].commands == world.nodes["n1"].commands
    assert 0 < most <= replicator.TURN_ENTRIES + replicator.BEHIND_ENTRIES, (
        "a turn, and from then on small ones"
    )


def test_a_member_that_catches_up_gets_a_megabyte_a_turn() -> None:
    config = replace(QUICK, keep_entries=10_000, window_bytes=64 << 20, frame_bytes=1 << 20)
    world = World(3, config=config)
    world.elect("n1")
    world.isolate("n3")
    world.propose("n1", *[bytes(1 << 20)] * 16)
    world.run(0.3, "n1", "n2")
    world.heal()
    turns = []
    for _ in range(40):
        world.now += 0.01
        world.turn()
        turns.append(sum(map(len, world.links["n1", "n3"])) >> 20)
        world.deliver_all()
    assert world.nodes["n3"].commands == world.nodes["n1"].commands
    assert sorted(turns, reverse=True)[:2] <= [5, 2], "a burst, and then little at a time"


def test_a_transfer_goes_on_after_lost_pieces() -> None:
    world = World(3)
    node = behind(world)
    world.heal()
    lost = 0
    for _ in range(400):
        world.run(0.01)
        chunks = [data for data in world.links["n1", "n3"] if isinstance(codec.decode(data), SnapshotChunk)]
        if chunks and lost < 5:
            world.links["n1", "n3"].clear()
            lost += 1
        if lost == 2:
            world.reconnect("n1", "n3")
    assert node.commands == world.nodes["n1"].commands


def test_a_transfer_goes_on_where_it_was_after_the_receiver_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was received is on disk; it is looked through a chunk at a time, and the leader waits for that."""
    for module in (received, snapshot_files, kept_snapshots):
        monkeypatch.setattr(module, "CHUNK_BYTES", 500)
    monkeypatch.setattr(received, "SYNC_CHUNKS", 1)
    world = RealLogWorld(3)
    behind(world)
    world.heal()
    for _ in range(400):
        here = world.nodes["n3"].group._installer.incoming._here
        if here is not None and here.received > 2_600:
            break
        world.run(0.01)
    else:
        raise AssertionError("nothing has come")
    on_file = here.received // 500 * 500
    world.crash("n3")
    offsets = []
    carry = world.carry

    def listen(sender: str, to: str, frame: bytes) -> None:
        message = codec.decode(frame)
        if isinstance(message, SnapshotChunk):
            offsets.append(message.offset)
        carry(sender, to, frame)

    monkeypatch.setattr(world, "carry", listen)
    world.start("n3")
    world.run(3.0)
    assert world.nodes["n3"].group._view.snapshot_index == world.nodes["n1"].group._view.snapshot_index
    assert world.nodes["n3"].commands == world.nodes["n1"].commands
    window = 4  # sent before the receiver could say how far it is
    assert 0 < min(offsets) <= on_file == min(offsets[window:])


@pytest.mark.parametrize(
    ("error", "pause_s"), [(OSError("unreadable"), 0.0), (SnapshotUnsendable(), replicator.UNSENDABLE_S)]
)
def test_a_snapshot_that_cannot_be_read_to_its_end_is_given_up_for_another_one(
    error: Exception, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelJournal, "note_damaged_snapshot", lambda *_: None)
    world = World(3)
    node = behind(world)
    newest = world.nodes["n1"].log.journal(GROUP).open_snapshot
    opened: list[SnapshotSource | None] = []

    def open_one() -> SnapshotSource | None:
        source = newest()
        if not opened:
            monkeypatch.setattr(source, "read", fail)
        opened.append(source)
        return source

    def fail(offset: int, length: int) -> bytes:
        raise error

    world.nodes["n1"].group.send_snapshots_from(open_one)
    world.heal()
    world.run(pause_s * 0.9 + 0.1)
    assert opened
    assert len(opened) == 1 or not pause_s
    world.run(2.0)
    assert node.commands == world.nodes["n1"].commands


def test_a_snapshot_with_a_wrong_crc_is_not_installed() -> None:
    lone = Lone()
    commands = [b"a", b"b"]
    state = as_kept(commands)
    answers = lone.ask(SnapshotChunk(2, 1, 9, 2, len(state), crc32c(state) ^ 1, 0, state))
    assert answers == [SnapshotAnswer(2, 1, 9, 0)]
    assert lone.installed == []
    lone.ask(SnapshotChunk(2, 2, 9, 2, len(state), crc32c(state), 0, state))
    assert lone.installed == [(pack(commands), 9, 2)]
    assert (lone.group.commit_index, lone.group.applied_index, lone.group.last_index) == (9, 9, 9)


def test_a_member_that_still_checks_what_it_has_received_says_that_it_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ModelReceived, "check", lambda self: False)
    state = as_kept([])
    answers = Lone().ask(SnapshotChunk(2, 1, 9, 2, len(state), crc32c(state), 0, state))
    assert answers == [AppendAnswer(2, 1, 0, Outcome.ALIVE)]


def test_entries_behind_a_snapshot_stay_if_they_follow_from_it() -> None:
    lone = Lone("0122222", hard_state=(2, None))
    state = as_kept([])
    answers = lone.ask(SnapshotChunk(2, 1, 4, 2, len(state), crc32c(state), 0, state))
    assert lone.group.last_index == 7
    assert answers == [AppendAnswer(2, 1, 5, Outcome.MATCHES)], "only the snapshot is proved"


def test_a_member_that_has_lost_its_state_takes_a_snapshot_of_its_own_history_no_older_than_its_own() -> None:
    lone = Lone("0222222222", hard_state=(2, None))
    lone.hear("n2", AppendEntries(2, 1, 8, 10, 2, 0, []))
    lone.group.take_committed(1 << 20, 3)
    lone.group.save_snapshot(pack([]))
    state = as_kept([b"a"])

    def is_taken(index: int, term: int) -> bool:
        lone.hear("n2", SnapshotChunk(2, 2, index, term, len(state), crc32c(state), 0, state))
        return lone.installed == [(pack([b"a"]), index, term)]

    assert not is_taken(6, 2), "nothing is lost"
    lone.group.want_state(is_wanted=True)
    assert not is_taken(3, 2), "the one here, at 4, is newer"
    assert not is_taken(6, 1), "another history"
    assert is_taken(6, 2)
    assert (lone.group.last_index, lone.group.commit_index, lone.group.applied_index) == (10, 8, 6)


def test_snapshots_are_kept_at_applied_entries_and_survive_a_restart() -> None:
    world = World(3)
    world.elect("n1")
    world.propose("n1", *(b"%d" % number for number in range(20)))
    world.run(0.5)
    node = world.nodes["n2"]
    node.snapshot()
    world.crash("n2")
    group = world.start("n2").group
    assert group.snapshot_state is not None
    assert len(unpack(group.snapshot_state)) == 20
    world.run(0.3)
    assert group.snapshot_state is None
    assert world.nodes["n2"].commands == world.nodes["n1"].commands


def test_applying_begins_again_from_the_newest_snapshot() -> None:
    world = World(3)
    world.elect("n1")
    world.propose("n1", b"a", b"b", b"c")
    world.run(0.5)
    node = world.nodes["n2"]
    node.snapshot()
    covered = node.group.applied_index
    world.propose("n1", b"d", b"e")
    world.run(0.5)
    state = node.group.rewind_applied()
    assert state is not None
    assert (unpack(state), node.group.applied_index) == ([b"a", b"b", b"c"], covered)
    again = [bytes(body) for _, _, body in node.group.take_committed(1 << 20, 100)]
    assert again == [b"d", b"e"]


def test_an_unreadable_entry_that_a_snapshot_covers_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    lone = Lone("0222222222", hard_state=(2, None))
    lone.hear("n2", AppendEntries(2, 1, 8, 10, 2, 0, []))

    def read(index: int) -> bytes:
        raise EntryMissing("it is damaged")

    monkeypatch.setattr(lone.group._view, "read", read)
    assert lone.group.take_committed(1 << 20, 100) == []
    state = as_kept([])
    lone.hear("n2", SnapshotChunk(2, 2, 20, 2, len(state), crc32c(state), 0, state))
    assert lone.group.applied_index == 20
    assert lone.group.take_unreadable() is None


# ---- §8 reads


def test_a_read_waits_for_a_majority() -> None:
    world = World(3)
    group = world.elect("n1")
    world.propose("n1", b"a")
    world.run(0.3)
    answers: list[int | None] = []
    group.read_barrier(answers.append)
    assert answers == []
    world.run(0.05)
    assert answers == [group.commit_index]
    world.nodes["n2"].group.read_barrier(answers.append)
    assert answers[1:] == [None], "a follower cannot say"


def test_a_read_on_a_leader_that_loses_office_is_answered() -> None:
    world = World(3)
    group = world.elect("n1")
    world.isolate("n1")
    answers: list[int | None] = []
    group.read_barrier(answers.append)
    world.run(1.5)
    assert answers == [None]


def test_reads_that_come_during_a_round_share_the_next_one() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.2)
    answers: list[int | None] = []
    before = group._guard.seq
    for _ in range(50):
        group.read_barrier(answers.append)
        group.tick()
    world.run(0.06)
    assert answers == [group.commit_index] * 50
    assert group._guard.seq - before <= 2 * 2, "two rounds, each an append to both of the others"


def test_a_read_whose_round_is_lost_is_confirmed_by_the_next_heartbeat() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.2)
    answers: list[int | None] = []
    group.read_barrier(answers.append)
    group.tick()
    for link in world.links.values():
        link.clear()
    assert answers == []
    world.run(0.2)
    assert answers == [group.commit_index]


def test_no_read_is_confirmed_while_leadership_is_handed_over() -> None:
    world = World(3)
    group = world.elect("n1")
    world.run(0.2)
    answers: list[int | None] = []
    group.read_barrier(answers.append)
    assert group.transfer_leadership("n2")
    assert answers == [None], "one that waits is refused"
    group.read_barrier(answers.append)
    assert answers == [None, None]


def test_a_leader_that_has_committed_nothing_in_its_term_confirms_no_read() -> None:
    world = World(3)
    world.elect("n1")
    world.propose("n1", b"a")
    world.isolate("n1")
    for _ in range(1_000):
        world.run(0.01, "n2", "n3")
        new = next(
            (world.nodes[name].group for name in ("n2", "n3") if world.nodes[name].group.is_leader), None
        )
        if new is not None and not new.leader_ready:
            break
    assert new is not None
    answers: list[int | None] = []
    new.read_barrier(answers.append)
    assert answers == [None]


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


# ---- the group's own rules


def test_applying_is_bounded_and_in_order() -> None:
    world = World(3)
    world.elect("n1")
    world.run(0.2)
    node = world.nodes["n1"]
    first = node.group.applied_index
    world.propose("n1", *(b"." * 100 for _ in range(10)))
    for _ in range(4):
        node.group.tick()
        node.sync()
        world.deliver_all()
        world.turn("n2", "n3")
        world.deliver_all()
    node.group.tick()
    assert [index for index, _, _ in node.group.take_committed(1 << 20, 3)] == [
        first + 1,
        first + 2,
        first + 3,
    ]
    assert len(node.group.take_committed(150, 100)) == 2
    assert len(node.group.take_committed(1, 100)) == 1
    assert node.group.applied_index == first + 6


class PassOn(Messages):
    """Every append goes through the library."""

    def _is_beat(self, peer: str, m: AppendEntries) -> bool:
        return False


class PassingOn(Group):
    messages_class = PassOn


def test_an_append_without_news_has_the_same_effect_as_in_the_library() -> None:
    chance = random.Random(7)
    short = long = 0
    for _ in range(300):
        one, other = Lone("0123"), Lone("0123", group_class=PassingOn)
        for lone in (one, other):
            lone.hear("n2", AppendEntries(4, 1, 1, 4, 3, 0, []))
            lone.answers()
        term = chance.choice((3, 4, 4, 4, 5))
        prev = chance.randint(1, 5)
        message = AppendEntries(
            term,
            2,
            chance.randint(1, 6),
            prev,
            chance.choice((prev - 1, prev - 1, 2)),
            0,
            [],
            chance.random() < 0.2,
        )
        if message.prev_term > 4 or (message.prev_index == 1 and message.prev_term):
            continue
        is_target = chance.random() < 0.1
        peer = chance.choice(("n2", "n2", "n3")) if term != 4 else "n2"
        heard = []
        for lone in (one, other):
            lone.now += 0.01
            if is_target:
                lone.hear("n2", codec.TimeoutNow(4))
            lone.hear(peer, message)
            engine = lone.group._engine
            heard.append(
                (
                    lone.answers(),
                    engine.term,
                    engine.leader,
                    engine.commit_index,
                    engine.election_deadline_s,
                    engine.is_transfer_target,
                    lone.group.last_index,
                    lone.group.next_due(),
                )
            )
        assert heard[0] == heard[1]
        short, long = short + (term == 4), long + (term != 4)
    assert short > 50 < long


def test_a_call_from_inside_a_call_is_refused() -> None:
    lone = Lone()
    lone.become_leader()
    lone.group._guard.answered["n2"] = 5
    lone.group._leadership.reads.waiting.append((5, 1, lambda _: lone.group.tick()))
    with pytest.raises(ReentryError):
        lone.group.tick()
    with pytest.raises(ReplicationFailed):
        lone.group.tick()


def test_two_leaders_in_a_term_stop_the_member_that_sees_it() -> None:
    lone = Lone()
    lone.become_leader()
    with pytest.raises(ReplicationFailed, match="claims to lead"):
        lone.hear("n2", AppendEntries(lone.group.term, 1, 1, 1, 0, 0, []))


def test_a_malformed_frame_changes_nothing() -> None:
    lone = Lone()
    with pytest.raises(WireError):
        lone.group.receive("n2", b"\1abc")
    lone.group.tick()
    with pytest.raises(ValueError, match="this node itself"):
        lone.group.receive("n1", b"")


def test_another_release_of_the_library_is_refused() -> None:
    with pytest.raises(UnsupportedLibrary, match=r"0\.3\.18"):
        library.check("0.3.18")
    with pytest.raises(UnsupportedLibrary, match="_SyncObj__sendAppendEntries"):
        library.check(library.PINNED, type("Other", (), {}))
    with pytest.raises(UnsupportedLibrary, match="monotonicTime"):
        library.check(names={"random": 1, "createJournal": 1})
    with pytest.raises(UnsupportedLibrary, match="_poller"):
        library.check_instance(object())


def test_only_the_engine_and_the_librarys_own_class_use_its_private_names() -> None:
    folder = Path(library.__file__).parent
    users = {file.name for file in folder.rglob("*.py") if "_SyncObj__" in file.read_text(encoding="utf-8")}
    assert users == {"engine.py", "library.py"}


def test_next_due_never_spins_and_never_sleeps_over_a_deadline() -> None:
    world = World(3)
    world.elect("n1")
    world.isolate("n3")
    for node in world.nodes.values():
        turns = 0
        began = world.now
        while world.now < began + 5.0:
            due = node.group.next_due()
            assert due <= world.now + QUICK.election_max_s
            world.now = max(world.now + 1e-4, due + 1e-4)
            node.group.tick()
            node.sync()
            turns += 1
        assert turns < 150, f"{node.name} was ticked {turns} times in 5 s"


# ---- a full disk


def append_of(lone: Lone, *, seq: int, prev: int, count: int, commit: int = 1) -> AppendEntries:
    return AppendEntries(1, seq, commit, prev, 0 if prev == 1 else 1, 0, [Entry(1, b"\1x")] * count)


def test_a_follower_without_room_acknowledges_nothing_and_skips_nothing() -> None:
    lone = Lone()
    assert lone.ask(append_of(lone, seq=1, prev=1, count=2)) == [AppendAnswer(1, 1, 4, Outcome.MATCHES)]
    lone.log.has_room = False
    proves_nothing = [
        append_of(lone, seq=2, prev=3, count=2, commit=2),
        append_of(lone, seq=3, prev=5, count=1, commit=3),  # what the leader sends on, within its window
        append_of(lone, seq=4, prev=6, count=0, commit=3),  # its heartbeats behind that
    ]
    for message in proves_nothing:
        assert lone.ask(message) == [AppendAnswer(1, message.seq, 2, Outcome.MATCHES)]
        assert (lone.group.last_index, lone.group.commit_index) == (3, 1)
    assert lone.group.is_full
    assert lone.group.leader == "n2"
    assert lone.ask(append_of(lone, seq=5, prev=3, count=0, commit=3)) == [
        AppendAnswer(1, 5, 4, Outcome.MATCHES)
    ]
    assert lone.group.commit_index == 3, "what is here is committed and served"


def test_a_follower_with_room_again_takes_up_where_it_stopped() -> None:
    lone = Lone()
    lone.ask(append_of(lone, seq=1, prev=1, count=2))
    lone.log.has_room = False
    lone.ask(append_of(lone, seq=2, prev=3, count=2))
    lone.log.has_room = True
    still_full = lone.ask(append_of(lone, seq=3, prev=5, count=1))
    assert still_full == [AppendAnswer(1, 3, 2, Outcome.MATCHES)], "it does not look at every message"
    lone.now += 1.0
    assert lone.ask(append_of(lone, seq=4, prev=6, count=0)) == [AppendAnswer(1, 4, 4, Outcome.RESET)]
    assert not lone.group.is_full
    assert lone.ask(append_of(lone, seq=5, prev=3, count=3)) == [AppendAnswer(1, 5, 7, Outcome.MATCHES)]


def test_a_leader_goes_on_with_a_majority_and_feeds_the_full_one_again_when_it_has_room() -> None:
    world = World(3)
    world.elect("n1")
    group = world.nodes["n1"].group
    log = world.nodes["n3"].log
    assert isinstance(log, ModelLog)
    log.has_room = False
    for number in range(30):
        world.propose("n1", b"%d" % number)
        world.run(0.05)
    world.run(1.0)
    assert group.commit_index == group.last_index
    assert world.nodes["n3"].group.last_index < group.last_index - 25
    assert world.nodes["n3"].group.is_full
    assert group.is_leader
    log.has_room = True
    world.run(2.0)
    assert world.nodes["n3"].group.last_index == group.last_index
    assert world.nodes["n3"].group.commit_index == group.commit_index
