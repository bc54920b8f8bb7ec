"""The node's log checks itself, little by little: a start does not read what is sealed, and disks forget.

What is found bad is in `log.damages`, from where the member gives it to its healer. The reading is done where the
log's garbage is copied (collecting.Background), and only while nothing is.
"""

from __future__ import annotations

from typing import Protocol

from quorum.node.collecting import Background

SCRUB_BYTES = 1 << 20
"""Read in one piece: hardly to be felt on any disk, and a few milliseconds of one core."""
SCRUB_MS = 1_000
"""From one piece to the next: about a day for 80 GB."""
ROUND_MS = 24 * 3_600_000
"""A round begins this long after the one before it began, or when that is through: disks forget slowly, and a small log
is not to be read again and again."""


class ScrubbedLog(Protocol):
    """What is needed of the node's log."""

    def scrub(self, budget_bytes: int) -> int: ...


class Scrubbing:
    """One piece after the other, round after round."""

    def __init__(self, log: ScrubbedLog, background: Background) -> None:
        self._log = log
        self._background = background
        self._next_ms = 0
        self._round_began_ms: int | None = None
        self._checked = 0
        """by the piece that is under way, or was last"""
        self.is_under_way = False
        """The background works on a piece."""
        self.checked_bytes = 0
        """in this life"""
        self.rounds = 0
        """Rounds that are through."""

    def turn(self, now_ms: int) -> None:
        """Goes on with what is due. To be called while the background does nothing else; raises what ended a piece."""
        if self.is_under_way:
            self._finish(now_ms)
        elif now_ms >= self._next_ms:
            if self._round_began_ms is None:
                self._round_began_ms = now_ms
            self._next_ms = now_ms + SCRUB_MS
            self.is_under_way = True
            self._background.start(self._check)

    def _check(self) -> None:
        self._checked = self._log.scrub(SCRUB_BYTES)

    def _finish(self, now_ms: int) -> None:
        if not self._background.is_done():
            return
        self.is_under_way = False
        self.checked_bytes += self._checked
        if self._checked == 0:
            assert self._round_began_ms is not None
            self.rounds += 1
            self._next_ms = max(now_ms + SCRUB_MS, self._round_began_ms + ROUND_MS)
            self._round_began_ms = None
