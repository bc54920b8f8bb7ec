"""The time at which each part of a member has work to do, so that a step calls only parts that have some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

NEVER = 1 << 62


@dataclass(slots=True, eq=False)
class Due:
    """The times at which a part has work: every `period_ms`, and as soon as something has arrived for it. The part may
    set `next_ms`."""

    period_ms: int = NEVER
    next_ms: int = 0

    def soon(self) -> None:
        """Schedules the part for this step if its turn is still to come, else for the next one."""
        self.next_ms = 0


@dataclass(slots=True)
class Schedule:
    """The work of a step after applying, in its order."""

    _work: list[tuple[Due, Callable[[int], None]]] = field(default_factory=list)

    def add(self, due: Due, work: Callable[[int], None]) -> None:
        """work(now_ms) is called when `due` says so, after everything that was added before."""
        self._work.append((due, work))

    def run(self, now_ms: int) -> None:
        for due, work in self._work:
            if due.next_ms <= now_ms:
                due.next_ms = now_ms + due.period_ms
                work(now_ms)
