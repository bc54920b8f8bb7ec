"""A queue's blocks by number. A *warm* block is in memory. A *cold* block is a `Stored`, whose page is read on demand.

`get` and `find` make the block warm. `at` returns the block as it is, warm or cold. `view` returns a block to read,
without making it warm. Blocks are paged out between entries only, because the machine keeps references to blocks while
it applies an entry. Which blocks are warm is local.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from sortedcontainers import SortedDict

from fifo.limits import Limits
from fifo.messages import bitsets
from fifo.messages.blocks import Block, Stored
from fifo.messages.pages import Pages, page_data, read_page, write_page
from fifo.stretches import slots_of
from quorum_selectors.summaries import summarise

MANY_RANGES = 64
"""Number of ranges from which numpy finds their blocks."""


def by_number(ranges: Sequence[tuple[int, int]], limits: Limits) -> dict[int, int]:
    """The slots of (sequence, count) ranges by the numbers of their blocks."""
    block_bits, block_size, slot_mask = limits.block_bits, limits.block_size, limits.slot_mask
    found: dict[int, int] = {}
    for sequence, count in ranges:
        first, rest = sequence, count
        while rest:
            slot = first & slot_mask
            taken = min(rest, block_size - slot)
            number = first >> block_bits
            found[number] = found.get(number, 0) | (((1 << taken) - 1) << slot)
            first += taken
            rest -= taken
    return found


class BlockMemory:
    """The limits, the pages and the memory counts that the blocks of a group's queues share.

    warm_bytes: of the measured blocks, which are all full ones, and others at their last measurement. loads, writes:
    numbers of pages so far.
    """

    __slots__ = ("limits", "loads", "pages", "warm_bytes", "writes")

    def __init__(self, pages: Pages, limits: Limits) -> None:
        self.pages = pages
        self.limits = limits
        self.warm_bytes = 0
        self.loads = 0
        self.writes = 0


class BlockStore:
    """The blocks of one queue."""

    __slots__ = ("_blocks", "_memory", "limits", "queue")

    def __init__(self, queue: int, memory: BlockMemory) -> None:
        self.queue = queue
        self._memory = memory
        self.limits = memory.limits
        self._blocks: SortedDict[int, Block | Stored] = SortedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    # ---- for the machine

    def get(self, number: int) -> Block:
        block = self._blocks[number]
        return block if type(block) is Block else self._load(block)

    def find(self, number: int) -> Block | None:
        block = self._blocks.get(number)
        return block if block is None or type(block) is Block else self._load(block)

    def _load(self, stored: Stored) -> Block:
        block = read_page(self._memory.pages, stored, self.limits.block_size)
        self._memory.loads += 1
        self._blocks[block.number] = block
        self.measure(block)
        return block

    def at(self, number: int) -> Block | Stored:
        """The block as it is here; both kinds know number, live, earliest, placed and size_bytes."""
        found: Block | Stored = self._blocks[number]
        return found

    def view(self, number: int) -> Block:
        """The block, read-only; a cold block stays cold."""
        block = self._blocks[number]
        if type(block) is Block:
            return block
        return read_page(self._memory.pages, block, self.limits.block_size)

    def add(self, block: Block | Stored) -> None:
        if self._blocks:
            before = self._blocks.peekitem(-1)[1]
            if type(before) is Block:  # it is full now, and will hardly grow
                self.measure(before)
        self._blocks[block.number] = block

    def drop(self, number: int) -> None:
        block = self._blocks.pop(number)
        if type(block) is Block:
            self._memory.warm_bytes -= block.measured

    def clear(self) -> None:
        for block in self.warm():
            self._memory.warm_bytes -= block.measured
        self._blocks.clear()

    def numbers(self, start: int = 0) -> list[int]:
        """The numbers of the blocks from `start` on, ascending."""
        return list(self._blocks.irange(start))

    def next_from(self, number: int) -> int | None:
        """The lowest number of a block at or above `number`."""
        return next(self._blocks.irange(number), None)

    def next_with_messages(self, number: int, tail: int) -> int | None:
        """The lowest block at or above `number` that has messages, not only pinned ones, or is `tail`, the last one."""
        block = self._blocks.get(number)
        if block is not None and (number == tail or block.live):
            return number  # as usual, and cheaper than a range
        for found in self._blocks.irange(number):
            if found == tail or self._blocks[found].live:
                return int(found)
        return None

    def of_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[Block, int]]:
        """The blocks and slots of (sequence, count) ranges."""
        if len(ranges) > MANY_RANGES:
            return self._of_many_ranges(ranges)
        if len(ranges) == 1 and ranges[0][1] == 1:  # as single messages are settled
            sequence, limits = ranges[0][0], self.limits
            return [(self.get(sequence >> limits.block_bits), 1 << (sequence & limits.slot_mask))]
        return [(self.get(number), members) for number, members in by_number(ranges, self.limits).items()]

    def _of_many_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[Block, int]]:
        limits, pairs = self.limits, np.array(ranges, dtype=np.int64)
        sequences = slots_of(pairs[:, 0], pairs[:, 1])
        sequences.sort()  # so that those of a block are neighbours: there may be many blocks
        numbers = sequences >> limits.block_bits
        starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        stops = [*starts[1:].tolist(), len(numbers)]
        slots = sequences & limits.slot_mask
        return [
            (self.get(number), bitsets.from_positions(slots[start:stop], limits.block_size))
            for number, start, stop in zip(numbers[starts].tolist(), starts.tolist(), stops, strict=True)
        ]

    # ---- for paging

    def measure(self, block: Block) -> None:
        """Updates the count of a warm block's bytes. A block that is only viewed does not count."""
        if self._blocks.get(block.number) is not block:
            return
        size = block.memory_bytes()
        self._memory.warm_bytes += size - block.measured
        block.measured = size

    def values(self) -> Iterator[Block | Stored]:
        """All blocks as they are here, ascending."""
        return iter(self._blocks.values())

    def latest(self) -> Iterator[Block | Stored]:
        """All blocks as they are here, descending."""
        return map(self._blocks.__getitem__, reversed(self._blocks))

    def find_warm(self, number: int) -> Block | None:
        """The block if it is here and warm."""
        block = self._blocks.get(number)
        return block if type(block) is Block else None

    def warm(self) -> list[Block]:
        return [block for block in self._blocks.values() if type(block) is Block]

    def page_of(self, stored: Stored) -> bytes | memoryview:
        """The bytes of a block's page."""
        return page_data(self._memory.pages, stored)

    def write(self, block: Block) -> Stored:
        """The record of a warm block's valid page, which is written if there is none."""
        if block.stored is not None:
            return block.stored
        if (
            block.number != self._blocks.peekitem(-1)[0]
        ):  # the summary of a block that is being filled would soon be outdated
            self._summarise(block)
        self._memory.writes += 1
        return write_page(self._memory.pages, self.queue, block)

    def page_out(self, number: int) -> None:
        """Makes a block cold."""
        block = self._blocks[number]
        if type(block) is Block:
            self._summarise(block)
            self._blocks[number] = self.write(block)
            self._memory.warm_bytes -= block.measured

    # ---- summaries

    def _summarise(self, block: Block) -> None:
        """Makes the summary of a block that has none. It stays valid while messages only leave."""
        columns = block.columns
        if block.summary or not block.has_fields:
            return
        block.summary = summarise(columns, bitsets.as_flags(block.selectable, columns.size).astype(bool))
        if block.stored is not None:
            block.stored = block.stored.with_summary(block.summary)
