"""Snapshots from a leader to a member too far behind: chunks in order, answered, resumed where they stopped.

Sending: a window of chunks is under way; what the follower says it has moves it on. If nothing moved between two
heartbeats, what was under way is taken for lost and sent again. Receiving: chunks of one snapshot, identified by
index, term, size and CRC, are put one behind the other; any other offset is answered with what is here. The state is
handed on only when it is whole and its CRC right.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quorum.log.record import crc32c
from quorum.replication.codec import SnapshotChunk

WINDOW_CHUNKS = 4


@dataclass(slots=True)
class Outgoing:
    """One snapshot on its way to one peer."""

    index: int
    term: int
    state: bytes
    chunk_bytes: int
    crc: int = field(init=False)
    sent: int = 0
    """Bytes given to the network, in order."""
    taken: int = 0
    """Bytes the peer has said it has."""
    _began: bool = False
    _moved: bool = True

    def __post_init__(self) -> None:
        self.crc = crc32c(self.state)

    def next_chunk(self) -> tuple[int, bytes] | None:
        """Offset and bytes to send now, None if the window is full or all is sent. An empty state is one chunk."""
        if self._began and (
            self.sent >= len(self.state) or self.sent - self.taken >= WINDOW_CHUNKS * self.chunk_bytes
        ):
            return None
        self._began = True
        offset = self.sent
        data = self.state[offset : offset + self.chunk_bytes]
        self.sent += len(data)
        return offset, data

    def answered(self, offset: int) -> None:
        """The peer has this many bytes. Fewer than before means that it has begun anew."""
        if offset > len(self.state):
            return
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


class Incoming:
    """The snapshot that is being received."""

    def __init__(self) -> None:
        self._identity: tuple[int, int, int, int] | None = None
        self._data = bytearray()

    def take(self, chunk: SnapshotChunk) -> bytes | None:
        """The whole state if this chunk completes it and its CRC is right; None otherwise."""
        identity = (chunk.index, chunk.snapshot_term, chunk.size, chunk.crc)
        if identity != self._identity:
            self._identity = identity
            self._data = bytearray()
        if chunk.offset == len(self._data):
            self._data += chunk.data
        if len(self._data) < chunk.size:
            return None
        state = bytes(self._data)
        self.drop()
        return state if crc32c(state) == chunk.crc else None

    def received(self, chunk: SnapshotChunk) -> int:
        """How many bytes of this chunk's snapshot are here."""
        identity = (chunk.index, chunk.snapshot_term, chunk.size, chunk.crc)
        return len(self._data) if identity == self._identity else 0

    def drop(self) -> None:
        """Forget what was received."""
        self._identity = None
        self._data = bytearray()
