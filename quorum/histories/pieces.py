"""Pieces: the records of a history, cut so that all messages of a piece were treated alike.

A record is about messages with consecutive numbers, or at consecutive sequences, or both. It is cut where another
record about some of its messages begins or ends. So two pieces are about the same messages, or about different ones,
and the first message of a piece stands for all of them: a history of batches is judged in the time of its batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

from quorum.histories.records import Record

Axis = tuple[str, str]
"""Sequences of a queue, or numbers of a producer."""
SPANS = {"sequence": "queue", "number": "producer"}


def _spans(record: Record) -> Iterator[tuple[Axis, int]]:
    """(axis, first) for the sequences and numbers that a record has."""
    for key, owner in SPANS.items():
        if record.get(key) is not None:
            yield (key, record[owner]), record[key]


def one_by_one(records: Iterable[Record]) -> Iterator[Record]:
    """Pieces of one message each."""
    for each in records:
        if each.get("count", 1) > 1:
            yield from _cut(each, range(1, each["count"]))
        else:
            yield each


def alike(records: list[Record]) -> Iterator[Record]:
    """As few pieces as possible."""
    cuts = _closed(records)
    for each in records:
        count = each.get("count", 1)
        if count > 1:
            axis, first = next(_spans(each))
            yield from _cut(each, [at - first for at in _inside(cuts[axis], first, count)])
        else:
            yield each


def _cut(record: Record, cuts: Iterable[int]) -> Iterator[Record]:
    """cuts: distances from the first message, in order."""
    start = 0
    for end in (*cuts, record["count"]):
        shifted = {key: record[key] + start for key in SPANS if record.get(key) is not None}
        yield {**record, **shifted, "count": end - start}
        start = end


def _inside(cuts: list[int], first: int, count: int) -> list[int]:
    return cuts[bisect_right(cuts, first) : bisect_left(cuts, first + count)]


def _closed(records: list[Record]) -> dict[Axis, list[int]]:
    """Where to cut each axis, in order. A cut between two sequences cuts between the numbers of these messages, too."""
    cuts: dict[Axis, set[int]] = defaultdict(set)
    both: list[tuple[list[tuple[Axis, int]], int]] = []
    for each in records:
        count, spans = each.get("count", 1), list(_spans(each))
        for axis, first in spans:
            cuts[axis] |= {first, first + count}
        if count > 1 and len(spans) > 1:
            both.append((spans, count))
    while True:
        ordered = {axis: sorted(found) for axis, found in cuts.items()}
        is_closed = True
        for (one, other), count in both:
            for (axis, first), (far, far_first) in ((one, other), (other, one)):
                moved = {at - first + far_first for at in _inside(ordered[axis], first, count)}
                if not moved <= cuts[far]:
                    cuts[far] |= moved
                    is_closed = False
        if is_closed:
            return ordered
