"""Durable readers as bytes: a part of a queue's head in snapshots and checkpoints."""

from __future__ import annotations

from fifo.codec import Reader, Writer
from fifo.commands import Address
from fifo.consumers.consumer import Consumer
from fifo.consumers.selector_groups import SelectorGroups
from fifo.limits import Limits
from fifo.subscriptions import ON_EXPIRY, Disposition, DurableReader, Readers, Reservation


def write_readers(out: Writer, readers: Readers) -> None:
    out.number(readers.past_generation)
    out.number(len(readers.by_name))
    for reader in readers.by_name.values():
        _write(out, reader)
        out.blob(reader.selector)
    out.number(len(readers.deleted))
    for reader in readers.deleted:
        _write(out, reader)


def write_losses(out: Writer, readers: Readers) -> None:
    """At the end of a queue's head: which readers have lost what they held, and do not know it."""
    for reader in readers.by_name.values():
        out.number(reader.has_untold_loss)


def read_losses(data: Reader, readers: Readers) -> None:
    """A head of the first release ends before."""
    for reader in readers.by_name.values() if not data.is_at_end() else ():
        reader.has_untold_loss = bool(data.number())


def read_readers(data: Reader, readers: Readers, groups: SelectorGroups, limits: Limits) -> None:
    """Fills the readers of a queue whose selector groups are there."""
    readers.past_generation = data.number()
    for _ in range(data.number()):
        reader = _read(data, limits)
        readers.by_name[reader.name] = reader
        group = reader.consumer.group = groups.by_selector[data.blob()]
        group.size += 1
    readers.deleted = [_read(data, limits) for _ in range(data.number())]


def _write(out: Writer, reader: DurableReader) -> None:
    consumer = reader.consumer
    out.text(consumer.tag)
    for value in (
        reader.generation,
        reader.start_sequence,
        reader.timeout_ms,
        ON_EXPIRY.index(reader.on_expiry),
        reader.last_seen_ms,
        reader.settled,
        reader.last,
        consumer.next_tag,
    ):
        out.number(value)
    held = consumer.held
    for column in (held.tags, held.sequences, held.counts):
        out.column(column)
    out.number(len(reader.reservations))
    for each in reader.reservations:
        for value in (
            each.offset,
            each.first_tag,
            each.count,
            each.size_bytes,
            each.index,
            each.time_ms,
            each.is_complete,
            each.opens,
            each.disposition,
        ):
            out.number(value)
    out.number(len(reader.released))
    for first, last in reader.released:
        out.number(first)
        out.number(last)


def _read(data: Reader, limits: Limits) -> DurableReader:
    consumer = Consumer(b"", data.text(), Address(0, 0, 0), 0, None, limits.max_held)
    reader = DurableReader(consumer, data.number(), data.number(), data.number())
    reader.on_expiry = ON_EXPIRY[data.number()]
    reader.last_seen_ms = data.number()
    reader.settled = data.number()
    reader.last = data.number()
    consumer.next_tag = data.number()
    held = consumer.held
    held.tags = data.column("Q")
    held.sequences = data.column("Q")
    held.counts = data.column("I")
    held.total = sum(held.counts)
    for _ in range(data.number()):
        offset, first_tag, count, size_bytes, index, time_ms = [data.number() for _ in range(6)]
        made = Reservation(offset, first_tag, count, size_bytes, index, time_ms, bool(data.number()))
        made.opens, made.disposition = data.number(), Disposition(data.number())
        reader.reservations.append(made)
    reader.released = [(data.number(), data.number()) for _ in range(data.number())]
    return reader
