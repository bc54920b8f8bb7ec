"""Encodes the state of a group as canonical bytes, and decodes it: equal states give equal bytes, on every member.

Format 4: a magic word, the format number, then sections, each after its length. The sections are the group's head, and
for each queue, in the order of ids, its head and its blocks in the order of their numbers. A snapshot has no bodies and
no local state (columns, match sets). It has nothing that can be computed from the rest: the ready order, the expiry
tree, sums, the consumers of a session.

Each record has the fields that exist in the group's version, or in BASE if that is higher (layouts.py). The group's
head states the version. So members of older builds can read a snapshot until the group has switched to a version that
they do not know. The head has transactions only if a producer has ever named one.

Format 3 is read, too. Its records have the fields of version 1 only. Its head of a group has no owners of producers, no
fences, no expired queues and no transactions; its head of a queue has no owners of subscriptions and pins. It does not
say how many messages of a queue were settled. So all messages that have left the queue count as settled, except for
those with a cause in COUNTED.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from fifo.codec import Held, Reader, Sections, Source, Writer
from fifo.consumers.consumer import Consumer
from fifo.consumers.filter_fields import FieldSource
from fifo.embargo import EmbargoedSettlement
from fifo.group_machine import GroupMachine
from fifo.layouts import CONFIG
from fifo.limits import PRODUCTION, Limits
from fifo.messages.blocks import Block, Stored
from fifo.messages.pages import Pages, decode_block, encode_block, page_data
from fifo.messages.runs import NEVER
from fifo.persistence.layouts import (
    BEGINNING,
    CONSUMER,
    CONSUMERS,
    ENDED,
    EXPIRED,
    FENCES,
    GROUP,
    HAS_UNTOLD_LOSS,
    MARKS,
    NUMBERS,
    OWNER,
    PRODUCERS,
    QUEUE,
    UNKNOWN_COUNT,
)
from fifo.persistence.pins import read_pins, write_pins
from fifo.persistence.staging import decode_staging, encode_staging
from fifo.persistence.subscriptions import read_subscriptions, write_subscriptions
from fifo.persistence.transactions import read_transactions, write_transactions
from fifo.pins import QueuePin
from fifo.queue_machine import QueueMachine
from fifo.staging import Staging
from fifo.subscriptions import Subscription
from fifo.versions import BASE, FIRST, check_version

MAGIC = b"QFIFO"
FORMAT = 4
FORMATS = (3, 4)
"""The formats that are read."""


def encode(group: GroupMachine) -> bytes:
    """The whole group. O(state): about 1 ms for each million messages that were published in batches."""
    out = Writer()
    out.data += MAGIC
    out.number(FORMAT)
    for section in sections(group):
        out.blob(section)
    return bytes(out.data)


def sections(group: GroupMachine) -> Iterator[bytes | bytearray | memoryview]:
    """The sections in their order."""
    yield group_head(group)
    for queue in sorted(group.queues):
        yield from queue_sections(group, group.queues[queue])


def queue_sections(group: GroupMachine, machine: QueueMachine) -> Iterator[bytes | bytearray | memoryview]:
    """The sections of one queue."""
    yield queue_head(machine, group.version)
    for block in machine.messages.blocks.values():
        if isinstance(block, Block):
            yield encode_block(block)
        else:
            yield page_data(group.memory.pages, block)


def is_snapshot(data: bytes | memoryview) -> bool:
    """Whether these bytes begin like a snapshot."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def open_sections(data: bytes | memoryview | Source, limits: Limits) -> Sections:
    """The sections, to be read one after the other as blobs. Raises ValueError if `data` is no snapshot of a known
    format."""
    source = Held(data) if isinstance(data, bytes | memoryview) else data
    reader = Sections(source, limits.source_bytes)
    if not is_snapshot(reader.take(min(len(MAGIC), reader.left))):
        raise ValueError("reading a snapshot of a group: it does not begin like one")
    found = reader.number()
    if found not in FORMATS:
        raise ValueError(f"reading a snapshot of a group: its format is {found}; known: {FORMATS}")
    return reader


def decode(
    data: bytes | memoryview | Source,
    field_source: FieldSource,
    pages: Pages | None = None,
    limits: Limits = PRODUCTION,
) -> GroupMachine:
    """The group of a snapshot, with all blocks warm. Raises ValueError if `data` is no snapshot of a known format."""
    group = GroupMachine(field_source, pages, limits)
    reader = open_sections(data, limits)
    queue_count, version = read_group_head(reader.blob(), group)
    for _ in range(queue_count):
        machine, block_count = read_queue_head(reader.blob(), group, version)
        group.queues[machine.queue] = machine
        for _ in range(block_count):
            add_block(machine, decode_block(Reader(reader.blob()), group.limits.block_size))
        complete(group, machine)
    group.transactions.restore()
    group.decisions.restore()
    if not reader.is_at_end():
        raise ValueError(f"reading a snapshot of a group: {reader.left} bytes too many")
    return group


# ---- group


def group_head(group: GroupMachine) -> bytearray:
    out = Writer(group.version)
    sessions = group.sessions
    BEGINNING.write(out, group)
    out.number(len(group.queues))
    GROUP.write(out, group)
    PRODUCERS.write(out, sessions.producers.values())
    ENDED.write(out, sessions.ended)
    OWNER.write_each(out, sessions.producers.values())
    FENCES.write(out, sessions.fences)
    EXPIRED.write(out, group)
    write_transactions(out, group)
    return out.data


def beginning(head: bytes) -> tuple[int, int]:
    """(machine version, number of queues) of a group's head."""
    reader = Reader(head)
    version: int = BEGINNING.read_fields(reader)["version"]
    return version, reader.number()


def read_group_head(head: bytes, group: GroupMachine) -> tuple[int, int]:
    """Fills the group. Returns the number of its queues, and the version whose fields their records have."""
    reader = Reader(head)
    BEGINNING.read_into(reader, group)
    check_version("the group's state", group.version, group.limits.newest_version)
    reader.version = group.version
    queue_count = reader.number()
    GROUP.read_into(reader, group)
    sessions = group.sessions
    producers = PRODUCERS.read(reader)
    sessions.ended = ENDED.read(reader)
    is_format_3 = reader.is_at_end()
    OWNER.read_each(reader, producers)
    for producer in producers:
        sessions.add(producer)
    if is_format_3:
        return queue_count, FIRST
    FENCES.read_into(reader, sessions.fences)
    EXPIRED.read_into(reader, group)
    if not reader.is_at_end():
        read_transactions(reader, group)
    return queue_count, max(group.version, BASE)


# ---- queue


def queue_head(machine: QueueMachine, version: int) -> bytearray:
    """version: that of the group. The records have its fields."""
    out = Writer(version)
    out.number(machine.queue)
    out.number(len(machine.messages.blocks))
    out.blob(encode_staging(machine.staging, version))
    CONFIG.write(out, machine.messages.config)
    QUEUE.write(out, machine)
    CONSUMERS.write(out, machine.consumers.by_key.values())
    places = {key: place for place, key in enumerate(machine.consumers.by_key)}
    groups = machine.groups
    out.number(len(groups.by_selector))
    for group in groups.by_selector.values():
        out.blob(group.selector)
        out.number(groups.shared.encode(group.scan_position))
        in_order = sorted(group.eligible.items(), reverse=True)
        NUMBERS.write(out, [places[key] for _, equals in in_order for key in equals])
    group_places = {selector: place for place, selector in enumerate(groups.by_selector)}
    NUMBERS.write(out, [group_places[selector] for selector in groups.service_queue])
    NUMBERS.write(out, [places[key] for key in groups.draining])
    write_subscriptions(out, machine.subscriptions)
    write_pins(out, machine.pins)
    HAS_UNTOLD_LOSS.write_each(out, machine.subscriptions.by_name.values())
    OWNER.write_each(out, _owned(machine))
    marks = machine.consumers.timeouts.marks.items()
    MARKS.write(out, [(end, [(places[each.key], tag) for each, tag in mark.items()]) for end, mark in marks])
    return out.data


def _owned(machine: QueueMachine) -> list[Subscription | QueuePin]:
    """The subscriptions and pins. Each has an owner."""
    subscriptions, pins = machine.subscriptions, machine.pins
    return [*subscriptions.by_name.values(), *subscriptions.deleted, *pins.by_number.values(), *pins.ended]


def staged_in(head: bytes, version: int) -> tuple[int, Staging]:
    """The number of a queue's blocks, and its staged parts, which must not be changed. head: of the queue; only its
    beginning is read. version: that of the group."""
    reader = Reader(head)
    reader.number()
    return reader.number(), decode_staging(reader.blob(), PRODUCTION, version)


def read_queue_head(head: bytes, group: GroupMachine, version: int) -> tuple[QueueMachine, int]:
    """Returns the queue without its blocks, and the number of its blocks. version: the records have the fields of this
    version."""
    reader = Reader(head, version)
    queue = reader.number()
    block_count = reader.number()
    staging = decode_staging(reader.blob(), group.limits, version)
    machine = QueueMachine(
        queue, CONFIG.read(reader), group.field_source, group.memory, group.selector_bytes, staging
    )
    QUEUE.read_into(reader, machine)
    members = [_read_consumer(reader, group.limits) for _ in range(reader.number())]
    consumers = [consumer for consumer, _ in members]
    machine.consumers.by_key = {consumer.key: consumer for consumer in consumers}
    producers = group.sessions.producers
    for consumer in consumers:
        consumer.owner = producers[consumer.producer].owner
        machine.consumers.owned.add(consumer.owner)
    for key, parts in staging.embargo.parts.items():
        for part in parts:
            if isinstance(part, EmbargoedSettlement) and key not in group.decisions.prepared:
                machine.consumers.by_key[key[0], part.consumer_tag].embargo(key[1], part.held)
    groups = machine.groups
    found = []
    for _ in range(reader.number()):
        selector_group = groups.add(reader.blob())
        groups.shared.decode(selector_group, reader.number())
        for place in NUMBERS.read(reader):
            groups.make_eligible(selector_group, consumers[place])
        found.append(selector_group)
    for place in NUMBERS.read(reader):
        groups.enqueue_group(found[place])
    for place in NUMBERS.read(reader):
        groups.draining[consumers[place].key] = consumers[place]
    for consumer, selector in members:
        if selector is not None:
            consumer.group = groups.by_selector[selector]
            consumer.group.size += 1
            machine.consumers.attached_count += 1
            group.selector_bytes.add(consumer.owner, consumer.selector_bytes)
            single = machine.consumers.single_active
            if single is not None and consumer.timed_out is None:
                single.join(consumer)
    read_subscriptions(reader, machine.subscriptions, groups, group.limits)
    read_pins(reader, machine.pins)
    HAS_UNTOLD_LOSS.read_each(reader, machine.subscriptions.by_name.values())
    OWNER.read_each(reader, _owned(machine))
    if not reader.is_at_end():
        for end, mark in MARKS.read(reader):
            machine.consumers.timeouts.marks[end] = OrderedDict(
                (consumers[place], tag) for place, tag in mark
            )
    return machine, block_count


def _read_consumer(reader: Reader, limits: Limits) -> tuple[Consumer, bytes | None]:
    found = CONSUMER.read_fields(reader)
    selector = found.pop("selector")
    return Consumer(group=None, max_checked_out=limits.max_checked_out, **found), selector


def add_block(machine: QueueMachine, block: Block | Stored) -> None:
    """Adds a block of a snapshot or checkpoint to its queue."""
    machine.messages.blocks.add(block)
    machine.messages.ready_count += block.ready_count
    machine.messages.checked_out_count += block.checked_out_count
    if machine.messages.counts_bytes:
        machine.messages.ready_bytes += block.ready_bytes
    if block.earliest_due is not None:
        machine.messages.restore_delayed(block)
    machine.messages.order.restored(block)
    machine.messages.restore_dead(block)
    if block.earliest != NEVER:
        machine.messages.expiries.add((block.earliest, block.number))


def complete(group: GroupMachine, machine: QueueMachine) -> None:
    """To be called once a queue has all its blocks."""
    if machine.messages.settled_count == UNKNOWN_COUNT:
        machine.messages.count_earlier()
    group.note_expiry(machine)
    group.note_dead(machine)
