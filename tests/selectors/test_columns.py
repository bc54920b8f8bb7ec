"""Columns hold what the rows held: over a batch, over a block, in whatever order blocks are filled."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_selectors import block_columns, columns
from quorum_selectors.compiled import compile_expression
from quorum_selectors.errors import ColumnsError
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import Expression
from quorum_selectors.vectorised import Messages, select
from support.counted_lines import count_lines
from support.examples import examples
from support.selectors.expressions import EXPRESSIONS, FIELD_VALUES, KEYS, MESSAGES

Fields = dict[str, Any]

ROWS = st.one_of(
    st.lists(MESSAGES, max_size=40),
    st.lists(st.fixed_dictionaries(dict.fromkeys(KEYS[:3], FIELD_VALUES)), max_size=40),
    st.lists(st.dictionaries(st.text("xyz", min_size=1, max_size=3), FIELD_VALUES), max_size=20),
)


def shown(row: Any) -> list[tuple[str, str]]:
    """A row so that 1, 1.0 and TRUE, and NaN with itself, compare as they should."""
    return sorted((key, repr(value)) for key, value in row.items())


def batch(rows: list[Fields]) -> columns.BatchColumns:
    return columns.decode(columns.encode(rows), len(rows))


@settings(max_examples=examples(200))
@given(ROWS)
def test_a_batch_gives_its_rows_back(rows: list[Fields]) -> None:
    read = batch(rows)
    assert [shown(read.row(ordinal)) for ordinal in range(len(rows))] == [shown(row) for row in rows]
    for ordinal, row in enumerate(rows):
        assert all(repr(read.row(ordinal).get(key)) == repr(row.get(key)) for key in (*KEYS, "z"))
        assert len(read.row(ordinal)) == len(row)


@settings(max_examples=examples(200))
@given(EXPRESSIONS, st.lists(MESSAGES, min_size=1, max_size=12), st.integers(0, 8))
def test_evaluating_columns_is_evaluating_the_fields(
    expression: Expression, rows: list[Fields], first_slot: int
) -> None:
    read = batch(rows)
    block = columns.BlockColumns(32)
    block.append(first_slot, read, 0, len(rows))
    compiled = compile_expression(expression)
    for ordinal, fields in enumerate(rows):
        expected = evaluate(expression, fields)
        for row in (read.row(ordinal), block.row(first_slot + ordinal)):
            assert evaluate(expression, row) is expected
            assert compiled(row) is expected


Piece = tuple[int, list[Fields], int, int]


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    """(first slot, rows of a batch, first ordinal, count), in any order, also twice over the same slots."""
    found: list[Piece] = []
    for _ in range(draw(st.integers(1, 6))):
        rows = draw(st.lists(MESSAGES, min_size=1, max_size=10))
        if draw(st.booleans()):
            rows = [rows[0]] * len(rows)
        first = draw(st.integers(0, len(rows) - 1))
        count = draw(st.integers(0, len(rows) - first))
        found.append((draw(st.integers(0, 40 - count)), rows, first, count))
    return found


@settings(max_examples=examples(200))
@given(pieces())
def test_a_block_holds_what_was_appended_last(filled: list[Piece]) -> None:
    block = columns.BlockColumns(40)
    model: list[Fields] = [{} for _ in range(40)]
    for slot, rows, first, count in filled:
        block.append(slot, batch(rows), first, count)
        model[slot : slot + count] = rows[first : first + count]
    assert [shown(block.row(slot)) for slot in range(40)] == [shown(row) for row in model]
    block.drop()
    assert [len(block.row(slot)) for slot in range(40)] == [0] * 40


def test_values_of_different_types_under_one_key_stay_apart() -> None:
    rows: list[Fields] = [{"k": 1}, {"k": 1.0}, {"k": True}, {"k": "1"}, {}, {"k": None}]
    read = batch(rows)
    assert [repr(read.row(i).get("k")) for i in range(6)] == ["1", "1.0", "True", "'1'", "None", "None"]
    block = columns.BlockColumns()
    block.append(100, read, 0, 6)
    assert [repr(block.get(100 + i, "k")) for i in range(6)] == ["1", "1.0", "True", "'1'", "None", "None"]


def test_one_row_for_all_costs_as_much_as_one_row() -> None:
    row = {"header.priority": 4, "properties.subject": "s", "application-properties.x": 1.5}
    shared = columns.encode_shared(row, 10_000)
    assert len(shared) == len(columns.encode([row]))
    assert columns.encode([dict(row) for _ in range(10_000)]) == shared
    read = columns.decode(shared, 10_000)
    assert (read.count, read.rows) == (10_000, 1)
    assert dict(read.row(9_999)) == row
    block = columns.BlockColumns()
    block.append(7, read, 3, 9_000)
    assert dict(block.row(9_006)) == row
    assert not block.row(9_007)


def test_no_field_at_all_is_no_byte_at_all() -> None:
    assert columns.encode([{}, {}]) == columns.encode_shared({}, 5) == columns.encode([]) == b""
    assert not columns.decode(b"", 5).row(4)


def test_equal_values_that_are_unlike_are_not_shared() -> None:
    read = batch([{"k": 1}, {"k": True}])
    assert [repr(read.row(i)["k"]) for i in range(2)] == ["1", "True"]


@pytest.mark.parametrize("width", [7, 15, 31, 63])
def test_whole_numbers_take_the_narrowest_width_at_its_edges(width: int) -> None:
    for edge in (2**width - 1, -(2**width)):
        read = columns.decode(columns.encode([{"k": edge}, {"k": 0}]), 2, few_rows=0)
        assert read.row(0)["k"] == edge
        assert read.columns[0].values.dtype.itemsize == (width + 1) // 8


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**5000, b"x", [1], 1j, np.int64(1)], ids=range(7))
def test_a_value_no_field_can_have_is_refused(value: Any) -> None:
    with pytest.raises(ColumnsError):
        columns.encode([{"k": value}, {"k": 1}])
    with pytest.raises(ColumnsError):
        columns.encode_shared({"k": value}, 2)


def test_a_block_widens_numbers_and_codes_as_they_come() -> None:
    block = columns.BlockColumns()
    values = [1, 200, 70_000, 2**40, -1]
    for slot, value in enumerate(values):
        block.append(slot, batch([{"k": value}]), 0, 1)
    assert [block.get(slot, "k") for slot in range(5)] == values


@pytest.mark.parametrize("size", [1, 50, 255, 256, 257, 1000])
def test_strings_survive_whether_they_are_shared_or_not(size: int) -> None:
    block = columns.BlockColumns()
    texts = [f"é{i * 7919 % 1500}" for i in range(3000)]
    rows: list[Fields] = [{"k": text} for text in texts]
    for first in range(0, 3000, size):
        part = rows[first : first + size]
        block.append(first, batch(part), 0, len(part))
    assert [block.get(slot, "k") for slot in range(3000)] == texts
    assert [block.get(slot, "k") for slot in range(0, 3000, 37)] == texts[::37]


def test_a_batch_cut_at_the_edge_of_a_block_brings_only_its_own_strings() -> None:
    rows: list[Fields] = [{"k": f"text-{i}"} for i in range(1000)]
    read = batch(rows)
    block = columns.BlockColumns()
    block.append(16_380, read, 0, 4)
    assert [block.get(slot, "k") for slot in range(16_380, 16_384)] == [
        "text-0",
        "text-1",
        "text-2",
        "text-3",
    ]
    assert block.nbytes < 6_000
    following = columns.BlockColumns()
    following.append(0, read, 4, 996)
    assert [following.get(slot, "k") for slot in range(996)] == [f"text-{i}" for i in range(4, 1000)]


def test_at_most_64_columns_are_dense_and_the_rest_is_kept_all_the_same() -> None:
    rows: list[Fields] = [{f"k{i:03d}": place * 1000 + i for i in range(100)} for place in range(20)]
    read = batch(rows)
    block = columns.BlockColumns()
    block.append(10, read, 5, 15)
    block.append(30, columns.decode(columns.encode_shared(rows[0], 3), 3), 0, 3)
    assert [dict(block.row(10 + i)) for i in range(15)] == rows[5:]
    assert [dict(block.row(30 + i)) for i in range(3)] == [rows[0]] * 3
    dense = sum(len(kinds) for kinds in block._dense.values())
    assert dense == columns.MAX_DENSE_COLUMNS
    assert len(block._sparse) == 36


def test_a_row_that_all_messages_of_a_block_share_costs_no_more_than_one_message() -> None:
    """Members apply what is in their log, whatever limits their edge has: 5,500 fields, 16,384 messages."""
    row: Fields = {f"k{i:04d}": True for i in range(5_500)}
    count = columns.BLOCK_SIZE
    block = columns.BlockColumns()
    block.append(0, columns.decode(columns.encode_shared(row, count), count), 0, count)
    assert sum(len(field._runs) for field in block._sparse.values()) == 5_500 - columns.MAX_DENSE_COLUMNS
    assert block.nbytes < 4 << 20
    assert dict(block.row(count - 1)) == row


PARTS = st.lists(
    st.tuples(
        st.integers(0, 31), st.integers(1, 12), st.booleans(), st.lists(MESSAGES, min_size=12, max_size=12)
    ),
    max_size=8,
)


@settings(max_examples=examples(200))
@given(EXPRESSIONS, PARTS)
def test_slots_filled_again_in_any_order_have_the_fields_that_came_last(
    expression: Expression, parts: list[tuple[int, int, bool, list[Fields]]]
) -> None:
    """Nearly all fields in the sparse table, shared rows among others."""
    rows: list[Fields] = [{}] * 32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_columns, "MAX_DENSE_COLUMNS", 1)
        block = columns.BlockColumns(32)
        for first, wanted, is_shared, given_rows in parts:
            added = [given_rows[0]] * 12 if is_shared else given_rows
            count = min(wanted, 32 - first)
            encoded = columns.encode_shared(added[0], 12) if is_shared else columns.encode(added)
            block.append(first, columns.decode(encoded, 12), 0, count)
            rows[first : first + count] = added[:count]
    assert [shown(block.row(slot)) for slot in range(32)] == [shown(row) for row in rows]
    for first, end in ((0, 32), (5, 19)):
        found = select(expression, Messages(block, first, end - first)).tolist()
        assert found == [evaluate(expression, row) is True for row in rows[first:end]]


def _five_fields(sequence: int) -> Fields:
    return {
        "header.priority": sequence % 10,
        "properties.creation-time": 1_700_000_000_000 + sequence,
        "properties.subject": ("order", "invoice", "refund")[sequence % 3],
        "application-properties.customer": f"customer-{sequence * 7919 % 100_000}",
        "application-properties.amount": sequence / 7,
    }


def test_five_fields_take_at_most_64_bytes_a_message() -> None:
    block = columns.BlockColumns()
    for first in range(0, columns.BLOCK_SIZE, 512):
        block.append(first, batch([_five_fields(first + i) for i in range(512)]), 0, 512)
    assert block.nbytes <= 64 * columns.BLOCK_SIZE


def test_a_small_block_is_small_and_a_rare_field_is_cheap() -> None:
    block = columns.BlockColumns()
    block.append(0, batch([_five_fields(0)]), 0, 1)
    assert block.nbytes < 4_500
    for first in range(1, columns.BLOCK_SIZE - 1, 100):
        block.append(first, batch([{} for _ in range(100)]), 0, min(100, columns.BLOCK_SIZE - first))
    block.append(columns.BLOCK_SIZE - 1, batch([{"rare": 1}]), 0, 1)
    assert block.nbytes < 4_700


def test_single_messages_fill_a_block_like_batches_do() -> None:
    one, other = columns.BlockColumns(), columns.BlockColumns()
    rows = [_five_fields(i) for i in range(600)]
    other.append(0, batch(rows), 0, 600)
    for slot, row in enumerate(rows):
        one.append(slot, batch([row]), 0, 1)
    for key in one.field_keys():
        assert [one.get(slot, key) for slot in range(600)] == [other.get(slot, key) for slot in range(600)]


def test_what_lies_outside_is_an_error_of_the_caller() -> None:
    read = batch([{"k": 1}, {"k": 2}])
    block = columns.BlockColumns(4)
    for slot, first, count in ((3, 0, 2), (-1, 0, 1), (0, 1, 2), (0, -1, 1), (0, 0, -1)):
        with pytest.raises(ValueError):
            block.append(slot, read, first, count)
    for get in (lambda: read.row(2), lambda: read.row(-1), lambda: block.row(4), lambda: block.row(-1)):
        with pytest.raises(IndexError):
            get()


def test_the_estimate_counts_names_and_values() -> None:
    assert columns.estimate_size({}) == 0
    assert columns.estimate_size({"header.priority": 1, "header.durable": True}) == 8 + 9 + 7 + 9
    assert columns.estimate_size({"application-properties.k": "é" * 10}) == 1 + 8 + 20
    assert columns.estimate_size({"application-properties.a.b": "x" * 1000}) == 3 + 8 + 1000


# ---- bytes that nobody of ours wrote


@settings(max_examples=examples(400))
@given(st.lists(MESSAGES, min_size=1, max_size=10), st.data())
def test_damaged_bytes_are_columns_or_refused(rows: list[Fields], data: st.DataObject) -> None:
    code = bytearray(columns.encode(rows))
    if not code:
        return
    for _ in range(data.draw(st.integers(1, 3))):
        code[data.draw(st.integers(0, len(code) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(code)))
    for damaged in (bytes(code), bytes(code[:cut]), bytes(code) + b"\0"):
        few, many = outcome(damaged, len(rows), 10), outcome(damaged, len(rows), 0)
        assert few == many
        if isinstance(few, str):
            continue
        read = columns.decode(damaged, len(rows))
        block = columns.BlockColumns(16)
        block.append(0, read, 0, len(rows))
        for ordinal in range(len(rows)):
            assert shown(read.row(ordinal)) == shown(block.row(ordinal))


def outcome(code: bytes, count: int, few_rows: int) -> Any:
    """What the columns say of each row and its texts, or why they are refused."""
    try:
        read = columns.decode(code, count, few_rows)
    except ColumnsError as error:
        return str(error)
    return (
        [shown(read.row(ordinal)) for ordinal in range(count)],
        [read.text_units(size) for size in (1, 2, 3, 5)],
        read.field_keys(),
    )


@settings(max_examples=examples(300))
@given(ROWS, st.data())
def test_few_rows_are_read_like_many(rows: list[Fields], data: st.DataObject) -> None:
    """As lists and as arrays, they have the same fields, and give a part of a block the same fields."""
    code, count = columns.encode(rows), len(rows)
    if not code:
        return
    assert outcome(code, count, count) == outcome(code, count, 0)
    first = data.draw(st.integers(0, count - 1))
    taken = data.draw(st.integers(1, count - first))
    dense = data.draw(st.sampled_from([1, 64]))
    blocks = [columns.BlockColumns(64, dense) for _ in range(2)]
    for block, few_rows in zip(blocks, (count, 0), strict=True):
        block.append(
            0, columns.decode(code, count, few_rows), first, taken
        )  # replaced in part by the next one
        block.append(taken // 2, columns.decode(code, count, few_rows), first, taken)
    assert blocks[0].filled == blocks[1].filled
    for slot in range(64):
        assert shown(blocks[0].row(slot)) == shown(blocks[1].row(slot))


@settings(max_examples=examples(200))
@given(st.binary(max_size=60), st.integers(0, 5))
def test_random_bytes_are_refused(data: bytes, count: int) -> None:
    if data:
        with pytest.raises(ColumnsError):
            columns.decode(b"\x01\x00" + data, count)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack("<BBHI", 2, 0, 1, 1), "unknown format"),
        (struct.pack("<BBHI", 1, 2, 1, 1), "unknown flags"),
        (struct.pack("<BBHI", 1, 0, 1, 2), "2 messages for a batch of 1"),
        (struct.pack("<BBHI", 1, 0, 0, 1), "no column"),
        (struct.pack("<BBHI", 1, 0, 1, 1) + struct.pack("<BBHI", 1, 1, 1, 2**32 - 1) + b"k", "for 1 rows"),
        (struct.pack("<BBHI", 1, 0, 1, 1) + struct.pack("<BBHI", 1, 3, 1, 1) + b"k", "unknown kind"),
        (struct.pack("<BBHI", 1, 0, 1, 1) + struct.pack("<BBHI", 9, 1, 1, 1) + b"k\0", "unknown kind"),
        (struct.pack("<BBHI", 1, 0, 1, 1) + struct.pack("<BBHI", 1, 1, 0, 1) + b"\0", "empty"),
        (struct.pack("<BBHI", 1, 0, 1, 1) + struct.pack("<BBHI", 1, 1, 1, 1) + b"\xff\0", "not UTF-8"),
        (struct.pack("<BBHI", 1, 0, 1, 1) + struct.pack("<BBHI", 0, 0, 1, 1) + b"k\x02", "beyond its rows"),
        (
            struct.pack("<BBHI", 1, 0, 1, 1) + struct.pack("<BBHIcIII", 3, 1, 1, 1, b"k", 1, 2**31, 2**31),
            "are wanted",
        ),
        (
            struct.pack("<BBHI", 1, 0, 1, 1) + struct.pack("<BBHIcIII", 3, 1, 1, 1, b"k", 2, 1, 1) + b"x\x01",
            "malformed",
        ),
        (
            struct.pack("<BBHI", 1, 0, 1, 1) + struct.pack("<BBHIcIII", 3, 1, 1, 1, b"k", 1, 1, 1) + b"x\x01",
            "codes beside",
        ),
        (
            struct.pack("<BBHI", 1, 0, 2, 1)
            + struct.pack("<BBHIcb", 1, 1, 1, 1, b"l", 1)
            + struct.pack("<BBHIcb", 1, 1, 1, 1, b"k", 1),
            "out of order",
        ),
        (
            struct.pack("<BBHI", 1, 0, 2, 1)
            + struct.pack("<BBHIcb", 0, 0, 1, 1, b"k", 1)
            + struct.pack("<BBHIcb", 1, 1, 1, 1, b"k", 1),
            "two values",
        ),
    ],
)
def test_each_lie_is_named(data: bytes, why: str) -> None:
    with pytest.raises(ColumnsError, match=why):
        columns.decode(data, 1)


BATCH_OF_TWO = struct.pack("<BBHI", 1, 0, 1, 2)


def _column(kind: int, width: int, count: int, *rest: bytes, key: bytes = b"k") -> bytes:
    return b"".join((struct.pack("<BBHI", kind, width, len(key), count), key, *rest))


def _dictionary(ends: list[int], blob: bytes) -> bytes:
    return struct.pack(f"<II{len(ends)}I", len(ends), len(blob), *ends) + blob


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (BATCH_OF_TWO + _column(1, 0x81, 1, b"\x03", b"\x01"), "its mask another number"),
        (BATCH_OF_TWO + _column(1, 0x81, 1, b"\x05", b"\x01"), "bits beyond"),
        (BATCH_OF_TWO + _column(1, 0x81, 2, b"\x03", b"\x01\x02"), "2 values for 2 rows"),
        (BATCH_OF_TWO + _column(1, 0x81, 0, b"\x00"), "0 values for 2 rows"),
        (BATCH_OF_TWO + _column(1, 1, 1, b"\x01"), "1 values for 2 rows"),
        (BATCH_OF_TWO + _column(1, 8, 2, b"\x01" * 15), "are wanted"),
        (BATCH_OF_TWO + _column(1, 5, 2, b"\x01" * 10), "unknown kind 1 of width 5"),
        (BATCH_OF_TWO + _column(2, 4, 2, b"\x01" * 8), "unknown kind 2 of width 4"),
        (BATCH_OF_TWO + _column(0, 1, 2, b"\x01" * 2), "unknown kind 0 of width 1"),
        (BATCH_OF_TWO + _column(0, 0, 2, b"\x07"), "bits beyond"),
        (BATCH_OF_TWO + _column(3, 1, 2, _dictionary([], b""), b"\0\0"), "malformed dictionary"),
        (BATCH_OF_TWO + _column(3, 1, 2, _dictionary([2, 1], b"ab"), b"\0\1"), "malformed dictionary"),
        (BATCH_OF_TWO + _column(3, 1, 2, _dictionary([1, 1], b"ab"), b"\0\1"), "malformed dictionary"),
        (BATCH_OF_TWO + _column(3, 1, 2, _dictionary([1, 2], b"ab"), b"\0\2"), "codes beside"),
        (BATCH_OF_TWO + _column(3, 1, 2, _dictionary([1, 2], b"ab"), b"\0\0"), "codes beside"),
        (BATCH_OF_TWO + _column(3, 1, 2, _dictionary([1, 2], b"\xc3\xa9"), b"\0\1"), "not UTF-8"),
        (BATCH_OF_TWO + _column(3, 1, 2, _dictionary([1, 2], b"\xff\xff"), b"\0\1"), "not UTF-8"),
        (
            struct.pack("<BBHI", 1, 0, 2, 2) + _column(1, 1, 2, b"ab") + _column(1, 1, 2, b"ab", key=b"j"),
            "out of order",
        ),
        (
            struct.pack("<BBHI", 1, 0, 2, 2)
            + _column(0, 0x80, 1, b"\1", b"\1")
            + _column(1, 0x81, 1, b"\1", b"\1"),
            "two values",
        ),
        (
            struct.pack("<BBHI", 1, 0, 3, 2)
            + _column(0, 0x80, 1, b"\1", b"\1")
            + _column(1, 0x81, 1, b"\2", b"\1")
            + _column(2, 0x88, 1, b"\1", b"\1" * 8),
            "two values",
        ),
        (BATCH_OF_TWO + _column(1, 1, 2, b"ab") + b"x", "left over"),
    ],
    ids=range(21),
)
@pytest.mark.parametrize("few_rows", [0, 2])
def test_each_lie_about_several_messages_is_named(data: bytes, why: str, few_rows: int) -> None:
    with pytest.raises(ColumnsError, match=why):
        columns.decode(data, 2, few_rows)


@pytest.mark.parametrize("batch_size", [10, 10_000])
def test_reading_and_appending_run_no_python_for_each_message(batch_size: int) -> None:
    """Of ten thousand messages not twice the lines of ten, and no more than a fixed number."""
    code = columns.encode([_five_fields(i) for i in range(batch_size)])

    def take_in() -> None:
        columns.BlockColumns().append(0, columns.decode(code, batch_size), 0, batch_size)

    take_in()  # numpy's own first-time imports
    assert count_lines(take_in) < 1200
