"""A stream's reader as Spark drives it, without Spark: offsets, partitions and rows, in one process."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from quorum.spark.options import source_options
from quorum.spark.reading.stream import ConsumeReader
from quorum.spark.reading.tail import TailReader
from quorum.spark.schema import parse_fields, source_schema

Offset = dict[str, int]


class Driver:
    """One query: `batch` is what Spark does for a micro-batch. A new Driver from an old offset is a restart."""

    def __init__(self, url: str, schema: StructType | None = None, **options: str) -> None:
        given = source_options({"url": url, **options}, "stream")
        fields = parse_fields(given.filter_fields) if given.filter_fields else ()
        schema = schema or source_schema(fields, include_body=True)
        kind = ConsumeReader if given.mode == "consume" else TailReader
        self.reader = kind(given, schema)

    def stop(self) -> None:
        self.reader.stop()

    def latest(self, start: Offset, limit: Any = None) -> Offset:
        return self.reader.latestOffset(dict(start), limit or self.reader.getDefaultReadLimit())

    def rows(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        """As the workers read them: by a copy of the reader that has travelled."""
        worker = pickle.loads(pickle.dumps(self.reader))  # noqa: S301
        parts = self.reader.partitions(dict(start), dict(end))
        return [row for part in parts for batch in worker.read(part) for row in batch.to_pylist()]

    def bodies(self, start: Offset, end: Offset) -> list[bytes]:
        return [row["body"] for row in self.rows(start, end)]


ALL = ReadAllAvailable()
