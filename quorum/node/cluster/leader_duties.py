"""Proposals that a group's leader makes by itself: a Wake once group time has reached the time that the machine waits
for, and NodeDown for nodes whose leases have ended."""

from __future__ import annotations

from fifo.group_machine import GroupMachine
from quorum.node.cluster.heartbeats import Heartbeats
from quorum.node.replica.replica import Replica


class LeaderDuties:
    """Those of one member."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        self._heartbeats = heartbeats

    def turn(self, replica: Replica, machine: GroupMachine, now_ms: int) -> None:
        """For a group that this node leads."""
        proposals, due = replica.proposals, machine.next_wake()
        if (
            due is not None
            and not proposals.is_wake_pending
            and replica.clock.now(now_ms, self._heartbeats.wall_clocks(now_ms), replica.raft.term) >= due
        ):
            proposals.wake()
        live = machine.live_nodes()
        leases, group = self._heartbeats.leases, replica.number
        proposals.down(live, [each for each in live if leases.is_down(group, *each, now_ms)], now_ms)
