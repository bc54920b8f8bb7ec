"""Ranges of numbers in 16 bytes each: a producer may have thousands of them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator


class NumberRanges:
    """Disjoint ranges (first, last) of numbers, ascending, with gaps between them."""

    __slots__ = ("firsts", "lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.firsts = array("Q")
        self.lasts = array("Q")
        for first, last in ranges:
            self.firsts.append(first)
            self.lasts.append(last)

    def __len__(self) -> int:
        return len(self.lasts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.firsts, self.lasts, strict=True)

    def count_from(self, number: int) -> int:
        """How many ranges have this number or higher ones."""
        return len(self.lasts) - bisect_left(self.lasts, number)

    def overlapping(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The ranges that have some of the numbers first..last."""
        firsts, lasts = self.firsts, self.lasts
        for place in range(bisect_left(lasts, first), len(lasts)):
            if firsts[place] > last:
                break
            yield firsts[place], lasts[place]

    def forget_below(self, number: int) -> None:
        firsts, lasts = self.firsts, self.lasts
        if lasts and lasts[0] < number:
            gone = bisect_left(lasts, number)
            del firsts[:gone]
            del lasts[:gone]
        if firsts and firsts[0] < number:
            firsts[0] = number

    def add(self, first: int, last: int) -> None:
        """Adds first..last, of which some may be there already."""
        firsts, lasts = self.firsts, self.lasts
        if not lasts or lasts[-1] + 1 < first:
            firsts.append(first)
            lasts.append(last)
            return
        if lasts[-1] + 1 == first:
            lasts[-1] = last
            return
        start = end = bisect_left(lasts, first - 1)
        while end < len(lasts) and firsts[end] <= last + 1:
            first = min(first, firsts[end])
            last = max(last, lasts[end])
            end += 1
        firsts[start:end] = array("Q", (first,))
        lasts[start:end] = array("Q", (last,))

    def remove(self, number: int) -> None:
        """Removes one number, which need not be there."""
        firsts, lasts = self.firsts, self.lasts
        place = bisect_left(lasts, number)
        if place == len(lasts) or firsts[place] > number:
            return
        first, last = firsts[place], lasts[place]
        left = [part for part in ((first, number - 1), (number + 1, last)) if part[0] <= part[1]]
        firsts[place : place + 1] = array("Q", [part[0] for part in left])
        lasts[place : place + 1] = array("Q", [part[1] for part in left])
