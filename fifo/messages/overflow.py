"""The overflow of a full queue: with `drop_head` it drops its oldest ready messages.

`Messages.refuse_more` decides about `reject_publish`, when a batch arrives. `x-max-length` counts ready and delayed
messages, `x-max-length-bytes` the bytes of their bodies: the messages of one run count alike, by the mean size of their
batch. A message that alone is larger than the limit is dropped, too. Where the specifications are silent: of the lowest
priority, the lowest sequence is dropped first. (RabbitMQ drops the message that would be delivered next: the most
urgent one.) Delayed messages are dropped only if none is ready; then those that are due next.
"""

from __future__ import annotations

from fifo.budgets import Entry
from fifo.messages import bitsets, delays
from fifo.messages.messages import Messages


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
