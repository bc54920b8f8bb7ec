"""Who is served next.

Groups with a consumer that has credit take turns, and inside a group its consumers with credit do. A turn gives one
consumer the lowest ready messages that its group selects: as many as its credit allows, but at most an even share of
what was ready when the checkout began, and at most 1,024, so that a large batch is spread over all who wait. A
consumer that is alone takes all its turns at once. After a turn that gave something, the group and the consumer go to
the end of their lines; a group that finds nothing keeps its place. Who found all there is for it is not asked again.

A checkout ends when nobody with credit can be given anything, or with its budget; then it goes on in a later entry.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from fifo import bits, expiry
from fifo.blocks import Block
from fifo.effects import Deliver, Run
from fifo.state import PRIORITY, UNLIMITED, Consumer, Entry, Left

if TYPE_CHECKING:
    from fifo.machine import QueueMachine


class Delivery:
    """Gathers what one consumer gets in one entry, to make one effect of it."""

    __slots__ = ("consumer", "count", "failures", "first_tag", "queue", "redelivered", "runs")

    start = 0
    """the first sequence that is asked for"""
    is_full = False
    """nothing more is taken, though more was wanted"""

    def __init__(self, consumer: Consumer, queue: int, first_tag: int = 0) -> None:
        self.consumer = consumer
        self.queue = queue
        self.first_tag = first_tag or consumer.next_tag
        self.count = 0
        self.runs: list[Run] = []
        self.redelivered = 0
        self.failures: list[tuple[int, int]] = []

    def asked(self, block: Block) -> int:
        """The slots of a block from `start` on."""
        return -1 << (self.start - block.base) if self.start > block.base else -1

    def within(self, left: Left, block: Block, members: int, wanted: int) -> int:
        """The lowest of these messages of a block that the limit for runs allows, if only so many are wanted."""
        if min(wanted, members.bit_count()) <= left.runs:
            return members
        if bits.starts(members).bit_count() + len(block.runs) <= left.runs:
            return members
        starts = bits.starts(members) | (members & block.runs.starts())
        beyond = starts ^ bits.lowest(starts, left.runs)
        return members & ((beyond & -beyond) - 1) if beyond else members

    def choose(self, block: Block, members: int, wanted: int) -> int:
        """Which of these messages of a block it takes, `wanted` at most."""
        return bits.lowest(members, wanted)

    def describe(self, block: Block, members: int) -> list[tuple[int, int]]:
        """Appends these messages of a block; their stretches (slot, count)."""
        stretches = bits.ranges(members)
        again = block.redelivered & members
        failed = block.failures.nonzero() & members if again else 0
        for slot, count in stretches:
            block.runs.clip(block.base, slot, count, self.runs)
            if again:
                here = (1 << count) - 1
                self.redelivered |= ((again >> slot) & here) << self.count
                if failed:
                    for position in bits.members((failed >> slot) & here):
                        self.failures.append((self.count + position, block.failures.value(slot + position)))
            self.count += count
        return stretches

    def take(self, machine: QueueMachine, block: Block, members: int, count: int) -> int:
        """Hands these ready messages of a block to the consumer; how many runs they are."""
        before = len(self.runs)
        consumer = self.consumer
        machine.hold(block, members, count)
        tag = consumer.next_tag
        for slot, width in self.describe(block, members):
            consumer.held.add(tag, block.base + slot, width)
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


def take_first(machine: QueueMachine, entry: Entry, delivery: Delivery, wanted: int) -> tuple[int, bool]:
    """Hands out up to `wanted` of the lowest ready messages, whatever they are.

    How many, and False if the budget ended it.
    """
    budget = entry.budget(machine.queue)
    taken = 0
    first = (PRIORITY, delivery.start >> entry.limits.block_bits)
    while taken < wanted and not delivery.is_full:
        if not budget.left.runs:
            return taken, False
        place = machine.index.bisect_left(first) if delivery.start else 0
        if place == len(machine.index):
            break
        block = machine.blocks.get(machine.index[place][1])
        if not block.ready & delivery.asked(block):
            first = (PRIORITY, block.number + 1)
            continue
        if block.earliest <= entry.now_ms and block.number not in budget.expired:
            if not budget.left.blocks:
                return taken, False
            expiry.expire_block(machine, entry, block, spares_new=True)
            continue
        taken += take_some(machine, delivery, budget.left, block, block.ready, wanted - taken)
    return taken, True


def take_some(
    machine: QueueMachine, delivery: Delivery, left: Left, block: Block, members: int, wanted: int
) -> int:
    """Hands out those of some ready messages of a block that are asked for, as far as the limit for runs goes; how
    many."""
    members = delivery.within(left, block, members & delivery.asked(block), wanted)
    members = delivery.choose(block, members, wanted)
    count = members.bit_count()
    if count:
        left.runs -= delivery.take(machine, block, members, count)
    return count


def run(machine: QueueMachine, entry: Entry) -> bool:
    """Serves whoever can be served; False if the budget ended it."""
    groups = machine.groups
    if not groups.turns or not machine.ready_count:
        return True
    left = entry.budget(machine.queue).left
    share = UNLIMITED
    if groups.eligible_count > 1:
        share = min(entry.limits.turn, -(-machine.ready_count // groups.eligible_count))
    deliveries: dict[tuple[bytes, str], Delivery] = {}
    groups.shared.move(entry)
    line = deque(groups.in_line())
    is_done = True
    while line and machine.ready_count:
        if not left.may_hand_out:
            break
        group = line.popleft()
        consumer = group.next_consumer()
        delivery = deliveries.get(consumer.key)
        if delivery is None:
            delivery = Delivery(consumer, machine.queue)
        wanted = min(consumer.credit, share, left.messages)
        taken, is_complete = groups.take(group, entry, delivery, wanted)
        is_done = is_done and is_complete
        if taken:
            deliveries[consumer.key] = delivery
            left.messages -= taken
            if groups.served(group, consumer) and (taken == wanted or not is_complete):
                line.append(group)
        if taken < wanted and is_complete:
            groups.found_all(group)
    entry.effects.extend([delivery.effect() for delivery in deliveries.values()])
    is_done = is_done and groups.shared.behind is None
    # Who sleeps is not in the line, and who sleeps is local: so this asks for all with credit.
    return is_done and (left.may_hand_out or not groups.turns or not machine.ready_count)
