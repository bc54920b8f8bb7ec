"""Group time: the only time a machine knows.

It is carried by commands. A leader goes on from the last time in its group's log by its own monotonic progress, slewed
by at most a tenth towards the median of the members' wall clocks. So it never goes back and never leaps, whoever leads
and whatever a wall clock does.
"""

from __future__ import annotations

from statistics import median_low

SLEW_DIVISOR = 10
MAX_CREDIT_MS = 1_000
"""Progress that may still be used for slewing: so one step slews by at most a tenth of this."""


class GroupClock:
    """Group time of one group, as its leader makes it. All times in milliseconds."""

    def __init__(self) -> None:
        self._last = 0
        self._at: int | None = None
        self._credit = 0

    @property
    def last(self) -> int:
        return self._last

    def observe(self, now_ms: int) -> None:
        """An entry carries this time (applied here): go on from it."""
        if now_ms > self._last:
            self._last = now_ms
            self._at = None
            self._credit = 0

    def now(self, monotonic_ms: int, wall_clocks_ms: list[int]) -> int:
        """The time for the next entry. wall_clocks_ms: the members' wall clocks as known here, at least one."""
        wall = median_low(wall_clocks_ms)
        if self._last == 0:
            self._last = wall  # a group's first entry: there is nothing to go on from
        if self._at is None:
            self._at = monotonic_ms
        progress = max(0, monotonic_ms - self._at)
        self._at = monotonic_ms
        self._credit = min(MAX_CREDIT_MS, self._credit + progress)
        allowed = self._credit // SLEW_DIVISOR
        slew = max(-allowed, min(allowed, wall - (self._last + progress)))
        self._credit -= SLEW_DIVISOR * abs(slew)
        self._last += max(0, progress + slew)
        return self._last
