"""The overflow of a full queue: with `drop_head` it drops its oldest ready messages.

`Messages.refuse_more` decides about `reject_publish`, when a batch arrives. `x-max-length` counts ready messages. Where
the specifications are silent: of the lowest priority, the lowest sequence is dropped first. (RabbitMQ drops the message
that would be delivered next: the most urgent one.)
"""

from __future__ import annotations

from fifo.budgets import Entry
from fifo.messages import bitsets
from fifo.messages.messages import Messages


def drop_head(messages: Messages, entry: Entry) -> bool:
    """Drops the oldest ready messages above `max_length`, those of the lowest priority first. False if the budget ended
    it."""
    limit = messages.config.max_length
    if limit < 0 or messages.config.overflow != "drop_head":
        return True
    left = entry.budget(messages.queue).left
    while messages.ready_count > limit:
        if not left.blocks:
            return False
        left.blocks -= 1
        block = messages.blocks.get(messages.order.last_wanted())
        least = messages.order.least_of(block)
        messages.drop(block, bitsets.lowest(least, messages.ready_count - limit), "maxlen")
    return True
