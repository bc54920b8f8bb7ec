"""Conversion of application properties between the service's JSON text and a VARIANT.

The service writes an object of scalars. Booleans, integers, texts and null are JSON values; floating-point numbers have
a point or an exponent, or are {"double": "NaN"}; bytes are {"base64": "..."}. A VARIANT is two byte strings, metadata
(the names) and value, as in the Parquet project's Variant specification. Kinds are kept: an integer never becomes a
decimal.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from decimal import Decimal
from functools import lru_cache
from typing import Any

from quorum.spark.errors import OptionError

_OBJECT = 2
_NULL, _TRUE, _FALSE, _INT1, _INT2, _INT4, _INT8, _DOUBLE, _BINARY, _LONG_TEXT = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    15,
    16,
)
_SHORT_TEXT_BYTES = 0x3F
_INTEGERS = (
    (_INT1, "<Bb", 1 << 7),
    (_INT2, "<Bh", 1 << 15),
    (_INT4, "<Bi", 1 << 31),
    (_INT8, "<Bq", 1 << 63),
)


def from_json(text: str) -> tuple[bytes, bytes]:
    """(value, metadata) of an object in the service's form. ValueError if it is not one."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"properties are not a JSON object: {text[:80]}")
    names = tuple(sorted(found, key=_java_order))
    return _value([_scalar(found[name]) for name in names]), _metadata(names)


def to_json(properties: dict[str, Any]) -> str:
    """The text for a dict of scalars, sorted by name; None means absent. Raises OptionError for other values."""
    return json.dumps(
        {name: _json_value(name, value) for name, value in sorted(properties.items()) if value is not None},
        ensure_ascii=False,
        separators=(",", ":"),
    )


def _json_value(name: str, value: Any) -> Any:
    if isinstance(value, Decimal):
        # parse_json makes decimals of 1.5 and of an integer beyond 64 bits
        exponent = value.as_tuple().exponent
        is_beyond = isinstance(exponent, int) and exponent >= 0 and abs(value) >= 1 << 63
        value = int(value) if is_beyond else float(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise OptionError(f"property {name!r} has {value}, which does not fit 64 bits")
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return {"double": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    raise OptionError(
        f"property {name!r} is a {type(value).__name__}; allowed: booleans, integers, doubles, texts, bytes"
    )


def _java_order(name: str) -> bytes:
    """Sort key of a field's name. Readers expect the order of Java's strings: UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")


def _scalar(value: Any) -> bytes:
    if value is None:
        return bytes([_NULL << 2])
    if value is True or value is False:
        return bytes([(_TRUE if value else _FALSE) << 2])
    if isinstance(value, int):
        for kind, form, bound in _INTEGERS:
            if -bound <= value < bound:
                return struct.pack(form, kind << 2, value)
        raise ValueError(f"{value} is beyond a 64-bit number")
    if isinstance(value, float):
        return struct.pack("<Bd", _DOUBLE << 2, value)
    if isinstance(value, str):
        data = value.encode()
        if len(data) <= _SHORT_TEXT_BYTES:
            return bytes([len(data) << 2 | 1]) + data
        return struct.pack("<BI", _LONG_TEXT << 2, len(data)) + data
    if isinstance(value, dict) and value.keys() == {"double"}:
        return struct.pack("<Bd", _DOUBLE << 2, float(value["double"]))
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            data = base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"a property of bytes is not base64: {error}") from None
        return struct.pack("<BI", _BINARY << 2, len(data)) + data
    raise ValueError(f"a property has the value {value!r}, which the service never sends")


@lru_cache(maxsize=1024)
def _metadata(names: tuple[str, ...]) -> bytes:
    data = [name.encode() for name in names]
    offsets = _offsets(data)
    width = _width(max(offsets[-1], len(names)))
    header = 1 | (width - 1) << 6
    return bytes([header]) + _packed([len(names), *offsets], width) + b"".join(data)


def _value(values: list[bytes]) -> bytes:
    offsets = _offsets(values)
    is_large = len(values) > 0xFF
    id_width, offset_width = _width(max(len(values) - 1, 0)), _width(offsets[-1])
    kind = is_large << 4 | (id_width - 1) << 2 | (offset_width - 1)
    size = len(values).to_bytes(4 if is_large else 1, "little")
    ids = _packed(list(range(len(values))), id_width)
    return b"".join((bytes([kind << 2 | _OBJECT]), size, ids, _packed(offsets, offset_width), *values))


def _offsets(parts: list[bytes]) -> list[int]:
    """The start of each part, and the end of the last."""
    found = [0]
    for part in parts:
        found.append(found[-1] + len(part))
    return found


def _width(largest: int) -> int:
    """Number of bytes for an integer: 1 to 4."""
    return max(1, (largest.bit_length() + 7) // 8)


def _packed(numbers: list[int], width: int) -> bytes:
    return bytes(numbers) if width == 1 else b"".join(each.to_bytes(width, "little") for each in numbers)
