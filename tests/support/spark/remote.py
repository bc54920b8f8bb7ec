"""Jobs on a cluster of Spark's, in a driver of their own: `python -P -m support.spark.remote ARGUMENTS RESULT`.

Each row of what is written and read says where the task ran that had it: an executor runs in a directory of its worker.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from quorum.spark import plain_failures, session
from quorum.spark.pipelines.archive import read_archive
from quorum.spark.pipelines.selectivity import asked, selectivity
from quorum.spark.pipelines.verify import verify


def numbers(rows: Iterable[Any]) -> Iterator[tuple[bytes, str, str]]:
    """Messages; the columns say in which process and directory they were made."""
    for row in rows:
        yield b"%d" % row.id, os.getcwd(), str(os.getpid())


def located(rows: Iterable[Any]) -> Iterator[list[Any]]:
    import quorum
    import support.repository  # is on PYTHONPATH, and nowhere installed

    for row in rows:
        yield [
            int(row.body),
            row.subject,
            int(row.group_id),
            os.getcwd(),
            os.getpid(),
            quorum.__file__,
            str(support.repository.ROOT),
        ]


def run(
    master: str, url: str, queue: str, rows: int, archive: str, history: str, scratch: str, **conf: Any
) -> Any:
    spark = session("remote", master, **conf)
    try:
        made = spark.range(0, rows, 1, 4).rdd.mapPartitions(numbers)
        frame = spark.createDataFrame(made, "body BINARY, subject STRING, group_id STRING")
        with plain_failures():
            writer = frame.write.format("quorum").option("url", url).option("queue", queue)
            writer.option("txnAppId", "remote").option("txnVersion", 1).mode("append").save()
            reader = spark.read.format("quorum").option("url", url).option("queue", queue)
            read = reader.option("minPartitions", 4).load().select("body", "subject", "group_id")
            found = read.rdd.mapPartitions(located).collect()
            judged = selectivity(read_archive(spark, Path(archive)), [asked("color = 'red'")])
            report = verify(spark, [Path(history)], scratch=Path(scratch))
        return {
            "driver": os.getpid(),
            "rows": found,
            "messages": sum(each.messages for each in judged),
            "matched": sum(each.selectors[0].matched for each in judged),
            "operations": report.operations,
            "lost": report.total("lost"),
        }
    finally:
        spark.stop()


if __name__ == "__main__":
    result = run(**json.loads(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(result))
