"""A block that has fewer columns than its messages have fields: a list of rows says the same.

Most values are in the sparse table here, those of keys that also have a column among them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_selectors import block_columns, columns, jms, summaries
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import Comparison, Expression, Field, IsNull, Like, Literal
from quorum_selectors.like import parse_pattern
from quorum_selectors.single_columns import decode_singles
from quorum_selectors.vectorised import Messages, select
from support.examples import examples
from support.selectors.expressions import EXPRESSIONS, MESSAGES

Fields = dict[str, Any]

SIZE = 32
KINDS = ("rows", "shared", "singles")
PARTS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.lists(MESSAGES, min_size=1, max_size=12),
        st.integers(0, SIZE - 1),
        st.integers(0, 11),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=6,
)
LIVE = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)


@pytest.fixture(scope="module", params=(0, 1, 3, 5), autouse=True)
def dense_columns(request: pytest.FixtureRequest) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_columns, "MAX_DENSE_COLUMNS", request.param)
        yield request.param


@dataclass
class Filled:
    """A block, and the fields of its messages as a list."""

    block: columns.BlockColumns = field(default_factory=lambda: columns.BlockColumns(SIZE))
    rows: list[Fields] = field(default_factory=lambda: [{} for _ in range(SIZE)])

    def append(self, kind: str, rows: list[Fields], slot: int, ordinal: int, wanted: int) -> None:
        rows = [rows[0]] * len(rows) if kind == "shared" else rows
        ordinal %= len(rows)
        count = min(wanted, len(rows) - ordinal, SIZE - slot)
        self.block.append(slot, batch(kind, rows), ordinal, count)
        self.rows[slot : slot + count] = rows[ordinal : ordinal + count]


def batch(kind: str, rows: list[Fields]) -> columns.BatchColumns:
    if kind == "shared":
        return columns.decode(columns.encode_shared(rows[0], len(rows)), len(rows))
    if kind == "singles":
        return decode_singles([columns.encode([row]) if row else b"" for row in rows])
    return columns.decode(columns.encode(rows), len(rows))


def filled(parts: list[tuple[str, list[Fields], int, int, int]]) -> Filled:
    found = Filled()
    for part in parts:
        found.append(*part)
    return found


def shown(row: Any) -> list[tuple[str, str]]:
    return sorted((key, repr(value)) for key, value in row.items())


@settings(max_examples=examples(200))
@given(EXPRESSIONS, PARTS)
def test_fields_and_matches_are_those_of_the_list(expression: Expression, parts: Any) -> None:
    found = filled(parts)
    assert [shown(found.block.row(slot)) for slot in range(SIZE)] == [shown(row) for row in found.rows]
    for first, end in ((0, SIZE), (5, 19)):
        matches = select(expression, Messages(found.block, first, end - first)).tolist()
        assert matches == [evaluate(expression, row) is True for row in found.rows[first:end]]


@settings(max_examples=examples(200))
@given(EXPRESSIONS, PARTS, LIVE)
def test_the_summary_rules_out_no_match(expression: Expression, parts: Any, live: list[bool]) -> None:
    found = filled(parts)
    summary = summaries.decode(summaries.summarise(found.block, np.array(live)))
    rows = [row for row, is_live in zip(found.rows, live, strict=True) if is_live]
    for asked in (expression, *(each for row in rows for each in _about(row))):
        is_matched = any(evaluate(asked, row) is True for row in rows)
        assert summaries.may_match(asked, summary) or not is_matched, asked


def _about(row: Fields) -> list[Expression]:
    """Selectors that name what a message has, as people write them."""
    found: list[Expression] = []
    for key, value in row.items():
        found.append(Comparison("=", Field(key), Literal(value)))
        found.append(Comparison("<>", Field(key), Literal(value)))
        found.append(IsNull(Field(key)))
        if isinstance(value, bool):
            found.append(Field(key))
        elif isinstance(value, str):
            found.append(Like(Field(key), parse_pattern("%", "!")))
        else:
            found.append(Comparison(">=", Field(key), Literal(value)))
    return found


def test_a_value_of_another_type_that_has_no_column_is_not_ruled_out(dense_columns: int) -> None:
    """The key has a column of numbers; its text came when there was no column left."""
    found = Filled()
    numbers = {f"application-properties.key{n}": n for n in range(max(dense_columns, 1))}
    found.append("rows", [numbers], 0, 0, 1)
    found.append("rows", [{"application-properties.key0": "red"}], 1, 0, 1)
    summary = summaries.decode(summaries.summarise(found.block, np.ones(SIZE, np.bool_)))
    assert summaries.may_match(jms.parse("key0 = 'red'"), summary)
