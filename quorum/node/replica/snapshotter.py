"""Takes the snapshots of a member's replicas: when one is due, when one that is kept is damaged, and to make room.

A snapshot is prepared a part in each step, so that no step takes long. Where the log has no room for it, the log is
left as it is, and the snapshot is tried again later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quorum.log import Log, LogFull
from quorum.node.replica.replica import Replica

RETRY_MS = 10_000
"""Interval until the next attempt after a snapshot that found no room, and between snapshots while room is low, since
nothing can be collected that the oldest snapshot still needs."""


class Snapshotter:
    """One per member. A snapshot is due after_bytes of applied entries after the last one, or after_ms after the first
    change since then."""

    def __init__(self, log: Log, logger: Any, *, after_bytes: int, after_ms: int) -> None:
        self._log = log
        self._logger = logger
        self._after_bytes = after_bytes
        self._after_ms = after_ms

    def save_due(self, replica: Replica, now_ms: int) -> None:
        """After something was applied."""
        is_due = replica.snapshots.is_due(now_ms, self._after_bytes, self._after_ms)
        raft = replica.raft
        if is_due or (raft.lacks_snapshot and raft.applied_index > raft.snapshot_index):
            self._save(replica, now_ms)

    def review(self, replicas: Iterable[Replica], now_ms: int) -> None:
        """Now and then: takes the snapshots that are due, also where nothing is applied any more; and replaces those
        that are damaged, or refer to a page that is."""
        for replica in replicas:
            if not (replica.parted or replica.blocked_on_index):
                self.save_due(replica, now_ms)
            plan, journal = replica.snapshots, self._log.journal(replica.number)
            is_damaged = plan.is_demanded or bool(journal.damaged_snapshots)
            if is_damaged and not replica.blocked_on_index and now_ms >= plan.not_before_ms:
                self._save(replica, now_ms)
                if journal.damaged_snapshots:  # less is applied than when it was taken
                    plan.postpone(now_ms + RETRY_MS)

    def make_room(self, replicas: Iterable[Replica], now_ms: int) -> None:
        """The disk is low: nothing can be collected that the oldest snapshot still needs."""
        for replica in replicas:
            plan = replica.snapshots
            if plan.bytes_since and now_ms >= plan.not_before_ms:
                self._save(replica, now_ms)
                if not plan.bytes_since:
                    plan.postpone(now_ms + RETRY_MS)

    def _save(self, replica: Replica, now_ms: int) -> None:
        is_being_replaced = replica.lacks_page and replica.raft.is_receiving
        if now_ms < replica.snapshots.not_before_ms or replica.parted or is_being_replaced:
            return
        try:
            if not replica.prepare_snapshot():
                replica.wake()
                return
            replica.save_snapshot(self._log, now_ms)
        except LogFull as error:
            replica.snapshots.postpone(now_ms + RETRY_MS)
            self._logger.error("no snapshot was taken", group=replica.number, error=str(error))
