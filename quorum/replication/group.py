"""One Raft group of this node: PySyncObj behind the guard, driven by the node's own loop.

A turn of the node, for all its groups together:

    receive(peer, frame) for what came in; propose(parts) for what is wanted
    tick()            elections, commit index, appends
    flush_early()     what depends on nothing unsynced leaves: appends, once term and vote are synced
    log.sync()        one for all groups
    flush()           what waited for the sync leaves; acknowledgements that waited for our own disk count
    take_committed()  entries to apply, in order, as much as asked for

`send` only queues, and no call may be made from inside another (asserted). A message carries the LSN of the last record
of this group it depends on and leaves when the log has synced that. Any exception out of a call is the end of this
replica: every later call raises ReplicationFailed, since the library's memory may have parted from the log.

Entry bodies are a type byte and the proposer's bytes. Index 1 is an internal entry, the same in every group; each
leader begins its term with another, and changes of members are entries too (configuration.py). `take_committed` yields
all of those (but index 1) with an empty body.

What a message of another member does is in messages.py, who runs for office in elections.py, who the members are in
members.py, a snapshot that arrives in installing.py; the rules between the wire and PySyncObj are the guard's.

Who is a member is what this node's own log says last; the members given at the start hold where it says nothing. A
frame may come from anybody: a leader may know of members that this node has not heard of. Answers count only from
members, votes and acknowledgements only from voters.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quorum.log.errors import EntryMissing, LogDamaged, LogFull
from quorum.replication import codec, engine
from quorum.replication.configuration import CONFIGURATION, Configuration, State, unwrap_state, wrap_state
from quorum.replication.door import Door, Excepting
from quorum.replication.elections import AT_ONCE, Candidacy
from quorum.replication.engine import CANDIDATE, FOLLOWER, LEADER, Peer
from quorum.replication.guard import Guard
from quorum.replication.handover import HandOver
from quorum.replication.installing import Installing
from quorum.replication.journal_view import JournalView, NodeLog
from quorum.replication.members import Members
from quorum.replication.messages import Messages
from quorum.replication.outbox import Outbox
from quorum.replication.peers import Peers
from quorum.replication.quarantine import Quarantine, Standing
from quorum.replication.reads import Reads
from quorum.replication.replicator import Feeder
from quorum.replication.room import Room
from quorum.replication.snapshots import KeptBytes, SnapshotSource

COMMAND_BYTE = bytes([codec.COMMAND])
CONFIGURATION_BYTE = bytes([CONFIGURATION])
CANDIDATE_PART = 0.5
"""A candidate waits for votes for this part of an election timeout."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Timing in seconds. A new leader is there at latest election_max_s and a little after the old one's end; the
    minimum is wide enough for a busy two-core machine to keep its heartbeats."""

    election_min_s: float = 0.5
    election_max_s: float = 1.0
    heartbeat_s: float = 0.1
    leader_fallback_s: float = 1.5
    """A leader that no majority has answered for this long steps down."""
    keep_bytes: int = 64 << 20
    """Entries that a snapshot covers stay in the journal for a member that lacks them, up to this many bytes of bodies;
    a member further behind gets the snapshot, and of older bodies only those it refers to."""
    keep_entries: int = 250_000
    """The same, counted in entries (20 bytes of memory each)."""
    window_bytes: int = 8 << 20
    """Unacknowledged entries a peer; with a handful of groups well below what a connection may hold back."""
    frame_bytes: int = 1 << 20
    """A frame ends with the entry that reaches this."""
    chunk_bytes: int = 256 << 10
    """A piece of a snapshot."""


class Group:
    """See the module's text. One thread, the log's."""

    guard_class: type[Guard] = Guard
    engine_class: type[engine.Engine] = engine.Engine
    view_class: type[JournalView] = JournalView
    outbox_class: type[Outbox] = Outbox
    messages_class: type[Messages] = Messages

    def __init__(
        self,
        group: int,
        me: str,
        members: Sequence[str],
        log: NodeLog,
        clock: Callable[[], float],
        random: random_module.Random,
        send: Callable[[str, list[bytes]], None],
        on_install: Callable[[State, int, int], None],
        config: GroupConfig | None = None,
        prepare_install: Callable[[int, int, State], int | None] = lambda index, term, state: 0,
    ) -> None:
        """members: the voters that the group began with, or none if this node joins it and will learn them.

        on_install(state, index, term): a leader's snapshot has replaced everything applied so far. Both read the state
        piece by piece, while they are called.
        prepare_install(index, term, state): asked before, and again until it answers: None while something that the
        state refers to is not here yet, else up to where this member's own entries are proven right (0: nothing is).
        """
        names = sorted(members)
        if (names and me not in names) or len(set(names)) != len(names):
            raise ValueError(f"members are different names, {me!r} among them, not {list(members)}")
        self.group = group
        self.me = me
        self.config = config or GroupConfig()
        self._clock = clock
        self._on_install = on_install
        self._log = log
        self._view = self.view_class(log, group)
        self._founders = first = Configuration(tuple(names))
        if self._view.snapshot_state is not None:
            first, self._view.snapshot_state = unwrap_state(self._view.snapshot_state)
        self._view.find_configurations(first)
        self._call = Door(group)
        self._appending = Excepting(self._call, LogFull)
        self._bytes_since_snapshot = 0
        self._kept = KeptBytes(self.config.keep_bytes)
        self._unreadable: tuple[int, str] | None = None
        self.applied_index = max(1, self._view.snapshot_index)
        """The last entry that take_committed has handed out, or that a snapshot covers."""
        is_quarantined = self._view.is_quarantined
        life = random.getrandbits(63) if is_quarantined else 0
        self.quarantine = Quarantine(me, life, is_on=is_quarantined)
        timing = self.config
        peers = self._peers = Peers(me, names or [me])
        self._engine: Any = engine.build(
            self.engine_class,
            self,
            me=peers.me,
            others=(),
            view=self._view,
            clock=clock,
            chance=random,
            election_min_s=timing.election_min_s,
            election_max_s=timing.election_max_s,
            heartbeat_s=timing.heartbeat_s,
            leader_fallback_s=timing.leader_fallback_s,
        )
        view, raft = self._view, self._engine
        guard = self._guard = self.guard_class(raft, view, peers.others, clock, timing.election_min_s)
        outbox = self._outbox = self.outbox_class(log, view, send)
        self.candidacy = Candidacy(
            raft,
            view,
            guard,
            outbox,
            self.quarantine,
            clock,
            election_min_s=timing.election_min_s,
            election_max_s=timing.election_max_s,
            is_voter=lambda: self.is_voter and not self._view.unread,
        )
        self._feeder = Feeder(
            raft,
            view,
            guard,
            peers.others,
            outbox.queue_dependent,
            window_bytes=timing.window_bytes,
            frame_bytes=timing.frame_bytes,
            chunk_bytes=timing.chunk_bytes,
        )
        self._reads = Reads(guard)
        self._room = Room(log, clock)
        self._members = Members(raft, view, peers, guard, self._feeder, self.candidacy.rounds, clock)
        self._hand_over = HandOver(
            view, guard, peers, outbox, clock, self._members.match_index, timing.election_max_s
        )
        self.messages = self.messages_class(
            raft,
            view,
            peers,
            clock,
            guard=guard,
            feeder=self._feeder,
            outbox=outbox,
            candidacy=self.candidacy,
            reads=self._reads,
            room=self._room,
            quarantine=self.quarantine,
        )
        self.installing = Installing(
            group, raft, view, guard, self.messages, outbox, self._room, prepare_install, self._installed
        )
        self._follow_configuration()

    # ---- life

    def start(self) -> None:
        """To be called once, before anything else. `snapshot_state` is there until the first tick."""
        self._call.is_open = True

    @property
    def snapshot_state(self) -> bytes | None:
        """The state that applying goes on from, None for an empty one. Only between start() and the first tick."""
        return self._view.snapshot_state

    @property
    def snapshot_index(self) -> int:
        """What applying goes on from after a start, 0 if from nothing."""
        return self._view.snapshot_index

    # ---- the turn

    def receive(self, peer: str, frame: bytes | bytearray | memoryview) -> None:
        """Take one frame of another node. WireError if it is no message: nothing has changed then."""
        if peer == self.me:
            raise ValueError(f"{peer!r} is this node itself")
        message = codec.decode(frame)
        if self.quarantine.is_deaf:
            return
        with self._call:
            try:
                self.messages.handlers[type(message)](peer, message)
                self._follow_configuration()
            finally:
                self.messages.handled()

    def tick(self) -> None:
        """Let time act: elections, the commit index, heartbeats; new entries go to the followers."""
        with self._call:
            self._tick()

    def _tick(self) -> None:
        self._view.snapshot_state = None
        self.messages.is_due = False
        if self._reads.wants_round:
            self._reads.wants_round = False
            self._engine._SyncObj__newAppendEntriesTime = float("-inf")
        self._engine.doTick(0.0)
        self._reads.confirm()
        if self.is_leader and self._peers.others:
            self._members.watch_learners(self.config.election_min_s)
            self._hand_over.go_on()
            self._feeder.feed()

    def propose(self, parts: Sequence[bytes | memoryview]) -> int | None:
        """Append one entry, leader only: its index, or None if this node does not lead or is handing over.

        The entry is committed when take_committed yields it with the term of now; with another term there, or after
        losing office, what becomes of it is unknown. LogFull leaves no trace. ValueError if it is empty or too long.
        """
        size = sum(map(len, parts))
        if not 0 < size < codec.MAX_BODY_BYTES:
            raise ValueError(f"a command has 1 to {codec.MAX_BODY_BYTES - 1} bytes, not {size}")
        with self._appending:
            if not self.is_leader or self._hand_over.is_on:
                return None
            index = self._view.last_index + 1
            self._view.append([COMMAND_BYTE, *parts], index, self.term)
            return index

    def send_appends(self) -> None:
        """New entries to the followers now, without a tick."""
        with self._call:
            if self.is_leader:
                self._feeder.feed_new()

    def flush_early(self) -> None:
        """Before the log is synced: send what depends on nothing unsynced. Appends depend on term and vote only: the
        leader's own disk is not waited for, and does not count until it is synced (thesis §10.2.1)."""
        self._call.check()
        self._outbox.send_ready()

    def flush(self) -> None:
        """After log.sync(): acknowledgements that waited for this node's disk count, and all that waited leaves."""
        with self._call:
            durable = self._view.note_synced()
            if self.quarantine.is_on:
                self._end_quarantine(durable)
            guard = self._guard
            if guard.parked:
                parked, guard.parked = guard.parked, {}
                if self.is_leader:
                    for peer, index in parked.items():
                        if peer in self._peers.others:
                            self.messages.count_acknowledgement(peer, index)
                    self._tick()
            elif self.is_leader and not guard.voters and guard.commit_index < self._view.durable_index:
                self._tick()
        self._outbox.send_ready()

    def take_committed(self, max_bytes: int, max_entries: int) -> list[tuple[int, int, bytes | memoryview]]:
        """The next committed entries as (index, term, body), at least one if there is any; they count as applied.

        Internal entries have an empty body. In a group of one voter an entry is there once it is synced. Before an
        entry that cannot be read they end: see take_unreadable.
        """
        found: list[tuple[int, int, bytes | memoryview]] = []
        size = 0
        view = self._view
        commit = self.commit_index
        while self.applied_index < commit and len(found) < max_entries and size < max_bytes:
            index = self.applied_index + 1
            try:
                body = view.read(index)
            except (EntryMissing, LogDamaged) as error:
                self._unreadable = index, str(error)
                break
            size += len(body)
            self._kept.add(index, len(body))
            is_command = body[0] == codec.COMMAND
            found.append((index, view.term_at(index), memoryview(body)[1:] if is_command else b""))
            self.applied_index = index
        self._bytes_since_snapshot += size
        return found

    def _installed(self, state: State, index: int, term: int) -> None:
        self.applied_index = index
        self._bytes_since_snapshot = 0
        self._on_install(state, index, term)

    def next_due(self) -> float:
        """When tick should be called if nothing comes in, on the group's clock; AT_ONCE, whatever it shows."""
        if self.messages.is_due or self._reads.wants_round:
            return AT_ONCE
        if self.is_leader:
            if self._feeder.has_more:
                return AT_ONCE
            due: float = self._engine._SyncObj__newAppendEntriesTime
            return due
        if self.quarantine.is_on:
            return self._clock() + self.config.election_max_s
        return self.candidacy.next_due()

    # ---- quarantine

    def standing(self, peer: str, life: int) -> Standing:
        """What a quarantined member asks, to be sent after a sync. As a leader, forget what its lost life acknowledged:
        what is counted already stays so, and it is fed from where it is now."""
        with self._call:
            if self.is_leader and peer in self._peers.others and self._feeder.welcome(peer, life):
                self._engine._SyncObj__raftMatchIndex[self._peers.others[peer]] = 0
                self._guard.parked.pop(peer, None)
                self._guard.note_rewind(peer)
        configurations = self._view.configurations
        return Standing(
            self.group,
            life,
            self.term,
            self.last_index,
            self.is_leader,
            not self.quarantine.is_on and not self._view.unread,
            configurations.index,
            configurations.voters_from(self.commit_index),
        )

    def hear_standing(self, peer: str, standing: Standing) -> None:
        """An answer to this quarantined member's question."""
        with self._call:
            if self.quarantine.take(peer, standing):
                assert self.quarantine.floor is not None
                if self.quarantine.floor > self.term:
                    self.messages.follow(self.quarantine.floor)

    def _end_quarantine(self, durable: int) -> None:
        term, matched = self.messages.matched
        leader = self.quarantine.leader_to_record(self.term, min(matched, durable))
        if leader is not None and term == self.term:
            self._view.is_quarantined = self.quarantine.is_on = False
            own = self._engine
            own._SyncObj__setCurrentTerm(term, leader)
            own._SyncObj__raftElectionDeadline = self._clock() + own._SyncObj__generateRaftTimeout()

    # ---- damage

    def take_unreadable(self) -> tuple[int, int, str] | None:
        """(index, term, why) of an entry that was needed and could not be read since this was asked last: to be
        applied, or for a follower. Nothing goes on with it before it is mended."""
        found = self._unreadable or self._feeder.unreadable
        self._unreadable = self._feeder.unreadable = None
        if found is None or not self._view.base < found[0] <= self._view.last_index:
            return None
        index, reason = found
        return index, self._view.term_at(index), reason

    @property
    def unread_configurations(self) -> dict[int, str]:
        """Entries that may be configurations and cannot be read, with the reason. Until they are mended this member
        stands for no office; `read_configurations` looks at them again."""
        return self._view.unread

    def read_configurations(self) -> None:
        """What may be a configuration was mended."""
        with self._call:
            self._view.read_again()
            self._follow_configuration()

    def rewind_applied(self) -> bytes | None:
        """Applying begins again from the newest snapshot that can be read here, and what is known of snapshots and
        members too: its state, None for an empty one. LogDamaged if the journal does not go on from it."""
        view = self._view
        data = view.load_again()
        first, state = (self._founders, None) if data is None else self.installing.unwrapped(data)
        view.find_configurations(first)
        self._follow_configuration()
        self.applied_index = max(1, view.snapshot_index)
        return state

    def resign(self) -> None:
        """A leader goes on as a follower, in the same term and with the same vote."""
        with self._call:
            if self.is_leader:
                self._engine._SyncObj__setState(FOLLOWER)
                self._engine._SyncObj__raftLeader = None

    # ---- a state that is lost

    @property
    def state_from(self) -> int:
        """The lowest index of a snapshot that can replace the state here while the journal stays."""
        return self.installing.state_from

    def want_state(self, *, is_wanted: bool) -> None:
        """The state here is lost, the journal and all promises are not: from now on a leader's snapshot is installed
        too if it is not newer than what was applied. Applying then begins behind it."""
        self.installing.is_state_wanted = is_wanted

    @property
    def is_receiving(self) -> bool:
        """Whether a snapshot is being received."""
        return self.installing.is_receiving

    def send_state(self, peer: str, from_index: int) -> None:
        """Another member asks for a snapshot at this index or later, beside its entries. It asks again as long as it
        needs one. Nothing happens where this node does not lead."""
        with self._call:
            if self.leader_ready and peer in self._peers.others:
                self._feeder.send_state(peer, from_index)
                self.messages.is_due = True

    # ---- what is known

    @property
    def leader(self) -> str | None:
        """The leader as far as known here; it may be out of office."""
        peer: Peer | None = self._engine._SyncObj__raftLeader
        return None if peer is None else peer.id

    @property
    def term(self) -> int:
        term: int = self._engine._SyncObj__raftCurrentTerm
        return term

    @property
    def is_leader(self) -> bool:
        state: int = self._engine._SyncObj__raftState
        return state == LEADER

    @property
    def leader_ready(self) -> bool:
        """Leads, and an entry of its own term is committed: it knows all that is committed (Raft §8)."""
        return self.is_leader and self.commit_index >= (self._engine._SyncObj__noopIDx or 0)

    @property
    def commit_index(self) -> int:
        commit: int = self._engine._SyncObj__raftCommitIndex
        return commit

    @property
    def last_index(self) -> int:
        return self._view.last_index

    @property
    def is_full(self) -> bool:
        """The log had no room for what the leader sent: nothing more is acknowledged until it has."""
        return self._room.is_full

    # ---- connections

    def peer_connected(self, peer: str) -> None:
        """Frames for this node leave from now on; what was on the way before is lost."""
        self._peers.connected.add(peer)
        self._engine._SyncObj__onNodeConnected(self._peers.peer(peer))
        if peer in self._peers.others:
            self._feeder.connected(peer)
        self.messages.is_due = True

    def peer_disconnected(self, peer: str) -> None:
        self._peers.connected.discard(peer)
        self._engine._SyncObj__onNodeDisconnected(self._peers.peer(peer))
        if peer in self._peers.others:
            self._feeder.disconnected(peer)

    # ---- members

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group, as this node's log has it; see `is_settled`."""
        return self._view.configurations.current

    @property
    def is_settled(self) -> bool:
        """Whether the configuration is known, and committed as far as known here."""
        return not self._view.unread and self._view.configurations.index <= self.commit_index

    @property
    def is_voter(self) -> bool:
        return self.me in self.configuration.voters

    def change_members(self, wanted: Configuration) -> int | None:
        """Append a configuration, which holds at once; its index, or None if this cannot be now: this node does not
        lead, hands over, has not yet committed an entry of its term (the thesis' correction), or the change before is
        not committed. ValueError if more than one voter changes, or if this node would remove itself: it hands over
        first. LogFull leaves no trace."""
        if not wanted.may_follow(self.configuration) or self.me not in wanted.voters:
            raise ValueError(f"{self.me} cannot change {self.configuration} into {wanted}")
        with self._appending:
            if not self._may_change():
                return None
            index = self._view.last_index + 1
            self._view.add(CONFIGURATION_BYTE + wanted.encode(), index, self.term)
            self._follow_configuration()
            return index

    def _may_change(self) -> bool:
        return self.leader_ready and self.is_settled and not self._hand_over.is_on

    def is_caught_up(self, learner: str) -> bool:
        """Leader only: whether a learner would hold up nobody as a voter (thesis §4.2.1)."""
        return self.is_leader and self._members.is_caught_up(learner)

    def has_majority_of(self, voters: Iterable[str]) -> bool:
        """Leader only: whether most of these answer, this node included if it is one of them."""
        return self.is_leader and self._members.has_majority_of(list(voters), self.config.election_min_s)

    def match_index(self, peer: str) -> int:
        """Leader only: up to where this member is known to have everything."""
        return self._members.match_index(peer) if self.is_leader else 0

    def _follow_configuration(self) -> None:
        """Let engine, guard and feeder go by what the log says now."""
        now = self._view.configurations.current
        if now != self._members.in_force:
            self._members.follow(now)
            self.messages.is_due = True

    # ---- handing over

    def transfer_leadership(self, peer: str) -> bool:
        """Begin to hand over to another voter (thesis §3.10): nothing is proposed from now on, the target is brought up
        to date and told to stand. See in `leader` whether it worked; if nothing has come of it after an election
        timeout, this node goes on. False if it does not lead, hands over already, or the target cannot be reached."""
        with self._call:
            if not self.leader_ready or not self._hand_over.begin(peer):
                return False
            self._reads.refuse()
            self.messages.is_due = True
            return True

    @property
    def is_handing_over(self) -> bool:
        return self._hand_over.is_on

    # ---- reads

    def read_barrier(self, callback: Callable[[int | None], None]) -> None:
        """ReadIndex (Raft §6.4): callback(index) when the state at index, once applied, is at least as new as anything
        answered before this call; callback(None) if that cannot be said here: this node does not lead, has not yet
        committed an entry of its term, or hands over. It may be called at once, or out of a later receive, tick or
        flush; it must not call this group."""
        if not self._may_read():
            callback(None)
        elif not self._guard.voters:
            callback(self.commit_index)
        else:
            self._reads.add(callback)

    def _may_read(self) -> bool:
        return self.leader_ready and not self._hand_over.is_on

    # ---- snapshots

    def snapshot_due(self, after_bytes: int) -> bool:
        """Whether this much was applied since the last snapshot."""
        return self._bytes_since_snapshot >= after_bytes

    def save_snapshot(self, state: bytes, *, again: bool = False) -> bool:
        """Keep the state at applied_index, durably; False if a snapshot at or behind it was kept before. Entries it
        covers leave the journal, except what a member may still lack; their bodies stay readable in the log. LogFull
        leaves everything as it was. again: one just there is replaced."""
        with self._appending:
            is_newer = self.applied_index > self._view.snapshot_index - again
            if is_newer:
                self._view.save_snapshot(self.applied_index, self.wrapped(self.applied_index, state))
            keep_from = max(
                self._feeder.update_floor(),
                self._view.last_index - self.config.keep_entries,
                self._kept.first_index,
            )
            needed = self._feeder.transfers_from()
            self._view.compact(keep_from if needed is None else min(keep_from, needed))
            self._bytes_since_snapshot = 0
            return is_newer

    @property
    def lacks_snapshot(self) -> bool:
        """A follower needs a newer snapshot than the one that is here."""
        return self.is_leader and self._feeder.lacks_snapshot

    def pinned_snapshots(self) -> set[int]:
        """The indices of snapshots that followers are being sent: bodies that they refer to are still to be fetched."""
        return self._feeder.pinned_snapshots()

    def send_snapshots_from(self, source: Callable[[], SnapshotSource | None]) -> None:
        """Where a follower's snapshot comes from, if not from the newest file here. What it holds is wrapped with the
        configuration at its index, as a file is: see `wrapped`."""
        self._feeder.open_snapshot = source

    def wrapped(self, index: int, state: bytes) -> bytes:
        """A state as snapshots hold it: with the configuration at its index."""
        return wrap_state(self._view.configurations.at(index), state)

    def holds(self, index: int, term: int) -> bool:
        """Whether the journal's view has this very entry."""
        view = self._view
        return view.base <= index <= view.last_index and view.term_at(index) == term

    def term_at(self, index: int) -> int:
        """The term of an entry of the journal's view, 0 for others."""
        return self._view.term_at(index) if self._view.base <= index <= self._view.last_index else 0

    # ---- what the engine asks

    def clamp_own_commit(self, commit_index: int, before: int) -> int:
        """For the engine: a leader that is the only voter commits what is on its disk (there is nobody's word to wait
        for, as there is with `Guard.park`)."""
        if self._guard.voters or not self.is_leader:
            return commit_index
        return max(before, min(commit_index, self._view.note_synced()))

    def feed_followers(self) -> None:
        """For the engine: a heartbeat is due, or the commit index has moved."""
        now = self._clock()
        is_heartbeat = now > self._engine._SyncObj__newAppendEntriesTime
        if is_heartbeat:
            self._engine._SyncObj__newAppendEntriesTime = now + self.config.heartbeat_s
        self._feeder.update_floor()
        self._feeder.beat(is_quiet=not is_heartbeat)

    def on_state_changed(self, old: int, new: int) -> None:
        """For the engine."""
        self._hand_over.end()
        self._members.begin_anew()
        if new == LEADER:
            self._room.is_full = False  # what was said of a leader's entries
            self._guard.begin_office()
            self._feeder.begin_office()
            self.candidacy.rounds.cancel()
        elif new == CANDIDATE:
            # votes take a round trip, not a timeout: after a split vote the next attempt comes sooner
            own = self._engine
            patience = own._SyncObj__generateRaftTimeout() * CANDIDATE_PART
            own._SyncObj__raftElectionDeadline = self._clock() + patience
        elif old == LEADER and new == FOLLOWER:
            # the library leaves the election timer where it was when office began: long past
            own = self._engine
            own._SyncObj__raftElectionDeadline = self._clock() + own._SyncObj__generateRaftTimeout()
        if old == LEADER:
            self._feeder.end_office()
            self._reads.refuse()
        self.messages.is_due = True
