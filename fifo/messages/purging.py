"""The purge of a queue: its ready, delayed and dead messages below a sequence are removed.

It takes a constant number of steps a block. A cold block is removed unread if all its messages are ready or dead, or
all are delayed, and no pin reaches into it.
"""

from __future__ import annotations

from collections.abc import Callable

from fifo.messages.blocks import Block
from fifo.messages.messages import Messages


def purge_end(messages: Messages, most_blocks: int, *, dead_only: bool) -> int:
    """The sequence before which a purge of at most this many blocks ends. dead_only: of dead messages only."""
    numbers: dict[int, None] = dict.fromkeys(messages.dead.numbers)
    if not dead_only:
        numbers.update(dict.fromkeys(messages.order.by_sequence.numbers))
        if messages.delays is not None:
            numbers.update((number, None) for _, number in messages.delays.tree)
    if len(numbers) <= most_blocks:
        return messages.next_sequence
    return sorted(numbers)[most_blocks] << messages.limits.block_bits


def purge(
    messages: Messages,
    before: int,
    is_pinned: Callable[[int], bool],
    cause: str = "purged",
    *,
    dead_only: bool = False,
) -> int:
    """Removes the ready, delayed and dead messages with a sequence below `before`, only the dead ones if `dead_only`.
    Returns their number. cause: of all but the dead ones, which are purged. is_pinned: whether a pin reaches into the
    block of this number."""
    before_count = messages.waiting_count + messages.dead.count
    _purge_ready_and_dead(messages, before, is_pinned, cause, dead_only=dead_only)
    if not dead_only:
        _purge_delayed(messages, before, is_pinned, cause)
    return before_count - messages.waiting_count - messages.dead.count


def _purge_ready_and_dead(
    messages: Messages, before: int, is_pinned: Callable[[int], bool], cause: str, *, dead_only: bool
) -> None:
    messages.dead.drop_claims(before)
    numbers = [] if dead_only else list(messages.order.by_sequence.numbers)
    if messages.dead.count:
        numbers = sorted({*numbers, *messages.dead.numbers})
    block_bits, block_size = messages.limits.block_bits, messages.limits.block_size
    for number in numbers:
        slots = min(before - (number << block_bits), block_size)
        if slots <= 0:
            continue
        found = messages.blocks.at(number)
        is_whole = slots == block_size and number != messages.tail and not is_pinned(number)
        is_all = found.live == (0 if dead_only else found.ready_count)
        if is_whole and is_all and not isinstance(found, Block):
            messages.forget(found, cause)
            continue
        block, below = messages.blocks.get(number), (1 << slots) - 1
        if not dead_only and block.ready & below:
            messages.drop(block, block.ready & below, cause)
        if block.deaths and block.dead & below:
            messages.drop_dead(block, block.dead & below, "purged")


def _purge_delayed(messages: Messages, before: int, is_pinned: Callable[[int], bool], cause: str) -> None:
    delays = messages.delays
    if delays is None:
        return
    block_bits, block_size = messages.limits.block_bits, messages.limits.block_size
    for _, number in sorted(delays.tree, key=lambda each: each[1]):
        slots = min(before - (number << block_bits), block_size)
        if slots <= 0:
            break
        found = messages.blocks.at(number)
        is_whole = slots == block_size and number != messages.tail and not is_pinned(number)
        has_delayed_only = found.live == found.delayed_count and not found.dead_count
        if is_whole and not isinstance(found, Block) and has_delayed_only:
            messages.forget(found, cause)
            continue
        block = messages.blocks.get(number)
        members = block.delayed & ((1 << slots) - 1)
        if members:
            messages.drop_delayed(block, members, cause)
