"""Ranges of numbers do what a set of numbers does, and their bytes are those of single numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fifo.codec import Reader, Writer
from fifo.number_ranges import NumberRanges
from fifo.persistence.layouts import MANY, RANGES, NumberRangesKind
from support.fifo.model.records import as_ranges

numbers = st.integers(0, 30)
steps = st.lists(
    st.tuples(st.sampled_from(("add", "forget", "remove")), numbers, st.integers(0, 5)), max_size=20
)


@given(steps, numbers, st.integers(0, 10))
@example([("add", 1, 4), ("remove", 3, 0)], 0, 9)
@example([("add", 1, 1), ("add", 6, 1), ("add", 4, 0)], 0, 9)
def test_they_are_a_set_of_numbers(changes: list[tuple[str, int, int]], first: int, count: int) -> None:
    ranges, known = NumberRanges(), set[int]()
    for what, number, more in changes:
        if what == "add":
            ranges.add(number, number + more)
            known |= set(range(number, number + more + 1))
        elif what == "remove":
            ranges.remove(number)
            known.discard(number)
        else:
            ranges.forget_below(number)
            known = {each for each in known if each >= number}
        assert tuple(ranges) == as_ranges(known)
        assert len(ranges) == len(as_ranges(known))
    met = [(start, last) for start, last in as_ranges(known) if last >= first]
    assert ranges.count_from(first) == len(met)
    assert list(ranges.overlapping(first, first + count)) == [
        each for each in met if each[0] <= first + count
    ]


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=50))
@example([0, 127, 128, 16_383, 16_384])
def test_many_numbers_are_written_as_single_ones(values: list[int]) -> None:
    one_by_one, in_turn, together = Writer(), Writer(), Writer()
    for value in values:
        one_by_one.number(value)
    in_turn.numbers(values)
    together.many_numbers(np.array(values, dtype=np.uint64))
    assert together.data == in_turn.data == one_by_one.data
    reader = Reader(bytes(together.data))
    assert [reader.number() for _ in values] == values


def test_few_and_many_ranges_have_the_same_layout_and_are_read_back() -> None:
    for count in (0, 1, MANY - 1, MANY, MANY + 1, 5 * MANY):
        ranges = NumberRanges(
            [(1 << number, (1 << number) + number % 2) for number in range(2, 2 + count)][:60]
        )
        out, plain = Writer(), Writer()
        NumberRangesKind().write(out, ranges)
        RANGES.write(plain, list(ranges))
        assert out.data == plain.data
        assert list(NumberRangesKind().read(Reader(bytes(out.data)))) == list(ranges)
