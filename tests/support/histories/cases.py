"""Histories with planted violations. CASES: name -> (records, numbers of the culprits by kind of violation)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quorum.histories.records import Record
from quorum.histories.report import KINDS, Report


def sent(number: int, start: int = 0, outcome: str = "confirmed", *, count: int = 1, p: str = "p") -> Record:
    """Published at `start`, told 5 later."""
    end = {} if outcome == "unknown" else {"returned_us": start + 5}
    return {
        "op": "publish",
        "producer": p,
        "number": number,
        "count": count,
        "invoked_us": start,
        "outcome": outcome,
        **end,
    }


def got(sequence: int, number: int, at: int = 100, c: str = "c", *, p: str = "p", **more: Any) -> Record:
    return {
        "op": "deliver",
        "sequence": sequence,
        "producer": p,
        "number": number,
        "consumer": c,
        "returned_us": at,
        **more,
    }


def done(
    sequence: int, start: int = 110, c: str = "c", outcome: str = "ok", *, op: str = "settle", count: int = 1
) -> Record:
    end = {} if outcome == "unknown" else {"returned_us": start + 5}
    return {
        "op": op,
        "sequence": sequence,
        "count": count,
        "consumer": c,
        "invoked_us": start,
        "outcome": outcome,
        **end,
    }


def left(sequence: int, number: int, *, p: str = "p", **more: Any) -> Record:
    return {"op": "left", "sequence": sequence, "producer": p, "number": number, **more}


def ended(at: int, c: str = "c") -> Record:
    return {"op": "end", "consumer": c, "invoked_us": at}


def in_order(order: Iterable[int]) -> list[Record]:
    """Each number was confirmed before the next was sent; they stand in this order."""
    numbers = list(order)
    return [
        *[sent(number, 10 * number) for number in sorted(numbers)],
        *[left(place, number) for place, number in enumerate(numbers, 1)],
    ]


DEAD = {"queue": "dead"}

CASES: dict[str, tuple[list[Record], dict[str, list[int]]]] = {
    "settled": ([sent(1), got(1, 1), done(1)], {}),
    "in batches": ([sent(1, count=20), got(7, 1, count=20), done(7, count=20)], {}),
    "left": ([sent(1), left(1, 1)], {}),
    "delivered and left": ([sent(1), got(1, 1), left(1, 1)], {}),
    "settled without an answer": ([sent(1), got(1, 1), done(1, outcome="unknown")], {}),
    "discarded": ([sent(1), got(1, 1), done(1, op="discard")], {}),
    "published without an answer and gone": ([sent(1, outcome="unknown")], {}),
    "published without an answer and there": ([sent(1, outcome="unknown"), got(1, 1), done(1)], {}),
    "refused and gone": ([sent(1, outcome="rejected")], {}),
    "sent again with the same number": (
        [sent(1, 0, "unknown"), sent(1, 50), got(1, 1), done(1)],
        {},
    ),
    # lost
    "never seen": ([sent(1)], {"lost": [1]}),
    "one of a batch": (
        [sent(1, count=20), got(7, 1, count=20), done(7, count=19)],
        {"lost": [20]},
    ),
    "delivered and gone": ([sent(1), got(1, 1)], {"lost": [1]}),
    "returned and gone": ([sent(1), got(1, 1), done(1, op="return")], {"lost": [1]}),
    "confirmed when sent again": ([sent(1, 0, "unknown"), sent(1, 50)], {"lost": [1]}),
    # duplicated
    "two sequences": ([sent(1), got(1, 1), done(1), got(2, 1), done(2)], {"duplicated": [1]}),
    "one of two sequences without an answer": (
        [sent(1), got(1, 1), done(1, outcome="unknown"), left(2, 1)],
        {"duplicated": [1]},
    ),
    "two sequences of an unconfirmed message": (
        [sent(1, outcome="unknown"), left(1, 1), left(2, 1)],
        {"duplicated": [1]},
    ),
    "two queues": ([sent(1), left(1, 1), left(1, 1, **DEAD)], {"duplicated": [1]}),
    "dead-lettered": ([sent(1), got(1, 1), done(1, op="discard"), left(1, 1, **DEAD)], {}),
    "dead-lettered twice": (
        [sent(1), got(1, 1), done(1, op="discard"), left(2, 1, **DEAD), left(3, 1, **DEAD)],
        {"duplicated": [1]},
    ),
    # reordered: the culprit is the misplaced one, not those between
    "in order": (in_order([1, 2, 3, 4, 5]), {}),
    "sent together": ([sent(1, 0), sent(2, 2), left(1, 2), left(2, 1)], {}),
    "told when the next was sent": ([sent(1, 0), sent(2, 5), left(1, 2), left(2, 1)], {}),
    "too late": (in_order([2, 3, 4, 5, 1]), {"reordered": [1]}),
    "too early": (in_order([5, 1, 2, 3, 4]), {"reordered": [5]}),
    "neighbours": (in_order([1, 3, 2, 4]), {"reordered": [2]}),
    "one too late and one too early": (in_order([2, 3, 4, 1, 9, 5, 6, 7, 8]), {"reordered": [1, 9]}),
    "order of another's": ([sent(1, 0, p="a"), sent(2, 50, p="b"), left(1, 2, p="b"), left(2, 1, p="a")], {}),
    "the first without an answer": ([sent(1, 0, "unknown"), sent(2, 50), left(1, 2), left(2, 1)], {}),
    "the second without an answer": (
        [sent(1, 0), sent(2, 50, "unknown"), left(1, 2), left(2, 1)],
        {"reordered": [1]},
    ),
    # held twice
    "one after the other": (
        [
            sent(1),
            got(1, 1),
            done(1, 110, op="return"),
            got(1, 1, 120, "d", redelivered=True),
            done(1, 130, "d"),
        ],
        {},
    ),
    "two hands": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d"), done(1, 110, "d"), done(1, 109, op="return")],
        {"held_twice": [1]},
    ),
    "handed on at the moment of the return": (
        [sent(1), got(1, 1, 100), done(1, 110, op="return"), got(1, 1, 110, "d"), done(1, 115, "d")],
        {},
    ),
    "the other one never disposed of it": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d", redelivered=True), done(1, 110)],
        {"held_twice": [1]},
    ),
    "the other one may have had it before": (
        [sent(1), got(1, 1, 100, redelivered=True), got(1, 1, 105, "d"), done(1, 110)],
        {},
    ),
    "the first one's node is gone": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d", redelivered=True), done(1, 110, "d")],
        {},
    ),
    "settled by the first without an answer": (
        [sent(1), got(1, 1, 100), done(1, 110, outcome="unknown"), got(1, 1, 105, "d"), done(1, 120, "d")],
        {},
    ),
    "held until it says": (
        [
            sent(1),
            got(1, 1, 100, held_until_us=106),
            got(1, 1, 105, "d", redelivered=True),
            done(1, 110, "d"),
        ],
        {"held_twice": [1]},
    ),
    "held until before": (
        [
            sent(1),
            got(1, 1, 100, held_until_us=105),
            got(1, 1, 105, "d", redelivered=True),
            done(1, 110, "d"),
        ],
        {},
    ),
    "held until its consumer's end": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d", redelivered=True), done(1, 110, "d"), ended(107)],
        {"held_twice": [1]},
    ),
    "handed on after its consumer's end": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d", redelivered=True), done(1, 110, "d"), ended(104)],
        {},
    ),
    "twice to the same consumer": (
        [sent(1), got(1, 1), done(1, 105, op="return"), got(1, 1, 110, redelivered=True), done(1, 120)],
        {},
    ),
    # settled, then delivered
    "back": (
        [sent(1), got(1, 1), done(1), got(1, 1, 120, "d", redelivered=True)],
        {"settled_then_delivered": [1]},
    ),
    "back, and settled again": (
        [sent(1), got(1, 1), done(1), got(1, 1, 120, "d"), done(1, 130, "d")],
        {"settled_then_delivered": [1]},
    ),
    "discarded and back": (
        [sent(1), got(1, 1), done(1, op="discard"), got(1, 1, 120)],
        {"settled_then_delivered": [1]},
    ),
    "handed out before the answer": (
        [sent(1), got(1, 1), done(1, 110), got(1, 1, 115, "d", redelivered=True)],
        {},
    ),
    "settled by two, neither of them late": (
        [sent(1), got(1, 1), done(1, 110), got(1, 1, 112, "d", redelivered=True), done(1, 130, "d")],
        {"settled_then_delivered": [1]},
    ),
    "settled and left": ([sent(1), got(1, 1), done(1), left(1, 1)], {"settled_then_delivered": [1]}),
    "settled without an answer and back": (
        [sent(1), got(1, 1), done(1, outcome="unknown"), got(1, 1, 200, "d", redelivered=True), left(1, 1)],
        {},
    ),
    # phantom
    "never published": ([sent(1), left(1, 1), got(2, 2), done(2)], {"phantom": [2]}),
    "left and never published": ([sent(1), left(1, 1), left(2, 2)], {"phantom": [2]}),
    "refused and there": ([sent(1, outcome="rejected"), got(1, 1), done(1)], {"phantom": [1]}),
    "at another's place": (
        [sent(1), sent(2, outcome="unknown"), left(1, 1), got(1, 2)],
        {"phantom": [2]},
    ),
}


def in_queue(queue: str, records: list[Record]) -> list[Record]:
    """Consumers and producers are of the queue; what is left is said of all queues named."""
    placed = []
    for each in records:
        named = {key: f"{queue}.{each[key]}" for key in ("queue", "producer", "consumer") if key in each}
        placed.append({"queue": queue, **each, **named})
    return placed + [
        {"op": "left", "queue": name, "count": 0} for name in sorted({each["queue"] for each in placed})
    ]


def broken(report: Report, queue: str) -> dict[str, int]:
    """Violations of a queue by kind, without the kinds that it has none of."""
    found = dict.fromkeys(KINDS, 0)
    for line in report.lines:
        if line.queue == queue:
            for kind in KINDS:
                found[kind] += line.broken[kind]
    return {kind: count for kind, count in found.items() if count}
