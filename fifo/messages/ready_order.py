"""The order in which the ready messages of a queue are handed out: an index over its blocks.

Both orders are over the same messages in the same blocks. The queue's configuration decides which one it has.

- `SequenceOrder`: the lowest sequence first. It has one entry for each block with ready messages.
- `PriorityOrder`: the highest priority first, and of one priority the lowest sequence. A block is aligned by sequence
  over all priorities. Its `levels` say which of its messages have which priority, as long as they are in the queue. The
  index has one entry for each block and each priority of its ready messages.

A requeued message has the priority and the sequence that it had before, and therefore its old place.

Some readers need ready messages by sequence, whatever the queue's order is: reservations, pins and views. They use
`by_sequence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from sortedcontainers import SortedList

from fifo.commands import QueueConfig
from fifo.messages import bitsets
from fifo.messages.blocks import Block, Stored


class ReadyOrder(Protocol):
    """The order of a queue's ready messages. `Messages` reports every change, when the block has changed already."""

    has_priorities: bool

    @property
    def by_sequence(self) -> SequenceOrder:
        """The same messages by sequence."""
        ...

    # ---- changes

    def arrived(self, block: Block, members: int, slot: int, priorities: bytes | memoryview) -> None:
        """New messages of a block are ready, in neighbouring slots from `slot` on. priorities: one for all, or one each
        and perhaps more; empty: 0."""
        ...

    def note_priorities(self, block: Block, members: int, slot: int, priorities: bytes | memoryview) -> None:
        """New messages of a block are not ready yet. The arguments are those of `arrived`."""
        ...

    def requeued(self, block: Block, members: int) -> None:
        """Messages of a block are ready that have been in the queue before, or whose priorities are noted."""
        ...

    def left(self, block: Block, members: int) -> None:
        """Messages of a block are not ready any more."""
        ...

    def block_left(self, block: Stored) -> None:
        """All messages of a cold block have left."""
        ...

    def restored(self, block: Block | Stored) -> None:
        """A block was read from a snapshot or checkpoint."""
        ...

    # ---- questions

    def first(self, start: int) -> int | None:
        """The block with the message that is next; None if no message is ready. start: the first block that counts, of
        an order by sequence; another order has no use for it."""
        ...

    def next_of(self, block: Block) -> int:
        """The ready messages of the first block that are next, before those of any other block."""
        ...

    def last_wanted(self) -> int:
        """The block with the message that a full queue drops first. There is a ready message."""
        ...

    def least_of(self, block: Block) -> int:
        """The ready messages of that block that a full queue drops first."""
        ...


class SequenceOrder:
    """The order of a queue without priorities."""

    __slots__ = ("numbers",)

    has_priorities = False

    def __init__(self) -> None:
        self.numbers: SortedList[int] = SortedList()
        """the blocks with ready messages"""

    @property
    def by_sequence(self) -> SequenceOrder:
        return self

    def arrived(self, block: Block, members: int, slot: int, priorities: bytes | memoryview) -> None:
        if block.ready == members:
            self.numbers.add(block.number)

    def note_priorities(self, block: Block, members: int, slot: int, priorities: bytes | memoryview) -> None:
        pass

    def requeued(self, block: Block, members: int) -> None:
        if block.ready == members:
            self.numbers.add(block.number)

    def left(self, block: Block, members: int) -> None:
        if not block.ready:
            self.numbers.remove(block.number)

    def block_left(self, block: Stored) -> None:
        self.numbers.remove(block.number)

    def restored(self, block: Block | Stored) -> None:
        if block.ready_count:
            self.numbers.add(block.number)

    def first(self, start: int) -> int | None:
        place = self.numbers.bisect_left(start) if start else 0
        if place == len(self.numbers):
            return None
        number: int = self.numbers[place]
        return number

    def next_of(self, block: Block) -> int:
        return block.ready

    def last_wanted(self) -> int:
        number: int = self.numbers[0]
        return number

    def least_of(self, block: Block) -> int:
        return block.ready


class PriorityOrder:
    """The order of a queue with priorities 0 to `max_priority`."""

    __slots__ = ("by_sequence", "index", "max_priority")

    has_priorities = True

    def __init__(self, max_priority: int) -> None:
        self.max_priority = max_priority
        self.by_sequence = SequenceOrder()
        self.index: SortedList[tuple[int, int]] = SortedList()
        """(-priority, block) of the ready messages"""

    def arrived(self, block: Block, members: int, slot: int, priorities: bytes | memoryview) -> None:
        self.by_sequence.arrived(block, members, slot, priorities)
        before, levels = block.ready ^ members, block.levels
        for priority, some in self._by_priority(members, slot, priorities):
            level = levels.get(priority, 0)
            levels[priority] = level | some
            if not level & before:
                self.index.add((-priority, block.number))

    def note_priorities(self, block: Block, members: int, slot: int, priorities: bytes | memoryview) -> None:
        levels = block.levels
        for priority, some in self._by_priority(members, slot, priorities):
            levels[priority] = levels.get(priority, 0) | some

    def _by_priority(self, members: int, slot: int, priorities: bytes | memoryview) -> list[tuple[int, int]]:
        """Neighbouring messages as (priority, messages)."""
        if len(priorities) < 2 or not members & (members - 1):
            return [(min(priorities[0], self.max_priority) if len(priorities) else 0, members)]
        each = np.frombuffer(priorities, dtype=np.uint8, count=members.bit_count())
        each = np.minimum(each, self.max_priority)
        return [
            (priority, bitsets.from_flags(each == priority) << slot)
            for priority in np.flatnonzero(np.bincount(each)).tolist()
        ]

    def requeued(self, block: Block, members: int) -> None:
        self.by_sequence.requeued(block, members)
        before = block.ready ^ members
        for priority, level in levels_of(block, members):
            if not level & before:
                self.index.add((-priority, block.number))

    def left(self, block: Block, members: int) -> None:
        self.by_sequence.left(block, members)
        for priority, level in levels_of(block, members):
            if not level & block.ready:
                self.index.remove((-priority, block.number))

    def block_left(self, block: Stored) -> None:
        self.by_sequence.block_left(block)
        for priority, _ in block.ready_levels:
            self.index.remove((-priority, block.number))

    def restored(self, block: Block | Stored) -> None:
        self.by_sequence.restored(block)
        for priority, _ in block.ready_levels:
            self.index.add((-priority, block.number))

    def first(self, start: int) -> int | None:
        if not self.index:
            return None
        number: int = self.index[0][1]
        return number

    def next_of(self, block: Block) -> int:
        return block.ready & block.levels[-self.index[0][0]]

    def last_wanted(self) -> int:
        lowest = self.index[-1][0]
        number: int = self.index[self.index.bisect_left((lowest, -1))][1]
        return number

    def least_of(self, block: Block) -> int:
        return block.ready & block.levels[-self.index[-1][0]]


def levels_of(block: Block, members: int) -> Iterator[tuple[int, int]]:
    """The priorities of some messages of a block, each with all messages of the block that have it."""
    for priority, level in block.levels.items():
        some = level & members
        if some:
            yield priority, level
            members ^= some
            if not members:
                return


def order_of(config: QueueConfig) -> ReadyOrder:
    """The order of a queue with this configuration, without messages."""
    return SequenceOrder() if config.max_priority < 0 else PriorityOrder(config.max_priority)


def of_each(priorities: bytes | memoryview, first: int) -> bytes | memoryview:
    """The priorities of the messages from `first` on of a batch, which has one for all, or one each. Nothing is
    copied: each message may be asked for."""
    return memoryview(priorities)[first:] if first and len(priorities) > 1 else priorities
