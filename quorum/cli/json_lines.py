"""Messages as JSON, one a line: {"body" or "body_base64", "properties", "application_properties"}.

A body that is UTF-8 text is in "body", any other in "body_base64". Properties have AMQP's names. An integer value is
exact, a number with a point or exponent is a double, {"double": "NaN"} (or "Infinity", "-Infinity") is a double that
JSON has no number for, and {"base64": ...} is bytes. `publish` reads the format that `consume` and `browse` write. With
positions, "sequence", "redelivered" and "delivery_count" are added, and "due_time" of a delayed message; reading
ignores them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

from quorum.client.messages.batch import Message
from quorum.client.values import FieldValue, Properties

KEYS = ("body", "body_base64", "properties", "application_properties")
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""The doubles that are no numbers in JSON."""
POSITION = ("sequence", "redelivered", "delivery_count", "due_time")


class LineError(ValueError):
    """A line that is not a message."""


class Received(Protocol):
    """The common part of a delivered and a browsed message."""

    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> Properties: ...
    @property
    def application_properties(self) -> dict[str, FieldValue | None]: ...
    @property
    def sequence(self) -> int: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def delivery_count(self) -> int: ...


def to_line(message: Received, positions: bool = False) -> str:
    """One message as a line, without a line end."""
    value: dict[str, Any] = {}
    body = message.body
    try:
        value["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        value["body_base64"] = base64.b64encode(body).decode("ascii")
    value["properties"] = message.properties.to_dict()
    value["application_properties"] = {
        name: _plain(each) for name, each in message.application_properties.items()
    }
    if positions:
        found = {name: getattr(message, name, None) for name in POSITION}
        value |= {name: each for name, each in found.items() if each is not None}
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _plain(value: FieldValue | None) -> Any:
    """A value of an application property as JSON."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"double": json.dumps(value)}
    return value


def from_line(line: str | bytes) -> Message:
    """The message of a line. Raises LineError."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise LineError("not a JSON object")
    unknown = [key for key in value if key not in KEYS and key not in POSITION]
    if unknown:
        raise LineError(f"unknown key {unknown[0]!r}; known: {', '.join(KEYS)}")
    properties = _section(value, "properties")
    application = {
        name: _value(name, each)
        for name, each in _section(value, "application_properties").items()
        if each is not None
    }
    return Message(_body(value), properties or None, application or None)


def _body(value: Mapping[str, Any]) -> bytes:
    if ("body" in value) == ("body_base64" in value):
        raise LineError("give either body or body_base64")
    if "body" in value:
        if not isinstance(value["body"], str):
            raise LineError("body is not a text; give body_base64 for bytes")
        try:
            return value["body"].encode("utf-8")
        except UnicodeEncodeError as error:
            raise LineError("body has half a surrogate pair, which is not valid text") from error
    return _base64("body_base64", value["body_base64"])


def _section(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    section = value.get(key)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise LineError(f"{key} is not an object")
    return section


def _value(name: str, value: Any) -> FieldValue:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) and list(value) == ["base64"]:
        return _base64(name, value["base64"])
    if isinstance(value, dict) and list(value) == ["double"] and value["double"] in NOT_FINITE:
        return float(value["double"])
    raise LineError(f'{name!r} is not a boolean, number, text, {{"base64": ...}} or {{"double": "NaN"}}')


def _base64(name: str, text: Any) -> bytes:
    if not isinstance(text, str):
        raise LineError(f"{name} is not base64 text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise LineError(f"{name} is not base64 text: {error}") from error
