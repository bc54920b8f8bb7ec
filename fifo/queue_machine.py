"""One queue: its parts, the publishes to it, and the work that is done once for all operations of an entry.

The handlers of most commands are in the parts: those of consumers in `QueueConsumers`, those of transactions in
`QueueTransactions`, those of subscriptions, pins and staged messages in the modules of these names. A handler checks
its command, then refuses it or carries it out. It hands out no messages, except for Get and Reserve. `finish` does the
rest once for all operations of an entry, in this order:

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
"""

from __future__ import annotations

from collections.abc import Sequence

from fifo import staging
from fifo.batch_times import BatchTimes, read_times
from fifo.budgets import Entry
from fifo.commands import DiscardStaged, Enqueue, Get, PublishStaged, QueueConfig, Stage
from fifo.consumers import checkout, takers
from fifo.consumers.consumer import Key
from fifo.consumers.delivery import Delivery, take_first
from fifo.consumers.filter_fields import FieldSource
from fifo.consumers.grouped_delivery import take_heads
from fifo.consumers.queue_consumers import QueueConsumers
from fifo.consumers.read_costs import text_factor
from fifo.consumers.selector import refuse_others
from fifo.consumers.selector_groups import SelectorGroups
from fifo.effects import Ok, Refused, Reply
from fifo.messages import delays, expiry, overflow
from fifo.messages.block_store import BlockMemory
from fifo.messages.message_groups import KEY_BYTES, keys_of_each
from fifo.messages.messages import Messages
from fifo.messages.purging import purge, purge_end
from fifo.messages.ready_order import of_each
from fifo.messages.runs import NEVER, ONE_EACH
from fifo.pins import Pins
from fifo.producers import Producer
from fifo.queue_transactions import QueueTransactions
from fifo.shares import Owned
from fifo.staging import Staging
from fifo.stretches import Stretches, shares_of, slots_of, values_at
from fifo.subscriptions import Subscriptions
from fifo.versions import COUNTED_MOVES, LIMITED_CONSUMERS, SHARED_BUDGETS
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
        "changes",
        "consumers",
        "groups",
        "limits",
        "messages",
        "pins",
        "queue",
        "staging",
        "subscriptions",
        "transactions",
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
        staging: Staging | None = None,
    ) -> None:
        """selector_bytes: those of all consumers of the group. staging: that of a restored queue."""
        self.queue = queue
        self.limits = memory.limits
        self.messages = Messages(queue, config, memory)
        self.groups = SelectorGroups(self.messages, field_source)
        self.consumers = QueueConsumers(self.messages, self.groups, selector_bytes)
        self.subscriptions = Subscriptions(self.messages, self.groups)
        self.pins = Pins(self.messages)
        self.staging = Staging(self.limits) if staging is None else staging
        self.transactions = QueueTransactions(
            self.messages, self.groups, self.consumers, self.staging.embargo
        )
        self.unfinished = False  # a budget has cut `finish` short
        self.used_ms = IN_USE  # group time of the last use; IN_USE also without `expires_ms`
        self.changes = 0  # local: grows when what a checkpoint says of the queue may have changed

    def begin_numbers(self) -> None:
        """Begins the attach numbers, generations and numbers of pins of a new queue above those of earlier queues."""
        past = self.queue % NUMBERED_QUEUES << NUMBER_BITS
        self.consumers.next_attach = self.pins.next_pin = past + 1
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

    # ---- Get

    def get(self, entry: Entry, producer: Producer, command: Get) -> Reply:
        consumers = self.consumers
        if consumers.single_active is not None:
            return refuse_others(self.messages.config, "a get")
        most = self.limits.max_get
        if not 0 < command.count <= most:
            return Refused("limit", f"{command.count} messages asked for; allowed: 1..{most}")
        consumer = consumers.by_key.get((producer.name, ""))
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
            consumer = consumers.add(producer, "")
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
            consumers.timeouts.note(entry.now_ms, timeout_ms, [consumer])
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
            held = [(each.attach, each.checked_out) for each in self.consumers.by_key.values()]
            held += [(each.attach, each.held) for each in self.transactions.embargo.settlements()]
            messages.grouped.build(
                [(attach, messages.blocks.of_ranges(each.ranges())) for attach, each in held]
            )

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
        consumers = self.consumers
        self.build_groups()
        is_returned = self.subscriptions.finish(entry)
        gone: list[Key] = []
        if consumers.timeouts.marks:
            is_returned = consumers.time_out(entry, gone) and is_returned
        delays.end_delays(self.messages, entry)
        if consumers.single_active is not None:
            consumers.single_active.elect(entry)
        is_done = checkout.run(self.messages, self.groups, consumers.timeouts, entry)
        if is_done and self.groups.draining:
            consumers.end_drains(entry)
        expiry.remove_expired(self.messages, entry)
        self.staging.expire(entry.now_ms)
        if is_done:
            is_done = overflow.drop_head(self.messages, entry)
        is_unpinned = self.pins.finish(entry)
        self.unfinished = not (is_done and is_returned and is_unpinned)
        return gone

    def configure(self, entry: Entry, config: QueueConfig) -> None:
        had_timeout = self.messages.config.consumer_timeout_ms >= 0
        self.messages.configure(config)
        self.consumers.configure_timeout(entry, had_timeout=had_timeout)

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
        if self.consumers.timeouts.marks:
            found = min(found, self.consumers.timeouts.next_due(self.messages.config.consumer_timeout_ms))
        found = min(found, self.unused_at)
        return None if found == NEVER else found

    # ---- the end of a queue that is not used

    @property
    def has_users(self) -> bool:
        has_others = self.pins.by_number or self.transactions.embargo.parts or self.messages.dead.count
        return bool(has_others) or self.consumers.are_in_use

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
