"""Canonical expressions printed back as selectors: they mean the same, and people can read them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_selectors import canonical, jms, like, properties, unparse
from quorum_selectors.expression import (
    And,
    Arithmetic,
    Comparison,
    DeliveryMode,
    Expression,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Sign,
)
from support.examples import examples
from support.selectors.expressions import COMPARATORS, EXPRESSIONS

TEXTS = st.text(alphabet="ab%_\\'é\n&\U0001f600", max_size=6)
FIELDS = st.sampled_from(
    [
        Field("application-properties.a"),
        Field("application-properties.größe$1"),
        Field("properties.subject"),
        Field("properties.creation-time"),
        Field("header.priority", 4),
        DeliveryMode(),
    ]
)
WHOLE = st.one_of(st.integers(-3, 10), st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63), -(2**63) + 1]))
DOUBLES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e22, 5e-324, 1.7976931348623157e308, -2.5]),
    st.floats(allow_nan=False, allow_infinity=False),
)
NUMBERS = st.recursive(
    st.one_of(FIELDS, st.builds(Literal, st.one_of(WHOLE, DOUBLES))),
    lambda inner: st.one_of(
        st.builds(Sign, st.sampled_from("+-"), inner),
        st.builds(Arithmetic, st.sampled_from("+-*/"), inner, inner),
    ),
    max_leaves=6,
)
EQUALITY = st.sampled_from(["=", "<>"])


def _conditions(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(inner, min_size=2, max_size=4).map(tuple)
    return st.one_of(
        st.builds(Not, inner),
        st.builds(And, several),
        st.builds(Or, several),
        st.builds(Comparison, EQUALITY, inner, st.one_of(inner, st.builds(Literal, st.booleans()))),
    )


SELECTORS: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(
        st.builds(Comparison, COMPARATORS, NUMBERS, NUMBERS),
        st.builds(Comparison, EQUALITY, NUMBERS, st.builds(Literal, st.one_of(TEXTS, st.booleans()))),
        st.builds(In, FIELDS, st.lists(TEXTS, min_size=1, max_size=4).map(tuple)),
        st.builds(Like, FIELDS, st.builds(like.parse_pattern, TEXTS)),
        st.builds(IsNull, FIELDS),
        st.builds(Literal, st.booleans()),
        FIELDS,
    ),
    _conditions,
    max_leaves=8,
)
"""Trees that selectors' texts lead to."""


@settings(max_examples=examples(1000))
@given(SELECTORS)
def test_what_is_printed_is_read_as_the_same_selector(expression: Expression) -> None:
    encoded = canonical.encode(expression)
    text = unparse.selector(canonical.decode(encoded))
    assert text is not None
    assert canonical.encode(jms.parse(text)) == encoded, text


@settings(max_examples=examples(500))
@given(EXPRESSIONS)
def test_what_is_printed_of_any_tree_is_read_as_the_same_or_is_no_selector(expression: Expression) -> None:
    encoded = canonical.encode(expression)
    tree = canonical.decode(encoded)
    text = unparse.selector(tree)
    if text is None:
        assert unparse.shown(tree)
    else:
        assert canonical.encode(jms.parse(text)) == encoded, text


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("", "TRUE"),
        ("colour = 'red' AND size < 10", "colour = 'red' AND size < 10"),
        ("10 > size AND NOT colour IN ('red')", "NOT (colour = 'red') AND size < 10"),
        ("a BETWEEN 1 AND 2", "a <= 2 AND a >= 1"),
        ("a NOT LIKE 'x!_%' ESCAPE '!'", "a NOT LIKE 'x\\_%' ESCAPE '\\'"),
        ("a LIKE 'x\\%'", "a LIKE 'x\\%'"),
        ("a = 'it''s' OR a = 'b'", "a IN ('b', 'it''s')"),
        ("a IS NOT NULL AND (b OR c)", "a IS NOT NULL AND (b OR c)"),
        (
            "JMSPriority > 3 AND JMSDeliveryMode = 'PERSISTENT'",
            "JMSDeliveryMode = 'PERSISTENT' AND JMSPriority > 3",
        ),
        ("a - (b - 2) * -c > 1.0", "a - -c * (b - 2) > 1.0"),
        ("a = 1 / 0", "(1 / 0 = 0)"),
        ("(a > 1) = TRUE", "(a > 1) = TRUE"),
    ],
)
def test_people_can_read_it(typed: str, printed: str) -> None:
    tree = canonical.decode(canonical.encode(jms.parse(typed)))
    text = unparse.selector(tree)
    assert text is not None
    assert canonical.encode(jms.parse(text)) == canonical.encode(tree)
    assert sorted(text.split(" AND ")) == sorted(printed.split(" AND "))


def test_a_property_filter_is_shown_though_no_selector_says_it() -> None:
    tree = canonical.decode(canonical.encode(properties.parse({"to": "&p:eu"}, {"carrier": "UA"})))
    assert unparse.selector(tree) is None
    assert unparse.shown(tree) in (
        "(properties.to LIKE 'eu%' AND carrier = 'UA') IS TRUE",
        "(carrier = 'UA' AND properties.to LIKE 'eu%') IS TRUE",
    )


@pytest.mark.parametrize("name", ["", "and", "a-b", "1a", "a.b", "JMSPriority", "JMSReplyTo"])
def test_properties_that_no_identifier_names(name: str) -> None:
    assert unparse.identifier(name) is None
    assert unparse.selector(IsNull(Field(f"application-properties.{name}"))) is None
