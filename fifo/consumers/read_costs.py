"""What it costs to read the fields of messages from the log again, in steps of an entry's budget, and to evaluate them
where texts are long.

Whether a member has the fields in memory is local. So an entry pays for all that it passes, read or not, and the price
is a function of the replicated block alone. It is counted for the whole block and shared out evenly among its messages,
so a scan may stop within a block. A cold block's price is kept beside its page, which is read once to find it.

A step of evaluation looks at one text of `Limits.text_bytes` at most. A message of a batch with longer texts costs `1 +
factor` times as many. A block has one factor, the highest of its batches, and the slots of those that have any: what is
short costs what it always does. A batch's factor follows from the longest text of each of its fields, not from the
mean: so a few long texts are as dear among many short ones, and a text that all messages share is so for each of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fifo.budgets import Budget, Entry
from fifo.limits import Limits
from fifo.messages import bitsets
from fifo.messages.block_store import BlockStore
from fifo.messages.blocks import ONE_EACH, Block, Stored
from fifo.versions import PRICED_TEXTS
from quorum_selectors.columns import BatchColumns


def block_cost(blocks: BlockStore, number: int) -> int:
    """The steps of reading the fields of all messages of a block."""
    found = blocks.at(number)
    if isinstance(found, Block):
        # Between two arrivals messages only leave: as many are the same ones.
        key = found.placed, found.live
        if found.read_cost is None or found.read_cost[:2] != key:
            found.read_cost = *key, cost_of(found, found.ready | found.held, blocks.limits)
        return found.read_cost[2]
    _look_into(blocks, found)
    return found.read_cost


def _look_into(blocks: BlockStore, stored: Stored) -> None:
    """Notes what only the page of a cold block says, once."""
    if stored.read_cost < 0:
        block = blocks.view(stored.number)
        stored.read_cost = cost_of(block, block.ready | block.held, blocks.limits)
        stored.text_factor, stored.long_texts = block.text_factor, block.long_texts


def text_factor(entry: Entry, encoded: bytes | memoryview, columns: BatchColumns) -> int:
    """What the fields of a batch count for beyond the one of short texts; 0 in entries of version 1."""
    text_bytes = entry.limits.text_bytes
    if entry.version < PRICED_TEXTS or len(encoded) < text_bytes:
        return 0
    return columns.text_units(text_bytes)


class Prices:
    """What it costs to evaluate messages of a block. each: one with short texts."""

    __slots__ = ("_base", "_each", "_factor", "_live", "_long")

    def __init__(self, blocks: BlockStore, number: int, each: int) -> None:
        found = blocks.at(number)
        if not isinstance(found, Block):
            _look_into(blocks, found)
        self._base = number << blocks.limits.block_bits
        self._each = each
        self._live = found.live
        self._factor = found.text_factor
        self._long = found.long_texts

    @property
    def differ(self) -> bool:
        """Not all messages cost the same."""
        return self._factor > 0

    def of(self, first: int, end: int) -> int:
        """The steps for the sequences first .. end-1. It is not known here which of them are gone: as many count as
        there, and as long, as may be."""
        there = count = min(end - first, self._live)
        if self._factor:
            count += self._factor * min(
                (self._long & bitsets.span(first - self._base, end - first)).bit_count(), there
            )
        return count * self._each

    def reach(self, first: int, end: int, whole: int, steps: int) -> int:
        """Where so many steps lead from `first`, by one message at least. whole: for reading the whole block."""
        low, high = first + 1, end
        while low < high:
            middle = (low + high + 1) // 2
            there = min(middle - first, self._live)
            if self.of(first, middle) + part_cost(whole, self._live, there) <= steps:
                low = middle
            else:
                high = middle - 1
        return low


def part_cost(whole: int, live: int, count: int) -> int:
    """Of the steps for a whole block with so many messages: those for `count` of them."""
    return -(-whole * min(count, live) // live) if live else 0


def newly_passed(budget: Budget, base: int, first: int, end: int) -> int:
    """How many of the sequences first .. end-1 of the block that begins at `base` no scan has passed before in this
    entry; notes them."""
    before = budget.read.get(base, 0)
    passed = bitsets.span(first - base, end - first)
    budget.read[base] = before | passed
    return (passed & ~before).bit_count()


def within(block: Block, members: int, each: int, steps: int, limits: Limits) -> tuple[int, int]:
    """Those of these messages that a look may evaluate for so many steps, the lowest, and what they cost. each: of a
    message, beside its fields if they are not in memory. For looks only: what is in memory is local."""
    missing = members if block.columns is None else members & ~block.columns.filled
    cost = _evaluation(block, members, each) + cost_of(block, missing, limits)
    if cost > steps and members & block.long_texts:
        members = _affordable(block, members, each, max(steps, limits.fewest * each))
    elif cost > steps:
        members = bitsets.lowest(members, max(members.bit_count() * steps // cost, limits.fewest))
    return members, cost


def _evaluation(block: Block, members: int, each: int) -> int:
    """The steps of evaluating these messages. each: one with short texts."""
    return (members.bit_count() + block.text_factor * (members & block.long_texts).bit_count()) * each


def _affordable(block: Block, members: int, each: int, steps: int) -> int:
    """The lowest of these messages that can be evaluated for so many steps, one at least."""
    low, high = 1, members.bit_count()
    while low < high:
        middle = (low + high + 1) // 2
        if _evaluation(block, bitsets.lowest(members, middle), each) <= steps:
            low = middle
        else:
            high = middle - 1
    return bitsets.lowest(members, low)


def cost_of(block: Block, members: int, limits: Limits) -> int:
    """The steps of reading the fields of these messages of a block."""
    if not members:
        return 0
    runs = block.runs
    counts: np.ndarray[tuple[int], np.dtype[Any]] = np.frombuffer(runs.counts, dtype=np.uint16)
    if members.bit_count() != counts.sum():  # some are gone
        counts = runs.counted(members)
    is_read = counts > 0
    is_batch = np.frombuffer(runs.ordinals, dtype=np.uint32)[is_read] != ONE_EACH
    indexes = np.frombuffer(runs.indexes, dtype=np.uint64)[is_read]
    operations = np.frombuffer(runs.operations, dtype=np.uint32)[is_read]
    count = int(counts.sum())
    batched = int(counts[is_read][is_batch].sum())
    long_bytes = block.text_factor * (members & block.long_texts).bit_count() * limits.text_bytes
    return (
        limits.read_single_steps * (count - batched)
        + limits.read_steps * batched
        + limits.read_batch_steps * _stretches(indexes[is_batch], operations[is_batch])
        + limits.read_entry_steps * _stretches(indexes)
        + (block.size_bytes * count // block.placed + long_bytes) // limits.read_bytes
    )


def _stretches(*columns: np.ndarray[tuple[int], np.dtype[Any]]) -> int:
    """How many stretches of neighbours have the same values in all columns."""
    if not len(columns[0]):
        return 0
    differs = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        differs |= column[1:] != column[:-1]
    return 1 + int(np.count_nonzero(differs))
