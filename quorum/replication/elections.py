"""Pre-vote (thesis §9.6): ask whether an election could be won before a term is spent on it.

A member whose election timeout has passed asks all others whether they would vote for it in the next term. They would
if they hear no leader and its log is at least as far as theirs. Only with a majority does the library begin a real
election. A member that was cut off or paused so does not unseat a leader that works. Asking changes nothing anywhere,
so answers need no durability and lost ones no care: the next round has a new number.

Who stands at all, and when, is said here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorum.replication import codec
from quorum.replication.guard import Guard
from quorum.replication.journal_view import JournalView
from quorum.replication.outbox import Outbox
from quorum.replication.quarantine import Quarantine

AT_ONCE = 0.0
"""When something is due that waits for no clock. A clock that is looked at would not do: it goes on, and whoever
compares with what it showed earlier finds that it is not yet time."""
RETRY_PART = 0.5
"""A round without a majority is repeated after this part of the minimum election timeout."""
LAST_RESORT_TIMEOUTS = 5
"""A member that should not lead stands all the same when nobody has led for so many of the longest election timeouts:
it may be the only one with everything that is committed."""


class PreVoteRounds:
    """The rounds this member asks in."""

    def __init__(self, retry_s: float) -> None:
        self.others: frozenset[str] = frozenset()
        """The other voters."""
        self._retry_s = retry_s
        self.number = 0
        self._term: int | None = None
        self._granted: set[str] = set()
        self._began_s = 0.0

    def cancel(self) -> None:
        """A leader was heard, or a vote given: there is nothing to ask for now."""
        self._term = None
        self._granted.clear()

    def begin_if_due(self, term: int, now_s: float) -> bool:
        """True if a new round begins now, for an election from this term: its number is to be sent to everybody."""
        if self._term == term and now_s < self._began_s + self._retry_s:
            return False
        self.number += 1
        self._term = term
        self._granted.clear()
        self._began_s = now_s
        return True

    def take(self, peer: str, number: int) -> None:
        """A peer would vote."""
        if self._term is not None and number == self.number:
            self._granted.add(peer)

    def is_won(self, term: int) -> bool:
        """Whether a majority, this member included, would elect it from this term."""
        granted = len(self._granted & self.others)
        return self._term == term and (granted + 1) * 2 > len(self.others) + 1

    def next_due(self, term: int, deadline_s: float, now_s: float) -> float:
        """When the election timer has something to do; AT_ONCE, whatever the clock shows."""
        if self._term != term or now_s <= deadline_s:
            return deadline_s
        return AT_ONCE if self.is_won(term) else self._began_s + self._retry_s


class Candidacy:
    """Whether this member runs for office."""

    def __init__(
        self,
        engine: Any,
        view: JournalView,
        guard: Guard,
        outbox: Outbox,
        quarantine: Quarantine,
        clock: Callable[[], float],
        *,
        election_min_s: float,
        election_max_s: float,
        is_voter: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._view = view
        self._guard = guard
        self._outbox = outbox
        self._quarantine = quarantine
        self._clock = clock
        self._election_max_s = election_max_s
        self._is_voter = is_voter
        self._began_s = clock()
        self.rounds = PreVoteRounds(election_min_s * RETRY_PART)
        self.is_transfer = False
        """this node's candidacy was asked for by the leader"""
        self.stands_last = False
        """Whether this node leaves leading to others, see LAST_RESORT_TIMEOUTS."""
        self.handicap_s = 0.0
        """How much later than its election timeout this member runs for office: it stands last while it is damaged."""

    def next_due(self) -> float:
        """When the election timer has something to do."""
        deadline = self._engine._SyncObj__raftElectionDeadline + self.handicap_s
        return self.rounds.next_due(self._guard.term, deadline, self._clock())

    def may_run(self) -> bool:
        """For the engine: the election timeout has passed; whether a pre-vote is won. Only voters stand: what holds is
        the last configuration of the own log (thesis §4.1)."""
        if self._quarantine.is_on:
            return False
        own = self._engine
        if not self._may_stand():
            own._SyncObj__transferInProgress = False
            own._SyncObj__raftLeader = None
            own._SyncObj__raftElectionDeadline = self._clock() + own._SyncObj__generateRaftTimeout()
            return False
        self.is_transfer = own._SyncObj__transferInProgress
        if not self.is_transfer and self._clock() < own._SyncObj__raftElectionDeadline + self.handicap_s:
            return False
        if not self._guard.voters or own._SyncObj__transferInProgress or self.rounds.is_won(self._guard.term):
            self.rounds.cancel()
            return True
        if self.rounds.begin_if_due(self._guard.term, self._clock()):
            own._SyncObj__raftLeader = None
            last = self._view.last_index
            request = codec.PreVoteRequest(
                self._guard.term + 1, self.rounds.number, last, self._view.term_at(last)
            )
            for voter in self._guard.voters:
                self._outbox.queue(voter.id, request)
        return False

    def _may_stand(self) -> bool:
        if not self._is_voter():
            return False
        if not self.stands_last or not self._guard.voters:
            return True
        quiet_since = max(self._began_s, self._guard.heard_leader_s)
        return self._clock() > quiet_since + LAST_RESORT_TIMEOUTS * self._election_max_s
