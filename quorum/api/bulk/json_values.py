"""Conversion of application properties to JSON text and back.

JSON has no bytes, no NaN and no infinities. They are written as objects with one member: {"base64": "..."} and
{"double": "NaN" | "Infinity" | "-Infinity"}. A number with a point or an exponent is floating-point, others are
integers. A property without a value is written as null; null is ignored when it is read.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

from quorum.node.wire.batches import MAX_MESSAGE_FIELDS, MAX_PROPERTIES_BYTES
from quorum.v1 import queue_pb2 as pb

INT64 = range(-(1 << 63), 1 << 63)
MAX_TEXT = 6 * MAX_PROPERTIES_BYTES
"""Maximum number of characters of an object: JSON may need six characters for one byte."""
_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_HINT = 'allowed: text, numbers, true, false, null, {"base64": "..."}, {"double": "NaN"}'


class Writer:
    """Writes properties as JSON objects.

    elsewhere: name -> kind of the properties that are written to other columns. The writer leaves out their values of
    this kind, and those without a value.
    """

    __slots__ = ("_names", "elsewhere")

    def __init__(self, elsewhere: Mapping[str, str] | None = None) -> None:
        self.elsewhere = dict(elsewhere or {})
        self._names: dict[str, str] = {}

    def write(self, properties: Mapping[str, pb.Value]) -> str | None:
        """Return the JSON text, with sorted names; None if there is no property to write."""
        parts = []
        names = self._names
        for name in sorted(properties):
            value = properties[name]
            kind = value.WhichOneof("kind")
            if name in self.elsewhere and (kind is None or kind == self.elsewhere[name]):
                continue
            start = names.get(name)
            if start is None:
                start = encode_basestring(name) + ": "
                if len(names) < 10_000:
                    names[name] = start
            if kind == "text":
                parts.append(start + encode_basestring(value.text))
            elif kind == "integer":
                parts.append(start + str(value.integer))
            elif kind == "boolean":
                parts.append(start + ("true" if value.boolean else "false"))
            elif kind == "floating":
                parts.append(start + _double(value.floating))
            elif kind == "binary":
                text = base64.b64encode(value.binary).decode("ascii")
                parts.append(f'{start}{{"base64": "{text}"}}')
            else:
                parts.append(start + "null")
        return "{" + ", ".join(parts) + "}" if parts else None


def _double(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return f'{{"double": "{name}"}}'


def read_into(target: Any, text: str) -> None:
    """Add the properties of a JSON object to a map of names to Values. Raises ValueError with the reason."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has {len(text)} characters; at most {MAX_TEXT}")
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{text[:40]!r} is no JSON object: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"it is no JSON object but {text[:40]!r}")
    if len(found) > MAX_MESSAGE_FIELDS:
        raise ValueError(f"it has {len(found)} properties; at most {MAX_MESSAGE_FIELDS} a message")
    for name, value in found.items():
        if value is None:
            continue
        if name in target:
            raise ValueError(f"the property {name!r} is given twice: in `fields` and in `properties`")
        _set(target[name], name, value)


def _refuse_constant(name: str) -> object:
    raise ValueError(f'{name} is no JSON; write {{"double": "{name}"}}')


def _set(target: pb.Value, name: str, value: object) -> None:
    if isinstance(value, bool):
        target.boolean = value
    elif isinstance(value, int):
        if value not in INT64:
            raise ValueError(f"the property {name!r} has {value}, which does not fit 64 bits")
        target.integer = value
    elif isinstance(value, float):
        if math.isinf(value):
            raise ValueError(f"the property {name!r} is a number too large for a double")
        target.floating = value
    elif isinstance(value, str):
        target.text = value
    elif isinstance(value, dict) and len(value) == 1:
        ((kind, text),) = value.items()
        if kind == "double" and isinstance(text, str) and text in _DOUBLES:
            target.floating = _DOUBLES[text]
        elif kind == "base64" and isinstance(text, str):
            try:
                target.binary = base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise ValueError(f"the property {name!r} has bad base64: {error}") from error
        else:
            raise ValueError(f"the property {name!r} is an object; {_HINT}")
    else:
        raise ValueError(f"the property {name!r} is a {type(value).__name__}; {_HINT}")
