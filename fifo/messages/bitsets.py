"""Bit sets as Python integers: bit i stands for the i-th message of a block.

An `&` over 16,384 bits costs about 0.1 us, so everything here works on whole sets; nothing loops over messages, only
over stretches of neighbours. `Counts` keeps a small number for each message as bit planes, so that adding one to ten
thousand of them is a handful of `&` and `^`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

FEW_MEMBERS = 4
"""Members up to which they are found one by one; above, numpy finds all at once."""


def span(first: int, count: int) -> int:
    """The set first .. first+count-1."""
    return ((1 << count) - 1) << first


def first(bits: int) -> int:
    """The lowest member of a set that is not empty."""
    return (bits & -bits).bit_length() - 1


def starts(bits: int) -> int:
    """The first member of each stretch of neighbours."""
    return bits & ~(bits << 1)


def lowest(bits: int, count: int) -> int:
    """The `count` lowest members of a set (all, if it has fewer)."""
    if count == 1:
        return bits & -bits
    if bits.bit_count() <= count:
        return bits
    low = (bits & -bits).bit_length() - 1
    dense = (1 << count) - 1
    if (bits >> low) & dense == dense:  # neighbours, the common case
        return dense << low
    rest, missing, offset = bits, count, 0
    width = 1 << (bits.bit_length() - 1).bit_length()
    while width > 1:  # binary search for the count-th member
        width >>= 1
        lower = rest & ((1 << width) - 1)
        found = lower.bit_count()
        if found >= missing:
            rest = lower
        else:
            missing -= found
            rest >>= width
            offset += width
    return bits & ((1 << (offset + 1)) - 1)


def ranges(bits: int) -> list[tuple[int, int]]:
    """The stretches (first, count) of a set, ascending."""
    if not bits:
        return []
    low = (bits & -bits).bit_length() - 1
    head = bits >> low
    width = head.bit_length()
    count = head.bit_count()
    if count == width:
        return [(low, width)]
    if count <= FEW_MEMBERS:
        return _few_ranges(head, low)
    # One byte more than the set needs, so that the last stretch has an end, too.
    raw = np.frombuffer(head.to_bytes(width // 8 + 1, "little"), dtype=np.uint8)
    flags = np.unpackbits(raw, bitorder="little")
    edges = (np.flatnonzero(flags[1:] != flags[:-1]) + (1 + low)).tolist()
    return list(
        zip(
            [low, *edges[1::2]],
            [edges[0] - low, *(b - a for a, b in zip(edges[1::2], edges[2::2], strict=True))],
            strict=True,
        )
    )


def _few_ranges(bits: int, base: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for place in members(bits):
        slot = base + place
        if found and sum(found[-1]) == slot:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((slot, 1))
    return found


def members(bits: int) -> Iterator[int]:
    """The members of a set, ascending; for sets known to be small."""
    if not bits:
        return
    base = first(bits)
    bits >>= base  # so that neighbours cost little wherever they are
    while bits:
        low = bits & -bits
        yield base + low.bit_length() - 1
        bits ^= low


def as_flags(bits: int, width: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The set as one byte (0 or 1) a bit."""
    raw = np.frombuffer(bits.to_bytes((width + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(raw, bitorder="little", count=width)


def from_positions(positions: np.ndarray[tuple[int], np.dtype[np.intp]], width: int) -> int:
    """The set with these members, all below width."""
    flags = np.zeros(width, dtype=np.bool_)
    flags[positions] = True
    return from_flags(flags)


def from_flags(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """The set of the positions whose flag is True."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


class Counts:
    """A number for each message of a block, 0 for most: planes[i] holds bit i of all numbers. The last is not empty."""

    __slots__ = ("planes",)

    def __init__(self) -> None:
        self.planes: list[int] = []

    def add(self, bits: int) -> None:
        """Adds one to the number of each member."""
        for i, plane in enumerate(self.planes):
            if not bits:
                return
            self.planes[i] = plane ^ bits
            bits &= plane
        if bits:
            self.planes.append(bits)

    def clear(self, bits: int) -> None:
        """Sets the number of each member to 0."""
        if self.planes:
            self.planes = [plane & ~bits for plane in self.planes]
            while self.planes and not self.planes[-1]:
                self.planes.pop()

    def nonzero(self) -> int:
        result = 0
        for plane in self.planes:
            result |= plane
        return result

    def value(self, position: int) -> int:
        return sum(((plane >> position) & 1) << i for i, plane in enumerate(self.planes))

    def groups(self, members: int) -> list[tuple[int, int]]:
        """(number, those of `members` that have it), ascending."""
        found = [(0, members)]
        for i in range(len(self.planes) - 1, -1, -1):
            plane = self.planes[i]
            halves = [((number, some & ~plane), (number | 1 << i, some & plane)) for number, some in found]
            found = [each for pair in halves for each in pair if each[1]]
        return found

    def above(self, limit: int) -> int:
        """The set of those whose number is greater than `limit` (at least 0)."""
        if limit >> len(self.planes):
            return 0  # no number here has as many bits as the limit
        greater, equal = 0, -1
        for i in range(len(self.planes) - 1, -1, -1):
            plane = self.planes[i]
            if (limit >> i) & 1:
                equal &= plane
            else:
                greater |= equal & plane
                equal &= ~plane
        return greater
