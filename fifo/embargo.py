"""The embargo of one queue: what open transactions publish to it, and what they settle in it.

A batch that names a transaction is in the log, but its messages are not in the queue: they have no sequences yet, no
consumer gets them, and no limit counts them. `EmbargoedBatch` has what a commit needs to add them to the end of the
queue: the place of their bodies in the log, and their times to live, which begin then. No body is moved or copied.

A settlement that names a transaction leaves its messages checked out. Their tags are noted at the consumer
(`Consumer.embargoed`), so that no other settlement takes them meanwhile.

`fifo.transactions` has the transactions: what belongs together in all queues of a group, and when it ends.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fifo.budgets import Entry
from fifo.commands import Discard, Modify, Return, Settle
from fifo.messages.blocks import ONE_EACH
from fifo.messages.message_groups import KEY_BYTES, keys_of_each
from fifo.messages.messages import Messages
from fifo.messages.ready_order import of_each

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
    """The messages of a batch that are for this queue, in stretches of neighbours with the same time to live: the first
    ordinal, the number of messages, and the TTL of each stretch, in parallel arrays."""

    index: int
    operation: int
    batch_count: int  # messages of the whole batch
    size_bytes: int  # of those for this queue
    texts: int  # their text factor, as read_costs.py counts it
    ordinals: array[int] = field(default_factory=lambda: array("I"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    ttls: array[int] = field(default_factory=lambda: array("q"))  # -1: none
    priorities: bytes = b""  # one for all messages, or one each; empty: 0
    group_keys: bytes = b""  # the keys of their groups, one for all messages, or one each; empty: no groups

    def add(
        self,
        ranges: Sequence[tuple[int, int]],
        ttl_ms: int,
        ttls: NDArray[np.int64],
        priorities: bytes | memoryview,
        group_keys: bytes | memoryview,
    ) -> None:
        """Adds the messages (ordinal, count). ttls: those of the whole batch, empty if `ttl_ms` is that of all.
        priorities, group_keys: those of the whole batch, or one of all. Raises OverflowError for a TTL beyond 64
        bits."""
        self.priorities = _parts(priorities, 1, ranges)
        self.group_keys = _parts(group_keys, KEY_BYTES, ranges)
        for ordinal, count in ranges:
            if not len(ttls):
                self._add(ordinal, count, ttl_ms)
                continue
            own = ttls[ordinal : ordinal + count]
            starts = [0, *(np.flatnonzero(own[1:] != own[:-1]) + 1).tolist(), count]
            for start, end in itertools.pairwise(starts):
                self._add(ordinal + start, end - start, int(own[start]))

    def _add(self, ordinal: int, count: int, ttl_ms: int) -> None:
        self.ttls.append(max(ttl_ms, -1))
        self.ordinals.append(ordinal)
        self.counts.append(count)

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
        return self.size_bytes // count * count

    def place(self, messages: Messages, entry: Entry) -> None:
        """Adds the messages to the end of the queue."""
        total, place = self.message_count, 0
        for ordinal, count, ttl in zip(self.ordinals, self.counts, self.ttls, strict=True):
            expires = messages.expires_at(entry.now_ms, ttl)
            first = ONE_EACH if self.batch_count == 1 else ordinal
            size = self.size_bytes * count // total
            own = of_each(self.priorities, place), keys_of_each(self.group_keys, place)
            messages.append(self.index, self.operation, first, count, expires, size, self.texts, *own)
            place += count


def _parts(values: bytes | memoryview, width: int, ranges: Sequence[tuple[int, int]]) -> bytes:
    """The values of the messages (ordinal, count): `width` bytes each, or one value for all, which stays."""
    if len(values) <= width:
        return bytes(values)
    return b"".join([values[ordinal * width : (ordinal + count) * width] for ordinal, count in ranges])


@dataclass(slots=True, eq=False)
class EmbargoedSettlement:
    """What becomes of checked-out messages. tags: ranges (first, last) of the consumer's delivery tags, ascending."""

    consumer_tag: str
    attach: int
    outcome: Outcome
    tags: Sequence[tuple[int, int]]

    size_bytes = 0

    @property
    def message_count(self) -> int:
        return sum(last - first + 1 for first, last in self.tags)

    @property
    def range_count(self) -> int:
        return len(self.tags)


Part = EmbargoedBatch | EmbargoedSettlement


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

    def indexes(self) -> list[int]:
        """The Raft indexes of embargoed bodies."""
        return [
            each.index for parts in self.parts.values() for each in parts if isinstance(each, EmbargoedBatch)
        ]
