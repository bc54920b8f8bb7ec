"""A checkpoint that meets another subscription or mode than its own, in Spark; and one of an earlier release."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from quorum import sync
from quorum.bulk import BulkClient
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark.failures import cause

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Run = Callable[..., list[bytes]]


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


@pytest.fixture
def run(spark: SparkSession, cluster: LocalCluster, queue: str, tmp_path: Path) -> Run:
    """Runs a query on the test's queue until it has what is there; returns the bodies in order. Always with the same
    checkpoint."""

    def until_done(**options: str) -> list[bytes]:
        given = {"url": cluster.url, "queue": queue, "startingOffsets": "earliest", **options}
        found: list[bytes] = []

        def keep(batch: DataFrame, _: int) -> None:
            found.extend(bytes(row["body"]) for row in batch.orderBy("sequence").collect())

        writer = spark.readStream.format("quorum").options(**given).load().writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return found

    return until_done


def reserve(bulk: BulkClient, queue: str, subscription: str, *, times: int) -> None:
    generation, at = bulk.open_subscription(queue, subscription).generation, 0
    for _ in range(times):
        at = bulk.reserve(queue, subscription, generation, at, max_messages=10).offset


def test_a_query_with_the_checkpoint_of_another_subscription_settles_nothing(
    run: Run, client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    client.publish_batch(queue, texts(0, 20))
    assert run(subscription="mine", maxMessagesPerTrigger="10") == texts(0, 20)
    client.publish_batch(queue, texts(20, 60))
    reserve(bulk, queue, "theirs", times=3)
    with pytest.raises(StreamingQueryException) as failed:
        run(subscription="theirs")
    assert cause(failed.value) == (
        "the checkpoint was written with mode=consume and subscription=mine, and this query has "
        "mode=consume and subscription=theirs: use the options of the checkpoint, or another checkpoint"
    )
    assert bulk.queue_info(queue).checked_out == 30, "nothing of the other subscription is settled"
    assert run(subscription="mine") == texts(50, 60)


def test_a_query_with_the_checkpoint_of_another_mode_is_refused(
    run: Run, client: sync.Client, queue: str
) -> None:
    client.publish_batch(queue, texts(0, 5))
    assert run(mode="tail") == texts(0, 5)
    with pytest.raises(StreamingQueryException) as failed:
        run(subscription="mine")
    assert "the checkpoint was written with mode=tail, and this query has mode=consume" in cause(failed.value)
    assert run(mode="tail") == []


def test_a_checkpoint_of_an_earlier_release_is_continued(
    run: Run, client: sync.Client, queue: str, tmp_path: Path
) -> None:
    """Its offsets do not say whose they are."""
    client.publish_batch(queue, texts(0, 5))
    assert run(subscription="mine") == texts(0, 5)
    for file in (tmp_path / "c" / "offsets").glob("[0-9]*"):
        *head, last = file.read_text().splitlines()
        offset = json.loads(last)
        assert offset.pop("") == {"mode": "consume", "subscription": "mine"}
        file.write_text("\n".join([*head, json.dumps(offset)]))
        file.with_name(f".{file.name}.crc").unlink()
    client.publish_batch(queue, texts(5, 9))
    assert run(subscription="mine") == texts(5, 9)
