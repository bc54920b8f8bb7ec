"""The stream's reader on a real cluster, driven as Spark drives it: offsets, reservations, settling, fencing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quorum import sync
from quorum.bulk import BulkClient
from quorum.client.bulk.records import Reservation
from quorum.client.errors import RefusedError, ServiceError
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark import DataLoss
from quorum.spark.reading import tail
from quorum.spark.reading.partitions import Range
from quorum.spark.reading.stream import Slice
from quorum.sync import Message
from support.spark.streams import ALL, Driver

TIMEOUT_MS = 4_000
"""Of a subscription that is kept alive: so long this process may stand still, on a machine with other work."""
LIMIT_S = 120.0
"""For keeping it alive for so long."""


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


@pytest.fixture
def start(cluster: LocalCluster, queue: str) -> Iterator[Callable[..., Driver]]:
    """Starts queries on the test's queue, in the subscription g."""
    made: list[Driver] = []

    def begin(**options: str) -> Driver:
        made.append(Driver(cluster.url, **{"queue": queue, "subscription": "g", **options}))
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
    assert (info.ready, info.checked_out) == (0, 100)
    assert query.latest(end) == end
    info = bulk.queue_info(queue, index=bulk.subscriptions(queue)[0].state.index)
    assert (info.ready, info.checked_out) == (0, 0)


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
    generation = bulk.open_subscription(queue, "g").generation
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
    with pytest.raises(RefusedError, match="another query has opened this subscription since"):
        first.latest(end)
    assert second.bodies(begin, second.latest(begin)) == texts(0, 10)


def test_a_query_that_was_overtaken_does_not_take_its_batch_for_lost(
    start: Callable[..., Driver], fill: Callable[[int, int], None]
) -> None:
    """It was paused. What it would write now in place of what its successor has written would be nothing."""
    fill(0, 10)
    paused = start(failOnDataLoss="false")
    begin = paused.reader.initialOffset()
    end = paused.latest(begin)
    parts = paused.reader.partitions(begin, end)
    successor = start()
    assert successor.bodies(begin, end) == texts(0, 10)
    successor.latest(end)
    with pytest.raises(RefusedError, match="another query has opened this subscription since"):
        paused.rows(begin, end)
    with pytest.raises(DataLoss, match="these messages were settled"):
        [batch for part in parts for batch in paused.reader.read(part)]


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
    with pytest.raises(DataLoss, match="the checkpoint is older than the subscription"):
        strict.latest(begin)
    with pytest.raises(
        DataLoss, match="there was never such an offset: the queue or its subscription was deleted"
    ):
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
    (subscription,) = bulk.subscriptions(queue)
    bulk.release_subscription(queue, "g", subscription.state.generation)
    with pytest.raises(DataLoss, match="these messages were given back to the queue"):
        [batch for part in parts for batch in query.reader.read(part)]
    assert bulk.queue_info(queue).ready == 10


def test_what_was_released_after_its_batch_was_committed_is_told(
    start: Callable[..., Driver], fill: Callable[[int, int], None], bulk: BulkClient, queue: str
) -> None:
    """It is in the output, and in the queue again."""
    fill(0, 10)
    query = start()
    end = query.latest(query.reader.initialOffset())
    query.stop()  # dies between Spark's commit log and the next batch, and is away for long
    bulk.release_subscription(queue, "g", bulk.subscriptions(queue)[0].state.generation)
    with pytest.raises(DataLoss, match="these messages were given back to the queue"):
        start().latest(end)
    again = start(failOnDataLoss="false")
    assert again.bodies(end, again.latest(end)) == texts(0, 10)


def test_what_was_released_before_a_batch_was_made_of_it_is_passed_over(
    start: Callable[..., Driver], fill: Callable[[int, int], None], bulk: BulkClient, queue: str
) -> None:
    fill(0, 10)
    query = start(maxMessagesPerTrigger="4")
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    query.latest(end)  # a driver that dies before it has noted this
    bulk.release_subscription(queue, "g", bulk.subscriptions(queue)[0].state.generation)
    with pytest.raises(DataLoss, match="these messages were given back to the queue"):
        start().latest(end)
    again = start(failOnDataLoss="false")
    last = again.latest(end)
    assert again.bodies(end, last) == texts(4, 10)


def test_a_member_that_is_behind_is_not_asked_what_was_reserved(
    start: Callable[..., Driver],
    fill: Callable[[int, int], None],
    bulk: BulkClient,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node that has answered a Reserve may be gone when the batch is planned, and another one be behind it."""
    fill(0, 10)
    query = start()
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    (made,) = bulk.reservations(queue, "g").reservations
    told: list[int] = []
    asked = BulkClient.reservations

    def spied(self: BulkClient, queue: str, subscription: str, **given: int) -> object:
        told.append(given.get("index", 0))
        return asked(self, queue, subscription, **given)

    monkeypatch.setattr(BulkClient, "reservations", spied)
    again = start()  # makes no reservation before it plans the batch that its predecessor has noted
    for each in (query, again):
        assert each.bodies(begin, end) == texts(0, 10)
    (part,) = again.reader.partitions(begin, end)
    opened = bulk.subscriptions(queue)[0].state.index
    assert min(told) >= made.index
    assert isinstance(part, Slice)
    # else the followers would not know yet how often this was handed out
    assert made.index < part.pieces[0].index <= opened


def test_a_queue_that_is_not_read_any_more_is_settled_as_far_as_it_was_committed(
    start: Callable[..., Driver], client: sync.Client, bulk: BulkClient, queue: str
) -> None:
    names = [f"{queue}-{n}" for n in range(3)]
    for name in names:
        client.declare(name)
        client.publish_batch(name, texts(0, 3))
    query = start(queue=",".join(names))
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    # the driver dies with the batch in its offset log; the next one has fewer queues, and does the whole batch
    client.delete(names[2])
    again = start(queue=names[0])
    with pytest.raises(DataLoss, match=f"there is no queue '{names[2]}'"):
        again.rows(begin, end)
    assert len(start(queue=names[0], failOnDataLoss="false").rows(begin, end)) == 6
    again = start(queue=names[0])
    end = {name: end[name] for name in names[:2]}
    rows = again.rows(begin, end)
    assert [(row["queue"], row["body"]) for row in rows] == [
        (name, body) for name in names[:2] for body in texts(0, 3)
    ]
    # it has committed the batch and dies; what was taken from the other queues is done, too
    last = start(queue=names[0])
    assert last.latest({**end, names[2]: 1}) == {names[0]: 1}
    info = bulk.queue_info(names[1], index=bulk.subscriptions(names[1])[0].state.index)
    assert (info.ready, info.checked_out) == (0, 0)


def test_a_group_is_kept_alive_though_a_node_fails_to(
    start: Callable[..., Driver],
    fill: Callable[[int, int], None],
    bulk: BulkClient,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(0, 10)
    failures = [ServiceError("a defect"), RefusedError("too much", reason="OVERLOADED")]
    keep = BulkClient.keep_alive

    def fails_first(self: BulkClient, *given: Any) -> object:
        if failures:
            raise failures.pop()
        return keep(self, *given)

    monkeypatch.setattr(BulkClient, "keep_alive", fails_first)
    query = start(subscriptionTimeout="3s")
    begin = query.reader.initialOffset()
    query.latest(begin)
    seen = bulk.subscriptions(queue)[0].last_seen_ms
    deadline = time.monotonic() + LIMIT_S
    while bulk.subscriptions(queue)[0].last_seen_ms == seen:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not failures


def test_a_long_batch_is_kept_alive(
    start: Callable[..., Driver], fill: Callable[[int, int], None], bulk: BulkClient, queue: str
) -> None:
    fill(0, 10)
    query = start(subscriptionTimeout=f"{TIMEOUT_MS}ms")
    begin = query.reader.initialOffset()
    end = query.latest(begin)
    seen = bulk.subscriptions(queue)[0].last_seen_ms
    deadline = time.monotonic() + LIMIT_S
    while bulk.subscriptions(queue)[0].last_seen_ms < seen + TIMEOUT_MS + 500:
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


def test_available_now_ends_with_what_was_there_in_each_queue(
    start: Callable[..., Driver], client: sync.Client, queue: str
) -> None:
    names = [f"{queue}-a", f"{queue}-b"]
    for name in names:
        client.declare(name)
    client.publish_batch(names[1], texts(0, 20))
    query = start(queue=",".join(names), maxMessagesPerTrigger="8")
    offset = query.reader.initialOffset()
    query.reader.prepareForTriggerAvailableNow()
    client.publish_batch(names[0], texts(0, 50))
    taken: list[str] = []
    while (end := query.latest(offset)) != offset:
        taken += [row["queue"] for row in query.rows(offset, end)]
        offset = end
    assert taken == names[1:] * 20


def test_what_was_released_while_a_batch_ran_is_told(
    start: Callable[..., Driver], fill: Callable[[int, int], None], bulk: BulkClient, queue: str
) -> None:
    """It is in the queue again, and will be taken again."""
    fill(0, 10)
    for is_strict in ("true", "false"):
        query = start(failOnDataLoss=is_strict)
        begin = query.reader.initialOffset()
        end = query.latest(begin)
        assert query.bodies(begin, end) == texts(0, 10)
        bulk.release_subscription(queue, "g", bulk.subscriptions(queue)[0].state.generation)
        if is_strict == "true":
            with pytest.raises(DataLoss, match="these messages were given back to the queue"):
                query.latest(end)
        else:
            assert query.bodies(end, query.latest(end)) == texts(0, 10)


def test_available_now_does_not_end_before_all_was_looked_at(
    start: Callable[..., Driver],
    fill: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a selector wants may be rare in a large queue, and finding it take many calls."""
    fill(0, 10)
    looks = [3]
    reserve = BulkClient.reserve

    def look(self: BulkClient, *given: Any, **named: Any) -> Reservation:
        if looks[0]:
            looks[0] -= 1
            return Reservation(given[3], 0, 0, 10, 0, is_unfinished=True)
        return reserve(self, *given, **named)

    monkeypatch.setattr(BulkClient, "reserve", look)
    query = start()
    begin = query.reader.initialOffset()
    assert query.latest(begin) == begin  # another query is asked again by Spark
    query.reader.prepareForTriggerAvailableNow()
    assert query.bodies(begin, query.latest(begin)) == texts(0, 10)


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


def test_a_tail_is_not_read_from_members_that_are_behind_it(
    fill: Callable[[int, int], None],
    cluster: LocalCluster,
    bulk: BulkClient,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = bulk.queue_info(queue)
    fill(0, 10)
    first = Driver(cluster.url, queue=queue, mode="tail")
    begin = first.reader.initialOffset()
    end = first.latest(begin)
    again = Driver(cluster.url, queue=queue, mode="tail")  # plans the batch that its predecessor has noted
    late = [before, before]
    asked = BulkClient.queue_info
    monkeypatch.setattr(
        BulkClient, "queue_info", lambda *given, **named: late.pop() if late else asked(*given, **named)
    )
    (part,) = again.reader.partitions(begin, end)
    assert isinstance(part, Range)
    assert (part.start, part.end) == (1, 11)
    assert part.index > before.index
    late.append(before)
    assert again.latest(end) == end


def test_a_tail_of_a_queue_that_was_declared_again_says_so(
    fill: Callable[[int, int], None],
    cluster: LocalCluster,
    client: sync.Client,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "BEHIND_S", 0.3)
    fill(0, 10)
    driver = Driver(cluster.url, queue=queue, mode="tail")
    begin = driver.reader.initialOffset()
    end = driver.latest(begin)
    client.delete(queue)
    client.declare(queue)
    fill(0, 5)
    for ask in (lambda: driver.reader.partitions(begin, end), lambda: driver.latest(end)):
        with pytest.raises(
            DataLoss, match="the queue was deleted and declared again, or the members are far"
        ):
            ask()
    waits = Driver(cluster.url, queue=queue, mode="tail", startingOffsets=f'{{"{queue}": 100}}')
    assert waits.latest({queue: 100}) == {queue: 100}
