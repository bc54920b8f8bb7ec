"""Replicas whose state is lost or wrong ask for another member's state; the leader sends it beside its entries.

A lost state breaks no promise, because the journal and the hard state are right: the member votes and acknowledges as
before. So any number of members may have lost their states at the same time, as long as one has not. Each asks all
others twice a second. The leader sends its newest snapshot, unless its own state is in doubt. The snapshot is installed
when it is complete and its bodies are here, and applying continues after it.

A replica *wants* a state in five cases:

  - its own state differs from most voters' states (state_comparison.py)
  - a page of it could not be read when it was needed (PageUnreadable)
  - it has to be built again from a snapshot, and the entries since then cannot be read (StateUnreadable)
  - a page of it is known to be lost, and was not needed yet (corruption_monitor.py): until the other state is here, the
    replica keeps its own one and serves
  - it cannot apply an entry because a body is damaged here, and no other member has that body: their states do not need
    it any more (corruption_monitor.py)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from quorum.node.cluster.peers import Peers
from quorum.node.errors import PeerFrameError
from quorum.node.replica.replica import Replica
from quorum.node.schedule import Due
from quorum.node.wire.frames import Data, FrameTable, Send

KIND_STATE_REQUEST = 24
ASK_MS = 500
"""Interval between requests of a replica that wants a state."""

_REQUEST = struct.Struct("<IQ")


class StateRequests:
    """The requests and answers of one member, for all its groups."""

    def __init__(self, replicas: Mapping[int, Replica], peers: Peers, send: Send) -> None:
        self._replicas = replicas
        self._send = send
        self._peers = peers
        self.asking = Due(ASK_MS)

    def take_frames(self, table: FrameTable) -> None:
        table.add(KIND_STATE_REQUEST, self._asked, since=1)

    def ask(self, now_ms: int) -> None:
        """Asks the peers for states. A replica in quarantine is sent one anyway."""
        for number, replica in self._replicas.items():
            replica.raft.want_state(is_wanted=replica.wants_state)
            if replica.wants_state and not replica.raft.quarantine.is_on:
                for peer in self._peers.all:
                    self._send(peer, KIND_STATE_REQUEST, [_REQUEST.pack(number, replica.raft.state_from)])

    def _asked(self, peer: str, data: Data, now_ms: int) -> None:
        """Handles a peer's request for a state. The peer's earlier claims about its own state are void."""
        try:
            group, from_index = _REQUEST.unpack(data)
        except struct.error as error:
            raise PeerFrameError(
                f"a request for a state of {len(data)} bytes; expected {_REQUEST.size}"
            ) from error
        replica = self._replicas.get(group)
        if replica is None:
            return
        replica.state_hashes.forget(peer)
        if not replica.disputed:
            replica.wake()
            replica.raft.send_state(peer, from_index)
