"""The normal form of an expression, and its bytes: an attach command carries them, and they tell selectors apart.

Normal form (every step is exact under three-valued logic, and a property test checks it):

- NOT is applied only to operands other than AND, OR and NOT (De Morgan holds in Kleene's logic). A negated comparison
  is never reversed, because `NOT (a < 1)` is TRUE and `a >= 1` FALSE where a is a string.
- AND and OR are flat, sorted by their operands' bytes, without repeats; TRUE and FALSE are folded away.
- A part without a field is calculated; an overflow or a division by zero gives the literal NULL.
- A literal is the right operand of a comparison; operands of symmetrical operations are sorted.
- `f IN ('x')` and `f LIKE 'x'` become `f = 'x'`. Within one OR, all IN and = on one field with strings become one IN,
  and likewise their negations within one AND.

Bytes: format number, then the nodes in prefix order, each a tag and its parts. The expression that selects everything
is encoded as no bytes. Decoding checks every length, tag, text and the depth, and allows no bytes left over. It does
not require normal form, because a later version may define that otherwise: old logs stay readable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan

from quorum_selectors import like
from quorum_selectors.arithmetic import INT64_MAX, INT64_MIN, calculate, compare, signed
from quorum_selectors.errors import MAX_DEPTH, EncodingError
from quorum_selectors.expression import (
    EVERYTHING,
    TURNED,
    And,
    Arithmetic,
    Comparison,
    DeliveryMode,
    Expression,
    Field,
    In,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Not,
    Or,
    Sign,
    children,
)
from quorum_selectors.known_fields import APPLICATION, WELL_KNOWN
from quorum_selectors.like import Pattern, Segment

FORMAT = 1
MAX_ENCODED_BYTES = 65536
"""Several times the need of the longest selector."""

_VALUES = (Field, DeliveryMode, Sign, Arithmetic)

# ---- normal form


@dataclass(frozen=True, slots=True)
class _Normal:
    """A node in normal form with its bytes, so that comparing and sorting never encodes twice."""

    node: Expression
    code: bytes


def _check_depth(expression: Expression) -> None:
    level, depth = [expression], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise EncodingError(f"the expression nests deeper than {MAX_DEPTH}")
        level = [child for node in level for child in children(node)]


def _normal(node: Expression, negated: bool) -> _Normal:
    match node:
        case Not(operand):
            return _normal(operand, not negated)
        case And(operands) | Or(operands):
            is_and = isinstance(node, And) != negated
            return _normal_junction(is_and, [_normal(operand, negated) for operand in operands])
        case _:
            leaf = _normal_leaf(node)
            return _negation(leaf) if negated else leaf


def _negation(leaf: _Normal) -> _Normal:
    match leaf.node:
        case Literal(value):
            return _of(Literal(not value if isinstance(value, bool) else None))
        case _:
            return _of(Not(leaf.node))


def _normal_leaf(node: Expression) -> _Normal:
    match node:
        case Sign(op, operand):
            return _normal_sign(op, _normal_value(operand).node)
        case Arithmetic(op, left, right):
            return _normal_arithmetic(op, _normal_value(left), _normal_value(right))
        case Comparison(op, left, right):
            return _normal_comparison(op, _normal_value(left), _normal_value(right))
        case In(operand, values):
            inner = _normal_value(operand).node
            distinct = sorted(set(values), key=_text)
            if len(distinct) == 1:
                return _normal_comparison("=", _of(inner), _of(Literal(distinct[0])))
            return _of(In(inner, tuple(distinct)))
        case Like(operand, pattern):
            inner = _normal_value(operand).node
            text = like.literal_text(pattern)
            if text is not None:
                return _normal_comparison("=", _of(inner), _of(Literal(text)))
            return _of(Like(inner, pattern))
        case IsNull(operand):
            if isinstance(operand, DeliveryMode) or (
                isinstance(operand, Field) and operand.default is not None
            ):
                return _of(Literal(False))
            return _of(IsNull(_normal_value(operand).node))
        case IsTrue(operand):
            inner = _normal(operand, False).node
            if isinstance(inner, IsNull | IsTrue):
                return _of(inner)
            return _of(Literal(inner.value is True)) if isinstance(inner, Literal) else _of(IsTrue(inner))
        case _:
            return _of(node)


def _normal_value(node: Expression) -> _Normal:
    """The normal form of a node that is used for its value, not its truth: a field that was a condition stays one.

    In `(NOT NOT a) = TRUE` the left side is UNKNOWN where a is a number; in `a = TRUE` it is that number.
    """
    normal = _normal(node, False)
    if isinstance(node, Not | And | Or) and isinstance(normal.node, _VALUES):
        return _of(Not(Not(normal.node)))
    return normal


def _normal_sign(op: str, operand: Expression) -> _Normal:
    if isinstance(operand, Literal):
        return _of(Literal(signed(op, operand.value)))
    if op == "+" and isinstance(operand, Sign | Arithmetic):
        return _of(operand)  # a number or NULL already
    return _of(Sign("+" if op == "+" else "-", operand))


def _is_null(node: Expression) -> bool:
    return isinstance(node, Literal) and node.value is None


def _normal_arithmetic(op: str, left: _Normal, right: _Normal) -> _Normal:
    if isinstance(left.node, Literal) and isinstance(right.node, Literal):
        return _of(Literal(calculate(op, left.node.value, right.node.value)))
    if _is_null(left.node) or _is_null(right.node):
        return _of(Literal(None))
    if op in "+*" and right.code < left.code:
        left, right = right, left
    return _of(Arithmetic(op, left.node, right.node))  # type: ignore[arg-type]


def _normal_comparison(op: str, left: _Normal, right: _Normal) -> _Normal:
    if isinstance(left.node, Literal) and isinstance(right.node, Literal):
        return _of(Literal(compare(op, left.node.value, right.node.value)))
    if _is_null(left.node) or _is_null(right.node):
        return _of(Literal(None))
    is_left_literal, is_right_literal = isinstance(left.node, Literal), isinstance(right.node, Literal)
    if is_left_literal or (not is_right_literal and right.code < left.code):
        op, left, right = TURNED[op], right, left
    return _of(Comparison(op, left.node, right.node))  # type: ignore[arg-type]


def _normal_junction(is_and: bool, parts: list[_Normal]) -> _Normal:
    join = And if is_and else Or
    flat: list[_Normal] = []
    for part in parts:
        flat += [_of(node) for node in part.node.operands] if isinstance(part.node, join) else [part]
    distinct: dict[bytes, Expression] = {}
    for part in _merge_strings(is_and, flat):
        if isinstance(part.node, Literal):
            value = part.node.value
            if value is (not is_and):
                return _of(Literal(not is_and))
            if value is not is_and:
                unknown = _of(Literal(None))  # as is a number or a string used as a condition
                distinct[unknown.code] = unknown.node
        else:
            distinct[part.code] = part.node
    if not distinct:
        return _of(Literal(is_and))
    nodes = tuple(distinct[code] for code in sorted(distinct))
    if len(nodes) == 1:
        # A field alone is UNKNOWN where it is no boolean, inside AND or OR and by itself.
        return _of(nodes[0])
    return _of(join(nodes))


def _merge_strings(is_and: bool, parts: list[_Normal]) -> list[_Normal]:
    """Merge the strings that an OR (or an AND, negated) compares with one operand into one IN."""
    merged: dict[bytes, tuple[Expression, list[str]]] = {}
    rest: list[_Normal] = []
    for part in parts:
        node = part.node.operand if is_and and isinstance(part.node, Not) else part.node
        if is_and == isinstance(part.node, Not):
            match node:
                case In(operand, values):
                    merged.setdefault(_of(operand).code, (operand, []))[1].extend(values)
                    continue
                case Comparison("=", operand, Literal(str(value))):
                    merged.setdefault(_of(operand).code, (operand, []))[1].append(value)
                    continue
        rest.append(part)
    for operand, strings in merged.values():
        joined = _normal_leaf(In(operand, tuple(strings)))
        rest.append(_of(Not(joined.node)) if is_and else joined)
    return rest


# ---- encoding

_NULL, _FALSE, _TRUE, _INT, _FLOAT, _STRING = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05
_FIELD, _FIELD_OR, _DELIVERY_MODE = 0x10, 0x11, 0x12
_SIGN, _ARITHMETIC, _COMPARISON = 0x20, 0x21, 0x22
_IN, _LIKE, _IS_NULL, _IS_TRUE = 0x30, 0x31, 0x32, 0x33
_NOT, _AND, _OR = 0x40, 0x41, 0x42

_APPLICATION_FIELD = 0xFF
"""Used instead of a well-known field's number, which is its position in WELL_KNOWN. Names are only ever appended
there."""

_SIGNS = "+-"
_OPERATORS = "+-*/"
_COMPARATORS = ("=", "<>", "<", "<=", ">", ">=")


def encode(expression: Expression) -> bytes:
    """The bytes of an expression's normal form: equal for equal selectors, empty for one that selects everything.

    Raises EncodingError beyond MAX_DEPTH or MAX_ENCODED_BYTES.
    """
    _check_depth(expression)
    normal = _normal(expression, False)
    if normal.node == EVERYTHING and isinstance(normal.node, Literal) and normal.node.value is True:
        return b""
    code = bytes([FORMAT]) + normal.code
    if len(code) > MAX_ENCODED_BYTES:
        raise EncodingError(
            f"the expression needs {len(code)} bytes; at most {MAX_ENCODED_BYTES} are allowed"
        )
    return code


def _of(node: Expression) -> _Normal:
    out = bytearray()
    _write(out, node)
    return _Normal(node, bytes(out))


def _write(out: bytearray, node: Expression) -> None:
    match node:
        case Literal(value):
            _write_literal(out, value)
        case Field(key, default):
            out.append(_FIELD if default is None else _FIELD_OR)
            _write_key(out, key)
            if default is not None:
                _write_literal(out, default)
        case DeliveryMode():
            out.append(_DELIVERY_MODE)
        case Sign(op, operand):
            out += bytes((_SIGN, _SIGNS.index(op)))
            _write(out, operand)
        case Arithmetic(op, left, right):
            out += bytes((_ARITHMETIC, _OPERATORS.index(op)))
            _write(out, left)
            _write(out, right)
        case Comparison(op, left, right):
            out += bytes((_COMPARISON, _COMPARATORS.index(op)))
            _write(out, left)
            _write(out, right)
        case In(operand, values):
            out.append(_IN)
            _write(out, operand)
            _write_size(out, len(values))
            for value in values:
                _write_text(out, value)
        case Like(operand, pattern):
            out.append(_LIKE)
            _write(out, operand)
            _write_pattern(out, pattern)
        case IsNull(operand) | IsTrue(operand) | Not(operand):
            out.append(
                _IS_NULL if isinstance(node, IsNull) else _IS_TRUE if isinstance(node, IsTrue) else _NOT
            )
            _write(out, operand)
        case And(operands) | Or(operands):
            out.append(_AND if isinstance(node, And) else _OR)
            _write_size(out, len(operands))
            for operand in operands:
                _write(out, operand)


def _write_literal(out: bytearray, value: object) -> None:
    if value is None:
        out.append(_NULL)
    elif type(value) is bool:
        out.append(_TRUE if value else _FALSE)
    elif type(value) is int and INT64_MIN <= value <= INT64_MAX:
        out.append(_INT)
        out += value.to_bytes(8, "big", signed=True)
    elif type(value) is float:
        out.append(_FLOAT)
        # One zero and one NaN: no operator tells them apart.
        out += struct.pack(">d", nan if isnan(value) else value + 0.0)
    elif type(value) is str:
        out.append(_STRING)
        _write_text(out, value)
    else:
        raise EncodingError(f"no literal of a selector: {type(value)!s}")


def _write_key(out: bytearray, key: str) -> None:
    if key.startswith(APPLICATION):
        out.append(_APPLICATION_FIELD)
        _write_text(out, key[len(APPLICATION) :])
    elif key in WELL_KNOWN:
        out.append(WELL_KNOWN.index(key))
    else:
        raise EncodingError(f"no field key: {key!r}")


def _write_pattern(out: bytearray, pattern: Pattern) -> None:
    _write_size(out, len(pattern))
    for segment in pattern:
        _write_size(out, len(segment))
        for run in segment:
            if isinstance(run, int):
                out.append(_INT)
                _write_size(out, run)
            else:
                out.append(_STRING)
                _write_text(out, run)


def _write_text(out: bytearray, text: str) -> None:
    code = _text(text)
    _write_size(out, len(code))
    out += code


def _text(text: str) -> bytes:
    # Lone surrogates can come in through JSON; they are kept, so that every selector has an encoding.
    return text.encode("utf-8", "surrogatepass")


def _write_size(out: bytearray, size: int) -> None:
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)


# ---- decoding


def decode(data: bytes | memoryview) -> Expression:
    """The expression of these bytes. Raises EncodingError for anything that `encode` would not write."""
    code = bytes(data[: MAX_ENCODED_BYTES + 1])
    if not code:
        return EVERYTHING
    if len(code) > MAX_ENCODED_BYTES:
        raise EncodingError(f"an encoded expression has at most {MAX_ENCODED_BYTES} bytes")
    if code[0] != FORMAT:
        raise EncodingError(f"unknown format {code[0]} of an expression; known: {FORMAT}")
    reader = _Reader(code, 1)
    expression = reader.node(1)
    if reader.position != len(code):
        raise EncodingError(f"{len(code) - reader.position} bytes are left over after the expression")
    return expression


class _Reader:
    """Reads nodes in order. Every read is checked against the remaining bytes."""

    def __init__(self, code: bytes, position: int) -> None:
        self.code = code
        self.position = position

    def node(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise self.wrong(f"nests deeper than {MAX_DEPTH}")
        tag = self.byte()
        if tag <= _STRING:
            return Literal(self.literal(tag))
        if tag == _FIELD:
            return Field(self.key())
        if tag == _FIELD_OR:
            key, default = self.key(), self.literal(self.byte())
            if default is None:
                raise self.wrong("has a field whose default is NULL")
            return Field(key, default)
        if tag == _DELIVERY_MODE:
            return DeliveryMode()
        reader = _NODES.get(tag)
        if reader is None:
            raise self.wrong(f"has an unknown tag {tag:#x}")
        return reader(self, depth + 1)

    def sign(self, depth: int) -> Expression:
        return Sign("+" if self.choice(_SIGNS) == "+" else "-", self.node(depth))

    def arithmetic(self, depth: int) -> Expression:
        return Arithmetic(self.choice(_OPERATORS), self.node(depth), self.node(depth))  # type: ignore[arg-type]

    def comparison(self, depth: int) -> Expression:
        return Comparison(self.choice(_COMPARATORS), self.node(depth), self.node(depth))  # type: ignore[arg-type]

    def in_list(self, depth: int) -> Expression:
        operand = self.node(depth)
        values = tuple(self.text() for _ in range(self.size(2)))
        if any(_text(a) >= _text(b) for a, b in pairwise(values)):
            raise self.wrong("has an IN whose values are not sorted")
        return In(operand, values)

    def like(self, depth: int) -> Expression:
        operand = self.node(depth)
        pattern: Pattern = tuple(self.segment() for _ in range(self.size(1)))
        if not like.is_pattern(pattern):
            raise self.wrong("has a LIKE whose pattern is malformed")
        return Like(operand, pattern)

    def segment(self) -> Segment:
        runs: list[str | int] = []
        for _ in range(self.size(0)):
            kind = self.byte()
            if kind not in (_INT, _STRING):
                raise self.wrong(f"has an unknown part {kind:#x} in a pattern")
            runs.append(self.number(MAX_ENCODED_BYTES) if kind == _INT else self.text())
        return tuple(runs)

    def is_null(self, depth: int) -> Expression:
        return IsNull(self.node(depth))

    def is_true(self, depth: int) -> Expression:
        return IsTrue(self.node(depth))

    def negation(self, depth: int) -> Expression:
        return Not(self.node(depth))

    def conjunction(self, depth: int) -> Expression:
        return And(tuple(self.node(depth) for _ in range(self.size(2))))

    def disjunction(self, depth: int) -> Expression:
        return Or(tuple(self.node(depth) for _ in range(self.size(2))))

    def literal(self, tag: int) -> bool | int | float | str | None:
        if tag == _NULL:
            return None
        if tag in (_FALSE, _TRUE):
            return tag == _TRUE
        if tag == _INT:
            return int.from_bytes(self.bytes(8), "big", signed=True)
        if tag == _FLOAT:
            value: float = struct.unpack(">d", self.bytes(8))[0]
            return value
        if tag == _STRING:
            return self.text()
        raise self.wrong(f"has an unknown literal {tag:#x}")

    def key(self) -> str:
        number = self.byte()
        if number == _APPLICATION_FIELD:
            return APPLICATION + self.text()
        if number >= len(WELL_KNOWN):
            raise self.wrong(f"has an unknown field {number}")
        return WELL_KNOWN[number]

    def choice(self, choices: str | tuple[str, ...]) -> str:
        number = self.byte()
        if number >= len(choices):
            raise self.wrong(f"has an unknown operator {number}")
        return choices[number]

    def text(self) -> str:
        code = self.bytes(self.size(0))
        try:
            return code.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self.wrong("has a text that is not UTF-8") from error

    def size(self, least: int) -> int:
        """The number of bytes or parts that follow; each part has at least one byte."""
        size = self.number(len(self.code) - self.position)
        if size < least:
            raise self.wrong(f"has {size} parts where at least {least} are required")
        return size

    def number(self, most: int) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise self.wrong("has a number of too many bytes")
        if shift and not byte:
            raise self.wrong("has a number with needless bytes")
        if value > most:
            raise self.wrong(f"has a number {value} above {most}")
        return value

    def byte(self) -> int:
        return self.bytes(1)[0]

    def bytes(self, size: int) -> bytes:
        part = self.code[self.position : self.position + size]
        if len(part) != size:
            raise self.wrong("ends too early")
        self.position += size
        return part

    def wrong(self, what: str) -> EncodingError:
        return EncodingError(f"at byte {self.position} the encoded expression {what}")


_NODES: dict[int, Callable[[_Reader, int], Expression]] = {
    _SIGN: _Reader.sign,
    _ARITHMETIC: _Reader.arithmetic,
    _COMPARISON: _Reader.comparison,
    _IN: _Reader.in_list,
    _LIKE: _Reader.like,
    _IS_NULL: _Reader.is_null,
    _IS_TRUE: _Reader.is_true,
    _NOT: _Reader.negation,
    _AND: _Reader.conjunction,
    _OR: _Reader.disjunction,
}
