"""Single messages against the in-memory cluster: what the processes of `singles` and `select` count."""

from __future__ import annotations

import asyncio
import io
import json
import os
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import quorum
from quorum.bench.command import app
from quorum.bench.plan import Plan, SinglesLoad, url_of
from quorum.bench.receivers import FIELD, properties_of, selector_of
from quorum.bench.run import QUEUE, BenchFailed, Places
from quorum.bench.run import loads_for as batch_loads_for
from quorum.bench.singles import SinglesResult, declare_others, loads_for, measure, run, table
from quorum.bench.singles_load import HEAD
from quorum.client.values import values_to_dict
from support.fake_server.cluster import FakeCluster, Predicate, StoredMessage
from support.fake_server.server import FakeNode
from support.members.served import served

SINGLES = Plan(
    mode="singles", members=1, body_bytes=16, producers=1, consumers=1, warmup_s=0.2, seconds=0.5, tasks=4
)
SELECT = replace(SINGLES, mode="select", consumers=3, rate=200)


def test_producers_have_processes_of_their_own_and_consumers_share_two() -> None:
    places = Places("L", ("A", "B"))
    loads = loads_for(replace(SELECT, producers=3, consumers=5, rate=600), places)
    assert [(load.role, load.endpoints) for load in loads] == [
        ("producer", ("A",)),
        ("producer", ("B",)),
        ("producer", ("L",)),
        ("consumer", ("A", "A", "A")),
        ("consumer", ("B", "B")),
    ]
    assert [load.rate for load in loads[:3]] == [200.0] * 3
    assert [load.numbers for load in loads[3:]] == [(0, 2, 4), (1, 3)]
    assert {load.receivers for load in loads} == {5}


def test_singles_without_consumers_only_publish() -> None:
    loads = loads_for(replace(SINGLES, producers=2, consumers=0), Places("L", ()))
    assert [(load.role, load.tasks, load.rate, load.receivers) for load in loads] == [
        ("producer", 4, 0.0, 0)
    ] * 2


def test_threads_are_told_in_place_of_tasks() -> None:
    plan = replace(SINGLES, threads=8)
    assert {load.threads for load in loads_for(plan, Places("L", ()))} == {8}
    values = replace(RESULT, plan=plan).to_dict()
    assert (values["tasks"], values["threads"]) == (0, 8)
    with pytest.raises(BenchFailed, match="no rate"):
        run(replace(plan, rate=100), lambda _: None)


def test_the_load_of_a_secured_cluster_logs_in() -> None:
    login = "quorums://bench:a%20password@a:1,b:2/?ca_file=%2Fca.pem"
    places = Places("b:2", ("a:1",), login)
    for load in (*loads_for(SINGLES, places), *batch_loads_for(Plan(), places)):
        assert load.login == login
    assert url_of("b:2", login) == "quorums://bench:a%20password@b:2/?ca_file=%2Fca.pem"
    assert url_of("b:2", "") == "quorum://b:2"


def test_only_modes_that_can_are_secured() -> None:
    done = CliRunner().invoke(app, ["transfer", "--secured"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "allowed in modes publish, consume, both, singles, select" in done.output


def test_a_load_survives_the_way_to_its_process() -> None:
    for load in loads_for(SELECT, Places("L", ("A", "B"))):
        assert SinglesLoad.from_json(load.to_json()) == load


@pytest.mark.parametrize(("consumers", "threads"), [(0, 0), (2, 0), (0, 3)])
def test_singles_are_counted_as_the_cluster_saw_them(consumers: int, threads: int) -> None:
    result, cluster = asyncio.run(measured(replace(SINGLES, consumers=consumers, threads=threads)))
    values = result.to_dict()
    queue = cluster.queues[QUEUE]
    assert 0 < result.published <= queue.next_sequence - 1
    assert len(result.publish_us) == result.published
    assert result.delivered <= len(queue.settled)
    assert len(result.delivery_us) == result.delivered
    assert (result.delivered > 0) == (consumers > 0)
    assert 0 < values["publish_p50_ms"] <= values["publish_p99_ms"]
    assert values["messages_per_s"] == values["delivered_per_s" if consumers else "published_per_s"] > 0
    assert all(len(body) == 16 for body in queue.arrived)


def text_of(message: StoredMessage) -> object:
    return values_to_dict(message.properties.application_properties).get(FIELD)


def wants(number: int) -> Predicate:
    return lambda message: text_of(message) == properties_of(number)[FIELD]


def test_transactions_count_their_messages_and_are_timed_whole() -> None:
    result, cluster = asyncio.run(measured(replace(SINGLES, consumers=0, transaction=5)))
    assert 0 < result.published <= cluster.queues[QUEUE].next_sequence - 1
    assert result.published == 5 * len(result.publish_us)
    assert result.to_dict()["transaction"] == 5
    with pytest.raises(BenchFailed, match="transactions are for tasks"):
        run(replace(SINGLES, transaction=5, rate=100), lambda _: None)


def test_a_transaction_over_groups_has_a_queue_in_each() -> None:
    async def scenario() -> list[int]:
        async with served() as url, quorum.connect(url) as client:
            await client.declare(QUEUE)
            queues = [QUEUE, *await declare_others(url, 2)]
            return [(await client.describe(queue)).queue.group for queue in queues]

    groups = asyncio.run(scenario())
    assert len(groups) == len({*groups}) == 2
    with pytest.raises(BenchFailed, match="give each a message"):
        run(replace(SINGLES, transaction=1, groups=2), lambda _: None)


def test_the_messages_of_a_transaction_are_spread_over_its_queues() -> None:
    plan = replace(SINGLES, consumers=0, transaction=5)
    result, cluster = asyncio.run(measured(plan, others=("other",)))
    assert result.published > 0
    here, there = (cluster.queues[queue].next_sequence - 1 for queue in (QUEUE, "other"))
    assert 2 * here == 3 * there


@pytest.mark.parametrize(
    "options",
    [
        "--queues 2 both",
        "--queues 2 --bindings 3 publish",
        "--transaction 5 singles",
        "--transaction 5 publish",
        "--groups 2 --consumers 0 singles",
    ],
)
def test_an_option_of_another_mode_is_refused(options: str) -> None:
    refused = CliRunner().invoke(app, options.split())
    assert refused.exit_code == 2
    assert (
        "allowed in mode" in refused.output
        or "allowed with" in refused.output
        or "one of the two" in refused.output
    )


def test_each_message_is_for_one_selective_consumer() -> None:
    result, cluster = asyncio.run(measured(SELECT, {n: wants(n) for n in range(3)}))
    values = result.to_dict()
    assert 0 < result.published == result.delivered == len(result.delivery_us)
    assert (
        result.published <= SELECT.rate * SELECT.seconds
    )  # fewer on a machine that is too slow for the rate
    assert values["undelivered"] == 0
    assert 0 < values["delivery_p50_ms"] <= values["delivery_p99_ms"]
    assert sorted(cluster.queues[QUEUE].settled) == [*range(1, cluster.queues[QUEUE].next_sequence)]


def test_messages_that_no_consumer_receives_are_told() -> None:
    known = {0: wants(0), 1: wants(1), 2: lambda _: False}
    result, _ = asyncio.run(measured(SELECT, known))
    values = result.to_dict()
    assert values["undelivered"] == result.published - result.delivered > 0
    assert "published and not delivered" in text_of_table(result)


def test_a_message_for_another_consumer_fails_the_bench() -> None:
    with pytest.raises(BenchFailed, match="consumer 0 ended without a result"):
        asyncio.run(measured(replace(SELECT, consumers=2), {0: lambda _: True, 1: lambda _: False}))


async def measured(
    plan: Plan, selectors: dict[int, Predicate] | None = None, others: tuple[str, ...] = ()
) -> tuple[SinglesResult, FakeCluster]:
    """The plan on one node that knows these selectors. others: queues of other groups."""
    cluster = FakeCluster()
    for number, predicate in (selectors or {}).items():
        cluster.selectors[selector_of(number)] = predicate
    node = await FakeNode(cluster, "alone").start()
    for queue in (QUEUE, *others):
        cluster.declare(queue)
    places = Places(node.address, ())
    try:
        return await measure(plan, places, [os.getpid()], lambda _: None, others), cluster
    finally:
        await node.stop()


# ---- what is told

RESULT = SinglesResult(
    SELECT,
    published=200,
    delivered=100,
    publish_us=[1_000] * 99 + [9_000] * 2,
    delivery_us=[2_000] * 99 + [8_000],
    server_cpu_s=0.5,
    publisher_cpu_s=0.25,
    consumer_cpu_s=0.125,
)


def test_cpu_is_told_for_the_messages_of_each_side() -> None:
    values = RESULT.to_dict()
    assert (values["published_per_s"], values["delivered_per_s"], values["messages_per_s"]) == (400, 200, 200)
    assert (values["publish_p50_ms"], values["publish_p99_ms"]) == (1.0, 9.0)
    assert (values["delivery_p50_ms"], values["delivery_p99_ms"]) == (2.0, 2.0)
    assert values["server_cpu_s_per_100k"] == 500.0
    assert values["publisher_cpu_s_per_100k"] == 125.0
    assert values["consumer_cpu_s_per_100k"] == 125.0
    assert values["undelivered"] == 100
    assert json.loads(json.dumps(values)) == values


def test_without_consumers_nothing_is_told_of_them() -> None:
    result = replace(RESULT, plan=replace(SINGLES, consumers=0), delivered=0, delivery_us=[])
    values = result.to_dict()
    assert values["messages_per_s"] == 400
    assert values["delivery_p50_ms"] is values["consumer_cpu_s_per_100k"] is values["undelivered"] is None
    assert "deliver" not in text_of_table(result)


def text_of_table(result: SinglesResult) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(result))
    return console.export_text()


def test_a_body_without_room_for_its_time_is_refused() -> None:
    with pytest.raises(BenchFailed, match=f"needs {HEAD.size} or more"):
        run(replace(SINGLES, body_bytes=HEAD.size - 1), lambda _: None)


@pytest.mark.parametrize("mode", ["both", "select"])
def test_only_singles_can_do_without_consumers(mode: str) -> None:
    refused = CliRunner().invoke(app, [mode, "--consumers", "0"])
    assert refused.exit_code == 2
    assert "1 and more" in refused.output
