"""Reading of stored messages as whole batches, with their metadata, to build columns.

A batch is processed as a whole; only its properties are processed message by message, and only on demand. Reading is
synchronous and runs in a worker thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray

from fifo.effects import Run
from fifo.frozen_dataclasses import dataclass
from quorum.api.hub.deliveries import PARSED, BodyReader, tried
from quorum.node.errors import BodyUnreadable
from quorum.node.wire.operations import Command, batch_of, ttls_of
from quorum.v1 import queue_pb2 as pb

CACHED_BYTES = 4 << 20
"""Maximum bytes of parsed batches in a reader's cache: neighbouring runs use the same batch. The last one is kept,
whatever its size."""
NO_PROPERTIES = pb.Properties()

Ints = NDArray[np.int64]


def _merged_batch() -> Any:
    """Return the class of a MessageBatch with a single `properties` field instead of a repeated one.

    The parser merges the properties of all messages into it. This is the fastest way to find the properties that no
    message has.
    """
    name = "quorum/v1/merged_batch.proto"
    file = descriptor_pb2.FileDescriptorProto(name=name, package="quorum.v1", syntax="proto3")
    file.dependency.append("quorum/v1/queue.proto")
    file.message_type.add(name="MergedBatch").field.add(
        name="properties",
        number=pb.MessageBatch.PROPERTIES_FIELD_NUMBER,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".quorum.v1.Properties",
    )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("quorum.v1.MergedBatch"))


_MERGED = _merged_batch()


@dataclass(slots=True)
class Batch:
    """Messages that were stored together.

    starts: int64[count + 1], the start of each body in `bodies`, and the end of the last one.
    each: the properties of each message; None if all messages have `shared`, which is None if they have none.
    property_bytes: approximate bytes of all messages' properties. ttls_ms: one each, or one for all; -1: none.
    enqueued_ms: the group time of the entry. index: its Raft index.
    """

    bodies: bytes
    starts: Ints
    each: Sequence[pb.Properties] | None
    shared: pb.Properties | None
    property_bytes: int
    ttls_ms: Ints
    enqueued_ms: int
    index: int
    held_bytes: int
    """approximate memory, in bytes"""
    _data: bytes = b""
    """the serialized MessageBatch, which `union` parses and then drops"""
    _weights: Ints | None = None
    _union: pb.Properties | None = None

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    def properties(self, first: int, count: int) -> Sequence[pb.Properties] | None:
        """Return the properties of these messages; None if they have none."""
        if self.each is not None:
            return self.each[first : first + count]
        return None if self.shared is None else [self.shared] * count

    def ttls(self, first: int, count: int) -> Ints:
        if len(self.ttls_ms) > 1:
            return self.ttls_ms[first : first + count]
        return np.repeat(self.ttls_ms, count)

    def union(self) -> pb.Properties:
        """Return every property that at least one message has, with the value of one such message."""
        if self._union is None:
            if self.each is None:
                self._union = self.shared or NO_PROPERTIES
            elif self._data:
                self._union = _MERGED.FromString(self._data).properties
                self._data = b""
            else:
                self._union = pb.Properties()
                for each in self.each:
                    self._union.MergeFrom(each)
        return self._union

    def property_weights(self) -> Ints:
        """Return int64[count + 1]: bytes of the properties before each message, and of all messages."""
        if self._weights is None:
            if self.each is None:
                size = 0 if self.shared is None else self.shared.ByteSize()
                self._weights = np.arange(self.count + 1, dtype=np.int64) * size
            else:
                sizes = [0, *(each.ByteSize() for each in self.each)]
                self._weights = np.cumsum(sizes, dtype=np.int64)
        return self._weights


@dataclass(frozen=True, slots=True)
class Part:
    """The messages first .. first+count-1 of a batch. In the queue their sequences begin with `sequence`."""

    batch: Batch
    first: int
    count: int
    sequence: int


def batch_of_operation(operation: memoryview, command: Command, index: int) -> Batch:
    data = bytes(batch_of(operation))
    made = pb.MessageBatch.FromString(data)
    starts = np.zeros(made.count + 1, dtype=np.int64)
    starts[1:] = np.array(made.body_ends, dtype=np.int64)
    each = list(made.properties) or None
    shared = made.shared_properties if made.HasField("shared_properties") else None
    if each is not None:
        weight = max(0, len(operation) - len(made.bodies))
    else:
        weight = 0 if shared is None else made.count * shared.ByteSize()
    return Batch(
        made.bodies,
        starts,
        each,
        shared,
        weight,
        ttls_of(operation),
        command.now_ms,
        index,
        PARSED * len(data),
        data,
    )


class RowReader:
    """Reads the batches of runs. Each stream has its own reader, which belongs to one thread at a time."""

    def __init__(self, bodies: BodyReader, group: int) -> None:
        self._bodies = bodies
        self._group = group
        self._batches: OrderedDict[tuple[int, int], Batch] = OrderedDict()
        self._cached_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._cached_bytes + self._bodies.held_bytes

    def drop(self) -> None:
        """Empty the cache."""
        self._batches.clear()
        self._cached_bytes = 0
        self._bodies.drop()

    def parts(self, runs: Sequence[Run]) -> Iterator[Part | BodyUnreadable]:
        """Yield the runs' messages in order. Yields BodyUnreadable for a body that cannot be read, and retries it when
        the iterator is resumed."""
        for run in runs:
            yield from tried(partial(self._part, run))

    def _part(self, run: Run) -> Part:
        if run.one_each:
            return Part(self._joined(run), 0, run.count, run.first_sequence)
        key = (run.index, run.operation)
        batch = self._batches.get(key)
        if batch is None:
            command = self._bodies.command(self._group, run.index)
            batch = batch_of_operation(command.operation(run.operation), command, run.index)
            self._batches[key] = batch
            self._cached_bytes += batch.held_bytes
            while self._cached_bytes > CACHED_BYTES and len(self._batches) > 1:
                self._cached_bytes -= self._batches.popitem(last=False)[1].held_bytes
        return Part(batch, run.ordinal, run.count, run.first_sequence)

    def _joined(self, run: Run) -> Batch:
        """Return the single messages of neighbouring operations as one batch."""
        command = self._bodies.command(self._group, run.index)
        bodies: list[bytes] = []
        properties: list[pb.Properties] = []
        ttls = np.empty(run.count, dtype=np.int64)
        weight, has_properties = 0, False
        for number in range(run.count):
            operation = command.operation(run.operation + number)
            made = pb.MessageBatch.FromString(bytes(batch_of(operation)))
            bodies.append(made.bodies)
            weight += len(operation) - len(made.bodies)
            ttls[number] = ttls_of(operation)[0]
            if made.properties:
                properties.append(made.properties[0])
                has_properties = True
            elif made.HasField("shared_properties"):
                properties.append(made.shared_properties)
                has_properties = True
            else:
                properties.append(NO_PROPERTIES)
        starts = np.zeros(run.count + 1, dtype=np.int64)
        np.cumsum([len(body) for body in bodies], out=starts[1:])
        return Batch(
            b"".join(bodies),
            starts,
            properties if has_properties else None,
            None,
            weight if has_properties else 0,
            ttls,
            command.now_ms,
            run.index,
            PARSED * (int(starts[-1]) + weight),
        )


class Failures:
    """Failed deliveries of messages.

    counts: pairs (number of the message, failed deliveries), ascending by number; 0 for the others. base: added to
    every message's count.
    """

    __slots__ = ("_counts", "_numbers", "base")

    def __init__(self, counts: Sequence[tuple[int, int]] = (), base: int = 0) -> None:
        self._numbers = [number for number, _ in counts]
        self._counts = [count for _, count in counts]
        self.base = base

    def of(self, first: int, count: int) -> Ints:
        found = np.full(count, self.base, dtype=np.int64)
        low = bisect_left(self._numbers, first)
        high = bisect_left(self._numbers, first + count)
        for at in range(low, high):
            found[self._numbers[at] - first] += self._counts[at]
        return found
