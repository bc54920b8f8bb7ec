"""Drivers of data flows, to be killed: `python -P -m support.spark_drivers NAME ARGUMENTS`, each a process with its
own JVM. A driver that ends by itself exits with 0 once its work is done.

Tasks of every second partition fail at their first attempt, after they have handed on all they had: so what they wrote
is there, and must not count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from quorum.spark.session import session


def failing_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All of them, and then a failure, at the first attempt of every second partition."""
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and context.partitionId() % 2 == 0:
        raise RuntimeError("this attempt fails")


def shuffled(
    url: str, source: str, target: str, checkpoint: str, per_trigger: int, fails: bool = True
) -> None:
    """From one queue to another, with a shuffle in between, until the first one is empty."""
    spark = session("shuffled", "local[2,4]")
    rows = (
        spark.readStream.format("quorum")
        .option("url", url)
        .option("queue", source)
        .option("group", "shuffled")
        .option("maxMessagesPerTrigger", str(per_trigger))
        .schema("sequence BIGINT, body BINARY")
        .load()
    )
    moved = rows.repartition(3, "sequence").select("body")
    if fails:
        moved = moved.mapInArrow(failing_first, "body BINARY")
    query = (
        moved.writeStream.format("quorum")
        .option("url", url)
        .option("queue", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def written(url: str, queue: str, rows: int, partitions: int, application: str, version: int) -> None:
    """A frame of so many rows, as one batch."""
    spark = session("written", "local[2,4]")
    frame = spark.range(0, rows, 1, partitions).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS body")
    (
        frame.mapInArrow(failing_first, "body BINARY")
        .write.format("quorum")
        .option("url", url)
        .option("queue", queue)
        .option("txnAppId", application)
        .option("txnVersion", str(version))
        .mode("append")
        .save()
    )


DRIVERS: dict[str, Any] = {"shuffled": shuffled, "written": written}

if __name__ == "__main__":
    DRIVERS[sys.argv[1]](**json.loads(sys.argv[2]))
