"""The index over expressions: whatever selects a message is among those that are found for it."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_selectors import predicates
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import Comparison, Expression, Field, FieldValue, Literal
from quorum_selectors.jms import parse
from quorum_selectors.predicates import PredicateIndex
from quorum_selectors.vectorised import Messages
from support.examples import examples
from support.selectors.expressions import EXPRESSIONS, MESSAGES, block_of, normalized

Fields = dict[str, FieldValue]


def found(index: PredicateIndex[int], rows: list[Fields]) -> dict[int, set[int]]:
    """token -> places, the rest left out."""
    candidates = index.candidates(Messages(block_of([rows]), 0, len(rows)))
    return {
        token: {place for each in arrays for place in each.tolist()} for token, arrays in candidates.items()
    }


@settings(max_examples=examples(400))
@given(
    st.lists(EXPRESSIONS, min_size=1, max_size=8), st.lists(MESSAGES, min_size=1, max_size=12), st.booleans()
)
def test_nothing_that_selects_is_missed(
    expressions: list[Expression], rows: list[Fields], is_normal: bool
) -> None:
    if is_normal:
        expressions = [normalized(expression) for expression in expressions]
    index: PredicateIndex[int] = PredicateIndex()
    for token, expression in enumerate(expressions):
        index.add(token, expression)
    candidates = found(index, rows)
    for token, expression in enumerate(expressions):
        for place, row in enumerate(rows):
            if evaluate(expression, row) is True:
                assert token in index.rest or place in candidates.get(token, ())


@settings(max_examples=examples(400))
@given(st.lists(EXPRESSIONS, min_size=1, max_size=8), st.lists(MESSAGES, min_size=1, max_size=4))
def test_a_message_by_itself_is_named_like_among_many(
    expressions: list[Expression], rows: list[Fields]
) -> None:
    index: PredicateIndex[int] = PredicateIndex()
    for token, expression in enumerate(expressions):
        index.add(token, normalized(expression))
    block, candidates = block_of([rows]), found(index, rows)
    for place, row in enumerate(rows):
        named = index.named(row)
        assert list(index.named(block.row(place))) == list(named)
        assert all(place in candidates[token] for token in named)
        for token, expression in enumerate(expressions):
            assert evaluate(expression, row) is not True or token in index.rest or token in named


@settings(max_examples=examples(200))
@given(st.lists(EXPRESSIONS, min_size=1, max_size=8), st.lists(MESSAGES, min_size=1, max_size=12))
def test_what_is_removed_leaves_nothing(expressions: list[Expression], rows: list[Fields]) -> None:
    index: PredicateIndex[int] = PredicateIndex()
    for token, expression in enumerate(expressions):
        index.add(token, expression)
    for token in range(len(expressions)):
        index.remove(token)
    assert not index._fields and not index.rest and found(index, rows) == {}


ROWS: list[Fields] = [
    {"application-properties.colour": "red", "application-properties.size": 5},
    {"application-properties.colour": "green", "application-properties.size": 5.5},
    {"application-properties.size": 2**53 + 1, "application-properties.flag": True},
    {},
]


@pytest.mark.parametrize(
    ("selector", "places"),
    [
        ("colour = 'red'", {0}),
        ("'red' = colour", {0}),
        ("colour IN ('red', 'blue')", {0}),
        ("colour LIKE 're%'", {0}),
        ("colour LIKE '%een'", {1}),
        ("colour LIKE 'red'", {0}),
        ("colour LIKE '%e%'", {0, 1}),
        ("colour <> 'red'", {0, 1}),
        ("colour NOT IN ('red')", {0, 1}),
        ("NOT (colour = 'red')", {0, 1}),
        ("size = 5", {0}),
        ("size = 5.0", {0}),
        ("size < 5.5", {0, 1}),
        ("size BETWEEN 5.2 AND 6", {1}),
        ("size > 5 AND size < 5.4", {0}),
        ("flag", {2}),
        ("flag = TRUE", {2}),
        ("NOT flag", set()),
        ("colour = 'red' OR size > 1000", {0, 2}),
        ("colour LIKE '%e%' AND size = 5", {0}),
        ("colour < 'red'", set()),
        ("size = 1/0", set()),
        ("JMSPriority = 4", {0, 1, 2, 3}),
        ("JMSPriority = 5", set()),
    ],
)
def test_what_an_expression_is_filed_under(selector: str, places: set[int]) -> None:
    index: PredicateIndex[int] = PredicateIndex()
    index.add(7, normalized(parse(selector)))
    assert not index.rest
    assert found(index, ROWS).get(7, set()) == places


@pytest.mark.parametrize(
    "selector",
    [
        "colour IS NULL",
        "colour IS NULL OR colour = 'red'",
        "size + 1 = 6",
        "colour = 'red' OR JMSDeliveryMode = 'PERSISTENT'",
    ],
)
def test_what_cannot_be_filed_is_asked_about_everything(selector: str) -> None:
    index: PredicateIndex[int] = PredicateIndex()
    index.add(7, normalized(parse(selector)))
    assert list(index.rest) == [7]


@pytest.mark.parametrize(
    "selector", ["x = TRUE OR x = 1", "x = 1.0 OR x", "x = 0 OR NOT x", "x = -0.0 OR x = FALSE"]
)
def test_what_asks_for_one_does_not_ask_for_true(selector: str) -> None:
    index: PredicateIndex[int] = PredicateIndex()
    expression = normalized(parse(selector))
    index.add(7, expression)
    rows: list[Fields] = [{"application-properties.x": value} for value in (1, 1.0, True, 0, 0.0, False)]
    assert found(index, rows)[7] == {place for place, row in enumerate(rows) if evaluate(expression, row)}
    index.remove(7)
    assert not index._fields


def test_who_compares_with_nan_does_not_hide_the_spans_of_others() -> None:
    index: PredicateIndex[int] = PredicateIndex()
    field = Field("application-properties.x")
    for token, value in enumerate((2.0, nan, 1.0)):
        index.add(token, Comparison(">", field, Literal(value)))
    assert found(index, [{"application-properties.x": 3.0}]) == {0: {0}, 2: {0}}


def test_an_expression_under_more_predicates_than_allowed_is_of_the_rest() -> None:
    index: PredicateIndex[int] = PredicateIndex()
    values = ", ".join(f"'{number}'" for number in range(predicates.MAX_PREDICATES + 1))
    index.add(1, parse(f"colour IN ({values})"))
    index.add(2, parse(f"colour IN ({values}) AND size = 3"))
    assert list(index.rest) == [1]
