"""Every case of the selectors' table, through the parser and each evaluator of single messages."""

from __future__ import annotations

import pytest

from cases.clauses import Case, X
from cases.jms_cases import CASES
from quorum_selectors import canonical, evaluate, jms
from quorum_selectors.compiled import compile_expression
from quorum_selectors.errors import SelectorError
from support.selectors.specification import message_of


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_selector_means_what_the_specification_says(case: Case) -> None:
    if case.expected == X:
        with pytest.raises(SelectorError):
            jms.parse(case.selector)
        return
    tree = jms.parse(case.selector)
    fields = message_of(case.fields)
    travelled = canonical.decode(canonical.encode(tree))
    assert evaluate.evaluate(tree, fields) is case.expected, case
    assert compile_expression(tree)(fields) is case.expected, case
    assert evaluate.evaluate(travelled, fields) is case.expected, case
    assert compile_expression(travelled)(fields) is case.expected, case
