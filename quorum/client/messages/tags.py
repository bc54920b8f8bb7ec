"""The delivery tags that a consumer holds, as sorted, disjoint ranges.

Tags arrive in runs and are mostly settled from the front, so there are usually one or two ranges. If a caller
settles every second message, there are more ranges; the prefetch limits their number.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class TagRanges:
    """A set of integers as sorted, disjoint, non-touching inclusive ranges."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, tag: int) -> bool:
        place = bisect_right(self._firsts, tag) - 1
        return place >= 0 and tag <= self._lasts[place]

    def __str__(self) -> str:
        ends = zip(self._firsts, self._lasts, strict=True)
        return ", ".join(f"{a}..{b}" if a != b else str(a) for a, b in ends) or "none"

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._lasts, strict=True))

    def clear(self) -> None:
        self._firsts.clear()
        self._lasts.clear()

    def add(self, first: int, last: int) -> None:
        """Add a range. In the usual case it begins directly above the highest one, and no search is needed."""
        if self._lasts and first == self._lasts[-1] + 1:
            self._lasts[-1] = last
            return
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def remove(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove the tags first..last. If first is above last, nothing is removed. Returns the ranges that were
        present, in order."""
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        if low >= high or first > last:
            return []
        taken = [
            (max(first, a), min(last, b))
            for a, b in zip(self._firsts[low:high], self._lasts[low:high], strict=True)
        ]
        firsts: list[int] = []
        lasts: list[int] = []
        if self._firsts[low] < first:
            firsts.append(self._firsts[low])
            lasts.append(first - 1)
        if self._lasts[high - 1] > last:
            firsts.append(last + 1)
            lasts.append(self._lasts[high - 1])
        self._firsts[low:high] = firsts
        self._lasts[low:high] = lasts
        return taken


def count_of(ranges: list[tuple[int, int]]) -> int:
    """Number of integers in the ranges."""
    return sum(last - first + 1 for first, last in ranges)
