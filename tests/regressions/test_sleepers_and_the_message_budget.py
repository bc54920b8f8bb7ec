"""A checkout that used up its messages was unfinished or not depending on which selector groups slept, which is local:
members that had forgotten their matches parted from the others, snapshots and all."""

from __future__ import annotations

from dataclasses import replace

from fifo.limits import SMALL
from support.fifo.local_parts import drop_matches
from support.fifo.world import World


def test_a_checkout_at_the_end_of_its_messages_does_not_depend_on_who_sleeps() -> None:
    rules = replace(SMALL, max_consumers=4 * SMALL.max_consumers)  # an owner has half of them
    world = World(rules, has_model=True)
    world.twin = world.empty()
    world.queue(1, filter_enabled=True)
    name = world.session(1)
    turns, rest = divmod(SMALL.message_budget, SMALL.quantum)
    for place, credit in enumerate([SMALL.quantum] * turns + [rest]):  # a turn each is all they want
        world.attach(name, f"c{place}", credit, f"size < {100 + place}")
    world.attach(name, "last in line", 5, "colour = 'blue'")
    drop_matches(world.twin)  # there nobody sleeps
    world.publish(name, SMALL.message_budget + 10, [{"application-properties.size": 1}] * 30)
    assert world.machine.next_wake() == world.now_ms
    world.wake_until_done()
    assert world.machine.next_wake() is None
