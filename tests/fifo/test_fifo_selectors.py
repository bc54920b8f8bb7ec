"""Selector groups: who gets which messages, how far fronts go, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fifo.commands import Attach, Credit, Get, QueueConfig, Return, Settle, UpdateConfig
from fifo.consumers import selector as selector_module
from fifo.consumers.consumer import SelectorGroup
from fifo.consumers.shared_scan import CAUGHT_UP
from fifo.effects import Refused
from fifo.limits import SMALL
from fifo.persistence import snapshot
from fifo.queries import group as queries
from quorum_selectors import compiled as compiled_module
from support.fifo.local_parts import drop_columns, drop_matches
from support.fifo.world import World, selector, sequences

RED = {"application-properties.colour": "red"}
GREEN = {"application-properties.colour": "green"}
NONE: Mapping[str, Any] = {}


@pytest.fixture
def world() -> World:
    found = World()
    found.queue(filter_enabled=True)
    return found


def group(world: World, text: str) -> SelectorGroup:
    return world.machine.queues[1].groups.by_selector[selector(text)]


def test_a_consumer_gets_what_its_selector_says_and_the_rest_stays(world: World) -> None:
    name = world.session()
    world.publish(name, 6, [RED, GREEN, RED, NONE, GREEN, RED])
    _, applied = world.attach(name, "a", 10, "colour = 'red'")
    assert sequences(applied) == [1, 3, 6]
    applied = world.publish(name, 3, [GREEN, RED, NONE])
    assert sequences(applied) == [8]
    _, applied = world.attach(name, "b", 10, "colour IS NULL")
    assert sequences(applied) == [4, 9]


def test_groups_whose_selectors_overlap_share_in_turn(world: World) -> None:
    name = world.session()
    world.attach(name, "red", 100, "colour = 'red'")
    world.attach(name, "any", 100)
    applied = world.publish(name, 6, [RED] * 6)
    assert (sequences(applied, "red"), sequences(applied, "any")) == ([1, 2, 3], [4, 5, 6])
    assert sequences(world.publish(name, 1, [RED]), "red") == [7]
    assert sequences(world.publish(name, 1, [RED]), "any") == [8]
    assert sequences(world.publish(name, 1, [RED]), "red") == [9]


def test_a_group_that_finds_nothing_keeps_its_place(world: World) -> None:
    name = world.session()
    world.attach(name, "green", 100, "colour = 'green'")
    world.attach(name, "red", 100, "colour = 'red'")
    world.attach(name, "any", 100)
    assert sequences(world.publish(name, 1, [RED]), "red") == [1]
    # green was first and still is; then comes any, then red
    assert sequences(world.publish(name, 1, [GREEN]), "green") == [2]
    assert sequences(world.publish(name, 1, [RED]), "any") == [3]


def test_equal_selectors_are_one_group_with_its_own_line(world: World) -> None:
    name = world.session()
    world.attach(name, "a", 100, "colour = 'red' AND size > 2")
    world.attach(name, "b", 100, "size > 2 AND colour = 'red'")
    assert len(world.machine.queues[1].groups.by_selector) == 1
    rows = [{**RED, "application-properties.size": 3}]
    assert sequences(world.publish(name, 1, rows), "a") == [1]
    assert sequences(world.publish(name, 1, rows), "b") == [2]
    assert sequences(world.publish(name, 1, rows), "a") == [3]


def test_attaching_with_another_selector_starts_over(world: World) -> None:
    name = world.session()
    world.publish(name, 4, [RED, GREEN, RED, GREEN])
    attach, applied = world.attach(name, "a", 10, "colour = 'red'")
    assert sequences(applied) == [1, 3]
    again, applied = world.attach(name, "a", 10, "colour IS NOT NULL")
    assert again != attach
    assert sequences(applied) == [1, 2, 3, 4]
    assert applied.effects[0].redelivered == 0b0101  # type: ignore[union-attr]
    reply = world.do(name, Settle(1, "a", attach, ((1, 1),)))
    assert isinstance(reply, Refused)


def test_a_return_evaluates_nothing(world: World) -> None:
    name = world.session()
    world.checks = False
    world.publish(name, 1000, [RED, GREEN] * 500)
    checked_out, applied = world.attach(name, "a", 3, "colour = 'red'")
    assert sequences(applied) == [1, 3, 5]
    for number in range(20):
        world.attach(name, f"b{number}", 1, "colour = 'green'")
    asked = world.machine.queues[1].groups.fields
    evaluated = asked.evaluated
    world.do(name, Return(1, "a", checked_out, ((1, 3),)))
    applied = world.apply([world.op(name, Credit(1, "a", 5))])
    assert sequences(applied) == [1, 3]
    assert asked.evaluated == evaluated


def test_a_front_moves_only_with_credit_and_only_as_far_as_needed() -> None:
    world = World(SMALL, has_model=True)
    world.queue(filter_enabled=True)
    name = world.session()
    world.publish(name, 12, [GREEN] * 4 + [RED] * 8)
    world.attach(name, "a", 0, "colour = 'red'")
    world.publish(name, 12, [RED] * 12)
    assert group(world, "colour = 'red'").scan_position == 0
    world.do(name, Credit(1, "a", 2))
    assert group(world, "colour = 'red'").scan_position == 8
    world.do(name, Credit(1, "a", 5))
    assert group(world, "colour = 'red'").scan_position == 14, "the entry's steps end within a block"
    world.do(name, Credit(1, "a", 100))
    world.wake_until_done()
    assert group(world, "colour = 'red'").scan_position == CAUGHT_UP
    world.do(name, Credit(1, "a", 0))
    assert group(world, "colour = 'red'").scan_position == 25


def test_a_long_scan_goes_on_by_wake_ups_and_never_starves() -> None:
    world = World(SMALL, has_model=True)
    world.queue(filter_enabled=True)
    name = world.session()
    for place in range(20):
        world.publish(name, 10, [RED if place == 19 and i == 9 else GREEN for i in range(10)])
    _, applied = world.attach(name, "a", 10, "colour = 'red'")
    assert sequences(applied) == []
    assert world.machine.next_wake() == world.now_ms
    wakes = world.wake_until_done()
    assert [sequences(entry) for entry in wakes if sequences(entry)] == [[200]]
    # 26 blocks, about one an entry: 24 steps are the budget, a block has 8, and 16 or more to read it again
    assert len(wakes) == 24


def test_a_scan_costs_the_same_whatever_is_known_locally() -> None:
    world = World(SMALL, has_model=True)
    world.queue(filter_enabled=True)
    name = world.session()
    for _ in range(10):
        world.publish(name, 10, [GREEN] * 10)
    world.attach(name, "a", 10, "colour = 'red'")
    world.twin = world.restored(snapshot.encode(world.machine))
    while world.machine.next_wake() is not None:
        drop_matches(world.twin)
        drop_columns(world.twin)
        world.wake()


def test_drain_waits_for_the_scan() -> None:
    world = World(SMALL, has_model=True)
    world.queue(filter_enabled=True)
    name = world.session()
    for _ in range(10):
        world.publish(name, 10, [GREEN] * 9 + [RED])
    world.attach(name, "a", 0, "colour = 'red'")
    applied = world.apply([world.op(name, Credit(1, "a", 50, drain=True))])
    assert not [effect for effect in applied.effects if getattr(effect, "event", "") == "drained"]
    effects = [effect for entry in world.wake_until_done() for effect in entry.effects]
    assert getattr(effects[-1], "event", "") == "drained"
    assert getattr(effects[-1], "value", 0) == 11


@pytest.mark.parametrize(
    ("text", "reason"),
    [("colour = 'red'", ""), ("JMSPriority > 3", ""), ("JMSType = 'x'", "field_not_kept")],
)
def test_a_selector_on_a_field_that_is_not_kept_is_refused_by_name(
    world: World, text: str, reason: str
) -> None:
    reply = world.do(world.session(), Attach(1, "a", selector(text), 1))
    if reason:
        assert isinstance(reply, Refused)
        assert reply.reason == reason
        assert "properties.subject" in reply.detail
    else:
        assert not isinstance(reply, Refused)


def test_only_named_application_properties_are_kept_where_names_are_listed() -> None:
    world = World()
    world.queue(filter_enabled=True, filter_field_names=("colour",))
    name = world.session()
    assert not isinstance(world.do(name, Attach(1, "a", selector("colour = 'x'"), 1)), Refused)
    reply = world.do(name, Attach(1, "b", selector("colour = 'x' OR size = 2"), 1))
    assert isinstance(reply, Refused)
    assert reply.reason == "field_not_kept"


def test_a_selector_on_a_queue_that_does_not_filter_is_refused() -> None:
    world = World()
    world.queue()
    reply = world.do(world.session(), Attach(1, "a", selector("colour = 'x'"), 1))
    assert isinstance(reply, Refused)
    assert reply.reason == "bad_argument"


@pytest.mark.parametrize("code", [b"\x00", b"\xff" * 40, selector("a = 1")[:-1], selector("a = 1") + b"\x00"])
def test_bytes_that_encode_no_expression_are_refused(world: World, code: bytes) -> None:
    reply = world.do(world.session(), Attach(1, "a", code, 1))
    assert isinstance(reply, Refused)
    assert reply.reason == "bad_argument"


def test_columns_that_cannot_be_read_are_refused_with_their_batch(world: World) -> None:
    name = world.session()
    _, command = world.batch(name, 2, [RED, GREEN])
    world.numbers[name] -= 1
    for damaged in (command.columns[:-1], b"\x07" * 30, command.columns + b"x"):  # type: ignore[attr-defined]
        bad = type(command)(1, 1, 1, 2, 100, columns=damaged)  # type: ignore[call-arg]
        reply = world.apply([world.op(name, bad)]).replies[0]
        assert isinstance(reply, Refused)
        assert reply.reason == "bad_argument"
    info = world.info()
    assert info.total == 0


def test_get_takes_messages_whatever_selectors_want(world: World) -> None:
    name = world.session()
    world.publish(name, 4, [RED, GREEN, RED, GREEN])
    world.attach(name, "a", 1, "colour = 'red'")
    assert sequences(world.apply([world.op(name, Get(1, 2, True))])) == [2, 3]


def test_expired_matches_are_not_delivered(world: World) -> None:
    name = world.session()
    world.publish(name, 4, [RED] * 4, ttls_ms=(50, -1, 50, -1))
    world.now_ms += 1000
    _, applied = world.attach(name, "a", 10, "colour = 'red'")
    assert sequences(applied) == [2, 4]


def test_browsing_with_a_selector_shows_matches_and_changes_nothing(world: World) -> None:
    name = world.session()
    world.publish(name, 6, [RED, GREEN, RED, NONE, GREEN, RED])
    before = snapshot.encode(world.machine)
    page = queries.browse(world.machine, 1, 0, 2, selector("colour = 'red'"))
    assert [run.first_sequence for run in page.runs] == [1, 3]  # type: ignore[union-attr]
    page = queries.browse(world.machine, 1, page.next_sequence, 2, selector("colour = 'red'"))  # type: ignore[union-attr,arg-type]
    assert [run.first_sequence for run in page.runs] == [6]  # type: ignore[union-attr]
    assert page.next_sequence is None  # type: ignore[union-attr]
    assert isinstance(queries.browse(world.machine, 1, 0, 2, selector("JMSType = 'red'")), Refused)
    assert isinstance(queries.browse(world.machine, 9, 0, 2), Refused)
    assert snapshot.encode(world.machine) == before


def test_a_queue_that_begins_to_filter_later_has_messages_without_fields() -> None:
    world = World()
    world.queue()
    name = world.session()
    world.publish(name, 3)
    config = QueueConfig("queue-1", filter_enabled=True, filter_field_names=("*",))
    world.apply([(None, UpdateConfig(1, config))])
    world.publish(name, 2, [RED, GREEN])
    _, applied = world.attach(name, "a", 10, "colour = 'red'")
    assert sequences(applied) == [4]
    _, applied = world.attach(name, "b", 10, "colour IS NULL")
    assert sequences(applied) == [1, 2, 3]


def test_columns_come_back_from_the_log_for_batches_singles_and_parts(world: World) -> None:
    name = world.session()
    world.publish(name, 5, [RED, GREEN, RED, GREEN, RED], first=10, lowest_unconfirmed=10)
    world.publish(name, 4, [GREEN, GREEN, RED, RED], first=13, lowest_unconfirmed=10)  # two of them again
    world.apply([world.batch(name, 1, [row], place, first=20 + place, lowest_unconfirmed=10) for place, row in
                 enumerate([RED, NONE, RED])])  # fmt: skip
    drop_columns(world.machine)
    _, applied = world.attach(name, "a", 100, "colour = 'red'")
    assert sequences(applied) == [1, 3, 5, 6, 7, 8, 10]


def test_selectors_are_compiled_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(expression: Any) -> Any:
        calls.append(expression)
        return compiled_module.compile_expression(expression)

    monkeypatch.setattr(selector_module, "compile_expression", counted)
    name = world.session()
    world.attach(name, "a", 100, "colour = 'red' OR colour = 'seen only here'")
    for _ in range(5):
        world.publish(name, 2, [RED, GREEN])
    assert len(calls) == 1


def test_a_change_of_the_kept_fields_is_for_those_who_attach_later() -> None:
    world = World()
    world.queue(filter_enabled=True, filter_field_names=("colour",))
    name = world.session()

    def refusal(tag: str, text: str) -> Refused:
        reply = world.apply([world.op(name, Attach(1, tag, selector(text), 10))]).replies[0]
        assert isinstance(reply, Refused)
        return reply

    attach, _ = world.attach(name, "early", 1, "colour = 'red'")
    assert sequences(world.publish(name, 2, [RED, GREEN])) == [1]
    world.apply([(None, UpdateConfig(1, QueueConfig("queue-1", True, ("size",))))])

    refused = refusal("late", "colour = 'red'")
    assert refused.reason == "field_not_kept"
    assert "'application-properties.colour'" in refused.detail and "kept: size" in refused.detail
    refusal("early", "colour = 'green'")
    assert world.attach(name, "early", 10, "colour = 'red'")[0] == attach, "it is attached already"

    applied = world.publish(name, 3, [{"application-properties.size": 3}, NONE, RED])
    assert sequences(applied) == [5], "a session that is older than the change sends the field still"
    assert sequences(world.attach(name, "a", 10, "size IS NULL")[1]) == [2, 4]
    assert sequences(world.attach(name, "b", 10, "size = 3")[1]) == [3]
