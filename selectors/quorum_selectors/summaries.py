"""The values of a block's fields in few bytes, and which expressions they rule out (a zone map).

For each key and type a summary has:

- numbers: the least and the greatest;
- booleans: which of the two occur;
- strings: all of them if they are few; otherwise the least and the greatest beginning and, up to DIGEST_STRINGS of
  them, a bit for each string's hash;
- whether every message has the key.

A summary may cover more messages than are left in the block: it is true of fewer messages, too.

Only keys with a column are summarised. A key is left out if any value of it is in the block's sparse table, even if
other values of it have columns. Nothing is known of a key that is left out.

`may_match` walks an expression with the *set* of truths it can have for any message of the block. It is False only if
TRUE is not among them. Parts that it does not know (arithmetic, two fields compared) may have any truth. LIKE is
evaluated where all strings are known.

Equal fields give equal bytes. A summary is local: a member that drops it only reads more. So everything depends on one
rule: a summary never rules out a match. One member evaluates a block, another one skips it by its summary, and both
must deliver the same messages. Under that rule a summary decides nothing that is replicated: scan positions, steps and
budgets are charged for a skipped block as for any other.

Format 1 broke the rule: it said of a key with a column that all its values were there. Its summaries are in the
checkpoints of members that ran an earlier build. They are not corrected but ignored (`trusted`): the block is read once
and summarised again, and until then the member only does more work. The machine version has no part in this, because
the error never was a function of state and entry: for the same entry, members that had the columns delivered the
message, and members that did not have them skipped it. Every entry, of version 1 as well, is now applied as by a member
that had the columns. A member that ran the earlier build may already have parted from the others; running hashes show
that.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quorum_selectors import like
from quorum_selectors.arithmetic import admit
from quorum_selectors.batch_columns import APPROXIMATE, BOOLEAN, EXACT
from quorum_selectors.block_columns import BlockColumns, StringTable
from quorum_selectors.expression import (
    DURABLE,
    TURNED,
    And,
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
    Truth,
)

FEW_STRINGS = 32
FEW_BYTES = 512
"""A key's different strings are all kept if there are at most FEW_STRINGS of them, with at most FEW_BYTES bytes
together."""
DIGEST_STRINGS = 2_048
DIGEST_BITS = 8_192
"""Up to DIGEST_STRINGS strings are told apart by their hashes, in DIGEST_BITS bits. With one in four bits set, three of
four other strings are ruled out."""
BOUND_BYTES = 24
"""Bytes kept of the least and of the greatest string."""
SUMMARY_BYTES = 4_096
"""Maximum size of a summary: a quarter of a byte for each message of a block. Keys beyond it are left out, as if
nothing were known of them."""

FORMAT = 2
"""The first byte of a summary. In format 1 it was 0 or 1, as the second byte is now."""

_ALWAYS, _EXACT, _APPROXIMATE, _NAN, _FALSE, _TRUE, _STRINGS, _ALL_STRINGS = (1 << bit for bit in range(8))

Truths = frozenset[Truth]
_ANY: Truths = frozenset({True, False, None})
_UNKNOWN: Truths = frozenset({None})
_NO: Truths = frozenset({False})


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of a key. all: sorted UTF-8, None if there are too many; then bounds, and bits (none: hashes tell
    nothing)."""

    all: tuple[bytes, ...] | None
    low: bytes = b""
    high: bytes = b""
    bits: bytes = b""

    def may_have(self, text: str) -> bool:
        piece = text.encode("utf-8", "surrogatepass")
        if self.all is not None:
            return piece in self.all
        if not self.low <= piece[:BOUND_BYTES] <= self.high:
            return False
        place = zlib.crc32(piece) % DIGEST_BITS
        return not self.bits or bool(self.bits[place >> 3] >> (place & 7) & 1)


@dataclass(slots=True)
class Values:
    """Values of one key. always: every message has the key."""

    always: bool = False
    exact: tuple[int, int] | None = None
    approximate: tuple[float, float] | None = None
    has_nan: bool = False
    booleans: frozenset[bool] = frozenset()
    strings: Strings | None = None


@dataclass(slots=True)
class Summary:
    """The summary of a block. is_complete: no message has a key that is not in here."""

    is_complete: bool
    keys: dict[str, Values] = field(default_factory=dict)


# ---- making


def summarise(columns: BlockColumns, live: npt.NDArray[np.bool_]) -> bytes:
    """The summary of the messages in the slots that `live` marks. The columns must hold all of them."""
    sparse = columns.sparse_keys()
    is_complete = not sparse
    total = int(np.count_nonzero(live))
    parts: list[bytes] = []
    size = 0
    for key in sorted(columns.dense_keys()):
        if key in sparse:
            continue
        found = _values(columns, key, live, total)
        if found is None:
            continue
        part = _encode(key, found)
        size += len(part)
        if size > SUMMARY_BYTES:
            is_complete = False
            break
        parts.append(part)
    return bytes([FORMAT, is_complete]) + b"".join(parts)


def _values(columns: BlockColumns, key: str, live: npt.NDArray[np.bool_], total: int) -> Values | None:
    found, count = Values(), 0
    for kind, values, dictionary in columns.present(key, live):
        count += len(values)
        if kind == BOOLEAN:
            found.booleans = frozenset(np.unique(values).tolist())
        elif kind == EXACT:
            found.exact = int(values.min()), int(values.max())
        elif kind == APPROXIMATE:
            is_nan = np.isnan(values)
            found.has_nan = bool(is_nan.any())
            if not is_nan.all():
                rest = values[~is_nan]
                found.approximate = float(rest.min()) + 0.0, float(rest.max()) + 0.0  # 0.0 and -0.0 are equal
        elif dictionary is not None:
            found.strings = _strings(dictionary, np.unique(values))
    found.always = count == total
    return found if count else None


def _strings(dictionary: StringTable, codes: npt.NDArray[np.generic]) -> Strings:
    if len(codes) <= DIGEST_STRINGS:
        pieces = sorted(set(map(dictionary.piece, codes.tolist())))
        if len(pieces) <= FEW_STRINGS and sum(map(len, pieces)) <= FEW_BYTES:
            return Strings(tuple(pieces))
        bits = bytearray(DIGEST_BITS >> 3)
        for piece in pieces:
            place = zlib.crc32(piece) % DIGEST_BITS
            bits[place >> 3] |= 1 << (place & 7)
        return Strings(None, pieces[0][:BOUND_BYTES], pieces[-1][:BOUND_BYTES], bytes(bits))
    starts, ends, blob = dictionary.bounds(codes)
    return Strings(None, _bound(starts, ends, blob, np.min), _bound(starts, ends, blob, np.max))


def _bound(
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    blob: npt.NDArray[np.uint8],
    pick: Callable[[npt.NDArray[np.int16]], np.int16],
) -> bytes:
    """The beginning of the least or the greatest of many strings, letter by letter among the remaining candidates."""
    found = bytearray()
    for _ in range(BOUND_BYTES):
        letters = np.full(len(starts), -1, np.int16)  # the end comes before any letter
        inside = starts < ends
        letters[inside] = blob[starts[inside]]
        chosen = pick(letters)
        if chosen < 0:
            break
        found.append(int(chosen))
        rest = letters == chosen
        starts, ends = starts[rest] + 1, ends[rest]
    return bytes(found)


# ---- bytes

_KEY = struct.Struct("<HB")
_LENGTH = struct.Struct("<H")
_NUMBERS = struct.Struct("<qq")
_DOUBLES = struct.Struct("<dd")


def _encode(key: str, values: Values) -> bytes:
    name = key.encode("utf-8", "surrogatepass")
    strings = values.strings
    flags = (
        _ALWAYS * values.always
        | _EXACT * (values.exact is not None)
        | _APPROXIMATE * (values.approximate is not None)
        | _NAN * values.has_nan
        | _FALSE * (False in values.booleans)
        | _TRUE * (True in values.booleans)
        | _STRINGS * (strings is not None)
        | _ALL_STRINGS * (strings is not None and strings.all is not None)
    )
    out = [_KEY.pack(len(name), flags), name]
    if values.exact is not None:
        out.append(_NUMBERS.pack(*values.exact))
    if values.approximate is not None:
        out.append(_DOUBLES.pack(*values.approximate))
    if strings is not None:
        pieces = strings.all if strings.all is not None else (strings.low, strings.high, strings.bits)
        out.append(bytes([len(pieces)]))
        for piece in pieces:
            out += (_LENGTH.pack(len(piece)), piece)
    return b"".join(out)


def trusted(data: bytes) -> bytes:
    """The bytes of a stored summary; empty, as if nothing were known, if they have another format."""
    return data if data[:1] == bytes([FORMAT]) else b""


def decode(data: bytes) -> Summary:
    """The summary of bytes that `summarise` has made; other bytes are not checked."""
    summary = Summary(bool(data[1]))
    at = 2
    while at < len(data):
        length, flags = _KEY.unpack_from(data, at)
        at += _KEY.size
        key = data[at : at + length].decode("utf-8", "surrogatepass")
        at += length
        values = summary.keys[key] = Values(always=bool(flags & _ALWAYS), has_nan=bool(flags & _NAN))
        if flags & _EXACT:
            values.exact = _NUMBERS.unpack_from(data, at)
            at += _NUMBERS.size
        if flags & _APPROXIMATE:
            values.approximate = _DOUBLES.unpack_from(data, at)
            at += _DOUBLES.size
        values.booleans = frozenset(value for value, bit in ((False, _FALSE), (True, _TRUE)) if flags & bit)
        if flags & _STRINGS:
            pieces = []
            count = data[at]
            at += 1
            for _ in range(count):
                (length,) = _LENGTH.unpack_from(data, at)
                at += _LENGTH.size
                pieces.append(data[at : at + length])
                at += length
            values.strings = Strings(tuple(pieces)) if flags & _ALL_STRINGS else Strings(None, *pieces)
    return summary


# ---- asking


def may_match(expression: Expression, summary: Summary) -> bool:
    """Whether the expression may be TRUE for a message of the block; False only if that is impossible."""
    return True in _truths(expression, summary)


def _truths(node: Expression, summary: Summary) -> Truths:
    """Every truth that the node may have for a message of the block, and perhaps some more."""
    match node:
        case And(operands):
            return _least(False, [_truths(operand, summary) for operand in operands])
        case Or(operands):
            return _least(True, [_truths(operand, summary) for operand in operands])
        case Not(operand):
            return frozenset(None if truth is None else not truth for truth in _truths(operand, summary))
        case IsTrue(operand):
            return frozenset(truth is True for truth in _truths(operand, summary))
        case IsNull(Field(key, default)):
            return _is_null(summary, key, default)
        case In(Field(key, default), values):
            return _string_truths(summary, key, default, lambda text: text in values, values)
        case Like(Field(key, default), pattern):
            return _string_truths(summary, key, default, like.compile_pattern(pattern), None)
        case Comparison(op, Field(key, default), Literal(value)):
            return _comparison(summary, op, key, default, value)
        case Comparison(op, Literal(value), Field(key, default)):
            return _comparison(summary, TURNED[op], key, default, value)
        case Comparison("=" | "<>" as op, DeliveryMode(), Literal(str() as value)):
            return _delivery_mode(summary, op, value)
        case Literal(value):
            return frozenset({value if isinstance(value, bool) else None})
        case Field(key, default):
            return _condition(summary, key, default)
        case _:
            return _ANY


def _least(decisive: bool, parts: list[Truths]) -> Truths:
    """The truths of AND (decisive False) or OR (decisive True), over all combinations of the parts' truths."""
    otherwise = not decisive
    found: set[Truth] = set()
    if any(decisive in part for part in parts):
        found.add(decisive)
    if all(otherwise in part for part in parts):
        found.add(otherwise)
    if any(None in part for part in parts) and all(part != {decisive} for part in parts):
        found.add(None)
    return frozenset(found)


def _known(summary: Summary, key: str) -> Values | None:
    """The values of a key; None if nothing is known, empty if no message has the key."""
    found = summary.keys.get(key)
    if found is None and summary.is_complete:
        return Values()
    return found


def _is_null(summary: Summary, key: str, default: FieldValue | None) -> Truths:
    values = _known(summary, key)
    if default is not None:
        return _NO
    if values is None:
        return frozenset({True, False})
    if values.always:
        return _NO
    return frozenset({True}) if values == Values() else frozenset({True, False})


def _condition(summary: Summary, key: str, default: FieldValue | None) -> Truths:
    """The truths of a field that is used as a condition."""
    values = _known(summary, key)
    if values is None:
        return _ANY
    found: set[Truth] = set(values.booleans)
    if values.exact is not None or values.approximate is not None or values.has_nan or values.strings:
        found.add(None)
    if not values.always:
        found.add(default if isinstance(default, bool) else None)
    return frozenset(found)


def _string_truths(
    summary: Summary,
    key: str,
    default: FieldValue | None,
    test: Callable[[str], bool],
    wanted: tuple[str, ...] | None,
) -> Truths:
    """The truths of a test of strings. wanted: the only strings for which the test is TRUE."""
    values = _known(summary, key)
    if values is None:
        return _ANY
    found: set[Truth] = set()
    if not values.always:
        found.add(_of_default(default, lambda value: type(value) is str and test(value)))
    if values.exact is not None or values.approximate is not None or values.has_nan or values.booleans:
        found.add(False)
    strings = values.strings
    if strings is not None and strings.all is not None:
        found.update(test(piece.decode("utf-8", "surrogatepass")) for piece in strings.all)
    elif strings is not None:
        found.add(False)
        if wanted is None or any(strings.may_have(text) for text in wanted):
            found.add(True)
    return frozenset(found)


def _of_default(default: FieldValue | None, test: Callable[[FieldValue], Truth]) -> Truth:
    """The truth for a message without the field."""
    value = admit(default)
    return None if value is None else test(value)


def _comparison(
    summary: Summary, op: str, key: str, default: FieldValue | None, raw: FieldValue | None
) -> Truths:
    literal = admit(raw)
    if literal is None:
        return _UNKNOWN
    values = _known(summary, key)
    if values is None:
        return _ANY
    found: set[Truth] = set()
    if not values.always:
        if default is not None:
            return _ANY
        found.add(None)
    is_number = type(literal) is int or type(literal) is float
    if values.exact is not None:
        if not is_number:
            found.add(False)
        else:
            low, high = values.exact
            found |= (
                _order(op, low, high, literal)
                if type(literal) is int
                else _order(op, float(low), float(high), literal)
            )
    if values.approximate is not None:
        found |= _order(op, *values.approximate, float(literal)) if is_number else _NO
    if values.has_nan:
        found.add(is_number and op == "<>")
    if values.booleans:
        if type(literal) is bool and op in ("=", "<>"):
            found.update((value == literal) == (op == "=") for value in values.booleans)
        else:
            found.add(False)
    strings = values.strings
    if strings is not None:
        if type(literal) is not str or op not in ("=", "<>"):
            found.add(False)
        else:
            is_there = strings.may_have(literal)
            is_alone = strings.all is not None and len(strings.all) == 1 and is_there
            if is_there:
                found.add(op == "=")
            if not is_alone:
                found.add(op == "<>")
    return frozenset(found)


def _order(op: str, low: float, high: float, literal: float) -> Truths:
    """The truths of comparing any number from low to high with a literal; a NaN literal may give any of them."""
    if math.isnan(literal):
        return _ANY
    match op:
        case "=" | "<>":
            holds, fails = low <= literal <= high, not low == high == literal
            if op == "<>":
                holds, fails = fails, holds
        case "<":
            holds, fails = low < literal, high >= literal
        case "<=":
            holds, fails = low <= literal, high > literal
        case ">":
            holds, fails = high > literal, low <= literal
        case _:
            holds, fails = high >= literal, low < literal
    return frozenset(truth for truth, is_possible in ((True, holds), (False, fails)) if is_possible)


def _delivery_mode(summary: Summary, op: str, literal: str) -> Truths:
    """The truths of JMSDeliveryMode: PERSISTENT if header.durable is true, else NON_PERSISTENT."""
    values = _known(summary, DURABLE)
    modes = {"PERSISTENT", "NON_PERSISTENT"}
    if values is not None and True not in values.booleans:
        modes = {"NON_PERSISTENT"}
    elif values is not None and values.always and values == Values(always=True, booleans=frozenset({True})):
        modes = {"PERSISTENT"}
    return frozenset((mode == literal) == (op == "=") for mode in modes)
