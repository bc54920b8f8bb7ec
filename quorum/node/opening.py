"""Opens the replicas of a member at its start."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable
from functools import partial
from typing import Any

from quorum.log import Log, LogDamaged
from quorum.node.cluster.corruption_monitor import CorruptionMonitor
from quorum.node.cluster.peers import Peers
from quorum.node.cluster.state_comparison import StateComparison
from quorum.node.member_config import MemberConfig
from quorum.node.repair.repairer import Repairer
from quorum.node.repair.snapshot_bodies import SnapshotBodies
from quorum.node.replica.applier import Applier
from quorum.node.replica.bootstrap import Bootstrap
from quorum.node.replica.checkpoints import Checkpoints
from quorum.node.replica.replica import TIME_BYTES, FieldSource, LeaderState, Replica
from quorum.node.replica.replicas import KIND_RAFT, Replicas
from quorum.node.replica.skipped_entries import SkippedEntries
from quorum.node.replica.state_hashes import StateHashes
from quorum.node.wire.forwarding import GROUP
from quorum.node.wire.frames import Send
from quorum.replication.configuration import State
from quorum.replication.group import Group


class _Link:
    """One Raft group's connection to the other members, and the receiver of its leader's snapshots."""

    def __init__(
        self, number: int, send: Send, replicas: Replicas, applier: Applier, snapshot_bodies: SnapshotBodies
    ) -> None:
        self._number = number
        self._head = GROUP.pack(number)
        self._send = send
        self._replicas = replicas
        self._applier = applier
        self._snapshot_bodies = snapshot_bodies

    def send(self, peer: str, parts: list[bytes]) -> None:
        self._send(peer, KIND_RAFT, [self._head, *parts])

    def prepare(self, index: int, term: int, state: State) -> tuple[int, LeaderState] | None:
        proven = self._snapshot_bodies.prepare(self._number, index, term, state)
        return None if proven is None else (proven, self._replicas[self._number].read_state(state))

    def installed(self, state: LeaderState, index: int, term: int) -> None:
        self._applier.installed(self._replicas[self._number], state)


class Opener:
    """Opens one replica after the other; `comparing`, `damage` and the others are the member's parts."""

    def __init__(
        self,
        config: MemberConfig,
        log: Log,
        send: Send,
        peers: Peers,
        replicas: Replicas,
        bootstrap: Bootstrap,
        skipping: SkippedEntries,
        applier: Applier,
        snapshot_bodies: SnapshotBodies,
        repairer: Repairer,
        comparing: StateComparison,
        damage: CorruptionMonitor,
        logger: Any,
    ) -> None:
        self._config = config
        self._log = log
        self._send = send
        self._peers = peers
        self._replicas = replicas
        self._bootstrap = bootstrap
        self._skipping = skipping
        self._applier = applier
        self._snapshot_bodies = snapshot_bodies
        self._repairer = repairer
        self._comparing = comparing
        self._damage = damage
        self._logger = logger

    def open_all(self, clock: Callable[[], float], random: random_module.Random) -> None:
        for number in range(self._config.queue_groups + 1):
            self._replicas[number] = self._open(number, clock, random)
        self._skipping.begin()

    def _open(self, number: int, clock: Callable[[], float], random: random_module.Random) -> Replica:
        source = FieldSource(self._log, number)
        machine = self._bootstrap.empty_machine(number)
        raft = self._raft(number, clock, random_module.Random(random.random()))
        for index, reason in raft.unread_configurations.items():
            self._repairer.note(number, index, raft.term_at(index), reason)
        self._skipping.check(self._log, number, raft.snapshot_index)
        checkpoints = Checkpoints(self._log, number, raft, TIME_BYTES)
        replica = Replica(number, raft, machine, source, StateHashes(number), checkpoints)
        raft.start()
        checkpoints.begin()
        for damaged in self._log.journal(number).damaged_snapshots:
            self._logger.warning("snapshot is damaged, another one is used", file=damaged)
        state = raft.snapshot_state
        is_given_up = self._comparing.remember(replica)
        if state is not None and not is_given_up:
            self._applier.begin(replica, state)
            self._damage.look_for_missing(replica)
        return replica

    def _raft(self, number: int, clock: Callable[[], float], chance: random_module.Random) -> Group:
        link = _Link(number, self._send, self._replicas, self._applier, self._snapshot_bodies)
        make = partial(
            Group,
            number,
            self._config.name,
            self._config.members,
            self._log,
            clock,
            chance,
            link.send,
            link.installed,
            self._config.raft,
            link.prepare,
        )
        try:
            return make()
        except LogDamaged as error:
            if not self._peers.all:
                raise
            self._bootstrap.lose_replica(number, str(error))
            return make()
