"""A stream that follows a queue and takes nothing: `mode=tail`.

Offsets are sequences. A batch has the messages of a range of sequences that are ready when it is read. Messages that
are delayed, checked out or settled then are passed over, and no later batch has them. So a tail sees all messages only
of a queue without consumers and delays. A batch that is read again may have other rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quorum.spark.errors import DataLoss
from quorum.spark.lag import Report, tail_figures
from quorum.spark.options import SourceOptions
from quorum.spark.reading.partitions import Range, default_partitions, preferred_endpoint, read_range, split
from quorum.spark.reading.start_time import first_since
from quorum.spark.service import service

if TYPE_CHECKING:
    import pyarrow as pa

    from quorum.client.bulk.records import BulkQueueInfo

BEHIND_S = 10.0
"""Longest wait for a member that is behind the stream's position."""
IDLE_S = 0.1
"""Shortest interval between requests of a stream without new messages."""


class TailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._latest: dict[str, int] | None = None
        self._until: dict[str, int] | None = None
        self._planned: dict[str, int] = {}
        self._report = Report(lambda queue, offset: tail_figures(service(options.url), queue, offset))

    def _info(self, queue: str) -> BulkQueueInfo:
        return service(self._options.url).queue_info(queue)

    def initialOffset(self) -> dict[str, int]:
        starting = self._options.starting
        if self._options.starting_ms is not None:
            at, time_ms = service(self._options.url), self._options.starting_ms
            self._latest = {queue: first_since(at, queue, time_ms) for queue in self._options.queues}
            return dict(self._latest)
        if isinstance(starting, dict):
            return dict(starting)
        if starting == "earliest":
            return {queue: self._info(queue).first_sequence for queue in self._options.queues}
        self._latest = self._next()
        return dict(self._latest)

    def _next(self) -> dict[str, int]:
        return {queue: self._info(queue).next_sequence for queue in self._options.queues}

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_messages
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._next()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if start == self._latest and self._until is None:
            # Spark records the end of each batch, but not the start of the first one. The first one is therefore
            # empty; otherwise it would begin later after a restart
            self._latest = None
            self._planned = dict(start)
            return start
        ends = self._next() if self._until is None else self._until
        begins = {queue: start.get(queue, 0) for queue in ends}
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = {}
        for number, (queue, end) in enumerate(ends.items()):
            begin = begins[queue]
            if end < begin and start != self._options.starting:
                self._info_up_to(queue, begin)
            there = max(0, end - begin)
            if left is not None:
                there = min(there, -(-left // (len(ends) - number)))
                left -= there
            found[queue] = begin + there
        self._planned = found
        if found == start and self._until is None:
            time.sleep(IDLE_S)
        return found

    def reportLatestOffset(self) -> dict[str, Any]:
        """The figures of lag.py; Spark only shows them."""
        return self._report.latest(self._planned)

    def __getstate__(self) -> dict[str, Any]:
        """The state for a worker, which needs no offsets."""
        return {"_options": self._options, "_schema": self._schema}

    def _info_up_to(self, queue: str, high: int) -> BulkQueueInfo:
        """The queue's state from a member that has it up to `high`; one that is behind would show a part of the batch.

        DataLoss if no member reaches `high` within BEHIND_S."""
        deadline = time.monotonic() + BEHIND_S
        while (info := self._info(queue)).next_sequence < high:
            if time.monotonic() >= deadline:
                raise DataLoss(
                    f"queue {queue!r}: the checkpoint asks for messages up to sequence {high - 1}, but the next one "
                    f"is {info.next_sequence}: the queue was deleted and declared again, or the members are far behind"
                )
            time.sleep(IDLE_S)
        return info

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        found: list[InputPartition] = []
        for queue, high in end.items():
            low = start.get(queue, 0)
            if high > low:
                info = self._info_up_to(queue, high)
                low = max(low, min(info.first_sequence, high))
                parts = self._options.min_partitions or default_partitions(high - low)
                for first, last in split(high - low, parts):
                    prefer = preferred_endpoint(info.endpoints, len(found))
                    found.append(Range(queue, 0, low + first, low + last, info.index, prefer))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return read_range(partition, self._options.url, self._schema, self._options.selector)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing; a tail settles no messages."""

    def stop(self) -> None:
        """Do nothing; a tail holds no messages."""
