"""When a replica whose state is lost or wrong may be rebuilt from another member's snapshot.

The rebuilt replica gives up its log and so its votes and acknowledgements: it is in quarantine until all other voters
have answered, each sound itself. So members are rebuilt one after the other. A member begins once all other voters have
been connected, a leader has been known and no other member has been in quarantine for its number times TURN_MS. The
time counts from the moment at which the last of these became true: members that have waited for the same absent member
do not begin together when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from quorum.node.replica import Replica

QUARANTINE_SEEN_MS = 5_000
"""A member in quarantine asks how others stand every 500 ms; so long after the last question there is none."""
TURN_MS = 5_000
"""The member with the number n waits n times this long."""


class Rebuilding:
    """The turns of one member, for all its groups."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        connected: Callable[[int], Sequence[str]],
        number: Callable[[], int],
    ) -> None:
        """connected(group): the other members that are connected. number(): this member's."""
        self._replicas = replicas
        self._connected = connected
        self._number = number
        self._possible_since_ms: dict[int, int] = {}
        """group that waits -> since when it could be rebuilt"""
        self.quarantine_seen_ms = -QUARANTINE_SEEN_MS
        """when another member last asked how this one stands"""

    def next_group(self, waiting: Collection[int], now_ms: int) -> int | None:
        """A group whose replica is to be rebuilt now. waiting: all groups whose replicas have to be. To be asked again
        and again while there are any."""
        possible = [group for group in waiting if self._is_possible(self._replicas[group], now_ms)]
        self._possible_since_ms = {
            group: self._possible_since_ms.get(group, now_ms) for group in sorted(possible)
        }
        for group, since_ms in self._possible_since_ms.items():
            if now_ms - since_ms >= self._number() * TURN_MS:
                return group
        return None

    def _is_possible(self, replica: Replica, now_ms: int) -> bool:
        others = set(replica.raft.configuration.voters) - {replica.raft.me}
        return (
            bool(others)
            and others <= set(self._connected(replica.number))
            and not replica.raft.is_leader
            and replica.raft.leader is not None
            and now_ms - self.quarantine_seen_ms > QUARANTINE_SEEN_MS
        )
