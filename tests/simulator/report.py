"""What many seeds have shown: what was done, what went wrong when, what was broken. Of nothing, it is a failure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from simulator.faults import LANDABLE, STATES

NEEDED = ("confirmed", "delivered", "settled", "queues drained")
MANY = 100
"""From so many seeds on, every kind of fault has to have landed, and every operation to have been tried."""
OPERATIONS = (
    *(
        "confirmed",
        "delivered",
        "redelivered",
        "settled",
        "returned",
        "modified",
        "got",
        "selected",
        "drains",
    ),
    *(
        "declared",
        "deleted",
        "purged",
        "policies set",
        "looked at",
        "reads compared",
        "browsed",
        "refused",
        "published by unary calls",
        "clients",
    ),
    *("snapshots taken", "collections adopted", "blocks paged out", "bodies fetched", "snapshots installed"),
    *("members drained", "leaders handed over", "leaders rebalanced", "leaders spread"),
    *("members added", "members removed", "members replaced", "members mended"),
    *("leaders removed", "leaders replaced", "wiped members refused"),
    *("messages expired", "messages dropped by max-length", "messages dropped by delivery limit"),
    *("refused by max-length", "lazy queues", "clusters grown", "entries repaired"),
    *("published one by one", "refused by priority", "bursts refused in part"),
    *("lease times changed or settled", "wide batches", "batches for several queues"),
    *("groups switched to a new version", "batches that were published before"),
    *("odd requests", "odd requests refused", "silent calls"),
)
"""What was done, not what was called: a module that is only run through (fifo/messages/expiry.py where nothing
expires) counts for nothing here."""
CHANGING = "members changing"
TOGETHER = ("kill", "power cut", "power cut of all", "pause", "connection reset", "partition isolated")
"""Faults that have to have struck while members changed, from MANY seeds on."""
LETTERS = "abcdefghijklmnop"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One seed, as a worker tells it."""

    seed: int
    digest: str
    broken: str
    counts: Counter[str]
    landed: Counter[str]
    coverage: Counter[tuple[str, str]]
    cpu_s: float
    world_ms: int
    events: int


@dataclass(slots=True)
class Report:
    outcomes: list[Outcome] = field(default_factory=list)

    def _total(self, name: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for outcome in self.outcomes:
            total.update(getattr(outcome, name))
        return total

    @property
    def broken(self) -> list[int]:
        return sorted(outcome.seed for outcome in self.outcomes if outcome.broken)

    def emptiness(self) -> list[str]:
        """What the runs did not show, and should have."""
        counts, landed = self._total("counts"), self._total("landed")
        missing = [f"nothing was {name}" for name in NEEDED if not counts[name]]
        if not landed:
            missing.append("no fault has landed")
        if len(self.outcomes) >= MANY:
            missing += [f"no {kind} has landed" for kind in LANDABLE if not landed[kind]]
            missing += [f"nothing was {name}" for name in OPERATIONS if not counts[name]]
            coverage = self._coverage()
            missing += [
                f"no {kind} has landed with {CHANGING}" for kind in TOGETHER if not coverage[kind, CHANGING]
            ]
        return missing

    def text(self) -> str:
        lines = ["operations:"]
        counts = self._total("counts")
        lines += [f"  {name:28}{number:10,}" for name, number in sorted(counts.items())]
        lines += [
            "",
            "faults that have landed, and how often in which state (one fault may count in several):",
        ]
        lines += self._table()
        empty = [
            f"{kind} x {state}" for kind in LANDABLE for state in STATES if not self._coverage()[kind, state]
        ]
        share = 1 - len(empty) / (len(LANDABLE) * len(STATES))
        lines += ["", f"coverage: {share:.0%} of {len(LANDABLE)} faults x {len(STATES)} states"]
        if empty and len(empty) <= 40:
            lines.append("never: " + ", ".join(empty))
        return "\n".join(lines)

    def _coverage(self) -> Counter[tuple[str, str]]:
        total: Counter[tuple[str, str]] = Counter()
        for outcome in self.outcomes:
            total.update(outcome.coverage)
        return total

    def _table(self) -> list[str]:
        landed, coverage = self._total("landed"), self._coverage()
        lines = [f"  {letter} {state}" for letter, state in zip(LETTERS, STATES, strict=False)]
        letters = "".join(f"{letter:>6}" for letter, _ in zip(LETTERS, STATES, strict=False))
        lines.append(f"  {'':24}{'all':>7}{letters}")
        for kind in LANDABLE:
            row = "".join(f"{coverage[kind, state]:>6}" for state in STATES)
            lines.append(f"  {kind:24}{landed[kind]:>7}{row}")
        return lines

    def summary(self, wall_s: float) -> str:
        """The last line."""
        counts, landed = self._total("counts"), self._total("landed")
        cpu_s = sum(outcome.cpu_s for outcome in self.outcomes)
        world_s = sum(outcome.world_ms for outcome in self.outcomes) // 1000
        verdict = f"{len(self.broken)} broken: {self.broken}" if self.broken else "none broken"
        return (
            f"{len(self.outcomes)} seeds, {verdict}; {counts['confirmed']:,} messages confirmed, "
            f"{sum(landed.values()):,} faults landed, {world_s:,} s of the world's time in {wall_s:.0f} s "
            f"({cpu_s:.0f} s of CPU, {cpu_s / max(1, len(self.outcomes)):.1f} a seed)"
        )
