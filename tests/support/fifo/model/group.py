"""A group of queues as simply as it can be said: a list of messages, looked through from the start each time.

It is independent of `fifo`'s structures and shares its rules: the same fronts, the same budgets, the same lines. What
the machines batch, it does one message at a time. Replies are fifo's records (details are not compared), deliveries
are lists of single messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fifo import commands as c
from fifo import effects as e
from fifo.limits import Limits
from support.fifo.model import subscriptions
from support.fifo.model.immediate import taken_at_once
from support.fifo.model.queues import ModelQueue
from support.fifo.model.records import (
    NEVER,
    Left,
    ModelConsumer,
    ModelProducer,
    Rest,
    as_ranges,
    as_refused,
    delivered,
    gaps,
)
from support.fifo.model.staging import Fields
from support.fifo.model.transactions import ModelTransactions


class ModelGroup:
    """The whole group. `rows(index, operation)` gives the filter fields of a batch, empty if it has none."""

    def __init__(self, rules: Limits, rows: Callable[[int, int], Sequence[Fields]]) -> None:
        self.rules, self.rows = rules, rows
        self.queues: dict[int, ModelQueue] = {}
        self.deleted: set[int] = set()
        self.producers: dict[bytes, ModelProducer] = {}
        self.ended: list[ModelProducer] = []
        self.fences: list[tuple[bytes, int, int]] = []  # name, epoch, when it was forgotten
        self.fences_lost_ms = -1
        self.departed: dict[int, int] = {}
        self.now_ms = 0
        self.backlog: list[int] = []
        self.transactions = ModelTransactions(self)

    def apply(
        self, meta: c.Meta, operations: Sequence[c.Operation]
    ) -> tuple[list[e.Reply | None], list[Any]]:
        self.now_ms = meta.now_ms
        self.meta = meta
        self.effects: list[Any] = []
        self.dirty: set[int] = set()
        touched, woken = self.new_rest(), self.new_rest()
        self.left = {queue: Left(touched) for queue in range(1, 100)}
        self.woken: list[int] = []
        while self.ended and self.ended[0].ended_ms + self.rules.remembered_ms <= meta.now_ms:
            self.fence(self.ended.pop(0))
        replies = [self.one(operation) for operation in operations]
        for queue in [*self.woken, *sorted(self.dirty)]:
            if queue in self.queues:
                self.transactions.consumers_time_out(queue)
        for queue in [queue for queue in self.woken if queue in self.queues]:
            self.left[queue].rest = woken
            self.finish(queue, is_woken=True)
        others = self.dirty & set(self.queues) - set(self.woken)
        for queue in sorted(others, key=lambda queue: (queue in self.backlog, queue)):
            self.finish(queue)
        return replies, self.effects

    def finish(self, queue: int, is_woken: bool = False) -> None:
        machine, left = self.queues[queue], self.left[queue]
        if left.rest.is_enough():
            left.rest.finished += 1
            embargoed = [each for each in machine.consumers if self.transactions.tags(each)]
            machine.finish(self.meta, left, self.effects, embargoed)
            if is_woken or not machine.unfinished:
                self.backlog = [other for other in self.backlog if other != queue]
        else:
            machine.unfinished = True
        if machine.unfinished and queue not in self.backlog:
            self.backlog.append(queue)
        machine.note_use(self.now_ms, in_transaction=self.transactions.has_part(queue))
        if machine.used_ms is not None and machine.unused_at(machine.used_ms) <= self.now_ms:
            del self.queues[queue]
            self.deleted.add(queue)
            self.backlog = [other for other in self.backlog if other != queue]
            self.effects.append(("expired", queue))

    def new_rest(self) -> Rest:
        rules = self.rules
        return Rest(
            rules.block_budget,
            rules.message_budget,
            rules.run_budget,
            rules.step_budget,
            rules.arrival_budget,
            rules.block_budget,
        )

    def next_wake(self) -> int | None:
        if self.backlog:
            return self.now_ms
        times = [machine.next_expiry() for machine in self.queues.values()]
        return min([time for time in times if time is not None] + self.transactions.next_due(), default=None)

    # ---- sessions

    def one(self, operation: c.Operation) -> e.Reply | None:
        origin, command = operation.origin, operation.command
        if isinstance(command, c.RegisterProducer):
            assert origin is not None
            return self.register(origin, command)
        if origin is None:
            return self.unnumbered(command)
        producer = self.producers.get(origin.producer)
        if producer is None:
            if self.is_fenced(origin):
                return e.Refused("fenced", "")
            return e.Refused("expired" if origin.n > 1 else "not_registered", "")
        if origin.epoch > producer.epoch:
            return e.Refused("not_registered", "")
        if origin.epoch < producer.epoch or producer.ended_ms >= 0:
            return e.Refused("fenced", "")
        if origin.n <= producer.last_n:
            return e.Done()
        if origin.n > producer.last_n + 1:
            return e.Refused("gap", "")
        producer.last_n = origin.n
        if isinstance(command, c.CloseSession):
            self.end(producer, command.is_clean)
            return e.Ok()
        if isinstance(command, c.InTransaction | c.Commit | c.Rollback | c.Prepare | c.Decide):
            return self.transactions.answer(operation.number, producer, command)
        if isinstance(command, (*subscriptions.COMMANDS, c.Pin, c.Unpin)):
            return self.read(command)
        assert not isinstance(command, c.NodeDown | c.Configured | c.Wake | c.SetVersion)
        if isinstance(command, c.Enqueue) and command.targets:
            return self.publish_targets(operation.number, producer, command)
        queue = self.queues.get(command.queue)
        if queue is None:
            return e.Refused("not_found", "")
        if isinstance(command, c.Enqueue):
            return self.publish(operation.number, producer, queue, command)
        reply: e.Reply
        match command:
            case c.Stage():
                reply = queue.staged.stage(self.meta, operation.number, command)
            case c.PublishStaged():
                reply = queue.staged.publish(self.meta, self.left[command.queue], command, self.rows)
            case c.DiscardStaged():
                reply = queue.staged.discard(command)
            case _:
                reply = self.consume(producer, queue, command)
                self.transactions.check_consumers()
        if not isinstance(reply, e.Refused):
            self.dirty.add(command.queue)
        return reply

    def register(self, origin: c.Origin, command: c.RegisterProducer) -> e.Reply:
        producer = self.producers.get(origin.producer)
        address = command.address
        if address.boot <= self.departed.get(address.node, -1):
            return e.Refused("fenced", "")
        if producer is None:
            if self.is_fenced(origin):
                return e.Refused("fenced", "")
            is_fence_known = any(name == origin.producer for name, _, _ in self.fences)
            if not is_fence_known and command.owner != c.NODE and command.heard_ms <= self.fences_lost_ms:
                return e.Refused("outdated", "")
            if self.transactions.is_in_doubt(origin.producer):
                return e.Refused("in_doubt", "")
            self.fences = [each for each in self.fences if each[0] != origin.producer]
            self.producers[origin.producer] = ModelProducer(
                origin.producer, origin.epoch, address, command.owner
            )
            return e.Registered((), False)
        if origin.epoch < producer.epoch:
            return e.Refused("fenced", "")
        if origin.epoch == producer.epoch and (producer.ended_ms >= 0 or producer.address != address):
            return e.Refused("fenced", "")
        if origin.epoch > producer.epoch:
            if self.transactions.is_in_doubt(origin.producer):
                return e.Refused("in_doubt", "")
            if producer.ended_ms < 0:
                self.detach(producer)
                self.effects.append(("notify", producer.address, 0, "", 0, "fenced", 0))
            else:
                self.ended.remove(producer)
            producer.owner = command.owner
            producer.epoch, producer.address, producer.last_n, producer.ended_ms = (
                origin.epoch,
                address,
                0,
                -1,
            )
        return e.Registered(as_ranges(producer.accepted), True)

    def is_fenced(self, origin: c.Origin) -> bool:
        return any(name == origin.producer and origin.epoch <= epoch for name, epoch, _ in self.fences)

    def end(self, producer: ModelProducer, is_clean: bool = False) -> None:
        self.detach(producer)
        producer.ended_ms = self.now_ms
        if is_clean or (not producer.accepted and not producer.floor and not producer.last_tx):
            self.fence(producer)
        else:
            self.ended.append(producer)

    def fence(self, producer: ModelProducer) -> None:
        del self.producers[producer.name]
        self.fences.append((producer.name, producer.epoch, self.now_ms))
        while len(self.fences) > self.rules.max_fences:
            self.fences_lost_ms = self.fences.pop(0)[2]

    def detach(self, producer: ModelProducer) -> None:
        self.transactions.end_all(producer)
        mine = [
            (x.attach, n, x)
            for n, q in self.queues.items()
            for x in q.consumers
            if x.producer == producer.name
        ]
        for _, number, consumer in sorted(mine, key=lambda found: found[:2]):
            self.queues[number].remove(self.meta, consumer)
            self.dirty.add(number)

    # ---- messages

    def read(self, command: Any) -> e.Reply:
        queue = self.queues.get(command.queue)
        if queue is None:
            return e.Refused("not_found", "")
        if isinstance(command, c.Pin | c.Unpin):
            reply = queue.pins.answer(self.meta, command)
        else:
            reply = queue.subscriptions.answer(self.meta, self.left[command.queue], command)
            if not isinstance(reply, e.Refused):
                queue.used_ms = self.now_ms
        if not isinstance(reply, e.Refused):
            self.dirty.add(command.queue)
        return reply

    def publish(self, number: int, producer: ModelProducer, queue: ModelQueue, command: c.Enqueue) -> e.Reply:
        if command.immediate:
            whole = c.Target(command.queue, ((0, command.count),), command.columns)
            return self.publish_targets(number, producer, replace(command, targets=(whole,)))
        first, count = command.first_client_sequence, command.count
        floor = max(producer.floor, command.lowest_unconfirmed)
        if count < 1 or (command.ttls_ms and len(command.ttls_ms) != count):
            return e.Refused("bad_argument", "")
        if first + count > floor + self.rules.window:
            return e.Refused("limit", "")
        fresh = [i for i in range(count) if first + i >= floor and first + i not in producer.accepted]
        refused = dict.fromkeys([i for i in fresh if first + i < producer.highest], "refused_earlier")
        fresh = new = [i for i in fresh if i not in refused]
        room = queue.room(command.size_bytes // count, len(fresh))
        if command.independent and room < len(fresh):
            refused |= dict.fromkeys(fresh[room:], "queue_full")
            fresh = fresh[:room]
        if fresh:
            rows = self.rows(self.meta.index, number) if queue.config.filter_enabled else ()
            if self.is_crowded(producer, floor, [first + i for i in fresh]):
                refused |= dict.fromkeys(new, "limit")
                fresh = []
            elif queue.publish(self.meta, number, command, dict(enumerate(rows)), fresh):
                self.dirty.add(command.queue)
                producer.highest = first + fresh[-1]
            else:
                refused |= dict.fromkeys(fresh, "queue_full")
                fresh = []
        if len(refused) == count:
            return e.Refused(refused[0], "")
        producer.floor = floor
        producer.accepted = {x for x in producer.accepted | {first + i for i in fresh} if x >= floor}
        return e.Confirmed(first, first + count - 1, tuple(as_refused(refused, first)))

    def is_crowded(self, producer: ModelProducer, floor: int, more: list[int]) -> bool:
        """Whether the producer, its owner or all would have too many ranges of accepted numbers."""
        if not more:
            return False
        numbers = {number for number in producer.accepted if number >= floor} | set(more)
        if len(as_ranges(numbers)) > self.rules.max_accepted:
            return True
        added = gaps(numbers) - gaps(producer.accepted)
        if added <= 0 or producer.owner == c.NODE:
            return False
        clients = [each for each in self.producers.values() if each.owner != c.NODE]
        owned = sum(gaps(each.accepted) for each in clients if each.owner == producer.owner)
        return owned + added > self.rules.max_ranges - sum(gaps(each.accepted) for each in clients)

    def publish_targets(self, operation: int, producer: ModelProducer, command: c.Enqueue) -> e.Reply:
        """Message by message."""
        count, first = command.count, command.first_client_sequence
        ranges = command.numbers or ((first, count),)
        numbers = [number for start, some in ranges for number in range(start, start + some)]
        routes: list[list[int]] = [[] for _ in range(count)]
        rows: dict[int, dict[int, Fields]] = {}
        all_rows = self.rows(self.meta.index, operation)
        for target in command.targets:
            rows[target.queue] = {}
            for start, some in target.ranges:
                for ordinal in range(start, start + some):
                    routes[ordinal].append(target.queue)
                    if len(target.columns):
                        rows[target.queue][ordinal] = all_rows[ordinal]
        if sum(map(len, routes)) > self.rules.max_targeted:
            return e.Refused("limit", "")
        for ordinal, queues in enumerate(routes):
            routes[ordinal] = [queue for queue in queues if queue not in self.deleted] or queues
        floor = max(producer.floor, command.lowest_unconfirmed)
        why: dict[int, str] = {}
        fresh = []
        for ordinal, number in enumerate(numbers):
            if number < floor or number in producer.accepted:
                continue
            if number < producer.highest:
                why[ordinal] = "refused_earlier"
            else:
                fresh.append(ordinal)
        homeless: set[int] = set()
        if command.immediate:
            for queue, known in rows.items():
                if queue in self.queues:
                    mine = [ordinal for ordinal in fresh if queue in routes[ordinal]]
                    machine, left = self.queues[queue], self.left[queue]
                    able = taken_at_once(machine, self.meta, left, command, known, mine)
                    for ordinal in set(mine) - able:
                        routes[ordinal].remove(queue)
            homeless = {ordinal for ordinal in fresh if not routes[ordinal]}
        size = command.size_bytes // count
        rooms = {queue: self.queues[queue].room(size, count) for queue in rows if queue in self.queues}
        taken, refused = [], {}
        for ordinal in fresh:
            if ordinal in homeless:
                refused[ordinal] = "no_consumers"
            elif any(queue not in rooms for queue in routes[ordinal]):
                refused[ordinal] = "not_found"
            elif any(rooms[queue] < 1 for queue in routes[ordinal]):
                refused[ordinal] = "queue_full"
            else:
                taken.append(ordinal)
                for queue in routes[ordinal]:
                    rooms[queue] -= 1
        if refused and not command.independent:
            taken, refused = [], dict.fromkeys(fresh, next(iter(refused.values())))
        if self.is_crowded(producer, floor, [numbers[ordinal] for ordinal in taken]):
            taken, refused = [], dict.fromkeys(fresh, "limit")
        for queue, fields in rows.items():
            mine = [ordinal for ordinal in taken if queue in routes[ordinal]]
            if mine:
                known = fields if self.queues[queue].config.filter_enabled else {}
                self.queues[queue].publish(self.meta, operation, command, known, mine)
                self.dirty.add(queue)
        if taken:
            producer.highest = numbers[taken[-1]]
        producer.floor = floor
        accepted = producer.accepted | {numbers[ordinal] for ordinal in taken}
        producer.accepted = {number for number in accepted if number >= floor}
        found = [
            (numbers[ordinal], numbers[ordinal], e.Refused(reason, ""))
            for ordinal, reason in sorted((why | refused).items())
        ]
        return e.Confirmed(first, numbers[-1], tuple(found))

    def consume(self, producer: ModelProducer, queue: ModelQueue, command: Any) -> e.Reply:
        meta = self.meta
        if isinstance(command, c.Attach):
            return queue.attach(meta, producer, command)
        if isinstance(command, c.Get):
            return self.get(producer, queue, command)
        consumer = queue.find(producer.name, command.consumer_tag)
        if consumer is None:
            return e.Refused("not_attached", "")
        if isinstance(command, c.Settle):
            return self.settle(queue, consumer, command)
        if isinstance(command, c.Credit):
            if consumer.selector is None:
                return e.Refused("not_attached", "")
            if command.credit_to < 0:
                return e.Refused("bad_argument", "")
            queue.set_credit(consumer, command.credit_to)
            if command.drain and consumer not in queue.draining:
                queue.draining.append(consumer)
            return e.Ok()
        if not consumer.tag:
            return e.Refused("not_attached", "")
        queue.stop(consumer)
        if command.requeue or not consumer.checked_out:
            queue.remove(meta, consumer)
        return e.Ok()

    def get(self, producer: ModelProducer, queue: ModelQueue, command: c.Get) -> e.Reply:
        if queue.config.single_active_consumer:
            return e.Refused("bad_argument", "")
        if not 0 < command.count <= 10_000:
            return e.Refused("limit", "")
        known = queue.find(producer.name, "")
        if known and not command.settled and len(known.checked_out) >= queue.rules.max_checked_out:
            return e.Refused("limit", "")
        queue.used_ms = self.now_ms
        consumer = known or queue.add_consumer(producer, "", None)
        room = command.count if command.settled else queue.rules.max_checked_out - len(consumer.checked_out)
        left = self.left[queue.queue]
        left.rest.runs = max(left.rest.runs, 1)
        wanted = min(command.count, room, max(left.rest.messages, 1))
        if queue.config.message_groups:
            queue.message_groups.file(left)
            chosen, _ = queue.message_groups.choose(self.meta, left, consumer, None, wanted, NEVER)
        else:
            chosen, _ = queue.choose(self.meta, left, None, wanted)
        left.rest.messages = max(left.rest.messages - len(chosen), 0)
        tags = [queue.hand(consumer, message) for message in chosen]
        if tags:
            self.effects.append(delivered(consumer, queue.queue, tags, command.settled))
        if not command.settled:
            queue.note(self.meta, consumer, tags)
        if command.settled:
            for tag in tags:
                queue.gone(consumer.checked_out.pop(tag), "settled")
        return e.Ok(len(tags))

    def settle(self, queue: ModelQueue, consumer: ModelConsumer, command: c.Settle) -> e.Reply:
        if command.attach != consumer.attach:
            return e.Refused("wrong_attach", "")
        if command.credit_to < 0:
            return e.Refused("bad_argument", "")
        tags = [
            tag
            for first, last in command.tags
            for tag in sorted(consumer.checked_out)
            if first <= tag <= last and tag not in self.transactions.tags(consumer)
        ]
        messages = [consumer.checked_out.pop(tag) for tag in tags]
        if isinstance(command, c.Return) or (
            isinstance(command, c.Modify) and not command.undeliverable_here
        ):
            failed = isinstance(command, c.Modify) and command.delivery_failed
            queue.put_back(self.meta, messages, failed)
        else:
            for message in messages:
                queue.gone(message, "settled" if type(command) is c.Settle else "rejected")
        queue.answer_late(consumer, command.tags)
        if command.credit_to and consumer.selector is not None:
            queue.set_credit(consumer, command.credit_to)
        queue.update_line(consumer)
        if consumer.tag and consumer.selector is None and not consumer.checked_out:
            queue.drop(consumer)
        return e.Ok(len(messages))

    # ---- administration

    def unnumbered(self, command: c.Command) -> e.Reply | None:
        match command:
            case c.Wake():
                self.transactions.end_overdue()
                times = [(machine.next_expiry(), queue) for queue, machine in self.queues.items()]
                due = sorted(
                    (time, queue) for time, queue in times if time is not None and time <= self.now_ms
                )
                for queue in [*self.backlog, *(queue for _, queue in due)]:
                    if queue not in self.woken:
                        self.woken.append(queue)
                return None
            case c.Finish():
                return self.transactions.finish(command)
            case c.Resolve():
                return self.transactions.resolve(command)
            case c.Finished():
                return self.transactions.finished(command)
            case c.NodeDown(node, boot):
                if boot > self.departed.get(node, -1):
                    self.departed[node] = boot
                    for producer in list(self.producers.values()):
                        address = producer.address
                        if producer.ended_ms < 0 and address.node == node and address.boot <= boot:
                            self.end(producer)
                            self.effects.append(("notify", address, 0, "", 0, "fenced", 0))
                return None
            case c.CreateQueue(queue, config):
                if queue in self.deleted:
                    return e.Refused("not_found", "")
                if queue not in self.queues:
                    made = self.queues[queue] = ModelQueue(
                        queue, config, self.rules, self.queues, self.meta.version
                    )
                    made.reserved = partial(self.transactions.reserved, queue)
                    made.prepared = partial(self.transactions.prepared_settlements, queue)
                    if config.expires_ms >= 0:
                        self.dirty.add(queue)
                return e.Ok()
            case c.UpdateConfig(queue, config):
                if queue not in self.queues:
                    return e.Refused("not_found", "")
                if self.queues[queue].config != config:
                    self.queues[queue].configure(self.meta, config)
                    self.dirty.add(queue)
                return e.Ok()
            case c.Configured():
                return None
            case c.UseQueue(queue):
                if queue not in self.queues:
                    return e.Refused("not_found", "")
                self.queues[queue].used_ms = self.now_ms
                self.dirty.add(queue)
                return e.Ok()
            case c.DeleteQueue(queue):
                return self.delete(queue)
            case c.Purge(queue, before, dead_only):
                return self.purge(queue, before, dead_only)
            case c.ClaimDead(queue, epoch):
                if queue not in self.queues:
                    return e.Refused("not_found", "")
                if len(command.producer) != 16:
                    return e.Refused("bad_argument", "")
                if epoch <= self.queues[queue].dead.epoch:
                    return e.Refused("wrong_generation", "")
                self.dirty.add(queue)
                return e.Ok(self.queues[queue].dead.begin(self.now_ms, command))
            case c.SettleDead(queue, epoch):
                if queue not in self.queues:
                    return e.Refused("not_found", "")
                if epoch != self.queues[queue].dead.epoch:
                    return e.Refused("wrong_generation", "")
                self.dirty.add(queue)
                return e.Ok(self.queues[queue].dead.settle(self.now_ms, command))
        raise AssertionError(command)

    def delete(self, queue: int) -> e.Reply:
        self.deleted.add(queue)
        self.transactions.queue_ends(queue)
        machine = self.queues.pop(queue, None)
        self.backlog = [other for other in self.backlog if other != queue]
        if machine is None:
            return e.Ok()
        for x in machine.consumers:
            if x.selector is not None:
                self.effects.append(("notify", x.address, queue, x.tag, x.attach, "queue_deleted", 0))
        return e.Ok(len(machine.messages) + len(machine.dead.messages))

    def purge(self, queue: int, before: int | None, dead_only: bool) -> e.Reply:
        if queue not in self.queues:
            return e.Refused("not_found", "")
        machine = self.queues[queue]
        waiting = [] if dead_only else machine.waiting()
        dead = [each.message for each in machine.dead.messages]
        blocks = sorted({machine.block_of(message) for message in (*waiting, *dead)})
        most = machine.rules.block_budget
        if len(blocks) > most and self.meta.version >= 2:
            end = blocks[most] * machine.rules.block_size
            before = end if before is None else min(before, end)
        waiting = [each for each in waiting if before is None or each.sequence < before]
        for message in waiting:
            machine.gone(message, "purged")
        self.dirty.add(queue)
        return e.Ok(len(waiting) + machine.dead.purge(before))
