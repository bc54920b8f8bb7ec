"""Many messages at once: the same truths as one after the other, whatever the fields hold and however they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_selectors import batch_columns, block_columns, like
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import (
    Arithmetic,
    Comparison,
    Expression,
    Field,
    FieldValue,
    In,
    Like,
    Literal,
)
from quorum_selectors.vectorised import Messages, truths
from support.examples import examples
from support.selectors.expressions import EXPRESSIONS, MESSAGES, block_of

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


@settings(max_examples=examples(500))
@given(EXPRESSIONS, BATCHES, st.integers(0, 20))
def test_many_at_once_agree_with_one_after_the_other(
    expression: Expression, batches: list[list[Fields]], first: int
) -> None:
    agree(expression, batches, first)


@settings(max_examples=examples(300))
@given(EXPRESSIONS, BATCHES)
def test_the_same_with_fields_in_the_sparse_table(
    expression: Expression, batches: list[list[Fields]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_columns, "MAX_DENSE_COLUMNS", 1)
        agree(expression, batches)


@settings(max_examples=examples(300))
@given(EXPRESSIONS, st.lists(MESSAGES, min_size=1, max_size=60))
def test_the_same_with_strings_that_share_no_codes(expression: Expression, rows: list[Fields]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_columns, "SHARED_STRINGS", 1)
        agree(expression, [rows[:20], rows[20:40], rows[40:]][: 1 + len(rows) // 21])


# ---- strings, thousands side by side


def strings_agree(texts: list[str], pattern: str) -> None:
    """A LIKE over these strings, all at once and one after the other."""
    block = block_of([[{KEY: text} for text in texts]], size=len(texts))
    tree = Like(A, like.parse_pattern(pattern, "!"))
    true, false = truths(tree, Messages(block, 0, len(texts)))
    matches = like.compile_pattern(tree.pattern)
    assert true.tolist() == [matches(text) for text in texts]
    assert (true ^ false).all()


SHORT = [
    f"{prefix}{number:04}{suffix}" for number in range(300) for prefix, suffix in (("ab", "ba"), ("", "aab"))
]
LONG = [text + "-" * (number % 90) + "b" for number, text in enumerate(SHORT)]
WIDE = [f"é{text}日\U0001f600b"[number % 4 :] + "\ud800"[: number % 2] for number, text in enumerate(SHORT)]
ENDS = [
    "",
    "a",
    "ab",
    "b",
    "ba",
    "aba",
    "",
    "a" * 62,
    "a" * 63,
    "a" * 64,
    "a" * 65,
    "b" * 63 + "a",
    "a" * 62 + "b",
    "\x00",
    "",
]

PATTERNS = [
    "%a%", "%ab%", "%ba%", "%aab", "ab%ba", "%a%b%", "%b%a%b%", "a%b", "ab%", "%aba%", "%a%a%", "%a%a", "a%a", "%aa%a%",
    "%ab%ab%", "%_a%", "a_%", "%_", "_%", "_", "__", "%a_b%", "%0_2%", "_b_0%", "%é%", "%é_b%", "%日_", "%_\U0001f600%",
    "%\ud800", "%\udc00%", "%!%%", "", "%", "%%", "%a" * 62 + "%", "%a" * 63, "a" * 63, "%" + "a" * 64 + "%",
    "a" * 62 + "_", "%b%" + "-" * 70 + "%", "%" + "-_" * 40 + "%", "%\x00%", "%00%1_%",
]  # fmt: skip


@pytest.mark.parametrize("texts", [SHORT, LONG, WIDE, ENDS, SHORT + WIDE, ENDS * 30], ids=range(6))
def test_patterns_over_many_strings(texts: list[str]) -> None:
    """Pieces that overlap, that stand across the border of two strings, at the ends; too short strings."""
    for pattern in PATTERNS:
        strings_agree(texts, pattern)


@pytest.mark.parametrize("texts", [SHORT, LONG, WIDE, ENDS], ids=range(4))
def test_lists_over_many_strings(texts: list[str]) -> None:
    block = block_of([[{KEY: text} for text in texts]], size=len(texts))
    for chosen in (
        texts[:1],
        texts[:3],
        texts[::60],
        texts[::7],
        [f"{text}x" for text in texts[:9]],
        [text[:-1] for text in texts],
    ):
        true, _ = truths(In(A, tuple(chosen)), Messages(block, 0, len(texts)))
        assert true.tolist() == [text in chosen for text in texts]


@pytest.mark.parametrize("filler", ["", "-" * 70])
def test_ends_that_would_overlap(filler: str) -> None:
    """A string shorter than the two ends together matches neither way, however many bytes its characters have."""
    texts = ["é", "éé", "日", "日a日", "日a", "aba", "abba", "abab", "ababa", "éaé", "", filler] * 3 + [
        f"x{filler}"
    ]
    for pattern in (
        "é%é",
        "%é%é",
        "日a%a日",
        "日%日",
        "ab%ba",
        "ab%b%ba",
        "ab%a%ab",
        "%ab%ab",
        "é%a%é",
        "é%_é",
        "日_%日",
    ):
        strings_agree(texts, pattern)


@given(st.lists(st.text("ab\x00é日", max_size=70), min_size=1, max_size=30), st.text("ab_%é", max_size=12))
def test_patterns_over_any_strings(texts: list[str], pattern: str) -> None:
    strings_agree(texts, pattern)


@given(
    st.lists(
        st.tuples(st.text("aé", max_size=20), st.text("aé", max_size=20), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(["", "p" * 7, "p" * 123]),
)
def test_strings_of_two_fields(pairs: list[tuple[str, str, bool]], prefix: str) -> None:
    b = Field("application-properties.b")
    rows: list[Fields] = [{KEY: prefix + x, b.key: prefix + (x if same else y)} for x, y, same in pairs]
    agree(Comparison("=", A, b), [rows])
    agree(Comparison("<>", A, b), [rows])


def test_a_run_of_one_message() -> None:
    """Whose vectors are as long as a constant's."""
    b = Field("application-properties.b")
    rows: list[Fields] = [{KEY: text, b.key: other} for text, other in (("x", "y"), ("y", "y"), ("z", "x"))]
    block = block_of([rows])
    for tree in (Comparison("=", A, b), Comparison("<>", A, A), Like(A, (("z",), ())), In(A, tuple("vwxyz"))):
        found = [bool(truths(tree, Messages(block, slot, 1))[0][0]) for slot in range(3)]
        assert found == [evaluate(tree, row) is True for row in rows]


def test_a_table_that_grows_leaves_what_was_laid_out_as_it_is() -> None:
    rows: list[Fields] = [{KEY: f"order-{number}"} for number in range(300)]
    block = block_of([rows], size=512)
    messages = Messages(block, 0, 100)
    tree = Like(A, like.parse_pattern("%r-1%"))
    before = truths(tree, messages)[0].tolist()
    block.append(100, batch_columns.decode(batch_columns.encode(rows), 300), 0, 300)
    assert truths(tree, messages)[0].tolist() == before
    assert truths(tree, Messages(block, 0, 100))[0].tolist() == before


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
