"""One queue: the handlers of its commands, and the work that is done once for all operations of an entry.

A handler checks its command, then refuses it or carries it out. It hands out no messages, except for Get and Reserve.
`finish` does the rest once for all operations of an entry, in this order:

1. Released reservations are requeued or discarded.
2. Messages that consumers have held for too long are requeued.
3. Delayed messages whose time has come become ready.
4. The single active consumer is chosen, if the queue has one.
5. `checkout` serves consumers.
6. Expired messages are dropped.
7. Messages above `max_length` are dropped.

After that the group deletes the queue if it has an `expires_ms` and was not used for so long. It is in use while a
consumer is attached or has messages checked out, while a view of it or a transaction with a part in it is open, while
dead messages wait for their target, and until the timeout of each of its subscriptions has passed since its reader was
last heard. Get, a command for a subscription and UseQueue use it for a moment. Publishing without a transaction and
browsing do not count.

Consumers are therefore offered a message before a limit counts it, and a message with a TTL of 0 is delivered in its
own entry or never.

Where the specifications are silent:
- Only Modify with delivery_failed counts as a failed delivery. The end of a session, a fence and the loss of a node do
  not count, because that would punish a whole prefetch window for one bad message, or for a network. (RabbitMQ counts
  when the consumer's process ends, and does not when its node is unreachable.)
- `undeliverable_here` is treated like discard, as RabbitMQ does.
- A change of the kept fields does not affect attached consumers. A selector is checked against the fields that the
  queue keeps at the entry that attaches it.
- `x-max-consumers` counts the consumers of sessions that are attached: not those of Get, not cancelled ones that still
  have messages checked out, and no subscriptions. A lower limit detaches no consumer.
- Attaching a tag again with the same selector and priority keeps the attachment and sets its credit. With others, after
  a cancel, or after a timeout, it starts over: messages that are checked out are requeued, and delivery tags begin at 1
  under a new attach number.
"""

from __future__ import annotations

from collections.abc import Sequence

from fifo import staging
from fifo.batch_times import BatchTimes, read_times
from fifo.budgets import Entry
from fifo.commands import (
    MAX_CONSUMER_PRIORITY,
    Attach,
    Credit,
    Discard,
    DiscardStaged,
    Enqueue,
    Get,
    Modify,
    PublishStaged,
    QueueConfig,
    Settle,
    Stage,
)
from fifo.consumers import checkout, takers
from fifo.consumers.consumer import Consumer, Key
from fifo.consumers.delivery import Delivery, take_first
from fifo.consumers.filter_fields import FieldSource
from fifo.consumers.grouped_delivery import take_heads
from fifo.consumers.read_costs import text_factor
from fifo.consumers.selector import refuse_others, refuse_selector
from fifo.consumers.selector_groups import SelectorGroups
from fifo.consumers.single_active import SingleActive
from fifo.consumers.timeouts import Timeouts
from fifo.effects import AttachedReply, Notify, Ok, Refused, Reply
from fifo.embargo import (
    EmbargoedBatch,
    EmbargoedSettlement,
    OfferedSettlement,
    Outcome,
    Part,
    outcome_of,
)
from fifo.embargo import Key as TransactionKey
from fifo.messages import delays, expiry, overflow
from fifo.messages.block_store import BlockMemory
from fifo.messages.message_groups import KEY_BYTES, keys_of_each
from fifo.messages.messages import Messages
from fifo.messages.purging import purge, purge_end
from fifo.messages.ready_order import of_each
from fifo.messages.runs import NEVER, ONE_EACH
from fifo.pins import Pins
from fifo.producers import Producer
from fifo.shares import Owned
from fifo.staging import Staging
from fifo.stretches import Stretches, shares_of, slots_of, values_at
from fifo.subscriptions import Subscriptions
from fifo.versions import COUNTED_MOVES, LIMITED_CONSUMERS, LIMITED_SELECTORS, SHARED_BUDGETS
from quorum_selectors.columns import BatchColumns, decode
from quorum_selectors.errors import ColumnsError

IN_USE = -1
"""In place of the time of the last use."""
NUMBER_BITS = 32
"""Each queue has 2 ** NUMBER_BITS attach numbers, as many generations, and as many numbers of pins."""
NUMBERED_QUEUES = 1 << 31
"""Number of queues after which they begin again: the running hash takes numbers of 63 bits."""
BatchFields = tuple[BatchColumns | None, int]
"""The filter fields of a batch, None for none, and their text factor."""
NO_FIELDS: BatchFields = (None, 0)


class QueueMachine:
    """The state of one queue: its messages, and the parts that serve, reserve, pin and stage them."""

    __slots__ = (
        "attached_count",
        "changes",
        "consumers",
        "groups",
        "limits",
        "messages",
        "next_attach",
        "owned",
        "pins",
        "queue",
        "selector_bytes",
        "single_active",
        "staging",
        "subscriptions",
        "timeouts",
        "unfinished",
        "used_ms",
    )

    def __init__(
        self,
        queue: int,
        config: QueueConfig,
        field_source: FieldSource,
        memory: BlockMemory,
        selector_bytes: Owned,
    ) -> None:
        """selector_bytes: those of all consumers of the group."""
        self.queue = queue
        self.limits = memory.limits
        self.messages = Messages(queue, config, memory)
        self.next_attach = 1
        self.consumers: dict[tuple[bytes, str], Consumer] = {}  # in the order of attaching
        self.owned = Owned()  # the consumers' owners; follows from them
        self.attached_count = 0  # those that are not cancelled; follows from them
        self.selector_bytes = selector_bytes
        self.groups = SelectorGroups(self.messages, field_source)
        self.single_active: SingleActive | None = None
        if config.single_active_consumer:
            self.single_active = SingleActive(self.messages, self.groups)
        self.subscriptions = Subscriptions(self.messages, self.groups)
        self.timeouts = Timeouts()
        self.pins = Pins(self.messages)
        self.staging = Staging(self.limits)
        self.unfinished = False  # a budget has cut `finish` short
        self.used_ms = IN_USE  # group time of the last use; IN_USE also without `expires_ms`
        self.changes = 0  # local: grows when what a checkpoint says of the queue may have changed

    def begin_numbers(self) -> None:
        """Begins the attach numbers, generations and numbers of pins of a new queue above those of earlier queues."""
        past = self.queue % NUMBERED_QUEUES << NUMBER_BITS
        self.next_attach = self.pins.next_pin = past + 1
        self.subscriptions.past_generation = past

    # ---- publishing

    def enqueue(
        self, entry: Entry, operation: int, command: Enqueue, fresh: Sequence[tuple[int, int]]
    ) -> Refused | None:
        """Adds the messages `fresh`, given as (ordinal, count), of the batch."""
        added = sum(count for _, count in fresh)
        refused = overflow.refuse_more(self.messages, added, added * command.mean_bytes)
        if refused is not None:
            return refused
        fields = NO_FIELDS
        if len(command.columns):
            found = self.read_fields(entry, command.columns, command.count)
            if isinstance(found, Refused):
                return found
            fields = found
        times = read_times(command, entry.now_ms)
        if isinstance(times, Refused):
            return times
        self.append(entry, operation, command, fresh, fresh, fields, times)
        return None

    def taken_at_once(self, entry: Entry, fields: BatchFields, rows: Sequence[tuple[int, int]]) -> int:
        """Which of a batch's messages a consumer can take at once, as a set of places among `rows`: (row, count) in
        `fields`."""
        if self.unfinished:
            return 0
        return takers.taken_at_once(self.messages, self.groups, entry, *fields, rows)

    def read_fields(self, entry: Entry, encoded: bytes | memoryview, count: int) -> BatchFields | Refused:
        """The filter fields of `count` messages for this queue."""
        if not self.messages.config.filter_enabled or not len(encoded):
            return NO_FIELDS
        try:
            columns = decode(encoded, count)
            return columns, text_factor(entry, encoded, columns)
        except ColumnsError as error:
            return Refused("bad_argument", f"filter fields: {error}")

    def append(
        self,
        entry: Entry,
        operation: int,
        command: Enqueue,
        fresh: Sequence[tuple[int, int]],
        rows: Sequence[tuple[int, int]],
        fields: BatchFields,
        times: BatchTimes,
    ) -> None:
        """Adds messages that fit. rows: the same messages as (row, count) in `fields`."""
        messages = self.messages
        columns, texts = fields
        self.groups.arrivals_begin(entry)
        sequence = messages.next_sequence
        count, priorities, keys = command.count, command.priorities, command.group_keys
        if max(len(times.ttls), len(times.dues), len(fresh)) > self.limits.few_stretches:
            self._append_each(entry, operation, command, fresh, texts, times)
        else:
            for ordinal, taken in fresh:
                for first, width, ttl_ms, due_ms in times.stretches(ordinal, taken):
                    messages.append(
                        entry.index,
                        operation,
                        ONE_EACH if count == 1 else first,
                        width,
                        messages.expires_at(max(entry.now_ms, due_ms), ttl_ms),
                        command.size_bytes * width // count,
                        texts,
                        of_each(priorities, first),
                        due_ms,
                        keys_of_each(keys, first),
                    )
        if messages.config.filter_enabled:
            self.groups.fields.arrived(messages.blocks, sequence, columns, rows)

    def _append_each(
        self,
        entry: Entry,
        operation: int,
        command: Enqueue,
        fresh: Sequence[tuple[int, int]],
        texts: int,
        times: BatchTimes,
    ) -> None:
        """Adds messages that may have a time each, or be many ranges of their batch."""
        ordinals, counts, ttls, dues = times.columns(fresh)
        expiries = self.messages.expiries_at(entry.now_ms, dues, ttls)
        sizes, places = shares_of(command.size_bytes, counts, command.count), slots_of(ordinals, counts)
        self.messages.append_stretches(
            entry.index,
            operation,
            Stretches(ordinals, counts, expiries, dues, sizes),
            texts,
            values_at(command.priorities, 1, places),
            values_at(command.group_keys, KEY_BYTES, places),
        )

    # ---- consumers

    def attach(self, entry: Entry, producer: Producer, command: Attach) -> Reply:
        if not command.consumer_tag:
            return Refused("bad_argument", "a consumer tag is empty; allowed: any other text")
        if command.credit_to < 0:
            return Refused("bad_argument", f"credit up to tag {command.credit_to}; allowed: 0 and above")
        if abs(command.priority) > MAX_CONSUMER_PRIORITY:
            allowed = f"-{MAX_CONSUMER_PRIORITY}..{MAX_CONSUMER_PRIORITY}"
            return Refused("bad_argument", f"consumer priority {command.priority}; allowed: {allowed}")
        consumer = self.consumers.get((producer.name, command.consumer_tag))
        if consumer is not None and consumer.is_like(command):
            self.set_credit(entry, consumer, command.credit_to)
            return AttachedReply(consumer.attach)
        refused = refuse_selector(self.messages.config, command.selector)
        if refused is not None:
            return refused
        if consumer is None or consumer.group is None:
            refused = self._refuse_consumer()
            if refused is not None:
                return refused
        if consumer is None and entry.version >= LIMITED_CONSUMERS:
            refused = self.owned.refuse_more(
                entry.version,
                producer.owner,
                self.limits.max_consumers,
                self.messages.config.name,
                "consumers",
            )
            if refused is not None:
                return refused
        if entry.version >= LIMITED_SELECTORS:
            more = len(command.selector) - (0 if consumer is None else consumer.selector_bytes)
            refused = self._refuse_selector_bytes(producer.owner, more)
            if refused is not None:
                return refused
        if consumer is not None:
            self.remove(entry, consumer)
        consumer = self._add_consumer(producer, command.consumer_tag)
        consumer.priority = command.priority
        self.groups.join(consumer, command.selector)
        self.attached_count += 1
        self.selector_bytes.add(consumer.owner, consumer.selector_bytes)
        if self.single_active is not None:
            consumer.is_active = False
            self.single_active.join(consumer)
        self.set_credit(entry, consumer, command.credit_to)
        return AttachedReply(consumer.attach)

    def _refuse_consumer(self) -> Refused | None:
        """The refusal if the queue's own limit allows no more attached consumers, else None."""
        config = self.messages.config
        if config.max_consumers < 0:
            return None
        attached = self.attached_count
        if attached < config.max_consumers:
            return None
        return Refused(
            "limit",
            f"queue {config.name!r} has {attached} consumers; allowed: {config.max_consumers} (x-max-consumers)",
        )

    def _refuse_selector_bytes(self, owner: int, more: int) -> Refused | None:
        """The refusal if an owner's consumers may have no selectors of so many more bytes, else None."""
        owned, allowed = self.selector_bytes, self.limits.max_selector_bytes
        if more <= 0 or owned.has_room(owner, allowed, more):
            return None
        return Refused(
            "limit",
            f"{owned.counts.get(owner, 0)} bytes of selectors of this client address's consumers, {more} more asked "
            f"for; allowed: as many as are left free of {allowed}, {max(0, allowed - owned.total)} now",
        )

    def _add_consumer(self, producer: Producer, tag: str) -> Consumer:
        max_checked_out, owner = self.limits.max_checked_out, producer.owner
        made = Consumer(
            producer.name, tag, producer.address, self.next_attach, None, max_checked_out, owner=owner
        )
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

    def cancel(self, entry: Entry, producer: bytes, tag: str, requeue: bool) -> Reply:
        consumer = self.consumers.get((producer, tag))
        if consumer is None or not tag:
            return self._not_attached(tag)
        self._leave(consumer)
        if requeue or not consumer.held_count:
            self.remove(entry, consumer)
        return Ok()

    def remove(self, entry: Entry, consumer: Consumer) -> None:
        """Detaches a consumer. Its checked-out messages are requeued."""
        self.remove_all(entry, [consumer])

    def remove_all(self, entry: Entry, consumers: Sequence[Consumer]) -> None:
        """Detaches consumers. Their checked-out messages are requeued."""
        for consumer in consumers:
            self._leave(consumer)
            self._drop(consumer)
        self.messages.requeue_of_each(entry, [each.checked_out.remove_all() for each in consumers])

    def _leave(self, consumer: Consumer) -> None:
        """Ends deliveries to a consumer."""
        self.attached_count -= consumer.group is not None
        self.selector_bytes.remove(consumer.owner, consumer.selector_bytes)
        self.groups.leave(consumer)
        consumer.timed_out = None
        if self.single_active is not None:
            self.single_active.leave(consumer)

    def _drop(self, consumer: Consumer) -> None:
        del self.consumers[consumer.key]
        self.owned.remove(consumer.owner)
        self.timeouts.forget(consumer)

    def get(self, entry: Entry, producer: Producer, command: Get) -> Reply:
        if self.single_active is not None:
            return refuse_others(self.messages.config, "a get")
        most = self.limits.max_get
        if not 0 < command.count <= most:
            return Refused("limit", f"{command.count} messages asked for; allowed: 1..{most}")
        consumer = self.consumers.get((producer.name, ""))
        if not command.settled and entry.version >= LIMITED_CONSUMERS and consumer is not None:
            held = consumer.held_count
            if consumer.is_full:  # an answer of zero messages would mean that none is ready
                return Refused(
                    "limit",
                    f"{held} messages that this session has got from {self.messages.config.name!r} are not settled; "
                    f"allowed: {consumer.max_checked_out}",
                )
        self.use(entry)
        if consumer is None:
            consumer = self._add_consumer(producer, "")
        room = consumer.max_checked_out - consumer.held_count
        wanted = command.count if command.settled else min(command.count, room)
        delivery = Delivery(consumer, self.queue)
        if entry.version >= SHARED_BUDGETS:
            left = entry.budget(self.queue).left
            left.runs = max(left.runs, 1)  # as above: no answer of zero
            wanted = min(wanted, max(left.messages, 1))
            taken = self._take(entry, delivery, wanted)
            left.messages = max(left.messages - taken, 0)
        else:
            take_first(self.messages, entry, delivery, wanted)
        if not delivery.count:
            return Ok(0)
        self.messages.count_redelivered(entry, delivery.again)
        timeout_ms = self.messages.config.consumer_timeout_ms
        if command.settled:
            self.messages.settle(consumer.checked_out.remove(delivery.first_tag, consumer.next_tag - 1))
        elif timeout_ms >= 0:
            self.timeouts.note(entry.now_ms, timeout_ms, [consumer])
        entry.effects.append(delivery.effect(command.settled))
        return Ok(delivery.count)

    def _take(self, entry: Entry, delivery: Delivery, wanted: int) -> int:
        """Hands out up to `wanted` messages, without a selector. Returns their number."""
        if self.messages.grouped is None:
            return take_first(self.messages, entry, delivery, wanted)[0]
        self.build_groups()
        self.messages.grouped.file(entry.budget(self.queue).left, self.messages.next_sequence)
        return take_heads(self.messages, entry, delivery, wanted, None)[0]

    def build_groups(self) -> None:
        """To be called before messages of groups are handed out: the state may have been restored."""
        messages = self.messages
        if messages.grouped is not None and not messages.grouped.is_built:
            held = [(each.attach, each.checked_out) for each in self.consumers.values()]
            held += [(each.attach, each.held) for each in self.staging.embargo.settlements()]
            messages.grouped.build(
                [(attach, messages.blocks.of_ranges(each.ranges())) for attach, each in held]
            )

    def _not_attached(self, tag: str) -> Refused:
        return Refused(
            "not_attached",
            f"no consumer {tag!r} of this session is attached to {self.messages.config.name!r}",
        )

    # ---- outcomes of deliveries

    def settle(self, entry: Entry, producer: bytes, command: Settle) -> Reply:
        """Settle, Return, Discard and Modify. Messages that an open transaction settles are left to it."""
        consumer = self._holder(producer, command)
        if isinstance(consumer, Refused):
            return consumer
        was_full = consumer.is_full
        ranges = consumer.checked_out.remove_many(command.tags)
        if type(command) is Settle:
            self.messages.settle(ranges)
        elif isinstance(command, Discard) or (isinstance(command, Modify) and command.undeliverable_here):
            self.messages.settle(ranges, "rejected")
        else:
            failed = isinstance(command, Modify) and command.delivery_failed
            self.messages.requeue(entry, ranges, failed=failed)
        if consumer.answer_late(command.tags):
            self._resume(entry, consumer)
        self._has_settled(entry, consumer, command.credit_to, was_full=was_full)
        return Ok(sum(count for _, count in ranges))

    def _holder(self, producer: bytes, command: Settle) -> Consumer | Refused:
        """The consumer whose messages a command settles."""
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
        return consumer

    def _has_settled(self, entry: Entry, consumer: Consumer, credit_to: int, *, was_full: bool) -> None:
        """Notes what follows for a consumer from the end of some of its checked-out messages."""
        if consumer.group is not None:
            if credit_to:
                self.set_credit(entry, consumer, credit_to)
            elif was_full:
                self.groups.credit_changed(consumer, entry)
        elif consumer.tag and not consumer.held_count:
            self._drop(consumer)  # it was cancelled before

    # ---- parts of transactions

    def take_credit(self, entry: Entry, producer: bytes, command: Settle) -> bool:
        """Gives a consumer the credit that a settlement of a transaction brings, also if that is about to be refused:
        the client sends it once. Returns whether it brings any."""
        consumer = self._holder(producer, command)
        if isinstance(consumer, Refused) or consumer.group is None or not command.credit_to:
            return False
        self.set_credit(entry, consumer, command.credit_to)
        return True

    def refuse_embargo(self, producer: bytes, command: Settle) -> Refused | None:
        """The refusal if a transaction cannot settle these messages, else None."""
        consumer = self._holder(producer, command)
        if isinstance(consumer, Refused):
            return consumer
        if not command.tags:
            return Refused("bad_argument", "no delivery tags; allowed in a transaction: one range or more")
        end, held = -1, consumer.checked_out
        for first, last in command.tags:
            if first <= end:
                return Refused(
                    "bad_argument", f"delivery tags {first}..{last} after {end}; allowed: ascending"
                )
            end, width = last, last - first + 1
            found = 0 if width > held.total else held.count_of(first, last)
            if found < width:
                return Refused(
                    "not_checked_out",
                    f"{width - found} of the delivery tags {first}..{last} of consumer {command.consumer_tag!r} are "
                    "not checked out, or another transaction settles them",
                )
        return None

    def offered(self, producer: bytes, command: Settle) -> OfferedSettlement:
        """What a settlement that `refuse_embargo` has allowed counts."""
        held = self.consumers[producer, command.consumer_tag].checked_out
        messages = sum(last - first + 1 for first, last in command.tags)
        return OfferedSettlement(command, messages, sum(held.run_count(*each) for each in command.tags))

    def settlement(self, producer: bytes, command: Settle) -> EmbargoedSettlement:
        """The messages of a settlement that `refuse_embargo` has allowed: they leave their consumer."""
        consumer = self.consumers[producer, command.consumer_tag]
        held = consumer.checked_out.take(command.tags)
        return EmbargoedSettlement(command.consumer_tag, command.attach, outcome_of(command), held)

    def embargo(self, key: TransactionKey, part: Part) -> None:
        """Adds a part to a transaction."""
        self.staging.embargo.add(key, part)
        if isinstance(part, EmbargoedSettlement):
            self.consumers[key[0], part.consumer_tag].embargo(key[1], part.held)

    def drop_embargo(self, entry: Entry, key: TransactionKey) -> None:
        """Drops the parts of a transaction. The messages that it settles are their consumer's again; they are requeued
        if it is gone."""
        for part in self.staging.embargo.parts.pop(key):
            if not isinstance(part, EmbargoedSettlement):
                continue
            consumer = self.consumers.get((key[0], part.consumer_tag))
            if consumer is None or consumer.attach != part.attach:
                self.messages.requeue(entry, part.held.ranges(), failed=False)
            else:
                consumer.lift_embargo(key[1])
                consumer.checked_out.take_back(part.held)

    def commit(self, entry: Entry, key: TransactionKey) -> list[str]:
        """Makes the parts of a transaction count, in their order. The fields of its messages are not read now: scans
        read them, as those of any backlog. Returns the tags of consumers that were cancelled before and hold nothing
        any more."""
        messages = self.messages
        gone: list[str] = []
        parts = self.staging.embargo.parts.pop(key)
        if any(isinstance(part, EmbargoedBatch) and part.message_count for part in parts):
            self.groups.arrivals_begin(entry)
            entry.budget(self.queue).reads_arrivals = True
        for part in parts:
            if isinstance(part, EmbargoedBatch):
                part.place(messages, entry)
                continue
            self._leave_queue(entry, part.outcome, part.held.ranges())
            gone += self._release(entry, key, part)
        return gone

    def _release(self, entry: Entry, key: TransactionKey, part: EmbargoedSettlement) -> list[str]:
        """The consumer of a settlement holds its messages no more. Returns its tag if it was cancelled before and holds
        nothing any more. A prepared part has been released before."""
        consumer = self.consumers.get((key[0], part.consumer_tag))
        if consumer is None or key[1] not in consumer.embargoed:
            return []
        was_full = consumer.is_full
        consumer.lift_embargo(key[1])
        self._has_settled(entry, consumer, 0, was_full=was_full)
        return [] if consumer.key in self.consumers else [consumer.tag]

    def _leave_queue(self, entry: Entry, outcome: Outcome, ranges: list[tuple[int, int]]) -> None:
        """What becomes of checked-out messages, as (sequence, count)."""
        if outcome in (Outcome.SETTLED, Outcome.REJECTED):
            self.messages.settle(ranges, "settled" if outcome == Outcome.SETTLED else "rejected")
        else:
            self.messages.requeue(entry, ranges, failed=outcome == Outcome.FAILED)

    def prepare(self, entry: Entry, key: TransactionKey) -> list[str]:
        """Gives the parts of a transaction what `decide` needs: the messages that they settle, which leave their
        consumers, and room for those that they publish. Returns the tags of consumers that were cancelled before and
        hold nothing any more."""
        gone: list[str] = []
        embargo = self.staging.embargo
        for part in embargo.parts[key]:
            if isinstance(part, EmbargoedSettlement):
                gone += self._release(entry, key, part)
        self.messages.reserve(*embargo.published(key))
        return gone

    def decide(self, entry: Entry, key: TransactionKey, *, is_committed: bool) -> None:
        """The prepared parts of a transaction count now, or are dropped. Then a consumer has the messages again that it
        had; they are requeued if it is not attached any more, or is given nothing."""
        count, size = self.staging.embargo.published(key)
        self.messages.reserve(-count, -size)
        if is_committed:
            self.commit(entry, key)
            return
        timeout_ms = self.messages.config.consumer_timeout_ms
        for part in self.staging.embargo.parts.pop(key):
            if not isinstance(part, EmbargoedSettlement):
                continue
            consumer = self.consumers.get((key[0], part.consumer_tag))
            if consumer is None or not consumer.may_have_back(part.attach, part.held):
                self.messages.requeue(entry, part.held.ranges(), failed=False)
                continue
            consumer.checked_out.take_back(part.held)
            if consumer.group is not None:
                self.groups.credit_changed(consumer)
            if timeout_ms >= 0:
                self.timeouts.note(entry.now_ms, timeout_ms, [consumer])

    def _resume(self, entry: Entry, consumer: Consumer) -> None:
        """Lets a consumer go on that has answered all its messages that timed out."""
        if self.single_active is not None:
            self.single_active.join(consumer)
        else:
            consumer.is_active = True
            self.groups.credit_changed(consumer, entry)

    # ---- staged messages

    def stage(
        self, entry: Entry, operation: int, command: Stage | PublishStaged | DiscardStaged
    ) -> tuple[Reply, bool]:
        """Carries out a command about staged messages. Returns the reply, and whether the command changed anything."""
        known = len(self.staging.last_batches)
        reply = staging.execute(self.staging, self.messages, self.groups, entry, operation, command)
        return reply, type(reply) is not Refused or len(self.staging.last_batches) != known

    # ---- the end of an entry

    def finish(self, entry: Entry) -> list[Key]:
        """Serves the consumers, then drops expired messages and those above `max_length`, as far as budgets allow.
        Returns the consumers that are gone, because all their messages have timed out after they were cancelled."""
        self.build_groups()
        is_returned = self.subscriptions.finish(entry)
        gone: list[Key] = []
        if self.timeouts.marks:
            is_returned = self._time_out(entry, gone) and is_returned
        delays.end_delays(self.messages, entry)
        if self.single_active is not None:
            self.single_active.elect(entry)
        is_done = checkout.run(self.messages, self.groups, self.timeouts, entry)
        if is_done and self.groups.draining:
            self._give_back(entry)
        expiry.remove_expired(self.messages, entry)
        self.staging.expire(entry.now_ms)
        if is_done:
            is_done = overflow.drop_head(self.messages, entry)
        is_unpinned = self.pins.finish(entry)
        self.unfinished = not (is_done and is_returned and is_unpinned)
        return gone

    def overdue(self, now_ms: int) -> list[Consumer]:
        """The consumers that have held messages for too long, and of which open transactions settle some."""
        timeout_ms = self.messages.config.consumer_timeout_ms
        found: dict[Key, Consumer] = {}
        for end, mark in self.timeouts.marks.items():
            if end + timeout_ms > now_ms:
                break
            found.update(
                {each.key: each for each, tag in mark.items() if each.embargoed and each.has_up_to(tag)}
            )
        return list(found.values())

    def _time_out(self, entry: Entry, gone: list[Key]) -> bool:
        """Requeues messages that were held for too long. A single active consumer loses all that it holds, because
        another one is to be active. False if a budget left some."""
        left, timeout_ms = entry.budget(self.queue).left, self.messages.config.consumer_timeout_ms
        while (first := self.timeouts.first()) is not None:
            end, consumer, tag = first
            if end + timeout_ms > entry.now_ms:
                break
            is_overdue = consumer.has_up_to(tag)
            if is_overdue and consumer.embargoed:
                return False  # its transactions end first (`overdue`)
            if is_overdue and self.single_active is not None:
                tag = consumer.next_tag - 1
            held = sum(count for _, count in consumer.checked_out.between(0, tag))
            if not left.may_move(max(held, 1), entry.limits):
                return False
            self.timeouts.take(end, consumer)
            if held:
                self._requeue_overdue(entry, consumer, tag)
            if consumer.tag and consumer.group is None and not consumer.held_count:
                self._drop(consumer)
                gone.append(consumer.key)
        return True

    def _requeue_overdue(self, entry: Entry, consumer: Consumer, tag: int) -> None:
        """Requeues the messages up to this tag that a consumer holds."""
        overdue = consumer.checked_out.cut(tag)
        self.messages.requeue(entry, overdue.ranges(), failed=False)
        if consumer.group is None:
            return
        consumer.time_out(overdue)
        if self.single_active is not None:
            self.single_active.leave(consumer)
        self.groups.credit_changed(consumer)
        place = (consumer.address, self.queue, consumer.tag, consumer.attach)
        entry.effects.append(Notify(*place, "timed_out", tag))

    def configure(self, entry: Entry, config: QueueConfig) -> None:
        """Changes the configuration. A consumer timeout that the queue did not have before begins now for all messages
        that are checked out."""
        had_timeout = self.messages.config.consumer_timeout_ms >= 0
        self.messages.configure(config)
        if config.consumer_timeout_ms < 0:
            self.timeouts.marks.clear()
        elif not had_timeout:
            holders = [consumer for consumer in self.consumers.values() if consumer.held_count]
            self.timeouts.note(entry.now_ms, config.consumer_timeout_ms, holders)
        else:
            self.timeouts.shorten(entry.now_ms, config.consumer_timeout_ms)

    def _give_back(self, entry: Entry) -> None:
        """Voids the remaining credit of draining consumers, which have received all messages that there were."""
        for consumer in list(self.groups.draining.values()):
            self.set_credit(entry, consumer, consumer.next_tag - 1)
            event = Notify(
                consumer.address, self.queue, consumer.tag, consumer.attach, "drained", consumer.next_tag
            )
            entry.effects.append(event)
        self.groups.draining.clear()

    def next_expiry(self) -> int | None:
        """The group time at which `finish` may find an expired message, staged part or pin, a delayed message that is
        due, a subscription that was silent for too long, or messages that were held for too long, or at which the queue
        itself expires. None if there is no such time."""
        expiries = self.messages.expiries
        found = expiries[0][0] if expiries else NEVER
        staged = self.staging.next_expiry()
        if staged is not None:
            found = min(found, staged)
        if self.subscriptions.by_name:
            found = min(found, self.subscriptions.next_due())
        if self.pins.by_number:
            found = min(found, self.pins.next_due())
        found = min(found, delays.next_due(self.messages))
        if self.timeouts.marks:
            found = min(found, self.timeouts.next_due(self.messages.config.consumer_timeout_ms))
        found = min(found, self.unused_at)
        return None if found == NEVER else found

    # ---- the end of a queue that is not used

    @property
    def has_users(self) -> bool:
        return bool(self.pins.by_number or self.staging.embargo.parts or self.messages.dead.count) or any(
            consumer.group is not None or consumer.held_count > 0 for consumer in self.consumers.values()
        )

    def use(self, entry: Entry) -> None:
        """The queue is used for a moment."""
        self.used_ms = entry.now_ms

    def note_use(self, entry: Entry) -> None:
        """Notes the last use, at the end of each entry that has touched the queue."""
        if self.messages.config.expires_ms < 0 or self.has_users:
            self.used_ms = IN_USE
        elif self.used_ms == IN_USE:
            self.used_ms = entry.now_ms

    @property
    def unused_at(self) -> int:
        """The group time at which the queue is deleted if it is not used before; NEVER without such a time."""
        if self.used_ms == IN_USE:
            return NEVER
        readers = self.subscriptions.by_name.values()
        heard_ms = max([each.last_seen_ms + each.timeout_ms for each in readers], default=0)
        return max(self.used_ms, heard_ms) + self.messages.config.expires_ms

    def purge(self, entry: Entry, before: int | None, *, dead_only: bool = False) -> int:
        """Removes the ready, delayed and dead messages with a sequence below `before`, None for all, of as many
        blocks as an entry may pass. Returns their number: 0 if there are none. dead_only: only the dead ones."""
        before = self.messages.next_sequence if before is None else before
        if entry.version >= COUNTED_MOVES:
            before = min(before, purge_end(self.messages, entry.limits.block_budget, dead_only=dead_only))
        cause = "purged" if entry.version >= COUNTED_MOVES else "settled"
        return purge(self.messages, before, self.pins.reaches, cause, dead_only=dead_only)
