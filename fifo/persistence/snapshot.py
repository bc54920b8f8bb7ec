"""A group as canonical bytes and back: equal states give equal bytes, on every member.

Format 4: a magic word, the format number, then sections, each after its length. The sections are the group's head, and
for each queue, in the order of ids, its head and its blocks in the order of their numbers. A snapshot has no bodies, no
local state (columns, match sets), and nothing that follows from the rest (the two trees, sums, the consumers of a
session).

Which fields a record has follows from the group's version, which stands in its head (layouts.py). So members of older
builds can read a snapshot until the group has switched to a version that they do not know.

Format 3 is read, too. Its group's head ends before the producers' owners and the fences, and its queues' heads before
the owners of subscriptions and pins. Transactions are there only if a producer has named one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from fifo.codec import Held, Reader, Sections, Source, Writer
from fifo.consumers.consumer import Consumer
from fifo.consumers.filter_fields import FieldSource
from fifo.embargo import EmbargoedSettlement
from fifo.group_machine import GroupMachine
from fifo.layouts import CONFIG
from fifo.limits import PRODUCTION, Limits
from fifo.messages.blocks import NEVER, Block, Stored
from fifo.messages.messages import PRIORITY
from fifo.messages.pages import Pages, decode_block, encode_block, page_data
from fifo.persistence.layouts import (
    BEGINNING,
    CONSUMER,
    CONSUMERS,
    ENDED,
    FENCES,
    GROUP,
    HAS_UNTOLD_LOSS,
    NUMBERS,
    OWNER,
    PRODUCERS,
    QUEUE,
)
from fifo.persistence.pins import read_pins, write_pins
from fifo.persistence.staging import decode_staging, encode_staging
from fifo.persistence.subscriptions import read_subscriptions, write_subscriptions
from fifo.persistence.transactions import read_transactions, write_transactions
from fifo.pins import QueuePin
from fifo.queue_machine import QueueMachine
from fifo.staging import Staging
from fifo.subscriptions import Subscription
from fifo.versions import check_version

MAGIC = b"QFIFO"
FORMAT = 4
FORMATS = (3, 4)
"""The formats that are read."""


def encode(group: GroupMachine) -> bytes:
    """The whole group. O(state); about 1 ms a million messages published in batches."""
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
        machine = group.queues[queue]
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
    """The sections, to be read one after the other as blobs. Raises ValueError if it is no snapshot of a known
    format."""
    source = Held(data) if isinstance(data, bytes | memoryview) else data
    reader = Sections(source, limits.source_bytes)
    if not is_snapshot(reader.take(min(len(MAGIC), reader.left))):
        raise ValueError("reading a snapshot of a group: it does not begin like one")
    found = reader.number()
    if found not in FORMATS:
        raise ValueError(f"reading a snapshot of a group: its format is {found}; known: {FORMATS}")
    return reader


def state_hash(group: GroupMachine) -> bytes:
    """SHA-256 of the snapshot: 32 bytes."""
    return hashlib.sha256(encode(group)).digest()


def decode(
    data: bytes | memoryview | Source,
    field_source: FieldSource,
    pages: Pages | None = None,
    limits: Limits = PRODUCTION,
) -> GroupMachine:
    """The group of a snapshot; all its blocks are warm. Raises ValueError if it is no snapshot of a known format."""
    group = GroupMachine(field_source, pages, limits)
    reader = open_sections(data, limits)
    queue_count = read_group_head(reader.blob(), group)
    for _ in range(queue_count):
        machine, block_count = read_queue_head(reader.blob(), group)
        group.queues[machine.queue] = machine
        for _ in range(block_count):
            add_block(machine, decode_block(Reader(reader.blob()), group.limits.block_size))
        group.note_expiry(machine)
    group.transactions.restore()
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
    write_transactions(out, group)
    return out.data


def beginning(head: bytes) -> tuple[int, int]:
    """(machine version, number of queues) of a group's head."""
    reader = Reader(head)
    version: int = BEGINNING.read_fields(reader)["version"]
    return version, reader.number()


def read_group_head(head: bytes, group: GroupMachine) -> int:
    """Returns the number of queues."""
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
    if not is_format_3:
        FENCES.read_into(reader, sessions.fences)
    if not reader.is_at_end():
        read_transactions(reader, group)
    return queue_count


# ---- queue


def queue_head(machine: QueueMachine, version: int) -> bytearray:
    """version: the group's, which says what fields its records have."""
    out = Writer(version)
    out.number(machine.queue)
    out.number(len(machine.messages.blocks))
    out.blob(encode_staging(machine.staging, version))
    CONFIG.write(out, machine.messages.config)
    QUEUE.write(out, machine)
    CONSUMERS.write(out, machine.consumers.values())
    places = {key: place for place, key in enumerate(machine.consumers)}
    groups = machine.groups
    out.number(len(groups.by_selector))
    for group in groups.by_selector.values():
        out.blob(group.selector)
        out.number(groups.shared.encode(group.scan_position))
        NUMBERS.write(out, [places[key] for key in group.eligible])
    group_places = {selector: place for place, selector in enumerate(groups.by_selector)}
    NUMBERS.write(out, [group_places[selector] for selector in groups.service_queue])
    NUMBERS.write(out, [places[key] for key in groups.draining])
    write_subscriptions(out, machine.subscriptions)
    write_pins(out, machine.pins)
    HAS_UNTOLD_LOSS.write_each(out, machine.subscriptions.by_name.values())
    OWNER.write_each(out, _owned(machine))
    return out.data


def _owned(machine: QueueMachine) -> list[Subscription | QueuePin]:
    """The subscriptions and pins, which have owners of their own."""
    subscriptions, pins = machine.subscriptions, machine.pins
    return [*subscriptions.by_name.values(), *subscriptions.deleted, *pins.by_number.values(), *pins.ended]


def staged_in(head: bytes, version: int) -> tuple[int, Staging]:
    """(number of blocks, staged parts, read-only) of a queue, from the beginning of its head. version: the group's."""
    reader = Reader(head)
    reader.number()
    return reader.number(), decode_staging(reader.blob(), PRODUCTION, version)


def read_queue_head(head: bytes, group: GroupMachine) -> tuple[QueueMachine, int]:
    """Returns the queue without its blocks, and their number."""
    reader = Reader(head, group.version)
    queue = reader.number()
    block_count = reader.number()
    staging = decode_staging(reader.blob(), group.limits, group.version)
    machine = QueueMachine(queue, CONFIG.read(reader), group.field_source, group.memory)
    machine.staging = staging
    QUEUE.read_into(reader, machine)
    members = [_read_consumer(reader, group.limits) for _ in range(reader.number())]
    consumers = [consumer for consumer, _ in members]
    machine.consumers = {consumer.key: consumer for consumer in consumers}
    producers = group.sessions.producers
    for consumer in consumers:
        consumer.owner = producers[consumer.producer].owner
        machine.owned.add(consumer.owner)
    for (producer, _), parts in staging.embargo.parts.items():
        for part in parts:
            if isinstance(part, EmbargoedSettlement):
                machine.consumers[producer, part.consumer_tag].embargo(part.tags)
    groups = machine.groups
    found = []
    for _ in range(reader.number()):
        selector_group = groups.add(reader.blob())
        groups.shared.decode(selector_group, reader.number())
        for place in NUMBERS.read(reader):
            selector_group.eligible[consumers[place].key] = consumers[place]
        groups.eligible_count += len(selector_group.eligible)
        found.append(selector_group)
    for place in NUMBERS.read(reader):
        groups.enqueue_group(found[place])
    for place in NUMBERS.read(reader):
        groups.draining[consumers[place].key] = consumers[place]
    for consumer, selector in members:
        if selector is not None:
            consumer.group = groups.by_selector[selector]
            consumer.group.size += 1
    read_subscriptions(reader, machine.subscriptions, groups, group.limits)
    read_pins(reader, machine.pins)
    HAS_UNTOLD_LOSS.read_each(reader, machine.subscriptions.by_name.values())
    OWNER.read_each(reader, _owned(machine))
    return machine, block_count


def _read_consumer(reader: Reader, limits: Limits) -> tuple[Consumer, bytes | None]:
    found = CONSUMER.read_fields(reader)
    selector = found.pop("selector")
    return Consumer(group=None, max_checked_out=limits.max_checked_out, **found), selector


def add_block(machine: QueueMachine, block: Block | Stored) -> None:
    """Adds a block of a snapshot or checkpoint to its queue."""
    machine.messages.blocks.add(block)
    ready = block.ready_count
    machine.messages.ready_count += ready
    machine.messages.checked_out_count += block.checked_out_count
    if ready:
        machine.messages.index.add((PRIORITY, block.number))
    if block.earliest != NEVER:
        machine.messages.expiries.add((block.earliest, block.number))
