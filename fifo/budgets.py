"""One Raft entry while it is applied, and its remaining budgets.

A budget is a function of the entry and the replicated state, never of time. An entry has two budgets: one is shared by
all queues that its operations touch, the other by all queues that Wake continues.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fifo.effects import Effect
from fifo.limits import Limits
from fifo.versions import SHARED_BUDGETS

RUN_STEPS = 32
"""The cost of handing out a run, in steps, where steps are summed up."""

UNLIMITED = 1 << 62


@dataclass(slots=True)
class Left:
    """The remaining budget of an entry, in blocks, messages, runs and steps. A function of the entry and the state,
    never of time."""

    blocks: int
    messages: int
    runs: int
    steps: int
    arrivals: int
    moved: int = 0  # messages of reservations that were settled or released, and messages that timed out
    copies: int = 0  # blocks whose copies for pins were removed
    due: int = 0  # blocks with delayed messages that became ready
    finished: int = 0  # queues

    def spent(self, limits: Limits) -> int:
        """The steps of both kinds that were spent, and the cost of the runs that were handed out."""
        handed_out = max(limits.run_budget - self.runs, 0) * RUN_STEPS
        return limits.step_budget - self.steps + limits.arrival_budget - self.arrivals + handed_out

    @property
    def may_pass(self) -> bool:
        """Whether a scan may pass more messages."""
        return self.blocks > 0 and self.steps > 0

    def may_move(self, count: int, limits: Limits) -> bool:
        """Whether so many messages may be moved, beside those of this entry. If so, they are charged."""
        if self.moved and self.moved + count > limits.message_budget:
            return False
        self.moved += count
        return True

    @property
    def may_hand_out(self) -> bool:
        return self.messages > 0 and self.runs > 0

    @property
    def is_enough(self) -> bool:
        """Whether one more queue may be finished. The first queue always may."""
        return not self.finished or (self.may_pass and self.may_hand_out and self.arrivals > 0)


@dataclass(slots=True)
class Budget:
    """The remaining budget of an entry in one queue, and what the entry has paid for there."""

    left: Left
    read: dict[int, int] = field(
        default_factory=dict
    )  # by the block's first sequence: the slots whose fields were paid for
    reads_arrivals: bool = False  # some of this entry's arrivals were staged, and their fields were not read
    expired: dict[int, None] = field(default_factory=dict)  # blocks whose expired messages have been removed


class Entry:
    """One Raft entry while it is applied: its index, time and machine version, and its replies and effects.

    An entry has two budgets. All queues that its operations touch share `touched`, and all queues that Wake continues
    share `woken`, so neither keeps the other waiting. In version 1 each queue has a budget of its own.
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
        """Charges the rest of the work in a queue to the budget of Wake."""
        if self.woken is None:
            self.woken = whole_budget(self.version, self.limits)
        self.budget(queue).left = self.woken

    @property
    def steps(self) -> int:
        """The steps that the entry has spent."""
        limits = self.limits
        if self.version < SHARED_BUDGETS:
            return sum([budget.left.spent(limits) for budget in self.budgets.values()])
        return self.touched.spent(limits) + (0 if self.woken is None else self.woken.spent(limits))


def whole_budget(version: int, limits: Limits) -> Left:
    """The whole budget of an entry; in version 1, of one queue of an entry."""
    return Left(
        limits.block_budget,
        limits.message_budget,
        limits.run_budget if version >= SHARED_BUDGETS else UNLIMITED,
        limits.step_budget,
        limits.arrival_budget,
    )
