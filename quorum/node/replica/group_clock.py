"""Group time: the only time that a machine knows.

Commands carry it. The leader advances it by its own monotonic progress, slewed by at most a tenth towards the median of
the members' wall clocks. So it never decreases and never leaps, with any leader and any wall clock.

Every other member keeps an estimate, so that a new leader continues from the old one's time, also after a long quiet:

  - An applied entry is at least as old as its time says. The member counts progress from the moment at which it applied
    the entry. If it applied the entry late, because it was catching up or had been paused, the estimate is behind the
    leader's time by as much.
  - The leader's answer to a heartbeat names the time of the moment at which it was sent. That moment is between the
    heartbeat and the arrival of the answer, so the leader's time is now at least what was named and at most what was
    named plus the round trip. The estimate is corrected to these bounds, up or down.
  - A snapshot has no moment: progress is counted from the first look at the clock after it.
  - An entry or a snapshot of a newer term than all that the member knows corrects the estimate down too. The leader of
    that term may lag (below), and its time is the group's. A member that kept its own estimate would leap ahead when it
    leads next.
  - The leader may be slowing its time by a tenth, and the member does not know. So it counts nine tenths of its own
    progress. With all of it a member that was paused and leads next would leap ahead, by up to a tenth of its pause.

So after a failover group time may lag behind the old leader's by a tenth of the progress that no answer has told, and
by the time since the latest answer in which the new leader was paused itself. After a restart of all members at once it
continues from the last entry.
"""

from __future__ import annotations

from statistics import median_low

SLEW_DIVISOR = 10
MAX_SLEWED_MS = 1_000
"""One step slews by at most a tenth of its progress, and of this."""


class GroupClock:
    """Group time of one group, as this member knows it. Times in milliseconds; monotonic ones are of its own clock."""

    def __init__(self) -> None:
        self._last = 0
        self._at: int | None = None
        """The monotonic time at which `_last` was so."""
        self._rest = 0
        """Progress that was too short for a millisecond of slewing. Longer progress is not kept for later: time would
        leap when the median of the wall clocks moves."""
        self._term = 0
        """The term of the leader whose time this is. If this member led in it, nobody else has slowed its time."""
        self.applied = 0
        """The latest time of an applied entry or of a snapshot; snapshots store it, and it is the same on every
        member."""

    @property
    def last(self) -> int:
        """Group time at the last look at the clock; 0 if there is none yet."""
        return self._last

    def estimate(self, monotonic_ms: int) -> int:
        """The time of a leader that has been slowing it since `_last`."""
        return self._last + self._progress(monotonic_ms) * (SLEW_DIVISOR - 1) // SLEW_DIVISOR

    def observe(self, now_ms: int, monotonic_ms: int | None = None, term: int = 0) -> None:
        """An entry of this term carries this time, and is applied at this moment. A snapshot has no moment. term: 0 if
        it is not newer than what is known."""
        self.applied = max(self.applied, now_ms)
        known = self._last if monotonic_ms is None else self.estimate(monotonic_ms)
        if now_ms > known or term > self._term:
            self._set(self.applied, monotonic_ms)
        self._term = max(self._term, term)

    def heard(self, now_ms: int, asked_ms: int, monotonic_ms: int, term: int) -> None:
        """The group's leader in this term has said that this was the time. asked_ms, monotonic_ms: when this member
        asked, and when it got the answer."""
        if now_ms:
            latest = now_ms + max(0, monotonic_ms - asked_ms)
            known = min(self.estimate(monotonic_ms), latest)
            self._set(max(now_ms, known, self.applied), monotonic_ms)
            self._term = max(self._term, term)

    def now(self, monotonic_ms: int, wall_clocks_ms: list[int], term: int) -> int:
        """The leader's: the time for the next entry. wall_clocks_ms: the members' wall clocks as known here, at least
        one. term: the one in which this member leads."""
        wall = median_low(wall_clocks_ms)
        if self._last == 0:
            self._last = wall  # a group's first entry: there is no earlier time to continue from
        if term != self._term:
            self._term = term
            self._set(self.estimate(monotonic_ms), monotonic_ms)
        progress = self._progress(monotonic_ms)
        self._at = monotonic_ms
        allowed, self._rest = divmod(self._rest + min(MAX_SLEWED_MS, progress), SLEW_DIVISOR)
        slew = max(-allowed, min(allowed, wall - (self._last + progress)))
        self._last += max(0, progress + slew)
        return self._last

    def _progress(self, monotonic_ms: int) -> int:
        return 0 if self._at is None else max(0, monotonic_ms - self._at)

    def _set(self, now_ms: int, monotonic_ms: int | None) -> None:
        self._last, self._at, self._rest = now_ms, monotonic_ms, 0
