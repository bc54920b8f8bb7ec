"""The other members as this one sees them: their ids, and which of them are connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quorum.node.replica.replica import Replica


class Peers:
    """me: this member's id. `all` is set by the membership: the other members, and nodes that are not yet out of every
    group."""

    def __init__(self, me: str, replicas: Mapping[int, Replica], known: Iterable[str]) -> None:
        self.me = me
        self.all = tuple(known)
        self.connected: set[str] = set()
        self._replicas = replicas

    def follow(self, links: Iterable[str]) -> list[str]:
        """Updates the connected peers; returns those that are newly connected or no longer connected, sorted."""
        now = set(links)
        if now == self.connected:
            return []
        changed, self.connected = sorted(now ^ self.connected), now
        return changed

    def is_reachable(self, name: str) -> bool:
        return name == self.me or name in self.connected

    def candidates(self, group: int) -> list[str]:
        """The connected members that may be asked for a group's data, or asked to lead it, in this order: rotated by
        the group, the leader last because it has the most work."""
        peers = [peer for peer in self.all if peer in self.connected]
        turn = group % len(peers) if peers else 0
        leader = self._replicas[group].raft.leader
        return sorted(peers[turn:] + peers[:turn], key=lambda peer: peer == leader)
