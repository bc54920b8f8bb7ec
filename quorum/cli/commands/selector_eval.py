"""`quorum selector check|eval`. `eval`: JSON lines in, JSON lines out, one answer for each line, in order.

    {"id": 1, "dialect": "jms", "expr": "colour = 'red' AND JMSPriority > 4", "fields": {"colour": "red"}}
    {"id": 2, "dialect": "amqp-property", "expr": {"properties": {"subject": "&p:ord"}}, "fields": {...}}

`fields` have the names that a selector uses. For `amqp-property`, both `expr` and `fields` are {"properties": {...},
"application_properties": {...}}; either may be omitted. The answer is
{"id": ..., "result": true | false | "unknown" | "parse-error"}.

An integer is an exact number, a number with a point or an exponent is approximate, null is an absent field. A number
beyond 64 bits is UNKNOWN in a field and a parse-error in an expression. A line that cannot be read (no JSON, no object,
a value that no field can have) is answered with parse-error and its id, or null if the id cannot be read either. The
other lines are not affected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from quorum_selectors import jms, properties
from quorum_selectors.errors import SelectorsError
from quorum_selectors.evaluate import PERSISTENT, evaluate
from quorum_selectors.expression import DURABLE, Expression, field_names
from quorum_selectors.known_fields import APPLICATION, PROPERTIES, jms_key

PARSE_ERROR = "parse-error"
UNKNOWN = "unknown"

MAX_DIGITS = 4000
"""Python refuses to parse longer integers. A longer one is replaced by one of this many digits, also beyond 64 bits."""


class Unreadable(ValueError):
    """A line that is not a request."""


def fields_of(text: str) -> list[str]:
    """The names of the fields that a JMS selector reads. SelectorError if it is wrong."""
    return list(field_names(jms.parse(text)))


def evaluate_lines(lines: Iterable[str | bytes]) -> Iterator[str]:
    """Yield one line of JSON, without a line end, for each given line."""
    for line in lines:
        identity: Any = None
        try:
            request = _read(line)
            identity = request.get("id")
            expression, fields = _interpret(request)
        except (Unreadable, SelectorsError):
            result: bool | str = PARSE_ERROR
        else:
            truth = evaluate(expression, fields)
            result = UNKNOWN if truth is None else truth
        yield _answer(identity, result)


def _answer(identity: Any, result: bool | str) -> str:
    try:
        return json.dumps({"id": identity, "result": result})
    except RecursionError:
        # An id can be nested so deeply that it can be read but not written.
        return json.dumps({"id": None, "result": result})


def _read(line: str | bytes) -> dict[str, Any]:
    try:
        text = line.decode() if isinstance(line, bytes) else line
        request = json.loads(text, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are ValueErrors
        raise Unreadable(str(error)) from error
    if not isinstance(request, dict):
        raise Unreadable("not a JSON object")
    return request


def _whole_number(digits: str) -> int:
    return int(digits[:MAX_DIGITS])


def _interpret(request: dict[str, Any]) -> tuple[Expression, dict[str, Any]]:
    dialect, expr, fields = request.get("dialect"), request.get("expr"), request.get("fields")
    fields = {} if fields is None else fields
    if not isinstance(fields, dict):
        raise Unreadable("fields are not an object")
    if dialect == "jms":
        if not isinstance(expr, str):
            raise Unreadable("the selector is not a string")
        return jms.parse(expr), dict(_jms_field(name, value) for name, value in fields.items())
    if dialect == "amqp-property":
        if not isinstance(expr, dict):
            raise Unreadable("the filter is not an object")
        if unknown := set(expr) - {"properties", "application_properties"}:
            raise Unreadable(f"unknown section {min(unknown)!r}")
        expression = properties.parse(*_sections(expr))
        of_properties, of_application = _sections(fields)
        known = {PROPERTIES + name: _value(value) for name, value in of_properties.items()}
        return expression, known | {
            APPLICATION + name: _value(value) for name, value in of_application.items()
        }
    raise Unreadable(f"unknown dialect {dialect!r}")


def _jms_field(name: str, value: Any) -> tuple[str, Any]:
    key = jms_key(name)
    if key == DURABLE:
        # A message carries this header as a boolean, which a selector reads as one of two words.
        return key, None if _value(value) is None else value is True or value == PERSISTENT
    return key, _value(value)


def _value(value: Any) -> Any:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise Unreadable("a field is a string, a number, a boolean or null")
    return value


def _sections(maps: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(properties, application properties)."""
    of_properties, of_application = maps.get("properties"), maps.get("application_properties")
    of_properties = {} if of_properties is None else of_properties
    of_application = {} if of_application is None else of_application
    if not isinstance(of_properties, dict) or not isinstance(of_application, dict):
        raise Unreadable("a section is not an object")
    return of_properties, of_application
