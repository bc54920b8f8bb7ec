"""Detects a data directory that was put back to an earlier state, by marks that the other members remember of it.

Every member has a *mark*, a number in its node.json that only grows. It gives each peer a new one when they connect and
every MARK_MS, and stores it durably before it sends it; the peer stores it durably too. When two members connect, each
says which mark it remembers of the other before it sends any Raft message. A member that hears of a mark above its own
has forgotten what it has promised since that mark. It quarantines all its replicas (quorum/replication/quarantine.py),
raises its mark above any that it can have given, and stops. Frames of one connection keep their order, so until then
the member has neither elected a leader nor acknowledged an entry with that peer's help.

Not detected: a rollback to a state that is newer than the last mark that any connected member has heard.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable

from quorum.log import Log
from quorum.node.identity.identity import NodeState
from quorum.node.replica.bootstrap import quarantine
from quorum.node.schedule import NEVER, Due
from quorum.node.wire.frames import FrameTable

KIND_MARK, KIND_NEW_MARK = 22, 23
"""Frame kinds: the mark remembered of the receiver; the mark that the receiver is to remember of the sender."""
MARK_MS = 600_000
"""Interval between new marks for each peer: the least age of a state whose rollback is detected."""
GIVEN_MS = 60_000
"""A connection that comes and goes costs no more writes than one mark a peer in this time."""
LEAP = 1 << 20
"""More marks than a member gives in its life."""

_MARK = struct.Struct("<Q")

Send = Callable[[str, int, list[bytes]], object]


class RolledBack(Exception):
    """This data directory is older than what it has told other members."""


class RollbackMarks:
    """Of one member; on its Raft thread."""

    def __init__(self, node_state: NodeState, log: Log, groups: Collection[int], send: Send) -> None:
        self._node_state = node_state
        self._log = log
        self._groups = groups
        self._send = send
        self._ask_ms: dict[str, int] = {}
        self._given_ms: dict[str, int] = {}
        self.due = Due(next_ms=NEVER)

    def take_frames(self, table: FrameTable) -> None:
        table.add(KIND_MARK, self.remembered, since=1)
        table.add(KIND_NEW_MARK, lambda peer, data, now_ms: self.told(peer, data), since=1)

    def connected(self, peer: str, now_ms: int) -> None:
        if self._node_state.incarnation:
            self._ask_ms[peer] = now_ms + MARK_MS
            self.due.next_ms = min(self.due.next_ms, now_ms + MARK_MS)
            self._send(peer, KIND_MARK, [_MARK.pack(self._node_state.heard.get(peer, 0))])

    def turn(self, connected: Iterable[str], now_ms: int) -> None:
        for peer in connected:
            if now_ms >= self._ask_ms.get(peer, now_ms + 1):
                self.connected(peer, now_ms)
        self.due.next_ms = min((each for each in self._ask_ms.values() if each > now_ms), default=NEVER)

    def remembered(self, peer: str, data: bytes | memoryview, now_ms: int) -> None:
        """Handles the mark that a peer remembers of this node. Raises RolledBack if that is more than this node knows
        of."""
        (mark,) = _MARK.unpack(data)
        node_state = self._node_state
        if mark > node_state.mark:
            for group in self._groups:
                quarantine(self._log, group)
            self._log.sync()
            known, node_state.mark = node_state.mark, mark + LEAP
            node_state.try_save()  # without room the next process finds this out again
            raise RolledBack(
                f"{peer} remembers mark {mark} of this node, whose data directory has {known}: the directory was put "
                "back to an earlier state. All its replicas are quarantined now, and take everything from their leaders"
            )
        if now_ms >= self._given_ms.get(peer, now_ms):
            node_state.mark += 1
            if node_state.try_save():
                self._given_ms[peer] = now_ms + GIVEN_MS
                self._send(peer, KIND_NEW_MARK, [_MARK.pack(node_state.mark)])

    def told(self, peer: str, data: bytes | memoryview) -> None:
        """A peer has given this node a mark to remember."""
        (mark,) = _MARK.unpack(data)
        if mark > self._node_state.heard.get(peer, 0):
            self._node_state.heard[peer] = mark
            self._node_state.try_save()
