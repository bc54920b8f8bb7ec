"""The plain walk, the closure, and the tree that has travelled as bytes: one meaning, whatever the fields
hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorum_selectors import canonical
from quorum_selectors.compiled import compile_expression
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import And, Comparison, Expression, Field, Literal, Not, Or, field_names
from quorum_selectors.like import compile_pattern, is_pattern, parse_pattern
from support.examples import examples
from support.selectors.expressions import EXPRESSIONS, HOSTILE_MESSAGES, MESSAGES, TEXTS, normalized
from support.selectors.oracle import PER_BLOCK, ROWS, compare

A = Field("application-properties.a")


@settings(max_examples=examples(600))
@given(EXPRESSIONS, HOSTILE_MESSAGES)
@example(Comparison("=", And((A, Literal(True))), Literal(5)), {A.key: 5})
@example(Not(Comparison("=", A, Literal(2**53 + 1))), {A.key: 2.0**53})
def test_all_ways_to_evaluate_agree_and_none_raises(expression: Expression, fields: dict[str, Any]) -> None:
    expected = evaluate(expression, fields)
    assert expected is True or expected is False or expected is None
    assert compile_expression(expression)(fields) is expected
    travelled = canonical.decode(canonical.encode(expression))
    assert evaluate(travelled, fields) is expected
    assert compile_expression(travelled)(fields) is expected


@pytest.mark.parametrize("first", range(1, 41, 20))
def test_all_ways_agree_on_strings_that_nearly_match(first: int) -> None:
    """80,000 pairs of expression and message; millions with `make campaign`."""
    for seed in range(first, first + 20):
        assert compare(seed) == ROWS * PER_BLOCK


@settings(max_examples=examples(200))
@given(EXPRESSIONS)
def test_normal_form_is_stable(expression: Expression) -> None:
    code = canonical.encode(expression)
    assert canonical.encode(canonical.decode(code)) == code


@settings(max_examples=examples(200))
@given(EXPRESSIONS)
def test_normal_form_keeps_not_at_the_leaves(expression: Expression) -> None:
    conditions = [normalized(expression)]
    while conditions:
        match conditions.pop():
            case And(operands) | Or(operands) as junction:
                assert not any(isinstance(operand, type(junction)) for operand in operands)
                conditions.extend(operands)
            case Not(operand):
                assert not isinstance(operand, And | Or | Not | Literal)


@settings(max_examples=examples(200))
@given(st.lists(EXPRESSIONS, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_order_and_repeats_change_no_byte(operands: list[Expression], random: Any) -> None:
    shuffled = [*operands, operands[0]]
    random.shuffle(shuffled)
    for join in (And, Or):
        nested = join((join(tuple(shuffled[:2])), *shuffled[2:]))
        assert canonical.encode(nested) == canonical.encode(join(tuple(operands)))


@settings(max_examples=examples(100))
@given(EXPRESSIONS, MESSAGES)
def test_evaluation_reads_only_the_named_fields(expression: Expression, fields: dict[str, Any]) -> None:
    named = {key: fields[key] for key in field_names(expression) if key in fields}
    assert evaluate(expression, named) is evaluate(expression, fields)


def _matches_by_table(pattern: str, escape: str | None, value: str) -> bool:
    """The textbook's table of prefixes, in place of pieces."""
    items: list[str | None] = []  # a character, None for one character, "%%" for any run
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == escape:
            position += 1
            items.append(pattern[position])
        else:
            items.append({"%": "%%", "_": None}.get(character, character))
        position += 1
    row = [True] + [False] * len(value)
    for item in items:
        below = row
        row = [item == "%%" and below[0]] + [False] * len(value)
        for end in range(1, len(value) + 1):
            if item == "%%":
                row[end] = below[end] or row[end - 1]
            else:
                row[end] = below[end - 1] and item in (None, value[end - 1])
    return row[-1]


@settings(max_examples=examples(800))
@given(
    st.text(alphabet="ab%_!", max_size=12),
    st.sampled_from([None, "!", "%", "_"]),
    st.text(alphabet="ab_%", max_size=14),
)
def test_like_agrees_with_a_table_of_prefixes(pattern: str, escape: str | None, value: str) -> None:
    try:
        segments = parse_pattern(pattern, escape)
    except ValueError:
        return
    assert is_pattern(segments)
    assert compile_pattern(segments)(value) is _matches_by_table(pattern, escape, value)


@settings(max_examples=examples(100))
@given(TEXTS)
def test_a_pattern_matches_the_text_it_escapes(text: str) -> None:
    escaped = "".join("\\" + character if character in "%_\\" else character for character in text)
    assert compile_pattern(parse_pattern(escaped, "\\"))(text)
