"""The sink on a real cluster: columns arrive as they were, batches whole and once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from quorum import sync
from quorum.bulk import BulkClient
from quorum.client.bulk.records import StagedPart
from quorum.client.errors import NotFound, PermissionRefused, QuorumError, RefusedError, TlsError
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark import QueryFailed, cause, plain_failures
from quorum.spark.errors import QuorumSparkError
from quorum.spark.options import sink_options
from quorum.spark.rows import ToService
from quorum.spark.sink import BatchWriter, Part, Staged, StreamWriter, _publish, _stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def bodies(client: sync.Client, queue: str) -> list[bytes]:
    return [each.body for each in client.browse(queue)]


def numbers(spark: SparkSession, first: int, last: int, partitions: int = 2) -> DataFrame:
    return spark.range(first, last, 1, partitions).selectExpr("CAST(id AS STRING) AS body")


def write(frame: DataFrame, cluster: LocalCluster, **options: Any) -> None:
    writer = frame.write.format("quorum").mode("append").option("url", cluster.url)
    for name, value in options.items():
        writer = writer.option(name, value)
    with plain_failures():
        writer.save()


def test_a_batch_write_puts_rows_into_the_queue_in_order_of_partitions(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, queue: str
) -> None:
    write(numbers(spark, 0, 1000, 3), cluster, queue=queue)
    assert bodies(client, queue) == [b"%d" % number for number in range(1000)]


def test_every_column_arrives(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, queue: str
) -> None:
    frame = spark.sql(
        """SELECT X'00FF' AS body, 'm1' AS message_id, 'c1' AS correlation_id, 'r' AS reply_to,
        'text/x' AS content_type, 's' AS subject, 'g' AS group_id, 200 AS priority, CAST(NULL AS BIGINT) AS ttl_ms,
        named_struct('color', 'red', 'size', 3, 'weight', 1.5D, 'ok', true, 'none', CAST(NULL AS STRING)) AS fields,
        parse_json('{"extra": 7, "pi": 3.5}') AS properties"""
    )
    write(frame, cluster, queue=queue)
    (message,) = client.browse(queue)
    assert message.body == b"\x00\xff"
    assert dict(message.application_properties) == {
        "color": "red",
        "size": 3,
        "weight": 1.5,
        "ok": True,
        "extra": 7,
        "pi": 3.5,
    }
    found = message.properties
    assert (found.message_id, found.correlation_id, found.subject, found.priority) == ("m1", "c1", "s", 200)


def test_rows_go_where_their_queue_says(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, queue: str
) -> None:
    names = [f"{queue}-{number}" for number in range(3)]
    for name in names:
        client.declare(name)
    frame = numbers(spark, 0, 300).selectExpr("body", f"concat('{queue}-', CAST(body AS INT) % 3) AS queue")
    write(frame, cluster)
    for number, name in enumerate(names):
        assert bodies(client, name) == [b"%d" % each for each in range(number, 300, 3)]


def test_a_named_write_is_done_once(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, queue: str
) -> None:
    app = uuid.uuid4().hex
    for version, first in ((1, 0), (1, 0), (2, 100), (1, 500), (2, 100)):
        write(numbers(spark, first, first + 100), cluster, queue=queue, txnAppId=app, txnVersion=version)
    assert bodies(client, queue) == [b"%d" % number for number in range(200)]


def test_a_write_that_fails_leaves_nothing(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    frame = numbers(spark, 0, 2000, 4).selectExpr(
        "CASE WHEN body = '1999' THEN CAST(raise_error('no more') AS STRING) ELSE body END AS body"
    )
    with pytest.raises(QueryFailed, match="no more"):
        write(frame, cluster, queue=queue)
    assert bodies(client, queue) == []
    write(numbers(spark, 0, 10), cluster, queue=queue)
    assert len(bodies(client, queue)) == 10


def test_a_task_that_fails_leaves_nothing_staged(
    cluster: LocalCluster, client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    """Or a query that fails and is started again and again would fill what a queue keeps staged, for everybody."""
    given = {"url": cluster.url, "queue": queue, "txnAppId": "app", "txnVersion": "3"}
    options = sink_options(given, streaming=False)
    schema = StructType([StructField("body", BinaryType()), StructField("queue", StringType())])

    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(40):
            yield pa.RecordBatch.from_pydict({"body": [bytes(1 << 20)]})
        raise OSError("the rest cannot be read")

    for columns in (["body"], ["body", "queue"]):
        whole = rows() if len(columns) == 1 else (with_queue(each, queue) for each in rows())
        shape = ToService(StructType(schema.fields[: len(columns)]), columns, queue)
        with pytest.raises(OSError, match="the rest cannot be read"):
            _stage(options, shape, "app", 3, whole)
        assert bulk.discard(queue, "app", 3) == 0


@pytest.mark.parametrize("error", [NotFound, PermissionRefused, TlsError])
def test_a_task_that_may_not_stage_warns_of_no_staged_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[QuorumError]
) -> None:
    class Refusing:
        def stage(self, *_: Any, **__: Any) -> None:
            raise error("refused")

        discard = stage

    monkeypatch.setattr("quorum.spark.sink.service", lambda _: Refusing())
    options = sink_options({"queue": "q"}, streaming=False)
    shape = ToService(StructType([StructField("body", BinaryType())]), ["body"], "q")
    with pytest.raises(error, match="refused"):
        _stage(options, shape, "app", 3, iter([pa.RecordBatch.from_pydict({"body": [b"a"]})]))
    assert not caplog.records


def test_a_batch_whose_parts_are_gone_is_refused_whole(
    cluster: LocalCluster, client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    """As they are where it took longer than parts are kept."""
    given = {"url": cluster.url, "queue": queue, "txnAppId": "app", "txnVersion": "3"}
    options = sink_options(given, streaming=False)
    shape = ToService(StructType([StructField("body", BinaryType())]), ["body"], queue)
    rows = pa.RecordBatch.from_pydict({"body": [b"a", b"b"]})
    early, late = (_stage(options, shape, "app", 3, iter([rows])) for _ in range(2))
    bulk.discard(queue, "app", 3, [each.part.part for each in early.parts])
    with pytest.raises(QuorumSparkError, match="a part is kept for six hours"):
        _publish(options, [early, late], 3)
    assert bodies(client, queue) == []


def test_a_stream_whose_batches_begin_again_is_refused_not_skipped(
    cluster: LocalCluster, client: sync.Client, queue: str
) -> None:
    """With the same txnAppId, a new checkpoint's batches have the numbers of published ones, but other rows."""
    schema = StructType([StructField("body", BinaryType())])
    options = sink_options({"url": cluster.url, "queue": queue, "txnAppId": "app"}, streaming=True)
    writer, shape = StreamWriter(options, schema), ToService(schema, ["body"], queue)

    def run(number: int, body: bytes) -> None:
        rows = pa.RecordBatch.from_pydict({"body": [body]})
        writer.commit([_stage(options, shape, "app", number, iter([rows]))], number)

    for number in range(3):
        run(number, b"%d" % number)
    run(2, b"2")  # as after a driver that died before Spark's own commit log
    assert bodies(client, queue) == [b"0", b"1", b"2"]
    with pytest.raises(QuorumSparkError, match="has batch 0 of 'app', and a later one"):
        run(0, b"new")
    assert bodies(client, queue) == [b"0", b"1", b"2"]


def is_remembered(bulk: BulkClient, queue: str, message: Staged) -> bool:
    """Whether the queue remembers that it has published this batch."""
    parts = [each.part for each in message.parts]
    try:
        return bulk.publish(queue, message.producer, message.batch, parts).is_duplicate
    except RefusedError as error:
        if error.reason != "MISSING_PART":
            raise
        return False


@pytest.mark.parametrize("named", [{}, {"txnAppId": "app", "txnVersion": "3"}], ids=["unnamed", "named"])
def test_only_a_write_with_a_name_keeps_its_place_in_the_queue(
    cluster: LocalCluster, client: sync.Client, bulk: BulkClient, queue: str, named: dict[str, str]
) -> None:
    options = sink_options({"url": cluster.url, "queue": queue, **named}, streaming=False)
    writer = BatchWriter(options, StructType([StructField("body", BinaryType())]))
    message, failed = (
        writer.write(iter([pa.RecordBatch.from_pydict({"body": [body]})])) for body in (b"a", b"b")
    )
    assert isinstance(message, Staged)
    writer.commit([message])
    assert is_remembered(bulk, queue, message) == bool(named)
    writer.abort([message, failed])
    assert is_remembered(bulk, queue, message) == bool(named)
    assert bodies(client, queue) == [b"a"]


def test_a_write_that_is_given_up_gives_its_places_back(
    cluster: LocalCluster, client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    """It was published in one of two queues."""
    first = f"{queue}-1"
    client.declare(first)
    options = sink_options({"url": cluster.url}, streaming=False)
    schema = StructType([StructField("body", BinaryType()), StructField("queue", StringType())])
    writer = BatchWriter(options, schema)
    rows = pa.RecordBatch.from_pydict({"body": [b"a", b"b"], "queue": [first, f"{queue}-2"]})
    client.declare(f"{queue}-2")
    message = writer.write(iter([rows]))
    assert isinstance(message, Staged)
    bulk.discard(f"{queue}-2", message.producer, message.batch)
    with pytest.raises(QuorumSparkError, match="a part is kept for six hours"):
        writer.commit([message])
    message.parts = [each for each in message.parts if each.queue == first]
    assert is_remembered(bulk, first, message)
    writer.abort([message])
    assert not is_remembered(bulk, first, message)
    assert bodies(client, first) == [b"a"]


def test_a_write_is_done_though_its_place_cannot_be_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def publish(self, queue: str, *_: Any) -> None:
            done.append(queue)

        def discard(self, queue: str, *_: Any, forget: bool) -> None:
            raise RefusedError(f"queue {queue!r} is closed")

    done: list[str] = []
    monkeypatch.setattr("quorum.spark.sink.service", lambda _: Failing())
    writer = BatchWriter(
        sink_options({"queue": "q"}, streaming=False), StructType([StructField("body", BinaryType())])
    )
    writer.commit([Staged("spark-write-1", 0, [Part("q", StagedPart(bytes(16), 1))])])
    assert done == ["q"]


def test_an_abort_drops_the_parts_of_all_queues_though_one_was_deleted(
    cluster: LocalCluster, client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    names = [f"{queue}-{number}" for number in range(2)]
    for name in names:
        client.declare(name)
    schema = StructType([StructField("body", BinaryType()), StructField("queue", StringType())])
    given = {"url": cluster.url, "txnAppId": queue, "txnVersion": "1"}
    writer = BatchWriter(sink_options(given, streaming=False), schema)
    message = writer.write(iter([pa.RecordBatch.from_pydict({"body": [b"a", b"b"], "queue": names})]))
    assert isinstance(message, Staged)
    client.delete(names[0])
    writer.abort([message])
    with pytest.raises(RefusedError, match="part"):
        bulk.publish(names[1], message.producer, message.batch, [message.parts[1].part])


def with_queue(batch: pa.RecordBatch, queue: str) -> pa.RecordBatch:
    return batch.append_column("queue", pa.array([queue] * batch.num_rows))


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("body, 1 AS key", {"queue": "q"}, "there is no column key in a message"),
        ("body", {}, "set the option queue, or add a column queue"),
        ("body", {"queue": "q", "txnApId": "x"}, "unknown option 'txnapid'; did you mean txnAppId?"),
        ("body", {"queue": "there is none"}, "there is no queue 'there is none'"),
        ("CAST(NULL AS STRING) AS body", {"queue": "q"}, "a row's body is NULL"),
    ],
)
def test_what_cannot_be_written_is_told(
    spark: SparkSession, cluster: LocalCluster, columns: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(QueryFailed) as raised:
        # one task, which Spark tries four times
        write(numbers(spark, 0, 2, 1).selectExpr(*columns.split(", ")), cluster, **options)
    assert words in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_a_queue_is_never_overwritten(spark: SparkSession, cluster: LocalCluster, queue: str) -> None:
    writer = numbers(spark, 0, 1).write.format("quorum").mode("overwrite")
    with pytest.raises(Exception, match="a queue cannot be overwritten") as raised:
        writer.option("url", cluster.url).option("queue", queue).save()
    assert "append" in cause(raised.value)


def test_a_streams_batches_arrive_once_though_one_is_done_again(
    spark: SparkSession, cluster: LocalCluster, client: sync.Client, queue: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
        query = (
            rows.selectExpr("value AS body")
            .writeStream.format("quorum")
            .option("url", cluster.url)
            .option("queue", queue)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for number in range(3):
        (source / f"{number}.txt").write_text(f"{number}-a\n{number}-b\n", encoding="utf-8")
    run()
    expected = [b"0-a", b"0-b", b"1-a", b"1-b", b"2-a", b"2-b"]
    assert sorted(bodies(client, queue)) == expected
    # as if the driver had died between publishing its last batch and Spark's own commit log
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink()
    run()
    assert sorted(bodies(client, queue)) == expected
