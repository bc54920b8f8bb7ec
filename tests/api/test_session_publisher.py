"""The numbers of a session's messages, and what ends the session instead of refusing them
(quorum/api/session/publisher.py). The groups are real machines."""

from __future__ import annotations

from typing import Any

import pytest

from quorum.api import status
from quorum.api.session.session_routes import Route
from quorum.api.status import StatusError
from quorum.client.messages.batch import Message, encode_batch
from quorum.node.queries import Query
from support.members.publishing_node import Node, on_node

WAYS: dict[str, dict[str, Any]] = {
    "a queue": {"keys": ["nowhere", "nowhere"]},
    "queues": {"keys": ["a", "nowhere"]},
    "an exchange": {"keys": ["nowhere", "nowhere"], "exchange": "amq.direct", "mandatory": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_while_the_catalog_cannot_be_asked_nothing_is_refused(way: str) -> None:
    """The session ends, and the client sends the batch again: the queue may be there by then."""

    async def scenario(node: Node) -> None:
        current = node.hub.requests.query_current

        async def no_leader(query: Query[Any]) -> None:
            raise status.unavailable("no_leader", "the system group has no leader")

        node.hub.requests.query_current = no_leader  # type: ignore[method-assign, assignment]
        with pytest.raises(StatusError, match="no leader"):
            await node.publish(**WAYS[way])
        assert (node.told(), node.sent) == ({}, [])
        node.hub.requests.query_current = current  # type: ignore[method-assign]
        told = await node.publish(**WAYS[way])
        assert set(told) == {1, 2} and "wrong_sequence" not in told.values()

    on_node(scenario)


def test_a_batch_for_one_queue_that_nobody_can_look_up_ends_the_session() -> None:
    async def scenario(node: Node) -> None:
        async def no_leader(query: Query[Any]) -> None:
            raise status.unavailable("no_leader", "the system group has no leader")

        node.hub.requests.query_current = no_leader  # type: ignore[method-assign, assignment]
        with pytest.raises(StatusError, match="no leader"):
            await node.session.publisher.publish("nowhere", 1, 1, encode_batch([b"1"]).data)
        assert (node.told(), node.sent) == ({}, [])

    on_node(scenario)


def test_what_several_groups_have_taken_before_is_confirmed_in_the_order_of_its_numbers() -> None:
    """The user has lost its permission since then."""

    async def scenario(node: Node) -> None:
        node.session.open(b"p" * 16, 1, owner=9)
        assert await node.publish(["far", "a"]) == {1: "", 2: ""}
        again = Node(2, node.groups)
        again.session.open(b"p" * 16, 2, owner=9)
        batch = encode_batch([b"1", b"2", b"3"]).data
        why = status.StatusError(status.make(status.Code.PERMISSION_DENIED, "not_permitted", "no"))
        await again.session.publisher.refuse(Route("", "a", ()), 1, 1, batch, why)
        assert again.told() == {1: "", 2: "", 3: "not_permitted"}

    on_node(scenario)


def test_a_number_of_a_queue_is_used_once() -> None:
    async def scenario(node: Node) -> None:
        assert await node.publish(["a", "a"]) == {1: "", 2: ""}
        assert await node.publish(["a"], first=2) == {2: "wrong_sequence"}
        assert await node.publish(["a"], first=3) == {3: ""}
        assert node.bodies("a") == [b"1", b"2", b"3"]

    on_node(scenario)


@pytest.mark.parametrize("keys", [["a", "a"], ["a", "b"], ["a", "far"]])
def test_each_group_hears_from_which_number_on_the_client_has_undecided_messages(keys: list[str]) -> None:
    """A group that forgot more would take a message again that it has taken."""

    async def scenario(node: Node) -> None:
        await node.publish(keys, first=5, lowest=2)
        assert node.commands and {each.lowest_unconfirmed for each in node.commands} == {2}

    on_node(scenario)


@pytest.mark.parametrize("keys", [["a", "a"], ["a", "b"]])
def test_immediate_messages_are_refused_where_no_consumer_takes_them(keys: list[str]) -> None:
    async def scenario(node: Node) -> None:
        told = await node.publish(keys, [Message(b"1"), Message(b"2")], immediate=True)
        assert set(told) == {1, 2} and "" not in told.values()
        assert node.bodies("a") == node.bodies("b") == []

    on_node(scenario)
