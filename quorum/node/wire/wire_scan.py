"""Counts the elements of a serialized protobuf message before it is parsed.

An empty element takes two bytes on the wire and a hundred times that once it is parsed, and the parser holds the
interpreter's lock until it has all of them. So this module first walks a request's bytes tag by tag, without creating
objects, and stops at the first element above a limit.

A Shape holds the limits of a message type. It is made from the type's descriptor, so that every field has a limit,
named or not. `Limit` names the fields for which the default is not right.

- A field that is not repeated appears once; a message without texts, bytes and messages in it has SCALARS_BYTES.
- Fields that the type does not know: MAX_UNKNOWN of a message.
- All tags of a request count together, too: nested limits multiply.

These limits bound the objects that a parse creates. The service that receives the request checks its meaning after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fifo.frozen_dataclasses import dataclass

DEFAULT_COUNT = 1_000
"""Elements of a repeated field or a map."""
DEFAULT_BYTES = 64 << 10
"""One text, or one field of bytes."""
SCALARS_BYTES = 256
"""A message that has numbers only: of 20 fields, each with its tag."""
MAX_UNKNOWN = 32
DEFAULT_TAGS = 20_000
UNWALKED_BYTES = 4 << 10
"""A shorter message is not walked: it has 2,048 elements at most, and most requests are shorter."""

_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_FIXED_8 = (FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64, FieldDescriptor.TYPE_DOUBLE)
_FIXED_4 = (FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_FLOAT)
_LOW = bytes(range(128))
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


class ScanError(Exception):
    """A message that is not parsed; the text is for people."""

    def __init__(self, detail: str, *, is_malformed: bool = False, is_size: bool = False) -> None:
        super().__init__(detail)
        self.is_malformed = is_malformed
        """True: the bytes are no message of this type; False: they exceed a limit"""
        self.is_size = is_size
        """True: too many bytes; False: too many elements"""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a field; None is the default. total_bytes: of all its elements in one request. is_opaque: the
    elements are not walked, because their bytes are limited closely enough."""

    count: int | None = None
    size_bytes: int | None = None
    total_bytes: int | None = None
    is_opaque: bool = False


Limits = Mapping[str, Limit]
"""By Type.field, without the package."""


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    name: str
    count: int
    size_bytes: int
    total_bytes: int | None
    inside: Shape | None
    """how its elements are walked; None: they are not"""
    width: int
    """bytes of one element where they are packed; 0: none are; -1: each is as long as its number"""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The limits of a message type."""

    name: str
    fields: Mapping[int, Field]
    unknown: Field


def shape_of(message: Descriptor, limits: Limits) -> Shape:
    fields = {field.number: _field(message, field, limits) for field in message.fields}
    unknown = Field(f"{message.name}'s unknown fields", MAX_UNKNOWN, DEFAULT_BYTES, None, None, 0)
    return Shape(message.name, fields, unknown)


def _field(message: Descriptor, field: FieldDescriptor, limits: Limits) -> Field:
    name = f"{message.name}.{field.name}"
    limit = limits.get(name, Limit())
    count = limit.count or (DEFAULT_COUNT if field.is_repeated else 1)
    inner: Descriptor | None = field.message_type
    inside = None
    if inner is not None and not limit.is_opaque and not _is_scalars(inner):
        inside = shape_of(inner, limits)
    size = limit.size_bytes
    if size is None:
        size = _default_bytes(field, inside)
    width = 0
    if field.is_repeated and inner is None and field.type not in _TEXTS:
        width = 8 if field.type in _FIXED_8 else 4 if field.type in _FIXED_4 else -1
        size = count * (width if width > 0 else 10)
    return Field(name, count, size, limit.total_bytes, inside, width)


def _default_bytes(field: FieldDescriptor, inside: Shape | None) -> int:
    if inside is not None:
        return 1 << 32  # its own fields are limited
    return DEFAULT_BYTES if field.type in _TEXTS else SCALARS_BYTES


def _is_scalars(message: Descriptor) -> bool:
    return not any(
        each.is_repeated or each.message_type is not None or each.type in _TEXTS for each in message.fields
    )


def scan(data: bytes, shape: Shape, max_tags: int = DEFAULT_TAGS) -> None:
    """Raises ScanError where a parse of these bytes would make more than the shape allows."""
    if len(data) <= UNWALKED_BYTES:
        return
    try:
        _Walk(data, max_tags).walk(0, len(data), shape)
    except IndexError:
        raise _malformed(shape, "they end within a number") from None


def read_number(data: bytes, number: int) -> int | None:
    """The value of a field of type uint32 or uint64 at the top level, if it is among the first DEFAULT_TAGS fields."""
    position, end, found = 0, len(data), None
    try:
        for _ in range(DEFAULT_TAGS):
            if position >= end:
                break
            tag, position = _varint(data, position)
            if tag == number << 3:
                found, position = _varint(data, position)
            else:
                position = _skip(data, position, tag & 7)
    except (IndexError, ValueError):
        pass
    return found


def read_sizes(data: bytes, numbers: frozenset[int], max_tags: int) -> int:
    """The bytes of the texts, bytes and messages with these numbers at the top level, if they are among the first
    max_tags fields."""
    position, end, found = 0, len(data), 0
    try:
        for _ in range(max_tags):
            if position >= end:
                break
            tag, position = _varint(data, position)
            after = _skip(data, position, tag & 7)
            if tag & 7 == _BYTES and tag >> 3 in numbers:
                found += min(after, end) - position
            position = after
    except (IndexError, ValueError):
        pass
    return found


class _Walk:
    def __init__(self, data: bytes, max_tags: int) -> None:
        self._data = data
        self._max_tags = max_tags
        self._left = max_tags
        self._totals: dict[Field, int] = {}

    def walk(self, position: int, end: int, shape: Shape) -> None:
        """The message between these places."""
        data, fields, unknown = self._data, shape.fields, shape.unknown
        counts: dict[Field, int] = {}
        while position < end:
            tag = data[position]
            position += 1
            if tag > 127:
                tag, position = _long(data, position, tag, shape)
            field = fields.get(tag >> 3, unknown)
            count = counts.get(field, 0)
            self._left -= 1
            if tag & 7 != _BYTES:
                try:
                    position = _skip(data, position, tag & 7)
                except ValueError as error:
                    raise _malformed(shape, str(error)) from None
                count += 1
            else:
                size = data[position]
                position += 1
                if size > 127:
                    size, position = _long(data, position, size, shape)
                stop = position + size
                if stop > end:
                    raise _malformed(shape, f"{field.name} ends {stop - end} bytes behind their end")
                if size > field.size_bytes:
                    text = f"{field.name} has {size} bytes; allowed: {field.size_bytes}"
                    raise ScanError(text, is_size=not field.width)
                count += self._elements(position, size, field) if field.width else 1
                if field.total_bytes is not None:
                    self._add(field, size, field.total_bytes)
                if field.inside is not None and size:
                    self.walk(position, stop, field.inside)
                position = stop
                if field.inside is None and not field.width and tag < 128:
                    position, count = self._alike(position, end, tag, field, count)
            if count > field.count:
                raise ScanError(f"{field.name} has {count} elements or more; allowed: {field.count}")
            counts[field] = count
            if self._left < 0:
                raise ScanError(
                    f"{shape.name}: the request has {self._max_tags + 1} fields or more, those of inner "
                    f"messages included; allowed: {self._max_tags}"
                )
        if position > end:
            raise _malformed(shape, "they end within a field")

    def _alike(self, position: int, end: int, tag: int, field: Field, count: int) -> tuple[int, int]:
        """The position after the following short elements of the same field, and their count: the same as `walk`, in a
        third of the time."""
        data, before, most = self._data, count, min(field.count, count + self._left)
        total, short = 0, min(field.size_bytes, 127)
        while position + 1 < end and data[position] == tag and data[position + 1] <= short and count < most:
            size = data[position + 1]
            total += size
            position += 2 + size
            count += 1
        self._left -= count - before
        if field.total_bytes is not None:
            self._add(field, total, field.total_bytes)
        return position, count

    def _elements(self, position: int, size: int, field: Field) -> int:
        if field.width > 0:
            return size // field.width
        return size - len(self._data[position : position + size].translate(None, _LOW))

    def _add(self, field: Field, size: int, allowed: int) -> None:
        total = self._totals[field] = self._totals.get(field, 0) + size
        if total > allowed:
            text = f"{field.name} has {total} bytes or more in all; allowed: {allowed}"
            raise ScanError(text, is_size=not field.width)


def _long(data: bytes, position: int, first: int, shape: Shape) -> tuple[int, int]:
    """A length or tag of two bytes or more, of which the first was read."""
    value, shift = first & 127, 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 28:
            raise _malformed(shape, "a tag or a length has more than 5 bytes")
    if value >= 1 << 32:
        raise _malformed(shape, f"a tag or a length is {value}")
    return value, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & ((1 << 64) - 1), position
    raise ValueError("a number has more than 10 bytes")


def _skip(data: bytes, position: int, wire_type: int) -> int:
    """The position after a field's value. Raises ValueError, IndexError."""
    if wire_type == _VARINT:
        if data[position] < 128:
            return position + 1
        return _varint(data, position)[1]
    if wire_type == _BYTES:
        size, position = _varint(data, position)
        return position + size
    if wire_type in (_EIGHT, _FOUR):
        return position + (8 if wire_type == _EIGHT else 4)
    raise ValueError(f"wire type {wire_type}; allowed: 0, 1, 2, 5")


def _malformed(shape: Shape, what: str) -> ScanError:
    return ScanError(f"the bytes are no {shape.name}: {what}", is_malformed=True)
