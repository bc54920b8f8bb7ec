"""Selectors mean what another implementation of SQL's three-valued logic says: SQLite's parser and evaluator.

The same text goes to both, over the same rows. What the two languages define differently is left out: comparisons of
unlike types, ordering of strings, numbers near the ends of 64 bits, conditions as operands. Everything else (Kleene
logic, precedence, NULL in every place, BETWEEN, IN, LIKE with escapes, arithmetic with division by zero) has to agree.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_selectors import jms
from quorum_selectors.compiled import compile_expression
from quorum_selectors.evaluate import evaluate

INTEGERS = ("n", "m")
DOUBLES = ("x", "y")
STRINGS = ("s", "t")
BOOLEANS = ("f", "g")
COLUMNS = (*INTEGERS, *DOUBLES, *STRINGS, *BOOLEANS)
WORDS = (
    "",
    "a",
    "A",
    "ab",
    "abc",
    "a%",
    "a_b",
    "%",
    "_",
    "100%",
    "it's",
    "\\",
    "a\\b",
    "grün",
    "née",
    "日本",
    "b" * 40,
)
ROWS = 400
CASES = 250
"""Texts, each over all rows: 100,000 conditions here, ten times as many new ones with `make campaign`."""
CAMPAIGN_CASES = 2_500

Row = tuple[int | float | str | None, ...]


def some_rows() -> list[Row]:
    """Every third value is NULL; numbers are few, so that they meet, and exact in both types."""
    chance = random.Random(20)

    def value(name: str) -> int | float | str | None:
        if chance.random() < 0.33:
            return None
        if name in INTEGERS:
            return chance.randint(-4, 6)
        if name in DOUBLES:
            return chance.randint(-10, 20) / 4
        if name in STRINGS:
            return chance.choice(WORDS)
        return chance.randint(0, 1)

    return [tuple(value(name) for name in COLUMNS) for _ in range(ROWS)]


def fields_of(row: Row) -> dict[str, int | float | str | bool]:
    """As a queue keeps them: NULL is absent, and a boolean is no number."""
    return {
        f"application-properties.{name}": bool(value) if name in BOOLEANS else value
        for name, value in zip(COLUMNS, row, strict=True)
        if value is not None
    }


TABLE = some_rows()
MESSAGES = [fields_of(row) for row in TABLE]


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    types = {**dict.fromkeys((*INTEGERS, *BOOLEANS), "INTEGER"), **dict.fromkeys(DOUBLES, "REAL")}
    columns = ", ".join(f"{name} {types.get(name, 'TEXT')}" for name in COLUMNS)
    connection.execute("PRAGMA case_sensitive_like = ON")
    connection.execute(f"CREATE TABLE messages (number INTEGER PRIMARY KEY, {columns})")
    marks = ", ".join("?" * (len(COLUMNS) + 1))
    connection.executemany(
        f"INSERT INTO messages VALUES ({marks})", [(number, *row) for number, row in enumerate(TABLE)]
    )
    yield connection
    connection.close()


# ---- texts that mean the same to both


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _pattern(parts: list[str]) -> str:
    return "".join(parts)


LITERALS = st.sampled_from(WORDS).map(quoted)
WHOLE = st.integers(-5, 7).map(lambda number: f"({number})" if number < 0 else str(number))
FRACTIONS = st.sampled_from(("0.25", "1.5", "2.0", "1e1", "(-0.5)", ".75"))
PATTERNS = st.lists(
    st.sampled_from(("%", "_", "a", "b", "A", "'", "\\%", "\\_", "\\\\", "é", "1")), max_size=5
).map(_pattern)


def _arithmetic(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from([" + ", " - ", " * ", " / "]), inner).map("".join),
        inner.map("(- {})".format),
        inner.map("({})".format),
    )


NUMBERS = st.recursive(
    st.one_of(st.sampled_from((*INTEGERS, *DOUBLES)), WHOLE, FRACTIONS), _arithmetic, max_leaves=3
)
COMPARISONS = st.one_of(
    st.tuples(NUMBERS, st.sampled_from((" = ", " <> ", " < ", " <= ", " > ", " >= ")), NUMBERS),
    st.tuples(st.sampled_from(STRINGS), st.sampled_from((" = ", " <> ")), LITERALS),
    st.tuples(st.sampled_from(STRINGS), st.sampled_from((" = ", " <> ")), st.sampled_from(STRINGS)),
    st.tuples(
        st.sampled_from(BOOLEANS),
        st.sampled_from((" = ", " <> ")),
        st.sampled_from(("TRUE", "FALSE", *BOOLEANS)),
    ),
).map("".join)
BETWEEN = st.tuples(
    NUMBERS, st.sampled_from((" BETWEEN ", " NOT BETWEEN ")), NUMBERS, st.just(" AND "), NUMBERS
)
IN = st.tuples(
    st.sampled_from(STRINGS),
    st.sampled_from((" IN (", " NOT IN (")),
    st.lists(LITERALS, min_size=1, max_size=4).map(", ".join),
    st.just(")"),
)
LIKE = st.tuples(
    st.sampled_from(STRINGS),
    st.sampled_from((" LIKE ", " NOT LIKE ")),
    PATTERNS.map(quoted),
    st.just(" ESCAPE '\\'"),
)
NULL = st.tuples(st.sampled_from(COLUMNS), st.sampled_from((" IS NULL", " IS NOT NULL")))
CONDITIONS = st.recursive(
    st.one_of(
        COMPARISONS,
        BETWEEN.map("".join),
        IN.map("".join),
        LIKE.map("".join),
        NULL.map("".join),
        st.sampled_from((*BOOLEANS, "TRUE", "FALSE")),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from((" AND ", " OR ")), inner).map("".join),
        inner.map("NOT {}".format),
        inner.map("({})".format),
    ),
    max_leaves=8,
)


@settings(max_examples=CASES if settings.default.derandomize else CAMPAIGN_CASES)
@given(text=CONDITIONS)
def test_selectors_mean_what_sqlite_says(sqlite: sqlite3.Connection, text: str) -> None:
    expression = jms.parse(text)
    condition = compile_expression(expression)
    said = sqlite.execute(f"SELECT {text} FROM messages ORDER BY number").fetchall()
    expected = [None if value is None else bool(value) for (value,) in said]
    assert [evaluate(expression, fields) for fields in MESSAGES] == expected, text
    assert [condition(fields) for fields in MESSAGES] == expected, text


def test_the_rows_tell_the_three_truths_apart(sqlite: sqlite3.Connection) -> None:
    """Else all of the above could agree on nothing."""
    for text in ("n > 1", "s LIKE 'a%'", "f = TRUE", "n / m = 1", "s IN ('a', 'it''s') AND NOT g"):
        said = {value for (value,) in sqlite.execute(f"SELECT {text} FROM messages")}
        assert said == {None, 0, 1}, text
