"""A leader hands over to another voter (thesis §3.10): it is brought up to date and told to stand."""

from __future__ import annotations

from collections.abc import Callable

from quorum.replication import codec
from quorum.replication.configuration import Transfer
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.outbox import Outbox
from quorum.replication.peers import Peers


class HandOver:
    """The one that is going on, if any. Only a leader's."""

    def __init__(
        self,
        view: JournalView,
        guard: Guard,
        peers: Peers,
        outbox: Outbox,
        clock: Callable[[], float],
        match_index: Callable[[str], int],
        patience_s: float,
    ) -> None:
        """match_index(member): up to where it is known to have everything.

        patience_s: if nothing has come of it after this time, the leader goes on."""
        self._view = view
        self._guard = guard
        self._peers = peers
        self._outbox = outbox
        self._clock = clock
        self._match_index = match_index
        self._patience_s = patience_s
        self._transfer: Transfer | None = None

    @property
    def is_on(self) -> bool:
        return self._transfer is not None

    def begin(self, target: str) -> bool:
        """False if one is going on, or the target cannot be reached or is no voter."""
        if self._transfer is not None:
            return False
        if not self._guard.is_voter(target) or target not in self._peers.connected:
            return False
        self._transfer = Transfer(target, self._clock() + self._patience_s)
        self.go_on()
        return True

    def go_on(self) -> None:
        """With every tick: tell the target once it has everything, give up when it takes too long."""
        transfer = self._transfer
        if transfer is None:
            return
        if self._clock() >= transfer.deadline_s or not self._guard.is_voter(transfer.target):
            self._transfer = None
        elif not transfer.is_asked and self._match_index(transfer.target) == self._view.last_index:
            transfer.is_asked = True
            self._outbox.queue(transfer.target, codec.TimeoutNow(self._guard.term))

    def end(self) -> None:
        """Office has changed."""
        self._transfer = None
