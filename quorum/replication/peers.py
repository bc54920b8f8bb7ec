"""The other members by name: known, belonging to the group, connected."""

from __future__ import annotations

from collections.abc import Iterable

from quorum.replication.engine import Peer


class Peers:
    """Who is who, as one group sees it."""

    def __init__(self, me: str, names: Iterable[str]) -> None:
        self._known = {name: Peer(name, number) for number, name in enumerate(names, 1)}
        """Everybody ever heard of, this node included."""
        self.me = self.peer(me)
        self.others: dict[str, Peer] = {}
        """The other members: voters and learners. Always the same dict, which the guard and the feeder look at."""
        self.connected: set[str] = set()

    def peer(self, name: str) -> Peer:
        """By name; also one that was never heard of."""
        return self._known.setdefault(name, Peer(name, len(self._known) + 1))
