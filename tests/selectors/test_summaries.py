"""Summaries of a block's fields: they never rule out a match, and rule out what they are for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_selectors import columns, jms, summaries
from quorum_selectors.block_columns import BLOCK_SIZE
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import Expression, Not
from support.examples import examples
from support.selectors.expressions import EXPRESSIONS, MESSAGES

Fields = dict[str, Any]


def filled(rows: list[Fields], step: int = 1_000) -> columns.BlockColumns:
    block = columns.BlockColumns()
    for at in range(0, len(rows), step):
        part = rows[at : at + step]
        block.append(at, columns.decode(columns.encode(part), len(part)), 0, len(part))
    return block


def summary(rows: list[Fields], live: list[bool] | None = None, step: int = 1_000) -> bytes:
    marks = np.zeros(BLOCK_SIZE, np.bool_)
    marks[: len(rows)] = True if live is None else live
    return summaries.summarise(filled(rows, step), marks)


@settings(max_examples=examples(500))
@given(EXPRESSIONS, st.lists(st.tuples(MESSAGES, st.booleans()), min_size=1, max_size=8))
def test_what_matches_is_never_ruled_out(expression: Expression, rows: list[tuple[Fields, bool]]) -> None:
    found = summaries.decode(summary([row for row, _ in rows], [is_live for _, is_live in rows], step=3))
    truths = {evaluate(expression, row) for row, is_live in rows if is_live}
    assert summaries.may_match(expression, found) or True not in truths
    assert summaries.may_match(Not(expression), found) or False not in truths


@settings(max_examples=examples(100))
@given(EXPRESSIONS, st.lists(MESSAGES, min_size=1, max_size=8), st.integers(0, 7))
def test_a_summary_of_more_messages_is_right_for_fewer(
    expression: Expression, rows: list[Fields], kept: int
) -> None:
    found = summaries.decode(summary(rows))
    assert summaries.may_match(expression, found) or evaluate(expression, rows[kept % len(rows)]) is not True


ORDERS = [
    {
        "application-properties.region": ("north", "south")[n % 2],
        "application-properties.price": n % 100,
        "application-properties.weight": n / 2,
        "application-properties.id": f"order-{n:06}",
        **({"application-properties.urgent": True} if n == 5 else {}),
    }
    for n in range(3_000)
]


@pytest.mark.parametrize(
    "text",
    [
        "region = 'east'",
        "region IN ('east', 'west')",
        "region LIKE 'w%'",
        "region = 3",
        "region > 'a'",
        "region <> 3",
        "price < 0",
        "price > 99.5",
        "price BETWEEN 100 AND 200",
        "price = 1000 AND region = 'north'",
        "NOT price >= 0",
        "weight > 1500",
        "1500 < weight",
        "missing = 1",
        "missing <> 1",
        "missing LIKE '%'",
        "missing IS NOT NULL",
        "region IS NULL",
        "id = 'order-003000'",
        "id = 'parcel-000001'",
        "urgent = FALSE",
        "price = 5 AND (region = 'east' OR missing > 3)",
    ],
)
def test_a_selector_is_ruled_out(text: str) -> None:
    found = summaries.decode(summary(ORDERS))
    assert not any(evaluate(jms.parse(text), row) is True for row in ORDERS)
    assert not summaries.may_match(jms.parse(text), found)


@pytest.mark.parametrize(
    "text",
    [
        "region = 'north'",
        "price + 1 = 1000",  # not looked into
        "missing IS NULL",
        "urgent IS NULL",
        "urgent = TRUE",
        "id = 'order-001234'",
        "id LIKE 'order-00_234'",
        "region <> 'north'",
        "NOT (region = 'east')",
    ],
)
def test_a_selector_may_match(text: str) -> None:
    assert summaries.may_match(jms.parse(text), summaries.decode(summary(ORDERS)))


def test_some_hundred_different_strings_are_told_apart_by_their_hashes() -> None:
    found = summaries.decode(
        summary([{"application-properties.id": f"{n * 7919 % 100_000:05}"} for n in range(1_000)])
    )
    here = {f"{n * 7919 % 100_000:05}" for n in range(1_000)}
    others = [f"{n:05}" for n in range(100, 99_000, 100) if f"{n:05}" not in here]
    ruled_out = sum(not summaries.may_match(jms.parse(f"id = '{text}'"), found) for text in others)
    assert ruled_out > len(others) * 3 // 4


def test_a_key_beyond_the_room_is_taken_for_unknown() -> None:
    rows = [{f"application-properties.key{k:02}": f"{k}-{n}" for k in range(20)} for n in range(200)]
    data = summary(rows)
    assert len(data) <= summaries.SUMMARY_BYTES + 2
    found = summaries.decode(data)
    assert not summaries.may_match(jms.parse("key00 = 'no'"), found)
    assert summaries.may_match(jms.parse("key19 = 'no'"), found)
    assert summaries.may_match(jms.parse("missing = 'no'"), found)


def test_values_that_have_no_column_are_unknown() -> None:
    rows = [{f"application-properties.key{n}": n} for n in range(columns.MAX_DENSE_COLUMNS + 1)]
    found = summaries.decode(summary(rows))
    assert summaries.may_match(jms.parse("key64 = 64"), found)
    assert not summaries.may_match(jms.parse("key0 = 64"), found)


def test_equal_fields_give_equal_bytes() -> None:
    assert summary(ORDERS, step=1_000) == summary(ORDERS, step=7)
    backwards = [dict(reversed(row.items())) for row in reversed(ORDERS)]
    assert summary(backwards) == summary(ORDERS)
