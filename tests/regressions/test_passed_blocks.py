"""Blocks that a member passes by their summaries: it delivers what a member delivers that has their fields."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fifo import commands as c
from fifo.effects import Effect
from fifo.group_machine import GroupMachine
from fifo.limits import SMALL
from fifo.messages.blocks import Stored
from fifo.messages.pages import MemoryPages
from fifo.persistence import checkpoint, snapshot
from fifo.versions import CURRENT, FIRST
from support.fifo.world import World, selector

SIZE, NAME = "application-properties.size", "application-properties.name"


LIMITS = replace(SMALL, dense_columns=1)


def a_full_block() -> World:
    """Sizes are numbers, and have the only column; the one text comes too late for a column."""
    world = World(LIMITS)
    world.queue(1, filter_enabled=True)
    name = world.session()
    world.publish(name, 2, [{SIZE: 1}, {SIZE: 2}])
    world.publish(name, 2, [{SIZE: "large"}, {NAME: "x"}])
    world.publish(name, SMALL.block_size)
    return world


def restarted(world: World) -> GroupMachine:
    """A member that has read the fields of the first block after its start, and has paged it out."""
    machine = world.restored(snapshot.encode(world.machine))
    queue = machine.queues[1]
    queue.groups.fields.columns(queue.messages.blocks.get(0), queue.messages.blocks.get(0).kept)
    machine.page_out(1, 0)
    return machine


def attach(world: World, machine: GroupMachine, text: str, version: int) -> list[Effect]:
    origin = c.Origin(
        b"producer" + bytes(7) + b"\x01", 1, world.numbers[b"producer" + bytes(7) + b"\x01"] + 1
    )
    command = c.Attach(1, "reader", selector(text), 10)
    found = list(
        machine.apply(
            c.Meta(world.index + 1, 1, world.now_ms, version), [c.Operation(0, origin, command)]
        ).effects
    )
    for index in range(world.index + 2, world.index + 6):
        meta = c.Meta(index, 1, world.now_ms, version)
        found += machine.apply(meta, [c.Operation(0, None, c.Wake())]).effects
    return found


@pytest.mark.parametrize("version", range(FIRST, CURRENT + 1))
@pytest.mark.parametrize("text", ["size = 'large'", "name = 'x'", "size LIKE 'l%'", "NOT (size = 1)"])
def test_a_text_in_a_field_of_numbers_is_delivered_by_members_that_have_the_block_cold(
    text: str, version: int
) -> None:
    world = a_full_block()
    cold = restarted(world)
    delivered = attach(world, cold, text, version)
    assert delivered == attach(world, world.machine, text, version)
    assert delivered
    assert snapshot.encode(cold) == snapshot.encode(world.machine)
    assert cold.running_hash == world.machine.running_hash


def test_a_summary_of_an_earlier_format_is_not_asked() -> None:
    """It said that all sizes are numbers from 1 to 2. It goes with the checkpoint of a member that is upgraded."""
    world = a_full_block()
    before = restarted(world)
    blocks = before.queues[1].messages.blocks
    cold = blocks.at(0)
    assert isinstance(cold, Stored)
    of_numbers = World(LIMITS)
    of_numbers.queue(1, filter_enabled=True)
    of_numbers.publish(of_numbers.session(), 2, [{SIZE: 1}, {SIZE: 2}])
    of_numbers.machine.page_out(1, 0)
    values = of_numbers.machine.queues[1].messages.blocks.at(0).summary[2:]
    blocks._blocks[0] = cold.with_summary(b"\x00" + values)

    pages = before.memory.pages
    assert isinstance(pages, MemoryPages)
    resumed = world.resumed(checkpoint.Checkpointer(before).take().state, pages)
    assert resumed.queues[1].messages.blocks.at(0).summary == b""
    delivered = attach(world, resumed, "size = 'large'", CURRENT)
    assert delivered == attach(world, world.machine, "size = 'large'", CURRENT)
    resumed.page_out(1, 0)
    assert resumed.queues[1].messages.blocks.at(0).summary
