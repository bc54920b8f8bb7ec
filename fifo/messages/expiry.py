"""Ready messages whose time to live has ended.

`Messages.expiries` has one entry a block: no ready message of the block expires before that time. The time may be too
early, because the message has left since, and never too late; a wake-up then only finds the next time. Messages that
are checked out do not expire; their expiry is checked when they are requeued. In its own entry no message expires
before all consumers were asked.
"""

from __future__ import annotations

from fifo.budgets import Entry
from fifo.messages.blocks import Block
from fifo.messages.messages import Messages


def expire_block(messages: Messages, entry: Entry, block: Block, *, spares_new: bool) -> None:
    """Removes the expired messages of a block; those that came with this entry stay if `spares_new`. Costs one block of
    budget."""
    budget = entry.budget(messages.queue)
    budget.left.blocks -= 1
    budget.expired[block.number] = None
    gone = (messages.expired(entry, block) if spares_new else block.runs.expired(entry.now_ms)) & block.ready
    messages.set_earliest(block, block.runs.earliest(block.ready ^ gone))
    if gone:
        messages.drop(block, gone, "expired")


def remove_expired(messages: Messages, entry: Entry) -> None:
    """Removes the expired messages of the blocks that are due, the earliest first, as far as the budget allows."""
    expiries = messages.expiries
    if not expiries:
        return
    left = entry.budget(messages.queue).left
    while expiries and expiries[0][0] <= entry.now_ms and left.blocks:
        expire_block(messages, entry, messages.blocks.get(expiries[0][1]), spares_new=False)
