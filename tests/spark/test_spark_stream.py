"""The stream's reader on a real cluster, driven as Spark drives it: offsets, reservations, settling, fencing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from quorum import sync
from quorum.bulk import BulkClient
from quorum.cli.local_cluster import LocalCluster
from quorum.client.errors import RefusedError
from quorum.spark import DataLoss
from quorum.sync import Message
from support.spark_streams import ALL, Driver

TIMEOUT_MS = 4_000
"""Of a group that is kept alive: so long this process may stand still, on a machine with other work."""
LIMIT_S = 120.0
"""For keeping it alive for so long."""


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


@pytest.fixture
def start(cluster: LocalCluster, queue: str) -> Iterator[Callable[..., Driver]]:
    """Starts queries on the test's queue, in the group g."""
    made: list[Driver] = []

    def begin(**options: str) -> Driver:
        made.append(Driver(cluster.url, **{"queue": queue, "group": "g", **options}))
        return made[-1]

    yield begin
    for each in made:
        each.stop()


@pytest.fixture
def fill(client: sync.Client, queue: str) -> Callable[[int, int], None]:
    def publish(first: int, last: int) -> None:
        client.publish_batch(queue, texts(first, last))

    return publish


def test_a_batch_is_reserved_read_and_settled_when_the_next_is_asked_for(
    start: Callable[..., Driver], fill: Callable[[int, int], None], bulk: BulkClient, queue: str
) -> None:
    fill(0, 100)
    query = start()
    begin = query.reader.initialOffset()
    assert begin == {queue: 0}
    end = query.latest(begin)
    assert end == {queue: 1}
    assert query.bodies(begin, end) == texts(0, 100)
    info = bulk.queue_info(queue)
    assert (info.ready, info.held) == (0, 100)
    assert query.latest(end) == end
    info = bulk.queue_info(queue, index=bulk.groups(queue)[0].state.index)
    assert (info.ready, info.held) == (0, 0)


def test_a_query_that_died_before_its_offset_log_gets_the_same_again(
    start: Callable[..., Driver], fill: Callable[[int, int], None], queue: str
) -> None:
    fill(0, 50)
    first = start(maxMessagesPerTrigger="20")
    begin = first.reader.initialOffset()
    end = first.latest(begin)
    fill(50, 60)
    again = start(maxMessagesPerTrigger="20")
    assert again.reader.initialOffset() == begin
    assert again.latest(begin) == end
    rows = again.rows(begin, end)
    assert [row["body"] for row in rows] == texts(0, 20)
    assert {row["deliveries"] for row in rows} == {2}


def test_what_comes_back_behind_the_cursor_is_taken_later(
    start: Callable[..., Driver], fill: Callable[[int, int], None], client: sync.Client, queue: str
) -> None:
    fill(0, 10)
    held = client.get(queue, 3)
    query = start()
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    assert query.bodies(begin, end) == texts(3, 10)
    client.return_(held, wait=True)
    last = query.latest(end)
    assert query.bodies(end, last) == texts(0, 3)


def test_the_limit_of_a_batch_is_kept_and_an_unlimited_trigger_takes_all(
    start: Callable[..., Driver], fill: Callable[[int, int], None], queue: str
) -> None:
    fill(0, 100)
    query = start(maxMessagesPerTrigger="30")
    offset = query.reader.initialOffset()
    sizes = []
    for limit in (None, None, ALL, None):
        end = query.latest(offset, limit)
        sizes.append(len(query.rows(offset, end)))
        offset = end
    assert sizes == [30, 30, 40, 0]


def test_bytes_limit_a_batch_to_at_least_one_message(
    start: Callable[..., Driver], client: sync.Client, queue: str
) -> None:
    client.publish_batch(queue, [bytes(10_000)] * 20)
    query = start(maxBytesPerTrigger="50000")
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    assert 3 <= len(query.rows(begin, end)) <= 7


def test_slices_cover_a_batch_of_several_reservations_in_order(
    start: Callable[..., Driver], fill: Callable[[int, int], None], bulk: BulkClient, queue: str
) -> None:
    fill(0, 90)
    generation = bulk.open_group(queue, "g").generation
    for after in range(3):
        bulk.reserve(queue, "g", generation, after, max_messages=20)
    query = start(minPartitions="7")
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    assert (begin, end) == ({queue: 0}, {queue: 4})
    assert len(query.reader.partitions(begin, end)) == 7
    assert query.bodies(begin, end) == texts(0, 90)


def test_two_queues_share_the_limit(
    start: Callable[..., Driver], client: sync.Client, cluster: LocalCluster, queue: str
) -> None:
    names = [f"{queue}-a", f"{queue}-b"]
    for name, count in zip(names, (100, 5), strict=True):
        client.declare(name)
        client.publish_batch(name, texts(0, count))
    query = start(queue=",".join(names), maxMessagesPerTrigger="40")
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    rows = query.rows(begin, end)
    counts = [sum(row["queue"] == name for row in rows) for name in names]
    assert counts == [35, 5]
    assert list(end) == names


def test_a_selector_leaves_the_rest_to_others(
    start: Callable[..., Driver], client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    colours = ["red", "blue", "red", "green"]
    client.publish_batch(queue, [Message(b"%d" % n, None, {"color": c}) for n, c in enumerate(colours)])
    query = start(selector="color = 'red'", filterFields="color STRING")
    begin = query.reader.initialOffset()
    rows = query.rows(begin, query.latest(begin))
    assert [(row["body"], row["fields"]) for row in rows] == [
        (b"0", {"color": "red"}),
        (b"2", {"color": "red"}),
    ]
    assert bulk.queue_info(queue).ready == 2


def test_a_second_query_takes_the_group_over_and_the_first_is_told(
    start: Callable[..., Driver], fill: Callable[[int, int], None]
) -> None:
    fill(0, 10)
    first = start()
    begin = first.reader.initialOffset()
    end = first.latest(begin)
    second = start()
    second.reader.initialOffset()
    with pytest.raises(RefusedError, match="another query has opened this group since"):
        first.latest(end)
    assert second.bodies(begin, second.latest(begin)) == texts(0, 10)


def test_a_checkpoint_older_than_the_group_is_refused_or_passed_over(
    start: Callable[..., Driver], fill: Callable[[int, int], None], queue: str
) -> None:
    fill(0, 10)
    query = start()
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    query.latest(end)
    strict = start()
    with pytest.raises(DataLoss, match=r"the reservations 1\.\.1 .* were settled or released"):
        strict.rows(begin, end)
    with pytest.raises(DataLoss, match="the checkpoint is older than the group"):
        strict.latest(begin)
    with pytest.raises(DataLoss, match="there was never such an offset"):
        strict.latest({queue: 77})
    assert start(failOnDataLoss="false").rows(begin, end) == []


def test_what_was_released_is_lost_to_the_checkpoint_and_there_for_others(
    start: Callable[..., Driver], fill: Callable[[int, int], None], bulk: BulkClient, queue: str
) -> None:
    fill(0, 10)
    query = start()
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    parts = query.reader.partitions(begin, end)
    (group,) = bulk.groups(queue)
    bulk.release_group(queue, "g", group.state.generation)
    with pytest.raises(DataLoss, match="these messages were given back to the queue"):
        [batch for part in parts for batch in query.reader.read(part)]
    assert bulk.queue_info(queue).ready == 10


def test_a_long_batch_is_kept_alive(
    start: Callable[..., Driver], fill: Callable[[int, int], None], bulk: BulkClient, queue: str
) -> None:
    fill(0, 10)
    query = start(groupTimeout=f"{TIMEOUT_MS}ms")
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    seen = bulk.groups(queue)[0].last_seen_ms
    deadline = time.monotonic() + LIMIT_S
    while bulk.groups(queue)[0].last_seen_ms < seen + TIMEOUT_MS + 500:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert query.bodies(begin, end) == texts(0, 10)


def test_fewer_messages_than_wanted_wait_until_the_delay_is_over(
    start: Callable[..., Driver], fill: Callable[[int, int], None]
) -> None:
    fill(0, 5)
    query = start(minMessagesPerTrigger="10", maxTriggerDelay="1h")
    begin = query.reader.initialOffset()
    assert query.latest(begin) == begin
    fill(5, 12)
    end = query.latest(begin)
    assert query.bodies(begin, end) == texts(0, 12)
    assert query.latest(end) == end
    fill(12, 15)
    assert query.latest(end) == end
    hasty = start(minMessagesPerTrigger="10", maxTriggerDelay="1ms")
    begin = hasty.reader.initialOffset()
    assert hasty.bodies(begin, hasty.latest(begin)) == texts(12, 15)


def test_available_now_ends_with_what_was_there(
    start: Callable[..., Driver], fill: Callable[[int, int], None]
) -> None:
    fill(0, 50)
    query = start(maxMessagesPerTrigger="20")
    begin = query.reader.initialOffset()
    query.reader.prepareForTriggerAvailableNow()
    fill(50, 90)
    offset, taken = begin, []
    while (end := query.latest(offset)) != offset:
        taken += query.bodies(offset, end)
        offset = end
    assert taken == texts(0, 50)


def test_latest_starts_a_new_group_behind_what_is_there(
    start: Callable[..., Driver], fill: Callable[[int, int], None]
) -> None:
    fill(0, 10)
    query = start(startingOffsets="latest")
    begin = query.reader.initialOffset()
    fill(10, 12)
    assert query.bodies(begin, query.latest(begin)) == texts(10, 12)


def test_a_tail_follows_and_takes_nothing(
    start: Callable[..., Driver],
    fill: Callable[[int, int], None],
    cluster: LocalCluster,
    bulk: BulkClient,
    queue: str,
) -> None:
    fill(0, 10)
    late = Driver(cluster.url, queue=queue, mode="tail", startingOffsets="latest")
    tail = Driver(cluster.url, queue=queue, mode="tail", maxMessagesPerTrigger="8")
    begin = tail.reader.initialOffset()
    one = tail.latest(begin)
    two = tail.latest(one)
    assert (tail.bodies(begin, one), tail.bodies(one, two)) == (texts(0, 8), texts(8, 10))
    assert bulk.queue_info(queue).ready == 10
    begin = late.reader.initialOffset()
    assert late.latest(begin) == begin  # the first batch is empty, so that it can be started again
    fill(10, 12)
    end = late.latest(begin)
    assert late.bodies(begin, end) == texts(10, 12)
    assert end == {queue: 13}  # sequences begin with 1
