"""The replicas of one member, by group."""

from __future__ import annotations

from fifo.group_machine import GroupMachine
from quorum.catalog.machine import CatalogMachine
from quorum.node.replica.replica import SYSTEM_GROUP, Replica
from quorum.node.wire.forwarding import GROUP
from quorum.node.wire.frames import Data, FrameTable

KIND_RAFT = 0
"""Frames of Raft groups: the group, then what Group.receive takes."""


class Replicas(dict[int, Replica]):
    """group -> its replica. All of them are here once the member has started; none is ever added or removed then."""

    def take_frames(self, table: FrameTable) -> None:
        table.add(KIND_RAFT, self._receive, since=1)

    def _receive(self, peer: str, data: Data, now_ms: int) -> None:
        view = memoryview(data)
        replica = self.get(GROUP.unpack_from(view)[0])
        if replica is not None:
            replica.receive(peer, view[GROUP.size :])

    def active(self, now_ms: int) -> list[Replica]:
        """Those for which a step now has anything to do."""
        return [replica for replica in self.values() if replica.is_active(now_ms)]

    @property
    def catalog(self) -> CatalogMachine:
        machine = self[SYSTEM_GROUP].machine
        assert isinstance(machine, CatalogMachine)
        return machine

    def queue_machine(self, group: int) -> GroupMachine:
        machine = self[group].machine
        assert isinstance(machine, GroupMachine)
        return machine

    def queue_machines(self) -> dict[int, GroupMachine]:
        """Those of all groups but the system group."""
        return {
            number: replica.machine
            for number, replica in self.items()
            if isinstance(replica.machine, GroupMachine)
        }

    def commit_index(self, group: int) -> int:
        """0 for a group that is not here."""
        replica = self.get(group)
        return 0 if replica is None else replica.raft.commit_index

    def times(self) -> dict[int, int]:
        """Group time as each machine knows it."""
        return {number: replica.machine.now_ms for number, replica in self.items()}
