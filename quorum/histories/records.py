"""The records of a history: clients' operations on queues with their answers. A record is a JSON line or a Parquet row.

docs/histories.md describes them for people; `problem` is the rule. A record covers `count` messages, whose numbers and
sequences ascend by one. Times are whole microseconds of one clock for the whole history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorum.errors import OperatorError

Record = dict[str, Any]
"""A record by the names of COLUMNS. Keys without a value may be missing."""

TEXT, INTEGER, FLAG = "a text", "a whole number", "true or false"

COLUMNS = {
    "op": TEXT,
    "queue": TEXT,
    "producer": TEXT,
    "consumer": TEXT,
    "number": INTEGER,
    "sequence": INTEGER,
    "count": INTEGER,
    "invoked_us": INTEGER,
    "returned_us": INTEGER,
    "held_until_us": INTEGER,
    "redelivered": FLAG,
    "outcome": TEXT,
}
MAX_INTEGER = (1 << 62) - 1
"""Highest integer, so that the sum of two fits 64 bits."""
MAX_COUNT = 1_000_000
"""Highest number of messages of a record, because Spark expands a record in memory."""

CONFIRMED, REJECTED, UNKNOWN, OK = "confirmed", "rejected", "unknown", "ok"


@dataclass(frozen=True, slots=True)
class Form:
    """The keys of one kind of record, besides `op`. outcomes: empty if the kind has no outcome."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return ("op", *self.required, *self.optional)


_DISPOSED = Form(
    ("queue", "consumer", "sequence", "invoked_us", "outcome"), ("count", "returned_us"), (OK, UNKNOWN)
)
FORMS = {
    "publish": Form(
        ("queue", "producer", "number", "invoked_us", "outcome"),
        ("count", "returned_us"),
        (CONFIRMED, REJECTED, UNKNOWN),
    ),
    "deliver": Form(
        ("queue", "consumer", "sequence", "producer", "number", "returned_us"),
        ("count", "redelivered", "held_until_us"),
    ),
    "settle": _DISPOSED,
    "return": _DISPOSED,
    "discard": _DISPOSED,
    "end": Form(("queue", "consumer", "invoked_us")),
    "left": Form(("queue",), ("sequence", "producer", "number", "count")),
}
LEFT_OF = ("sequence", "producer", "number")


class HistoryError(OperatorError):
    """A history that cannot be judged. The text names the file and line, the fault, and what is allowed."""


def problem(record: Any) -> str | None:
    """The fault of a record; None if it is good."""
    if not isinstance(record, dict):
        return f"a record is a JSON object, this is {json.dumps(record)[:80]}"
    given = {key: value for key, value in record.items() if value is not None}
    form = FORMS.get(given.get("op", "")) if isinstance(given.get("op"), str) else None
    if form is None:
        return f"'op' is {json.dumps(given.get('op'))}; allowed: {', '.join(FORMS)}"
    kind = given["op"]
    for key in record:
        if key not in form.keys:
            return f"a record '{kind}' has no key '{key}'; allowed: {', '.join(form.keys)}"
    for key in form.required:
        if key not in given:
            return f"a record '{kind}' needs '{key}'"
    for key, value in given.items():
        if not _is(COLUMNS[key], value):
            limit = f" from 0 to {MAX_INTEGER}" if COLUMNS[key] == INTEGER else ""
            return f"'{key}' is {json.dumps(value)[:80]}; allowed: {COLUMNS[key]}{limit}"
    return _outcome_problem(form, given) or _count_problem(kind, given) or _time_problem(form, given)


def _is(kind: str, value: Any) -> bool:
    if kind == INTEGER:
        return type(value) is int and 0 <= value <= MAX_INTEGER
    return type(value) is (str if kind == TEXT else bool)


def _outcome_problem(form: Form, given: Mapping[str, Any]) -> str | None:
    if form.outcomes and given["outcome"] not in form.outcomes:
        return f"'outcome' is {json.dumps(given['outcome'])}; allowed: {', '.join(form.outcomes)}"
    return None


def _count_problem(kind: str, given: Mapping[str, Any]) -> str | None:
    lowest = 0 if kind == "left" else 1
    count = given.get("count", 1)
    if not lowest <= count <= MAX_COUNT:
        return f"'count' is {count}; allowed: {lowest} to {MAX_COUNT}"
    if kind != "left":
        return None
    present = [key for key in LEFT_OF if key in given]
    if count == 0 and present:
        return f"a record 'left' with 'count' 0 means an empty queue; omit '{present[0]}'"
    if count and len(present) < len(LEFT_OF):
        missing = next(key for key in LEFT_OF if key not in given)
        return f"a record 'left' needs '{missing}', or 'count' 0 if the queue is empty"
    return None


def _time_problem(form: Form, given: Mapping[str, Any]) -> str | None:
    returned = given.get("returned_us")
    if form.outcomes:
        if returned is None and given["outcome"] != UNKNOWN:
            return f"'outcome' is \"{given['outcome']}\", so 'returned_us' is required"
        if returned is not None and returned < given["invoked_us"]:
            return f"'returned_us' is {returned}, before 'invoked_us', {given['invoked_us']}"
    held_until = given.get("held_until_us")
    if held_until is not None and held_until < given["returned_us"]:
        return f"'held_until_us' is {held_until}, before 'returned_us', {given['returned_us']}"
    return None
