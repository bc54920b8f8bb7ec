"""Which bodies a group's snapshot refers to, without building its machine."""

from __future__ import annotations

from array import array

import numpy as np

from fifo import snapshot
from fifo.codec import Reader, Source
from fifo.pages import decode_block

_HEAD_NUMBERS = 4
"""index, time, version and running hash stand before the number of queues"""


def references(data: bytes | memoryview | Source) -> array[int]:
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
            found.append(decode_block(Reader(reader.blob())).live_indexes())
    if not reader.is_at_end():
        raise ValueError(f"reading a snapshot of a group: {reader.left} bytes too many")
    unique = np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)
    return array("Q", unique.tobytes())
