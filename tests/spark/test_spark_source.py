"""Reading with Spark itself, from a real cluster: batches, streams, queue to queue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from quorum import sync
from quorum.bulk import BulkClient
from quorum.client.errors import NotFound
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark import QueryFailed, plain_failures
from quorum.spark.reading import open_views
from quorum.spark.session import PUSH_DOWN
from quorum.spark.source import open_view
from quorum.sync import Message
from support.spark.crash import CrashingSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def load(spark: SparkSession, cluster: LocalCluster, queue: str, **options: Any) -> DataFrame:
    reader = spark.read.format("quorum").option("url", cluster.url).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_programs_that_read_one_after_the_other_do_not_use_up_the_views(
    cluster: LocalCluster, client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    """Nobody tells a program when its DataFrame is not used any more, and a view stays for ten minutes."""
    client.publish(queue, b"a")
    code = "import sys; from quorum.spark.source import open_view; print(open_view(*sys.argv[1:], 1).view)"
    views = [
        int(
            subprocess.run(
                [sys.executable, "-c", code, cluster.url, queue], check=True, stdout=subprocess.PIPE
            ).stdout
        )
        for _ in range(9)
    ]
    with pytest.raises(NotFound):
        list(bulk.browse(queue, views[-5]))
    assert all(len(list(bulk.browse(queue, view))) == 1 for view in views[-4:])


def test_views_of_parents_that_have_ended_are_closed_and_of_others_kept(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, bulk: BulkClient, queue: str
) -> None:
    ended, other = 2**22 + 1, os.getpid()  # above the highest pid of Linux; alive, and not the parent

    def opened_by(parent: int, count: int) -> list[int]:
        with monkeypatch.context() as patched:
            patched.setattr("quorum.spark.reading.open_views.os.getppid", lambda: parent)
            return [open_view(cluster.url, queue, 1).view for _ in range(count)]

    of_other, of_ended = opened_by(other, 2), opened_by(ended, 3)
    assert open_views.take_oldest(cluster.url, f"{queue} too", 0) == []
    assert open_views.take_oldest(cluster.url, queue, 1) == of_ended[:2]
    assert open_views.take_oldest(cluster.url, queue, 0) == of_ended[2:]
    for view in of_other:
        list(bulk.browse(queue, view))


@pytest.fixture
def described(client: sync.Client, queue: str) -> str:
    """A queue with messages that differ in what they have."""
    client.publish_batch(
        queue,
        [
            Message(
                b"\x00\xff",
                {
                    "message_id": "m1",
                    "correlation_id": "c1",
                    "subject": "s",
                    "group_id": "g",
                    "priority": 200,
                    "ttl": 60_000,
                },
                {"color": "red", "size": 3, "weight": 1.5, "ok": True, "raw": b"\x01"},
            ),
            Message(b"plain", None, {"color": "blue", "size": 4, "weight": float("nan")}),
            Message(b"bare", None, None),
        ],
    )
    return queue


def test_every_column_of_a_message_is_read(
    spark: SparkSession, cluster: LocalCluster, described: str
) -> None:
    frame = load(spark, cluster, described)
    assert frame.schema["fields"].dataType.simpleString() == (
        "struct<color:string,ok:boolean,size:bigint,weight:double>"
    )
    one, two, three = frame.orderBy("sequence").collect()
    assert (one.queue, one.sequence, bytes(one.body)) == (described, 1, b"\x00\xff")
    assert (one.message_id, one.correlation_id, one.subject, one.group_id) == ("m1", "c1", "s", "g")
    assert (one.priority, one.deliveries) == (200, 0)
    assert (one.expires - one.enqueued).total_seconds() == 60
    assert one.fields.asDict() == {"color": "red", "ok": True, "size": 3, "weight": 1.5}
    assert one.properties.toPython() == {"raw": b"\x01"}
    assert (two.fields.color, two.fields.ok, str(two.fields.weight)) == ("blue", None, "nan")
    assert two.properties is None and two.expires is None and two.priority is None
    assert three.fields.asDict() == {"color": None, "ok": None, "size": None, "weight": None}
    assert one.raft_index > 0


def test_a_users_schema_chooses_columns_and_types(
    spark: SparkSession, cluster: LocalCluster, described: str
) -> None:
    reader = spark.read.format("quorum").option("url", cluster.url).option("queue", described)
    frame = reader.schema("sequence BIGINT, fields STRUCT<size: INT>, properties STRING").load()
    rows = frame.orderBy("sequence").collect()
    assert [row.fields.size for row in rows] == [3, 4, None]
    assert json.loads(rows[1].properties) == {"color": "blue", "weight": {"double": "NaN"}}
    named = load(spark, cluster, described, filterFields="color STRING, size STRING", includeBody="false")
    assert "body" not in named.columns
    first, *_ = named.orderBy("sequence").collect()
    assert first.fields.asDict() == {"color": "red", "size": None}


def test_predicates_mean_the_same_whether_the_service_or_spark_judges(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, queue: str
) -> None:
    values: list[Any] = ["red", "it's", "100%", "a_b", "\\", "", 3, 2**40, 1.5, float("nan"), True]
    client.publish_batch(
        queue,
        [Message(b"", None, {"x": a, "y": b}) for a in values for b in (1, 2.5, "red")]
        + [Message(b"", None, None)],
    )
    fields = "x STRING, y BIGINT"
    predicates = [
        "fields.x = 'red'",
        "fields.x <> 'it''s'",
        "fields.x IS NULL",
        "fields.x LIKE '%\\\\%'",
        "fields.x IN ('a_b', '\\\\', '')",
        "fields.y >= 1 AND sequence BETWEEN 5 AND 20",
        "fields.y <> 1",
        "NOT startswith(fields.x, 'a_')",
    ]
    plain = load(spark, cluster, queue, filterFields=fields).cache()
    spark.conf.set(PUSH_DOWN, "true")
    try:
        for predicate in predicates:
            pushed = load(spark, cluster, queue, filterFields=fields).where(predicate).select("sequence")
            found = sorted(row.sequence for row in pushed.collect())
            assert found == sorted(
                row.sequence for row in plain.where(predicate).select("sequence").collect()
            ), predicate
    finally:
        spark.conf.unset(PUSH_DOWN)
        plain.unpersist()


def test_a_stream_with_a_wrong_option_says_which(
    spark: SparkSession, cluster: LocalCluster, queue: str, tmp_path: Path
) -> None:
    for options, words in (
        ({}, "option subscription is missing"),
        ({"subscription": "g", "selector": "x ="}, "option selector: .* ends too early"),
        ({"mode": "tail", "subscriptionTimeout": "1h"}, "option subscriptionTimeout is for mode=consume"),
    ):
        stream = spark.readStream.format("quorum").option("url", cluster.url).option("queue", queue)
        writer = stream.options(**options).schema("body BINARY").load().writeStream.format("noop")
        checkpoint = str(tmp_path / str(len(options)))
        with pytest.raises(QueryFailed, match=words), plain_failures():
            writer.option("checkpointLocation", checkpoint).trigger(
                availableNow=True
            ).start().awaitTermination()


def test_a_read_in_parts_sees_one_moment_whatever_is_consumed_meanwhile(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    for first in range(0, 20_000, 5_000):
        client.publish_batch(queue, texts(first, first + 5_000))
    frame = load(spark, cluster, queue, minPartitions="4").select(
        F.col("body").cast("string").cast("int").alias("n")
    )
    assert sorted(row.n for row in frame.collect()) == list(range(20_000))
    client.get(queue, 5_000, settled=True)
    client.purge(queue)
    assert sorted(row.n for row in frame.collect()) == list(range(20_000))
    assert load(spark, cluster, queue).count() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "there is none"}, "there is no queue 'there is none'"),
        ({"selector": "color ="}, "option selector: "),
        ({"subscription": "g"}, "option subscription is for a stream, not for a batch read"),
        ({"filterFields": "color"}, "a name and a type are expected"),
    ],
)
def test_what_cannot_be_read_is_told(
    spark: SparkSession, cluster: LocalCluster, queue: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(QueryFailed) as raised, plain_failures():
        load(spark, cluster, options.pop("queue", queue), **options).collect()
    assert words in str(raised.value)
    assert "Traceback" not in str(raised.value)


def transfer(
    spark: SparkSession, cluster: LocalCluster, source: str, target: str, checkpoint: Path, **crash: Any
) -> None:
    """Everything that is in one queue goes to another one, a hundred at a time."""
    rows = (
        spark.readStream.format("quorum")
        .option("url", cluster.url)
        .option("queue", source)
        .option("subscription", "transfer")
        .option("filterFields", "size INT")
        .option("maxMessagesPerTrigger", 100)
        .load()
    )
    writer = (
        rows.select("body", "fields")
        .repartition(2)
        .writeStream.format("quorum_crashing" if crash else "quorum")
        .option("url", cluster.url)
        .option("queue", target)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    with plain_failures():
        writer.options(**crash).start().awaitTermination()


def test_from_queue_to_queue_everything_arrives_once_though_the_driver_dies_after_publishing(
    spark: SparkSession,
    cluster: LocalCluster,
    client: sync.Client,
    bulk: BulkClient,
    queue: str,
    tmp_path: Path,
) -> None:
    spark.dataSource.register(CrashingSource)
    target = f"{queue[:60]}-to"
    client.declare(target)
    client.publish_batch(queue, [Message(b"%d" % n, None, {"size": n}) for n in range(250)])
    # the sink's commit of batch 1 publishes and fails: Spark discards the batch, and its commit log knows nothing of it
    with pytest.raises(QueryFailed, match="as if the driver had died"):
        transfer(spark, cluster, queue, target, tmp_path, crashBatch=1)
    assert sorted(int(each.body) for each in client.browse(target)) == list(range(200))
    assert bulk.queue_info(queue).checked_out == 100

    client.publish_batch(queue, [Message(b"%d" % n, None, {"size": n}) for n in range(250, 270)])
    transfer(spark, cluster, queue, target, tmp_path)
    arrived = list(client.browse(target))
    assert sorted(int(each.body) for each in arrived) == list(range(270))
    assert all(each.application_properties == {"size": int(each.body)} for each in arrived)
    info = bulk.queue_info(queue)
    assert (info.ready, info.checked_out) == (0, 0)
