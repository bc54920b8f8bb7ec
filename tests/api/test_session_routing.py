"""Batches with routing keys: the default exchange, and what each group gets of a batch (session_routes.py,
routing.py, group_parts.py). The groups are real machines."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import Confirmed, Refused
from fifo.queries import group as queries
from quorum.api.session import session_routes
from quorum.api.session.client_session import MAX_UNDECIDED_ROWS
from quorum.api.session.outcomes import Confirms
from quorum.api.status import Code, StatusError
from quorum.catalog.bindings import Binding
from quorum.client.messages.batch import Message, encode_batch
from quorum.client.session.limits import Limits
from quorum.node import events as ev
from quorum.node.queries import FindTaken, Query, TakenMessages
from quorum.node.wire import batches
from quorum.node.wire import operations as op
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import queue_pb2 as pb
from quorum_selectors.columns import decode
from support.members.publishing_node import QUEUES, Node, on_node


def test_messages_for_two_queues_of_a_group_are_one_command_with_the_bytes_as_they_came() -> None:
    async def scenario(node: Node) -> None:
        data = encode_batch([Message(b"%d" % n) for n in range(4)]).data
        await node.session.publisher.publish("", 1, 1, data, routing_keys=["a", "b", "b", "a"])
        [sent] = node.sent
        assert sent.batch is data
        node.groups_answer()
        assert node.told() == dict.fromkeys(range(1, 5), "")
        assert (node.bodies("a"), node.bodies("b")) == ([b"0", b"3"], [b"1", b"2"])

    on_node(scenario)


def test_each_group_gets_its_messages_with_their_numbers() -> None:
    async def scenario(node: Node) -> None:
        assert await node.publish(["a", "far", "a", "b", "far"]) == dict.fromkeys(range(1, 6), "")
        near, far = node.commands
        assert (near.numbers, near.count) == (((1, 1), (3, 2)), 3)
        assert (far.numbers, far.count) == (((2, 1), (5, 1)), 2)
        assert node.bodies("a") == [b"1", b"3"]
        assert node.bodies("b") == [b"4"]
        assert node.bodies("far") == [b"2", b"5"]

    on_node(scenario)


def test_a_part_with_neighbours_for_one_queue_is_an_ordinary_command() -> None:
    async def scenario(node: Node) -> None:
        await node.publish(["a", "a", "far", "far"])
        assert [(each.queue, each.targets, each.numbers) for each in node.commands] == [
            (1, (), ()),
            (6, (), ()),
        ]
        assert node.bodies("far") == [b"3", b"4"]

    on_node(scenario)


def test_priorities_are_extracted_for_queues_that_have_them() -> None:
    async def scenario(node: Node) -> None:
        bodies = [Message(b"%d" % number, {"priority": number + 3}) for number in range(3)]
        wanted = {
            ("a", "b", "a"): b"",
            ("a", "urgent", "b"): b"\x03\x04\x05",
            ("urgent",) * 3: b"\x03\x04\x05",
        }
        for place, keys in enumerate(wanted):
            assert set((await node.publish(keys, bodies, 1 + 3 * place)).values()) == {""}
        assert [command.priorities for command in node.commands] == list(wanted.values())
        found = queries.info(node.groups[1], QUEUES["urgent"].id)
        assert found is not None
        assert found.ready_levels == ((5, 1), (4, 2), (3, 1))

    on_node(scenario)


@pytest.mark.parametrize("keys", [["a", "a", "a"], ["a"]])
def test_keys_that_are_all_the_same_cost_nothing(keys: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.publish(keys)
        [command] = node.commands
        assert (command.queue, command.targets) == (1, ())

    on_node(scenario)


def test_independent_messages_are_refused_by_themselves() -> None:
    async def scenario(node: Node) -> None:
        keys = ["a", "no such queue", "far full", "b", "far full", "full", "full", "far"]
        bodies = [Message(bytes(1_001) if number == 3 else b"%d" % number) for number in range(8)]
        assert await node.publish(keys, bodies, independent=True) == {
            1: "", 2: "not_found", 3: "", 4: "message_too_large", 5: "queue_full", 6: "", 7: "queue_full", 8: "",
        }  # fmt: skip
        assert (node.bodies("a"), node.bodies("b")) == ([b"0"], [])
        assert (node.bodies("far full"), node.bodies("far")) == ([b"2"], [b"7"])
        assert node.bodies("full") == [b"5"]

    on_node(scenario)


@pytest.mark.parametrize(
    ("keys", "size", "why"),
    [(["a", "nobody", "far"], 1, "not_found"), (["a", "b", "far"], 1_001, "message_too_large")],
)
def test_another_batch_is_refused_before_anything_is_taken(keys: list[str], size: int, why: str) -> None:
    async def scenario(node: Node) -> None:
        bodies = [Message(b"x"), Message(bytes(size)), Message(b"x")]
        assert await node.publish(keys, bodies) == {1: why, 2: why, 3: why}
        assert node.commands == []
        assert node.barriers == (why == "not_found"), "unknown names are looked up together"
        assert await node.publish(["a", "far"], first=4) == {4: "", 5: ""}

    on_node(scenario)


def test_many_unknown_names_are_one_look_at_the_current_catalog() -> None:
    async def scenario(node: Node) -> None:
        keys = [f"nobody {number}" for number in range(50)] + ["a"]
        found = await node.publish(keys, independent=True)
        assert (found[50], found[51]) == ("not_found", "")
        assert node.barriers == 1

    on_node(scenario)


def test_a_session_is_full_if_its_undecided_messages_may_have_thousands_of_outcomes() -> None:
    """Its client says that all messages before are confirmed, and they have few bytes."""

    async def scenario(node: Node) -> None:
        data = encode_batch([Message(b"")] * 4_000).data
        requests = 0
        while not node.session.is_full:
            first = 1 + 4_000 * requests
            await node.session.publisher.publish("", first, first, data, routing_keys=["a", "b"] * 2_000)
            requests += 1
            assert requests < 10
        assert requests == 3
        assert node.session.publisher.size_bytes < node.hub.session_window, "it is not full of bytes"
        node.groups_answer()
        assert not node.session.is_full

    on_node(scenario)


def test_a_client_that_keeps_to_its_window_does_not_fill_a_session() -> None:
    """A range of its window may be one of its numbers, and one of a queue's messages."""
    assert 2 * Limits().max_window_ranges < MAX_UNDECIDED_ROWS


def test_each_queue_gets_the_fields_that_it_keeps() -> None:
    async def scenario(node: Node) -> None:
        rows = [{"colour": "red", "size": number} for number in range(4)]
        bodies = [Message(b"x", None, row) for row in rows]
        await node.publish(["red", "a", "red", "far"], bodies)
        [red, plain] = node.commands[0].targets
        assert (red.queue, plain.queue, bytes(plain.columns)) == (4, 1, b"")
        fields = decode(red.columns, 2)
        assert [dict(fields.row(number)) for number in range(2)] == [
            {"application-properties.colour": "red"}
        ] * 2

    on_node(scenario)


def test_shared_properties_are_the_fields_of_all() -> None:
    async def scenario(node: Node) -> None:
        batch = pb.MessageBatch(count=2, bodies=b"xy", body_ends=[1, 2])
        batch.shared_properties.application_properties["colour"].text = "blue"
        await node.session.publisher.publish("", 1, 1, batch.SerializeToString(), routing_keys=["red", "a"])
        node.groups_answer()
        [red, _] = node.commands[0].targets
        assert dict(decode(red.columns, 1).row(0)) == {"application-properties.colour": "blue"}

    on_node(scenario)


def test_a_queue_that_keeps_few_bytes_refuses_its_own_messages_only() -> None:
    async def scenario(node: Node) -> None:
        bodies = [Message(b"x", None, {"colour": "r" * size}) for size in (10, 300, 300)]
        keys = ["small", "small", "red"]
        assert await node.publish(keys, bodies, independent=True) == {1: "", 2: "metadata_too_large", 3: ""}

    on_node(scenario)


def test_a_session_that_comes_back_has_each_message_once() -> None:
    """It sends all of them again, because it heard nothing; some cannot be routed any more."""

    async def body() -> None:
        node = Node()
        node.session.open(b"p" * 16, 1, owner=9)
        keys = ["a", "far", "b", "far", "a"]
        await node.publish(keys)
        again = Node(2, node.groups)
        again.session.open(b"p" * 16, 2, owner=9)
        assert await again.publish(keys) == dict.fromkeys(range(1, 6), "")
        assert (again.bodies("a"), again.bodies("far")) == ([b"1", b"5"], [b"2", b"4"])
        third = Node(3, node.groups)
        third.session.open(b"p" * 16, 3, owner=9)
        wrong = ["a", "far", "nobody", "far", "b"]
        found = await third.publish(wrong, first=1)
        assert found == {1: "", 2: "", 3: "not_found", 4: "", 5: ""}, "those that were taken are confirmed"
        assert third.bodies("b") == [b"3"]

    asyncio.run(body())


async def came_back(node: Node) -> Node:
    """The same producer in a later session, at another node."""
    again = Node(node.epoch + 1, node.groups)
    again.session.open(b"p" * 16, again.epoch, owner=9)
    return again


TOO_LARGE = Message(bytes(2_000))


def test_of_a_batch_that_is_refused_now_only_what_was_taken_before_is_confirmed() -> None:
    async def body() -> None:
        node = Node()
        node.session.open(b"p" * 16, 1, owner=9)
        for first in (2, 4):
            await node.publish(["a"], first=first)
        again = await came_back(node)
        found = await again.publish(["a"] * 5, [TOO_LARGE] * 5)
        assert found == {1: "message_too_large", 2: "", 3: "message_too_large", 4: "", 5: "message_too_large"}

    asyncio.run(body())


def test_a_message_that_is_refused_now_was_taken_only_if_all_of_its_groups_have_taken_it() -> None:
    async def body() -> None:
        node = Node()
        node.session.open(b"p" * 16, 1, owner=9)
        bindings = [
            Binding(number, "amq.fanout", "queue", name, "") for number, name in enumerate(("a", "far"), 1)
        ]
        node.change_routes(*bindings)
        await node.publish(["any"], exchange="amq.fanout")
        data = encode_batch([b"2"]).data
        await node.session.publisher.publish("any", 2, 1, data, exchange="amq.fanout")
        node.sent = [each for each in node.sent if each.group == 1]
        node.groups_answer()
        assert (node.bodies("a"), node.bodies("far")) == ([b"1", b"2"], [b"1"])
        again = await came_back(node)
        again.change_routes(*bindings)
        found = await again.publish(
            ["any"] * 3, [TOO_LARGE, TOO_LARGE, Message(b"3")], exchange="amq.fanout", independent=True
        )
        assert found == {1: "", 2: "message_too_large", 3: ""}

    asyncio.run(body())


def test_a_session_that_its_group_does_not_know_any_more_refuses_nothing() -> None:
    async def body() -> None:
        node = Node()
        node.session.open(b"p" * 16, 1, owner=9)
        await node.publish(["a"])
        again = await came_back(node)

        async def query(question: Query[Any]) -> None:
            return None

        again.hub.requests.query = query  # type: ignore[method-assign, assignment]
        with pytest.raises(StatusError) as ended:
            await again.publish(["a"], [TOO_LARGE])
        assert ended.value.status.code == Code.UNAVAILABLE, "its client sends the batch again"
        assert again.told() == {}

    asyncio.run(body())


def test_an_unknown_exchange_is_looked_up_and_refused() -> None:
    async def scenario(node: Node) -> None:
        data = encode_batch([Message(b"x"), Message(b"y")]).data
        await node.session.publisher.publish("a", 1, 1, data, exchange="nowhere")
        assert node.barriers == 1
        [confirms] = node.session.outbox.take()
        assert isinstance(confirms, Confirms)
        [rejection] = confirms.rejected
        assert (rejection.span.first, rejection.span.last, rejection.why.code.name) == (1, 2, "NOT_FOUND")
        assert rejection.why.reason == "no_exchange"
        assert "no exchange 'nowhere'" in rejection.why.message
        assert node.sent == []

    on_node(scenario)


@pytest.mark.parametrize(
    ("key", "keys", "count"),
    [("a", ["a", "b"], 2), ("", ["a", "b"], 3), ("", ["a"], 2), ("", ["a", "b"] * 2_049, 4_098)],
)
def test_routing_keys_that_do_not_fit_the_batch_are_refused(key: str, keys: list[str], count: int) -> None:
    async def scenario(node: Node) -> None:
        data = encode_batch([Message(b"x")] * count).data
        await node.session.publisher.publish(key, 1, 1, data, routing_keys=keys)
        assert node.told() == dict.fromkeys(range(1, count + 1), "bad_batch")
        assert node.sent == []

    on_node(scenario)


def test_a_queue_that_was_made_again_ends_the_session_so_that_its_client_sends_again() -> None:
    async def scenario(node: Node) -> None:
        data = encode_batch([Message(b"x"), Message(b"y")]).data
        await node.session.publisher.publish("", 1, 1, data, routing_keys=["a", "b"])
        [sent] = node.sent
        made = replace(QUEUES["b"], id=50)
        node.hub._dispatch(
            [ev.CatalogChanged((made,), (QUEUES["b"].id,), (), 99, 1, 1, 1, (1, 2), is_whole=False)]
        )
        missing = Refused("not_found", "no queue 2 in this group")
        node.hub._dispatch([ev.Answered(sent.session, sent.token, Confirmed(1, 2, ((2, 2, missing),)))])
        with pytest.raises(StatusError, match="again"):
            async for _ in node.session.outcomes():
                pass

    on_node(scenario)


def test_numbers_that_were_used_are_refused() -> None:
    async def scenario(node: Node) -> None:
        await node.publish(["a", "b"])
        assert await node.publish(["a", "b"]) == {1: "wrong_sequence", 2: "wrong_sequence"}
        assert await node.publish(["a", "b"], first=3, lowest=3) == {3: "", 4: ""}

    on_node(scenario)


# ---- what a batch may cost


def sharing(count: int, fields: int) -> bytes:
    """A batch of messages that share so many application properties."""
    made = pb.MessageBatch(count=count, body_ends=[0] * count)
    made.shared_properties.SetInParent()
    for number in range(fields):
        made.shared_properties.application_properties[f"field {number}"].integer = number
    return made.SerializeToString()


def with_names(count: int, fields: int) -> list[Message]:
    """Messages with so many application properties each; no two messages have a name in common."""
    return [
        Message(b"%d" % number, None, {f"field {number} {field}": 1 for field in range(fields)})
        for number in range(count)
    ]


@pytest.mark.parametrize("independent", [False, True])
def test_shared_properties_that_many_queues_keep_are_refused_before_columns_are_made(
    independent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    encode = batches.columns.encode_shared
    monkeypatch.setattr(
        batches.columns, "encode_shared", lambda row, count: made.append(len(row)) or encode(row, count)
    )

    async def scenario(node: Node) -> None:
        keys = [f"all {number}" for number in range(5)] + ["far"]
        await node.session.publisher.publish(
            "", 1, 1, sharing(6, 1_000), routing_keys=keys, independent=independent
        )
        node.groups_answer()
        why = "metadata_too_large"
        assert node.told() == dict.fromkeys(range(1, 6), why) | {6: "" if independent else why}
        assert sum(made) <= batches.MAX_BATCH_COLUMNS

    on_node(scenario)


def test_the_fields_of_a_batch_are_no_more_than_its_limit_while_its_queues_get_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The columns of all queues were made before their size was looked at."""
    made: list[int] = []
    encode = batches.columns.encode_shared
    monkeypatch.setattr(
        batches.columns, "encode_shared", lambda row, count: made.append(count) or encode(row, count)
    )
    monkeypatch.setattr(batches, "MAX_STORED_BYTES", 30_000)

    async def scenario(node: Node) -> None:
        shared = pb.Properties(application_properties={"long": pb.Value(text="x" * 10_000)})
        data = pb.MessageBatch(count=5, body_ends=[0] * 5, shared_properties=shared).SerializeToString()
        keys = [f"all {number}" for number in range(5)]
        await node.session.publisher.publish("", 1, 1, data, routing_keys=keys)
        assert node.told() == dict.fromkeys(range(1, 6), "batch_too_large")
        assert len(made) == 2

    on_node(scenario)


def test_independent_messages_with_too_many_fields_together_are_sent_in_parts() -> None:
    async def scenario(node: Node) -> None:
        keys = [f"all {number}" for number in range(5)]
        messages = with_names(5, 1_000)
        assert await node.publish(keys, messages) == dict.fromkeys(range(1, 6), "metadata_too_large")
        assert await node.publish(keys, messages, first=6, independent=True) == dict.fromkeys(
            range(6, 11), ""
        )
        assert [command.count for command in node.commands] == [2, 3]

    on_node(scenario)


@pytest.mark.parametrize(
    ("name", "messages", "limit"),
    [
        ("a", [Message(b"x" * 1_000)] * 20, 8_000),
        ("all 1", with_names(9, 1_000), 1_000_000),
        ("a", [Message(b"", None, dict.fromkeys("abcdefgh", number)) for number in range(200)], 1_000_000),
    ],
    ids=["bytes", "names", "fields"],
)
def test_independent_messages_that_exceed_a_limit_together_are_sent_in_parts(
    name: str, messages: list[Message], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_BATCH_FIELDS", 1_000 if name == "a" else 131_072)

    async def scenario(node: Node) -> None:
        keys, numbers = [name] * len(messages), range(1, len(messages) + 1)
        assert await node.publish(keys, messages, independent=True) == dict.fromkeys(numbers, "")
        assert len(node.commands) > 1
        assert node.bodies(name) == [message.body for message in messages]
        told = await node.publish(keys, messages, first=1_000)
        assert set(told.values()) in ({"batch_too_large"}, {"metadata_too_large"})

    on_node(scenario, BatchLimits(5_000, 1_000, limit))


def test_what_is_left_of_an_independent_batch_is_one_command() -> None:
    async def scenario(node: Node) -> None:
        bodies = [Message(bytes(1_001) if number % 3 == 1 else b"%d" % number) for number in range(9)]
        told = await node.publish(["a"] * 9, bodies, independent=True)
        assert told == {number + 1: "message_too_large" if number % 3 == 1 else "" for number in range(9)}
        [command] = node.commands
        assert command.numbers == ((1, 1), (3, 2), (6, 2), (9, 1))
        assert node.bodies("a") == [b"0", b"2", b"3", b"5", b"6", b"8"]

    on_node(scenario)


def test_an_independent_batch_of_a_name_too_long_for_a_column_is_refused() -> None:
    """It ended the session without a reason."""

    async def scenario(node: Node) -> None:
        shared = pb.Properties(application_properties={"x" * 65_520: pb.Value(integer=1)})
        data = pb.MessageBatch(count=2, body_ends=[0, 0], shared_properties=shared).SerializeToString()
        for first, keys in ((1, ["all 1"] * 2), (3, ["all 1", "all 2"])):
            await node.session.publisher.publish("", first, 1, data, routing_keys=keys, independent=True)
            assert node.told() == dict.fromkeys((first, first + 1), "metadata_too_large")

    on_node(scenario)


def test_a_queue_that_keeps_few_bytes_refuses_shared_properties_for_its_own_messages_only() -> None:
    async def scenario(node: Node) -> None:
        shared = pb.Properties(application_properties={"colour": pb.Value(text="r" * 300)})
        data = pb.MessageBatch(count=3, body_ends=[0] * 3, shared_properties=shared).SerializeToString()
        keys = ["a", "small", "red"]
        await node.session.publisher.publish("", 1, 1, data, routing_keys=keys, independent=True)
        node.groups_answer()
        assert node.told() == {1: "", 2: "metadata_too_large", 3: ""}

    on_node(scenario)


@pytest.mark.parametrize(
    "keys", [["all 0"] * 4, ["all 0", "all 1", "a", "all 1"]], ids=["one queue", "several"]
)
def test_the_window_counts_what_an_operation_has_in_the_log(keys: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.session.publisher.publish("", 1, 1, sharing(4, 500), routing_keys=keys)
        [sent] = node.sent
        stored = len(op.encode(sent.command, c.Origin(bytes(16), 1, 1), sent.batch))
        assert stored > len(sent.batch) + 15_000, "it has columns"
        assert stored - 200 < node.session.publisher.size_bytes == node.hub.publishing.used < stored + 200
        node.groups_answer()
        assert node.session.publisher.size_bytes == node.hub.publishing.used == 0
        await node.session.publisher.publish("", 5, 1, sharing(4, 500), routing_keys=keys)
        node.session.publisher.release()
        assert node.hub.publishing.used == 0

    on_node(scenario)


def test_a_refused_batch_of_a_session_that_comes_back_is_one_question_to_each_group() -> None:
    async def body() -> None:
        node = Node()
        node.session.open(b"p" * 16, 1, owner=9)
        await node.publish(["a", "far", "b"])
        again = Node(2, node.groups)
        again.session.open(b"p" * 16, 2, owner=9)
        asked: list[FindTaken] = []

        async def query(question: Query[Any]) -> TakenMessages | None:
            assert isinstance(question, FindTaken)
            asked.append(question)
            return await node.query(replace(question, epoch=2))

        again.hub.requests.query = query  # type: ignore[method-assign, assignment]
        keys = ["a", "far", "b", "full", "far full", "a", "nobody", "b"]
        assert await again.publish(keys) == {1: "", 2: "", 3: "", **dict.fromkeys(range(4, 9), "not_found")}
        assert [(question.group, question.first, question.last) for question in asked] == [
            (1, 1, 8),
            (2, 2, 5),
        ]
        assert again.barriers == 2 + 1, "one for the unknown name, one for each group's queues"

    asyncio.run(body())


def test_a_session_remembers_a_limited_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_routes, "MAX_KNOWN", 2)

    async def scenario(node: Node) -> None:
        routes = node.session.publisher._routes
        for first, names in enumerate((["a", "b", "red"], ["red", "full"], ["a"], ["b"], ["far", "red"])):
            told = await node.publish(names, first=1 + 10 * first)
            assert set(told.values()) == {""}
            assert len(routes._kept) <= 2 + len(names)

    on_node(scenario)
