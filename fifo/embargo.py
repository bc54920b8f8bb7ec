"""The embargo of one queue: what open and prepared transactions publish to it, and what
they settle in it.

A batch that names a transaction is in the log, but its messages are not in the queue: they have no sequences yet, no
consumer gets them, and no limit counts them. `EmbargoedBatch` has what a commit needs to add them to the end of the
queue: the place of their bodies in the log, and their times to live, which begin then. The delay of a message counts
from its publish, so its due time is known already. No body is moved or copied.

A settlement that names a transaction leaves its messages checked out, but takes them over from their consumer, so that
no other settlement finds them there. The consumer counts them as its own (`Consumer.embargoed`).

A transaction over several groups is *prepared* before it is decided (`fifo.decisions`): then the consumers have nothing
to do with its messages any more, and room is kept for those that it publishes, so that the decision needs nobody else.

`fifo.transactions` has the transactions: what belongs together in all queues of a group, and when it ends.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import field
from enum import IntEnum

import numpy as np

from fifo.batch_times import AT_ONCE, BatchTimes
from fifo.budgets import Entry
from fifo.commands import Discard, Modify, Return, Settle
from fifo.consumers.consumer import CheckedOut
from fifo.frozen_dataclasses import dataclass
from fifo.messages.message_groups import KEY_BYTES, keys_of_each
from fifo.messages.messages import Messages
from fifo.messages.ready_order import of_each
from fifo.messages.runs import ONE_EACH
from fifo.stretches import Stretches, columns_of, shares_of

Key = tuple[bytes, int]
"""A transaction: its producer, and the number that the producer has given it."""


class Outcome(IntEnum):
    """What becomes of settled messages."""

    SETTLED = 0
    REJECTED = 1
    REQUEUED = 2
    FAILED = 3
    """requeued after a failed delivery"""


def outcome_of(command: Settle) -> Outcome:
    if isinstance(command, Modify):
        if command.undeliverable_here:
            return Outcome.REJECTED
        return Outcome.FAILED if command.delivery_failed else Outcome.REQUEUED
    if isinstance(command, Return):
        return Outcome.REQUEUED
    return Outcome.REJECTED if isinstance(command, Discard) else Outcome.SETTLED


@dataclass(slots=True, eq=False)
class EmbargoedBatch:
    """The messages of a batch that are for this queue, in stretches of neighbours with the same times: the first
    ordinal, the number of messages, the TTL, and the due time of each stretch, in parallel arrays. There are none if
    the batch is immediate and no consumer can take its messages. dues: empty if all are ready at the commit."""

    index: int
    operation: int
    batch_count: int  # messages of the whole batch
    size_bytes: int  # of those for this queue
    texts: int  # their text factor, as read_costs.py counts it
    ordinals: array[int] = field(default_factory=lambda: array("I"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    ttls: array[int] = field(default_factory=lambda: array("q"))  # -1: none
    priorities: bytes = b""  # one for all messages, or one each; empty: 0
    dues: array[int] = field(default_factory=lambda: array("q"))
    group_keys: bytes = b""  # the keys of their groups, one for all messages, or one each; empty: no groups

    def add(
        self,
        ranges: Sequence[tuple[int, int]],
        times: BatchTimes,
        priorities: bytes | memoryview,
        group_keys: bytes | memoryview,
    ) -> None:
        """Adds the messages (ordinal, count). times: those of the whole batch. priorities, group_keys: those of the
        whole batch, or one of all. Raises OverflowError if a TTL is beyond 64 bits."""
        self.priorities = _parts(priorities, 1, ranges)
        self.group_keys = _parts(group_keys, KEY_BYTES, ranges)
        stretches = [each for ordinal, count in ranges for each in times.stretches(ordinal, count)]
        for ordinal, count, ttl_ms, _ in stretches:
            self.ordinals.append(ordinal)
            self.counts.append(count)
            self.ttls.append(max(ttl_ms, -1))
        if any(due_ms != AT_ONCE for _, _, _, due_ms in stretches):
            self.dues.extend([due_ms for _, _, _, due_ms in stretches])

    @property
    def message_count(self) -> int:
        return sum(self.counts)

    @property
    def range_count(self) -> int:
        return len(self.counts)

    @property
    def counted_bytes(self) -> int:
        """Its bytes as a limit counts them: the messages count alike."""
        count = self.message_count
        return self.size_bytes // count * count if count else 0

    def place(self, messages: Messages, entry: Entry) -> None:
        """Adds the messages to the end of the queue."""
        total, place = self.message_count, 0
        if len(self.counts) > messages.limits.few_stretches:
            self._place_each(messages, entry, total)
            return
        dues = self.dues or itertools.repeat(AT_ONCE, len(self.counts))
        for ordinal, count, ttl, due in zip(self.ordinals, self.counts, self.ttls, dues, strict=True):
            due_ms = due if due > entry.now_ms else AT_ONCE
            expires = messages.expires_at(max(entry.now_ms, due_ms), ttl)
            first = ONE_EACH if self.batch_count == 1 else ordinal
            size = self.size_bytes * count // total
            messages.append(
                self.index,
                self.operation,
                first,
                count,
                expires,
                size,
                self.texts,
                of_each(self.priorities, place),
                due_ms,
                keys_of_each(self.group_keys, place),
            )
            place += count

    def _place_each(self, messages: Messages, entry: Entry, total: int) -> None:
        """Adds the messages of many stretches."""
        ordinals, counts, ttls = columns_of(self.ordinals, self.counts, self.ttls)
        dues = np.full(len(counts), AT_ONCE, dtype=np.int64)
        if self.dues:
            dues = np.array(self.dues, dtype=np.int64)
            dues[dues <= entry.now_ms] = AT_ONCE
        messages.append_stretches(
            self.index,
            self.operation,
            Stretches(
                ordinals,
                counts,
                messages.expiries_at(entry.now_ms, dues, ttls),
                dues,
                shares_of(self.size_bytes, counts, total),
            ),
            self.texts,
            self.priorities,
            self.group_keys,
        )


def _parts(values: bytes | memoryview, width: int, ranges: Sequence[tuple[int, int]]) -> bytes:
    """The values of the messages (ordinal, count): `width` bytes each, or one value for all, which stays."""
    if len(values) <= width:
        return bytes(values)
    return b"".join([values[ordinal * width : (ordinal + count) * width] for ordinal, count in ranges])


@dataclass(slots=True, eq=False)
class EmbargoedSettlement:
    """What becomes of checked-out messages, which it holds."""

    consumer_tag: str
    attach: int
    outcome: Outcome
    held: CheckedOut

    size_bytes = 0

    @property
    def message_count(self) -> int:
        return self.held.total

    @property
    def range_count(self) -> int:
        return len(self.held.tags)


Part = EmbargoedBatch | EmbargoedSettlement


@dataclass(frozen=True, slots=True)
class OfferedSettlement:
    """A settlement that is not embargoed yet, as limits count it."""

    command: Settle
    message_count: int
    range_count: int

    size_bytes = 0


class Embargo:
    """The parts of open transactions in one queue, each in the order of its commands."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: dict[Key, list[Part]] = {}

    def add(self, key: Key, part: Part) -> None:
        self.parts.setdefault(key, []).append(part)

    def published(self, key: Key) -> tuple[int, int]:
        """The number of messages that the transaction publishes, and their bytes as a limit counts them."""
        batches = [each for each in self.parts[key] if isinstance(each, EmbargoedBatch)]
        return sum([each.message_count for each in batches]), sum([each.counted_bytes for each in batches])

    def settlements(self) -> list[EmbargoedSettlement]:
        """Those of all transactions."""
        return [
            each for parts in self.parts.values() for each in parts if isinstance(each, EmbargoedSettlement)
        ]

    def indexes(self) -> list[int]:
        """The Raft indexes of embargoed bodies."""
        return [
            each.index for parts in self.parts.values() for each in parts if isinstance(each, EmbargoedBatch)
        ]
