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

`Group` is the interface for the node: it makes the parts, lets one call in at a time and passes it on. Each part is a
module that can be read alone; docs/replication.md lists them.

The last configuration in this node's own log names the members; until there is one, those given at the start count.
A frame may come from any node, since a leader may know of members that this node has not heard of. Answers count only
from members, votes and acknowledgements only from voters.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from quorum.log.errors import LogFull
from quorum.replication import codec
from quorum.replication.applied_state import AppliedState
from quorum.replication.call_guard import CallGuard, HarmlessWhen
from quorum.replication.configuration import Configuration
from quorum.replication.elections import AT_ONCE, Campaign
from quorum.replication.engine import RaftEngine
from quorum.replication.group_config import GroupConfig
from quorum.replication.group_members import GroupMembers
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.leadership import Leadership
from quorum.replication.library import LibraryNode, Owner
from quorum.replication.log_space import LogSpaceGate
from quorum.replication.messages import Messages
from quorum.replication.outbox import Answers, Outbox
from quorum.replication.quarantine import Quarantine, RecoveryResponse
from quorum.replication.recovery import Recovery
from quorum.replication.replicator import Replicator
from quorum.replication.snapshots import PrepareInstall, SnapshotInstaller
from quorum.replication.storage import NodeLog, SnapshotSource

COMMAND_BYTE = bytes([codec.COMMAND])


class Group:
    """One Raft group of this node (see the module's text). Only the log's thread may call it."""

    guard_class: type[Guard] = Guard
    library_class: type[LibraryNode] = LibraryNode
    view_class: type[JournalView] = JournalView
    outbox_class: type[Outbox] = Outbox
    messages_class: type[Messages] = Messages
    members_class: type[GroupMembers] = GroupMembers

    def __init__(
        self,
        group: int,
        me: str,
        members: Sequence[str],
        log: NodeLog,
        clock: Callable[[], float],
        random: random_module.Random,
        send: Callable[[str, list[bytes]], None],
        on_install: Callable[[Any, int, int], None],
        config: GroupConfig | None = None,
        prepare_install: PrepareInstall = lambda index, term, state: (0, state.whole()),
    ) -> None:
        """members: the voters that the group began with, or none if this node joins it and will learn them.

        prepare_install(index, term, state): called before an installation, and again until its answer is not None.
        None: the state refers to something that is not here yet. (proven, read): this member's own entries are proven
        right up to the index `proven` (0: none are), and `read` is for on_install. The function reads the state piece
        by piece, while it is called. If the disk has damaged the state, this raises OSError or SnapshotDamaged, and the
        snapshot is received again.

        on_install(read, index, term): a leader's snapshot has replaced everything applied so far.
        """
        names = sorted(members)
        if (names and me not in names) or len(set(names)) != len(names):
            raise ValueError(f"members are different names, {me!r} among them, not {list(members)}")
        self.group = group
        self.me = me
        self.config = config = config or GroupConfig()
        self._clock = clock
        self._call = CallGuard(group)
        self._appending = HarmlessWhen(self._call, LogFull)
        view = self._view = self.view_class(log, group)
        view.begin(Configuration(tuple(names)))
        nonce = random.getrandbits(63) if view.is_quarantined else 0
        quarantine = self.quarantine = Quarantine(me, nonce, is_on=view.is_quarantined)
        # the parts; each uses those made before it
        engine = self._engine = RaftEngine(self.library_class, me, names or [me], view, clock, random, config)
        guard = self._guard = self.guard_class(engine, view, clock, config.election_min_s)
        outbox = self._outbox = self.outbox_class(log, view, send)
        answers = Answers(outbox)
        log_space = self._log_space = LogSpaceGate(log, clock)
        replicator = self._replicator = Replicator(engine, view, guard, outbox, clock, config)
        self._leadership = Leadership(engine, view, guard, replicator, outbox, log_space, clock, config)
        self.campaign = Campaign(engine, view, guard, outbox, quarantine, clock, config)
        self._members = self.members_class(engine, view, replicator, self._leadership, clock, config)
        self._applied = AppliedState(engine, view, replicator, on_install, config)
        self._installer = SnapshotInstaller(
            group, engine, view, guard, answers, log_space, prepare_install, self._applied.installed
        )
        self._recovery = Recovery(group, engine, view, guard, answers, replicator, self.campaign, quarantine)
        self._messages = self.messages_class(
            engine,
            view,
            clock,
            guard=guard,
            replicator=replicator,
            outbox=outbox,
            answers=answers,
            campaign=self.campaign,
            reads=self._leadership.reads,
            log_space=log_space,
            quarantine=quarantine,
        )
        engine.begin(Owner(engine, self.campaign, self._installer, self._leadership, self._messages))
        self._members.follow_log()

    # ---- start

    def start(self) -> None:
        """Start the group: to be called once, before anything else. `snapshot_state` is there until the first tick."""
        self._call.start()

    @property
    def snapshot_state(self) -> bytes | None:
        """The state from which applying continues, None for an empty one. Only between start() and the first tick."""
        return self._view.snapshot_state

    @property
    def snapshot_index(self) -> int:
        """The index after which applying continues at a start, 0 for an empty state."""
        return self._view.snapshot_index

    # ---- the turn

    def receive(self, peer: str, frame: bytes | bytearray | memoryview) -> bool:
        """Take one frame from another node. WireError if it is no message: nothing has changed then.

        Returns whether the rest of the turn has anything to do for this group: not after a heartbeat without news, and
        not after an answer that commits nothing and after which nothing is to be sent."""
        if peer == self.me:
            raise ValueError(f"{peer!r} is this node itself")
        message = codec.decode(frame)
        if self.quarantine.is_deaf:
            return False
        with self._call:
            self._messages.receive(peer, message)
            self._members.follow_log()
        return self._messages.has_news or self._outbox.has_waiting or self._has_tick_work()

    def tick(self) -> None:
        """Run what is due: elections, the commit index, heartbeats; new entries are sent to the followers. A tick in
        which nothing is due is not run."""
        with self._call:
            self._view.snapshot_state = None  # the owner has taken it over
            if self._has_tick_work():
                self._tick()

    def _has_tick_work(self) -> bool:
        """Whether a tick now can have any effect: a timer is due, or something has asked for it (`tick_soon`)."""
        engine = self._engine
        if engine.is_tick_due:
            return True
        if engine.is_leader:
            return self._leadership.has_tick_work()
        return self._clock() >= engine.election_deadline_s

    def _tick(self) -> None:
        self._leadership.begin_tick()
        self._engine.tick()
        self._leadership.end_tick()

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
            if not self._leadership.may_propose:
                return None
            index = self._view.last_index + 1
            self._view.append([COMMAND_BYTE, *parts], index, self.term)
            self._leadership.note_unsent()
            return index

    def join_heartbeat(self) -> bool:
        """Send the next heartbeat with the next tick, if it is due soon: another group has one now, of this node or of
        another one. So the heartbeats of all groups fall together, and each node steps once for them. Returns whether
        it is due now."""
        return self._leadership.join_heartbeat()

    def send_appends(self) -> None:
        """Send new entries to the followers now, without a tick."""
        with self._call:
            if self._engine.is_leader:
                self._leadership.has_unsent = False
                self._replicator.replicate_new()

    def announce_commits_to(self, peers: Iterable[str]) -> None:
        """For a leader: announce commits at once to these peers only. The others hear of a commit with the next entries
        or heartbeat. Until this is called in a leadership, a commit is announced to all."""
        self._replicator.announce_commits_to(peers)

    def announce_commits_also_to(self, peers: Iterable[str]) -> None:
        """For a leader: announce commits at once to these peers, too, until `announce_commits_to` has been called
        twice."""
        self._replicator.announce_commits_also_to(peers)

    @property
    def peers(self) -> Collection[str]:
        """The other members."""
        return self._engine.others

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
                self._recovery.end_if_recovered(durable)
            if self._messages.count_synced() or self._leadership.awaits_own_commit:
                self._tick()
        self._outbox.send_ready()

    def take_committed(self, max_bytes: int, max_entries: int) -> list[tuple[int, int, bytes | memoryview]]:
        """The next committed entries as (index, term, body), at least one if there is any; they count as applied.

        Internal entries have an empty body. In a group of one voter an entry is returned once it is synced. The list
        ends before an unreadable entry: see take_unreadable.
        """
        return self._applied.take_committed(max_bytes, max_entries)

    @property
    def applied_index(self) -> int:
        """The last entry that take_committed has returned, or that a snapshot covers."""
        return self._applied.index

    @property
    def leader_and_term(self) -> tuple[str | None, int]:
        """`leader` and `term`."""
        return self._engine.leader_and_term

    @property
    def has_unapplied(self) -> bool:
        """Whether take_committed has not returned all committed entries."""
        return self._applied.index < self._engine.commit_index

    @property
    def heard_beat(self) -> bool:
        """Whether the frame that came last was the leader's heartbeat, without entries."""
        return self._messages.heard_beat

    @property
    def is_urgent(self) -> bool:
        """Whether something has asked for a tick at once."""
        return self._engine.is_tick_due or self._leadership.reads.wants_round

    def next_due(self) -> float:
        """When tick should be called if no message arrives, on the group's clock; AT_ONCE means now, whatever it
        shows."""
        if self._engine.is_tick_due or self._leadership.reads.wants_round:
            return AT_ONCE
        if self._engine.is_leader:
            return AT_ONCE if self._replicator.has_more else self._engine.next_append_s
        if self.quarantine.is_on:
            return self._clock() + self.config.election_max_s
        return self.campaign.next_due()

    # ---- quarantine

    def recovery_response(self, peer: str, nonce: int) -> RecoveryResponse:
        """Answer a quarantined member's question; the answer is to be sent after a sync. A leader also forgets what the
        member's lost life acknowledged: committed entries stay committed, and it sends entries from where the member's
        log ends now."""
        with self._call:
            self._recovery.forget_acknowledged(peer, nonce)
        return self._recovery.recovery_response(nonce)

    def take_recovery_response(self, peer: str, recovery_response: RecoveryResponse) -> None:
        """Take an answer to this quarantined member's question."""
        with self._call:
            self._recovery.hear(peer, recovery_response)

    # ---- damage

    def take_unreadable(self) -> tuple[int, int, str] | None:
        """(index, term, reason) of an entry that was needed, here or for a follower, and could not be read since the
        last call. Work that needs the entry waits until it is repaired."""
        return self._applied.take_unreadable()

    @property
    def unread_configurations(self) -> dict[int, str]:
        """Unreadable entries that may be configurations, with the reason. Until they are repaired this member does not
        campaign; `read_configurations` reads them again."""
        return self._view.unread

    def read_configurations(self) -> None:
        """Read again the entries that may be configurations, after a repair."""
        with self._call:
            self._view.read_again()
            self._members.follow_log()

    def rewind_applied(self) -> bytes | None:
        """Begin applying again from the newest readable snapshot here, and reset what is known of snapshots and
        members. Returns its state, None for an empty one. LogDamaged if the journal does not continue from it."""
        state = self._applied.load_again()
        self._members.follow_log()
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
        return self._installer.state_from

    def want_state(self, *, is_wanted: bool) -> None:
        """Note that the state here is lost, while the journal and all promises are not. From now on a leader's snapshot
        is installed even if it is not newer than what was applied. Applying then continues after it."""
        self._installer.want_state(is_wanted=is_wanted)

    @property
    def is_receiving(self) -> bool:
        """Whether a snapshot is being received."""
        return self._installer.is_receiving

    def send_state(self, peer: str, from_index: int) -> None:
        """Send a member the snapshot that it has asked for, at this index or later, beside its entries. The member asks
        again while it needs one. Nothing happens if this node does not lead."""
        with self._call:
            if self.leader_ready and peer in self._engine.others:
                self._replicator.send_state(peer, from_index)
                self._engine.tick_soon()

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
        return self._leadership.is_ready

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
        self._engine.tick_soon()

    def peer_disconnected(self, peer: str) -> None:
        self._engine.disconnect(peer)
        if peer in self._engine.others:
            self._replicator.disconnected(peer)

    def campaign_in_turn(self) -> None:
        """Set the first election timer after a start, if a majority of the voters is connected for the first time.

        No voter has to wait out an election timeout then: they campaign in turn, each a little later than the one
        before it, and another one is the first in each group. So the first elections after a start of all members come
        soon, are seldom split, and spread the leaders. A member that starts alone hears the leader before its turn, or
        the others refuse its pre-vote."""
        self.campaign.take_turn(self.group)

    # ---- members

    @property
    def configuration(self) -> Configuration:
        """The members of the group, as this node's log has them; see `is_settled`."""
        return self._view.configurations.current

    @property
    def is_settled(self) -> bool:
        """Whether the configuration is known, and committed as far as known here."""
        return self._members.is_settled

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
        self._members.check(wanted)
        with self._appending:
            return self._members.change(wanted)

    def is_caught_up(self, learner: str) -> bool:
        """Leader only: whether a learner is fast enough not to delay the group as a voter (thesis §4.2.1)."""
        return self.is_leader and self._replicator.is_caught_up(learner)

    def has_majority_of(self, voters: Iterable[str]) -> bool:
        """Leader only: whether a majority of these voters answer, this node included if it is one of them."""
        return self._members.has_majority_of(voters)

    def match_index(self, peer: str) -> int:
        """Leader only: the index up to which this member is known to have everything."""
        return self._engine.match_index(peer) if self.is_leader else 0

    # ---- leadership transfer

    def transfer_leadership(self, peer: str) -> bool:
        """Begin to transfer leadership to another voter (thesis §3.10). From now on nothing is proposed; the target is
        brought up to date and told to campaign. `leader` shows whether the transfer succeeded. If it has not succeeded
        after an election timeout, this node continues to lead. False if this node does not lead, a transfer is in
        progress, or the target cannot be reached."""
        with self._call:
            return self._leadership.transfer_to(peer)

    @property
    def is_transferring(self) -> bool:
        return self._leadership.is_transferring

    # ---- reads

    def read_barrier(self, callback: Callable[[int | None], None]) -> None:
        """ReadIndex (Raft §6.4): callback(index) when the state at index, once applied, is at least as new as anything
        answered before this call. callback(None) if that cannot be confirmed here: this node does not lead, has not yet
        committed an entry of its term, or is transferring leadership. The callback may run at once, or within a later
        receive, tick or flush; it must not call this group."""
        self._leadership.read(callback)

    # ---- snapshots

    def save_snapshot(self, state: bytes, *, again: bool = False) -> bool:
        """Save the state at applied_index as a snapshot, durably; False if there already is one at or after it. Entries
        it covers leave the journal, except those that a member may still lack; their bodies stay readable in the log.
        LogFull changes nothing. again: replace a snapshot at the same index."""
        with self._appending:
            return self._applied.save_snapshot(state, again=again)

    @property
    def lacks_snapshot(self) -> bool:
        """Whether a follower needs a newer snapshot than the one that is here."""
        return self._engine.is_leader and self._replicator.lacks_snapshot

    def pinned_snapshots(self) -> set[int]:
        """The indices of snapshots that are being sent to followers: their bodies are still to be fetched."""
        return self._replicator.pinned_snapshots()

    def send_snapshots_from(self, source: Callable[[], SnapshotSource | None]) -> None:
        """Set the source of followers' snapshots, in place of the newest file here. Its content is wrapped with the
        configuration at its index, as a file's is: see `configuration.wrap_state`."""
        self._replicator.send_snapshots_from(source)

    def holds(self, index: int, term: int) -> bool:
        """Whether the journal's view has exactly this entry."""
        view = self._view
        return view.base <= index <= view.last_index and view.term_at(index) == term

    def term_at(self, index: int) -> int:
        """The term of an entry of the journal's view, 0 for others."""
        return self._view.term_at(index) if self._view.base <= index <= self._view.last_index else 0
