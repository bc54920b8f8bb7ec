"""Transactions of a group: publishes and settlements of one session that count all at once, or never.

A session sends the commands of a transaction to the group at once, and names the transaction in each. The group keeps
them under embargo in their queues (`fifo.embargo`). Commit makes all of them count in one entry: settled messages leave
their queues, and published ones get their sequences. `Transactions` knows which transactions are open.

All or nothing:
- A refused command of a transaction ends it: everything of it is dropped, and no later command of it is accepted.
- Commit checks the limits of all queues before it changes one. They do not count what another transaction may publish.
- A transaction ends with its session (its end, a higher epoch, a lost node), when it is too old, when one of its queues
  is deleted, and when a consumer whose messages it settles is cancelled, attached again, or has held messages for too
  long. The messages that it settles stay checked out then; what happens to a consumer happens to them.

Exactly once. A producer numbers its transactions upwards. The group remembers the highest number that the producer has
named, and which of the last transactions were committed (`Limits.transaction_window`). A Commit of one of these is
answered again, also in a later epoch. Any other number up to the highest one is refused for ever, so no late command
can begin a transaction a second time. Therefore the messages of a transaction need no client sequences: the producer
never sends them again one by one, and they take no number from its other messages.

The cost of a commit is some microseconds for each range of its messages (`Limits.transaction_ranges`). It reads
nothing: the fields of its messages are read by scans, which have a budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from fifo import targets
from fifo.batch_times import read_times
from fifo.budgets import Entry
from fifo.commands import Commit, Enqueue, InTransaction, Rollback, Settle, Target
from fifo.consumers.consumer import Consumer
from fifo.consumers.read_costs import text_factor
from fifo.effects import Ok, Refused, Reply
from fifo.embargo import EmbargoedBatch, Key, OfferedSettlement, Part
from fifo.limits import Limits
from fifo.messages import overflow
from fifo.producers import Producer
from fifo.queue_machine import QueueMachine
from fifo.shares import Owned
from quorum_selectors.columns import decode
from quorum_selectors.errors import ColumnsError

MAX_TX = (1 << 63) - 1


@dataclass(slots=True, eq=False)
class Transaction:
    """An open transaction. The counts follow from its parts in the queues."""

    producer: Producer
    number: int
    began_ms: int
    queues: dict[int, None] = field(default_factory=dict)
    operations: int = 0
    messages: int = 0
    size_bytes: int = 0
    ranges: int = 0

    @property
    def key(self) -> Key:
        return self.producer.name, self.number

    def count(self, queue: int, part: Part) -> None:
        self.queues[queue] = None
        self.operations += 1
        self.messages += part.message_count
        self.size_bytes += part.size_bytes
        self.ranges += part.range_count


Parts = Sequence[tuple[QueueMachine, Part | OfferedSettlement]]


class Transactions:
    """The open transactions of a group."""

    __slots__ = ("_dirty", "_queues", "by_key", "limits", "owned", "owned_bytes", "owned_ranges")

    def __init__(self, limits: Limits, queues: Mapping[int, QueueMachine], dirty: dict[int, None]) -> None:
        """dirty: the queues that an entry has to finish."""
        self.limits = limits
        self._queues = queues
        self._dirty = dirty
        self.by_key: dict[Key, Transaction] = {}  # in the order of their beginning
        self.owned = Owned()  # by the producers' owners; these three follow from the transactions
        self.owned_ranges = Owned()
        self.owned_bytes = Owned()

    def next_due(self) -> int | None:
        """The group time at which the oldest transaction is too old."""
        for each in self.by_key.values():
            return each.began_ms + self.limits.transaction_ms
        return None

    # ---- commands

    def embargo(self, entry: Entry, operation: int, producer: Producer, command: InTransaction) -> Reply:
        """Adds a publish or settlement to a transaction, which it may begin. If it is refused, the transaction ends;
        the credit of a settlement counts all the same."""
        number, inner = command.tx, command.command
        if isinstance(inner, Settle):
            self._take_credit(entry, producer, inner)
        transaction = self.by_key.get((producer.name, number))
        found: Parts | Refused | None = None
        if transaction is None:
            found = self._refuse_begin(producer, number)
        if found is None:
            found = (
                self._batches(entry, operation, inner)
                if isinstance(inner, Enqueue)
                else self._settlement(producer, inner)
            )
        if not isinstance(found, Refused):
            found = self._refuse_more(transaction, producer, found) or found
        if isinstance(found, Refused):
            if transaction is not None:
                self._drop(entry, transaction)
            elif 0 < number <= MAX_TX:
                self._name(producer, number)
            return found
        if transaction is None:
            transaction = self._begin(entry, producer, number)
        for machine, offered in found:
            part = (
                machine.transactions.settlement(producer.name, offered.command)
                if isinstance(offered, OfferedSettlement)
                else offered
            )
            machine.transactions.add(transaction.key, part)
            self._count(transaction, machine.queue, part)
            self._dirty[machine.queue] = None
        return Ok(sum(part.message_count for _, part in found))

    def commit(self, entry: Entry, producer: Producer, command: Commit) -> Reply:
        number = command.tx
        if any(producer.committed.overlapping(number, number)):
            return Ok()
        found = self.committable(entry, producer, number, command.operations)
        if isinstance(found, Refused):
            return found
        self.remove(found)
        for queue in sorted(found.queues):
            for tag in self._queues[queue].transactions.commit(entry, found.key):
                del producer.consumers[queue, tag]
            self._dirty[queue] = None
        producer.committed.add(number, number)
        return Ok()

    def committable(
        self, entry: Entry, producer: Producer, number: int, operations: int
    ) -> Transaction | Refused:
        """The open transaction, if it can commit. Otherwise the refusal, which has ended the transaction.

        operations: the number that the transaction must have, 0 if that is not known."""
        transaction = self.by_key.get((producer.name, number))
        if transaction is None:
            if number <= MAX_TX:
                self._name(producer, number)
            return _not_open(number)
        if operations not in (0, transaction.operations):
            self._drop(entry, transaction)
            return Refused(
                "rolled_back",
                f"transaction {number} has {transaction.operations} operations, said are {operations}",
            )
        for queue in sorted(transaction.queues):
            messages = self._queues[queue].messages
            count, size = self._queues[queue].transactions.embargo.published(transaction.key)
            refused = overflow.refuse_more(messages, count, size) if count else None
            if refused is not None:
                self._drop(entry, transaction)
                what = f"transaction {number} is rolled back, because of queue {messages.config.name!r}"
                return Refused(refused.reason, f"{what}: {refused.detail}")
        return transaction

    def rollback(self, entry: Entry, producer: Producer, command: Rollback) -> Reply:
        """A transaction that is not open is rolled back already, unless it was committed."""
        number = command.tx
        if any(producer.committed.overlapping(number, number)):
            return Refused("bad_argument", f"transaction {number} was committed")
        self.end(entry, producer, number)
        return Ok()

    def end(self, entry: Entry, producer: Producer, number: int) -> None:
        """Ends a transaction that was not committed: it never can be."""
        transaction = self.by_key.get((producer.name, number))
        if transaction is not None:
            self._drop(entry, transaction)
        elif number <= MAX_TX:
            self._name(producer, number)

    # ---- ends

    def end_all(self, entry: Entry, producer: Producer) -> None:
        """Ends the transactions of a session that ends."""
        for number in list(producer.open_tx):
            self._drop(entry, self.by_key[producer.name, number])

    def end_overdue(self, entry: Entry) -> None:
        """Ends a bounded number of transactions that are too old."""
        limits = self.limits
        for each in list(islice(self.by_key.values(), limits.ended_per_entry)):
            if each.began_ms + limits.transaction_ms > entry.now_ms:
                return
            self._drop(entry, each)

    def queue_ends(self, entry: Entry, machine: QueueMachine) -> None:
        """Ends the transactions with a part in a queue that is about to be deleted."""
        for key in list(machine.transactions.embargo.parts):
            if key in self.by_key:
                self._drop(entry, self.by_key[key])

    def consumer_changed(self, entry: Entry, machine: QueueMachine, before: Consumer | None) -> None:
        """Ends the transactions that settle messages of a consumer that does not exist any more, or was attached
        again. before: the consumer that there was."""
        if before is not None and before.embargoed and machine.consumers.by_key.get(before.key) is not before:
            self._end_settlements(entry, before)

    def consumers_time_out(self, entry: Entry, consumers: Sequence[Consumer]) -> None:
        """Ends the transactions that settle messages of consumers from which messages are taken back."""
        for each in consumers:
            self._end_settlements(entry, each)

    def _end_settlements(self, entry: Entry, consumer: Consumer) -> None:
        for number in list(consumer.embargoed):
            found = self.by_key.get((consumer.producer, number))  # another consumer may have ended it
            if found is not None:
                self._drop(entry, found)

    # ---- inside

    def _batches(self, entry: Entry, operation: int, command: Enqueue) -> Parts | Refused:
        """What each queue gets of a batch."""
        count = command.count
        if count < 1 or command.size_bytes < 0:
            return Refused(
                "bad_argument", f"{count} messages of {command.size_bytes} bytes; allowed: 1 message and more"
            )
        wrong = targets.refuse_lengths(command)
        if wrong is not None:
            return wrong
        if command.independent or command.numbers:
            return Refused("bad_argument", "messages of a transaction are neither independent nor numbered")
        wanted: Sequence[Target] = command.targets
        parts: Sequence[targets.Part] = [(0, count, (0,))]
        if wanted:
            refused = targets.refuse(command, entry.limits.max_targeted)
            split = targets.split(command)
            if refused is not None or isinstance(split, Refused):
                return refused or split  # type: ignore[return-value]
            parts = split
        else:
            wanted = (Target(command.queue, ((0, count),), command.columns),)
        ranges: dict[int, targets.Ranges] = {place: each.ranges for place, each in enumerate(wanted)}
        if command.immediate:
            fields_of = targets.FieldsOnce(entry)
            offer = targets.at_once(entry, command, wanted, parts, self._queues, fields_of)
            for _, _, why in offer.refused:
                return why
            ranges = {**targets.ranges_of(offer.parts)}
        times = read_times(command, entry.now_ms)
        if isinstance(times, Refused):
            return times
        found: list[tuple[QueueMachine, Part]] = []
        for place, target in enumerate(wanted):
            machine = self._queues.get(target.queue)
            if machine is None:
                return Refused("not_found", f"no queue {target.queue} in this group")
            own, texts = sum(width for _, width in target.ranges), 0
            try:  # the fields must be readable after the commit, whatever the queue keeps now
                if len(target.columns):
                    texts = text_factor(entry, target.columns, decode(target.columns, own))
                mine = ranges.get(place, ())
                size = command.size_bytes * sum([width for _, width in mine]) // count
                part = EmbargoedBatch(entry.index, operation, count, size, texts)
                has_priorities = machine.messages.order.has_priorities
                priorities = command.priorities if has_priorities else b""
                keys = command.group_keys if machine.messages.grouped is not None else b""
                part.add(mine, times, priorities, keys)
            except ColumnsError as error:
                return Refused("bad_argument", f"filter fields: {error}")
            except OverflowError:
                return Refused("bad_argument", "a TTL is beyond 64 bits")
            found.append((machine, part))
        return found

    def _take_credit(self, entry: Entry, producer: Producer, command: Settle) -> None:
        machine = self._queues.get(command.queue)
        if machine is not None and machine.consumers.take_credit(entry, producer.name, command):
            self._dirty[command.queue] = None

    def _settlement(self, producer: Producer, command: Settle) -> Parts | Refused:
        machine = self._queues.get(command.queue)
        if machine is None:
            return Refused("not_found", f"no queue {command.queue} in this group")
        refused = machine.transactions.refuse_settlement(producer.name, command)
        if refused is not None:
            return refused
        return [(machine, machine.transactions.offered(producer.name, command))]

    def _refuse_begin(self, producer: Producer, number: int) -> Refused | None:
        limits = self.limits
        if not 0 < number <= MAX_TX:
            return Refused("bad_argument", f"transaction {number}; allowed: 1..{MAX_TX}")
        if not producer.may_begin(number):
            return _not_open(number)
        oldest = min(producer.open_tx, default=number)
        if number - oldest >= limits.transaction_window:
            return Refused(
                "limit",
                f"transaction {number} while {oldest} is open; allowed: less than {limits.transaction_window} apart",
            )
        return None

    def _refuse_more(
        self, transaction: Transaction | None, producer: Producer, parts: Parts
    ) -> Refused | None:
        """The refusal if the transaction, or all of its owner or of the group, would be too large, else None."""
        limits, owner = self.limits, producer.owner
        now = transaction or Transaction(producer, 0, 0)
        queues = len({**now.queues, **dict.fromkeys([machine.queue for machine, _ in parts])})
        messages = sum(part.message_count for _, part in parts)
        ranges = sum(part.range_count for _, part in parts)
        size = sum(part.size_bytes for _, part in parts)
        for wanted, allowed, what in (
            (queues, limits.transaction_queues, "queues"),
            (now.operations + len(parts), limits.transaction_operations, "operations"),
            (now.messages + messages, limits.transaction_messages, "messages"),
            (now.size_bytes + size, limits.transaction_bytes, "bytes"),
            (now.ranges + ranges, limits.transaction_ranges, "ranges of messages"),
        ):
            if wanted > allowed:
                return Refused("limit", f"{wanted} {what} in a transaction; allowed: {allowed}")
        for owned, more, allowed, what in (
            (self.owned, int(transaction is None), limits.open_transactions, "transactions"),
            (self.owned_ranges, ranges, limits.embargoed_ranges, "ranges of messages"),
            (self.owned_bytes, size, limits.embargoed_bytes, "bytes"),
        ):
            if more and not owned.has_room(owner, allowed, more):
                free = max(0, allowed - owned.total)
                return Refused(
                    "limit",
                    f"{owned.counts.get(owner, 0)} {what} of open transactions of this client address, {more} more "
                    f"would be; allowed: as many as are left free of {allowed}, {free} now",
                )
        return None

    def _begin(self, entry: Entry, producer: Producer, number: int) -> Transaction:
        begun = Transaction(producer, number, entry.now_ms)
        self.add(begun)
        self._name(producer, number)
        producer.committed.forget_below(producer.last_tx - self.limits.transaction_window + 1)
        return begun

    def _name(self, producer: Producer, number: int) -> None:
        producer.name_tx(number, self.limits.transaction_window)

    def add(self, transaction: Transaction) -> None:
        """Adds a transaction as it is."""
        self.by_key[transaction.key] = transaction
        transaction.producer.open_tx[transaction.number] = None
        self.owned.add(transaction.producer.owner)

    def restore(self) -> None:
        """Counts the parts of all transactions, when a state has been read."""
        for queue in sorted(self._queues):
            for key, parts in self._queues[queue].transactions.embargo.parts.items():
                for part in parts if key in self.by_key else ():
                    self._count(self.by_key[key], queue, part)

    def _count(self, transaction: Transaction, queue: int, part: Part) -> None:
        transaction.count(queue, part)
        owner = transaction.producer.owner
        self.owned_ranges.add(owner, part.range_count)
        self.owned_bytes.add(owner, part.size_bytes)

    def remove(self, transaction: Transaction) -> None:
        """Forgets a transaction, whose parts are still in their queues."""
        del self.by_key[transaction.key]
        del transaction.producer.open_tx[transaction.number]
        owner = transaction.producer.owner
        self.owned.remove(owner)
        self.owned_ranges.remove(owner, transaction.ranges)
        self.owned_bytes.remove(owner, transaction.size_bytes)

    def _drop(self, entry: Entry, transaction: Transaction) -> None:
        """Ends a transaction without a trace."""
        self.remove(transaction)
        for queue in sorted(transaction.queues):
            self._queues[queue].transactions.drop(entry, transaction.key)
            self._dirty[queue] = None


def _not_open(number: int) -> Refused:
    return Refused(
        "rolled_back",
        f"transaction {number} is not open: it was refused, rolled back or too old, or it has lost its session, a queue"
        " or a consumer, or its number was used before",
    )
