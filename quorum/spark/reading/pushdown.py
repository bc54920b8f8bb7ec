"""Push-down of a batch read's filters: a selector for the service and a range of sequences.

A pushed selector is a *necessary* condition: it selects every message that the filter accepts, and Spark checks the
filter again on the rows that it gets. Push-down can therefore make a read faster, but never changes its rows. The
selector may select more where the two languages differ: a field of a declared type is NULL in Spark if the message has
a property of another kind, but a selector sees that property. Where a selector could select less, nothing is pushed:

    > and >= on doubles      Spark orders NaN above all numbers, a selector does not order it
    > and the like on text   selectors order only numbers
    IS NULL                  for numbers: a property of another kind is NULL only in Spark

Spark calls this only if push-down is on (session.PUSH_DOWN; docs/decisions/0016 explains why it is off).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from quorum.spark.schema import FIELDS, Field
from quorum.spark.selector_text import comparison, identifier, is_sound, like, literal, one_of

MAX_SEQUENCE = (1 << 63) - 1

_OPERATORS: dict[type[Filter], str] = {
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_PATTERNS: dict[type[Filter], tuple[str, str]] = {
    StringStartsWith: ("", "%"),
    StringEndsWith: ("%", ""),
    StringContains: ("%", "%"),
}


@dataclass(frozen=True, slots=True)
class Pushed:
    """A read's request to the service: sequences from `start` (inclusive) to `end` (exclusive), and a selector."""

    selector: str = ""
    start: int = 0
    end: int | None = None
    """None: to the end of the view."""

    @property
    def is_empty(self) -> bool:
        return self.end is not None and self.end <= self.start


def push(filters: Iterable[Filter], fields: Sequence[Field], selector: str = "") -> Pushed:
    """The request for these filters, all of which must hold. selector: of the option, always included."""
    by_name = {field.name: field for field in fields}
    start, end = 0, MAX_SEQUENCE + 1
    parts: list[str] = []
    for each in filters:
        if getattr(each, "attribute", None) == ("sequence",):
            low, high = _bounds(each)
            start, end = max(start, low), min(end, high)
        else:
            text = _necessary(each, by_name)
            if text and text not in parts:
                parts.append(text)
    return Pushed(_joined(selector, parts), start, end if end <= MAX_SEQUENCE else None)


def _joined(selector: str, parts: Sequence[str]) -> str:
    """The selector AND as many of the parts as fit into a selector."""
    joined = f"({selector})" if selector.strip() else ""
    for part in parts:
        longer = f"{joined} AND {part}" if joined else part
        if is_sound(longer):
            joined = longer
    # without parts, the option's selector stays as it was written, because errors show positions in it
    return selector if joined == f"({selector})" else joined


def _bounds(filter_: Filter) -> tuple[int, int]:
    """Sequences that a filter on the column `sequence` can accept, as a half-open range."""
    everything = (0, MAX_SEQUENCE + 1)
    if isinstance(filter_, In):
        values = [value for value in filter_.value if _is_integer(value)]
        return (max(min(values), 0), max(values) + 1) if values else everything
    value: Any = getattr(filter_, "value", None)
    if not _is_integer(value):
        return everything
    if isinstance(filter_, EqualTo | EqualNullSafe):
        return max(value, 0), value + 1
    if isinstance(filter_, GreaterThan):
        return max(value + 1, 0), everything[1]
    if isinstance(filter_, GreaterThanOrEqual):
        return max(value, 0), everything[1]
    if isinstance(filter_, LessThan):
        return 0, value
    if isinstance(filter_, LessThanOrEqual):
        return 0, value + 1
    return everything


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _necessary(filter_: Filter, fields: dict[str, Field]) -> str | None:
    """A selector that selects every message the filter accepts; None if there is no useful one."""
    negated = isinstance(filter_, Not)
    inner = filter_.child if isinstance(filter_, Not) else filter_
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 2 or path[0] != FIELDS or path[1] not in fields:
        return None
    name, kind = identifier(path[1]), fields[path[1]].kind
    if name is None:
        return None
    return _negative(inner, name, kind) if negated else _positive(inner, name, kind)


def _positive(filter_: Filter, name: str, kind: str) -> str | None:
    value: Any = getattr(filter_, "value", None)
    if isinstance(filter_, IsNotNull):
        return f"{name} IS NOT NULL"
    if isinstance(filter_, IsNull) or (isinstance(filter_, EqualNullSafe) and value is None):
        return _absent(name, kind)
    if isinstance(filter_, EqualTo | EqualNullSafe):
        return comparison(name, "=", value) if _is_of(value, kind) else None
    if isinstance(filter_, In):
        values = [each for each in filter_.value if each is not None]
        return one_of(name, values) if values and all(_is_of(each, kind) for each in values) else None
    if isinstance(filter_, LessThan | LessThanOrEqual) and kind in ("integer", "floating"):
        return comparison(name, _OPERATORS[type(filter_)], value) if _is_of(value, kind) else None
    if isinstance(filter_, GreaterThan | GreaterThanOrEqual) and kind == "integer":
        return comparison(name, _OPERATORS[type(filter_)], value) if _is_of(value, kind) else None
    if type(filter_) in _PATTERNS and kind == "text" and _is_of(value, kind):
        return like(name, *_around(filter_, value))
    return None


def _negative(filter_: Filter, name: str, kind: str) -> str | None:
    """The selector for NOT filter_. Spark's NULL stays NULL under NOT, as a selector's UNKNOWN does."""
    value: Any = getattr(filter_, "value", None)
    if isinstance(filter_, IsNull):
        return f"{name} IS NOT NULL"
    if isinstance(filter_, EqualTo):
        return comparison(name, "<>", value) if _is_of(value, kind) else None
    if isinstance(filter_, In):
        # a NULL in the list makes this never true; Spark handles that
        values = [each for each in filter_.value if each is not None]
        if values and all(_is_of(each, kind) for each in values):
            return f"NOT ({one_of(name, values)})"
    if type(filter_) in _PATTERNS and kind == "text" and _is_of(value, kind):
        return f"NOT ({like(name, *_around(filter_, value))})"
    return None


def _absent(name: str, kind: str) -> str | None:
    if kind == "text":
        return f"({name} IS NULL OR NOT ({name} LIKE '%'))"
    if kind == "boolean":
        return f"({name} IS NULL OR NOT ({name} = TRUE OR {name} = FALSE))"
    return None


def _around(filter_: Filter, value: str) -> tuple[str, str, str]:
    before, after = _PATTERNS[type(filter_)]
    return before, value, after


def _is_of(value: Any, kind: str) -> bool:
    """Whether a literal can be compared with a property of this kind as Spark compares it with the column."""
    if kind == "text":
        return isinstance(value, str) and literal(value) is not None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integer":
        return _is_integer(value)
    return isinstance(value, float) and math.isfinite(value)


class PushFilters:
    """Replaces a reader's method `pushFilters`.

    While spark.sql.python.filterPushdown.enabled is false, Spark's default, Spark refuses every reader whose class
    overrides that method, even without filters. This object shows the base class's method to Spark's check. Spark calls
    it only with push-down on; it then passes the filters to the reader.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Any) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Record the filters and return all of them, so that Spark checks them again."""
        self._take(filters)
        return filters
