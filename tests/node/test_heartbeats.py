"""How leases follow what a group's voters are and who leads (quorum/node/cluster/heartbeats.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quorum.catalog.lease_times import LeaseSettings, LeaseTimes
from quorum.node import events as ev
from quorum.node.cluster.heartbeats import Heartbeats
from quorum.node.leases.leases import HEARTBEAT_MS, HeartbeatAnswer, LeaderView, Leases
from quorum.node.replica.group_clock import GroupClock

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
                hear_behind=lambda peer, entries: None,
            )
        }
        member_directory: Any = SimpleNamespace(me="n1", number=lambda name: NUMBERS.get(name, 0))
        disks = SimpleNamespace(known_low=lambda now: (), own=_NoDisk())
        disk_monitor: Any = SimpleNamespace(disks=disks)
        self.heartbeats = Heartbeats(
            Leases(1, (2, 3), LeaseSettings.founded(LeaseTimes(LEASE, 1_000))),
            member_directory,
            SimpleNamespace(all=()),  # type: ignore[arg-type]
            1,
            replicas,
            disk_monitor,
            lambda: 0,
            lambda peer, kind, parts: None,
            self.outputs,
        )

    def turn(self, now_ms: int) -> list[ev.Output]:
        """What the API is told."""
        self.outputs.take()
        self.heartbeats.turn(now_ms)
        return self.outputs.take()

    def answer(self, peer: str, sent_ms: int) -> None:
        self.heartbeats.answered(peer, HeartbeatAnswer(sent_ms, {GROUP: LeaderView(1, TERM)}), sent_ms)


class _NoDisk:
    def encode(self, low: object) -> bytes:
        return b""


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
