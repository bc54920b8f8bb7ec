"""ReadIndex (Raft §6.4): a read waits until a majority has answered something that was sent after it was asked.

Reads that come while a heartbeat round is under way wait for the next round, all together: so many reads cost one round
trip more, not one each. Any answer counts that is newer than the read, also one to an append that was sent anyway.
"""

from __future__ import annotations

from collections.abc import Callable

from quorum.replication.guard import Guard

ReadCallback = Callable[[int | None], None]


class Reads:
    """The reads that wait at a leader."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.waiting: list[tuple[int, int, ReadCallback]] = []
        """(seq, commit index, callback) of reads that wait for a majority, oldest first"""
        self.wants_round = False
        """The next tick should send a heartbeat to every member."""

    def add(self, callback: ReadCallback) -> None:
        """A read of what is committed now."""
        if not self.waiting:
            self.wants_round = True
        self.waiting.append((self._guard.seq + 1, self._guard.commit_index, callback))

    def confirm(self) -> None:
        """Answers the reads that a majority has confirmed. The first of the others begins the next round."""
        if not self.waiting:
            return
        confirmed = self._confirmed_seq()
        count = sum(1 for seq, _, _ in self.waiting if seq <= confirmed)
        done, self.waiting = self.waiting[:count], self.waiting[count:]
        if done and self.waiting:
            self.wants_round = True
        for _, index, callback in done:
            callback(index)

    def refuse(self) -> None:
        """Answers all of them with None: nothing can be said here any more."""
        waiting, self.waiting = self.waiting, []
        self.wants_round = False
        for _, _, callback in waiting:
            callback(None)

    def _confirmed_seq(self) -> int:
        """The highest number that this leader and enough voters for a majority have answered in this office."""
        guard = self._guard
        answered = sorted((guard.answered.get(peer.id, 0) for peer in guard.voters), reverse=True)
        for others, seq in enumerate(answered, start=1):
            if guard.is_majority(others):
                return seq
        return guard.seq
