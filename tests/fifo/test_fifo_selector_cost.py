"""What selectors cost: counted in entries, evaluations and executed lines, never in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fifo.budgets import Entry
from fifo.commands import Return, Settle
from fifo.consumers import match_cache
from fifo.consumers.consumer import SelectorGroup
from fifo.consumers.delivery import Delivery
from fifo.consumers.match_cache import MatchCache
from fifo.consumers.selector_groups import SelectorGroups
from fifo.effects import Applied
from fifo.limits import PRODUCTION, Limits
from fifo.messages.packed_sets import Packed, unpack
from support.counted_lines import count_lines
from support.fifo.world import World, selector, sequences

COLOUR = "application-properties.colour"
SIZE = "application-properties.size"
ID = "properties.correlation-id"
BLUE = {COLOUR: "blue"}
RED = {COLOUR: "red"}
Row = Mapping[str, Any]


@pytest.fixture
def world() -> World:
    found = World()
    found.checks = False
    found.queue(filter_enabled=True, filter_field_names=("*", "properties.correlation-id"))
    return found


def evaluated(world: World) -> int:
    return world.machine.queues[1].groups.fields.evaluated


def pile(world: World, name: bytes, count: int, row: Callable[[int], Row]) -> None:
    """So many waiting messages, in batches of a block."""
    for first in range(0, count, PRODUCTION.block_size):
        size = min(PRODUCTION.block_size, count - first)
        world.publish(name, size, [row(first + place) for place in range(size)])


def attach(world: World, name: bytes, tag: str, credit: int, text: str) -> tuple[int, list[Applied]]:
    """Attaches and wakes until nothing is due; the entries."""
    number, applied = world.attach(name, tag, credit, text)
    return number, [applied, *world.wake_until_done()]


def test_one_red_message_behind_a_million_blue_ones(world: World) -> None:
    """Apache ActiveMQ Classic never delivers it with its default page: it looks at the first 200 only."""
    name = world.session()
    blues = 62 * PRODUCTION.block_size
    for _ in range(62):
        world.publish(name, PRODUCTION.block_size, [BLUE] * PRODUCTION.block_size)
    red = sequences(world.publish(name, 1, [RED]))
    _, entries = attach(world, name, "red", 10, "colour = 'red'")
    assert [sequences(applied) for applied in entries if sequences(applied)] == [[blues + 1]]
    assert red == []
    steps = PRODUCTION.block_size * (1 + 1 + 100 / 1_024) + 3 * (
        192 + 96
    )  # to evaluate a block, and to read it again
    assert len(entries) <= 62 * steps // PRODUCTION.step_budget + 2
    assert evaluated(world) <= blues + 1
    assert sequences(world.publish(name, 2, [BLUE, RED])) == [blues + 3]


def test_a_group_that_was_given_its_only_match_is_not_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, other = world.session(), world.session()
    world.attach(name, "red", 100, "colour = 'red'")
    world.attach(other, "blue", 100, "colour = 'blue'")
    asked = []
    take = SelectorGroups.take

    def counted(
        groups: SelectorGroups, group: SelectorGroup, entry: Entry, delivery: Delivery, wanted: int
    ) -> tuple[int, bool]:
        asked.append(group.selector)
        return take(groups, group, entry, delivery, wanted)

    world.publish(name, 1, [{}])  # stays ready: a checkout ends when no message is
    monkeypatch.setattr(SelectorGroups, "take", counted)
    for number in range(10):
        assert sequences(world.publish(name, 1, [RED])) == [number + 2]
        assert asked == [selector("colour = 'red'")]
        asked.clear()
    applied = world.publish(name, 5, [RED, RED, RED, RED, BLUE])  # turns of 3 messages
    assert sequences(applied, "red") == [12, 13, 14, 15]
    assert sorted(asked) == sorted([selector("colour = 'red'")] * 2 + [selector("colour = 'blue'")])


def test_orphans_that_nobody_wants_are_passed_once(world: World) -> None:
    """200 at the head of the queue: what comes after them is delivered as it comes, and they are never asked again."""
    name = world.session()
    world.publish(name, 200, [{COLOUR: f"orphan-{number}"} for number in range(200)])
    _, entries = attach(world, name, "red", 1_000, "colour = 'red'")
    assert not any(sequences(applied) for applied in entries)
    before = evaluated(world)
    for number in range(50):
        assert sequences(world.publish(name, 1, [RED])) == [201 + number]
    assert evaluated(world) - before == 50


def test_correlation_ids_that_are_all_different(world: World) -> None:
    """A hundred who wait for their own answer among 100,000 others': each gets it at once, by one evaluation."""
    name = world.session()
    pile(world, name, 100_000, lambda number: {ID: f"request-{number}"})
    for number in range(100):
        attach(world, name, f"c{number}", 10, f"JMSCorrelationID = 'mine-{number}'")
    before = evaluated(world)
    for number in range(100):
        applied = world.publish(name, 1, [{ID: f"mine-{number}"}])
        assert sequences(applied, f"c{number}") == sequences(applied) == [100_001 + number]
    assert evaluated(world) - before == 100
    _, entries = attach(world, name, "late", 10, "JMSCorrelationID = 'request-99000'")
    assert [sequences(applied) for applied in entries if sequences(applied)] == [[99_001]]


def test_ten_among_a_million_in_bounded_entries_while_others_are_served(world: World) -> None:
    name = world.session()
    world.attach(name, "early", 10, "size < 0")
    wanted = [1 + 100_003 * place for place in range(10)]
    for first in range(0, 64 * PRODUCTION.block_size, PRODUCTION.block_size):
        world.publish(
            name, PRODUCTION.block_size, [{SIZE: first + place} for place in range(PRODUCTION.block_size)]
        )
    steps = 64 * PRODUCTION.block_size * (10 + 1)  # ten comparisons a message, and reading its fields
    _, applied = world.attach(name, "sparse", 100, " OR ".join(f"size = {each - 1}" for each in wanted))
    found = sequences(applied)
    assert found == wanted[:1], "deliveries begin with the first entry"
    entries = 1
    while (due := world.machine.next_wake()) is not None and due <= world.now_ms:
        if entries == 5:
            applied = world.publish(name, 1, [{SIZE: -1}])
            assert sequences(applied, "early") == [64 * PRODUCTION.block_size + 1], (
                "others do not wait for the scan"
            )
        else:
            applied = world.wake()
        found += sequences(applied, "sparse")
        entries += 1
    assert found == wanted
    assert steps // PRODUCTION.step_budget <= entries <= steps // PRODUCTION.step_budget + 2


def test_a_return_among_a_thousand_consumers_evaluates_nothing(world: World) -> None:
    name = world.session()
    pile(world, name, 3 * PRODUCTION.block_size, lambda number: {SIZE: number % 2_000})
    attached = {}
    for number in range(1_000):
        attached[number], _ = attach(world, name, f"c{number}", 1 + number % 2 * 40, f"size = {number}")
    before = evaluated(world)
    applied = world.apply([world.op(name, Return(1, "c1", attached[1], ((1, 1),)))])
    assert sequences(applied, "c1") == sequences(applied) == [2]
    applied = world.apply([world.op(name, Return(1, "c4", attached[4], ((1, 1),)))])
    assert sequences(applied) == [], "who asked for it has no credit, and nobody else wants it"
    world.apply([world.op(name, Settle(1, "c6", attached[6], ((1, 1),)))])
    assert evaluated(world) == before


SELECTORS: dict[str, Callable[[int], str]] = {
    "equality": lambda number: f"colour = 'c{number}'",
    "range": lambda number: f"size BETWEEN {10 * number} AND {10 * number + 9}",
    "beginning": lambda number: f"colour LIKE 'c{number}-%'",
    "end": lambda number: f"colour LIKE '%-{number}'",
    "list": lambda number: f"colour IN ('c{number}', 'd{number}')",
}
ROWS: dict[str, Callable[[int], Row]] = {
    "equality": lambda number: {COLOUR: f"c{number}"},
    "range": lambda number: {SIZE: 10 * number + 5},
    "beginning": lambda number: {COLOUR: f"c{number}-1"},
    "end": lambda number: {COLOUR: f"1-{number}"},
    "list": lambda number: {COLOUR: f"d{number}"},
}


@pytest.mark.parametrize(
    "limits", [PRODUCTION, replace(PRODUCTION, matched_bytes=0)], ids=["kept", "evicted"]
)
def test_many_returns_in_one_entry_ask_each_group_of_their_block_once(
    limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A return is a few bytes of one client. 4,096 of them among 8,192 selectors would take each member a minute."""
    world = World(limits)
    world.checks = False
    world.queue(filter_enabled=True)
    name, count = world.session(), 200
    attached = [world.attach(name, f"c{place}", 2, f"colour = '{place}'")[0] for place in range(count)]
    world.publish(name, count, [{COLOUR: str(place)} for place in range(count)])
    asked, get = 0, MatchCache.get

    def counting(cache: MatchCache, text: bytes, number: int) -> int:
        nonlocal asked
        asked += 1
        return get(cache, text, number)

    monkeypatch.setattr(MatchCache, "get", counting)
    returns = [world.op(name, Return(1, f"c{place}", attached[place], ((1, 1),))) for place in range(count)]
    applied = world.apply(returns)
    assert len(sequences(applied)) == count
    assert asked < 10 * count


def test_a_return_among_many_selectors_puts_no_set_together_for_each_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sets of all selectors with matches in the block are looked at together."""
    name, count = world.session(), 200
    attached = [world.attach(name, f"c{place}", 20, f"colour = '{place}'")[0] for place in range(count)]
    world.publish(name, 3 * count, [{COLOUR: str(place % count)} for place in range(3 * count)])
    made = 0

    def counting(packed: Packed) -> int:
        nonlocal made
        made += 1
        return unpack(packed)

    monkeypatch.setattr(match_cache, "unpack", counting)
    applied = world.apply([world.op(name, Return(1, "c7", attached[7], ((2, 3),)))])
    assert sequences(applied) == [208, 408]
    assert made < 10


@pytest.mark.parametrize("arguments", [{}, {"max_priority": 3}, {"message_groups": True}], ids=str)
def test_a_return_evaluates_only_what_is_returned_although_no_match_is_remembered(
    arguments: dict[str, Any],
) -> None:
    """The matches of 8,192 selectors in 64 blocks are more than the limit: a return of a message in each block would
    evaluate all of their messages again."""
    world = World(replace(PRODUCTION, matched_bytes=0))
    world.checks = False
    world.queue(filter_enabled=True, **arguments)
    name, other, count = world.session(), world.session(2), 400
    world.publish(name, count, [{COLOUR: "red"} if row > 10 else {} for row in range(count)])
    holder, _ = world.attach(name, "holder", count)
    world.publish(name, 1, [{}])  # stays ready
    for place in range(20):
        world.attach(other, f"c{place}", 5, f"colour <> '{place}'")
    for _ in range(5):
        world.wake()
    before = evaluated(world)
    assert before >= 20 * count  # each group has passed all messages
    assert not sequences(world.apply([world.op(name, Return(1, "holder", holder, ((1, 1),)))]))
    assert evaluated(world) - before <= 2 * 20
    before = evaluated(world)
    assert sequences(world.apply([world.op(name, Return(1, "holder", holder, ((50, 50),)))])) == [50]
    assert evaluated(world) - before < 3 * count


@pytest.mark.parametrize("kind", SELECTORS)
def test_dispatch_costs_the_same_with_ten_selectors_and_with_two_thousand(kind: str) -> None:
    few, many = dispatch(kind, 10), dispatch(kind, 2_000)
    assert many <= 2 * few


def dispatch(kind: str, count: int) -> int:
    """Lines to apply an entry of ten messages for ten different consumers, of `count`."""
    world = World()
    world.checks = False
    world.queue(filter_enabled=True)
    name = world.session()
    for number in range(count):
        world.attach(name, f"c{number}", 1_000, SELECTORS[kind](number))
    receivers = [number * count // 10 for number in range(10)]
    rows: Sequence[Row] = [ROWS[kind](number) for number in receivers]
    world.publish(name, 10, rows)
    operation = world.batch(name, 10, rows)
    before = evaluated(world)
    applied: list[Applied] = []
    lines = count_lines(lambda: applied.append(world.apply([operation])))
    assert [sequences(applied[0], f"c{number}") for number in receivers] == [[11 + n] for n in range(10)]
    assert evaluated(world) - before == 10
    return lines
