"""The times of a published batch: when its messages become ready, and how long they live then."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fifo.commands import MAX_DELAY_MS, Enqueue
from fifo.effects import Refused
from fifo.frozen_dataclasses import dataclass
from fifo.stretches import Column, slots_of, starts_of

AT_ONCE = -1
"""In place of a due time."""

Stretch = tuple[int, int, int, int]
"""Neighbouring messages with the same times: first ordinal, count, TTL, and due time, AT_ONCE if it has come."""


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """ttls: in ms, -1 for none. dues: group time, AT_ONCE for messages that are ready at once. Both have one number for
    all messages, or one each."""

    ttls: Sequence[int] | NDArray[np.int64]
    dues: Sequence[int] | NDArray[np.int64]

    def stretches(self, ordinal: int, count: int) -> list[Stretch]:
        """The stretches of the messages ordinal .. ordinal+count-1."""
        ttls, dues = self.ttls, self.dues
        if len(ttls) == 1 and len(dues) == 1:
            return [(ordinal, count, int(ttls[0]), int(dues[0]))]
        is_first = np.zeros(count, dtype=np.bool_)
        is_first[0] = True
        for column in (ttls, dues):
            if len(column) > 1:
                own = np.asarray(column[ordinal : ordinal + count])
                is_first[1:] |= own[1:] != own[:-1]
        starts = [*np.flatnonzero(is_first).tolist(), count]
        return [
            (ordinal + start, end - start, _of(ttls, ordinal + start), _of(dues, ordinal + start))
            for start, end in itertools.pairwise(starts)
        ]

    def columns(self, ranges: Sequence[tuple[int, int]]) -> tuple[Column, Column, Column, Column]:
        """The stretches of the messages (ordinal, count), in parallel arrays: first ordinals, counts, TTLs, due
        times."""
        firsts, counts = np.array(ranges, dtype=np.int64).T
        ordinals = slots_of(firsts, counts)
        ttls, dues = _at(self.ttls, ordinals), _at(self.dues, ordinals)
        is_first = starts_of(ttls, dues)
        is_first[np.cumsum(counts) - counts] = True
        starts = np.flatnonzero(is_first)
        return ordinals[starts], np.diff(starts, append=len(ordinals)), ttls[starts], dues[starts]


def _at(column: Sequence[int] | NDArray[np.int64], ordinals: Column) -> Column:
    values = np.asarray(column, dtype=np.int64)
    return values[ordinals] if len(values) > 1 else np.full(len(ordinals), values[0])


def _of(column: Sequence[int] | NDArray[np.int64], ordinal: int) -> int:
    return int(column[ordinal if len(column) > 1 else 0])


def read_times(command: Enqueue, now_ms: int) -> BatchTimes | Refused:
    """The times of a batch that is taken now. A refusal if they are beyond 64 bits."""
    ttls: Sequence[int] | NDArray[np.int64] = (command.ttl_ms,)
    dues: Sequence[int] | NDArray[np.int64] = (AT_ONCE,)
    try:
        if len(command.ttls_ms):
            ttls = np.asarray(command.ttls_ms, dtype=np.int64)
        if len(command.due_times_ms):
            dues = _due_times(np.asarray(command.due_times_ms, dtype=np.int64), now_ms)
    except OverflowError:
        return Refused("bad_argument", "a TTL or a due time is beyond 64 bits")
    return BatchTimes(ttls, dues)


def _due_times(times_ms: NDArray[np.int64], now_ms: int) -> NDArray[np.int64]:
    delays = -np.maximum(times_ms, -MAX_DELAY_MS)
    dues = np.minimum(np.where(times_ms < 0, now_ms + delays, times_ms), MAX_DELAY_MS)
    return np.where(dues <= now_ms, AT_ONCE, dues)
