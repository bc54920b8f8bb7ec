"""Which bodies a group's snapshot refers to, without building its machine."""

from __future__ import annotations

from array import array

import numpy as np

from fifo import bits, snapshot
from fifo.blocks import BLOCK_SIZE, Block
from fifo.codec import Reader

_HEAD_NUMBERS = 4
"""index, time, version and running hash stand before the number of queues"""


def references(data: bytes | memoryview) -> array[int]:
    """The Raft indexes of all entries with a message that is ready or held, sorted, each once. O(state). ValueError for
    anything that is not a snapshot of a known format."""
    found: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = []
    reader = snapshot.open_sections(data)
    head = Reader(reader.blob())
    for _ in range(_HEAD_NUMBERS):
        head.number()
    for _ in range(head.number()):
        queue = Reader(reader.blob())
        queue.number()
        for _ in range(queue.number()):
            found.append(_live_indexes(snapshot.read_block(Reader(reader.blob()))))
    if not reader.is_at_end():
        raise ValueError(f"reading a snapshot of a group: {len(data) - reader.position} bytes too many")
    unique = np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)
    return array("Q", unique.tobytes())


def _live_indexes(block: Block) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    runs = block.runs
    sums = np.zeros(BLOCK_SIZE + 1, dtype=np.int32)
    np.cumsum(bits.as_flags(block.ready | block.held, BLOCK_SIZE), out=sums[1:])
    firsts = np.frombuffer(runs.firsts, dtype=np.uint16).astype(np.int64)
    counts = np.frombuffer(runs.counts, dtype=np.uint16)
    touched = sums[firsts + counts] > sums[firsts]
    return np.unique(np.frombuffer(runs.indexes, dtype=np.uint64)[touched])
