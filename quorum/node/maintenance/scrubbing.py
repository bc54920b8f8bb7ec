"""Checks the node's files a piece at a time: a start does not read sealed segments, and disks lose data silently.

Damaged bodies and pages are in `log.damages`, where the CorruptionMonitor finds them. The log itself repairs the rest.
The background thread reads while it copies no garbage (garbage_collection.Background).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fifo.frozen_dataclasses import dataclass
from quorum.node.identity.identity import FILE, NodeState
from quorum.node.maintenance.garbage_collection import Background


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of scrubbing."""

    piece_bytes: int = 1 << 20
    """Bytes read in one piece: hardly noticeable on any disk, and a few milliseconds of one core."""
    piece_ms: int = 1_000
    """Interval between pieces: about a day for 80 GB."""
    round_ms: int = 24 * 3_600_000
    """Shortest interval between the beginnings of two rounds: disks lose data slowly, and a small log need not be read
    continuously."""


class ScrubbedLog(Protocol):
    """The part of the node's log that scrubbing needs."""

    def scrub(self, budget_bytes: int) -> int: ...
    def repair(self) -> Sequence[object]: ...


class Scrubbing:
    """Checks one piece after the other, round after round."""

    def __init__(
        self, log: ScrubbedLog, background: Background, node_state: NodeState, logger: Any, pace: Pace
    ) -> None:
        self._log = log
        self._background = background
        self._node_state = node_state
        self._logger = logger
        self._pace = pace
        self._next_ms = 0
        self._round_began_ms: int | None = None
        self._checked = 0
        """by the piece that is under way, or was last"""
        self._memory_is_whole = True
        self.is_under_way = False
        """The background works on a piece."""
        self.checked_bytes = 0
        """since this process started"""
        self.rounds = 0
        """Finished rounds."""

    def turn(self, now_ms: int) -> None:
        """Runs the next due step. Call it only while the background is idle; raises the error that ended a piece."""
        if self.is_under_way:
            self._finish(now_ms)
        if not self.is_under_way and now_ms >= self._next_ms:
            if self._round_began_ms is None:
                self._round_began_ms = now_ms
            self._next_ms = now_ms + self._pace.piece_ms
            self.is_under_way = True
            self._background.start(self._check)

    def _check(self) -> None:
        self._memory_is_whole = self._node_state.is_whole()
        self._checked = self._log.scrub(self._pace.piece_bytes)

    def _finish(self, now_ms: int) -> None:
        if not self._background.is_done():
            return
        self.is_under_way = False
        self.checked_bytes += self._checked
        for finding in self._log.repair():
            self._logger.error("file damaged", finding=str(finding))
        if not self._memory_is_whole:
            self._repair_node_state()
        if self._checked == 0:
            assert self._round_began_ms is not None
            self.rounds += 1
            self._next_ms = max(now_ms + self._pace.piece_ms, self._round_began_ms + self._pace.round_ms)
            self._round_began_ms = None

    def _repair_node_state(self) -> None:
        """Rewrites damaged records from this process's memory; without room on the disk the next piece finds them
        again."""
        if self._node_state.try_save():
            self._logger.error("file damaged", finding=f"{FILE} could not be read; it is written again")
