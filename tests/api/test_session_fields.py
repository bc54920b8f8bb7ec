"""Which filter fields a session extracts: those that a queue keeps when the session first publishes to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Refused
from fifo.versions import CURRENT
from quorum.api.hub.filters import SelectorText, kept_fields
from quorum.api.hub.hub import Hub
from quorum.api.session.client_session import ClientSession
from quorum.api.status import StatusError
from quorum.api.status import unavailable as no_leader
from quorum.catalog.commands import DeclareQueue, SetPolicy
from quorum.catalog.machine import CatalogMachine
from quorum.client.messages.batch import Message, encode_batch
from quorum.node import events as ev
from quorum.node.queries import Query, ReadBarrier
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire.batches import BatchLimits
from quorum_selectors.columns import decode

PRODUCER = b"p" * 16
BATCH = encode_batch([Message(b"x", application_properties={"colour": "red", "size": 3})]).data


class Node:
    """The asyncio side of a node whose catalog may lag behind: a question about now first applies `to_come`."""

    def __init__(self) -> None:
        self.catalog = CatalogMachine((1,))
        self.n = 0
        self.to_come: list[SetPolicy] = []
        self.asked_now = 0
        self.sent: list[ev.Submit] = []
        self.is_without_leader = False
        self.hub = Hub("n1", None, BatchLimits(10, 1_000, 10_000), 10_000, 10_000)  # type: ignore[arg-type]
        self.hub.attach(self)  # type: ignore[arg-type]
        self.hub.requests.query_current = self.query_current  # type: ignore[method-assign, assignment]
        self.apply(c.RegisterProducer(c.Address(1, 1, 1)))

    def apply(self, command: Any) -> None:
        operation = c.Operation(0, c.Origin(PRODUCER, 1, self.n), command)
        self.n += 1
        self.catalog.apply(c.Meta(self.n, 1, 1_000, CURRENT), (operation,))
        queues, policies = tuple(self.catalog.queues()), tuple(self.catalog.policies.by_name.values())
        self.hub._dispatch([ev.CatalogChanged(queues, (), policies, 9, 0, 0, 0, (1,), is_whole=True)])

    async def query_current(self, query: Query[Any]) -> None:
        assert query == ReadBarrier((SYSTEM_GROUP,))
        if self.is_without_leader:
            raise no_leader("no_leader", "the system group has no leader")
        self.asked_now += 1
        for command in self.to_come:
            self.apply(command)
        self.to_come.clear()

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        self.sent += [item for item in items if isinstance(item, ev.Submit)]

    async def publish(self, session: ClientSession, queue: str) -> dict[str, Any] | None:
        """The fields that went along; None if the queue keeps none."""
        await session.publisher.publish(queue, session.publisher._numbers.next, 1, BATCH)
        command = self.sent[-1].command
        assert isinstance(command, c.Enqueue)
        return dict(decode(command.columns, 1).row(0)) if command.columns else None


def policy(names: str) -> SetPolicy:
    return SetPolicy("fields", "f*", 0, (("x-filter-field-names", names),))


def on_node(scenario: Callable[[Node], Any]) -> None:
    async def body() -> None:
        node = Node()
        node.apply(DeclareQueue("f1", (("x-filter-enabled", True),)))
        node.apply(DeclareQueue("f2", (("x-filter-enabled", True),)))
        node.apply(DeclareQueue("plain", ()))
        await scenario(node)

    asyncio.run(body())


COLOUR = {"application-properties.colour": "red"}
SIZE = {"application-properties.size": 3}


def test_a_session_goes_on_with_the_fields_it_began_with_and_later_ones_have_the_new() -> None:
    async def scenario(node: Node) -> None:
        node.apply(policy("colour"))
        early = ClientSession(node.hub)
        assert await node.publish(early, "f1") == COLOUR
        node.apply(policy("size"))
        assert await node.publish(early, "f1") == COLOUR
        assert await node.publish(early, "f2") == SIZE, "it begins there only now"
        assert await node.publish(ClientSession(node.hub), "f1") == SIZE
        assert await node.publish(early, "f1") == COLOUR

    on_node(scenario)


def test_a_node_that_lags_behind_learns_of_a_change_before_a_session_begins() -> None:
    async def scenario(node: Node) -> None:
        node.to_come.append(policy("size"))
        session = ClientSession(node.hub)
        assert await node.publish(session, "f1") == SIZE
        assert await node.publish(session, "f1") == SIZE
        assert node.asked_now == 1, "once a session and queue"

    on_node(scenario)


def test_a_plain_queue_asks_nobody() -> None:
    async def scenario(node: Node) -> None:
        node.is_without_leader = True
        session = ClientSession(node.hub)
        assert await node.publish(session, "plain") is None
        with pytest.raises(StatusError, match="no leader"):  # the session ends, and its client sends again
            await node.publish(session, "f1")
        assert len(node.sent) == 1

    on_node(scenario)


def test_a_queue_that_does_not_filter_keeps_nothing_whatever_the_policies() -> None:
    async def scenario(node: Node) -> None:
        node.apply(SetPolicy("all", "*", 1, (("x-filter-field-names", "colour"),)))
        queue = node.catalog.queue("plain")
        assert queue is not None
        assert kept_fields(node.hub.catalog, queue) == (None, -1)

    on_node(scenario)


def test_a_consumer_whose_attaching_again_is_refused_stays_attached() -> None:
    async def scenario(node: Node) -> None:
        session = ClientSession(node.hub)
        await session.consumers.attach(1, "t", "f1", None, 0)
        await session.consumers.attach(2, "t", "f1", None, 0)
        await session.consumers.attach(3, "u", "f1", None, 0)
        taken, again, fresh = [item.token for item in node.sent]
        session.answered(taken, AttachedReply(7))
        session.answered(again, Refused("field_not_kept", "no such field"))
        assert session.consumers.by_tag["t"].attach == 7
        session.answered(fresh, Refused("field_not_kept", "no such field"))
        assert list(session.consumers.by_tag) == ["t"]

    on_node(scenario)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_refused_attaching_leaves_the_one_that_was_asked_for_after_it(is_cancelled: bool) -> None:
    async def scenario(node: Node) -> None:
        session = ClientSession(node.hub)
        await session.consumers.attach(1, "t", "f1", SelectorText("gone = 1"), 0)
        if is_cancelled:
            session.consumers.cancel(0, "t", requeue=True)
        await session.consumers.attach(2, "t", "f1", None, 0)
        refused, *_, taken = [item.token for item in node.sent]
        session.answered(refused, Refused("field_not_kept", "no such field"))
        session.answered(taken, AttachedReply(7))
        assert session.consumers.by_tag["t"].attach == 7, "what is delivered to it is dropped"

    on_node(scenario)
