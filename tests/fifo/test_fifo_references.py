"""Which entries a snapshot refers to (fifo/persistence/references.py), against what a walk over the machine says."""

from __future__ import annotations

import random

import pytest

from fifo.commands import Purge, Settle
from fifo.messages import bitsets
from fifo.persistence import snapshot
from fifo.persistence.references import references
from support.fifo.world import World


def walked(world: World) -> list[int]:
    found = set()
    for machine in world.machine.queues.values():
        for number in machine.messages.blocks.numbers():
            block = machine.messages.blocks.get(number)
            runs = block.runs
            for slot in bitsets.members(block.ready | block.checked_out):
                place = max(at for at, first in enumerate(runs.firsts) if first <= slot)
                found.add(runs.indexes[place])
    return sorted(found)


@pytest.mark.parametrize("seed", range(5))
def test_references_are_the_entries_of_all_messages_that_are_ready_or_held(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    world.queue(1, filter_enabled=True)
    world.queue(2)
    producer, consumer = world.session(1), world.session(2)
    attach, _ = world.attach(consumer, "c", 10_000)
    for _ in range(60):
        world.publish(producer, chance.choice((1, 1, 7, 300)), queue=chance.choice((1, 2)))
        if chance.random() < 0.6:
            tag = chance.randrange(1, 2_000)
            world.do(consumer, Settle(1, "c", attach, ((tag, tag + chance.randrange(200)),)))
    found = list(references(snapshot.encode(world.machine)))
    assert found == walked(world)
    assert len(found) > 10
    world.do(producer, Purge(2))
    assert len(list(references(snapshot.encode(world.machine)))) < len(found)
    assert list(references(snapshot.encode(world.machine))) == walked(world)


def test_what_is_no_snapshot_is_refused() -> None:
    world = World()
    world.queue(1)
    world.publish(world.session(1), 3)
    data = snapshot.encode(world.machine)
    for broken in (b"", b"QFIFX" + data[5:], data + b"\0", data[:-1], data[: len(data) // 2]):
        with pytest.raises(ValueError, match="snapshot"):
            references(broken)
    assert list(references(data)) == [world.entries[-1][0].index]
