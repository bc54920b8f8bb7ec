"""When delayed messages become ready: the due times of a block, and the blocks of a queue by their due times.

A block keeps its due times in stretches of neighbouring messages with the same time, ordered by time and slot
(`DueTimes`). A stretch takes 12 bytes. A batch with one delay is one stretch in each of its blocks. A million messages
with a time each take 12 MB, which are paged out with their blocks.

A queue keeps one entry for each block with delayed messages: their earliest due time (`DueBlocks`). This time is exact,
unlike that of the expiry tree, where it may be too early.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray
from sortedcontainers import SortedList

from fifo.messages import bitsets
from fifo.stretches import Column, slots_of, starts_of

FEW = 8
"""Stretches up to which their messages are found one by one; above, numpy finds all at once."""


class DueTimes:
    """The due times of the delayed messages of one block, in parallel arrays. times: group time in ms, ascending. Of
    one time, the slots ascend, and neighbours are one stretch."""

    __slots__ = ("counts", "firsts", "times")

    def __init__(
        self,
        times: array[int] | None = None,
        firsts: array[int] | None = None,
        counts: array[int] | None = None,
    ) -> None:
        self.times = array("q") if times is None else times
        self.firsts = array("H") if firsts is None else firsts
        self.counts = array("H") if counts is None else counts

    def __len__(self) -> int:
        """The number of stretches."""
        return len(self.times)

    @property
    def members(self) -> int:
        """All messages."""
        return self._members(0, len(self.times))

    @property
    def earliest(self) -> int:
        """The earliest due time. There is a delayed message."""
        return self.times[0]

    def by_slot(self, width: int) -> NDArray[np.int64]:
        """The due time of each slot below `width`, 0 for those without one."""
        found = np.zeros(width, dtype=np.int64)
        times, slots = self.each()
        is_below = slots < width
        found[slots[is_below]] = times[is_below]
        return found

    def add(self, members: int, time_ms: int) -> None:
        """Adds messages that have no due time yet. A stretch costs some microseconds, however many there are of the
        same time."""
        start, end = bisect_left(self.times, time_ms), bisect_right(self.times, time_ms)
        stretches = bitsets.ranges(members)
        if len(stretches) > FEW and len(stretches) * FEW > end - start:
            self._put(start, end, time_ms, self._members(start, end) | members)
            return
        for first, count in stretches:
            end += self._insert(start, end, time_ms, first, count)

    def _insert(self, start: int, end: int, time_ms: int, first: int, count: int) -> int:
        """Adds one stretch to those of its time, start .. end-1. Returns how many more these are then."""
        firsts, counts = self.firsts, self.counts
        place = bisect_left(firsts, first, start, end)
        follows = place > start and firsts[place - 1] + counts[place - 1] == first
        if place < end and first + count == firsts[place]:
            firsts[place] = first
            counts[place] += count
            if not follows:
                return 0
            counts[place - 1] += counts[place]
            del self.times[place], firsts[place], counts[place]
            return -1
        if follows:
            counts[place - 1] += count
            return 0
        self.times.insert(place, time_ms)
        firsts.insert(place, first)
        counts.insert(place, count)
        return 1

    def add_each(self, firsts: Column, counts: Column, times: Column) -> None:
        """Adds stretches with a time each, of messages that have no due time yet."""
        times = np.concatenate((np.array(self.times, dtype=np.int64), times))
        firsts = np.concatenate((np.array(self.firsts, dtype=np.int64), firsts))
        counts = np.concatenate((np.array(self.counts, dtype=np.int64), counts))
        order = np.lexsort((firsts, times))
        times, firsts, counts = times[order], firsts[order], counts[order]
        is_start = starts_of(times)
        is_start[1:] |= firsts[1:] != firsts[:-1] + counts[:-1]
        starts = np.flatnonzero(is_start)
        self.times = array("q", times[starts].tobytes())
        self.firsts = array("H", firsts[starts].astype(np.uint16).tobytes())
        self.counts = array("H", np.add.reduceat(counts, starts).astype(np.uint16).tobytes())

    def take(self, now_ms: int) -> int:
        """Removes the messages whose time has come, and returns them."""
        end = bisect_right(self.times, now_ms)
        found = self._members(0, end)
        del self.times[:end], self.firsts[:end], self.counts[:end]
        return found

    def remove(self, members: int) -> None:
        """Removes messages. Costs a few steps if all are due first, at one time, else some for each stretch."""
        end = bisect_right(self.times, self.times[0])
        first = self._members(0, end)
        if not members & ~first:
            self._put(0, end, self.times[0], first & ~members)
            return
        times, slots = self.each()
        kept = bitsets.as_flags(members, int(slots.max()) + 1)[slots] == 0
        times, slots = times[kept], slots[kept]
        is_start = np.ones(len(slots), dtype=np.bool_)
        is_start[1:] = (times[1:] != times[:-1]) | (slots[1:] != slots[:-1] + 1)
        starts = np.flatnonzero(is_start)
        counts = np.diff(starts, append=len(slots))
        self.times = array("q", times[starts].tobytes())
        self.firsts = array("H", slots[starts].astype(np.uint16).tobytes())
        self.counts = array("H", counts.astype(np.uint16).tobytes())

    def each(self, most: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The due time and the slot of each message, ascending by both: of all messages, or those of `most`
        stretches."""
        end = len(self.times) if most is None else min(most, len(self.times))
        counts = np.array(self.counts[:end], dtype=np.int64)
        return np.repeat(np.array(self.times[:end], dtype=np.int64), counts), self._slots(0, end)

    def _slots(self, start: int, end: int) -> NDArray[np.int64]:
        """The slots of the stretches start .. end-1, in their order."""
        firsts = np.array(self.firsts[start:end], dtype=np.int64)
        counts = np.array(self.counts[start:end], dtype=np.int64)
        return slots_of(firsts, counts)

    def _members(self, start: int, end: int) -> int:
        """The messages of the stretches start .. end-1."""
        if end - start <= FEW:
            found = 0
            for place in range(start, end):
                found |= bitsets.span(self.firsts[place], self.counts[place])
            return found
        slots = self._slots(start, end)
        return bitsets.from_positions(slots, int(slots.max()) + 1)

    def _put(self, start: int, end: int, time_ms: int, members: int) -> None:
        """Replaces the stretches start .. end-1 by those of these messages, which have one time."""
        stretches = bitsets.ranges(members)
        self.times[start:end] = array("q", [time_ms]) * len(stretches)
        self.firsts[start:end] = array("H", [first for first, _ in stretches])
        self.counts[start:end] = array("H", [count for _, count in stretches])


class DueBlocks:
    """The blocks of one queue with delayed messages.

    tree: (earliest due time, block). count: of the delayed messages. size_bytes: of these messages, while the queue has
    a limit on bytes; else 0.
    """

    __slots__ = ("count", "size_bytes", "tree")

    def __init__(self) -> None:
        self.tree: SortedList[tuple[int, int]] = SortedList()
        self.count = 0
        self.size_bytes = 0

    def refile(self, number: int, before_ms: int | None, after_ms: int | None) -> None:
        """Files a block under its earliest due time. None: it has, or had, no delayed messages."""
        if before_ms != after_ms:
            if before_ms is not None:
                self.tree.remove((before_ms, number))
            if after_ms is not None:
                self.tree.add((after_ms, number))
