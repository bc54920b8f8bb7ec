"""What looking up a message costs at most, for many expressions: a function of their trees alone."""

from __future__ import annotations

import random

import pytest

from quorum_selectors import jms
from quorum_selectors.expression import Expression, steps
from quorum_selectors.like import parse_pattern
from quorum_selectors.lookup_costs import LOOKUP_STEPS, Filed, LookupCosts, cells_of
from quorum_selectors.predicates import requirement
from quorum_selectors.string_columns import StringColumn
from support.counted_lines import count_lines


def filed(expression: Expression) -> Filed:
    return cells_of(requirement(expression)), steps(expression)


def cost(*texts: str) -> int:
    costs: LookupCosts[int] = LookupCosts()
    for token, text in enumerate(texts):
        costs.add(token, filed(jms.parse(text)))
    return costs.steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("colour = 'c{}'", 1),
        ("colour IN ('c{0}', 'd{0}')", 1),
        ("colour LIKE 'c{:04}-%'", 2),
        ("colour LIKE '%-{:04}'", 2),
        ("size BETWEEN {0}0 AND {0}9", 4),
        ("colour = 'c{}' AND size > 5", 2),
    ],
)
def test_a_thousand_expressions_that_are_told_apart_cost_about_as_much_as_one(text: str, steps: int) -> None:
    assert cost(*[text.format(number) for number in range(1, 1_001)]) <= steps + 2 * LOOKUP_STEPS


@pytest.mark.parametrize(
    "text", ["size <> {}", "size > {}", "size + 1 = {}", "name LIKE '%a{}%'", "a = 1 OR b + 0 = {}"]
)
def test_expressions_that_any_message_may_meet_cost_the_sum_of_their_steps(text: str) -> None:
    one = cost(text.format(0)) - LOOKUP_STEPS
    assert cost(*[text.format(number) for number in range(100)]) == 100 * one + LOOKUP_STEPS


def test_the_same_value_with_different_conditions_costs_their_sum() -> None:
    assert cost(*[f"colour = 'red' AND size <> {number}" for number in range(100)]) == 200 + LOOKUP_STEPS


def test_what_was_filed_and_removed_before_changes_nothing() -> None:
    texts = [f"colour = 'c{number % 7}' AND size > {number}" for number in range(40)]
    texts += [f"size BETWEEN {number} AND {3 * number}" for number in range(40)]
    texts += [f"name LIKE 'a{number}%' OR size = {number}" for number in range(40)]
    costs: LookupCosts[str] = LookupCosts()
    rng = random.Random(1)
    present: list[str] = []
    for _ in range(2_000):
        text = rng.choice(texts)
        if text in present:
            present.remove(text)
            costs.remove(text)
        else:
            present.append(text)
            costs.add(text, filed(jms.parse(text)))
        if rng.random() < 0.05:
            assert costs.steps == cost(*present)
    for text in list(present):
        costs.remove(text)
    assert (costs.steps, len(costs)) == (0, 0)


def test_a_pattern_whose_pieces_stand_nowhere_is_ruled_out_by_one_search() -> None:
    lines = StringColumn.of([b"a" * 200 + str(number).encode() for number in range(500)])

    def asked(piece: str) -> int:
        pattern = parse_pattern("%a" * 50 + piece + "%")
        return count_lines(lambda: lines.match(pattern))

    asked("b0")
    assert not lines.match(parse_pattern("%a%b1%")).any()
    assert asked("b2") < asked("1") // 3
