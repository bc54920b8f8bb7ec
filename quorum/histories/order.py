"""Order: if a producer's message was confirmed before another one was sent, it has the lower sequence in the queue.

A wrong pair is (first, second): `first` was confirmed before `second` was invoked, but has the higher sequence. One
misplaced message makes a wrong pair with every message in between. Each second therefore names the first that was
confirmed earliest, and each first names the second that was invoked latest. A named message is misplaced, unless every
message that names it is itself named by more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placed:
    """A message of one producer in one queue. confirmed_us: None without a confirm."""

    number: int
    sequence: int
    invoked_us: int
    confirmed_us: int | None


def misplaced(placed: list[Placed]) -> Iterator[tuple[int, str]]:
    """(number, reason) of the misplaced messages, those that most others name first. O(n log n)."""
    in_order = sorted(placed, key=lambda each: each.sequence)
    row = {each.number: each for each in placed}
    late, early = _late(in_order), _early(in_order)
    for names, others, is_late in ((late, early, True), (early, late, False)):
        for culprit, victims in sorted(names.items(), key=lambda item: (-len(item[1]), item[0])):
            kept = [
                victim
                for victim in victims
                if len(others.get(victim, ())) < len(victims) + is_late  # if equal, the late one
            ]
            if kept:
                yield culprit, _why(row[culprit], row[min(kept)], len(victims) - 1, is_late=is_late)


def _late(in_order: list[Placed]) -> dict[int, list[int]]:
    """Messages too far behind, each with the messages that name it."""
    found: dict[int, list[int]] = defaultdict(list)
    earliest: tuple[int, int] | None = None  # (confirmed_us, number) of the messages behind
    for each in reversed(in_order):
        if earliest is not None and earliest[0] < each.invoked_us:
            found[earliest[1]].append(each.number)
        if each.confirmed_us is not None:
            mine = (each.confirmed_us, each.number)
            earliest = mine if earliest is None else min(earliest, mine)
    return found


def _early(in_order: list[Placed]) -> dict[int, list[int]]:
    """Messages too far ahead, each with the messages that name it."""
    found: dict[int, list[int]] = defaultdict(list)
    latest: tuple[int, int] | None = None  # (invoked_us, number) of the messages before
    for each in in_order:
        if latest is not None and each.confirmed_us is not None and each.confirmed_us < latest[0]:
            found[latest[1]].append(each.number)
        mine = (each.invoked_us, each.number)
        latest = mine if latest is None else max(latest, mine)
    return found


def _why(culprit: Placed, victim: Placed, more: int, *, is_late: bool) -> str:
    places = f"at sequence {culprit.sequence}, {victim.number} at {victim.sequence}"
    if is_late:
        others = f", and before {more:,} more" if more else ""
        return f"confirmed before {victim.number} was sent, yet behind it: {places}{others}"
    others = f", and after {more:,} more" if more else ""
    return f"sent after {victim.number} was confirmed, yet before it: {places}{others}"
