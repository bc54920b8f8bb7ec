"""Sends operations to the leaders of their groups, and receives operations for groups that this node leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quorum.node.cluster.disk_monitor import DiskMonitor
from quorum.node.cluster.peers import Peers
from quorum.node.leases.leases import Leases
from quorum.node.replica.replicas import Replicas
from quorum.node.wire import forwarding
from quorum.node.wire.frames import Data, FrameTable, Send


class LeaderRoutes:
    """The routes of one member."""

    def __init__(
        self, replicas: Replicas, peers: Peers, leases: Leases, disk_monitor: DiskMonitor, send: Send
    ) -> None:
        self._replicas = replicas
        self._peers = peers
        self._leases = leases
        self._disk_monitor = disk_monitor
        self._send = send

    def take_frames(self, table: FrameTable) -> None:
        table.add(forwarding.KIND_PROPOSE, self._receive, since=1)

    def times(self) -> Mapping[int, int]:
        """Group time of each group, as this node knows it."""
        return self._replicas.times()

    def link(self, group: int) -> str | None:
        """The peer that operations of a group go to now. "" if this node leads; None without a leader, without a
        connection to it, or while this node is no member."""
        raft = self._replicas[group].raft
        if not self._leases.me:
            return None
        if raft.is_leader:
            return ""
        return raft.leader if raft.leader in self._peers.connected else None

    def send(self, group: int, operations: Sequence[bytes]) -> None:
        """Sends operations to the group's leader. A leader and a way to it must exist."""
        leader = self.link(group)
        if not leader:
            self._replicas[group].proposals.add(operations)
            return
        for parts in forwarding.frames(group, operations):
            self._send(leader, forwarding.KIND_PROPOSE, parts)

    def _receive(self, peer: str, data: Data, now_ms: int) -> None:
        view = memoryview(data)
        (group,) = forwarding.GROUP.unpack_from(view)
        replica = self._replicas.get(group)
        if replica is None or not replica.raft.is_leader or self._disk_monitor.is_silent:
            return  # its sender will hear of the leader and send again
        replica.proposals.add(forwarding.operations(view))
        replica.raft.announce_commits_also_to((peer,))
