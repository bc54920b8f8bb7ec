"""Messages and batches of them.

A batch is encoded once and travels as those bytes. `PreparedBatch` has the bytes and their message count; publishing
one runs no Python per message. `BatchReader` decodes lazily: it parses the batch at the first access, returns bodies as
slices, and decodes properties only on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from google.protobuf.message import DecodeError

from quorum.client.errors import ServiceError, UsageError
from quorum.client.values import (
    FieldValue,
    Properties,
    decode_properties,
    encode_properties,
    values_to_dict,
)
from quorum.v1 import queue_pb2

NO_PROPERTIES = Properties()


@dataclass(frozen=True, slots=True)
class Message:
    """One message to publish."""

    body: bytes
    properties: Properties | Mapping[str, object] | None = None
    application_properties: Mapping[str, FieldValue] | None = None


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A serialized MessageBatch and its number of messages."""

    data: bytes
    count: int

    @classmethod
    def parse(cls, data: bytes) -> PreparedBatch:
        """Check that `data` is a batch. This costs a parse, which a batch from `encode_batch` does not need."""
        batch = parse_batch(data)
        if batch is None or batch.count == 0 or len(batch.body_ends) != batch.count:
            raise UsageError(f"{len(data)} bytes are not a serialized MessageBatch with messages in it")
        return cls(data, batch.count)


Batch = PreparedBatch | bytes | Iterable[Message | bytes]
"""Messages, a PreparedBatch, or a serialized MessageBatch."""


def encode_batch(messages: Iterable[Message | bytes]) -> PreparedBatch:
    """Encode messages as one batch. Properties are stored once if all messages have equal ones."""
    if not isinstance(messages, Iterable):
        raise UsageError(f"a batch is messages, a PreparedBatch or bytes, not {type(messages).__name__}")
    bodies: list[bytes] = []
    described: list[Any] = []
    for message in messages:
        whole = message if isinstance(message, Message) else Message(message)
        bodies.append(body_of(whole))
        described.append(encode_properties(whole.properties, whole.application_properties))
    if not bodies:
        raise UsageError("a batch holds at least one message")
    return encode_parts(bodies, described)


def body_of(message: Message) -> bytes:
    if not isinstance(message.body, bytes | bytearray | memoryview):
        raise UsageError(f"a body is bytes, not {type(message.body).__name__}")
    return bytes(message.body)


def prepare(batch: Batch) -> PreparedBatch:
    """The batch, encoded if it is not yet."""
    if isinstance(batch, PreparedBatch):
        return batch
    if isinstance(batch, bytes | bytearray | memoryview):
        return PreparedBatch.parse(bytes(batch))
    return encode_batch(batch)


def encode_parts(bodies: list[bytes], described: list[Any]) -> PreparedBatch:
    """The batch of these bodies. described: a queue_pb2.Properties or None for each."""
    ends = list(accumulate(map(len, bodies)))
    batch = queue_pb2.MessageBatch(count=len(bodies), bodies=b"".join(bodies), body_ends=ends)
    if any(properties is not None for properties in described):
        if all(properties == described[0] for properties in described):
            batch.shared_properties.CopyFrom(described[0])
        else:
            empty = queue_pb2.Properties()
            batch.properties.extend(empty if properties is None else properties for properties in described)
    return PreparedBatch(batch.SerializeToString(deterministic=True), len(bodies))


def part_of(batch: PreparedBatch, first: int, count: int) -> PreparedBatch:
    """A batch of `count` of its messages, from the place `first` on."""
    reader = BatchReader(batch.data, batch.count)
    places = range(first, first + count)
    return encode_parts(
        [reader.body(place) for place in places], [reader.raw_properties(place) for place in places]
    )


class BatchReader:
    """A received batch, parsed at the first access."""

    __slots__ = ("_batch", "_bodies", "_ends", "count", "data")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        self.count = count
        self._batch: Any = None
        self._bodies = b""
        self._ends: list[int] = []

    def _parsed(self) -> Any:
        if self._batch is None:
            batch = parse_batch(self.data)
            if batch is None or batch.count != self.count or len(batch.body_ends) != self.count:
                raise ServiceError(f"a delivery of {self.count} messages does not carry that many messages")
            self._batch, self._bodies, self._ends = batch, batch.bodies, list(batch.body_ends)
        return self._batch

    def body(self, ordinal: int) -> bytes:
        self._parsed()
        return self._bodies[self._ends[ordinal - 1] if ordinal else 0 : self._ends[ordinal]]

    def raw_properties(self, ordinal: int) -> Any:
        """The queue_pb2.Properties of one message; None where it has none."""
        batch = self._parsed()
        if batch.properties:
            return batch.properties[ordinal]
        return batch.shared_properties if batch.HasField("shared_properties") else None

    def properties(self, ordinal: int) -> Properties:
        raw = self.raw_properties(ordinal)
        return NO_PROPERTIES if raw is None else decode_properties(raw)

    def application_properties(self, ordinal: int) -> dict[str, FieldValue | None]:
        raw = self.raw_properties(ordinal)
        return {} if raw is None else values_to_dict(raw.application_properties)


def parse_batch(data: bytes) -> Any:
    """The queue_pb2.MessageBatch, or None if the bytes are not one."""
    batch = queue_pb2.MessageBatch()
    try:
        batch.ParseFromString(data)
    except DecodeError:
        return None
    return batch
