"""What it costs to read the fields of messages from the log again, in steps of an entry's budget.

Whether a member has the fields in memory is local. So an entry pays for all that it passes, read or not, and the price
is a function of the replicated block alone. It is counted for the whole block and shared out evenly among its messages,
so a front may stop within a block. A cold block's price is kept beside its page, which is read once to find it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fifo import bits
from fifo.blocks import BLOCK_BITS, ONE_EACH, Block

if TYPE_CHECKING:
    from fifo.block_store import BlockStore
    from fifo.state import Budget

READ_STEPS = 1
"""A message of a batch: a tenth of a microsecond for a field or two."""

READ_SINGLE_STEPS = 24
"""A message that was published alone: three or four microseconds."""

READ_BATCH_STEPS = 192
"""A batch of several messages: some numpy calls for each of its fields, whatever its size."""

READ_ENTRY_STEPS = 96
"""A Raft entry: finding, reading and taking it apart."""

READ_BYTES = 1_024
"""Bytes of bodies that are read for a step: an entry is read and checked as a whole."""


FEWEST = 16
"""Evaluating a few messages costs about as much as evaluating this many."""


def block_cost(blocks: BlockStore, number: int) -> int:
    """The steps of reading the fields of all messages of a block."""
    found = blocks.at(number)
    if isinstance(found, Block):
        # Between two arrivals messages only leave: as many are the same ones.
        key = found.placed, found.live
        if found.read_cost is None or found.read_cost[:2] != key:
            found.read_cost = *key, cost_of(found, found.ready | found.held)
        return found.read_cost[2]
    if found.read_cost < 0:
        block = blocks.view(number)
        found.read_cost = cost_of(block, block.ready | block.held)
    return found.read_cost


def part_cost(whole: int, live: int, count: int) -> int:
    """Of the steps for a whole block with so many messages: those for `count` of them."""
    return -(-whole * min(count, live) // live) if live else 0


def newly_passed(budget: Budget, first: int, end: int) -> int:
    """How many of the sequences first .. end-1 of one block no front has passed before in this entry; notes them."""
    number = first >> BLOCK_BITS
    before = budget.read.get(number, 0)
    passed = bits.span(first - (number << BLOCK_BITS), end - first)
    budget.read[number] = before | passed
    return (passed & ~before).bit_count()


def within(block: Block, members: int, each: int, steps: int) -> tuple[int, int]:
    """Those of these messages that a look may evaluate for so many steps, the lowest, and what they cost. each: of a
    message, beside its fields if they are not in memory. For looks only: what is in memory is local."""
    missing = members if block.columns is None else members & ~block.columns.filled
    cost = members.bit_count() * each + cost_of(block, missing)
    if cost > steps:
        members = bits.lowest(members, max(members.bit_count() * steps // cost, FEWEST))
    return members, cost


def cost_of(block: Block, members: int) -> int:
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
    return (
        READ_SINGLE_STEPS * (count - batched)
        + READ_STEPS * batched
        + READ_BATCH_STEPS * _stretches(indexes[is_batch], operations[is_batch])
        + READ_ENTRY_STEPS * _stretches(indexes)
        + block.size_bytes * count // block.placed // READ_BYTES
    )


def _stretches(*columns: np.ndarray[tuple[int], np.dtype[Any]]) -> int:
    """How many stretches of neighbours have the same values in all columns."""
    if not len(columns[0]):
        return 0
    differs = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        differs |= column[1:] != column[:-1]
    return 1 + int(np.count_nonzero(differs))
