"""Progress, lag and the start by time: what real queries show and read, and the readers' own figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorum import sync
from quorum.bulk import BulkClient
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark import lag
from quorum.spark.reading import start_time
from quorum.spark.reading.start_time import first_since
from support.spark.streams import Driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT_S = 120


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def enqueued(bulk: BulkClient, queue: str) -> list[datetime]:
    """The times of the ready messages, in order of sequence."""
    info = bulk.queue_info(queue)
    batches = bulk.browse(queue, columns=("enqueued",), index=info.index, end_sequence=info.next_sequence)
    return [row["enqueued"] for batch in batches for row in batch.to_pylist()]


def fill_apart(client: sync.Client, bulk: BulkClient, queue: str, *parts: tuple[int, int]) -> list[datetime]:
    """Publishes each part at a later millisecond than the one before. Returns the times of the parts."""
    times: list[datetime] = []
    for first, last in parts:
        deadline = time.monotonic() + LIMIT_S
        while times and datetime.now(UTC) <= times[-1] + timedelta(milliseconds=20):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.publish_batch(queue, texts(first, last))
        times.append(enqueued(bulk, queue)[-1])
    assert times == sorted(set(times))
    return times


@pytest.fixture
def stream(spark: SparkSession, cluster: LocalCluster, queue: str) -> Callable[..., DataFrame]:
    def load(**options: str) -> DataFrame:
        given = {"url": cluster.url, "queue": queue, **options}
        return spark.readStream.format("quorum").options(**given).load()

    return load


def run(rows: DataFrame, folder: Path, count: int | None = None) -> tuple[list[bytes], list[Any]]:
    """Run a query to the end of what is there, or, without a trigger, until it has read so many messages. Returns the
    bodies that it has read, and its progress."""
    read: list[bytes] = []

    def keep(batch: DataFrame, _: int) -> None:
        read.extend(bytes(row["body"]) for row in sorted(batch.collect(), key=lambda row: row["sequence"]))

    writer = rows.writeStream.option("checkpointLocation", str(folder)).foreachBatch(keep)
    query = (writer.trigger(availableNow=True) if count is None else writer).start()
    try:
        if count is None:
            assert query.awaitTermination(LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while count is not None and len(read) < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        if count is not None:
            query.processAllAvailable()  # the progress of the last batch comes after it
        return read, list(query.recentProgress)
    finally:
        query.stop()


def test_a_query_shows_what_still_waits_after_each_batch(
    stream: Callable[..., DataFrame], client: sync.Client, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    client.publish_batch(queue, texts(100, 150))
    (oldest,) = set(enqueued(bulk, queue))
    rows = stream(subscription="g", maxMessagesPerTrigger="20")
    read, progress = run(rows, tmp_path)
    assert read == texts(100, 150)
    full = [each for each in progress if each["numInputRows"]]
    found = [lag(each) for each in full]
    assert [[(each.queue, each.offset, each.waiting) for each in one] for one in found] == [
        [(queue, 1, 30)],
        [(queue, 2, 10)],
        [(queue, 3, 0)],
    ]
    assert [one[0].oldest_enqueued for one in found] == [oldest, oldest, None]
    assert [one[0].waiting_bytes for one in found] == [90, 30, 0]
    (source,) = full[0]["sources"]
    assert json.loads(source["endOffset"]) == {"": {"mode": "consume", "subscription": "g"}, queue: 1}
    # the JSON of a progress, as a listener elsewhere or a log has it, gives the same
    assert lag(json.loads(full[0].json)) == found[0]
    # a Python source cannot fill this map
    assert source["metrics"] == {}


def test_a_tail_starts_with_the_first_message_of_a_time_and_shows_its_lag(
    stream: Callable[..., DataFrame], client: sync.Client, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    _, second, _ = fill_apart(client, bulk, queue, (10, 20), (20, 30), (30, 40))
    rows = stream(mode="tail", startingTimestamp=second.isoformat(), maxMessagesPerTrigger="15")
    read, progress = run(rows, tmp_path, count=20)
    assert read == texts(20, 40)
    full = [lag(each)[0] for each in progress if each["numInputRows"]]
    assert [(each.offset, each.waiting, each.waiting_bytes) for each in full] == [(31, 5, 10), (31, 0, 0)]
    # the checkpoint has the position: the option does not count any more, and nothing is read again
    client.publish_batch(queue, texts(40, 45))
    rows = stream(mode="tail", startingTimestamp="2000-01-01T00:00:00Z")
    assert run(rows, tmp_path)[0] == texts(40, 45)


def test_a_tail_by_time_that_ends_when_all_is_read(
    stream: Callable[..., DataFrame], client: sync.Client, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    _, second = fill_apart(client, bulk, queue, (0, 10), (10, 20))
    ms = str(int(second.timestamp() * 1000))
    assert run(stream(mode="tail", startingTimestamp=ms), tmp_path)[0] == texts(10, 20)


def test_a_time_between_messages_starts_with_the_next_one_and_a_later_time_at_the_end(
    client: sync.Client, cluster: LocalCluster, bulk: BulkClient, queue: str
) -> None:
    first, second = fill_apart(client, bulk, queue, (0, 10), (10, 20))

    def begin(at: datetime) -> tuple[Driver, int]:
        driver = Driver(cluster.url, queue=queue, mode="tail", startingTimestamp=at.isoformat())
        return driver, driver.reader.initialOffset()[queue]

    step = timedelta(milliseconds=1)
    assert begin(first - step)[1] == 1
    assert begin(first)[1] == 1
    assert begin(first + step)[1] == 11
    assert begin(second)[1] == 11
    assert begin(second + step)[1] == 21
    driver, start = begin(datetime.now(UTC) + timedelta(days=365))
    assert start == 21
    # the first batch is empty and fixes the start: a restart with another clock begins at the same place
    assert driver.latest({queue: start}) == {queue: start}
    client.publish_batch(queue, texts(20, 25))
    assert driver.bodies({queue: start}, driver.latest({queue: start})) == texts(20, 25)


def test_messages_that_were_consumed_are_no_start(client: sync.Client, bulk: BulkClient, queue: str) -> None:
    first, second = fill_apart(client, bulk, queue, (0, 4), (4, 8))
    for each in client.get(queue, 6):
        client.settle(each, wait=True)
    assert first_since(bulk, queue, int(first.timestamp() * 1000)) == 7
    assert first_since(bulk, queue, int(second.timestamp() * 1000)) == 7
    client.purge(queue)
    assert first_since(bulk, queue, int(first.timestamp() * 1000)) == 9


def test_the_search_skips_old_messages_by_bisection_and_reads_the_others_in_order(
    client: sync.Client, bulk: BulkClient, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged messages are older than their neighbours, so the times do not ascend."""
    monkeypatch.setattr(start_time, "SMALL", 2)
    monkeypatch.setattr(start_time, "SLACK_MS", 0)
    parts = [(number, number + 7) for number in range(0, 70, 7)]
    times = fill_apart(client, bulk, queue, *parts)
    for number, each in enumerate(times):
        assert first_since(bulk, queue, int(each.timestamp() * 1000)) == 1 + 7 * number
    read = count_rows(monkeypatch)
    assert first_since(bulk, queue, int(times[-1].timestamp() * 1000)) == 64
    assert sum(read) < 20


def count_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    rows: list[int] = []
    browse = BulkClient.browse

    def counted(self: BulkClient, *given: Any, **named: Any) -> Any:
        for batch in browse(self, *given, **named):
            rows.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(BulkClient, "browse", counted)
    return rows


def test_a_staged_message_does_not_hide_an_earlier_one_of_the_time(
    client: sync.Client, bulk: BulkClient, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    monkeypatch.setattr(start_time, "SMALL", 2)
    part = bulk.stage(queue, "writer", 1, [pa.record_batch({"body": texts(90, 99)})])
    _, second = fill_apart(client, bulk, queue, (0, 1), (1, 3))
    bulk.publish(queue, "writer", 1, [part])
    client.publish_batch(queue, texts(3, 4))
    times = enqueued(bulk, queue)
    assert times[3] < second < times[-1]
    assert first_since(bulk, queue, int(second.timestamp() * 1000)) == 2


def test_the_figures_are_of_all_queues_and_are_made_anew_when_the_offset_moves(
    client: sync.Client, cluster: LocalCluster, queue: str
) -> None:
    names = [f"{queue}-{name}" for name in "ab"]
    for name in names:
        client.declare(name)
    client.publish_batch(names[1], texts(0, 9))
    driver = Driver(cluster.url, queue=",".join(names), subscription="g", maxMessagesPerTrigger="4")
    try:
        end = driver.latest(driver.reader.initialOffset())
        found = driver.reader.reportLatestOffset()
        assert {name: found[name]["waiting"] for name in names} == {names[0]: 0, names[1]: 5}
        driver.latest(end)
        found = driver.reader.reportLatestOffset()
        assert {name: (found[name]["offset"], found[name]["waiting"]) for name in names} == {
            names[0]: (0, 0),
            names[1]: (2, 1),
        }
    finally:
        driver.stop()


def test_a_query_before_its_first_batch_has_no_lag() -> None:
    assert lag(None) == []


def test_other_sources_have_no_lag() -> None:
    for offset in (None, "no json", "17", {"orders": 3}, '{"orders": {"0": 5}}'):
        assert lag({"sources": [{"latestOffset": offset}]}) == []
