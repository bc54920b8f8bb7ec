"""Batches of one message, decoded together: the fields that each of them has by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_selectors.block_columns import BlockColumns
from quorum_selectors.columns import decode, encode
from quorum_selectors.single_columns import decode_singles
from support.counted_lines import count_lines

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from((0, 1, 127, 128, 40_000)),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.sampled_from(("", "red", "green", "a\0", "\0", "é")),
)
ROWS = st.dictionaries(st.sampled_from(("a", "bb", "header.c", "é")), VALUES, max_size=4)


def kinds(row: dict[str, Any]) -> dict[str, tuple[type, Any]]:
    return {key: (type(value), value) for key, value in row.items()}


@given(st.lists(ROWS, min_size=1, max_size=60), st.booleans())
def test_singles_have_the_fields_that_each_has_by_itself(rows: list[dict[str, Any]], again: bool) -> None:
    rows = rows * (6 if again else 1)  # many of each layout
    encoded = [encode([row]) for row in rows]
    found = decode_singles(encoded)
    assert found.count == len(rows)
    assert [kinds(dict(found.row(place))) for place in range(len(rows))] == [
        kinds(dict(decode(data, 1).row(0))) for data in encoded
    ]
    block = BlockColumns()
    block.append(7, found, 0, len(rows))
    assert [kinds(dict(block.row(7 + place))) for place in range(len(rows))] == [kinds(row) for row in rows]


@pytest.mark.parametrize("text", ["red", "number {}"])
def test_a_thousand_more_singles_cost_a_few_lines_each(text: str) -> None:
    def lines(count: int) -> int:
        rows = [{"colour": text.format(number % 1_000), "size": number} for number in range(count)]
        batches = [encode([row]) for row in rows]
        return count_lines(lambda: decode_singles(batches))

    assert lines(5_000) - lines(4_000) <= 8 * 1_000
