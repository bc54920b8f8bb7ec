"""Requests with extreme values, made from the descriptors: every field of every call, one at a time and many at once.

A field that is added to a request is tried without being named here. What is named is only what makes a call go far
enough to look at the others: a queue and a reader that there are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from quorum.v1 import admin_pb2, bulk_pb2, queue_pb2
from support.fifo.world import nth_number

F = FieldDescriptor
QUEUE, READER, CONSUMER = "orders", "reader", "c1"
ORDINARY: Mapping[str, object] = {
    "queue": QUEUE,
    "subscription": READER,
    "producer": "p1",
    "part": b"P" * 16,
    "generation": nth_number(1),
    "count": 1,
    "consumer_tag": CONSUMER,
    "batch": queue_pb2.MessageBatch(count=1, bodies=b"x", body_ends=[1]).SerializeToString(),
    "first_sequence": 1,
    "lowest_unconfirmed": 1,
    "producer_id": b"0123456789abcdef",
    "epoch": 1,
    "max_messages": 10,
}
UNSIGNED_64 = (0, 1, 65_536, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
UNSIGNED_32 = (0, 1, 65_536, 1 << 31, (1 << 32) - 1)
SIGNED_64 = (0, -1, (1 << 63) - 1, -(1 << 63))
SIGNED_32 = (0, -1, (1 << 31) - 1, -(1 << 31))
TEXTS = (
    "",
    "x" * 255,
    "x" * 60_000,
    "a\x00b\n",
    "\U0001f600" * 70,
    "*",
    "n = = 1",
    "9" * 5_000,
    "[::1]:٣٤",
    "../..",
)
BYTES = (b"", b"\xff" * 16, b"\xff" * 60_000, b"\x00")
DOUBLES = (0.0, float("nan"), float("inf"), -1.5)
VALUES: Mapping[int, tuple[object, ...]] = {
    F.TYPE_UINT64: UNSIGNED_64,
    F.TYPE_FIXED64: UNSIGNED_64,
    F.TYPE_UINT32: UNSIGNED_32,
    F.TYPE_FIXED32: UNSIGNED_32,
    F.TYPE_INT64: SIGNED_64,
    F.TYPE_SINT64: SIGNED_64,
    F.TYPE_SFIXED64: SIGNED_64,
    F.TYPE_INT32: SIGNED_32,
    F.TYPE_SINT32: SIGNED_32,
    F.TYPE_SFIXED32: SIGNED_32,
    F.TYPE_BOOL: (False, True),
    F.TYPE_DOUBLE: DOUBLES,
    F.TYPE_FLOAT: DOUBLES,
    F.TYPE_STRING: TEXTS,
    F.TYPE_BYTES: BYTES,
}
MANY = (2, 900)
MAX_DEPTH = 6


def methods() -> list[MethodDescriptor]:
    return [
        method
        for module in (admin_pb2, bulk_pb2, queue_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def new(message: Descriptor) -> Any:
    return message_factory.GetMessageClass(message)()


def ordinary(message: Descriptor) -> Any:
    """Only what makes the call go somewhere."""
    made = new(message)
    for field in message.fields:
        if field.name in ORDINARY and not field.is_repeated:
            value = ORDINARY[field.name]
            if (
                (field.type == F.TYPE_STRING and isinstance(value, str))
                or (field.type == F.TYPE_BYTES and isinstance(value, bytes))
                or (
                    field.type in VALUES
                    and isinstance(value, int)
                    and field.type not in (F.TYPE_STRING, F.TYPE_BYTES)
                )
            ):
                setattr(made, field.name, value)
    return made


def values_of(field: FieldDescriptor) -> tuple[object, ...]:
    if field.enum_type is not None:
        known = tuple(each.number for each in field.enum_type.values)
        return (*known, max(known) + 1, (1 << 31) - 1)
    return VALUES[field.type]


def one_at_a_time(message: Descriptor, depth: int = 0) -> Iterator[Any]:
    """An ordinary message with one extreme value in it, for every field and value, those of inner messages too."""
    yield ordinary(message)
    for field in message.fields:
        if depth == MAX_DEPTH:
            return
        if _is_map(field):
            for entry in one_at_a_time(field.message_type, depth + 1):
                made = ordinary(message)
                _put(getattr(made, field.name), entry, field)
                yield made
        elif field.message_type is not None:
            for inner in one_at_a_time(field.message_type, depth + 1):
                for count in (1, *MANY[:1]) if field.is_repeated else (1,):
                    made = ordinary(message)
                    if field.is_repeated:
                        getattr(made, field.name).extend([inner] * count)
                    else:
                        getattr(made, field.name).CopyFrom(inner)
                    yield made
            if field.is_repeated:
                made = ordinary(message)
                getattr(made, field.name).extend([ordinary(field.message_type)] * MANY[1])
                yield made
        else:
            for value in values_of(field):
                made = ordinary(message)
                if field.is_repeated:
                    getattr(made, field.name).extend([value] * MANY[0])
                else:
                    setattr(made, field.name, value)
                yield made


def at_random(message: Descriptor, chance: random.Random, depth: int = 0) -> Any:
    """Extreme values in many fields."""
    made = ordinary(message)
    for field in message.fields:
        if chance.random() < 0.5 or depth == MAX_DEPTH:
            continue
        if _is_map(field):
            for _ in range(chance.choice((1, 3))):
                _put(getattr(made, field.name), at_random(field.message_type, chance, depth + 1), field)
        elif field.message_type is not None:
            inner = at_random(field.message_type, chance, depth + 1)
            if field.is_repeated:
                getattr(made, field.name).extend([inner] * chance.choice((1, 2)))
            else:
                getattr(made, field.name).CopyFrom(inner)
        else:
            value = chance.choice(values_of(field))
            if field.is_repeated:
                getattr(made, field.name).extend([value] * chance.choice((1, 2)))
            else:
                setattr(made, field.name, value)
    return made


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _put(target: Any, entry: Message, field: FieldDescriptor) -> None:
    key: Any = entry.key  # type: ignore[attr-defined]
    if field.message_type.fields_by_name["value"].message_type is not None:
        target[key].CopyFrom(entry.value)  # type: ignore[attr-defined]
    else:
        target[key] = entry.value  # type: ignore[attr-defined]
