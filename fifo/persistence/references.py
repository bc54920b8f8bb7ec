"""The bodies that a group's snapshot refers to, found without building its machine."""

from __future__ import annotations

from fifo.codec import Reader, Source
from fifo.index_sets import IndexSet, Piece, pack
from fifo.limits import PRODUCTION
from fifo.messages.pages import decode_block
from fifo.persistence import snapshot

ANY_SIZE = 1
"""the size given for every block: the sequences of its messages do not matter here"""


def references(data: bytes | memoryview | Source) -> IndexSet:
    """The Raft indexes of all entries with a message that is ready, checked out, pinned, staged or embargoed. O(state).
    Raises ValueError if the bytes are no snapshot of a known format."""
    found: list[Piece] = []
    reader = snapshot.open_sections(data, PRODUCTION)
    version, queue_count = snapshot.beginning(reader.blob())
    for _ in range(queue_count):
        block_count, staging = snapshot.staged_in(reader.blob(), version)
        if staging.has_bodies:
            found.append(Piece(pack(staging.indexes())))
        for _ in range(block_count):
            found.append(Piece(pack(decode_block(Reader(reader.blob()), ANY_SIZE).live_indexes())))
    if not reader.is_at_end():
        raise ValueError(f"reading a snapshot of a group: {reader.left} bytes too many")
    return IndexSet(found)
