"""A leader's work beside replication: it confirms reads, and hands its leadership to another voter.

Both end when the leadership ends: `ReadIndex.refuse`, `LeadershipTransfer.end`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorum.replication import codec
from quorum.replication.engine import RaftEngine
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.outbox import Outbox

ReadCallback = Callable[[int | None], None]


class ReadIndex:
    """ReadIndex (Raft §6.4): a read waits until a majority has answered a message that was sent after the read was
    asked.

    Reads that arrive during a heartbeat round wait together for the next round. So many reads cost one more round trip,
    not one each. Any answer to a later message counts, also an answer to an append.
    """

    def __init__(self, engine: RaftEngine, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self.waiting: list[tuple[int, int, ReadCallback]] = []
        """(seq, commit index, callback) of reads that wait for a majority, oldest first"""
        self.wants_round = False
        """Whether the next tick should send a heartbeat to every member."""

    def add(self, callback: ReadCallback) -> None:
        """Add a read of what is committed now."""
        if not self.waiting:
            self.wants_round = True
        self.waiting.append((self._guard.seq + 1, self._engine.commit_index, callback))

    def confirm(self) -> None:
        """Answer the reads that a majority has confirmed. The first of the others begins the next round."""
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
        """Answer all reads with None, because they can no longer be confirmed here."""
        waiting, self.waiting = self.waiting, []
        self.wants_round = False
        for _, _, callback in waiting:
            callback(None)

    def _confirmed_seq(self) -> int:
        """The highest number that a majority, this leader included, has answered in this leadership."""
        guard = self._guard
        needed = guard.majority_of_others
        if not needed:
            return guard.seq
        answered = sorted((guard.answered.get(peer, 0) for peer in self._engine.voters), reverse=True)
        return answered[needed - 1]


@dataclass(slots=True)
class _Transfer:
    target: str
    deadline_s: float
    is_asked: bool = False
    """Whether the target has everything and was told to campaign."""


class LeadershipTransfer:
    """Leadership transfer (thesis §3.10): the target is brought up to date and told to campaign. Until the transfer has
    succeeded or failed, the leader proposes nothing."""

    def __init__(
        self,
        engine: RaftEngine,
        view: JournalView,
        guard: Guard,
        outbox: Outbox,
        clock: Callable[[], float],
        limit_s: float,
    ) -> None:
        """limit_s: the time after which an unsuccessful transfer ends and the leader continues."""
        self._engine = engine
        self._view = view
        self._guard = guard
        self._outbox = outbox
        self._clock = clock
        self._limit_s = limit_s
        self._transfer: _Transfer | None = None

    @property
    def is_on(self) -> bool:
        return self._transfer is not None

    def begin(self, target: str) -> bool:
        """Begin a transfer; False if one is in progress, or the target cannot be reached or is no voter."""
        if self._transfer is not None:
            return False
        if not self._guard.is_voter(target) or target not in self._engine.connected:
            return False
        self._transfer = _Transfer(target, self._clock() + self._limit_s)
        self.advance()
        return True

    def advance(self) -> None:
        """To be called with every tick: tell the target once it has everything; give up when it takes too long."""
        transfer = self._transfer
        if transfer is None:
            return
        if self._clock() >= transfer.deadline_s or not self._guard.is_voter(transfer.target):
            self._transfer = None
        elif not transfer.is_asked and self._engine.match_index(transfer.target) == self._view.last_index:
            transfer.is_asked = True
            self._outbox.queue(transfer.target, codec.TimeoutNow(self._engine.term))

    def end(self) -> None:
        """End the transfer: the leadership has ended, or begun."""
        self._transfer = None
