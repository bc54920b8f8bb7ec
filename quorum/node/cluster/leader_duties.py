"""What a group's leader does by itself. It proposes a Wake once group time has reached the time that the machine waits
for, and NodeDown for nodes whose leases have ended. It notes which members have sessions: those hear of commits at
once. It tells the API of transactions over several groups that do not end by themselves."""

from __future__ import annotations

from collections.abc import Mapping

from fifo.group_machine import GroupMachine
from quorum.node.cluster.heartbeats import Heartbeats
from quorum.node.events import DecisionsDue, Outputs
from quorum.node.replica.replica import Replica
from quorum.node.schedule import NEVER, Due

DECISIONS_PAUSE_MS = 500


class LeaderDuties:
    """Those of one member."""

    def __init__(self, heartbeats: Heartbeats, names: Mapping[int, str], outputs: Outputs) -> None:
        """names: number -> id of each current member."""
        self._heartbeats = heartbeats
        self._names = names
        self._outputs = outputs
        self._told_ms: dict[int, int] = {}
        """group -> when the API was last told of its decisions"""
        self.due = Due(NEVER, NEVER)
        """When the first of the groups that this node leads needs a Wake, as far as known at the last turn."""

    def turn(self, replica: Replica, machine: GroupMachine, now_ms: int) -> None:
        """For a group that this node leads."""
        proposals = replica.proposals
        if machine.decisions.are_waiting:
            self._tell_decisions(replica, machine, now_ms)
        live = machine.live_nodes()
        leases, group = self._heartbeats.leases, replica.number
        replica.raft.announce_commits_to(self._names[node] for node, _ in live if node in self._names)
        proposals.down(live, [each for each in live if leases.is_down(group, *each, now_ms)], now_ms)

    def wake(self, replica: Replica, machine: GroupMachine, now_ms: int) -> None:
        """Proposes a Wake if group time has reached the time that the machine waits for."""
        proposals, due = replica.proposals, machine.next_wake()
        if due is None or proposals.is_wake_pending:
            return
        wait_ms = due - self._group_time(replica, now_ms)
        if wait_ms <= 0:
            proposals.wake()
        else:
            self.due.next_ms = min(self.due.next_ms, now_ms + wait_ms)

    def _group_time(self, replica: Replica, now_ms: int) -> int:
        return replica.clock.now(now_ms, self._heartbeats.wall_clocks(now_ms), replica.raft.term)

    def _tell_decisions(self, replica: Replica, machine: GroupMachine, now_ms: int) -> None:
        """The API asks other groups for decisions, and tells them others (api/hub/decision_worker.py)."""
        if now_ms < self._told_ms.get(replica.number, 0) + DECISIONS_PAUSE_MS:
            return
        self._told_ms[replica.number] = now_ms
        prepared, decided = machine.decisions.due(self._group_time(replica, now_ms))
        if prepared or decided:
            self._outputs.emit(DecisionsDue(replica.number, prepared, decided))
