"""One Raft group of this node: PySyncObj behind the guard, driven by the node's own loop.

One turn of the node, for all its groups together (docs/replication.md lists the owner's duties):

    receive(peer, frame)   each frame received
    propose(parts)         each new entry, at the leader
    tick()                 elections, commit index, appends
    flush_early()          messages that depend on nothing unsynced leave: appends, once term and vote are synced
    log.sync()             one for all groups
    flush()                the other messages leave; acknowledgements that waited for this node's own disk count
    take_committed()       entries to apply, in order, up to the size asked for

`send` only queues. `CallGuard` refuses a call from inside another call, a call before `start`, and every call after one
that raised an exception: the library's memory may then differ from the log. Each message carries the LSN of the last
record of this group that it depends on, and leaves when the log has synced that record.

Entry bodies are a type byte and the proposer's bytes. Index 1 is an internal entry, the same in every group; each
leader begins its term with another, and changes of members are entries too (configuration.py). `take_committed` yields
all of those (but index 1) with an empty body.

`Group` holds the parts and passes calls on: messages.py handles what other members send, replicator.py sends to
followers, elections.py decides when to campaign, leadership.py confirms reads and transfers leadership, snapshots.py
installs a leader's snapshot, and guard.py has the rules between the wire and PySyncObj.

The last configuration in this node's own log names the members; until there is one, those given at the start count.
A frame may come from any node, since a leader may know of members that this node has not heard of. Answers count only
from members, votes and acknowledgements only from voters.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

from quorum.log.errors import EntryMissing, LogDamaged, LogFull
from quorum.replication import codec
from quorum.replication.configuration import (
    CONFIGURATION,
    Configuration,
    State,
    majority,
    unwrap_state,
    wrap_state,
)
from quorum.replication.elections import AT_ONCE, Campaign
from quorum.replication.engine import RaftEngine
from quorum.replication.errors import ReentryError, ReplicationFailed
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView, KeptBytes
from quorum.replication.leadership import LeadershipTransfer, ReadIndex
from quorum.replication.library import LibraryNode, RaftState
from quorum.replication.messages import Messages
from quorum.replication.outbox import Answers, Outbox
from quorum.replication.quarantine import Quarantine, Standing
from quorum.replication.replicator import Replicator
from quorum.replication.snapshots import SnapshotInstaller
from quorum.replication.storage import LogSpaceGate, NodeLog, SnapshotSource

COMMAND_BYTE = bytes([codec.COMMAND])
CONFIGURATION_BYTE = bytes([CONFIGURATION])
CANDIDATE_PART = 0.5
"""A candidate waits for votes for this part of an election timeout."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Timing in seconds, and sizes. A new leader is elected at the latest election_max_s and a little more after the
    old one's end. The minimum is large enough for a busy two-core machine to keep its heartbeats."""

    election_min_s: float = 0.5
    election_max_s: float = 1.0
    heartbeat_s: float = 0.1
    leader_fallback_s: float = 1.5
    """A leader without answers from a majority for this long steps down."""
    keep_bytes: int = 64 << 20
    """Entries that a snapshot covers stay in the journal for a member that lacks them, up to this many bytes of bodies;
    a member further behind gets the snapshot, and of older bodies only those it refers to."""
    keep_entries: int = 250_000
    """The same, counted in entries (20 bytes of memory each)."""
    window_bytes: int = 8 << 20
    """Maximum of unacknowledged entries for one peer; with a handful of groups well below the limit of a connection's
    queue."""
    frame_bytes: int = 1 << 20
    """Bytes after which a frame ends; the entry that reaches this size is its last."""
    chunk_bytes: int = 256 << 10
    """Size of a snapshot chunk."""


class CallGuard:
    """The way into a group: one call at a time, none before it is started, and none after one has failed.

    Use it as a context around the work of one call. ReentryError, ReplicationFailed, ValueError. After an exception in
    the middle of a call the library's memory may differ from the log, so any exception is the end of the replica.
    """

    def __init__(self, group: int) -> None:
        self._group = group
        self._is_inside = False
        self.is_started = False
        self.failure: BaseException | None = None

    def check(self) -> None:
        """Raise the error that entering would raise."""
        if self.failure is not None:
            raise ReplicationFailed(f"group {self._group} has stopped: {self.failure}") from self.failure
        if self._is_inside:
            raise ReentryError(f"group {self._group} was called from inside one of its calls")
        if not self.is_started:
            raise ValueError(f"group {self._group} is not started")

    def __enter__(self) -> None:
        self.check()
        self._is_inside = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_inside = False
        if error is not None:
            self.failure = error


class HarmlessWhen:
    """The same guard, for a call in which this error changes nothing."""

    def __init__(self, guard: CallGuard, harmless: type[Exception]) -> None:
        self._guard = guard
        self._harmless = harmless

    def __enter__(self) -> None:
        self._guard.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_harmless = isinstance(error, self._harmless)
        self._guard.__exit__(kind, None if is_harmless else error, trace)


class Group:
    """One Raft group of this node (see the module's text). Only the log's thread may call it."""

    guard_class: type[Guard] = Guard
    library_class: type[LibraryNode] = LibraryNode
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

        prepare_install(index, term, state): called before an installation, and again until it answers a number. None:
        the state refers to something that is not here yet. A number: this member's own entries are proven right up to
        this index (0: none are).

        on_install(state, index, term): a leader's snapshot has replaced everything applied so far. Both functions read
        the state piece by piece, while they are called.
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
        self._call = CallGuard(group)
        self._appending = HarmlessWhen(self._call, LogFull)
        self._kept = KeptBytes(self.config.keep_bytes)
        self._unreadable: tuple[int, str] | None = None
        self.applied_index = max(1, self._view.snapshot_index)
        """The last entry that take_committed has returned, or that a snapshot covers."""
        is_quarantined = self._view.is_quarantined
        life = random.getrandbits(63) if is_quarantined else 0
        self.quarantine = Quarantine(me, life, is_on=is_quarantined)
        self._engine = RaftEngine(
            self.library_class, self, me, names or [me], self._view, clock, random, self.config
        )
        self._in_force = Configuration()
        """The configuration that engine and replicator use."""
        self._build(send, prepare_install)
        self._follow_configuration()

    def _build(
        self,
        send: Callable[[str, list[bytes]], None],
        prepare_install: Callable[[int, int, State], int | None],
    ) -> None:
        """Make the parts; each uses those made before it."""
        engine, view, clock, config = self._engine, self._view, self._clock, self.config
        guard = self._guard = self.guard_class(engine, view, clock, config.election_min_s)
        outbox = self._outbox = self.outbox_class(self._log, view, send)
        answers = self._answers = Answers(outbox)
        self._log_space = LogSpaceGate(self._log, clock)
        self._replicator = Replicator(engine, view, guard, outbox, clock, config)
        self._reads = ReadIndex(engine, guard)
        self._transfer = LeadershipTransfer(engine, view, guard, outbox, clock, config.election_max_s)
        self.campaign = Campaign(engine, view, guard, outbox, self.quarantine, clock, config)
        self.installer = SnapshotInstaller(
            self.group, engine, view, guard, answers, self._log_space, prepare_install, self._installed
        )
        self.messages = self.messages_class(
            engine,
            view,
            clock,
            guard=guard,
            replicator=self._replicator,
            outbox=outbox,
            answers=answers,
            campaign=self.campaign,
            reads=self._reads,
            log_space=self._log_space,
            quarantine=self.quarantine,
        )

    # ---- start

    def start(self) -> None:
        """Start the group: to be called once, before anything else. `snapshot_state` is there until the first tick."""
        self._call.is_started = True

    @property
    def snapshot_state(self) -> bytes | None:
        """The state from which applying continues, None for an empty one. Only between start() and the first tick."""
        return self._view.snapshot_state

    @property
    def snapshot_index(self) -> int:
        """The index after which applying continues at a start, 0 for an empty state."""
        return self._view.snapshot_index

    # ---- the turn

    def receive(self, peer: str, frame: bytes | bytearray | memoryview) -> None:
        """Take one frame from another node. WireError if it is no message: nothing has changed then."""
        if peer == self.me:
            raise ValueError(f"{peer!r} is this node itself")
        message = codec.decode(frame)
        if self.quarantine.is_deaf:
            return
        with self._call:
            self.messages.receive(peer, message)
            self._follow_configuration()

    def tick(self) -> None:
        """Run what is due: elections, the commit index, heartbeats; new entries are sent to the followers."""
        with self._call:
            self._tick()

    def _tick(self) -> None:
        self._view.snapshot_state = None
        self.messages.is_due = False
        if self._reads.wants_round:
            self._reads.wants_round = False
            self._engine.next_append_s = float("-inf")
        self._engine.tick()
        self._reads.confirm()
        if self.is_leader and self._engine.others:
            self._replicator.watch_learners(self._in_force.learners, self.config.election_min_s)
            self._transfer.advance()
            self._replicator.replicate()

    def propose(self, parts: Sequence[bytes | memoryview]) -> int | None:
        """Append one entry, leader only; returns its index, or None if this node does not lead or is transferring
        leadership.

        The entry is committed when take_committed returns it with the current term. If another term is there, or this
        node has lost its leadership, the fate of the entry is unknown. LogFull leaves no trace. ValueError if the entry
        is empty or too long.
        """
        size = sum(map(len, parts))
        if not 0 < size < codec.MAX_BODY_BYTES:
            raise ValueError(f"a command has 1 to {codec.MAX_BODY_BYTES - 1} bytes, not {size}")
        with self._appending:
            if not self.is_leader or self._transfer.is_on:
                return None
            index = self._view.last_index + 1
            self._view.append([COMMAND_BYTE, *parts], index, self.term)
            return index

    def send_appends(self) -> None:
        """Send new entries to the followers now, without a tick."""
        with self._call:
            if self.is_leader:
                self._replicator.replicate_new()

    def flush_early(self) -> None:
        """Send the messages that depend on nothing unsynced, before the log is synced. Appends depend on term and vote
        only: they do not wait for the leader's own disk, which does not count until it is synced (thesis §10.2.1)."""
        self._call.check()
        self._outbox.send_ready()

    def flush(self) -> None:
        """After log.sync(): count the acknowledgements that waited for this node's disk, and send all waiting
        messages."""
        with self._call:
            durable = self._view.note_synced()
            if self.quarantine.is_on:
                self._end_quarantine(durable)
            guard = self._guard
            if guard.acks_awaiting_local_sync:
                waiting, guard.acks_awaiting_local_sync = guard.acks_awaiting_local_sync, {}
                if self.is_leader:
                    for peer, index in waiting.items():
                        if peer in self._engine.others:
                            self.messages.count_acknowledgement(peer, index)
                    self._tick()
            elif self.is_leader and not self._engine.voters and self.commit_index < self._view.durable_index:
                self._tick()
        self._outbox.send_ready()

    def take_committed(self, max_bytes: int, max_entries: int) -> list[tuple[int, int, bytes | memoryview]]:
        """The next committed entries as (index, term, body), at least one if there is any; they count as applied.

        Internal entries have an empty body. In a group of one voter an entry is returned once it is synced. The list
        ends before an unreadable entry: see take_unreadable.
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
        return found

    def _installed(self, state: State, index: int, term: int) -> None:
        self.applied_index = index
        self._on_install(state, index, term)

    def next_due(self) -> float:
        """When tick should be called if no message arrives, on the group's clock; AT_ONCE means now, whatever it
        shows."""
        if self.messages.is_due or self._reads.wants_round:
            return AT_ONCE
        if self.is_leader:
            return AT_ONCE if self._replicator.has_more else self._engine.next_append_s
        if self.quarantine.is_on:
            return self._clock() + self.config.election_max_s
        return self.campaign.next_due()

    # ---- quarantine

    def standing(self, peer: str, life: int) -> Standing:
        """Answer a quarantined member's question; the answer is to be sent after a sync. A leader also forgets what the
        member's lost life acknowledged: committed entries stay committed, and it sends entries from where the member's
        log ends now."""
        with self._call:
            is_followed = self.is_leader and peer in self._engine.others
            if is_followed and self._replicator.reset_progress(peer, life):
                self._engine.forget_match(peer)
                self._guard.acks_awaiting_local_sync.pop(peer, None)
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
        """Take an answer to this quarantined member's question."""
        with self._call:
            if self.quarantine.take(peer, standing):
                assert self.quarantine.floor is not None
                if self.quarantine.floor > self.term:
                    self.messages.follow(self.quarantine.floor)

    def _end_quarantine(self, durable: int) -> None:
        term, matched = self._answers.matched
        leader = self.quarantine.leader_to_record(self.term, min(matched, durable))
        if leader is not None and term == self.term:
            self._view.is_quarantined = self.quarantine.is_on = False
            self._engine.record_vote(leader)
            self._engine.restart_election_timer()

    # ---- damage

    def take_unreadable(self) -> tuple[int, int, str] | None:
        """(index, term, reason) of an entry that was needed, here or for a follower, and could not be read since the
        last call. Work that needs the entry waits until it is repaired."""
        found = self._unreadable or self._replicator.unreadable
        self._unreadable = self._replicator.unreadable = None
        if found is None or not self._view.base < found[0] <= self._view.last_index:
            return None
        index, reason = found
        return index, self._view.term_at(index), reason

    @property
    def unread_configurations(self) -> dict[int, str]:
        """Unreadable entries that may be configurations, with the reason. Until they are repaired this member does not
        campaign; `read_configurations` reads them again."""
        return self._view.unread

    def read_configurations(self) -> None:
        """Read again the entries that may be configurations, after a repair."""
        with self._call:
            self._view.read_again()
            self._follow_configuration()

    def rewind_applied(self) -> bytes | None:
        """Begin applying again from the newest readable snapshot here, and reset what is known of snapshots and
        members. Returns its state, None for an empty one. LogDamaged if the journal does not continue from it."""
        view = self._view
        data = view.load_again()
        first, state = (self._founders, None) if data is None else self.installer.unwrapped(data)
        view.find_configurations(first)
        self._follow_configuration()
        self.applied_index = max(1, view.snapshot_index)
        return state

    def step_down(self) -> None:
        """Step down: a leader becomes a follower, in the same term and with the same vote."""
        with self._call:
            if self.is_leader:
                self._engine.step_down()

    # ---- a state that is lost

    @property
    def state_from(self) -> int:
        """The lowest index of a snapshot that can replace the state here while the journal stays."""
        return self.installer.state_from

    def want_state(self, *, is_wanted: bool) -> None:
        """Note that the state here is lost, while the journal and all promises are not. From now on a leader's snapshot
        is installed even if it is not newer than what was applied. Applying then continues after it."""
        self.installer.is_state_wanted = is_wanted

    @property
    def is_receiving(self) -> bool:
        """Whether a snapshot is being received."""
        return self.installer.is_receiving

    def send_state(self, peer: str, from_index: int) -> None:
        """Send a member the snapshot that it has asked for, at this index or later, beside its entries. The member asks
        again while it needs one. Nothing happens if this node does not lead."""
        with self._call:
            if self.leader_ready and peer in self._engine.others:
                self._replicator.send_state(peer, from_index)
                self.messages.is_due = True

    # ---- state

    @property
    def leader(self) -> str | None:
        """The leader as far as known here; it may no longer be the leader."""
        return self._engine.leader

    @property
    def term(self) -> int:
        return self._engine.term

    @property
    def is_leader(self) -> bool:
        return self._engine.is_leader

    @property
    def leader_ready(self) -> bool:
        """Whether this node leads and an entry of its own term is committed, so that it knows all committed entries
        (Raft §8)."""
        return self.is_leader and self._engine.has_committed_in_term

    @property
    def commit_index(self) -> int:
        return self._engine.commit_index

    @property
    def last_index(self) -> int:
        return self._view.last_index

    @property
    def is_full(self) -> bool:
        """Whether the log had no space for what the leader sent: nothing more is acknowledged until it has."""
        return self._log_space.is_full

    # ---- connections

    def peer_connected(self, peer: str) -> None:
        """Note a new connection: frames for this node are sent from now on; frames in flight before are lost."""
        self._engine.connect(peer)
        if peer in self._engine.others:
            self._replicator.connected(peer)
        self.messages.is_due = True

    def peer_disconnected(self, peer: str) -> None:
        self._engine.disconnect(peer)
        if peer in self._engine.others:
            self._replicator.disconnected(peer)

    # ---- members

    @property
    def configuration(self) -> Configuration:
        """The members of the group, as this node's log has them; see `is_settled`."""
        return self._view.configurations.current

    @property
    def is_settled(self) -> bool:
        """Whether the configuration is known, and committed as far as known here."""
        return not self._view.unread and self._view.configurations.index <= self.commit_index

    @property
    def is_voter(self) -> bool:
        return self.me in self.configuration.voters

    def change_members(self, wanted: Configuration) -> int | None:
        """Append a configuration, which is in force at once; returns its index. None if that is impossible now, because
        this node

        - does not lead, or is transferring leadership;
        - has not yet committed an entry of its term (the thesis' correction);
        - has not yet committed the change before.

        ValueError if more than one voter changes, or if this node would remove itself: it must transfer leadership
        first. LogFull leaves no trace.
        """
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
        return self.leader_ready and self.is_settled and not self._transfer.is_on

    def is_caught_up(self, learner: str) -> bool:
        """Leader only: whether a learner is fast enough not to delay the group as a voter (thesis §4.2.1)."""
        return self.is_leader and self._replicator.is_caught_up(learner)

    def has_majority_of(self, voters: Iterable[str]) -> bool:
        """Leader only: whether a majority of these voters answer, this node included if it is one of them."""
        if not self.is_leader:
            return False
        engine, since_s = self._engine, self._clock() - self.config.election_min_s
        wanted = list(voters)
        up = sum(
            name == self.me or (name in engine.connected and engine.has_answered_since(name, since_s))
            for name in wanted
        )
        return up >= majority(len(wanted))

    def match_index(self, peer: str) -> int:
        """Leader only: the index up to which this member is known to have everything."""
        return self._engine.match_index(peer) if self.is_leader else 0

    def _follow_configuration(self) -> None:
        """Make engine and replicator use the log's present configuration."""
        now = self._view.configurations.current
        if now != self._in_force:
            self._in_force = now
            self._engine.set_members(now)
            self._replicator.follow_members()
            self.messages.is_due = True

    # ---- leadership transfer

    def transfer_leadership(self, peer: str) -> bool:
        """Begin to transfer leadership to another voter (thesis §3.10). From now on nothing is proposed; the target is
        brought up to date and told to campaign. `leader` shows whether the transfer succeeded. If it has not succeeded
        after an election timeout, this node continues to lead. False if this node does not lead, a transfer is in
        progress, or the target cannot be reached."""
        with self._call:
            if not self.leader_ready or not self._transfer.begin(peer):
                return False
            self._reads.refuse()
            self.messages.is_due = True
            return True

    @property
    def is_handing_over(self) -> bool:
        return self._transfer.is_on

    # ---- reads

    def read_barrier(self, callback: Callable[[int | None], None]) -> None:
        """ReadIndex (Raft §6.4): callback(index) when the state at index, once applied, is at least as new as anything
        answered before this call. callback(None) if that cannot be confirmed here: this node does not lead, has not yet
        committed an entry of its term, or is transferring leadership. The callback may run at once, or within a later
        receive, tick or flush; it must not call this group."""
        if not self._may_read():
            callback(None)
        elif not self._engine.voters:
            callback(self.commit_index)
        else:
            self._reads.add(callback)

    def _may_read(self) -> bool:
        return self.leader_ready and not self._transfer.is_on

    # ---- snapshots

    def save_snapshot(self, state: bytes, *, again: bool = False) -> bool:
        """Save the state at applied_index as a snapshot, durably; False if there already is one at or after it. Entries
        it covers leave the journal, except those that a member may still lack; their bodies stay readable in the log.
        LogFull changes nothing. again: replace a snapshot at the same index."""
        with self._appending:
            is_newer = self.applied_index > self._view.snapshot_index - again
            if is_newer:
                self._view.save_snapshot(self.applied_index, self.wrapped(self.applied_index, state))
            keep_from = max(
                self._replicator.update_all_match(),
                self._view.last_index - self.config.keep_entries,
                self._kept.first_index,
            )
            needed = min(self._replicator.pinned_snapshots(), default=None)
            self._view.compact(keep_from if needed is None else min(keep_from, needed))
            return is_newer

    @property
    def lacks_snapshot(self) -> bool:
        """Whether a follower needs a newer snapshot than the one that is here."""
        return self.is_leader and self._replicator.lacks_snapshot

    def pinned_snapshots(self) -> set[int]:
        """The indices of snapshots that are being sent to followers: their bodies are still to be fetched."""
        return self._replicator.pinned_snapshots()

    def send_snapshots_from(self, source: Callable[[], SnapshotSource | None]) -> None:
        """Set the source of followers' snapshots, in place of the newest file here. Its content is wrapped with the
        configuration at its index, as a file's is: see `wrapped`."""
        self._replicator.open_snapshot = source

    def wrapped(self, index: int, state: bytes) -> bytes:
        """The stored form of a state: with the configuration at its index."""
        return wrap_state(self._view.configurations.at(index), state)

    def holds(self, index: int, term: int) -> bool:
        """Whether the journal's view has exactly this entry."""
        view = self._view
        return view.base <= index <= view.last_index and view.term_at(index) == term

    def term_at(self, index: int) -> int:
        """The term of an entry of the journal's view, 0 for others."""
        return self._view.term_at(index) if self._view.base <= index <= self._view.last_index else 0

    # ---- what the engine asks

    def clamp_own_commit(self, commit_index: int, before: int) -> int:
        """For the library: a leader that is the only voter commits what is on its own disk. It has no other voter's
        acknowledgement to wait for, as it has with `Guard.park`."""
        if self._engine.voters or not self.is_leader:
            return commit_index
        return max(before, min(commit_index, self._view.note_synced()))

    def replicate(self) -> None:
        """For the library: a heartbeat is due, or the commit index has moved."""
        now = self._clock()
        is_heartbeat = now > self._engine.next_append_s
        if is_heartbeat:
            self._engine.next_append_s = now + self.config.heartbeat_s
        self._replicator.update_all_match()
        self._replicator.broadcast_heartbeat(is_quiet=not is_heartbeat)

    def on_state_changed(self, old: int, new: int) -> None:
        """For the library."""
        self._transfer.end()
        self._replicator.restart_catch_up()
        if new == RaftState.LEADER:
            self._log_space.is_full = False  # it was about a leader's entries
            self._guard.become_leader()
            self._replicator.become_leader()
            self.campaign.rounds.cancel()
        elif new == RaftState.CANDIDATE:
            # votes take a round trip, not a timeout: after a split vote the next attempt comes sooner
            self._engine.restart_election_timer(CANDIDATE_PART)
        elif old == RaftState.LEADER:
            # the library leaves the election timer where it was when this member was elected: long past
            self._engine.restart_election_timer()
        if old == RaftState.LEADER:
            self._replicator.step_down()
            self._reads.refuse()
        self.messages.is_due = True
