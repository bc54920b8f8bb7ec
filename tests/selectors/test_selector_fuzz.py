"""Any text at all: an expression or a SelectorError that says where; and every expression means the same in each way
to evaluate it."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorum_selectors import canonical, jms
from quorum_selectors.compiled import compile_expression
from quorum_selectors.errors import EncodingError, SelectorError
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import Expression, FieldValue
from quorum_selectors.vectorised import Messages, truths
from support.examples import examples
from support.selectors.expressions import block_of

NAMES = ("a", "b", "JMSPriority", "JMSDeliveryMode", "JMSType", "größe", "$x_1")
WORDS = (*jms.KEYWORDS, *(word.lower() for word in jms.KEYWORDS), *NAMES, "JMSXDeliveryCount", "order", "a.b")
SIGNS = ("(", ")", ",", "+", "-", "*", "/", "=", "<>", "<", "<=", ">", ">=", "%", "!", '"', ";", "--", "/*")
NUMBERS = (
    "0", "1", "-1", "2", "007", "08", "0x1F", "0xFFFFFFFFFFFFFFFF", "5L", "5F", "1_0", ".5", "7.", "1e3", "1E400",
    "1e-400", "9223372036854775807", "9223372036854775808", "1e", "1.2.3", "0b1",
)  # fmt: skip
STRINGS = (
    "''",
    "'a'",
    "'ab%'",
    "'%b_'",
    "'it''s'",
    "'a",
    "'!'",
    "'é'",
    "'日_%'",
    "'\ud800'",
    "'\U0001f600'",
    "'aé日'",
)
BLANKS = ("", " ", "\t", "\n", "\r\n", "\u00a0", "\x00")

VALID = (
    "a = 'ab' AND b > 3",
    "NOT (a LIKE '%b_%' ESCAPE '!') OR JMSPriority BETWEEN 1 AND 5",
    "JMSType IN ('a', 'ab', 'b', 'é', '', 'x') AND a IS NOT NULL",
    "(a + b) * 2 - -1 >= b / 3.5e1 OR größe <> 0x1F",
    "a NOT LIKE 'a%é%' AND b NOT IN ('a') AND (a = b) = TRUE",
    "JMSDeliveryMode = 'PERSISTENT' OR $x_1",
)  # fmt: skip

TOKENS = st.sampled_from((*WORDS, *SIGNS, *NUMBERS, *STRINGS))
SOUP = st.lists(st.tuples(TOKENS, st.sampled_from(BLANKS[:4])).map("".join), max_size=25).map(" ".join)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A selector that some pieces were cut from, put into or exchanged in."""
    text = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 4)))
        text = text[:at] + draw(st.just("") | TOKENS | st.sampled_from(BLANKS) | st.characters()) + text[end:]
    return text


VALUES: tuple[FieldValue | None, ...] = (
    None, "", "a", "ab", "aab", "abb", "b", "é", "aé日", "日a", "\ud800", "\U0001f600", "it's", "ab%", 0, 1, 2, 31, -1,
    2**63 - 1, 0.5, 3.5, float("nan"), float("inf"), True, False,
)  # fmt: skip
ROWS: list[dict[str, FieldValue]] = [
    {
        key: value
        for key, value in (
            ("application-properties.a", VALUES[number % len(VALUES)]),
            ("application-properties.b", VALUES[number * 7 % len(VALUES)]),
            ("application-properties.größe", VALUES[number * 11 % len(VALUES)]),
            ("application-properties.$x_1", VALUES[number * 3 % len(VALUES)]),
            ("properties.subject", VALUES[number * 5 % len(VALUES)]),
            ("header.priority", number % 10 if number % 3 else None),
            ("header.durable", bool(number % 2)),
        )
        if value is not None
    }
    for number in range(40)
]
BLOCK = block_of([ROWS[:13], ROWS[13:]])


def means_one_thing(tree: Expression) -> None:
    expected = [evaluate(tree, row) for row in ROWS]
    condition = compile_expression(tree)
    assert [condition(row) for row in ROWS] == expected
    true, false = truths(tree, Messages(BLOCK, 0, len(ROWS)))
    pairs = zip(true.tolist(), false.tolist(), strict=True)
    assert [True if t else False if f else None for t, f in pairs] == expected
    assert not (true & false).any()


def attempt(text: str) -> Expression | SelectorError:
    try:
        return jms.parse(text)
    except SelectorError as error:
        return error


@settings(max_examples=examples(2_000))
@given(st.text(max_size=30) | SOUP | mutated() | st.text("ab1.eE'%_()=<>+-*/, \n\"ANDORNTLIKES", max_size=40))
@example("")
@example(VALID[0])
@example(VALID[1])
@example(VALID[2])
@example(VALID[3])
@example(VALID[4])
@example(VALID[5])
def test_any_text_is_refused_with_its_place_or_means_one_thing(text: str) -> None:
    found = attempt(text)
    if isinstance(found, SelectorError):
        shown = re.split("\r\n|\r|\n", text)
        assert 1 <= found.line <= len(shown)
        assert 1 <= found.column <= len(shown[found.line - 1]) + 2  # behind the line, or between its two ends
        assert str(found).startswith(f"line {found.line}, column {found.column}: ")
        return
    means_one_thing(found)
    travelled = canonical.decode(canonical.encode(found))
    means_one_thing(travelled)
    assert [evaluate(travelled, row) for row in ROWS] == [evaluate(found, row) for row in ROWS]


@settings(max_examples=examples(300))
@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_damaged_bytes_are_refused_or_mean_one_thing(text: str, damages: list[tuple[int, int]]) -> None:
    code = bytearray(canonical.encode(jms.parse(text)))
    for at, value in damages:
        code[at % len(code)] = value
    try:
        tree = canonical.decode(bytes(code))
    except EncodingError:
        return
    means_one_thing(tree)


def test_the_samples_are_selectors_that_tell_the_rows_apart() -> None:
    """Else all of the above could agree on nothing."""
    for text in VALID[:5]:
        assert len({evaluate(jms.parse(text), row) for row in ROWS}) > 1, text
