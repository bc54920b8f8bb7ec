"""Limits, errors that point at their place, and inputs made to cost more than they should."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_selectors import canonical, evaluate, jms, properties
from quorum_selectors.compiled import compile_expression
from quorum_selectors.errors import (
    MAX_DEPTH,
    MAX_SELECTOR_CHARACTERS,
    MAX_SELECTOR_PERCENTS,
    MAX_SELECTOR_TOKENS,
    EncodingError,
    SelectorError,
)
from quorum_selectors.expression import And, Comparison, Expression, Field, IsTrue, Literal, Not, Or, Sign
from quorum_selectors.like import compile_pattern, parse_pattern
from support.counted_lines import count_lines
from support.examples import examples


def refused(selector: str) -> SelectorError:
    with pytest.raises(SelectorError) as caught:
        jms.parse(selector)
    return caught.value


def attempt(selector: str) -> Expression | SelectorError:
    try:
        return jms.parse(selector)
    except SelectorError as error:
        return error


# ---- errors


@pytest.mark.parametrize(
    ("selector", "line", "column", "message", "caret"),
    [
        ("a = 5 % 2", 1, 7, "there is no operator %", "a = 5 % 2\n      ^"),
        ("a = 1\n and b ! 2", 2, 8, "not equal is written <>", " and b ! 2\n       ^"),
        ("a = 1\r\nand\rb c", 3, 3, "'c' cannot stand here", "b c\n  ^"),
        ("a = 'x", 1, 5, "the string has no closing quote", "a = 'x\n    ^"),
        ("a >", 1, 4, "ends too early", "a >\n   ^"),
        ("\ta\t5", 1, 4, "'5' cannot stand here", " a 5\n   ^"),
        ("a == 5", 1, 3, "equal is written =", "a == 5\n  ^"),
        ("名前 = 5 AND x % 2", 1, 14, "there is no operator %", f"名前 = 5 AND x % 2\n{' ' * 15}^"),
        ("a + 'x' > 1", 1, 5, "a number or an identifier is needed here, not a string", None),
        ("5 OR a", 1, 1, "a condition is needed here, not a number", None),
        ("a LIKE 'b!' ESCAPE '!'", 1, 10, "ends in its escape character", None),
        ("a LIKE 'b' ESCAPE 'xy'", 1, 19, "a string of one character", None),
        ("a\u2265b", 1, 2, "U+2265", None),
        ("JMSXDeliveryCount > 1", 1, 1, "changes with every delivery", None),
        ("a = 08", 1, 5, "only octal digits", None),
        ("a = 1_000", 1, 5, "underscores", None),
        ("a = 5F", 1, 5, "suffixes F and D", None),
        ("a = 0b1", 1, 5, "binary", None),
        ("a = 99999999999999999999", 1, 5, "beyond a 64-bit number", None),
        ("a = 1E999", 1, 5, "beyond a double", None),
        ("a = 1 -- x", 1, 7, "comments", None),
        ("a = 1 /* x */", 1, 7, "comments", None),
        ('"a" = 1', 1, 1, "cannot be quoted", None),
        ("a IN ('b'", 1, 10, "expected ) or ,", None),
    ],
)
def test_an_error_points_at_its_place(
    selector: str, line: int, column: int, message: str, caret: str | None
) -> None:
    error = refused(selector)
    assert (error.line, error.column) == (line, column)
    assert message in error.message
    assert str(error) == f"line {line}, column {column}: {error.message}\n{error.caret}"
    if caret is not None:
        assert error.caret == caret
    shown, below = error.caret.split("\n")
    assert below == " " * (len(below) - 1) + "^"
    assert len(below) <= len(shown) + 1


def test_a_long_line_is_shown_only_around_the_place() -> None:
    error = refused(f"a = '{'x' * 2000}' b '{'y' * 1000}'")
    assert error.column == 2007 + 1
    shown, below = error.caret.split("\n")
    assert len(shown) == 100
    assert shown[len(below) - 1] == "b"


@settings(max_examples=examples(300))
@given(st.text(max_size=30) | st.text(alphabet="ab1.eE'%_()=<>+-*/, \n\tANDORNTLIKEISUX\"", max_size=40))
def test_any_text_is_a_tree_or_a_selector_error(selector: str) -> None:
    outcome = attempt(selector)
    if isinstance(outcome, SelectorError):
        assert outcome.line >= 1
        assert outcome.column >= 1
        assert "^" in outcome.caret
    else:
        code = canonical.encode(outcome)
        assert canonical.encode(canonical.decode(code)) == code


# ---- limits


def test_the_length_is_limited_before_anything_is_read() -> None:
    fitting = "a = '" + "x" * (MAX_SELECTOR_CHARACTERS - 6) + "'"
    jms.parse(fitting)
    assert "at most 4096" in refused(fitting + " ").message
    huge = "(" * 1_000_000
    assert count_lines(lambda: refused(huge)) < 60_000  # the caret's place is looked for within the limit


def test_the_number_of_tokens_is_limited() -> None:
    terms = (MAX_SELECTOR_TOKENS - 2) // 2
    jms.parse("a = " + "+".join(["1"] * terms))
    error = refused("a = " + "+".join(["1"] * (terms + 1)) + "+1")
    assert f"more than {MAX_SELECTOR_TOKENS}" in error.message
    assert error.column == len("a = ") + MAX_SELECTOR_TOKENS - 2 + 1
    values = ",".join("''" for _ in range(1300))
    assert "more than 200" in refused(f"a IN ({values})").message


NESTED: list[tuple[str, Callable[[int], str]]] = [
    ("brackets", lambda depth: "(" * depth + "a" + ")" * depth),
    ("value brackets", lambda depth: "(" * depth + "1" + ")" * depth + " = a"),
    ("NOT", lambda depth: "NOT " * depth + "a"),
    ("signs", lambda depth: "a = " + "- " * depth + "b"),
    ("NOT with brackets", lambda depth: "NOT (" * depth + "a" + ")" * depth),
    ("sums", lambda depth: "a = " + "(1 + " * depth + "b" + ")" * depth),
    ("AND in OR", lambda depth: "a OR (a AND (" * (depth // 2) + "a" + "))" * (depth // 2)),
]


@pytest.mark.parametrize(("what", "nest"), NESTED, ids=[what for what, _ in NESTED])
def test_nesting_is_limited_and_never_meets_the_recursion_limit(
    what: str, nest: Callable[[int], str]
) -> None:
    deepest: Expression | None = None
    for depth in range(0, 230, 2):
        outcome = attempt(nest(depth))
        if isinstance(outcome, SelectorError):
            assert "deeper than 100" in outcome.message or "more than 200" in outcome.message, what
        else:
            deepest = outcome
    assert deepest is not None
    # With the stack nearly used up already, everything still works on the deepest tree there can be.
    fields = {"application-properties.a": True, "application-properties.b": 1}
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 4 * MAX_DEPTH)
    try:
        expected = evaluate.evaluate(deepest, fields)
        assert compile_expression(deepest)(fields) is expected
        travelled = canonical.decode(canonical.encode(deepest))
        assert evaluate.evaluate(travelled, fields) is expected
    finally:
        sys.setrecursionlimit(before)


def test_every_sum_that_tokens_allow_is_accepted() -> None:
    tree = jms.parse("a=" + "+".join(["b"] * 99))
    assert evaluate.evaluate(tree, {"application-properties.a": 99, "application-properties.b": 1}) is True


@pytest.mark.parametrize(
    "number",
    [
        "9" * 4000,
        "-" + "9" * 4000,
        "0x" + "F" * 4000,
        "0" + "7" * 4000,
        "9" * 4000 + ".0",
        "1E400",
        "1E9999999999",
    ],
    ids=range(7),
)  # fmt: skip
def test_huge_numbers_are_refused(number: str) -> None:
    assert "beyond" in refused(f"a = {number}").message


def test_a_tiny_exponent_costs_nothing() -> None:
    assert "too small" in refused("a = 1E-9999999999").message


# ---- bombs


def test_like_costs_what_its_string_is_long_however_it_backtracks_elsewhere() -> None:
    value = "a" * 20_000
    for pattern in (
        "%a" * 2000 + "%b",
        "%a_" * 1300 + "%b",
        "a%" * 2000 + "b%",
        "%" * 4000,
        "_" * 4000 + "%",
    ):
        matches = compile_pattern(parse_pattern(pattern))
        assert count_lines(lambda matches=matches: matches(value)) < 20 * (len(value) + len(pattern))
        assert matches(value) is ("b" not in pattern)


def test_like_with_one_long_piece_looks_at_all_places_at_once() -> None:
    pattern = "%" + "a_" * 1000 + "b%"
    matches = compile_pattern(parse_pattern(pattern))
    value = "a" * 20_000
    assert count_lines(lambda: matches(value)) < len(value)
    assert matches(value) is False
    assert matches("x" + "a" * 2000 + "b") is True


def test_like_finds_a_segment_with_many_different_letters() -> None:
    letters = [chr(0x4E00 + number) for number in range(2_000)]
    matches = compile_pattern(parse_pattern("%" + "_".join(letters) + "%"))
    assert matches("x" + "y".join(letters)) is True
    assert matches("x" + "y".join(reversed(letters))) is False


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.text("ab_\U0001f600\ud800", max_size=80), min_size=1, max_size=4).map("%".join),
    st.lists(
        st.sampled_from(["a", "b", "ab", "a" * 70, "ab" * 300, "\U0001f600" * 40, "\ud800"]), max_size=8
    ),
)
def test_like_finds_in_long_strings_what_a_regular_expression_finds(pattern: str, parts: list[str]) -> None:
    value = "".join(parts)
    same = re.fullmatch(pattern.replace("_", ".").replace("%", ".*?"), value, re.DOTALL) is not None
    assert compile_pattern(parse_pattern(pattern))(value) is same


def test_a_huge_list_is_cut_off_by_the_number_of_tokens() -> None:
    values = ",".join(f"'{i}'" for i in range(600))
    assert count_lines(lambda: refused(f"a IN ({values})")) < 60_000


def test_percents_are_counted_over_all_patterns() -> None:
    half = "%a" * (MAX_SELECTOR_PERCENTS // 2)
    jms.parse(f"a LIKE '{half}' AND b NOT LIKE '{half}' AND c = '%' AND d IN ('%', '%')")
    error = refused(f"a LIKE '{half}' OR\nb NOT LIKE '{half}%'")
    assert "more than 200 %" in str(error)
    assert (error.line, error.column) == (2, 12)


def test_many_ranges_stay_within_the_encoding() -> None:
    selector = " AND ".join([f"{'x' * 400} BETWEEN 0 AND 1"] * 9)
    assert len(canonical.encode(jms.parse(selector))) < canonical.MAX_ENCODED_BYTES


def test_normal_form_costs_what_the_tree_is_large() -> None:
    alternating = "a = 1"
    for i in range(24):
        alternating = f"NOT ({alternating} {'AND' if i % 2 else 'OR'} b{i} = {i})"
    tree = jms.parse(alternating)
    assert count_lines(lambda: canonical.encode(tree)) < 60_000


# ---- canonical form


SAME = [
    ("a = 1 AND b = 2", "b = 2 AND a = 1"),
    ("a = 1 AND b = 2 AND a = 1", "(b = 2) and (1 = a)"),
    ("a = 1 AND (b = 2 AND c = 3)", "(a = 1 AND b = 2) AND c = 3"),
    ("a > 5", "5 < a"),
    ("a = b", "b = a"),
    ("a < b", "b > a"),
    ("a + b = 1", "1 = b + a"),
    ("NOT (a AND b)", "NOT b OR NOT a"),
    ("NOT (a OR NOT b)", "NOT a AND b"),
    ("NOT NOT a", "a"),
    ("a IN ('x', 'y')", "a IN ('y', 'x', 'y')"),
    ("a IN ('x', 'y')", "a = 'y' OR a = 'x'"),
    ("a IN ('x')", "a = 'x'"),
    ("a LIKE 'x'", "a = 'x'"),
    ("a LIKE 'x!%' ESCAPE '!'", "a = 'x%'"),
    ("a LIKE '%%_x'", "a LIKE '_%x'"),
    ("a LIKE 'x!_%' ESCAPE '!'", "a LIKE 'x\\_%' ESCAPE '\\'"),
    ("a NOT IN ('x') AND a NOT IN ('y')", "a NOT IN ('x', 'y')"),
    ("a BETWEEN 1 AND 2", "a >= 1 AND a <= 2"),
    ("a NOT BETWEEN 1 AND 2", "a > 2 OR a < 1"),
    ("a = 1 AND TRUE", "a = 1"),
    ("a = 1 OR FALSE", "a = 1"),
    ("a = 2 + 3 * 4", "a = 14"),
    ("a = 1 OR 1 = 1", ""),
    ("a = 1 AND 2 < 1", "FALSE"),
    ("a = 0x10", "a = 16"),
    ("a = 0.0", "a = -0.0"),
    ("a = 1 AND 1 / 0 = 1", "9223372036854775807 + 1 = b AND a = 1"),
    ("JMSPriority IS NULL", "FALSE"),
    ("TRUE", " "),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_selectors_that_mean_the_same_have_the_same_bytes(one: str, other: str) -> None:
    assert canonical.encode(jms.parse(one)) == canonical.encode(jms.parse(other))


DIFFERENT = [
    ("a = 1", "a = 1.0"),
    ("a = 1", "a = TRUE"),
    ("a = 1", "a = '1'"),
    ("a <> 1", "NOT (a = 1)"),
    ("a >= 1", "NOT (a < 1)"),
    ("a NOT BETWEEN 1 AND 2", "NOT (a BETWEEN 1 AND 2)"),
    ("a", "a = TRUE"),
    ("a = 'x'", "a LIKE 'x%'"),
    ("a - b = 1", "b - a = 1"),
    ("a = 1 OR b = 1", "a = 1 AND b = 1"),
    ("a IS NULL", "NOT a IS NULL"),
    ("+a = 1", "a = 1"),
    ("(NOT NOT a) = b", "a = b"),
    ("JMSType = 'x'", "type = 'x'"),
    ("a + b + c = 1", "a + (b + c) = 1"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_selectors_that_differ_have_different_bytes(one: str, other: str) -> None:
    assert canonical.encode(jms.parse(one)) != canonical.encode(jms.parse(other))


def test_what_selects_everything_is_no_bytes() -> None:
    assert canonical.encode(jms.parse("")) == b""
    assert canonical.decode(b"") == Literal(True)
    assert canonical.encode(Literal(1)) != b""


def test_the_bytes_are_pinned() -> None:
    """A change here is a new format number: these bytes are in logs."""
    tree = jms.parse(
        "JMSPriority > 4 AND colour LIKE 'r_d%' AND NOT gone OR n IN ('x', 'y') OR JMSDeliveryMode <> 'z'"
    )
    assert canonical.encode(tree).hex() == (
        "0142032201120501" + "7a" + "30" + "10ff016e" + "02" + "01780179"
        + "4103" + "2204" + "1101" + "030000000000000004" + "030000000000000004"
        + "31" + "10ff06636f6c6f7572" + "02" + "03050172" + "0301" + "050164" + "00"
        + "4010ff04676f6e65"
    )  # fmt: skip


def test_a_tree_too_deep_or_too_large_is_not_encoded() -> None:
    deep: Expression = Field("application-properties.a")
    for _ in range(MAX_DEPTH):
        deep = Sign("-", deep)
    with pytest.raises(EncodingError, match="deeper"):
        canonical.encode(deep)
    with pytest.raises(EncodingError, match="bytes"):
        canonical.encode(Comparison("=", Field("application-properties.a"), Literal("x" * 70_000)))
    for node in (Literal(2**63), Field("colour"), Field("header.ttl")):
        with pytest.raises(EncodingError):
            canonical.encode(Comparison("=", node, Field("properties.to")))


SAMPLE = canonical.encode(
    Or(
        (
            And((Not(Field("application-properties.a")), jms.parse("b LIKE '_x%y' AND c IN ('k', 'l')"))),
            IsTrue(properties.parse({"subject": "&p:x"}, {"n": 1.5})),
            jms.parse("-d + 3 > JMSPriority AND e IS NULL AND JMSDeliveryMode = f"),
        )
    )
)


@settings(max_examples=examples(800))
@given(st.data())
def test_damaged_bytes_are_an_expression_or_refused(data: st.DataObject) -> None:
    code = bytearray(SAMPLE)
    for _ in range(data.draw(st.integers(1, 3))):
        code[data.draw(st.integers(0, len(code) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(code)))
    for damaged in (bytes(code), bytes(code[:cut])):
        try:
            tree = canonical.decode(damaged)
        except EncodingError:
            continue
        assert evaluate.evaluate(tree, {}) in (True, False, None)
        again = canonical.encode(tree)
        assert canonical.encode(canonical.decode(again)) == again


@settings(max_examples=examples(300))
@given(st.binary(min_size=1, max_size=40))
def test_random_bytes_are_an_expression_or_refused(data: bytes) -> None:
    try:
        tree = canonical.decode(b"\x01" + data)
    except EncodingError:
        return
    code = canonical.encode(tree)
    assert canonical.encode(canonical.decode(code)) == code


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x02\x02", "unknown format 2"),
        (b"\x01", "ends too early"),
        (b"\x01\x02\x02", "left over"),
        (b"\x01\xee", "unknown tag"),
        (b"\x01\x05\x05ab", "above"),
        (b"\x01\x05\x01\xff", "not UTF-8"),
        (b"\x01\x05\x80\x00", "needless bytes"),
        (b"\x01\x05\x80\x80\x80\x80\x80\x00", "too many bytes"),
        (b"\x01\x10\x50", "unknown field"),
        (b"\x01\x11\x00\x00", "default is NULL"),
        (b"\x01\x22\x06\x00\x00", "unknown operator"),
        (b"\x01\x41\x01\x00", "at least 2 are required"),
        (b"\x01\x30\x12\x02\x01b\x01a", "not sorted"),
        (b"\x01\x31\x12\x01\x02\x05\x01a\x05\x01b", "malformed"),
        (b"\x01\x31\x12\x01\x01\x03\x00", "malformed"),
        (b"\x01\x31\x12\x01\x01\x09\x00", "unknown part"),
        (b"\x01" + b"\x40" * 150 + b"\x02", "deeper"),
        (b"\x01\x41\xff\xff\x03" + b"\x02" * 70_000, "at most 65536"),
    ],
    ids=range(18),
)
def test_each_fault_of_an_encoding_is_named(data: bytes, why: str) -> None:
    with pytest.raises(EncodingError, match=why):
        canonical.decode(data)
