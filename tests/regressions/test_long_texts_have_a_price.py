"""A filter's step looks at a text, and a long text is as much work as many short ones: entries count that.

One publish of 64 messages with 64 KB of text each was looked up for 900 selectors in the entry that brought it: that
stopped every member of the group for ten seconds.
"""

from __future__ import annotations

from typing import Any

import pytest

from fifo.codec import Reader
from fifo.commands import Attach, Meta, Operation, Pin, Wake
from fifo.effects import Applied
from fifo.limits import PRODUCTION
from fifo.messages.pages import decode_block, encode_block
from fifo.persistence import snapshot
from fifo.queries import group as queries
from fifo.results import BrowsePage
from support.fifo.local_parts import drop_columns
from support.fifo.world import World, nth_number, selector, sequences

TEXT = "application-properties.text"
COLOUR = "application-properties.colour"

LONG = 64_000
UNITS = LONG // PRODUCTION.text_bytes


def prepared() -> tuple[World, bytes]:
    world = World()
    world.checks = False
    world.queue(filter_enabled=True)
    return world, world.session()


def letters(count: int, length: int = LONG) -> list[dict[str, Any]]:
    """Messages with a text of their own, which ends in their number."""
    return [{TEXT: f"{place:04d}".rjust(length, "a")} for place in range(count)]


def listen(world: World, name: bytes, count: int, credit: int = 1_000) -> None:
    """Consumers with a pattern each, which no index tells apart: of 3 steps."""
    for number in range(count):
        world.attach(name, f"c{number}", credit, f"text LIKE '%a{number:04d}%'")


class Entries:
    """What each entry asks: how often a selector was asked about a message."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.applied: list[Applied] = []
        self.asked: list[int] = []

    def evaluated(self) -> int:
        return self.world.machine.queues[1].groups.fields.evaluated

    def one(self, *operations: Any) -> None:
        before = self.evaluated()
        self.applied.append(
            self.world.apply(list(operations) or [(None, Wake())], 0 if not operations else 1)
        )
        self.asked.append(self.evaluated() - before)

    def rest(self) -> None:
        while (due := self.world.machine.next_wake()) is not None and due <= self.world.now_ms:
            self.one()
            assert len(self.asked) < 20_000

    def found(self, tag: str) -> list[int]:
        return [each for applied in self.applied for each in sequences(applied, tag)]


def test_long_texts_that_arrive_for_many_selectors_are_looked_up_in_several_entries() -> None:
    world, name = prepared()
    listen(world, name, 100)
    entries = Entries(world)
    entries.one(world.batch(name, 64, letters(64)))
    assert world.machine.queues[1].groups.shared.behind is not None
    entries.rest()
    assert world.machine.queues[1].groups.shared.behind is None
    assert max(entries.asked) * 3 * UNITS <= 2 * PRODUCTION.arrival_budget
    assert sum(entries.asked) == 100 * 64, "each is asked about each message, once"
    for number in (0, 1, 63):
        assert entries.found(f"c{number}") == [number + 1]


def test_one_long_message_an_entry_is_looked_up_however_many_ask_for_it() -> None:
    world, name = prepared()
    listen(world, name, 585)
    entries = Entries(world)
    entries.one(world.batch(name, 4, letters(4)))
    entries.rest()
    assert entries.asked == [585] * 4
    assert entries.found("c2") == [3]


def test_fronts_of_their_own_pass_long_texts_in_several_entries() -> None:
    world, name = prepared()
    world.publish(name, 64, letters(64))
    entries = Entries(world)
    wanted = [Attach(1, f"c{n}", selector(f"text LIKE '%a{n:04d}%'"), 10) for n in range(100)]
    entries.one(*[world.op(name, each) for each in wanted])
    entries.rest()
    assert max(entries.asked) * 3 * UNITS <= 2 * PRODUCTION.step_budget
    assert len(entries.asked) > 100 * 64 * 3 * UNITS // (4 * PRODUCTION.step_budget)
    for number in (0, 1, 63):
        assert entries.found(f"c{number}") == [number + 1]


@pytest.mark.parametrize("short", [0, 16_000])
def test_a_few_long_texts_are_dear_however_many_short_ones_come_with_them(short: int) -> None:
    world, name = prepared()
    listen(world, name, 100)
    rows = letters(64) + [{TEXT: "a"}] * short
    entries = Entries(world)
    entries.one(world.batch(name, len(rows), rows))
    assert entries.asked[0] * 3 * UNITS <= 2 * PRODUCTION.arrival_budget


def test_a_text_that_all_messages_of_a_batch_share_is_dear_for_each_of_them() -> None:
    world, name = prepared()
    listen(world, name, 100)
    entries = Entries(world)
    entries.one(world.batch(name, 1_000, [{TEXT: "a" * LONG}] * 1_000))
    assert entries.asked[0] * 3 * UNITS <= 2 * PRODUCTION.arrival_budget


def test_short_texts_cost_what_they_did_though_a_long_one_came_before() -> None:
    world, name = prepared()
    listen(world, name, 10)
    world.publish(name, 1, letters(1))
    world.wake_until_done()
    entries = Entries(world)
    entries.one(world.batch(name, 1_000, letters(1_000, 20)))
    assert entries.asked == [10 * 1_000]
    assert world.machine.next_wake() is None


def test_staged_messages_have_the_price_of_their_texts() -> None:
    world, name = prepared()
    listen(world, name, 100)
    world.stage(name, 1, 1, 0, 32, letters(32))
    again = world.restored(snapshot.encode(world.machine))
    assert snapshot.encode(again) == snapshot.encode(world.machine)
    world.machine = again
    world.stage(name, 1, 1, 1, 32, letters(64)[32:])
    before = world.machine.queues[1].groups.fields.evaluated
    applied = world.publish_staged(name, 1, (1, 64))
    asked = world.machine.queues[1].groups.fields.evaluated - before
    assert asked * 3 * UNITS <= 2 * PRODUCTION.arrival_budget
    found = [*sequences(applied, "c63")]
    for entry in world.wake_until_done():
        found += sequences(entry, "c63")
    assert found == [64]


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_look_at_long_texts_stops_early_and_goes_on(is_pinned: bool) -> None:
    world, name = prepared()
    world.publish(name, 64, letters(64))
    if is_pinned:
        world.do(name, Pin(1, 60_000))
    wanted = selector(
        " OR ".join(f"text LIKE '%a{n:04d}%'" for n in (60, 61, 70, 71, 72, 73, 74, 75, 76, 77))
    )
    evaluated = world.machine.queues[1].groups.fields
    start: int | None = 0
    found: list[int] = []
    while start is not None:
        before = evaluated.evaluated
        if is_pinned:
            page = queries.pinned(world.machine, 1, nth_number(1), start, 65, 100, wanted)
        else:
            page = queries.browse(world.machine, 1, start, 100, wanted)
        assert isinstance(page, BrowsePage)
        assert (evaluated.evaluated - before) * 30 * UNITS <= 2 * PRODUCTION.step_budget
        found += [run.first_sequence + place for run in page.runs for place in range(run.count)]
        start = page.next_sequence
    assert found == [61, 62]


def test_a_member_that_restarts_in_between_goes_on_from_the_same_place() -> None:
    world, name = prepared()
    listen(world, name, 100)
    world.publish(name, 64, letters(64))
    assert world.machine.queues[1].groups.shared.behind is not None
    world.twin = world.restored(snapshot.encode(world.machine))
    world.wake_until_done()  # compares both after each entry
    assert world.machine.queues[1].groups.shared.behind is None


def test_cold_blocks_have_the_price_of_their_texts() -> None:
    def entries(*, is_cold: bool) -> tuple[list[int], bytes]:
        world, name = prepared()
        world.publish(name, 16_380, [{COLOUR: "red"}] * 16_380)
        world.publish(name, 1, letters(1))
        world.publish(name, 100, [{COLOUR: "red"}] * 100)
        world.publish(name, 64, letters(64))
        blocks = world.machine.queues[1].messages.blocks
        drop_columns(world.machine)
        if is_cold:
            for number in blocks.numbers():
                blocks.page_out(number)
        ends = []
        world.apply([world.op(name, Attach(1, "c", selector("text LIKE '%a0001%'"), 10))])
        while True:
            ends.append(
                world.machine.queues[1].groups.by_selector[selector("text LIKE '%a0001%'")].scan_position
            )
            if world.machine.next_wake() is None:
                return ends, world.machine.running_hash
            world.wake()

    assert entries(is_cold=True) == entries(is_cold=False)


def test_a_block_says_what_its_texts_cost_only_if_they_are_long() -> None:
    world, name = prepared()
    world.publish(name, 3, letters(3, 200))
    block = world.machine.queues[1].messages.blocks.get(0)
    plain = bytes(encode_block(block))
    assert plain[-1] == 0, "no expiries, no long texts: as earlier builds have written it"
    assert decode_block(Reader(plain), block.size).text_factor == 0
    world.publish(name, 1, letters(1, 1_000), ttl_ms=5_000)
    again = decode_block(Reader(bytes(encode_block(block))), block.size)
    assert (again.text_factor, again.long_texts) == (3, 1 << 4)
    assert again.runs.expiries == block.runs.expiries
    assert encode_block(again) == encode_block(block)


def test_entries_of_the_first_version_give_texts_no_price() -> None:
    world, name = prepared()
    operation = world.batch(name, 4, letters(4))
    world.machine.apply(Meta(world.index + 1, 1, world.now_ms, 1), [Operation(0, *operation)])
    block = world.machine.queues[1].messages.blocks.get(0)
    assert (block.text_factor, block.long_texts) == (0, 0)
