"""Publishing through exchanges: where messages go, what is told of them, and in which order (session/session_routes.py,
routing.py). The groups are real machines: group 1 has the queues a, b, full and red, group 2 far and far full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from fifo import commands as c
from fifo.limits import PRODUCTION
from fifo.queries import group as queries
from quorum.api.session import group_parts, routing
from quorum.api.session.group_parts import Part
from quorum.api.session.outcomes import Confirms
from quorum.api.shares import PlacesWindow
from quorum.api.status import StatusError
from quorum.catalog.bindings import Binding, Exchange
from quorum.client.messages.batch import Message, encode_batch
from quorum.node import events as ev
from quorum_selectors import canonical, jms
from support.counted_lines import count_lines
from support.members.publishing_node import QUEUES, Node, on_node

IDS = count(1)


def binding(
    source: str, to: str, key: str = "", *, kind: str = "queue", where: str = "", **arguments: Any
) -> Binding:
    encoded = canonical.encode(jms.parse(where)).hex() if where else ""
    return Binding(next(IDS), source, kind, to, key, tuple(sorted(arguments.items())), encoded)


def fanout(*queues: str) -> list[Binding]:
    return [binding("amq.fanout", queue) for queue in queues]


async def publish(node: Node, exchange: str, key: str, number: int = 3, **more: Any) -> dict[int, str]:
    """So many messages with one routing key."""
    data = more.pop("data", None) or encode_batch([Message(b"%d" % each) for each in range(number)]).data
    first = more.pop("first", 1)
    await node.session.publisher.publish(key, first, first, data, exchange=exchange, **more)
    node.groups_answer()
    return node.told()


def test_a_message_for_several_queues_of_a_group_is_stored_once() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a", "b", "full"))
        data = encode_batch([Message(b"0")]).data
        await node.session.publisher.publish("key", 1, 1, data, exchange="amq.fanout")
        [sent] = node.sent
        assert sent.batch is data
        assert [target.queue for target in sent.command.targets] == [1, 2, 3]  # type: ignore[union-attr]
        node.groups_answer()
        assert node.told() == {1: ""}
        assert node.bodies("a") == node.bodies("b") == node.bodies("full") == [b"0"]

    on_node(scenario)


def test_messages_have_their_priorities_in_every_queue_that_has_them() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a", "urgent"))
        data = encode_batch([Message(b"%d" % each, {"priority": each}) for each in (1, 4)]).data
        assert await publish(node, "amq.fanout", "", data=data) == {1: "", 2: ""}
        assert [command.priorities for command in node.commands] == [b"\x01\x04"]

    on_node(scenario)


def test_each_message_goes_where_its_key_leads() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(
            binding("amq.topic", "a", "*.eu"), binding("amq.topic", "b", "new.#"), binding("amq.topic", "far", "#")
        )  # fmt: skip
        keys = ["new.eu", "old.eu", "new.us", "none"]
        assert await node.publish(keys, exchange="amq.topic") == dict.fromkeys(range(1, 5), "")
        assert (node.bodies("a"), node.bodies("b")) == ([b"1", b"2"], [b"1", b"3"])
        assert node.bodies("far") == [b"1", b"2", b"3", b"4"]
        near, _ = node.commands
        assert (near.count, near.numbers) == (3, ())

    on_node(scenario)


def test_one_queue_costs_what_it_costs_by_its_name() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(binding("amq.direct", "a", "k"))
        assert await publish(node, "amq.direct", "k") == {1: "", 2: "", 3: ""}
        [command] = node.commands
        assert (command.queue, command.targets) == (1, ())

    on_node(scenario)


def test_fields_of_messages_choose_their_queues() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(
            Exchange(next(IDS), "choice", "selector"),
            binding("choice", "a", where="size > 5"),
            binding("choice", "amq.headers", where="size < 9", kind="exchange"),
            binding("amq.headers", "far", colour="red"),
        )
        rows: list[dict[str, Any]] = [{"size": 9}, {"size": 7, "colour": "red"}, {"size": 1, "colour": "red"}]
        bodies = [Message(b"%d" % number, None, row) for number, row in enumerate(rows)]
        told = await node.publish(["", "", ""], bodies, exchange="choice", mandatory=True)
        assert told == {1: "", 2: "", 3: ""}
        assert (node.bodies("a"), node.bodies("far")) == ([b"0", b"1"], [b"1", b"2"])

    on_node(scenario)


def test_shared_properties_are_read_once() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(
            binding("amq.headers", "a", colour="red"), binding("amq.headers", "b", colour="red")
        )
        data = encode_batch([Message(b"%d" % each, None, {"colour": "red"}) for each in range(2)]).data
        assert await publish(node, "amq.headers", "", data=data) == {1: "", 2: ""}
        assert node.bodies("a") == node.bodies("b") == [b"0", b"1"]

    on_node(scenario)


# ---- no queue


def test_a_message_without_a_queue_is_confirmed_and_dropped_after_a_current_look() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(binding("amq.direct", "a", "known"), binding("amq.direct", "b", "known"))
        told = await node.publish(["known", "nobody", "known"], exchange="amq.direct")
        assert told == {1: "", 2: "", 3: ""}
        assert node.bodies("a") == node.bodies("b") == [b"1", b"3"]
        assert node.barriers == 1
        node.unseen = [binding("amq.direct", "far", "nobody")]
        await node.publish(["nobody"], first=4, lowest=4, exchange="amq.direct", mandatory=True)
        assert node.bodies("far") == [b"4"], "another node has made the binding a moment ago"
        assert node.barriers == 2

    on_node(scenario)


def test_the_first_message_of_a_session_is_routed_by_the_current_bindings() -> None:
    """A node that was started again knows only a part of the catalog for a moment."""

    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a"))
        node.unseen = [*fanout("b")]
        assert await node.publish([""], exchange="amq.fanout") == {1: ""}
        assert node.bodies("a") == node.bodies("b") == [b"1"]
        await node.publish([""], first=2, lowest=2, exchange="amq.fanout")
        assert node.barriers == 1

    on_node(scenario)


@pytest.mark.parametrize("independent", [True, False])
def test_a_mandatory_message_without_a_queue_is_rejected(independent: bool) -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(binding("amq.direct", "a", "known"))
        keys = ["known", "nobody", "known"]
        told = await node.publish(keys, exchange="amq.direct", mandatory=True, independent=independent)
        kept = "" if independent else "unroutable"
        assert told == {1: kept, 2: "unroutable", 3: kept}
        assert node.bodies("a") == ([b"1", b"3"] if independent else [])

    on_node(scenario)


def test_an_alternate_exchange_takes_what_no_binding_selects() -> None:
    async def scenario(node: Node) -> None:
        alternate = (("alternate-exchange", "amq.fanout"),)
        node.change_routes(Exchange(next(IDS), "main", "direct", alternate), *fanout("b"))
        node.change_routes(binding("main", "a", "known"))
        assert await node.publish(["known", "other"], exchange="main", mandatory=True) == {1: "", 2: ""}
        assert (node.bodies("a"), node.bodies("b")) == ([b"1"], [b"2"])

    on_node(scenario)


def test_a_mandatory_message_that_was_taken_before_its_binding_went_is_confirmed() -> None:
    async def body() -> None:
        node = Node()
        node.session.open(b"p" * 16, 1, owner=9)
        node.change_routes(binding("amq.direct", "far", "k"))
        assert await publish(node, "amq.direct", "k", 1) == {1: ""}
        again = Node(2, node.groups)
        again.session.open(b"p" * 16, 2, owner=9)
        told = await again.publish(["k", "k"], exchange="amq.direct", mandatory=True, independent=True)
        assert told == {1: "", 2: "unroutable"}

    asyncio.run(body())


# ---- several groups


def test_a_message_for_several_groups_is_confirmed_when_all_have_it() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a", "far"))
        data = encode_batch([Message(b"x"), Message(b"y")]).data
        await node.session.publisher.publish("", 1, 1, data, exchange="amq.fanout")
        later = node.sent.pop()
        node.groups_answer()
        assert node.told() == {}
        node.sent.append(later)
        node.groups_answer()
        assert node.told() == {1: "", 2: ""}
        assert node.bodies("a") == node.bodies("far") == [b"x", b"y"]

    on_node(scenario)


def test_a_message_that_one_group_refuses_is_rejected_with_the_queues_that_may_have_it() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a", "b", "far full"))
        assert await publish(node, "amq.fanout", "", 1) == {1: ""}
        data = encode_batch([Message(b"x")]).data
        await node.session.publisher.publish("", 2, 2, data, exchange="amq.fanout")
        node.groups_answer()
        [confirms] = node.session.outbox.take()
        assert isinstance(confirms, Confirms)
        [rejection] = confirms.rejected
        assert rejection.why.reason == "queue_full"
        assert rejection.why.message.endswith("the message may be in other queues: 'a', 'b'")
        assert dict(rejection.why.metadata)["may_be_in"] == "a,b"
        assert node.bodies("a") == [b"0", b"x"]

    on_node(scenario)


def test_independent_messages_for_several_groups_have_their_own_outcomes() -> None:
    async def scenario(node: Node) -> None:
        for queue, key in [("a", "both"), ("far full", "both"), ("b", "near"), ("far", "far")]:
            node.change_routes(binding("amq.direct", queue, key))
        keys = ["both", "near", "both", "far", "nobody"]
        assert await node.publish(keys, exchange="amq.direct", independent=True) == {
            1: "", 2: "", 3: "queue_full", 4: "", 5: "",
        }  # fmt: skip
        assert node.bodies("a") == [b"1", b"3"]

    on_node(scenario)


def test_a_message_that_cannot_be_sent_to_one_group_is_sent_to_none() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a", "far"), binding("amq.direct", "b", "k"))
        node.hub._dispatch([ev.DisksLow({2: (ev.LowDisk("n2", 1, 2),)})])
        assert await publish(node, "amq.fanout", "", 1, independent=True) == {1: "disk_low"}
        assert node.bodies("a") == []

    on_node(scenario)


def test_a_session_that_comes_back_has_each_message_once_in_each_group() -> None:
    async def body() -> None:
        node = Node()
        node.session.open(b"p" * 16, 1, owner=9)
        bindings = fanout("a", "far")
        node.change_routes(*bindings)
        await publish(node, "amq.fanout", "", 2)
        again = Node(2, node.groups)
        again.session.open(b"p" * 16, 2, owner=9)
        again.change_routes(bindings[0], *fanout("b"))
        assert await publish(again, "amq.fanout", "", 2) == {1: "", 2: ""}
        assert again.bodies("a") == again.bodies("far") == [b"0", b"1"]
        assert again.bodies("b") == [], "its group has the numbers"

    asyncio.run(body())


# ---- order


def test_what_was_sent_is_decided_before_newer_bindings_are_used() -> None:
    async def scenario(node: Node) -> None:
        old = binding("amq.direct", "a", "k")
        node.change_routes(old)
        data = encode_batch([Message(b"x")]).data
        await node.session.publisher.publish("k", 1, 1, data, exchange="amq.direct")
        await node.session.publisher.publish("k", 2, 1, data, exchange="amq.direct")
        assert len(node.sent) == 2, "the bindings are the same"
        node.change_routes(binding("amq.direct", "b", "k"), removed=[old.id])
        third = asyncio.create_task(node.session.publisher.publish("k", 3, 1, data, exchange="amq.direct"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(node.sent) == 2
        node.groups_answer()
        await third
        node.groups_answer()
        assert node.told() == {1: "", 2: "", 3: ""}
        assert (node.bodies("a"), node.bodies("b")) == ([b"x", b"x"], [b"x"])

    on_node(scenario)


def test_all_messages_of_a_batch_are_routed_by_the_same_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if other bindings come while the session waits for its turn."""
    monkeypatch.setattr(routing, "STEPS_AT_A_TIME", 0)

    async def scenario(node: Node) -> None:
        old = [binding("amq.direct", "a", key) for key in "kl"]
        node.change_routes(*old)
        data = encode_batch([Message(b"x")]).data
        await node.session.publisher.publish("k", 1, 1, data, exchange="amq.direct")

        async def take(owner: int, steps: int) -> None:
            if old:
                new = [binding("amq.direct", "b", key) for key in "kl"]
                node.change_routes(*new, removed=[each.id for each in old])
                old.clear()

        node.hub.turns.take = take  # type: ignore[method-assign, assignment]
        two = encode_batch([Message(b"k"), Message(b"l")]).data
        publishing = asyncio.create_task(
            node.session.publisher.publish("", 2, 1, two, exchange="amq.direct", routing_keys=("k", "l"))
        )
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(node.sent) == 1, "what was sent by older bindings is decided first"
        node.groups_answer()
        await publishing
        node.groups_answer()
        assert node.told() == {1: "", 2: "", 3: ""}
        assert (node.bodies("a"), node.bodies("b")) == ([b"x"], [b"k", b"l"])

    on_node(scenario)


# ---- what a batch may cost


def test_messages_count_for_each_of_their_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = type(PRODUCTION)(max_targeted=10)
    monkeypatch.setattr("quorum.api.session.group_parts.PRODUCTION", limits)
    monkeypatch.setattr("quorum.api.session.session_routes.PRODUCTION", limits)

    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a", "b", "full"), *[binding("amq.topic", each, "#") for each in "ab"])
        assert set((await publish(node, "amq.fanout", "", 4)).values()) == {"batch_too_large"}
        told = await publish(node, "amq.topic", "", 9, first=5, independent=True)
        assert told == dict.fromkeys(range(5, 14), "")
        assert [command.count for command in node.commands] == [5, 4]

    on_node(scenario)


def test_messages_that_count_too_often_are_sent_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = type(PRODUCTION)(max_targeted=10)
    monkeypatch.setattr("quorum.api.session.session_routes.PRODUCTION", limits)
    sent_before_cut: list[int] = []

    async def scenario(node: Node) -> None:
        def noted(*given: Any) -> Part:
            sent_before_cut.append(len(node.sent))
            return group_parts.cut(*given)

        monkeypatch.setattr("quorum.api.session.session_routes.cut", noted)
        node.change_routes(*[binding("amq.topic", each, "#") for each in ("a", "b", "far")])
        told = await publish(node, "amq.topic", "", 7, routing_keys=("k", "l") * 3 + ("k",), independent=True)
        assert told == dict.fromkeys(range(1, 8), "")
        assert [command.count for command in node.commands] == [3, 3, 3, 3, 1, 1]
        assert sent_before_cut == [0, 0, 2, 2, 4, 4]

    on_node(scenario)


def test_the_next_piece_waits_until_the_group_has_placed_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorum.api.session.session_routes.PRODUCTION", type(PRODUCTION)(max_targeted=10))

    async def scenario(node: Node) -> None:
        node.change_routes(*[binding("amq.topic", each, "#") for each in "ab"])
        node.hub.placing = PlacesWindow(2)
        publishing = asyncio.create_task(
            publish(node, "amq.topic", "", 15, routing_keys=["k", "l", "k"] * 5, independent=True)
        )
        for sent in (1, 2, 3):
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(node.commands) + len(node.sent) == sent
            node.groups_answer()
        assert await publishing == dict.fromkeys(range(1, 16), "")
        assert node.hub.placing.used == 0

    on_node(scenario)


def test_a_session_gives_back_the_places_of_its_batches() -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a", "b", "full", "far"))
        data = encode_batch([Message(b"x")]).data
        publish_one = node.session.publisher.publish
        await publish_one("", 1, 1, data, exchange="amq.fanout")
        assert node.hub.placing.used == 2, "one for each further queue of a group"
        node.groups_answer()
        assert node.hub.placing.used == 0
        await publish_one("", 2, 2, data, exchange="amq.fanout")
        node.session.publisher.release()
        assert node.hub.placing.used == 0

    on_node(scenario)


def test_other_addresses_and_groups_have_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorum.api.shares.PATIENCE_S", 0.0)

    async def scenario() -> None:
        window = PlacesWindow(100)
        for owner, share in ((7, 50), (8, 25), (9, 12)):
            await window.take(share, 1, owner)
        await window.take(50, 2, 7)
        with pytest.raises(StatusError, match=r"a batch of 11 queues of group 1.* place 87 of at most 100"):
            await window.take(10, 1, 7)
        window.give(50, 1, 7)
        await window.take(10, 1, 7)
        assert window.used == 10 + 25 + 12 + 50

    asyncio.run(scenario())


def test_a_batch_that_counts_as_too_many_messages_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorum.api.session.session_routes.PRODUCTION", type(PRODUCTION)(max_targeted=10))

    def read_each(*given: Any) -> Any:
        raise AssertionError("the batch is read")

    async def scenario(node: Node) -> None:
        node.change_routes(*[binding("amq.topic", each, "#") for each in "ab"])
        monkeypatch.setattr("quorum.node.wire.batches.read_each", read_each)
        told = await publish(node, "amq.topic", "", 6, routing_keys=("k", "l") * 3)
        assert told == dict.fromkeys(range(1, 7), "batch_too_large")

    on_node(scenario)


def test_messages_with_many_queues_give_way_to_other_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "STEPS_AT_A_TIME", 100)

    async def scenario(node: Node) -> None:
        taken = turns_taken(node)
        node.change_routes(*[binding("amq.topic", each, "#") for each in "ab"])
        for first in range(1, 301, 100):
            told = await publish(node, "amq.topic", "", 100, first=first, routing_keys=("k", "l") * 50)
            assert told == dict.fromkeys(range(first, first + 100), "")
        assert len(taken) == 2

    on_node(scenario)


@pytest.mark.parametrize(("keys", "number"), [((), 4_097), (("k",), 2), (("k",) * 3, 2)])
def test_a_batch_with_too_many_messages_or_keys_is_refused(keys: tuple[str, ...], number: int) -> None:
    async def scenario(node: Node) -> None:
        told = await publish(node, "amq.fanout", "", number, routing_keys=keys)
        assert set(told.values()) == {"bad_batch"}

    on_node(scenario)


def test_routing_a_batch_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "BATCH_STEPS", 8)

    async def scenario(node: Node) -> None:
        node.change_routes(binding("amq.topic", "a", "#"))
        keys = [f"k{number}" for number in range(4)]
        told = await node.publish(keys, exchange="amq.topic", independent=True)
        assert told == {1: "", 2: "", 3: "limit", 4: "limit"}

    on_node(scenario)


def turns_taken(node: Node) -> list[int]:
    """The steps of the turns that routing takes from now on. Checking takes none."""
    found: list[int] = []

    async def at_once(owner: int, steps: int, work: Callable[[], Any]) -> Any:
        return work()

    async def take(owner: int, steps: int) -> None:
        found.append(steps)

    node.hub.turns.run = at_once  # type: ignore[method-assign, assignment]
    node.hub.turns.take = take  # type: ignore[method-assign, assignment]
    return found


def turns_of(properties: int, batches: int = 1) -> int:
    """How often a session waits for its turn while it routes 100 messages with so many properties each, in so many
    batches."""
    found = []

    async def scenario(node: Node) -> None:
        taken = turns_taken(node)
        node.change_routes(binding("amq.headers", "a", colour="red"))
        rows = [
            {f"p{place}": number for place in range(properties)} | {"colour": "red"} for number in range(100)
        ]
        each = 100 // batches
        for first in range(0, 100, each):
            data = encode_batch([Message(b"x", None, row) for row in rows[first : first + each]]).data
            await node.session.publisher.publish("", 1 + first, 1 + first, data, exchange="amq.headers")
        found.append(len(taken))
        assert len(node.sent) == batches

    on_node(scenario)
    return found[0]


def test_reading_many_properties_gives_way_to_other_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "STEPS_AT_A_TIME", 1_000)
    assert turns_of(100) > turns_of(0) + 8


def test_a_session_that_routes_small_batches_waits_for_its_turn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "STEPS_AT_A_TIME", 1_000)
    assert turns_of(100, batches=50) > turns_of(0, batches=50) + 8


def lines_of(number: int) -> int:
    """Executed lines of publishing so many messages to three queues of a group."""
    found = []

    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a", "b", "full"))
        data = encode_batch([Message(b"x")] * number).data
        await publish(node, "amq.fanout", "", 1)
        publishing = node.session.publisher.publish("", 2, 2, data, exchange="amq.fanout")
        found.append(count_lines(lambda: list(publishing.__await__())))
        assert len(node.sent) == 1

    on_node(scenario)
    return found[0]


def test_a_batch_for_the_same_queues_does_no_work_for_each_message() -> None:
    assert lines_of(1_000) <= 2 * lines_of(10)


@pytest.mark.parametrize(("takers", "outcome"), [(("a",), ""), (("far",), ""), ((), "no_consumers")])
def test_an_immediate_message_for_several_groups_needs_one_that_takes_it(
    takers: tuple[str, ...], outcome: str
) -> None:
    async def scenario(node: Node) -> None:
        node.change_routes(*fanout("a", "far"))
        for name in takers:
            queue = QUEUES[name]
            node.numbers[queue.group] += 1
            origin = c.Origin(b"p" * 16, 1, node.numbers[queue.group])
            node.apply(queue.group, origin, c.Attach(queue.id, "tag", b"", 5))
        assert await publish(node, "amq.fanout", "", 2, immediate=True) == {1: outcome, 2: outcome}
        published = {
            name: queries.info(node.groups[QUEUES[name].group], QUEUES[name].id).totals.published  # type: ignore[union-attr]
            for name in ("a", "far")
        }
        assert published == {name: 2 * (name in takers) for name in ("a", "far")}

    on_node(scenario)
