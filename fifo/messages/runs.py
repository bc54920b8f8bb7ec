"""The runs of a block: where the bodies of its messages are, and when the messages expire.

A *run* is neighbours that came in one batch, or single-message batches that followed each other in one Raft entry
(`one_each`). It ends at the edge of its block and takes 20 bytes, or 28 in a block where messages expire. In a queue
with a limit on bytes it takes 4 more, for the size of its messages: those of one run count alike.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from fifo.effects import Run
from fifo.messages import bitsets
from fifo.stretches import Column, starts_of

NEVER = (1 << 63) - 1
"""The expiry of messages that do not expire."""

ONE_EACH = (1 << 32) - 1
"""The ordinal of a run of single-message batches."""

MAX_SIZE = (1 << 32) - 1
"""The largest size of a message that a run can note."""


class Runs:
    """The runs of one block in parallel arrays, ascending by first slot. `expiries` exists once one run expires,
    `sizes` once a message came while the queue had a limit on bytes.

    Raft indexes mostly ascend, too, but not always: staged messages are in entries before the one that publishes them.
    """

    __slots__ = ("counts", "expiries", "firsts", "indexes", "operations", "ordinals", "sizes")

    def __init__(self) -> None:
        self.firsts = array("H")
        self.counts = array("H")
        self.indexes = array("Q")
        self.operations = array("I")
        self.ordinals = array("I")
        self.expiries: array[int] | None = None
        self.sizes: array[int] | None = None  # bytes of each message

    def __len__(self) -> int:
        return len(self.firsts)

    def append(
        self, first: int, count: int, index: int, operation: int, ordinal: int, expiry: int, size: int = 0
    ) -> None:
        """Adds the run; it is joined to its left neighbour if it continues that one. size: bytes of each message."""
        if self.firsts and self.indexes[-1] == index and self.firsts[-1] + self.counts[-1] == first:
            before = self.counts[-1]
            if ordinal == ONE_EACH:
                same = self.ordinals[-1] == ONE_EACH and self.operations[-1] + before == operation
            else:
                same = self.operations[-1] == operation and self.ordinals[-1] + before == ordinal
            same = same and (self.sizes is None or self.sizes[-1] == size)
            if same and (NEVER if self.expiries is None else self.expiries[-1]) == expiry:
                self.counts[-1] = before + count
                return
        if self.expiries is None and expiry != NEVER:
            self.expiries = array("q", [NEVER]) * len(self.firsts)
        self.firsts.append(first)
        self.counts.append(count)
        self.indexes.append(index)
        self.operations.append(operation)
        self.ordinals.append(ordinal)
        if self.expiries is not None:
            self.expiries.append(expiry)
        if self.sizes is not None:
            self.sizes.append(size)

    def append_each(
        self,
        firsts: Column,
        counts: Column,
        index: int,
        operation: int,
        ordinals: Column,
        expiries: Column,
        sizes: Column,
    ) -> None:
        """Adds neighbouring runs, like `append` of each. No ordinal is ONE_EACH."""
        is_start = starts_of(expiries, *(() if self.sizes is None else (sizes,)))
        is_start[1:] |= ordinals[1:] != ordinals[:-1] + counts[:-1]
        starts = np.flatnonzero(is_start)
        counts = np.add.reduceat(counts, starts)
        firsts, ordinals, expiries, sizes = firsts[starts], ordinals[starts], expiries[starts], sizes[starts]
        self.append(
            int(firsts[0]),
            int(counts[0]),
            index,
            operation,
            int(ordinals[0]),
            int(expiries[0]),
            int(sizes[0]),
        )
        more = len(starts) - 1
        if self.expiries is None and (expiries != NEVER).any():
            self.expiries = array("q", [NEVER]) * len(self.firsts)
        self.firsts.frombytes(firsts[1:].astype(np.uint16).tobytes())
        self.counts.frombytes(counts[1:].astype(np.uint16).tobytes())
        self.indexes.extend(array("Q", [index]) * more)
        self.operations.extend(array("I", [operation]) * more)
        self.ordinals.frombytes(ordinals[1:].astype(np.uint32).tobytes())
        if self.expiries is not None:
            self.expiries.frombytes(expiries[1:].tobytes())
        if self.sizes is not None:
            self.sizes.frombytes(sizes[1:].astype(np.uint32).tobytes())

    def clip(self, base: int, first: int, count: int, out: list[Run]) -> None:
        """Appends the runs of the messages in slots first .. first+count-1. base: the sequence of slot 0."""
        position = bisect_right(self.firsts, first) - 1
        while count:
            skipped = first - self.firsts[position]
            taken = min(count, self.counts[position] - skipped)
            ordinal, operation = self.ordinals[position], self.operations[position]
            if ordinal == ONE_EACH:
                out.append(Run(base + first, taken, self.indexes[position], operation + skipped, 0, True))
            else:
                out.append(Run(base + first, taken, self.indexes[position], operation, ordinal + skipped))
            first += taken
            count -= taken
            position += 1

    @property
    def end(self) -> int:
        """The slot after the last run."""
        return self.firsts[-1] + self.counts[-1] if self.firsts else 0

    def starts(self) -> int:
        """The first slot of each run."""
        return bitsets.from_positions(np.frombuffer(self.firsts, dtype=np.uint16), self.end)

    def expired(self, now_ms: int) -> int:
        """The slots whose messages have expired."""
        if self.expiries is None:
            return 0
        positions = np.flatnonzero(np.frombuffer(self.expiries, dtype=np.int64) <= now_ms)
        if not len(positions):
            return 0
        # The messages between two neighbouring runs are gone, so a stretch of runs is a stretch of slots.
        is_cut = np.diff(positions) != 1
        firsts = positions[np.concatenate(([True], is_cut))]
        lasts = positions[np.concatenate((is_cut, [True]))]
        starts = np.frombuffer(self.firsts, dtype=np.uint16)[firsts].astype(np.int64)
        ends = np.frombuffer(self.firsts, dtype=np.uint16)[lasts].astype(np.int64)
        ends += np.frombuffer(self.counts, dtype=np.uint16)[lasts]
        edges = np.zeros(int(ends[-1]) + 1, dtype=np.int8)
        edges[starts] = 1
        edges[ends] = -1
        return bitsets.from_flags(np.cumsum(edges, dtype=np.int8).astype(np.bool_))

    def counted(self, wanted: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """For each run the number of its slots in `wanted`, which has no slot after the last run."""
        end = self.end
        sums = np.zeros(end + 1, dtype=np.int32)
        np.cumsum(bitsets.as_flags(wanted, end), out=sums[1:])
        firsts = np.frombuffer(self.firsts, dtype=np.uint16).astype(np.int64)
        return sums[firsts + np.frombuffer(self.counts, dtype=np.uint16)] - sums[firsts]

    def touched(self, wanted: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """For each run whether it has a slot in `wanted`."""
        return self.counted(wanted) > 0

    def earliest(self, wanted: int) -> int:
        """The earliest expiry among runs with a slot in `wanted`."""
        if self.expiries is None or not wanted:
            return NEVER
        expiries = np.frombuffer(self.expiries, dtype=np.int64)[self.touched(wanted)]
        return int(expiries.min()) if len(expiries) else NEVER

    def counts_and_sizes(self, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each run the number of its slots in `wanted`, and the size of each. Only where sizes are noted."""
        assert self.sizes is not None
        counts = self.counted(wanted).astype(np.int64)
        return counts, np.frombuffer(self.sizes, dtype=np.uint32).astype(np.int64)

    def size_in_one(self, wanted: int) -> int:
        """The size of each of these messages if they are of one run, else -1. Only where sizes are noted."""
        assert self.sizes is not None
        place = bisect_right(self.firsts, bitsets.first(wanted)) - 1
        is_in_one = wanted.bit_length() <= self.firsts[place] + self.counts[place]
        return self.sizes[place] if is_in_one else -1

    def keep(self, wanted: int) -> None:
        """Drops the runs without a slot in `wanted`."""
        touched = self.touched(wanted)
        for name in ("firsts", "counts", "indexes", "operations", "ordinals", "expiries", "sizes"):
            column: array[int] | None = getattr(self, name)
            if column is not None:
                kept = np.frombuffer(column, dtype=np.dtype(column.typecode))[touched]
                setattr(self, name, array(column.typecode, kept.tobytes()))

    def clear(self) -> None:
        for column in (self.firsts, self.counts, self.indexes, self.operations, self.ordinals):
            del column[:]
        self.expiries = self.sizes = None
