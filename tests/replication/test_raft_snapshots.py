"""Raft's rules about snapshots and members that are far behind, one test a rule (Raft §7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorum.log.errors import EntryMissing
from quorum.log.record import crc32c
from quorum.log.snapshots import kept_snapshots, received, snapshot_files
from quorum.replication import codec, replicator
from quorum.replication.codec import AppendAnswer, AppendEntries, Outcome, SnapshotAnswer, SnapshotChunk
from quorum.replication.storage import SnapshotSource, SnapshotUnsendable
from support.raft.log import ModelJournal, ModelReceived
from support.raft.lone import Lone
from support.raft.world import GROUP, QUICK, RealLogWorld, World, as_kept, behind, pack, unpack


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
