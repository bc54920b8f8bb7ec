"""The part of the model (group.py) that is about transactions: lists of single messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fifo import commands as c
from fifo import effects as e
from support.fifo.model.immediate import taken_at_once
from support.fifo.model.staging import Fields, due_at, is_crowded, key_of, priority_of

if TYPE_CHECKING:
    from support.fifo.model.group import ModelGroup
    from support.fifo.model.records import Message, ModelConsumer, ModelProducer


@dataclass(eq=False)
class ModelBatch:
    """What one queue gets of a batch. messages: (ordinal, TTL, due time, fields, priority, key). rows: the fields of
    all messages that are for the queue, also those that it does not get; none if there are no columns."""

    queue: int
    body: tuple[int, int]  # index, operation
    batch_count: int
    size_bytes: int
    messages: list[tuple[int, int, int, Fields, int, int]]
    rows: list[Fields]

    def sizes(self) -> list[int]:
        return [self.size_bytes // len(self.messages) for _ in self.messages]

    def ranges(self) -> int:
        return sum(
            1
            for place, (ordinal, ttl, due_ms, *_) in enumerate(self.messages)
            if not place or (ordinal - 1, ttl, due_ms) != self.messages[place - 1][:3]
        )

    def offered(self) -> int:
        return self.ranges()


@dataclass(eq=False)
class ModelSettlement:
    queue: int
    consumer: ModelConsumer
    command: c.Settle
    messages: dict[int, Message]  # by tag
    is_prepared: bool = False
    """it has the messages, no longer their consumer"""

    size_bytes = 0

    def ranges(self) -> int:
        """Runs of neighbouring tags of neighbouring messages."""
        return runs([(tag, message.sequence) for tag, message in self.messages.items()])

    def offered(self) -> int:
        """The same within each range of tags, as the limits count it beforehand."""
        return sum(
            runs([(tag, self.messages[tag].sequence) for tag in range(first, last + 1)])
            for first, last in self.command.tags
        )


def runs(held: list[tuple[int, int]]) -> int:
    return sum(
        not place or (tag - 1, number - 1) != held[place - 1] for place, (tag, number) in enumerate(held)
    )


ModelPart = ModelBatch | ModelSettlement


@dataclass(eq=False)
class ModelTransaction:
    producer: ModelProducer
    number: int
    began_ms: int
    parts: list[ModelPart] = field(default_factory=list)
    owner: int = c.UNKNOWN
    """once it is prepared or decided"""

    def is_of(self, name: bytes, number: int) -> bool:
        return (self.producer.name, self.number) == (name, number)


class ModelTransactions:
    """The open transactions of a group, the prepared and the decided ones, each the oldest first."""

    def __init__(self, group: ModelGroup) -> None:
        self.group = group
        self.open: list[ModelTransaction] = []
        self.prepared: list[ModelTransaction] = []
        self.decided: list[ModelTransaction] = []

    def find(self, producer: ModelProducer, number: int) -> ModelTransaction | None:
        return next((x for x in self.open if (x.producer, x.number) == (producer, number)), None)

    def next_due(self) -> list[int]:
        return [x.began_ms + self.group.rules.transaction_ms for x in self.open]

    def tags(self, consumer: ModelConsumer) -> set[int]:
        """The tags that only their transactions settle."""
        return {
            tag
            for x in self.open
            for part in x.parts
            if isinstance(part, ModelSettlement) and part.consumer is consumer
            for tag in part.messages
        }

    def has_part(self, queue: int) -> bool:
        return any(part.queue == queue for x in [*self.open, *self.prepared] for part in x.parts)

    def reserved(self, queue: int) -> list[int]:
        """The sizes of the messages that prepared transactions publish to a queue."""
        parts = [part for x in self.prepared for part in x.parts if part.queue == queue]
        return [size for part in parts if isinstance(part, ModelBatch) for size in part.sizes()]

    def prepared_settlements(self, queue: int) -> list[ModelSettlement]:
        parts = [part for x in self.prepared for part in x.parts if part.queue == queue]
        return [part for part in parts if isinstance(part, ModelSettlement)]

    def is_in_doubt(self, name: bytes) -> bool:
        return any(x.producer.name == name for x in self.prepared)

    # ---- commands

    def answer(self, operation: int, producer: ModelProducer, command: object) -> e.Reply:
        if isinstance(command, c.InTransaction):
            return self.embargo(operation, producer, command)
        assert isinstance(command, c.Commit | c.Rollback | c.Prepare | c.Decide)
        number, found = command.tx, self.find(producer, command.tx)
        if isinstance(command, c.Prepare) and any(x.is_of(producer.name, number) for x in self.prepared):
            return e.Ok()
        if isinstance(command, c.Commit) and any(x.is_of(producer.name, number) for x in self.decided):
            return e.Refused("in_doubt", "")
        if found is None:
            producer.name_tx(number)
        is_committed = number in producer.committed
        if isinstance(command, c.Rollback):
            if found is not None:
                self.drop(found)
            return e.Refused("bad_argument", "") if is_committed else e.Ok()
        if found is None:
            is_repeat = is_committed and not isinstance(command, c.Prepare)
            return e.Ok() if is_repeat else e.Refused("rolled_back", "")
        if command.operations not in (0, len(found.parts)):
            self.drop(found)
            return e.Refused("rolled_back", "")
        if not self.fits(found):
            self.drop(found)
            return e.Refused("queue_full", "")
        if isinstance(command, c.Prepare):
            self.prepare(found)
        else:
            self.commit(found)
            if isinstance(command, c.Decide):
                found.owner = producer.owner
                self.decided.append(found)
        return e.Ok()

    def embargo(self, operation: int, producer: ModelProducer, command: c.InTransaction) -> e.Reply:
        found = self.find(producer, command.tx)
        if isinstance(command.command, c.Settle):
            self.take_credit(producer, command.command)
        parts = self.parts_of(operation, producer, found, command)
        if not isinstance(parts, e.Refused):
            parts = self.refuse_more(producer, found, parts) or parts
        if isinstance(parts, e.Refused):
            if found is not None:
                self.drop(found)
            producer.name_tx(command.tx)
            return parts
        if found is None:
            found = ModelTransaction(producer, command.tx, self.group.now_ms)
            self.open.append(found)
            producer.name_tx(command.tx)
            oldest = producer.last_tx - self.group.rules.transaction_window
            producer.committed = {number for number in producer.committed if number > oldest}
        for part in parts:
            found.parts.append(part)
            self.group.dirty.add(part.queue)
        return e.Ok(sum(len(part.messages) for part in parts))

    def take_credit(self, producer: ModelProducer, command: c.Settle) -> None:
        """The credit of a settlement counts, whatever becomes of the settlement."""
        queue = self.group.queues.get(command.queue)
        consumer = None if queue is None else queue.find(producer.name, command.consumer_tag)
        if queue is None or consumer is None or consumer.selector is None:
            return
        if command.attach == consumer.attach and command.credit_to:
            queue.set_credit(consumer, command.credit_to)
            self.group.dirty.add(command.queue)

    def parts_of(
        self,
        operation: int,
        producer: ModelProducer,
        found: ModelTransaction | None,
        command: c.InTransaction,
    ) -> list[ModelPart] | e.Refused:
        if found is None:
            if command.tx < 1:
                return e.Refused("bad_argument", "")
            if not producer.may_begin(command.tx, self.group.rules.transaction_window):
                return e.Refused("rolled_back", "")
            mine = [x.number for x in self.open if x.producer is producer]
            if mine and command.tx - min(mine) >= self.group.rules.transaction_window:
                return e.Refused("limit", "")
        if isinstance(command.command, c.Enqueue):
            return self.batches(operation, command.command)
        return self.settlement(producer, command.command)

    def batches(self, operation: int, command: c.Enqueue) -> list[ModelPart] | e.Refused:
        group, count = self.group, command.count
        if command.independent or command.numbers:
            return e.Refused("bad_argument", "")
        targets = command.targets or (c.Target(command.queue, ((0, count),), command.columns),)
        if sum(some for target in targets for _, some in target.ranges) > group.rules.max_targeted:
            return e.Refused("limit", "")
        rows = group.rows(group.meta.index, operation)
        given: dict[int, set[int]] = {}
        for target in targets:
            given[target.queue] = {i for first, some in target.ranges for i in range(first, first + some)}
            if command.immediate and target.queue in group.queues:
                mine = sorted(given[target.queue])
                fields = {i: rows[i] if len(target.columns) else {} for i in mine}
                queue, left = group.queues[target.queue], group.left[target.queue]
                given[target.queue] = taken_at_once(queue, group.meta, left, command, fields, mine)
        if command.immediate and len(set().union(*given.values())) < count:
            return e.Refused("no_consumers", "")
        found: list[ModelPart] = []
        for target in targets:
            if target.queue not in group.queues:
                return e.Refused("not_found", "")
            ordinals = sorted(given[target.queue])
            has_columns = bool(len(target.columns))
            messages = [
                (
                    i,
                    command.ttls_ms[i] if command.ttls_ms else command.ttl_ms,
                    due_at(group.now_ms, command.due_times_ms, i),
                    rows[i] if has_columns else {},
                    priority_of(command.priorities, i),
                    key_of(command.group_keys, i),
                )
                for i in ordinals
            ]
            size = command.size_bytes * len(ordinals) // count
            body = (group.meta.index, operation)
            asked = [i for first, some in target.ranges for i in range(first, first + some)]
            own = [rows[i] for i in asked] if has_columns else []
            found.append(ModelBatch(target.queue, body, count, size, messages, own))
        return found

    def settlement(self, producer: ModelProducer, command: c.Settle) -> list[ModelPart] | e.Refused:
        queue = self.group.queues.get(command.queue)
        if queue is None:
            return e.Refused("not_found", "")
        consumer = queue.find(producer.name, command.consumer_tag)
        if consumer is None:
            return e.Refused("not_attached", "")
        if command.attach != consumer.attach:
            return e.Refused("wrong_attach", "")
        if not command.tags:
            return e.Refused("bad_argument", "")
        tags = [tag for first, last in command.tags for tag in range(first, last + 1)]
        taken = self.tags(consumer)
        if any(tag not in consumer.checked_out or tag in taken for tag in tags):
            return e.Refused("not_checked_out", "")
        messages = {tag: consumer.checked_out[tag] for tag in tags}
        return [ModelSettlement(command.queue, consumer, command, messages)]

    def refuse_more(
        self, producer: ModelProducer, found: ModelTransaction | None, parts: list[ModelPart]
    ) -> e.Refused | None:
        rules = self.group.rules
        known = [] if found is None else found.parts
        after = [*known, *parts]
        if (
            len({part.queue for part in after}) > rules.transaction_queues
            or len(after) > rules.transaction_operations
            or sum(len(part.messages) for part in after) > rules.transaction_messages
            or sum(part.size_bytes for part in after) > rules.transaction_bytes
            or sum(part.ranges() for part in known) + sum(part.offered() for part in parts)
            > rules.transaction_ranges
        ):
            return e.Refused("limit", "")
        owners = [x.producer.owner for x in self.open] + [x.owner for x in [*self.prepared, *self.decided]]
        if found is None and is_crowded(owners, producer.owner, rules.open_transactions):
            return e.Refused("limit", "")
        everything = [(x.producer.owner, part) for x in self.open for part in x.parts]
        everything += [(x.owner, part) for x in self.prepared for part in x.parts]
        for counts, allowed in (
            ([(owner, part.ranges()) for owner, part in everything], rules.embargoed_ranges),
            ([(owner, part.size_bytes) for owner, part in everything], rules.embargoed_bytes),
        ):
            is_ranges = allowed == rules.embargoed_ranges
            more = sum(part.offered() if is_ranges else part.size_bytes for part in parts)
            own = sum(count for owner, count in counts if owner == producer.owner)
            if more and own + more > allowed - sum(count for _, count in counts):
                return e.Refused("limit", "")
        return None

    def fits(self, found: ModelTransaction) -> bool:
        """Whether the queues have room for what it publishes."""
        for queue in {part.queue for part in found.parts}:
            mine = [part for part in found.parts if part.queue == queue and isinstance(part, ModelBatch)]
            sizes = [size for part in mine for size in part.sizes()]
            if sizes and not self.group.queues[queue].fits(sizes):
                return False
        return True

    def commit(self, found: ModelTransaction) -> None:
        self.open.remove(found)
        self.count(found)
        found.producer.committed.add(found.number)

    def count(self, found: ModelTransaction) -> None:
        """Its parts count now."""
        for part in found.parts:
            self.group.dirty.add(part.queue)
            if isinstance(part, ModelBatch):
                self.publish(part)
            elif part.is_prepared:
                self.leave(part)
            else:
                self.settle(part)

    # ---- decisions

    def prepare(self, found: ModelTransaction) -> None:
        self.open.remove(found)
        found.owner = found.producer.owner
        self.prepared.append(found)
        for part in found.parts:
            self.group.dirty.add(part.queue)
            if isinstance(part, ModelSettlement):
                queue, part.is_prepared = self.group.queues[part.queue], True
                for tag in part.messages:
                    del part.consumer.checked_out[tag]
                queue.update_line(part.consumer)
                if part.consumer.tag and part.consumer.selector is None and not part.consumer.checked_out:
                    queue.drop(part.consumer)

    def finish(self, command: c.Finish) -> e.Reply:
        found = next((x for x in self.prepared if x.is_of(command.producer, command.tx)), None)
        if found is None:
            return e.Ok()
        self.prepared.remove(found)
        if command.is_committed:
            self.count(found)
            return e.Ok()
        for part in found.parts:
            self.group.dirty.add(part.queue)
            if isinstance(part, ModelSettlement):
                self.give_back(part)
        return e.Ok()

    def give_back(self, part: ModelSettlement) -> None:
        queue, consumer = self.group.queues[part.queue], part.consumer
        held = len(consumer.checked_out) + len(part.messages)
        is_attached = consumer in queue.consumers and consumer.attach == part.command.attach
        if not is_attached or not consumer.is_active or held > self.group.rules.max_checked_out:
            queue.put_back(self.group.meta, list(part.messages.values()), failed=False)
            return
        consumer.checked_out = dict(sorted({**consumer.checked_out, **part.messages}.items()))
        queue.update_line(consumer)
        queue.note(self.group.meta, consumer, [consumer.next_tag - 1])

    def leave(self, part: ModelSettlement) -> None:
        queue, command = self.group.queues[part.queue], part.command
        if isinstance(command, c.Return) or (
            isinstance(command, c.Modify) and not command.undeliverable_here
        ):
            failed = isinstance(command, c.Modify) and command.delivery_failed
            queue.put_back(self.group.meta, list(part.messages.values()), failed)
            return
        for message in part.messages.values():
            queue.gone(message, "settled" if type(command) is c.Settle else "rejected")

    def resolve(self, command: c.Resolve) -> e.Reply:
        if any(x.is_of(command.producer, command.tx) for x in self.decided):
            return e.Ok()
        producer = self.group.producers.get(command.producer)
        if producer is not None:
            if command.tx in producer.committed:
                return e.Ok()
            found = self.find(producer, command.tx)
            if found is not None:
                self.drop(found)
            producer.name_tx(command.tx)
        return e.Refused("rolled_back", "")

    def finished(self, command: c.Finished) -> e.Reply:
        self.decided = [x for x in self.decided if not x.is_of(command.producer, command.tx)]
        return e.Ok()

    def publish(self, part: ModelBatch) -> None:
        group, queue = self.group, self.group.queues[part.queue]
        group.left[part.queue].reads_arrivals = True
        texts = queue.fronts.text_factor(part.rows) if part.rows else 0
        is_alone, size = part.batch_count == 1, part.size_bytes // max(len(part.messages), 1)
        for ordinal, ttl, due_ms, fields, priority, key in part.messages:
            known = fields if queue.config.filter_enabled else {}
            body = (*part.body, ordinal)
            own = {"priority": priority, "due_ms": due_ms, "key": key}
            queue.place(group.meta, body, ttl, known, is_alone=is_alone, texts=texts, size=size, **own)

    def settle(self, part: ModelSettlement) -> None:
        command = part.command
        place = (command.queue, command.consumer_tag, command.attach, command.tags)
        if isinstance(command, c.Modify):
            failed, here = command.delivery_failed, command.undeliverable_here
            self.group.settle(self.group.queues[part.queue], part.consumer, c.Modify(*place, 0, failed, here))
        else:
            self.group.settle(self.group.queues[part.queue], part.consumer, type(command)(*place))

    # ---- ends

    def drop(self, found: ModelTransaction) -> None:
        self.open.remove(found)
        self.group.dirty |= {part.queue for part in found.parts}

    def end_all(self, producer: ModelProducer) -> None:
        for each in [x for x in self.open if x.producer is producer]:
            self.drop(each)

    def end_overdue(self) -> None:
        for each in [
            x for x in self.open if x.began_ms + self.group.rules.transaction_ms <= self.group.now_ms
        ]:
            self.drop(each)

    def queue_ends(self, queue: int) -> None:
        for each in [x for x in self.open if any(part.queue == queue for part in x.parts)]:
            self.drop(each)
        for each in self.prepared:
            each.parts = [part for part in each.parts if part.queue != queue]

    def consumers_time_out(self, queue: int) -> None:
        """Ends those that settle messages of consumers that are about to lose messages."""
        model = self.group.queues[queue]
        overdue = [
            consumer
            for time, consumer, tag in model.deliveries
            if time + model.config.consumer_timeout_ms <= self.group.now_ms
            and any(held <= tag for held in consumer.checked_out)
        ]
        for each in [x for x in self.open if self._settles(x, queue, overdue)]:
            self.drop(each)

    def _settles(self, transaction: ModelTransaction, queue: int, consumers: list[ModelConsumer]) -> bool:
        return any(
            isinstance(part, ModelSettlement) and part.queue == queue and part.consumer in consumers
            for part in transaction.parts
        )

    def check_consumers(self) -> None:
        """Ends those that settle messages of a consumer that is gone."""
        for each in list(self.open):
            holders = [part for part in each.parts if isinstance(part, ModelSettlement)]
            if any(part.consumer not in self.group.queues[part.queue].consumers for part in holders):
                self.drop(each)
