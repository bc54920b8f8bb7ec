"""One queue.

Handlers look up, refuse or change; they never hand out messages (but for Get and Reserve). What can be handed out is
decided once for all operations of an entry, in `finish`: first what readers have let go comes back, then `checkout`
serves whoever can now be served, then what has expired is removed, then what is above `max_length`. So a message is
offered to consumers before a limit counts it, and one with a TTL of 0 is delivered in its own entry or never.

Where the specifications are silent:
- Messages that come back return to their own place, marked as redelivered.
- Only Modify with delivery_failed counts as a failed delivery. The end of a session, a fence or the loss of a node
  does not: it would punish a whole prefetch window for one bad message, or for a network. (RabbitMQ counts when the
  consumer's process ends, and does not when its node is unreachable.)
- `undeliverable_here` is treated like discard, as RabbitMQ does.
- A change of the kept fields leaves those who are attached as they are; who attaches is judged by what is kept then.
- Attaching a tag again with the same selector keeps the attachment and sets its credit; with another selector, or
  after a cancel, it starts over: what was held comes back, tags begin at 1 under a new attach number.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from sortedcontainers import SortedList

from fifo import bits, checkout, expiry, overflow
from fifo.block_store import BlockMemory, BlockStore
from fifo.blocks import NEVER, ONE_EACH, Block
from fifo.commands import Attach, Credit, Discard, Enqueue, Get, Modify, QueueConfig, Settle
from fifo.effects import AttachedReply, Notify, Ok, Refused, Reply
from fifo.limits import Limits
from fifo.pins import Pins
from fifo.read_costs import text_factor
from fifo.readers import Readers
from fifo.selector_groups import SelectorGroups, refuse_selector
from fifo.sessions import Producer
from fifo.shares import Owned
from fifo.staging import Staging
from fifo.state import (
    MANY_RANGES,
    PRIORITY,
    Consumer,
    Entry,
    FieldSource,
)
from fifo.versions import BUDGETED_ARRIVALS, LIMITED_CONSUMERS, SHARED_BUDGETS
from quorum_selectors.columns import BatchColumns, decode
from quorum_selectors.errors import ColumnsError

if TYPE_CHECKING:
    from fifo.checkpoint import Section

NO_TTLS = np.zeros(0, dtype=np.int64)

REASONS = ("expired", "rejected", "delivery_limit", "maxlen")
"""Why messages leave a queue without having been settled or purged."""


def by_number(ranges: Sequence[tuple[int, int]], limits: Limits) -> dict[int, int]:
    """The slots of (sequence, count) ranges by the numbers of their blocks."""
    block_bits, block_size, slot_mask = limits.block_bits, limits.block_size, limits.slot_mask
    found: dict[int, int] = {}
    for sequence, count in ranges:
        first, rest = sequence, count
        while rest:
            slot = first & slot_mask
            taken = min(rest, block_size - slot)
            number = first >> block_bits
            found[number] = found.get(number, 0) | (((1 << taken) - 1) << slot)
            first += taken
            rest -= taken
    return found


class QueueMachine:
    """The state of one queue."""

    __slots__ = (
        "blocks",
        "config",
        "consumers",
        "dropped",
        "expiries",
        "groups",
        "held_count",
        "index",
        "limits",
        "next_attach",
        "next_sequence",
        "owned",
        "pins",
        "queue",
        "readers",
        "ready_count",
        "section",
        "staging",
        "unfinished",
    )

    def __init__(
        self, queue: int, config: QueueConfig, field_source: FieldSource, memory: BlockMemory
    ) -> None:
        self.queue = queue
        self.config = config
        self.limits = memory.limits
        self.next_sequence = 1
        self.next_attach = 1
        self.ready_count = 0
        self.held_count = 0
        self.blocks = BlockStore(queue, memory)
        self.index: SortedList[tuple[int, int]] = (
            SortedList()
        )  # (priority, block) of blocks with ready messages
        self.expiries: SortedList[tuple[int, int]] = SortedList()  # (earliest, block), unless never
        self.consumers: dict[tuple[bytes, str], Consumer] = {}  # in the order of attaching
        self.owned = Owned()  # the consumers' owners; follows from them
        self.groups = SelectorGroups(self, field_source)
        self.readers = Readers(self)
        self.pins = Pins(self)
        self.dropped = dict.fromkeys(REASONS, 0)
        self.staging = Staging(self.limits)
        self.unfinished = False  # a budget has cut `finish` short
        self.section: Section | None = (
            None  # local: its part of the last checkpoint, None once it was touched
        )

    # ---- publishing

    def enqueue(
        self, entry: Entry, operation: int, command: Enqueue, fresh: Sequence[tuple[int, int]]
    ) -> Refused | None:
        """Adds the messages `fresh`, given as (ordinal, count), of the batch."""
        refused = self.refuse_more(sum(count for _, count in fresh))
        if refused is not None:
            return refused
        columns: BatchColumns | None = None
        texts = 0
        if self.config.filter_enabled and len(command.columns):
            try:
                columns = decode(command.columns, command.count)
                texts = text_factor(entry, command.columns, columns)
            except ColumnsError as error:
                return Refused("bad_argument", f"filter fields: {error}")
        ttls = NO_TTLS
        if len(command.ttls_ms):
            try:
                ttls = np.asarray(command.ttls_ms, dtype=np.int64)
            except OverflowError:
                return Refused("bad_argument", "a TTL is beyond 64 bits")
        self.arrives(entry)
        sequence = self.next_sequence
        count = command.count
        if not len(ttls):
            expires = self.expires(entry.now_ms, command.ttl_ms)
            if count == 1:
                self.place(entry.index, operation, ONE_EACH, 1, expires, command.size_bytes, texts)
            else:
                for ordinal, taken in fresh:
                    size = command.size_bytes * taken // count
                    self.place(entry.index, operation, ordinal, taken, expires, size, texts)
        else:
            for ordinal, taken in fresh:
                part = ttls[ordinal : ordinal + taken]
                starts = [0, *(np.flatnonzero(part[1:] != part[:-1]) + 1).tolist(), taken]
                for start, end in itertools.pairwise(starts):
                    expires = self.expires(entry.now_ms, int(part[start]))
                    size = command.size_bytes * (end - start) // count
                    first = ONE_EACH if count == 1 else ordinal + start
                    self.place(entry.index, operation, first, end - start, expires, size, texts)
        if self.config.filter_enabled:
            self.groups.fields.arrived(self.blocks, sequence, columns, fresh)
        return None

    def refuse_more(self, count: int) -> Refused | None:
        """Why so many more messages do not fit."""
        config = self.config
        wanted = self.ready_count + count
        if config.overflow != "reject_publish" or not 0 <= config.max_length < wanted:
            return None
        return Refused(
            "queue_full",
            f"{self.ready_count} messages are ready, {wanted} would be; allowed: {config.max_length}",
        )

    def arrives(self, entry: Entry) -> None:
        """To be called before anything is placed: notes from where on messages are of this entry."""
        entry.arrived_from.setdefault(self.queue, self.next_sequence)
        if entry.version >= BUDGETED_ARRIVALS:
            self.groups.shared.stay()

    def expires(self, now_ms: int, ttl_ms: int) -> int:
        """When a message published now expires that has this TTL of its own, -1 for none."""
        own = self.config.message_ttl_ms
        if ttl_ms < 0 or 0 <= own < ttl_ms:
            ttl_ms = own
        return NEVER if ttl_ms < 0 else min(now_ms + ttl_ms, NEVER - 1)

    def place(
        self, index: int, operation: int, ordinal: int, count: int, expires: int, size: int, texts: int
    ) -> None:
        """Messages come to the end of the queue. ordinal: of the first in its batch, ONE_EACH if it is alone there.
        texts: the text factor of the batch."""
        self.ready_count += count
        rest, limits = count, self.limits
        while rest:
            sequence = self.next_sequence
            slot = sequence & limits.slot_mask
            taken = min(rest, limits.block_size - slot)
            block = self.blocks.find(sequence >> limits.block_bits)
            if block is None:
                block = Block(sequence >> limits.block_bits, limits.block_size)
                self.blocks.add(block)
            if not block.ready:
                self.index.add((PRIORITY, block.number))
            block.stored = None
            block.summary = b""
            block.ready |= ((1 << taken) - 1) << slot
            block.live += taken
            block.placed += taken
            block.size_bytes += size * taken // count
            block.runs.append(slot, taken, index, operation, ordinal, expires)
            if texts:
                block.text_factor = max(block.text_factor, texts)
                block.long_texts |= bits.span(slot, taken)
            if expires < block.earliest:
                self.set_earliest(block, expires)
            if ordinal != ONE_EACH:
                ordinal += taken
            self.next_sequence = sequence + taken
            rest -= taken

    # ---- consumers

    def attach(self, entry: Entry, producer: Producer, command: Attach) -> Reply:
        if not command.consumer_tag:
            return Refused("bad_argument", "a consumer tag is empty; allowed: any other text")
        if command.credit_to < 0:
            return Refused("bad_argument", f"credit up to tag {command.credit_to}; allowed: 0 and above")
        consumer = self.consumers.get((producer.name, command.consumer_tag))
        if (
            consumer is not None
            and consumer.group is not None
            and consumer.group.selector == command.selector
        ):
            self.set_credit(entry, consumer, command.credit_to)
            return AttachedReply(consumer.attach)
        refused = refuse_selector(self.config, command.selector)
        if refused is not None:
            return refused
        if consumer is not None:
            self.remove(entry, consumer)
        elif entry.version >= LIMITED_CONSUMERS:
            refused = self.owned.refuse_more(
                entry.version, producer.owner, self.limits.max_consumers, self.config.name, "consumers"
            )
            if refused is not None:
                return refused
        consumer = self._add_consumer(producer, command.consumer_tag)
        self.groups.join(consumer, command.selector)
        self.set_credit(entry, consumer, command.credit_to)
        return AttachedReply(consumer.attach)

    def _add_consumer(self, producer: Producer, tag: str) -> Consumer:
        max_held, owner = self.limits.max_held, producer.owner
        made = Consumer(producer.name, tag, producer.address, self.next_attach, None, max_held, owner=owner)
        self.next_attach += 1
        self.consumers[made.key] = made
        self.owned.add(made.owner)
        return made

    def set_credit(self, entry: Entry, consumer: Consumer, credit_to: int) -> None:
        consumer.credit_to = credit_to
        self.groups.credit_changed(consumer, entry)

    def credit(self, entry: Entry, producer: bytes, command: Credit) -> Reply:
        consumer = self.consumers.get((producer, command.consumer_tag))
        if consumer is None or consumer.group is None:
            return self._not_attached(command.consumer_tag)
        if command.credit_to < 0:
            return Refused("bad_argument", f"credit up to tag {command.credit_to}; allowed: 0 and above")
        self.set_credit(entry, consumer, command.credit_to)
        if command.drain:
            self.groups.draining[consumer.key] = consumer
        return Ok()

    def cancel(self, entry: Entry, producer: bytes, tag: str, return_held: bool) -> Reply:
        consumer = self.consumers.get((producer, tag))
        if consumer is None or not tag:
            return self._not_attached(tag)
        self.groups.leave(consumer)
        if return_held or not consumer.held.total:
            self.remove(entry, consumer)
        return Ok()

    def remove(self, entry: Entry, consumer: Consumer) -> None:
        """Detaches a consumer; what it holds comes back."""
        self.groups.leave(consumer)
        del self.consumers[consumer.key]
        self.owned.remove(consumer.owner)
        self.put_back(entry, consumer.held.take_all(), failed=False)

    def get(self, entry: Entry, producer: Producer, command: Get) -> Reply:
        most = self.limits.max_get
        if not 0 < command.count <= most:
            return Refused("limit", f"{command.count} messages asked for; allowed: 1..{most}")
        consumer = self.consumers.get((producer.name, ""))
        if consumer is None:
            consumer = self._add_consumer(producer, "")
        room = consumer.max_held - consumer.held.total
        wanted = command.count if command.settled else min(command.count, room)
        delivery = checkout.Delivery(consumer, self.queue)
        if entry.version >= SHARED_BUDGETS:
            left = entry.budget(self.queue).left
            left.runs = max(left.runs, 1)  # zero messages would mean that none is there
            wanted = min(wanted, max(left.messages, 1))
            taken, _ = checkout.take_first(self, entry, delivery, wanted)
            left.messages = max(left.messages - taken, 0)
        else:
            checkout.take_first(self, entry, delivery, wanted)
        if not delivery.count:
            return Ok(0)
        if command.settled:
            self.forget_held(consumer.held.take_out(delivery.first_tag, consumer.next_tag - 1))
        entry.effects.append(delivery.effect(command.settled))
        return Ok(delivery.count)

    def _not_attached(self, tag: str) -> Refused:
        return Refused(
            "not_attached", f"no consumer {tag!r} of this session is attached to {self.config.name!r}"
        )

    # ---- what consumers say about messages

    def settle(self, entry: Entry, producer: bytes, command: Settle) -> Reply:
        """Settle, Return, Discard and Modify."""
        consumer = self.consumers.get((producer, command.consumer_tag))
        if consumer is None:
            return self._not_attached(command.consumer_tag)
        if consumer.attach != command.attach:
            return Refused(
                "wrong_attach",
                f"consumer {command.consumer_tag!r} is attached as {consumer.attach}, not {command.attach}",
            )
        if command.credit_to < 0:
            return Refused("bad_argument", f"credit up to tag {command.credit_to}; allowed: 0 and above")
        for first, last in command.tags:
            if not 0 <= first <= last:
                return Refused("bad_argument", f"delivery tags {first}..{last}; allowed: ranges from 0 on")
        was_full = consumer.held.total >= consumer.max_held
        ranges = consumer.held.take_out_all_of(command.tags)
        if type(command) is Settle:
            self.forget_held(ranges)
        elif isinstance(command, Discard) or (isinstance(command, Modify) and command.undeliverable_here):
            self.dropped["rejected"] += self.forget_held(ranges)
        else:
            self.put_back(entry, ranges, isinstance(command, Modify) and command.delivery_failed)
        if consumer.group is not None:
            if command.credit_to:
                self.set_credit(entry, consumer, command.credit_to)
            elif was_full:
                self.groups.credit_changed(consumer, entry)
        elif consumer.tag and not consumer.held.total:
            del self.consumers[consumer.key]  # it was cancelled before
            self.owned.remove(consumer.owner)
        return Ok(sum(count for _, count in ranges))

    def forget_held(self, ranges: Sequence[tuple[int, int]]) -> int:
        """Held messages, given as (sequence, count), are done with; how many they were."""
        total = 0
        for block, members in self.by_block(ranges):
            block.stored = None
            block.held ^= members
            count = members.bit_count()
            self.held_count -= count
            total += count
            self._gone(block, members, count)
        return total

    def put_back(self, entry: Entry, ranges: Sequence[tuple[int, int]], failed: bool) -> None:
        """Held messages become ready again, unless they have expired or failed too often."""
        for block, members in self.by_block(ranges):
            block.stored = None
            block.held ^= members
            self.held_count -= members.bit_count()
            block.redelivered |= members
            lost = 0
            if failed:
                block.failures.add(members)
                if self.config.delivery_limit >= 0:
                    lost = block.failures.above(self.config.delivery_limit) & members
                    self.dropped["delivery_limit"] += lost.bit_count()
            if block.runs.expiries is not None:
                expired = expiry.due(self, entry, block) & members & ~lost
                self.dropped["expired"] += expired.bit_count()
                lost |= expired
            back = members ^ lost
            if back:
                self._ready_changes(block)
                if not block.ready:
                    self.index.add((PRIORITY, block.number))
                block.ready |= back
                self.groups.came_back(block.number, back)
                self.ready_count += back.bit_count()
                if block.runs.expiries is not None:
                    self.set_earliest(block, min(block.earliest, block.runs.earliest(back)))
            if lost:
                self._gone(block, lost, lost.bit_count())

    def by_block(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[Block, int]]:
        """The blocks and slots of (sequence, count) ranges."""
        if len(ranges) > MANY_RANGES:
            return self._by_block_many(ranges)
        return [
            (self.blocks.get(number), members) for number, members in by_number(ranges, self.limits).items()
        ]

    def _by_block_many(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[Block, int]]:
        pairs = np.array(ranges, dtype=np.int64)
        firsts, counts = pairs[:, 0], pairs[:, 1]
        ends = np.cumsum(counts)
        sequences = np.repeat(firsts - ends + counts, counts) + np.arange(ends[-1])
        limits = self.limits
        numbers = sequences >> limits.block_bits
        return [
            (
                self.blocks.get(number),
                bits.from_positions(sequences[numbers == number] & limits.slot_mask, limits.block_size),
            )
            for number in np.unique(numbers).tolist()
        ]

    # ---- what all parts do to blocks

    def _ready_changes(self, block: Block) -> None:
        """To be said before ready messages of a block change, in every way but by new ones."""
        block.stored = None
        if self.pins.by_number:
            self.pins.keep(block)

    def hold(self, block: Block, members: int, count: int) -> None:
        """Ready messages become held."""
        self._ready_changes(block)
        block.ready ^= members
        block.held |= members
        self.ready_count -= count
        self.held_count += count
        if not block.ready:
            self.index.remove((PRIORITY, block.number))

    def drop_ready(self, block: Block, members: int, reason: str) -> None:
        """Ready messages leave the queue for this reason."""
        self.dropped[reason] += members.bit_count()
        self._leave(block, members)

    def _leave(self, block: Block, members: int) -> None:
        """Ready messages leave the queue."""
        count = members.bit_count()
        self._ready_changes(block)
        block.ready ^= members
        self.ready_count -= count
        if not block.ready:
            self.index.remove((PRIORITY, block.number))
        self._gone(block, members, count)

    def _gone(self, block: Block, members: int, count: int) -> None:
        block.live -= count
        is_tail = block.number == self.next_sequence >> self.limits.block_bits
        if block.live:
            block.forget(members)
            block.compact(1024 if is_tail else 16)
            return
        self.set_earliest(block, NEVER)
        block.forget(members)
        if not is_tail:
            self.groups.matched.drop_block(block.number)
        self.let_lie(block)

    def let_lie(self, block: Block) -> None:
        """Forgets a block that nobody needs any more, or what nobody needs of it."""
        is_tail = block.number == self.next_sequence >> self.limits.block_bits
        if block.live or block.pinned:
            block.compact(1024 if is_tail else 16)
        elif is_tail:
            block.clear()
        else:
            self._drop(block.number)

    def _drop(self, number: int) -> None:
        self.blocks.drop(number)
        self.groups.matched.drop_block(number)

    def set_earliest(self, block: Block, expires: int) -> None:
        if expires != block.earliest:
            if block.earliest != NEVER:
                self.expiries.remove((block.earliest, block.number))
            if expires != NEVER:
                self.expiries.add((expires, block.number))
            block.stored = None
            block.earliest = expires

    # ---- the end of an entry

    def finish(self, entry: Entry) -> None:
        """Hands out what can be handed out, then removes what has expired and what is too much."""
        is_returned = self.readers.finish(entry)
        is_done = checkout.run(self, entry)
        if is_done and self.groups.draining:
            self._give_back(entry)
        expiry.remove_expired(self, entry)
        self.staging.expire(entry.now_ms)
        if is_done:
            is_done = overflow.drop_head(self, entry)
        is_unpinned = self.pins.finish(entry)
        self.unfinished = not (is_done and is_returned and is_unpinned)

    def _give_back(self, entry: Entry) -> None:
        """Draining consumers have got what there was; the rest of their credit is void."""
        for consumer in list(self.groups.draining.values()):
            self.set_credit(entry, consumer, consumer.next_tag - 1)
            event = Notify(
                consumer.address, self.queue, consumer.tag, consumer.attach, "drained", consumer.next_tag
            )
            entry.effects.append(event)
        self.groups.draining.clear()

    def next_expiry(self) -> int | None:
        """The group time at which `finish` may find something expired, a message, a staged part or a pin, or somebody
        silent for too long."""
        found = self.expiries[0][0] if self.expiries else NEVER
        staged = self.staging.next_expiry()
        if staged is not None:
            found = min(found, staged)
        if self.readers.by_name:
            found = min(found, self.readers.next_due())
        if self.pins.by_number:
            found = min(found, self.pins.next_due())
        return None if found == NEVER else found

    # ---- administration

    def purge(self, before: int) -> int:
        """Removes what is ready and has a sequence below `before`; how many. A constant number of steps a block,
        without looking at messages; a cold block of ready messages alone is not even read, unless a pin reaches into
        it."""
        was_ready = self.ready_count
        block_bits, block_size = self.limits.block_bits, self.limits.block_size
        tail = self.next_sequence >> block_bits
        for _, number in list(self.index):
            found = self.blocks.at(number)
            is_ready_only = not isinstance(found, Block) and not found.held_count
            slots = min(before - (number << block_bits), block_size)
            if slots <= 0:
                continue
            if is_ready_only and slots == block_size and number != tail and not self.pins.reaches(number):
                if found.earliest != NEVER:
                    self.expiries.remove((found.earliest, number))
                self.ready_count -= found.live
                self.index.remove((PRIORITY, number))
                self._drop(number)
                continue
            block = self.blocks.get(number)
            members = block.ready & ((1 << slots) - 1)
            if members:
                self._leave(block, members)
        return was_ready - self.ready_count
