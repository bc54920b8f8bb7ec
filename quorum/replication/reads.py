"""ReadIndex (Raft §8): a read waits until a majority has answered something that was sent after it was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorum.replication.guard import Guard


class Reads:
    """The reads that wait at a leader."""

    def __init__(self, engine: Any, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self.waiting: list[tuple[int, int, Callable[[int | None], None]]] = []
        """(seq, commit index, callback) of reads that wait for a majority"""

    def add(self, callback: Callable[[int | None], None]) -> None:
        """A read of what is committed now. Its leader asks everybody at once."""
        self.waiting.append((self._guard.seq + 1, self._guard.commit_index, callback))
        self._engine._SyncObj__newAppendEntriesTime = float("-inf")

    def finish(self) -> None:
        """Answer those that a majority has confirmed; all of them, with None, if this node leads no more."""
        waiting, self.waiting = self.waiting, []
        if not self._guard.is_leader:
            for _, _, callback in waiting:
                callback(None)
            return
        for seq, index, callback in waiting:
            answered = self._guard.answered
            if self._guard.is_majority(sum(answered.get(peer.id, 0) >= seq for peer in self._guard.voters)):
                callback(index)
            else:
                self.waiting.append((seq, index, callback))
