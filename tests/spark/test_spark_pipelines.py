"""Archives: each message once, in directories that are written again as they were; and what selectors match in them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorum import sync
from quorum.bulk import BulkClient
from quorum.cli.local_cluster import LocalCluster
from quorum.spark import OptionError, QueryFailed, plain_failures, written
from quorum.spark.archive import Archive, read_archive
from quorum.spark.selectivity import FieldUse, selectivity
from quorum.sync import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLOURS = ("red", "green", "blue")


def publish(client: sync.Client, queue: str, first: int, last: int) -> None:
    client.publish_batch(
        queue,
        [
            Message(b"%d" % n, {"subject": "s"}, {"color": COLOURS[n % 3], "size": n, "ratio": n / 2})
            for n in range(first, last)
        ],
    )


def run(spark: SparkSession, archive: Archive) -> None:
    with plain_failures():
        archive.start(spark, None).awaitTermination()


def test_a_queue_is_archived_once_in_batches_and_selectors_are_judged_on_it(
    spark: SparkSession,
    cluster: LocalCluster,
    client: sync.Client,
    bulk: BulkClient,
    queue: str,
    tmp_path: Path,
) -> None:
    directory = tmp_path / "archive"
    archive = Archive(cluster.url, (queue,), directory, fields="color STRING, size INT", batch=40)
    publish(client, queue, 0, 90)
    run(spark, archive)
    publish(client, queue, 90, 100)
    run(spark, archive)
    info = bulk.queue_info(queue)
    assert (info.ready, info.held) == (0, 0)

    # the last batch is done again, as after a crash between writing it and the commit log; its files are others then
    rows = read_archive(spark, directory)
    last = rows.where("batch = 3").drop("date", "batch")
    shown = sorted(row.size for row in last.select("fields.size").collect())
    assert shown == list(range(90, 100))
    archive._write(spark.createDataFrame(last.collect(), last.schema), 3)
    rows = read_archive(spark, directory, [queue])
    assert sorted(int(bytes(row.body)) for row in rows.select("body").collect()) == list(range(100))
    assert sorted(path.name for path in directory.glob("queue=*/date=*/batch=*")) == [
        f"batch={n}" for n in range(4)
    ]

    found = selectivity(rows, ["color = 'red'", "size < 10 AND ratio >= 1.0", "JMSType = 's'", "missing = 1"])
    assert found.messages == 100
    assert [each.matched for each in found.selectors] == [34, 8, 100, 0]
    assert found.fields == (
        FieldUse("color", 1, 100, 3, pytest.approx(3.99, abs=0.1)),
        FieldUse("missing", 1, 0, 0, 0.0),
        FieldUse("properties.subject", 1, 100, 1, 1.0),
        FieldUse("ratio", 1, 100, pytest.approx(100, rel=0.1), pytest.approx(4, abs=0.5)),
        FieldUse("size", 1, 100, pytest.approx(100, rel=0.1), pytest.approx(1.9, abs=0.1)),
    )
    with pytest.raises(OptionError, match="cannot stand here"):
        selectivity(rows, ["color = ="])

    # without its checkpoint an archive is not gone on with: batch 0 would replace batch 0
    shutil.rmtree(directory / "_checkpoint")
    with pytest.raises(OptionError, match="holds an archive without _checkpoint"):
        archive.start(spark, None)


def test_an_archive_beside_consumers_leaves_everything(
    spark: SparkSession,
    cluster: LocalCluster,
    client: sync.Client,
    bulk: BulkClient,
    queue: str,
    tmp_path: Path,
) -> None:
    publish(client, queue, 0, 10)
    run(spark, Archive(cluster.url, (queue,), tmp_path / "a", takes=False))
    assert read_archive(spark, tmp_path / "a").count() == 10
    assert bulk.queue_info(queue).ready == 10


def test_messages_stay_taken_while_their_batch_is_not_whole_in_the_archive(
    spark: SparkSession,
    cluster: LocalCluster,
    client: sync.Client,
    bulk: BulkClient,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a cluster whose workers have disks of their own: what they write is not where the driver looks."""
    publish(client, queue, 0, 10)
    archive = Archive(cluster.url, (queue,), tmp_path / "a", fields="color STRING")
    with monkeypatch.context() as patch:
        patch.setattr(written, "rows_in", lambda directories: 0)
        with pytest.raises(QueryFailed, match=r"10 rows were written to .*, and 0 are there"):
            run(spark, archive)
    info = bulk.queue_info(queue)
    assert (info.ready, info.held) == (0, 10)
    run(spark, archive)
    assert read_archive(spark, tmp_path / "a").count() == 10
    info = bulk.queue_info(queue)
    assert (info.ready, info.held) == (0, 0)


def test_what_is_no_archive_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no archive"):
        read_archive(spark, tmp_path)
