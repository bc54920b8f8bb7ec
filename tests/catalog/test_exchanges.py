"""Exchanges and bindings in the catalog: what is declared, refused and removed, and what a snapshot keeps of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fifo.effects import Ok, Refused, Reply
from quorum.catalog import exchanges as module
from quorum.catalog.arguments import Arguments
from quorum.catalog.bindings import EXCHANGE_TYPES
from quorum.catalog.commands import DeclareQueue, RemoveQueue
from quorum.catalog.exchanges import Bind, DeclareExchange, DeleteExchange, RoutingChanges, Unbind
from quorum.catalog.machine import CatalogMachine
from quorum_selectors import canonical, jms
from support.catalog import Catalog
from support.examples import examples

RED = canonical.encode(jms.parse("colour = 'red'")).hex()


class CatalogOfExchanges(Catalog):
    """A machine with these queues, and its one client."""

    def __init__(self, queues: tuple[str, ...] = ("orders", "bills")) -> None:
        super().__init__()
        for name in queues:
            self.call(DeclareQueue(name, ()))

    def declare(self, name: str, kind: str = "direct", arguments: Arguments = ()) -> Reply | None:
        return self.call(DeclareExchange(name, kind, arguments))

    def bind(self, source: str, destination: str, *, kind: str = "queue", **more: Any) -> Reply | None:
        return self.call(Bind(source, kind, destination, **more))

    def refused(self, command: Any) -> tuple[str, str]:
        before = json.loads(self.machine.snapshot())
        reply = self.call(command)
        assert isinstance(reply, Refused), reply
        after = json.loads(self.machine.snapshot())
        for part in ("exchanges", "bindings", "queues"):
            assert after[part] == before[part]
        return reply.reason, reply.detail

    @property
    def bound(self) -> list[tuple[str, str, str]]:
        found = self.machine.exchanges.bindings.values()
        return [(each.source, each.destination, each.routing_key) for each in found]


def test_an_exchange_is_declared_once() -> None:
    me = CatalogOfExchanges()
    assert me.declare("routes", "topic") == Ok(1)
    assert me.declare("routes", "topic") == Ok(0)
    reason, text = me.refused(DeclareExchange("routes", "direct", ()))
    assert reason == "different_arguments"
    assert text == "exchange 'routes' exists as topic, not as direct"
    reason, text = me.refused(DeclareExchange("routes", "topic", (("alternate-exchange", "lost"),)))
    assert text == "exchange 'routes' exists as topic, not as topic with alternate-exchange 'lost'"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (DeclareExchange("", "direct", ()), "the default exchange"),
        (DeclareExchange("n" * 256, "direct", ()), "an exchange name of 256 bytes; allowed: 1..255"),
        (DeclareExchange("e", "fanot", ()), "unknown type 'fanot'; did you mean 'fanout'?"),
        (DeclareExchange("e", "direct", (("x-max", 1),)), "unknown argument 'x-max' of an exchange"),
        (DeclareExchange("e", "direct", (("alternate-exchange", 1),)), "allowed: the name of an exchange"),
        (DeclareExchange("amq.new", "direct", ()), "names that begin with 'amq.' are reserved"),
        (DeleteExchange("amq.topic"), "names that begin with 'amq.' are reserved"),
        (DeleteExchange(""), "the default exchange"),
        (Bind("", "queue", "orders"), "the default exchange"),
        (Bind("amq.fanout", "exchange", ""), "the default exchange"),
        (Bind("amq.fanout", "table", "orders"), "leads to 'table'; allowed: queue, exchange"),
        (Bind("amq.fanout", "queue", "orders", "key"), "has the routing key 'key'; it takes none"),
        (Bind("amq.direct", "queue", "orders", "k" * 256), "a routing key of 256 bytes"),
        (Bind("amq.direct", "queue", "orders", "k", (("a", 1),)), "has the argument 'a'; it takes none"),
        (Bind("amq.direct", "queue", "orders", "k", (), RED), "has a selector; only those of selector"),
        (Bind("amq.headers", "queue", "orders", "", (("x-match", "one"),)), "allowed: all, any, all-with-x"),
        (Bind("amq.headers", "queue", "orders", "", (("x-a", 1),)), "compared only if x-match is all-with-x"),
        (Bind("amq.headers", "queue", "orders", "", (("", 1),)), "an argument without a name"),
        (Bind("amq.headers", "queue", "orders", "", (("a", float("nan")),)), "allowed: finite numbers"),
        (Bind("amq.headers", "queue", "orders", "", (("a", 1 << 63),)), "allowed: integers of 64 bits"),
        (Bind("amq.headers", "queue", "orders", "", (("a", "v" * 4_096),)), "allowed: 4096 together"),
        (Bind("choice", "queue", "orders", "", (), "zz"), "not written in hexadecimal digits"),
        (Bind("choice", "queue", "orders", "", (), "ff"), "unknown format 255"),
        (Bind("choice", "queue", "orders", "", (("a", 1),)), "it takes only 'x-selector'"),
    ],
)
def test_what_is_wrong_is_refused_with_what_is_allowed(command: Any, words: str) -> None:
    me = CatalogOfExchanges()
    me.declare("choice", "selector")
    reason, text = me.refused(command)
    assert reason == "bad_argument"
    assert words in text


def test_both_ends_of_a_binding_exist() -> None:
    me = CatalogOfExchanges()
    assert me.refused(Bind("routes", "queue", "orders")) == ("not_found", "there is no exchange 'routes'")
    assert me.refused(Bind("amq.fanout", "queue", "x")) == ("not_found", "there is no queue 'x'")
    assert me.refused(Bind("amq.fanout", "exchange", "orders"))[1] == "there is no exchange 'orders'"
    assert me.refused(DeleteExchange("routes"))[0] == "not_found"


def test_a_binding_is_added_once_whatever_python_takes_for_equal() -> None:
    me = CatalogOfExchanges()
    assert me.bind("amq.direct", "orders", routing_key="k") == Ok(1)
    assert me.bind("amq.direct", "orders", routing_key="k") == Ok(0)
    assert [me.bind("amq.headers", "orders", arguments=(("a", value),)) for value in (1, 1.0, True, "1")] == [
        Ok(1)
    ] * 4
    assert me.bind("amq.headers", "orders", arguments=(("a", True),)) == Ok(0)


def test_the_order_of_a_bindings_arguments_means_nothing() -> None:
    me = CatalogOfExchanges()
    assert me.bind("amq.headers", "orders", arguments=(("b", 1), ("a", 2))) == Ok(1)
    assert me.bind("amq.headers", "orders", arguments=(("a", 2), ("b", 1))) == Ok(0)


def test_a_removed_queue_or_exchange_takes_its_bindings_along() -> None:
    me = CatalogOfExchanges()
    me.declare("routes", "topic")
    me.bind("routes", "orders", routing_key="a")
    me.bind("routes", "bills", routing_key="b")
    me.bind("amq.fanout", "routes", kind="exchange")
    me.bind("amq.fanout", "orders")
    me.call(RemoveQueue("orders"))
    assert me.bound == [("routes", "bills", "b"), ("amq.fanout", "routes", "")]
    assert me.call(DeleteExchange("routes")) == Ok(1)
    assert me.bound == []
    assert me.machine.exchanges.removals == 5
    me.call(DeclareQueue("orders", ()))
    assert me.bound == [], "the queue that has the name now has no bindings"


def test_an_exchange_in_use_is_deleted_only_without_if_unused() -> None:
    me = CatalogOfExchanges()
    me.declare("routes", "fanout")
    me.bind("amq.fanout", "routes", kind="exchange")
    me.bind("routes", "orders")
    assert me.refused(DeleteExchange("routes", if_unused=True))[0] == "in_use"
    [_, last] = me.machine.exchanges.bindings
    assert me.call(Unbind(last)) == Ok(1)
    assert me.call(Unbind(last)) == Ok(0)
    assert me.call(DeleteExchange("routes", if_unused=True)) == Ok(1)


def test_a_late_command_undoes_nothing() -> None:
    me = CatalogOfExchanges()
    me.declare("routes", "fanout")
    old = me.machine.exchanges.by_name["routes"].id
    me.bind("routes", "orders")
    [binding] = me.machine.exchanges.bindings
    seen = me.machine.exchanges.removals
    me.call(DeleteExchange("routes", old))
    me.declare("routes", "fanout")
    assert me.refused(Bind("routes", "queue", "orders", seen=seen))[0] == "outdated"
    assert me.refused(DeclareExchange("other", "fanout", (), seen))[0] == "outdated"
    assert me.refused(DeleteExchange("routes", old))[0] == "outdated"
    me.bind("routes", "orders")
    assert me.call(Unbind(binding)) == Ok(0)
    assert me.bound == [("routes", "orders", "")]
    assert me.call(Bind("routes", "queue", "orders", seen=seen)) == Ok(0), "it is there already"


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EXCHANGES", 1)
    monkeypatch.setattr(module, "MAX_BINDINGS_EACH", 2)
    monkeypatch.setattr(module, "MAX_BINDINGS", 3)
    me = CatalogOfExchanges(("a", "b", "c", "d"))
    me.declare("one")
    limit, text = me.refused(DeclareExchange("two", "direct", ()))
    assert (limit, text) == ("limit", "there are 1 exchanges; at most 1 are allowed")
    for queue in "ab":
        me.bind("amq.fanout", queue)
    assert me.refused(Bind("amq.fanout", "queue", "c"))[1] == (
        "2 bindings lead from the exchange 'amq.fanout'; at most 2 are allowed"
    )
    me.bind("one", "a", routing_key="k")
    assert me.refused(Bind("one", "queue", "b"))[1] == "there are 3 bindings; at most 3 are allowed"
    monkeypatch.setattr(module, "MAX_BINDINGS", 9)
    assert "lead to the queue 'a'" in me.refused(Bind("one", "queue", "a", "other"))[1]
    monkeypatch.setattr(module, "MAX_BINDINGS_BYTES", 40)
    assert me.refused(Bind("one", "queue", "d", "key" * 9))[1] == (
        "bindings of 58 bytes; at most 40 are allowed"
    )


class View:
    """What a listener knows that applies every change."""

    def __init__(self) -> None:
        self.exchanges: dict[int, object] = {}
        self.bindings: dict[int, object] = {}

    def apply(self, changes: RoutingChanges | None) -> None:
        if changes is None:
            return
        for number in changes.removed_exchanges:
            del self.exchanges[number]
        for number in changes.removed_bindings:
            del self.bindings[number]
        self.exchanges |= {each.id: each for each in changes.exchanges}
        self.bindings |= {each.id: each for each in changes.bindings}


COMMANDS = st.one_of(
    st.builds(DeclareExchange, st.sampled_from(["e1", "e2"]), st.sampled_from(EXCHANGE_TYPES), st.just(())),
    st.builds(DeleteExchange, st.sampled_from(["e1", "e2"]), if_unused=st.booleans()),
    st.builds(
        Bind,
        st.sampled_from(["e1", "e2", "amq.topic", "amq.headers"]),
        st.just("queue"),
        st.sampled_from(["q1", "q2"]),
        st.sampled_from(["", "", "k"]),
        st.sampled_from([(), (), (("a", 1),)]),
        st.sampled_from(["", "", RED]),
    ),
    st.builds(
        Bind, st.sampled_from(["e1", "amq.fanout"]), st.just("exchange"), st.sampled_from(["e1", "e2"])
    ),
    st.builds(Unbind, st.integers(1, 12)),
    st.builds(DeclareQueue, st.sampled_from(["q1", "q2"]), st.just(())),
    st.builds(RemoveQueue, st.sampled_from(["q1", "q2"])),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(COMMANDS, st.booleans()), max_size=40))
def test_snapshots_and_changes_hold_everything(commands: list[tuple[Any, bool]]) -> None:
    me, view = CatalogOfExchanges(("q1", "q2")), View()
    for command, is_taken in commands:
        me.call(command)
        if is_taken:
            view.apply(me.machine.exchanges.take_changes())
    view.apply(me.machine.exchanges.take_changes())
    assert me.machine.exchanges.take_changes() is None
    restored = CatalogMachine.restore(me.machine.snapshot())
    assert restored.snapshot() == me.machine.snapshot()
    fresh, exchanges = View(), restored.exchanges
    fresh.apply(exchanges.take_changes())
    for each in (view, fresh):
        assert each.bindings == exchanges.bindings
        assert each.exchanges == {found.id: found for found in exchanges.by_name.values() if found.id}
    for binding in exchanges.bindings.values():
        assert binding.source in exchanges.by_name
        known = exchanges.by_name if binding.kind == "exchange" else [q.name for q in restored.queues()]
        assert binding.destination in known
    assert exchanges._size_bytes == sum(each.size_bytes for each in exchanges.bindings.values())
    assert len(exchanges._by_identity) == len(exchanges.bindings)
    assert me.machine.exchanges._leading == exchanges._leading, "nothing is left of what was removed"
