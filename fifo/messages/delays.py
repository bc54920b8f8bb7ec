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

from collections.abc import Sequence

import numpy as np

from fifo.budgets import Entry, Left
from fifo.messages import bitsets
from fifo.messages.blocks import Block
from fifo.messages.messages import Messages
from fifo.messages.runs import NEVER


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


def drop_next(messages: Messages, left: Left, count: int, size_bytes: int) -> None:
    """Drops the delayed messages that are due next: the first ones that are at least `count`, and have so many bytes.
    Of one time, those of the lowest block are first, then the lowest slots. It looks at one block, then at twice as
    many until their messages are enough, or the budget ends. There is a delayed message, and the budget has a block."""
    assert messages.delays is not None
    tree = messages.delays.tree
    most, width = min(left.blocks, len(tree)), 1
    while True:
        end = tree[width] if width < len(tree) else (NEVER, 0)
        blocks = [messages.blocks.get(number) for _, number in tree.islice(0, width)]
        chosen, is_enough = _due_next(blocks, end, count, size_bytes)
        if is_enough or width == most:
            break
        width = min(2 * width, most)
    left.blocks -= width
    for block, members in zip(blocks, chosen, strict=True):
        if members:
            messages.drop_delayed(block, members, "maxlen")


def _due_next(
    blocks: Sequence[Block], end: tuple[int, int], count: int, size_bytes: int
) -> tuple[list[int], bool]:
    """The messages of each block that are due next, and whether they are enough. end: the time and the block before
    which they are due, because another block has messages from there on."""
    parts, sizes = [], []
    for place, block in enumerate(blocks):
        assert block.dues is not None
        times, slots = block.dues.each(count if size_bytes <= 0 else None)
        width = np.searchsorted(times, end[0], side="right" if block.number < end[1] else "left")
        parts.append(np.stack((slots, np.full(len(slots), place), times))[:, :width])
        if size_bytes > 0:
            sizes.append(block.sizes_at(slots[:width]))
    found = np.concatenate(parts, axis=1)
    if size_bytes <= 0 and count < found.shape[1]:  # fewer have to be sorted
        found = found[:, found[2] <= np.partition(found[2], count - 1)[count - 1]]
    numbers = np.array([block.number for block in blocks])
    order = np.lexsort((found[0], numbers[found[1]], found[2]))
    enough = max(count, 0)
    if size_bytes > 0:
        sums = np.cumsum(np.concatenate(sizes)[order])
        enough = max(enough, int(np.searchsorted(sums, size_bytes)) + 1)
    slots, places, _ = found[:, order[:enough]]
    chosen = [
        bitsets.from_positions(slots[places == place], block.size) for place, block in enumerate(blocks)
    ]
    return chosen, enough <= len(order)
