"""Delayed messages: those that are in the queue and become ready at a time.

A message is delayed
- when it is published with a delay or a delivery time that has not come;
- when it is requeued, for whatever cause, in a queue with `x-delayed-retry-min`.

It has its sequence and priority from its publish on, and is ready at its place by them when its time has come. It is
not handed out, reserved, or pinned before. Selectors are evaluated for it when it arrives, as for any message, so
becoming ready evaluates nothing.

Times are group time, and compared with that of the entry, which never goes back. So a message is never ready before its
time, whichever member leads. `QueueMachine.next_expiry` has the earliest due time, and so an entry comes when it is
due. An entry makes messages ready in `Limits.block_budget` blocks, the earliest first; the next entry continues.

A message does not expire while it is delayed. The time to live of a message that is published with a delay begins when
it is due, because it is the time that consumers have to take it. The time to live of a requeued message continues,
and a message that has expired meanwhile leaves the queue when it is due.
"""

from __future__ import annotations

from collections.abc import Callable

from fifo.budgets import Entry
from fifo.messages import bitsets
from fifo.messages.blocks import NEVER, Block
from fifo.messages.messages import Messages


def next_due(messages: Messages) -> int:
    """The group time at which the next message becomes ready; NEVER if none is delayed."""
    delays = messages.delays
    return NEVER if delays is None or not delays.tree else delays.tree[0][0]


def end_delays(messages: Messages, entry: Entry) -> None:
    """Makes messages ready whose time has come, as far as the budget allows."""
    delays = messages.delays
    if delays is None:
        return
    left = entry.budget(messages.queue).left
    while delays.tree and delays.tree[0][0] <= entry.now_ms and left.due < entry.limits.block_budget:
        left.due += 1
        messages.end_delay(entry, messages.blocks.get(delays.tree[0][1]))


def drop_next(messages: Messages, count: int, size_bytes: int) -> None:
    """Drops the delayed messages of one block that are due first, all at the same time: `count`, or as many as have so
    many bytes. There is a delayed message."""
    assert messages.delays is not None
    due_ms, number = messages.delays.tree[0]
    block = messages.blocks.get(number)
    assert block.dues is not None
    members = block.dues.due(due_ms)
    count = max(count, block.lowest_with(members, size_bytes))
    messages.drop_delayed(block, bitsets.lowest(members, count), "maxlen")


def purge(messages: Messages, before: int, is_pinned: Callable[[int], bool], cause: str) -> int:
    """Removes delayed messages with a sequence below `before`, after `Messages.purge`. Returns their number. It takes a
    constant number of steps a block. A cold block with delayed messages only is not read, unless a pin reaches into
    it."""
    delays = messages.delays
    if delays is None:
        return 0
    was_delayed = delays.count
    block_bits, block_size = messages.limits.block_bits, messages.limits.block_size
    for _, number in sorted(delays.tree, key=lambda each: each[1]):
        slots = min(before - (number << block_bits), block_size)
        if slots <= 0:
            break
        found = messages.blocks.at(number)
        is_whole = slots == block_size and number != messages.tail and not is_pinned(number)
        has_delayed_only = found.live == found.delayed_count and not found.dead_count
        if is_whole and not isinstance(found, Block) and has_delayed_only:
            messages.forget_delayed(found, cause)
            continue
        block = messages.blocks.get(number)
        members = block.delayed & ((1 << slots) - 1)
        if members:
            messages.drop_delayed(block, members, cause)
    return was_delayed - delays.count
