"""One member of a cluster: its Raft groups, their machines, and its sessions' conversations with them.

`step(now_ms, frames, inputs) -> outputs` is synchronous and total: it takes what peers and sessions sent, lets leaders
pack operations into entries, ticks, writes everything with one sync, sends what depended on it, and applies what is
committed. It never waits and never reads a clock; clock, random, disk and network are constructor arguments, so that
the same object runs in a process and in a simulation.

Order within a step, and why:
  receive   acknowledgements and appends first, so that this step's tick can commit on them
  tick      elections, heartbeats, the commit index
  propose   what sessions here and elsewhere want, one entry a group (several when it is much); it goes out with the
            new commit index, which otherwise goes out by itself: sessions at other nodes wait for it
  sync      one fdatasync for all groups; only then leaves what promises something about it
  apply     bounded; what is left over is done in the next step, which then comes at once
"""

from __future__ import annotations

import random as random_module
import struct
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from fifo.group import GroupMachine
from fifo.limits import PRODUCTION, Limits
from fifo.storage import Storage
from quorum.catalog.lease_times import LeaseTimes
from quorum.catalog.machine import CatalogMachine
from quorum.log import Log, LogDamaged
from quorum.node import events as ev
from quorum.node.cluster.corruption_monitor import DamageCare, is_needed
from quorum.node.cluster.disk_monitor import DiskWatch
from quorum.node.cluster.heartbeats import KIND_HEARTBEAT, KIND_HEARTBEAT_ANSWER, Heartbeats
from quorum.node.cluster.lease_times import LeaseTimesKeeper
from quorum.node.cluster.membership import Membership
from quorum.node.cluster.recovery_messages import KIND_STANDING, KIND_STANDING_QUESTION, Standings
from quorum.node.cluster.rollback_marks import KIND_MARK, KIND_NEW_MARK, Marks
from quorum.node.cluster.state_comparison import KIND_DIGEST, Comparing
from quorum.node.cluster.state_requests import KIND_STATE_REQUEST, Rebuilding
from quorum.node.errors import PageUnreadable, PeerFrameError
from quorum.node.identity.identity import Memory
from quorum.node.identity.member_directory import Address
from quorum.node.leases.leases import Heartbeat, HeartbeatAnswer, Leases
from quorum.node.maintenance.garbage_collection import Background, Collecting, Inline
from quorum.node.maintenance.paging import Pager
from quorum.node.maintenance.scrubbing import Pace, Scrubbing
from quorum.node.reads.questions import Questions
from quorum.node.reads.read_indexes import (
    KIND_READ,
    KIND_READ_INDEX,
    ReadCallback,
    ReadIndex,
    ReadIndexes,
    ReadRequest,
)
from quorum.node.repair.body_transfer import KIND_BODIES, KIND_FETCH, Answer, Fetcher, Librarian, Question
from quorum.node.repair.healer import Healer
from quorum.node.repair.snapshot_bodies import Arrivals
from quorum.node.replica.applier import Applier
from quorum.node.replica.bootstrap import Founding
from quorum.node.replica.checkpoints import Checkpoints
from quorum.node.replica.reconciler import CarryingOut
from quorum.node.replica.replica import SYSTEM_GROUP, TIME_BYTES, FieldSource, Replica
from quorum.node.replica.skipped_entries import Skipping, shown
from quorum.node.replica.snapshotter import Snapshotter
from quorum.node.replica.state_hashes import Digests, decode_claim
from quorum.node.sessions.conversation import Session
from quorum.node.sessions.session_table import SessionTable
from quorum.node.wire import forwarding
from quorum.replication.errors import WireError
from quorum.replication.group import Group, GroupConfig
from quorum.replication.quarantine import Standing, StandingQuestion

KIND_RAFT, KIND_MET, KIND_TRANSFER = 0, 5, 6
"""Of frames between members; each other kind stands in the module that knows its frames."""

APPLY_ENTRIES = 64
SNAPSHOT_BYTES = 128 << 20
"""A snapshot is taken when this much of the group's log was applied since the last one."""
SNAPSHOT_MS = 60_000
"""One is taken this long after the first change since the last one, too: the disk space of what was settled comes back
after two."""
UPKEEP_MS = 100
REVIEW_MS = 500
"""How often it is looked at what is damaged."""
QUEUE_MEMORY_BYTES = 256 << 20


class Network(Protocol):
    """What a member needs of the peers' network. `send` only queues, `flush` writes without waiting."""

    def send(self, peer: str, kind: int, parts: Sequence[bytes | memoryview]) -> object: ...

    def flush(self) -> None: ...

    def links(self) -> Collection[str]:
        """Who is connected now."""
        ...

    def incarnation_of(self, peer: str) -> bytes:
        """Of a connected peer's data directory; zeros if it has none."""
        ...

    def set_peers(
        self, dials: Mapping[str, Address], reserve: Mapping[str, Address], gone: Collection[str]
    ) -> None:
        """Who is dialed where, at once or when they have not dialed themselves, and who may not connect any more."""
        ...


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """name: this member's id. members: those that the cluster began with, or none at a node that joins it; their
    numbers are their places in sorted order, from 1. Who is a member now the catalog says (node.membership)."""

    name: str
    members: tuple[str, ...]
    boot: int
    lease_ms: int = 4_000
    queue_groups: int = 3
    raft: GroupConfig = field(default_factory=GroupConfig)
    snapshot_bytes: int | None = None
    """see SNAPSHOT_BYTES"""
    snapshot_ms: int = SNAPSHOT_MS
    apply_entries: int = APPLY_ENTRIES
    addresses: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """founding member -> (peer, client), host:port each"""
    queue_memory_bytes: int = QUEUE_MEMORY_BYTES
    """see paging.py"""
    limits: Limits = PRODUCTION
    """of the machines of queues, the same on all members"""
    scrubbing: Pace = field(default_factory=Pace)
    skip_entries: tuple[tuple[int, int], ...] = ()
    """(group, index) of entries whose effect is left out, see skipped_entries.py"""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a peer sent. kind as above; data without it."""

    peer: str
    kind: int
    data: bytes | memoryview


class Member:
    """See the module's text. Not safe for threads: the Raft thread owns it."""

    def __init__(
        self,
        config: MemberConfig,
        log: Log,
        network: Network,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        random: random_module.Random,
        memory: Memory | None = None,
        background: Background | None = None,
    ) -> None:
        """memory: what this node knows beside its log; without one it asks nobody for incarnations.

        background: where the log's garbage is copied and the log checks itself; at once if not given.
        """
        self.config = config
        self.log = log
        self._network = network
        self.membership = Membership(self, memory or Memory())
        self.me = self.membership.roster.number(config.name)
        """This node's number; 0 until it is a member."""
        self._table = SessionTable(
            self.me, config.boot, self._link, self._send, self._tell, self._group_times
        )
        self._outputs: list[ev.Output] = []
        self._now_ms = int(clock() * 1000)
        self._next_upkeep_ms = 0
        self._next_review_ms = 0
        self._connected: set[str] = set()
        self.malformed_frames = 0
        self._logger = structlog.get_logger().bind(node=config.name)
        self.names: dict[int, str] = {}
        """number -> id of each member of now"""
        self.disk_watch = DiskWatch(self.me, self.names, log, clock, self._logger)
        self.replicas: dict[int, Replica] = {}
        self._carrying_out = CarryingOut(self.replicas)
        step_down_ms = int(config.raft.leader_fallback_s * 1000)
        self.leases = Leases(self.me, ())
        self.lease_times = LeaseTimesKeeper(
            self.leases, self.membership.memory, LeaseTimes(config.lease_ms, step_down_ms), self._logger
        )
        self.heartbeats = Heartbeats(
            self.leases,
            self.membership.roster,
            config.boot,
            self.replicas,
            self.disk_watch,
            wall_ms,
            network.send,
            self._tell,
        )
        self.comparing = Comparing(
            config.name,
            log,
            self.membership.memory,
            self.heartbeats,
            lambda: self.membership.peers,
            network.send,
            self._tell,
            self._logger,
        )
        self.fetcher = Fetcher(log, network.send, self._who_has_bodies)
        self.arrivals = Arrivals(
            log,
            self.fetcher,
            lambda group: self.replicas[group].raft,
            lambda group, state: self.replicas[group].references(state),
        )
        self.healer = Healer(
            log,
            self.fetcher,
            self._logger,
            self._mended,
            lambda group, index: is_needed(log, self.replicas[group], index),
        )
        self.read_indexes = ReadIndexes(
            config.boot,
            self._link,
            self._read_barrier,
            network.send,
            self._found_read_index,
        )
        self.questions = Questions(self.replicas, self.read_indexes, self.healer, clock, self._tell)
        self._skipping = Skipping(config.skip_entries, self.membership.memory, self._logger)
        self._snapshotter = Snapshotter(
            log,
            self._logger,
            after_bytes=config.snapshot_bytes or SNAPSHOT_BYTES,
            after_ms=config.snapshot_ms,
        )
        self.applier = Applier(
            log,
            self._table,
            self.healer,
            self.comparing.report,
            self.comparing.rebuilt,
            self._snapshotter,
            self._skipping,
            entries=config.apply_entries,
        )
        self.pager = Pager(config.queue_memory_bytes)
        background = background or Inline()
        self.collecting = Collecting(log, background)
        self.scrubbing = Scrubbing(log, background, self.membership.memory, self._logger, config.scrubbing)
        self._founding = Founding(log, config.members, config.queue_groups, self._logger, config.limits)
        self.rebuilding = Rebuilding(self.replicas, network.send)
        self.damage = DamageCare(
            log,
            self.replicas,
            self._logger,
            config.raft.election_max_s,
            self.healer,
            self._who_has_bodies,
        )
        self.librarian = Librarian(log, self._commit_index, network.send, self.damage.found_unreadable)
        self.standings = Standings(self.replicas, network.send)
        self._marks = Marks(self.membership.memory, log, range(config.queue_groups + 1), network.send)
        for number in range(config.queue_groups + 1):
            self.replicas[number] = self._replica(number, clock, random)
        self._skipping.begin()
        self.membership.follow()

    @property
    def sessions(self) -> dict[int, Session]:
        """The sessions here by number, those that are closing included."""
        return self._table.by_number

    @property
    def boot(self) -> int:
        """The number under which sessions are opened now; see SessionTable.declared_down."""
        return self._table.boot

    @property
    def now_ms(self) -> int:
        """When the last step began, on the member's clock."""
        return self._now_ms

    def is_reachable(self, name: str) -> bool:
        return name == self.config.name or name in self._connected

    def is_ready(self) -> bool:
        """Whether this node can serve: it is a member that nobody drains, every group has a leader that is known here
        and lets this node deliver, and its disk has not left it behind."""
        if self.membership.standing != "member" or self.membership.is_leaving:
            return False
        return not self.is_left_behind() and all(
            replica.raft.leader is not None
            and not replica.disputed
            and self.heartbeats.may_deliver(number, self._now_ms)
            for number, replica in self.replicas.items()
        )

    def skipped_entries(self) -> list[str]:
        """GROUP:INDEX of the entries that are left out here, as long as the log has them or no snapshot is past them:
        members have to name them until then."""
        return [
            shown((group, index))
            for group, index in sorted(self.config.skip_entries)
            if group in self.replicas
            and self._skipping.is_needed(
                index, self.replicas[group].raft.snapshot_index, self.log.journal(group).first_index
            )
        ]

    def is_left_behind(self) -> bool:
        """Its disk is full and others' are not: sessions do better there."""
        return self.disk_watch.is_left_behind(self._now_ms)

    def reason_to_leave(self) -> str:
        """Why sessions should be at another node; empty where they need not."""
        if any(replica.parted for replica in self.replicas.values()):
            return "parted"
        return "disk_full" if self.is_left_behind() else ""

    @property
    def catalog(self) -> CatalogMachine:
        machine = self.replicas[SYSTEM_GROUP].machine
        assert isinstance(machine, CatalogMachine)
        return machine

    def queue_machine(self, group: int) -> GroupMachine:
        machine = self.replicas[group].machine
        assert isinstance(machine, GroupMachine)
        return machine

    def storage(self, group: int, queue: int) -> Storage | None:
        """Where a queue's messages are on this node; O(its blocks)."""
        return self.queue_machine(group).storage(queue, self._recent_from(group))

    def _recent_from(self, group: int) -> int:
        """The first applied entry from which on all bodies are in memory. They leave in their order."""
        first, behind = 1, self.replicas[group].raft.applied_index + 1
        while first < behind:
            middle = (first + behind) // 2
            if self.log.in_memory(group, middle):
                behind = middle
            else:
                first = middle + 1
        return first

    def _replica(self, number: int, clock: Callable[[], float], random: random_module.Random) -> Replica:
        source = FieldSource(self.log, number)
        machine = self._founding.empty_machine(number)

        def send(peer: str, parts: list[bytes]) -> None:
            self._network.send(peer, KIND_RAFT, [forwarding.GROUP.pack(number), *parts])

        chance = random_module.Random(random.random())

        def make() -> Group:
            return Group(
                number,
                self.config.name,
                self.config.members,
                self.log,
                clock,
                chance,
                send,
                lambda state, index, term: self.applier.installed(self.replicas[number], state),
                self.config.raft,
                lambda index, term, state: self.arrivals.prepare(number, index, term, state),
            )

        try:
            raft = make()
        except LogDamaged as error:
            if not self.membership.peers:
                raise
            self._founding.lose_replica(number, str(error))
            raft = make()
        for index, reason in raft.unread_configurations.items():
            self.healer.note(number, index, raft.term_at(index), reason)
        self._skipping.check(self.log, number, raft.snapshot_index)
        checkpoints = Checkpoints(self.log, number, raft, TIME_BYTES)
        replica = Replica(number, raft, machine, source, Digests(number), checkpoints)
        raft.start()
        checkpoints.begin()
        for damaged in self.log.journal(number).damaged_snapshots:
            self._logger.warning("snapshot is damaged, another one is used", file=damaged)
        state = raft.snapshot_state
        is_given_up = self.comparing.remember(replica)
        if state is not None and not is_given_up:
            self.applier.begin(replica, state)
            self.damage.look_for_missing(replica)
        return replica

    # ---- the step

    def step(self, now_ms: int, frames: Iterable[Frame], inputs: Iterable[ev.Input]) -> list[ev.Output]:
        """One turn. now_ms: the member's clock, which counts suspended time. Returns what the API has to hear.

        Every exception is the end of this member.
        """
        active = self._exchange(now_ms, frames, inputs)
        try:
            self._work(active, now_ms)
        except PageUnreadable as error:  # what is left of the turn is done in the next one
            if not self.membership.peers:
                raise
            self.lose_state(error)
        outputs, self._outputs = self._outputs, []
        return outputs

    def lose_state(self, error: PageUnreadable) -> None:
        """A page was needed. Who has others is sent another state by them; nothing that this member has promised is
        lost."""
        replica = self.replicas[error.group]
        self.comparing.lose(replica, self._founding.empty_machine(error.group), str(error))

    def _exchange(self, now_ms: int, frames: Iterable[Frame], inputs: Iterable[ev.Input]) -> list[Replica]:
        """Up to the sync, and what waits for that. Returns the replicas that have something to do."""
        self._now_ms = now_ms
        takes_part = self.disk_watch.may_take_part(now_ms) and self.membership.memory.is_established
        self.heartbeats.lapse(now_ms)
        self._follow_connections()
        for frame in frames:
            if takes_part or frame.kind != KIND_RAFT:
                self._receive(frame)
        for item in inputs:
            self._take(item)
        if takes_part:
            self.read_indexes.turn(now_ms)
        active = [each for each in self.replicas.values() if takes_part and each.is_active(now_ms)]
        for replica in active:
            if replica.tick():
                self._follow_leader(replica)
            replica.propose(now_ms, self.heartbeats.wall_clocks(now_ms))
            replica.raft.flush_early()
        self.healer.tick()
        self.fetcher.tick(now_ms)
        self._network.flush()
        self.disk_watch.sync()
        for replica in active:
            replica.raft.flush()
        self._network.flush()
        self.fetcher.settle()
        return active

    def _work(self, active: Iterable[Replica], now_ms: int) -> None:
        """Everything that reads states."""
        for replica in active:
            self.applier.apply(replica, now_ms)
        self.librarian.serve(now_ms)
        self.heartbeats.turn(self.membership.peers, now_ms)
        self.standings.answer()
        if now_ms >= self._next_review_ms:
            self._next_review_ms = now_ms + REVIEW_MS
            self.damage.review()
            self._save_again()
            self._snapshotter.replace_damaged(self.replicas.values(), now_ms)
        self.standings.ask(self.membership.peers, now_ms)
        self.rebuilding.ask(self.membership.peers, now_ms)
        if now_ms >= self._next_upkeep_ms or self.applier.is_upkeep_due:
            self.applier.is_upkeep_due = False
            self._next_upkeep_ms = now_ms + UPKEEP_MS
            self._upkeep()
        elif self._carrying_out.goes_on_at_once and not self.disk_watch.is_silent:
            self._carry_out()
        self._marks.turn(self._connected, now_ms)
        self.questions.answer(self)

    def next_due_ms(self) -> int:
        """When step should be called again even if nothing comes in, on the member's clock."""
        if self.disk_watch.is_silent or not self.membership.memory.is_established:
            return min(self.heartbeats.next_ms, self._next_upkeep_ms)
        is_asked = self.read_indexes.is_due or self.questions.is_due
        if (
            is_asked
            or self._carrying_out.goes_on_at_once
            or any(replica.can_apply or replica.can_propose for replica in self.replicas.values())
        ):
            return self._now_ms
        raft = min(replica.raft.next_due() for replica in self.replicas.values())
        due = min(int(raft * 1000) + 1, self.heartbeats.next_ms, self._next_upkeep_ms)
        bodies = (self.fetcher.next_due_ms(), self.librarian.next_due_ms())
        return min((due, *(each for each in bodies if each is not None)))

    def _follow_connections(self) -> None:
        now = set(self._network.links())
        changed, self._connected = sorted(now ^ self._connected), now
        for peer in changed:
            if peer in now:
                self._meet(peer)
                self._marks.connected(peer, self._now_ms)
            else:
                self.librarian.forget(peer)
                self.fetcher.disconnected(peer)
            for replica in self.replicas.values():
                if peer in now:
                    for claim in replica.digests.claims():
                        self._network.send(peer, KIND_DIGEST, [claim])
                    replica.peer_connected(peer)
                else:
                    replica.peer_disconnected(peer)
                if peer in now and replica.raft.leader == peer:
                    self._table.resend(replica.number, self._now_ms)

    def _meet(self, peer: str) -> None:
        remembered = self.membership.met(peer, _hex(self._network.incarnation_of(peer)))
        if remembered:
            self._network.send(peer, KIND_MET, [remembered.encode()])

    def _save_again(self) -> None:
        """What a full disk did not take of node.json. Peers that could not be remembered are met again."""
        self.membership.save_again()
        for peer in sorted(self._connected - self.membership.memory.met.keys()):
            self._meet(peer)

    # ---- frames

    def _receive(self, frame: Frame) -> None:
        """A peer's frame is whole (the wire checks it) and from a peer; what does not decode is of another version."""
        try:
            self._dispatch(frame)
        except (PeerFrameError, WireError, struct.error) as error:
            self.malformed_frames += 1
            self._logger.warning("frame ignored", peer=frame.peer, kind=frame.kind, error=str(error))

    def _dispatch(self, frame: Frame) -> None:
        if frame.kind == KIND_RAFT:
            view = memoryview(frame.data)
            replica = self.replicas.get(forwarding.GROUP.unpack_from(view)[0])
            if replica is not None:
                replica.receive(frame.peer, view[forwarding.GROUP.size :])
        elif frame.kind == forwarding.KIND_PROPOSE:
            self._receive_operations(memoryview(frame.data))
        elif frame.kind == KIND_FETCH:
            self.librarian.ask(frame.peer, Question.decode(frame.data))
        elif frame.kind == KIND_BODIES:
            self.fetcher.take(frame.peer, Answer.decode(frame.data), self._now_ms)
        elif frame.kind == KIND_STANDING_QUESTION:
            question = StandingQuestion.decode(frame.data)
            self.standings.asked(frame.peer, question)
            if question.group in self.replicas:
                self.replicas[question.group].digests.forget(frame.peer)
        elif frame.kind == KIND_STATE_REQUEST:
            self.rebuilding.asked(frame.peer, frame.data)
        elif frame.kind == KIND_STANDING:
            self.standings.hear(frame.peer, Standing.decode(frame.data))
        elif frame.kind == KIND_HEARTBEAT:
            self.heartbeats.heard(frame.peer, Heartbeat.decode(frame.data), self._now_ms)
        elif frame.kind == KIND_HEARTBEAT_ANSWER:
            self.heartbeats.answered(frame.peer, HeartbeatAnswer.decode(frame.data), self._now_ms)
        elif frame.kind == KIND_READ:
            self._receive_read(frame.peer, ReadRequest.decode(frame.data))
        elif frame.kind == KIND_READ_INDEX:
            self.read_indexes.answered(ReadIndex.decode(frame.data))
        elif frame.kind == KIND_MET:
            self.membership.vouched(frame.peer, bytes(frame.data).decode("ascii", "replace"))
        elif frame.kind == KIND_MARK:
            self._marks.remembered(frame.peer, frame.data, self._now_ms)
        elif frame.kind == KIND_NEW_MARK:
            self._marks.told(frame.peer, frame.data)
        elif frame.kind == KIND_TRANSFER:
            view = memoryview(frame.data)
            (group,) = forwarding.GROUP.unpack_from(view)
            self._transfer(group, str(view[forwarding.GROUP.size :], "utf-8", "replace"), is_asked=True)
        elif frame.kind == KIND_DIGEST:
            group, index, running_hash = decode_claim(frame.data)
            claimed = self.replicas.get(group)
            if claimed is not None:
                claimed.digests.claim(frame.peer, index, running_hash)
                self.comparing.judge(claimed)
        else:
            raise PeerFrameError(f"peer {frame.peer} sent a frame of unknown kind {frame.kind}")

    def _receive_operations(self, view: memoryview) -> None:
        (group,) = forwarding.GROUP.unpack_from(view)
        replica = self.replicas.get(group)
        if replica is None or not replica.raft.is_leader or self.disk_watch.is_silent:
            return  # its sender will hear of the leader and send again
        replica.proposals.add(forwarding.operations(view))

    def _receive_read(self, peer: str, request: ReadRequest) -> None:
        if not self.disk_watch.is_silent:  # else no majority would be heard; its sender asks again
            self.read_indexes.requested(peer, request)

    def _read_barrier(self, group: int, callback: ReadCallback) -> None:
        replica = self.replicas.get(group)
        if replica is None:
            callback(None)
        else:
            replica.read_barrier(callback)

    def _found_read_index(self, waiter: Hashable, group: int, index: int) -> None:
        self.questions.found_read_index(waiter, group, index)

    # ---- inputs

    def _take(self, item: ev.Input) -> None:
        if isinstance(item, ev.Submit):
            self._table.submit(item, self._now_ms)
        elif isinstance(item, ev.OpenSession):
            self._table.open(item)
        elif isinstance(item, ev.EndSession):
            self._table.close(item, self._now_ms)
        elif isinstance(item, ev.AwaitQueue | ev.AwaitConfigured):
            self.questions.wait(item)
        elif isinstance(item, ev.MendBody):
            self.healer.wait(item.group, item.index, item.token)
        elif isinstance(item, ev.Transfer):
            self._transfer(item.group, item.to, is_asked=False)
        elif isinstance(item, ev.Leave):
            self.membership.is_leaving = True
            self._next_upkeep_ms = 0
        elif isinstance(item, ev.Forget):
            self.questions.forget(item.token)
        else:
            self.questions.ask(item)

    def _transfer(self, group: int, to: str, *, is_asked: bool) -> None:
        """Hand over, or pass the wish on to the leader; a leader that is no longer one does nothing."""
        replica = self.replicas.get(group)
        if replica is None:
            return
        leader = replica.raft.leader
        if replica.raft.is_leader:
            replica.wake()
            self.membership.hand_over(replica, to)
        elif leader is not None and not is_asked:
            self._network.send(leader, KIND_TRANSFER, [forwarding.GROUP.pack(group), to.encode()])

    # ---- members

    def become(self, number: int) -> None:
        """This node is the member with this number."""
        self.me = self.leases.me = number
        self.disk_watch.become(number)
        self._table.become(number)

    def set_peers(self, peers: Sequence[str], gone: Collection[str]) -> None:
        """These are the other members, and those that were and are in no group any more."""
        roster = self.membership.roster
        self.names.clear()
        self.names.update((each.number, each.id) for each in roster.by_id.values())
        self.leases.peers = tuple(roster.number(peer) for peer in peers)
        self._network.set_peers(roster.dials(peers), roster.reserve(peers), gone)

    def _number(self, member: str | None) -> int:
        return self.membership.roster.number(member)

    def _voters(self, replica: Replica) -> list[int]:
        return [self._number(voter) for voter in replica.raft.configuration.voters]

    def _group_times(self) -> dict[int, int]:
        return {number: replica.machine.now_ms for number, replica in self.replicas.items()}

    def _tell(self, output: ev.Output) -> None:
        if not isinstance(output, ev.LeaseGranted) or not self.replicas[output.group].disputed:
            self._outputs.append(output)

    def _link(self, group: int) -> str | None:
        """Where operations of a group go now: "" to this node itself, None if nowhere."""
        raft = self.replicas[group].raft
        if not self.me:
            return None
        if raft.is_leader:
            return ""
        return raft.leader if raft.leader in self._connected else None

    def _send(self, group: int, operations: Sequence[bytes]) -> None:
        """To the group's leader; there is one, and a way to it."""
        replica = self.replicas[group]
        leader = self._link(group)
        if not leader:
            replica.proposals.add(operations)
            return
        for parts in forwarding.frames(group, operations):
            self._network.send(leader, forwarding.KIND_PROPOSE, parts)

    def _follow_leader(self, replica: Replica) -> None:
        self.heartbeats.leader_changed(replica, self._now_ms)
        if replica.raft.is_leader:
            self.applier.catalog_changed = True
        if replica.raft.leader is not None:
            self._table.resend(replica.number, self._now_ms)

    # ---- bodies

    def _mended(self, token: object) -> None:
        self.questions.mended(token)

    def _commit_index(self, group: int) -> int:
        replica = self.replicas.get(group)
        return 0 if replica is None else replica.raft.commit_index

    def _who_has_bodies(self, group: int) -> list[str]:
        """Who may be asked, in this order: not always the same one first, the leader last, it has most to do."""
        peers = [peer for peer in self.membership.peers if peer in self._connected]
        turn = group % len(peers) if peers else 0
        leader = self.replicas[group].raft.leader
        return sorted(peers[turn:] + peers[:turn], key=lambda peer: peer == leader)

    # ---- regular work

    def _upkeep(self) -> None:
        self.log.mark_if_quiet(self._now_ms)
        self._watch_disks()
        if self.disk_watch.is_silent:
            return
        self.membership.follow()
        settings = self.catalog.lease_settings
        self.lease_times.follow(settings)
        if self.membership.memory.is_established:
            others = [self._number(peer) for peer in self.membership.peers]
            self.lease_times.lead(self.replicas[SYSTEM_GROUP], settings, others, self._now_ms)
            self.membership.carry_out()
        for replica in self.replicas.values():
            self._table.resend_overdue(replica.number, self._now_ms)
            if replica.disputed:
                self.comparing.judge(replica)  # who votes may have changed
            self.damage.look_after(replica, self._now_ms)
            if isinstance(replica.machine, GroupMachine) and replica.leads:
                self._lead(replica, replica.machine)
        self.pager.turn(self._now_ms, self._queue_machines())
        if not self.scrubbing.is_under_way:
            self.collecting.turn(self._now_ms)
        if not self.collecting.is_under_way:
            self.scrubbing.turn(self._now_ms)
        if self.applier.catalog_changed:
            self._carry_out()

    def _carry_out(self) -> None:
        self.applier.catalog_changed = not self._carrying_out.turn(self.catalog, self._now_ms)

    def _watch_disks(self) -> None:
        self.disk_watch.look(self._now_ms, self.replicas.values())
        voters = {number: self._voters(replica) for number, replica in self.replicas.items()}
        news = self.disk_watch.low_groups(self._now_ms, voters)
        if news is not None:
            self._tell(news)
        if self.disk_watch.disks.own.is_low:
            self._snapshotter.make_room(self.replicas.values(), self._now_ms)

    def _queue_machines(self) -> dict[int, GroupMachine]:
        return {
            number: replica.machine
            for number, replica in self.replicas.items()
            if isinstance(replica.machine, GroupMachine)
        }

    def _lead(self, replica: Replica, machine: GroupMachine) -> None:
        due = machine.next_wake()
        if (
            due is not None
            and not replica.proposals.is_wake_pending
            and replica.clock.now(self._now_ms, self.heartbeats.wall_clocks(self._now_ms)) >= due
        ):
            replica.proposals.wake()
        live = machine.live_nodes()
        is_down = [each for each in live if self.leases.is_down(replica.number, *each, self._now_ms)]
        replica.proposals.down(live, is_down, self._now_ms)


def _hex(incarnation: bytes) -> str:
    return incarnation.hex() if any(incarnation) else ""
