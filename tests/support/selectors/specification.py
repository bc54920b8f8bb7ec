"""The specification's cases as what evaluators are given: trees, and fields as a message has them."""

from __future__ import annotations

from typing import Any, NamedTuple

from cases import amqp_filter_cases, jms_cases
from cases.clauses import Case, Fields, FilterCase, X
from quorum_selectors import jms, properties
from quorum_selectors.expression import DURABLE, Expression, Truth
from quorum_selectors.known_fields import APPLICATION, PROPERTIES, jms_key


class Question(NamedTuple):
    """A case that is no refusal. text: the selector or the filter, to be shown."""

    text: str
    expression: Expression
    fields: dict[str, Any]
    expected: Truth
    why: str


def message_of(named: Fields) -> dict[str, Any]:
    """Fields named as a selector names them, as a message has them."""
    fields = {jms_key(name): value for name, value in named.items()}
    if DURABLE in fields:
        fields[DURABLE] = fields[DURABLE] == "PERSISTENT"
    return fields


def fields_of(case: FilterCase) -> dict[str, Any]:
    """The message's fields of a case of the AMQP table."""
    fields = {PROPERTIES + name: value for name, value in case.message_properties.items()}
    return fields | {APPLICATION + name: value for name, value in case.message_application.items()}


def _of_selector(case: Case) -> Question:
    expected = case.expected
    assert not isinstance(expected, str)
    return Question(
        case.selector,
        jms.parse(case.selector),
        message_of(case.fields),
        expected,
        f"{case.clause}: {case.why}",
    )


def _of_filter(case: FilterCase) -> Question:
    assert not isinstance(case.expected, str)
    expression = properties.parse(case.properties, case.application_properties)
    text = f"{case.properties!r} {case.application_properties!r}"
    return Question(text, expression, fields_of(case), case.expected, f"{case.clause}: {case.why}")


def questions() -> list[Question]:
    """Of both tables."""
    return [_of_selector(case) for case in jms_cases.CASES if case.expected != X] + [
        _of_filter(case) for case in amqp_filter_cases.CASES if case.expected != X
    ]
