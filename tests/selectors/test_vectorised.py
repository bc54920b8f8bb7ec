"""Many messages at once: the same truths as one after the other, whatever the fields hold and however they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_selectors import block_columns
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import Arithmetic, Comparison, Expression, Field, FieldValue, Literal
from quorum_selectors.vectorised import Messages, truths
from support.expressions import EXPRESSIONS, MESSAGES, block_of

Fields = dict[str, FieldValue]
KEY = "application-properties.a"
A = Field(KEY)


def agree(expression: Expression, batches: list[list[Fields]], first: int = 0) -> None:
    rows = [row for batch in batches for row in batch]
    true, false = truths(expression, Messages(block_of(batches, first), first, len(rows)))
    found = [True if t else False if f else None for t, f in zip(true.tolist(), false.tolist(), strict=True)]
    assert found == [evaluate(expression, row) for row in rows]
    assert not (true & false).any()


BATCHES = st.lists(st.lists(MESSAGES, min_size=1, max_size=12), min_size=1, max_size=4)


@settings(max_examples=1_500)
@given(EXPRESSIONS, BATCHES, st.integers(0, 20))
def test_many_at_once_agree_with_one_after_the_other(
    expression: Expression, batches: list[list[Fields]], first: int
) -> None:
    agree(expression, batches, first)


@settings(max_examples=300)
@given(EXPRESSIONS, BATCHES)
def test_the_same_with_fields_in_the_sparse_table(
    expression: Expression, batches: list[list[Fields]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_columns, "MAX_DENSE_COLUMNS", 1)
        agree(expression, batches)


@settings(max_examples=300)
@given(EXPRESSIONS, st.lists(MESSAGES, min_size=1, max_size=60))
def test_the_same_with_strings_that_share_no_codes(expression: Expression, rows: list[Fields]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_columns, "SHARED_STRINGS", 1)
        agree(expression, [rows[:20], rows[20:40], rows[40:]][: 1 + len(rows) // 21])


NUMBERS = [
    0, 1, -1, 2, -2, 3, 7, 2**31, 2**32, 3_037_000_499, 3_037_000_500, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63),
    -(2**63) + 1, 0.0, -0.0, 0.5, 2.0**53, 2.0**63, 1.7e308, -1.7e308, 5e-324, float("inf"), float("-inf"),
    float("nan"),
]  # fmt: skip


@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
def test_arithmetic_at_its_limits(op: Any) -> None:
    """Every number with every other: overflow, division by zero, infinity, -2**63 / -1."""
    b = Field("application-properties.b")
    rows: list[Fields] = [{A.key: x, b.key: y} for x in NUMBERS for y in NUMBERS]
    for start in range(0, len(rows), 200):
        part = rows[start : start + 200]
        for wanted in (0, 1, -(2**63), 2**63 - 1, 0.0, 1.7e308):
            for comparator in ("=", "<", ">="):
                agree(Comparison(comparator, Arithmetic(op, A, b), Literal(wanted)), [part])
        agree(Comparison("=", Arithmetic(op, A, b), Arithmetic(op, A, b)), [part])


def test_a_string_is_found_among_many_that_are_nearly_the_same() -> None:
    rows: list[Fields] = [{KEY: f"order-{number:06}-é"} for number in range(200)]
    block = block_of([rows])
    true, _ = truths(Comparison("=", A, Literal("order-000123-é")), Messages(block, 0, 200))
    assert np.flatnonzero(true).tolist() == [123]
