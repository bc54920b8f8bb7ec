"""Every case of the AMQP filter table, through each evaluator."""

from __future__ import annotations

import pytest

from cases.amqp_filter_cases import CASES, Case, X
from quorum_selectors import canonical, evaluate, properties
from quorum_selectors.compiled import compile_expression
from quorum_selectors.errors import FilterError


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_filter_means_what_the_specification_says(case: Case) -> None:
    of_properties, of_application, message_properties, message_application, expected, why = case
    if expected == X:
        with pytest.raises(FilterError):
            properties.parse(of_properties, of_application)
        return
    tree = properties.parse(of_properties, of_application)
    fields = {f"properties.{name}": value for name, value in message_properties.items()}
    fields |= {f"application-properties.{name}": value for name, value in message_application.items()}
    travelled = canonical.decode(canonical.encode(tree))
    assert evaluate.evaluate(tree, fields) is expected, why
    assert compile_expression(tree)(fields) is expected, why
    assert evaluate.evaluate(travelled, fields) is expected, why
    assert compile_expression(travelled)(fields) is expected, why


def test_an_error_names_the_nearest_field() -> None:
    with pytest.raises(FilterError, match="did you mean 'message-id'"):
        properties.parse({"message_id": "x"}, {})


def test_the_order_of_entries_does_not_matter() -> None:
    one = properties.parse({"to": "t", "subject": "s"}, {"a": 1, "b": 2})
    other = properties.parse({"subject": "s", "to": "t"}, {"b": 2, "a": 1})
    assert canonical.encode(one) == canonical.encode(other)


def test_a_filter_of_nulls_selects_everything() -> None:
    assert canonical.encode(properties.parse({"to": None}, {"a": None})) == b""
