"""AMQP property filters: two maps of reference values to an expression. OASIS AMQP Filter Expressions 1.0.

One map is matched with a message's properties section (AMQP 1.0 §3.2.4, names and types are those of the
section), one with its application properties. Every entry of both must match:

    reference            matches
    NULL                 anything, also an absent field
    "&p:abc"             a string that begins with abc
    "&s:abc"             a string that ends in abc
    "&&abc"              the string "&abc"
    any other "&..."     refused
    any other string     the same string
    a number             an equal number; exact and approximate ones are compared as doubles
    a boolean            the same boolean

An entry matches or does not, so an absent field makes the filter FALSE, never UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Mapping

from quorum_selectors import like
from quorum_selectors.arithmetic import INT64_MAX, INT64_MIN
from quorum_selectors.errors import MAX_SELECTOR_CHARACTERS, FilterError
from quorum_selectors.expression import (
    EVERYTHING,
    And,
    Comparison,
    Expression,
    Field,
    FieldValue,
    IsTrue,
    Like,
    Literal,
)
from quorum_selectors.known_fields import APPLICATION, PROPERTIES, PROPERTY_NAMES, nearest

MAX_ENTRIES = 16
"""Maximum number of entries in each map, as in other brokers."""

UINT32_MAX = 2**32 - 1

_TIMESTAMPS = ("absolute-expiry-time", "creation-time")
_IDENTIFIERS = ("message-id", "correlation-id")

Reference = FieldValue | None


def parse(properties: Mapping[str, Reference], application_properties: Mapping[str, Reference]) -> Expression:
    """The expression of a filter with at least one entry in the two maps together, and at most 16 in each. Raises
    FilterError.

    An empty map means that its section is not compared.
    """
    if not properties and not application_properties:
        raise FilterError("a property filter needs at least one entry")
    size = 0
    for section, entries in (("properties", properties), ("application_properties", application_properties)):
        if len(entries) > MAX_ENTRIES:
            raise FilterError(f"{len(entries)} entries in {section}; at most {MAX_ENTRIES} are allowed")
        for name, value in entries.items():
            if not isinstance(name, str):
                raise FilterError(f"{section} has a name that is not a string: {name!r}")
            size += len(name) + (len(value) if isinstance(value, str) else 0)
    if size > MAX_SELECTOR_CHARACTERS:
        raise FilterError(f"the filter has {size} characters; at most {MAX_SELECTOR_CHARACTERS} are allowed")
    conditions: list[Expression] = []
    for name in sorted(properties):
        _check_property(name, properties[name])
        conditions += _match(PROPERTIES + name, properties[name])
    for name in sorted(application_properties):
        conditions += _match(APPLICATION + name, application_properties[name])
    if not conditions:
        return EVERYTHING
    return IsTrue(conditions[0] if len(conditions) == 1 else And(tuple(conditions)))


def _check_property(name: str, value: Reference) -> None:
    """Check that name and type are those of the section (FILTEX §4: the map must correspond to its field
    definitions)."""
    if name not in PROPERTY_NAMES:
        raise FilterError(f"unknown property {name!r}{nearest(name, PROPERTY_NAMES)}")
    if value is None:
        return
    if name in _TIMESTAMPS:
        if type(value) is not int:
            raise FilterError(f"property {name!r} is a time in milliseconds, a whole number, not {value!r}")
    elif name == "group-sequence":
        if type(value) is not int or not 0 <= value <= UINT32_MAX:
            raise FilterError(f"property {name!r} is a whole number of 32 bits, not {value!r}")
    elif name in _IDENTIFIERS:
        if type(value) is not str and type(value) is not int:
            raise FilterError(f"property {name!r} is a string or a whole number, not {value!r}")
    elif type(value) is not str:
        raise FilterError(f"property {name!r} is a string, not {value!r}")


def _match(key: str, value: Reference) -> list[Expression]:
    """The condition for one entry; none if the reference is NULL."""
    if value is None:
        return []
    field = Field(key)
    if type(value) is str and value.startswith("&"):
        if value.startswith("&p:"):
            return [Like(field, like.prefix_pattern(value[3:]))]
        if value.startswith("&s:"):
            return [Like(field, like.suffix_pattern(value[3:]))]
        if not value.startswith("&&"):
            known = "&p: (prefix), &s: (suffix), && (a plain &)"
            raise FilterError(f"{key!r}: unknown modifier in {value[:40]!r}; known: {known}")
        value = value[1:]
    if type(value) not in (bool, int, float, str):
        raise FilterError(
            f"{key!r}: a reference is a string, number, boolean or NULL, not {type(value).__name__}"
        )
    if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        raise FilterError(f"{key!r}: the number is beyond 64 bits")
    return [Comparison("=", field, Literal(value))]
