"""Changes the members and leaders of the groups that this node leads to those that the catalog asks for.

The catalog holds the desired members (catalog.members). A leader compares them with its group's configuration and takes
the next step towards them. It takes one step at a time, when the one before is committed
(replication/configuration.py):

  1. a new member that is connected becomes a learner
  2. a learner that has caught up, and uses the lease times that this leader uses, becomes a voter
  3. a new member that votes in every group, and answers, is confirmed: the member that it replaces is removed
  4. a removed member leaves its groups; the system group last, when it is known to have left the others, so that it
     learns of its removal and stays connected to the members that need it there

A step that shrinks a group waits until a majority of the remaining voters is reachable. Only ids that the catalog lists
as removed are taken out: a catalog that lags behind does not know newer members yet. A leader never removes itself: it
hands over.

A node that is drained or about to stop also hands its leadership over. After that it campaigns only as a last resort.
"""

from __future__ import annotations

from fifo.frozen_dataclasses import dataclass
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.members import BootstrapCluster, CatalogMember, ConfirmMember, RecordIncarnation, founders
from quorum.log import LogFull
from quorum.node.cluster.lease_times import LeaseTimesKeeper
from quorum.node.cluster.peers import Peers
from quorum.node.identity.identity import NodeState
from quorum.node.identity.member_directory import MemberDirectory
from quorum.node.member_config import MemberConfig
from quorum.node.replica.replica import SYSTEM_GROUP, Replica
from quorum.node.replica.replicas import Replicas
from quorum.node.wire.forwarding import GROUP
from quorum.node.wire.frames import Data, FrameTable, Send
from quorum.replication.configuration import MAX_IDS

KIND_INCARNATION, KIND_TRANSFER = 5, 6
"""Frame kinds: the incarnation under which the sender remembers the receiver; a request that the receiver hands a
group's leadership to a member."""
MAX_LAG = 64
"""Entries of the log that a member may lack to be handed a group's leadership by name. Nothing is proposed until it has
them. A follower that keeps up under full load lacks a few."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Changes for the member to carry out: this node's number (0 while it has none), the other members, and former
    members that are in no group any more."""

    number: int
    peers: tuple[str, ...]
    gone: frozenset[str]


def founding_members(config: MemberConfig) -> tuple[CatalogMember, ...]:
    return founders({name: config.addresses.get(name, ("", "")) for name in config.members})


class Membership:
    """One node's share in it. Called on the Raft thread, outside of any group's calls."""

    def __init__(
        self,
        config: MemberConfig,
        node_state: NodeState,
        replicas: Replicas,
        peers: Peers,
        member_directory: MemberDirectory,
        lease_times: LeaseTimesKeeper,
        send: Send,
    ) -> None:
        self.node_state = node_state
        self.member_directory = member_directory
        self._replicas = replicas
        self._peers = peers
        self._lease_times = lease_times
        self._send = send
        self._founders = founding_members(config)
        self._confirmed_by: set[str] = set()
        """founding members that have said that they remember this node's incarnation"""
        self.is_leaving = False
        """this process is about to stop"""
        self._looked_at: tuple[object, ...] = ()
        self._was_member = member_directory.own is not None

    # ---- who is who

    @property
    def catalog(self) -> CatalogMachine:
        return self._replicas.catalog

    @property
    def standing(self) -> str:
        """This node's standing in its cluster: one of queries.STANDINGS."""
        if self.member_directory.me in self._replicas.catalog.members.removed:
            return "removed"
        own = self.member_directory.own
        if not self.node_state.is_established:
            return "meeting"
        if own is None:
            return "waiting"
        return "drained" if own.is_drained else "member"

    @property
    def is_catching_up(self) -> bool:
        """Whether this node was a member when it stopped, and the entries that it has applied since are older."""
        return self._was_member and self.standing == "waiting"

    def follow(self) -> Changed | None:
        """Adopts the current catalog and the groups' configurations; None if nothing has changed."""
        replicas = self._replicas.values()
        members = self._replicas.catalog.members
        seen = (
            members.by_id,
            members.removed[-1:],
            *[replica.raft.configuration for replica in replicas],
            self.is_leaving,
            [replica.parted > 0 for replica in replicas],
        )
        if seen == self._looked_at:
            return None
        # a copy: the machine's own is changed in place
        self._looked_at = (dict(members.by_id), *seen[1:])
        self.member_directory.follow(members.by_id)
        own = self.member_directory.own
        everybody = set(self.member_directory.by_id)
        if everybody:
            for replica in replicas:
                everybody.update(replica.raft.configuration.everybody)
        self._peers.all = tuple(sorted(everybody - {self.member_directory.me}))
        campaigns_last = self.is_leaving or (own is not None and own.is_drained)
        for replica in replicas:
            replica.may_lead_last_only(campaigns_last=campaigns_last)
        # a node that is not known here may be a member of which the others have heard
        gone = frozenset(members.removed) - everybody
        return Changed(0 if own is None else own.number, self._peers.all, gone)

    # ---- incarnations

    def take_frames(self, table: FrameTable) -> None:
        table.add(KIND_INCARNATION, self._told_incarnation, since=1)
        table.add(KIND_TRANSFER, self._asked_to_transfer, since=1)

    def _told_incarnation(self, peer: str, data: Data, now_ms: int) -> None:
        self.confirmed(peer, bytes(data).decode("ascii", "replace"))

    def tell_incarnation(self, peer: str, incarnation: bytes) -> None:
        """Tells a newly connected peer the incarnation that this node remembers of it."""
        remembered = self.remember(peer, incarnation.hex() if any(incarnation) else "")
        if remembered:
            self._send(peer, KIND_INCARNATION, [remembered.encode()])

    def remember(self, peer: str, incarnation: str) -> str:
        """Returns the incarnation that this node remembers of a newly connected peer, to be told to it. It is durable
        from here on; empty if the disk has no room for it."""
        if not self.node_state.incarnation or not incarnation:
            return ""
        if peer not in self.node_state.known_incarnations:
            self.node_state.known_incarnations[peer] = incarnation
            if not self.node_state.try_save():
                del self.node_state.known_incarnations[peer]
                return ""
        return self.member_directory.incarnation(peer)

    def confirmed(self, peer: str, incarnation: str) -> None:
        """A peer says under which incarnation it remembers this node."""
        if incarnation != self.node_state.incarnation or self.node_state.is_established:
            return
        self._confirmed_by.add(peer)
        self._establish()

    def _establish(self) -> None:
        """Marks this member as established once every other founding member remembers it, and this is durable."""
        if self._confirmed_by >= {each.id for each in self._founders} - {self.member_directory.me}:
            self.node_state.is_established = True
            self.node_state.is_established = self.node_state.try_save()

    def save_again(self) -> None:
        """Tries again to save what this member has to remember, if the disk had no room for it."""
        if self.node_state.is_unsaved:
            self.node_state.try_save()
        if not self.node_state.is_established:
            self._establish()

    # ---- what a leader does

    def advance(self, now_ms: int) -> None:
        """The next step in each group that this node leads."""
        for replica in self._replicas.values():
            if not replica.raft.is_leader or not replica.leads:
                continue
            if replica.number == SYSTEM_GROUP:
                self._tell_catalog(replica)
            if self.is_leaving or self._shall_not_lead():
                self.transfer_leadership(replica)
            elif self.catalog.members.by_id and not replica.raft.is_transferring and replica.raft.is_settled:
                self._try_next_step(replica, now_ms)

    def _shall_not_lead(self) -> bool:
        own = self.member_directory.own
        return own is None or own.is_drained

    def _tell_catalog(self, system: Replica) -> None:
        if system.proposals.pending or system.raft.applied_index < system.raft.last_index:
            return
        known = self.catalog.members.by_id
        if not known:
            if self._founders:
                system.propose_internal(BootstrapCluster(self._founders))
            return
        for each in known.values():
            if not each.incarnation:
                is_own = each.id == self.member_directory.me
                found = (
                    self.node_state.incarnation
                    if is_own
                    else self.node_state.known_incarnations.get(each.id, "")
                )
                if found:
                    system.propose_internal(RecordIncarnation(each.id, found))
            if each.is_joining and not each.is_drained and self._votes_everywhere(each.id):
                system.propose_internal(ConfirmMember(each.id))

    def _votes_everywhere(self, member: str) -> bool:
        """Whether the member votes in every group. The committed state of a replica here may be old; but a voter leaves
        a group only after the catalog has removed it."""
        rafts = [replica.raft for replica in self._replicas.values()]
        return self._peers.is_reachable(member) and all(
            raft.is_settled and member in raft.configuration.voters for raft in rafts
        )

    def _try_next_step(self, replica: Replica, now_ms: int) -> None:
        """Tries the next step; a later call retries it if the log has no room."""
        if now_ms >= replica.proposals.full_until_ms:
            try:
                self._next_step(replica)
            except LogFull:
                replica.proposals.refuse(now_ms)

    def _next_step(self, replica: Replica) -> None:
        raft, desired = replica.raft, self.catalog.members
        now = raft.configuration
        everybody = now.everybody
        for each in desired.by_id:
            has_room = len(everybody) < MAX_IDS
            if has_room and each not in everybody and self._peers.is_reachable(each):
                raft.change_members(now.with_learner(each))
                return
        for each in now.learners:
            if each in desired.removed and self._comes_last(replica, each):
                raft.change_members(now.without(each))
                return
            knows_leases = self._lease_times.is_followed_by(self.member_directory.number(each))
            if each in desired.by_id and knows_leases and raft.is_caught_up(each):
                grown = now.with_voter(each)
                if raft.has_majority_of(grown.voters):
                    raft.change_members(grown)
                    return
        for each in now.voters:
            if each in desired.removed and self._may_leave(replica, each):
                if each == self.member_directory.me:
                    self.transfer_leadership(replica)
                else:
                    raft.change_members(now.without(each))
                return

    def _may_leave(self, replica: Replica, voter: str) -> bool:
        """Whether this voter can be removed now: no reachable learner is waiting to replace it, a majority of the
        remaining voters is reachable, and all other groups have already removed it (if this is the system group)."""
        raft = replica.raft
        left = raft.configuration.without(voter)
        if any(
            self._peers.is_reachable(each) for each in left.learners if each in self.catalog.members.by_id
        ):
            return False
        if not left.voters or not raft.has_majority_of(left.voters):
            return False
        return self._comes_last(replica, voter)

    def _comes_last(self, replica: Replica, leaving: str) -> bool:
        """Whether no other group has the leaving member any more, as voter or learner; checked for the system group
        only, which removes a member after all other groups. A member outside the system group never hears that it was
        removed, and may lead another group. This leader knows another group's members for sure only if it votes in it
        and hears its leader: the replica of a new member that has heard nothing yet lists no members."""
        others = (each.raft for each in self._replicas.values() if each.number != replica.number)
        return replica.number != SYSTEM_GROUP or all(
            raft.is_voter
            and raft.leader is not None
            and raft.is_settled
            and leaving not in raft.configuration.everybody
            for raft in others
        )

    # ---- who leads

    def leave(self) -> None:
        """This process is about to stop."""
        self.is_leaving = True

    def transfer(self, group: int, to: str) -> None:
        """Hands a group's leadership over, or forwards the request to its leader."""
        replica = self._replicas.get(group)
        if replica is None:
            return
        leader = replica.raft.leader
        if replica.raft.is_leader:
            replica.wake()
            self.transfer_leadership(replica, to)
        elif leader is not None:
            self._send(leader, KIND_TRANSFER, [GROUP.pack(group), to.encode()])

    def _asked_to_transfer(self, peer: str, data: Data, now_ms: int) -> None:
        """Handles a peer's request to hand leadership over; a node that no longer leads does nothing."""
        view = memoryview(data)
        replica = self._replicas.get(GROUP.unpack_from(view)[0])
        if replica is not None and replica.raft.is_leader:
            replica.wake()
            self.transfer_leadership(replica, str(view[GROUP.size :], "utf-8", "replace"))

    def transfer_leadership(self, replica: Replica, to: str | None = None) -> bool:
        """Begins to hand a group's leadership to this member, or to the one best placed. Returns False if there is
        none, or if this member lags behind. A leader that has to go hands over even if everybody lags behind."""
        raft = replica.raft
        if not raft.is_leader or raft.is_transferring:
            return False
        if to is not None:
            has_log = raft.last_index - raft.match_index(to) <= MAX_LAG
            is_ready = self._peers.is_reachable(to) and has_log and replica.has_applied(to)
            return is_ready and raft.transfer_leadership(to)
        candidates = [
            each
            for each in raft.configuration.voters
            if each != self.member_directory.me and self._peers.is_reachable(each) and self._may_lead(each)
        ]
        if not candidates:
            return False
        led = [each.raft.leader for each in self._replicas.values()]
        # who can lead at once first; then few groups: a drained node's spread over the others; then the least lag
        best = min(
            candidates,
            key=lambda each: (not replica.has_applied(each), led.count(each), -raft.match_index(each), each),
        )
        return raft.transfer_leadership(best)

    def _may_lead(self, member: str) -> bool:
        found = self.member_directory.by_id.get(member)
        return found is not None and not found.is_drained

    @property
    def can_transfer_leadership(self) -> bool:
        """Whether another member could take leadership over."""
        return any(self._peers.is_reachable(each) and self._may_lead(each) for each in self._peers.all)

    @property
    def leads_nothing(self) -> bool:
        return not any(replica.raft.is_leader for replica in self._replicas.values())
