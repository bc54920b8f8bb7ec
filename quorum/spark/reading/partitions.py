"""Partitions of a read: splitting a queue into ranges of sequences, and reading one range in a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from quorum.client.errors import NotFound
from quorum.spark.errors import DataLoss
from quorum.spark.rows import ToSpark, wanted_columns
from quorum.spark.schema import fields_of
from quorum.spark.service import kinds, service

if TYPE_CHECKING:
    import pyarrow as pa

    from quorum.client.bulk.records import Endpoint

ROWS_A_PARTITION = 65_536
MAX_DEFAULT_PARTITIONS = 32
KEPT_VIEWS = 4
"""Views of a queue that a program keeps; the service keeps 16 of a queue in total."""


@dataclass
class Range(InputPartition):
    """Sequences start..end (not included) of a queue."""

    queue: str
    view: int
    start: int
    end: int
    index: int
    prefer: str
    """The endpoint to try first."""

    def __hash__(self) -> int:
        return hash((self.queue, self.start))


def split(count: int, parts: int) -> list[tuple[int, int]]:
    """Split 0..count (exclusive) into at most `parts` non-empty pieces of about the same size."""
    parts = max(1, min(parts, count))
    return [(count * n // parts, count * (n + 1) // parts) for n in range(parts)] if count else []


def default_partitions(count: int) -> int:
    return min(MAX_DEFAULT_PARTITIONS, -(-count // ROWS_A_PARTITION))


def preferred_endpoint(endpoints: Sequence[Endpoint], turn: int) -> str:
    """The endpoint that partition `turn` tries first: a follower, because the leader has more load; empty: any."""
    followers = [each.address for each in endpoints if not each.leader] or [
        each.address for each in endpoints
    ]
    return followers[turn % len(followers)] if followers else ""


def read_range(part: Range, url: str, schema: StructType, selector: str) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in Spark's shape. DataLoss if the view has ended."""
    if part.end <= part.start:
        return
    batches = service(url).browse(
        part.queue,
        part.view,
        start_sequence=part.start,
        end_sequence=part.end,
        selector=selector,
        columns=wanted_columns(schema),
        fields=kinds(fields_of(schema)),
        index=part.index,
        prefer=part.prefer,
    )
    shape = ToSpark(schema, part.queue)
    try:
        for batch in batches:
            yield shape(batch)
    except NotFound as error:
        if not part.view:
            raise
        raise DataLoss(
            f"queue {part.queue!r}: the view that this DataFrame reads has ended ({error}); load it again. "
            f"A program keeps its last {KEPT_VIEWS} views of a queue for some minutes"
        ) from error
