"""The cost of reading the fields of messages from the log, and of evaluating long texts, in steps of an entry's budget.

Whether a member has the fields in memory is local. An entry therefore pays for all messages that it passes, read or
not, and the price is a function of the replicated block alone. The price is counted for the whole block and shared out
evenly among its messages, so a scan may stop within a block. A cold block's price is kept beside its page, which is
read once to find it.

A step of evaluation reads one text of `Limits.text_bytes` at most. A message of a batch with longer texts costs `1 +
factor` times as many steps. A block has one factor, the highest of its batches, and a bit set of the slots of batches
with long texts; other messages keep their usual cost. A batch's factor is computed from the longest text of each of its
fields, not from the mean. A few long texts therefore cost as much among many short ones, and a text that all messages
share counts for each of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fifo.budgets import Budget, Entry
from fifo.limits import Limits
from fifo.messages import bitsets
from fifo.messages.block_store import BlockStore
from fifo.messages.blocks import Block, Stored
from fifo.messages.runs import ONE_EACH
from fifo.versions import PRICED_TEXTS
from quorum_selectors.columns import BatchColumns


def block_cost(blocks: BlockStore, number: int) -> int:
    """The steps of reading the fields of all messages of a block."""
    found = blocks.at(number)
    if isinstance(found, Block):
        # Between two arrivals messages only leave, so an equal number of messages means the same messages.
        key = found.placed, found.live
        if found.read_cost is None or found.read_cost[:2] != key:
            found.read_cost = *key, cost_of(found, found.present, blocks.limits)
        return found.read_cost[2]
    _look_into(blocks, found)
    return found.read_cost


def _look_into(blocks: BlockStore, stored: Stored) -> None:
    """Notes the costs that only the page of a cold block says, once."""
    if stored.read_cost < 0:
        block = blocks.view(stored.number)
        stored.read_cost = cost_of(block, block.present, blocks.limits)
        stored.text_factor, stored.long_texts = block.text_factor, block.long_texts


def text_factor(entry: Entry, encoded: bytes | memoryview, columns: BatchColumns) -> int:
    """The text factor of a batch: its extra cost per message, as a multiple of that of short texts; 0 in entries of
    version 1."""
    text_bytes = entry.limits.text_bytes
    if entry.version < PRICED_TEXTS or len(encoded) < text_bytes:
        return 0
    return columns.text_units(text_bytes)


class Prices:
    """The cost of evaluating messages of a block. each: the steps for a message with short texts."""

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
        """Whether messages of the block may differ in cost."""
        return self._factor > 0

    def of(self, first: int, end: int) -> int:
        """The most steps that the sequences first .. end-1 may cost. Which of them are gone is not known here, so the
        largest possible number of messages, and of long texts, is counted."""
        there = count = min(end - first, self._live)
        if self._factor:
            count += self._factor * min(
                (self._long & bitsets.span(first - self._base, end - first)).bit_count(), there
            )
        return count * self._each

    def reach(self, first: int, end: int, whole: int, steps: int) -> int:
        """The sequence that a scan reaches from `first` with `steps` steps, at least one message further. whole: the
        steps of reading the whole block."""
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
    """The share of `count` messages in the steps for a whole block with `live` messages."""
    return -(-whole * min(count, live) // live) if live else 0


def newly_passed(budget: Budget, base: int, first: int, end: int) -> int:
    """The number of the sequences first .. end-1 that no scan has passed before in this entry; notes them. base: the
    first sequence of their block."""
    before = budget.read.get(base, 0)
    passed = bitsets.span(first - base, end - first)
    budget.read[base] = before | passed
    return (passed & ~before).bit_count()


def within(block: Block, members: int, each: int, steps: int, limits: Limits) -> tuple[int, int]:
    """The lowest of these messages that a query may evaluate for `steps` steps, and the cost of all of them. each: the
    steps for a message with short texts, without reading its fields. For queries only, because the cost depends on what
    is in memory, which is local."""
    missing = members if block.columns is None else members & ~block.columns.filled
    cost = _evaluation(block, members, each) + cost_of(block, missing, limits)
    if cost > steps and members & block.long_texts:
        members = _affordable(block, members, each, max(steps, limits.fewest * each))
    elif cost > steps:
        members = bitsets.lowest(members, max(members.bit_count() * steps // cost, limits.fewest))
    return members, cost


def _evaluation(block: Block, members: int, each: int) -> int:
    """The steps of evaluating these messages. each: the steps for a message with short texts."""
    return (members.bit_count() + block.text_factor * (members & block.long_texts).bit_count()) * each


def _affordable(block: Block, members: int, each: int, steps: int) -> int:
    """The lowest of these messages that can be evaluated for `steps` steps, at least one."""
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
    """The number of stretches of neighbours with the same values in all columns."""
    if not len(columns[0]):
        return 0
    differs = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        differs |= column[1:] != column[:-1]
    return 1 + int(np.count_nonzero(differs))
