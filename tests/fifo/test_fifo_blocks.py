"""Runs: how they merge, how they are cut, what they cost."""

from __future__ import annotations

import gc
import random
import tracemalloc
from array import array
from functools import partial

import pytest

from fifo.commands import Enqueue, Meta, Operation, Origin
from fifo.effects import Run
from fifo.limits import PRODUCTION
from fifo.messages import bitsets
from fifo.messages.blocks import Block
from fifo.messages.runs import NEVER, ONE_EACH, Runs
from fifo.versions import CURRENT
from support.counted_lines import count_lines
from support.fifo.world import World, producer


def runs(*added: tuple[int, int, int, int, int, int]) -> Runs:
    found = Runs()
    for run in added:
        found.append(*run)
    return found


def test_single_messages_of_neighbouring_operations_become_one_run() -> None:
    found = runs((0, 1, 7, 3, ONE_EACH, NEVER), (1, 1, 7, 4, ONE_EACH, NEVER), (2, 1, 7, 5, ONE_EACH, NEVER))
    assert len(found) == 1
    out: list[Run] = []
    found.clip(0, 1, 2, out)
    assert out == [Run(1, 2, 7, 4, 0, True)]


@pytest.mark.parametrize(
    "second",
    [
        (1, 1, 7, 5, ONE_EACH, NEVER),  # an operation between them
        (1, 1, 8, 4, ONE_EACH, NEVER),  # another entry
        (1, 1, 7, 4, 0, NEVER),  # the first message of a larger batch
        (1, 1, 7, 4, ONE_EACH, 99),  # another expiry
        (2, 1, 7, 4, ONE_EACH, NEVER),  # a gap
    ],
)
def test_other_neighbours_stay_apart(second: tuple[int, int, int, int, int, int]) -> None:
    assert len(runs((0, 1, 7, 3, ONE_EACH, NEVER), second)) == 2


def test_parts_of_a_batch_that_continue_become_one_run() -> None:
    assert len(runs((0, 4, 7, 3, 0, NEVER), (4, 4, 7, 3, 4, NEVER))) == 1
    assert len(runs((0, 4, 7, 3, 0, NEVER), (4, 4, 7, 3, 5, NEVER))) == 2


def test_a_clip_names_the_place_in_each_batch() -> None:
    found = runs((0, 10, 7, 0, 0, NEVER), (10, 5, 8, 2, 3, NEVER), (15, 3, 9, 1, ONE_EACH, NEVER))
    out: list[Run] = []
    found.clip(1000, 8, 9, out)
    assert out == [Run(1008, 2, 7, 0, 8), Run(1010, 5, 8, 2, 3), Run(1015, 2, 9, 1, 0, True)]


def test_what_has_expired_is_found_and_what_expires_next() -> None:
    found = runs(
        (0, 2, 7, 0, 0, 50),
        (2, 2, 8, 0, 0, NEVER),
        (4, 2, 8, 1, 0, 40),
        (6, 2, 9, 0, 0, 50),
        (8, 1, 9, 1, 0, 60),
    )
    assert found.expired(50) == 0b11110011
    assert found.expired(39) == 0
    assert found.earliest(0b11001111) == 50
    assert found.earliest(0b100000000) == 60
    assert found.earliest(0b1100) == NEVER


def test_runs_of_messages_long_gone_are_forgotten() -> None:
    block = Block(0, PRODUCTION.block_size)
    for slot in range(1000):
        block.runs.append(slot, 1, slot, 0, ONE_EACH, NEVER)
    block.ready = 1 << 3 | 1 << 500
    block.live = 2
    block.compact(16)
    assert list(block.runs.firsts) == [3, 500]
    out: list[Run] = []
    block.runs.clip(0, 500, 1, out)
    assert out == [Run(500, 1, 500, 0, 0, True)]


def published(count: int, batch: int, producers: int, per_entry: int) -> tuple[int, World]:
    """Bytes that publishing `count` messages adds to a group."""
    world = World()
    world.checks = False
    world.queue()
    names = [world.session(number) for number in range(producers)]
    numbers = dict.fromkeys(names, 0)
    chooser = random.Random(7)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    index = world.index
    for _ in range(count // batch // per_entry):
        index += 1
        operations = []
        for place in range(per_entry):
            name = chooser.choice(names)
            numbers[name] += 1
            first = numbers[name] * batch
            command = Enqueue(1, first, first, batch, batch * 100)
            operations.append(Operation(place, Origin(name, 1, numbers[name]), command))
        world.machine.apply(Meta(index, 1, world.now_ms, CURRENT), operations)
    del operations, command
    gc.collect()
    added = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    info = world.info()
    assert info.ready == count
    return added, world


def test_a_million_messages_in_batches_of_500_would_take_under_10_mb() -> None:
    added, _ = published(100_000, 500, 3, 1)
    assert added * 10 < 10_000_000


def test_a_million_messages_published_one_at_a_time_would_take_under_40_mb() -> None:
    """The worst case: every message in an entry of its own, so that no run merges."""
    added, world = published(20_000, 1, 100, 1)
    assert added * 50 < 40_000_000
    block = world.machine.queues[1].messages.blocks.get(1)
    columns: list[array[int]] = [
        getattr(block.runs, name) for name in ("firsts", "counts", "indexes", "operations", "ordinals")
    ]
    assert sum(column.itemsize for column in columns) + 8 <= 32


def test_single_messages_of_one_entry_take_almost_nothing() -> None:
    added, world = published(20_000, 1, 100, 100)
    assert added < 80_000
    assert producer(1) in world.machine.sessions.producers


def test_expired_messages_are_those_of_expired_runs_and_cost_few_steps() -> None:
    chance, found, slot, expiries = random.Random(1), Runs(), 3, {}
    while slot < 16_000:
        count, expiry = chance.choice((1, 1, 1, 5)), chance.choice((10, 20, 30, NEVER))
        found.append(slot, count, slot, 0, 0, expiry)
        expiries.update(dict.fromkeys(range(slot, slot + count), expiry))
        slot += count
    for now_ms in (9, 10, 29, 30):
        expired = [slot for slot, expiry in expiries.items() if expiry <= now_ms]
        assert list(bitsets.members(found.expired(now_ms))) == expired
        assert count_lines(partial(found.expired, now_ms)) < 1_000
