"""The costliest selectors that the limits let pass, over many messages at once: what they execute is bounded by what
the selector is long, not by how many messages there are or what these hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from quorum_selectors import canonical, jms, string_columns
from quorum_selectors.block_columns import BlockColumns
from quorum_selectors.errors import (
    MAX_SELECTOR_CHARACTERS,
    MAX_SELECTOR_PERCENTS,
    MAX_SELECTOR_TOKENS,
    SelectorError,
)
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import Expression, FieldValue
from quorum_selectors.vectorised import Messages, select
from support.counted_lines import count_lines
from support.selectors.expressions import block_of

FEW, MANY = 512, 4096

LINES = 20 * MAX_SELECTOR_CHARACTERS
"""Of Python, for any selector and any number of messages."""

HEX = "0123456789abcdef"


def row(number: int) -> dict[str, FieldValue]:
    """Strings that differ late or only in their middle, that repeat one letter, products at the end of 64 bits."""
    digits = "".join(HEX[number * 7919 * (place + 3) // 5 % 16] for place in range(36))
    return {
        "application-properties.a": "a" * (20 + number % 20),
        "application-properties.b": "a" * 30 + f"{number:05}",
        "application-properties.i": digits,
        "application-properties.j": digits,
        "application-properties.u": digits.replace("e", "é").replace("7", "日"),
        "application-properties.w": f"order-00{number:012}-00000000",
        "application-properties.n": number + 1,
        "application-properties.m": 2**31,
        "application-properties.x": number / 4,
        **({"application-properties.half": digits} if number % 2 else {}),
    }


@cache
def rows() -> list[dict[str, FieldValue]]:
    return [row(number) for number in range(MANY)]


@cache
def block() -> BlockColumns:
    return block_of([rows()[start : start + 256] for start in range(0, MANY, 256)], size=MANY)


def longest(join: str, part: Callable[[int], str]) -> str:
    """As many parts as a selector may have."""
    found, number = part(0), 1
    while True:
        more = f"{found}{join}{part(number)}"
        try:
            jms.parse(more)
        except SelectorError:
            return found
        found, number = more, number + 1


def letters(number: int, count: int) -> str:
    return "%".join(HEX[number * (place + 3) % 16] for place in range(count))


def texts(count: int) -> str:
    return ", ".join(f"'order-00{number:012}-00000000'" for number in range(count))


BOMBS: dict[str, Callable[[], str]] = {
    "patterns": lambda: longest(" OR ", lambda n: f"i LIKE '%{n * 37 % 4096:03x}%'"),
    "patterns, not": lambda: longest(" AND ", lambda n: f"i NOT LIKE '%{n * 37 % 4096:03x}%'"),
    "patterns of single letters": lambda: longest(" OR ", lambda n: f"i LIKE '%{letters(n + 1, 34)}%'"),
    "one letter again and again": lambda: longest(" OR ", lambda n: f"a LIKE '{'%a' * 18}%{n}%'"),
    "a piece that nearly fits everywhere": lambda: longest(" OR ", lambda n: f"a LIKE '%{'a' * 19}{n}%'"),
    "a piece with _ that does": lambda: longest(" OR ", lambda n: f"a LIKE '%{'a_' * 9}{n}%'"),
    "_ beside characters of several bytes": lambda: longest(
        " OR ", lambda n: f"u LIKE '%{n % 10}_{n % 7}%é_%'"
    ),
    "a pattern as long as a selector": lambda: f"a LIKE '%{'a_' * 2000}b%'",
    "the most %": lambda: f"a LIKE '{'%a' * MAX_SELECTOR_PERCENTS}'",
    "equal but for the end": lambda: longest(" OR ", lambda n: f"(b = '{'a' * 30}x{n:04}' AND n = {n})"),
    "beginnings": lambda: longest(" OR ", lambda n: f"b LIKE '{'a' * 30}{n:05}_%'"),
    "the longest list": lambda: f"w IN ({texts(98)})",
    "lists": lambda: longest(" OR ", lambda n: f"(n = {n} AND w IN ({texts(5 + n)}))"),
    "strings of two fields": lambda: longest(" AND ", lambda n: f"(i = j OR half <> i OR n = {n})"),
    "sums": lambda: longest(" + ", lambda n: "n" if n else "x = n"),
    "products at the limit": lambda: longest(" OR ", lambda n: f"m * (m + m) = {n}"),
    "divisions": lambda: longest(" / ", lambda n: "n" if n else "m = n"),
    "spans": lambda: longest(" OR ", lambda n: f"x BETWEEN {n} AND -n"),
    "fields that nobody has": lambda: longest(" OR ", lambda n: f"field{n} IS NULL AND field{n} = 'x'"),
    "NOT": lambda: "NOT (" * 65 + "i LIKE '%abc%'" + ")" * 65,
    "conditions compared": lambda: "(" * 40 + "(n = 1)" + " = TRUE)" * 40,
}


def lines_of(tree: Expression, count: int) -> int:
    return count_lines(lambda: select(tree, Messages(block(), 0, count)))


@pytest.mark.parametrize("what", BOMBS)
def test_what_is_executed_does_not_grow_with_the_messages(what: str) -> None:
    selector = BOMBS[what]()
    assert len(selector) <= MAX_SELECTOR_CHARACTERS
    tree = canonical.decode(canonical.encode(jms.parse(selector)))
    few, many = lines_of(tree, FEW), lines_of(tree, MANY)
    assert many < LINES
    assert many < few + MAX_SELECTOR_TOKENS * 10
    chosen = np.flatnonzero(select(tree, Messages(block(), 0, MANY)))
    part = rows()[::97]
    expected = [place * 97 for place, fields in enumerate(part) if evaluate(tree, fields) is True]
    assert [place for place in chosen.tolist() if place % 97 == 0] == expected


@pytest.mark.parametrize("what", BOMBS)
def test_to_read_one_is_bounded(what: str) -> None:
    selector = BOMBS[what]()
    assert count_lines(lambda: canonical.encode(jms.parse(selector))) < 250_000


def test_a_string_of_megabytes_is_looked_at_once() -> None:
    """A letter costs the same whatever the pattern; what is asked string by string is `like`, which looks at each
    character of a string once."""
    long_rows: list[dict[str, FieldValue]] = [{"application-properties.a": "a" * (1 << 20)}, {}, row(1)]
    messages = Messages(block_of([long_rows]), 0, 3)
    for pattern in (
        "%b%",
        "%a%a%a%b",
        "a" * 4000 + "%",
        "%" + "a" * 4000 + "%",
        "%" + "aab" * 1000 + "%",
        "_" * 99 + "%",
    ):
        tree = jms.parse(f"a LIKE '{pattern}'")
        assert count_lines(lambda tree=tree: select(tree, messages)) < LINES
        assert select(tree, messages).tolist() == [evaluate(tree, fields) is True for fields in long_rows]


def test_what_is_kept_of_letters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_columns, "KEPT_BYTES", 100_000)
    vector = Messages(block(), 0, MANY)
    for letter in HEX * 2:
        select(jms.parse(f"i LIKE '%{letter}%'"), vector)
    laid, _ = vector.field("application-properties.i").texts[0][1].laid()
    assert 0 < sum(bits.nbytes for bits in laid._bits.values()) <= 100_000
