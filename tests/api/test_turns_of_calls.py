"""Calls that parse selectors or check many properties take turns by client address (quorum/api/turns.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from quorum.api.hub.filters import SelectorText
from quorum.api.owners import owner_of
from quorum.api.session.client_session import ClientSession
from quorum.api.session.outcomes import Failed
from quorum.api.turns import LARGE_STEPS
from quorum.client.messages.batch import Message, encode_batch
from quorum.node.wire import batches
from quorum.v1 import admin_pb2 as ap
from quorum.v1 import bulk_pb2 as bp
from quorum.v1 import queue_pb2 as pb
from support.members.cluster import Cluster
from support.members.services import Api, Context, collected

OWNER = owner_of(Context().peer())


class Calls:
    """Notes the turns that calls take: (owner, steps)."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = api
        self.turns: list[tuple[Any, int]] = []
        self._run = api.hub.turns.run
        monkeypatch.setattr(api.hub.turns, "run", self._noted)

    async def _noted(self, owner: Any, steps: int, work: Callable[[], Any]) -> Any:
        if steps:
            self.turns.append((owner, steps))
        return await self._run(owner, steps, work)

    async def prepared(self) -> None:
        await self.api.call(self.api.admin.DeclareQueue(ap.DeclareQueueRequest(queue="plain"), Context()))  # type: ignore[arg-type]
        declared = ap.DeclareQueueRequest(queue="kept")
        declared.arguments["x-filter-enabled"].boolean = True
        await self.api.call(self.api.admin.DeclareQueue(declared, Context()))  # type: ignore[arg-type]
        exchange = ap.DeclareExchangeRequest(exchange="choice", type="selector")
        await self.api.call(self.api.admin.DeclareExchange(exchange, Context()))  # type: ignore[arg-type]
        assert self.turns == []

    def session(self) -> ClientSession:
        session = ClientSession(self.api.hub)
        session.open(b"p" * 16, 1, OWNER)
        return session


@pytest.fixture
def on_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[Calls], Coroutine[Any, Any, None]]], None]:
    def run(scenario: Callable[[Calls], Coroutine[Any, Any, None]]) -> None:
        cluster = Cluster(1)
        cluster.ready()

        async def body() -> None:
            calls = Calls(Api(cluster, "n1"), monkeypatch)
            await calls.prepared()
            await scenario(calls)

        asyncio.run(body())

    return run


def binding(selector: str) -> ap.Binding:
    made = ap.Binding(source="choice", queue="plain")
    made.arguments["x-selector"].text = selector
    return made


def with_properties(size: int) -> Message:
    return Message(b"x" * 9_000, application_properties={"a": "x" * size})


def test_every_call_with_a_selector_takes_a_turn_for_each_new_one(on_calls: Any) -> None:
    async def scenario(calls: Calls) -> None:
        api, context = calls.api, Context()
        session = calls.session()
        await api.call(session.consumers.attach(1, "c", "kept", SelectorText("a = 1"), 0))
        await api.call(
            collected(api.queues.Browse(pb.BrowseRequest(queue="kept", selector="a = 2"), context))
        )  # type: ignore[arg-type]
        opened = bp.OpenSubscriptionRequest(queue="kept", subscription="s", selector="a = 3")
        await api.call(api.bulk.OpenSubscription(opened, context))  # type: ignore[arg-type]
        for text in ("a = 4", "a = 4"):
            await api.call(api.admin.AddBinding(ap.AddBindingRequest(binding=binding(text)), context))  # type: ignore[arg-type]
        assert [owner for owner, _ in calls.turns] == [OWNER] * 4
        assert len({steps for _, steps in calls.turns}) == 1

    on_calls(scenario)


@pytest.mark.parametrize("dry_run", [True, False])
def test_each_binding_of_an_import_takes_a_turn(on_calls: Any, dry_run: bool) -> None:
    async def scenario(calls: Calls) -> None:
        request = ap.ImportDefinitionsRequest(dry_run=dry_run)
        request.definitions.bindings.extend([binding(f"a = {number}") for number in range(10, 30)])

        async def sent() -> AsyncIterator[ap.ImportDefinitionsRequest]:
            yield request

        answers = await calls.api.call(collected(calls.api.admin.ImportDefinitions(sent(), Context())))  # type: ignore[arg-type]
        assert {each.outcome for answer in answers for each in answer.results} == {ap.DefinitionResult.ADDED}
        assert [owner for owner, _ in calls.turns] == [OWNER] * 20

    on_calls(scenario)


def test_a_selector_for_a_queue_that_keeps_nothing_takes_no_turn(on_calls: Any) -> None:
    async def scenario(calls: Calls) -> None:
        session = calls.session()
        for text in ("a = 1", "a = "):
            await calls.api.call(session.consumers.attach(1, "c", "plain", SelectorText(text), 0))
        refused = [each for each in session.outbox.take() if isinstance(each, Failed)]
        assert [each.why.reason for each in refused] == ["filter_not_enabled"] * 2
        assert calls.turns == []

    on_calls(scenario)


@pytest.mark.parametrize("queue", ["plain", "kept"])
def test_the_properties_of_a_batch_take_a_turn_and_its_bodies_do_not(on_calls: Any, queue: str) -> None:
    async def scenario(calls: Calls) -> None:
        session = calls.session()
        first = 1
        for some in (
            [with_properties(500)],
            [with_properties(3_000)],
            [with_properties(9_000 + n) for n in range(5)],
        ):
            batch = encode_batch(some).data
            await calls.api.call(session.publisher.publish(queue, first, 1, batch))
            first += len(some)
        assert [owner for owner, _ in calls.turns] == [OWNER] * 2
        assert [steps // 100 for _, steps in calls.turns] == [7, 112]
        assert calls.turns[-1][1] > LARGE_STEPS
        while session._commands.undecided:
            await calls.api.call(asyncio.sleep(0))
        assert session.outbox.has_decisions

    on_calls(scenario)


def test_each_queue_of_a_list_takes_a_turn_while_its_policy_is_unknown(on_calls: Any) -> None:
    """200 patterns of many pieces take some milliseconds a queue."""

    async def scenario(calls: Calls) -> None:
        policy = ap.Policy(name="p", pattern="*p*l*a*i*n*x*y*z")
        policy.arguments["x-max-length"].integer = 5
        await calls.api.call(calls.api.admin.SetPolicy(ap.SetPolicyRequest(policy=policy), Context()))  # type: ignore[arg-type]
        for wanted in (2, 0):  # the second list knows the policies
            calls.turns.clear()
            assert [queue.name for queue in (await calls.api.list()).queues] == ["kept", "plain"]
            assert [steps for _, steps in calls.turns] == [2] * wanted

    on_calls(scenario)


def test_a_publish_of_one_call_takes_a_turn(on_calls: Any) -> None:
    async def scenario(calls: Calls) -> None:
        for size in (500, 3_000):
            message = pb.Message(body=b"x" * 9_000)
            message.properties.application_properties["a"].text = "x" * size
            request = pb.PublishRequest(queue="kept", messages=[message])
            answer = await calls.api.call(calls.api.queues.Publish(request, Context()))  # type: ignore[arg-type]
            assert answer.count == 1
        assert [(owner, steps // 100) for owner, steps in calls.turns] == [(OWNER, 7)]

    on_calls(scenario)


def test_a_batch_for_several_queues_takes_turns(on_calls: Any) -> None:
    async def scenario(calls: Calls) -> None:
        session = calls.session()
        batch = encode_batch([with_properties(3_000), with_properties(3_000)]).data
        keys = ["plain", "kept"]
        await calls.api.call(session.publisher.publish("", 1, 1, batch, routing_keys=keys))
        assert calls.turns
        assert {owner for owner, _ in calls.turns} == {OWNER}

    on_calls(scenario)


def test_steps_are_counted_without_bodies_and_their_ends() -> None:
    plain = pb.MessageBatch(count=1_000, bodies=b"x" * 100_000, body_ends=range(100, 100_100, 100))
    assert batches.check_steps(plain.SerializeToString()) == 0
    plain.shared_properties.subject = "x" * 10_000
    assert batches.check_steps(plain.SerializeToString()) == pytest.approx(2_500, abs=10)
    assert batches.check_steps(b"\xff" * 10_000) == 2_500, "no batch"
    unusual = pb.MessageBatch(bodies=b"x" * 9_000).SerializeToString()
    assert batches.check_steps(b"\x08\x01" * 5 + unusual) > 2_000, "the bodies are not among the first fields"
