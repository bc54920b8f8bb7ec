"""The tables of cases themselves: how many, and where from."""

from __future__ import annotations

import re

from cases import amqp_filter_cases, jms_cases
from cases.clauses import CHOICE, FILTER_CLAUSES, JMS_CLAUSES, X
from support.repository import ROOT

JMS, FILTERS = jms_cases.CASES, amqp_filter_cases.CASES


def choices_of_the_page(heading: str) -> set[str]:
    """The first cells of the table under a heading of docs/selectors.md, letter by letter."""
    page = (ROOT / "docs" / "selectors.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE)
    return set(rows[1:])


def test_there_are_hundreds_of_cases_and_none_twice() -> None:
    assert len(JMS) >= 300
    assert len(FILTERS) >= 80
    assert len({(case.selector, repr(case.fields)) for case in JMS}) == len(JMS)
    assert len({repr(case[:4]) for case in FILTERS}) == len(FILTERS)


def test_every_case_comes_from_a_known_clause_and_every_clause_has_cases() -> None:
    of_selectors = {case.clause for case in JMS if not case.clause.startswith(CHOICE)}
    of_filters = {case.clause for case in FILTERS if not case.clause.startswith(CHOICE)}
    assert of_selectors == set(JMS_CLAUSES)
    assert of_filters == set(FILTER_CLAUSES)
    assert all(case.why for case in JMS)
    assert all(case.why for case in FILTERS)


def test_every_choice_stands_in_the_page_and_every_one_there_has_cases() -> None:
    for table, heading in ((JMS, "Where the text leaves a choice"), (FILTERS, "Choices in filters")):
        choices = {case.clause.removeprefix(CHOICE) for case in table if case.clause.startswith(CHOICE)}
        assert choices == choices_of_the_page(heading)


def test_every_clause_that_can_be_asked_has_a_case_that_is_answered() -> None:
    """Refusals alone would say little about what an operator means."""
    only_refused = {
        clause for clause in JMS_CLAUSES if all(case.expected == X for case in JMS if case.clause == clause)
    }
    assert only_refused == {
        "JMS 3.1 §3.8.1.1 verification",
        "JMS 3.1 §3.8.1.3 comments",
        "Java SE JLS §3.6",
    }
