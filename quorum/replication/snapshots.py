"""Snapshots from a leader to a member too far behind: chunks in order, answered, resumed where they stopped.

Sending: a window of chunks is under way, read from the snapshot piece by piece; what the follower says it has moves it
on. If nothing moved between two heartbeats, what was under way is taken for lost and sent again; when all is there, an
empty chunk at its end asks again. Receiving: chunks of one snapshot, identified by index, term, size and CRC, are put
one behind the other on disk; any other offset is answered with what is here. It is handed on only when it is whole and
its CRC right, and stays until it is installed or another one comes: the bodies it refers to are fetched meanwhile
(quorum/node), and the leader asks on until they are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quorum.log.record import crc32c
from quorum.replication.codec import SnapshotChunk

WINDOW_CHUNKS = 4


SILENT_S = 60.0
"""A follower that has said nothing for this long no longer holds what its snapshot refers to."""
LIMIT_S = 3_600.0
"""Nor does any for longer than this. It gets a newer snapshot then, and what it has fetched is there already."""


KEPT_STEP_BYTES = 1 << 20


class KeptBytes:
    """From which entry on the newest `limit` bytes of applied entries begin, to a megabyte, without a sum an entry."""

    def __init__(self, limit: int) -> None:
        self._marks: deque[int] = deque(maxlen=max(1, -(-limit // KEPT_STEP_BYTES)) + 1)
        self._since = 0

    def add(self, index: int, size: int) -> None:
        """Entries are added in their order; what is added again counts again, which keeps less than the limit."""
        self._since += size
        if self._since >= KEPT_STEP_BYTES:
            self._since = 0
            self._marks.append(index)

    @property
    def first_index(self) -> int:
        """The first entry to be kept, 0 while it is not known."""
        return self._marks[0] if len(self._marks) == self._marks.maxlen else 0


class SnapshotUnsendable(Exception):
    """The snapshot's file is whole, but something that it refers to cannot be read here."""


class SnapshotSource(Protocol):
    """A snapshot that can be read piece by piece (quorum.log has it). read: OSError, ValueError if it is damaged,
    SnapshotUnsendable."""

    @property
    def index(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def crc(self) -> int: ...
    def prepare(self) -> bool:
        """Get on with what has to be done before size and crc are known, a little; whether they are. Raises as read."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """At most so many bytes; none only at the end."""
        ...

    def close(self) -> None: ...


class HeldSnapshot:
    """A snapshot in memory."""

    def __init__(self, index: int, term: int, state: bytes) -> None:
        self.index, self.term, self.size, self.crc = index, term, len(state), crc32c(state)
        self._state = state

    def prepare(self) -> bool:
        return True

    def read(self, offset: int, length: int) -> bytes:
        return self._state[offset : offset + length]

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class Outgoing:
    """One snapshot on its way to one peer."""

    source: SnapshotSource
    chunk_bytes: int
    began_s: float
    heard_s: float
    sent: int = 0
    """Bytes given to the network, in order."""
    taken: int = 0
    """Bytes the peer has said it has."""
    _began: bool = False
    _moved: bool = True

    @property
    def index(self) -> int:
        return self.source.index

    def next_chunk(self) -> tuple[int, bytes] | None:
        """Offset and bytes to send now, None if the window is full or all is sent. An empty state is one chunk."""
        size = self.source.size
        if self._began and (self.sent >= size or self.sent - self.taken >= WINDOW_CHUNKS * self.chunk_bytes):
            return None
        offset = self.sent
        data = self.source.read(offset, self.chunk_bytes)
        self._began = True
        self.sent += len(data)
        return offset, data

    def answered(self, offset: int, now_s: float) -> None:
        """The peer has this many bytes. Fewer than before means that it has begun anew."""
        if offset > self.source.size:
            return
        self.heard_s = now_s
        if offset != self.taken:
            self._moved = True
        if offset < self.taken or offset > self.sent:
            self.sent = offset
        self.taken = offset

    def restart(self) -> None:
        """What was under way is lost."""
        self.sent = self.taken
        self._began = False

    def heartbeat(self) -> None:
        """A heartbeat is due: without progress since the last, what was under way is sent again."""
        if not self._moved:
            self.restart()
        self._moved = False

    def is_overdue(self, now_s: float) -> bool:
        """Whether it has held its snapshot for too long."""
        return now_s - self.heard_s > SILENT_S or now_s - self.began_s > LIMIT_S


class Received(Protocol):
    """A snapshot that is being received, on disk (quorum.log has it). LogFull from everything that writes."""

    @property
    def received(self) -> int:
        """How many bytes are here, in order."""
        ...

    @property
    def is_whole(self) -> bool: ...
    def check(self) -> bool:
        """Looks at a part of what an earlier process has left; True once there is nothing to look at."""
        ...

    def add(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Takes what begins where the last piece ended, nothing else."""
        ...

    def finish(self) -> bool:
        """It is whole: makes it durable; False if its CRC is wrong."""
        ...

    def open(self) -> SnapshotSource:
        """Once it is finished."""
        ...

    def keep(self) -> None:
        """It takes its place among the snapshots."""
        ...

    def drop(self) -> None:
        """It is not wanted any more."""
        ...


Receive = Callable[[int, int, int, int], Received]
"""(index, term, size, crc) of a snapshot: where it is received."""


class Incoming:
    """The snapshot that is being received."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._identity: tuple[int, int, int, int] | None = None
        self._here: Received | None = None
        self._source: SnapshotSource | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a snapshot is being received."""
        return self._identity is not None

    def take(self, chunk: SnapshotChunk) -> SnapshotSource | None:
        """The snapshot, to be read, if it is here and its CRC right; the same for every further chunk. None otherwise.
        LogFull: the same chunk may come again."""
        identity = _identity(chunk)
        if identity != self._identity:
            self.drop()
            self._here = self._receive(*identity)
            self._identity = identity
        assert self._here is not None
        if self._source is None and self._here.check():
            self._here.add(chunk.offset, chunk.data)
            if self._here.is_whole:
                if self._here.finish():
                    self._source = self._here.open()
                else:
                    self.drop()
        return self._source

    def received(self, chunk: SnapshotChunk) -> int | None:
        """How many bytes of this chunk's snapshot are here; None while that is still looked at."""
        if _identity(chunk) != self._identity or self._here is None:
            return 0
        return self._here.received if self._source is not None or self._here.check() else None

    def keep(self) -> None:
        """The snapshot that `take` gave takes its place; it can still be read. LogFull."""
        assert self._here is not None
        self._here.keep()
        self._here = None

    def drop(self) -> None:
        """Forget what was received and not kept."""
        self._identity = None
        if self._source is not None:
            self._source.close()
            self._source = None
        if self._here is not None:
            self._here.drop()
            self._here = None


def _identity(chunk: SnapshotChunk) -> tuple[int, int, int, int]:
    return chunk.index, chunk.snapshot_term, chunk.size, chunk.crc
