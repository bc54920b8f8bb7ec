"""Bodies by place, from any thread: recent ones from memory, others with one pread and a CRC check."""

from __future__ import annotations

from collections import deque

from quorum.log.errors import Damage, LogDamaged, NotCached
from quorum.log.record import HEADER_BYTES, body_is_good
from quorum.log.segment_files.segments import Segment

ENTRY_OVERHEAD_BYTES = 256
"""Memory used by a kept body beside its bytes, counted so that tiny bodies cannot fill the memory."""

AT_ONCE_BYTES = 16 << 10
"""Longer bodies are read apart from their header, because a second call is cheaper than a second copy."""


class RecentBodies:
    """The newest bodies by LSN, bounded by bytes; a body that is not yet written to the file is never dropped."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bodies: dict[int, bytes] = {}
        self._order: deque[int] = deque()
        self.size_bytes = 0

    def add(self, lsn: int, body: bytes, written_lsn: int) -> None:
        """Keep a body. LSNs come in ascending order."""
        self._bodies[lsn] = body
        self._order.append(lsn)
        self.size_bytes += len(body) + ENTRY_OVERHEAD_BYTES
        if self.size_bytes > self._limit:
            self.trim(written_lsn)

    def trim(self, written_lsn: int) -> None:
        """Drop the oldest written bodies until the rest is within the bound."""
        order = self._order
        while self.size_bytes > self._limit and order and order[0] <= written_lsn:
            body = self._bodies.pop(order.popleft())
            self.size_bytes -= len(body) + ENTRY_OVERHEAD_BYTES

    def get(self, lsn: int) -> bytes | None:
        """The body of this record, if it is still here."""
        return self._bodies.get(lsn)


def read_body(
    segment: Segment, offset: int, *, lsn: int, group: int, index: int, length: int, waits: bool = True
) -> bytes:
    """A record's body, complete and checked; LogDamaged if it is not what was written. Without `waits` NotCached if it
    has to come from the disk."""
    at_once = length < AT_ONCE_BYTES
    pread = segment.file.pread if waits else segment.file.pread_cached
    try:
        data = pread(HEADER_BYTES + length if at_once else HEADER_BYTES, offset)
        if data is None:
            raise NotCached(str(segment.path))
        body = data[HEADER_BYTES:] if at_once else pread(length, offset + HEADER_BYTES)
        if body is None:
            raise NotCached(str(segment.path))
    except OSError as error:
        raise LogDamaged(Damage(str(segment.path), offset, lsn, f"cannot be read: {error}")) from error
    header = segment.stamp.decode(data)
    if header is None:
        raise LogDamaged(Damage(str(segment.path), offset, lsn, "the record's header is damaged"))
    known = (header.group, header.term, header.raft_index)
    if (header.lsn, header.group, header.raft_index) != (lsn, group, index):
        raise LogDamaged(Damage(str(segment.path), offset, lsn, f"LSN {header.lsn} is here instead", known))
    if not body_is_good(header, body):
        raise LogDamaged(Damage(str(segment.path), offset, lsn, "the record's body fails its CRC", known))
    return body
