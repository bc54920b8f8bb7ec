"""Compact sets of Raft indexes: the entries whose bodies a state refers to.

Each block packs its own indexes (`pack`). Where batches or single messages arrive one entry after the other, they are a
range: 11 bytes for any number of entries. An `IndexSet` is a list of such pieces with their bounds. The pieces are
joined without being unpacked, so the cost of making a set grows with the number of blocks. A set takes next to no
memory, because the pieces are the blocks' own. A question unpacks only the pieces that overlap its range.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from fifo.codec import Reader, Writer

Indexes = npt.NDArray[np.uint64]

_PACK_BYTES = 64
"""Steps in fewer bytes than this are not worth compressing."""

PIECE = 1 << 14
"""The most numbers in one piece of a set that is made of numbers, and in one part of `parts`."""


def pack(indexes: Indexes) -> bytes:
    """Packs ascending numbers, each once: count, first, then the steps between neighbours. All steps have as many bytes
    as the largest needs; if all steps are 1, none is written."""
    out = Writer()
    out.number(len(indexes))
    if not len(indexes):
        return bytes(out.data)
    out.number(int(indexes[0]))
    steps = np.diff(indexes)
    largest = int(steps.max()) if len(steps) else 1
    width = 0
    if largest > 1:
        width = next(width for width in (1, 2, 4, 8) if largest < 1 << (8 * width))
    raw = steps.astype(f"<u{width}").tobytes() if width else b""
    packed = zlib.compress(raw, 1) if len(raw) >= _PACK_BYTES else raw
    out.number(width << 1 | (packed is not raw))
    out.blob(packed)
    return bytes(out.data)


def unpack(data: bytes) -> Indexes:
    reader = Reader(data)
    count = reader.number()
    if not count:
        return np.zeros(0, dtype=np.uint64)
    first = reader.number()
    kind = reader.number()
    raw = reader.blob()
    found = np.ones(count, dtype=np.uint64)
    if kind >> 1:
        found[1:] = np.frombuffer(zlib.decompress(raw) if kind & 1 else raw, dtype=f"<u{kind >> 1}")
    found[0] = first
    return np.cumsum(found, dtype=np.uint64)


class Piece:
    """Packed numbers and their bounds, immutable. Empty if last < first."""

    __slots__ = ("first", "is_range", "last", "packed")

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        reader = Reader(packed)
        count = reader.number()
        self.first = reader.number() if count else 1
        self.is_range = bool(count) and not reader.number() >> 1
        """whether it has all numbers from first to last"""
        self.last = self.first + count - 1 if self.is_range or not count else int(unpack(packed)[-1])

    def __len__(self) -> int:
        return Reader(self.packed).number()


class IndexSet:
    """An immutable set of indexes. Its pieces may overlap and are in any order."""

    __slots__ = ("_firsts", "_lasts", "_pieces", "_ranges")

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = tuple([piece for piece in pieces if piece.first <= piece.last])
        self._firsts = np.array([piece.first for piece in self._pieces], np.int64)
        self._lasts = np.array([piece.last for piece in self._pieces], np.int64)
        self._ranges: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    @classmethod
    def of(cls, indexes: array[int] | Indexes) -> IndexSet:
        """The set of these numbers, which ascend, each once."""
        numbers = np.frombuffer(indexes, np.uint64) if isinstance(indexes, array) and indexes else indexes
        numbers = np.asarray(numbers, np.uint64)
        return cls([Piece(pack(numbers[at : at + PIECE])) for at in range(0, len(numbers), PIECE)])

    def within(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """The members from first to last, ascending, each once."""
        found = []
        for at in np.flatnonzero((self._firsts <= last) & (self._lasts >= first)).tolist():
            piece = self._pieces[at]
            if piece.is_range:
                found.append(np.arange(max(first, piece.first), min(last, piece.last) + 1, dtype=np.int64))
            else:
                numbers = unpack(piece.packed).astype(np.int64)
                found.append(
                    numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, last, "right")]
                )
        if not found:
            return np.zeros(0, np.int64)
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def __contains__(self, index: int) -> bool:
        return bool(len(self.within(index, index)))

    def overlaps(self, first: int, last: int) -> bool:
        """False if certainly no member is from first to last; cheap."""
        return bool(((self._firsts <= last) & (self._lasts >= first)).any())

    def covers(self, first: int, last: int) -> bool:
        """True if certainly all numbers from first to last are members; cheap."""
        starts, ends = self._known_ranges()
        at = int(np.searchsorted(starts, first, "right")) - 1
        return at >= 0 and int(ends[at]) >= last

    def _known_ranges(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(first, last) of the ranges that the pieces without gaps cover together, ascending."""
        found = self._ranges
        if found is None:
            whole = np.array([piece.is_range for piece in self._pieces], np.bool_)
            order = np.argsort(self._firsts[whole], kind="stable")
            firsts, lasts = self._firsts[whole][order], self._lasts[whole][order]
            lasts = np.maximum.accumulate(lasts) if len(lasts) else lasts
            begins = np.ones(len(firsts), np.bool_)
            begins[1:] = firsts[1:] > lasts[:-1] + 1
            ends = np.flatnonzero(np.append(begins[1:], True)) if len(firsts) else np.zeros(0, np.int64)
            found = self._ranges = (firsts[begins], lasts[ends])
        return found

    def parts(self) -> Iterator[array[int]]:
        """All members, ascending, in parts of bounded size."""
        position = 0
        while True:
            ahead = self._lasts >= position
            if not ahead.any():
                return
            position = max(position, int(self._firsts[ahead].min()))
            found = self.within(position, position + PIECE - 1)
            if len(found):
                yield array("Q", found.tobytes())
                position += PIECE
            else:
                position = self._first_from(position + PIECE)

    def _first_from(self, position: int) -> int:
        """The first member that is not less than `position`. There is one."""
        found = []
        for piece in self._pieces:
            if piece.first >= position or (piece.is_range and piece.last >= position):
                found.append(max(piece.first, position))
            elif piece.last >= position:
                numbers = unpack(piece.packed)
                found.append(int(numbers[np.searchsorted(numbers, position)]))
        return min(found)

    def __iter__(self) -> Iterator[int]:
        for part in self.parts():
            yield from part

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IndexSet):
            return NotImplemented
        return self.as_array() == other.as_array()

    __hash__ = None  # type: ignore[assignment]

    def as_array(self) -> array[int]:
        """All members at once, 8 bytes each."""
        found = array("Q")
        for part in self.parts():
            found.extend(part)
        return found

    def memory_bytes(self) -> int:
        """The bytes of the pieces and their bounds, shared or not."""
        return sum(len(piece.packed) + 100 for piece in self._pieces) + 2 * self._firsts.nbytes
