"""The cluster switches to a new version of the machines once every member knows it.

A member's build knows the machine versions up to some number (fifo/versions.py), and says so in each handshake. What a
peer has said last counts, also while that peer is down: it may come back at any time, and has to be able to apply what
is in the logs by then. A peer that this process has never spoken to knows nothing.

 1. The leader of each queue group proposes `SetVersion` in its group's log, as soon as all other members know a version
    above the group's. The members are those of the catalog, and all others that are in any group.
 2. The system group's leader does the same once all queue groups have switched. The catalog's version is the cluster's:
    commands that need a version are refused before it is reached (api/hub/published_state.py).
 3. Entries that a leader makes after it has applied `SetVersion` are of the new version. From the first group's switch
    on, a node that does not know the version is refused by the handshake.

Nothing switches back: a member that has applied an entry of a version cannot go on with a build that does not know it.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from fifo.commands import SetVersion
from quorum.node.cluster.peers import Peers
from quorum.node.replica.replica import SYSTEM_GROUP, Replica
from quorum.node.replica.replicas import Replicas
from quorum.node.wire.frames import Network

PROPOSE_AGAIN_MS = 5_000
"""A proposal may be lost if its leader has lost the leadership."""


class VersionSwitch:
    """One of a member. known: the highest machine version that this member's build can apply."""

    def __init__(
        self, known: int, replicas: Replicas, peers: Peers, network: Network, logger: FilteringBoundLogger
    ) -> None:
        self.known = known
        self.needed = 0
        """the highest version that a group here has switched to: other nodes have to know it"""
        self._replicas = replicas
        self._peers = peers
        self._network = network
        self._logger = logger
        self._said: dict[str, int] = {}
        self._proposed: dict[int, tuple[int, int, int]] = {}
        """group -> (term, version, when) of the latest proposal"""

    def begin(self) -> None:
        """The groups are open: what they have switched to before this start is needed at once."""
        self._refuse_older()

    def known_by(self, member: str) -> int:
        """The highest version that this member knows, as it has said last; 0 where it has said nothing."""
        return self.known if member == self._peers.me else self._said.get(member, 0)

    def turn(self, now_ms: int) -> None:
        """Refuses nodes that are too old, and proposes what is due in the groups that this member leads."""
        self._refuse_older()
        for peer in self._network.links():  # what it says now counts, be it less than before
            self._said[peer] = self._network.version_of(peer)
        possible = self._known_by_all()
        for replica in self._replicas.values():
            wanted = possible
            if replica.number == SYSTEM_GROUP:
                wanted = min(possible, *(each.version for each in self._queue_groups()))
            if replica.leads and replica.version < wanted:
                self._propose(replica, wanted, now_ms)

    def _known_by_all(self) -> int:
        return min((self.known, *(self.known_by(peer) for peer in self._peers.all)))

    def _queue_groups(self) -> list[Replica]:
        return [each for each in self._replicas.values() if each.number != SYSTEM_GROUP]

    def _propose(self, replica: Replica, wanted: int, now_ms: int) -> None:
        term, version, when = self._proposed.get(replica.number, (-1, 0, 0))
        if (term, version) == (replica.raft.term, wanted) and now_ms - when < PROPOSE_AGAIN_MS:
            return
        self._proposed[replica.number] = replica.raft.term, wanted, now_ms
        self._logger.info("every member knows this machine version", group=replica.number, version=wanted)
        replica.propose_internal(SetVersion(wanted))

    def _refuse_older(self) -> None:
        needed = max(replica.version for replica in self._replicas.values())
        if needed > self.needed:
            self.needed = needed
            self._network.require_version(needed)
