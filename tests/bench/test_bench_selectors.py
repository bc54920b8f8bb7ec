"""The bench of selectors with tiny numbers: what is counted, and that everything is found. No speed here."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
from dataclasses import replace

import pytest
from rich.console import Console

from quorum.bench import selectors_alone, selectors_cluster, selectors_designs
from quorum.bench.plan import Plan
from quorum.bench.run import QUEUE, BenchFailed, Places
from quorum.bench.selectors_alone import AloneResult, Receivers, Sizes, attach, encoded, fill
from quorum.bench.selectors_cluster import ClusterResult, ClusterSizes, WaitingBatches
from quorum.bench.selectors_designs import DesignCost, DesignsResult
from quorum.bench.selectors_fields import (
    AMOUNTS,
    KINDS_OF_SELECTORS,
    LOW_CARDINALITY_SELECTOR,
    UNIQUE_SELECTOR,
    WANTED,
    Batches,
    row_for,
    selector_of,
    unique_text,
)
from quorum.bench.selectors_machine import QUEUE as LOCAL_QUEUE
from quorum.bench.selectors_machine import LocalQueue
from quorum.bench.selectors_run import SelectorsResult, table
from quorum.bench.transfer import Phase
from quorum.client.messages.batch import BatchReader
from quorum.client.values import values_to_dict
from quorum_selectors import columns, jms
from quorum_selectors.compiled import compile_expression
from quorum_selectors.known_fields import APPLICATION
from support.fake_server.cluster import FakeCluster, Predicate, StoredMessage
from support.fake_server.server import FakeNode
from support.fifo.local_parts import drop_columns

TINY = Sizes(
    selectors=(3, 20),
    entries=10,
    warmup_entries=2,
    batches=2,
    warmup_batches=1,
    batch=40,
    backlogs=(400, 1_200),
    return_backlog=400,
    returning=20,
    returns=5,
    stored=800,
)


@pytest.fixture(scope="module")
def alone() -> AloneResult:
    return selectors_alone.measure(TINY, lambda _: None)


# ---- what messages carry


def test_written_over_batches_read_like_encoded_ones() -> None:
    batches = Batches(40, total=400, matches=10)
    for number in range(10):
        batch = columns.decode(batches.columns(number), 40)
        rows = [dict(batch.row(ordinal)) for ordinal in range(40)]
        assert columns.decode(columns.encode(rows), 40).row(39) == rows[39]
        for ordinal, row in enumerate(rows):
            own = unique_text(number * 40 + ordinal)
            assert row[f"{APPLICATION}order"] == (WANTED if ordinal == 20 else own)
            assert len(row) == 5
            amount = row[f"{APPLICATION}amount"]
            assert isinstance(amount, int)
            assert 0 <= amount < AMOUNTS


@pytest.mark.parametrize("selector", [UNIQUE_SELECTOR, LOW_CARDINALITY_SELECTOR])
@pytest.mark.parametrize("total", [400, 5_000])
def test_as_many_messages_match_as_were_asked_for(selector: str, total: int) -> None:
    matches = compile_expression(jms.parse(selector))
    batches = Batches(50, total, 10)
    found = 0
    for number in range(total // 50):
        batch = columns.decode(batches.columns(number), 50)
        found += [matches(batch.row(ordinal)) for ordinal in range(50)].count(True)
    assert found == 10


def test_without_unique_strings_a_batch_has_four_fields() -> None:
    batch = columns.decode(Batches(40, with_unique=False).columns(3), 40)
    assert len(dict(batch.row(7))) == 4


@pytest.mark.parametrize("kind", KINDS_OF_SELECTORS)
def test_each_message_is_wanted_by_one_consumer(kind: str) -> None:
    matchers = [compile_expression(jms.parse(selector_of(kind, number))) for number in range(25)]
    generator = random.Random(7)
    for number in range(25):
        row = row_for(number, generator)
        assert [i for i, matches in enumerate(matchers) if matches(row) is True] == [number]


def test_waiting_batches_on_the_wire_are_written_over_in_place() -> None:
    batches = WaitingBatches(40, 400, 10, 16)
    for number in (3, 9, 0):
        prepared = batches.batch(number)
        reader = BatchReader(prepared.data, prepared.count)
        texts = [reader.application_properties(ordinal)["order"] for ordinal in range(40)]
        wanted = [unique_text(number * 40 + ordinal) for ordinal in range(40)]
        wanted[20] = WANTED
        assert texts == wanted


# ---- on the machine alone


def test_all_kinds_and_numbers_of_selectors_are_told(alone: AloneResult) -> None:
    values = alone.to_dict()
    for kind in KINDS_OF_SELECTORS:
        name = "dispatch" if kind == "equal" else f"dispatch_{kind}"
        for figure in ("us_per_message", "evaluations", "batch_us_per_message", "batch_evaluations"):
            assert list(values[f"{name}_{figure}"]) == ["3", "20"]
    assert json.loads(json.dumps(values)) == values


def test_evaluations_are_counted_as_the_queue_counts_them(alone: AloneResult) -> None:
    for costs in alone.dispatch.values():
        for cost in costs.values():
            assert cost.evaluations > 0
            assert cost.batch_evaluations > 0
    assert alone.returned.evaluations == 0


def test_attaching_is_told_by_backlog(alone: AloneResult) -> None:
    values = alone.to_dict()
    for name in ("attach", "attach_low_cardinality"):
        for figure in ("ms", "first_ms", "longest_entry_ms", "evaluations", "entries"):
            assert list(values[f"{name}_{figure}"]) == ["400", "1200"]
    for cost in alone.unique.values():
        assert 0 < cost.first_ms <= cost.ms
        assert 0 < cost.longest_entry_ms <= cost.ms


def test_a_unique_string_costs_more_than_its_letters(alone: AloneResult) -> None:
    values = alone.to_dict()
    assert values["bytes_per_message"] > 0
    assert values["bytes_per_unique_string"] >= len(WANTED)
    assert values["bytes_per_unique_string_allocated"] >= len(WANTED)


def test_an_attach_that_misses_a_match_fails_the_bench() -> None:
    queue = LocalQueue()
    fill(queue, Batches(40, 400, 10), 400)
    assert attach(queue, UNIQUE_SELECTOR, 10).evaluations > 0
    assert queue.waiting == 400  # they went back
    with pytest.raises(BenchFailed, match="10 of 11"):
        attach(queue, UNIQUE_SELECTOR, 11)


def test_columns_that_were_dropped_are_read_again() -> None:
    queue = LocalQueue()
    fill(queue, Batches(40, 400, 10), 400)
    drop_columns(queue.machine)
    assert attach(queue, LOW_CARDINALITY_SELECTOR, 10).entries > 0


def test_messages_that_go_elsewhere_fail_the_bench() -> None:
    selectors = [encoded(selector_of("equal", number)) for number in (0, 1, 5)]
    with pytest.raises(BenchFailed, match="2 of 3 messages went to their consumers"):
        Receivers(3, selectors).small()


def test_a_refusal_fails_the_bench() -> None:
    with pytest.raises(BenchFailed, match="the queue refuses"):
        LocalQueue().attach([("", b"")], 10)


def test_a_queue_of_the_bench_has_more_consumers_than_one_client_address_may_have() -> None:
    selector = encoded(selector_of("equal", 0))
    queue = LocalQueue()
    most = max(Sizes().selectors)
    for first in range(0, most, 2_000):
        queue.attach([(f"consumer-{number}", selector) for number in range(first, first + 2_000)], 10)
    assert len(queue.machine.queues[LOCAL_QUEUE].consumers.by_key) == most
    queue.cancel(f"consumer-{most - 1}")
    assert len(queue.machine.queues[LOCAL_QUEUE].consumers.by_key) == most - 1


def test_fewer_messages_make_a_shorter_run() -> None:
    sizes = Sizes().up_to(150_000)
    assert sizes.backlogs == (100_000, 150_000)
    assert sizes.return_backlog == 150_000
    assert Sizes().up_to(0) == Sizes()
    assert Sizes().up_to(1).backlogs == (500,)


# ---- through a cluster


def test_what_a_cluster_did_is_told() -> None:
    result = ClusterResult(
        ClusterSizes(messages=1_000),
        seconds=2.0,
        rate=1_000,
        latencies_us=[3_000] * 1_990 + [9_000] * 10,
        server_cpu_s=4.0,
        client_cpu_s=1.0,
        backlog_s=0.5,
        firsts_s=[0.010, 0.030, 0.020],
        lasts_s=[0.5, 0.4, 0.9],
        before=Phase(1.0, [2_000] * 100),
        meanwhile=Phase(1.0, [5_000] * 100),
    )
    told = result.to_dict()
    assert told["cluster_delivered_per_s"] == 1_000
    assert (told["cluster_p50_ms"], told["cluster_p99_ms"]) == (3.0, 3.0)
    assert (told["cluster_attach_first_ms"], told["cluster_attach_last_ms"]) == (20.0, 500.0)
    assert (told["cluster_publish_p99_ms"], told["cluster_publish_p99_before_ms"]) == (5.0, 2.0)
    assert told["cluster_publish_p99_ratio"] == 2.5
    assert told["cluster_server_cpu_s_per_100k"] == 200.0
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize("loses", [False, True])
def test_what_consumers_were_sent_is_counted(loses: bool) -> None:
    plan = Plan(mode="selectors", members=1, body_bytes=16, producers=2, warmup_s=0.1, seconds=0.3, rate=500)
    sizes = ClusterSizes(consumers=10, messages=400, batch=40, rounds=2, settle_s=0.0)
    if loses:
        with pytest.raises(BenchFailed, match="messages were delivered"):
            asyncio.run(measured(plan, replace(sizes, patience_s=0.1), consumers=9))
        return
    result = asyncio.run(measured(plan, sizes, consumers=10))
    values = result.to_dict()
    assert len(result.latencies_us) == 150
    assert values["cluster_delivered_per_s"] == 500
    assert 0 < values["cluster_p50_ms"] <= values["cluster_p99_ms"]
    assert len(result.firsts_s) == len(result.lasts_s) == 2
    assert 0 < values["cluster_attach_first_ms"] <= values["cluster_attach_last_ms"]
    assert result.before.latencies_us


def text_of(message: StoredMessage, name: str) -> object:
    return values_to_dict(message.properties.application_properties).get(name)


async def measured(plan: Plan, sizes: ClusterSizes, consumers: int) -> ClusterResult:
    """The cluster part on one node that knows the selectors of so many consumers, others match nothing."""
    cluster = FakeCluster()

    def wants(number: int) -> Predicate:
        return lambda message: number < consumers and text_of(message, "customer") == f"c{number:05}"

    for number in range(sizes.consumers):
        cluster.selectors[selector_of("equal", number)] = wants(number)
    cluster.selectors[UNIQUE_SELECTOR] = lambda message: text_of(message, "order") == WANTED
    node = await FakeNode(cluster, "alone").start()
    cluster.declare(QUEUE)
    places = Places(node.address, ())
    try:
        return await selectors_cluster.measure(
            plan, sizes, places, f"quorum://{node.address}", [os.getpid()], lambda _: None
        )
    finally:
        await node.stop()


def test_the_table_has_a_line_for_everything(alone: AloneResult) -> None:
    cost = DesignCost({7: 1_234.5}, {7: 3.0}, 5.0, 6, 7.0, 8.0)
    designs = DesignsResult(selectors_designs.Sizes(selectors=(7,)), {"walk": cost})
    result = SelectorsResult(Plan(mode="selectors"), alone, designs, None, 1.0, 0.5)
    values = result.to_dict()
    assert values["mode"] == "selectors"
    assert values["designs_attach_evaluations"] == {"walk": 6}
    assert values["members"] == 0
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(result))
    text = console.export_text()
    for wanted in ("20, large batches", "1,200, few values", "a message is returned", "1,234 µs (3.0)"):
        assert wanted in text
