"""Holders: one consumer holds a message at a time.

A consumer holds a message for certain from its delivery until it asks to settle, return or discard it, if that
succeeds; else until the `held_until_us` of the delivery; else until the consumer's end. If none of these is known, only
the beginning of the hold is known. That beginning counts against a certain hold of another consumer only if the certain
hold is not marked as redelivered, because the two may have left their nodes in the other order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from quorum.histories.records import OK, Record


@dataclass(frozen=True, slots=True)
class Hold:
    """A delivery. end_us: end of the certain hold, None if unknown."""

    consumer: str
    at_us: int
    end_us: int | None
    redelivered: bool


def holds_of(
    deliveries: Iterable[Record], closings: Iterable[Record], ends: Mapping[tuple[str, str], int]
) -> Iterator[Hold]:
    """The holds at one place. ends: the end of each (queue, consumer) that has one."""
    steps: dict[str, list[tuple[int, int, Record]]] = {}
    for each in deliveries:
        steps.setdefault(each["consumer"], []).append((each["returned_us"], 0, each))
    for each in closings:
        if each["outcome"] == OK:
            steps.setdefault(each["consumer"], []).append((each["invoked_us"], 1, each))
    for consumer, mine in steps.items():
        mine.sort(key=lambda step: step[:2])
        for (at_us, is_close, each), following in zip(mine, [*mine[1:], None], strict=True):
            if is_close:
                continue
            end_us = each.get("held_until_us")
            if following is not None and following[1]:
                end_us = following[0]
            elif end_us is None and (each["queue"], consumer) in ends:
                end_us = max(ends[each["queue"], consumer], at_us)
            yield Hold(consumer, at_us, end_us, each.get("redelivered", False))


def first_overlap(holds: list[Hold]) -> tuple[Hold, Hold] | None:
    """The earliest overlapping holds of two consumers: the certain one, and the one that began during it."""
    pairs = [(one, other) for one in holds for other in holds if _overlap(one, other)]
    return min(
        pairs,
        key=lambda pair: (pair[1].at_us, pair[0].consumer, pair[0].end_us or 0, pair[1].consumer),
        default=None,
    )


def _overlap(one: Hold, other: Hold) -> bool:
    if one.consumer == other.consumer or one.end_us is None or not one.at_us <= other.at_us < one.end_us:
        return False
    if other.end_us is not None:
        return other.at_us < other.end_us
    return other.at_us > one.at_us and not one.redelivered
