"""Routes of the messages of a batch, from what the router says of each (routing.py): keys, properties, steps, turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from quorum.api.session import routing
from quorum.api.session.routing import STEPS_AT_A_TIME, STEPS_OF_A_TURN, Routes, Turn
from quorum.catalog.router import MAX_STEPS, Fields, Routed, TooManySteps
from quorum.client.messages.batch import Message, encode_batch
from quorum.node.wire.batches import StoredBatch
from quorum_selectors.known_fields import APPLICATION

Rule = Callable[[str, Callable[[], Fields]], Routed]
"""What the router says of a message with this key and these properties."""
OWNER = 7


@dataclass
class Turns:
    """Gives every turn at once, and keeps its owner and its steps."""

    taken: list[tuple[int, int]] = field(default_factory=list)

    async def take(self, owner: int, steps: int) -> None:
        self.taken.append((owner, steps))


class Catalog:
    """A view of a catalog with the queues 'a', 'b' and 'deleted', and one exchange. A queue is its name here."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.routes = self
        self.router = self

    def queue(self, name: str) -> str | None:
        return name if name in ("a", "b", "deleted") else None

    def was_deleted(self, queue: str) -> bool:
        return queue == "deleted"

    def route(self, _: str, key: str, fields: Callable[[], Fields]) -> Routed:
        return self._rule(key, fields)


def _route(
    rule: Rule, keys: Sequence[str], messages: Sequence[Message], turns: Turns | None = None
) -> Routes:
    async def read() -> StoredBatch:
        return StoredBatch(encode_batch(messages).data)

    turn: Any = Turn(turns or Turns())  # type: ignore[arg-type]
    catalog: Any = Catalog(rule)
    return asyncio.run(routing.route(catalog, "exchange", keys, len(messages), read, turn, OWNER))


def _coloured(*colours: str) -> list[Message]:
    return [Message(b"x", None, {"colour": each}) for each in colours]


def _by_key(key: str, _: Callable[[], Fields]) -> Routed:
    return Routed((key,), 1)


def _by_colour(key: str, fields: Callable[[], Fields]) -> Routed:
    """To 'a' what is red, other messages to the queue that their key names."""
    is_red = fields().get(APPLICATION + "colour") == "red"
    return Routed(("a",) if is_red else (key,), 1)


def test_each_message_goes_by_its_own_key_and_its_own_properties() -> None:
    routes = _route(_by_colour, ["b", "a", "b"], _coloured("red", "blue", "blue"))
    assert routes.queues == [("a",), ("a",), ("b",)]
    assert not routes.is_alike


def test_one_key_for_all_messages_counts_for_each_of_them() -> None:
    routes = _route(_by_colour, ["b"], _coloured("red", "blue", "blue"))
    assert routes.queues == [("a",), ("b",), ("b",)]


def test_properties_that_all_messages_share_or_lack_give_them_one_route() -> None:
    for messages, expected in ((_coloured("red", "red"), "a"), ([Message(b"x"), Message(b"x")], "b")):
        routes = _route(_by_colour, ["b"], messages)
        assert routes.queues == [(expected,), (expected,)]
        assert routes.is_alike


def test_a_queue_that_is_gone_or_about_to_go_gets_nothing() -> None:
    """Its bindings may be known for a moment longer."""
    routes = _route(lambda *_: Routed(("a", "deleted", "gone"), 1), ["key"], [Message(b"x")])
    assert routes.queues == [("a",)]


def test_messages_with_the_same_queues_share_one_tuple() -> None:
    routes = _route(lambda *_: Routed(("a", "b"), 1), ["one", "two"], [Message(b"x")] * 2)
    assert routes.queues == [("a", "b")] * 2
    assert routes.queues[0] is routes.queues[1]


@pytest.mark.parametrize("keys", [["far", "a"], ["far"]])
def test_a_message_whose_route_takes_too_long_is_refused_and_pays_for_it(keys: list[str]) -> None:
    def rule(key: str, _: Callable[[], Fields]) -> Routed:
        if key == "far":
            raise TooManySteps("too many steps")
        return Routed((key,), 1)

    turns = Turns()
    routes = _route(rule, keys, [Message(b"x")] * 2, turns)
    assert [routes.refused[place].message for place in routes.refused] == ["too many steps"] * (3 - len(keys))
    assert routes.queues == [(), ("a",)] if len(keys) > 1 else [(), ()]
    assert turns.taken == ([(OWNER, MAX_STEPS // STEPS_OF_A_TURN)] if len(keys) > 1 else [])


def test_a_session_waits_for_its_turn_after_a_slice_of_work_and_pays_once() -> None:
    async def scenario() -> None:
        turns = Turns()
        turn = Turn(turns)  # type: ignore[arg-type]
        turn.spend(STEPS_AT_A_TIME)
        await turn.come(OWNER)
        assert turns.taken == [], "a slice is not over"
        turn.spend(2 * STEPS_OF_A_TURN)
        await turn.come(OWNER)
        await turn.come(OWNER)
        assert turns.taken == [(OWNER, STEPS_AT_A_TIME // STEPS_OF_A_TURN + 2)]

    asyncio.run(scenario())


def test_keys_that_repeat_are_looked_up_once() -> None:
    turns = Turns()
    asked: list[str] = []

    def rule(key: str, fields: Callable[[], Fields]) -> Routed:
        asked.append(key)
        return _by_key(key, fields)

    assert _route(rule, ["a", "b", "a"], [Message(b"x")] * 3, turns).queues == [("a",), ("b",), ("a",)]
    assert asked == ["a", "b"]
