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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from fifo import commands as c
from fifo.effects import Applied
from fifo.group import GroupMachine
from fifo.storage import Storage
from quorum.catalog.machine import CatalogMachine
from quorum.log import Log, LogDamaged, LogFull
from quorum.node import events as ev
from quorum.node.arrivals import Arrivals
from quorum.node.bodies import KIND_BODIES, KIND_FETCH, Answer, Fetcher, Librarian, Question
from quorum.node.carrying_out import carry_out
from quorum.node.checkpoints import Checkpoints
from quorum.node.collecting import Background, Collecting, Inline
from quorum.node.damage import DamageCare, is_needed
from quorum.node.digests import Digests, decode_claim
from quorum.node.disk_watch import DiskWatch
from quorum.node.founding import Founding
from quorum.node.healing import BodyUnreadable, Healer, PageUnreadable
from quorum.node.identity import Memory
from quorum.node.leases import HEARTBEAT_MS, Heartbeat, HeartbeatAnswer, Leases, PeerFrameError
from quorum.node.membership import Membership
from quorum.node.operations import MAX_OPERATION_BYTES, Command
from quorum.node.paging import Pager
from quorum.node.replica import SYSTEM_GROUP, TIME_BYTES, FieldSource, Replica
from quorum.node.scrubbing import Pace, Scrubbing
from quorum.node.session_table import SessionTable
from quorum.node.sessions import RESEND_AFTER_MS, Session
from quorum.node.standings import KIND_STANDING, KIND_STANDING_QUESTION, Standings
from quorum.replication.errors import WireError
from quorum.replication.group import Group, GroupConfig
from quorum.replication.quarantine import Standing, StandingQuestion

KIND_RAFT, KIND_PROPOSE, KIND_HEARTBEAT, KIND_HEARTBEAT_ANSWER, KIND_DIGEST = 0, 1, 2, 3, 4
KIND_MET, KIND_TRANSFER = 5, 6

APPLY_BYTES = 4 << 20
"""Entries applied in one step: bounds how long heartbeats wait."""
APPLY_ENTRIES = 64
PROPOSE_FRAME_BYTES = 4 << 20
SNAPSHOT_BYTES = 128 << 20
"""A snapshot is taken when this much of the group's log was applied since the last one."""
SNAPSHOT_RETRY_MS = 10_000
"""After one that found no room; and so often one is taken while there is little, since nothing can be collected that
the oldest snapshot still needs."""
SNAPSHOT_MS = 60_000
"""One is taken this long after the first change since the last one, too: the disk space of what was settled comes back
after two."""
UPKEEP_MS = 100
REVIEW_MS = 500
"""How often it is looked at what is damaged."""
QUEUE_MEMORY_BYTES = 256 << 20

_GROUP = struct.Struct("<I")
_LENGTH = struct.Struct("<I")


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

    def set_peers(self, peers: Collection[str], dials: Mapping[str, tuple[str, int]]) -> None:
        """Who may connect from now on, and who is dialed where."""
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
    scrubbing: Pace = field(default_factory=Pace)


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
        self._wall_ms = wall_ms
        self.membership = Membership(self, memory or Memory())
        self.me = self.membership.roster.number(config.name)
        """This node's number; 0 until it is a member."""
        self.leases = Leases(
            self.me,
            (),
            config.lease_ms,
            int(config.raft.leader_fallback_s * 1000),
        )
        self.lease_until: dict[int, int] = {}
        """group -> until when this node may deliver, on the member's clock. What a leader has granted holds to its end,
        also when it has lost its office meanwhile: its successor waits for that. The API hears of it by outputs, in
        their order: the end of a lease is never overtaken by its renewal."""
        self._wall_offsets: dict[int, int] = {}
        self._table = SessionTable(self.me, config.boot, self._link, self._send, self._tell)
        self._outputs: list[ev.Output] = []
        self._awaited: list[ev.AwaitQueue] = []
        self._asked: list[ev.Ask] = []
        self._now_ms = int(clock() * 1000)
        self._next_heartbeat_ms = 0
        self._next_upkeep_ms = 0
        self._answers_due: list[tuple[str, Heartbeat]] = []
        self._next_review_ms = 0
        self._catalog_changed = True
        self._leases_changed = True
        self._connected: set[str] = set()
        self.malformed_frames = 0
        self._logger = structlog.get_logger().bind(node=config.name)
        self.names: dict[int, str] = {}
        """number -> id of each member of now"""
        self.disk_watch = DiskWatch(self.me, self.names, log, clock, self._logger)
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
            lambda token: self._tell(ev.Told(token, True)),
            lambda group, index: is_needed(log, self.replicas[group], index),
        )
        self.pager = Pager(config.queue_memory_bytes)
        background = background or Inline()
        self.collecting = Collecting(log, background)
        self.scrubbing = Scrubbing(
            log, background, self.membership.memory, self._logger, config.scrubbing
        )
        self._founding = Founding(log, config.members, config.queue_groups, self._logger)
        self.replicas: dict[int, Replica] = {}
        self.damage = DamageCare(
            log,
            self.replicas,
            self._logger,
            config.raft.election_max_s,
            self.healer,
            self._who_has_bodies,
            lambda: self.me,
        )
        self.librarian = Librarian(log, self._commit_index, network.send, self.damage.found_unreadable)
        self.standings = Standings(self.replicas, network.send)
        for number in range(config.queue_groups + 1):
            self.replicas[number] = self._replica(number, clock, random)
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
            replica.raft.leader is not None and self.lease_until.get(number, 0) > self._now_ms
            for number, replica in self.replicas.items()
        )

    def is_left_behind(self) -> bool:
        """Its disk is full and others' are not: sessions do better there."""
        return self.disk_watch.is_left_behind(self._now_ms)

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
            self._network.send(peer, KIND_RAFT, [_GROUP.pack(number), *parts])

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
                lambda state, index, term: self._restored(number, state),
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
        checkpoints = Checkpoints(self.log, number, raft, TIME_BYTES)
        replica = Replica(number, raft, machine, source, Digests(number), checkpoints)
        raft.start()
        for damaged in self.log.journal(number).damaged_snapshots:
            self._logger.warning("snapshot is damaged, the one before it is used", file=damaged)
        checkpoints.begin()
        state = raft.snapshot_state
        if state is not None:
            self._restore(replica, state)
            self.damage.look_for_missing(replica)
        return replica

    # ---- the step

    def step(self, now_ms: int, frames: Iterable[Frame], inputs: Iterable[ev.Input]) -> list[ev.Output]:
        """One turn. now_ms: the member's clock, which counts suspended time. Returns what the API has to hear.

        Every exception is the end of this member. After PageUnreadable the next one begins the group anew.
        """
        try:
            return self._step(now_ms, frames, inputs)
        except PageUnreadable as error:
            if self.membership.peers:
                self._founding.lose_replica(error.group, str(error))
            raise

    def _step(self, now_ms: int, frames: Iterable[Frame], inputs: Iterable[ev.Input]) -> list[ev.Output]:
        self._now_ms = now_ms
        takes_part = self.disk_watch.may_take_part(now_ms) and self.membership.memory.is_established
        self._lapse_leases()
        self._follow_connections()
        for frame in frames:
            if takes_part or frame.kind != KIND_RAFT:
                self._receive(frame)
        for item in inputs:
            self._take(item)
        active = [each for each in self.replicas.values() if takes_part and each.is_active(now_ms)]
        for replica in active:
            replica.touched = False
            replica.raft.tick()
            self._follow_leader(replica)
            replica.propose(now_ms, self._wall_clocks())
            replica.raft.flush_early()
        self.healer.tick()
        self.fetcher.tick(now_ms)
        self._network.flush()
        self.disk_watch.sync()
        for replica in active:
            replica.raft.flush()
        self._network.flush()
        self.fetcher.settle()
        for replica in active:
            self._apply(replica)
        if self.librarian.is_busy:
            self.librarian.serve()
        self._heartbeats()
        self.standings.answer()
        if now_ms >= self._next_review_ms:
            self._next_review_ms = now_ms + REVIEW_MS
            self.damage.review(now_ms)
            self._replace_damaged_snapshots()
        self.standings.ask(self.membership.peers, now_ms)
        if now_ms >= self._next_upkeep_ms:
            self._next_upkeep_ms = now_ms + UPKEEP_MS
            self._upkeep()
        if self._awaited:
            self._answer_awaited()
        self._answer_questions()
        outputs, self._outputs = self._outputs, []
        return outputs

    def next_due_ms(self) -> int:
        """When step should be called again even if nothing comes in, on the member's clock."""
        if self.disk_watch.is_silent or not self.membership.memory.is_established:
            return min(self._next_heartbeat_ms, self._next_upkeep_ms)
        if self.librarian.is_busy or any(
            replica.can_apply or replica.can_propose for replica in self.replicas.values()
        ):
            return self._now_ms
        raft = min(replica.raft.next_due() for replica in self.replicas.values())
        fetch = self.fetcher.next_due_ms()
        due = min(int(raft * 1000) + 1, self._next_heartbeat_ms, self._next_upkeep_ms)
        return due if fetch is None else min(due, fetch)

    def _follow_connections(self) -> None:
        now = set(self._network.links())
        changed, self._connected = sorted(now ^ self._connected), now
        for peer in changed:
            if peer in now:
                remembered = self.membership.met(peer, _hex(self._network.incarnation_of(peer)))
                if remembered:
                    self._network.send(peer, KIND_MET, [remembered.encode()])
            else:
                self.librarian.forget(peer)
                self.fetcher.disconnected(peer)
            for replica in self.replicas.values():
                replica.touched = True
                if peer in now:
                    replica.raft.peer_connected(peer)
                else:
                    replica.raft.peer_disconnected(peer)
                if peer in now and replica.raft.leader == peer:
                    self._table.resend(replica.number, self._now_ms)

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
            replica = self.replicas.get(_GROUP.unpack_from(view)[0])
            if replica is not None:
                replica.touched = True
                replica.raft.receive(frame.peer, view[_GROUP.size :])
        elif frame.kind == KIND_PROPOSE:
            self._receive_operations(memoryview(frame.data))
        elif frame.kind == KIND_FETCH:
            self.librarian.ask(frame.peer, Question.decode(frame.data))
        elif frame.kind == KIND_BODIES:
            self.fetcher.take(frame.peer, Answer.decode(frame.data), self._now_ms)
        elif frame.kind == KIND_STANDING_QUESTION:
            self.damage.quarantine_seen_ms = self._now_ms
            self.standings.asked(frame.peer, StandingQuestion.decode(frame.data))
        elif frame.kind == KIND_STANDING:
            self.standings.hear(frame.peer, Standing.decode(frame.data))
        elif frame.kind == KIND_HEARTBEAT:
            beat = Heartbeat.decode(frame.data)
            node = self.membership.roster.number(frame.peer)
            if not node:
                return  # not a member, as far as known here: nobody waits for it
            self.leases.hear(node, beat.boot, self._now_ms)
            self.disk_watch.disks.hear(node, beat.disk, beat.low, self._now_ms)
            self._wall_offsets[node] = beat.wall_ms - self._now_ms
            self._answers_due.append((frame.peer, beat))
        elif frame.kind == KIND_HEARTBEAT_ANSWER:
            self._leases_changed = True
            node = self.membership.roster.number(frame.peer)
            if node:
                self.leases.answered(node, HeartbeatAnswer.decode(frame.data))
        elif frame.kind == KIND_MET:
            self.membership.vouched(frame.peer, bytes(frame.data).decode("ascii", "replace"))
        elif frame.kind == KIND_TRANSFER:
            view = memoryview(frame.data)
            (group,) = _GROUP.unpack_from(view)
            self._transfer(group, str(view[_GROUP.size :], "utf-8", "replace"), is_asked=True)
        elif frame.kind == KIND_DIGEST:
            group, index, running_hash = decode_claim(frame.data)
            claimed = self.replicas.get(group)
            if claimed is not None:
                claimed.digests.claim(frame.peer, index, running_hash)
        else:
            raise PeerFrameError(f"peer {frame.peer} sent a frame of unknown kind {frame.kind}")

    def _receive_operations(self, view: memoryview) -> None:
        (group,) = _GROUP.unpack_from(view)
        replica = self.replicas.get(group)
        if replica is None or not replica.raft.is_leader or self.disk_watch.is_silent:
            return  # its sender will hear of the leader and send again
        at = _GROUP.size
        while at < len(view):
            (length,) = _LENGTH.unpack_from(view, at)
            at += _LENGTH.size
            if length > len(view) - at:
                raise PeerFrameError(f"an operation of {length} bytes is cut off")
            if length > MAX_OPERATION_BYTES:
                raise PeerFrameError(f"an operation of {length} bytes; at most {MAX_OPERATION_BYTES}")
            replica.pending.append(bytes(view[at : at + length]))
            at += length

    # ---- inputs

    def _take(self, item: ev.Input) -> None:
        if isinstance(item, ev.Submit):
            self._table.submit(item, self._now_ms)
        elif isinstance(item, ev.OpenSession):
            self._table.open(item)
        elif isinstance(item, ev.EndSession):
            self._table.close(item.number, self._now_ms)
        elif isinstance(item, ev.AwaitQueue):
            self._awaited.append(item)
        elif isinstance(item, ev.MendBody):
            self.healer.wait(item.group, item.index, item.token)
        elif isinstance(item, ev.Transfer):
            self._transfer(item.group, item.to, is_asked=False)
        elif isinstance(item, ev.Leave):
            self.membership.is_leaving = True
            self._next_upkeep_ms = 0
        else:
            self._asked.append(item)

    def _transfer(self, group: int, to: str, *, is_asked: bool) -> None:
        """Hand over, or pass the wish on to the leader; a leader that is no longer one does nothing."""
        replica = self.replicas.get(group)
        if replica is None:
            return
        leader = replica.raft.leader
        if replica.raft.is_leader:
            replica.touched = True
            self.membership.hand_over(replica, to)
        elif leader is not None and not is_asked:
            self._network.send(leader, KIND_TRANSFER, [_GROUP.pack(group), to.encode()])

    # ---- members

    def become(self, number: int) -> None:
        """This node is the member with this number."""
        self.me = self.leases.me = number
        self.disk_watch.become(number)
        self._table.become(number)

    def set_peers(self, peers: Sequence[str], dials: Mapping[str, tuple[str, int]]) -> None:
        """These are the other members, and whom of them this node dials."""
        self.names.clear()
        self.names.update((each.number, each.id) for each in self.membership.roster.by_id.values())
        self.leases.peers = tuple(self.membership.roster.number(peer) for peer in peers)
        self._network.set_peers(peers, dials)

    def _number(self, member: str | None) -> int:
        return self.membership.roster.number(member)

    def _voters(self, replica: Replica) -> list[int]:
        return [self._number(voter) for voter in replica.raft.configuration.voters]

    def _tell(self, output: ev.Output) -> None:
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
            replica.pending.extend(operations)
            return
        parts = [_GROUP.pack(group)]
        size = 0
        for operation in operations:
            if size and size + len(operation) > PROPOSE_FRAME_BYTES:
                self._network.send(leader, KIND_PROPOSE, parts)
                parts, size = [_GROUP.pack(group)], 0
            parts += (_LENGTH.pack(len(operation)), operation)
            size += len(operation)
        self._network.send(leader, KIND_PROPOSE, parts)

    def _wall_clocks(self) -> list[int]:
        return [self._wall_ms(), *(self._now_ms + offset for offset in self._wall_offsets.values())]

    def _follow_leader(self, replica: Replica) -> None:
        seen = (replica.raft.leader, replica.raft.term)
        if seen == replica.seen:
            return
        replica.seen = seen
        self._leases_changed = True
        replica.begin_term()
        if replica.raft.is_leader:
            self.leases.elected(replica.number, self._now_ms)
            self._next_heartbeat_ms = self._now_ms  # leases are granted once a majority has answered
            self._catalog_changed = True
        if seen[0] is not None:
            self._table.resend(replica.number, self._now_ms)

    # ---- applying

    def _apply(self, replica: Replica) -> None:
        if replica.stalled:
            if self.healer.is_lost(replica.number, replica.stalled):
                return
            replica.stalled = 0
        entries = replica.raft.take_committed(APPLY_BYTES, self.config.apply_entries)
        for index, term, body in entries:
            replica.applied(index)
            if not body:
                continue
            command = Command(body)
            replica.clock.observe(command.now_ms)
            operations = command.decode()
            try:
                applied = replica.machine.apply(
                    c.Meta(index, term, command.now_ms, command.version), operations
                )
            except BodyUnreadable as error:
                self.healer.note(error.group, error.index, 0, error.reason)
                replica.begin_again(index - 1, error.index, self._now_ms)
                return
            replica.bytes_since_snapshot += len(body)
            if index > replica.routed_to:
                self._route(replica, operations, applied)
            if isinstance(replica.machine, GroupMachine):
                claim = replica.digests.applied(index, replica.machine.running_hash)
                if claim is not None and replica.raft.is_leader:
                    for peer in self.membership.peers:
                        self._network.send(peer, KIND_DIGEST, [claim])
        unreadable = replica.raft.take_unreadable()
        if unreadable is not None:
            self.healer.note(replica.number, *unreadable, "it is needed by a replica")
            if unreadable[0] > replica.raft.commit_index:
                replica.raft.resign()  # nobody can be asked for it, and others may do without it
            elif unreadable[0] == replica.raft.applied_index + 1:
                replica.stalled, replica.stalled_ms = unreadable[0], self._now_ms
        if replica.raft.leader_ready and replica.raft.applied_index == replica.raft.commit_index:
            replica.ready_term = replica.raft.term
        is_due = replica.snapshot_is_due(
            self._now_ms, self.config.snapshot_bytes or SNAPSHOT_BYTES, self.config.snapshot_ms
        )
        if is_due or replica.raft.lacks_snapshot:
            self._save_snapshot(replica)

    def _save_snapshot(self, replica: Replica) -> None:
        """Without room for it the log goes on as it is, and it is tried again later."""
        if self._now_ms < replica.no_snapshot_before_ms:
            return
        try:
            replica.save_snapshot(self.log, self._now_ms)
        except LogFull as error:
            replica.no_snapshot_before_ms = self._now_ms + SNAPSHOT_RETRY_MS
            self._logger.error("no snapshot was taken", group=replica.number, error=str(error))

    def _replace_damaged_snapshots(self) -> None:
        for replica in self.replicas.values():
            is_damaged = replica.wants_snapshot or self.log.journal(replica.number).damaged_snapshots
            if is_damaged and not replica.stalled and self._now_ms >= replica.no_snapshot_before_ms:
                self._save_snapshot(replica)
                if self.log.journal(replica.number).damaged_snapshots:  # it has applied less than it had before
                    replica.no_snapshot_before_ms = self._now_ms + SNAPSHOT_RETRY_MS

    def _route(self, replica: Replica, operations: Sequence[c.Operation], applied: Applied) -> None:
        for operation, reply in zip(operations, applied.replies, strict=True):
            if operation.origin is not None:
                self._table.reply(replica.number, operation.origin, reply, self._now_ms)
            elif isinstance(operation.command, c.Wake):
                replica.wake_pending = False
                self._next_upkeep_ms = 0  # what its budget has cut short goes on at once
            elif isinstance(operation.command, c.NodeDown) and operation.command.node == self.me:
                self._table.declared_down(replica.number, operation.command.boot)
            elif isinstance(operation.command, c.CreateQueue):
                self._catalog_changed = True  # it may have been removed while this was on its way
        if replica.number == SYSTEM_GROUP:
            self._catalog_changed = True
            self._next_upkeep_ms = 0
        for effect in applied.effects:
            self._table.effect(replica.number, effect)

    def _restore(self, replica: Replica, state: bytes) -> None:
        replica.restore(state)
        if isinstance(replica.machine, GroupMachine):
            self._table.declared_down(replica.number, replica.machine.departed_boot(self.me))

    def _restored(self, group: int, state: bytes) -> None:
        """A snapshot was installed while running."""
        replica = self.replicas[group]
        self._restore(replica, state)
        replica.stalled = 0
        self.healer.forget(group, replica.raft.applied_index)
        replica.checkpoints.installed(replica.raft.applied_index, memoryview(state)[TIME_BYTES:])
        self._catalog_changed = True
        self._table.answers_missed(group)

    # ---- bodies

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

    def _heartbeats(self) -> None:
        for peer, beat in self._answers_due:
            groups = {number: self._known_leader(replica) for number, replica in self.replicas.items()}
            self._network.send(peer, KIND_HEARTBEAT_ANSWER, [HeartbeatAnswer(beat.sent_ms, groups).encode()])
        self._answers_due.clear()
        if self._now_ms >= self._next_heartbeat_ms:
            self._next_heartbeat_ms = self._now_ms + HEARTBEAT_MS
            disks = self.disk_watch.disks
            low = tuple(disks.known_low(self._now_ms))
            beat = Heartbeat(self._now_ms, self.config.boot, self._wall_ms(), disks.own, low)
            for peer in self.membership.peers:
                self._network.send(peer, KIND_HEARTBEAT, [beat.encode()])
            self.leases.hear(self.me, self.config.boot, self._now_ms)
        if not self._leases_changed:
            return
        self._leases_changed = False
        for number, replica in self.replicas.items():
            if not self.me:
                continue
            leader = self._number(replica.raft.leader)
            granted = self.leases.held_until(number, leader, replica.raft.term, self._voters(replica))
            if granted > max(self.lease_until.get(number, 0), self._now_ms):
                self.lease_until[number] = granted
                self._tell(ev.LeaseGranted(number, granted))

    def _known_leader(self, replica: Replica) -> tuple[int, int]:
        """(leader, term) to be told to others: it grants them a lease if that leader is this node."""
        term = replica.raft.term
        leader = self._number(replica.raft.leader)
        voters = self._voters(replica)
        if leader == self.me and not self.leases.may_grant(replica.number, term, self._now_ms, voters):
            leader = 0
        return leader, term

    def _lapse_leases(self) -> None:
        """Said once, before anything that could renew the lease is looked at: what sessions here hold may be with
        others by now, and a new lease does not bring it back."""
        for number, until in self.lease_until.items():
            if 0 < until <= self._now_ms:
                self.lease_until[number] = 0
                self._tell(ev.LeaseLapsed(number))

    def _upkeep(self) -> None:
        self.log.mark_if_quiet(self._now_ms)
        self._watch_disks()
        if self.disk_watch.is_silent:
            return
        self.membership.follow()
        if self.membership.memory.is_established:
            self.membership.carry_out()
        for replica in self.replicas.values():
            self._table.resend_overdue(replica.number, self._now_ms)
            self.damage.look_after(replica, self._now_ms)
            if isinstance(replica.machine, GroupMachine) and replica.leads:
                self._lead(replica, replica.machine)
        self.pager.turn(self._now_ms, self._queue_machines())
        if not self.scrubbing.is_under_way:
            self.collecting.turn(self._now_ms)
        if not self.collecting.is_under_way:
            self.scrubbing.turn(self._now_ms)
        if self._catalog_changed:
            self._catalog_changed = not carry_out(self.catalog, self.replicas)

    def _watch_disks(self) -> None:
        self.disk_watch.look(self._now_ms, self.replicas.values())
        voters = {number: self._voters(replica) for number, replica in self.replicas.items()}
        news = self.disk_watch.low_groups(self._now_ms, voters)
        if news is not None:
            self._tell(news)
        if self.disk_watch.disks.own.is_low:
            for replica in self.replicas.values():
                if replica.bytes_since_snapshot and self._now_ms >= replica.no_snapshot_before_ms:
                    self._save_snapshot(replica)
                    replica.no_snapshot_before_ms = self._now_ms + SNAPSHOT_RETRY_MS

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
            and not replica.wake_pending
            and replica.clock.now(self._now_ms, self._wall_clocks()) >= due
        ):
            replica.wake_pending = True
            replica.own(c.Wake())
        for node, boot in machine.live_nodes():
            if self.leases.is_down(replica.number, node, boot, self._now_ms):
                last = replica.down_proposed_ms.get((node, boot))
                if last is None or self._now_ms - last > RESEND_AFTER_MS:
                    replica.down_proposed_ms[node, boot] = self._now_ms
                    replica.own(c.NodeDown(node, boot))

    def _answer_awaited(self) -> None:
        waiting = []
        for item in self._awaited:
            if self.replicas[item.group].raft.applied_index < self.replicas[item.group].routed_to:
                waiting.append(item)  # it is about to know again what it has known
                continue
            machine = self.queue_machine(item.group)
            if machine.has_queue(item.queue) == item.present or machine.was_deleted(item.queue):
                self._tell(ev.Told(item.token, True))
            else:
                waiting.append(item)
        self._awaited = waiting

    def _answer_questions(self) -> None:
        asked, self._asked = self._asked, []
        for item in asked:
            try:
                answer = item.question(self)
            except BodyUnreadable as error:
                self.healer.note(error.group, error.index, 0, error.reason)
                self._asked.append(item)  # asked again with every step until it is mended
            else:
                self._tell(ev.Told(item.token, answer))


def _hex(incarnation: bytes) -> str:
    return incarnation.hex() if any(incarnation) else ""
