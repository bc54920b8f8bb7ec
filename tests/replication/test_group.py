"""The rules of our groups that are not Raft's: bounded work, no call from inside a call, malformed frames, deadlines,
and a full disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quorum.replication import codec, library
from quorum.replication.codec import AppendAnswer, AppendEntries, Entry, Outcome
from quorum.replication.errors import ReentryError, ReplicationFailed, UnsupportedLibrary, WireError
from quorum.replication.group import Group
from quorum.replication.messages import Messages
from support.raft.log import ModelLog
from support.raft.lone import Lone
from support.raft.world import QUICK, World

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
