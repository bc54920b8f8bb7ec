"""Where messages go: each type of exchange by itself, exchanges in a row, and any of it against a naive router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.catalog.bindings import (
    EXCHANGE_TYPES,
    PREDECLARED,
    Binding,
    Exchange,
    check_binding,
    condition_of,
)
from quorum.catalog.router import MAX_STEPS, Router, TooManySteps
from quorum.catalog.topics import TopicTree, words_of
from quorum_selectors import canonical, jms
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import FieldValue
from support.examples import examples

Fields = Mapping[str, FieldValue]
IDS = count(1)


def selector(text: str) -> str:
    return canonical.encode(jms.parse(text)).hex()


def application(values: Mapping[str, FieldValue]) -> Fields:
    return {f"application-properties.{name}": value for name, value in values.items()}


class Routes:
    """A router with the exchanges that are always there, and others by their type."""

    def __init__(self, queues: tuple[str, ...] = (), **exchanges: str) -> None:
        self.router = Router(queues)
        self.types = {name: each.type for name, each in PREDECLARED.items()} | exchanges
        for name, kind in self.types.items():
            self.router.declare(Exchange(next(IDS), name, kind))

    def bind(
        self,
        source: str,
        destination: str,
        key: str = "",
        *,
        kind: str = "queue",
        where: str = "",
        **arguments: FieldValue,
    ) -> Binding:
        pairs = tuple(sorted((name.replace("x_", "x-"), value) for name, value in arguments.items()))
        binding = Binding(next(IDS), source, kind, destination, key, pairs, selector(where) if where else "")
        check_binding(self.types[source], binding)
        self.router.bind(binding)
        return binding

    def to(self, exchange: str, key: str = "", **properties: FieldValue) -> list[str]:
        return list(self.router.route(exchange, key, lambda: application(properties)).queues)


def test_a_direct_exchange_compares_the_key() -> None:
    routes = Routes()
    routes.bind("amq.direct", "eu", "orders.eu")
    routes.bind("amq.direct", "all", "orders.eu")
    routes.bind("amq.direct", "all", "orders.us")
    assert routes.to("amq.direct", "orders.eu") == ["all", "eu"]
    assert routes.to("amq.direct", "orders.us") == ["all"]
    assert routes.to("amq.direct", "orders") == []


def test_a_fanout_exchange_takes_every_key() -> None:
    routes = Routes()
    for queue in "ba":
        routes.bind("amq.fanout", queue)
    assert routes.to("amq.fanout") == routes.to("amq.fanout", "any key") == ["a", "b"]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.eu", ["orders.eu", ".eu"], ["eu", "orders.new.eu", "orders.us", ""]),
        ("orders.#", ["orders", "orders.new", "orders.new.eu"], ["order", "", "my.orders"]),
        ("#", ["", "a", "a.b.c", "#", "*"], []),
        ("", [""], ["a", "."]),
        ("#.eu", ["eu", "a.eu", "a.b.eu", "eu.eu"], ["eu.a", ""]),
        ("a.#.b", ["a.b", "a.x.b", "a.b.b"], ["a", "b", "a.b.c"]),
        ("#.#", ["", "a", "a.b"], []),
        ("*.#.*", ["a.b", "a.b.c"], ["a", ""]),
        ("a..b", ["a..b"], ["a.b", "a.x.b"]),
        ("*.*", [".", "a.b", "*.#"], ["a", "a.b.c"]),
    ],
)
def test_words_of_a_topic(pattern: str, matching: list[str], others: list[str]) -> None:
    routes = Routes()
    routes.bind("amq.topic", "q", pattern)
    assert [key for key in (*matching, *others) if routes.to("amq.topic", key)] == matching


@pytest.mark.parametrize(
    ("arguments", "matching", "others"),
    [
        ({"a": 1, "b": "x"}, [{"a": 1, "b": "x"}, {"a": 1.0, "b": "x", "c": 2}], [{"a": 1}, {"a": True, "b": "x"}]),
        ({"x_match": "any", "a": 1, "b": "x"}, [{"a": 1}, {"b": "x"}], [{}, {"a": 2}, {"a": "1"}]),
        ({}, [{}, {"a": 1}], []),
        ({"x_match": "any"}, [], [{}, {"a": 1}]),
        ({"x_match": "all-with-x", "x_a": 1}, [{"x-a": 1}], [{}, {"x-a": 2}]),
        ({"x_match": "any-with-x", "x_a": 1, "b": 2}, [{"x-a": 1}, {"b": 2}], [{}]),
    ],
)  # fmt: skip
def test_headers(
    arguments: dict[str, Any], matching: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    routes = Routes()
    routes.bind("amq.headers", "q", **arguments)
    assert [each for each in (*matching, *others) if routes.to("amq.headers", **each)] == matching


def test_a_selector_exchange_evaluates_selectors_over_properties_and_well_known_fields() -> None:
    routes = Routes(choice="selector")
    routes.bind("choice", "red", where="colour = 'red' AND weight > 50")
    routes.bind("choice", "urgent", where="JMSPriority > 6")
    routes.bind("choice", "all")
    assert routes.to("choice", colour="red", weight=80) == ["all", "red"]
    assert routes.to("choice", colour="red", weight="heavy") == ["all"]
    assert routes.router.route("choice", "", lambda: {"header.priority": 7}).queues == ("all", "urgent")


def test_exchanges_in_a_row_and_in_a_circle() -> None:
    routes = Routes(one="fanout", two="topic", three="direct")
    routes.bind("one", "two", kind="exchange")
    routes.bind("two", "three", "a.*", kind="exchange")
    routes.bind("three", "one", "a.b", kind="exchange")
    routes.bind("two", "q2", "#")
    routes.bind("three", "q3", "a.b")
    assert routes.to("one", "a.b") == routes.to("three", "a.b") == ["q2", "q3"]
    assert routes.to("one", "a.c") == ["q2"]


def test_what_no_binding_selects_goes_to_the_alternate_exchange() -> None:
    routes = Routes(("q",))
    for name, alternate in {"first": "second", "second": "missing", "third": "amq.fanout"}.items():
        routes.router.declare(Exchange(next(IDS), name, "direct", (("alternate-exchange", alternate),)))
        routes.types[name] = "direct"
    routes.bind("second", "late", "k")
    routes.bind("amq.fanout", "lost")
    assert routes.to("first", "k") == ["late"]
    assert routes.to("first", "other") == []
    assert routes.to("third", "k") == ["lost"]
    routes.bind("third", "amq.direct", "k", kind="exchange")
    assert routes.to("third", "k") == [], "a binding to an exchange has selected it"


def test_the_default_exchange_knows_every_queue() -> None:
    queues: dict[str, int] = {"orders": 1}
    router = Router(queues)
    assert router.route("", "orders").queues == ("orders",)
    assert router.route("", "new").queues == ()
    queues["new"] = 2
    assert router.route("", "new").queues == ("new",)


def test_properties_are_read_once_and_only_where_an_exchange_needs_them() -> None:
    routes = Routes(choice="selector")
    reads = []

    def fields() -> Fields:
        reads.append(1)
        return {}

    routes.bind("amq.topic", "q", "plain.#")
    routes.bind("amq.topic", "choice", "chosen.#", kind="exchange")
    routes.bind("amq.topic", "amq.headers", "chosen.#", kind="exchange")
    routes.router.route("amq.topic", "plain.a", fields)
    assert reads == []
    routes.router.route("amq.topic", "chosen.a", fields)
    assert len(reads) == 1


def steps_with(bindings: int) -> int:
    routes = Routes(choice="selector")
    encoded = canonical.encode(jms.parse("customer = 'c00000' AND total > 7"))
    for number in range(bindings):
        each = encoded.replace(b"c00000", b"c%05d" % number).hex()  # to parse them all would take seconds
        routes.router.bind(Binding(number, "choice", "queue", f"q{number}", selector=each))
    routed = routes.router.route("choice", "", lambda: application({"customer": "c00005", "total": 100}))
    assert routed.queues == ("q5",)
    return routed.steps


def test_ten_thousand_selector_bindings_cost_a_message_what_ten_do() -> None:
    assert steps_with(10_000) == steps_with(10)


def test_equal_selectors_are_evaluated_once() -> None:
    routes = Routes(choice="selector")
    for queue in ("a", "b", "c"):
        routes.bind("choice", queue, where="size > 1" if queue == "a" else "1 < size")
    routed = routes.router.route("choice", "", lambda: application({"size": 2}))
    assert routed.queues == ("a", "b", "c")
    alone = Routes(choice="selector")
    alone.bind("choice", "a", where="size > 1")
    single = alone.router.route("choice", "", lambda: application({"size": 2}))
    assert routed.steps == single.steps + 2, "two more bindings are taken"


def test_a_message_that_needs_too_many_steps_is_refused() -> None:
    routes = Routes()
    for words in product("a*", repeat=11):
        routes.bind("amq.topic", "q", ".".join((*words, "#")))
    assert routes.to("amq.topic", ".".join("a" * 20)) == ["q"]
    with pytest.raises(TooManySteps, match=str(MAX_STEPS)):
        routes.to("amq.topic", ".".join("a" * 127))


@pytest.mark.parametrize(("pattern", "fitting"), [("%x_{}%", 1), ("%xx{}%", 250), ("x_{}%", 1_000)])
def test_like_costs_what_the_text_is_long_that_it_searches(pattern: str, fitting: int) -> None:
    routes = Routes(choice="selector")
    text = application({"a": "x" * 65_536})
    for number in range(fitting):
        routes.bind("choice", "q", where=f"a LIKE '{pattern.format(number)}'")
    assert routes.router.route("choice", "", lambda: text).queues == ()
    if pattern.startswith("%"):
        for number in range(fitting, fitting + 10):
            routes.bind("choice", "q", where=f"a LIKE '{pattern.format(number)}'")
        with pytest.raises(TooManySteps, match=str(MAX_STEPS)):
            routes.router.route("choice", "", lambda: text)


def test_removed_bindings_leave_an_empty_tree() -> None:
    tree: TopicTree[str] = TopicTree()
    patterns = ["a.b", "a.*", "a.#", "#", "", "a.b.c"]
    for pattern in patterns:
        tree.add(pattern, "q")
    for pattern in patterns:
        tree.remove(pattern, "q")
    assert tree._root.below == {} and tree._root.values == {}


# ---- against a naive router

NAMES = ("e1", "e2", "e3", "e4", "e5")
QUEUES = ("q1", "q2", "q3")
WORDS = st.sampled_from(["a", "b", ""])
KEYS = st.lists(WORDS, max_size=4).map(".".join)
PATTERNS = st.lists(st.one_of(WORDS, st.sampled_from(["*", "#"])), max_size=4).map(".".join)
VALUES = st.sampled_from([1, 1.0, True, "x", 2])
HEADERS = st.dictionaries(st.sampled_from(["h1", "h2", "x-h"]), VALUES, max_size=3)
SELECTORS = st.sampled_from(
    ["h1 = 1", "h1 <> 1", "h2 LIKE 'x%'", "h1 IS NULL", "h1 > 1 OR h2 = 'x'", "NOT (h1 = 1)", "TRUE"]
)


def naive_topic(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(naive_topic(rest, words[at:]) for at in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and naive_topic(rest, words[1:])


def selects(kind: str, binding: Binding, key: str, fields: Fields) -> bool:
    if kind == "direct":
        return binding.routing_key == key
    if kind == "topic":
        return naive_topic(words_of(binding.routing_key), words_of(key))
    return evaluate(condition_of(kind, binding)[1], fields) is True


def naive(
    exchanges: Mapping[str, Exchange], bindings: list[Binding], start: str, key: str, fields: Fields
) -> tuple[str, ...]:
    seen, found = {start}, set()
    waiting = [start]
    while waiting:
        exchange = exchanges.get(waiting.pop())
        if exchange is None:
            continue
        mine = [
            each
            for each in bindings
            if each.source == exchange.name and selects(exchange.type, each, key, fields)
        ]
        found |= {each.destination for each in mine if each.kind == "queue"}
        following = [each.destination for each in mine if each.kind == "exchange"]
        if not mine and exchange.alternate:
            following.append(exchange.alternate)
        waiting += [name for name in following if name not in seen]
        seen |= set(following)
    return tuple(sorted(found))


@st.composite
def some_binding(draw: st.DrawFn, kind: str, source: str) -> Binding:
    to = draw(st.sampled_from([("queue", QUEUES), ("queue", QUEUES), ("exchange", NAMES)]))
    binding = Binding(next(IDS), source, to[0], draw(st.sampled_from(to[1])))
    if kind == "direct":
        return replace(binding, routing_key=draw(KEYS))
    if kind == "topic":
        return replace(binding, routing_key=draw(PATTERNS))
    if kind == "selector":
        return replace(binding, selector=selector(draw(SELECTORS)))
    if kind == "headers":
        match = draw(st.sampled_from(["all", "any", "all-with-x", "any-with-x"]))
        headers = draw(HEADERS)
        if "with" not in match:
            headers.pop("x-h", None)
        return replace(binding, arguments=tuple(sorted((headers | {"x-match": match}).items())))
    return binding


@settings(max_examples=examples(600))
@given(st.data())
def test_any_exchanges_and_bindings_route_as_the_naive_router_does(data: st.DataObject) -> None:
    router = Router(QUEUES)
    exchanges: dict[str, Exchange] = {}
    for name in NAMES:
        alternate = data.draw(st.sampled_from(["", "", "e1", "e2", "gone"]))
        pairs = (("alternate-exchange", alternate),) if alternate else ()
        exchanges[name] = Exchange(next(IDS), name, data.draw(st.sampled_from(EXCHANGE_TYPES)), pairs)
        router.declare(exchanges[name])
    bindings: dict[tuple[object, ...], Binding] = {}
    for _ in range(data.draw(st.integers(0, 25))):
        if bindings and data.draw(st.integers(0, 3)) == 0:
            router.unbind(bindings.pop(data.draw(st.sampled_from(sorted(bindings, key=repr)))))
            continue
        source = data.draw(st.sampled_from(NAMES))
        binding = data.draw(some_binding(exchanges[source].type, source))
        check_binding(exchanges[source].type, binding)
        if binding.identity not in bindings:
            bindings[binding.identity] = binding
            router.bind(binding)
    for _ in range(4):
        start, key, headers = data.draw(st.sampled_from(NAMES)), data.draw(KEYS), data.draw(HEADERS)
        fields = application(headers)
        routed = router.route(start, key, lambda fields=fields: fields)  # type: ignore[misc]
        assert routed.queues == naive(exchanges, list(bindings.values()), start, key, fields)
    for binding in bindings.values():
        router.unbind(binding)
    assert all(router.route(name, "a").queues == () for name in NAMES)


def test_the_words_of_a_key() -> None:
    assert [words_of(key) for key in ("", "a", "a.", ".", "a..b")] == [
        [], ["a"], ["a", ""], ["", ""], ["a", "", "b"],
    ]  # fmt: skip
