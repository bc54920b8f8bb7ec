"""Answers to queries about this member and its cluster. Every answer is frozen."""

from __future__ import annotations

from fifo.frozen_dataclasses import dataclass
from quorum.log import Log
from quorum.node import queries as q
from quorum.node.cluster.disk_monitor import DiskMonitor
from quorum.node.cluster.heartbeats import Heartbeats
from quorum.node.cluster.leader_spread import find_move
from quorum.node.cluster.membership import Membership
from quorum.node.cluster.peers import Peers
from quorum.node.cluster.version_switch import VersionSwitch
from quorum.node.leases.leases import Leases
from quorum.node.reads.query_table import QueryTable
from quorum.node.repair.repairer import Repairer
from quorum.node.repair.snapshot_bodies import SnapshotBodies
from quorum.node.replica.replica import Replica
from quorum.node.replica.replicas import Replicas
from quorum.node.replica.skipped_entries import SkippedEntries, shown
from quorum.node.wire.frames import FrameTable, Network


@dataclass(frozen=True, slots=True)
class ClusterAnswers:
    """The answers of one member."""

    replicas: Replicas
    membership: Membership
    peers: Peers
    leases: Leases
    heartbeats: Heartbeats
    disk_monitor: DiskMonitor
    repairer: Repairer
    snapshot_bodies: SnapshotBodies
    skipping: SkippedEntries
    skip_entries: tuple[tuple[int, int], ...]
    versions: VersionSwitch
    log: Log
    network: Network
    frames: FrameTable

    def take_queries(self, table: QueryTable) -> None:
        table.add(q.CheckHealth, self._check_health)
        table.add(q.HasHandedOver, self._has_handed_over)
        table.add(q.FindUnserved, self._find_unserved)
        table.add(q.FindLeader, lambda query, now_ms: self.replicas[query.group].raft.leader)
        table.add(q.FindTransferTarget, self._find_transfer_target)
        table.add(q.FindSuccessors, self._find_successors)
        table.add(q.PlanRebalance, self._plan_rebalance)
        table.add(q.DescribeCluster, self._describe_cluster)

    # ---- this member

    def _check_health(self, query: q.CheckHealth, now_ms: int) -> q.Health:
        is_ready = self._is_ready(now_ms)
        leaderships = {
            number: q.Leadership(replica.raft.leader or "", replica.raft.term)
            for number, replica in self.replicas.items()
        }
        reason = "" if is_ready else self._reason_to_leave(now_ms)
        directory = self.membership.member_directory
        other_members = [each for each in directory.by_id.values() if each.id != directory.me]
        others = {each.name: self.peers.is_reachable(each.id) for each in other_members}
        refused = frozenset(each.name for each in other_members if self.network.is_refused(each.id))
        standing, is_catching_up = self.membership.standing, self.membership.is_catching_up
        return q.Health(standing, is_ready, reason, leaderships, is_catching_up, others, refused)

    def _is_ready(self, now_ms: int) -> bool:
        """Whether this node can serve: it is a member that is not being drained, every group has a leader that is known
        here and lets this node deliver, and its disk has not left it behind."""
        if self.membership.standing != "member" or self.membership.is_leaving:
            return False
        return not self.disk_monitor.should_drain_clients(now_ms) and all(
            replica.raft.leader is not None
            and not replica.disputed
            and self.heartbeats.may_deliver(number, now_ms)
            for number, replica in self.replicas.items()
        )

    def _reason_to_leave(self, now_ms: int) -> str:
        """The reason why sessions should move to another node; empty where they need not."""
        if any(replica.parted for replica in self.replicas.values()):
            return "parted"
        return "disk_full" if self.disk_monitor.should_drain_clients(now_ms) else ""

    def _has_handed_over(self, query: q.HasHandedOver, now_ms: int) -> bool:
        return self.membership.leads_nothing or not self.membership.can_transfer_leadership

    def _find_unserved(self, query: q.FindUnserved, now_ms: int) -> q.Unserved | None:
        me = self.membership.member_directory.me
        for group in query.raft_groups:
            replica = self.replicas[group]
            if not self.leases.me or replica.raft.leader is None:
                return q.Unserved(group, me, "")
            if replica.disputed:
                return q.Unserved(group, me, replica.disputed)
        return None

    # ---- leadership

    def _find_transfer_target(self, query: q.FindTransferTarget, now_ms: int) -> q.TransferTarget:
        group, name = query.group, query.name
        if group not in self.replicas:
            return q.TransferTarget("", f"there is no group {group}; there are 0..{len(self.replicas) - 1}")
        found = self.replicas.catalog.members.named(name)
        if found is None:
            return q.TransferTarget("", f"there is no member {name!r}")
        if found.is_drained:
            return q.TransferTarget("", f"{name!r} is drained")
        if found.id not in self.replicas[group].raft.configuration.voters:
            return q.TransferTarget("", f"{name!r} does not vote in group {group}")
        return q.TransferTarget(found.id)

    def _find_successors(self, query: q.FindSuccessors, now_ms: int) -> q.Successors:
        catalog = self.replicas.catalog
        found = catalog.members.named(query.name)
        able = [
            each
            for each in catalog.members.by_id.values()
            if each is not found and not each.is_drained and not each.is_joining
        ]
        if found is None or not able or any(self.peers.is_reachable(each.id) for each in able):
            return q.Successors(catalog.changes)  # the catalog decides
        return q.Successors(
            catalog.changes,
            f"no member would be left to serve: {self.membership.member_directory.me} cannot reach "
            + ", ".join(sorted(each.name for each in able)),
        )

    def _plan_rebalance(self, query: q.PlanRebalance, now_ms: int) -> tuple[tuple[int, str], ...]:
        members = self.replicas.catalog.members.by_id.values()
        able = [
            each.id
            for each in sorted(members, key=lambda each: each.number)
            if not each.is_drained and self.peers.is_reachable(each.id)
        ]
        rafts = {number: replica.raft for number, replica in self.replicas.items()}
        leaders = {number: raft.leader for number, raft in rafts.items() if raft.leader is not None}
        voters = {number: raft.configuration.voters for number, raft in rafts.items()}
        moves: dict[int, str] = {}
        while (move := find_move(leaders, voters, able)) is not None:
            group, target = move
            leaders[group] = target
            moves[group] = self.membership.member_directory.name_of(target)
        return tuple(sorted(moves.items()))

    # ---- the cluster

    def _describe_cluster(self, query: q.DescribeCluster, now_ms: int) -> q.ClusterStatus:
        membership = self.membership
        directory = membership.member_directory
        return q.ClusterStatus(
            standing=membership.standing,
            id=directory.me,
            incarnation=membership.node_state.incarnation,
            known_version=self.versions.known,
            members=tuple(
                [
                    q.MemberStatus(
                        each,
                        self.leases.heard.get(each.number, (0, 0))[0],
                        self.peers.is_reachable(each.id),
                        self.disk_monitor.disks.state(each.number, now_ms),
                        self.versions.known_by(each.id),
                    )
                    for each in sorted(directory.by_id.values(), key=lambda each: each.name)
                ]
            ),
            groups=tuple([self._group_status(replica) for replica in self.replicas.values()]),
            skipped_entries=self._skipped_entries(),
            peer_events=(*self.network.event_counts().items(), ("ignored_frame", self.frames.malformed)),
            lease_settings=self.leases.settings,
        )

    def _group_status(self, replica: Replica) -> q.GroupStatus:
        directory, raft, number = self.membership.member_directory, replica.raft, replica.number
        configuration = raft.configuration
        others = sorted({*configuration.voters, *configuration.learners} - {directory.me})
        return q.GroupStatus(
            group=number,
            leader=directory.name_of(raft.leader),
            leader_id=raft.leader or "",
            term=raft.term,
            commit_index=raft.commit_index,
            applied_index=raft.applied_index,
            voters=tuple(directory.names_of(configuration.voters)),
            learners=tuple(directory.names_of(configuration.learners)),
            is_settled=raft.is_settled,
            repaired=self.repairer.repaired.get(number, 0),
            unreadable=self.repairer.lost(number),
            fetching=self.snapshot_bodies.missing(number),
            is_quarantined=raft.quarantine.is_on,
            disputed=replica.disputed,
            version=replica.version,
            last_index=raft.last_index,
            progress=tuple(
                [q.MemberProgress(directory.unique_name_of(each), raft.match_index(each)) for each in others]
                if raft.is_leader
                else []
            ),
        )

    def _skipped_entries(self) -> tuple[str, ...]:
        """GROUP:INDEX of the entries that are left out here, as long as the log has them or no snapshot is past them:
        members have to name them until then."""
        return tuple(
            [
                shown((group, index))
                for group, index in sorted(self.skip_entries)
                if group in self.replicas
                and self.skipping.is_needed(
                    index, self.replicas[group].raft.snapshot_index, self.log.journal(group).first_index
                )
            ]
        )
