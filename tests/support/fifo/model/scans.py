"""Fronts of selector groups as simply as they can be said: sums over all groups (beside group.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fifo import commands as c
from quorum_selectors.expression import steps
from quorum_selectors.lookup_costs import LOOKUP_STEPS, cells_of
from quorum_selectors.predicates import requirement
from support.fifo.model.records import tree_of

if TYPE_CHECKING:
    from support.fifo.model.queues import ModelQueue
    from support.fifo.model.records import Left, Line

END = 1 << 62
"""The front of a group that shares the front of those that have seen everything."""


class ModelFronts:
    """`behind`: where the shared front is, if that is not the end of the queue."""

    def __init__(self, queue: ModelQueue) -> None:
        self.queue = queue
        self.behind: int | None = None
        self.entry = (0, 0)
        """index of the last entry in which messages came, and the first sequence of these"""
        self.factors: dict[int, int] = {}
        self.long: set[int] = set()
        """by block, what long texts count for; and the sequences that have any"""

    def sharing(self) -> list[Line]:
        return [group for group in self.queue.groups.values() if group.scan_position == END]

    def sharing_with(self, priority: int) -> list[Line]:
        """Those with a consumer of this priority that has credit."""
        return [group for group in self.sharing() if group.of(priority)]

    def place(self, group: Line) -> int:
        """All below has been seen."""
        if group.scan_position != END:
            return group.scan_position
        return self.queue.next_sequence if self.behind is None else self.behind

    def steps_a_message(self, groups: list[Line]) -> int:
        loads: dict[Hashable, Counter[Hashable]] = {}
        for group in groups:
            tree = tree_of(group.selector)
            for family, cell in cells_of(requirement(tree)):
                loads.setdefault(family, Counter())[cell] += steps(tree)
        return sum(LOOKUP_STEPS + max(counter.values()) for counter in loads.values())

    # ---- who shares the front

    def join(self, group: Line) -> None:
        costs = self.steps_a_message([*self.sharing(), group])
        if self.behind is None and costs <= self.queue.rules.shared_steps:
            group.scan_position = END
        else:
            group.scan_position = self.queue.next_sequence

    def leave(self, group: Line) -> None:
        group.scan_position = self.place(group)
        if not self.sharing():
            self.behind = None

    # ---- how fronts move

    def stay(self, meta: c.Meta) -> None:
        """A message comes."""
        if self.entry[0] != meta.index:
            self.entry = meta.index, self.queue.next_sequence
        if self.behind is None and self.sharing():
            self.behind = self.queue.next_sequence

    def text_factor(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """What the messages of a batch count for beyond one each."""
        longest: dict[str, int] = {}
        for key, value in ((key, value) for row in rows for key, value in row.items()):
            if isinstance(value, str):
                longest[key] = max(longest.get(key, 0), len(value.encode()))
        return sum(length // self.queue.rules.text_bytes for length in longest.values())

    def note_texts(self, sequence: int, factor: int) -> None:
        """A message comes."""
        if factor:
            number = sequence // self.queue.rules.block_size
            self.factors[number] = max(self.factors.get(number, 0), factor)
            self.long.add(sequence)

    def evaluation(self, first: int, last: int, number: int, each: int) -> int:
        """What the messages first .. last-1 of a block cost: as many as may be there, and long if they may be."""
        there = min(last - first, self.live(number))
        long = min(len(self.long & set(range(first, last))), there)
        return (there + long * self.factors.get(number, 0)) * each

    def next_block(self, front: int) -> int | None:
        numbers = [n for n in self.queue.block_numbers() if n >= front // self.queue.rules.block_size]
        return numbers[0] if numbers and front < self.queue.next_sequence else None

    def live(self, number: int) -> int:
        return sum(self.queue.block_of(message) == number for message in self.queue.messages)

    def move(self, meta: c.Meta, left: Left) -> None:
        """The shared front."""
        rules, end = self.queue.rules, self.queue.next_sequence
        each = max(self.steps_a_message(self.sharing()), 1)
        arrived_from = self.entry[1] if self.entry[0] == meta.index else end
        while self.behind is not None and left.rest.snapshot_bodies > 0:
            number = self.next_block(self.behind)
            if number is None:
                self.behind = None
                break
            first = max(self.behind, number * rules.block_size)
            is_read = first < arrived_from or left.reads_arrivals
            last = self.reach(first, number, each, left.rest.snapshot_bodies, is_read=is_read)
            if is_read:
                left.rest.snapshot_bodies -= self.pay(left, first, last, number)
            left.rest.snapshot_bodies -= max(self.evaluation(first, last, number, each), rules.fewest * each)
            self.behind = last if last < end else None

    def is_at_end(self, group: Line) -> bool:
        if group.scan_position != END and self.next_block(group.scan_position) is None:
            self.join(group)
            return True
        return group.scan_position == END

    def pass_messages(self, left: Left, group: Line) -> bool:
        """Moves a front of its own; False if the budget forbids it."""
        rules = self.queue.rules
        number = self.next_block(group.scan_position)
        assert number is not None
        if not left.rest.blocks or left.rest.steps <= 0:
            return False
        each = steps(tree_of(group.selector))
        first = max(group.scan_position, number * rules.block_size)
        last = self.reach(first, number, each, left.rest.steps, is_read=True)
        left.rest.blocks -= 1
        left.rest.steps -= self.evaluation(first, last, number, each) + self.pay(left, first, last, number)
        group.scan_position = last
        if last == self.queue.next_sequence:
            self.join(group)
        return True

    def reach(self, first: int, number: int, each: int, steps: int, *, is_read: bool) -> int:
        """Where a front that is at `first` gets with so many steps."""
        rules = self.queue.rules
        last = min(self.queue.next_sequence, (number + 1) * rules.block_size)

        def cost(end: int) -> int:
            there = min(end - first, self.live(number))
            return self.evaluation(first, end, number, each) + (
                self.part_cost(number, there) if is_read else 0
            )

        if cost(last) <= steps:
            return last
        if number in self.factors:
            allowed = max(steps, rules.fewest * each)
            return max(end for end in range(first + 1, last + 1) if end == first + 1 or cost(end) <= allowed)
        there = min(last - first, self.live(number))
        return min(last, first + max(there * steps // cost(last), rules.fewest))

    def pay(self, left: Left, first: int, last: int, number: int) -> int:
        """What reading the fields of the messages first .. last-1 costs that are new in this entry."""
        new = set(range(first, last)) - left.read
        left.read |= new
        return self.part_cost(number, len(new))

    def part_cost(self, number: int, count: int) -> int:
        live = self.live(number)
        return -(-self.read_cost(number) * min(count, live) // live) if live else 0

    def read_cost(self, number: int) -> int:
        """What reading the fields of a whole block costs."""
        queue, rules = self.queue, self.queue.rules
        here = sorted(
            [message for message in queue.messages if queue.block_of(message) == number],
            key=lambda message: message.sequence,
        )
        singles = sum(message.is_alone for message in here)
        batches = len(list(groupby(message.body[:2] for message in here if not message.is_alone)))
        entries = len(list(groupby(message.body[0] for message in here)))
        long = sum(message.sequence in self.long for message in here)
        return (
            rules.read_single_steps * singles
            + rules.read_steps * (len(here) - singles)
            + rules.read_batch_steps * batches
            + rules.read_entry_steps * entries
            + (100 * len(here) + long * self.factors.get(number, 0) * rules.text_bytes) // rules.read_bytes
        )
