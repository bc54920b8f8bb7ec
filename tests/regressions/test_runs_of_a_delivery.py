"""The runs of a delivery do not depend on how far a member has evaluated a selector.

A member that had restarted delivered the same messages as the others, but cut a run in two where it had stopped
evaluating a block in the entry before. So its effects differed from those of the others, and the hashes parted.
"""

from __future__ import annotations

from typing import Any

import pytest

from fifo.commands import UseQueue
from fifo.effects import Deliver
from fifo.persistence import snapshot
from fifo.versions import EVALUATED_BLOCKS
from support.fifo.world import World, producer

SIZE = "application-properties.size"


def sizes(first: int, count: int) -> list[dict[str, Any]]:
    return [{SIZE: first + place} for place in range(count)]


def many_steps(first: str) -> str:
    return " AND ".join([first, *[f"size + {place} < 5000" for place in range(9)]])


def with_selectors(others: int) -> World:
    """One consumer whose selector matches all messages, and others whose selectors make each lookup dear."""
    world = World()
    world.checks = False
    world.queue(filter_enabled=True)
    name = world.session()
    for number in range(others):
        world.attach(name, f"c{number}", 1_000, many_steps(f"size + {number} = 1000"))
    world.attach(name, "all", 1_000, many_steps("size > 0"))
    return world


def deliver(world: World) -> list[tuple[int, int]]:
    """The messages that arrive are looked up in two entries. They are delayed, so none is delivered in the first.
    Returns the runs that are delivered, as (sequence, count)."""
    name = producer(1)
    ready = world.batch(name, 1, sizes(1_500, 1))
    late = world.batch(name, 500, sizes(1_501, 500), place=1, due_times_ms=(world.now_ms + 2,))
    world.apply([ready, late])
    assert world.machine.queues[1].groups.shared.behind is not None
    applied = [world.apply([(None, UseQueue(1))], passed_ms=2), *world.wake_until_done()]
    effects = [effect for each in applied for effect in each.effects]
    return [
        (run.first_sequence, run.count) for each in effects if isinstance(each, Deliver) for run in each.runs
    ]


@pytest.mark.parametrize("others", [60, 100])
def test_a_restarted_member_delivers_the_same_runs_as_the_others(others: int) -> None:
    world = with_selectors(others)
    world.twin = world.restored(snapshot.encode(world.machine))
    deliver(world)  # compares both


@pytest.mark.parametrize(
    ("version", "runs"), [(EVALUATED_BLOCKS - 1, [(142, 4), (146, 1)]), (EVALUATED_BLOCKS, [(142, 5)])]
)
def test_a_restarted_member_applies_entries_of_version_2_as_release_0_2_0_does(
    version: int, runs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.fifo.world.CURRENT", version)
    world = with_selectors(100)
    world.machine = world.restored(snapshot.encode(world.machine))
    assert [run for run in deliver(world) if 142 <= run[0] < 147] == runs
