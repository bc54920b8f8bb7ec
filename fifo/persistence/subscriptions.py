"""Durable subscriptions as bytes: a part of a queue's head in snapshots and checkpoints."""

from __future__ import annotations

from fifo.codec import Reader, Writer
from fifo.commands import Address
from fifo.consumers.consumer import Consumer
from fifo.consumers.selector_groups import SelectorGroups
from fifo.limits import Limits
from fifo.persistence.layouts import SUBSCRIPTION, SUBSCRIPTIONS
from fifo.subscriptions import Subscription, Subscriptions


def write_subscriptions(out: Writer, subscriptions: Subscriptions) -> None:
    out.number(subscriptions.past_generation)
    out.number(len(subscriptions.by_name))
    for subscription in subscriptions.by_name.values():
        SUBSCRIPTION.write(out, subscription)
        out.blob(subscription.selector)
    SUBSCRIPTIONS.write(out, subscriptions.deleted)


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


def _read(data: Reader, limits: Limits) -> Subscription:
    found = SUBSCRIPTION.read_fields(data)
    consumer = Consumer(b"", found.pop("consumer.tag"), Address(0, 0, 0), 0, None, limits.max_checked_out)
    consumer.next_tag, consumer.checked_out = (
        found.pop("consumer.next_tag"),
        found.pop("consumer.checked_out"),
    )
    return Subscription(consumer, **found)
