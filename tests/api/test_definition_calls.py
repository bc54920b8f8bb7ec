"""The calls of the Admin service for definitions, on a cluster of one member."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import pytest

from quorum.api.services import definition_service
from quorum.catalog import policies
from quorum.v1 import admin_pb2 as pb
from quorum.v1 import queue_pb2
from support.members.cluster import Cluster
from support.members.services import Aborted, Api, Context, on_member

ADDED, SAME, DIFFERS, REFUSED = "ADDED", "SAME", "DIFFERS", "REFUSED"


def values(**given: Any) -> dict[str, queue_pb2.Value]:
    kinds = {bool: "boolean", int: "integer", str: "text"}
    return {
        name.replace("_", "-"): queue_pb2.Value(**{kinds[type(value)]: value})
        for name, value in given.items()
    }


def exchange(name: str, kind: str = "direct", **arguments: Any) -> pb.ExchangeDefinition:
    return pb.ExchangeDefinition(name=name, type=kind, arguments=values(**arguments))


def queue(name: str, **arguments: Any) -> pb.QueueDefinition:
    return pb.QueueDefinition(name=name, arguments=values(**arguments))


def policy(name: str, pattern: str = "*", priority: int = 0, **arguments: Any) -> pb.Policy:
    return pb.Policy(name=name, pattern=pattern, priority=priority, arguments=values(**arguments))


def request(*objects: Any, dry_run: bool = False) -> pb.ImportDefinitionsRequest:
    made = pb.ImportDefinitionsRequest(dry_run=dry_run)
    fields = {
        pb.ExchangeDefinition: made.definitions.exchanges,
        pb.QueueDefinition: made.definitions.queues,
        pb.Binding: made.definitions.bindings,
        pb.Policy: made.definitions.policies,
    }
    for each in objects:
        fields[type(each)].append(each)
    return made


WHOLE = (
    exchange("routes", "topic", alternate_exchange="amq.fanout"),
    exchange("choice", "selector"),
    queue("orders", x_max_length=10),
    queue("bills"),
    pb.Binding(source="routes", queue="orders", routing_key="a.#"),
    pb.Binding(source="routes", exchange="choice", routing_key="b"),
    pb.Binding(source="choice", queue="bills", arguments=values(x_selector="colour = 'red'")),
    pb.Binding(source="amq.headers", queue="bills", arguments=values(x_match="any", colour="red", weight=5)),
    policy("short", "bill*", 3, x_message_ttl=1_000),
)


class Calls:
    def __init__(self, api: Api) -> None:
        self.api = api

    async def bring(self, *requests: pb.ImportDefinitionsRequest) -> list[tuple[str, str, str]]:
        """(outcome, reason, text) of everything, in the order of the requests."""

        async def sent() -> AsyncIterator[pb.ImportDefinitionsRequest]:
            for each in requests:
                yield each

        async def call() -> list[Any]:
            return [each async for each in self.api.admin.ImportDefinitions(sent(), Context())]  # type: ignore[arg-type]

        answers = await self.api.call(call())
        return [
            (pb.DefinitionResult.Outcome.Name(each.outcome), each.reason, each.text)
            for answer in answers
            for each in answer.results
        ]

    async def outcomes(self, *objects: Any, dry_run: bool = False) -> list[str]:
        return [each for each, _, _ in await self.bring(request(*objects, dry_run=dry_run))]

    async def export(self) -> list[pb.Definitions]:
        async def call() -> list[Any]:
            asked = pb.ExportDefinitionsRequest()
            return [each async for each in self.api.admin.ExportDefinitions(asked, Context())]  # type: ignore[arg-type]

        return [each.definitions for each in await self.api.call(call())]


def merged(parts: Iterable[pb.Definitions]) -> pb.Definitions:
    whole = pb.Definitions()
    for part in parts:
        whole.MergeFrom(part)
    return whole


def on_one_member(run: Callable[[Calls], Coroutine[Any, Any, None]]) -> None:
    cluster = Cluster(1)
    cluster.ready()
    on_member(cluster, lambda api: run(Calls(api)))


def test_an_import_adds_what_is_missing_and_a_repeat_finds_it() -> None:
    async def run(calls: Calls) -> None:
        assert await calls.export() == []
        assert await calls.outcomes(*WHOLE) == [ADDED] * 9
        assert await calls.outcomes(*WHOLE) == [SAME] * 9
        [found] = await calls.export()
        assert [each.name for each in found.exchanges] == ["choice", "routes"], "by name, without amq."
        assert [each.name for each in found.queues] == ["bills", "orders"]
        assert [each.queue or each.exchange for each in found.bindings] == [
            "orders", "choice", "bills", "bills"
        ]  # fmt: skip
        assert {each.id for each in found.bindings} == {0}
        assert found.policies[0] == policy("short", "bill*", 3, x_message_ttl=1_000)
        assert (
            await calls.outcomes(*found.exchanges, *found.queues, *found.bindings, *found.policies)
            == [SAME] * 9
        )

    on_one_member(run)


def test_a_dry_run_says_what_an_import_does_and_changes_nothing() -> None:
    async def run(calls: Calls) -> None:
        assert await calls.outcomes(*WHOLE, dry_run=True) == [ADDED] * 9
        assert await calls.outcomes(*WHOLE, *WHOLE, dry_run=True) == [
            *(ADDED, ADDED, SAME, SAME),
            *(ADDED, ADDED, SAME, SAME),
            *(ADDED, ADDED, ADDED, ADDED, SAME, SAME, SAME, SAME),
            *(ADDED, SAME),
        ]
        assert await calls.export() == []
        parts = [request(each, dry_run=True) for each in WHOLE]
        assert [outcome for outcome, _, _ in await calls.bring(*parts)] == [ADDED] * 9, "in several requests"
        await calls.outcomes(*WHOLE)
        assert await calls.outcomes(*WHOLE, dry_run=True) == [SAME] * 9

    on_one_member(run)


OTHERS = (
    (exchange("routes", "fanout"), DIFFERS, "", "exists as topic with alternate-exchange"),
    (exchange("amq.mine"), REFUSED, "BAD_ARGUMENT", "reserved"),
    (exchange("x", "x-random"), REFUSED, "BAD_ARGUMENT", "unknown type 'x-random'"),
    (queue("orders", x_max_length=11), DIFFERS, "", "x-max-length is 10, not 11"),
    (queue("new", x_maxlength=11), REFUSED, "BAD_ARGUMENT", "did you mean 'x-max-length'"),
    (
        pb.Binding(source="none", queue="orders"),
        REFUSED,
        "NOT_FOUND",
        "there is no exchange 'none'",
    ),
    (pb.Binding(source="routes", queue="none"), REFUSED, "NOT_FOUND", "there is no queue 'none'"),
    (
        pb.Binding(source="choice", queue="bills", arguments=values(x_selector="colour =")),
        REFUSED,
        "BAD_SELECTOR",
        "colour =",
    ),
    (
        policy("short", "bills*", 4, x_message_ttl=1_001),
        DIFFERS,
        "",
        "the pattern is 'bill*', not 'bills*'; the priority is 3, not 4; x-message-ttl is 1000, not 1001",
    ),
    (policy("more", x_max_priority=1), REFUSED, "BAD_ARGUMENT", "fixed when a queue is declared"),
)


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_differs_or_is_refused_is_named_and_changes_nothing(dry_run: bool) -> None:
    async def run(calls: Calls) -> None:
        await calls.outcomes(*WHOLE)
        before = merged(await calls.export())
        results = await calls.bring(request(*[each for each, *_ in OTHERS], dry_run=dry_run))
        assert len(results) == len(OTHERS)
        for (wanted, outcome, reason, words), found in zip(OTHERS, results, strict=True):
            assert found[:2] == (outcome, reason), wanted
            assert words in found[2]
        assert merged(await calls.export()) == before

    on_one_member(run)


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_import_meets_the_limits_of_the_catalog(dry_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorum.catalog.machine.MAX_POLICIES", 2)
    assert policies.MAX_POLICIES > 2

    async def run(calls: Calls) -> None:
        given = [policy(f"p{number}", x_max_length=1) for number in range(3)]
        results = await calls.bring(request(*given, dry_run=dry_run))
        assert [each[:2] for each in results] == [(ADDED, ""), (ADDED, ""), (REFUSED, "LIMIT")]

    on_one_member(run)


def test_an_export_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(calls: Calls) -> None:
        await calls.outcomes(*WHOLE)
        whole = merged(await calls.export())
        monkeypatch.setattr(definition_service, "PART_OBJECTS", 2)
        assert len(found := await calls.export()) == 5
        assert merged(found) == whole
        monkeypatch.setattr(definition_service, "PART_BYTES", 1)
        assert len(found := await calls.export()) == 9
        assert merged(found) == whole

    on_one_member(run)


def test_a_node_has_few_dry_runs_at_a_time_and_one_address_as_many_as_are_left_free() -> None:
    async def run(calls: Calls) -> None:
        is_over = asyncio.Event()

        async def begin(address: str) -> str:
            """The outcome of a dry run, which goes on until the end of the test; or why it was refused."""
            answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

            async def sent() -> AsyncIterator[pb.ImportDefinitionsRequest]:
                yield request(queue("q"), dry_run=True)
                await is_over.wait()

            async def dry_run() -> None:
                context = Context(f"ipv4:{address}:51234")
                try:
                    async for answer in calls.api.admin.ImportDefinitions(sent(), context):  # type: ignore[arg-type]
                        answered.set_result(pb.DefinitionResult.Outcome.Name(answer.results[0].outcome))
                except Aborted as error:
                    answered.set_result(str(error.args[1]))

            under_way.append(asyncio.ensure_future(dry_run()))
            return str(await calls.api.call(answered))

        under_way: list[asyncio.Future[None]] = []
        outcomes = [await begin(f"10.0.0.{number}") for number in (7, 7, 7, 8, 8, 9, 10)]
        assert [each == ADDED for each in outcomes] == [True, True, False, True, False, True, False]
        assert outcomes[2] == (
            "2 dry runs are under way at this node, 2 of them of this client's address; allowed: 4, and of one "
            "address as many as are left free; try again later"
        )
        assert await calls.outcomes(queue("q")) == [ADDED], "an import is no dry run"
        is_over.set()
        await asyncio.gather(*under_way)
        assert calls.api.admin._rehearsals.total == 0

    on_one_member(run)


def test_an_import_does_not_wait_for_ever_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_service, "NEXT_LIMIT_S", 0.01)

    async def run(calls: Calls) -> None:
        for dry_run in (False, True):

            async def silent(is_dry: bool = dry_run) -> AsyncIterator[pb.ImportDefinitionsRequest]:
                yield request(queue("q"), dry_run=is_dry)
                await asyncio.Event().wait()

            async def call(requests: AsyncIterator[Any]) -> None:
                async for _ in calls.api.admin.ImportDefinitions(requests, Context()):  # type: ignore[arg-type]
                    pass

            with pytest.raises(Aborted, match="next request did not come within"):
                await calls.api.call(call(silent()))
        assert calls.api.admin._rehearsals.total == 0

    on_one_member(run)
