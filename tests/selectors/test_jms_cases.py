"""Every case of the specification's table, through the parser and each evaluator."""

from __future__ import annotations

from typing import Any

import pytest

from cases.jms_cases import CASES, X
from quorum_selectors import canonical, evaluate, jms
from quorum_selectors.compiled import compile_expression
from quorum_selectors.errors import SelectorError
from quorum_selectors.wellknown import jms_key


def message(named: dict[str, Any]) -> dict[str, Any]:
    """Fields named as a selector names them, as a message has them."""
    fields = {jms_key(name): value for name, value in named.items()}
    if "header.durable" in fields:
        fields["header.durable"] = fields["header.durable"] == "PERSISTENT"
    return fields


@pytest.mark.parametrize(("selector", "named", "expected", "why"), CASES, ids=range(len(CASES)))
def test_a_selector_means_what_the_specification_says(
    selector: str, named: dict[str, Any], expected: bool | str | None, why: str
) -> None:
    if expected == X:
        with pytest.raises(SelectorError):
            jms.parse(selector)
        return
    tree = jms.parse(selector)
    fields = message(named)
    travelled = canonical.decode(canonical.encode(tree))
    assert evaluate.evaluate(tree, fields) is expected, why
    assert compile_expression(tree)(fields) is expected, why
    assert evaluate.evaluate(travelled, fields) is expected, why
    assert compile_expression(travelled)(fields) is expected, why


def test_the_table_has_hundreds_of_cases_and_none_twice() -> None:
    assert len(CASES) > 400
    assert len({(selector, repr(named)) for selector, named, _, _ in CASES}) == len(CASES)
