"""The runs of a delivery do not depend on how far a member has evaluated a selector.

A member that had restarted delivered the same messages as the others, but cut a run in two where it had stopped
evaluating a block in the entry before. So its effects differed from those of the others, and the hashes parted.
"""

from __future__ import annotations

from typing import Any

import pytest

from fifo.commands import UseQueue
from fifo.persistence import snapshot
from support.fifo.world import World

SIZE = "application-properties.size"


def sizes(first: int, count: int) -> list[dict[str, Any]]:
    return [{SIZE: first + place} for place in range(count)]


def many_steps(first: str) -> str:
    return " AND ".join([first, *[f"size + {place} < 5000" for place in range(9)]])


@pytest.mark.parametrize("others", [60, 100])
def test_a_restarted_member_delivers_the_same_runs_as_the_others(others: int) -> None:
    """The messages that arrive are looked up in two entries. They are delayed, so none is delivered in the first."""
    world = World()
    world.checks = False
    world.queue(filter_enabled=True)
    name = world.session()
    for number in range(others):
        world.attach(name, f"c{number}", 1_000, many_steps(f"size + {number} = 1000"))
    world.attach(name, "all", 1_000, many_steps("size > 0"))
    world.twin = world.restored(snapshot.encode(world.machine))
    ready = world.batch(name, 1, sizes(1_500, 1))
    late = world.batch(name, 500, sizes(1_501, 500), place=1, due_times_ms=(world.now_ms + 2,))
    world.apply([ready, late])
    assert world.machine.queues[1].groups.shared.behind is not None
    world.apply([(None, UseQueue(1))], passed_ms=2)  # compares both
    world.wake_until_done()
