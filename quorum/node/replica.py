"""This node's share in one group: the Raft group, the machine it feeds, and what a leader has to keep beside them."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

from fifo import checkpoint, versions
from fifo import commands as c
from fifo.group import GroupMachine
from fifo.index_sets import IndexSet
from fifo.limits import Limits
from quorum.catalog.commands import CatalogCommand
from quorum.catalog.machine import CatalogMachine
from quorum.log import EntryMissing, Log, LogDamaged, LogFull
from quorum.node.checkpoints import Checkpoints, LogPages, contents
from quorum.node.digests import Digests
from quorum.node.group_time import GroupClock
from quorum.node.healing import BodyUnreadable
from quorum.node.operations import (
    COMMAND_BYTES,
    MAX_OPERATIONS,
    Command,
    columns_of,
    command_bytes,
    command_parts,
    encode,
)
from quorum.replication.group import Group
from quorum.replication.membership import CONFIGURATION_BYTES, State

SYSTEM_GROUP = 0
FULL_RETRY_MS = 500
"""How often a leader whose log is full looks for room: each look asks the disk for a whole segment."""
IN_FLIGHT_BYTES = 32 << 20
"""A leader holds operations back while this much of a group's log is not yet committed."""

WRITE_AHEAD_BYTES = 1 << 20
"""Of the blocks that a snapshot refers to so much is written in a step: one or two milliseconds."""
FEW_SECTIONS = 256
WRITE_AHEAD_TIMES = 4
"""Entries touch queues while a snapshot is prepared. Where they have touched more than a few, those are prepared again,
up to so many times: the step that takes the snapshot does the rest."""
ENTRY_COST_BYTES = 512
"""What an entry counts beside its body when a snapshot is due: so that where entries are small a few hundred thousand
make one due, and the journal's index of them (20 bytes each) stays small."""

TIME_BYTES = 8
"""Group time stands before the machine's state in a snapshot."""


def machine_state(state: bytes) -> bytes:
    """The machine's part of what a replica keeps in a snapshot."""
    return state[TIME_BYTES:]


class FieldSource:
    """Where a queue machine finds the columns of a stored batch again."""

    def __init__(self, log: Log, group: int) -> None:
        self._log = log
        self._group = group
        self._last: tuple[int, Command] | None = None
        """index and command of the entry that was read last, if it has several operations: the next question is
        mostly about the same one"""

    def columns(self, index: int, operation: int) -> bytes | memoryview:
        """BodyUnreadable if the batch cannot be read here now."""
        if self._last is not None and self._last[0] == index:
            return columns_of(self._last[1].operation(operation))
        try:
            body = self._log.read(self._group, index)
        except (EntryMissing, LogDamaged) as error:
            raise BodyUnreadable(self._group, index, str(error)) from error
        command = Command(memoryview(body)[1:])
        if command.count > 1:  # then it has COMMAND_BYTES at most
            self._last = index, command
        return columns_of(command.operation(operation))


def empty_state(machine: GroupMachine | CatalogMachine) -> bytes:
    """What save_snapshot would keep of a machine that has applied nothing."""
    return bytes(TIME_BYTES) + machine.snapshot()


@dataclass(slots=True)
class Replica:
    """One group. `pending` are operations that this node, as leader, has to pack into entries."""

    number: int
    raft: Group
    machine: GroupMachine | CatalogMachine
    field_source: FieldSource
    digests: Digests
    checkpoints: Checkpoints
    clock: GroupClock = field(default_factory=GroupClock)
    pending: deque[bytes] = field(default_factory=deque)
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """(index, bytes) of own proposals not yet applied"""
    in_flight_bytes: int = 0
    announced_commit: int = 0
    seen: tuple[str | None, int] = (None, 0)
    """(leader, term) as of the last step"""
    bytes_since_snapshot: int = 0
    wants_snapshot: bool = False
    """one that is kept, or a page that it refers to, is damaged"""
    no_snapshot_before_ms: int = 0
    """the last one found no room, or was taken early to make some"""
    written_to: tuple[int, int] = (0, 0)
    """(queue, block): how far the next snapshot is prepared"""
    written_times: int = 0
    """how often it was prepared from the first queue to the last"""
    saved_ms: int = 0
    """when the last snapshot was taken, or the first change after it seen"""
    wake_pending: bool = False
    mark: int = 0
    """of the last command `Configured` that it has applied"""
    ready_term: int = -1
    """the term this node leads in with everything of earlier terms applied: only then it may propose, as group time
    goes on from the last entry"""
    touched: bool = True
    """something has come for it since its last turn"""
    stalled: int = 0
    """the entry that has to be mended before anything more is applied"""
    stalled_ms: int = 0
    """since when"""
    disputed: str = ""
    """why this node may not serve the group: members have parted, and no majority says who is right (digests.py), or
    a majority says that it is not this one"""
    parted: int = 0
    """the entry at which most voters had another state, or at which the state here could not be read: nothing more is
    applied until another member's state is here"""
    lacks_page: bool = False
    """a page of the state is lost, and the state stays in use until another member's is here"""
    routed_to: int = 0
    """effects of entries up to here were carried out: not again, where applying begins again before them"""
    down_proposed_ms: dict[tuple[int, int], int] = field(default_factory=dict)
    full_until_ms: int = 0
    """the log had no room for an entry: nothing is packed before this"""
    next_hand_over_ms: int = 0
    """no new attempt to hand the office to somebody whose disk is better before this"""

    @property
    def wants_state(self) -> bool:
        """Another member's state is to replace the one here."""
        return self.parted > 0 or self.lacks_page

    @property
    def is_behind(self) -> bool:
        """Committed entries wait to be applied."""
        return self.raft.applied_index < self.raft.commit_index

    @property
    def can_apply(self) -> bool:
        """The same, and nothing holds them up."""
        return self.is_behind and not self.stalled and not self.parted

    @property
    def leads(self) -> bool:
        """This node leads and knows all that was there before."""
        return self.raft.is_leader and self.ready_term == self.raft.term

    @property
    def can_propose(self) -> bool:
        return (
            bool(self.pending)
            and self.in_flight_bytes < IN_FLIGHT_BYTES
            and self.leads
            and not self.raft.is_handing_over  # then it waits: for the successor, or for this leader to go on
        )

    def is_active(self, now_ms: int) -> bool:
        """Whether a step has anything to do for the group: idle groups cost next to nothing."""
        return (
            self.touched
            or self.stalled > 0
            or self.can_apply
            or self.raft.next_due() * 1000 <= now_ms
            or self.can_propose
        )

    def begin_term(self) -> None:
        """The leader or the term has changed: what was pending or under way is up to the sessions' nodes again."""
        self.pending.clear()
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.wake_pending = False
        self.down_proposed_ms.clear()

    def refuse(self, now_ms: int) -> None:
        """The log had no room."""
        self.full_until_ms = now_ms + FULL_RETRY_MS
        self._forget_pending()

    def _forget_pending(self) -> None:
        """What is pending is as good as lost on its way: the sessions' nodes send it again."""
        self.pending.clear()
        self.wake_pending = False

    def part(self, index: int) -> None:
        """Most voters had another state at this entry, or the state cannot be read. The log is right: this member still
        votes and acknowledges."""
        self.parted = index
        self.checkpoints.is_sendable = False
        self.disputed = (
            f"entry {index}: the state of {self.raft.me} is lost or differs from most voters'; "
            "it is replaced once a member leads whose state is right"
        )
        self.ready_term = -1
        self.touched = True
        self.raft.want_state(is_wanted=True)
        self.raft.candidacy.stands_last = True
        self.raft.resign()

    def rebuilt(self) -> None:
        """Another member's state is here."""
        if self.parted:
            self.digests.own.clear()
            self.disputed = ""
        self.parted, self.lacks_page = 0, False
        self.checkpoints.is_sendable = True
        self.raft.want_state(is_wanted=False)

    def own(self, command: c.Command | CatalogCommand) -> None:
        """A leader's own, unnumbered operation."""
        self.pending.append(encode(command, None))

    def propose(self, now_ms: int, wall_clocks_ms: list[int]) -> None:
        """Packs what is pending into entries. They go out with the new commit index, which otherwise goes out by
        itself: sessions at other nodes wait for it."""
        if not self.raft.is_leader:
            self.pending.clear()
            return
        if self.disputed:
            self._forget_pending()
            return
        if now_ms < self.full_until_ms:
            self._forget_pending()
        commit_index = self.raft.commit_index
        is_news = commit_index > self.announced_commit
        self.announced_commit = commit_index
        while self.can_propose:
            operations = [self.pending.popleft()]
            size = len(operations[0])
            while (
                self.pending
                and size + len(self.pending[0]) <= COMMAND_BYTES
                and len(operations) < MAX_OPERATIONS
            ):
                operations.append(self.pending.popleft())
                size += len(operations[-1])
            if command_bytes(len(operations), size) + 1 == CONFIGURATION_BYTES:
                operations.append(encode(c.Wake(), None))  # no command has a configuration's size
                size += len(operations[-1])
            now = self.clock.now(now_ms, wall_clocks_ms)
            try:
                index = self.raft.propose(command_parts(operations, now, versions.CURRENT))
            except LogFull:
                self.refuse(now_ms)
                break
            if index is None:
                break  # no longer leader: the sessions' nodes send again
            self.in_flight.append((index, size))
            self.in_flight_bytes += size
            is_news = True
        if is_news:
            self.raft.send_appends()

    def applied(self, index: int) -> None:
        while self.in_flight and self.in_flight[0][0] <= index:
            self.in_flight_bytes -= self.in_flight.popleft()[1]

    def begin_again(self, stalled: int, now_ms: int) -> None:
        """A body that was needed within an entry cannot be read, and the machine may have done half of it: it is made
        again from the newest snapshot, applies the same entries to the same effect once the body is mended, and what
        was carried out before is not carried out again. This node does not lead until then."""
        state = self.raft.rewind_applied()
        self.checkpoints.rewound()
        if state is not None:
            self.restore(state)
        elif isinstance(self.machine, CatalogMachine):
            raise AssertionError("the catalog reads no bodies")
        else:
            self.machine = GroupMachine(*self._surroundings(self.machine))
        self.bytes_since_snapshot = 0
        self.ready_term = -1
        self.stalled, self.stalled_ms = stalled, now_ms

    def snapshot_is_due(self, now_ms: int, after_bytes: int, after_ms: int) -> bool:
        """So much was applied since the last one, or anything, and so long ago: what was settled since then is garbage
        only once a snapshot says so."""
        if not self.bytes_since_snapshot:
            self.saved_ms = now_ms
        return self.bytes_since_snapshot > after_bytes or now_ms - self.saved_ms >= after_ms

    def prepare_snapshot(self) -> bool:
        """Writes some of what the next snapshot refers to; whether that was the last of it. LogFull."""
        if isinstance(self.machine, CatalogMachine):
            return True
        place = self.machine.write_ahead(self.written_to, WRITE_AHEAD_BYTES)
        self.written_to = (0, 0) if place is None else place
        if place is not None:
            return False
        self.written_times += 1
        if (
            self.written_times < WRITE_AHEAD_TIMES
            and checkpoint.missing_sections(self.machine) > FEW_SECTIONS
        ):
            return False
        self.written_times = 0
        return True

    def save_snapshot(self, log: Log, now_ms: int) -> None:
        """Keeps the state at the last applied entry, durably. LogFull if there is no room for it."""
        again = self.wants_snapshot or bool(log.journal(self.number).damaged_snapshots)
        entries, pages = IndexSet(()), array("Q")
        if isinstance(self.machine, CatalogMachine):
            state = self.machine.snapshot()
        else:
            found = self.machine.checkpoint()
            state, entries, pages = found.state, found.entries, found.pages
            log.sync()  # the state names pages
        is_kept = self.raft.save_snapshot(
            self.clock.applied.to_bytes(TIME_BYTES, "little") + state, again=again
        )
        self.wants_snapshot = False
        self.bytes_since_snapshot = 0
        self.saved_ms = now_ms
        if is_kept:  # else, after a rewind, the log goes on keeping what the older one refers to
            self.checkpoints.saved(self.raft.applied_index, entries, pages)

    def restore(self, state: bytes) -> None:
        """Goes on from what save_snapshot has kept."""
        self.clock.observe(int.from_bytes(state[:TIME_BYTES], "little"))
        if isinstance(self.machine, CatalogMachine):
            self.machine = CatalogMachine.restore(state[TIME_BYTES:])
        elif checkpoint.is_checkpoint(state[TIME_BYTES:]):
            self.machine = GroupMachine.resume(state[TIME_BYTES:], *self._surroundings(self.machine))
        else:
            self.machine = GroupMachine.restore(state[TIME_BYTES:], *self._surroundings(self.machine))

    def _surroundings(self, machine: GroupMachine) -> tuple[FieldSource, LogPages, Limits]:
        """What a machine of queues is given here, the one in place of `machine`, too."""
        return self.field_source, self.checkpoints.pages, machine.limits

    def install(self, state: State) -> None:
        """Goes on from what a leader has sent, which is not held in memory as a whole but for the catalog's."""
        self.clock.observe(int.from_bytes(state.read(0, TIME_BYTES), "little"))
        rest = state.behind(TIME_BYTES)
        if isinstance(self.machine, CatalogMachine):
            self.machine = CatalogMachine.restore(rest.whole())
        else:
            self.machine = GroupMachine.restore(rest, *self._surroundings(self.machine))
        self.checkpoints.installed(self.raft.applied_index, rest)

    @staticmethod
    def references(state: State) -> array[int]:
        """The entries that a state refers to, as a leader has sent it; sorted."""
        return contents(state.behind(TIME_BYTES))[0].as_array()
