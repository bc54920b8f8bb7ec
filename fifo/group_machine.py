"""A group of queues that share one Raft log: the only entrance to the machines.

`apply` takes one Raft entry. The group checks each operation, then refuses it or carries it out. The queues that were
touched are served once, after all operations, in the order of their ids. A thousand small operations therefore cost one
checkout.

`backlog` has the queues with unfinished work: their work was cut short by a budget, or no budget was left for them.
Every entry continues the queues that it touches, and Wake continues those that have waited the longest. `next_wake`
says when the leader should propose a Wake.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from fifo import targets
from fifo.batch_times import BatchTimes, read_times
from fifo.budgets import Entry
from fifo.commands import (
    MAX_PROBLEM,
    PRODUCER_BYTES,
    UNKNOWN,
    Attach,
    Cancel,
    ClaimDead,
    CloseSession,
    Command,
    Commit,
    Configured,
    CreateQueue,
    Credit,
    Decide,
    DeleteQueue,
    DeleteSubscription,
    Discard,
    DiscardStaged,
    Enqueue,
    Finish,
    Finished,
    Get,
    InTransaction,
    KeepSubscription,
    Meta,
    Modify,
    NodeDown,
    OpenSubscription,
    Operation,
    Origin,
    Pin,
    Prepare,
    PublishStaged,
    Purge,
    RegisterProducer,
    ReleaseSubscription,
    Reserve,
    Resolve,
    Return,
    Rollback,
    Settle,
    SettleDead,
    SettleReserved,
    SetVersion,
    Stage,
    Target,
    Unpin,
    UpdateConfig,
    UseQueue,
    Wake,
)
from fifo.consumers.consumer import Consumer
from fifo.consumers.filter_fields import FieldSource
from fifo.effects import (
    Applied,
    AttachedReply,
    Confirmed,
    Notify,
    Ok,
    QueueExpired,
    Refused,
    Reply,
)
from fifo.group_state import GroupState, is_deleted, no_queue
from fifo.limits import PRODUCTION, Limits
from fifo.messages import overflow
from fifo.messages.pages import Pages
from fifo.outcome_hash import digest
from fifo.producers import Producer
from fifo.queue_machine import BatchFields, QueueMachine
from fifo.subscriptions import SubscriptionCommand
from fifo.versions import FIRST, SHARED_BUDGETS, UNIQUE_NUMBERS, check_version

FIRST_WAKE_QUEUES = 16
"""Number of queues that one Wake continues in version 1, where each queue has a budget of its own."""

MAX_CLIENT_SEQUENCE = (1 << 63) - 1

REFUSED_EARLIER = Refused(
    "refused_earlier",
    "a later message of this producer was taken; allowed: ascending numbers, so this one stays refused",
)

Handler = Callable[[Entry, Operation, Producer, Any], Reply]
Unnumbered = Callable[[Entry, Any], Reply | None]


class GroupMachine(GroupState):
    """Applies entries to the state of a group."""

    def __init__(
        self, field_source: FieldSource, pages: Pages | None = None, limits: Limits = PRODUCTION
    ) -> None:
        super().__init__(field_source, pages, limits)
        self._woken: dict[int, None] = {}  # to be finished in this order
        self._numbered: dict[type[Command], Handler] = {
            CloseSession: self._close_session,
            Enqueue: self._enqueue,
            Attach: self._attach,
            Credit: self._credit,
            Cancel: self._cancel,
            Get: self._get,
            Settle: self._settle,
            Return: self._settle,
            Discard: self._settle,
            Modify: self._settle,
            InTransaction: self._in_transaction,
            Commit: self._commit,
            Rollback: self._rollback,
            Prepare: self._prepare_part,
            Decide: self._decide,
            Stage: self._staged,
            PublishStaged: self._staged,
            DiscardStaged: self._staged,
            OpenSubscription: self._ask_subscription,
            Reserve: self._ask_subscription,
            SettleReserved: self._ask_subscription,
            KeepSubscription: self._ask_subscription,
            ReleaseSubscription: self._ask_subscription,
            DeleteSubscription: self._ask_subscription,
            Pin: self._ask_pins,
            Unpin: self._ask_pins,
        }
        self._unnumbered: dict[type[Command], Unnumbered] = {
            NodeDown: self._node_down,
            CreateQueue: self._create_queue,
            UpdateConfig: self._update_config,
            Configured: self._configured,
            DeleteQueue: self._delete_queue,
            UseQueue: self._use_queue,
            Purge: self._purge,
            ClaimDead: self._claim_dead,
            SettleDead: self._settle_dead,
            Wake: self._wake,
            SetVersion: self._set_version,
            Finish: self.decisions.finish,
            Resolve: self._resolve,
            Finished: self._finished,
        }

    # ---- one entry

    def apply(self, meta: Meta, operations: Sequence[Operation]) -> Applied:
        """Applies one Raft entry. Raises ValueError if it cannot be the next one: the log is corrupt."""
        if meta.index <= self.index or meta.now_ms < self.now_ms:
            raise ValueError(
                f"entry {meta.index} at {meta.now_ms} after entry {self.index} at {self.now_ms}: both must not go back"
            )
        if not FIRST <= meta.version <= self.limits.newest_version:
            check_version(f"entry {meta.index}", meta.version, self.limits.newest_version)
        self.index = meta.index
        self.now_ms = meta.now_ms
        entry = Entry(meta.index, meta.now_ms, meta.version, self.limits)
        if self.sessions.ended:
            self.sessions.forget_idle(meta.now_ms, meta.version)
        if self.sessions.departing:
            self._end_departed(entry)
        numbered, admit = self._numbered, self.sessions.admit
        replies: list[Reply | None] = []
        for operation in operations:
            command = operation.command
            origin = operation.origin
            handler = numbered.get(type(command))
            if origin is None or handler is None:
                replies.append(self._other(entry, origin, command, handler is None))
                continue
            admitted = admit(origin)
            if type(admitted) is Producer:
                admitted.last_n = origin.n
                replies.append(handler(entry, operation, admitted, command))
            else:
                replies.append(admitted)  # type: ignore[arg-type]
        if self.dirty or self._woken:
            self._finish_all(entry)
        self.last_steps = entry.steps
        applied = Applied(tuple(replies), tuple(entry.effects))
        self.running_hash = zlib.crc32(digest(meta.index, applied), self.running_hash)
        return applied

    def _other(
        self, entry: Entry, origin: Origin | None, command: Command, is_unnumbered: bool
    ) -> Reply | None:
        if not is_unnumbered:
            return Refused("not_registered", f"{type(command).__name__} without a session")
        if type(command) is RegisterProducer:
            if origin is None:
                return Refused("not_registered", "RegisterProducer without a session")
            return self._register(entry, origin, command)
        if origin is not None:
            admitted = self.sessions.admit(origin)
            if not isinstance(admitted, Producer):
                return admitted
            admitted.last_n = origin.n
        return self._unnumbered[type(command)](entry, command)

    def _finish_all(self, entry: Entry) -> None:
        """Finishes all queues that were touched, and those that Wake continues. Those of Wake are first and have a
        budget of their own. Of the others, queues without unfinished work are before those with it."""
        dirty, woken = self.dirty, self._woken
        if self.transactions.by_key:
            self._end_overdue_settlements(entry)
        for queue in woken:
            entry.wake(queue)
            self._finish(entry, queue, is_woken=True)
            dirty.pop(queue, None)
            self.touched[queue] = None
        woken.clear()
        first = entry.version < SHARED_BUDGETS
        for queue in sorted(dirty, key=lambda queue: (not first and queue in self.backlog, queue)):
            self._finish(entry, queue)
        self.touched.update(dirty)
        dirty.clear()

    def _end_overdue_settlements(self, entry: Entry) -> None:
        """Ends the transactions that settle messages of which consumers are about to lose some by their timeout."""
        for queue in [*self._woken, *self.dirty]:
            machine = self.queues.get(queue)
            if machine is not None and machine.transactions.embargo.parts:
                self.transactions.consumers_time_out(entry, machine.consumers.overdue(entry.now_ms))

    def _finish(self, entry: Entry, queue: int, *, is_woken: bool = False) -> None:
        """Finishes a queue if the entry's budget allows one more; else the queue joins the backlog."""
        machine = self.queues.get(queue)
        if machine is None:  # deleted
            self.set_wake(queue, None)
            return
        machine.changes += 1
        left = entry.budget(queue).left
        if entry.version < SHARED_BUDGETS or left.is_enough:
            left.finished += 1
            for name, tag in machine.finish(entry):
                self.sessions.producers[name].consumers.pop((queue, tag), None)
            if is_woken or not machine.unfinished:
                self.backlog.pop(queue, None)
        else:
            machine.unfinished = True
        if machine.unfinished:
            self.backlog.setdefault(queue)
        self.note_dead(machine)
        machine.note_use(entry)
        if machine.unused_at <= entry.now_ms:
            self._remove_queue(queue)
            self.expired[queue] = None
            self.set_wake(queue, None)
            entry.effects.append(QueueExpired(queue))
        else:
            self.note_expiry(machine)

    # ---- sessions

    def _register(self, entry: Entry, origin: Origin, command: RegisterProducer) -> Reply:
        sessions = self.sessions
        version = entry.version
        owner = command.owner if version >= 2 else UNKNOWN
        refused = sessions.refuse_register(origin, command, owner, version)
        if refused is not None:
            return refused
        producer = sessions.producers.get(origin.producer)
        if producer is None or origin.epoch > producer.epoch:
            refused = self.decisions.refuse_register(origin.producer)
            if refused is not None:
                return refused
        if producer is not None and origin.epoch > producer.epoch and producer.ended_ms < 0:
            self._detach(entry, producer)
            entry.effects.append(Notify(producer.address, 0, "", 0, "fenced"))
        return sessions.register(origin, command.address, owner, version)

    def _close_session(
        self, entry: Entry, operation: Operation, producer: Producer, command: CloseSession
    ) -> Reply:
        self._end_session(entry, producer, is_clean=command.is_clean)
        return Ok()

    def _end_session(self, entry: Entry, producer: Producer, *, is_clean: bool = False) -> None:
        self._detach(entry, producer)
        self.sessions.end(producer, entry.now_ms, is_clean=is_clean, version=entry.version)

    def _detach(self, entry: Entry, producer: Producer) -> None:
        """Removes a producer's transactions and consumers: their checked-out messages are requeued."""
        if producer.open_tx:
            self.transactions.end_all(entry, producer)
        gone: dict[int, list[Consumer]] = {}
        for queue, tag in producer.consumers:
            consumer = self.queues[queue].consumers.by_key.get((producer.name, tag))
            if consumer is not None:
                gone.setdefault(queue, []).append(consumer)
        for queue, consumers in gone.items():
            self.queues[queue].consumers.remove_all(entry, consumers)
            self.dirty[queue] = None
        producer.consumers.clear()

    def _node_down(self, entry: Entry, command: NodeDown) -> None:
        sessions = self.sessions
        if command.boot > sessions.departed.get(command.node, -1):
            sessions.departed[command.node] = command.boot
            sessions.departing[command.node] = None
            self._end_departed(entry)

    def _end_departed(self, entry: Entry) -> None:
        """Ends a bounded number of sessions of lost nodes."""
        sessions = self.sessions
        gone = [
            producer
            for producer in sessions.producers.values()
            if producer.ended_ms < 0
            and producer.address.node in sessions.departing
            and sessions.is_departed(producer.address)
        ]
        for producer in gone[: self.limits.ended_per_entry]:
            self._end_session(entry, producer)
            entry.effects.append(Notify(producer.address, 0, "", 0, "fenced"))
        if len(gone) <= self.limits.ended_per_entry:
            sessions.departing.clear()

    # ---- messages

    def _enqueue(self, entry: Entry, operation: Operation, producer: Producer, command: Enqueue) -> Reply:
        if command.targets:
            return self._enqueue_targets(entry, operation, producer, command)
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        if command.immediate:
            return self._enqueue_targets(entry, operation, producer, command)
        first = command.first_client_sequence
        last = first + command.count - 1
        refused = _refuse_enqueue(
            command, max(producer.floor, command.lowest_unconfirmed), self.limits.window
        )
        if refused is not None:
            return refused
        fresh = producer.fresh(command)
        if fresh and entry.version >= 2:
            late = producer.late(fresh, first)
            is_cut = (
                command.independent and overflow.room(machine.messages, command.mean_bytes) < command.count
            )
            is_crowded = self.sessions.is_crowded(producer, first)
            if late or is_cut or is_crowded or fresh[0][1] < command.count:
                return self._enqueue_rest(entry, operation, producer, command, fresh[:late], fresh[late:])
        if fresh:
            refused = machine.enqueue(entry, operation.number, command, fresh)
            if refused is not None:
                return refused
            self.dirty[command.queue] = None
        producer.forget_below(command.lowest_unconfirmed)
        if fresh:
            producer.accept(first, last)
        self.sessions.count_ranges(producer)
        return Confirmed(first, last)

    def _enqueue_rest(
        self,
        entry: Entry,
        operation: Operation,
        producer: Producer,
        command: Enqueue,
        late: list[tuple[int, int]],
        new: list[tuple[int, int]],
    ) -> Reply:
        """Handles a batch of which not all messages are accepted now. late, new: (ordinal, count) of the messages that
        are late and of those that may be accepted; the latter are one range at most."""
        first = command.first_client_sequence
        last = first + command.count - 1
        machine = self.queues[command.queue]
        parts = [(first + at, first + at + count - 1, REFUSED_EARLIER) for at, count in late]
        for at, count in new:
            size = command.mean_bytes
            taken = min(count, overflow.room(machine.messages, size)) if command.independent else count
            refused = overflow.refuse_more(machine.messages, count, count * size) if taken < count else None
            if taken:
                numbers = [(first + at, first + at + taken - 1)]
                floor = max(producer.floor, command.lowest_unconfirmed)
                crowded = self.sessions.refuse_ranges(producer, numbers, floor)
                if crowded is not None:
                    taken, refused = 0, crowded
            if taken:
                failed = machine.enqueue(entry, operation.number, command, [(at, taken)])
                if failed is not None:
                    parts.append((first + at, last, failed))
                    break
                self.dirty[command.queue] = None
                producer.accept(first + at, first + at + taken - 1)
            if refused is not None:
                parts.append((first + at + taken, last, refused))
        if parts and parts[0][:2] == (first, last):
            return parts[0][2]
        producer.forget_below(command.lowest_unconfirmed)
        self.sessions.count_ranges(producer)
        return Confirmed(first, last, tuple(parts))

    def _enqueue_targets(
        self, entry: Entry, operation: Operation, producer: Producer, command: Enqueue
    ) -> Reply:
        """Decides about every message first, then changes the queues. Messages that are not accepted are in the reply,
        also where that is all of them. A queue that was deleted gets nothing, and takes a message from no other queue:
        the node that routed it did not know of that yet."""
        limits = self.limits
        floor = max(producer.floor, command.lowest_unconfirmed)
        refused = _refuse_enqueue(command, floor, limits.window)
        if refused is not None:
            return refused
        if not command.targets:
            whole = Target(command.queue, ((0, command.count),), command.columns)
            command = replace(command, queue=0, columns=b"", targets=(whole,))
        refused = targets.refuse(command, limits.max_targeted)
        if refused is not None:
            return refused
        parts = targets.split(command)
        if isinstance(parts, Refused):
            return parts
        numbers = targets.Numbers(command)
        if numbers.last > MAX_CLIENT_SEQUENCE:
            return Refused("bad_argument", f"a message is numbered {numbers.last}")
        refused = _refuse_window(numbers.last, floor, limits.window)
        if refused is not None:
            return refused
        late: list[tuple[int, int]] = []
        new: list[tuple[int, int]] = []
        highest = producer.highest
        for ordinal, count, number in producer.fresh_numbers(numbers.ranges, floor):
            (late if number < highest else new).append((ordinal, count))
        gone = [place for place, each in enumerate(command.targets) if self.was_deleted(each.queue)]
        if gone:
            parts = targets.without(parts, gone)
        fields_of = targets.FieldsOnce(entry)
        judged = targets.Offer(targets.within(parts, new), [])
        if command.immediate:
            judged = targets.at_once(entry, command, command.targets, judged.parts, self.queues, fields_of)
        chosen = targets.choose(command, judged, self.queues)
        taken = numbers.of(chosen.taken)
        prepared = self._prepare(entry, producer, command, chosen, taken, floor, fields_of)
        if isinstance(prepared, Refused):
            chosen = targets.Choice([], {}, [(ordinal, count, prepared) for ordinal, count in new])
            taken = []
        else:
            times, fields = prepared
            for place, fresh in chosen.by_target.items():
                target = command.targets[place]
                machine, rows = self.queues[target.queue], targets.rows_of(target, fresh)
                machine.append(entry, operation.number, command, fresh, rows, fields[place], times)
                self.dirty[target.queue] = None
        producer.forget_below(command.lowest_unconfirmed)
        for first, last in taken:
            producer.accept(first, last)
        self.sessions.count_ranges(producer)
        found = [(ordinal, count, REFUSED_EARLIER) for ordinal, count in late] + chosen.refused
        return Confirmed(command.first_client_sequence, numbers.last, numbers.refused(found))

    def _prepare(
        self,
        entry: Entry,
        producer: Producer,
        command: Enqueue,
        chosen: targets.Choice,
        taken: list[tuple[int, int]],
        floor: int,
        fields_of: targets.FieldsOnce,
    ) -> tuple[BatchTimes, dict[int, BatchFields]] | Refused:
        """What the chosen messages bring with them: their times, and the filter fields by target."""
        crowded = self.sessions.refuse_ranges(producer, taken, floor)
        if crowded is not None:
            return crowded
        times = read_times(command, entry.now_ms)
        if isinstance(times, Refused):
            return times
        fields: dict[int, BatchFields] = {}
        for place in chosen.by_target:
            target = command.targets[place]
            found = fields_of(self.queues[target.queue], target)
            if isinstance(found, Refused):
                return found
            fields[place] = found
        return times, fields

    def _attach(self, entry: Entry, operation: Operation, producer: Producer, command: Attach) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        before = machine.consumers.by_key.get((producer.name, command.consumer_tag))
        reply = machine.consumers.attach(entry, producer, command)
        if type(reply) is AttachedReply:
            producer.consumers[command.queue, command.consumer_tag] = None
            self.dirty[command.queue] = None
            self.transactions.consumer_changed(entry, machine, before)
        return reply

    def _credit(self, entry: Entry, operation: Operation, producer: Producer, command: Credit) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        reply = machine.consumers.credit(entry, producer.name, command)
        if type(reply) is Ok:
            self.dirty[command.queue] = None
        return reply

    def _cancel(self, entry: Entry, operation: Operation, producer: Producer, command: Cancel) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        before = machine.consumers.by_key.get((producer.name, command.consumer_tag))
        reply = machine.consumers.cancel(entry, producer.name, command.consumer_tag, command.requeue)
        if type(reply) is Ok:
            self._changed(producer, machine, command.consumer_tag)
            self.transactions.consumer_changed(entry, machine, before)
        return reply

    def _get(self, entry: Entry, operation: Operation, producer: Producer, command: Get) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        reply = machine.get(entry, producer, command)
        if type(reply) is Ok:
            producer.consumers[command.queue, ""] = None
            self.dirty[command.queue] = None
        return reply

    def _settle(self, entry: Entry, operation: Operation, producer: Producer, command: Settle) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        reply = machine.consumers.settle(entry, producer.name, command)
        if type(reply) is Ok:
            self._changed(producer, machine, command.consumer_tag)
        return reply

    def _in_transaction(
        self, entry: Entry, operation: Operation, producer: Producer, command: InTransaction
    ) -> Reply:
        return self.transactions.embargo(entry, operation.number, producer, command)

    def _commit(self, entry: Entry, operation: Operation, producer: Producer, command: Commit) -> Reply:
        refused = self.decisions.refuse_commit(producer, command.tx)
        return refused or self.transactions.commit(entry, producer, command)

    def _rollback(self, entry: Entry, operation: Operation, producer: Producer, command: Rollback) -> Reply:
        return self.transactions.rollback(entry, producer, command)

    def _prepare_part(
        self, entry: Entry, operation: Operation, producer: Producer, command: Prepare
    ) -> Reply:
        return self.decisions.prepare(entry, producer, command)

    def _decide(self, entry: Entry, operation: Operation, producer: Producer, command: Decide) -> Reply:
        return self.decisions.decide(entry, producer, command)

    def _resolve(self, entry: Entry, command: Resolve) -> Reply:
        return self.decisions.resolve(entry, command)

    def _finished(self, entry: Entry, command: Finished) -> Reply:
        return self.decisions.finished(command)

    def _staged(
        self,
        entry: Entry,
        operation: Operation,
        producer: Producer,
        command: Stage | PublishStaged | DiscardStaged,
    ) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        reply, is_changed = machine.stage(entry, operation.number, command)
        if is_changed:
            self.dirty[command.queue] = None
        return reply

    def _changed(self, producer: Producer, machine: QueueMachine, tag: str) -> None:
        if (producer.name, tag) not in machine.consumers.by_key:
            producer.consumers.pop((machine.queue, tag), None)
        self.dirty[machine.queue] = None

    def _ask_subscription(
        self, entry: Entry, operation: Operation, producer: Producer, command: SubscriptionCommand
    ) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        reply = machine.subscriptions.answer(entry, command)
        if type(reply) is not Refused:
            machine.use(entry)
            self.dirty[command.queue] = None
        return reply

    def _ask_pins(
        self, entry: Entry, operation: Operation, producer: Producer, command: Pin | Unpin
    ) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        pins = machine.pins
        reply = pins.pin(entry, command) if isinstance(command, Pin) else pins.unpin(command)
        if type(reply) is not Refused:
            self.dirty[command.queue] = None
        return reply

    # ---- administration

    def _create_queue(self, entry: Entry, command: CreateQueue) -> Reply:
        if is_deleted(self.deleted, command.queue):
            return Refused("not_found", f"queue {command.queue} was deleted; its id is never used again")
        if command.queue not in self.queues:
            machine = QueueMachine(
                command.queue, command.config, self.field_source, self.memory, self.selector_bytes
            )
            if entry.version >= UNIQUE_NUMBERS:
                machine.begin_numbers()
            self.queues[command.queue] = machine
            if command.config.expires_ms >= 0:
                self.dirty[command.queue] = None  # its time without use begins
        return Ok()

    def _update_config(self, entry: Entry, command: UpdateConfig) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        if machine.messages.config != command.config:
            machine.configure(entry, command.config)
            self.dirty[command.queue] = None
        return Ok()

    def _configured(self, entry: Entry, command: Configured) -> None:
        self.configured = max(self.configured, command.revision)

    def _use_queue(self, entry: Entry, command: UseQueue) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        machine.use(entry)
        self.dirty[command.queue] = None
        return Ok()

    def _delete_queue(self, entry: Entry, command: DeleteQueue) -> Reply:
        self.expired.pop(command.queue, None)  # the catalog knows that it is gone
        machine = self.queues.get(command.queue)
        if machine is not None:
            self.transactions.queue_ends(entry, machine)
            self.decisions.queue_ends(machine)
        self._remove_queue(command.queue)
        if machine is None:
            return Ok()
        for consumer in machine.consumers.by_key.values():
            if consumer.group is not None:
                event = Notify(
                    consumer.address, command.queue, consumer.tag, consumer.attach, "queue_deleted"
                )
                entry.effects.append(event)
        self.dirty[command.queue] = None  # so that its wake-up is forgotten
        return Ok(machine.messages.total_count)

    def _remove_queue(self, queue: int) -> QueueMachine | None:
        """Removes a queue with its messages. Its id is never used again."""
        if not is_deleted(self.deleted, queue):
            self.deleted.insert(bisect_left(self.deleted, queue), queue)
        machine = self.queues.pop(queue, None)
        if machine is not None:
            for consumer in machine.consumers.by_key.values():
                self.sessions.producers[consumer.producer].consumers.pop((queue, consumer.tag), None)
                self.selector_bytes.remove(consumer.owner, consumer.selector_bytes)
            machine.messages.blocks.clear()
            self.backlog.pop(queue, None)
            self.with_dead.discard(queue)
        return machine

    def _purge(self, entry: Entry, command: Purge) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        self.dirty[command.queue] = None
        return Ok(machine.purge(entry, command.before, dead_only=command.dead_only))

    def _claim_dead(self, entry: Entry, command: ClaimDead) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        dead = machine.messages.dead
        if len(command.producer) != PRODUCER_BYTES:
            return Refused("bad_argument", f"{len(command.producer)} bytes; a producer has {PRODUCER_BYTES}")
        if command.epoch <= dead.epoch:
            return Refused("wrong_generation", f"epoch {command.epoch}; allowed: above {dead.epoch}")
        self.dirty[command.queue] = None
        dead.epoch = command.epoch
        dead.producer = dead.producer or command.producer
        return Ok(dead.claim(entry.now_ms))

    def _settle_dead(self, entry: Entry, command: SettleDead) -> Reply:
        machine = self.queues.get(command.queue)
        if machine is None:
            return no_queue(command.queue)
        dead = machine.messages.dead
        if command.epoch != dead.epoch:
            return Refused("wrong_generation", f"epoch {command.epoch}; the last worker has {dead.epoch}")
        self.dirty[command.queue] = None
        gone = machine.messages.settle_dead(command.to, command.forwarded)
        dead.take_claims(command.again_to)
        if not command.problem:
            dead.claim(entry.now_ms)
        dead.problem = command.problem[:MAX_PROBLEM] if dead.count else ""
        return Ok(gone)

    def _wake(self, entry: Entry, command: Wake) -> None:
        self.transactions.end_overdue(entry)
        if entry.version < SHARED_BUDGETS:
            due = list(self.backlog)[:FIRST_WAKE_QUEUES]
            for queue in due:  # those that are unfinished after it join the backlog's end
                del self.backlog[queue]
                self.dirty[queue] = None
            for time_ms, queue in self._wakes.islice(0, FIRST_WAKE_QUEUES):
                if time_ms <= entry.now_ms:
                    self.dirty[queue] = None
            return
        self._woken.update(dict.fromkeys(islice(self.backlog, self.limits.wake_queues)))
        for time_ms, queue in self._wakes.islice(0, self.limits.wake_queues):
            if time_ms <= entry.now_ms:
                self._woken[queue] = None

    def _set_version(self, entry: Entry, command: SetVersion) -> None:
        check_version(f"the switch of entry {entry.index}", command.version, self.limits.newest_version)
        if command.version > self.version:
            self.version = command.version
            for machine in self.queues.values():
                machine.changes += 1  # its records may have more fields now

    # ---- local parts

    def page_out(self, queue: int, block: int) -> None:
        """Makes a block of a queue cold and drops its columns. To be called between entries only."""
        machine = self.queues[queue]
        machine.messages.blocks.page_out(block)
        machine.changes += 1  # its record may have a summary now
        machine.groups.fields.forget_laid()


def _refuse_enqueue(command: Enqueue, floor: int, window: int) -> Refused | None:
    count = command.count
    if command.size_bytes < 0 or command.first_client_sequence + count > MAX_CLIENT_SEQUENCE:
        return Refused(
            "bad_argument", f"{command.size_bytes} bytes, numbered from {command.first_client_sequence}"
        )
    if count < 1 or command.first_client_sequence < 0:
        return Refused(
            "bad_argument", f"{count} messages from {command.first_client_sequence}; allowed: 1 and more"
        )
    refused = targets.refuse_lengths(command)
    if refused is not None:
        return refused
    last = command.first_client_sequence + count - 1
    return None if last < floor + window else _refuse_window(last, floor, window)


def _refuse_window(last: int, floor: int, window: int) -> Refused | None:
    if last >= floor + window:
        return Refused("limit", f"message {last} while {floor} is unconfirmed; allowed: {window} from there")
    return None
