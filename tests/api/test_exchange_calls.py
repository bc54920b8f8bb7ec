"""The calls of the Admin service for exchanges and bindings, on a cluster of one member."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quorum.api.services import exchange_service
from quorum.v1 import admin_pb2 as pb
from quorum.v1 import queue_pb2
from support.members.cluster import Cluster
from support.members.services import Aborted, Api, Context, on_member


class Calls:
    """The calls, with their answers."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def call(self, method: str, **fields: Any) -> Any:
        request = getattr(pb, f"{method}Request")(**fields)
        return await self.api.call(getattr(self.api.admin, method)(request, Context()))

    async def declare(self, name: str, kind: str = "direct", **arguments: str) -> bool:
        given = {each.replace("_", "-"): queue_pb2.Value(text=value) for each, value in arguments.items()}
        return bool((await self.call("DeclareExchange", exchange=name, type=kind, arguments=given)).created)

    async def bind(self, source: str, **more: Any) -> bool:
        return bool((await self.call("AddBinding", binding=pb.Binding(source=source, **more))).added)

    async def bindings(self, **wanted: Any) -> list[tuple[str, str, str]]:
        found, after = [], 0
        while True:
            page = await self.call("ListBindings", after=after, **wanted)
            found += [(each.source, each.queue or each.exchange, each.routing_key) for each in page.bindings]
            if not (after := page.next_after):
                return found


def on_one_member(run: Callable[[Calls], Coroutine[Any, Any, None]]) -> None:
    cluster = Cluster(1)
    cluster.ready()
    for name in ("orders", "bills"):
        cluster.declare(name)
    on_member(cluster, lambda api: run(Calls(api)))


def test_exchanges_are_declared_listed_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(calls: Calls) -> None:
        assert await calls.declare("routes", "topic", alternate_exchange="amq.fanout")
        assert not await calls.declare("routes", "topic", alternate_exchange="amq.fanout")
        with pytest.raises(
            Aborted, match=r"exists as topic with alternate-exchange .amq\.fanout., not as topic"
        ):
            await calls.declare("routes", "topic")
        await calls.bind("routes", queue="orders", routing_key="a.*")
        listed = await calls.call("ListExchanges")
        assert [each.name for each in listed.exchanges] == [
            "amq.direct", "amq.fanout", "amq.headers", "amq.topic", "routes",
        ]  # fmt: skip
        [shown] = (await calls.call("ListExchanges", prefix="r")).exchanges
        assert (shown.type, shown.bindings) == ("topic", 1)
        assert shown.arguments["alternate-exchange"].text == "amq.fanout"
        monkeypatch.setattr(exchange_service, "LISTED_BYTES", 60)
        names, after = [], ""
        while True:
            page = await calls.call("ListExchanges", after=after, limit=2)
            names += [each.name for each in page.exchanges]
            if not (after := page.next_after):
                break
        assert len(names) == 5
        with pytest.raises(Aborted, match="has 1 bindings; remove them first"):
            await calls.call("DeleteExchange", exchange="routes", if_unused=True)
        with pytest.raises(Aborted, match=r"no exchange .routes. with the id 99"):
            await calls.call("DeleteExchange", exchange="routes", id=99)
        await calls.call("DeleteExchange", exchange="routes", id=shown.id)
        with pytest.raises(Aborted, match="there is no exchange 'routes'"):
            await calls.call("DeleteExchange", exchange="routes")
        assert await calls.bindings() == []

    on_one_member(run)


def test_bindings_are_added_listed_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(calls: Calls) -> None:
        await calls.declare("routes", "topic")
        assert await calls.bind("routes", queue="orders", routing_key="a.*")
        assert not await calls.bind("routes", queue="orders", routing_key="a.*")
        assert await calls.bind("routes", queue="bills", routing_key="#")
        assert await calls.bind("amq.fanout", exchange="routes")
        everything = [("routes", "orders", "a.*"), ("routes", "bills", "#"), ("amq.fanout", "routes", "")]
        assert await calls.bindings() == everything
        monkeypatch.setattr(exchange_service, "LISTED_BYTES", 40)
        assert await calls.bindings() == everything, "in pages"
        assert await calls.bindings(source="routes") == everything[:2]
        assert await calls.bindings(queue="orders") == everything[:1]
        assert await calls.bindings(exchange="routes") == everything[2:]
        assert await calls.bindings(source="amq.fanout", exchange="routes") == everything[2:]
        removed = pb.Binding(source="routes", queue="orders", routing_key="a.*")
        await calls.call("RemoveBinding", binding=removed)
        with pytest.raises(Aborted, match="exchange 'routes' has no such binding"):
            await calls.call("RemoveBinding", binding=removed)
        [last] = (await calls.call("ListBindings", queue="bills")).bindings
        await calls.call("RemoveBinding", binding=pb.Binding(source="routes", id=last.id))
        assert await calls.bindings(source="routes") == []

    on_one_member(run)


def test_a_long_list_of_bindings_is_shown_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_service, "SHOWN_STEPS", 20)
    taken: list[int] = []

    async def run(calls: Calls) -> None:
        turns = calls.api.hub.turns
        take = turns.take

        async def noted(owner: Any, steps: int) -> None:
            taken.append(steps)
            await take(owner, steps)

        for number in range(12):
            await calls.bind("amq.topic", queue="orders", routing_key=f"k{number}")
        monkeypatch.setattr(turns, "take", noted)
        assert len(await calls.bindings(source="amq.topic")) == 12
        assert len(taken) == 2 and min(taken) > 20

    on_one_member(run)


def test_selectors_of_bindings_are_parsed_and_shown() -> None:
    async def run(calls: Calls) -> None:
        await calls.declare("choice", "selector")
        given = {"x-selector": queue_pb2.Value(text=" weight>50 AND colour IN ('red') ")}
        assert await calls.bind("choice", queue="orders", arguments=given)
        same = {"x-selector": queue_pb2.Value(text="colour = 'red' AND 50 < weight")}
        assert not await calls.bind("choice", queue="orders", arguments=same), "it means the same"
        assert await calls.bind("choice", queue="orders")
        [first, everything] = (await calls.call("ListBindings", source="choice")).bindings
        shown = first.arguments["x-selector"].text
        assert "colour = 'red'" in shown and "weight > 50" in shown
        assert dict(everything.arguments) == {}
        await calls.call("RemoveBinding", binding=pb.Binding(source="choice", queue="orders", arguments=same))
        for wrong, words in [
            ({"x-selector": queue_pb2.Value(text="colour =")}, "colour ="),
            ({"x-selector": queue_pb2.Value(integer=1)}, "allowed: a JMS selector, as text"),
            ({"colour": queue_pb2.Value(text="red")}, "it takes only 'x-selector'"),
        ]:
            with pytest.raises(Aborted, match=words):
                await calls.bind("choice", queue="orders", arguments=wrong)

    on_one_member(run)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"source": "", "queue": "orders"}, "the default exchange"),
        ({"source": "routes"}, "leads to a queue or to an exchange"),
        ({"source": "nowhere", "queue": "orders"}, "there is no exchange 'nowhere'"),
        ({"source": "amq.direct", "queue": "none"}, "there is no queue 'none'"),
        ({"source": "amq.direct", "queue": ""}, "a queue name of 0 bytes"),
        ({"source": "amq.direct", "exchange": "none"}, "there is no exchange 'none'"),
    ],
)
def test_a_binding_that_cannot_be_is_refused(fields: dict[str, Any], words: str) -> None:
    async def run(calls: Calls) -> None:
        with pytest.raises(Aborted, match=words):
            await calls.bind(**fields)

    on_one_member(run)


def test_a_deleted_queue_has_no_bindings() -> None:
    async def run(calls: Calls) -> None:
        await calls.bind("amq.fanout", queue="orders")
        await calls.bind("amq.fanout", queue="bills")
        await calls.call("DeleteQueue", queue="orders")
        assert await calls.bindings() == [("amq.fanout", "bills", "")]

    on_one_member(run)
