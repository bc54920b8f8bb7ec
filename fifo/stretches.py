"""Stretches of neighbouring messages of a batch with the same times, many at once.

A batch in which each message has times of its own has a stretch for each message. `Messages.append` would take some
microseconds for each; `Messages.append_stretches` takes some numpy calls for each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


class Stretches(NamedTuple):
    """Neighbouring messages with the same times, in parallel arrays. ordinals: of the first message of each stretch in
    its batch. counts: the number of messages. expiries, dues: as `Messages.append` has them. sizes: the bytes of all
    messages of each stretch."""

    ordinals: Column
    counts: Column
    expiries: Column
    dues: Column
    sizes: Column


def slots_of(firsts: Column, counts: Column) -> Column:
    """The numbers firsts[i] .. firsts[i]+counts[i]-1 of all stretches."""
    ends = np.cumsum(counts)
    found: Column = np.repeat(firsts - ends + counts, counts) + np.arange(ends[-1])
    return found


def values_at(values: bytes | memoryview, width: int, places: Column) -> bytes | memoryview:
    """The values at these places of a column that has one for all messages, which stays, or `width` bytes each."""
    if len(values) <= width:
        return values
    if places[-1] - places[0] == len(places) - 1:  # neighbours, as usual: nothing is copied
        return memoryview(values)[int(places[0]) * width :]
    return np.frombuffer(values, dtype=f"V{width}")[places].tobytes()


def shares_of(size_bytes: int, counts: Column, total: int) -> Column:
    """The bytes of each stretch, if `total` messages have so many bytes."""
    widths, places = np.unique(counts, return_inverse=True)
    return np.array([size_bytes * width // total for width in widths.tolist()], dtype=np.int64)[places]


def starts_of(*columns: Column) -> NDArray[np.bool_]:
    """Which rows differ from the row before in one of these columns."""
    found = np.ones(len(columns[0]), dtype=np.bool_)
    found[1:] = False
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def columns_of(*rows: Sequence[int]) -> list[Column]:
    """The same numbers as arrays."""
    return [np.array(row, dtype=np.int64) for row in rows]
