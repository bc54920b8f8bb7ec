"""This node's replica of one group: the Raft group, the machine it feeds, and a leader's data beside them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import field

from fifo import commands as c
from fifo import versions
from fifo.consumers.filter_fields import StoredFields
from fifo.frozen_dataclasses import dataclass
from fifo.group_machine import GroupMachine
from fifo.index_sets import IndexSet
from fifo.limits import Limits
from fifo.persistence import checkpoint, snapshot
from fifo.persistence.checkpoint import Checkpointer
from fifo.persistence.state_crc import StateCrc
from quorum.catalog.commands import CatalogCommand
from quorum.catalog.machine import CatalogMachine
from quorum.log import EntryMissing, Log, LogDamaged, LogFull
from quorum.log.record import crc32c
from quorum.node.errors import BodyUnreadable, StateUnreadable
from quorum.node.replica.checkpoints import Checkpoints, LogPages, contents
from quorum.node.replica.group_clock import GroupClock
from quorum.node.replica.proposals import Proposals
from quorum.node.replica.snapshot_plan import SnapshotPlan
from quorum.node.replica.state_hashes import StateHashes
from quorum.node.wire.operations import Command, columns_of, command_parts, encode
from quorum.replication.configuration import State
from quorum.replication.group import Group

SYSTEM_GROUP = 0
IN_FLIGHT_BYTES = 32 << 20
"""A leader holds operations back while this much of a group's log is not yet committed."""

MAX_BEHIND = 64
"""Committed entries that a member may have to apply before it can lead: a step or two. A member that keeps up has
a few. One that has just started may have everything since its last snapshot."""
WRITE_AHEAD_BYTES = 1 << 20
"""Bytes of blocks written in a step while a snapshot is prepared: one or two milliseconds."""
ENTRY_COST_BYTES = 512
"""Bytes that an entry counts in addition to its body when a snapshot is due. So a few hundred thousand small entries
make one due, and the journal's index of them (20 bytes each) stays small."""

TIME_BYTES = 8
"""Group time precedes the machine's state in a snapshot."""


def machine_state(state: bytes) -> bytes:
    """The machine's part of a replica's snapshot."""
    return state[TIME_BYTES:]


class FieldSource:
    """Reads the columns of a stored batch again for a queue machine."""

    def __init__(self, log: Log, group: int) -> None:
        self._log = log
        self._group = group
        self._last: tuple[int, Command] | None = None
        """index and command of the entry that was read last, if it has several operations: the next question is
        mostly about the same one"""

    def columns(self, index: int, operation: int, queue: int) -> StoredFields:
        """BodyUnreadable if the batch cannot be read here now."""
        if self._last is not None and self._last[0] == index:
            return columns_of(self._last[1].operation(operation), queue)
        try:
            body = self._log.read(self._group, index)
        except (EntryMissing, LogDamaged) as error:
            raise BodyUnreadable(self._group, index, str(error)) from error
        command = Command(memoryview(body)[1:])
        if command.count > 1:  # then it has COMMAND_BYTES at most
            self._last = index, command
        return columns_of(command.operation(operation), queue)


def state_of(machine: GroupMachine | CatalogMachine) -> bytes:
    """A machine's state in canonical bytes: equal states give equal bytes, on every member."""
    return machine.snapshot() if isinstance(machine, CatalogMachine) else snapshot.encode(machine)


def empty_state(machine: GroupMachine | CatalogMachine) -> bytes:
    """The state that save_snapshot would store for a machine that has applied nothing."""
    return bytes(TIME_BYTES) + state_of(machine)


@dataclass(frozen=True, slots=True)
class LeaderState:
    """A state that a leader has sent, read completely. contents: see checkpoints.contents."""

    time_ms: int
    machine: GroupMachine | CatalogMachine
    contents: tuple[IndexSet, array[int]]


@dataclass(slots=True)
class Replica:
    """One group on this member. Only the methods here change its fields; other parts call the method that says what
    has happened."""

    number: int
    raft: Group
    machine: GroupMachine | CatalogMachine
    field_source: FieldSource
    state_hashes: StateHashes
    checkpoints: Checkpoints
    clock: GroupClock = field(default_factory=GroupClock)
    proposals: Proposals = field(default_factory=Proposals)
    snapshots: SnapshotPlan = field(default_factory=SnapshotPlan)
    seen: tuple[str | None, int] = (None, 0)
    """(leader, term) as of the last tick"""
    barrier_id: int = 0
    """of the last command `Configured` that was applied"""
    ready_term: int = -1
    """the term in which this node leads and has applied everything of earlier terms: only then it may propose, as group
    time continues from the last entry"""
    touched: bool = True
    """it has received something since its last tick"""
    heard_beat: bool = False
    """a heartbeat of its leader has arrived, and the other groups here have not joined it yet"""
    due_ms: int = 0
    """when its timers are due, as of its last step; 0 while there is something to apply"""
    blocked_on_index: int = 0
    """the entry that has to be repaired before anything more is applied"""
    blocked_since_ms: int = 0
    """since when"""
    disputed: str = ""
    """why this node may not serve the group: the members' states differ and no majority agrees (state_hashes.py), or a
    majority has another state"""
    parted: int = 0
    """the entry at which most voters had another state, or at which the state here could not be read: nothing more is
    applied until another member's state is here"""
    lacks_page: bool = False
    """a page of the state is lost, and the state stays in use until another member's is here"""
    lacks_body: bool = False
    """it is blocked on an entry whose body no member has, because their states do not need it any more: another
    member's state is to replace the one here"""
    effects_dispatched_to: int = 0
    """effects of entries up to here were carried out; they are not repeated when applying restarts before them"""
    behind_by_member: dict[str, int] = field(default_factory=dict)
    """connected member that follows a leader -> committed entries that it had still to apply, as it said last"""
    checkpointer: Checkpointer | None = field(init=False)
    """of the machine; the catalog has none"""
    state_crc: StateCrc | None = field(init=False)
    """of the machine, while it is made in parts"""

    def __post_init__(self) -> None:
        self._use(self.machine)

    @property
    def wants_state(self) -> bool:
        """Another member's state is to replace the one here."""
        return self.parted > 0 or self.lacks_page or self.lacks_body

    @property
    def behind(self) -> int:
        """How many committed entries wait to be applied."""
        return max(0, self.raft.commit_index - self.raft.applied_index)

    @property
    def is_behind(self) -> bool:
        """Committed entries wait to be applied."""
        return self.raft.has_unapplied

    @property
    def can_apply(self) -> bool:
        """Committed entries wait to be applied, and nothing prevents it."""
        return not self.blocked_on_index and not self.parted and self.raft.has_unapplied

    @property
    def leads(self) -> bool:
        """This node leads and knows all that was there before."""
        return self.raft.is_leader and self.ready_term == self.raft.term

    @property
    def version(self) -> int:
        """The machine version of the entries that this node makes as leader: what the group has switched to, and at
        least what every build knows that can be in the same cluster."""
        return max(versions.BASE, self.machine.version)

    @property
    def may_propose(self) -> bool:
        """Whether this node may pack pending operations into an entry now."""
        return (
            self.proposals.in_flight_bytes < IN_FLIGHT_BYTES
            and self.leads
            and not self.raft.is_transferring  # then it waits for the successor, or for the end of the attempt
        )

    def is_active(self, now_ms: int) -> bool:
        """Whether a step has anything to do for the group: idle groups cost next to nothing."""
        return (
            self.touched
            or self.due_ms <= now_ms
            or self.blocked_on_index > 0
            or (bool(self.proposals.pending) and self.may_propose)
            or self.raft.is_urgent
        )

    @property
    def is_calm(self) -> bool:
        """Whether nothing is on its way: all entries are applied here, and none is to be proposed."""
        raft = self.raft
        return not self.proposals.pending and raft.last_index == raft.commit_index == raft.applied_index

    def look_at_timers(self) -> None:
        """Sets `due_ms`, after each step in which the group was active. A timer that changes otherwise is noticed with
        the next call: the member makes one for all groups with its upkeep."""
        self.due_ms = 0 if self.can_apply else int(self.raft.next_due() * 1000) + 1

    @property
    def next_due_ms(self) -> int:
        """The time of the next step for this group even if nothing arrives; 0 means at once."""
        if self.raft.is_urgent or (self.proposals.pending and self.may_propose):
            return 0
        return self.due_ms

    def recent_from(self, log: Log) -> int:
        """The first applied entry from which on all bodies are in memory. They leave in their order."""
        first, behind = 1, self.raft.applied_index + 1
        while first < behind:
            middle = (first + behind) // 2
            if log.in_memory(self.number, middle):
                behind = middle
            else:
                first = middle + 1
        return first

    # ---- what comes in

    def wake(self) -> None:
        """The next step ticks the group, whatever its timers say."""
        self.touched = True

    def receive(self, peer: str, frame: memoryview) -> None:
        """A peer's frame for the Raft group."""
        raft = self.raft
        if raft.receive(peer, frame):
            self.touched = True
        if raft.heard_beat:
            self.heard_beat = True

    def peer_connected(self, peer: str) -> None:
        self.touched = True
        self.raft.peer_connected(peer)
        self.raft.campaign_in_turn()

    def peer_disconnected(self, peer: str) -> None:
        self.touched = True
        self.behind_by_member.pop(peer, None)
        self.raft.peer_disconnected(peer)

    def read_barrier(self, callback: Callable[[int | None], None]) -> None:
        """See Group.read_barrier."""
        self.touched = True
        self.raft.read_barrier(callback)

    def tick(self) -> bool:
        """Advances the Raft group's timers. True if the leader or the term has changed since the last tick: then the
        sessions' nodes resend the operations that were pending or in flight here."""
        self.touched = False
        self.raft.tick()
        now = self.raft.leader_and_term
        if now == self.seen:
            return False
        self.seen = now
        self.proposals.begin_term()
        return True

    # ---- who can lead

    def hear_behind(self, member: str, entries: int | None) -> None:
        """Notes how many committed entries a member has to apply. None: it follows no leader, so it does not know what
        is committed."""
        if entries is None:
            self.behind_by_member.pop(member, None)
        else:
            self.behind_by_member[member] = entries

    def has_applied(self, member: str) -> bool:
        """Whether this member is known to have applied nearly everything that is committed. A leader proposes nothing
        before it has applied all entries of earlier terms."""
        behind = self.behind if member == self.raft.me else self.behind_by_member.get(member)
        return behind is not None and behind <= MAX_BEHIND

    # ---- leading

    def calls_heartbeats(self, now_ms: int) -> bool:
        """Whether a heartbeat of this group has arrived since the last call, or is due here: those of other groups may
        join it."""
        heard, self.heard_beat = self.heard_beat, False
        return heard or (self.due_ms <= now_ms and self.raft.is_leader)

    def join_heartbeat(self) -> None:
        """See Group.join_heartbeat."""
        if self.raft.join_heartbeat():
            self.touched = True

    def may_lead_last_only(self, *, campaigns_last: bool) -> None:
        """Sets whether this member campaigns only if no other member can; a member whose state is given up always
        does."""
        self.raft.campaign.campaigns_last = campaigns_last or self.parted > 0

    def delay_candidacy(self, seconds: float) -> None:
        """Adds this many seconds to this member's election timeout."""
        self.raft.campaign.election_delay_s = seconds

    def note_caught_up(self) -> None:
        """A leader that has applied everything of earlier terms may propose."""
        raft = self.raft
        if raft.leader_ready and self.ready_term != raft.term and raft.applied_index == raft.commit_index:
            self.ready_term = raft.term

    def continue_work(self, now_ms: int) -> None:
        """The leader proposes a Wake in its next step if a budget has ended the machine's work. While proposals are
        dropped, it does not: leader_duties.py tries again later."""
        machine, proposals = self.machine, self.proposals
        if (
            isinstance(machine, GroupMachine)
            and machine.has_work_left
            and self.leads
            and not self.disputed
            and now_ms >= proposals.full_until_ms
        ):
            proposals.wake()

    def stop_proposing(self) -> None:
        """Stops proposals of a leader that cannot apply committed entries; note_caught_up ends it."""
        self.ready_term = -1

    def propose_internal(self, command: c.Command | CatalogCommand) -> None:
        """A leader's own, unnumbered operation. Callers at any node may wait for it."""
        self.proposals.pending.append(encode(command, None))
        self.raft.announce_commits_also_to(self.raft.peers)

    def propose(self, now_ms: int, wall_clocks: Callable[[int], list[int]]) -> None:
        """Packs pending operations into entries. The entries carry the new commit index. Otherwise the leader sends it
        by itself, because sessions at other nodes wait for it. wall_clocks: see Heartbeats."""
        proposals = self.proposals
        if not self.raft.is_leader:
            proposals.pending.clear()
            return
        if self.disputed:
            proposals.drop_pending()
            return
        if now_ms < proposals.full_until_ms:
            proposals.drop_pending()
        has_news = proposals.announce(self.raft.commit_index)
        while proposals.pending and self.may_propose:
            operations, size = proposals.next_entry()
            now = self.clock.now(now_ms, wall_clocks(now_ms), self.raft.term)
            try:
                index = self.raft.propose(command_parts(operations, now, self.version))
            except LogFull:
                proposals.refuse(now_ms)
                break
            if index is None:
                break  # no longer leader: the sessions' nodes send again
            proposals.sent(index, size)
            has_news = True
        if has_news:
            self.raft.send_appends()

    # ---- applying

    def state_changed(self, index: int, size_bytes: int) -> bool:
        """Records that the machine has applied this entry. Returns whether its effects are to be carried out: not
        again, where applying restarted before it."""
        self.snapshots.bytes_since += size_bytes + ENTRY_COST_BYTES
        if index <= self.effects_dispatched_to:
            return False
        self.effects_dispatched_to = index
        return True

    def barrier_applied(self, barrier_id: int) -> None:
        """A command `Configured` was applied."""
        self.barrier_id = barrier_id

    def stall(self, index: int, now_ms: int) -> None:
        """Nothing is applied until this entry can be read."""
        self.blocked_on_index, self.blocked_since_ms = index, now_ms

    def resume(self) -> None:
        """Ends the wait: the entry can be read, or is not needed any more."""
        self.touched = True
        self.blocked_on_index, self.lacks_body = 0, False

    def rebuild_from_snapshot(self, blocked_on_index: int, now_ms: int) -> None:
        """Rebuilds the machine from the newest snapshot, because a body needed within an entry cannot be read and the
        machine may have applied half of that entry. It applies the same entries to the same effect once the body is
        repaired; effects that were carried out before are not repeated. This node does not lead until then.
        StateUnreadable if the entries since that snapshot cannot be read here."""
        try:
            state = self.raft.rewind_applied()
        except LogDamaged as error:
            raise StateUnreadable(self.number, f"from the newest snapshot on: {error}") from error
        self.checkpoints.rewound()
        if state is not None:
            self.restore(state)
        elif isinstance(self.machine, CatalogMachine):
            raise AssertionError("the catalog reads no bodies")
        else:
            self._use(GroupMachine(*self._surroundings(self.machine)))
        self.snapshots.bytes_since = 0
        self.ready_term = -1
        self.stall(blocked_on_index, now_ms)

    # ---- a state that is wrong or lost

    def dispute(self, reason: str) -> None:
        """Sets the reason why this node may not serve the group now; empty where a majority agrees again."""
        self.disputed = reason

    def part(self, index: int) -> None:
        """Gives the state up: most voters had another state at this entry, or the state cannot be read. The log is
        right: this member still votes and acknowledges."""
        self.parted = index
        self.checkpoints.is_sendable = False
        self.disputed = (
            f"entry {index}: the state of {self.raft.me} is lost or differs from most voters'; "
            "it is replaced once a member leads whose state is right"
        )
        self.ready_term = -1
        self.touched = True
        self.raft.want_state(is_wanted=True)
        self.raft.campaign.campaigns_last = True
        self.raft.step_down()

    def lose_state(self, empty: GroupMachine | CatalogMachine) -> None:
        """Replaces the state, which cannot be read and may be half changed, by an empty one that is not used."""
        self._use(empty)

    def pages_lost(self, *, is_any_lost: bool) -> None:
        """Whether a page of the state in use is lost, with no other copy here."""
        self.lacks_page = is_any_lost

    def body_is_nowhere(self) -> None:
        """No member has the body of the entry that has to be repaired."""
        self.lacks_body = True

    def rebuilt(self) -> None:
        """Another member's state is here."""
        self.touched = True
        if self.parted:
            self.state_hashes.own.clear()
            self.disputed = ""
        self.parted, self.lacks_page, self.lacks_body = 0, False, False
        self.checkpoints.is_sendable = True
        self.raft.want_state(is_wanted=False)

    # ---- snapshots

    def prepare_snapshot(self) -> bool:
        """Writes some of the blocks that the next snapshot refers to. Returns whether they were the last. Raises
        LogFull."""
        return self.checkpointer is None or self.checkpointer.write_ahead(WRITE_AHEAD_BYTES)

    def save_snapshot(self, log: Log, now_ms: int) -> None:
        """Stores the state at the last applied entry durably. Raises LogFull if there is no room for it."""
        again = self.snapshots.is_demanded or bool(log.journal(self.number).damaged_snapshots)
        if self.checkpointer is None:
            state, entries, pages = state_of(self.machine), IndexSet(()), array("Q")
        else:
            found = self.checkpointer.take()
            state, entries, pages = found.state, found.entries, found.pages
            log.sync()  # the state names pages
        is_kept = self.raft.save_snapshot(
            self.clock.applied.to_bytes(TIME_BYTES, "little") + state, again=again
        )
        self.snapshots.saved(now_ms)
        if is_kept:  # else, after a rewind, the log still keeps the entries that the older one refers to
            self.checkpoints.saved(self.raft.applied_index, entries, pages)

    def hash_state(self, most_bytes: int) -> int | None:
        """A number of the state at the last applied entry. A queue machine's is made in parts of about `most_bytes`:
        None until little is left."""
        if isinstance(self.machine, CatalogMachine):
            found: int = crc32c(self.machine.snapshot())
            return found
        if self.state_crc is None:
            self.state_crc = StateCrc(self.machine)
        if not self.state_crc.prepare(most_bytes):
            return None
        found, self.state_crc = self.state_crc.take(), None
        return found

    def restore(self, state: bytes) -> None:
        """Replaces the machine by the state that save_snapshot has stored."""
        self.clock.observe(int.from_bytes(state[:TIME_BYTES], "little"))
        if isinstance(self.machine, CatalogMachine):
            self._use(CatalogMachine.restore(state[TIME_BYTES:], self.machine.newest_version))
        elif checkpoint.is_checkpoint(state[TIME_BYTES:]):
            self._use(checkpoint.resume(state[TIME_BYTES:], *self._surroundings(self.machine)))
        else:
            self._use(snapshot.decode(state[TIME_BYTES:], *self._surroundings(self.machine)))

    def _use(self, machine: GroupMachine | CatalogMachine) -> None:
        self.machine = machine
        self.state_crc = None
        self.checkpointer = None if isinstance(machine, CatalogMachine) else Checkpointer(machine)

    def _surroundings(self, machine: GroupMachine) -> tuple[FieldSource, LogPages, Limits]:
        """The parts that a queue machine gets from its surroundings here; a machine that replaces `machine` gets them
        too."""
        return self.field_source, self.checkpoints.pages, machine.limits

    def read_state(self, state: State) -> LeaderState:
        """Reads a state that a leader has sent, and changes nothing here. Only the catalog's state is held in memory as
        a whole. OSError, SnapshotDamaged."""
        time_ms = int.from_bytes(state.read(0, TIME_BYTES), "little")
        rest = state.behind(TIME_BYTES)
        machine: GroupMachine | CatalogMachine
        if isinstance(self.machine, CatalogMachine):
            machine = CatalogMachine.restore(rest.whole(), self.machine.newest_version)
        else:
            machine = snapshot.decode(rest, *self._surroundings(self.machine))
        return LeaderState(time_ms, machine, contents(rest))

    def install(self, state: LeaderState) -> None:
        """Replaces the machine by a state that a leader has sent."""
        term = self.raft.term_at(self.raft.applied_index)
        self.clock.observe(state.time_ms, term=term)
        self._use(state.machine)
        self.checkpoints.installed(self.raft.applied_index, state.contents)

    @staticmethod
    def references(state: State) -> array[int]:
        """The entries that a state refers to, as a leader has sent it; sorted."""
        return contents(state.behind(TIME_BYTES))[0].as_array()
