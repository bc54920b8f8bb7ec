"""Fronts of selector groups as simply as they can be said: sums over all groups (beside support/fifo_model.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING

from fifo import commands as c
from quorum_selectors import canonical
from quorum_selectors.expression import steps
from quorum_selectors.lookup_costs import LOOKUP_STEPS, cells

if TYPE_CHECKING:
    from support.fifo_model import Left, Line, ModelQueue

END = 1 << 62
"""The front of a group that shares the front of those that have seen everything."""


class ModelFronts:
    """`behind`: where the shared front is, if that is not the end of the queue."""

    def __init__(self, queue: ModelQueue) -> None:
        self.queue = queue
        self.behind: int | None = None
        self.entry = (0, 0)
        """index of the last entry in which messages came, and the first sequence of these"""

    def sharing(self) -> list[Line]:
        return [group for group in self.queue.groups.values() if group.front == END]

    def place(self, group: Line) -> int:
        """All below has been seen."""
        if group.front != END:
            return group.front
        return self.queue.next_sequence if self.behind is None else self.behind

    def steps_a_message(self, groups: list[Line]) -> int:
        loads: dict[Hashable, Counter[Hashable]] = {}
        for group in groups:
            tree = canonical.decode(group.selector)
            for family, cell in cells(tree):
                loads.setdefault(family, Counter())[cell] += steps(tree)
        return sum(LOOKUP_STEPS + max(counter.values()) for counter in loads.values())

    # ---- who shares the front

    def join(self, group: Line) -> None:
        costs = self.steps_a_message([*self.sharing(), group])
        if self.behind is None and costs <= self.queue.rules.shared_steps:
            group.front = END
        else:
            group.front = self.queue.next_sequence

    def leave(self, group: Line) -> None:
        group.front = self.place(group)
        if not self.sharing():
            self.behind = None

    # ---- how fronts move

    def stay(self, meta: c.Meta) -> None:
        """A message comes."""
        if self.entry[0] != meta.index:
            self.entry = meta.index, self.queue.next_sequence
        if self.behind is None and self.sharing():
            self.behind = self.queue.next_sequence

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
        while self.behind is not None and left.arrivals > 0:
            number = self.next_block(self.behind)
            if number is None:
                self.behind = None
                break
            first = max(self.behind, number * rules.block_size)
            last = min(end, (number + 1) * rules.block_size, first + max(left.arrivals // each, 1))
            if first < arrived_from or left.reads_arrivals:
                left.arrivals -= self.read_steps(left, number)
            left.arrivals -= max(min(last - first, self.live(number)), rules.fewest) * each
            self.behind = last if last < end else None

    def is_at_end(self, group: Line) -> bool:
        if group.front != END and self.next_block(group.front) is None:
            self.join(group)
            return True
        return group.front == END

    def pass_messages(self, left: Left, group: Line) -> bool:
        """Moves a front of its own; False if the budget forbids it."""
        rules = self.queue.rules
        number = self.next_block(group.front)
        assert number is not None
        if not left.blocks or left.steps <= 0:
            return False
        each = steps(canonical.decode(group.selector))
        first = max(group.front, number * rules.block_size)
        last = min(self.queue.next_sequence, (number + 1) * rules.block_size)
        live = self.live(number)
        if min(last - first, live) * each > rules.step_budget:
            last = first + max(rules.step_budget // each, 1)
        left.blocks -= 1
        left.steps -= min(last - first, live) * each + self.read_steps(left, number)
        group.front = last
        if last == self.queue.next_sequence:
            self.join(group)
        return True

    def read_steps(self, left: Left, number: int) -> int:
        """What reading the fields of a block costs, once in an entry."""
        queue, rules = self.queue, self.queue.rules
        live = self.live(number)
        if number in left.read:
            return 0
        left.read.add(number)
        if not live:
            return 0
        copied = [
            message
            for pin in queue.pins.pins + queue.pins.ended
            if number in pin.changed
            for message in pin.messages
        ]
        entries = {m.body[0] for m in queue.messages + copied if queue.block_of(m) == number}
        return (
            rules.read_steps * live + rules.read_entry_steps * len(entries) + 100 * live // rules.read_bytes
        )
