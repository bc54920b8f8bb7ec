"""Turns by owner (quorum/round_robin.py), against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorum.round_robin import RoundRobin

OWNERS = ["", "a", "b", "c"]


def taken(turns: RoundRobin[str]) -> list[str]:
    found = []
    while turns:
        found.append(turns.take())
    return found


def test_the_first_of_every_owner_comes_before_the_second_of_any() -> None:
    turns: RoundRobin[str] = RoundRobin()
    for item in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        turns.add(item[0], item)
    assert taken(turns) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_an_owner_that_has_had_its_turn_waits_for_the_others() -> None:
    turns: RoundRobin[str] = RoundRobin()
    turns.add("a", "a1")
    turns.add("b", "b1")
    assert turns.take() == "a1"
    turns.add("a", "a2")
    turns.add("c", "c1")
    assert taken(turns) == ["b1", "a2", "c1"]


def test_what_is_removed_takes_no_turn() -> None:
    turns: RoundRobin[str] = RoundRobin()
    for item in ("a1", "a2", "b1"):
        turns.add(item[0], item)
    turns.remove("a", "a1")
    turns.remove("b", "b1")
    turns.remove("b", "b1")
    turns.remove("c", "c1")
    assert taken(turns) == ["a2"]


@given(st.lists(st.one_of(st.sampled_from(OWNERS), st.none())))
def test_an_item_waits_for_one_item_of_every_other_owner_at_most(steps: list[str | None]) -> None:
    """None: take one."""
    turns: RoundRobin[int] = RoundRobin()
    waiting: list[tuple[str, int]] = []
    owner_of: dict[int, str] = {}
    passed: dict[str, list[str]] = {}
    for number, owner in enumerate(steps):
        if owner is not None:
            turns.add(owner, number)
            waiting.append((owner, number))
            owner_of[number] = owner
            passed.setdefault(owner, [])
        elif waiting:
            item = turns.take()
            taker = owner_of[item]
            assert item == next(each for of, each in waiting if of == taker), "the oldest of its owner"
            waiting.remove((taker, item))
            assert len(set(passed[taker])) == len(passed[taker]), "no other owner was served twice meanwhile"
            passed[taker] = []
            for other, served in passed.items():
                if other != taker and any(of == other for of, _ in waiting):
                    served.append(taker)
        assert bool(turns) == bool(waiting)
