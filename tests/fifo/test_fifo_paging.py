"""Cold blocks and checkpoints: what they cost, what is read, what is refused. (That they change nothing is shown
against the model, in test_fifo_model.py.)"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fifo import index_sets
from fifo.commands import DeleteQueue, Enqueue, Get, Meta, Operation, Origin, Pin, Purge, Settle
from fifo.consumers.selector import decoded
from fifo.effects import Pinned
from fifo.group_machine import GroupMachine
from fifo.index_sets import PIECE, Indexes, IndexSet, Piece, pack, unpack
from fifo.limits import PRODUCTION, SMALL
from fifo.messages.blocks import Block, Stored
from fifo.messages.pages import MemoryPages
from fifo.persistence import checkpoint, invariants, snapshot
from fifo.queries import group as queries
from fifo.queue_machine import QueueMachine
from fifo.results import BrowsePage
from fifo.versions import CURRENT
from support.fifo.local_parts import drop_summaries
from support.fifo.world import World, exported, selector, sequences


def filled(count: int, batch: int = 1_000, **queue: object) -> World:
    """A world whose queue 1 holds `count` messages, each batch in an entry of its own."""
    world = World()
    world.checks = False
    world.queue(**queue)
    name = world.session()
    for i in range(count // batch):
        operation = Operation(0, Origin(name, 1, i + 1), Enqueue(1, i * batch, i * batch, batch, batch * 100))
        world.index += 1
        world.machine.apply(Meta(world.index, 1, world.now_ms, CURRENT), [operation])
    world.numbers[name] = count // batch
    return world


def page_out_all(machine: GroupMachine, queue: int = 1) -> None:
    for block in machine.queues[queue].messages.blocks.warm():
        machine.page_out(queue, block.number)


def test_a_checkpoint_writes_what_was_changed_since_the_last_one() -> None:
    world = filled(10 * PRODUCTION.block_size - 384)
    memory = world.machine.memory
    checkpointer = world.checkpointer(world.machine)
    first = checkpointer.take()
    assert memory.writes == len(first.pages) == 10
    assert checkpointer.take() == checkpoint.Checkpointer(world.machine).take() == first
    assert memory.writes == 10
    world.do(world_producer(world), Get(1, 5, settled=True))  # out of the first block
    second = checkpointer.take()
    assert memory.writes == 11
    assert len(second.pages) == 10
    assert len(np.setdiff1d(second.pages, first.pages)) == 1


def world_producer(world: World) -> bytes:
    return next(iter(world.epochs))


def test_a_checkpoint_can_be_written_little_by_little() -> None:
    """Whatever happens between the parts, it is the same in the end; what has changed meanwhile is written again."""
    world = filled(10 * PRODUCTION.block_size - 384, batch=100)
    world.queue(2)
    memory = world.machine.memory
    checkpointer = world.checkpointer(world.machine)
    is_ready = False
    steps = []
    while not is_ready:
        before = memory.writes
        is_ready = checkpointer.write_ahead(10_000)
        steps.append(memory.writes - before)
        if len(steps) == 4:
            world.do(world_producer(world), Get(1, 5, settled=True))  # out of a block that was passed
    assert max(steps) <= 3
    assert sum(steps) == 11
    found = checkpointer.take()
    assert memory.writes == 11
    assert exported(found.state, memory.pages) == snapshot.encode(world.machine)
    assert checkpointer.write_ahead(10_000)
    assert memory.writes == 11


def test_queues_that_no_entry_has_touched_are_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled(2 * PRODUCTION.block_size)
    world.queue(2)
    checkpointer = world.checkpointer(world.machine)
    checkpointer.take()
    world.publish(world_producer(world), 3, queue=2, first=2 * PRODUCTION.block_size)
    made: list[int] = []
    section = checkpoint.section

    def noted(machine: QueueMachine, version: int) -> checkpoint.Section:
        made.append(machine.queue)
        return section(machine, version)

    monkeypatch.setattr(checkpoint, "section", noted)
    second = checkpointer.take()
    assert made == [2]
    assert second == checkpoint.Checkpointer(world.machine).take()


def test_a_section_is_made_again_after_any_change_that_it_shows() -> None:
    world = World(SMALL)
    name = sized(world, 40)
    checkpointer = world.checkpointer(world.machine)
    for change in (
        lambda: None,
        lambda: world.do(name, Get(1, 3, settled=True)),
        lambda: page_out_all(world.machine),
        lambda: drop_summaries(world.machine),
        lambda: world.apply([(None, Purge(1))]),
        lambda: world.apply([(None, DeleteQueue(1))]),
        lambda: world.queue(2),
    ):
        change()
        checkpointer.check()
        assert checkpointer.take() == checkpoint.Checkpointer(world.machine).take()


def test_a_checkpoint_says_which_entries_it_refers_to_until_their_last_message_is_gone() -> None:
    world = filled(4_000)
    name = world_producer(world)
    all_entries = list(world.checkpointer(world.machine).take().entries)
    assert all_entries == list(range(3, 7))
    world.do(name, Get(1, 1_500, settled=True))
    assert list(world.checkpointer(world.machine).take().entries) == all_entries[1:]
    attach, _ = world.attach(name, "c", 2_000)
    assert (
        list(world.checkpointer(world.machine).take().entries) == all_entries[1:]
    )  # what is held needs its body
    world.do(name, Settle(1, "c", attach, ((1, 600),)))
    found = world.checkpointer(world.machine).take()
    assert list(found.entries) == all_entries[2:]
    assert checkpoint.contents(found.state) == (found.entries, found.pages)


def test_after_resuming_a_block_is_read_when_it_is_needed_and_no_other() -> None:
    world = filled(6 * PRODUCTION.block_size)
    pages = world.machine.memory.pages
    again = world.resumed(world.checkpointer(world.machine).take().state, pages)
    assert queries.info(again, 1) == world.info()
    assert (again.memory.loads, again.memory.warm_bytes) == (0, 0)
    name = world_producer(world)
    operation = Operation(0, Origin(name, 1, world.numbers[name] + 1), Get(1, 10, settled=False))
    meta = Meta(world.index + 1, 1, world.now_ms, CURRENT)
    assert again.apply(meta, [operation]) == world.machine.apply(meta, [operation])
    assert again.memory.loads == 1
    assert snapshot.encode(again) == snapshot.encode(world.machine)
    assert again.memory.loads == 1


def test_a_purge_reads_only_blocks_that_keep_something() -> None:
    world = filled(6 * PRODUCTION.block_size, message_ttl_ms=1_000)
    world.do(world_producer(world), Get(1, 10, settled=False))
    world.twin = world.restored(snapshot.encode(world.machine))
    page_out_all(world.machine)
    world.apply([(None, Purge(1))])
    info = world.info()
    assert (info.ready, info.checked_out) == (0, 10)
    assert world.machine.memory.loads == 2  # the one with held messages, and the last
    invariants.check(world.machine)


def test_a_page_that_is_not_what_was_written_stops_the_machine() -> None:
    world = filled(2 * PRODUCTION.block_size)
    page_out_all(world.machine)
    pages = world.machine.memory.pages
    assert isinstance(pages, MemoryPages)
    pages.pages = {page: data[:-1] + bytes([data[-1] ^ 1]) for page, data in pages.pages.items()}
    with pytest.raises(ValueError, match="its CRC is wrong"):
        world.do(world_producer(world), Get(1, 10, settled=False))
    with pytest.raises(ValueError, match="its CRC is wrong"):
        snapshot.encode(world.machine)


def test_bytes_that_are_no_checkpoint_are_refused() -> None:
    world = filled(2 * PRODUCTION.block_size)
    pages = world.machine.memory.pages
    state = world.checkpointer(world.machine).take().state
    assert checkpoint.is_checkpoint(state)
    assert not checkpoint.is_checkpoint(snapshot.encode(world.machine))
    with pytest.raises(ValueError, match="begin"):
        world.resumed(snapshot.encode(world.machine), pages)
    with pytest.raises(ValueError, match="format"):
        world.resumed(state[:5] + b"\x7f" + state[6:], pages)
    with pytest.raises(ValueError, match="too many"):
        world.resumed(state + b"x", pages)
    for size in range(6, len(state)):
        with pytest.raises(ValueError, match=r"ends|begin"):
            world.resumed(state[:size], pages)


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
    count = 2 * PRODUCTION.block_size // batch * batch
    for i in range(count // batch):
        command = Enqueue(1, i * batch, i * batch, batch, batch * 100)
        meta = Meta(world.index + i + 1, 1, world.now_ms, CURRENT)
        machine.apply(meta, [Operation(0, Origin(name, 1, i + 1), command)])
    blocks = machine.queues[1].messages.blocks
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
    assert all(isinstance(block, Stored) for block in machine.queues[1].messages.blocks.values())


@given(st.lists(st.integers(0, (1 << 63) - 1), unique=True, max_size=300) | st.sets(st.integers(5, 700)))
def test_packed_indexes_come_back(numbers: list[int] | set[int]) -> None:
    indexes = np.array(sorted(numbers), dtype=np.uint64)
    assert unpack(pack(indexes)).tolist() == indexes.tolist()


def test_neighbouring_indexes_pack_into_a_few_bytes() -> None:
    assert len(pack(np.arange(10**12, 10**12 + PRODUCTION.block_size, dtype=np.uint64))) < 12
    alternating = np.arange(10**12, 10**12 + 4 * PRODUCTION.block_size, 4, dtype=np.uint64)
    assert len(pack(alternating)) < 200


STRETCH = st.builds(
    lambda first, count: set(range(first, first + count)), st.integers(1, 400), st.integers(0, 60)
)
PARTS = st.lists(st.sets(st.integers(1, 400), max_size=60) | STRETCH, max_size=5)


@given(PARTS, st.integers(0, 500), st.integers(0, 70))
def test_a_set_of_indexes_is_the_union_of_its_pieces(parts: list[set[int]], first: int, width: int) -> None:
    found = IndexSet([Piece(pack(np.array(sorted(part), dtype=np.uint64))) for part in parts])
    wanted = set().union(*parts)
    asked = set(range(first, first + width + 1))
    assert list(found) == sorted(wanted) == list(found.as_array())
    assert found.within(first, first + width).tolist() == sorted(wanted & asked)
    assert (first in found) == (first in wanted)
    assert found.overlaps(first, first + width) or not wanted & asked
    assert not found.covers(first, first + width) or asked <= wanted
    assert found == IndexSet.of(np.array(sorted(wanted), dtype=np.uint64))
    assert IndexSet.of(array("Q", sorted(asked))).covers(first, first + width)


def test_a_set_of_indexes_gives_itself_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.concatenate([np.arange(5, 50_005), np.arange(10**9, 10**9 + 60_000, 3)]).astype(np.uint64)
    found = IndexSet.of(numbers)
    unpacked: list[int] = []

    def counted(data: bytes) -> Indexes:
        unpacked.append(len(data))
        return unpack(data)

    monkeypatch.setattr(index_sets, "unpack", counted)
    parts = list(found.parts())
    assert len(unpacked) < 20, "a wide gap costs no more than a narrow one"
    assert max(map(len, parts)) <= PIECE
    assert [index for part in parts for index in part] == numbers.tolist()
    assert found.covers(5, 3 * PIECE)
    assert not found.covers(5, 50_005)
    assert not found.overlaps(1, 4)


def test_what_ten_million_waiting_single_messages_refer_to_takes_little_memory() -> None:
    """In the worst case, too: an entry for each, and entries of another queue between them at random."""
    chance = np.random.default_rng(1)
    for gaps, limit in ((False, 40_000), (True, 600_000)):
        pieces = []
        index = 1
        for _ in range(100):  # of the 611 blocks
            size = PRODUCTION.block_size
            steps = chance.integers(1, 3, size, dtype=np.uint64) if gaps else np.ones(size, np.uint64)
            indexes = np.cumsum(steps) + np.uint64(index)
            index = int(indexes[-1])
            pieces.append(Piece(pack(indexes)))
        assert IndexSet(pieces).memory_bytes() < limit


def test_a_record_comes_back() -> None:
    world = filled(2 * PRODUCTION.block_size)
    for block in world.machine.queues[1].messages.blocks.warm():
        stored = world.machine.queues[1].messages.blocks.write(block)
        again = Stored(stored.record)
        assert again.record == stored.record
        names = [name for name in Stored.__slots__ if name != "references"]
        assert all(getattr(again, name) == getattr(stored, name) for name in names)
        assert unpack(again.references.packed).tolist() == block.live_indexes().tolist()


def test_the_bytes_of_warm_blocks_are_counted() -> None:
    world = filled(4 * PRODUCTION.block_size, batch=8)
    queue = world.machine.queues[1]
    full = [block for block in queue.messages.blocks.warm() if block.number < 4]
    runs = sum(len(block.runs) * 20 for block in full)
    assert runs <= world.machine.memory.warm_bytes <= runs + 4 * 8_192
    world.machine.page_out(1, 1)
    assert world.machine.memory.warm_bytes < runs
    assert isinstance(queue.messages.blocks.at(1), Stored)
    assert isinstance(queue.messages.blocks.get(1), Block)
    assert runs <= world.machine.memory.warm_bytes


def sized(world: World, count: int) -> bytes:
    """A queue with filter fields and `count` messages of sizes 0, 1, 2, ... in batches of 5."""
    world.queue(filter_enabled=True)
    name = world.session()
    for first in range(0, count, 5):
        world.publish(name, 5, [{"application-properties.size": first + n} for n in range(5)])
    return name


def test_cold_blocks_that_a_selector_rules_out_are_not_read() -> None:
    """The scan finds what it finds without summaries, in the same entries (the twin has none, the model no blocks)."""
    world = World(SMALL, has_model=True)
    name = sized(world, 200)
    world.twin = world.restored(snapshot.encode(world.machine))
    page_out_all(world.machine)
    memory = world.machine.memory
    world.attach(name, "c", 100, "size = 103 OR size BETWEEN 160 AND 170")
    found = world.wake_until_done()
    assert len(found) > 1
    assert sum(len(sequences(applied)) for applied in found) == 12
    assert memory.loads <= 4  # those with matches, of 26
    assert queries.info(world.twin, 1) == world.info()
    drop_summaries(world.machine)
    page_out_all(world.machine)
    world.attach(name, "d", 100, "size = 199 AND size = 198")
    world.wake_until_done()
    assert memory.loads > 20  # each had to be read, as nothing was known


def test_a_look_with_a_selector_does_not_read_what_it_rules_out() -> None:
    world = World(SMALL, has_model=True)
    sized(world, 400)
    page_out_all(world.machine)
    wanted = selector("size > 370")
    runs, place = [], 0
    while place is not None:
        page = queries.browse(world.machine, 1, place, 1_000, wanted)
        assert isinstance(page, BrowsePage)
        runs += page.runs
        place = page.next_sequence
    assert sum(run.count for run in runs) == 29
    assert world.machine.memory.loads <= 5


@pytest.mark.parametrize("terms", [1, 3, 8, 30])
def test_a_ruled_out_block_costs_the_steps_of_one_message_in_every_look(terms: int) -> None:
    world = World(SMALL)
    name = sized(world, 400)
    made = world.do(name, Pin(1, 3_600_000))
    assert isinstance(made, Pinned)
    page_out_all(world.machine)
    wanted = selector(" AND ".join(f"size > {1_000 + term}" for term in range(terms)))
    passed = min(SMALL.block_budget, -(-SMALL.step_budget // decoded(wanted).steps))
    expected = BrowsePage((), passed << SMALL.block_bits)
    assert queries.browse(world.machine, 1, 0, 1_000, wanted) == expected
    assert queries.pinned(world.machine, 1, made.pin, 0, made.end_sequence, 1_000, wanted) == expected
    assert world.machine.memory.loads == 0


def test_a_summary_goes_with_the_block_and_through_a_checkpoint() -> None:
    world = World(SMALL, has_model=True)
    name = sized(world, 45)
    page_out_all(world.machine)
    blocks = world.machine.queues[1].messages.blocks
    known = {number: blocks.at(number).summary for number in blocks.numbers()}
    assert all(known.values())
    again = world.resumed(world.checkpointer(world.machine).take().state, world.machine.memory.pages)
    assert {number: again.queues[1].messages.blocks.at(number).summary for number in known} == known
    world.do(name, Get(1, 3, settled=True))  # what leaves changes nothing that was said
    assert blocks.at(0).summary == known[0]
    world.publish(name, 1, [{"application-properties.size": 1_000}])  # what comes does
    last = blocks.numbers()[-1]
    assert blocks.at(last).summary == b""
    page_out_all(world.machine)  # without the columns that went with it before nothing new is known
    assert blocks.at(last).summary == b""


def test_a_cold_block_with_five_fields_takes_less_than_a_byte_a_message() -> None:
    """Warm it takes 64 bytes a message at most; of unique strings, too, a bounded digest stays."""
    world = World()
    world.checks = False
    world.queue(filter_enabled=True)
    name = world.session()
    regions = ("north", "east", "south", "west")
    for first in range(0, 2 * PRODUCTION.block_size, 1_024):
        rows = [
            {
                "application-properties.region": regions[n % 4],
                "application-properties.price": n / 7,
                "application-properties.amount": n % 1_000,
                "application-properties.urgent": n % 3 == 0,
                "application-properties.customer": f"customer-{n * 7919 % 1_000_003:07}",
            }
            for n in range(first, first + 1_024)
        ]
        world.publish(name, 1_024, rows)
    block = world.machine.queues[1].messages.blocks.get(0)
    assert block.memory_bytes() < 64 * PRODUCTION.block_size
    page_out_all(world.machine)
    gc.collect()
    cold = world.machine.queues[1].messages.blocks.at(0)
    assert isinstance(cold, Stored)
    checked_out = [cold, *(getattr(cold, slot) for slot in Stored.__slots__), cold.references.packed]
    assert sum(map(sys.getsizeof, checked_out)) < PRODUCTION.block_size // 4
    again = selector("customer = 'customer-9999999' AND region = 'north'")
    assert world.machine.queues[1].groups.ruled_out(decoded(again), 0) is cold
