"""The fields of archived messages as the service's columns, converted from whole Arrow arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from quorum_selectors.batch_columns import (
    APPROXIMATE,
    ARRAY_TYPES,
    BOOLEAN,
    CODE_TYPES,
    EXACT,
    INTEGER_TYPES,
    KINDS,
    STRING,
    Array,
    BatchColumns,
    Bits,
    Column,
    Strings,
)
from quorum_selectors.known_fields import APPLICATION, HEADER, PROPERTIES

HEADERS = {
    "priority": HEADER + "priority",
    "message_id": PROPERTIES + "message-id",
    "correlation_id": PROPERTIES + "correlation-id",
    "reply_to": PROPERTIES + "reply-to",
    "content_type": PROPERTIES + "content-type",
    "content_encoding": PROPERTIES + "content-encoding",
    "to": PROPERTIES + "to",
    "user_id": PROPERTIES + "user-id",
    "reply_to_group_id": PROPERTIES + "reply-to-group-id",
    "subject": PROPERTIES + "subject",
    "group_id": PROPERTIES + "group-id",
}
"""Columns of an archive that a selector or filter can read, besides application properties."""
FIELDS, PROPERTIES_COLUMN = "fields", "properties"
COLUMNS = (*HEADERS, FIELDS, PROPERTIES_COLUMN)


@dataclass(slots=True)
class _Part:
    """Values of one kind: which messages have one, and a value for each message (without meaning if it has none). The
    values of strings are positions in a list of strings."""

    kind: int
    mask: Bits
    values: Array
    texts: list[str]


def columns_of(arrays: Mapping[str, pa.Array], count: int) -> BatchColumns:
    """The columns that the service would keep of `count` messages, with every field. arrays: the present ones of
    COLUMNS.

    If a property is in `fields` and in `properties`, the value in `properties` counts. Bytes are left out, because
    selectors do not see them.
    """
    parts: dict[str, list[_Part]] = {}
    for name, key in HEADERS.items():
        if name in arrays:
            parts.setdefault(key, []).append(_part(arrays[name]))
    found = arrays.get(FIELDS)
    if found is not None:
        for field, child in zip(found.type, found.flatten(), strict=True):
            parts.setdefault(APPLICATION + field.name, []).append(_part(child))
    if PROPERTIES_COLUMN in arrays:
        for name, part in _properties(arrays[PROPERTIES_COLUMN]):
            parts.setdefault(APPLICATION + name, []).append(part)
    columns = [column for key in sorted(parts) for column in _columns(key, parts[key], count)]
    return BatchColumns(count, count, tuple(columns))


def distinct_texts(column: Column) -> list[str]:
    """The distinct values of a column, each as a distinct text: 1, 1.0, true and '1' are four."""
    if column.strings is not None:
        pieces = column.strings.pieces()
        return ["s" + pieces[code].decode() for code in np.unique(column.values).tolist()]
    return [f"{column.kind} {value!r}" for value in np.unique(column.values).tolist()]


def _part(array: pa.Array) -> _Part:
    mask = np.asarray(array.is_valid())
    kind = array.type
    if pa.types.is_boolean(kind):
        return _Part(BOOLEAN, mask, np.asarray(array.fill_null(False)), [])
    if pa.types.is_integer(kind):
        return _Part(EXACT, mask, np.asarray(array.fill_null(0)).astype(np.int64), [])
    if pa.types.is_floating(kind):
        return _Part(APPROXIMATE, mask, np.asarray(array.fill_null(0.0)).astype(np.float64), [])
    coded = array.dictionary_encode()
    codes = np.asarray(coded.indices.fill_null(0)).astype(np.uint32)
    return _Part(STRING, mask, codes, coded.dictionary.to_pylist())


def _properties(texts: pa.Array) -> Iterator[tuple[str, _Part]]:
    """Parse properties from JSON texts; each distinct text is parsed once."""
    coded = texts.dictionary_encode()
    gathered: dict[tuple[str, int], tuple[list[int], list[Any]]] = {}
    for place, text in enumerate(coded.dictionary.to_pylist()):
        for name, said in json.loads(text).items():
            # an object stands for values that JSON does not have: NaN, infinities and bytes
            value = (
                said if not isinstance(said, dict) else float(said["double"]) if "double" in said else None
            )
            if value is not None:
                places, values = gathered.setdefault((name, KINDS[type(value)]), ([], []))
                places.append(place)
                values.append(value)
    has_text = np.asarray(texts.is_valid())
    codes = np.asarray(coded.indices.fill_null(0)).astype(np.int64)
    for (name, kind), (places, values) in gathered.items():
        strings: dict[str, int] = {}
        mask = np.zeros(len(coded.dictionary), np.bool_)
        mask[places] = True
        laid = np.zeros(len(mask), ARRAY_TYPES[kind])
        laid[places] = (
            [strings.setdefault(value, len(strings)) for value in values] if kind == STRING else values
        )
        yield name, _Part(kind, has_text & mask[codes], laid[codes], list(strings))


def _columns(key: str, parts: list[_Part], count: int) -> Iterator[Column]:
    taken = np.zeros(count, np.bool_)
    kinds: dict[int, _Part] = {}
    for part in reversed(parts):
        part.mask = part.mask & ~taken
        taken |= part.mask
        other = kinds.get(part.kind)
        kinds[part.kind] = part if other is None else _joined(part, other)
    for kind in sorted(kinds):
        part = kinds[kind]
        if part.mask.any():
            yield _column(key, part, count)


def _joined(one: _Part, other: _Part) -> _Part:
    values = np.where(other.mask, other.values + len(one.texts), one.values)
    return _Part(one.kind, one.mask | other.mask, values.astype(one.values.dtype), one.texts + other.texts)


def _column(key: str, part: _Part, count: int) -> Column:
    mask = None if part.mask.all() else part.mask
    values = part.values if mask is None else part.values[mask]
    strings = None
    if part.kind == STRING:
        used, values = np.unique(values, return_inverse=True)
        pieces = [part.texts[code].encode() for code in used.tolist()]
        strings = Strings(np.cumsum([len(piece) for piece in pieces], dtype=np.uint32), b"".join(pieces))
        values = values.astype(next(each for each in CODE_TYPES if len(used) - 1 <= np.iinfo(each).max))
    elif part.kind == EXACT:
        low, high = int(values.min()), int(values.max())
        values = values.astype(
            next(each for each in INTEGER_TYPES if np.iinfo(each).min <= low and high <= np.iinfo(each).max)
        )
    return Column(key, part.kind, mask, values, strings)
