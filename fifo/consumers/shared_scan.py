"""The scan position that all caught-up selector groups share, and the cost of advancing scan positions.

An arrival is looked up once for all these groups, in an index over their predicates. The entry's budget for arrivals
pays for that. The shared scan position advances as far as this budget allows. If it does not reach the end, it stays
*behind*, and later entries continue from there. The cost of a message is computed from the groups' trees
(`LookupCosts`), never from what an index finds. A group whose selector would make this cost too high does not join: it
keeps a scan position of its own.

Entries of version 1 have no such budget: there the shared scan position is always at the end.
"""

from __future__ import annotations

from fifo.budgets import Budget, Entry
from fifo.consumers.consumer import SelectorGroup
from fifo.consumers.read_costs import Prices, block_cost, newly_passed, part_cost
from fifo.messages.messages import Messages
from fifo.versions import BUDGETED_ARRIVALS
from quorum_selectors.lookup_costs import LookupCosts

CAUGHT_UP = 1 << 62
"""The scan position of a group that takes part in the shared scan. A snapshot stores CAUGHT_UP plus the
distance from the shared scan position to the end of the queue."""


class SharedScan:
    """The shared scan of a queue. behind: the first sequence that is not looked up; None if there is none, or no group
    shares the scan."""

    __slots__ = ("_costs", "_messages", "behind")

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._costs: LookupCosts[bytes] = LookupCosts()
        self.behind: int | None = None

    @property
    def place(self) -> int:
        """The sequence below which all messages have been looked up."""
        return self._messages.next_sequence if self.behind is None else self.behind

    @property
    def steps(self) -> int:
        """The steps of looking up one message with short texts for all groups that share the scan."""
        return self._costs.steps

    # ---- the groups that share it

    def join(self, group: SelectorGroup, entry: Entry) -> bool:
        """Lets a group share the scan. False if the cost of all selectors together would be too high (from
        version 2 on), or if the shared scan is behind."""
        if self.behind is not None:
            return False
        self._costs.add(group.selector, group.decoded.filed)
        if entry.version >= BUDGETED_ARRIVALS and self._costs.steps > entry.limits.shared_steps:
            self._costs.remove(group.selector)
            return False
        group.scan_position = CAUGHT_UP
        return True

    def leave(self, group: SelectorGroup, front: int) -> None:
        """Gives a group that shares the scan a scan position of its own."""
        self._costs.remove(group.selector)
        group.scan_position = front
        if not len(self._costs):
            self.behind = None

    # ---- its position

    def stay(self) -> None:
        """Keeps the scan position when messages arrive: they are looked up at the end of the entry."""
        if self.behind is None and len(self._costs):
            self.behind = self._messages.next_sequence

    def move(self, entry: Entry) -> None:
        """Moves the scan position towards the end, as far as the budget allows."""
        messages, end = self._messages, self._messages.next_sequence
        if entry.version < BUDGETED_ARRIVALS:
            self.behind = None
        budget = entry.budget(messages.queue)
        arrived_from = entry.arrived_from.get(messages.queue, end)
        each = max(self._costs.steps, 1)
        block_bits, fewest = messages.limits.block_bits, messages.limits.fewest
        while self.behind is not None and budget.left.arrivals > 0:
            number = messages.blocks.next_with_messages(self.behind >> block_bits, end >> block_bits)
            if number is None or number << block_bits >= end:
                self.behind = None
                break
            first = max(self.behind, number << block_bits)
            is_read = first < arrived_from or budget.reads_arrivals
            last, evaluation, reading = _pass(
                messages, budget, first, each, budget.left.arrivals, is_read=is_read
            )
            budget.left.arrivals -= max(evaluation, fewest * each) + reading
            self.behind = last if last < end else None

    # ---- in a snapshot

    def encode(self, front: int) -> int:
        """A selector group's scan position as the number that a snapshot stores."""
        return front if front != CAUGHT_UP else CAUGHT_UP + self._messages.next_sequence - self.place

    def decode(self, group: SelectorGroup, front: int) -> None:
        """Gives a group the scan position that `encode` wrote."""
        group.scan_position = min(front, CAUGHT_UP)
        if front >= CAUGHT_UP:
            self._costs.add(group.selector, group.decoded.filed)
            if front > CAUGHT_UP:
                self.behind = self._messages.next_sequence - (front - CAUGHT_UP)


def pass_messages(messages: Messages, budget: Budget, front: int, number: int, each: int) -> int:
    """Charges a group's own scan for the next messages of a block. Returns its new scan position."""
    first = max(front, number << messages.limits.block_bits)
    end, evaluation, reading = _pass(messages, budget, first, each, budget.left.steps, is_read=True)
    budget.left.steps -= evaluation + reading
    return end


def _pass(
    messages: Messages, budget: Budget, first: int, each: int, steps: int, *, is_read: bool
) -> tuple[int, int, int]:
    """The sequence that `steps` steps reach in the block of `first`, and the steps of evaluating the messages up to
    there and of reading their fields. However few the steps are, the scan passes `Limits.fewest` messages; where texts
    are long it may pass fewer, but at least one. each: the steps for a message with short texts. is_read: the fields
    may have to be read, too."""
    block_bits, fewest = messages.limits.block_bits, messages.limits.fewest
    number = first >> block_bits
    live = messages.blocks.at(number).live
    whole = block_cost(messages.blocks, number) if is_read else 0
    prices = Prices(messages.blocks, number, each)
    end = min(messages.next_sequence, (number + 1) << block_bits)
    there = min(end - first, live)
    cost = prices.of(first, end) + part_cost(whole, live, there)
    if cost > steps and prices.differ:
        end = prices.reach(first, end, whole, max(steps, fewest * each))
    elif cost > steps:
        end = min(end, first + max(there * steps // cost, fewest))
    reading = part_cost(whole, live, newly_passed(budget, number << block_bits, first, end)) if is_read else 0
    return end, prices.of(first, end), reading
