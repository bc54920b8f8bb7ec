"""Drivers of data flows, to be killed: `python -P -m support.spark.drivers NAME ARGUMENTS`, each a process with its
own JVM. A driver that ends by itself exits with 0 once its work is done.

Tasks of every second partition fail at their first attempt, after they have handed on what they had: so what they wrote
is there, and must not count.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from quorum.spark.session import session
from support.spark.environment import FAST_START, SMALL_DATA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SMALL = {**SMALL_DATA, "spark.driver.extraJavaOptions": FAST_START, "spark.driver.memory": "768m"}


def passed(value: int, every: int) -> int:
    """The value; a failure at the first attempt of every second partition, at the last value of so many."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and context.partitionId() % 2 == 0 and value % every == every - 1:
        raise RuntimeError("this attempt fails")
    return value


def shuffled(
    url: str, source: str, target: str, checkpoint: str, per_trigger: int, fails: bool = True
) -> None:
    """From one queue to another, with a shuffle in between, until the first one is empty."""
    spark = session("shuffled", "local[2,4]", **SMALL)
    rows = (
        spark.readStream.format("quorum")
        .option("url", url)
        .option("queue", source)
        .option("subscription", "shuffled")
        .option("maxMessagesPerTrigger", str(per_trigger))
        .schema("sequence BIGINT, body BINARY")
        .load()
    )
    moved = rows.repartition(3, "sequence").selectExpr("CAST(CAST(body AS STRING) AS BIGINT) AS number")
    query = (
        _bodies(moved, 50)
        .writeStream.format("quorum")
        .option("url", url)
        .option("queue", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def written(url: str, queue: str, rows: int, partitions: int, application: str, version: int) -> None:
    """A frame of so many rows, as one batch."""
    spark = session("written", "local[2,4]", **SMALL)
    frame = spark.range(0, rows, 1, partitions).selectExpr("id AS number")
    (
        _bodies(frame, rows // partitions)
        .write.format("quorum")
        .option("url", url)
        .option("queue", queue)
        .option("txnAppId", application)
        .option("txnVersion", str(version))
        .mode("append")
        .save()
    )


def _bodies(numbers: DataFrame, every: int) -> DataFrame:
    from pyspark.sql.functions import col, lit, udf

    number = udf(passed, "BIGINT")(col("number"), lit(every))
    return numbers.select(number.cast("string").cast("binary").alias("body"))


DRIVERS: dict[str, Any] = {"shuffled": shuffled, "written": written}

if __name__ == "__main__":
    DRIVERS[sys.argv[1]](**json.loads(sys.argv[2]))
