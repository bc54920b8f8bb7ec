"""The columns of a block of single-message publishes are read from the log once an entry, and decoded together.

They were read once a message: an entry of a thousand publishes was read, checked and taken apart a thousand times.
Later a front read the fields of whole blocks in one entry, also where it could pass only a part of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from fifo.commands import (
    Address,
    Attach,
    CreateQueue,
    Enqueue,
    Meta,
    Operation,
    Origin,
    QueueConfig,
    RegisterProducer,
    Wake,
)
from fifo.consumers.consumer import SelectorGroup
from fifo.consumers.filter_fields import StoredFields
from fifo.consumers.selector import Selector
from fifo.effects import Deliver
from fifo.group_machine import GroupMachine
from fifo.limits import PRODUCTION
from fifo.queries import group as queries
from fifo.results import BrowsePage
from fifo.versions import CURRENT
from quorum.log import Log
from quorum.node.replica.replica import FieldSource
from quorum.node.wire.operations import Command, command_parts, encode
from quorum_selectors import canonical, columns, jms
from quorum_selectors.predicates import PredicateIndex
from support.counted_lines import count_lines
from support.fifo.local_parts import drop_columns
from support.fifo.world import World

PRODUCER = b"P" * 16


class CountedLog:
    """Entries by index; `reads` says which were read."""

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}
        self.reads: list[int] = []

    def read(self, group: int, index: int) -> bytes:
        self.reads.append(index)
        return self.bodies[index]


def published(entries: int, each: int) -> tuple[CountedLog, GroupMachine]:
    """A queue with filter fields and so many entries of so many single-message publishes, without columns."""
    log = CountedLog()
    machine = GroupMachine(FieldSource(cast(Log, log), 1))
    config = QueueConfig("orders", filter_enabled=True, filter_field_names=("*",))
    first = Operation(0, None, CreateQueue(1, config))
    session = Operation(1, Origin(PRODUCER, 1, 0), RegisterProducer(Address(1, 1, 1)))
    machine.apply(Meta(1, 1, 1, CURRENT), [first, session])
    for entry in range(entries):
        operations = []
        for place in range(each):
            number = entry * each + place + 1
            row: dict[str, Any] = {"application-properties.colour": "red", "application-properties.n": number}
            command = Enqueue(1, number, number, 1, 100, columns=columns.encode([row]))
            operations.append(encode(command, Origin(PRODUCER, 1, number), b"batch"))
        body = b"\0" + b"".join(command_parts(operations, 1, CURRENT))
        log.bodies[2 + entry] = body
        machine.apply(Meta(2 + entry, 1, 1, CURRENT), Command(memoryview(body)[1:]).decode())
    drop_columns(machine)
    return log, machine


def rebuild(machine: GroupMachine) -> list[Any]:
    """The field `n` of all messages of the first block."""
    queue = machine.queues[1]
    block = queue.messages.blocks.get(0)
    found = queue.groups.fields.columns(block, block.kept)
    return [found.get(slot, "application-properties.n") for slot in range(block.kept.bit_length())][1:]


def test_an_entry_of_many_publishes_is_read_once() -> None:
    log, machine = published(entries=3, each=100)
    assert rebuild(machine) == list(range(1, 301))
    assert log.reads == [2, 3, 4]


def test_reading_single_publishes_again_costs_a_few_lines_a_message() -> None:
    def lines(each: int) -> int:
        _, machine = published(entries=1, each=each)
        return count_lines(lambda: rebuild(machine)) - count_lines(lambda: rebuild(machine))

    assert lines(2_000) - lines(1_000) <= 40 * 1_000


SOME = PRODUCTION.step_budget // PRODUCTION.read_single_steps
"""Messages published alone whose fields one entry may read."""


class Attached:
    """One consumer of a queue that holds so many single publishes whose columns are not in memory."""

    def __init__(self, entries: int, each: int, text: str, *, is_cold: bool = False) -> None:
        self.log, self.machine = published(entries, each)
        self.asked: list[int] = []
        """how many messages' fields each entry has read"""
        self.found: list[int] = []
        self._index = 1 + entries
        queue = self.machine.queues[1]
        if is_cold:
            for number in queue.messages.blocks.numbers()[:-1]:
                queue.messages.blocks.page_out(number)
        self._source = cast(Any, queue.groups.fields)._source
        cast(Any, queue.groups.fields)._source = self
        attach = Attach(1, "c", canonical.encode(jms.parse(text)), 1_000)
        self._apply(Operation(0, Origin(PRODUCER, 1, entries * each + 1), attach))
        while self.machine.next_wake() is not None:
            self._apply(Operation(0, None, Wake()))

    def columns(self, index: int, operation: int, queue: int) -> StoredFields:
        self.asked[-1] += 1
        return cast(StoredFields, self._source.columns(index, operation, queue))

    def _apply(self, operation: Operation) -> None:
        self._index += 1
        self.asked.append(0)
        applied = self.machine.apply(Meta(self._index, 1, 1, CURRENT), [operation])
        for effect in applied.effects:
            if isinstance(effect, Deliver):
                self.found += [run.first_sequence for run in effect.runs]


def test_an_entry_reads_the_fields_of_a_part_of_a_block() -> None:
    attached = Attached(entries=20, each=1_000, text="n + 0 = 19999")
    assert attached.found == [19_999]
    assert sum(attached.asked) == 20_000, "each message is read once"
    assert max(attached.asked) <= SOME


def test_where_entries_hold_one_publish_each_a_front_passes_fewer_of_them() -> None:
    attached = Attached(entries=3_000, each=1, text="n + 0 = 2999")
    assert attached.found == [2_999]
    assert max(attached.asked) <= SOME // 4


def test_a_front_gets_as_far_in_cold_blocks_as_in_warm_ones() -> None:
    warm, cold = [Attached(20, 1_000, "n = 5 OR n + 0 = 19999", is_cold=each) for each in (False, True)]
    assert warm.found == cold.found == [5, 19_999]
    assert warm.machine.running_hash == cold.machine.running_hash
    assert warm.asked == cold.asked


def test_what_arrives_after_the_columns_were_dropped_is_not_read_again() -> None:
    log, machine = published(entries=2, each=100)
    command = Enqueue(1, 201, 201, 1, 100, columns=columns.encode([{"application-properties.n": 201}]))
    machine.apply(Meta(4, 1, 1, CURRENT), [Operation(0, Origin(PRODUCER, 1, 201), command)])
    block = machine.queues[1].messages.blocks.get(0)
    found = machine.queues[1].groups.fields.columns(block, 1 << 201)
    assert found.get(201, "application-properties.n") == 201
    assert log.reads == []


def test_a_look_stops_within_a_block() -> None:
    log, machine = published(entries=17, each=1_000)
    selector = canonical.encode(jms.parse("n + 0 > 16000"))
    page, pages = queries.browse(machine, 1, 0, 10, selector), 1
    assert len(log.reads) <= SOME // 1_000 + 1
    while isinstance(page, BrowsePage) and not page.runs and page.next_sequence is not None:
        page, pages = queries.browse(machine, 1, page.next_sequence, 10, selector), pages + 1
    assert isinstance(page, BrowsePage)
    assert (page.runs[0].first_sequence, page.runs[0].count) == (16_001, 10)
    assert pages >= PRODUCTION.block_size // SOME


# ---- fields that few messages have


def with_own_fields(count: int, each: int, **limits: int) -> tuple[CountedLog, GroupMachine]:
    """Entries of one message each, with so many fields that no other message has, and `n`."""
    log = CountedLog()
    machine = GroupMachine(FieldSource(cast(Log, log), 1), limits=replace(PRODUCTION, **limits))
    config = QueueConfig("orders", filter_enabled=True, filter_field_names=("*",))
    first = Operation(0, None, CreateQueue(1, config))
    session = Operation(1, Origin(PRODUCER, 1, 0), RegisterProducer(Address(1, 1, 1)))
    machine.apply(Meta(1, 1, 1, CURRENT), [first, session])
    for number in range(1, count + 1):
        row: dict[str, Any] = {f"application-properties.{number}-{place}": 1 for place in range(each)}
        row["application-properties.n"] = number
        command = Enqueue(1, number, number, 1, 100, columns=columns.encode([row]))
        operation = encode(command, Origin(PRODUCER, 1, number), b"batch")
        log.bodies[1 + number] = b"\0" + b"".join(command_parts([operation], 1, CURRENT))
        machine.apply(
            Meta(1 + number, 1, 1, CURRENT), Command(memoryview(log.bodies[1 + number])[1:]).decode()
        )
    return log, machine


def test_fields_that_each_message_has_for_itself_take_bounded_memory() -> None:
    most = 200_000
    _, machine = with_own_fields(100, 100, column_bytes=most)
    queue = machine.queues[1]
    block = queue.messages.blocks.get(0)
    one = 100 * 400  # a field and its value take less than 400 bytes
    assert block.columns.nbytes <= most + one
    selector = Selector(canonical.encode(jms.parse("n + 0 > 50")))
    assert queue.groups.fields.select(block, selector, block.ready) == block.ready >> 51 << 51
    assert block.columns.nbytes <= most + 100 * one  # what is decoded together


def test_fields_that_are_read_in_several_parts_are_found() -> None:
    _, machine = with_own_fields(100, 10, column_bytes=20_000, read_singles=7)
    queue = machine.queues[1]
    index: PredicateIndex[bytes] = PredicateIndex()
    groups: dict[bytes, SelectorGroup] = {}
    expected: dict[bytes, int] = {}
    for number in (3, 60, 99):
        tree = jms.parse(f"n = {number}")
        selector = canonical.encode(tree)
        index.add(selector, tree)
        groups[selector] = SelectorGroup(selector)
        expected[selector] = 1 << number
    block = queue.messages.blocks.get(0)
    assert dict(queue.groups.fields.look_up(block, index, groups, block.ready)) == expected
    assert not block.has_fields


def test_long_texts_take_bounded_memory_in_the_block_that_is_written_to() -> None:
    most = 200_000
    world = World(replace(PRODUCTION, column_bytes=most))
    world.checks = False
    world.queue(filter_enabled=True)
    name = world.session()
    for batch in range(40):
        rows = [{"application-properties.text": f"{batch}-{place}-" * 500} for place in range(10)]
        world.publish(name, 10, rows)
    queue = world.machine.queues[1]
    block = queue.messages.blocks.get(0)
    one = 2 * 10 * 6 * 500 + 50_000  # a batch, with room for growing, and what any column takes
    assert block.columns.nbytes <= most + one
    selector = Selector(canonical.encode(jms.parse("text LIKE '7-3-%'")))
    assert queue.groups.fields.select(block, selector, block.ready) == 1 << 74
    assert block.columns.nbytes <= most + one
