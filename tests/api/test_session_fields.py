"""Which filter fields a session extracts: those that a queue keeps when the session first publishes to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Refused
from fifo.versions import CURRENT
from quorum.api.filters import kept_fields
from quorum.api.hub import Hub
from quorum.api.session_service import Stream, _Attaching, _Consumer
from quorum.api.status import StatusError
from quorum.api.status import unavailable as no_leader
from quorum.catalog.commands import DeclareQueue, SetPolicy
from quorum.catalog.machine import CatalogMachine
from quorum.client.batch import Message, encode_batch
from quorum.node import events as ev
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import queue_pb2 as pb
from quorum_selectors.columns import decode

PRODUCER = b"p" * 16
BATCH = encode_batch([Message(b"x", application_properties={"colour": "red", "size": 3})]).data


class Node:
    """The asyncio side of a node whose catalog may lag behind: a question about now first applies `to_come`."""

    def __init__(self) -> None:
        self.catalog = CatalogMachine((1,))
        self.n = 0
        self.apply(c.RegisterProducer(c.Address(1, 1, 1)))
        self.to_come: list[SetPolicy] = []
        self.asked_now = 0
        self.sent: list[ev.Submit] = []
        self.is_without_leader = False
        self.hub = Hub(None, None, BatchLimits(10, 1_000, 10_000), 10_000, 10_000)  # type: ignore[arg-type]
        self.hub.attach(self)  # type: ignore[arg-type]
        self.hub.ask_now = self.ask_now  # type: ignore[method-assign, assignment]
        group = SimpleNamespace(was_deleted=lambda queue: False)
        self.hub.member = SimpleNamespace(  # type: ignore[assignment]
            catalog=self.catalog, queue_machine=lambda number: group
        )

    def apply(self, command: Any) -> None:
        operation = c.Operation(0, c.Origin(PRODUCER, 1, self.n), command)
        self.n += 1
        self.catalog.apply(c.Meta(self.n, 1, 1_000, CURRENT), (operation,))

    async def ask_now(self, question: Callable[[Any], Any], groups: tuple[int, ...]) -> Any:
        assert groups == (SYSTEM_GROUP,)
        if self.is_without_leader:
            raise no_leader("no_leader", "the system group has no leader")
        self.asked_now += 1
        for command in self.to_come:
            self.apply(command)
        self.to_come.clear()
        return question(self.hub.member)

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        self.sent += [item for item in items if isinstance(item, ev.Submit)]

    async def publish(self, stream: Stream, queue: str) -> dict[str, Any] | None:
        """The fields that went along; None if the queue keeps none."""
        sequence = stream._next_sequence
        await stream._publish(
            pb.PublishBatch(queue=queue, first_sequence=sequence, lowest_unconfirmed=1, batch=BATCH)
        )
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
        early = Stream(node.hub)
        assert await node.publish(early, "f1") == COLOUR
        node.apply(policy("size"))
        assert await node.publish(early, "f1") == COLOUR
        assert await node.publish(early, "f2") == SIZE, "it begins there only now"
        assert await node.publish(Stream(node.hub), "f1") == SIZE
        assert await node.publish(early, "f1") == COLOUR

    on_node(scenario)


def test_a_node_that_lags_behind_learns_of_a_change_before_a_session_begins() -> None:
    async def scenario(node: Node) -> None:
        node.to_come.append(policy("size"))
        stream = Stream(node.hub)
        assert await node.publish(stream, "f1") == SIZE
        assert await node.publish(stream, "f1") == SIZE
        assert node.asked_now == 1, "once a session and queue"

    on_node(scenario)


def test_a_plain_queue_asks_nobody() -> None:
    async def scenario(node: Node) -> None:
        node.is_without_leader = True
        stream = Stream(node.hub)
        assert await node.publish(stream, "plain") is None
        with pytest.raises(StatusError, match="no leader"):  # the session ends, and its client sends again
            await node.publish(stream, "f1")
        assert len(node.sent) == 1

    on_node(scenario)


def test_a_queue_that_does_not_filter_keeps_nothing_whatever_the_policies() -> None:
    async def scenario(node: Node) -> None:
        node.apply(SetPolicy("all", "*", 1, (("x-filter-field-names", "colour"),)))
        queue = node.catalog.queue("plain")
        assert queue is not None
        assert kept_fields(node.catalog, queue) == (None, -1)

    on_node(scenario)


def test_a_consumer_whose_attaching_again_is_refused_stays_attached() -> None:
    async def scenario(node: Node) -> None:
        stream = Stream(node.hub)
        queue = node.catalog.queue("plain")
        assert queue is not None
        consumer = stream._consumers["t"] = _Consumer("t", 1, 1, attaching=2)
        stream._under_way = 3
        stream.answered(_Attaching(queue, 1, consumer), AttachedReply(7))
        stream.answered(_Attaching(queue, 2, consumer), Refused("field_not_kept", "no such field"))
        assert stream._consumers == {"t": consumer}
        fresh = stream._consumers["u"] = _Consumer("u", 1, 1, attaching=1)
        stream.answered(_Attaching(queue, 3, fresh), Refused("field_not_kept", "no such field"))
        assert list(stream._consumers) == ["t"]

    on_node(scenario)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_refused_attaching_leaves_the_one_that_was_asked_for_after_it(is_cancelled: bool) -> None:
    async def scenario(node: Node) -> None:
        stream = Stream(node.hub)
        await stream._attach(pb.Attach(request_id=1, consumer_tag="t", queue="f1", selector="gone = 1"))
        if is_cancelled:
            stream._cancel(pb.Cancel(consumer_tag="t", return_held=True))
        await stream._attach(pb.Attach(request_id=2, consumer_tag="t", queue="f1"))
        refused, *_, taken = [item.token for item in node.sent]
        stream.answered(refused, Refused("field_not_kept", "no such field"))
        stream.answered(taken, AttachedReply(7))
        assert stream._consumers["t"].attach == 7, "what is delivered to it is dropped"

    on_node(scenario)
