"""The filter fields of a block's messages. They are local, may be dropped at any moment, and are read again from the
log.

`block.columns` holds the fields of the messages that have arrived since it was dropped, and of those that a scan or a
view has asked for. A scan that stops within a block reads no fields beyond that place. A few messages are evaluated one
by one; many are evaluated together, column by column.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from fifo.consumers.consumer import SelectorGroup
from fifo.consumers.selector import Selector
from fifo.messages import bitsets
from fifo.messages.block_store import BlockStore
from fifo.messages.blocks import Block
from fifo.messages.runs import ONE_EACH, Runs
from quorum_selectors import vectorised
from quorum_selectors.columns import BatchColumns, BlockColumns, decode
from quorum_selectors.predicates import PredicateIndex
from quorum_selectors.single_columns import decode_singles

READ_FIELD_BYTES = 1 << 20
"""Encoded fields that are decoded together."""

_COUNT = slice(4, 8)
_NO_BLOCK = -2
"""In place of a block's number: the messages are in no block."""


@lru_cache(maxsize=8)
def _no_fields(count: int) -> BatchColumns:
    """The columns of `count` messages without fields."""
    return BatchColumns(count, 1)


def batch_columns(data: bytes | memoryview) -> BatchColumns:
    """The columns of a whole batch. Their header says the number of messages."""
    return decode(data, int.from_bytes(data[_COUNT], "little"))


class Rows:
    """The places of ordinals among the messages of a target."""

    __slots__ = ("_before", "_firsts")

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._firsts = [first for first, _ in ranges]
        self._before: list[int] = []
        total = 0
        for _, count in ranges:
            self._before.append(total)
            total += count

    def of(self, ordinal: int) -> int:
        """The place of an ordinal that is the target's."""
        place = bisect_right(self._firsts, ordinal) - 1
        return self._before[place] + ordinal - self._firsts[place]


class FieldSource(Protocol):
    """Reads the columns of an Enqueue or Stage from the log."""

    def columns(self, index: int, operation: int, queue: int) -> StoredFields:
        """The columns of its messages for this queue."""


StoredFields = tuple[bytes | memoryview, Sequence[tuple[int, int]]]
"""Columns, and the (ordinal, count) ranges of their messages in the batch; no ranges where they are all messages."""


class Fields:
    """Fills and reads the columns of one queue's blocks."""

    __slots__ = ("_blocks", "_laid", "_laid_key", "_limits", "_no_fields", "_source", "evaluated")

    def __init__(self, source: FieldSource, blocks: BlockStore) -> None:
        self._source = source
        self._blocks = blocks
        self._limits = blocks.limits
        self._no_fields = _no_fields(blocks.limits.block_size)
        self.evaluated = 0
        """Number of evaluations: one for each message and selector."""
        self.forget_laid()

    def forget_laid(self) -> None:
        """Drops what was laid out for several selectors, because the columns of its block change or are dropped."""
        self._laid_key = (-1, 0, 0)
        self._laid: vectorised.Messages | None = None

    def arrived(
        self, blocks: BlockStore, sequence: int, batch: BatchColumns | None, fresh: Sequence[tuple[int, int]]
    ) -> None:
        """Keeps the fields of the messages (ordinal, count) of a batch, whose sequences begin at `sequence`."""
        self.forget_laid()
        limits, empty = self._limits, self._no_fields
        for first, count in fresh:
            ordinal, rest = first, count
            while rest:
                slot = sequence & limits.slot_mask
                taken = min(rest, limits.block_size - slot)
                block = blocks.get(sequence >> limits.block_bits)
                if block.columns is None or block.columns.nbytes > limits.column_bytes:
                    block.columns = self._new_columns()
                block.columns.append(slot, *((empty, 0) if batch is None else (batch, ordinal)), taken)
                ordinal += taken
                sequence += taken
                rest -= taken

    def select(self, block: Block, selector: Selector, members: int) -> int:
        """The messages of `members` (all in the queue) for which the selector is TRUE."""
        chosen = 0
        for columns, part in self._parts(block, members):
            chosen |= self._select(block.number, columns, selector, part)
        return chosen

    def _select(self, number: int, columns: BlockColumns, selector: Selector, members: int) -> int:
        """The same, where the fields of all `members` are in the columns of a block, which has this number."""
        self.evaluated += members.bit_count()
        if members.bit_count() > self._limits.few_messages:
            messages, first = self._messages(number, columns, members)
            flags = vectorised.select(selector.tree, messages)
            return (bitsets.from_flags(flags) << first) & members
        chosen, condition = 0, selector.condition
        for slot in bitsets.members(members):
            if condition(columns.row(slot)) is True:
                chosen |= 1 << slot
        return chosen

    def matches(
        self,
        batch: BatchColumns | None,
        rows: Sequence[tuple[int, int]],
        index: PredicateIndex[bytes],
        groups: Mapping[bytes, SelectorGroup],
        others: Iterable[SelectorGroup],
    ) -> dict[bytes, int]:
        """Which messages of a batch that is not in the queue the selectors match: those that are both in the index and
        in `groups`, and `others`. rows: the messages (row, count) in the fields of the batch. The messages that a
        selector matches are a set of places among the rows."""
        total = sum([count for _, count in rows])
        columns = BlockColumns(total, self._limits.dense_columns)
        place = 0
        for row, count in rows:
            found = (_no_fields(count), 0) if batch is None else (batch, row)
            columns.append(place, *found, count)
            place += count
        self.forget_laid()
        members = bitsets.span(0, total)
        made: dict[bytes, int] = {}
        for token, chosen in self._look_up(_NO_BLOCK, columns, index, groups, members):
            made[token] = made.get(token, 0) | chosen
        for group in others:
            if chosen := self._select(_NO_BLOCK, columns, group.decoded, members):
                made[group.selector] = chosen
        self.forget_laid()
        return made

    def look_up(
        self, block: Block, index: PredicateIndex[bytes], groups: Mapping[bytes, SelectorGroup], members: int
    ) -> Iterator[tuple[bytes, int]]:
        """Of the selectors that are both in the index and in `groups`, those that are TRUE for some of `members` (all
        in the queue), and for which. A selector may occur several times, with different messages."""
        for columns, part in self._parts(block, members):
            yield from self._look_up(block.number, columns, index, groups, part)

    def _look_up(
        self,
        number: int,
        columns: BlockColumns,
        index: PredicateIndex[bytes],
        groups: Mapping[bytes, SelectorGroup],
        members: int,
    ) -> Iterator[tuple[bytes, int]]:
        """The same, where the fields of all `members` are in the columns of a block, which has this number."""
        if members.bit_count() <= self._limits.few_messages:
            yield from self._look_up_each(columns, index, groups, members).items()
            return
        for token, named in self._candidates(number, columns, index, members):
            group = groups.get(token)
            if group is not None and (chosen := self._select(number, columns, group.decoded, named)):
                yield token, chosen

    def _look_up_each(
        self,
        columns: BlockColumns,
        index: PredicateIndex[bytes],
        groups: Mapping[bytes, SelectorGroup],
        members: int,
    ) -> dict[bytes, int]:
        """The same, message by message: arrays cost more for a few."""
        found: dict[bytes, int] = {}
        for slot in bitsets.members(members):
            row = columns.row(slot)
            for token in (*index.rest, *index.named(row)):
                group = groups.get(token)
                if group is None:
                    continue
                self.evaluated += 1
                if group.decoded.condition(row) is True:
                    found[token] = found.get(token, 0) | 1 << slot
        return found

    def _candidates(
        self, number: int, columns: BlockColumns, index: PredicateIndex[bytes], members: int
    ) -> Iterator[tuple[bytes, int]]:
        """The selectors of an index that may be TRUE, and for which of `members`, whose fields are in `columns`."""
        for token in list(index.rest):
            yield token, members
        messages, first = self._messages(number, columns, members)
        for token, arrays in index.candidates(messages).items():
            places = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            named = (bitsets.from_positions(places, members.bit_length() - first) << first) & members
            if named:
                yield token, named

    def _messages(self, number: int, columns: BlockColumns, part: int) -> tuple[vectorised.Messages, int]:
        """A part of the messages, laid out once for several selectors in turn, and the slot of the first message."""
        first = bitsets.first(part)
        width = part.bit_length() - first
        key = (number, first, width)
        if self._laid is None or key != self._laid_key:
            self._laid = vectorised.Messages(columns, first, width)
            self._laid_key = key
        return self._laid, first

    def _parts(self, block: Block, members: int) -> Iterable[tuple[BlockColumns, int]]:
        """The columns of a block, with the fields of all these messages or of one part after the other."""
        columns = block.columns
        if columns is not None and not members & ~columns.filled:
            return ((columns, members),)  # as usual: the fields are in memory
        return self._read_parts(block, members)

    def _read_parts(self, block: Block, members: int) -> Iterator[tuple[BlockColumns, int]]:
        while members:
            columns = self.columns(block, members)
            part = members & columns.filled
            yield columns, part
            members ^= part

    def columns(self, block: Block, members: int) -> BlockColumns:
        """The columns of a block with the fields of these messages, read from the log if they are not in memory. Where
        they would take too much memory, only those of the first messages."""
        columns: BlockColumns = self._new_columns() if block.columns is None else block.columns
        missing = members & ~columns.filled
        most_bytes = self._limits.column_bytes
        if missing and columns.nbytes > most_bytes:
            columns = self._new_columns()
            missing = members
        if missing:
            block.columns = columns
            self.forget_laid()
        while missing:
            self._read(block, columns, bitsets.first(missing), missing.bit_length())
            missing &= ~columns.filled
            self._blocks.measure(block)
            if columns.nbytes > most_bytes:
                break
        return columns

    def _new_columns(self) -> BlockColumns:
        return BlockColumns(self._limits.block_size, self._limits.dense_columns)

    def _read(self, block: Block, columns: BlockColumns, start: int, end: int) -> None:
        """Reads the missing fields of the slots start .. end-1, or of the first ones. Every batch is read once, in the
        order of the log. Batches of one message are decoded together."""
        runs, missing = (
            block.runs,
            block.selectable & bitsets.span(start, end - start) & ~columns.filled,
        )
        singles: dict[int, bytes | memoryview] = {}
        size, most_singles = 0, self._limits.read_singles
        batches: list[tuple[int, int, int]] = []
        for place in range(bisect_right(runs.firsts, start) - 1, len(runs)):
            first = runs.firsts[place]
            if first >= end or len(singles) >= most_singles or size > READ_FIELD_BYTES:
                break
            here = (missing >> first) & ((1 << runs.counts[place]) - 1)
            if not here:
                continue
            if runs.ordinals[place] != ONE_EACH:
                batches.append((place, bitsets.first(here), here.bit_length()))
                continue
            index, operation = runs.indexes[place], runs.operations[place]
            for offset in bitsets.members(bitsets.lowest(here, most_singles - len(singles))):
                found, _ = self._source.columns(index, operation + offset, self._blocks.queue)
                singles[first + offset] = found
                size += len(found)
                if size > READ_FIELD_BYTES:
                    break
        self._append_batches(columns, runs, batches)
        if singles:
            first, count = min(singles), max(singles) - min(singles) + 1
            together = decode_singles([singles.get(slot, b"") for slot in range(first, first + count)])
            others = missing & ~bitsets.from_positions(np.array(list(singles)), block.size)
            for slot, width in bitsets.ranges(bitsets.span(first, count) & ~columns.filled & ~others):
                columns.append(slot, together, slot - first, width)

    def _append_batches(
        self, columns: BlockColumns, runs: Runs, parts: Sequence[tuple[int, int, int]]
    ) -> None:
        """Parts of runs, as (place of the run, first message, message after the last one), as far as memory allows."""
        known: tuple[int, int] = (-1, -1)
        batch: BatchColumns | None = None
        rows: Rows | None = None
        for place, first, end in parts:
            if columns.nbytes > self._limits.column_bytes:
                return
            if known != (runs.indexes[place], runs.operations[place]):
                known = (runs.indexes[place], runs.operations[place])
                batch, rows = self.fetch(*known)
            row, found = 0, self._no_fields
            if batch is not None:
                ordinal = runs.ordinals[place] + first
                row, found = ordinal if rows is None else rows.of(ordinal), batch
            columns.append(runs.firsts[place] + first, found, row, end - first)

    def fetch(self, index: int, operation: int) -> tuple[BatchColumns | None, Rows | None]:
        """The fields of a batch for this queue, from the log, None if it has none; and their rows by the ordinals of
        the batch, None where both are the same."""
        data, ranges = self._source.columns(index, operation, self._blocks.queue)
        return batch_columns(data) if len(data) else None, Rows(ranges) if ranges else None
