"""Generated expressions and messages, for properties that hold for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from quorum_selectors import batch_columns, canonical, like
from quorum_selectors.block_columns import BlockColumns
from quorum_selectors.expression import (
    And,
    Arithmetic,
    Comparison,
    DeliveryMode,
    Expression,
    Field,
    FieldValue,
    In,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Not,
    Or,
    Sign,
)

KEYS = (
    "application-properties.a",
    "application-properties.b",
    "application-properties.c",
    "header.durable",
    "header.priority",
    "properties.subject",
)

WHOLE = st.one_of(
    st.integers(-3, 10),
    st.sampled_from([2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1]),
)
DOUBLES = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0, 3.5, 2.0**53, 2.0**63, 1.7e308, -1.7e308, 5e-324]),
    st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    st.floats(),
)
TEXTS = st.text(alphabet="ab%_\\é\n\U0001f600", max_size=6)
FIELD_VALUES = st.one_of(st.booleans(), WHOLE, DOUBLES, TEXTS)


class Nasty:
    """A value of no known type that objects to being compared, counted or shown."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __lt__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(self) -> int:
        raise RuntimeError("hashed")

    def __bool__(self) -> bool:
        raise RuntimeError("tested")

    def __repr__(self) -> str:
        return "Nasty()"


class LoudText(str):
    """A string of a foreign type."""


class LoudNumber(int):
    """A number of a foreign type."""


HOSTILE_VALUES = st.one_of(
    FIELD_VALUES,
    st.sampled_from([2**63, -(2**63) - 1, 10**5000, -(10**400)]),
    st.sampled_from(["\ud800", "a\udfffb", "\x00", LoudText("a"), b"a", (1,), 1j]),
    st.builds(Nasty),
    st.builds(LoudNumber, st.integers(0, 2)),
    st.builds(list),
    st.none(),
)

MESSAGES = st.dictionaries(st.sampled_from(KEYS), FIELD_VALUES)
HOSTILE_MESSAGES: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.sampled_from(KEYS), HOSTILE_VALUES)

FIELDS = st.one_of(
    st.builds(Field, st.sampled_from(KEYS)),
    st.just(Field("header.priority", 4)),
    st.just(DeliveryMode()),
)
LITERALS = st.builds(Literal, FIELD_VALUES)
PATTERNS = st.builds(like.parse_pattern, TEXTS)
NUMBERS = st.recursive(
    st.one_of(FIELDS, LITERALS),
    lambda inner: st.one_of(
        st.builds(Sign, st.sampled_from("+-"), inner),
        st.builds(Arithmetic, st.sampled_from("+-*/"), inner, inner),
    ),
    max_leaves=5,
)
COMPARATORS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
STRINGS = st.lists(TEXTS, min_size=1, max_size=4).map(tuple)


def _conditions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=2, max_size=4).map(tuple)
    return st.one_of(
        st.builds(Not, inner),
        st.builds(And, several),
        st.builds(Or, several),
        st.builds(IsTrue, inner),
        st.builds(Comparison, COMPARATORS, inner, inner),
    )


EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(
        st.builds(Comparison, COMPARATORS, NUMBERS, NUMBERS),
        st.builds(Comparison, COMPARATORS, FIELDS, LITERALS),
        st.builds(Comparison, st.just("="), FIELDS, st.builds(Literal, TEXTS)),
        st.builds(In, FIELDS, STRINGS),
        st.builds(Like, FIELDS, PATTERNS),
        st.builds(IsNull, FIELDS),
        st.builds(Literal, st.sampled_from([True, False, None, 1, "a"])),
        FIELDS,
    ),
    _conditions,
    max_leaves=12,
)
"""Any tree of nodes, also those that no selector's text leads to."""


def normalized(expression: Expression) -> Expression:
    """The normal form, which the encoding has."""
    return canonical.decode(canonical.encode(expression))


def block_of(batches: list[list[dict[str, FieldValue]]], first: int = 0, size: int = 256) -> BlockColumns:
    """A block with these batches, one after the other from a slot on."""
    block = BlockColumns(size)
    for rows in batches:
        data = batch_columns.encode(rows)
        if data:
            block.append(first, batch_columns.decode(data, len(rows)), 0, len(rows))
        first += len(rows)
    return block
