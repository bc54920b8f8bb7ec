"""Durable subscriptions as bytes: a part of a queue's head in snapshots and checkpoints."""

from __future__ import annotations

from fifo.codec import Reader, Writer
from fifo.commands import ON_EXPIRY, Address
from fifo.consumers.consumer import Consumer
from fifo.consumers.selector_groups import SelectorGroups
from fifo.limits import Limits
from fifo.subscriptions import Disposition, Reservation, Subscription, Subscriptions


def write_subscriptions(out: Writer, subscriptions: Subscriptions) -> None:
    out.number(subscriptions.past_generation)
    out.number(len(subscriptions.by_name))
    for subscription in subscriptions.by_name.values():
        _write(out, subscription)
        out.blob(subscription.selector)
    out.number(len(subscriptions.deleted))
    for subscription in subscriptions.deleted:
        _write(out, subscription)


def write_losses(out: Writer, subscriptions: Subscriptions) -> None:
    """Writes, at the end of a queue's head, which subscriptions have lost their messages and do not know it."""
    for subscription in subscriptions.by_name.values():
        out.number(subscription.has_untold_loss)


def read_losses(data: Reader, subscriptions: Subscriptions) -> None:
    """Reads what `write_losses` wrote. A head of the first release ends before it."""
    for subscription in subscriptions.by_name.values() if not data.is_at_end() else ():
        subscription.has_untold_loss = bool(data.number())


def read_subscriptions(
    data: Reader, subscriptions: Subscriptions, groups: SelectorGroups, limits: Limits
) -> None:
    """Reads the subscriptions of a queue whose selector groups have been read."""
    subscriptions.past_generation = data.number()
    for _ in range(data.number()):
        subscription = _read(data, limits)
        subscriptions.by_name[subscription.name] = subscription
        group = subscription.consumer.group = groups.by_selector[data.blob()]
        group.size += 1
    subscriptions.deleted = [_read(data, limits) for _ in range(data.number())]


def _write(out: Writer, subscription: Subscription) -> None:
    consumer = subscription.consumer
    out.text(consumer.tag)
    for value in (
        subscription.generation,
        subscription.start_sequence,
        subscription.timeout_ms,
        ON_EXPIRY.index(subscription.on_expiry),
        subscription.last_seen_ms,
        subscription.settled,
        subscription.last,
        consumer.next_tag,
    ):
        out.number(value)
    held = consumer.held
    for column in (held.tags, held.sequences, held.counts):
        out.column(column)
    out.number(len(subscription.reservations))
    for each in subscription.reservations:
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
    out.number(len(subscription.released))
    for first, last in subscription.released:
        out.number(first)
        out.number(last)


def _read(data: Reader, limits: Limits) -> Subscription:
    consumer = Consumer(b"", data.text(), Address(0, 0, 0), 0, None, limits.max_held)
    subscription = Subscription(consumer, data.number(), data.number(), data.number())
    subscription.on_expiry = ON_EXPIRY[data.number()]
    subscription.last_seen_ms = data.number()
    subscription.settled = data.number()
    subscription.last = data.number()
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
        subscription.reservations.append(made)
    subscription.released = [(data.number(), data.number()) for _ in range(data.number())]
    return subscription
