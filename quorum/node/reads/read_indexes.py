"""Read indexes (ReadIndex, Raft §6.4): how far a replica must have applied before it may answer a question about now.

Everything that any member answered before a question was asked is committed at or below the group's read index. A node
asks the group's leader for the index; the leader may be this node itself. The leader answers with its commit index once
a majority has confirmed, after the request has arrived, that it still leads. It refuses while it has committed no entry
of its term, and during a leadership transfer. Nothing is written to the log.

All questions that wait for a group share one request. Questions that arrive while it is under way wait for the next
one, because its answer may be older than they are. A request is repeated until it is answered, and immediately when the
leader changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol

from fifo.frozen_dataclasses import dataclass
from quorum.node.cluster.disk_monitor import DiskMonitor
from quorum.node.cluster.leader_routes import LeaderRoutes
from quorum.node.errors import PeerFrameError
from quorum.node.replica.replica import Replica
from quorum.node.wire.frames import FrameTable, Send

KIND_READ, KIND_READ_INDEX = 20, 21

REPEAT_MS = 250
"""A request without an answer is repeated after this time. The leader may have lost it, or its leadership."""
REFUSED_MS = 50
"""A request that was refused is repeated after this time."""

_REQUEST = struct.Struct("<IQQ")
_ANSWER = struct.Struct("<IQQQ")

ReadCallback = Callable[[int | None], None]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """boot and number: the request's id. No two processes of a node have the same boot number, so a late answer to an
    earlier process is not taken for one to this process."""

    group: int
    boot: int
    number: int

    def encode(self) -> bytes:
        return _REQUEST.pack(self.group, self.boot, self.number)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ReadRequest:
        if len(data) != _REQUEST.size:
            raise PeerFrameError(f"a request for a read index has {_REQUEST.size} bytes, not {len(data)}")
        return cls(*_REQUEST.unpack(data))


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """The answer to a request; index is 0 if it is refused."""

    request: ReadRequest
    index: int

    def encode(self) -> bytes:
        request = self.request
        return _ANSWER.pack(request.group, request.boot, request.number, self.index)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ReadIndex:
        if len(data) != _ANSWER.size:
            raise PeerFrameError(f"a read index has {_ANSWER.size} bytes, not {len(data)}")
        group, boot, number, index = _ANSWER.unpack(data)
        return cls(ReadRequest(group, boot, number), index)


class Waiter(Protocol):
    """A question about the current state. Waiters are hashable."""

    def __hash__(self) -> int: ...

    def read_index_found(self, group: int, index: int) -> None: ...


@dataclass(slots=True)
class _Round:
    """A request under way, and the questions that share it."""

    request: ReadRequest
    waiters: dict[Waiter, None]
    leader: str | None = None
    """the peer that it was sent to last; "" is this node"""
    repeat_ms: int = 0


@dataclass(slots=True)
class ReadIndexes:
    """The read indexes of one member. Times are of the member's clock.

    While this member's disk is silent it answers no request: it would hear no majority.
    """

    boot: int
    routes: LeaderRoutes
    replicas: Mapping[int, Replica]
    disk_monitor: DiskMonitor
    send: Send
    _number: int = 0
    _now_ms: int = 0
    _waiting: dict[int, dict[Waiter, None]] = field(default_factory=dict)
    """group -> questions for the next request"""
    _rounds: dict[int, _Round] = field(default_factory=dict)

    def take_frames(self, table: FrameTable) -> None:
        table.add(
            KIND_READ, lambda peer, data, now_ms: self.requested(peer, ReadRequest.decode(data)), since=1
        )
        table.add(KIND_READ_INDEX, lambda peer, data, now_ms: self.answered(ReadIndex.decode(data)), since=1)

    def ask(self, group: int, waiter: Waiter) -> None:
        """waiter.read_index_found is called later, with the read index of a moment after this call."""
        self._waiting.setdefault(group, {})[waiter] = None

    def forget(self, group: int, waiter: Waiter) -> None:
        """Drops a question whose caller has stopped waiting."""
        if group in self._waiting:
            self._waiting[group].pop(waiter, None)
        if group in self._rounds:
            self._rounds[group].waiters.pop(waiter, None)

    @property
    def is_busy(self) -> bool:
        """Whether `turn` has anything to do."""
        return bool(self._waiting or self._rounds)

    @property
    def is_due(self) -> bool:
        """Whether a request should be sent immediately."""
        if not self._waiting:
            return False
        return any(waiters and group not in self._rounds for group, waiters in self._waiting.items())

    def turn(self, now_ms: int) -> None:
        """Sends requests: new ones, those without an answer, and those whose leader has changed."""
        self._now_ms = now_ms
        for group in [*self._rounds]:
            if not self._rounds[group].waiters:
                del self._rounds[group]
        for group in [*self._waiting]:
            if group not in self._rounds:
                waiters = self._waiting.pop(group)
                if waiters:
                    self._number += 1
                    request = ReadRequest(group, self.boot, self._number)
                    self._rounds[group] = _Round(request, waiters)
        for round_ in [*self._rounds.values()]:
            self._send(round_, now_ms)

    def _send(self, round_: _Round, now_ms: int) -> None:
        request = round_.request
        leader = self.routes.link(request.group)
        if leader is None or (leader == round_.leader and now_ms < round_.repeat_ms):
            return
        round_.leader, round_.repeat_ms = leader, now_ms + REPEAT_MS
        if leader:
            self.send(leader, KIND_READ, [request.encode()])
        else:
            self._barrier(request.group, lambda index: self.answered(ReadIndex(request, index or 0)))

    def requested(self, peer: str, request: ReadRequest) -> None:
        """Answers the request of a peer that takes this node for the leader."""
        if self.disk_monitor.is_silent:
            return  # its sender asks again

        def answer(index: int | None) -> None:
            self.send(peer, KIND_READ_INDEX, [ReadIndex(request, index or 0).encode()])

        self._barrier(request.group, answer)

    def _barrier(self, group: int, callback: ReadCallback) -> None:
        replica = self.replicas.get(group)
        if replica is None:
            callback(None)
        else:
            replica.read_barrier(callback)

    def answered(self, answer: ReadIndex) -> None:
        """An answer to a request of this node; one to an earlier request is ignored."""
        group = answer.request.group
        round_ = self._rounds.get(group)
        if round_ is None or round_.request != answer.request:
            return
        if not answer.index:
            round_.repeat_ms = min(round_.repeat_ms, self._now_ms + REFUSED_MS)
            return
        del self._rounds[group]
        for waiter in round_.waiters:
            waiter.read_index_found(group, answer.index)
