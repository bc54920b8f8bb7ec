"""The specification's cases again, many messages at once: every selector and filter over the messages of all cases."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from quorum_selectors import block_columns
from quorum_selectors.block_columns import BlockColumns
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import Truth
from quorum_selectors.predicates import PredicateIndex
from quorum_selectors.summaries import decode, may_match, summarise
from quorum_selectors.vectorised import Messages, truths
from support.selectors.expressions import block_of
from support.selectors.oracle import at_once
from support.selectors.specification import Question, questions

Row = dict[str, Any]
FIRST, SIZE, BATCH = 3, 1024, 90
"""The slot of the first message; of a block; messages of a batch."""


def fits_a_column(question: Question) -> bool:
    """A whole number beyond 64 bits comes from no client, and lies in no column."""
    return all(not isinstance(value, int) or -(2**63) <= value < 2**63 for value in question.fields.values())


ALL = [question for question in questions() if fits_a_column(question)]


def present(fields: Row) -> Row:
    return {key: value for key, value in fields.items() if value is not None}


def messages_of(rows: list[Row]) -> tuple[BlockColumns, Messages]:
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    block = block_of(batches, FIRST, SIZE)
    return block, Messages(block, FIRST, len(rows))


def all_rows() -> tuple[list[Row], dict[str, int]]:
    """The messages of all cases, each once, and where each is."""
    places: dict[str, int] = {}
    rows: list[Row] = []
    for question in ALL:
        row = present(question.fields)
        if places.setdefault(repr(row), len(rows)) == len(rows):
            rows.append(row)
    return rows, places


def test_cases_of_one_selector_are_answered_together() -> None:
    together: dict[str, list[Question]] = defaultdict(list)
    for question in ALL:
        together[question.text].append(question)
    for same in together.values():
        _, messages = messages_of([present(question.fields) for question in same])
        found = at_once(same[0].expression, messages)
        assert found == [question.expected for question in same], same


@pytest.mark.parametrize("max_dense", [block_columns.MAX_DENSE_COLUMNS, 4000, 1])
def test_every_selector_is_answered_alike_over_the_messages_of_all_cases(
    max_dense: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields in columns, in the sparse table, and in both."""
    monkeypatch.setattr(block_columns, "MAX_DENSE_COLUMNS", max_dense)
    rows, places = all_rows()
    assert len(rows) > 300
    _, messages = messages_of(rows)
    known: dict[str, list[Truth]] = {}
    for question in ALL:
        if question.text not in known:
            known[question.text] = at_once(question.expression, messages)
        assert known[question.text][places[repr(present(question.fields))]] is question.expected, question
    if max_dense == block_columns.MAX_DENSE_COLUMNS:
        for text, expression in {question.text: question.expression for question in ALL}.items():
            assert known[text] == [evaluate(expression, row) for row in rows], text


def test_the_index_passes_over_nothing_that_a_case_selects() -> None:
    rows, places = all_rows()
    _, messages = messages_of(rows)
    index: PredicateIndex[str] = PredicateIndex()
    for text, expression in {question.text: question.expression for question in ALL}.items():
        index.add(text, expression)
    named = {
        text: set(np.concatenate(arrays).tolist()) for text, arrays in index.candidates(messages).items()
    }
    selected = [question for question in ALL if question.expected is True]
    assert len(selected) > 300
    for question in selected:
        place = places[repr(present(question.fields))]
        assert question.text in index.rest or place in named[question.text], question
    assert sum(question.text not in index.rest for question in selected) > 200


@pytest.mark.parametrize("size", [1, 12])
def test_a_summary_rules_out_nothing_that_a_case_selects(size: int) -> None:
    """Of single messages, where it is sharpest, and of several, of which one may match."""
    rows, _ = all_rows()
    _, messages = messages_of(rows)
    expressions = {question.text: question.expression for question in ALL}
    chosen = {text: truths(expression, messages)[0] for text, expression in expressions.items()}
    ruled_out = 0
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        live = np.zeros(SIZE, np.bool_)
        live[FIRST : FIRST + len(part)] = True
        summary = decode(summarise(messages_of(part)[0], live))
        for text, expression in expressions.items():
            possible = may_match(expression, summary)
            assert possible or not chosen[text][start : start + size].any(), (text, part)
            ruled_out += not possible
    assert ruled_out > len(rows) // size * len(expressions) // 2
