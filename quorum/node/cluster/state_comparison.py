"""The members of a group compare hashes of their states (state_hashes.py). This module exchanges the hashes. It gives
up this member's state if most voters have another state, or if the state here cannot be read.

A replica whose state was given up still has a log as good as the others', so it votes and acknowledges as before. But
its state is wrong or lost, and its snapshots may be wrong too. So it applies no further entries, answers no question
about the group and leads only as a last resort, and this node delivers no messages of the group. The member remembers
across restarts that the state was given up, until another member's state is installed (state_requests.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fifo.group_machine import GroupMachine
from quorum.catalog.machine import CatalogMachine
from quorum.log import Log
from quorum.log.files import commit_file, prepare_file
from quorum.node import events as ev
from quorum.node.cluster.heartbeats import Heartbeats
from quorum.node.cluster.peers import Peers
from quorum.node.errors import BodyUnreadable, Diverged
from quorum.node.identity.identity import NodeState
from quorum.node.replica.replica import Replica, state_of
from quorum.node.replica.state_hashes import decode_claim
from quorum.node.wire.frames import Data, FrameTable, Send

KIND_DIGEST = 4


class StateComparison:
    """The comparison of one member's states, for all its groups."""

    def __init__(
        self,
        log: Log,
        node_state: NodeState,
        heartbeats: Heartbeats,
        peers: Peers,
        replicas: Mapping[int, Replica],
        send: Send,
        outputs: ev.Outputs,
        logger: Any,
    ) -> None:
        self._log = log
        self._node_state = node_state
        self._heartbeats = heartbeats
        self._peers = peers
        self._send = send
        self._replicas = replicas
        self._outputs = outputs
        self._logger = logger

    def take_frames(self, table: FrameTable) -> None:
        table.add(KIND_DIGEST, self._heard, since=1)

    def _heard(self, peer: str, data: Data, now_ms: int) -> None:
        group, index, running_hash = decode_claim(data)
        replica = self._replicas.get(group)
        if replica is not None:
            replica.state_hashes.claim(peer, index, running_hash)
            self.judge(replica)

    def introduce(self, replica: Replica, peer: str) -> None:
        """Sends a newly connected peer the claims that it has not heard."""
        for claim in replica.state_hashes.claims():
            self._send(peer, KIND_DIGEST, [claim])

    def report(self, replica: Replica, claim: bytes) -> None:
        """Tells all others this member's hash, and compares."""
        for peer in self._peers.all:
            self._send(peer, KIND_DIGEST, [claim])
        self.judge(replica)

    def judge(self, replica: Replica) -> None:
        """Compares this member's state with most voters' states."""
        if replica.parted:
            return
        try:
            disputed = replica.state_hashes.judge(self._peers.me, replica.raft.configuration.voters)
        except Diverged as error:
            self._part(replica, error)
            return
        if disputed == replica.disputed:
            return
        group = replica.number
        replica.dispute(disputed)
        if disputed:
            self._logger.critical("nobody serves the group: states differ", group=group, reason=disputed)
            self._outputs.emit(ev.LeaseLapsed(group))
        else:
            self._logger.warning("a majority agrees again", group=group)
            self._heartbeats.lease_until[group] = 0

    def lose(self, replica: Replica, empty: CatalogMachine | GroupMachine, reason: str) -> None:
        """Gives the state up for an empty one, because it cannot be read and may be half changed."""
        self._give_up(replica, max(1, replica.raft.applied_index))
        replica.lose_state(empty)
        self._logger.error("state lost", group=replica.number, reason=reason)

    def _give_up(self, replica: Replica, index: int) -> None:
        """Gives the state up, even if the disk is full: it is stored for the next process as soon as there is room."""
        self._node_state.parted = (*self._node_state.parted, (replica.number, index))
        self._node_state.try_save()
        replica.part(index)
        self._outputs.emit(ev.LeaseLapsed(replica.number))

    def _part(self, replica: Replica, error: Diverged) -> None:
        group = replica.number
        self._give_up(replica, error.index)
        path = self._log.directory.parent / f"diverged-group-{group}-entry-{error.index}.state"
        try:
            prepare_file(self._log.files, path, [state_of(replica.machine)])
            commit_file(self._log.files, path)
            self._logger.critical("state has parted", group=group, evidence=str(path), reason=str(error))
        except (OSError, BodyUnreadable) as problem:
            self._logger.critical(
                "state has parted, and could not be saved as evidence", group=group, problem=str(problem)
            )

    def remember(self, replica: Replica) -> bool:
        """At the start, returns whether an earlier process gave the state up."""
        index = dict(self._node_state.parted).get(replica.number)
        if index is not None:
            replica.part(index)
        return index is not None

    def rebuilt(self, replica: Replica) -> None:
        """Another member's state is installed, durably."""
        group = replica.number
        if replica.parted:
            self._node_state.parted = tuple(each for each in self._node_state.parted if each[0] != group)
            self._node_state.try_save()
            self._heartbeats.lease_until[group] = 0
        replica.rebuilt()
        self._logger.warning("state replaced", group=group, index=replica.raft.applied_index)
