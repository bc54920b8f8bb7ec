"""The bulk calls on real members: subscriptions, views and staging, asked of any of them and while some are gone."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import quorum.sync
from quorum.bulk import BulkClient, StagedPart
from quorum.client import Message
from quorum.client.errors import NotFound, RefusedError, UsageError
from quorum.local_cluster.cluster import LocalCluster
from support.processes.load import CONNECT_LIMIT_MS
from support.repository import environment

FIELDS = {"colour": "text", "n": "integer"}


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[BulkClient]:
    with BulkClient(cluster.url) as made:
        yield made


def connect(cluster: LocalCluster) -> quorum.sync.Client:
    return quorum.sync.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS)


def message(number: int) -> Message:
    colour = ("red", "green", "blue")[number % 3]
    return Message(
        b"%d" % number, {"message-id": f"m{number}"}, {"colour": colour, "n": number, "half": number / 2}
    )


def fill(cluster: LocalCluster, queue: str, count: int, first: int = 0) -> None:
    with connect(cluster) as publisher:
        publisher.declare(queue, {"x-filter-enabled": True})
        for start in range(first, first + count, 500):
            publisher.publish_batch(
                queue, [message(n) for n in range(start, min(start + 500, first + count))]
            )


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def bodies(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(row["body"]) for row in rows(batches)]


def test_a_group_takes_every_message_once_whoever_is_asked(cluster: LocalCluster, client: BulkClient) -> None:
    fill(cluster, "bulk.group", 2_500)
    addresses = [cluster.member(name).client for name in cluster.names]
    state = client.open_subscription("bulk.group", "spark")
    assert (state.settled, state.last, state.outstanding) == (0, 0, 0)
    seen: list[int] = []
    after = 0
    while True:
        reserved = client.reserve("bulk.group", "spark", state.generation, after, max_messages=1_000)
        if reserved.offset == after:
            break
        again = client.reserve("bulk.group", "spark", state.generation, after, max_messages=7)
        assert (again.offset, again.count, again.index) == (reserved.offset, reserved.count, reserved.index)
        half = reserved.count // 2
        for address in addresses:
            parts = [
                bodies(
                    client.read_reserved(
                        "bulk.group", "spark", reserved.offset, first=first, count=count,
                        columns=("body",), index=reserved.index, prefer=address,
                    )
                )
                for first, count in ((0, half), (half, 0))
            ]  # fmt: skip
            found = parts[0] + parts[1]
            assert len(parts[0]) == half
            if address == addresses[0]:
                seen += found
            assert found == seen[-reserved.count :]
        after = reserved.offset
    assert seen == list(range(2_500))
    described = client.reservations("bulk.group", "spark", index=reserved.index)
    assert [each.offset for each in described.reservations] == [1, 2, 3]
    assert sorted(each.address for each in described.endpoints) == sorted(addresses)
    assert [each.leader for each in described.endpoints].count(True) == 1
    assert described.subscription.outstanding == 2_500
    settled = client.settle("bulk.group", "spark", state.generation, 2)
    assert (settled.settled, settled.last, settled.outstanding) == (2, 3, 500)
    with pytest.raises(RefusedError) as gone:
        rows(client.read_reserved("bulk.group", "spark", 1, index=settled.index))
    assert gone.value.reason == "SETTLED"
    with pytest.raises(RefusedError) as early:
        client.settle("bulk.group", "spark", state.generation, 9)
    assert early.value.reason == "NOT_GIVEN"
    (listed,) = client.subscriptions("bulk.group", index=settled.index)
    assert (listed.subscription, listed.state.settled, listed.reservations, listed.on_expiry) == (
        "spark",
        2,
        1,
        "release",
    )
    assert client.queue_info("bulk.group", index=settled.index).checked_out == 500


def test_a_group_that_is_opened_again_fences_and_keeps_what_is_outstanding(
    cluster: LocalCluster, client: BulkClient
) -> None:
    fill(cluster, "bulk.fence", 30)
    first = client.open_subscription("bulk.fence", "g", selector="colour = 'red'")
    reserved = client.reserve("bulk.fence", "g", first.generation, 0)
    assert reserved.count == 10
    second = copy.deepcopy(client).open_subscription("bulk.fence", "g")
    assert (second.generation, second.last, second.outstanding) == (first.generation + 1, 1, 10)
    for call in (client.reserve, client.settle):
        with pytest.raises(RefusedError) as fenced:
            call("bulk.fence", "g", first.generation, 1)
        assert fenced.value.reason == "WRONG_GENERATION"
    with pytest.raises(RefusedError):
        client.keep_alive("bulk.fence", "g", first.generation)
    columns = ("sequence", "deliveries", "fields", "properties", "message_id")
    found = rows(
        client.read_reserved("bulk.fence", "g", 1, columns=columns, fields=FIELDS, index=second.index)
    )
    assert [row["fields"] for row in found] == [{"colour": "red", "n": n} for n in range(0, 30, 3)]
    assert [json.loads(row["properties"]) for row in found] == [{"half": n / 2} for n in range(0, 30, 3)]
    assert {row["deliveries"] for row in found} == {2}
    assert found[1]["message_id"] == "m3"
    assert client.keep_alive("bulk.fence", "g", second.generation).outstanding == 10
    released = client.release_subscription("bulk.fence", "g", second.generation)
    assert released.outstanding == 0
    with pytest.raises(RefusedError) as gone:
        rows(client.read_reserved("bulk.fence", "g", 1, index=released.index))
    assert gone.value.reason == "RELEASED"
    everything = client.reserve("bulk.fence", "g", second.generation, released.last)
    assert everything.count == 30
    client.delete_subscription("bulk.fence", "g")
    client.delete_subscription("bulk.fence", "g")
    with connect(cluster) as consumer:
        assert consumer.describe("bulk.fence").queue.ready == 30


def test_a_reserve_waits_for_messages_and_for_enough_of_them(
    cluster: LocalCluster, client: BulkClient
) -> None:
    fill(cluster, "bulk.wait", 10)
    generation = client.open_subscription("bulk.wait", "late", start="latest").generation
    assert client.reserve("bulk.wait", "late", generation, 0, wait_ms=50).offset == 0
    publisher = threading.Timer(0.3, fill, (cluster, "bulk.wait", 10, 10))
    publisher.start()
    try:
        reserved = client.reserve("bulk.wait", "late", generation, 0, wait_ms=20_000)
    finally:
        publisher.join()
    found = bodies(client.read_reserved("bulk.wait", "late", reserved.offset, index=reserved.index))
    assert found == list(range(10, 20)), "what was there before the subscription is not its"
    assert client.reserve("bulk.wait", "late", generation, 1, min_messages=5, wait_ms=100).offset == 1
    fill(cluster, "bulk.wait", 6, 20)
    assert client.reserve("bulk.wait", "late", generation, 1, min_messages=7, wait_ms=100).offset == 1
    assert client.reserve("bulk.wait", "late", generation, 1, min_messages=6, wait_ms=20_000).count == 6


def test_looking_in_vain_leaves_no_trace_in_the_log(cluster: LocalCluster, client: BulkClient) -> None:
    fill(cluster, "bulk.poll", 20)
    generation = client.open_subscription("bulk.poll", "g", selector="n > 100").generation
    client.reserve("bulk.poll", "g", generation, 0)
    before = client.queue_info("bulk.poll").index
    for _ in range(20):
        found = client.reserve("bulk.poll", "g", generation, 0)
        assert (found.offset, found.ready) == (0, 20)
    assert client.queue_info("bulk.poll").index <= before + 5, "heartbeats of sessions may be among them"


def test_a_view_shows_what_was_ready_though_it_is_consumed(cluster: LocalCluster, client: BulkClient) -> None:
    fill(cluster, "bulk.snap", 900)
    view = client.open_view("bulk.snap")
    assert (view.count, view.end_sequence - view.first_sequence) == (900, 900)
    with connect(cluster) as consumer:
        consumer.purge("bulk.snap")
    fill(cluster, "bulk.snap", 10, 900)
    addresses = [cluster.member(name).client for name in cluster.names]
    start = view.first_sequence
    for address in addresses:
        place = {"index": view.index, "prefer": address}
        assert bodies(client.browse("bulk.snap", view.view, **place)) == list(range(900))
        part = client.browse(
            "bulk.snap", view.view, start_sequence=start + 100, end_sequence=start + 103, **place
        )
        assert bodies(part) == [100, 101, 102]
        kept = client.browse("bulk.snap", view.view, selector="colour = 'blue' AND n < 9", **place)
        assert bodies(kept) == [2, 5, 8]
        limited = client.browse("bulk.snap", view.view, selector="n >= 10", limit=4, **place)
        assert bodies(limited) == [10, 11, 12, 13]
    own = client.browse("bulk.snap", view.view, selector="JMSMessageID = 'm7'", index=view.index)
    assert bodies(own) == [7], "no field that the queue keeps"
    now = client.browse(
        "bulk.snap", columns=("body", "deliveries"), index=client.queue_info("bulk.snap").index
    )
    assert rows(now)[0] == {"body": b"900", "deliveries": 0}
    client.close_view("bulk.snap", view.view)
    client.close_view("bulk.snap", view.view)
    with pytest.raises(NotFound):
        rows(client.browse("bulk.snap", view.view))
    with pytest.raises(RefusedError) as bad:
        rows(client.browse("bulk.snap", selector="n >"))
    assert bad.value.reason == "BAD_SELECTOR"


def test_parts_become_visible_at_once_and_once(cluster: LocalCluster, client: BulkClient) -> None:
    with connect(cluster) as admin:
        admin.declare("bulk.stage", {"x-filter-enabled": True})

        def batch(first: int, count: int) -> pa.RecordBatch:
            numbers = range(first, first + count)
            return pa.RecordBatch.from_pydict(
                {
                    "body": [b"%d" % n for n in numbers],
                    "message_id": [f"m{n}" for n in numbers],
                    "fields": [{"n": n, "colour": "red" if n % 2 else None} for n in numbers],
                    "properties": ['{"half": %s}' % (n / 2) for n in numbers],
                }
            )

        first = client.stage("bulk.stage", "job", 0, [batch(0, 10_000), batch(10_000, 10_000)])
        second = client.stage("bulk.stage", "job", 0, (batch(n, 1) for n in range(20_000, 20_500)))
        attempt = client.stage("bulk.stage", "job", 0, [batch(0, 5)])
        nothing = client.stage("bulk.stage", "job", 0, [])
        assert (first.rows, second.rows, nothing.rows) == (20_000, 500, 0)
        assert client.stage("bulk.stage", "job", 0, [batch(0, 5)], part=attempt.part).rows == 5, "sent again"
        assert admin.describe("bulk.stage").queue.total == 0
        with pytest.raises(RefusedError) as missing:
            client.publish("bulk.stage", "job", 0, [first, StagedPart(second.part, 499)])
        assert missing.value.reason == "MISSING_PART"
        done = client.publish("bulk.stage", "job", 0, [second, nothing, first])
        assert (done.count, done.is_duplicate) == (20_500, False)
        again = client.publish("bulk.stage", "job", 0, [second, first])
        assert (again.count, again.is_duplicate) == (0, True)
        with pytest.raises(RefusedError) as late:
            client.stage("bulk.stage", "job", 0, [batch(0, 1)])
        assert late.value.reason == "PUBLISHED"
        assert client.discard("bulk.stage", "job", 0, [attempt.part]) == 0
        assert client.discard("bulk.stage", "job", 0, forget=True) == 0
        with pytest.raises(RefusedError) as forgotten:
            client.publish("bulk.stage", "job", 0, [second, first])
        assert forgotten.value.reason == "MISSING_PART"
        expected = [*range(20_000, 20_500), *range(20_000)]
        found = rows(client.browse("bulk.stage", fields=FIELDS, index=done.index))
        assert [int(row["body"]) for row in found] == expected
        assert [row["sequence"] for row in found] == list(
            range(done.first_sequence, done.first_sequence + 20_500)
        )
        assert found[1]["fields"] == {"colour": "red", "n": 20_001}
        assert (found[1]["message_id"], json.loads(found[1]["properties"])) == ("m20001", {"half": 10000.5})
        with admin.consume("bulk.stage", "n = 19999 AND half > 1") as consumer:
            assert next(iter(consumer)).body == b"19999"
        other = client.stage("bulk.stage", "job", 1, [batch(0, 7)])
        assert client.discard("bulk.stage", "job", 1) == 7
        with pytest.raises(RefusedError):
            client.publish("bulk.stage", "job", 1, [other])
        with pytest.raises(RefusedError, match="no column 'boddy'; did you mean 'body'"):
            client.stage("bulk.stage", "job", 1, [pa.RecordBatch.from_pydict({"boddy": [b""]})])


def test_a_queue_says_what_its_messages_have(cluster: LocalCluster, client: BulkClient) -> None:
    fill(cluster, "bulk.info", 2_600)
    with connect(cluster) as publisher:
        publisher.publish("bulk.info", b"", application_properties={"n": "text", "late": True, "raw": b"1"})
    info = client.queue_info("bulk.info", with_fields=True)
    assert (info.ready, info.checked_out, info.next_sequence - info.first_sequence) == (2_601, 0, 2_601)
    assert info.arguments == {"x-delivery-limit": 20, "x-filter-enabled": True}
    assert "*" in info.filter_fields
    assert {each.name: each.kind for each in info.fields} == {
        "colour": "text", "half": "floating", "late": "boolean", "n": "text", "raw": ""
    }  # fmt: skip
    assert {each.messages for each in info.fields} == {1, 1_999, 2_000}
    assert [each.name for each in info.endpoints] == sorted(cluster.names)
    with pytest.raises(NotFound):
        client.queue_info("bulk.nothing")
    with pytest.raises(UsageError, match="kind of field 'a'"):
        next(client.browse("bulk.info", fields={"a": "number"}))


def test_reading_and_staging_go_on_while_a_member_is_gone(cluster: LocalCluster, client: BulkClient) -> None:
    fill(cluster, "bulk.kill", 30_000)
    generation = client.open_subscription("bulk.kill", "g").generation
    reserved = client.reserve("bulk.kill", "g", generation, 0)
    leader = cluster.calls.leader_of_queue("bulk.kill")
    assert leader is not None
    address = cluster.member(leader).client
    stream = client.read_reserved(
        "bulk.kill", "g", 1, columns=("sequence", "body"), index=reserved.index, prefer=address
    )
    found = next(stream).to_pylist()
    cluster.kill(leader)
    try:
        found += rows(stream)
        assert [int(row["body"]) for row in found] == list(range(30_000))
        assert client.settle("bulk.kill", "g", generation, 1).outstanding == 0
        batch = pa.RecordBatch.from_pydict({"body": [bytes(1000)] * 10_000})
        part = client.stage("bulk.kill", "job", 7, [batch, batch])
        assert client.publish("bulk.kill", "job", 7, [part]).count == 20_000
    finally:
        cluster.restart(leader)
    info = client.queue_info("bulk.kill")
    assert (info.ready, info.checked_out) == (20_000, 0)


def test_operators_see_groups_and_delete_them(cluster: LocalCluster, client: BulkClient) -> None:
    fill(cluster, "bulk.seen", 100)
    generation = client.open_subscription("bulk.seen", "flow", timeout_ms=60_000).generation
    client.reserve("bulk.seen", "flow", generation, 0, max_messages=30)
    (listed,) = json.loads(command(cluster, "subscriptions", "list", "bulk.seen", "--json"))
    assert (listed["subscription"], listed["ready"], listed["state"]["outstanding"]) == ("flow", 70, 30)
    table = command(cluster, "subscriptions", "list", "bulk.seen")
    assert "flow" in table
    assert "released" in table
    assert command(cluster, "subscriptions", "delete", "bulk.seen", "flow") == "deleted flow\n"
    assert client.subscriptions("bulk.seen") == []
    with pytest.raises(subprocess.CalledProcessError) as failed:
        command(cluster, "subscriptions", "delete", "bulk.seen", "flow")
    assert (
        failed.value.stderr
        == "error: queue 'bulk.seen' has no subscription 'flow'; its subscriptions: none\n"
    )
    assert client.queue_info("bulk.seen").ready == 100


def command(cluster: LocalCluster, *arguments: str) -> str:
    """What a command prints; it has to succeed."""
    return subprocess.run(
        [sys.executable, "-m", "quorum", *arguments],
        env=environment() | {"QUORUM_URL": cluster.url},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
