"""Definitions of a cluster as a file, and back: the client on real members."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quorum
import quorum.sync
from quorum.client.admin import definitions
from quorum.client.admin.definitions import DefinitionsError, ImportReport
from quorum.client.client import Client
from quorum.client.connection.endpoints import Channels, Service
from quorum.definitions import definition_files
from quorum.definitions.definition_files import text_of
from support.members.served import served, served_in_a_thread

LIMIT_S = 60.0

SHOP = {
    "quorum_definitions": 1,
    "exchanges": [
        {"name": "shop", "type": "topic", "arguments": {"alternate-exchange": "amq.fanout"}},
        {"name": "prices", "type": "selector"},
    ],
    "queues": [
        {"name": "orders", "arguments": {"x-max-length": 1_000, "x-filter-enabled": True}},
        {"name": "bills"},
    ],
    "bindings": [
        {"source": "shop", "destination": "orders", "routing_key": "orders.#"},
        {"source": "shop", "to": "exchange", "destination": "prices", "routing_key": "prices"},
        {"source": "prices", "destination": "bills", "arguments": {"x-selector": "amount > 10.0"}},
        {
            "source": "amq.headers",
            "destination": "bills",
            "arguments": {"x-match": "any", "heavy": True, "weight": 5, "share": 1.0, "colour": "rot"},
        },
    ],
    "policies": [
        {"name": "short", "pattern": "bill*", "priority": -3, "arguments": {"x-message-ttl": 60_000}}
    ],
}


def on_a_cluster(run: Callable[[Client], Awaitable[None]], members: int = 1) -> None:
    async def body() -> None:
        async with asyncio.timeout(LIMIT_S), served(members, members) as url, quorum.connect(url) as client:
            await run(client)

    asyncio.run(body())


def outcomes(report: ImportReport) -> list[str]:
    return [each.outcome for each in report.results]


def test_a_file_is_imported_once_and_found_again() -> None:
    async def run(client: Client) -> None:
        report = await client.import_definitions(SHOP)
        assert outcomes(report) == ["added"] * 9 and report.is_complete and not report.dry_run
        assert [each.kind for each in report.results] == (
            ["exchange"] * 2 + ["queue"] * 2 + ["binding"] * 4 + ["policy"]
        )
        assert [each.name for each in report.results][4:7] == [
            "shop -> orders (orders.#)",
            "shop -> exchange prices (prices)",
            'prices -> bills {"x-selector": "amount > 10.0"}',
        ]
        assert report.results[4].place == "$.bindings[0]"
        again = await client.import_definitions(json.dumps(SHOP).encode())
        assert outcomes(again) == ["same"] * 9 and again.counts["same"] == 9
        [orders] = await client.queues("orders")
        assert orders.arguments == {"x-filter-enabled": True, "x-max-length": 1_000}

    on_a_cluster(run)


def test_an_export_is_sorted_and_imports_into_another_cluster() -> None:
    exports = []

    async def first(client: Client) -> None:
        await client.import_definitions(SHOP)
        exports.append(await client.export_definitions())

    async def second(client: Client) -> None:
        backwards = {
            key: value[::-1] if isinstance(value, list) else value for key, value in exports[0].items()
        }
        assert (await client.import_definitions(text_of(backwards))).is_complete
        exports.append(await client.export_definitions())

    on_a_cluster(first)
    on_a_cluster(second)
    assert text_of(exports[0]) == text_of(exports[1])
    assert list(exports[0]) == ["bindings", "exchanges", "policies", "queues", "quorum_definitions"]
    assert [each["name"] for each in exports[0]["queues"]] == ["bills", "orders"]
    assert [each["source"] for each in exports[0]["bindings"]] == ["amq.headers", "prices", "shop", "shop"]
    weights = exports[0]["bindings"][0]["arguments"]
    assert (type(weights["weight"]), type(weights["share"]), weights["heavy"]) == (int, float, True)


def test_a_dry_run_says_what_would_happen() -> None:
    async def run(client: Client) -> None:
        for _ in range(2):
            report = await client.import_definitions(SHOP, dry_run=True)
            assert outcomes(report) == ["added"] * 9 and report.dry_run
        assert await client.queues() == []
        await client.declare("orders", {"x-max-length": 5, "x-filter-enabled": True})
        report = await client.import_definitions(SHOP, dry_run=True)
        assert report.counts == {"added": 8, "same": 0, "differs": 1, "refused": 0}
        assert report.results[2].text.endswith("x-max-length is 5, not 1000") and not report.is_complete
        assert outcomes(await client.import_definitions(SHOP)) == outcomes(report)

    on_a_cluster(run)


def test_many_definitions_go_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {
        "quorum_definitions": 1,
        "queues": [{"name": f"q{number}"} for number in range(30)],
        "bindings": [
            {"source": "amq.direct", "destination": f"q{number}", "routing_key": "k"} for number in range(30)
        ],
    }

    async def run(client: Client) -> None:
        for name in ("PART_DEFINITIONS", "PART_BYTES", "PART_ARGUMENTS"):
            with monkeypatch.context() as patch:
                patch.setattr(definitions, name, 7)
                report = await client.import_definitions(many, dry_run=True)
                assert outcomes(report) == ["added"] * 60, name
        monkeypatch.setattr(definitions, "PART_DEFINITIONS", 7)
        assert outcomes(await client.import_definitions(many)) == ["added"] * 60
        assert len((await client.export_definitions())["bindings"]) == 30

    on_a_cluster(run)


def test_a_definition_that_no_request_could_carry_is_refused_alone() -> None:
    given = {
        "quorum_definitions": 1,
        "queues": [{"name": "q" * 256}, {"name": "ok"}, {"name": "é" * 128}],
        "bindings": [
            {"source": "amq.headers", "destination": "ok", "arguments": {str(n): n for n in range(1_001)}},
            {"source": "amq.headers", "destination": "ok", "arguments": {"n" * 256: 1}},
            {"source": "amq.headers", "destination": "ok", "arguments": {"text": "x" * 70_000}},
            {"source": "amq.headers", "destination": "ok", "arguments": {"text": "x" * 60_000}},
        ],
    }

    async def run(client: Client) -> None:
        report = await client.import_definitions(given)
        assert outcomes(report) == ["refused", "added", "refused", *["refused"] * 4]
        assert [each.text for each in report.results if each.reason == "NOT_READ"] == [
            "a name of 256 bytes; allowed: 255",
            "a name of 256 bytes; allowed: 255",
            "1001 arguments; allowed: 1000",
            "an argument's name of 256 bytes; allowed: 255",
            "argument 'text' has 70000 bytes; allowed: 65536",
        ]
        assert report.results[-1].reason == "BAD_ARGUMENT", "the service refuses arguments above 4 KiB"

    on_a_cluster(run)


def test_a_call_is_repeated_at_another_member() -> None:
    async def run(client: Client) -> None:
        own = client._open_channel
        nobody = "127.0.0.1:1"
        client._channels = Channels(
            Service(()), lambda endpoint: own(nobody if endpoint == client.endpoint else endpoint)
        )
        assert (await client.import_definitions(SHOP)).is_complete
        assert len((await client.export_definitions())["queues"]) == 2

    on_a_cluster(run, members=3)


WRONG = [
    ("[]", "$: a list of 0; allowed: an object"),
    ('{"a": 1', "line 1, column 8: no JSON: Expecting"),
    (b"\xff{}", "byte 0 is not UTF-8"),
    ('{"quorum_definitions": 2}', "$.quorum_definitions: format 2; this release reads format 1"),
    ('{"quorum_definitions": true}', "$.quorum_definitions: true; allowed: an integer"),
    ('{"definitions": {}}', "an answer of GET /api/v1/definitions, which only a POST there reads"),
    ("{}", "no definitions: the key 'quorum_definitions' is missing"),
    (
        '{"quorum_definitions": 1, "queue": []}',
        "$: unknown key 'queue'; known: quorum_definitions, exchanges",
    ),
    ('{"quorum_definitions": 1, "queues": {}}', "$.queues: an object of 0; allowed: a list"),
    ('{"quorum_definitions": 1, "queues": [3]}', "$.queues[0]: 3; allowed: an object"),
    ('{"quorum_definitions": 1, "queues": [{}]}', "$.queues[0]: 'name' is missing"),
    ('{"quorum_definitions": 1, "queues": [{"name": null}]}', "$.queues[0].name: null; allowed: text"),
    (
        '{"quorum_definitions": 1, "queues": [{"name": "a", "arguments": {"x-max-length": [1]}}]}',
        '$.queues[0].arguments["x-max-length"]: a list of 1; allowed: a boolean, a number or text',
    ),
    (
        '{"quorum_definitions": 1, "queues": [{"name": "a", "arguments": {"n": 9223372036854775808}}]}',
        "$.queues[0].arguments.n: 9223372036854775808; allowed: an integer, -9223372036854775808..",
    ),
    ('{"quorum_definitions": 1, "queues": [{"name": "\\ud800"}]}', "$.queues[0].name: "),
    ('{"quorum_definitions": 1, "queues": [{"name": "a", "arguments": {"\\ud800": 1}}]}', "surrogate pair"),
    (
        '{"quorum_definitions": 1, "queues": [{"name": "a"}, {"name": "a"}]}',
        "queue 'a' is at $.queues[0] already",
    ),
    ('{"quorum_definitions": 1, "quorum_definitions": 1}', "has the key 'quorum_definitions' twice"),
    (
        '{"quorum_definitions": 1, "bindings": [{"to": "topic"}]}',
        '$.bindings[0].to: "topic"; allowed: "queue"',
    ),
    ('{"quorum_definitions": 1, "policies": [{"name": "a", "pattern": "*"}]}', "'arguments' is missing"),
    (
        '{"quorum_definitions": 1, "policies": [{"name": "a", "pattern": "*", "arguments": {"a": NaN}}]}',
        "NaN is no",
    ),
    (
        '{"quorum_definitions": 1, "policies": [{"name": "a", "pattern": "*", "priority": 2147483648}]}',
        "allowed",
    ),
    (f'{{"quorum_definitions": {"9" * 5_000}}}', "no JSON"),
    ("[" * 100_000, "nested too deeply"),
    (
        '{"quorum_definitions": 1, "policies": [{"name": "a", "pattern": "*", "arguments": {"a": 1e999}}]}',
        "finite",
    ),
]


@pytest.mark.parametrize(("data", "words"), WRONG)
def test_a_file_that_cannot_be_read_is_refused_with_the_place(data: str | bytes, words: str) -> None:
    with pytest.raises(DefinitionsError) as caught:
        definitions.read_definitions(data)
    assert words in str(caught.value)


def test_a_file_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_files, "MAX_FILE_BYTES", 10)
    with pytest.raises(DefinitionsError, match="a file of 25 bytes or more; allowed: 10"):
        definitions.read_definitions('{"quorum_definitions": 1}')


def test_a_virtual_host_belongs_to_files_of_rabbitmq() -> None:
    with pytest.raises(DefinitionsError, match="only RabbitMQ's definitions have any"):
        definitions.read_definitions(SHOP, "/")


def test_the_blocking_client_has_the_same_calls() -> None:
    with served_in_a_thread() as url, quorum.sync.connect(url) as client:
        assert client.import_definitions(SHOP, dry_run=True).is_complete
        assert client.import_definitions(SHOP).counts["added"] == 9
        assert len(client.export_definitions()["bindings"]) == 4


# ---- any definitions

NAMES = st.sampled_from(["a", "b", "é *", "amq.topic", "amq.headers", "x" * 255])
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
QUEUE_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "x-max-length": st.integers(1, 3),
        "x-delivery-limit": st.integers(-1, 2),
        "x-overflow": st.sampled_from(["drop-head", "reject-publish"]),
        "x-filter-enabled": st.booleans(),
    },
)
BINDING_ARGUMENTS = st.one_of(
    st.just({}),
    st.dictionaries(st.sampled_from(["x-match", "n", "m"]), SCALARS, max_size=3),
    st.sampled_from(["colour = 'red'", "a + 1 < b OR c LIKE '_x%'", "d BETWEEN 1.5 AND 2", ""]).map(
        lambda text: {"x-selector": text}
    ),
)
FILES = st.fixed_dictionaries(
    {
        "quorum_definitions": st.just(1),
        "exchanges": st.lists(
            st.fixed_dictionaries(
                {
                    "name": NAMES,
                    "type": st.sampled_from(["direct", "fanout", "topic", "headers", "selector"]),
                },
                optional={"arguments": st.just({"alternate-exchange": "b"})},
            ),
            max_size=4,
            unique_by=lambda each: each["name"],
        ),
        "queues": st.lists(
            st.fixed_dictionaries({"name": NAMES, "arguments": QUEUE_ARGUMENTS}),
            max_size=4,
            unique_by=lambda each: each["name"],
        ),
        "bindings": st.lists(
            st.fixed_dictionaries(
                {
                    "source": NAMES,
                    "to": st.sampled_from(["queue", "exchange"]),
                    "destination": NAMES,
                    "routing_key": st.sampled_from(["", "a.*", "é"]),
                    "arguments": BINDING_ARGUMENTS,
                }
            ),
            max_size=8,
        ),
        "policies": st.lists(
            st.fixed_dictionaries(
                {
                    "name": NAMES,
                    "pattern": st.sampled_from(["*", "a*", "é"]),
                    "priority": st.integers(-2, 2),
                    "arguments": QUEUE_ARGUMENTS,
                }
            ),
            max_size=3,
            unique_by=lambda each: each["name"],
        ),
    }
)


def test_what_was_exported_is_exported_again_by_the_cluster_that_has_imported_it() -> None:
    seen: set[str] = set()

    async def emptied(client: Client) -> None:
        for queue in await client.queues():
            await client.delete(queue.name)
        for exchange in await client.exchanges():
            if exchange.id:
                await client.delete_exchange(exchange.name)
        for policy in await client.policies():
            await client.delete_policy(policy.name)
        for each in await client.bindings():
            await client.unbind(each.source, each.destination, each.routing_key, each.arguments, to=each.to)

    async def moved(one: Client, other: Client, file: dict[str, Any]) -> None:
        expected = await one.import_definitions(file, dry_run=True)
        report = await one.import_definitions(file)
        assert outcomes(report) == outcomes(expected)
        assert [each.text for each in report.results] == [each.text for each in expected.results]
        seen.update(outcomes(report))
        exported = await one.export_definitions()
        assert set(outcomes(await other.import_definitions(text_of(exported)))) <= {"added"}
        assert text_of(await other.export_definitions()) == text_of(exported)
        assert set(outcomes(await one.import_definitions(exported))) <= {"same"}
        await emptied(one)
        await emptied(other)

    with served_in_a_thread() as first, served_in_a_thread() as second:
        runner = asyncio.Runner()

        async def connected() -> tuple[Client, Client]:
            return await quorum.connect(first), await quorum.connect(second)

        one, other = runner.run(connected())

        @given(FILES)
        def check(file: dict[str, Any]) -> None:
            runner.run(moved(one, other, file))

        check()
        runner.run(one.close())
        runner.run(other.close())
        runner.close()
    assert {"added", "refused"} <= seen
