"""Requests and answers of the services as JSON, and their JSON schemas, from the descriptors of the proto.

A field has the name that it has in the proto. Whole numbers are JSON numbers, an enum is its name, bytes are base64.
Three types have forms of their own:

- a Value is the plain JSON value; bytes are `{"base64": "..."}`;
- a Message is `{"body": text}` or `{"body_base64": ...}`, with `properties` and `application_properties` beside it;
- a number with a fraction or an exponent is floating-point, others are whole numbers.

An answer has all its plain fields, also those that are 0 or empty.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from quorum.api.status import exhausted
from quorum.v1 import queue_pb2

VALUE = queue_pb2.Value.DESCRIPTOR.full_name
MESSAGE = queue_pb2.Message.DESCRIPTOR.full_name
PROPERTIES = "application_properties"
MAX_VALUES = 100_000
"""Maximum number of values in a body, at all depths; an empty object or array counts twice. Each takes some
microseconds, and up to 200 bytes of memory."""
_STRING = re.compile(rb'"(?:[^"\\]+|\\.?)*+(?:"|\Z)', re.DOTALL)
"""A string of JSON, also one without an end."""
_RANGES = {
    **dict.fromkeys(
        (FieldDescriptor.CPPTYPE_INT32,),
        range(-(1 << 31), 1 << 31),
    ),
    FieldDescriptor.CPPTYPE_INT64: range(-(1 << 63), 1 << 63),
    FieldDescriptor.CPPTYPE_UINT32: range(1 << 32),
    FieldDescriptor.CPPTYPE_UINT64: range(1 << 64),
}
_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class JsonError(ValueError):
    """A JSON value that is no such request; the text says where, and what is allowed."""


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def _wrong(where: str, value: object, wanted: str) -> JsonError:
    return JsonError(f"{where or 'the request'}: {_kind(value)}; wanted: {wanted}")


# ---- reading


def parsed(data: bytes) -> object:
    """The JSON of a request's body; an empty object without one. JsonError. StatusError if it has too many values."""
    if not data:
        return {}
    if _values(data) > MAX_VALUES:
        text = f"the body has more than {MAX_VALUES} values"
        raise exhausted("request_too_large", text)
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"the body is no JSON: {error}") from error
    return found


def _values(data: bytes) -> int:
    """The number of values, at all depths, from the bytes alone: once parsed, a small one takes a hundred bytes."""
    rest = _STRING.sub(b"", data)
    return rest.count(b",") + rest.count(b"[") + rest.count(b"{")


def read(message: Message, value: object, where: str = "", without: Iterable[str] = ()) -> None:
    """Fill a message. without: names of fields that come from elsewhere. JsonError."""
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    if message.DESCRIPTOR.full_name == MESSAGE:
        _read_message(message, value, where)
        return
    fields = message.DESCRIPTOR.fields_by_name
    allowed = [name for name in fields if name not in without]
    for name, item in value.items():
        if name not in allowed:
            raise JsonError(
                f"{where or 'the request'}: unknown field {name[:64]!r}; allowed: {', '.join(allowed) or 'none'}"
            )
        _read_field(message, fields[name], item, f"{where}.{name}" if where else name)


def _read_field(message: Message, field: FieldDescriptor, value: object, where: str) -> None:
    target: Any = (
        getattr(message, field.name) if field.is_repeated or field.message_type is not None else None
    )
    if _is_map(field):
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        for name, item in value.items():
            _read_value(target[_text(name, where)], item, f"{where}.{name}")
    elif field.is_repeated:
        if not isinstance(value, list):
            raise _wrong(where, value, "an array")
        for place, item in enumerate(value):
            inner = f"{where}[{place}]"
            if field.message_type is not None:
                read(target.add(), item, inner)
            else:
                target.append(_scalar(field, item, inner))
    elif field.message_type is not None:
        target.SetInParent()
        if field.message_type.full_name == VALUE:
            _read_value(target, value, where)
        else:
            read(target, value, where)
    else:
        setattr(message, field.name, _scalar(field, value, where))


def _scalar(field: FieldDescriptor, value: object, where: str) -> Any:
    kind = field.cpp_type
    if kind in _RANGES:
        allowed = _RANGES[kind]
        if type(value) is not int or value not in allowed:
            raise JsonError(f"{where}: wanted: a whole number from {allowed.start} to {allowed.stop - 1}")
        return value
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise _wrong(where, value, "true or false")
        return value
    if kind in _FLOATS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(where, value, "a number")
        return float(value)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        names = field.enum_type.values_by_name
        if not isinstance(value, str) or value not in names:
            raise JsonError(f"{where}: wanted: one of {', '.join(names)}")
        return names[value].number
    if not isinstance(value, str):
        raise _wrong(where, value, "text")
    return _bytes(value, where) if field.type == FieldDescriptor.TYPE_BYTES else _text(value, where)


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise JsonError(f"{where}: text with half of a surrogate pair") from error
    return value


def _bytes(value: object, where: str) -> bytes:
    if not isinstance(value, str):
        raise _wrong(where, value, "base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise JsonError(f"{where}: not base64: {error}") from error


def _read_value(target: Any, value: object, where: str) -> None:
    if isinstance(value, bool):
        target.boolean = value
    elif isinstance(value, int):
        if value not in _RANGES[FieldDescriptor.CPPTYPE_INT64]:
            raise JsonError(f"{where}: wanted: a whole number of 64 bits")
        target.integer = value
    elif isinstance(value, float):
        target.floating = value
    elif isinstance(value, str):
        target.text = _text(value, where)
    elif isinstance(value, dict) and set(value) == {"base64"}:
        target.binary = _bytes(value["base64"], where)
    elif isinstance(value, dict) and set(value) == {"double"} and str(value["double"]) in _DOUBLES:
        target.floating = _DOUBLES[str(value["double"])]
    else:
        raise _wrong(where, value, 'text, a number, true, false, {"base64": "..."} or {"double": "NaN"}')


def _read_message(message: Any, value: dict[str, object], where: str) -> None:
    allowed = ("body", "body_base64", "properties", PROPERTIES)
    for name in value:
        if name not in allowed:
            raise JsonError(f"{where}: unknown field {name[:64]!r}; allowed: {', '.join(allowed)}")
    if "body" in value and "body_base64" in value:
        raise JsonError(f"{where}: body and body_base64 exclude each other")
    body = value.get("body", "")
    if not isinstance(body, str):
        raise _wrong(f"{where}.body", body, "text (body_base64 has bytes)")
    message.body = (
        _bytes(value["body_base64"], f"{where}.body_base64")
        if "body_base64" in value
        else _text(body, f"{where}.body").encode()
    )
    if "properties" in value:
        read(message.properties, value["properties"], f"{where}.properties", without=(PROPERTIES,))
    if PROPERTIES in value:
        field = message.properties.DESCRIPTOR.fields_by_name[PROPERTIES]
        _read_field(message.properties, field, value[PROPERTIES], f"{where}.{PROPERTIES}")


# ---- writing


def write(message: Any) -> dict[str, Any]:
    """A message as a JSON object."""
    if message.DESCRIPTOR.full_name == MESSAGE:
        return _write_message(message)
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            found[field.name] = {name: _write_value(value[name]) for name in sorted(value)}
        elif field.is_repeated:
            found[field.name] = [_write_one(field, each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _write_one(field, value)
    return found


def _write_one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _write_value(value) if field.message_type.full_name == VALUE else write(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode()
    return value


def _write_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "binary":
        return {"base64": base64.b64encode(value.binary).decode()}
    if kind == "floating" and not math.isfinite(value.floating):
        return {"double": next(name for name, each in _DOUBLES.items() if repr(each) == repr(value.floating))}
    return getattr(value, kind)


def _write_message(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    properties = write(message.properties)
    application = properties.pop(PROPERTIES)
    if properties:
        found["properties"] = properties
    if application:
        found[PROPERTIES] = application
    return found


# ---- schemas

Schema = dict[str, Any]
_VALUE_SCHEMA: Schema = {
    "oneOf": [
        {"type": "string"},
        {"type": "boolean"},
        {"type": "number"},
        {
            "type": "object",
            "properties": {"base64": {"type": "string", "format": "byte"}},
            "required": ["base64"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"double": {"enum": list(_DOUBLES)}},
            "required": ["double"],
            "additionalProperties": False,
        },
    ]
}


def schema_of(descriptor: Descriptor, known: dict[str, Schema], without: Iterable[str] = ()) -> Schema:
    """The JSON schema of a message; the messages in it are added to `known`, by name."""
    if descriptor.full_name == MESSAGE:
        properties = queue_pb2.Properties.DESCRIPTOR
        inner = schema_of(properties, known, (PROPERTIES,))
        application = _field_schema(properties.fields_by_name[PROPERTIES], known)
        fields = {"body": {"type": "string"}, "body_base64": {"type": "string", "format": "byte"}}
        return _object({**fields, "properties": inner, PROPERTIES: application})
    return _object(
        {each.name: _field_schema(each, known) for each in descriptor.fields if each.name not in without}
    )


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _field_schema(field: FieldDescriptor, known: dict[str, Schema]) -> Schema:
    if _is_map(field):
        return {"type": "object", "additionalProperties": _VALUE_SCHEMA}
    one = one_schema(field, known)
    return {"type": "array", "items": one} if field.is_repeated else one


def one_schema(field: FieldDescriptor, known: dict[str, Schema]) -> Schema:
    if field.message_type is not None:
        if field.message_type.full_name == VALUE:
            return _VALUE_SCHEMA
        name = field.message_type.name
        if name not in known:
            known[name] = {}
            known[name] = schema_of(field.message_type, known)
        return {"$ref": f"#/components/schemas/{name}"}
    kind = field.cpp_type
    if kind in _RANGES:
        allowed = _RANGES[kind]
        return {"type": "integer", "minimum": allowed.start, "maximum": allowed.stop - 1}
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return {"enum": list(field.enum_type.values_by_name)}
    if field.type == FieldDescriptor.TYPE_BYTES:
        return {"type": "string", "format": "byte"}
    simple: dict[int, str] = {FieldDescriptor.CPPTYPE_BOOL: "boolean", **dict.fromkeys(_FLOATS, "number")}
    return {"type": simple.get(kind, "string")}


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
