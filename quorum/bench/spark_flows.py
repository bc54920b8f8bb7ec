"""`quorum bench spark`: rows a second of the Spark source and sink, against one local member.

Spark runs in this process, with two workers. The messages have one size and no properties. All columns but `properties`
are read, bodies included. The first read and write warm Spark up and are not counted.

- read: a batch read of all messages into Spark's `noop` sink, from the first plan to the last row; the best of three.
- stream: a query that takes all messages, with a fixed number for each trigger, into the `noop` sink; the median of the
  full batches, from a batch's trigger to its commit.
- write: rows that Spark generates, as one batch, until it is published; the best of three.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from quorum import sync
from quorum.bench.plan import Plan
from quorum.bench.run import QUEUE, BenchFailed, Note, prepare, publish_backlog
from quorum.local_cluster.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 3
WARM_ROWS = 50_000
PER_TRIGGER = 50_000
SINK_QUEUE = "written"
FIRST_BATCHES = 2
"""First batches of a stream, which are not counted because they start processes."""
PARTITIONS = 4
COLUMNS = (
    "queue STRING, sequence BIGINT, raft_index BIGINT, enqueued TIMESTAMP, message_id STRING, correlation_id STRING, "
    "reply_to STRING, content_type STRING, priority SMALLINT, deliveries INT, expires TIMESTAMP, body BINARY"
)


@dataclass(frozen=True, slots=True)
class SparkResult:
    """Seconds of each round; for the stream, of each full batch that counts."""

    plan: Plan
    read_s: list[float]
    stream_s: list[float]
    write_s: list[float]
    stream_ms: dict[str, float]
    """Time of each stage of a full batch of the stream, as Spark reports it: the medians."""
    server_cpu_s: dict[str, float]
    """CPU time of the member in each part, for all rounds."""

    def to_dict(self) -> dict[str, Any]:
        rows = self.plan.backlog
        return {
            "mode": "spark",
            "messages": rows,
            "read_rows_per_s": round(rows / min(self.read_s)),
            "stream_rows_per_s": round(PER_TRIGGER / statistics.median(self.stream_s)),
            "write_rows_per_s": round(rows / min(self.write_s)),
            "read_s": [round(each, 2) for each in self.read_s],
            "stream_batch_s": [round(each, 3) for each in self.stream_s],
            "stream_batch_ms": {name: round(spent) for name, spent in self.stream_ms.items()},
            "write_s": [round(each, 2) for each in self.write_s],
            "server_cpu_s": {name: round(spent, 1) for name, spent in self.server_cpu_s.items()},
            "per_trigger": PER_TRIGGER,
            "members": self.plan.members,
            "body_bytes": self.plan.body_bytes,
        }


def table(result: SparkResult) -> Table:
    values = result.to_dict()
    view = Table(
        title=f"bench spark: {values['messages']:,} messages of {values['body_bytes']} bytes",
        show_header=False,
    )
    view.add_column("what")
    view.add_column("value", justify="right")
    for name, key in (
        ("batch read, rows a second", "read_rows_per_s"),
        (f"stream, rows a second at {PER_TRIGGER:,} a trigger", "stream_rows_per_s"),
        ("batch write, rows a second", "write_rows_per_s"),
    ):
        view.add_row(name, f"{values[key]:,}")
    return view


def run(plan: Plan, note: Note) -> SparkResult:
    """Run the whole bench on its own cluster, which is removed afterwards."""
    from quorum.spark import session
    from quorum.spark.java import java_home
    from quorum.spark.session import require_spark

    require_spark()  # before a million messages are published
    java_home()
    with tempfile.TemporaryDirectory(prefix="quorum-bench-") as directory:
        note(f"starting {plan.members} members")
        with LocalCluster(Path(directory) / "cluster", members=plan.members) as cluster:
            places = asyncio.run(prepare(plan, cluster.url))
            with sync.connect(cluster.url) as client:
                client.declare(SINK_QUEUE)
            note(f"publishing {plan.backlog:,} messages")
            asyncio.run(publish_backlog(plan, places))
            note("starting Spark")
            spark = session("quorum-bench")
            try:
                return _Flows(plan, spark, cluster, Path(directory), note).run()
            finally:
                spark.stop()


class _Flows:
    def __init__(
        self, plan: Plan, spark: SparkSession, cluster: LocalCluster, directory: Path, note: Note
    ) -> None:
        self._plan = plan
        self._spark = spark
        self._cluster = cluster
        self._directory = directory
        self._note = note
        self._cpu: dict[str, float] = {}
        self._stream_ms: dict[str, float] = {}

    def run(self) -> SparkResult:
        _to_nowhere(self._source(f"sequence <= {WARM_ROWS}"))
        read = self._counted("read", lambda: [_timed(self._read) for _ in range(ROUNDS)])
        self._write(WARM_ROWS)
        write = self._counted("write", lambda: [_timed(self._write) for _ in range(ROUNDS)])
        stream = self._counted("stream", self._stream)
        return SparkResult(self._plan, read, stream, write, self._stream_ms, self._cpu)

    def _counted(self, name: str, work: Callable[[], list[float]]) -> list[float]:
        self._note(f"{name}: {self._plan.backlog:,} rows")
        before = self._cluster.processes.cpu_seconds()
        found = work()
        self._cpu[name] = self._cluster.processes.cpu_seconds() - before
        return found

    def _source(self, condition: str = "TRUE") -> DataFrame:
        reader = self._spark.read.format("quorum").schema(COLUMNS)
        return reader.option("url", self._cluster.url).option("queue", QUEUE).load().where(condition)

    def _read(self) -> None:
        _to_nowhere(self._source())

    def _write(self, rows: int = 0) -> None:
        size = self._plan.body_bytes
        frame = self._spark.range(0, rows or self._plan.backlog, 1, PARTITIONS)
        sink = frame.selectExpr(f"CAST(RPAD(CAST(id AS STRING), {size}, 'x') AS BINARY) AS body").write
        sink.format("quorum").option("url", self._cluster.url).option("queue", SINK_QUEUE).mode(
            "append"
        ).save()

    def _stream(self) -> list[float]:
        reader = self._spark.readStream.format("quorum").schema(COLUMNS)
        for name, value in (
            ("url", self._cluster.url),
            ("queue", QUEUE),
            ("subscription", "bench"),
            ("maxMessagesPerTrigger", str(PER_TRIGGER)),
        ):
            reader = reader.option(name, value)
        writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._directory / "checkpoint")).start()
        query.awaitTermination()
        full = [each for each in query.recentProgress if each["numInputRows"] == PER_TRIGGER][FIRST_BATCHES:]
        if not full:
            raise BenchFailed(
                f"{self._plan.backlog:,} messages make no more than {FIRST_BATCHES} batches of {PER_TRIGGER:,}; "
                "more are needed"
            )
        spent = [each["durationMs"] for each in full]
        self._stream_ms = {name: statistics.median(each[name] for each in spent) for name in sorted(spent[0])}
        return [each["triggerExecution"] / 1000 for each in spent]


def _to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _timed(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started
