"""Published messages whose bodies lie in entries before those of their neighbours: nothing that relies on where bodies
lie (references, fields, cold blocks, checkpoints, what is in memory) takes for granted that entries ascend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fifo.commands import (
    DiscardStaged,
    Get,
    Settle,
    UpdateConfig,
)
from fifo.consumers.filter_fields import StoredFields
from fifo.effects import Applied, Ok, Published
from fifo.group_machine import GroupMachine
from fifo.limits import PRODUCTION, SMALL, Limits
from fifo.messages.pages import MemoryPages
from fifo.outcome_hash import digest
from fifo.persistence import checkpoint, invariants, snapshot
from fifo.persistence.references import references
from fifo.queries import group as queries
from fifo.results import BrowsePage
from support.fifo.local_parts import drop_columns
from support.fifo.staging import GREEN, RED, prepared, refused, reply_to_publish, waiting
from support.fifo.world import World, exported, selector, sequences


def test_references_have_staged_bodies_as_long_as_they_may_be_needed() -> None:
    world, name = prepared()
    world.queue(2)
    entries: dict[str, int] = {}

    def staged(what: str, batch: int, part: int, chunk: int) -> None:
        world.stage(name, batch, part, chunk, 2, queue=1 + (what == "elsewhere"))
        entries[what] = world.index

    staged("first", 1, 1, 0)
    staged("failed", 1, 2, 0)
    staged("second", 1, 1, 1)
    staged("discarded", 2, 1, 0)
    staged("elsewhere", 1, 1, 0)
    staged("expiring", 3, 1, 0)

    def referred() -> list[str]:
        found = world.checkpointer(world.machine).take()
        assert found.entries == references(snapshot.encode(world.machine))
        assert checkpoint.contents(found.state) == (found.entries, found.pages)
        return [
            what
            for what, index in sorted(entries.items(), key=lambda each: each[1])
            if index in found.entries
        ]

    assert referred() == list(entries)
    world.publish(name, 2)
    entries["usual"] = world.index
    world.publish_staged(name, 1, (1, 4))
    assert referred() == ["first", "second", "discarded", "elsewhere", "expiring", "usual"]
    world.do(name, DiscardStaged(1, "writer", 2))
    assert referred() == ["first", "second", "elsewhere", "expiring", "usual"]
    world.wake(PRODUCTION.part_ms)
    assert referred() == ["first", "second", "usual"]
    assert world.do(name, Get(1, 4, settled=True)) == Ok(4)
    assert referred() == ["second"]
    attach, _ = world.attach(name, "c", 10)
    assert referred() == ["second"]
    world.do(name, Settle(1, "c", attach, ((1, 10),)))
    assert referred() == []


@pytest.fixture(params=["at once", "later"])
def looked_up(request: pytest.FixtureRequest) -> int:
    """Up to so many messages publications are fetched with their entry."""
    return PRODUCTION.looked_up_messages if request.param == "at once" else 0


def interleaved(looked_up: int) -> tuple[World, bytes, list[int], list[int]]:
    """Red and green messages staged, others published, the staged ones published behind them; the sequences of red
    ones, and of all."""
    world, name = prepared(replace(PRODUCTION, looked_up_messages=looked_up), filter_enabled=True)
    world.stage(name, 1, 1, 0, 3, [RED, GREEN, RED])
    world.stage(name, 1, 2, 0, 1, [GREEN])
    world.apply(
        [world.chunk(name, 1, 2, 1, 1, [RED]), world.chunk(name, 1, 1, 1, 30, [RED, GREEN] * 15, place=1)]
    )
    world.publish(name, 2, [GREEN, RED])
    world.publish_staged(name, 1, (2, 2), (1, 33))
    world.publish(name, 2, [RED, GREEN])
    red = [2, 4, 5, 7, *range(8, 38, 2), 38]
    return world, name, red, list(range(1, 40))


def check_fields(world: World, machine: GroupMachine, red: list[int], everything: list[int]) -> None:
    for text, wanted in (("colour = 'red'", red), ("colour = 'green'", sorted({*everything} - {*red}))):
        page = queries.browse(machine, 1, 0, 1_000, selector(text))
        assert isinstance(page, BrowsePage)
        assert [run.first_sequence + i for run in page.runs for i in range(run.count)] == wanted


def test_selectors_see_the_fields_of_published_messages(looked_up: int) -> None:
    world, name, red, everything = interleaved(looked_up)
    check_fields(world, world.machine, red, everything)
    _, attached = world.attach(name, "c", 100, "colour = 'red'")
    assert sequences(attached) == red


def test_fields_are_rebuilt_where_entries_do_not_ascend(looked_up: int) -> None:
    world, _, red, everything = interleaved(looked_up)
    drop_columns(world.machine)
    check_fields(world, world.machine, red, everything)


def test_cold_blocks_come_back_as_they_were_where_entries_do_not_ascend(looked_up: int) -> None:
    world, _, red, everything = interleaved(looked_up)
    before, where = snapshot.encode(world.machine), waiting(world)
    for block in world.machine.queues[1].messages.blocks.warm():
        world.machine.page_out(1, block.number)
    invariants.check(world.machine)
    assert snapshot.encode(world.machine) == before
    check_fields(world, world.machine, red, everything)
    assert waiting(world) == where


def test_a_group_goes_on_from_a_checkpoint_or_snapshot_where_entries_do_not_ascend(looked_up: int) -> None:
    world, _, red, everything = interleaved(looked_up)
    pages = world.machine.memory.pages
    assert isinstance(pages, MemoryPages)
    found = world.checkpointer(world.machine).take()
    assert list(found.entries) == [3, 4, 5, 6, 8]
    for again in (
        world.resumed(found.state, pages),
        world.restored(snapshot.encode(world.machine)),
    ):
        invariants.check(again)
        assert snapshot.encode(again) == snapshot.encode(world.machine)
        check_fields(world, again, red, everything)


def test_what_is_staged_survives_checkpoints_and_snapshots() -> None:
    world, name = prepared(filter_enabled=True)
    world.stage(name, 4, 9, 0, 1, producer="earlier")
    world.publish_staged(name, 4, producer="earlier")
    world.stage(name, 1, 1, 0, 3, [RED, GREEN, RED], ttls_ms=(10, 10, -1))
    world.stage(name, 1, 2, 0, 1, [RED])
    world.publish(name, 2, [GREEN, RED])
    found = world.checkpointer(world.machine).take()
    sent = exported(found.state, world.machine.memory.pages)
    assert sent == snapshot.encode(world.machine)
    world.twin = world.resumed(found.state, world.machine.memory.pages)
    other = World(world.limits)
    other.machine = world.restored(sent)
    assert (
        queries.staged(other.machine, 1) == queries.staged(world.twin, 1) == queries.staged(world.machine, 1)
    )
    assert reply_to_publish(world, name, 1, (2, 1), (1, 3)) == Published(3, 4)  # compared with the twin
    refused(world.stage(name, 4, 1, 0, 1, producer="earlier"), "published")
    check_fields(world, world.machine, [2, 3, 4, 6], [1, 2, 3, 4, 5, 6])


def test_followers_are_woken_by_what_is_published_for_them(looked_up: int) -> None:
    world, name = prepared(replace(PRODUCTION, looked_up_messages=looked_up), filter_enabled=True)
    world.attach(name, "red", 10, "colour = 'red'")
    world.attach(name, "green", 10, "colour = 'green'")
    world.publish(name, 1, [{}])
    world.stage(name, 1, 1, 0, 3, [GREEN, RED, GREEN])
    assert len(world.machine.queues[1].groups.idle()) == 2
    published = world.publish_staged(name, 1, (1, 3))
    assert sequences(published, "red") == [3]
    assert sequences(published, "green") == [2, 4]
    world.publish(name, 1, [GREEN])
    assert world.machine.queues[1].messages.checked_out_count == 4


class Counting:
    """A field source that counts what is asked of it."""

    def __init__(self, world: World) -> None:
        self.asked: list[tuple[int, int]] = []
        self._log = world.log

    def columns(self, index: int, operation: int, queue: int) -> StoredFields:
        self.asked.append((index, operation))
        return self._log.columns(index, operation, queue)


def test_of_a_large_publication_nothing_is_read_before_somebody_asks() -> None:
    world, name = prepared(filter_enabled=True)
    source = Counting(world)
    world.checks = False
    world.machine.queues[1].groups.fields._source = source
    world.publish(name, 1, [RED])
    for number in range(PRODUCTION.looked_up_chunks + 1):
        world.stage(name, 1, 1, number, 2, [RED, GREEN])
    world.publish_staged(name, 1, (1, 2 * PRODUCTION.looked_up_chunks + 2))
    assert source.asked == []
    _, attached = world.attach(name, "c", 1_000, "colour = 'green'")
    assert len(sequences(attached)) == PRODUCTION.looked_up_chunks + 1
    assert len(source.asked) == PRODUCTION.looked_up_chunks + 1  # each once, and not the one in front
    world.stage(name, 2, 1, 0, 2, [RED, GREEN])
    assert len(sequences(world.publish_staged(name, 2, (1, 2)))) == 1
    assert len(source.asked) == PRODUCTION.looked_up_chunks + 2  # a small one: itself only


LARGEST = Limits(looked_up_messages=6, looked_up_chunks=3, looked_up_bytes=600)


@pytest.mark.parametrize(
    ("chunks", "rows", "size", "is_read"),
    [
        (3, 2, 100, True),
        (1, 7, 10, False),
        (4, 1, 10, False),
        (1, 1, 601, False),
    ],
)
def test_the_fields_of_a_publication_are_read_with_it_up_to_its_messages_its_chunks_and_its_bytes(
    chunks: int, rows: int, size: int, is_read: bool
) -> None:
    world, name = prepared(LARGEST, filter_enabled=True)
    source = Counting(world)
    world.checks = False
    world.machine.queues[1].groups.fields._source = source
    for number in range(chunks):
        world.stage(name, 1, number % 2, number // 2, rows, [RED] * rows, size=size)
    parts = [(part, rows * len(range(part, chunks, 2))) for part in range(min(chunks, 2))]
    assert world.publish_staged(name, 1, *parts).replies == (Published(1, chunks * rows),)
    assert len(source.asked) == (chunks if is_read else 0)


def test_a_queue_that_does_not_filter_reads_nothing() -> None:
    world, name = prepared()
    source = Counting(world)
    world.machine.queues[1].groups.fields._source = source
    world.stage(name, 1, 1, 0, 2)
    world.publish_staged(name, 1, (1, 2))
    assert source.asked == []


def test_a_change_of_the_queue_between_staging_and_publishing_is_followed() -> None:
    world, name = prepared(filter_enabled=True)
    world.stage(name, 1, 1, 0, 2, [RED, GREEN], ttl_ms=1_000)
    config = world.machine.config_of(1)
    assert config is not None
    world.apply([(None, UpdateConfig(1, replace(config, message_ttl_ms=50)))])
    world.publish_staged(name, 1, (1, 2))
    assert world.machine.next_wake() == world.now_ms + 50


def test_which_bodies_are_in_memory_is_told_where_entries_do_not_ascend() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 5)
    world.publish(name, 3)
    recent_from = world.index
    world.publish_staged(name, 1, (1, 5))
    world.publish(name, 2)
    found = queries.storage(world.machine, 1, recent_from)
    assert found is not None
    assert (found.alpha, found.beta) == (5, 5)
    world.do(name, Get(1, 4, settled=True))  # three recent ones, one that was staged
    found = queries.storage(world.machine, 1, recent_from)
    assert found is not None
    assert (found.alpha, found.beta) == (2, 4)
    everything, nothing = (
        queries.storage(world.machine, 1, 0),
        queries.storage(world.machine, 1, world.index + 1),
    )
    assert everything is not None
    assert nothing is not None
    assert (everything.alpha, nothing.alpha) == (6, 0)


def test_live_indexes_ascend_each_once_whatever_the_order_of_the_runs() -> None:
    world, name = prepared()
    for part in (1, 2, 3):
        world.stage(name, 1, part, 0, 2)
    world.stage(name, 1, 1, 1, 2)
    first = world.index - 3
    world.publish(name, 1)
    world.publish_staged(name, 1, (3, 2), (1, 4), (2, 2))
    block = world.machine.queues[1].messages.blocks.get(0)
    assert list(block.runs.indexes) == [first + 4, first + 2, first, first + 3, first + 1]
    assert block.live_indexes().tolist() == [first, first + 1, first + 2, first + 3, first + 4]
    world.do(name, Get(1, 4, settled=True))  # the one published, those of part 3, one of part 1
    assert block.live_indexes().tolist() == [first, first + 1, first + 3]


def test_a_part_is_published_across_blocks() -> None:
    world, name = prepared(filter_enabled=True)
    world.checks = False
    rows = [RED, GREEN] * 5_000
    for number in range(4):
        world.stage(name, 1, 1, number, 10_000, rows)
    world.publish(name, 1, [GREEN])
    world.publish_staged(name, 1, (1, 40_000))
    assert len(world.machine.queues[1].messages.blocks) == 40_001 // PRODUCTION.block_size + 1
    invariants.check(world.machine)
    red = [each[0] for each in waiting(world, "colour = 'red'")]
    assert red == list(range(2, 40_002, 2))
    drop_columns(world.machine)
    assert [each[0] for each in waiting(world, "colour = 'red'")] == red


def test_a_large_publication_is_passed_by_selectors_some_blocks_an_entry() -> None:
    """Those who had seen everything look at it as at any backlog, so that no entry evaluates all of it."""
    world = World(SMALL, has_model=True)
    world.queue(filter_enabled=True)
    name = world.session()
    world.attach(name, "c", 100, "colour = 'red'")
    world.publish(name, 1, [GREEN])
    for number in range(6):
        world.stage(name, 1, 1, number, 10, [GREEN] * 9 + [RED])
    fields = world.machine.queues[1].groups.fields
    before = fields.evaluated
    published = world.publish_staged(name, 1, (1, 60))
    assert published.replies == (Published(2, 60),)
    given = sequences(published)
    assert len(given) < 6
    assert fields.evaluated - before <= SMALL.step_budget + SMALL.block_size
    assert world.machine.next_wake() == world.now_ms
    for applied in world.wake_until_done():
        given += sequences(applied)
    assert given == list(range(11, 62, 10))


def test_the_next_wake_is_for_whatever_expires_first() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 1)
    staged_ms = world.now_ms
    world.publish(name, 1, ttl_ms=2 * PRODUCTION.part_ms)
    assert world.machine.next_wake() == staged_ms + PRODUCTION.part_ms
    world.publish(name, 1, ttl_ms=PRODUCTION.part_ms // 2)
    assert world.machine.next_wake() == world.now_ms + PRODUCTION.part_ms // 2


def test_published_messages_have_their_sizes() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 10, ttls_ms=(1_000,) * 4 + (2_000,) * 6)
    world.stage(name, 1, 1, 1, 5)
    world.publish_staged(name, 1, (1, 15))
    info = world.info()
    assert info.ready_bytes == 1_500


def test_single_messages_staged_in_one_entry_are_one_run() -> None:
    world, name = prepared()
    world.apply([world.chunk(name, 1, 1, number, 1, place=number) for number in range(10)])
    world.publish_staged(name, 1, (1, 10))
    assert len(world.machine.queues[1].messages.blocks.get(0).runs) == 1
    assert waiting(world) == [(1 + number, world.index - 1, number, 0) for number in range(10)]


@pytest.mark.parametrize("other", [Published(2, 3), Published(1, 4), Published(1, 3, is_duplicate=True)])
def test_members_that_publish_something_else_differ_in_their_running_hash(other: Published) -> None:
    made = [digest(1, Applied((reply,), ())) for reply in (Published(1, 3), other)]
    assert made[0] != made[1]
