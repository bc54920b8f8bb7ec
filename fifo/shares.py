"""Shares of owners in a queue's limited places: consumers, subscriptions, pins, producers of staged batches.

An owner (`RegisterProducer`) may have as many places as are left free: a single owner has half of all, the next one
half of the rest. A few owners therefore do not lock out the others. Entries of version 1 know one owner only, UNKNOWN,
and check no share.
"""

from __future__ import annotations

from collections.abc import Iterable

from fifo.effects import Refused
from fifo.versions import SHARED_PLACES


class Owned:
    """The number of places that each owner has."""

    __slots__ = ("counts", "total")

    def __init__(self, owners: Iterable[int] = ()) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        for owner in owners:
            self.add(owner)

    def add(self, owner: int, count: int = 1) -> None:
        self.total += count
        self.counts[owner] = self.counts.get(owner, 0) + count
        if not self.counts[owner]:
            del self.counts[owner]

    def remove(self, owner: int, count: int = 1) -> None:
        self.add(owner, -count)

    def has_room(self, owner: int, allowed: int, more: int = 1) -> bool:
        """Whether this owner may have so many more of `allowed` places."""
        return self.counts.get(owner, 0) + more <= allowed - self.total

    def refuse_more(self, version: int, owner: int, allowed: int, queue: str, what: str) -> Refused | None:
        """The refusal if this owner may have no more, else None."""
        free = allowed - self.total
        if free <= 0:
            return Refused("limit", f"queue {queue!r} has {self.total} {what}; allowed: {allowed}")
        if version < SHARED_PLACES or self.has_room(owner, allowed):
            return None
        return Refused(
            "limit",
            f"queue {queue!r} has {self.counts[owner]} {what} of this client address; allowed: as many as are left "
            f"free of {allowed}, {free} now",
        )
