"""Every case of the filters' table, through the parser and each evaluator of single messages."""

from __future__ import annotations

import pytest

from cases.amqp_filter_cases import CASES
from cases.clauses import FilterCase, X
from quorum_selectors import canonical, evaluate, properties
from quorum_selectors.compiled import compile_expression
from quorum_selectors.errors import FilterError
from support.selectors.specification import fields_of


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_filter_means_what_the_specification_says(case: FilterCase) -> None:
    if case.expected == X:
        with pytest.raises(FilterError):
            properties.parse(case.properties, case.application_properties)
        return
    tree = properties.parse(case.properties, case.application_properties)
    fields = fields_of(case)
    travelled = canonical.decode(canonical.encode(tree))
    assert evaluate.evaluate(tree, fields) is case.expected, case
    assert compile_expression(tree)(fields) is case.expected, case
    assert evaluate.evaluate(travelled, fields) is case.expected, case
    assert compile_expression(travelled)(fields) is case.expected, case


def test_an_error_names_the_nearest_field() -> None:
    with pytest.raises(FilterError, match="did you mean 'message-id'"):
        properties.parse({"message_id": "x"}, {})


def test_the_order_of_entries_does_not_matter() -> None:
    one = properties.parse({"to": "t", "subject": "s"}, {"a": 1, "b": 2})
    other = properties.parse({"subject": "s", "to": "t"}, {"b": 2, "a": 1})
    assert canonical.encode(one) == canonical.encode(other)


def test_a_filter_of_nulls_selects_everything() -> None:
    assert canonical.encode(properties.parse({"to": None}, {"a": None})) == b""
