"""A group as canonical bytes and back: equal states give equal bytes, on every member.

Format 4: a magic word, the format number, then sections, each after its length. The sections are the group's head, and
for each queue, in the order of ids, its head and its blocks in the order of their numbers. A snapshot has no bodies, no
local state (columns, match sets), and nothing that follows from the rest (the two trees, sums, the consumers of a
session).

Which fields a record has follows from the group's version, which stands in its head (fifo/layouts.py). So members of
older builds can read a snapshot until the group has switched to a version that they do not know.

Format 3 is read, too. Its group's head ends before the producers' owners and the fences, and its queues' heads before
the owners of subscriptions and pins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from fifo.codec import Held, Reader, Sections, Source, Writer
from fifo.commands import UNKNOWN, Address
from fifo.consumers.consumer import Consumer
from fifo.consumers.filter_fields import FieldSource
from fifo.group_machine import GroupMachine
from fifo.layouts import CONFIG, FENCE
from fifo.limits import PRODUCTION, Limits
from fifo.messages.blocks import NEVER, Block, Stored
from fifo.messages.messages import COUNTED, PRIORITY
from fifo.messages.pages import Pages, decode_block, encode_block, page_data
from fifo.persistence.pins import read_pins, write_pins
from fifo.persistence.subscriptions import read_losses, read_subscriptions, write_losses, write_subscriptions
from fifo.pins import QueuePin
from fifo.producers import Producer
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
    queue_count = read_group_head(Reader(reader.blob()), group)
    for _ in range(queue_count):
        machine, block_count = read_queue_head(Reader(reader.blob()), group)
        group.queues[machine.queue] = machine
        for _ in range(block_count):
            add_block(machine, decode_block(Reader(reader.blob()), group.limits.block_size))
        group.note_expiry(machine)
    if not reader.is_at_end():
        raise ValueError(f"reading a snapshot of a group: {reader.left} bytes too many")
    return group


# ---- group


def group_head(group: GroupMachine) -> bytearray:
    out = Writer()
    for value in (group.index, group.now_ms, group.version, group.running_hash, len(group.queues)):
        out.number(value)
    out.number(group.configured)
    out.column(group.deleted)
    out.number(len(group.backlog))
    for queue in group.backlog:
        out.number(queue)
    sessions = group.sessions
    out.number(len(sessions.departed))
    for node in sorted(sessions.departed):
        out.number(node)
        out.number(sessions.departed[node])
    out.number(len(sessions.departing))
    for node in sorted(sessions.departing):
        out.number(node)
    out.number(len(sessions.producers))
    for producer in sessions.producers.values():
        _producer(out, producer)
    out.number(len(sessions.ended))
    for name in sessions.ended:
        out.blob(name)
    for producer in sessions.producers.values():
        out.number(producer.owner)
    out.number(len(sessions.fences.by_name))
    for name, fence in sessions.fences.by_name.items():
        out.blob(name)
        FENCE.write(out, fence, group.version)
    out.signed(sessions.fences.lost_ms)
    return out.data


def read_group_head(reader: Reader, group: GroupMachine) -> int:
    group.index = reader.number()
    group.now_ms = reader.number()
    group.version = reader.number()
    check_version("the group's state", group.version, group.limits.newest_version)
    group.running_hash = reader.number()
    queue_count = reader.number()
    group.configured = reader.number()
    group.deleted = reader.column("Q")
    group.backlog = {reader.number(): None for _ in range(reader.number())}
    sessions = group.sessions
    for _ in range(reader.number()):
        node = reader.number()
        sessions.departed[node] = reader.number()
    sessions.departing = {reader.number(): None for _ in range(reader.number())}
    producers = [_read_producer(reader) for _ in range(reader.number())]
    sessions.ended = {reader.blob(): None for _ in range(reader.number())}
    is_format_3 = reader.is_at_end()
    for producer in producers:
        producer.owner = UNKNOWN if is_format_3 else reader.number()
        sessions.add(producer)
    for _ in range(0 if is_format_3 else reader.number()):
        name = reader.blob()
        sessions.fences.by_name[name] = FENCE.read(reader, group.version)
    if not is_format_3:
        sessions.fences.lost_ms = reader.signed()
    return queue_count


def _producer(out: Writer, producer: Producer) -> None:
    out.blob(producer.name)
    address = producer.address
    for value in (
        producer.epoch,
        address.node,
        address.boot,
        address.session,
        producer.last_n,
        producer.floor,
    ):
        out.number(value)
    out.signed(producer.ended_ms)
    out.number(len(producer.accepted))
    for first, last in producer.accepted:
        out.number(first)
        out.number(last)
    out.number(len(producer.consumers))
    for queue, tag in producer.consumers:
        out.number(queue)
        out.text(tag)


def _read_producer(reader: Reader) -> Producer:
    name = reader.blob()
    epoch = reader.number()
    address = Address(reader.number(), reader.number(), reader.number())
    producer = Producer(name, epoch, address, last_n=reader.number(), floor=reader.number())
    producer.ended_ms = reader.signed()
    producer.accepted = [(reader.number(), reader.number()) for _ in range(reader.number())]
    producer.consumers = {(reader.number(), reader.text()): None for _ in range(reader.number())}
    return producer


# ---- queue


def queue_head(machine: QueueMachine, version: int) -> bytearray:
    """version: the group's, which says what fields its records have."""
    out = Writer()
    out.number(machine.queue)
    out.number(len(machine.messages.blocks))
    out.blob(machine.staging.encode())
    CONFIG.write(out, machine.messages.config, version)
    out.number(machine.messages.next_sequence)
    out.number(machine.next_attach)
    out.number(machine.unfinished)
    for reason in COUNTED:
        out.number(machine.messages.dropped[reason])
    places = {key: place for place, key in enumerate(machine.consumers)}
    out.number(len(places))
    for consumer in machine.consumers.values():
        _consumer(out, consumer)
    groups = machine.groups
    group_places = {selector: place for place, selector in enumerate(groups.by_selector)}
    out.number(len(group_places))
    for group in groups.by_selector.values():
        out.blob(group.selector)
        out.number(groups.shared.encode(group.scan_position))
        out.number(len(group.eligible))
        for key in group.eligible:
            out.number(places[key])
    out.number(len(groups.service_queue))
    for selector in groups.service_queue:
        out.number(group_places[selector])
    out.number(len(groups.draining))
    for key in groups.draining:
        out.number(places[key])
    write_subscriptions(out, machine.subscriptions)
    write_pins(out, machine.pins)
    write_losses(out, machine.subscriptions)
    for each in _owned(machine):
        out.number(each.owner)
    return out.data


def _owned(machine: QueueMachine) -> list[Subscription | QueuePin]:
    """The subscriptions and pins, which have owners of their own."""
    subscriptions, pins = machine.subscriptions, machine.pins
    return [*subscriptions.by_name.values(), *subscriptions.deleted, *pins.by_number.values(), *pins.ended]


def staged_in(head: Reader) -> tuple[int, Staging]:
    """(number of blocks, staged parts, read-only) of a queue, from the beginning of its head."""
    head.number()
    return head.number(), Staging.decode(head.blob(), PRODUCTION)


def _consumer(out: Writer, consumer: Consumer) -> None:
    out.blob(consumer.producer)
    out.text(consumer.tag)
    address = consumer.address
    for value in (address.node, address.boot, address.session, consumer.attach, consumer.credit_to):
        out.number(value)
    out.number(consumer.next_tag)
    out.number(consumer.group is not None)
    if consumer.group is not None:
        out.blob(consumer.group.selector)
    out.column(consumer.held.tags)
    out.column(consumer.held.sequences)
    out.column(consumer.held.counts)


def read_queue_head(reader: Reader, group: GroupMachine) -> tuple[QueueMachine, int]:
    queue = reader.number()
    block_count = reader.number()
    staging = Staging.decode(reader.blob(), group.limits)
    machine = QueueMachine(queue, CONFIG.read(reader, group.version), group.field_source, group.memory)
    machine.staging = staging
    machine.messages.next_sequence = reader.number()
    machine.next_attach = reader.number()
    machine.unfinished = bool(reader.number())
    machine.messages.dropped = {reason: reader.number() for reason in COUNTED}
    members = [_read_consumer(reader, group.limits) for _ in range(reader.number())]
    consumers = [consumer for consumer, _ in members]
    machine.consumers = {consumer.key: consumer for consumer in consumers}
    producers = group.sessions.producers
    for consumer in consumers:
        consumer.owner = producers[consumer.producer].owner
        machine.owned.add(consumer.owner)
    groups = machine.groups
    found = []
    for _ in range(reader.number()):
        selector_group = groups.add(reader.blob())
        groups.shared.decode(selector_group, reader.number())
        for _ in range(reader.number()):
            consumer = consumers[reader.number()]
            selector_group.eligible[consumer.key] = consumer
        groups.eligible_count += len(selector_group.eligible)
        found.append(selector_group)
    for _ in range(reader.number()):
        selector_group = found[reader.number()]
        groups.enqueue_group(selector_group)
    for _ in range(reader.number()):
        consumer = consumers[reader.number()]
        groups.draining[consumer.key] = consumer
    for consumer, selector in members:
        if selector is not None:
            consumer.group = groups.by_selector[selector]
            consumer.group.size += 1
    read_subscriptions(reader, machine.subscriptions, groups, group.limits)
    read_pins(reader, machine.pins)
    read_losses(reader, machine.subscriptions)
    if not reader.is_at_end():
        for each in _owned(machine):
            each.owner = reader.number()
    return machine, block_count


def _read_consumer(reader: Reader, limits: Limits) -> tuple[Consumer, bytes | None]:
    producer = reader.blob()
    tag = reader.text()
    address = Address(reader.number(), reader.number(), reader.number())
    consumer = Consumer(producer, tag, address, reader.number(), None, limits.max_held, reader.number())
    consumer.next_tag = reader.number()
    selector = reader.blob() if reader.number() else None
    held = consumer.held
    held.tags = reader.column("Q")
    held.sequences = reader.column("Q")
    held.counts = reader.column("I")
    held.total = sum(held.counts)
    return consumer, selector


def add_block(machine: QueueMachine, block: Block | Stored) -> None:
    """Adds a block of a snapshot or checkpoint to its queue."""
    machine.messages.blocks.add(block)
    ready = block.ready_count
    machine.messages.ready_count += ready
    machine.messages.held_count += block.held_count
    if ready:
        machine.messages.index.add((PRIORITY, block.number))
    if block.earliest != NEVER:
        machine.messages.expiries.add((block.earliest, block.number))
