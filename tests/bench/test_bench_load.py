"""Load processes against the in-memory cluster: what they count and how it is added up."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import types
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from quorum.bench.load import Clockwork, make_batches, produce
from quorum.bench.plan import FIELD_SELECTORS, Load, Plan, Result, Tally, percentile_ms
from quorum.client import connect
from quorum.client.messages.batch import BatchReader
from support.fake_server.cluster import FakeCluster
from support.fake_server.server import FakeNode

try:
    import quorum.local_cluster.cluster  # noqa: F401
except ImportError:  # local clusters are a room of their own; nothing here starts members
    sys.modules["quorum.local_cluster.cluster"] = types.SimpleNamespace(LocalCluster=None)  # type: ignore[assignment]

from quorum.bench.backlog import BacklogResult, directory_bytes, tenths
from quorum.bench.receivers import FIELD
from quorum.bench.run import EXCHANGE, FEW_RECEIVERS, QUEUE, Places, add_up, loads_for, measure, places_of
from quorum.bench.transfer import Phase, Pulse, TransferResult

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


def test_batches_for_several_queues_go_through_an_exchange() -> None:
    places = Places("A", ())
    plain, spread, bound = (
        loads_for(replace(SHORT, mode="publish", queues=queues, bindings=bindings), places)[0]
        for queues, bindings in [(1, 0), (3, 0), (1, 20)]
    )
    assert (plain.exchange, plain.receivers) == ("", 0)
    assert (spread.exchange, spread.receivers) == (EXCHANGE, 0)
    assert (bound.exchange, bound.receivers) == (EXCHANGE, FEW_RECEIVERS)
    for batch in make_batches(bound):
        reader = BatchReader(batch.data, batch.count)
        found = {reader.application_properties(ordinal)[FIELD] for ordinal in range(batch.count)}
        assert found <= {f"r{number}" for number in range(FEW_RECEIVERS)}


def test_a_producer_publishes_to_the_exchange_of_its_load() -> None:
    async def scenario() -> tuple[int, int]:
        cluster = FakeCluster()
        node = await FakeNode(cluster, "alone").start()
        queues = [cluster.declare(name) for name in (QUEUE, "other")]
        try:
            async with connect(f"quorum://{node.address}") as client:
                await client.declare_exchange(EXCHANGE, "fanout")
                await client.bind(EXCHANGE, "other", QUEUE)
            plan = replace(SHORT, mode="publish", queues=2)
            await measure(plan, Places(node.address, ()), [os.getpid()], lambda _: None)
        finally:
            await node.stop()
        return queues[0].next_sequence, queues[1].next_sequence

    direct, routed = asyncio.run(scenario())
    assert direct == 1 < routed


def test_a_backlog_consumed_early_shortens_the_measured_time() -> None:
    plan = replace(SHORT, mode="consume", backlog=100, seconds=10.0)
    loads = [load for load in loads_for(plan, Places("A", ())) if load.role == "consumer"]
    tallies = [Tally(messages=100, batches=1, last_at=52.0)]
    result = add_up(plan, loads, tallies, start=50.0, server_cpu_s=0.5, sizes=())
    assert result.to_dict()["messages_per_s"] == 50
    assert result.to_dict()["server_cpu_s_per_100k"] == 500.0


class Twenty(list[int]):
    """Says when twenty are in it."""

    def __init__(self) -> None:
        self.are_there = asyncio.Event()

    def append(self, value: int) -> None:
        super().append(value)
        if len(self) >= 20:
            self.are_there.set()


def test_a_pulse_notes_what_was_due_in_a_phase() -> None:
    async def scenario() -> tuple[Phase, int]:
        cluster = FakeCluster()
        node = await FakeNode(cluster, "alone").start()
        queue = cluster.declare(QUEUE)
        pulse = Pulse(node.address, 10, 5, 500.0)
        there = Twenty()
        phase = Phase(latencies_us=there)
        with pulse.noting(phase):
            publishing = asyncio.create_task(pulse.run())
            await there.are_there.wait()
        try:
            pulse.stop()
            await publishing
        finally:
            await node.stop()
        return phase, queue.next_sequence - 1

    phase, published = asyncio.run(scenario())
    assert 20 <= len(phase.latencies_us) <= published / 5
    assert phase.seconds > 0
    assert all(latency > 0 for latency in phase.latencies_us)


def test_a_transfer_is_told_with_what_it_is_compared_to() -> None:
    well = Phase(10.0, [1_000] * 99 + [4_000])
    busy = Phase(5.0, [2_000] * 98 + [6_000] * 2)
    result = TransferResult(
        replace(SHORT, mode="transfer", backlog=100), well, Phase(), busy, 50_000_000, 0.5
    )
    told = result.to_dict()
    assert (told["well_p99_ms"], told["transfer_p99_ms"], told["p99_ratio"]) == (1.0, 6.0, 6.0)
    assert (told["away_p99_ms"], told["away_batches"], told["transfer_max_ms"]) == (None, 0, 6.0)
    assert (told["received_mb"], told["received_mb_per_s"], told["transfer_s"]) == (50.0, 10.0, 5.0)
    assert json.loads(json.dumps(told)) == told


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


@pytest.mark.parametrize(("sessions", "batches"), [(1, 25), (3, 9)])
def test_a_producer_with_a_total_notes_when_each_tenth_was_confirmed(sessions: int, batches: int) -> None:
    load = Load("producer", 0, "", QUEUE, 8, 10, 3, 0, total_batches=batches, sessions=sessions)
    tally = asyncio.run(produced(load))
    assert tally.messages == 10 * batches * sessions
    assert len(tally.tenths_at) == 10
    assert tally.tenths_at == sorted(tally.tenths_at)
    assert tally.tenths_at[-1] == tally.last_at
    assert not tally.latencies_us


async def produced(load: Load) -> Tally:
    """What a producer counts, whose time is never over."""
    cluster = FakeCluster()
    node = await FakeNode(cluster, "alone").start()
    cluster.declare(QUEUE)

    class Begun(Clockwork):
        async def go(self) -> None:
            self.end = float("inf")

    clock = Begun()
    try:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(connect(f"quorum://{node.address}"))
                for _ in range(load.sessions)
            ]
            await produce(clients, load, clock)
    finally:
        await node.stop()
    return clock.tally


def test_a_hundred_producers_share_a_process_for_each_address() -> None:
    loads = loads_for(Plan(mode="publish", producers=100), Places("A", ("B", "C")))
    assert {load.endpoint: load.sessions for load in loads} == {"A": 33, "B": 34, "C": 33}


def test_the_first_and_the_last_tenth_are_rates_of_all_producers() -> None:
    one = Tally(tenths_at=[12.0, *(float(n) for n in range(20, 28)), 30.0])
    other = Tally(tenths_at=[11.0, *(float(n) for n in range(20, 28)), 31.0])
    assert tenths(10.0, [one, other], [1_000, 1_000]) == (100 / 2 + 100 / 1, 100 / 3 + 100 / 4)


def test_a_backlog_is_told_for_each_message(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_bytes(bytes(8_192))
    assert directory_bytes(tmp_path) >= 8_192
    plan = replace(Plan(mode="backlog"), backlog=1_000_000)
    values = BacklogResult(plan, 10.0, 90_000.0, 99_000.0, 5.0, (10.0, 20.0), 150_000_000, 1.234).to_dict()
    assert values["publish_per_s"] == 100_000
    assert values["drain_per_s"] == 200_000
    assert values["memory_bytes_per_message"] == 20.0
    assert values["disk_bytes_per_message"] == 150.0
    assert values["restart_s"] == 1.23
    assert values["publish_last_tenth_per_s"] == 99_000
