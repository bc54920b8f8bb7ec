"""The columns of a block of single-message publishes are read from the log once an entry, and decoded together.

They were read once a message: an entry of a thousand publishes was read, checked and taken apart a thousand times.
"""

from __future__ import annotations

from typing import Any, cast

from fifo.commands import (
    Address,
    CreateQueue,
    Enqueue,
    Meta,
    Operation,
    Origin,
    QueueConfig,
    RegisterProducer,
)
from fifo.group import GroupMachine
from fifo.versions import CURRENT
from quorum.log import Log
from quorum.node.operations import Command, command_parts, encode
from quorum.node.replica import FieldSource
from quorum_selectors import columns
from support.counted_lines import count_lines

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
    machine.drop_columns()
    return log, machine


def rebuild(machine: GroupMachine) -> list[Any]:
    """The field `n` of all messages of the first block."""
    queue = machine.queues[1]
    block = queue.blocks.get(0)
    found = queue.groups.fields.columns(block)
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
