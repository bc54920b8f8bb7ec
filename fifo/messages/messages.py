"""The messages of one queue, and their life.

A message is ready, checked out, delayed, dead (dead_letters.py), or gone. life.py has the whole life as a table.
Consumers and views lose messages in one place, `_departed`, whatever the cause: the messages die there, if the queue
has a dead-letter target, or are gone.

The parts of a queue that serve, reserve, pin and stage are built on this layer, which knows none of them. Two of them
register for changes:
- pins, before the ready messages of a block change in any way except by new messages;
- selector groups, when messages are requeued and when no message of a block is left.

Rules:
- A message has the same sequence and priority for ever. A requeued message is ready at its own place, marked as
  redelivered. So is a delayed one when its time has come (delays.py).
- Only a failed delivery counts towards the delivery limit. A message over the limit, or expired while it was checked
  out, leaves the queue when it is requeued.
- Every change of a block's replicated state marks its page as outdated (`stored = None`).
- Nothing leaves uncounted: the published messages are those that are ready, checked out, delayed or dead, and those
  that have left for each cause. Entries of version 1 count a purge as a settlement, and count no returns and
  redeliveries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from sortedcontainers import SortedList

from fifo.budgets import Entry
from fifo.commands import MAX_DELAY_MS, QueueConfig
from fifo.messages import bitsets
from fifo.messages.block_store import BlockMemory, BlockStore, by_number
from fifo.messages.blocks import Block, Stored
from fifo.messages.dead_letters import CAUSES, DeadLetters
from fifo.messages.due_times import DueBlocks, DueTimes
from fifo.messages.life import COUNTED
from fifo.messages.message_groups import MessageGroups, keys_of_each
from fifo.messages.ready_order import ReadyOrder, of_each, order_of
from fifo.messages.runs import MAX_SIZE, NEVER, ONE_EACH
from fifo.stretches import Column, Stretches, slots_of
from fifo.versions import COUNTED_MOVES


def _nobody(*_: int) -> None:
    """Stands for a callback while none is registered."""


class Messages:
    """The messages of one queue. order: of the ready ones (ready_order.py). grouped: the same order if the queue has
    message groups, else None."""

    __slots__ = (
        "before_ready_changes",
        "blocks",
        "checked_out_count",
        "config",
        "counts_bytes",
        "dead",
        "delays",
        "dropped",
        "expiries",
        "grouped",
        "limits",
        "next_sequence",
        "on_emptied",
        "on_requeued",
        "order",
        "purged_count",
        "queue",
        "ready_bytes",
        "ready_count",
        "redelivered_count",
        "reserved_bytes",
        "reserved_count",
        "returned_count",
        "settled_count",
    )

    def __init__(self, queue: int, config: QueueConfig, memory: BlockMemory) -> None:
        self.queue = queue
        self.config = config
        self.counts_bytes = config.max_length_bytes >= 0
        """whether the queue has a limit on bytes"""
        self.limits = memory.limits
        self.next_sequence = 1
        self.ready_count = 0
        self.checked_out_count = 0
        self.ready_bytes = 0
        """of the ready messages, while there is a limit on it; else 0"""
        self.reserved_count = self.reserved_bytes = 0
        """of the messages that prepared transactions publish"""
        self.blocks = BlockStore(queue, memory)
        self.dead = DeadLetters(self.blocks, memory.limits)
        self.order: ReadyOrder = order_of(config)
        self.grouped: MessageGroups | None = None
        if config.message_groups:
            self.order = self.grouped = MessageGroups(self.order, self.blocks, config.max_priority)
        self.expiries: SortedList[tuple[int, int]] = SortedList()
        """(earliest, block) of blocks where some may expire"""
        self.delays: DueBlocks | None = None
        """None as long as no message was ever delayed"""
        self.dropped = dict.fromkeys(COUNTED, 0)
        self.settled_count = 0
        self.purged_count = 0
        self.returned_count = 0
        """times that a message was requeued"""
        self.redelivered_count = 0
        """times that a message was checked out that had been before"""
        self.before_ready_changes: Callable[[Block], None] | None = None
        """with the block; None while there is no pin"""
        self.on_requeued: Callable[[int, int], None] = _nobody
        """with the block's number and its messages"""
        self.on_emptied: Callable[[int], None] = _nobody
        """with the block's number"""

    @property
    def tail(self) -> int:
        """The number of the last block, which takes the next message."""
        return self.next_sequence >> self.limits.block_bits

    @property
    def delayed_count(self) -> int:
        return 0 if self.delays is None else self.delays.count

    @property
    def waiting_count(self) -> int:
        """The number of messages that are ready or delayed: those that a limit counts."""
        return self.ready_count + self.delayed_count

    @property
    def waiting_bytes(self) -> int:
        """The bytes of these messages, while there is a limit on them; else 0."""
        return self.ready_bytes + (0 if self.delays is None else self.delays.size_bytes)

    @property
    def present_count(self) -> int:
        """The number of messages that are ready, delayed or checked out."""
        return self.waiting_count + self.checked_out_count

    @property
    def total_count(self) -> int:
        """The number of messages in all places."""
        return self.present_count + self.dead.count

    @property
    def limited_count(self) -> int:
        """The number of messages that count for the length of a queue that refuses publishes."""
        return self.waiting_count + self.dead.count + self.reserved_count

    @property
    def limited_bytes(self) -> int:
        """The bytes of these messages, while there is a limit on them."""
        return self.waiting_bytes + self.dead.size_bytes + self.reserved_bytes

    @property
    def filed_to(self) -> int:
        """Of message groups: the sequence below which ready messages are filed. 0 without message groups."""
        return 0 if self.grouped is None else self.grouped.filed_to

    @filed_to.setter
    def filed_to(self, sequence: int) -> None:
        if self.grouped is not None:
            self.grouped.filed_to = sequence

    @property
    def has_dead_letters(self) -> bool:
        """Whether messages that leave go to a dead-letter target."""
        return self.config.dead_letter_strategy != "none"

    @property
    def published_count(self) -> int:
        """The number of messages that the queue has ever accepted: sequences are dense."""
        return self.next_sequence - 1

    @property
    def left_count(self) -> int:
        """The number of messages that have ever left, for all causes."""
        return self.settled_count + self.purged_count + sum(self.dropped.values())

    # ---- arrivals

    def configure(self, config: QueueConfig) -> None:
        """Changes the configuration. The bytes are counted again if a limit on them is new: a few steps a block."""
        was_counted = self.counts_bytes
        self.config = config
        self.counts_bytes = config.max_length_bytes >= 0
        if not self.counts_bytes:
            self.ready_bytes = 0
        elif not was_counted:
            self.ready_bytes = sum(block.ready_bytes for block in self.blocks.values())
        if self.delays is not None and was_counted != self.counts_bytes:
            counted = self.blocks.values() if self.counts_bytes else ()
            self.delays.size_bytes = sum(block.delayed_bytes for block in counted)
        if was_counted != self.counts_bytes:
            numbers = self.dead.numbers if self.counts_bytes else ()
            self.dead.size_bytes = sum([self.blocks.at(number).dead_bytes for number in numbers])

    def reserve(self, count: int, size_bytes: int) -> None:
        """Keeps room for so many more messages, or less for negative numbers."""
        self.reserved_count += count
        self.reserved_bytes += size_bytes

    def expires_at(self, now_ms: int, ttl_ms: int) -> int:
        """The expiry of a message that becomes ready for the first time now, with this TTL of its own, -1 for none."""
        own = self.config.message_ttl_ms
        if ttl_ms < 0 or 0 <= own < ttl_ms:
            ttl_ms = own
        return NEVER if ttl_ms < 0 else min(now_ms + ttl_ms, NEVER - 1)

    def expiries_at(self, now_ms: int, dues: Column, ttls: Column) -> Column:
        """`expires_at` of messages that become ready at these times, or now if such a time is not later."""
        own, begins = self.config.message_ttl_ms, np.maximum(dues, now_ms)
        if own >= 0:
            ttls = np.where(ttls < 0, own, np.minimum(ttls, own))
        return np.where(ttls < 0, NEVER, begins + np.minimum(ttls, NEVER - 1 - begins))

    def append(
        self,
        index: int,
        operation: int,
        ordinal: int,
        count: int,
        expires: int,
        size: int,
        texts: int,
        priorities: bytes | memoryview = b"",
        due_ms: int = -1,
        keys: bytes | memoryview = b"",
    ) -> None:
        """Adds messages at the end of the queue. ordinal: of the first in its batch, ONE_EACH if it is alone there.
        texts: the text factor of the batch. priorities: one for all, or one each; empty: 0. due_ms: the time at which
        they become ready, later than now; -1: they are ready at once. keys: those of their groups, one for all, or one
        each; empty: no groups."""
        is_ready = due_ms < 0
        if is_ready:
            self.ready_count += count
        rest, limits, each = count, self.limits, min(size // count, MAX_SIZE)
        if self.counts_bytes and is_ready:
            self.ready_bytes += each * count
        while rest:
            slot = self.next_sequence & limits.slot_mask
            taken = min(rest, limits.block_size - slot)
            block = self._extend(slot, taken, size * taken // count, texts, keys)
            members = ((1 << taken) - 1) << slot
            block.runs.append(slot, taken, index, operation, ordinal, expires, each)
            if is_ready:
                block.ready |= members
                self.order.arrived(block, members, slot, priorities)
                if expires < block.earliest:
                    self.set_earliest(block, expires)
            else:
                self.order.note_priorities(block, members, slot, priorities)
                self._delay(block, members, due_ms)
            if ordinal != ONE_EACH:
                ordinal += taken
            self.next_sequence += taken
            rest -= taken
            if rest:
                priorities = of_each(priorities, taken)
                keys = keys_of_each(keys, taken)

    def append_stretches(
        self,
        index: int,
        operation: int,
        stretches: Stretches,
        texts: int,
        priorities: bytes | memoryview,
        keys: bytes | memoryview,
    ) -> None:
        """Adds many stretches of messages of one batch, like `append` of each, with some steps for each block. No batch
        has one message only. priorities, keys: those of these messages, one for all, or one each and perhaps more."""
        ends = self.next_sequence + np.cumsum(stretches.counts)
        begins, last = ends - stretches.counts, int(ends[-1])
        while self.next_sequence < last:
            first = self.next_sequence
            stop = min(((first >> self.limits.block_bits) + 1) << self.limits.block_bits, last)
            here = slice(np.searchsorted(ends, first, side="right"), np.searchsorted(begins, stop))
            starts = np.maximum(begins[here], first)
            counts = np.minimum(ends[here], stop) - starts
            ordinals, whole, expiries, dues, sizes = [column[here] for column in stretches]
            part = Stretches(
                ordinals + starts - begins[here], counts, expiries, dues, sizes * counts // whole
            )
            each = np.minimum(sizes // whole, MAX_SIZE)
            self._append_part(index, operation, part, each, texts, priorities, keys)
            self.next_sequence = stop
            priorities = of_each(priorities, stop - first)
            keys = keys_of_each(keys, stop - first)

    def _append_part(
        self,
        index: int,
        operation: int,
        part: Stretches,
        each: Column,
        texts: int,
        priorities: bytes | memoryview,
        keys: bytes | memoryview,
    ) -> None:
        """Adds stretches to the block of the next sequence. each: the bytes of each message."""
        counts, count, is_ready = part.counts, int(part.counts.sum()), part.dues < 0
        slot = self.next_sequence & self.limits.slot_mask
        block = self._extend(slot, count, int(part.sizes.sum()), texts, keys)
        if self.counts_bytes:
            self.ready_bytes += int((each * counts)[is_ready].sum())
        firsts = slot + np.cumsum(counts) - counts
        block.runs.append_each(firsts, counts, index, operation, part.ordinals, part.expiries, each)
        self.order.note_priorities(block, bitsets.span(slot, count), slot, priorities)
        if is_ready.any():
            ready = bitsets.from_flags(np.repeat(is_ready, counts)) << slot
            self.ready_count += ready.bit_count()
            block.ready |= ready
            self.order.requeued(block, ready)
            self.set_earliest(block, min(block.earliest, int(part.expiries[is_ready].min())))
        if not is_ready.all():
            late = ~is_ready
            self._delay_each(block, firsts[late], counts[late], part.dues[late], (each * counts)[late])

    def _extend(self, slot: int, count: int, size_bytes: int, texts: int, keys: bytes | memoryview) -> Block:
        """The block of the next sequence, which has this slot, after `count` new messages were counted in it."""
        number = self.next_sequence >> self.limits.block_bits
        block = self.blocks.find(number)
        if block is None:
            block = Block(number, self.limits.block_size)
            self.blocks.add(block)
        if self.counts_bytes:
            block.note_sizes()
        block.stored = None
        block.summary = b""
        if self.grouped is not None and len(keys):
            block.note_keys(slot, count, keys)
        block.live += count
        block.placed += count
        block.size_bytes += size_bytes
        if texts:
            block.text_factor = max(block.text_factor, texts)
            block.long_texts |= bitsets.span(slot, count)
        return block

    # ---- checking out, settling, requeueing

    def check_out(self, block: Block, members: int, count: int) -> None:
        """Checks out ready messages of a block."""
        self._ready_changes(block)
        block.ready ^= members
        block.checked_out |= members
        self.ready_count -= count
        if self.counts_bytes:
            self.ready_bytes -= block.bytes_of(members)
        self.checked_out_count += count
        self.order.left(block, members)

    def settle(self, ranges: Sequence[tuple[int, int]], cause: str = "settled") -> int:
        """Removes checked-out messages, given as (sequence, count), from the queue. Returns their number."""
        total = 0
        for block, members in self.blocks.of_ranges(ranges):
            block.stored = None
            block.checked_out ^= members
            if self.grouped is not None:
                self.grouped.released(block, members)
            total += self._departed(block, (cause, members))
        self.checked_out_count -= total
        return total

    def count_redelivered(self, entry: Entry, count: int) -> None:
        """Counts messages that were checked out again."""
        if entry.version >= COUNTED_MOVES:
            self.redelivered_count += count

    def requeue(self, entry: Entry, ranges: Sequence[tuple[int, int]], *, failed: bool) -> None:
        """Requeues checked-out messages, except those that have expired or failed too often."""
        for block, members in self.blocks.of_ranges(ranges):
            self._requeue(entry, block, members, failed=failed)

    def requeue_of_each(self, entry: Entry, ranges_of_each: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Requeues what each of some consumers has: like `requeue` for each of them, but in one step for each block. A
        block where messages have expired takes a step for each consumer, because its runs are compacted each time that
        messages leave."""
        late: dict[int, None] = {}
        for block, members in self.blocks.of_ranges(list(itertools.chain.from_iterable(ranges_of_each))):
            if block.runs.expiries is not None and self.expired(entry, block) & members:
                late[block.number] = None
            else:
                self._requeue(entry, block, members, failed=False)
        for ranges in ranges_of_each if late else ():
            for number, members in by_number(ranges, self.limits).items():
                if number in late:
                    self._requeue(entry, self.blocks.get(number), members, failed=False)

    def _requeue(self, entry: Entry, block: Block, members: int, *, failed: bool) -> None:
        block.stored = None
        block.checked_out ^= members
        self.checked_out_count -= members.bit_count()
        if self.grouped is not None:
            self.grouped.released(block, members)
        block.redelivered |= members
        lost = expired = 0
        if failed:
            block.failures.add(members)
            if self.config.delivery_limit >= 0:
                lost = block.failures.above(self.config.delivery_limit) & members
        if block.runs.expiries is not None:
            expired = self.expired(entry, block) & members & ~lost
        back = members ^ lost ^ expired
        if back:
            if entry.version >= COUNTED_MOVES:
                self.returned_count += back.bit_count()
            if self.config.delayed_retry_min_ms > 0:
                self._retry_later(block, back, entry.now_ms)
            else:
                self._make_ready(block, back)
        if lost or expired:
            self._departed(block, ("delivery_limit", lost), ("expired", expired))

    def _make_ready(self, block: Block, members: int) -> None:
        """Makes messages of a block ready that have been in the queue before."""
        self._ready_changes(block)
        block.ready |= members
        self.order.requeued(block, members)
        self.on_requeued(block.number, members)
        self.ready_count += members.bit_count()
        if self.counts_bytes:
            self.ready_bytes += block.bytes_of(members)
        if block.runs.expiries is not None:
            self.set_earliest(block, min(block.earliest, block.runs.earliest(members)))

    # ---- delaying

    def _retry_later(self, block: Block, members: int, now_ms: int) -> None:
        """Delays requeued messages: by `delayed_retry_min_ms` for each failed delivery, at least once, and at most
        by `delayed_retry_max_ms`."""
        least_ms, most_ms = self.config.delayed_retry_min_ms, self.config.delayed_retry_max_ms
        for failures, some in block.failures.groups(members):
            delay_ms = min(least_ms * max(failures, 1), most_ms if most_ms >= 0 else MAX_DELAY_MS)
            self._delay(block, some, now_ms + delay_ms)

    def _delay(self, block: Block, members: int, due_ms: int) -> None:
        """Delays messages of a block that are in no other place."""
        if self.delays is None:
            self.delays = DueBlocks()
        delays, before_ms = self.delays, block.earliest_due
        if block.dues is None:
            block.dues = DueTimes()
        block.dues.add(members, due_ms)
        block.delayed |= members
        delays.refile(block.number, before_ms, block.earliest_due)
        delays.count += members.bit_count()
        if self.counts_bytes:
            delays.size_bytes += block.bytes_of(members)

    def _delay_each(self, block: Block, firsts: Column, counts: Column, dues: Column, sizes: Column) -> None:
        """Delays new stretches of messages of a block, like `_delay` of each. sizes: the bytes of each stretch."""
        if self.delays is None:
            self.delays = DueBlocks()
        delays, before_ms = self.delays, block.earliest_due
        if block.dues is None:
            block.dues = DueTimes()
        block.dues.add_each(firsts, counts, dues)
        block.delayed |= bitsets.from_positions(slots_of(firsts, counts), block.size)
        delays.refile(block.number, before_ms, block.earliest_due)
        delays.count += int(counts.sum())
        if self.counts_bytes:
            delays.size_bytes += int(sizes.sum())

    def end_delay(self, entry: Entry, block: Block) -> None:
        """Makes the delayed messages of a block ready whose time has come, except those that have expired."""
        assert block.dues is not None
        before_ms, members = block.earliest_due, block.dues.take(entry.now_ms)
        self._leave_delayed(block, members, before_ms)
        expired = 0 if block.runs.expiries is None else self.expired(entry, block) & members
        if expired != members:
            self._make_ready(block, members ^ expired)
        if expired:
            self._departed(block, ("expired", expired))

    def drop_delayed(self, block: Block, members: int, cause: str) -> None:
        """Removes delayed messages from the queue."""
        assert block.dues is not None
        before_ms = block.earliest_due
        if members != block.delayed:  # else all times are forgotten together
            block.dues.remove(members)
        self._leave_delayed(block, members, before_ms)
        self._departed(block, (cause, members))

    def restore_delayed(self, block: Block | Stored) -> None:
        """Counts the delayed messages of a block of a snapshot or checkpoint."""
        if self.delays is None:
            self.delays = DueBlocks()
        delays = self.delays
        delays.refile(block.number, None, block.earliest_due)
        delays.count += block.delayed_count
        if self.counts_bytes:
            delays.size_bytes += block.delayed_bytes

    def _leave_delayed(self, block: Block, members: int, before_ms: int | None) -> None:
        """Books messages of a block as not delayed any more. They have no due times any more. before_ms: the earliest
        due time of the block before."""
        assert self.delays is not None
        block.stored = None
        block.delayed ^= members
        if not block.delayed:
            block.dues = None
        self.delays.refile(block.number, before_ms, block.earliest_due)
        self.delays.count -= members.bit_count()
        if self.counts_bytes:
            self.delays.size_bytes -= block.bytes_of(members)

    # ---- leaving

    def expired(self, entry: Entry, block: Block) -> int:
        """The slots of a block whose messages have expired, except messages that came with this entry."""
        found = block.runs.expired(entry.now_ms)
        arrived_from = entry.arrived_from.get(self.queue)
        if found and arrived_from is not None:
            found &= bitsets.span(0, max(arrived_from - block.base, 0))
        return found

    def drop(self, block: Block, members: int, cause: str) -> None:
        """Removes ready messages from the queue."""
        self._ready_changes(block)
        block.ready ^= members
        if self.counts_bytes:
            self.ready_bytes -= block.bytes_of(members)
        self.order.left(block, members)
        self.ready_count -= self._departed(block, (cause, members))

    def settle_dead(self, to: int, forwarded: int) -> int:
        """Removes the dead messages that were claimed with numbers up to `to`. Returns their number. forwarded: how
        many of them the target has."""
        total = 0
        for block, members in self.blocks.of_ranges(self.dead.take_claims(to)):
            total += members.bit_count()
            self.drop_dead(block, members)
        self.dead.forwarded_count += min(forwarded, total)
        return total

    def drop_dead(self, block: Block, members: int, cause: str = "") -> None:
        """Removes dead messages of a block from the queue. They count for this cause, or for those of their deaths."""
        if self.counts_bytes:
            self.dead.size_bytes -= block.bytes_of(members)
        for own, some in self.dead.remove(block, members):
            self._count(cause or own, some.bit_count())
        self.release_block(block)

    def restore_dead(self, block: Block | Stored) -> None:
        """Counts the dead messages of a block of a snapshot or checkpoint."""
        if block.dead_count:
            self.dead.restored(block)
            if self.counts_bytes:
                self.dead.size_bytes += block.dead_bytes

    def forget(self, block: Stored, cause: str) -> None:
        """Removes a cold block, of which no message is checked out, from the queue. Its dead messages are purged, for
        whatever cause the others leave."""
        if block.earliest != NEVER:  # of its ready messages, or of delayed ones that were ready before
            self.expiries.remove((block.earliest, block.number))
        if block.ready_count:
            self.ready_count -= block.ready_count
            if self.counts_bytes:
                self.ready_bytes -= block.ready_bytes
            self._count(cause, block.ready_count)
            self.order.block_left(block)
        if block.delayed_count:
            assert self.delays is not None
            self.delays.refile(block.number, block.earliest_due, None)
            self.delays.count -= block.delayed_count
            if self.counts_bytes:
                self.delays.size_bytes -= block.delayed_bytes
            self._count(cause, block.delayed_count)
        if block.dead_count:
            if self.counts_bytes:
                self.dead.size_bytes -= block.dead_bytes
            self._count("purged", block.dead_count)
            self.dead.forget(block)
        self._forget_block(block.number)

    def _departed(self, block: Block, *parts: tuple[str, int]) -> int:
        """Books messages of a block, given by causes, as dead or gone. Returns their number. They are in no place's set
        any more."""
        members = 0
        for cause, some in parts:
            if some and cause in CAUSES and self.has_dead_letters:
                self.dead.add(block, cause, some)
                if self.counts_bytes:
                    self.dead.size_bytes += block.bytes_of(some)
            else:
                self._count(cause, some.bit_count())
            members |= some
        count = members.bit_count()
        block.live -= count
        is_tail = block.number == self.next_sequence >> self.limits.block_bits
        if block.live:
            block.forget(members)
            block.compact(1024 if is_tail else 16)
            return count
        self.set_earliest(block, NEVER)
        block.forget(members)
        if not is_tail:
            self.on_emptied(block.number)
        self.release_block(block)
        return count

    def _count(self, cause: str, count: int) -> None:
        if cause == "settled":
            self.settled_count += count
        elif cause == "purged":
            self.purged_count += count
        else:
            self.dropped[cause] += count

    def count_earlier(self) -> None:
        """For a state of version 1, which does not say how many messages were settled or purged: all of them count as
        settled."""
        self.settled_count = 0
        self.settled_count = max(0, self.published_count - self.total_count - self.left_count)

    # ---- blocks

    def _ready_changes(self, block: Block) -> None:
        """To be called before the ready messages of a block change in any way except by new messages."""
        block.stored = None
        if self.before_ready_changes is not None:
            self.before_ready_changes(block)

    def release_block(self, block: Block) -> None:
        """Drops a block without kept messages, or the unneeded runs of another one."""
        is_tail = block.number == self.tail
        if block.live or block.pinned or block.deaths:
            block.compact(1024 if is_tail else 16)
        elif is_tail:
            block.clear()
        else:
            self._forget_block(block.number)

    def _forget_block(self, number: int) -> None:
        self.blocks.drop(number)
        self.on_emptied(number)

    def set_earliest(self, block: Block, expires: int) -> None:
        """Notes that no ready message of the block expires before `expires`."""
        if expires != block.earliest:
            if block.earliest != NEVER:
                self.expiries.remove((block.earliest, block.number))
            if expires != NEVER:
                self.expiries.add((expires, block.number))
            block.stored = None
            block.earliest = expires
