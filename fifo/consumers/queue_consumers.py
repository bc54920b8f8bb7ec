"""The consumers of one queue: they attach, get credit, settle, are cancelled, and lose what they hold for too long.

A handler checks its command, then refuses it or carries it out. No messages are handed out here: `checkout` does that
at the end of the entry, and `fifo.queue_machine` for Get, which has a consumer of its own for each session.

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

from fifo.budgets import Entry
from fifo.commands import MAX_CONSUMER_PRIORITY, Attach, Credit, Discard, Modify, Settle
from fifo.consumers.consumer import Consumer, Key
from fifo.consumers.selector import refuse_selector
from fifo.consumers.selector_groups import SelectorGroups
from fifo.consumers.single_active import SingleActive
from fifo.consumers.timeouts import Timeouts
from fifo.effects import AttachedReply, Notify, Ok, Refused, Reply
from fifo.messages.messages import Messages
from fifo.producers import Producer
from fifo.shares import Owned
from fifo.versions import LIMITED_CONSUMERS, LIMITED_SELECTORS


class QueueConsumers:
    """The consumers of one queue, attached or with messages checked out, and what each of them holds."""

    __slots__ = (
        "_groups",
        "_limits",
        "_messages",
        "attached_count",
        "by_key",
        "next_attach",
        "owned",
        "selector_bytes",
        "single_active",
        "timeouts",
    )

    def __init__(self, messages: Messages, groups: SelectorGroups, selector_bytes: Owned) -> None:
        """selector_bytes: those of all consumers of the group of queues."""
        self._messages = messages
        self._groups = groups
        self._limits = messages.limits
        self.next_attach = 1
        self.by_key: dict[Key, Consumer] = {}  # in the order of attaching
        self.owned = Owned()  # the consumers' owners; follows from them
        self.attached_count = 0  # those that are not cancelled; follows from them
        self.selector_bytes = selector_bytes
        self.single_active: SingleActive | None = None
        if messages.config.single_active_consumer:
            self.single_active = SingleActive(messages, groups)
        self.timeouts = Timeouts()

    @property
    def are_in_use(self) -> bool:
        """Whether a consumer is attached, or has messages checked out."""
        return any(consumer.group is not None or consumer.held_count > 0 for consumer in self.by_key.values())

    # ---- attaching and leaving

    def attach(self, entry: Entry, producer: Producer, command: Attach) -> Reply:
        if not command.consumer_tag:
            return Refused("bad_argument", "a consumer tag is empty; allowed: any other text")
        if command.credit_to < 0:
            return Refused("bad_argument", f"credit up to tag {command.credit_to}; allowed: 0 and above")
        if abs(command.priority) > MAX_CONSUMER_PRIORITY:
            allowed = f"-{MAX_CONSUMER_PRIORITY}..{MAX_CONSUMER_PRIORITY}"
            return Refused("bad_argument", f"consumer priority {command.priority}; allowed: {allowed}")
        consumer = self.by_key.get((producer.name, command.consumer_tag))
        if consumer is not None and consumer.is_like(command):
            self.set_credit(entry, consumer, command.credit_to)
            return AttachedReply(consumer.attach)
        refused = refuse_selector(self._messages.config, command.selector)
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
                self._limits.max_consumers,
                self._messages.config.name,
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
        consumer = self.add(producer, command.consumer_tag)
        consumer.priority = command.priority
        self._groups.join(consumer, command.selector)
        self.attached_count += 1
        self.selector_bytes.add(consumer.owner, consumer.selector_bytes)
        if self.single_active is not None:
            consumer.is_active = False
            self.single_active.join(consumer)
        self.set_credit(entry, consumer, command.credit_to)
        return AttachedReply(consumer.attach)

    def _refuse_consumer(self) -> Refused | None:
        """The refusal if the queue's own limit allows no more attached consumers, else None."""
        config = self._messages.config
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
        owned, allowed = self.selector_bytes, self._limits.max_selector_bytes
        if more <= 0 or owned.has_room(owner, allowed, more):
            return None
        return Refused(
            "limit",
            f"{owned.counts.get(owner, 0)} bytes of selectors of this client address's consumers, {more} more asked "
            f"for; allowed: as many as are left free of {allowed}, {max(0, allowed - owned.total)} now",
        )

    def add(self, producer: Producer, tag: str) -> Consumer:
        """Adds a consumer of a session, which is not attached yet. That of Get has no tag, and never is."""
        max_checked_out, owner = self._limits.max_checked_out, producer.owner
        made = Consumer(
            producer.name, tag, producer.address, self.next_attach, None, max_checked_out, owner=owner
        )
        self.next_attach += 1
        self.by_key[made.key] = made
        self.owned.add(made.owner)
        return made

    def set_credit(self, entry: Entry, consumer: Consumer, credit_to: int) -> None:
        consumer.credit_to = credit_to
        self._groups.credit_changed(consumer, entry)

    def credit(self, entry: Entry, producer: bytes, command: Credit) -> Reply:
        consumer = self.by_key.get((producer, command.consumer_tag))
        if consumer is None or consumer.group is None:
            return self._not_attached(command.consumer_tag)
        if command.credit_to < 0:
            return Refused("bad_argument", f"credit up to tag {command.credit_to}; allowed: 0 and above")
        self.set_credit(entry, consumer, command.credit_to)
        if command.drain:
            self._groups.draining[consumer.key] = consumer
        return Ok()

    def end_drains(self, entry: Entry) -> None:
        """Voids the remaining credit of draining consumers, which have received all messages that there were."""
        for consumer in list(self._groups.draining.values()):
            self.set_credit(entry, consumer, consumer.next_tag - 1)
            event = Notify(
                consumer.address,
                self._messages.queue,
                consumer.tag,
                consumer.attach,
                "drained",
                consumer.next_tag,
            )
            entry.effects.append(event)
        self._groups.draining.clear()

    def cancel(self, entry: Entry, producer: bytes, tag: str, requeue: bool) -> Reply:
        consumer = self.by_key.get((producer, tag))
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
        self._messages.requeue_of_each(entry, [each.checked_out.remove_all() for each in consumers])

    def _leave(self, consumer: Consumer) -> None:
        """Ends deliveries to a consumer."""
        self.attached_count -= consumer.group is not None
        self.selector_bytes.remove(consumer.owner, consumer.selector_bytes)
        self._groups.leave(consumer)
        consumer.timed_out = None
        if self.single_active is not None:
            self.single_active.leave(consumer)

    def _drop(self, consumer: Consumer) -> None:
        del self.by_key[consumer.key]
        self.owned.remove(consumer.owner)
        self.timeouts.forget(consumer)

    def _not_attached(self, tag: str) -> Refused:
        return Refused(
            "not_attached",
            f"no consumer {tag!r} of this session is attached to {self._messages.config.name!r}",
        )

    # ---- outcomes of deliveries

    def settle(self, entry: Entry, producer: bytes, command: Settle) -> Reply:
        """Settle, Return, Discard and Modify. Messages that an open transaction settles are left to it."""
        consumer = self.holder(producer, command)
        if isinstance(consumer, Refused):
            return consumer
        was_full = consumer.is_full
        ranges = consumer.checked_out.remove_many(command.tags)
        if type(command) is Settle:
            self._messages.settle(ranges)
        elif isinstance(command, Discard) or (isinstance(command, Modify) and command.undeliverable_here):
            self._messages.settle(ranges, "rejected")
        else:
            failed = isinstance(command, Modify) and command.delivery_failed
            self._messages.requeue(entry, ranges, failed=failed)
        if consumer.answer_late(command.tags):
            self._resume(entry, consumer)
        self.has_settled(entry, consumer, command.credit_to, was_full=was_full)
        return Ok(sum(count for _, count in ranges))

    def holder(self, producer: bytes, command: Settle) -> Consumer | Refused:
        """The consumer whose messages a command settles."""
        consumer = self.by_key.get((producer, command.consumer_tag))
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

    def has_settled(self, entry: Entry, consumer: Consumer, credit_to: int, *, was_full: bool) -> None:
        """Notes what follows for a consumer from the end of some of its checked-out messages."""
        if consumer.group is not None:
            if credit_to:
                self.set_credit(entry, consumer, credit_to)
            elif was_full:
                self._groups.credit_changed(consumer, entry)
        elif consumer.tag and not consumer.held_count:
            self._drop(consumer)  # it was cancelled before

    def take_credit(self, entry: Entry, producer: bytes, command: Settle) -> bool:
        """Gives a consumer the credit that a settlement of a transaction brings, also if that is about to be refused:
        the client sends it once. Returns whether it brings any."""
        consumer = self.holder(producer, command)
        if isinstance(consumer, Refused) or consumer.group is None or not command.credit_to:
            return False
        self.set_credit(entry, consumer, command.credit_to)
        return True

    def _resume(self, entry: Entry, consumer: Consumer) -> None:
        """Lets a consumer go on that has answered all its messages that timed out."""
        if self.single_active is not None:
            self.single_active.join(consumer)
        else:
            consumer.is_active = True
            self._groups.credit_changed(consumer, entry)

    # ---- timeouts

    def configure_timeout(self, entry: Entry, *, had_timeout: bool) -> None:
        """Follows the queue's new configuration. A consumer timeout that the queue did not have before begins now for
        all messages that are checked out."""
        timeout_ms = self._messages.config.consumer_timeout_ms
        if timeout_ms < 0:
            self.timeouts.marks.clear()
        elif not had_timeout:
            holders = [consumer for consumer in self.by_key.values() if consumer.held_count]
            self.timeouts.note(entry.now_ms, timeout_ms, holders)
        else:
            self.timeouts.shorten(entry.now_ms, timeout_ms)

    def overdue(self, now_ms: int) -> list[Consumer]:
        """The consumers that have held messages for too long, and of which open transactions settle some."""
        timeout_ms = self._messages.config.consumer_timeout_ms
        found: dict[Key, Consumer] = {}
        for end, mark in self.timeouts.marks.items():
            if end + timeout_ms > now_ms:
                break
            found.update(
                {each.key: each for each, tag in mark.items() if each.embargoed and each.has_up_to(tag)}
            )
        return list(found.values())

    def time_out(self, entry: Entry, gone: list[Key]) -> bool:
        """Requeues messages that were held for too long. A single active consumer loses all that it holds, because
        another one is to be active. False if a budget left some."""
        left, timeout_ms = entry.budget(self._messages.queue).left, self._messages.config.consumer_timeout_ms
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
        self._messages.requeue(entry, overdue.ranges(), failed=False)
        if consumer.group is None:
            return
        consumer.time_out(overdue)
        if self.single_active is not None:
            self.single_active.leave(consumer)
        self._groups.credit_changed(consumer)
        place = (consumer.address, self._messages.queue, consumer.tag, consumer.attach)
        entry.effects.append(Notify(*place, "timed_out", tag))
