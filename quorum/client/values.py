"""Conversion of Python values to the API's and back: properties, application properties, queue arguments.

Properties may be a `Properties` record or a mapping with AMQP names ("correlation-id"); underscores are read as
hyphens. They include the fields of the AMQP header: durable, priority, ttl. A bool is not converted to an int, because
True and 1 are different values for a selector. Integers have 64 bits.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from operator import index
from typing import Any

from quorum.client.errors import UsageError
from quorum.v1 import queue_pb2

FieldValue = bool | int | float | str | bytes

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_DELAY_S = 100 * 365 * 24 * 3600
"""The longest delay of `publish`, in seconds."""
MAX_SHOWN = 80
"""Characters of a value in the text of an error."""
MAX_TIMEOUT_MS = 10**12
"""The longest limit of a call, about 31 years. gRPC and asyncio cannot count much longer times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """A message's header and properties, AMQP 1.0 §3.2.1 and §3.2.4. A property that is None is not sent.
    ttl_ms and delivery_delay_ms are in ms; delivery_time, absolute_expiry_time and creation_time are in ms since 1970.
    """

    durable: bool | None = None
    priority: int | None = None
    ttl_ms: int | None = None
    delivery_delay_ms: int | None = None
    delivery_time: int | None = None
    message_id: str | None = None
    user_id: str | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None

    def to_dict(self) -> dict[str, bool | int | str]:
        """The present properties by AMQP name, in the order of the fields."""
        present = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {amqp_name(name): value for name, value in present if value is not None}


def amqp_name(field: str) -> str:
    """The AMQP name of a field of `Properties`. Units are left out."""
    return field.removesuffix("_ms").replace("_", "-")


FIELD_NAMES: tuple[str, ...] = tuple(field.name for field in fields(Properties))
_UNSIGNED = "a whole number from 0"
_ALLOWED: dict[str, str] = {
    "durable": "true or false",
    "priority": "a whole number from 0 to 255",
    "ttl_ms": _UNSIGNED,
    "delivery_delay_ms": _UNSIGNED,
    "delivery_time": "a whole number, ms since 1970",
    "group_sequence": _UNSIGNED,
    "absolute_expiry_time": "a whole number, ms since 1970",
    "creation_time": "a whole number, ms since 1970",
}
"""Allowed values of the fields that do not hold text. Error messages name them."""
_FIELD_BY_NAME: dict[str, str] = {
    known: name for name in FIELD_NAMES for known in (amqp_name(name), name.replace("_", "-"))
} | {"x-opt-delivery-delay": "delivery_delay_ms", "x-opt-delivery-time": "delivery_time"}
"""With hyphens; the last two are annotations of AMQP."""


def _shown(value: object) -> str:
    """The value for the text of an error, cut if it is long."""
    try:
        shown = repr(value)
    except ValueError:  # Python writes no integer of thousands of digits
        return "a number of thousands of digits"
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}..."


def require_text(name: str, value: object) -> None:
    """UsageError unless the value is text that UTF-8 can encode. The error does not repeat the value: it may be a
    password."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as problem:
        raise UsageError(
            f"{name} is not UTF-8 text: character {problem.start + 1} is half a surrogate pair"
        ) from None


def require_texts(**values: object) -> None:
    """`require_text` for each of the named arguments."""
    for name, value in values.items():
        require_text(name, value)


def require_timeout(name: str, value: object, *, may_be_over: bool = False) -> None:
    """UsageError unless the value is a time in milliseconds that a call can wait. may_be_over: a program that counts
    down the time to its own deadline may give a negative one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    least = -MAX_TIMEOUT_MS if may_be_over else 0
    if not is_number or not least <= value <= MAX_TIMEOUT_MS:  # type: ignore[operator]
        raise UsageError(f"{name} {_shown(value)}; allowed: milliseconds from 0 to {MAX_TIMEOUT_MS}")


def require_flag(name: str, value: object) -> None:
    """UsageError unless the value is True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is True or False, not {_shown(value)}")


def require_whole(name: str, value: object, least: int, most: int) -> None:
    """UsageError unless the value is a whole number of this range."""
    try:
        if not isinstance(value, bool) and least <= index(value) <= most:  # type: ignore[arg-type]
            return
    except TypeError:
        pass
    raise UsageError(f"{name} {_shown(value)}; allowed: a whole number from {least} to {most}")


def require_selector(selector: object) -> None:
    """UsageError unless the selector is text. The service checks its syntax."""
    require_text("a selector", selector)


def require_mapping(what: str, value: object) -> None:
    """UsageError unless the value is a mapping whose keys are text."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} are a mapping of names to values, not {type(value).__name__}")
    for name in value:
        if not isinstance(name, str):
            raise UsageError(f"{what}: the name {name!r} is not text")


def field_name(name: str) -> str:
    """The field of `Properties` for an AMQP name. Raises UsageError for an unknown name; the error names the nearest
    known one."""
    known = _FIELD_BY_NAME.get(name.replace("_", "-"))
    if known is None:
        nearest = difflib.get_close_matches(name, list(_FIELD_BY_NAME), n=1)
        known_names = ", ".join(map(amqp_name, FIELD_NAMES))
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {known_names}"
        raise UsageError(f"unknown property {name!r}; {hint}")
    return known


def set_value(target: Any, value: FieldValue, name: str) -> None:
    """Fill a queue_pb2.Value."""
    if isinstance(value, bool):
        target.boolean = value
    elif isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise UsageError(f"value of {name!r} does not fit 64 bits: {_shown(value)}")
        target.integer = value
    elif isinstance(value, float):
        target.floating = value
    elif isinstance(value, str):
        try:
            target.text = value
        except UnicodeEncodeError:
            raise UsageError(f"value of {name!r} is not UTF-8 text: half a surrogate pair") from None
    elif isinstance(value, bytes | bytearray | memoryview):
        target.binary = bytes(value)
    else:
        raise UsageError(
            f"value of {name!r} is a {type(value).__name__}; allowed: bool, int, float, str, bytes"
        )


def get_value(value: Any) -> FieldValue | None:
    """The Python value of a queue_pb2.Value; None if it has no kind."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    result: FieldValue = getattr(value, kind)
    return result


def arguments(given: Mapping[str, object] | None) -> dict[str, Any]:
    """Queue arguments as Values. A list of names becomes one text with commas."""
    result: dict[str, Any] = {}
    if given is not None:
        require_mapping("arguments", given)
    for name, value in (given or {}).items():
        require_text("the name of an argument", name)
        plain = value
        if isinstance(value, list | tuple):
            if not all(isinstance(item, str) for item in value):
                raise UsageError(f"argument {name!r}: a list may hold text only")
            plain = ",".join(value)
        target = queue_pb2.Value()
        set_value(target, plain, name)  # type: ignore[arg-type]  # set_value refuses other types
        result[name] = target
    return result


def values_to_dict(values: Mapping[str, Any]) -> dict[str, FieldValue | None]:
    """A map of Values as a dict, sorted by name (a protobuf map has no order)."""
    return {name: get_value(values[name]) for name in sorted(values)}


def encode_properties(
    properties: Properties | Mapping[str, object] | None,
    application_properties: Mapping[str, FieldValue] | None,
) -> Any:
    """A queue_pb2.Properties, or None if there are neither properties nor application properties."""
    if properties is None and not application_properties:
        return None
    result = queue_pb2.Properties()
    if isinstance(properties, Properties):
        present: Mapping[str, object] = {name: getattr(properties, name) for name in FIELD_NAMES}
    else:
        require_mapping("properties", properties or {})
        present = {field_name(name): value for name, value in (properties or {}).items()}
    for name, value in present.items():
        if value is None:
            continue
        try:
            if isinstance(value, bool) != (name == "durable"):
                raise TypeError
            setattr(result, name, value)
        except (TypeError, ValueError) as problem:
            raise UsageError(
                f"property {amqp_name(name)!r} cannot be {_shown(value)}; allowed: {_ALLOWED.get(name, 'text')}"
            ) from problem
    require_mapping("application properties", application_properties or {})
    for name, value in (application_properties or {}).items():
        try:
            set_value(result.application_properties[name], value, name)
        except UnicodeEncodeError as problem:
            raise UsageError(
                f"application property {name!r} is not valid text: half a surrogate pair"
            ) from problem
    return result


def with_delay(
    properties: Properties | Mapping[str, object] | None,
    delay: float | timedelta | None,
    at: datetime | None,
) -> Properties | Mapping[str, object] | None:
    """The properties of a message that becomes ready after `delay` seconds, or at a time."""
    if delay is None and at is None:
        return properties
    if delay is not None and at is not None:
        raise UsageError("delay and at exclude each other")
    if at is not None:
        if not isinstance(at, datetime):
            raise UsageError(f"at is a datetime, not {type(at).__name__}; delay takes seconds")
        if at.tzinfo is None:
            raise UsageError(
                f"at is {at}, a time without a zone; give one: datetime.now(UTC) + timedelta(hours=1)"
            )
        name, value = "delivery_time", round(at.timestamp() * 1000)
    else:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds <= MAX_DELAY_S:  # type: ignore[operator]
            raise UsageError(f"a delay of {delay!r}; allowed: 0 to {MAX_DELAY_S} seconds")
        name, value = "delivery_delay_ms", math.ceil(seconds * 1000)  # type: ignore[operator]
    present = properties.to_dict() if isinstance(properties, Properties) else properties or {}
    return {**present, name: value}


def decode_properties(message: Any) -> Properties:
    """The record of a queue_pb2.Properties."""
    return Properties(**{name: getattr(message, name) for name in FIELD_NAMES if message.HasField(name)})


def property_filter(given: Mapping[str, Mapping[str, FieldValue]]) -> Any:
    """A queue_pb2.PropertyFilter from {"properties": {...}, "application_properties": {...}}."""
    result = queue_pb2.PropertyFilter()
    require_mapping("the sections of a property filter", given)
    for section, entries in given.items():
        if section.replace("-", "_") not in ("properties", "application_properties"):
            raise UsageError(
                f"unknown section {section!r} of a property filter; known: properties, application_properties"
            )
        require_mapping(f"the {section.replace('_', ' ')} of a property filter", entries)
        target = getattr(result, section.replace("-", "_"))
        for name, value in entries.items():
            require_text("the name of a property", name)
            set_value(target[name], value, name)
    return result
