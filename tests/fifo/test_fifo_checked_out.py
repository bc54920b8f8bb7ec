"""The messages that a consumer holds (fifo/consumers/consumer.py), against a plain dictionary of single messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import example, given
from hypothesis import strategies as st

from fifo.consumers.consumer import CheckedOut
from support.counted_lines import count_lines

TAGS = st.lists(st.booleans(), min_size=1, max_size=60)
"""of each tag from 1 on: whether it is there"""
RANGES = st.lists(st.tuples(st.integers(1, 70), st.integers(0, 9)), max_size=12)
COPIES = st.sampled_from((1, 40))
"""of the tags and ranges, one behind the other: many ranges are handled in another way than a few"""


LONGEST = st.sampled_from((0, 1, 3))


def held(present: list[bool], *, longest: int = 0) -> CheckedOut:
    """longest: the most tags of a run; with 0 all neighbours are one run."""
    found = CheckedOut()
    for tag, is_there in enumerate(present, 1):
        if is_there:
            found.add(tag, 100 + tag + (tag // longest if longest else 0), 1)
    return found


def singles(found: CheckedOut) -> dict[int, int]:
    """The sequences by their tags."""
    return {
        tag + place: sequence + place
        for tag, sequence, count in zip(found.tags, found.sequences, found.counts, strict=True)
        for place in range(count)
    }


def disjoint(wanted: list[tuple[int, int]], width: int, copies: int) -> Iterator[tuple[int, int]]:
    """width: of one copy."""
    for copy in range(copies):
        end = copy * width
        for first, more in sorted(wanted):
            if first + copy * width > end:
                end = first + copy * width + more
                yield first + copy * width, end


def is_joined(found: CheckedOut) -> bool:
    """Whether no two runs could be one."""
    runs = list(zip(found.tags, found.sequences, found.counts, strict=True))
    return all((a[0] + a[2], a[1] + a[2]) != b[:2] for a, b in itertools.pairwise(runs))


@given(TAGS, RANGES, LONGEST, COPIES)
def test_many_ranges_are_removed_like_single_tags(
    present: list[bool], wanted: list[tuple[int, int]], longest: int, copies: int
) -> None:
    found = held(present * copies, longest=longest)
    ranges = tuple(disjoint(wanted, max(len(present), 80), copies))
    before = singles(found)
    removed = found.remove_many(ranges)
    gone = {tag for first, last in ranges for tag in range(first, last + 1)}
    assert singles(found) == {tag: number for tag, number in before.items() if tag not in gone}
    assert [first + place for first, count in removed for place in range(count)] == [
        number for tag, number in before.items() if tag in gone
    ]
    assert found.total == len(singles(found))


@given(TAGS, RANGES, LONGEST, COPIES)
@example([True] * 6, [(2, 3)], 3, 1)
def test_what_is_taken_can_be_taken_back(
    present: list[bool], wanted: list[tuple[int, int]], longest: int, copies: int
) -> None:
    found = held(present * copies, longest=longest)
    before = singles(found)
    ranges = tuple(
        (first, last)
        for first, last in disjoint(wanted, max(len(present), 80), copies)
        if all(tag in before for tag in range(first, last + 1))
    )
    assert all(found.count_of(first, last) == last - first + 1 for first, last in ranges)
    taken = found.take(ranges)
    gone = {tag for first, last in ranges for tag in range(first, last + 1)}
    assert singles(taken) == {tag: number for tag, number in before.items() if tag in gone}
    assert singles(found) == {tag: number for tag, number in before.items() if tag not in gone}
    assert sum(taken.counts) == taken.total == len(singles(taken))
    assert is_joined(found) and is_joined(taken)
    found.take_back(taken)
    assert singles(found) == before
    assert is_joined(found)
    assert found.total == len(before)


@given(TAGS, st.integers(1, 70), st.integers(0, 70), LONGEST)
def test_tags_of_a_range_are_counted(present: list[bool], first: int, more: int, longest: int) -> None:
    found = held(present, longest=longest)
    inside = [tag for tag in singles(found) if first <= tag <= first + more]
    assert found.count_of(first, first + more) == len(inside)
    assert found.run_count(first, first + more) >= bool(inside)


def test_a_settlement_that_finds_nothing_looks_at_no_run() -> None:
    """Such a settlement is a few bytes of a client, and each member carries it out."""
    found = held([tag % 2 == 1 for tag in range(1, 20_001)])
    tags = found.tags
    assert found.remove_many([(tag, tag) for tag in range(2, 600, 2)]) == []
    assert found.tags is tags, "the runs were copied"


def test_a_few_runs_that_are_given_back_leave_the_others_as_they_are() -> None:
    """A transaction may give back thousands of settlements with a few messages each, and each member does it."""
    found = held([tag % 3 != 2 for tag in range(1, 3_001)])
    before, tags = singles(found), found.tags
    ranges = [(tag, tag) for tag in (4, 601, 1_203, 2_998)]
    taken = found.take(ranges)
    found.take_back(taken)
    assert found.tags is tags, "the runs were copied"
    assert singles(found) == before
    assert is_joined(found)
    assert found.total == len(before)


def test_a_settlement_of_many_tags_does_not_look_at_each_run() -> None:
    """One entry has many of them, and a consumer may hold 65,536 runs. Each member carries them out."""
    small, large = (held([True] * count, longest=1) for count in (1_000, 20_000))
    ranges = [(tag, tag) for tag in range(1, 1_000, 5)]
    held([True] * 1_000).remove_many(ranges)  # numpy loads some of its modules at the first call
    in_small = count_lines(lambda: small.remove_many(ranges))
    in_large = count_lines(lambda: large.remove_many(ranges))
    assert in_small == in_large
    assert (small.total, large.total) == (800, 19_800)


def test_ranges_in_any_order_that_overlap_are_removed_as_one() -> None:
    found = held([True] * 600, longest=1)
    ranges = [(first, first + 7) for first in range(500, 90, -5)] + [(580, (1 << 64) - 1)]
    removed = found.remove_many(ranges)
    assert sorted(singles(found)) == [*range(1, 95), *range(508, 580)]
    assert removed == [(100 + 2 * tag, 1) for tag in (*range(95, 508), *range(580, 601))]
    assert found.total == len(singles(found))
