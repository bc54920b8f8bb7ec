"""Consumers of a higher priority are served first, and those of one priority in turn."""

from __future__ import annotations

from dataclasses import replace

from fifo.commands import Attach, Credit, Return, Settle
from fifo.effects import AttachedReply, Refused
from fifo.limits import PRODUCTION, SMALL
from support.fifo.world import World, producer, selector, sequences

RED = {"application-properties.colour": "red"}
BLUE = {"application-properties.colour": "blue"}


def given(world: World, rows: list[dict[str, object]] | int) -> dict[str, list[int]]:
    """The sequences of new messages that each consumer got."""
    count, fields = (rows, []) if isinstance(rows, int) else (len(rows), rows)
    if producer(9) not in world.epochs:
        world.session(9)
    applied = world.publish(producer(9), count, fields)
    tags = {effect.consumer_tag for effect in applied.effects}  # type: ignore[union-attr]
    return {tag: sequences(applied, tag) for tag in sorted(tags)}


def test_the_highest_priority_is_served_as_long_as_it_has_credit() -> None:
    world = World(has_model=True)
    world.queue()
    name = world.session()
    world.attach(name, "low", 10, priority=-10)
    world.attach(name, "plain", 4)
    world.attach(name, "high", 3, priority=10)
    assert given(world, 9) == {"high": [1, 2, 3], "plain": [4, 5, 6, 7], "low": [8, 9]}
    world.do(name, Credit(1, "high", 4))
    assert given(world, 2) == {"high": [10], "low": [11]}


def test_a_lower_priority_keeps_what_it_was_given() -> None:
    world = World(has_model=True)
    world.queue()
    name = world.session()
    world.attach(name, "low", 2)
    assert given(world, 2) == {"low": [1, 2]}
    _, applied = world.attach(name, "high", 2, priority=1)
    assert not applied.effects


def test_consumers_of_one_priority_share_evenly() -> None:
    world = World(has_model=True)
    world.queue()
    name = world.session()
    for tag in ("a", "b"):
        world.attach(name, tag, 10, priority=5)
    for tag in ("c", "d"):
        world.attach(name, tag, 10)
    assert given(world, 10) == {"a": [1, 2, 3, 4, 5], "b": [6, 7, 8, 9, 10]}
    assert given(world, 16) == {
        "a": [11, 12, 13, 14, 15],
        "b": [16, 17, 18, 19, 20],
        "c": [21, 22, 23],
        "d": [24, 25, 26],
    }


def test_equal_priorities_of_any_number_are_served_as_without() -> None:
    worlds = []
    for priority in (0, 7):
        world = World(has_model=True)
        world.queue(filter_enabled=True)
        name = world.session()
        for tag, text in (("a", ""), ("b", "colour = 'red'"), ("c", ""), ("d", "colour = 'red'")):
            world.attach(name, tag, 6, text, priority=priority)
        worlds.append([given(world, [RED, BLUE, RED, RED, BLUE]) for _ in range(4)])
    assert worlds[0] == worlds[1]


def test_a_message_that_several_selectors_match_goes_to_the_highest_priority() -> None:
    world = World(has_model=True)
    world.queue(filter_enabled=True)
    name = world.session()
    world.attach(name, "all", 10)
    world.attach(name, "red", 2, "colour = 'red'", priority=1)
    world.attach(name, "any red", 10, "colour = 'red' OR size > 5", priority=-1)
    assert given(world, [RED, BLUE, RED, RED]) == {"all": [2, 4], "red": [1, 3]}


def test_consumers_of_one_selector_may_have_different_priorities() -> None:
    world = World(has_model=True)
    world.queue(filter_enabled=True)
    name = world.session()
    world.attach(name, "second", 10, "colour = 'red'")
    world.attach(name, "first", 2, "colour = 'red'", priority=1)
    assert len(world.machine.queues[1].groups.by_selector) == 1
    assert given(world, [RED, BLUE, RED, RED]) == {"first": [1, 3], "second": [4]}


def test_a_lower_priority_waits_while_a_higher_one_has_not_seen_all_messages() -> None:
    world = World(replace(SMALL, max_consumers=100), has_model=True)
    world.queue(filter_enabled=True)
    name = world.session()
    for _ in range(6):
        world.publish(name, 8, [BLUE] * 7 + [RED])
    first = world.op(name, Attach(1, "low", b"", 100))
    second = world.op(name, Attach(1, "high", selector("colour = 'red'"), 100, 1))
    applied = world.apply([first, second])
    later = world.wake_until_done()
    entries = [applied, *later]
    red = [sequence for entry in entries for sequence in sequences(entry, "high")]
    rest = [sequence for entry in entries for sequence in sequences(entry, "low")]
    assert len(later) > 1
    assert red == [8 * number for number in range(1, 7)]
    assert rest == [sequence for sequence in range(1, 49) if sequence % 8][: SMALL.max_checked_out]
    last_red = max(place for place, entry in enumerate(entries) if sequences(entry, "high"))
    first_low = min(place for place, entry in enumerate(entries) if sequences(entry, "low"))
    assert first_low >= last_red


def test_a_lower_priority_waits_while_arrivals_are_not_looked_up_for_a_higher_one() -> None:
    world = World(replace(SMALL, max_consumers=100, arrival_budget=12), has_model=True)
    world.queue(filter_enabled=True)
    name = world.session()
    world.attach(name, "high", 100, "colour = 'red'", priority=1)
    world.attach(name, "low", 100)
    entries = [world.publish(name, 16, [BLUE] * 15 + [RED]), *world.wake_until_done()]
    last_red = max(place for place, entry in enumerate(entries) if sequences(entry, "high"))
    first_low = min(place for place, entry in enumerate(entries) if sequences(entry, "low"))
    assert 0 < last_red <= first_low
    assert sequences(entries[last_red], "high") == [16]


def test_a_returned_message_goes_to_the_highest_priority() -> None:
    world = World(has_model=True)
    world.queue()
    name = world.session()
    attach, _ = world.attach(name, "low", 5)
    assert given(world, 1) == {"low": [1]}
    world.attach(name, "high", 5, priority=3)
    applied = world.apply([world.op(name, Return(1, "low", attach, ((1, 1),)))])
    assert sequences(applied, "high") == [1]


def test_a_priority_out_of_range_is_refused() -> None:
    world = World(has_model=True)
    world.queue()
    name = world.session()
    for priority in (11, -11):
        reply = world.do(name, Attach(1, "a", b"", 1, priority))
        assert isinstance(reply, Refused)
        assert (reply.reason, reply.detail) == (
            "bad_argument",
            f"consumer priority {priority}; allowed: -10..10",
        )
    assert not world.machine.queues[1].consumers.by_key


def test_attaching_again_with_another_priority_starts_over() -> None:
    world = World(has_model=True)
    world.queue()
    name = world.session()
    attach, _ = world.attach(name, "a", 5, priority=1)
    assert given(world, 2) == {"a": [1, 2]}
    assert world.do(name, Attach(1, "a", b"", 5, 1)) == AttachedReply(attach)
    again = world.do(name, Attach(1, "a", b"", 5, 2))
    assert isinstance(again, AttachedReply) and again.attach != attach
    late = world.do(name, Settle(1, "a", attach, ((1, 2),)))
    assert isinstance(late, Refused) and late.reason == "wrong_attach"


def test_thousands_of_consumers_of_many_priorities_are_served_in_order() -> None:
    world = World(PRODUCTION)
    world.queue()
    name = world.session()
    world.checks = False
    attaches = [world.op(name, Attach(1, f"c{number}", b"", 1, number % 21 - 10)) for number in range(2_100)]
    world.apply(attaches)
    world.checks = True
    applied = world.publish(name, 100)
    tags = {effect.consumer_tag for effect in applied.effects}  # type: ignore[union-attr]
    assert tags == {f"c{number}" for number in range(2_100) if number % 21 == 20}
