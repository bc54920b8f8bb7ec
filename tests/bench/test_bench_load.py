"""Load processes against the in-memory cluster: what they count and how it is added up."""

from __future__ import annotations

import asyncio
import os
import sys
import types
from dataclasses import replace

import pytest

from quorum.bench.load import make_batches
from quorum.bench.plan import FIELD_SELECTORS, Load, Plan, Result, Tally, percentile_ms
from quorum.client.batch import BatchReader
from support.fake_server import FakeCluster, FakeNode

try:
    import quorum.cli.local_cluster  # noqa: F401
except ImportError:  # the command line is a room of its own; nothing here starts members
    sys.modules["quorum.cli.local_cluster"] = types.SimpleNamespace(LocalCluster=None)  # type: ignore[assignment]

from quorum.bench.run import QUEUE, Places, add_up, loads_for, measure, places_of

SHORT = Plan(
    members=1, body_bytes=16, batch=10, window=2, producers=1, consumers=1, warmup_s=0.2, seconds=0.5
)


def test_two_producers_stand_on_followers_for_each_on_the_leader() -> None:
    places = places_of({"a": "A", "b": "B", "c": "C"}, "b")
    assert [places.producer(n) for n in range(6)] == ["A", "C", "B", "A", "C", "B"]
    assert [places.consumer(n) for n in range(3)] == ["A", "C", "A"]


def test_one_member_takes_everything() -> None:
    places = places_of({"a": "A"}, "a")
    assert {places.producer(n) for n in range(3)} | {places.consumer(0)} == {"A"}


def test_percentiles_are_nearest_ranks() -> None:
    assert percentile_ms(range(1000, 101_000, 1000), 0.5) == 50.0
    assert percentile_ms(range(1000, 101_000, 1000), 0.99) == 99.0
    assert percentile_ms([7000], 0.99) == 7.0
    assert percentile_ms([], 0.5) is None


def test_a_load_survives_the_way_to_its_process() -> None:
    load = Load("consumer", 3, "host:1", "q", 1, 2, 3, 4, True, "a = 'é'")
    assert Load.from_json(load.to_json()) == load


def test_a_rate_is_shared_by_the_producers() -> None:
    plan = replace(SHORT, producers=4, rate=8000, batch=100)
    assert [load.batches_per_s for load in loads_for(plan, Places("A", ())) if load.role == "producer"] == [
        20.0
    ] * 4


def test_selectors_go_to_the_consumers_in_turn() -> None:
    plan = replace(SHORT, consumers=5, filter_enabled=True)
    selectors = [load.selector for load in loads_for(plan, Places("A", ())) if load.role == "consumer"]
    assert selectors == [*plan.selectors, plan.selectors[0]]


def test_a_backlog_consumed_early_shortens_the_measured_time() -> None:
    plan = replace(SHORT, mode="consume", backlog=100, seconds=10.0)
    loads = [load for load in loads_for(plan, Places("A", ())) if load.role == "consumer"]
    tallies = [Tally(messages=100, batches=1, last_at=52.0)]
    result = add_up(plan, loads, tallies, start=50.0, server_cpu_s=0.5, sizes=())
    assert result.to_dict()["messages_per_s"] == 50
    assert result.to_dict()["server_cpu_s_per_100k"] == 500.0


@pytest.mark.parametrize("mode", ["both", "publish", "consume"])
def test_load_processes_measure_what_the_cluster_saw(mode: str) -> None:
    plan = replace(SHORT, mode=mode, backlog=200)  # type: ignore[arg-type]  # parametrized by name
    result, published, settled = asyncio.run(_measured(plan))
    values = result.to_dict()
    assert 0 < result.messages <= max(published, settled)
    assert values["messages_per_s"] > 0
    assert values["body_bytes"] == 16
    if mode == "both":
        assert result.settled <= settled
        assert 0 < values["p50_ms"] <= values["p99_ms"]
    if mode == "consume":
        assert result.settled == settled == 200


async def _measured(plan: Plan) -> tuple[Result, int, int]:
    cluster = FakeCluster()
    node = await FakeNode(cluster, "alone").start()
    queue = cluster.declare(QUEUE)
    try:
        result = await measure(plan, Places(node.address, ()), [os.getpid()], lambda _: None)
    finally:
        await node.stop()
    return result, queue.next_sequence - 1, len(queue.settled)


def test_each_message_with_fields_matches_one_selector() -> None:
    """Else the queue would fill, or the bench would measure an uneven share."""
    compiled = pytest.importorskip("quorum_selectors.compiled")
    jms = pytest.importorskip("quorum_selectors.jms")
    matchers = [compiled.compile_expression(jms.parse(text)) for text in FIELD_SELECTORS]
    load = replace(Load("producer", 0, "", "q", 4, 200, 1, 1), with_fields=True)
    for batch in make_batches(load):
        reader = BatchReader(batch.data, batch.count)
        for ordinal in range(batch.count):
            given = reader.application_properties(ordinal)
            fields = {f"application-properties.{name}": value for name, value in given.items()}
            assert [matches(fields) for matches in matchers].count(True) == 1
