"""Records of the machines that are more than numbers: consumers, what they hold, budgets, what a reader sees."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fifo.commands import UNKNOWN, Address
from fifo.effects import Effect, Run
from fifo.limits import Limits
from fifo.versions import SHARED_BUDGETS

if TYPE_CHECKING:
    from fifo.selector_groups import SelectorGroup

PRIORITY = 0
"""The only priority there is so far; part of the index's keys so that others find their place."""

RUN_STEPS = 32
"""What handing out a run counts for where steps are summed up."""

UNLIMITED = 1 << 62

MANY_RANGES = 64
"""From so many ranges of tags on, one pass over all a consumer holds may be cheaper than a cut for each."""


class FieldSource(Protocol):
    """Gives the columns of an Enqueue or Stage again, from the log."""

    def columns(self, index: int, operation: int) -> bytes | memoryview: ...


@dataclass(slots=True)
class Left:
    """What one entry may still do: numbers of blocks, messages, runs and steps. A function of the entry and the state,
    never of time."""

    blocks: int
    messages: int
    runs: int
    steps: int
    arrivals: int
    moved: int = 0  # messages of reservations that were settled or let go
    copies: int = 0  # blocks whose copies for pins were removed
    finished: int = 0  # queues

    def spent(self, limits: Limits) -> int:
        """Steps, of both kinds, and what was handed out."""
        handed_out = max(limits.run_budget - self.runs, 0) * RUN_STEPS
        return limits.step_budget - self.steps + limits.arrival_budget - self.arrivals + handed_out

    @property
    def may_pass(self) -> bool:
        """Whether a front may pass more messages."""
        return self.blocks > 0 and self.steps > 0

    @property
    def may_hand_out(self) -> bool:
        return self.messages > 0 and self.runs > 0

    @property
    def is_enough(self) -> bool:
        """Whether one more queue may be finished: the first one always."""
        return not self.finished or (self.may_pass and self.may_hand_out and self.arrivals > 0)


@dataclass(slots=True)
class Budget:
    """What one entry may still do in one queue, and what it has paid for there."""

    left: Left
    read: dict[int, int] = field(
        default_factory=dict
    )  # by the block's first sequence: the slots whose fields were paid for
    reads_arrivals: bool = (
        False  # some of what has arrived in this entry was staged, and its fields were not read
    )
    expired: dict[int, None] = field(default_factory=dict)  # blocks whose expired messages have been removed


class Entry:
    """One Raft entry while it is applied: where, when, by which version of the machine, and what it brings about.

    Two budgets bound it: all queues that its operations touch share `touched`, and all that Wake continues
    share `woken`. So neither keeps the other waiting. In version 1 each queue has a budget of its own.
    """

    __slots__ = (
        "arrived_from",
        "budgets",
        "effects",
        "index",
        "limits",
        "now_ms",
        "touched",
        "version",
        "woken",
    )

    def __init__(self, index: int, now_ms: int, version: int, limits: Limits) -> None:
        self.index = index
        self.now_ms = now_ms
        self.version = version
        self.limits = limits
        self.effects: list[Effect] = []
        self.budgets: dict[int, Budget] = {}  # by queue
        self.arrived_from: dict[int, int] = {}  # queue -> first sequence placed in this entry
        self.touched = whole_budget(version, limits)
        self.woken: Left | None = None

    def budget(self, queue: int) -> Budget:
        found = self.budgets.get(queue)
        if found is None:
            is_shared = self.version >= SHARED_BUDGETS
            left = self.touched if is_shared else whole_budget(self.version, self.limits)
            found = self.budgets[queue] = Budget(left)
        return found

    def wake(self, queue: int) -> None:
        """What is still done in a queue is on account of Wake."""
        if self.woken is None:
            self.woken = whole_budget(self.version, self.limits)
        self.budget(queue).left = self.woken

    @property
    def steps(self) -> int:
        """What it has spent."""
        limits = self.limits
        if self.version < SHARED_BUDGETS:
            return sum([budget.left.spent(limits) for budget in self.budgets.values()])
        return self.touched.spent(limits) + (0 if self.woken is None else self.woken.spent(limits))


def whole_budget(version: int, limits: Limits) -> Left:
    """What an entry may do, or in version 1 one queue of it."""
    return Left(
        limits.block_budget,
        limits.message_budget,
        limits.run_budget if version >= SHARED_BUDGETS else UNLIMITED,
        limits.step_budget,
        limits.arrival_budget,
    )


class Held:
    """What a consumer holds: runs of (delivery tag, sequence, count), ascending by tag, in parallel arrays."""

    __slots__ = ("counts", "sequences", "tags", "total")

    def __init__(self) -> None:
        self.tags = array("Q")
        self.sequences = array("Q")
        self.counts = array("I")
        self.total = 0

    def add(self, tag: int, sequence: int, count: int) -> None:
        self.total += count
        if self.tags:
            before = self.counts[-1]
            if self.tags[-1] + before == tag and self.sequences[-1] + before == sequence:
                self.counts[-1] = before + count
                return
        self.tags.append(tag)
        self.sequences.append(sequence)
        self.counts.append(count)

    def take_out(self, first: int, last: int) -> list[tuple[int, int]]:
        """Removes the tags first..last; what they stood for, as (sequence, count) in the order of the tags."""
        tags, sequences, counts = self.tags, self.sequences, self.counts
        i = max(bisect_right(tags, first) - 1, 0)
        if i < len(tags) and tags[i] + counts[i] <= first:
            i += 1
        j = bisect_right(tags, last, i)
        if i == j:
            return []
        out = list(zip(sequences[i:j], counts[i:j], strict=True))
        kept: list[tuple[int, int, int]] = []
        ahead = first - tags[i]
        behind = tags[j - 1] + counts[j - 1] - 1 - last
        if ahead > 0:
            sequence, count = out[0]
            kept.append((tags[i], sequence, ahead))
            out[0] = (sequence + ahead, count - ahead)
        if behind > 0:
            sequence, count = out[-1]
            kept.append((last + 1, sequence + count - behind, behind))
            out[-1] = (sequence, count - behind)
        tags[i:j] = array("Q", [tag for tag, _, _ in kept])
        sequences[i:j] = array("Q", [sequence for _, sequence, _ in kept])
        counts[i:j] = array("I", [count for _, _, count in kept])
        self.total -= sum(count for _, count in out)
        return out

    def take_out_all_of(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Removes the tags of many ranges (first, last); like `take_out` of each."""
        if len(ranges) < MANY_RANGES or len(ranges) * 128 < len(self.tags):
            return [pair for first, last in ranges for pair in self.take_out(first, last)]
        # One pass over everything: cheaper than moving the arrays' rest for every range.
        wanted = deque(sorted(ranges))
        before = Held()
        before.tags, before.sequences, before.counts = self.tags, self.sequences, self.counts
        self.tags, self.sequences, self.counts, self.total = array("Q"), array("Q"), array("I"), 0
        out: list[tuple[int, int]] = []
        for tag, sequence, count in zip(before.tags, before.sequences, before.counts, strict=True):
            place, end = tag, tag + count
            while place < end:
                while wanted and wanted[0][1] < place:
                    wanted.popleft()
                first, last = wanted[0] if wanted else (end, end)
                kept = min(max(first - place, 0), end - place)
                if kept:
                    self.add(place, sequence + place - tag, kept)
                    place += kept
                taken = min(last + 1, end) - place
                if taken > 0:
                    out.append((sequence + place - tag, taken))
                    place += taken
        return out

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """What the tags first..last stand for, as (sequence, count) in their order."""
        tags, sequences, counts = self.tags, self.sequences, self.counts
        found = []
        for place in range(max(bisect_right(tags, first) - 1, 0), bisect_right(tags, last)):
            skipped = max(first - tags[place], 0)
            count = min(tags[place] + counts[place] - 1, last) - tags[place] - skipped + 1
            if count > 0:
                found.append((sequences[place] + skipped, count))
        return found

    def take_all(self) -> list[tuple[int, int]]:
        out = list(zip(self.sequences, self.counts, strict=True))
        for column in (self.tags, self.sequences, self.counts):
            del column[:]
        self.total = 0
        return out


@dataclass(slots=True, eq=False)
class Consumer:
    """One attachment of a session to a queue."""

    producer: bytes
    tag: str  # "" for the session's own consumer of Get
    address: Address
    attach: int  # unique in the queue
    group: SelectorGroup | None  # None for Get, and once cancelled
    max_held: int
    credit_to: int = 0  # tags up to here may be handed out
    next_tag: int = 1
    held: Held = field(default_factory=Held)
    owner: int = UNKNOWN  # of its session

    @property
    def key(self) -> tuple[bytes, str]:
        return self.producer, self.tag

    @property
    def credit(self) -> int:
        """How many messages may be handed out to it now."""
        return max(0, min(self.credit_to + 1 - self.next_tag, self.max_held - self.held.total))


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """What a queue holds. total = ready + checked_out.

    first_sequence: of the oldest message, next_sequence if there is none.
    ready_bytes: estimated block by block from the mean size of the messages published into it.
    dropped: how many ever left because they expired, were rejected, failed too often, were too many (in this order).
    """

    ready: int
    checked_out: int
    total: int
    consumers: int
    first_sequence: int
    next_sequence: int
    ready_bytes: int
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    """opens: how often it was outstanding when its reader was opened. size_bytes is estimated."""

    offset: int
    index: int
    count: int
    size_bytes: int
    opens: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """A durable reader; `reservations` are those outstanding, ascending, `outstanding` their messages."""

    name: str
    generation: int
    settled: int
    last: int
    outstanding: int
    selector: bytes
    start_sequence: int
    last_seen_ms: int
    timeout_ms: int
    on_expiry: str
    has_untold_loss: bool
    reservations: tuple[ReservationInfo, ...]


@dataclass(frozen=True, slots=True)
class Portion:
    """Neighbours of a reservation. redelivered, delivery_counts: as in Deliver. opens: as in ReservationInfo. has_more:
    it ends early, since it has gone through many blocks."""

    runs: tuple[Run, ...]
    redelivered: int
    delivery_counts: tuple[tuple[int, int], ...]
    opens: int
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class PinInfo:
    """A pin, with what was pinned as Pinned says it. copy_bytes: what is kept for it of blocks that have changed."""

    pin: int
    index: int
    first_sequence: int
    end_sequence: int
    count: int
    made_ms: int
    expires_ms: int
    copy_bytes: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """One page of a look at what is ready. next_sequence: where to go on, None at the end."""

    runs: tuple[Run, ...]
    next_sequence: int | None
