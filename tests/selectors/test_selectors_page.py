"""What docs/selectors.md says, where code can tell: examples, errors, names, and what a message takes in memory."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from quorum.cli.commands.selector_eval import evaluate_lines
from quorum_selectors import jms
from quorum_selectors.block_columns import BLOCK_SIZE
from quorum_selectors.errors import SelectorError
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import FieldValue
from quorum_selectors.known_fields import JMS_HEADERS, PROPERTIES, WELL_KNOWN
from support.repository import ROOT
from support.selectors.expressions import block_of
from support.selectors.specification import message_of

PAGE = (ROOT / "docs" / "selectors.md").read_text(encoding="utf-8")


def test_the_pages_errors_are_what_the_parser_says() -> None:
    shown = re.findall(r"^    (line 1, column .*)\n    (.*)\n    ( *\^)$", PAGE, re.MULTILINE)
    assert len(shown) > 3
    for message, selector, caret in shown:
        with pytest.raises(SelectorError) as caught:
            jms.parse(selector)
        assert str(caught.value) == f"{message}\n{selector}\n{caret}"


def test_the_pages_examples_of_evaluation_are_answered_so() -> None:
    lines = re.findall(r"^    (\{.*\})$", PAGE, re.MULTILINE)
    assert len(lines) > 6
    assert list(evaluate_lines(lines[::2])) == lines[1::2]


def test_what_the_page_says_surprises_is_so() -> None:
    (table,) = re.findall(r"Surprising results.*?\n\n(.*?)\n\n", PAGE, re.DOTALL)
    rows = re.findall(r"^\| `(.*?)` \| (TRUE|FALSE|UNKNOWN)", table, re.MULTILINE)
    assert len(rows) > 5
    for selector, said in rows:
        found = evaluate(jms.parse(selector), message_of({"size": "large"}))
        assert {True: "TRUE", False: "FALSE", None: "UNKNOWN"}[found] == said, selector


def test_the_pages_list_of_names_is_the_codes() -> None:
    (table,) = re.findall(r"^\| in a selector .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    named = dict(re.findall(r"`(JMS\w+)` \| `([a-z.-]+)`", table))
    assert named == JMS_HEADERS
    rest = [key for key in WELL_KNOWN if key not in named.values()]
    assert [
        key for key in rest if f"`{key}`" not in table and f"`{key.removeprefix(PROPERTIES)}`" not in table
    ] == []


def test_the_longest_list_is_as_long_as_the_page_says() -> None:
    (said,) = re.findall(r"one list after IN has at most (\d+) strings", PAGE)
    jms.parse("a IN (''" + ", ''" * (int(said) - 1) + ")")
    with pytest.raises(SelectorError, match="more than"):
        jms.parse("a IN (''" + ", ''" * int(said) + ")")


def unique(place: int) -> FieldValue:
    return f"order-{place:06}"


@pytest.mark.parametrize(
    ("expected", "value", "size"),
    [
        (2, lambda place: place % 2 == 0, 1024),
        (2, lambda place: place % 128, 1024),
        (3, lambda place: place * 2 - 1, 1024),
        (5, lambda place: place + 100_000, 1024),
        (9, lambda place: place + 2**40, 1024),
        (9, lambda place: place / 2, 1024),
        (2, lambda place: f"region-{place % 10}", 1024),
        (19, unique, 1024),
        (19, unique, 1),
        (3 + 4 + 10, lambda place: f"region-{place % 300:03}", 1),
    ],
)
def test_a_message_takes_what_the_page_says(
    expected: int, value: Callable[[int], FieldValue], size: int
) -> None:
    """Of a full block; besides, there is the block itself, one dictionary for a column's strings, and what is left free
    behind them."""
    rows = [{"application-properties.k": value(place)} for place in range(BLOCK_SIZE)]
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    empty = block_of([], size=BLOCK_SIZE).nbytes
    taken = block_of(batches, size=BLOCK_SIZE).nbytes - empty
    assert expected <= taken / BLOCK_SIZE < expected + 0.2 + expected / 32
