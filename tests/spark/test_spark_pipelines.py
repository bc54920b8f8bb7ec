"""Archives: each message once, in directories that are written again as they were; and what selectors match in them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from quorum import sync
from quorum.bulk import BulkClient
from quorum.cli.commands import queues, subscriptions
from quorum.cli.pipelines.live_selectors import of_cluster
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark import OptionError, QueryFailed, plain_failures
from quorum.spark.pipelines import output_check
from quorum.spark.pipelines.archive import Archive, read_archive
from quorum.spark.pipelines.selectivity import asked, selectivity
from quorum.sync import Message
from quorum_selectors.known_fields import DEFAULT_FIELD_NAMES

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
        archive.finish()


def test_a_queue_is_archived_once_in_batches_and_selectors_are_judged_on_it(
    spark: SparkSession,
    cluster: LocalCluster,
    client: sync.Client,
    bulk: BulkClient,
    queue: str,
    tmp_path: Path,
) -> None:
    directory = tmp_path / "archive"
    told: list[int] = []
    archive = Archive(
        cluster.url, (queue,), directory, fields="color STRING, size INT", batch=40, on_batch=told.append
    )
    publish(client, queue, 0, 90)
    run(spark, archive)
    assert bulk.subscriptions(queue) == []
    publish(client, queue, 90, 100)
    archive.start(spark, None).awaitTermination()  # and is killed before it can finish
    assert [each.state.outstanding for each in bulk.subscriptions(queue)] == [0]
    run(spark, archive)
    info = bulk.queue_info(queue)
    assert (info.ready, info.checked_out, bulk.subscriptions(queue)) == (0, 0, [])
    assert [each.name for each in (directory / "_checkpoint").iterdir()] == ["4"]
    assert told == [40, 40, 10, 10]

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

    texts = ["color = 'red'", "size < 10 AND ratio >= 1.0", "JMSType = 's'", "missing = 1"]
    (found,) = selectivity(rows, [asked(each) for each in texts])
    assert (found.queue, found.messages) == (queue, 100)
    assert [(each.selector, each.matched) for each in found.selectors] == [
        (texts[0], 34),
        (texts[1], 8),
        (texts[2], 100),
        (texts[3], 0),
    ]
    near_100 = pytest.approx(100, rel=0.1)
    assert [
        (each.field, each.selectors, each.messages, each.distinct, each.matched) for each in found.fields
    ] == [
        ("color", 1, 100, 3, 34),
        ("missing", 1, 0, 0, 0),
        ("properties.subject", 1, 100, 1, 100),
        ("ratio", 1, 100, near_100, 8),
        ("size", 1, 100, near_100, 8),
    ]
    by_name = {each.field: each.memory_bytes for each in found.fields}
    # however Spark shares the files out: 9 bytes a double, 2 a small number
    assert (by_name["ratio"], by_name["size"]) == (900, 200)
    assert found.recommendation.line == "x-filter-field-names=color,missing,properties.subject,ratio,size"
    assert found.recommendation.names_now == DEFAULT_FIELD_NAMES
    with pytest.raises(OptionError, match="ends too early"):
        asked("color =")

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
        patch.setattr(output_check, "rows_in", lambda directories: 0)
        with pytest.raises(QueryFailed, match=r"10 rows were written to .*, and 0 are there"):
            run(spark, archive)
    info = bulk.queue_info(queue)
    assert (info.ready, info.checked_out) == (0, 10)
    run(spark, archive)
    assert read_archive(spark, tmp_path / "a").count() == 10
    info = bulk.queue_info(queue)
    assert (info.ready, info.checked_out) == (0, 0)


def test_a_batch_that_comes_out_otherwise_replaces_all_that_was_written_of_it(
    spark: SparkSession,
    cluster: LocalCluster,
    client: sync.Client,
    bulk: BulkClient,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Written, and then not committed. Beside consumers its messages may be gone when it is done again."""
    other = f"{queue}-2"
    client.declare(other)
    publish(client, queue, 0, 10)
    publish(client, other, 0, 5)
    archive = Archive(cluster.url, (queue, other), tmp_path / "a", fields="color STRING", takes=False)
    with monkeypatch.context() as patch:
        patch.setattr(output_check, "rows_in", lambda directories: 0)
        with pytest.raises(QueryFailed, match=r"15 rows were written to .*, and 0 are there"):
            run(spark, archive)
    assert read_archive(spark, tmp_path / "a").count() == 15
    client.purge(other)
    run(spark, archive)
    assert read_archive(spark, tmp_path / "a").count() == 10


def test_a_query_that_was_overtaken_takes_nothing_out_of_the_archive(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, queue: str, tmp_path: Path
) -> None:
    """It was paused before it wrote its batch, and goes on when its successor has written and committed it."""
    publish(client, queue, 0, 10)
    archive = Archive(cluster.url, (queue,), tmp_path / "a", fields="color STRING")
    run(spark, archive)
    whole = read_archive(spark, tmp_path / "a").drop("date", "batch")
    unreadable = spark.createDataFrame(whole.collect(), whole.schema).select(
        *[
            F.raise_error(F.lit("settled")).cast("binary").alias(name) if name == "body" else name
            for name in whole.columns
        ]
    )
    with pytest.raises(QueryFailed, match="settled"), plain_failures():
        archive._write(unreadable, 0)
    assert read_archive(spark, tmp_path / "a").count() == 10


def test_a_batch_whose_messages_were_given_back_is_passed_over_where_that_is_wanted(
    spark: SparkSession,
    cluster: LocalCluster,
    client: sync.Client,
    bulk: BulkClient,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(client, queue, 0, 4)
    archive = Archive(cluster.url, (queue,), tmp_path / "a", fields="color STRING")
    archive.start(spark, None).awaitTermination()  # not finished: the next run goes on with its checkpoint
    publish(client, queue, 4, 10)
    with monkeypatch.context() as patch:
        patch.setattr(output_check, "rows_in", lambda directories: 0)
        with pytest.raises(QueryFailed, match="and 0 are there"):
            run(spark, archive)
    bulk.release_subscription(queue, "archive", bulk.subscriptions(queue)[0].state.generation)
    with pytest.raises(QueryFailed, match="were settled or released"):
        run(spark, archive)
    run(spark, replace(archive, passes_lost=True))
    rows = read_archive(spark, tmp_path / "a").select("body").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(10))
    info = bulk.queue_info(queue)
    assert (info.ready, info.checked_out) == (0, 0)


def test_a_property_that_changes_its_kind_does_not_make_an_archive_unreadable(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, queue: str, tmp_path: Path
) -> None:
    directory = tmp_path / "a"
    archive = Archive(cluster.url, (queue,), directory)
    changing: list[dict[str, bool | int | float | str | bytes]] = [{"n": 1}, {"n": "one", "N": 2, "m": True}]
    for properties in changing:
        client.publish_batch(queue, [Message(b"x", None, properties)])
        run(spark, archive)
    rows = read_archive(spark, directory).orderBy("batch").select("fields", "properties").collect()
    assert [row.fields.asDict() for row in rows] == [{"n": 1, "m": None}, {"n": None, "m": True}]
    assert [json.loads(row.properties or "{}") for row in rows] == [{}, {"n": "one", "N": 2}]
    with pytest.raises(OptionError, match="has the fields n BIGINT, m BOOLEAN; n INT differs"):
        run(spark, replace(archive, fields="n INT"))


def test_an_archive_keeps_its_fields_where_no_message_shows_them_now(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, queue: str, tmp_path: Path
) -> None:
    archive = Archive(cluster.url, (queue,), tmp_path / "a")
    client.publish_batch(queue, [Message(b"0", None, {"color": "red", "size": 0})])
    run(spark, archive)
    messages = [
        Message(b"1", None, {"color": 7, "size": "big"}),
        Message(b"2", None, {"color": "red", "size": 2}),
    ]
    client.publish_batch(queue, messages)
    run(spark, archive)
    rows = read_archive(spark, tmp_path / "a").orderBy("body").select("fields", "properties").collect()
    assert [tuple(row.fields) for row in rows] == [("red", 0), (None, None), ("red", 2)]
    assert [json.loads(row.properties or "{}") for row in rows] == [{}, {"color": 7, "size": "big"}, {}]


def test_queues_are_found_by_the_names_they_have(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, tmp_path: Path
) -> None:
    client.declare("007")
    publish(client, "007", 0, 3)
    run(spark, Archive(cluster.url, ("007",), tmp_path / "a", fields="color STRING"))
    assert read_archive(spark, tmp_path / "a", ["007"]).count() == 3
    for name in ("a,b", " a", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(OptionError, match="cannot be archived"):
            Archive(cluster.url, (name,), tmp_path / "b").start(spark, None)


def test_what_is_no_archive_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no archive"):
        read_archive(spark, tmp_path)


def test_the_selectors_of_a_cluster_are_judged_on_their_own_queues(
    spark: SparkSession,
    cluster: LocalCluster,
    client: sync.Client,
    bulk: BulkClient,
    queue: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = f"{queue}-2"
    client.declare(other, {"x-filter-enabled": True, "x-filter-field-names": "size"})
    publish(client, queue, 0, 30)
    publish(client, other, 0, 60)
    directory = tmp_path / "archive"
    run(spark, Archive(cluster.url, (queue, other), directory, fields="size INT", takes=False))
    bulk.open_subscription(queue, "small", selector="size < 3")
    with (
        client.consume(queue, "color = 'red' AND 3 > size", consumer_tag="reds"),
        client.consume(queue, None, {"application_properties": {"color": "blue"}}, consumer_tag="blues"),
        client.consume(other, "size BETWEEN 1 AND 2", consumer_tag="mids"),
    ):
        now = of_cluster(client, bulk, [queue, other, "gone"])
        capsys.readouterr()
        queues.show(queue, cluster.url, as_json=True)
        consumers = json.loads(capsys.readouterr().out)["consumers"]
        assert {each["consumer_tag"]: (each["selector"], each["selects"]) for each in consumers} == {
            "reds": ("color = 'red' AND size < 3", "color = 'red' AND size < 3"),
            "blues": ("", "(color = 'blue') IS TRUE"),
        }
        subscriptions.list_(queue, cluster.url, as_json=True)
        (subscription,) = json.loads(capsys.readouterr().out)
        assert (subscription["subscription"], subscription["selector"], subscription["selects"]) == (
            "small",
            "size < 3",
            "size < 3",
        )
        queues.show(queue, cluster.url)
        assert "size < 3" in capsys.readouterr().out
    assert now.absent == ("gone",)
    assert now.names == {queue: DEFAULT_FIELD_NAMES, other: ("size",)}
    first, second = selectivity(read_archive(spark, directory), now.asked, now.names)
    assert {each.users: (each.selector, each.matched) for each in first.selectors} == {
        ("consumer blues",): ("(color = 'blue') IS TRUE", 10),
        ("consumer reds",): ("color = 'red' AND size < 3", 1),
        ("subscription small",): ("size < 3", 3),
    }
    assert first.recommendation.line == "x-filter-field-names=color,size"
    assert [(each.users, each.matched) for each in second.selectors] == [(("consumer mids",), 2)]
    assert second.recommendation.line == "x-filter-field-names=size"
    assert second.recommendation.memory_bytes == second.recommendation.memory_bytes_now == 120
