"""A full queue. With `drop_head` it drops its oldest ready messages, with `reject_publish` it refuses new ones.

`x-max-length` counts ready and delayed messages, `x-max-length-bytes` the bytes of their bodies: the messages of one
run count alike, by the mean size of their batch. Under `reject_publish`, dead messages and those that prepared
transactions publish count as well.

`drop_head` drops messages when they have arrived. A message that alone is larger than the limit is dropped, too. Where
the specifications are silent: of the lowest priority, the lowest sequence is dropped first. (RabbitMQ drops the message
that would be delivered next: the most urgent one.) Delayed messages are dropped only if none is ready; then those that
are due next.
"""

from __future__ import annotations

from fifo.budgets import UNLIMITED, Entry
from fifo.effects import Refused
from fifo.messages import bitsets, delays
from fifo.messages.messages import Messages


def room(messages: Messages, size: int) -> int:
    """The number of messages of `size` bytes each that the queue accepts until it is full. UNLIMITED if it never
    refuses any. Dead messages count, so a target that takes nothing holds back those who publish."""
    config = messages.config
    if config.overflow != "reject_publish":
        return UNLIMITED
    found = UNLIMITED
    if config.max_length >= 0:
        found = config.max_length - messages.limited_count
    if config.max_length_bytes >= 0:
        left = config.max_length_bytes - messages.limited_bytes
        if size or left < 0:
            found = min(found, left // max(size, 1))
    return max(0, found)


def refuse_more(messages: Messages, count: int, size_bytes: int) -> Refused | None:
    """The refusal if `count` more messages, which have so many bytes together, do not fit; else None."""
    config = messages.config
    if config.overflow != "reject_publish":
        return None
    held, held_bytes = messages.limited_count, messages.limited_bytes
    places = "ready"
    if messages.delayed_count:
        places += " or delayed"
    if messages.dead.count:
        places += " or dead"
    if messages.reserved_count:
        places += " or part of a transaction"
    if 0 <= config.max_length < held + count:
        text = f"{held} messages are {places}, {held + count} would be; allowed: {config.max_length}"
    elif 0 <= config.max_length_bytes < held_bytes + size_bytes:
        text = (
            f"{held_bytes} bytes of messages are {places}, {held_bytes + size_bytes} would be; "
            f"allowed: {config.max_length_bytes}"
        )
    else:
        return None
    return Refused("queue_full", text)


def drop_head(messages: Messages, entry: Entry) -> bool:
    """Drops the oldest ready messages above `max_length` and `max_length_bytes`, those of the lowest priority first.
    False if the budget ended it."""
    config = messages.config
    if config.overflow != "drop_head" or max(config.max_length, config.max_length_bytes) < 0:
        return True
    left = entry.budget(messages.queue).left
    while True:
        count = messages.waiting_count - config.max_length if config.max_length >= 0 else 0
        size = messages.waiting_bytes - config.max_length_bytes if config.max_length_bytes >= 0 else 0
        if count <= 0 and size <= 0:
            return True
        if not left.blocks:
            return False
        if not messages.ready_count:
            delays.drop_next(messages, left, count, size)
            continue
        left.blocks -= 1
        block = messages.blocks.get(messages.order.last_wanted())
        least = messages.order.least_of(block)
        count = max(count, block.lowest_with(least, size))
        messages.drop(block, bitsets.lowest(least, count), "maxlen")
