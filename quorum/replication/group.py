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
leader begins its term with another, and changes of members are entries too (membership.py). `take_committed` yields all
of those (but index 1) with an empty body.

Who is a member is what this node's own log says last; the members given at the start hold where it says nothing. A
frame may come from anybody: a leader may know of members that this node has not heard of. Answers count only from
members, votes and acknowledgements only from voters.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorum.log.errors import EntryMissing, LogDamaged, LogFull
from quorum.replication import codec, engine
from quorum.replication.codec import Message
from quorum.replication.election import RETRY_PART, PreVoteRounds
from quorum.replication.engine import CANDIDATE, FOLLOWER, LEADER, Peer
from quorum.replication.errors import ReentryError, ReplicationFailed, WireError
from quorum.replication.feeder import Feeder
from quorum.replication.guard import Guard
from quorum.replication.journal import JournalView, NodeLog
from quorum.replication.membership import (
    CONFIGURATION,
    CatchUp,
    Configuration,
    Transfer,
    unwrap_state,
    wrap_state,
)
from quorum.replication.quarantine import Quarantine, Standing
from quorum.replication.transfer import Incoming, KeptBytes, SnapshotSource

COMMAND_BYTE = bytes([codec.COMMAND])
CONFIGURATION_BYTE = bytes([CONFIGURATION])
FULL_RETRY_S = 0.5
"""How often a member whose log is full looks for room: each look asks the disk for a whole segment."""
CANDIDATE_PART = 0.5
"""A candidate waits for votes for this part of an election timeout."""
LAST_RESORT_TIMEOUTS = 5
"""A member that should not lead stands all the same when nobody has led for so many of the longest election timeouts:
it may be the only one with everything that is committed."""


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
    keep_entries: int = 1_000_000
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

    def __init__(
        self,
        group: int,
        me: str,
        members: Sequence[str],
        log: NodeLog,
        clock: Callable[[], float],
        random: random_module.Random,
        send: Callable[[str, list[bytes]], None],
        on_install: Callable[[bytes, int, int], None],
        config: GroupConfig | None = None,
        prepare_install: Callable[[int, int, bytes], int | None] = lambda index, term, state: 0,
    ) -> None:
        """members: the voters that the group began with, or none if this node joins it and will learn them.

        on_install(state, index, term): a leader's snapshot has replaced everything applied so far.
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
        self._send = send
        self._on_install = on_install
        self._prepare_install = prepare_install
        self._known = {name: Peer(name, number) for number, name in enumerate(names or [me], 1)}
        """Everybody ever heard of, this node included."""
        self._peers: dict[str, Peer] = {}
        """The other members: voters and learners."""
        self._connected: set[str] = set()
        self._view = self.view_class(log, group)
        first = Configuration(tuple(names))
        if self._view.snapshot_state is not None:
            first, self._view.snapshot_state = unwrap_state(self._view.snapshot_state)
        self._view.find_configurations(first)
        self._in_force = Configuration()
        """The configuration that engine, guard and feeder go by."""
        self._catching_up: dict[str, CatchUp] = {}
        self._transfer: Transfer | None = None
        self.stands_last = False
        """Whether this node leaves leading to others, see LAST_RESORT_TIMEOUTS."""
        self._log = log
        self._outbox: list[tuple[int, str, list[bytes]]] = []
        self._failure: BaseException | None = None
        self._inside = False
        self._due_now = False
        self._handled: tuple[str, int, int] | None = None
        """(peer, term, seq) of the append or chunk that the library is handling"""
        self._is_quiet = False
        """that message wants no acknowledgement"""
        self._received: tuple[int, int, bytes, int] | None = None
        self._incoming = Incoming()
        self._reads: list[tuple[int, int, Callable[[int | None], None]]] = []
        """(seq, commit index, callback) of reads that wait for a majority"""
        self._is_started = False
        self._is_transfer = False
        """this node's candidacy was asked for by the leader"""
        self._bytes_since_snapshot = 0
        is_quarantined = self._view.is_quarantined
        life = random.getrandbits(63) if is_quarantined else 0
        self.quarantine = Quarantine(me, life, is_on=is_quarantined)
        self._matched = (0, 0)
        """(term, index) of the last acknowledgement sent"""
        self.is_full = False
        """the log had no room for what the leader sent: nothing more is acknowledged until it has"""
        self._look_for_room_s = 0.0
        self._wanted = (0, 0)
        """bytes and entries that the last append brought"""
        self._kept = KeptBytes(self.config.keep_bytes)
        self.handicap_s = 0.0
        """How much later than its election timeout this member runs for office: it stands last while it is damaged."""
        self._unreadable: int | None = None
        self.applied_index = max(1, self._view.snapshot_index)
        """The last entry that take_committed has handed out, or that a snapshot covers."""
        timing = self.config
        self._engine: Any = engine.build(
            self.engine_class,
            self,
            me=self._known[me],
            others=(),
            view=self._view,
            clock=clock,
            chance=random,
            election_min_s=timing.election_min_s,
            election_max_s=timing.election_max_s,
            heartbeat_s=timing.heartbeat_s,
            leader_fallback_s=timing.leader_fallback_s,
        )
        self._guard = self.guard_class(self._engine, self._view, self._peers, clock, timing.election_min_s)
        self._began_s = clock()
        self._rounds = PreVoteRounds(timing.election_min_s * RETRY_PART)
        self._feeder = Feeder(
            self._engine,
            self._view,
            self._guard,
            self._peers,
            self._send_dependent,
            window_bytes=timing.window_bytes,
            frame_bytes=timing.frame_bytes,
            chunk_bytes=timing.chunk_bytes,
        )
        self._handlers: Mapping[type, Callable[[str, Any], None]] = {
            codec.AppendEntries: self._on_append,
            codec.AppendAnswer: self._on_append_answer,
            codec.VoteRequest: self._on_vote_request,
            codec.Vote: self._on_vote,
            codec.PreVoteRequest: self._on_pre_vote_request,
            codec.PreVote: self._on_pre_vote,
            codec.StaleTerm: self._on_stale_term,
            codec.SnapshotChunk: self._on_chunk,
            codec.SnapshotAnswer: self._on_chunk_answer,
            codec.TimeoutNow: self._on_timeout_now,
        }
        self._follow_configuration()

    # ---- life

    def start(self) -> None:
        """To be called once, before anything else. `snapshot_state` is there until the first tick."""
        self._is_started = True

    @property
    def snapshot_state(self) -> bytes | None:
        """The state that applying goes on from, None for an empty one. Only between start() and the first tick."""
        return self._view.snapshot_state

    def _enter(self) -> None:
        if self._failure is not None:
            raise ReplicationFailed(f"group {self.group} has stopped: {self._failure}") from self._failure
        if self._inside:
            raise ReentryError(f"group {self.group} was called from inside one of its calls")
        if not self._is_started:
            raise ValueError(f"group {self.group} is not started")
        self._inside = True

    # ---- the turn

    def receive(self, peer: str, frame: bytes | bytearray | memoryview) -> None:
        """Take one frame of another node. WireError if it is no message: nothing has changed then."""
        if peer == self.me:
            raise ValueError(f"{peer!r} is this node itself")
        message = codec.decode(frame)
        if self.quarantine.is_deaf:
            return
        self._enter()
        try:
            self._handlers[type(message)](peer, message)
            self._follow_configuration()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False
            self._handled = None
            self._is_quiet = False
            self._guard.acknowledge_to = None
            self._guard.reset_hint = None

    def tick(self) -> None:
        """Let time act: elections, the commit index, heartbeats; new entries go to the followers."""
        self._enter()
        try:
            self._tick()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False

    def _tick(self) -> None:
        self._view.snapshot_state = None
        self._due_now = False
        self._engine.doTick(0.0)
        if self._reads:
            self._finish_reads()
        if self.is_leader and self._peers:
            self._watch_learners()
            self._hand_over()
            self._feeder.feed()

    def propose(self, parts: Sequence[bytes | memoryview]) -> int | None:
        """Append one entry, leader only: its index, or None if this node does not lead or is handing over.

        The entry is committed when take_committed yields it with the term of now; with another term there, or after
        losing office, what becomes of it is unknown. LogFull leaves no trace. ValueError if it is empty or too long.
        """
        size = sum(map(len, parts))
        if not 0 < size < codec.MAX_BODY_BYTES:
            raise ValueError(f"a command has 1 to {codec.MAX_BODY_BYTES - 1} bytes, not {size}")
        self._enter()
        try:
            if not self.is_leader or self._transfer is not None:
                return None
            index = self._view.last_index + 1
            self._view.append([COMMAND_BYTE, *parts], index, self.term)
            return index
        except LogFull:
            raise
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False

    def send_appends(self) -> None:
        """New entries to the followers now, without a tick."""
        self._enter()
        try:
            if self.is_leader:
                self._feeder.feed()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False

    def flush_early(self) -> None:
        """Before the log is synced: send what depends on nothing unsynced. Appends depend on term and vote only: the
        leader's own disk is not waited for, and does not count until it is synced (thesis §10.2.1)."""
        self._enter()
        self._inside = False
        self._send_ready()

    def flush(self) -> None:
        """After log.sync(): acknowledgements that waited for this node's disk count, and all that waited leaves."""
        self._enter()
        try:
            durable = self._view.note_synced()
            if self.quarantine.is_on:
                self._end_quarantine(durable)
            guard = self._guard
            if guard.parked:
                parked, guard.parked = guard.parked, {}
                if self.is_leader:
                    for peer, index in parked.items():
                        if peer in self._peers:
                            self._count_acknowledgement(peer, index)
                    self._tick()
            elif self.is_leader and not guard.voters and guard.commit_index < self._view.durable_index:
                self._tick()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False
        self._send_ready()

    def _send_ready(self) -> None:
        outbox = self._outbox
        if not outbox:
            return
        synced = self._log.synced_lsn
        self._outbox = [each for each in outbox if each[0] > synced]
        for lsn, peer, parts in outbox:
            if lsn <= synced:
                self._send(peer, parts)

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
            except (EntryMissing, LogDamaged):
                self._unreadable = index
                break
            size += len(body)
            self._kept.add(index, len(body))
            is_command = body[0] == codec.COMMAND
            found.append((index, view.term_at(index), memoryview(body)[1:] if is_command else b""))
            self.applied_index = index
        self._bytes_since_snapshot += size
        return found

    def next_due(self) -> float:
        """When tick should be called if nothing comes in, on the group's clock."""
        if self._due_now or (self.is_leader and self._feeder.has_more):
            return self._clock()
        if self.is_leader:
            due: float = self._engine._SyncObj__newAppendEntriesTime
            return due
        if self.quarantine.is_on:
            return self._clock() + self.config.election_max_s
        deadline = self._engine._SyncObj__raftElectionDeadline + self.handicap_s
        return self._rounds.next_due(self.term, deadline, self._clock())

    # ---- quarantine

    def standing(self, peer: str, life: int) -> Standing:
        """What a quarantined member asks, to be sent after a sync. As a leader, forget what its lost life acknowledged:
        what is counted already stays so, and it is fed from where it is now."""
        self._enter()
        try:
            if self.is_leader and peer in self._peers and self._feeder.welcome(peer, life):
                self._engine._SyncObj__raftMatchIndex[self._peers[peer]] = 0
                self._guard.parked.pop(peer, None)
                self._guard.note_rewind(peer)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False
        configurations = self._view.configurations
        return Standing(
            self.group,
            life,
            self.term,
            self.last_index,
            self.is_leader,
            not self.quarantine.is_on,
            configurations.index,
            configurations.current.voters,
        )

    def hear_standing(self, peer: str, standing: Standing) -> None:
        """An answer to this quarantined member's question."""
        self._enter()
        try:
            if self.quarantine.take(peer, standing):
                assert self.quarantine.floor is not None
                if self.quarantine.floor > self.term:
                    self._follow(self.quarantine.floor)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False

    def _end_quarantine(self, durable: int) -> None:
        term, matched = self._matched
        leader = self.quarantine.leader_to_record(self.term, min(matched, durable))
        if leader is not None and term == self.term:
            self._view.is_quarantined = self.quarantine.is_on = False
            own = self._engine
            own._SyncObj__setCurrentTerm(term, leader)
            own._SyncObj__raftElectionDeadline = self._clock() + own._SyncObj__generateRaftTimeout()

    # ---- damage

    def take_unreadable(self) -> tuple[int, int] | None:
        """(index, term) of an entry that was needed and could not be read since this was asked last: to be applied, or
        for a follower. Nothing goes on with it before it is mended."""
        index = self._feeder.unreadable if self._unreadable is None else self._unreadable
        self._unreadable = self._feeder.unreadable = None
        if index is None or not self._view.base < index <= self._view.last_index:
            return None
        return index, self._view.term_at(index)

    def rewind_applied(self) -> bytes | None:
        """Applying begins again from the newest snapshot here: its state, None for an empty one."""
        found = self._view.journal.load_snapshot()
        self.applied_index = 1 if found is None else found[0]
        return None if found is None else self._unwrapped(found[2])[1]

    def resign(self) -> None:
        """A leader goes on as a follower, in the same term and with the same vote."""
        self._enter()
        try:
            if self.is_leader:
                self._engine._SyncObj__setState(FOLLOWER)
                self._engine._SyncObj__raftLeader = None
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False

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

    # ---- connections

    def peer_connected(self, peer: str) -> None:
        """Frames for this node leave from now on; what was on the way before is lost."""
        self._connected.add(peer)
        self._engine._SyncObj__onNodeConnected(self._peer(peer))
        if peer in self._peers:
            self._feeder.connected(peer)
        self._due_now = True

    def peer_disconnected(self, peer: str) -> None:
        self._connected.discard(peer)
        self._engine._SyncObj__onNodeDisconnected(self._peer(peer))
        if peer in self._peers:
            self._feeder.disconnected(peer)

    def _peer(self, name: str) -> Peer:
        return self._known.setdefault(name, Peer(name, len(self._known) + 1))

    # ---- members

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group, as this node's log has it; see `is_settled`."""
        return self._view.configurations.current

    @property
    def is_settled(self) -> bool:
        """Whether the configuration is committed as far as known here."""
        return self._view.configurations.index <= self.commit_index

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
        self._enter()
        try:
            if not self._may_change():
                return None
            index = self._view.last_index + 1
            self._view.add(CONFIGURATION_BYTE + wanted.encode(), index, self.term)
            self._follow_configuration()
            return index
        except LogFull:
            raise
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False

    def _may_change(self) -> bool:
        return self.leader_ready and self.is_settled and self._transfer is None

    def is_caught_up(self, learner: str) -> bool:
        """Leader only: whether a learner would hold up nobody as a voter (thesis §4.2.1)."""
        found = self._catching_up.get(learner)
        return self.is_leader and found is not None and found.is_done

    def has_majority_of(self, voters: Iterable[str]) -> bool:
        """Leader only: whether most of these answer, this node included if it is one of them."""
        since = self._clock() - self.config.election_min_s
        times: Mapping[Peer, float] = self._engine._SyncObj__lastResponseTime
        named = list(voters)
        others = [name for name in named if name in self._connected]
        up = (self.me in named) + sum(times.get(self._peer(name), since) > since for name in others)
        return self.is_leader and up * 2 > len(named)

    def match_index(self, peer: str) -> int:
        """Leader only: up to where this member is known to have everything."""
        known: Mapping[Peer, int] = self._engine._SyncObj__raftMatchIndex
        return known.get(self._peer(peer), 0) if self.is_leader else 0

    def _follow_configuration(self) -> None:
        """Let engine, guard and feeder go by what the log says now."""
        now = self._view.configurations.current
        if now == self._in_force:
            return
        self._in_force = now
        before = set(self._peers)
        # in place: the guard and the feeder look at the same dict
        self._peers.clear()
        self._peers.update((name, self._peer(name)) for name in now.everybody if name != self.me)
        voters = tuple(self._peers[name] for name in now.voters if name != self.me)
        learners = tuple(self._peers[name] for name in now.learners if name != self.me)
        self._engine.set_members(voters, learners, self._clock())
        self._guard.voters = voters
        self._rounds.others = frozenset(peer.id for peer in voters)
        self._feeder.set_members(tuple(self._peers))
        for name in self._peers:
            if name not in before and name in self._connected:
                self._feeder.connected(name)
        self._catching_up.clear()
        self._due_now = True

    def _watch_learners(self) -> None:
        now, last = self._clock(), self._view.last_index
        for name in self._in_force.learners:
            found = self._catching_up.setdefault(name, CatchUp(last, now))
            found.observe(self.match_index(name), last, now, self.config.election_min_s)

    # ---- handing over

    def transfer_leadership(self, peer: str) -> bool:
        """Begin to hand over to another voter (thesis §3.10): nothing is proposed from now on, the target is brought up
        to date and told to stand. See in `leader` whether it worked; if nothing has come of it after an election
        timeout, this node goes on. False if it does not lead, hands over already, or the target cannot be reached."""
        self._enter()
        try:
            if not self.leader_ready or self._transfer is not None:
                return False
            if not self._guard.is_voter(peer) or peer not in self._connected:
                return False
            self._transfer = Transfer(peer, self._clock() + self.config.election_max_s)
            self._due_now = True
            self._hand_over()
            return True
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False

    @property
    def is_handing_over(self) -> bool:
        return self._transfer is not None

    def _hand_over(self) -> None:
        transfer = self._transfer
        if transfer is None:
            return
        if self._clock() >= transfer.deadline_s or not self._guard.is_voter(transfer.target):
            self._transfer = None
        elif not transfer.is_asked and self.match_index(transfer.target) == self._view.last_index:
            transfer.is_asked = True
            self._queue(transfer.target, codec.TimeoutNow(self.term))

    # ---- reads

    def read_barrier(self, callback: Callable[[int | None], None]) -> None:
        """ReadIndex (Raft §8): callback(index) when the state at index, once applied, is at least as new as anything
        answered before this call; callback(None) if that cannot be said here. It may be called at once."""
        if not self.leader_ready:
            callback(None)
        elif not self._guard.voters:
            callback(self.commit_index)
        else:
            self._reads.append((self._guard.seq + 1, self.commit_index, callback))
            self._engine._SyncObj__newAppendEntriesTime = float("-inf")
            self._due_now = True

    def _finish_reads(self) -> None:
        waiting, self._reads = self._reads, []
        if not self.is_leader:
            for _, _, callback in waiting:
                callback(None)
            return
        for seq, index, callback in waiting:
            answered = self._guard.answered
            if self._guard.is_majority(sum(answered.get(peer.id, 0) >= seq for peer in self._guard.voters)):
                callback(index)
            else:
                self._reads.append((seq, index, callback))

    # ---- snapshots

    def snapshot_due(self, after_bytes: int) -> bool:
        """Whether this much was applied since the last snapshot."""
        return self._bytes_since_snapshot >= after_bytes

    def save_snapshot(self, state: bytes) -> None:
        """Keep the state at applied_index, durably. Entries it covers leave the journal, except what a member may
        still lack; their bodies stay readable in the log. LogFull leaves everything as it was."""
        self._enter()
        try:
            if self.applied_index > self._view.snapshot_index:
                self._view.save_snapshot(self.applied_index, self.wrapped(self.applied_index, state))
            keep_from = max(
                self._feeder.update_floor(),
                self._view.last_index - self.config.keep_entries,
                self._kept.first_index,
            )
            needed = self._feeder.transfers_from()
            self._view.compact(keep_from if needed is None else min(keep_from, needed))
            self._bytes_since_snapshot = 0
        except LogFull:
            raise
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._inside = False

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

    def take_chunk(self, chunk: codec.SnapshotChunk) -> bool:
        """For the engine: a piece of a snapshot; True if it completes one that is to be installed."""
        if self.is_full and self._clock() < self._look_for_room_s:
            self._answer(codec.Outcome.ALIVE, 0)
            return False
        if not self._guard.is_newer(chunk):
            self._incoming.drop()
            self._answer(codec.Outcome.MATCHES, self._guard.commit_index + 1)
            return False
        state = self._incoming.take(chunk)
        proven = None
        if state is not None:
            proven = self._prepare_install(chunk.index, chunk.snapshot_term, self._unwrapped(state)[1])
        if state is None or proven is None:
            peer, term, seq = self._handling()
            received = self._incoming.received(chunk)
            self._queue(peer, codec.SnapshotAnswer(term, seq, chunk.index, received))
            return False
        if not self._keep(chunk, state):
            self._answer(codec.Outcome.ALIVE, 0)
            return False
        self._received = (chunk.index, chunk.snapshot_term, state, proven)
        self._guard.acknowledge_to = chunk.index
        return True

    def _keep(self, chunk: codec.SnapshotChunk, state: bytes) -> bool:
        """Whether a received snapshot is on the disk. Without room for it, its leader sends its end again."""
        try:
            self._view.keep_snapshot(chunk.index, chunk.snapshot_term, state)
        except LogFull:
            self.is_full = True
            self._look_for_room_s = self._clock() + FULL_RETRY_S
            return False
        self.is_full = False
        return True

    def _unwrapped(self, data: bytes) -> tuple[Configuration, bytes]:
        try:
            return unwrap_state(data)
        except WireError as error:
            raise ReplicationFailed(
                f"group {self.group} was sent a snapshot that is none: {error}"
            ) from error

    def install_snapshot(self) -> None:
        """For the engine: put the received snapshot in place."""
        assert self._received is not None
        index, term, data, proven = self._received
        self._received = None
        self._incoming.drop()
        configuration, state = self._unwrapped(data)
        self._view.install_snapshot(index, term, self._guard.commit_index, configuration, proven)
        self._engine._SyncObj__raftCommitIndex = index
        self._engine._SyncObj__raftLastApplied = index
        self.applied_index = index
        self._bytes_since_snapshot = 0
        self._on_install(state, index, term)

    # ---- what the engine asks

    def may_run_for_office(self) -> bool:
        """For the engine: the election timeout has passed; whether a pre-vote is won. Only voters stand: what holds is
        the last configuration of the own log (thesis §4.1)."""
        if self.quarantine.is_on:
            return False
        own = self._engine
        if not self._may_stand():
            own._SyncObj__transferInProgress = False
            own._SyncObj__raftLeader = None
            own._SyncObj__raftElectionDeadline = self._clock() + own._SyncObj__generateRaftTimeout()
            return False
        self._is_transfer = own._SyncObj__transferInProgress
        if not self._is_transfer and self._clock() < own._SyncObj__raftElectionDeadline + self.handicap_s:
            return False
        if not self._guard.voters or own._SyncObj__transferInProgress or self._rounds.is_won(self.term):
            self._rounds.cancel()
            return True
        if self._rounds.begin_if_due(self.term, self._clock()):
            own._SyncObj__raftLeader = None
            last = self._view.last_index
            request = codec.PreVoteRequest(self.term + 1, self._rounds.number, last, self._view.term_at(last))
            for voter in self._guard.voters:
                self._queue(voter.id, request)
        return False

    def _may_stand(self) -> bool:
        if not self.is_voter:
            return False
        if not self.stands_last or not self._guard.voters:
            return True
        quiet_since = max(self._began_s, self._guard.heard_leader_s)
        return self._clock() > quiet_since + LAST_RESORT_TIMEOUTS * self.config.election_max_s

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
        self._transfer = None
        self._catching_up.clear()
        if new == LEADER:
            self.is_full = False  # what was said of a leader's entries
            self._guard.begin_office()
            self._feeder.begin_office()
            self._rounds.cancel()
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
        self._due_now = True

    def send(self, peer: Peer, message: dict[str, Any]) -> bool:
        """For the engine: one of the library's messages, as one of ours."""
        self._guard.refuse_forwarding(message)
        self._guard.refuse_pieces(message)
        kind = message["type"]
        if kind == "next_node_idx":
            if message["reset"]:
                hint = self._guard.reset_hint
                self._answer(codec.Outcome.RESET, message["next_node_idx"] if hint is None else hint)
            elif message["success"]:
                if self._is_quiet:
                    return True
                limit = self._guard.acknowledge_to
                next_index = message["next_node_idx"]
                self._answer(
                    codec.Outcome.MATCHES, next_index if limit is None else min(next_index, limit + 1)
                )
            else:
                self._answer(codec.Outcome.ALIVE, 0)
        elif kind == "request_vote":
            request = codec.VoteRequest(
                message["term"], message["last_log_index"], message["last_log_term"], self._is_transfer
            )
            self._queue(peer.id, request)
        elif kind == "response_vote":
            self._rounds.cancel()
            self._queue(peer.id, codec.Vote(message["term"]))
        else:
            raise ReplicationFailed(f"the library wanted to send {kind!r}")
        return True

    # ---- sending

    def _queue(self, peer: str, message: Message) -> None:
        """Leaves when everything this group has written so far is synced."""
        self._outbox.append((self._view.last_lsn, peer, codec.encode(message)))

    def _send_dependent(self, peer: str, message: codec.AppendEntries | codec.SnapshotChunk) -> None:
        """Leaves when term and vote are synced: it promises nothing about this node's own log."""
        self._outbox.append((self._view.journal.hard_state_lsn, peer, codec.encode(message)))

    def _handling(self) -> tuple[str, int, int]:
        if self._handled is None:
            raise ReplicationFailed("the library answered outside of a message")
        return self._handled

    def _answer(self, outcome: codec.Outcome, next_index: int) -> None:
        peer, term, seq = self._handling()
        if outcome == codec.Outcome.MATCHES:
            self._matched = term, next_index - 1
        self._queue(peer, codec.AppendAnswer(term, seq, next_index, outcome))

    # ---- receiving

    def _to_library(self, peer: str, message: dict[str, Any]) -> None:
        self._engine._SyncObj__onMessageReceived(self._peer(peer), message)

    def _follow(self, term: int) -> None:
        """Raft §5.1: a higher term was seen; go on in it as a follower."""
        own = self._engine
        self._rounds.cancel()
        own._SyncObj__setCurrentTerm(term, None)
        own._SyncObj__setState(FOLLOWER)
        own._SyncObj__raftLeader = None

    def _hear_leader(self, peer: str, term: int, seq: int) -> bool:
        """An append or chunk arrived: False, and an answer, if its term is over."""
        if term < self.term:
            self._queue(peer, codec.StaleTerm(self.term))
            return False
        self._guard.one_leader_a_term(peer, term)
        self._guard.heard_leader_s = self._clock()
        self._rounds.cancel()
        self._handled = (peer, term, seq)
        return True

    def _on_append(self, peer: str, m: codec.AppendEntries) -> None:
        if not self._hear_leader(peer, m.term, m.seq):
            return
        self._is_quiet = m.is_quiet
        m = self._guard.cut_matching(m) if self._has_room(m) else self._guard.prove_nothing(m)
        message = {
            "type": "append_entries",
            "term": m.term,
            "commit_index": m.commit_index,
            "prevLogIdx": m.prev_index,
            "prevLogTerm": m.prev_term,
            "entries": self._guard.for_pysyncobj(m),
        }
        self._to_library(peer, message)
        self._feeder.floor = max(self._feeder.floor, min(m.floor, self._guard.commit_index))

    def _has_room(self, m: codec.AppendEntries) -> bool:
        """Whether the log can take what this append brings, or will bring if it is refused. False costs the leader a
        window of entries once, which it sends again when there is room."""
        if not m.entries and m.prev_index <= self._view.last_index:
            self.is_full = False  # the leader has nothing more, or begins again
            return True
        if not m.entries and not self.is_full:
            return True
        now = self._clock()
        if self.is_full and now < self._look_for_room_s:
            return False
        if m.entries:
            self._wanted = sum(len(entry.body) for entry in m.entries), len(m.entries)
        self.is_full = not self._log.make_room(*self._wanted)
        if self.is_full:
            self._look_for_room_s = now + FULL_RETRY_S
        return not self.is_full

    def _on_chunk(self, peer: str, m: codec.SnapshotChunk) -> None:
        if not self._hear_leader(peer, m.term, m.seq):
            return
        message = {
            "type": "append_entries",
            "term": m.term,
            "commit_index": self._guard.commit_of_snapshot(m.index),
            "serialized": m,
        }
        self._to_library(peer, message)

    def _on_append_answer(self, peer: str, m: codec.AppendAnswer) -> None:
        guard = self._guard
        if (
            peer not in self._peers
            or not guard.answers_this_office(m)
            or m.next_index > self._view.last_index + 1
        ):
            return
        guard.answered[peer] = max(m.seq, guard.answered.get(peer, 0))
        node = self._peers[peer]
        next_index: dict[Peer, int] = self._engine._SyncObj__raftNextIndex
        before = next_index[node]
        message = guard.filter_answer(peer, m)
        feed = self._feeder.feeds[peer]
        if m.outcome == codec.Outcome.MATCHES:
            feed.acknowledged(m.next_index - 1)
        if message["reset"]:
            feed.forget_sent()
            feed.waits_for_heartbeat = m.next_index < message["next_node_idx"]
        self._to_library(peer, message)
        if message["success"]:
            next_index[node] = guard.keeps_next(before, max(next_index[node], m.next_index))
        if message["success"] or next_index[node] < before:
            self._due_now = True
        if self._reads:
            self._finish_reads()

    def _count_acknowledgement(self, peer: str, index: int) -> None:
        """An acknowledgement that waited for this node's disk."""
        next_index: dict[Peer, int] = self._engine._SyncObj__raftNextIndex
        node = self._peers[peer]
        before = next_index[node]
        answer = codec.AppendAnswer(self.term, self._guard.seq, index + 1, codec.Outcome.MATCHES)
        self._to_library(peer, self._guard.filter_answer(peer, answer))
        next_index[node] = self._guard.keeps_next(before, next_index[node])

    def _on_chunk_answer(self, peer: str, m: codec.SnapshotAnswer) -> None:
        if peer not in self._peers or not self._guard.answers_this_office(m):
            return
        alive = {"type": "next_node_idx", "next_node_idx": 1, "reset": False, "success": False}
        self._to_library(peer, alive)
        outgoing = self._feeder.feeds[peer].outgoing
        if outgoing is not None and outgoing.index == m.index:
            outgoing.answered(m.offset, self._clock())
            self._due_now = True

    def _on_vote_request(self, peer: str, m: codec.VoteRequest) -> None:
        if self.quarantine.is_on or (not m.is_transfer and self._guard.hears_leader()):
            return
        message = {
            "type": "request_vote",
            "term": m.term,
            "last_log_index": m.last_index,
            "last_log_term": m.last_term,
        }
        self._to_library(peer, message)

    def _on_vote(self, peer: str, m: codec.Vote) -> None:
        if self._guard.is_voter(peer) and self._guard.is_first_vote(peer, m):
            self._to_library(peer, {"type": "response_vote", "term": m.term})

    def _on_pre_vote_request(self, peer: str, m: codec.PreVoteRequest) -> None:
        guard = self._guard
        if self.quarantine.is_on:
            return
        granted = (
            m.term > self.term and not guard.hears_leader() and guard.is_up_to_date(m.last_index, m.last_term)
        )
        self._queue(peer, codec.PreVote(self.term, m.round, granted))

    def _on_pre_vote(self, peer: str, m: codec.PreVote) -> None:
        if m.is_granted:
            self._rounds.take(peer, m.round)
            self._due_now = self._due_now or self._rounds.is_won(self.term)
        elif m.term > self.term:
            self._follow(m.term)

    def _on_stale_term(self, peer: str, m: codec.StaleTerm) -> None:
        if m.term > self.term:
            self._follow(m.term)

    def _on_timeout_now(self, peer: str, m: codec.TimeoutNow) -> None:
        if self.quarantine.is_on:
            return
        self._to_library(peer, {"type": "timeout_now", "term": m.term})
        self._due_now = True
