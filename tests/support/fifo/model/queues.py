"""A queue of the model (group.py): its messages and consumers, and which message goes to which consumer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fifo import commands as c
from fifo import effects as e
from fifo.limits import Limits
from quorum_selectors.errors import EncodingError
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import field_names
from support.fifo.model.dead import Dead, ModelDead
from support.fifo.model.message_groups import ModelMessageGroups
from support.fifo.model.pins import ModelPins
from support.fifo.model.records import (
    NEVER,
    Left,
    Line,
    Message,
    ModelConsumer,
    ModelProducer,
    delivered,
    tree_of,
)
from support.fifo.model.scans import END, ModelFronts
from support.fifo.model.staging import Fields, ModelStaging, due_at, is_crowded, key_of, priority_of
from support.fifo.model.subscriptions import ModelSubscriptions
from support.fifo.model.transactions import ModelSettlement


class ModelQueue:
    def __init__(
        self, queue: int, config: c.QueueConfig, rules: Limits, queues: dict[int, ModelQueue], version: int
    ) -> None:
        """queues: all of the group."""
        self.queue, self.config, self.rules, self.queues = queue, config, rules, queues
        self.messages: list[Message] = []
        self.next_sequence = 1
        self.past_number = queue << 32 if version >= 2 else 0  # of attachments, generations and pins
        self.next_attach = self.past_number + 1
        self.consumers: list[ModelConsumer] = []
        self.groups: dict[bytes, Line] = {}
        self.line: list[Line] = []
        self.draining: list[ModelConsumer] = []
        self.earliest: dict[int, int] = {}
        self.placed: dict[int, list[int]] = {}
        """by block, the sizes of all messages that came since it was empty"""
        self.counts: Counter[str] = Counter()
        """messages that have left by cause, and those that were returned or redelivered"""
        self.unfinished = False
        self.deliveries: list[tuple[int, ModelConsumer, int]] = []
        """by the time that counts: consumer and tag, while there is a timeout"""
        self.used_ms: int | None = None  # None while it is in use, or if it does not expire
        self.subscriptions = ModelSubscriptions(self)
        self.staged = ModelStaging(self)
        self.pins = ModelPins(self)
        self.dead = ModelDead(self)
        self.fronts = ModelFronts(self)
        self.reserved: Callable[[], list[int]] = list
        """the sizes of the messages that prepared transactions publish"""
        self.prepared: Callable[[], list[ModelSettlement]] = list
        """what prepared transactions settle"""
        self.message_groups = ModelMessageGroups(self)

    # ---- small questions

    def ready(self) -> list[Message]:
        return [message for message in self.messages if message.is_ready]

    def delayed(self) -> list[Message]:
        return [message for message in self.messages if message.due_ms >= 0]

    def waiting(self) -> list[Message]:
        """Those that limits count."""
        return [message for message in self.messages if not message.is_held]

    def in_order(self) -> list[Message]:
        """The ready ones as they are handed out."""
        return sorted(self.ready(), key=lambda message: (-message.priority, message.sequence))

    def ready_levels(self) -> dict[int, int]:
        if self.config.max_priority < 0:
            return {}
        return dict(Counter(message.priority for message in self.ready()))

    def block_of(self, message: Message) -> int:
        return message.sequence // self.rules.block_size

    def block_numbers(self) -> list[int]:
        numbers = {self.block_of(message) for message in self.messages}
        tail = self.next_sequence // self.rules.block_size
        if self.next_sequence > max(tail * self.rules.block_size, 1):
            numbers.add(tail)
        return sorted(numbers)

    def find(self, producer: bytes, tag: str) -> ModelConsumer | None:
        return next((x for x in self.consumers if (x.producer, x.tag) == (producer, tag)), None)

    def credit(self, consumer: ModelConsumer) -> int:
        if not consumer.is_active:
            return 0
        room = self.rules.max_checked_out - len(consumer.checked_out)
        return max(0, min(consumer.credit_to + 1 - consumer.next_tag, room))

    def next_expiry(self) -> int | None:
        others = [*self.staged.expiries(), *self.subscriptions.due_times(), *self.pins.due_times()]
        others += [time + self.config.consumer_timeout_ms for time, _, _ in self.deliveries]
        others += [message.due_ms for message in self.delayed()]
        if self.used_ms is not None:
            others.append(self.unused_at(self.used_ms))
        return min([*self.earliest.values(), *others], default=None)

    def note_use(self, now_ms: int, *, in_transaction: bool) -> None:
        has_users = in_transaction or self.pins.pins or self.dead.messages
        has_users = has_users or any(x.selector is not None or x.checked_out for x in self.consumers)
        if self.config.expires_ms < 0 or has_users:
            self.used_ms = None
        elif self.used_ms is None:
            self.used_ms = now_ms

    def unused_at(self, used_ms: int) -> int:
        heard = [each.last_seen_ms + each.timeout_ms for each in self.subscriptions.subscriptions]
        return max([used_ms, *heard]) + self.config.expires_ms

    # ---- changes

    def place(
        self,
        meta: c.Meta,
        body: tuple[int, int, int],
        ttl: int,
        fields: Fields,
        *,
        is_alone: bool,
        texts: int,
        size: int,
        priority: int,
        due_ms: int,
        key: int,
    ) -> None:
        """priority, key: as the message says."""
        ttls = [x for x in (ttl, self.config.message_ttl_ms) if x >= 0]
        expiry = max(meta.now_ms, due_ms) + min(ttls) if ttls else NEVER
        self.fronts.stay(meta)
        priority = min(priority, max(self.config.max_priority, 0))
        key = key if self.config.message_groups else 0
        message = Message(self.next_sequence, body, expiry, meta.index, fields, is_alone, priority, key)
        message.due_ms = due_ms if due_ms > meta.now_ms else -1
        self.fronts.note_texts(self.next_sequence, texts)
        self.next_sequence += 1
        known = [*self.messages, *(each.message for each in self.dead.messages)]
        here = [each for each in known if self.block_of(each) == self.block_of(message)]
        if self.config.max_length_bytes >= 0:
            for other in here:
                other.size = self.size_of(other)
        if self.config.max_length_bytes >= 0 or any(other.size is not None for other in here):
            message.size = size
        self.placed.setdefault(self.block_of(message), []).append(size)
        self.messages.append(message)
        if message.is_ready:
            self.note_expiry(message)

    def size_of(self, message: Message) -> int:
        """As a limit counts it: by the mean of its block if it came before there was a limit."""
        placed = self.placed[self.block_of(message)]
        return sum(placed) // len(placed) if message.size is None else message.size

    def ready_bytes(self) -> int:
        return sum(self.size_of(message) for message in self.ready())

    def waiting_bytes(self) -> int:
        return sum(self.size_of(message) for message in self.waiting())

    def fits(self, sizes: Sequence[int]) -> bool:
        config = self.config
        if config.overflow != "reject_publish":
            return True
        sizes = [*sizes, *self.reserved()]
        count = len(self.waiting()) + len(self.dead.messages) + len(sizes)
        size = self.waiting_bytes() + self.dead.size_bytes() + sum(sizes)
        return (config.max_length < 0 or count <= config.max_length) and (
            config.max_length_bytes < 0 or size <= config.max_length_bytes
        )

    def room(self, size: int, wanted: int) -> int:
        """How many of the messages it takes until it is full."""
        return max(count for count in range(wanted + 1) if not count or self.fits([size] * count))

    def publish(
        self,
        meta: c.Meta,
        operation: int,
        command: c.Enqueue,
        rows: dict[int, Fields],
        fresh: list[int],
    ) -> bool:
        """rows: the fields of the queue's messages in the batch by ordinal."""
        config, size = self.config, command.size_bytes // command.count
        if not self.fits([size] * len(fresh)):
            return False
        texts = self.fronts.text_factor(list(rows.values())) if config.filter_enabled else 0
        for ordinal in fresh:
            ttl = command.ttls_ms[ordinal] if command.ttls_ms else command.ttl_ms
            body = (meta.index, operation, ordinal)
            fields = rows[ordinal] if rows else {}
            is_alone = command.count == 1
            own = {
                "priority": priority_of(command.priorities, ordinal),
                "due_ms": due_at(meta.now_ms, command.due_times_ms, ordinal),
                "key": key_of(command.group_keys, ordinal),
            }
            self.place(meta, body, ttl, fields, is_alone=is_alone, texts=texts, size=size, **own)
        return True

    def note_expiry(self, message: Message) -> None:
        number = self.block_of(message)
        if message.expiry < self.earliest.get(number, NEVER):
            self.earliest[number] = message.expiry

    def gone(self, message: Message, cause: str) -> None:
        if self.dead.takes(cause):
            self.dead.messages.append(Dead(message, cause))
        else:
            self.counts[cause] += 1
        if message.is_ready:
            self.pins.ready_changes(message)
        message.is_gone = True
        self.messages.remove(message)
        number = self.block_of(message)
        if not any(self.block_of(other) == number for other in self.messages):
            self.earliest.pop(number, None)
        self.forget_sizes(number)

    def forget_sizes(self, number: int) -> None:
        """A block without messages does not know how large those before were."""
        known = [*self.messages, *(each.message for each in self.dead.messages)]
        if not any(self.block_of(each) == number for each in known):
            self.placed.pop(number, None)

    def put_back(self, meta: c.Meta, messages: Sequence[Message], failed: bool) -> None:
        for message in messages:
            message.was_delivered = True
            message.failures += failed
        for message in messages:
            if failed and 0 <= self.config.delivery_limit < message.failures:
                self.gone(message, "delivery_limit")
            elif message.expiry <= meta.now_ms and message.index != meta.index:
                self.gone(message, "expired")
            elif self.config.delayed_retry_min_ms > 0:
                message.is_held = False
                message.due_ms = meta.now_ms + self.retry_delay(message)
                self.counts["returned"] += 1
            else:
                message.is_held = False
                self.counts["returned"] += 1
                self.is_ready_again(message)

    def retry_delay(self, message: Message) -> int:
        delay = self.config.delayed_retry_min_ms * max(message.failures, 1)
        return delay if self.config.delayed_retry_max_ms < 0 else min(delay, self.config.delayed_retry_max_ms)

    def is_ready_again(self, message: Message) -> None:
        self.pins.ready_changes(message)
        self.note_expiry(message)

    def end_delays(self, meta: c.Meta, left: Left) -> None:
        """Block by block, the earliest first."""
        while left.rest.due < self.rules.block_budget:
            due_ms, number = min(
                [(message.due_ms, self.block_of(message)) for message in self.delayed()], default=(NEVER, 0)
            )
            if due_ms > meta.now_ms:
                return
            left.rest.due += 1
            here = [message for message in self.delayed() if self.block_of(message) == number]
            due = [message for message in here if message.due_ms <= meta.now_ms]
            for message in due:
                if message.expiry > meta.now_ms or message.index == meta.index:
                    message.due_ms = -1
                    self.is_ready_again(message)
            for message in due:
                if not message.is_ready:
                    self.gone(message, "expired")

    def expire_block(self, meta: c.Meta, left: Left, number: int, spared: int) -> None:
        left.rest.blocks -= 1
        left.expired.add(number)
        here = [message for message in self.ready() if self.block_of(message) == number]
        due = [message for message in here if message.expiry <= meta.now_ms and message.index != spared]
        rest = [message.expiry for message in here if message not in due]
        self.earliest.pop(number, None)
        if min(rest, default=NEVER) < NEVER:
            self.earliest[number] = min(rest)
        for message in due:
            self.gone(message, "expired")

    # ---- consumers

    def attach(self, meta: c.Meta, producer: ModelProducer, command: c.Attach) -> e.Reply:
        if not command.consumer_tag or command.credit_to < 0 or not -10 <= command.priority <= 10:
            return e.Refused("bad_argument", "")
        known = self.find(producer.name, command.consumer_tag)
        as_known = known is not None and (known.selector, known.priority, known.timed_out)
        if known is not None and as_known == (command.selector, command.priority, []):
            self.set_credit(known, command.credit_to)
            return e.AttachedReply(known.attach)
        refused = self.refuse_selector(command.selector)
        if refused is not None:
            return refused
        attached = sum(x.selector is not None for x in self.consumers)
        if (known is None or known.selector is None) and 0 <= self.config.max_consumers <= attached:
            return e.Refused("limit", "")
        owners = [x.owner for x in self.consumers]
        if known is None and is_crowded(owners, producer.owner, self.rules.max_consumers):
            return e.Refused("limit", "")
        more = len(command.selector) - len((known and known.selector) or b"")
        everybody = [x for queue in self.queues.values() for x in queue.consumers]
        own, total = (
            sum(len(x.selector or b"") for x in everybody if x.owner in who)
            for who in ([producer.owner], [x.owner for x in everybody])
        )
        if more > 0 and own + more > self.rules.max_selector_bytes - total:
            return e.Refused("limit", "")
        if known is not None:
            self.remove(meta, known)
        consumer = self.add_consumer(producer, command.consumer_tag, command.selector)
        consumer.priority = command.priority
        consumer.is_active = not self.config.single_active_consumer
        self.use_group(command.selector)
        self.set_credit(consumer, command.credit_to)
        return e.AttachedReply(consumer.attach)

    def refuse_selector(self, selector: bytes) -> e.Refused | None:
        if not selector:
            return None
        if not self.config.filter_enabled:
            return e.Refused("bad_argument", "")
        try:
            keys = field_names(tree_of(selector))
        except EncodingError:
            return e.Refused("bad_argument", "")
        kept = self.config.filter_field_names
        prefix = "application-properties."
        for key in keys:
            name = key.removeprefix(prefix)
            if not (name in kept or ("*" in kept and key.startswith(prefix))):
                return e.Refused("field_not_kept", "")
        return None

    def use_group(self, selector: bytes) -> None:
        self.groups.setdefault(selector, Line(selector))

    def forget_group(self, selector: bytes) -> None:
        """If nobody is in it."""
        consumers = [each.selector for each in self.consumers]
        subscriptions = [each.selector for each in self.subscriptions.subscriptions]
        if selector not in consumers + subscriptions:
            self.groups.pop(selector, None)

    def rest(self, group: Line) -> None:
        if group.scan_position == END and not group.consumers:
            self.fronts.leave(group)

    def add_consumer(self, producer: ModelProducer, tag: str, selector: bytes | None) -> ModelConsumer:
        consumer = ModelConsumer(producer.name, tag, producer.address, self.next_attach, selector)
        self.next_attach += 1
        consumer.owner = producer.owner
        self.consumers.append(consumer)
        return consumer

    def set_credit(self, consumer: ModelConsumer, credit_to: int) -> None:
        consumer.credit_to = credit_to
        self.update_line(consumer)

    def update_line(self, consumer: ModelConsumer) -> None:
        if consumer.selector is None:
            return
        group = self.groups[consumer.selector]
        if self.credit(consumer) > 0:
            if consumer not in group.consumers:
                group.consumers.append(consumer)
            if group not in self.line:
                self.line.append(group)
                if group.selector and (group.scan_position >= self.next_sequence or not self.messages):
                    if not self.messages:
                        self.fronts.behind = None
                    self.fronts.join(group)
        elif consumer in group.consumers:
            group.consumers.remove(consumer)
            if not group.consumers:
                self.line.remove(group)
                self.rest(group)

    def stop(self, consumer: ModelConsumer) -> None:
        if consumer.selector is None:
            return
        self.set_credit(consumer, 0)
        if consumer in self.draining:
            self.draining.remove(consumer)
        selector, consumer.selector = consumer.selector, None
        consumer.timed_out = []
        self.forget_group(selector)

    def remove(self, meta: c.Meta, consumer: ModelConsumer) -> None:
        self.stop(consumer)
        self.drop(consumer)
        checked_out = list(consumer.checked_out.values())
        consumer.checked_out = {}
        self.put_back(meta, checked_out, failed=False)

    def drop(self, consumer: ModelConsumer) -> None:
        self.consumers.remove(consumer)
        self.deliveries = [each for each in self.deliveries if each[1] is not consumer]

    # ---- the consumer timeout

    def note(self, meta: c.Meta, consumer: ModelConsumer, tags: Sequence[int]) -> None:
        """Messages were delivered."""
        timeout_ms = self.config.consumer_timeout_ms
        if timeout_ms >= 0:
            step = max(timeout_ms // 16, 1)
            time = max([(meta.now_ms + step - 1) // step * step, *(time for time, _, _ in self.deliveries)])
            self.deliveries += [(time, consumer, tag) for tag in tags]

    def time_out(
        self, meta: c.Meta, left: Left, effects: list[Any], embargoed: Sequence[ModelConsumer]
    ) -> bool:
        """False if a budget or a transaction left something."""
        while self.deliveries:
            time, consumer, _ = self.deliveries[0]
            if time + self.config.consumer_timeout_ms > meta.now_ms:
                return True
            mark = [each for each in self.deliveries if each[:2] == (time, consumer)]
            last = max(tag for _, _, tag in mark)
            is_overdue = any(tag <= last for tag in consumer.checked_out)
            if is_overdue and consumer in embargoed:
                return False
            if is_overdue and self.config.single_active_consumer:
                last = consumer.next_tag - 1
            tags = [tag for tag in consumer.checked_out if tag <= last]
            cost = max(len(tags), 1)
            if left.rest.moved and left.rest.moved + cost > self.rules.message_budget:
                return False
            left.rest.moved += cost
            self.deliveries = [each for each in self.deliveries if each not in mark]
            self.put_back(meta, [consumer.checked_out.pop(tag) for tag in tags], failed=False)
            if tags and consumer.selector is not None:
                consumer.timed_out += tags
                consumer.is_active = False
                self.update_line(consumer)
                place = (consumer.address, self.queue, consumer.tag, consumer.attach)
                effects.append(("notify", *place, "timed_out", last))
            if consumer.tag and consumer.selector is None and not consumer.checked_out:
                self.drop(consumer)
        return True

    def answer_late(self, consumer: ModelConsumer, ranges: Sequence[tuple[int, int]]) -> None:
        before = consumer.timed_out
        answered = [tag for tag in before for first, last in ranges if first <= tag <= last]
        consumer.timed_out = [tag for tag in before if tag not in answered]
        if before and not consumer.timed_out:
            consumer.is_active = not self.config.single_active_consumer
            self.update_line(consumer)

    def configure(self, meta: c.Meta, config: c.QueueConfig) -> None:
        had_timeout, self.config = self.config.consumer_timeout_ms >= 0, config
        if config.consumer_timeout_ms < 0:
            self.deliveries = []
        elif not had_timeout:
            for consumer in self.consumers:
                if consumer.checked_out:
                    self.note(meta, consumer, [consumer.next_tag - 1])
        else:
            step = max(config.consumer_timeout_ms // 16, 1)
            latest = (meta.now_ms + step - 1) // step * step
            self.deliveries = [(min(time, latest), consumer, tag) for time, consumer, tag in self.deliveries]

    # ---- handing out

    def hand(self, consumer: ModelConsumer, message: Message) -> int:
        tag = consumer.next_tag
        consumer.next_tag += 1
        consumer.checked_out[tag] = message
        self.hold(message)
        return tag

    def hold(self, message: Message) -> None:
        self.pins.ready_changes(message)
        message.is_held = True
        self.counts["redelivered"] += message.was_delivered

    def choose(
        self,
        meta: c.Meta,
        left: Left,
        group: Line | None,
        wanted: int,
        start: int = 0,
        *,
        is_reserved: bool = False,
    ) -> tuple[list[Message], bool]:
        """The messages of one turn, and False if the budget ended it. Without priorities, or for a reservation, the
        scan waits until no match is left."""
        is_by_priority = self.config.max_priority > 0 and not is_reserved
        is_scanned = True
        if is_by_priority and group is not None and group.selector:
            while is_scanned and not self.fronts.is_at_end(group):
                is_scanned = self.fronts.pass_messages(left, group)
        chosen: list[Message] = []
        before: Message | None = None  # the last one, if the next may belong to its run
        while len(chosen) < wanted:
            message = self.next_match(group, chosen, start, is_by_priority=is_by_priority)
            is_new = message is None or not (is_reserved or self.belongs(before, message))
            if is_new and left.rest.runs <= 0 and (chosen or message is not None):
                return chosen, False
            if message is None:
                before = None
                if group is None or not group.selector or is_by_priority:
                    return chosen, is_scanned
                if self.fronts.is_at_end(group):
                    return chosen, True
                if not self.fronts.pass_messages(left, group):
                    return chosen, False
                continue
            number = self.block_of(message)
            if self.earliest.get(number, NEVER) <= meta.now_ms and number not in left.expired:
                if not left.rest.blocks:
                    return chosen, False
                self.expire_block(meta, left, number, meta.index)
                continue
            chosen.append(message)
            left.rest.runs -= is_new
            before = message
        return chosen, True

    def belongs(self, before: Message | None, message: Message) -> bool:
        """Whether a message is handed out in one run with another. What is reserved is not described."""
        if before is None or before.sequence + 1 != message.sequence:
            return False
        if self.block_of(before) != self.block_of(message):
            return False
        index, operation, ordinal = before.body
        after = (index, operation + 1, 0) if message.is_alone else (index, operation, ordinal + 1)
        alike = before.is_alone == message.is_alone and before.expiry == message.expiry
        alike = alike and before.size == message.size
        return alike and before.priority == message.priority and message.body == after

    def next_match(
        self, group: Line | None, chosen: list[Message], start: int, *, is_by_priority: bool
    ) -> Message | None:
        for message in self.in_order() if is_by_priority else self.ready():
            if message in chosen or message.sequence < start:
                continue
            if group is None or not group.selector:
                return message
            expression = tree_of(group.selector)
            if message.sequence < self.fronts.place(group) and evaluate(expression, message.fields) is True:
                return message
        return None

    def finish(
        self, meta: c.Meta, left: Left, effects: list[Any], embargoed: Sequence[ModelConsumer]
    ) -> None:
        """embargoed: consumers of which a transaction settles something."""
        is_returned = self.subscriptions.finish(meta, left)
        is_returned = self.time_out(meta, left, effects, embargoed) and is_returned
        self.end_delays(meta, left)
        if self.config.single_active_consumer:
            self.elect(effects)
        is_done = self.checkout(meta, left, effects)
        if is_done:
            for consumer in self.draining:
                self.set_credit(consumer, consumer.next_tag - 1)
                place = (consumer.address, self.queue, consumer.tag, consumer.attach)
                effects.append(("notify", *place, "drained", consumer.next_tag))
            self.draining = []
        while left.rest.blocks and self.earliest and min(self.earliest.values()) <= meta.now_ms:
            number = min(self.earliest, key=lambda number: (self.earliest[number], number))
            self.expire_block(meta, left, number, -1)
        self.staged.expire(meta.now_ms)
        if is_done:
            is_done = self.drop_head(left)
        is_unpinned = self.pins.finish(meta, left)
        self.unfinished = not (is_done and is_returned and is_unpinned)

    def elect(self, effects: list[Any]) -> None:
        """The single active consumer."""
        attached = [x for x in self.consumers if x.selector is not None and not x.timed_out]
        if not attached:
            return
        wanted = min(attached, key=lambda each: (-each.priority, not each.is_active, each.attach))
        for consumer in attached:
            if consumer.is_active and consumer is not wanted:
                self.set_active(consumer, False, effects)
        held = sum(message.is_held for message in self.messages)
        if not wanted.is_active and held == len(wanted.checked_out):
            self.set_active(wanted, True, effects)

    def set_active(self, consumer: ModelConsumer, is_active: bool, effects: list[Any]) -> None:
        consumer.is_active = is_active
        self.update_line(consumer)
        place = (consumer.address, self.queue, consumer.tag, consumer.attach)
        effects.append(("notify", *place, "active" if is_active else "inactive", 0))

    def checkout(self, meta: c.Meta, left: Left, effects: list[Any]) -> bool:
        if not self.line or not self.ready():
            return True
        self.fronts.move(meta, left)
        is_filed = not self.config.message_groups or self.message_groups.file(left)
        given: dict[ModelConsumer, list[int]] = {}
        is_done = True
        priorities = {consumer.priority for group in self.line for consumer in group.consumers}
        for priority in sorted(priorities, reverse=True):
            is_done = self.serve(meta, left, priority, given) and is_filed
            if not is_done or (self.fronts.behind is not None and self.fronts.sharing_with(priority)):
                break
        effects.extend([delivered(consumer, self.queue, tags) for consumer, tags in given.items()])
        for consumer, tags in given.items():
            self.note(meta, consumer, tags)
        is_done = is_done and self.fronts.behind is None
        if self.config.message_groups and self.line and self.message_groups.may_file():
            is_done = False
        return is_done and bool(
            min(left.rest.messages, left.rest.runs) > 0 or not self.line or not self.ready()
        )

    def serve(self, meta: c.Meta, left: Left, priority: int, given: dict[ModelConsumer, list[int]]) -> bool:
        """The consumers of one priority; False if the budget ended it."""
        waiting = [group for group in self.line if group.of(priority)]
        eligible = sum(len(group.of(priority)) for group in waiting)
        share = NEVER if eligible == 1 else min(self.rules.quantum, -(-len(self.ready()) // eligible))
        opens = self.message_groups.share(eligible)
        is_done = True
        while waiting and self.ready():
            if left.rest.messages <= 0 or left.rest.runs <= 0:
                break
            group = waiting.pop(0)
            consumer = group.of(priority)[0]
            wanted = min(self.credit(consumer), share, left.rest.messages)
            if self.config.message_groups:
                chosen, is_complete = self.message_groups.choose(meta, left, consumer, group, wanted, opens)
            else:
                chosen, is_complete = self.choose(meta, left, group, wanted)
            is_done = is_done and is_complete
            if not chosen:
                continue
            self.give(left, group, consumer, chosen, given)
            if group.of(priority):
                waiting.append(group)
        for consumer in self.message_groups.continuing(priority):
            if left.rest.messages <= 0 or left.rest.runs <= 0:
                break
            assert consumer.selector is not None
            group, wanted = self.groups[consumer.selector], min(self.credit(consumer), left.rest.messages)
            chosen, is_complete = self.message_groups.choose(meta, left, consumer, group, wanted, 0)
            is_done = is_done and is_complete
            if chosen:
                self.give(left, group, consumer, chosen, given)
        return is_done

    def give(
        self,
        left: Left,
        group: Line,
        consumer: ModelConsumer,
        chosen: Sequence[Message],
        given: dict[ModelConsumer, list[int]],
    ) -> None:
        """The end of a turn that found something."""
        left.rest.messages -= len(chosen)
        given.setdefault(consumer, []).extend([self.hand(consumer, message) for message in chosen])
        group.consumers.remove(consumer)
        self.line.remove(group)
        if self.credit(consumer) > 0:
            group.consumers.append(consumer)
        if group.consumers:
            self.line.append(group)
        else:
            self.rest(group)

    def drop_head(self, left: Left) -> bool:
        if self.config.overflow != "drop_head":
            return True
        while self.is_over():
            if not left.rest.blocks:
                return False
            if not self.ready():
                self.drop_next(left)
                continue
            left.rest.blocks -= 1
            lowest = min([message.priority for message in self.ready()], default=0)
            least = [message for message in self.ready() if message.priority == lowest]
            for message in least:
                if self.is_over() and self.block_of(message) == self.block_of(least[0]):
                    self.gone(message, "maxlen")
        return True

    def drop_next(self, left: Left) -> None:
        """Drops delayed messages, those that are due next first: of one block, or of twice as many until these have
        enough that are due before those of any other block."""
        delayed = sorted(self.delayed(), key=lambda each: (each.due_ms, self.block_of(each), each.sequence))
        blocks: list[int] = []
        starts: list[tuple[int, int]] = []
        for message in delayed:
            if self.block_of(message) not in blocks:
                blocks.append(self.block_of(message))
                starts.append((message.due_ms, blocks[-1]))
        width, most = 1, min(left.rest.blocks, len(blocks))
        left.rest.blocks -= 1
        for message in delayed:
            if not self.is_over():
                return
            while width < len(blocks) and (message.due_ms, self.block_of(message)) >= starts[width]:
                if width == most:
                    return
                left.rest.blocks -= min(2 * width, most) - width
                width = min(2 * width, most)
            self.gone(message, "maxlen")

    def is_over(self) -> bool:
        config = self.config
        is_long = 0 <= config.max_length < len(self.waiting())
        return is_long or 0 <= config.max_length_bytes < self.waiting_bytes()
