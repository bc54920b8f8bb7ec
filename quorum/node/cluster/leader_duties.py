"""What a group's leader does by itself. It proposes a Wake once group time has reached the time that the machine waits
for, and NodeDown for nodes whose leases have ended. It notes which members have sessions: those hear of commits at
once."""

from __future__ import annotations

from collections.abc import Mapping

from fifo.group_machine import GroupMachine
from quorum.node.cluster.heartbeats import Heartbeats
from quorum.node.replica.replica import Replica


class LeaderDuties:
    """Those of one member."""

    def __init__(self, heartbeats: Heartbeats, names: Mapping[int, str]) -> None:
        """names: number -> id of each current member."""
        self._heartbeats = heartbeats
        self._names = names

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
        replica.raft.announce_commits_to(self._names[node] for node, _ in live if node in self._names)
        proposals.down(live, [each for each in live if leases.is_down(group, *each, now_ms)], now_ms)
