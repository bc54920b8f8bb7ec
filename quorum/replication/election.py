"""Pre-vote (thesis §9.6): ask whether an election could be won before a term is spent on it.

A member whose election timeout has passed asks all others whether they would vote for it in the next term. They would
if they hear no leader and its log is at least as far as theirs. Only with a majority does the library begin a real
election. A member that was cut off or paused so does not unseat a leader that works. Asking changes nothing anywhere,
so answers need no durability and lost ones no care: the next round has a new number.
"""

from __future__ import annotations

RETRY_PART = 0.5
"""A round without a majority is repeated after this part of the minimum election timeout."""


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
        """When the election timer has something to do."""
        if self._term != term or now_s <= deadline_s:
            return deadline_s
        return now_s if self.is_won(term) else self._began_s + self._retry_s
