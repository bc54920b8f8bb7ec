"""The data source `quorum`: its entry points for Spark, and the batch read.

A batch read browses: it removes nothing. A view pins its messages when the read is planned. All tasks, their retries
and later actions on the same DataFrame therefore see the same messages, even if they are consumed meanwhile. The
partitions are ranges of sequences, which are read from different members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from quorum.client.errors import NotFound, QuorumError
from quorum.spark.errors import OptionError, QuorumSparkError
from quorum.spark.options import SourceOptions, apparent_use, sink_options, source_options
from quorum.spark.reading import open_views
from quorum.spark.reading.partitions import (
    KEPT_VIEWS,
    Range,
    default_partitions,
    preferred_endpoint,
    read_range,
    split,
)
from quorum.spark.reading.pushdown import Pushed, PushFilters, push
from quorum.spark.schema import check_projection, fields_of, parse_fields, seen_fields, source_schema
from quorum.spark.selector_text import check
from quorum.spark.service import is_reason, service

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

    from quorum.client.bulk.client import BulkClient
    from quorum.client.bulk.records import View

VIEW_MS = 10 * 60_000
MESSAGES_A_SECOND = 10_000
"""Slowest read that a view's time allows for, in addition to VIEW_MS."""
MAX_VIEW_MS = 24 * 3_600_000


class QuorumSource(DataSource):
    """The data source; Spark makes one for every read and write. docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "quorum"

    def schema(self) -> StructType:
        """All columns. `fields` has the option filterFields, else the properties that messages have now."""
        options = source_options(self.options, apparent_use(self.options))
        if options.filter_fields is not None:
            fields = parse_fields(options.filter_fields)
        else:
            fields = seen_fields(seen(options.url, queue) for queue in options.queues)
        return source_schema(fields, include_body=options.include_body)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options, "read")
        check_projection(schema)
        check(options.selector)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from quorum.spark.reading.failing_stream import RefusedStream
        from quorum.spark.reading.owned_offsets import OwnedOffsets
        from quorum.spark.reading.stream import ConsumeReader
        from quorum.spark.reading.tail import TailReader

        try:
            options = source_options(self.options, "stream")
            check_projection(schema)
            check(options.selector)
        except OptionError as error:
            # an error raised here is lost, because Spark's runner then tries to stop a reader that does not exist
            return RefusedStream(error)
        kind = ConsumeReader if options.mode == "consume" else TailReader
        return OwnedOffsets(kind(options, schema), options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from quorum.spark.sink import BatchWriter

        if overwrite:
            raise OptionError("a queue cannot be overwritten; use mode('append')")
        return BatchWriter(sink_options(self.options, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from quorum.spark.sink import StreamWriter

        if overwrite:
            raise OptionError("a queue cannot be overwritten; use outputMode('append')")
        return StreamWriter(sink_options(self.options, streaming=True), schema)


def seen(url: str, queue: str) -> Mapping[str, str]:
    """The application properties of messages at both ends of a queue, with their kinds."""
    info = service(url).queue_info(queue, with_fields=True)
    return {each.name: each.kind for each in info.fields}


def open_view(url: str, queue: str, ready: int) -> View:
    """Open a view of the ready messages, and close this program's oldest views beyond KEPT_VIEWS."""
    at = service(url)
    _close_oldest(at, url, queue, KEPT_VIEWS - 1)
    ttl_ms = min(VIEW_MS + 1_000 * (ready // MESSAGES_A_SECOND), MAX_VIEW_MS)
    while True:
        try:
            made = at.open_view(queue, ttl_ms=ttl_ms)
        except QuorumError as error:
            if not is_reason(error, "limit"):
                raise
            if not _close_oldest(at, url, queue, 0):
                raise QuorumSparkError(
                    f"{error}. Each read keeps a view of the queue for ten minutes or more; read it again later"
                ) from error
        else:
            open_views.add(url, queue, made.view)
            return made


def _close_oldest(at: BulkClient, url: str, queue: str, kept: int) -> int:
    """Close all views but `kept`. Returns the number of the closed ones."""
    taken = open_views.take_oldest(url, queue, kept)
    for view in taken:
        with suppress(NotFound):  # the queue was deleted together with its views
            at.close_view(queue, view)
    return len(taken)


class BatchReader(DataSourceReader):
    """A batch read: planned in one process, pickled, and read in others."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = Pushed(options.selector)
        self.pushFilters = PushFilters(self._take)  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, Any]:
        """The state for tasks, without the parts that only planning uses."""
        return {name: value for name, value in self.__dict__.items() if name != "pushFilters"}

    def _take(self, filters: list[Filter]) -> None:
        self._pushed = push(filters, fields_of(self._schema), self._options.selector)

    def partitions(self) -> Sequence[InputPartition]:
        found: list[InputPartition] = []
        if not self._pushed.is_empty:
            for queue in self._options.queues:
                found.extend(self._ranges(queue, len(found)))
        # for an empty list Spark makes a partition of its own
        return found or [Range(self._options.queues[0], 0, 0, 0, 0, "")]

    def _ranges(self, queue: str, turn: int) -> Iterator[Range]:
        info = service(self._options.url).queue_info(queue)
        made = open_view(self._options.url, queue, info.ready)
        start = max(made.first_sequence, self._pushed.start)
        end = made.end_sequence if self._pushed.end is None else min(made.end_sequence, self._pushed.end)
        if end <= start or not made.count:
            return
        parts = self._options.min_partitions or default_partitions(made.count)
        for number, (low, high) in enumerate(split(end - start, parts)):
            prefer = preferred_endpoint(info.endpoints, turn + number)
            yield Range(queue, made.view, start + low, start + high, made.index, prefer)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return read_range(partition, self._options.url, self._schema, self._pushed.selector)
