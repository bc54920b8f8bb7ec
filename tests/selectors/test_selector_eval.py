"""`quorum selector eval`: an answer for every line, whatever the line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases.amqp_filter_cases import CASES as AMQP_CASES
from cases.clauses import Case, FilterCase, X
from cases.jms_cases import CASES as JMS_CASES
from quorum.cli.commands.selector_eval import evaluate_lines
from support.examples import examples


def answer(line: str | bytes) -> dict[str, Any]:
    (only,) = evaluate_lines([line])
    assert "\n" not in only
    found: dict[str, Any] = json.loads(only)
    assert list(found) == ["id", "result"]
    return found


def jms_line(expr: Any, fields: Any, identity: Any = 1) -> str:
    return json.dumps({"id": identity, "dialect": "jms", "expr": expr, "fields": fields})


SPOKEN = {True: True, False: False, None: "unknown", X: "parse-error"}


@pytest.mark.parametrize("case", JMS_CASES, ids=range(len(JMS_CASES)))
def test_every_selector_case_is_answered_alike(case: Case) -> None:
    assert answer(jms_line(case.selector, case.fields))["result"] == SPOKEN[case.expected], case


def _in_json(case: FilterCase) -> bool:
    """Whether JSON can say the filter: it has no bytes, its names are strings."""
    return all(
        isinstance(name, str) and not isinstance(value, bytes)
        for section in (case.properties, case.application_properties)
        for name, value in section.items()
    )


@pytest.mark.parametrize("case", [case for case in AMQP_CASES if _in_json(case)])
def test_every_filter_case_is_answered_alike(case: FilterCase) -> None:
    line = json.dumps(
        {
            "id": "x",
            "dialect": "amqp-property",
            "expr": {
                "properties": case.properties,
                "application_properties": case.application_properties,
            },
            "fields": {
                "properties": case.message_properties,
                "application_properties": case.message_application,
            },
        }
    )
    assert answer(line) == {"id": "x", "result": SPOKEN[case.expected]}, case


def test_answers_come_in_order_one_a_line() -> None:
    lines = [jms_line("a = 1", {"a": i % 3}, i) if i % 5 else "rubbish" for i in range(50)]
    answers = [json.loads(line) for line in evaluate_lines(lines)]
    assert [found["id"] for found in answers] == [i if i % 5 else None for i in range(50)]
    assert [found["result"] for found in answers] == [
        i % 3 == 1 if i % 5 else "parse-error" for i in range(50)
    ]


def test_lines_are_answered_as_they_come() -> None:
    taken = []

    def lines() -> Any:
        for i in range(3):
            taken.append(i)
            yield jms_line("TRUE", {})

    answers = evaluate_lines(lines())
    next(answers)
    assert taken == [0]


@pytest.mark.parametrize(
    ("literal", "selector", "expected"),
    [
        ("5", "a = 5", True),
        ("5", "a / 2 = 2", True),
        ("5.0", "a / 2 = 2.5", True),
        ("5e0", "a / 2 = 2.5", True),
        ("5E0", "a / 2 = 2.5", True),
        ("9007199254740993", "a = 9007199254740993", True),
        ("9007199254740993.0", "a = 9007199254740993", True),
        ("9007199254740993.0", "a = 9007199254740992.0", True),
        ("9223372036854775807", "a = 9223372036854775807", True),
        ("9223372036854775808", "a > 0", "unknown"),
        ("-9223372036854775809", "a < 0", "unknown"),
        ("9" * 10_000, "a > 0", "unknown"),
        ("9" * 10_000, "a IS NOT NULL", True),
        ("1e400", "a > 0", True),
        ("NaN", "a <> 0", True),
        ("NaN", "a = a", False),
        ("-Infinity", "a < 0", True),
        ("-0.0", "a = 0", True),
        ("null", "a IS NULL", True),
        ("true", "a", True),
        ("true", "a = 1", False),
        ('"\\ud800"', "a LIKE '_'", True),
        ("[1]", "a IS NULL", "parse-error"),
        ("{}", "a IS NULL", "parse-error"),
    ],
)
def test_a_json_value_becomes_the_field_it_looks_like(
    literal: str, selector: str, expected: bool | str
) -> None:
    line = f'{{"id": 7, "dialect": "jms", "expr": {json.dumps(selector)}, "fields": {{"a": {literal}}}}}'
    assert answer(line) == {"id": 7, "result": expected}


@pytest.mark.parametrize(
    ("line", "identity"),
    [
        ("", None),
        ("   ", None),
        ("{", None),
        ("[]", None),
        ("5", None),
        ("null", None),
        ("{}", None),
        (b"\xff\xfe", None),
        ("[" * 100_000, None),
        ('{"id": 1}', 1),
        ('{"id": "a", "dialect": "jms"}', "a"),
        ('{"id": 2, "dialect": "sql", "expr": "a = 1", "fields": {}}', 2),
        ('{"id": 3, "dialect": ["jms"], "expr": "a = 1", "fields": {}}', 3),
        ('{"id": 4, "dialect": "jms", "expr": 5, "fields": {}}', 4),
        ('{"id": 5, "dialect": "jms", "expr": "a = 1", "fields": []}', 5),
        ('{"id": 6, "dialect": "jms", "expr": "a = ", "fields": {}}', 6),
        ('{"id": 7, "dialect": "amqp-property", "expr": "a = 1", "fields": {}}', 7),
        ('{"id": 8, "dialect": "amqp-property", "expr": {}, "fields": {}}', 8),
        ('{"id": 9, "dialect": "amqp-property", "expr": {"header": {"priority": 4}}, "fields": {}}', 9),
        ('{"id": 10, "dialect": "amqp-property", "expr": {"properties": []}, "fields": {}}', 10),
        ('{"id": 11, "dialect": "amqp-property", "expr": {"properties": {"to": "x"}}, "fields": []}', 11),
        ('{"id": 12, "dialect": "jms", "expr": "a", "fields": {"JMSDeliveryMode": []}}', 12),
        ('{"id": null}', None),
        ('{"id": {"a": [1, 2]}}', {"a": [1, 2]}),
        ('{"id": 1.5}', 1.5),
        ('{"id": "\\ud800"}', "\ud800"),
    ],
    ids=range(26),
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_a_parse_error(line: str | bytes, identity: Any) -> None:
    assert answer(line) == {"id": identity, "result": "parse-error"}


def test_an_id_too_deep_to_be_written_again_does_not_stop_the_rest() -> None:
    for depth in range(100, 1000, 50):
        nested = "[" * depth + "]" * depth
        first, second = evaluate_lines([f'{{"id": {nested}}}', jms_line("TRUE", {}, 2)])
        assert json.loads(second) == {"id": 2, "result": True}
        assert first.endswith('"result": "parse-error"}')


def test_bytes_and_text_are_read_alike() -> None:
    line = jms_line("größe = 'é'", {"größe": "é"})
    assert answer(line) == answer(line.encode()) == {"id": 1, "result": True}


def test_sections_may_be_left_out_or_null() -> None:
    for fields in ({}, None, {"properties": None}, {"application_properties": {}}):
        line = json.dumps(
            {
                "id": 1,
                "dialect": "amqp-property",
                "expr": {"application_properties": {"k": 1}},
                "fields": fields,
            }
        )
        assert answer(line)["result"] is False


@settings(max_examples=examples(200))
@given(st.lists(st.text(max_size=40) | st.binary(max_size=40), max_size=5))
def test_nothing_stops_it(lines: list[str | bytes]) -> None:
    assert len(list(evaluate_lines(lines))) == len(lines)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(200))
@given(st.sampled_from(["jms", "amqp-property", None]), JSON, JSON, JSON)
def test_any_request_gets_an_answer(dialect: Any, expr: Any, fields: Any, identity: Any) -> None:
    line = json.dumps({"id": identity, "dialect": dialect, "expr": expr, "fields": fields})
    assert repr(answer(line)["id"]) == repr(identity)
