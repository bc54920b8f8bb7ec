"""Looking up what arrives is shared out over entries, like every other evaluation.

A thousand selectors that no index tells apart were all asked about a batch in the entry that brought it, which stopped
every member of the group for many seconds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from fifo.commands import Meta, Operation, Wake
from fifo.limits import PRODUCTION
from fifo.persistence import snapshot
from support.fifo.world import World, sequences

SIZE = "application-properties.size"
COLOUR = "application-properties.colour"


def prepared() -> tuple[World, bytes]:
    world = World()
    world.checks = False
    world.queue(filter_enabled=True)
    return world, world.session()


def heavy(number: int) -> str:
    """A selector of 20 steps that matches one size, and that is filed under nothing."""
    return " AND ".join([f"size + {number} = 1000"] + [f"size + {place} < 5000" for place in range(9)])


def evaluated(world: World) -> int:
    return world.machine.queues[1].groups.fields.evaluated


def sizes(first: int, count: int) -> list[dict[str, Any]]:
    return [{SIZE: first + place} for place in range(count)]


def test_what_arrives_for_many_selectors_is_looked_up_in_several_entries() -> None:
    world, name = prepared()
    for number in range(300):
        world.attach(name, f"c{number}", 1_000, heavy(number))
    entries, asked = [], [evaluated(world)]
    entries.append(world.publish(name, 500, sizes(501, 500)))
    asked.append(evaluated(world))
    while world.machine.next_wake() == world.now_ms:
        entries.append(world.wake())
        asked.append(evaluated(world))
    most = max(after - before for before, after in pairwise(asked))
    assert most * 20 <= PRODUCTION.arrival_budget + 2 * PRODUCTION.step_budget
    for number in (0, 1, 150, 299):
        found = [each for applied in entries for each in sequences(applied, f"c{number}")]
        assert found == [500 - number], "each gets its message, once"


def test_selectors_that_an_index_tells_apart_get_a_batch_in_its_own_entry() -> None:
    world, name = prepared()
    for number in range(1_000):
        world.attach(name, f"c{number}", 1_000, f"colour = 'c{number}' AND size > 0")
    rows = [{COLOUR: f"c{place}", SIZE: 1} for place in range(500)]
    assert len(sequences(world.publish(name, 500, rows))) == 500
    assert world.machine.next_wake() is None


def test_a_selector_of_many_steps_looks_at_a_large_batch_part_by_part() -> None:
    world, name = prepared()
    text = " OR ".join(f"size * 2 = {2 * place}" for place in range(30))
    world.attach(name, "c", 100_000, text)
    applied = [world.publish(name, 16_000, sizes(0, 16_000))]
    before = evaluated(world)
    assert before * 60 <= PRODUCTION.arrival_budget
    applied += world.wake_until_done()
    assert [each for entry in applied for each in sequences(entry)] == list(range(1, 31))
    late, _ = prepared()
    late.publish(late.session(2), 16_000, sizes(0, 16_000))
    before = evaluated(late)
    late.attach(late.session(3), "late", 100_000, text)
    assert (evaluated(late) - before) * 60 <= 2 * PRODUCTION.step_budget


def test_a_member_that_restarts_in_between_goes_on_from_the_same_place() -> None:
    world, name = prepared()
    for number in range(100):
        world.attach(name, f"c{number}", 1_000, heavy(number))
    world.publish(name, 500, sizes(501, 500))
    assert world.machine.queues[1].groups.shared.behind is not None
    world.twin = world.restored(snapshot.encode(world.machine))
    world.wake_until_done()  # compares both after each entry
    assert world.machine.queues[1].groups.shared.behind is None


def test_entries_of_the_first_version_look_up_all_that_they_bring() -> None:
    world, name = prepared()
    for number in range(100):
        world.attach(name, f"c{number}", 1_000, heavy(number))
    operation = world.batch(name, 500, sizes(501, 500))
    meta = Meta(world.index + 1, 1, world.now_ms, 1)
    applied = world.machine.apply(meta, [Operation(0, *operation)])
    assert len(sequences(applied)) == 100
    assert world.machine.next_wake() is None
    assert world.machine.apply(Meta(world.index + 2, 1, world.now_ms, 1), [Operation(0, None, Wake())])
