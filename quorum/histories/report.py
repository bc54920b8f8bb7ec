"""The report on a history: messages of each producer, and violations with examples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

KINDS = ("lost", "duplicated", "reordered", "held_twice", "settled_then_delivered", "phantom")
"""The violations."""
COUNTS = ("confirmed", "rejected", "unknown", "delivered", "settled", "left")
SHOWN = 5
"""Examples of each kind of violation."""


@dataclass(slots=True)
class Line:
    """Messages that a producer published to a queue. broken: violations by kind."""

    queue: str
    producer: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    broken: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))


@dataclass(frozen=True, slots=True)
class Culprit:
    """An example of a violation. why: one sentence."""

    queue: str
    producer: str
    number: int
    why: str


@dataclass(slots=True)
class Report:
    """lines: by queue and producer. culprits: at most SHOWN examples of each kind that was found."""

    records: int
    operations: int
    lines: list[Line]
    culprits: dict[str, list[Culprit]]
    seconds: float = 0.0

    def total(self, kind: str) -> int:
        return sum(line.broken[kind] for line in self.lines)

    @property
    def is_clean(self) -> bool:
        return not any(self.total(kind) for kind in KINDS)


def totals(lines: Iterable[Line]) -> dict[str, int]:
    """The counts of all lines together."""
    found = dict.fromkeys(COUNTS, 0)
    for line in lines:
        for name in COUNTS:
            found[name] += line.counts[name]
    return found
