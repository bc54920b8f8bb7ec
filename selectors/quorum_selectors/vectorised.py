"""An expression over many messages at once: a few numpy calls a node, whatever their number.

It agrees with `evaluate` message by message; a property test checks that. A condition is two sets of messages, those
where it is TRUE and those where it is FALSE; for all others it is UNKNOWN. A value is a *vector*: for each type that
occurs, which messages have it, and the values. A message is in at most one of these; if it is in none, the value is
NULL.

A constant is a vector of length one, which numpy broadcasts over the others. Strings are evaluated in their dictionary,
as far as the messages use it. numpy wraps around where whole numbers overflow, so every calculation reports its own
overflows. Only +, -, *, /, //, comparisons, bit operations, isinf and lookups are used, and nothing that sums floats,
so results are the same on every processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from quorum_selectors.arithmetic import INT64_MIN, ORDER, admit
from quorum_selectors.batch_columns import APPROXIMATE, BOOLEAN, EXACT, STRING, Array, Bits
from quorum_selectors.block_columns import BlockColumns, StringTable
from quorum_selectors.evaluate import NON_PERSISTENT, PERSISTENT
from quorum_selectors.expression import (
    DURABLE,
    And,
    Arithmetic,
    Comparison,
    DeliveryMode,
    Expression,
    Field,
    FieldValue,
    In,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Not,
    Or,
    Sign,
)
from quorum_selectors.sparse_fields import Run
from quorum_selectors.string_columns import StringColumn, encode_text

Truths = tuple[Bits, Bits]
"""The messages for which a condition is TRUE, and those for which it is FALSE."""

YES, NO = np.ones(1, np.bool_), np.zeros(1, np.bool_)

_NEAR = 2.0**13
"""A product of doubles near 2**63 is off by less than this."""


_SPREAD = 4
"""Strings are copied together if the messages use less than one in _SPREAD of the strings between the first and the
last used one."""


class Texts:
    """Strings of the messages of a mask: codes into a table."""

    __slots__ = ("_laid", "_mask", "codes", "table")

    def __init__(self, mask: Bits, codes: Array, table: StringTable) -> None:
        self._mask = mask
        self.codes = codes
        self.table = table
        self._laid: tuple[StringColumn, Array] | None = None

    @property
    def is_constant(self) -> bool:
        """Whether all messages have the same string."""
        return len(self.codes) == 1

    def first(self) -> str:
        return self.table.text(int(self.codes[0]))

    def laid(self) -> tuple[StringColumn, Array]:
        """The strings side by side, and the row of each message's string; undefined outside of the mask."""
        if self._laid is None:
            mask, codes = self._mask, self.codes.astype(np.int64)
            used = codes[mask] if mask.any() else np.zeros(1, np.int64)
            low, end = int(used.min()), int(used.max()) + 1
            if end - low > _SPREAD * (len(used) + 64):
                used = np.unique(used)
                pieces = [self.table.piece(code) for code in used.tolist()]
                at = np.minimum(np.searchsorted(used, codes), len(used) - 1)
                self._laid = StringColumn.of(pieces), at
            else:
                at = np.where(mask, codes - low, 0)
                self._laid = self.table.lines(low, end), at
        return self._laid

    def where(self, mask: Bits, find: Callable[[StringColumn, Bits | None], Bits]) -> Bits:
        """The messages of the mask whose string `find` selects; `find` need not test strings that are not wanted."""
        left = np.count_nonzero(mask)
        if not left:
            return mask
        lines, at = self.laid()
        wanted = None
        if _SPREAD * left < len(mask):
            wanted = np.zeros(lines.count, np.bool_)
            wanted[np.broadcast_to(at, mask.shape)[mask]] = True
        return mask & find(lines, wanted)[at]

    def equal(self, mask: Bits, text: str) -> Bits:
        """The messages of the mask whose string equals this text."""
        if self._laid is None and _SPREAD * len(mask) >= self.table.count:
            codes = self.table.find(encode_text(text))
            if codes is not None:
                found = np.zeros(len(mask), np.bool_)
                for code in codes:
                    found |= self.codes == code
                return mask & found
        return self.where(mask, lambda lines, wanted: lines.equal(text, wanted))


class Vector:
    """Values of some messages by type: for each type, the messages that have one, and the values."""

    __slots__ = ("approximate", "boolean", "exact", "texts")

    def __init__(self) -> None:
        self.boolean: tuple[Bits, Bits] | None = None
        self.exact: tuple[Bits, Array] | None = None
        self.approximate: tuple[Bits, Array] | None = None
        self.texts: list[tuple[Bits, Texts]] = []

    def masks(self) -> Iterator[Bits]:
        for part in (self.boolean, self.exact, self.approximate, *self.texts):
            if part is not None:
                yield part[0]

    def present(self) -> Bits:
        found = NO
        for mask in self.masks():
            found = found | mask
        return found

    def numbers(self) -> Iterator[tuple[Bits, Array]]:
        for part in (self.exact, self.approximate):
            if part is not None:
                yield part

    def put(self, mask: Bits, value: FieldValue) -> None:
        """Give the messages of the mask this value. They must have none, and the vector must not be shared."""
        if isinstance(value, bool):
            self.boolean = _joined(self.boolean, mask, np.full(1, value))
        elif isinstance(value, int):
            self.exact = _joined(self.exact, mask, np.full(1, value, np.int64))
        elif isinstance(value, float):
            self.approximate = _joined(self.approximate, mask, np.full(1, value, np.float64))
        else:
            table = StringTable()
            table.add(value)
            self.texts.append((mask, Texts(YES, np.zeros(1, np.uint8), table)))


def _joined(part: tuple[Bits, Array] | None, mask: Bits, values: Array) -> tuple[Bits, Array]:
    if part is None:
        return mask, values
    return part[0] | mask, np.where(mask, values, part[1])


def constant(value: FieldValue | None) -> Vector:
    """The vector of a literal."""
    vector = Vector()
    admitted = admit(value)
    if admitted is not None:
        vector.put(YES, admitted)
    return vector


_LAID_AS: dict[type, type] = {bool: np.bool_, int: np.int64, float: np.float64, str: np.uint32}


class Messages:
    """A run of a block's messages, for the expressions evaluated over it: each field is laid out once."""

    __slots__ = ("_block", "_fields", "_first", "count")

    def __init__(self, block: BlockColumns, first: int, count: int) -> None:
        self._block = block
        self._first = first
        self.count = count
        self._fields: dict[str, Vector] = {}

    def field(self, key: str) -> Vector:
        """Every value of this field."""
        vector = self._fields.get(key)
        if vector is None:
            vector = self._fields[key] = self._lay(key)
        return vector

    def field_or(self, key: str, default: FieldValue | None) -> Vector:
        """The same, with `default` where it is absent."""
        return self.field(key) if default is None else _with_default(self.field(key), default)

    def _lay(self, key: str) -> Vector:
        vector = Vector()
        for kind, mask, values, table in self._block.columns(key, self._first, self.count):
            if kind == BOOLEAN:
                vector.boolean = mask, values
            elif kind == EXACT:
                vector.exact = mask, values.astype(np.int64)
            elif kind == APPROXIMATE:
                vector.approximate = mask, values
            elif kind == STRING and table is not None:
                vector.texts.append((mask, Texts(mask, values, table)))
        sparse: dict[type, list[Run]] = {}
        for run in self._block.sparse(key, self._first, self.count):
            sparse.setdefault(type(run[2]), []).append(run)
        for type_, runs in sparse.items():
            self._lay_sparse(vector, type_, runs)
        return vector

    def _lay_sparse(self, vector: Vector, kind: type, runs: list[Run]) -> None:
        """Add values of one type that have no column."""
        mask = np.zeros(self.count, np.bool_)
        table = StringTable()
        values: Array = np.zeros(self.count, _LAID_AS[kind])
        for first, end, value in runs:
            mask[first:end] = True
            values[first:end] = table.add(value) if isinstance(value, str) else value
        if kind is bool:
            vector.boolean = _joined(vector.boolean, mask, values)
        elif kind is int:
            vector.exact = _joined(vector.exact, mask, values)
        elif kind is float:
            vector.approximate = _joined(vector.approximate, mask, values)
        else:
            vector.texts.append((mask, Texts(mask, values, table)))


def select(expression: Expression, messages: Messages) -> Bits:
    """The messages that the expression selects: those for which it is TRUE."""
    return truths(expression, messages)[0]


def truths(expression: Expression, messages: Messages) -> Truths:
    """The messages for which the expression is TRUE, and those for which it is FALSE, a bit for each message."""
    with np.errstate(all="ignore"):
        true, false = _truths(expression, messages)
    shape = (messages.count,)
    return np.broadcast_to(true, shape), np.broadcast_to(false, shape)


# ---- conditions


def _truths(node: Expression, messages: Messages) -> Truths:
    match node:
        case And(operands):
            true, false = _least(operands, messages, decisive=1)
            return true, false
        case Or(operands):
            false, true = _least(operands, messages, decisive=0)
            return true, false
        case Not(operand):
            true, false = _truths(operand, messages)
            return false, true
        case IsTrue(operand):
            true, _ = _truths(operand, messages)
            return true, ~true
        case IsNull(Field(key, default)):
            absent = NO if default is not None else ~messages.field(key).present()
            return absent, ~absent
        case IsNull(operand):
            absent = ~_vector(operand, messages).present()
            return absent, ~absent
        case Comparison(op, left, right):
            return _compare(op, _vector(left, messages), _vector(right, messages))
        case In(operand, values):
            return _string_test(_vector(operand, messages), lambda lines, wanted: lines.among(values, wanted))
        case Like(operand, pattern):
            return _string_test(
                _vector(operand, messages), lambda lines, wanted: lines.match(pattern, wanted)
            )
        case _:
            part = _vector(node, messages).boolean
            return (NO, NO) if part is None else (part[0] & part[1], part[0] & ~part[1])


def _least(operands: tuple[Expression, ...], messages: Messages, decisive: int) -> Truths:
    """(all of them, any of them): TRUE and FALSE of an AND, FALSE and TRUE of an OR."""
    every, some = YES, NO
    for operand in operands:
        found = _truths(operand, messages)
        every = every & found[1 - decisive]
        some = some | found[decisive]
        if some.all():
            break
    return every, some


def _string_test(operand: Vector, find: Callable[[StringColumn, Bits | None], Bits]) -> Truths:
    true = NO
    for mask, texts in operand.texts:
        true = true | texts.where(mask, find)
    return true, operand.present() & ~true


def _compare(op: str, left: Vector, right: Vector) -> Truths:
    """Compare values of like types; where both values are present, every other comparison is FALSE."""
    order = ORDER[op]
    true = NO
    for (first, a), (second, b) in product(left.numbers(), right.numbers()):
        is_mixed = a.dtype != b.dtype
        x, y = (a.astype(np.float64), b.astype(np.float64)) if is_mixed else (a, b)
        true = true | (first & second & order(x, y))
    if op in ("=", "<>"):
        if left.boolean is not None and right.boolean is not None:
            (first, a), (second, b) = left.boolean, right.boolean
            true = true | (first & second & order(a, b))
        for (first, s), (second, t) in product(left.texts, right.texts):
            true = true | _compare_texts(op == "=", first & second, s, t)
    return true, left.present() & right.present() & ~true


def _compare_texts(is_equal: bool, both: Bits, left: Texts, right: Texts) -> Bits:
    if left.is_constant and not right.is_constant:
        left, right = right, left
    if right.is_constant:
        same = left.equal(both, right.first())
    else:
        (lines, at), (others, other_at) = left.laid(), right.laid()
        same = np.zeros(len(both), np.bool_)
        same[both] = lines.same(at[both], others, other_at[both])
    return same if is_equal else both & ~same


# ---- values


def _vector(node: Expression, messages: Messages) -> Vector:
    match node:
        case Literal(value):
            return constant(value)
        case Field(key, default):
            return messages.field_or(key, admit(default))
        case DeliveryMode():
            return _delivery_mode(messages.field(DURABLE))
        case Sign("+", operand):
            return _only_numbers(_vector(operand, messages))
        case Sign(_, operand):
            return _opposite(_vector(operand, messages))
        case Arithmetic(op, left, right):
            return _calculate(op, _vector(left, messages), _vector(right, messages))
        case _:
            true, false = _truths(node, messages)
            vector = Vector()
            vector.boolean = true | false, true
            return vector


def _with_default(field: Vector, default: FieldValue | None) -> Vector:
    absent = ~field.present()
    if default is None or not absent.any():
        return field
    vector = Vector()
    vector.boolean, vector.exact, vector.approximate = field.boolean, field.exact, field.approximate
    vector.texts = list(field.texts)
    vector.put(absent, default)
    return vector


def _delivery_mode(durable: Vector) -> Vector:
    is_durable = NO if durable.boolean is None else durable.boolean[0] & durable.boolean[1]
    vector = Vector()
    vector.put(is_durable, PERSISTENT)
    vector.put(~is_durable, NON_PERSISTENT)
    return vector


def _only_numbers(operand: Vector) -> Vector:
    vector = Vector()
    vector.exact, vector.approximate = operand.exact, operand.approximate
    return vector


def _opposite(operand: Vector) -> Vector:
    vector = Vector()
    if operand.exact is not None:
        mask, values = operand.exact
        vector.exact = mask & (values != INT64_MIN), -values
    if operand.approximate is not None:
        mask, values = operand.approximate
        vector.approximate = mask, -values
    return vector


def _calculate(op: str, left: Vector, right: Vector) -> Vector:
    vector = Vector()
    for (first, a), (second, b) in product(left.numbers(), right.numbers()):
        both = first & second
        if not both.any():
            continue
        if a.dtype == b.dtype == np.int64:
            values, is_good = _exact(op, both, a, b)
            vector.exact = both & is_good, values
        else:
            values, is_good = _approximate(op, a.astype(np.float64), b.astype(np.float64))
            mask = both & is_good
            vector.approximate = _joined(vector.approximate, mask, values)
    return vector


def _exact(op: str, both: Bits, a: Array, b: Array) -> tuple[Array, Bits]:
    """Results, and the messages for which they are valid."""
    if op == "+":
        values = a + b
        return values, ((a ^ values) & (b ^ values)) >= 0
    if op == "-":
        values = a - b
        return values, ((a ^ b) & (a ^ values)) >= 0
    if op == "*":
        return a * b, _fits(both, a, b)
    is_bad = (b == 0) | ((a == INT64_MIN) & (b == -1))
    divisor = np.where(is_bad, 1, b)
    values = a // divisor
    values = values + ((values * divisor != a) & ((a < 0) != (divisor < 0)))
    return values, ~is_bad


def _fits(both: Bits, a: Array, b: Array) -> Bits:
    """The messages whose product has 64 bits. Doubles decide, but near the limit the signs are checked too."""
    size = np.abs(a.astype(np.float64) * b.astype(np.float64))
    found = size < 2.0**63
    near = both & (np.abs(size - 2.0**63) <= _NEAR)
    if near.any():
        found = np.broadcast_to(found, near.shape).copy()
        x, y = (np.broadcast_to(each, near.shape)[near] for each in (a, b))
        # Neither is 0, and the product is off by at most 2**14: had it wrapped around, its sign would be wrong.
        found[near] = (x * y < 0) == ((x < 0) != (y < 0))
    return found


def _approximate(op: str, a: Array, b: Array) -> tuple[Array, Bits]:
    if op == "+":
        values = a + b
    elif op == "-":
        values = a - b
    elif op == "*":
        values = a * b
    else:
        values = a / b
        return values, (b != 0.0) & ~np.isinf(values)
    return values, ~np.isinf(values)
