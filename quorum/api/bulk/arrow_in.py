"""Convert Arrow blocks into message batches for staging, in chunks that each become one command.

Without a column of properties, a chunk's bodies and their offsets are copied from Arrow's buffers into the batch
unchanged. The first bulk call imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorum.api import status
from quorum.api.bulk.arrow_messages import has_compressed
from quorum.api.bulk.arrow_out import FIELD_TYPES
from quorum.api.bulk.json_values import read_into
from quorum.columns import TEXTS
from quorum.node.wire.batches import MAX_BATCH_COLUMNS, MAX_MESSAGE_FIELDS, WELL_KNOWN
from quorum.v1 import queue_pb2 as pb

CHUNK_ROWS = 8_192
CHUNK_BYTES = 1 << 20
MOST_NESTED_BYTES = 64 << 20
"""Maximum bytes of a record batch, and of its unpacked part: a dictionary can give many rows the same long text."""
VALUE_BYTES = 64
"""Approximate bytes of an application property besides its name and text."""
CHUNK_NAMES = MAX_BATCH_COLUMNS - len(WELL_KNOWN)
"""Different application properties of a chunk. The queue may keep all of them as filter fields."""
ALLOWED = ("body", *TEXTS, "priority", "ttl_ms", "fields", "properties")


def chunks(data: bytes, max_rows: int = CHUNK_ROWS) -> Iterator[tuple[bytes, int]]:
    """Yield (serialized MessageBatch, number of messages) for each chunk of a block. The same block gives the same
    chunks on every node, because repeated calls rely on it. StatusError if the block is invalid."""
    try:
        if has_compressed(data):
            raise _bad("it is compressed; allowed: no compression")
        with pa.ipc.open_stream(data) as stream:
            _check_names(stream.schema)
            for batch in stream:
                if batch.num_rows > len(data):  # each message takes at least one byte of the block
                    raise _bad(
                        f"a record batch of {batch.num_rows} rows; at most one for each of {len(data)} bytes"
                    )
                _validate(batch)
                if batch.nbytes > MOST_NESTED_BYTES:
                    raise _bad(f"a record batch of {batch.nbytes} bytes; at most {MOST_NESTED_BYTES}")
                for part in _parts(batch):
                    yield from _Rows(part).chunks(max_rows)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _bad(f"the block is not a readable Arrow IPC stream: {error}") from error


def _validate(batch: pa.RecordBatch) -> None:
    """Refuse a batch whose offsets or texts are invalid, because the client wrote them."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise _bad(f"the column {name[:40]!r} is not valid: {error}") from error
        raise


def _bad(text: str) -> status.StatusError:
    return status.invalid("bad_block", text)


def _check_names(schema: pa.Schema) -> None:
    for name in schema.names:
        if name not in ALLOWED:
            close = get_close_matches(name[:40], ALLOWED, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise _bad(f"there is no column {name[:40]!r}; {hint}allowed: {', '.join(ALLOWED)}")
        if schema.names.count(name) > 1:
            raise _bad(f"the column {name!r} appears twice")
    if "body" not in schema.names:
        raise _bad("there is no column 'body'; every message has one")
    body = _values(schema.field("body").type)
    if pa.types.is_fixed_size_binary(body) and not body.byte_width:
        raise _bad("the column 'body' has values of 0 bytes; allowed: from 1 on, or binary")
    if "fields" in schema.names and pa.types.is_struct(schema.field("fields").type):
        count = schema.field("fields").type.num_fields
        if count > MAX_MESSAGE_FIELDS:
            raise _bad(f"the column 'fields' has {count} fields; at most {MAX_MESSAGE_FIELDS}")


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the record batch in parts, each of bounded size once it is unpacked."""
    body = batch.column("body").type
    if not _is_bytes(_values(body)):
        raise _bad(f"the column 'body' is {body}; allowed: binary")
    if batch.num_columns == 1 and (pa.types.is_binary(body) or pa.types.is_string(body)):
        if batch.num_rows:
            yield batch  # its bytes are all that it needs
        return
    first = 0
    while first < batch.num_rows:
        part = batch.slice(first, CHUNK_ROWS)
        while (size := _spread_bytes(part)) > MOST_NESTED_BYTES:
            if part.num_rows == 1:
                raise _bad(f"row {first} takes {size} bytes; at most {MOST_NESTED_BYTES}")
            part = part.slice(0, part.num_rows // 2)
        yield part
        first += part.num_rows


def _spread_bytes(batch: pa.RecordBatch) -> int:
    """Return the approximate bytes of the rows once each row has its own values."""
    size = 0
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_struct(column.type):
            size += _text_bytes(column)
        elif name == "fields":
            for field, values in zip(column.type, column.flatten(), strict=True):
                there = len(values) - values.null_count
                size += there * (VALUE_BYTES + len(field.name)) + _text_bytes(values)
    return size


def _text_bytes(column: pa.Array) -> int:
    """Return the lengths of all values that are bytes or text."""
    if not _is_bytes(_values(column.type)):
        return 0
    if pa.types.is_dictionary(column.type):
        lengths = _lengths(column.dictionary).take(column.indices)
    else:
        lengths = _lengths(column)
    return pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0


def _lengths(column: pa.Array) -> pa.Array:
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        # each view begins with its length, which is undefined for NULL
        views = np.frombuffer(column.buffers()[1], dtype=np.int32)[::4]
        lengths = views[column.offset : column.offset + len(column)]
        return pa.array(lengths, mask=column.is_null().to_numpy(zero_copy_only=False))
    return pc.binary_length(column)


def _values(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_bytes(kind: pa.DataType) -> bool:
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return _is_text(kind) or bool(is_binary or pa.types.is_fixed_size_binary(kind))


class _Rows:
    """Rows of one record batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        bodies = _cast("body", batch.column("body"), pa.binary())
        _refuse_null("body", bodies)
        offsets = np.frombuffer(bodies.buffers()[1], dtype=np.int32)
        self._starts = offsets[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
        self._bodies = memoryview(bodies.buffers()[2] or b"")
        self._count = len(bodies)
        self._properties = _properties(batch) if batch.num_columns > 1 else None

    def chunks(self, limit: int) -> Iterator[tuple[bytes, int]]:
        ends = self._starts[1:] - self._starts[0]
        if self._properties is not None:
            ends = ends + np.cumsum([each.ByteSize() for each in self._properties])
        first = 0
        while first < self._count:
            before = int(ends[first - 1]) if first else 0
            fitting = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
            end = self._names_end(first, min(max(fitting, first + 1), first + limit, self._count))
            yield self._encode(first, end), end - first
            first = end

    def _names_end(self, first: int, end: int) -> int:
        """Return the end of the rows from `first` on, at most `end`, with at most CHUNK_NAMES properties together."""
        rows = (self._properties or ())[first:end]
        if sum(len(each.application_properties) for each in rows) <= CHUNK_NAMES:
            return end
        names: set[str] = set()
        for row, each in enumerate(rows, first):
            names.update(each.application_properties)
            if len(names) > CHUNK_NAMES:  # not in the first row: it has at most twice MAX_MESSAGE_FIELDS
                return row
        return end

    def _encode(self, first: int, end: int) -> bytes:
        starts = self._starts[first : end + 1]
        made = pb.MessageBatch(
            count=end - first,
            bodies=bytes(self._bodies[int(starts[0]) : int(starts[-1])]),
            body_ends=(starts[1:] - starts[0]).tolist(),
        )
        if self._properties is not None:
            made.properties.extend(self._properties[first:end])
        data: bytes = made.SerializeToString(deterministic=True)
        return data


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise _bad(f"the column {name!r} is {column.type}, not {kind}: {error}") from error


def _refuse_null(name: str, column: pa.Array) -> None:
    if column.null_count:
        at = next(place for place, value in enumerate(column) if not value.is_valid)
        raise _bad(f"the column {name!r} is NULL in row {at}")


def _properties(batch: pa.RecordBatch) -> list[pb.Properties]:
    made = [pb.Properties() for _ in range(batch.num_rows)]
    for name in TEXTS:
        if name in batch.schema.names:
            for target, value in zip(made, _texts(name, batch.column(name)), strict=True):
                if value is not None:
                    setattr(target, name, value)
    for name, most in (("priority", 255), ("ttl_ms", (1 << 63) - 1)):
        if name in batch.schema.names:
            for row, number in enumerate(_integers(name, batch.column(name))):
                if number is not None:
                    if not 0 <= number <= most:
                        raise _bad(f"the column {name!r} is {number} in row {row}; allowed: 0..{most}")
                    setattr(made[row], name, number)
    if "fields" in batch.schema.names:
        _fields(made, batch.column("fields"))
    if "properties" in batch.schema.names:
        for row, text in enumerate(_texts("properties", batch.column("properties"))):
            if text is not None:
                try:
                    read_into(made[row].application_properties, text)
                except ValueError as error:
                    raise _bad(f"the column 'properties' in row {row}: {error}") from error
    return made


def _texts(name: str, column: pa.Array) -> list[str | None]:
    kind = _values(column.type)
    if not (_is_text(kind) or pa.types.is_null(kind)):
        raise _bad(f"the column {name!r} is {column.type}; allowed: string")
    values: list[str | None] = column.to_pylist()
    return values


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _integers(name: str, column: pa.Array) -> list[int | None]:
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise _bad(f"the column {name!r} is {column.type}; allowed: an integer type")
    values: list[int | None] = column.to_pylist()
    return values


def _fields(made: list[pb.Properties], column: pa.Array) -> None:
    if not pa.types.is_struct(column.type):
        raise _bad(f"the column 'fields' is {column.type}; allowed: a struct")
    targets = [each.application_properties for each in made]
    seen: set[str] = set()
    for field, values in zip(column.type, column.flatten(), strict=True):
        if field.name in seen:
            raise _bad(f"the column 'fields' has {field.name!r} twice")
        seen.add(field.name)
        kind = _kind_of(field)
        if kind is None:
            continue
        rows: list[Any] = _cast(f"fields.{field.name}", values, FIELD_TYPES[kind]).to_pylist()
        for target, value in zip(targets, rows, strict=True):
            if value is not None:
                setattr(target[field.name], kind, value)


def _kind_of(field: pa.Field) -> str | None:
    """Return the kind of its values; None if all of them are NULL."""
    kind = _values(field.type)
    if _is_text(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "floating"
    if pa.types.is_null(kind):
        return None
    raise _bad(
        f"the column 'fields' has {field.name!r} as {field.type}; "
        "allowed: string, integer types, floating-point types, bool"
    )
