"""What selectors mean, case by case: the tables of all clauses."""

from __future__ import annotations

from cases import jms_arithmetic_cases, jms_comparison_cases, jms_like_cases, jms_logic_cases, jms_word_cases
from cases.clauses import Case

CASES: list[Case] = [
    *jms_logic_cases.CASES,
    *jms_comparison_cases.CASES,
    *jms_arithmetic_cases.CASES,
    *jms_like_cases.CASES,
    *jms_word_cases.CASES,
]
