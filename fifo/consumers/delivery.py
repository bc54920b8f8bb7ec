"""The delivery of one consumer in one entry, and the handing out of the next ready messages."""

from __future__ import annotations

from fifo.budgets import UNLIMITED, Entry, Left
from fifo.consumers.consumer import Consumer
from fifo.effects import Deliver, Run
from fifo.messages import bitsets, expiry
from fifo.messages.blocks import Block
from fifo.messages.messages import Messages


class Delivery:
    """Gathers the messages that one consumer gets in one entry, for one effect."""

    __slots__ = (
        "again",
        "consumer",
        "count",
        "failures",
        "first_tag",
        "opens",
        "queue",
        "redelivered",
        "runs",
    )

    start = 0
    """the first sequence that is wanted"""
    is_full = False
    """no more messages are taken, although more were wanted"""
    is_by_sequence = False
    """it takes the lowest sequence first, whatever the queue's order is"""

    def __init__(self, consumer: Consumer, queue: int, first_tag: int = 0) -> None:
        self.consumer = consumer
        self.queue = queue
        self.first_tag = first_tag or consumer.next_tag
        self.count = 0
        self.opens = UNLIMITED  # heads of message groups that it may be given and does not hold yet
        self.again = 0  # of these, messages that were handed out before
        self.runs: list[Run] = []
        self.redelivered = 0
        self.failures: list[tuple[int, int]] = []

    def asked(self, block: Block) -> int:
        """The slots of a block from `start` on."""
        return -1 << (self.start - block.base) if self.start > block.base else -1

    def within(self, left: Left, block: Block, members: int, wanted: int) -> int:
        """The lowest of these messages of a block, at most `wanted`, as far as the limit for runs allows."""
        return members if wanted <= left.runs else block.within_runs(members, left.runs)

    def choose(self, block: Block, members: int, wanted: int) -> int:
        """The messages of these in a block that it takes, at most `wanted`."""
        return bitsets.lowest(members, wanted)

    def describe(self, block: Block, members: int) -> list[tuple[int, int]]:
        """Appends these messages of a block. Returns their stretches (slot, count)."""
        stretches = bitsets.ranges(members)
        again = block.redelivered & members
        self.again += again.bit_count()
        failed = block.failures.nonzero() & members if again else 0
        for slot, count in stretches:
            block.runs.clip(block.base, slot, count, self.runs)
            if again:
                here = (1 << count) - 1
                self.redelivered |= ((again >> slot) & here) << self.count
                if failed:
                    for position in bitsets.members((failed >> slot) & here):
                        self.failures.append((self.count + position, block.failures.value(slot + position)))
            self.count += count
        return stretches

    def take(self, messages: Messages, block: Block, members: int, count: int) -> int:
        """Hands these ready messages of a block to the consumer. Returns the number of runs."""
        before = len(self.runs)
        consumer = self.consumer
        messages.check_out(block, members, count)
        tag = consumer.next_tag
        for slot, width in self.describe(block, members):
            consumer.checked_out.add(tag, block.base + slot, width)
            tag += width
        consumer.next_tag = tag
        return len(self.runs) - before

    def effect(self, settled: bool = False) -> Deliver:
        consumer = self.consumer
        return Deliver(
            consumer.address,
            self.queue,
            consumer.tag,
            consumer.attach,
            self.first_tag,
            tuple(self.runs),
            self.redelivered,
            tuple(self.failures),
            settled,
        )


def take_first(messages: Messages, entry: Entry, delivery: Delivery, wanted: int) -> tuple[int, bool]:
    """Hands out up to `wanted` of the next ready messages, without a selector.

    Returns the number of messages, and False if the budget ended it.
    """
    budget = entry.budget(messages.queue)
    order = messages.order.by_sequence if delivery.is_by_sequence else messages.order
    taken = 0
    start = delivery.start >> entry.limits.block_bits
    while taken < wanted and not delivery.is_full:
        if not budget.left.runs:
            return taken, False
        number = order.first(start)
        if number is None:
            break
        block = messages.blocks.get(number)
        if not block.ready & delivery.asked(block):
            start = number + 1
            continue
        if block.earliest <= entry.now_ms and block.number not in budget.expired:
            if not budget.left.blocks:
                return taken, False
            expiry.expire_block(messages, entry, block, spares_new=True)
            continue
        taken += take_some(messages, delivery, budget.left, block, order.next_of(block), wanted - taken)
    return taken, True


def take_some(
    messages: Messages, delivery: Delivery, left: Left, block: Block, members: int, wanted: int
) -> int:
    """Hands out the wanted ones of some ready messages of a block, as far as the limit for runs allows. Returns the
    number of messages."""
    members = delivery.within(left, block, members & delivery.asked(block), wanted)
    members = delivery.choose(block, members, wanted)
    count = members.bit_count()
    if count:
        left.runs -= delivery.take(messages, block, members, count)
    return count
