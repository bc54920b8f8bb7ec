"""Histories of several administrators who declare, delete and look at the same queues amid all faults are linearizable;
and the check that says so finds those that are not."""

from __future__ import annotations

from simulator.broken.canaries import CANARIES
from simulator.clients.registrars import NOT_FOUND, NOWHERE, Registrar, not_linearizable, step
from simulator.rules.linearizable import Operation, is_linearizable
from simulator.seed import prepared
from simulator.world import Build, World

SEEDS = 3
MS = 12_000
LEAST = 50
"""Operations that were answered, in each seed."""


def histories(seed: int, build: Build) -> dict[str, list[Operation]]:
    with prepared(seed, build):
        made = World(seed, build)
        made.run_until(made._is_ready, "every group has a leader", 30_000)
        made._declare()
        found: dict[str, list[Operation]] = {}
        made.apps += [Registrar(made, number, found) for number in range(60, 65)]
        made.run_for(500)
        made.faults.begin()
        made.run_for(MS)
        made.bury()
    return found


def test_what_administrators_are_told_is_linearizable() -> None:
    for seed in range(1, SEEDS + 1):
        found = histories(seed, Build())
        answered = [each for history in found.values() for each in history if each.is_answered]
        assert len(answered) > LEAST
        assert {each.what for each in answered if each.answer == NOT_FOUND} == {"delete", "look"}
        assert not_linearizable(found) == []


def test_answers_of_what_happens_to_be_here_are_not() -> None:
    [build] = [each.build() for each in CANARIES if each.name == "no barrier before reads"]
    assert any(not_linearizable(histories(seed, build)) for seed in range(1, 2 * SEEDS + 1))


def test_a_stale_look_is_found_and_a_late_effect_of_an_unanswered_call_is_not() -> None:
    declared = Operation("a", "declare", 0, 10, True)
    assert is_linearizable([declared, Operation("b", "look", 5, 20, NOT_FOUND)], NOWHERE, step)
    assert not is_linearizable([declared, Operation("b", "look", 11, 20, NOT_FOUND)], NOWHERE, step)
    unanswered = Operation("a", "delete", 11)
    looks = [Operation("b", "look", 12, 13, 7), Operation("b", "look", 30, 31, NOT_FOUND)]
    assert is_linearizable([declared, unanswered, *looks], NOWHERE, step)
    back_again = Operation("b", "look", 40, 41, 7)
    assert not is_linearizable([declared, unanswered, *looks, back_again], NOWHERE, step)
