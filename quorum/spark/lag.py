"""Lag of a stream: what its sources report as their latest offsets, and how a program reads it.

Spark has a map of metrics for each source (`sources[].metrics`), but its Python API has no way to fill it. It lets a
source report a latest offset of any form, which Spark only shows. So the latest offset of a queue is a JSON object with
the offset and the figures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorum.client.bulk.client import BulkClient

REPORT_S = 1.0
Figures = dict[str, int | str]
OFFSET, WAITING, WAITING_BYTES, OLDEST = "offset", "waiting", "waitingBytes", "oldestEnqueued"


@dataclass(frozen=True, slots=True)
class Lag:
    """A queue's state right after a batch was planned.

    offset: the end of the batch (mode=consume), or the sequence of the next message of the queue (mode=tail).
    waiting: ready messages that no batch has, whatever the selector. waiting_bytes: of their bodies, estimated.
    oldest_enqueued: when the first of them was enqueued; None if there is none.
    """

    queue: str
    offset: int
    waiting: int
    waiting_bytes: int
    oldest_enqueued: datetime | None


def lag(progress: Mapping[str, Any] | None) -> list[Lag]:
    """The lag of each queue that the query reads, from its progress (`query.lastProgress`, `event.progress`, or its
    JSON). Other sources of the query have none. None, the progress of a query before its first batch, has none."""
    if progress is None:
        return []
    return [
        Lag(
            queue,
            found[OFFSET],
            found[WAITING],
            found[WAITING_BYTES],
            datetime.fromisoformat(found[OLDEST]) if OLDEST in found else None,
        )
        for source in progress["sources"]
        for queue, found in _latest(source["latestOffset"]).items()
        if isinstance(found, dict) and {OFFSET, WAITING, WAITING_BYTES} <= found.keys()
    ]


def _latest(offset: Any) -> dict[str, Any]:
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}  # another source's, which need not be JSON
    return offset if isinstance(offset, dict) else {}


class Report:
    """What a reader reports as its latest offset. Spark asks for it after each look for messages, up to thirty times a
    second; while the offset stays, the figures are up to REPORT_S old."""

    def __init__(self, figures: Callable[[str, int], Figures]) -> None:
        """figures: those of a queue whose messages are planned up to an offset."""
        self._figures = figures
        self._planned: dict[str, int] = {}
        self._made: dict[str, Figures] = {}
        self._made_s = 0.0

    def latest(self, planned: Mapping[str, int]) -> dict[str, Figures]:
        """The figures of each queue. planned: the end of the newest batch."""
        if planned != self._planned or time.monotonic() - self._made_s >= REPORT_S:
            self._made = {queue: self._figures(queue, offset) for queue, offset in planned.items()}
            self._planned, self._made_s = dict(planned), time.monotonic()
        return self._made


def consumed_figures(at: BulkClient, queue: str, offset: int, index: int) -> Figures:
    """All ready messages wait. index: a member that has applied this entry does not count the planned ones as ready."""
    info = at.queue_info(queue, index=index)
    return _figures(at, queue, offset, info.ready, info.ready_bytes, 0, info.index)


def tail_figures(at: BulkClient, queue: str, offset: int) -> Figures:
    """The ready messages from the sequence `offset` on wait. Their number is an upper limit: messages after the offset
    may have been consumed while others before it are still ready."""
    info = at.queue_info(queue)
    waiting = max(0, min(info.ready, info.next_sequence - offset))
    size = info.ready_bytes * waiting // max(1, info.ready)
    return _figures(at, queue, max(offset, info.next_sequence), waiting, size, offset, info.index)


def _figures(
    at: BulkClient, queue: str, offset: int, waiting: int, size_bytes: int, start: int, index: int
) -> Figures:
    found: Figures = {OFFSET: offset, WAITING: waiting, WAITING_BYTES: size_bytes}
    oldest = _oldest(at, queue, start, index) if waiting else None
    if oldest is not None:
        found[OLDEST] = oldest.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return found


def _oldest(at: BulkClient, queue: str, start: int, index: int) -> datetime | None:
    """When the first ready message from this sequence on was enqueued; None if it has gone meanwhile."""
    for batch in at.browse(queue, start_sequence=start, columns=("enqueued",), limit=1, index=index):
        found: datetime = batch.column("enqueued")[0].as_py()
        return found
    return None
