"""The part of one queue in transactions: what it takes under embargo, and what the end of a transaction does with it.

`fifo.embargo` has the parts themselves. `fifo.transactions` and `fifo.decisions` know which transactions there are, and
call this for each queue of a transaction that commits, ends, is prepared or is decided.
"""

from __future__ import annotations

from fifo.budgets import Entry
from fifo.commands import Settle
from fifo.consumers.queue_consumers import QueueConsumers
from fifo.consumers.selector_groups import SelectorGroups
from fifo.effects import Refused
from fifo.embargo import (
    Embargo,
    EmbargoedBatch,
    EmbargoedSettlement,
    Key,
    OfferedSettlement,
    Outcome,
    Part,
    outcome_of,
)
from fifo.messages.messages import Messages


class QueueTransactions:
    """Takes the parts of transactions under embargo in one queue, and makes them count or drops them."""

    __slots__ = ("_consumers", "_groups", "_messages", "embargo")

    def __init__(
        self, messages: Messages, groups: SelectorGroups, consumers: QueueConsumers, embargo: Embargo
    ) -> None:
        self._messages = messages
        self._groups = groups
        self._consumers = consumers
        self.embargo = embargo

    def refuse_settlement(self, producer: bytes, command: Settle) -> Refused | None:
        """The refusal if a transaction cannot settle these messages, else None."""
        consumer = self._consumers.holder(producer, command)
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
        """What a settlement that `refuse_settlement` has allowed counts."""
        held = self._consumers.by_key[producer, command.consumer_tag].checked_out
        messages = sum(last - first + 1 for first, last in command.tags)
        return OfferedSettlement(command, messages, sum(held.run_count(*each) for each in command.tags))

    def settlement(self, producer: bytes, command: Settle) -> EmbargoedSettlement:
        """The messages of a settlement that `refuse_settlement` has allowed: they leave their consumer."""
        consumer = self._consumers.by_key[producer, command.consumer_tag]
        held = consumer.checked_out.take(command.tags)
        return EmbargoedSettlement(command.consumer_tag, command.attach, outcome_of(command), held)

    def add(self, key: Key, part: Part) -> None:
        """Adds a part to a transaction."""
        self.embargo.add(key, part)
        if isinstance(part, EmbargoedSettlement):
            self._consumers.by_key[key[0], part.consumer_tag].embargo(key[1], part.held)

    def drop(self, entry: Entry, key: Key) -> None:
        """Drops the parts of a transaction. The messages that it settles are their consumer's again; they are requeued
        if it is gone."""
        for part in self.embargo.parts.pop(key):
            if not isinstance(part, EmbargoedSettlement):
                continue
            consumer = self._consumers.by_key.get((key[0], part.consumer_tag))
            if consumer is None or consumer.attach != part.attach:
                self._messages.requeue(entry, part.held.ranges(), failed=False)
            else:
                consumer.lift_embargo(key[1])
                consumer.checked_out.take_back(part.held)

    def commit(self, entry: Entry, key: Key) -> list[str]:
        """Makes the parts of a transaction count, in their order. The fields of its messages are not read now: scans
        read them, as those of any backlog. Returns the tags of consumers that were cancelled before and hold nothing
        any more."""
        messages = self._messages
        gone: list[str] = []
        parts = self.embargo.parts.pop(key)
        if any(isinstance(part, EmbargoedBatch) and part.message_count for part in parts):
            self._groups.arrivals_begin(entry)
            entry.budget(self._messages.queue).reads_arrivals = True
        for part in parts:
            if isinstance(part, EmbargoedBatch):
                part.place(messages, entry)
                continue
            self._leave_queue(entry, part.outcome, part.held.ranges())
            gone += self._release(entry, key, part)
        return gone

    def _release(self, entry: Entry, key: Key, part: EmbargoedSettlement) -> list[str]:
        """The consumer of a settlement holds its messages no more. Returns its tag if it was cancelled before and holds
        nothing any more. A prepared part has been released before."""
        consumer = self._consumers.by_key.get((key[0], part.consumer_tag))
        if consumer is None or key[1] not in consumer.embargoed:
            return []
        was_full = consumer.is_full
        consumer.lift_embargo(key[1])
        self._consumers.has_settled(entry, consumer, 0, was_full=was_full)
        return [] if consumer.key in self._consumers.by_key else [consumer.tag]

    def _leave_queue(self, entry: Entry, outcome: Outcome, ranges: list[tuple[int, int]]) -> None:
        """What becomes of checked-out messages, as (sequence, count)."""
        if outcome in (Outcome.SETTLED, Outcome.REJECTED):
            self._messages.settle(ranges, "settled" if outcome == Outcome.SETTLED else "rejected")
        else:
            self._messages.requeue(entry, ranges, failed=outcome == Outcome.FAILED)

    def prepare(self, entry: Entry, key: Key) -> list[str]:
        """Gives the parts of a transaction what `decide` needs: the messages that they settle, which leave their
        consumers, and room for those that they publish. Returns the tags of consumers that were cancelled before and
        hold nothing any more."""
        gone: list[str] = []
        embargo = self.embargo
        for part in embargo.parts[key]:
            if isinstance(part, EmbargoedSettlement):
                gone += self._release(entry, key, part)
        self._messages.reserve(*embargo.published(key))
        return gone

    def decide(self, entry: Entry, key: Key, *, is_committed: bool) -> None:
        """The prepared parts of a transaction count now, or are dropped. Then a consumer has the messages again that it
        had; they are requeued if it is not attached any more, or is given nothing."""
        count, size = self.embargo.published(key)
        self._messages.reserve(-count, -size)
        if is_committed:
            self.commit(entry, key)
            return
        timeout_ms = self._messages.config.consumer_timeout_ms
        for part in self.embargo.parts.pop(key):
            if not isinstance(part, EmbargoedSettlement):
                continue
            consumer = self._consumers.by_key.get((key[0], part.consumer_tag))
            if consumer is None or not consumer.may_have_back(part.attach, part.held):
                self._messages.requeue(entry, part.held.ranges(), failed=False)
                continue
            consumer.checked_out.take_back(part.held)
            if consumer.group is not None:
                self._groups.credit_changed(consumer)
            if timeout_ms >= 0:
                self._consumers.timeouts.note(entry.now_ms, timeout_ms, [consumer])
