"""Cold blocks and checkpoints: what they cost, what is read, what is refused. (That they change nothing is shown
against the model, in test_fifo_model.py.)"""

from __future__ import annotations

import gc
import tracemalloc
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fifo import checkpoint, invariants
from fifo.blocks import BLOCK_SIZE, Block
from fifo.commands import Enqueue, Get, Meta, Operation, Origin, Purge, Settle
from fifo.group import GroupMachine
from fifo.pages import MemoryPages, Stored, pack_indexes, unpack_indexes
from support.fifo_world import World


def filled(count: int, batch: int = 1_000, **queue: object) -> World:
    """A world whose queue 1 holds `count` messages, each batch in an entry of its own."""
    world = World()
    world.checks = False
    world.queue(**queue)
    name = world.session()
    for i in range(count // batch):
        operation = Operation(0, Origin(name, 1, i + 1), Enqueue(1, i * batch, i * batch, batch, batch * 100))
        world.index += 1
        world.machine.apply(Meta(world.index, 1, world.now_ms, 1), [operation])
    world.numbers[name] = count // batch
    return world


def page_out_all(machine: GroupMachine, queue: int = 1) -> None:
    for block in machine.queues[queue].blocks.warm():
        machine.page_out(queue, block.number)


def test_a_checkpoint_writes_what_was_changed_since_the_last_one() -> None:
    world = filled(10 * BLOCK_SIZE - 384)
    memory = world.machine.memory
    first = world.machine.checkpoint()
    assert memory.writes == len(first.pages) == 10
    assert world.machine.checkpoint() == first
    assert memory.writes == 10
    world.do(world_producer(world), Get(1, 5, settled=True))  # out of the first block
    second = world.machine.checkpoint()
    assert memory.writes == 11
    assert len(second.pages) == 10
    assert len(np.setdiff1d(second.pages, first.pages)) == 1


def world_producer(world: World) -> bytes:
    return next(iter(world.epochs))


def test_queues_that_no_entry_has_touched_are_carried_over() -> None:
    world = filled(2 * BLOCK_SIZE)
    world.queue(2)
    world.machine.checkpoint()
    section = world.machine.queues[1].section
    assert section is not None
    world.publish(world_producer(world), 3, queue=2, first=0)
    world.machine.checkpoint()
    assert world.machine.queues[1].section is section


def test_a_checkpoint_says_which_entries_it_refers_to_until_their_last_message_is_gone() -> None:
    world = filled(4_000)
    name = world_producer(world)
    all_entries = list(world.machine.checkpoint().entries)
    assert all_entries == list(range(3, 7))
    world.do(name, Get(1, 1_500, settled=True))
    assert list(world.machine.checkpoint().entries) == all_entries[1:]
    attach, _ = world.attach(name, "c", 2_000)
    assert list(world.machine.checkpoint().entries) == all_entries[1:]  # what is held needs its body
    world.do(name, Settle(1, "c", attach, ((1, 600),)))
    found = world.machine.checkpoint()
    assert list(found.entries) == all_entries[2:]
    assert checkpoint.contents(found.state) == (found.entries, found.pages)


def test_after_resuming_a_block_is_read_when_it_is_needed_and_no_other() -> None:
    world = filled(6 * BLOCK_SIZE)
    pages = world.machine.memory.pages
    again = GroupMachine.resume(world.machine.checkpoint().state, world.log, pages)
    assert again.info(1) == world.machine.info(1)
    assert (again.memory.loads, again.memory.warm_bytes) == (0, 0)
    name = world_producer(world)
    operation = Operation(0, Origin(name, 1, world.numbers[name] + 1), Get(1, 10, settled=False))
    meta = Meta(world.index + 1, 1, world.now_ms, 1)
    assert again.apply(meta, [operation]) == world.machine.apply(meta, [operation])
    assert again.memory.loads == 1
    assert again.snapshot() == world.machine.snapshot()
    assert again.memory.loads == 1


def test_a_purge_reads_only_blocks_that_keep_something() -> None:
    world = filled(6 * BLOCK_SIZE, message_ttl_ms=1_000)
    world.do(world_producer(world), Get(1, 10, settled=False))
    world.twin = GroupMachine.restore(world.machine.snapshot(), world.log)
    page_out_all(world.machine)
    world.apply([(None, Purge(1))])
    info = world.machine.info(1)
    assert info is not None
    assert (info.ready, info.checked_out) == (0, 10)
    assert world.machine.memory.loads == 2  # the one with held messages, and the last
    invariants.check(world.machine)


def test_a_page_that_is_not_what_was_written_stops_the_machine() -> None:
    world = filled(2 * BLOCK_SIZE)
    page_out_all(world.machine)
    pages = world.machine.memory.pages
    assert isinstance(pages, MemoryPages)
    pages.pages = {page: data[:-1] + bytes([data[-1] ^ 1]) for page, data in pages.pages.items()}
    with pytest.raises(ValueError, match="its CRC is wrong"):
        world.do(world_producer(world), Get(1, 10, settled=False))
    with pytest.raises(ValueError, match="its CRC is wrong"):
        world.machine.snapshot()


def test_bytes_that_are_no_checkpoint_are_refused() -> None:
    world = filled(2 * BLOCK_SIZE)
    pages = world.machine.memory.pages
    state = world.machine.checkpoint().state
    assert checkpoint.is_checkpoint(state)
    assert not checkpoint.is_checkpoint(world.machine.snapshot())
    with pytest.raises(ValueError, match="begin"):
        GroupMachine.resume(world.machine.snapshot(), world.log, pages)
    with pytest.raises(ValueError, match="format"):
        GroupMachine.resume(state[:5] + b"\x7f" + state[6:], world.log, pages)
    with pytest.raises(ValueError, match="too many"):
        GroupMachine.resume(state + b"x", world.log, pages)
    for size in range(6, len(state)):
        with pytest.raises(ValueError, match=r"ends|begin"):
            GroupMachine.resume(state[:size], world.log, pages)


class CountedPages:
    """Keeps nothing, so that only what the machine itself holds is measured."""

    def __init__(self) -> None:
        self.last = 0

    def write(self, queue: int, block: int, data: bytes) -> int:
        self.last += 1
        return self.last

    def read(self, page: int) -> bytes:
        raise AssertionError("nothing is read")


@pytest.mark.parametrize("batch", [1, 500])
def test_a_cold_block_takes_a_few_hundred_bytes(batch: int) -> None:
    """In the worst case, too, where every message came in an entry of its own."""
    world = World()
    machine = world.machine = GroupMachine(world.log, CountedPages())
    world.checks = False
    world.queue()
    name = world.session()
    count = 2 * BLOCK_SIZE // batch * batch
    for i in range(count // batch):
        command = Enqueue(1, i * batch, i * batch, batch, batch * 100)
        meta = Meta(world.index + i + 1, 1, world.now_ms, 1)
        machine.apply(meta, [Operation(0, Origin(name, 1, i + 1), command)])
    blocks = machine.queues[1].blocks
    blocks.write(blocks.get(0))  # the first time other things are made, too
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    blocks.write(blocks.get(1))
    gc.collect()
    added = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert added < 1_000
    page_out_all(machine)
    assert machine.memory.warm_bytes == 0
    assert all(isinstance(block, Stored) for block in machine.queues[1].blocks.values())


@given(st.lists(st.integers(0, (1 << 63) - 1), unique=True, max_size=300) | st.sets(st.integers(5, 700)))
def test_packed_indexes_come_back(numbers: list[int] | set[int]) -> None:
    indexes = np.array(sorted(numbers), dtype=np.uint64)
    assert unpack_indexes(pack_indexes(indexes)).tolist() == indexes.tolist()


def test_neighbouring_indexes_pack_into_a_few_bytes() -> None:
    assert len(pack_indexes(np.arange(10**12, 10**12 + BLOCK_SIZE, dtype=np.uint64))) < 12
    alternating = np.arange(10**12, 10**12 + 4 * BLOCK_SIZE, 4, dtype=np.uint64)
    assert len(pack_indexes(alternating)) < 200


def test_a_record_comes_back() -> None:
    world = filled(2 * BLOCK_SIZE)
    for block in world.machine.queues[1].blocks.warm():
        stored = world.machine.queues[1].blocks.write(block)
        again = Stored(stored.record)
        assert all(getattr(again, name) == getattr(stored, name) for name in Stored.__slots__)
        assert array("Q", again.indexes().tolist()) == array("Q", block.live_indexes().tolist())


def test_the_bytes_of_warm_blocks_are_counted() -> None:
    world = filled(4 * BLOCK_SIZE, batch=8)
    queue = world.machine.queues[1]
    full = [block for block in queue.blocks.warm() if block.number < 4]
    runs = sum(len(block.runs) * 20 for block in full)
    assert runs <= world.machine.memory.warm_bytes <= runs + 4 * 8_192
    world.machine.page_out(1, 1)
    assert world.machine.memory.warm_bytes < runs
    assert isinstance(queue.blocks.at(1), Stored)
    assert isinstance(queue.blocks.get(1), Block)
    assert runs <= world.machine.memory.warm_bytes
