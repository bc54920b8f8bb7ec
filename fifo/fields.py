"""The filter fields of a block's messages: local, dropped at any moment, rebuilt from the log.

`block.columns` is either None or holds the fields of every message of the block that is here. Evaluation goes row by
row; it asks a window of neighbouring rows, which reads a column once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fifo import bits
from fifo.block_store import BlockStore
from fifo.blocks import BLOCK_BITS, BLOCK_SIZE, ONE_EACH, SLOT_MASK, Block
from fifo.state import FieldSource
from quorum_selectors.columns import BatchColumns, BlockColumns, decode

Condition = Callable[[Any], bool | None]

FEW = 4
"""Up to so many rows are asked one by one; above, a window over all of them is cheaper."""

_COUNT = slice(4, 8)


def batch_columns(data: bytes | memoryview) -> BatchColumns:
    """The columns of a whole batch; how many messages it has stands in their header."""
    return decode(data, int.from_bytes(data[_COUNT], "little"))


class Fields:
    """Fills and reads the columns of one queue's blocks."""

    __slots__ = ("_blocks", "_source", "_window", "_window_key")

    def __init__(self, source: FieldSource, blocks: BlockStore) -> None:
        self._source = source
        self._blocks = blocks
        self.forget_window()

    def forget_window(self) -> None:
        self._window_key = (-1, 0, 0)
        self._window: Any = None

    def arrived(
        self, blocks: BlockStore, sequence: int, batch: BatchColumns | None, fresh: Sequence[tuple[int, int]]
    ) -> None:
        """Keeps the fields of the messages (ordinal, count) of a batch, which stand from `sequence` on."""
        for first, count in fresh:
            ordinal, rest = first, count
            while rest:
                slot = sequence & SLOT_MASK
                taken = min(rest, BLOCK_SIZE - slot)
                block = blocks.get(sequence >> BLOCK_BITS)
                if block.columns is None and block.first_slot == slot:
                    block.columns = BlockColumns()
                if block.columns is not None and batch is not None:
                    block.columns.append(slot, batch, ordinal, taken)
                ordinal += taken
                sequence += taken
                rest -= taken

    def select(self, block: Block, condition: Condition, members: int) -> int:
        """Those of `members` (messages that are here) for which the condition is TRUE."""
        count = members.bit_count()
        if not count:
            return 0
        columns = self._columns(block)
        if count <= FEW:
            chosen = 0
            for slot in bits.members(members):
                if condition(columns.row(slot)) is True:
                    chosen |= 1 << slot
            return chosen
        first = (members & -members).bit_length() - 1
        width = members.bit_length() - first
        key = (block.number, first, width)
        if key != self._window_key:
            self._window = columns.window(first, width)
            self._window_key = key
        row = self._window.row
        places = np.flatnonzero(bits.as_flags(members >> first, width)).tolist()
        found = [place for place in places if condition(row(place)) is True]
        if not found:
            return 0
        return bits.from_positions(np.array(found, dtype=np.intp), width) << first

    def _columns(self, block: Block) -> BlockColumns:
        if block.columns is None:
            block.columns = self._rebuild(block)
            self._blocks.measure(block)
        columns: BlockColumns = block.columns
        return columns

    def _rebuild(self, block: Block) -> BlockColumns:
        columns = BlockColumns()
        live = block.ready | block.held
        runs = block.runs
        known: tuple[int, int] = (-1, -1)
        batch: BatchColumns | None = None
        for place, first in enumerate(runs.firsts):
            count, index, operation = runs.counts[place], runs.indexes[place], runs.operations[place]
            here = (live >> first) & ((1 << count) - 1)
            if not here:
                continue
            if runs.ordinals[place] == ONE_EACH:
                for offset in bits.members(here):
                    single = self._fetch(index, operation + offset)
                    if single is not None:
                        columns.append(first + offset, single, 0, 1)
                continue
            if known != (index, operation):
                known = (index, operation)
                batch = self._fetch(index, operation)
            if batch is not None:
                columns.append(first, batch, runs.ordinals[place], count)
        return columns

    def _fetch(self, index: int, operation: int) -> BatchColumns | None:
        data = self._source.columns(index, operation)
        return batch_columns(data) if len(data) else None
