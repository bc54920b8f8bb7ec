"""Bit sets against Python's sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fifo.messages import bitsets

SETS = st.sets(st.integers(0, 300), max_size=60) | st.sets(st.integers(0, 16_383), max_size=20)


def as_bits(members: set[int]) -> int:
    return sum(1 << member for member in members)


@given(SETS, st.integers(0, 70))
def test_lowest_takes_the_first_members(members: set[int], count: int) -> None:
    assert bitsets.lowest(as_bits(members), count) == as_bits(set(sorted(members)[:count]))


@given(SETS)
def test_ranges_are_the_stretches_of_neighbours(members: set[int]) -> None:
    found = bitsets.ranges(as_bits(members))
    assert {first + i for first, count in found for i in range(count)} == members
    assert all(first + count not in members and first - 1 not in members for first, count in found)
    assert found == sorted(found)


@given(SETS)
def test_members_and_flags_list_the_same(members: set[int]) -> None:
    assert list(bitsets.members(as_bits(members))) == sorted(members)
    flags = bitsets.as_flags(as_bits(members), 16_384)
    assert np.flatnonzero(flags).tolist() == sorted(members)
    assert bitsets.from_positions(np.flatnonzero(flags), 16_384) == as_bits(members)


@given(
    st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 40), max_size=30)), max_size=40),
    st.integers(0, 12),
)
def test_counts_are_numbers_in_planes(steps: list[tuple[bool, set[int]]], limit: int) -> None:
    counts, plain = bitsets.Counts(), dict.fromkeys(range(41), 0)
    for is_add, members in steps:
        if is_add:
            counts.add(as_bits(members))
        else:
            counts.clear(as_bits(members))
        for member in members:
            plain[member] = plain[member] + 1 if is_add else 0
    assert [counts.value(i) for i in range(41)] == list(plain.values())
    assert counts.above(limit) == as_bits({i for i in plain if plain[i] > limit})
    assert counts.nonzero() == as_bits({i for i in plain if plain[i]})
    assert not counts.planes or counts.planes[-1]
