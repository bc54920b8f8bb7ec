"""Policies in the catalog: patterns, which one applies, what it makes of a queue's own arguments, and their limits."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fifo import commands as c
from fifo.effects import Ok, Refused, Reply
from quorum.catalog.arguments import BY_POLICY, SUPPORTED, ArgumentValue, effective_config, merged
from quorum.catalog.commands import (
    DeclareQueue,
    QueueDeclared,
    RemovePolicy,
    RemoveQueue,
    SetPolicy,
)
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.policies import MAX_POLICIES, Policies, Policy, matches
from quorum.node.wire import operations as op
from support.catalog import Catalog


class CatalogOfPolicies(Catalog):
    def declare(self, name: str, **given: ArgumentValue) -> Reply | None:
        return self.call(DeclareQueue(name, arguments(given)))

    def set(self, name: str, pattern: str, priority: int = 0, **given: ArgumentValue) -> Reply | None:
        return self.call(SetPolicy(name, pattern, priority, arguments(given)))

    def refusal(self, name: str, pattern: str = "*", priority: int = 0, **given: ArgumentValue) -> str:
        before = self.machine.snapshot()
        reply = self.set(name, pattern, priority, **given)
        assert isinstance(reply, Refused) and reply.reason == "bad_argument"
        after = self.machine.snapshot()
        assert json.loads(after)["policies"] == json.loads(before)["policies"]
        assert json.loads(after)["revision"] == json.loads(before)["revision"]
        return reply.detail

    def config(self, name: str) -> c.QueueConfig:
        queue = self.machine.queue(name)
        assert queue is not None
        return self.machine.effective(queue).config

    def policy(self, name: str) -> str:
        queue = self.machine.queue(name)
        assert queue is not None
        return self.machine.effective(queue).policy


def arguments(given: dict[str, ArgumentValue]) -> tuple[tuple[str, ArgumentValue], ...]:
    return tuple(("x-" + key.replace("_", "-"), value) for key, value in given.items())


@pytest.fixture
def catalog() -> CatalogOfPolicies:
    return CatalogOfPolicies()


# ---- patterns


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
        ("*", "orders", True),
        ("orders.*", "orders.", True),
        ("orders.*", "orders", False),
        ("*.eu", "orders.eu", True),
        ("*.eu", "eu", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*a", "aba", True),
        ("a*ab*a", "aba", False),
        ("a*bc*c", "abc", False),
        ("a*bc*c", "abcc", True),
        ("a*b*c*d", "a-b-b-c-d", True),
        ("**", "x", True),
        ("a.c", "abc", False),
        ("[a]*", "a", False),
        ("Ä*", "Ä?", True),
    ],
)
def test_a_pattern_is_the_whole_name_and_a_star_anything(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", max_size=10))
def test_patterns_mean_what_a_regular_expression_would(pattern: str, name: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    assert matches(pattern, name) is expected


# ---- which one applies


def test_the_highest_priority_applies_then_the_first_name_and_one_only(catalog: CatalogOfPolicies) -> None:
    catalog.declare("orders.eu")
    assert catalog.policy("orders.eu") == ""
    catalog.set("b", "orders.*", 1, max_length=20)
    catalog.set("c", "*", 1, message_ttl=5)
    assert catalog.policy("orders.eu") == "b"
    assert catalog.config("orders.eu").message_ttl_ms == -1
    catalog.set("a", "*.eu", 1, max_length=10)
    assert catalog.policy("orders.eu") == "a"
    catalog.set("z", "*", 2, max_length=30)
    assert (catalog.policy("orders.eu"), catalog.config("orders.eu").max_length) == ("z", 30)
    catalog.call(RemovePolicy("z"))
    assert (catalog.policy("orders.eu"), catalog.config("orders.eu").max_length) == ("a", 10)
    catalog.set("a", "*.us", 1, max_length=10)
    assert catalog.policy("orders.eu") == "b"


def test_queues_declared_later_are_matched_and_a_declaration_knows_only_its_own_arguments(
    catalog: CatalogOfPolicies,
) -> None:
    catalog.set("short", "*", max_length=10)
    assert catalog.declare("a", max_length=50) == QueueDeclared(1, 1, 1)
    assert catalog.config("a").max_length == 10
    assert catalog.declare("a", max_length=50) == QueueDeclared(0, 1, 1)
    assert isinstance(catalog.declare("a", max_length=10), Refused)


def test_a_queue_declared_again_is_another_one(catalog: CatalogOfPolicies) -> None:
    catalog.set("short", "*", max_length=10)
    catalog.declare("a", max_length=5)
    assert catalog.config("a").max_length == 5
    catalog.call(RemoveQueue("a"))
    catalog.declare("a")
    assert catalog.config("a").max_length == 10


# ---- what it makes of a queue's own arguments


@pytest.mark.parametrize(
    ("argument", "own", "policys", "expected"),
    [
        ("max_length", 5, 6, 5),
        ("max_length", 6, 5, 5),
        ("max_length_bytes", 500, 600, 500),
        ("max_consumers", 3, 2, 2),
        ("expires", 1_000, 50, 50),
        ("message_ttl", 0, 5, 0),
        ("message_ttl", 7, 5, 5),
        ("consumer_timeout", 5_000, 6_000, 5_000),
        ("consumer_timeout", 6_000, 5_000, 5_000),
        ("delayed_retry_min", 50, 60, 50),
        ("delayed_retry_max", 60, 50, 50),
        ("delivery_limit", -1, 5, 5),
        ("delivery_limit", 5, -1, 5),
        ("delivery_limit", -1, -1, -1),
        ("filter_max_in_memory_bytes_per_msg", 100, 90, 90),
        ("overflow", "drop-head", "reject-publish", "reject-publish"),
        ("queue_mode", "default", "lazy", "default"),
        ("filter_field_names", "a", "b", "a"),
    ],
)
def test_limits_are_the_smaller_one_overflow_is_the_policys_and_the_rest_the_queues(
    catalog: CatalogOfPolicies, argument: str, own: Any, policys: Any, expected: Any
) -> None:
    catalog.declare("q", filter_enabled=True, **{argument: own})
    catalog.set("p", "*", **{argument: policys})
    queue = catalog.machine.queue("q")
    assert queue is not None
    found = catalog.machine.effective(queue)
    assert dict(found.arguments)["x-" + argument.replace("_", "-")] == expected
    assert found.config == effective_config("q", dict(found.arguments))
    assert dict(queue.arguments)["x-" + argument.replace("_", "-")] == own


def test_filter_arguments_reach_only_queues_that_filter(catalog: CatalogOfPolicies) -> None:
    catalog.declare("plain")
    catalog.declare("filtering", filter_enabled=True)
    catalog.set("p", "*", filter_field_names="colour, header.priority", max_length=9)
    assert catalog.config("plain") == c.QueueConfig("plain", max_length=9, delivery_limit=20)
    assert catalog.config("filtering").filter_field_names == ("colour", "header.priority")


def test_delayed_retry_does_not_reach_queues_with_message_groups(catalog: CatalogOfPolicies) -> None:
    catalog.declare("plain")
    catalog.declare("grouped", message_groups=True)
    catalog.set("p", "*", delayed_retry_min=5, delayed_retry_max=9, max_length=9)
    assert catalog.config("plain").delayed_retry_min_ms == 5
    assert catalog.config("grouped") == c.QueueConfig(
        "grouped", max_length=9, delivery_limit=20, message_groups=True
    )


VALUES: dict[str, st.SearchStrategy[ArgumentValue]] = {
    "x-consumer-timeout": st.integers(1_000, 1_099),
    "x-dead-letter-exchange": st.sampled_from(("", "dead")),
    "x-dead-letter-routing-key": st.sampled_from(("", "grave")),
    "x-dead-letter-strategy": st.sampled_from(("at-least-once", "at-most-once")),
    "x-delayed-retry-max": st.integers(1, 99),
    "x-delayed-retry-min": st.integers(1, 99),
    "x-delivery-limit": st.integers(-1, 20),
    "x-filter-enabled": st.booleans(),
    "x-filter-field-names": st.sampled_from(("*", "colour", "colour,header.priority")),
    "x-filter-max-in-memory-bytes-per-msg": st.integers(0, 99),
    "x-expires": st.integers(1, 99),
    "x-max-consumers": st.integers(1, 99),
    "x-max-length": st.integers(1, 99),
    "x-max-length-bytes": st.integers(1, 99),
    "x-max-priority": st.integers(1, 31),
    "x-message-groups": st.booleans(),
    "x-message-ttl": st.integers(0, 99),
    "x-overflow": st.sampled_from(("drop-head", "reject-publish")),
    "x-queue-mode": st.sampled_from(("default", "lazy")),
    "x-single-active-consumer": st.booleans(),
}


@st.composite
def some(draw: st.DrawFn, names: tuple[str, ...]) -> dict[str, ArgumentValue]:
    chosen = sorted(draw(st.sets(st.sampled_from(names))))
    return {name: draw(VALUES[name]) for name in chosen}


@given(some(tuple(SUPPORTED)), some(tuple(BY_POLICY)))
def test_what_comes_out_is_always_a_configuration(
    own: dict[str, ArgumentValue], policys: dict[str, ArgumentValue]
) -> None:
    if own.get("x-filter-enabled") is not True:
        own = {name: value for name, value in own.items() if "filter" not in name}
    else:
        own.pop("x-single-active-consumer", None)
    if own.get("x-single-active-consumer"):
        own.pop("x-message-groups", None)
    if own.get("x-message-groups"):
        own = {name: value for name, value in own.items() if "delayed-retry" not in name}
    made = merged(tuple(sorted(own.items())), tuple(sorted(policys.items())))
    config = effective_config("q", dict(made))
    assert config.filter_enabled == bool(own.get("x-filter-enabled"))
    assert merged(made, tuple(sorted(policys.items()))) == made
    if not policys:
        assert made == tuple(sorted(own.items()))


# ---- refusals and limits


def test_what_a_policy_cannot_set_is_refused_naming_what_it_can(catalog: CatalogOfPolicies) -> None:
    allowed = ", ".join(BY_POLICY)
    assert catalog.refusal("p", filter_enabled=True) == (
        f"argument 'x-filter-enabled' is fixed when a queue is declared; a policy may set {allowed}"
    )
    assert catalog.refusal("p") == f"a policy without arguments; it may set {allowed}"
    assert (
        catalog.refusal("p", max_lenght=1) == "unknown argument 'x-max-lenght'; did you mean 'x-max-length'?"
    )
    assert "is fixed when a queue is declared" in catalog.refusal("p", max_priority=3)
    assert "not supported by this version" in catalog.refusal("p", initial_group_size=3)
    assert "allowed: an integer" in catalog.refusal("p", max_length=True)
    assert "header.durabel" in catalog.refusal("p", filter_field_names="header.durabel")


def test_names_patterns_and_priorities_have_limits(catalog: CatalogOfPolicies) -> None:
    assert "policy name" in catalog.refusal("", max_length=1)
    assert "policy name" in catalog.refusal("n" * 256, max_length=1)
    assert "control character" in catalog.refusal("a\n", max_length=1)
    assert "policy pattern" in catalog.refusal("p", "", max_length=1)
    assert "policy pattern" in catalog.refusal("p", "*" * 256, max_length=1)
    assert "priority" in catalog.refusal("p", "*", 1 << 31, max_length=1)


def test_the_number_of_policies_is_limited_and_known_ones_may_still_change(
    catalog: CatalogOfPolicies,
) -> None:
    for number in range(MAX_POLICIES):
        assert catalog.set(f"p{number}", "*", max_length=1) == Ok(1)
    reply = catalog.set("one more", "*", max_length=1)
    assert isinstance(reply, Refused) and reply.reason == "limit"
    assert catalog.set("p7", "*", max_length=2) == Ok(1)
    catalog.call(RemovePolicy("p7"))
    assert catalog.set("one more", "*", max_length=1) == Ok(1)


def test_only_a_change_is_a_new_revision(catalog: CatalogOfPolicies) -> None:
    assert catalog.set("p", "*", max_length=1) == Ok(1)
    assert catalog.machine.revision == 1
    assert catalog.set("p", "*", max_length=1) == Ok(0)
    reply = catalog.call(RemovePolicy("nobody"))
    assert isinstance(reply, Refused) and reply.reason == "not_found"
    assert catalog.machine.revision == 1
    catalog.set("p", "*", 1, max_length=1)
    catalog.call(RemovePolicy("p"))
    assert catalog.machine.revision == 3


# ---- state


def test_a_snapshot_holds_policies_and_nothing_that_was_worked_out(catalog: CatalogOfPolicies) -> None:
    catalog.declare("a", filter_enabled=True)
    catalog.set("p", "a*", -3, max_length=7, filter_field_names="colour")
    catalog.set("o", "b", max_length=7)
    before = catalog.machine.snapshot()
    assert catalog.config("a").max_length == 7
    assert catalog.machine.snapshot() == before
    again = CatalogMachine.restore(before)
    assert again.snapshot() == before
    queue = again.queue("a")
    assert queue is not None
    assert again.effective(queue).config == catalog.config("a")
    assert again.revision == 2


def test_a_snapshot_without_policies_in_it_is_refused(catalog: CatalogOfPolicies) -> None:
    state = json.loads(catalog.machine.snapshot())
    del state["policies"]
    with pytest.raises(ValueError, match="no catalog snapshot"):
        CatalogMachine.restore(json.dumps(state).encode())


class _Queue:
    def __init__(self, number: int) -> None:
        self.id, self.name, self.arguments, self.version = number, f"q{number}", (), 1
        self.config = c.QueueConfig(self.name)


def test_a_change_looks_at_no_queue_and_each_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(
        "quorum.catalog.policies._fit", lambda pieces, name: bool(looked.append(name) or True)
    )
    policies = Policies([Policy("p", "*", 0, (("x-max-length", 1),))])
    queues: Any = [_Queue(number) for number in range(10)]
    changed = policies.with_policy(Policy("r", "*", 1, (("x-max-length", 2),))).without("p")
    assert looked == []
    for _ in range(3):
        assert [changed.effective(queue).config.max_length for queue in queues] == [2] * 10
    assert len(looked) == 10
    changed.forget(3)
    changed.effective(queues[3])
    assert len(looked) == 11


def test_steps_grow_with_the_pieces_of_all_patterns() -> None:
    plain = Policies([Policy(f"p{number}", f"q{number}.*", 0, ()) for number in range(200)])
    assert plain.steps == 200
    hostile = Policies([Policy(f"p{number}", "a*" * 80 + f"b{number}", 0, ()) for number in range(200)])
    assert hostile.steps == 200 * 11
    queue: Any = _Queue(1)
    assert hostile.steps_for(queue) == hostile.steps
    hostile.effective(queue)
    assert hostile.steps_for(queue) == 0


@given(st.binary(max_size=40))
def test_rubbish_is_no_policy(data: bytes) -> None:
    head = op.encode(SetPolicy("p", "*", 0, ()), None)[: -len(b'["p","*",0,[]]')]
    try:
        op.decode(memoryview(head + data), 0)
    except op.OperationError:
        pass
