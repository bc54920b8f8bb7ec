"""A driver process that moves messages: `python -m support.spark_transfer URL FROM TO CHECKPOINT`.

It is killed in tests, and started again; it ends when the first queue is empty.
"""

from __future__ import annotations

import sys

from quorum.spark import session


def main(url: str, source: str, target: str, checkpoint: str) -> None:
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    spark = session("transfer", **{"spark.driver.extraJavaOptions": options, "spark.driver.memory": "512m"})
    rows = (
        spark.readStream.format("quorum")
        .option("url", url)
        .option("queue", source)
        .option("group", "transfer")
        .option("filterFields", "size INT")
        .option("maxMessagesPerTrigger", 100)
        .load()
    )
    writer = rows.select("body").repartition(2).writeStream.format("quorum").option("url", url)
    query = (
        writer.option("queue", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
