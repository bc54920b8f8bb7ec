"""The place in a queue where a tail with the option startingTimestamp begins.

A queue has no index by time, and times ascend with sequences only roughly: a staged message, and a message of a
transaction, has the time of its log entry, but gets its sequence when it is published. The search therefore has two
steps. A bisection skips messages that are older than the time by more than SLACK_MS. Everything before them was
published before the time, so it is older, too. The rest is read in order, without bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from quorum.client.bulk.client import BulkClient

SLACK_MS = 6 * 3_600_000
"""Longest time from a message's log entry to its publishing. The service drops a staged part after this silence."""
SMALL = 8_192
"""Messages that are read in order rather than bisected."""


def first_since(at: BulkClient, queue: str, time_ms: int) -> int:
    """The lowest sequence of a ready message that was enqueued at or after the time; the next sequence if there is
    none."""
    info = at.queue_info(queue)
    low, high = info.first_sequence, info.next_sequence
    while high - low > SMALL:
        middle = (low + high) // 2
        found = _next_ready(at, queue, middle, high, info.index)
        if found is not None and found[1] < time_ms - SLACK_MS:
            low = found[0] + 1
        else:
            high = middle
    return _scan(at, queue, low, info.next_sequence, time_ms, info.index)


def _next_ready(at: BulkClient, queue: str, start: int, end: int, index: int) -> tuple[int, int] | None:
    """The sequence and the time in ms of the first ready message in start <= sequence < end."""
    for batch in at.browse(
        queue, start_sequence=start, end_sequence=end, columns=("sequence", "enqueued"), limit=1, index=index
    ):
        return batch.column("sequence")[0].as_py(), _ms(batch)[0].as_py()
    return None


def _scan(at: BulkClient, queue: str, start: int, end: int, time_ms: int, index: int) -> int:
    if start >= end:
        return end
    for batch in at.browse(
        queue, start_sequence=start, end_sequence=end, columns=("sequence", "enqueued"), index=index
    ):
        place = pc.index(pc.greater_equal(_ms(batch), time_ms), True).as_py()
        if place >= 0:
            return int(batch.column("sequence")[place].as_py())
    return end


def _ms(batch: pa.RecordBatch) -> pa.Int64Array:
    return batch.column("enqueued").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
