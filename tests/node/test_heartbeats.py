"""How leases follow what a group's voters are and who leads (quorum/node/cluster/heartbeats.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import structlog

from quorum.catalog.lease_times import LeaseSettings, LeaseTimes
from quorum.node import events as ev
from quorum.node.cluster.heartbeats import KIND_HEARTBEAT, KIND_HEARTBEAT_ANSWER, Heartbeats
from quorum.node.leases.disk_state import Disks, DiskState
from quorum.node.leases.leases import HEARTBEAT_MS, Heartbeat, HeartbeatAnswer, LeaderView, Leases
from quorum.node.replica.group_clock import GroupClock
from quorum.node.wire.frames import Frame, FrameTable

GROUP, TERM, LEASE = 7, 3, 4_000
NUMBERS = {"n1": 1, "n2": 2, "n3": 3}


class World:
    """n1 in a group whose voters and leader the test sets."""

    def __init__(self) -> None:
        self.outputs = ev.Outputs()
        self.raft: Any = SimpleNamespace(
            leader="n1", term=TERM, is_leader=True, configuration=SimpleNamespace(voters=("n1",))
        )
        replicas: Any = {
            GROUP: SimpleNamespace(
                number=GROUP,
                raft=self.raft,
                clock=GroupClock(),
                disputed="",
                leads=False,
                behind=5,
                hear_behind=lambda peer, entries: self.behind.append((peer, entries)),
            )
        }
        member_directory: Any = SimpleNamespace(me="n1", number=lambda name: NUMBERS.get(name, 0))
        self.disks = Disks(1, DiskState(is_full=True))
        disk_monitor: Any = SimpleNamespace(disks=self.disks)
        self.behind: list[tuple[str, int | None]] = []
        self.sent: list[tuple[str, int, bytes]] = []
        """(peer, kind, data) of each frame"""
        self.heartbeats = Heartbeats(
            Leases(1, LeaseSettings.founded(LeaseTimes(LEASE, 1_000))),
            member_directory,
            SimpleNamespace(all=("n2", "n3")),  # type: ignore[arg-type]
            9,
            replicas,
            disk_monitor,
            lambda: 50_000,
            lambda peer, kind, parts: self.sent.append((peer, kind, b"".join(parts))),
            self.outputs,
        )
        self.table = FrameTable(structlog.get_logger())
        self.heartbeats.take_frames(self.table)

    def turn(self, now_ms: int) -> list[ev.Output]:
        """What the API is told."""
        self.outputs.take()
        self.heartbeats.turn(now_ms)
        return self.outputs.take()

    def answer(self, peer: str, sent_ms: int) -> None:
        self.heartbeats.answered(peer, HeartbeatAnswer(sent_ms, {GROUP: LeaderView(1, TERM)}), sent_ms)

    def hear(self, peer: str, heartbeat: Heartbeat, now_ms: int) -> None:
        self.table.receive(Frame(peer, KIND_HEARTBEAT, heartbeat.encode()), now_ms)

    def frames(self, kind: int) -> list[tuple[str, bytes]]:
        """What was sent of this kind since the last call."""
        found = [(peer, data) for peer, what, data in self.sent if what == kind]
        self.sent = [each for each in self.sent if each[1] != kind]
        return found

    def answers(self) -> list[tuple[str, HeartbeatAnswer]]:
        return [(peer, HeartbeatAnswer.decode(data)) for peer, data in self.frames(KIND_HEARTBEAT_ANSWER)]


def test_an_only_voter_renews_its_lease_with_each_heartbeat() -> None:
    world = World()
    assert world.turn(1_000) == [ev.LeaseGranted(GROUP, 1_000 + LEASE)]
    assert world.turn(1_001) == []
    assert world.turn(1_000 + HEARTBEAT_MS) == [ev.LeaseGranted(GROUP, 1_000 + HEARTBEAT_MS + LEASE)]


def test_a_short_lease_or_step_down_time_shortens_the_interval_of_heartbeats() -> None:
    """A leader grants leases only for the step-down time after a majority's last answer, and a lease has to be renewed
    before it ends: both need several answers in that time."""
    for lease_ms, step_down_ms, interval_ms in (
        (LEASE, 600, 200),
        (600, 60_000, 200),
        (60_000, 60_000, HEARTBEAT_MS),
    ):
        world = World()
        world.heartbeats.leases.settings = LeaseSettings.founded(LeaseTimes(lease_ms, step_down_ms))
        world.turn(1_000)
        assert world.heartbeats.next_ms == 1_000 + interval_ms
        assert interval_ms // 2 < world.heartbeats.patience_ms < interval_ms * 2 // 3


def test_a_leaders_lease_ends_earlier_when_its_new_voters_have_answered_less() -> None:
    world = World()
    world.turn(1_000)
    world.answer("n2", 900)
    world.raft.configuration.voters = ("n1", "n2")
    assert world.turn(1_001) == [ev.LeaseGranted(GROUP, 900 + LEASE)]
    assert world.heartbeats.may_deliver(GROUP, 899 + LEASE)
    assert not world.heartbeats.may_deliver(GROUP, 900 + LEASE)


def test_a_leader_whose_new_voters_have_not_answered_has_no_lease() -> None:
    world = World()
    world.turn(1_000)
    world.raft.configuration.voters = ("n1", "n2")
    assert world.turn(1_000 + HEARTBEAT_MS) == [ev.LeaseLapsed(GROUP)]
    assert not world.heartbeats.may_deliver(GROUP, 1_000 + HEARTBEAT_MS)
    world.heartbeats.lapse(1_000 + HEARTBEAT_MS)
    world.raft.configuration.voters = ("n1", "n3")
    world.answer("n1", 1_000)
    assert world.turn(1_000 + HEARTBEAT_MS) == [], "its end was told"
    world.raft.configuration.voters = ("n1", "n2")
    world.answer("n2", 1_000 + HEARTBEAT_MS)
    assert world.turn(1_300) == [ev.LeaseGranted(GROUP, 1_000 + HEARTBEAT_MS + LEASE)]


def test_what_a_leader_has_granted_holds_to_its_end_when_another_leads() -> None:
    world = World()
    world.raft.leader, world.raft.is_leader = "n2", False
    world.heartbeats.answered("n2", HeartbeatAnswer(1_000, {GROUP: LeaderView(2, TERM, LEASE)}), 1_005)
    assert world.turn(1_010) == [ev.LeaseGranted(GROUP, 1_000 + LEASE)]
    world.raft.leader, world.raft.term = "n3", TERM + 1
    world.raft.configuration.voters = ("n1", "n3")
    assert world.turn(1_000 + HEARTBEAT_MS + 20) == []
    assert world.heartbeats.may_deliver(GROUP, 999 + LEASE)


def test_a_leaders_own_lease_holds_to_its_end_when_another_leads_other_voters() -> None:
    world = World()
    world.turn(1_000)
    world.raft.leader, world.raft.is_leader = "n2", False
    world.raft.configuration.voters = ("n1", "n2")
    assert world.turn(1_000 + HEARTBEAT_MS) == []
    assert world.heartbeats.may_deliver(GROUP, 999 + LEASE)
    world.raft.leader, world.raft.is_leader = "n1", True
    assert world.turn(1_000 + 2 * HEARTBEAT_MS) == [], "also when it leads these voters later"
    assert world.heartbeats.may_deliver(GROUP, 999 + LEASE)


def test_a_lease_that_does_not_end_later_is_not_told_again() -> None:
    world = World()
    world.raft.leader, world.raft.is_leader = "n2", False

    def granted(sent_ms: int) -> list[ev.Output]:
        world.turn(1_000)
        answer = HeartbeatAnswer(sent_ms, {GROUP: LeaderView(2, TERM, LEASE)})
        world.table.receive(Frame("n2", KIND_HEARTBEAT_ANSWER, answer.encode()), 1_000)
        assert world.heartbeats.due.next_ms == 0
        return world.turn(1_000)

    assert granted(900) == [ev.LeaseGranted(GROUP, 900 + LEASE)]
    assert granted(900) == []
    assert granted(800) == []
    assert granted(901) == [ev.LeaseGranted(GROUP, 901 + LEASE)]


def test_a_lease_that_came_before_its_leader_was_known_is_told_when_it_is() -> None:
    world = World()
    replica: Any = world.heartbeats._replicas[GROUP]
    world.raft.leader, world.raft.is_leader = None, False
    world.heartbeats.answered("n2", HeartbeatAnswer(1_000, {GROUP: LeaderView(2, TERM, LEASE)}), 1_005)
    assert world.turn(1_006) == []
    world.raft.leader = "n2"
    world.heartbeats.leader_changed(replica, 1_007)
    assert world.turn(1_007) == [ev.LeaseGranted(GROUP, 1_000 + LEASE)]


def test_every_other_member_is_sent_a_heartbeat_when_one_is_due() -> None:
    world = World()
    world.heartbeats.leases.settings = None
    world.disks.hear(3, DiskState(is_low=True), (), 1_000)
    world.turn(1_000)
    sent = [(peer, Heartbeat.decode(data)) for peer, data in world.frames(KIND_HEARTBEAT)]
    own = Heartbeat(1_000, 9, 50_000, world.disks.own, (3,), world.heartbeats.leases.revision)
    assert sent == [("n2", own), ("n3", own)]
    world.turn(999 + HEARTBEAT_MS)
    assert world.frames(KIND_HEARTBEAT) == []
    world.turn(1_000 + HEARTBEAT_MS)
    assert len(world.frames(KIND_HEARTBEAT)) == 2
    assert world.heartbeats.due.next_ms == 1_000 + 2 * HEARTBEAT_MS


def test_a_heartbeat_is_answered_once_and_says_how_its_sender_is() -> None:
    world = World()
    world.turn(999)
    low = DiskState(7, 8, is_low=True)
    world.hear("n2", Heartbeat(400, 3, 49_000, low, (3,), 2), 1_000)
    world.hear("stranger", Heartbeat(500, 3, 1, low, (), 2), 1_000)
    assert world.heartbeats.due.next_ms == 0
    world.turn(1_001)
    assert [(peer, answer.sent_ms, set(answer.groups)) for peer, answer in world.answers()] == [
        ("n2", 400, {GROUP})
    ]
    world.turn(1_002)
    assert world.answers() == []
    assert world.disks.low(1_000) == [2, 3]
    assert world.heartbeats.leases.heard[2] == (3, 1_000)
    assert world.heartbeats.leases.revisions == {2: 2}
    assert world.heartbeats.wall_clocks(1_100) == [50_000, 49_100]


def test_an_answer_names_the_leader_that_is_followed() -> None:
    world = World()
    world.raft.leader, world.raft.is_leader = "n3", False
    world.hear("n2", Heartbeat(400, 3, 1), 1_000)
    world.turn(1_000)
    assert world.answers() == [("n2", HeartbeatAnswer(400, {GROUP: LeaderView(3, TERM, behind=5)}))]


def test_a_leader_grants_its_lease_while_a_majority_follows_it_and_tells_the_time_once_it_leads() -> None:
    world = World()
    world.raft.configuration.voters = ("n1", "n2", "n3")
    world.hear("n3", Heartbeat(400, 3, 1), 1_000)
    world.turn(1_000)
    assert world.answers() == [("n3", HeartbeatAnswer(400, {GROUP: LeaderView(0, TERM)}))], (
        "nobody follows it"
    )
    world.answer("n2", 1_000)
    world.hear("n3", Heartbeat(401, 3, 49_999), 1_001)
    world.turn(1_001)
    assert world.answers() == [("n3", HeartbeatAnswer(401, {GROUP: LeaderView(1, TERM, LEASE, 0, 5)}))]
    replica: Any = world.heartbeats._replicas[GROUP]

    def told_ms() -> int:
        world.hear("n3", Heartbeat(402, 3, 49_999), 1_001)
        world.turn(1_001)
        [(_, answer)] = world.answers()
        return answer.groups[GROUP].time_ms

    replica.leads = True
    assert told_ms() == replica.clock.last == 0, "no entry has begun the group's time"
    replica.clock.now(1_001, [48_000], TERM)
    assert told_ms() >= 48_000
    replica.leads = False
    assert told_ms() == 0


def test_only_the_answer_of_the_leader_of_this_term_tells_the_time() -> None:
    world = World()
    world.raft.leader, world.raft.is_leader = "n2", False
    replica: Any = world.heartbeats._replicas[GROUP]

    def answered(peer: str, leader: int, term: int) -> int:
        view = LeaderView(leader, term, LEASE, 70_000, 4)
        world.heartbeats.answered(peer, HeartbeatAnswer(900, {99: view, GROUP: view}), 1_000)
        estimate: int = replica.clock.estimate(1_000)
        return estimate

    assert answered("n3", 2, TERM) < 70_000, "it has the time of another one"
    assert answered("n2", 2, TERM - 1) < 70_000
    assert answered("n2", 0, TERM) < 70_000
    assert answered("n2", 2, TERM) >= 70_000
    assert world.behind == [("n3", 4), ("n2", 4), ("n2", None), ("n2", 4)]
    world.heartbeats.answered("stranger", HeartbeatAnswer(900, {GROUP: LeaderView(2, TERM)}), 1_000)
    assert len(world.behind) == 4


def test_the_end_of_a_lease_is_told_once_and_before_its_renewal() -> None:
    world = World()
    world.turn(1_000)
    world.outputs.take()
    world.heartbeats.lapse(999 + LEASE)
    assert world.outputs.take() == []
    assert world.heartbeats.may_deliver(GROUP, 999 + LEASE)
    world.heartbeats.lapse(1_000 + LEASE)
    assert world.outputs.take() == [ev.LeaseLapsed(GROUP)]
    world.heartbeats.lapse(1_001 + LEASE)
    assert world.outputs.take() == []
    assert not world.heartbeats.may_deliver(GROUP, 999 + LEASE)


def test_a_new_leader_asks_for_answers_at_once() -> None:
    world = World()
    world.turn(1_000)
    world.frames(KIND_HEARTBEAT)
    replica: Any = world.heartbeats._replicas[GROUP]
    world.raft.is_leader = False
    world.heartbeats.leader_changed(replica, 1_001)
    world.turn(1_001)
    assert (world.frames(KIND_HEARTBEAT), world.heartbeats.leases.elected_ms) == ([], {})
    world.raft.is_leader = True
    world.heartbeats.leader_changed(replica, 1_002)
    assert world.heartbeats.due.next_ms == 0
    world.turn(1_002)
    assert (len(world.frames(KIND_HEARTBEAT)), world.heartbeats.leases.elected_ms) == (2, {GROUP: 1_002})


def test_a_state_in_doubt_is_told_no_lease() -> None:
    world = World()
    replica: Any = world.heartbeats._replicas[GROUP]
    replica.disputed = "its state is in doubt"
    assert world.turn(1_000) == []


def test_a_node_that_is_no_member_has_no_lease() -> None:
    world = World()
    world.heartbeats.leases.me = 0
    assert world.turn(1_000) == []
