"""The filter fields of one batch: how they are written to bytes and read.

    batch       format u8, flags u8 (1: all messages share one row), columns u16, messages u32, then the columns
    column      kind u8, width u8 (with the bit 0x80: some rows have no value), key length u16, values u32, key,
                [mask], [dictionary], values
    mask        one bit a row, the lowest first; absent when every row has a value
    dictionary  strings u32, bytes u32, for each string the position of its end in the bytes u32, the bytes (UTF-8)
    values      only of rows that have one: numbers of `width` bytes, booleans as bits, strings as codes of
                `width` bytes

Everything is little-endian; columns are sorted by key, then kind. Exact numbers take the narrowest of 1, 2, 4, 8 bytes
that holds them all. A batch without any field is encoded as no bytes.

Encoding makes a few passes over each column; most of them run in C. Reading makes a few numpy calls for each column and
none for each message. A batch with one row, shared or not, has the same format, but it is encoded and decoded without
numpy, because numpy's calls would cost more than they save. A batch of at most FEW_ROWS rows is also decoded without
numpy, into lists. `decode` checks everything: foreign bytes either are valid columns or raise ColumnsError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quorum_selectors.errors import ColumnsError
from quorum_selectors.expression import FieldValue

FORMAT = 1
SHARED = 1
PARTIAL = 0x80

BOOLEAN, EXACT, APPROXIMATE, STRING = range(4)
KINDS: dict[type, int] = {bool: BOOLEAN, int: EXACT, float: APPROXIMATE, str: STRING}
ARRAY_TYPES: dict[int, Any] = {BOOLEAN: np.bool_, EXACT: np.int64, APPROXIMATE: np.float64, STRING: np.uint32}
"""kind -> type of an array of its values; for strings, of their codes"""
INTEGER_TYPES: tuple[Any, ...] = (np.int8, np.int16, np.int32, np.int64)
CODE_TYPES: tuple[Any, ...] = (np.uint8, np.uint16, np.uint32)

_BATCH = struct.Struct("<BBHI")
_COLUMN = struct.Struct("<BBHI")
_SIZES = struct.Struct("<II")
_END = struct.Struct("<I")
_DOUBLE = struct.Struct("<d")

_INTS = {1: "<i1", 2: "<i2", 4: "<i4", 8: "<i8"}
_CODES = {1: "<u1", 2: "<u2", 4: "<u4"}
_LETTERS = {1: "b", 2: "h", 4: "i", 8: "q"}
"""The letters of these widths for `struct`; in capitals they have no sign."""

FEW_ROWS = 8
"""Up to this number of rows, columns are read into lists and copied to a block value by value. For so few rows, numpy's
calls would cost more."""

MAX_KEY_BYTES = 0xFFFF
MAX_COLUMNS = 0xFFFF

NUMBER_BYTES = 9
"""Size of a number in a block: eight bytes and its bit in the mask."""
STRING_BYTES = 8
"""Overhead of a string beside its bytes: its code, its end in the dictionary, its bit in the mask."""

Array = NDArray[Any]
Bits = NDArray[np.bool_]
Values = list[FieldValue | None]


def estimate_size(row: Mapping[str, FieldValue]) -> int:
    """Bytes of memory that one message's fields need, names included, if no other message has the same names
    or texts."""
    size = 0
    for key, value in row.items():
        if value is None:
            continue
        name = key[key.find(".") + 1 :]  # the part before the dot names the section, not the field
        size += len(name.encode("utf-8", "surrogatepass"))
        if isinstance(value, str):
            size += STRING_BYTES + (
                len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
            )
        else:
            size += NUMBER_BYTES
    return size


# ---- encoding


def encode(rows: Sequence[Mapping[str, FieldValue]]) -> bytes:
    """The columns of these rows. Raises ColumnsError for a value that no field can have."""
    if len(rows) == 1:
        return encode_shared(rows[0], 1)
    columns = [_encode_column(*column) for column in _split(rows)]
    if len(rows) > 1 and columns and all(column.is_constant for column in columns):
        return encode_shared(rows[0], len(rows))
    return _join(len(rows), 0, columns)


def encode_shared(row: Mapping[str, FieldValue], count: int) -> bytes:
    """The columns of `count` messages that all have the fields of `row`. They are encoded once, so they take the
    time and the bytes of one message."""
    columns = [_Encoded(_encode_value(key, row[key]), True) for key in sorted(row) if row[key] is not None]
    return _join(count, SHARED if count > 1 else 0, columns)


@dataclass(frozen=True, slots=True)
class _Encoded:
    code: bytes
    is_constant: bool
    """Whether every row has a value, and all values are the same."""


def _join(count: int, flags: int, columns: list[_Encoded]) -> bytes:
    if not columns or not count:
        return b""
    if len(columns) > MAX_COLUMNS:
        raise ColumnsError(f"a batch has {len(columns)} filter fields; at most {MAX_COLUMNS} are allowed")
    header = _BATCH.pack(FORMAT, flags, len(columns), count)
    return b"".join([header, *(column.code for column in columns)])


def _split(rows: Sequence[Mapping[str, FieldValue]]) -> Iterator[tuple[str, int, list[Any], Bits | None]]:
    """Yield (key, kind, values, mask of rows that have one; None for all) for each column, in order."""
    if not rows:
        return
    gathered: dict[str, tuple[list[Any], list[int] | None]] = {}
    keys = rows[0].keys()
    if all(row.keys() == keys for row in rows):
        gathered = {key: ([row[key] for row in rows], None) for key in keys}
    else:
        for ordinal, row in enumerate(rows):
            for key, value in row.items():
                values, ordinals = gathered.setdefault(key, ([], []))
                values.append(value)
                ordinals.append(ordinal)  # type: ignore[union-attr]
    for key in sorted(gathered):
        values, ordinals = gathered[key]
        if ordinals is not None and len(ordinals) == len(rows):
            ordinals = None
        yield from _split_kinds(key, values, ordinals, len(rows))


def _split_kinds(
    key: str, values: list[Any], ordinals: list[int] | None, count: int
) -> Iterator[tuple[str, int, list[Any], Bits | None]]:
    kinds = set(map(type, values))
    if len(kinds) == 1 and (kind := KINDS.get(next(iter(kinds)))) is not None:
        yield key, kind, values, None if ordinals is None else _mask(ordinals, count)
        return
    parts: dict[int, tuple[list[Any], list[int]]] = {}
    for ordinal, value in zip(range(count) if ordinals is None else ordinals, values, strict=True):
        if value is None:
            continue
        kind = KINDS.get(type(value))
        if kind is None:
            raise ColumnsError(f"field {key!r}: a field cannot hold a {type(value).__name__}")
        part_values, part_ordinals = parts.setdefault(kind, ([], []))
        part_values.append(value)
        part_ordinals.append(ordinal)
    for kind in sorted(parts):
        part_values, part_ordinals = parts[kind]
        yield key, kind, part_values, None if len(part_values) == count else _mask(part_ordinals, count)


def _mask(ordinals: list[int], count: int) -> Bits:
    mask = np.zeros(count, np.bool_)
    mask[ordinals] = True
    return mask


def _encode_column(key: str, kind: int, values: list[Any], mask: Bits | None) -> _Encoded:
    dictionary = b""
    if kind == STRING:
        width, dictionary, array, is_constant = _encode_strings(values)
    elif kind == EXACT:
        width, array = _narrow(key, values)
        is_constant = bool((array == array[0]).all())
    elif kind == APPROXIMATE:
        width, array = 8, np.array(values, "<f8")
        as_bits = array.view("<u8")
        is_constant = bool((as_bits == as_bits[0]).all())
    else:
        width, array = 0, np.packbits(np.array(values, np.bool_), bitorder="little")
        is_constant = all(value is values[0] for value in values)
    name = _encode_key(key)
    head = _COLUMN.pack(kind, width | (PARTIAL if mask is not None else 0), len(name), len(values))
    bits = b"" if mask is None else np.packbits(mask, bitorder="little").tobytes()
    return _Encoded(head + name + bits + dictionary + array.tobytes(), is_constant and mask is None)


def _encode_key(key: str) -> bytes:
    name = key.encode("utf-8", "surrogatepass")
    if not 0 < len(name) <= MAX_KEY_BYTES:
        raise ColumnsError(f"a field key has {len(name)} bytes; 1..{MAX_KEY_BYTES} are allowed")
    return name


def _encode_value(key: str, value: FieldValue) -> bytes:
    """The column of a single row, without numpy, which would cost more."""
    kind = KINDS.get(type(value))
    if kind is None:
        raise ColumnsError(f"field {key!r}: a field cannot hold a {type(value).__name__}")
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        width, body = 1, b"".join((_SIZES.pack(1, len(text)), _END.pack(len(text)), text, b"\0"))
    elif kind == BOOLEAN:
        width, body = 0, b"\1" if value else b"\0"
    elif kind == APPROXIMATE:
        width, body = 8, _DOUBLE.pack(value)
    else:
        number = int(value)
        for width in _INTS:
            if -(1 << (8 * width - 1)) <= number < 1 << (8 * width - 1):
                break
        else:
            raise ColumnsError(f"field {key!r}: a whole number is beyond 64 bits")
        body = number.to_bytes(width, "little", signed=True)
    name = _encode_key(key)
    return b"".join((_COLUMN.pack(kind, width, len(name), 1), name, body))


def _narrow(key: str, values: list[int]) -> tuple[int, Array]:
    try:
        array = np.array(values, np.int64)
    except OverflowError:
        raise ColumnsError(f"field {key!r}: a whole number is beyond 64 bits") from None
    low, high = int(array.min()), int(array.max())
    width = next(width for width in _INTS if -(1 << (8 * width - 1)) <= low and high < 1 << (8 * width - 1))
    return width, array.astype(_INTS[width])


def _encode_strings(values: list[str]) -> tuple[int, bytes, Array, bool]:
    """Return (width of a code, dictionary, codes, whether there is only one string)."""
    codes = {text: code for code, text in enumerate(dict.fromkeys(values))}
    blob = "".join(codes).encode("utf-8", "surrogatepass")
    if blob.isascii():
        lengths = [len(text) for text in codes]
    else:
        lengths = [len(text.encode("utf-8", "surrogatepass")) for text in codes]
    ends = np.cumsum(lengths, dtype=np.uint64)
    if ends[-1] > 0xFFFFFFFF:
        raise ColumnsError(f"the strings of a column have {ends[-1]} bytes; at most {0xFFFFFFFF} are allowed")
    width = 1 if len(codes) <= 0x100 else 2 if len(codes) <= 0x10000 else 4
    array = np.fromiter(map(codes.__getitem__, values), _CODES[width], len(values))
    dictionary = _SIZES.pack(len(codes), len(blob)) + ends.astype("<u4").tobytes() + blob
    return width, dictionary, array, len(codes) == 1


# ---- reading


@dataclass(frozen=True, slots=True)
class Strings:
    """The distinct strings of a column, concatenated."""

    ends: NDArray[np.uint32]
    blob: bytes

    @property
    def longest(self) -> int:
        """Length in bytes of the longest string."""
        ends = self.ends
        longest = int(ends[0])
        return max(longest, int(np.maximum.reduce(ends[1:] - ends[:-1]))) if len(ends) > 1 else longest

    def text(self, code: int) -> str:
        start = int(self.ends[code - 1]) if code else 0
        return self.blob[start : self.ends[code]].decode("utf-8", "surrogatepass")

    def pieces(self) -> list[bytes]:
        ends = self.ends.tolist()
        return [self.blob[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a batch. `mask` is None if every row has a value; `values` holds only present values."""

    key: str
    kind: int
    mask: Bits | None
    values: Array
    strings: Strings | None

    def to_list(self) -> list[FieldValue]:
        """The present values as Python objects."""
        if self.strings is None:
            return self.values.tolist()  # type: ignore[no-any-return]
        texts = [piece.decode("utf-8", "surrogatepass") for piece in self.strings.pieces()]
        return np.array(texts, object)[self.values].tolist()  # type: ignore[no-any-return]


class Listed(NamedTuple):
    """A column of a few rows. values: one for each row, None where it is absent. longest: length in bytes of the
    longest string of its dictionary."""

    key: str
    kind: int
    values: Values
    longest: int = 0


class Table(Protocol):
    """Rows whose fields can be read key by key."""

    def field_keys(self) -> Sequence[str]: ...
    def values(self, key: str) -> Values: ...


class Row(Mapping[str, FieldValue]):
    """The fields of one message. The first access to a key, by any row of the table, reads the whole column of this
    key."""

    __slots__ = ("_ordinal", "_table")

    def __init__(self, table: Table, ordinal: int) -> None:
        self._table = table
        self._ordinal = ordinal

    def get(self, key: str, default: Any = None) -> Any:
        value = self._table.values(key)[self._ordinal]
        return default if value is None else value

    def __getitem__(self, key: str) -> FieldValue:
        value = self._table.values(key)[self._ordinal]
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._table.field_keys() if self.get(key) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Row({dict(self)!r})"


def fill_list(out: Values, mask: Bits | None, values: list[FieldValue]) -> Values:
    """A copy of `out` with the values written at the places in the mask, or everywhere if there is no mask."""
    if mask is None:
        return list(values)
    array = np.array(out, object)
    array[mask] = np.array(values, object)
    return array.tolist()  # type: ignore[no-any-return]


class BatchColumns:
    """The columns of a batch of `count` messages. `rows` is 1 if all of them share one row of fields, else count. The
    columns are arrays, or `listed` if there are few rows. Raises ColumnsError if listed columns are out of order."""

    __slots__ = ("_lists", "columns", "count", "listed", "rows")

    def __init__(
        self, count: int, rows: int, columns: tuple[Column, ...] = (), listed: tuple[Listed, ...] = ()
    ) -> None:
        self.count = count
        self.rows = rows
        self.columns = columns
        self.listed = listed
        self._lists: dict[str, Values] = _by_key(listed)

    def row(self, ordinal: int) -> Row:
        """The fields of the message at this position in the batch."""
        if not 0 <= ordinal < self.count:
            raise IndexError(f"message {ordinal} of a batch of {self.count}")
        return Row(self, 0 if self.rows == 1 else ordinal)

    def field_keys(self) -> list[str]:
        """The keys that any message has, sorted."""
        return list(
            dict.fromkeys([column.key for column in self.listed] or [column.key for column in self.columns])
        )

    def values(self, key: str) -> Values:
        """One value for each of `rows`, None where it is absent. The result is kept: the first call costs a pass over
        the column."""
        found = self._lists.get(key)
        if found is None:
            found = [None] * self.rows
            for column in self.columns:
                if column.key == key:
                    found = fill_list(found, column.mask, column.to_list())
            self._lists[key] = found
        return found

    def text_units(self, size: int) -> int:
        """An upper bound of the units of `size` bytes in the text of one message: the sum, over the fields, of the
        units of the field's longest text in the batch."""
        found = sum([column.longest // size for column in self.listed])
        for column in self.columns:
            if column.strings is not None and len(column.strings.blob) >= size:
                found += column.strings.longest // size
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the arrays of the columns use. It is 0 for listed columns, and does not count lists made
        by `values`."""
        return sum(
            column.values.nbytes
            + (0 if column.mask is None else column.mask.nbytes)
            + (0 if column.strings is None else column.strings.ends.nbytes + len(column.strings.blob))
            for column in self.columns
        )


def decode(data: bytes | memoryview, count: int, few_rows: int = FEW_ROWS) -> BatchColumns:
    """The columns of a batch of `count` messages. Columns of one row, or of at most `few_rows` rows, are lists; others
    are arrays. Arrays point into `data`, so the result keeps it alive. Raises ColumnsError."""
    if not len(data):
        return BatchColumns(count, count)
    reader = _Reader(data)
    version, flags, size, messages = reader.unpack(_BATCH)
    if version != FORMAT:
        raise ColumnsError(f"unknown format {version} of columns; known: {FORMAT}")
    if flags & ~SHARED:
        raise ColumnsError(f"unknown flags {flags:#x} of columns")
    if messages != count or not count:
        raise ColumnsError(f"columns of {messages} messages for a batch of {count}")
    rows = 1 if flags & SHARED else count
    if rows == 1 or rows <= few_rows:
        listed = tuple([reader.single() if rows == 1 else reader.listed(rows) for _ in range(size)])
        reader.check_end()
        if not listed:
            raise ColumnsError("columns that hold no column")
        return BatchColumns(count, rows, listed=listed)
    columns = tuple(reader.column(rows) for _ in range(size))
    reader.check_end()
    _check_order(columns)
    return BatchColumns(count, rows, columns)


def value_places(data: bytes) -> list[tuple[Listed, int, int]]:
    """Each column of a batch of one message, with the start and end positions of its value in the bytes (for a string,
    of its text). data: bytes that `encode` has made."""
    reader = _Reader(data)
    size = reader.unpack(_BATCH)[2]
    found = []
    for _ in range(size):
        width = reader.data[reader.position + 1]
        column = reader.single()
        end = reader.position
        if column.kind == STRING:
            end -= width  # the code
            width = column.longest
        found.append((column, end - max(width, column.kind == BOOLEAN), end))
    return found


def _by_key(columns: tuple[Listed, ...]) -> dict[str, Values]:
    """The values of each key, of all kinds. Raises ColumnsError if columns are out of order or overlap."""
    found: dict[str, Values] = {}
    last, last_kind = "", -1
    for key, kind, values, _ in columns:
        if key != last:
            if key < last:
                raise ColumnsError(f"column {key!r} is out of order")
            found[key] = values
        else:
            if kind <= last_kind and len(values) > 1:
                raise ColumnsError(f"column {key!r} is out of order")
            before = found[key]
            if any(old is not None and new is not None for old, new in zip(before, values, strict=True)):
                raise ColumnsError(f"field {key!r} has two values in one message")
            found[key] = [old if new is None else new for old, new in zip(before, values, strict=True)]
        last, last_kind = key, kind
    return found


def _check_order(columns: tuple[Column, ...]) -> None:
    if not columns:
        raise ColumnsError("columns that hold no column")
    taken: Bits | None = None
    for before, column in pairwise(columns):
        if before.key != column.key:
            taken = None
            if before.key > column.key:
                raise ColumnsError(f"column {column.key!r} is out of order")
            continue
        if before.kind >= column.kind:
            raise ColumnsError(f"column {column.key!r} is out of order")
        if before.mask is None or column.mask is None:
            raise ColumnsError(f"field {column.key!r} has two values in one message")
        taken = before.mask if taken is None else taken | before.mask
        if (taken & column.mask).any():
            raise ColumnsError(f"field {column.key!r} has two values in one message")


class _Reader:
    """Reads columns in order. Every length is checked against the remaining bytes."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data).cast("B")
        self.position = 0

    def skip(self, size: int) -> int:
        """Pass so many bytes. Returns where they begin."""
        start = self.position
        if start + size > len(self.data):
            raise ColumnsError(f"columns end at {len(self.data)}, {size} bytes are wanted at {start}")
        self.position = start + size
        return start

    def take(self, size: int) -> memoryview:
        start = self.skip(size)
        return self.data[start : self.position]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack_from(self.data, self.skip(form.size))

    def array(self, kind: str, count: int) -> Array:
        dtype = np.dtype(kind)
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def bits(self, count: int) -> Bits:
        packed = self.take((count + 7) // 8)
        if count % 8 and packed[-1] >> count % 8:
            raise ColumnsError("a mask has bits beyond its rows")
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=count, bitorder="little").view(np.bool_)

    def head(self) -> tuple[int, int, str, int]:
        kind, width, key_size, count = self.unpack(_COLUMN)
        key = _text(self.take(key_size), "a field key")
        if not key:
            raise ColumnsError("a field key is empty")
        return kind, width, key, count

    def single(self) -> Listed:
        """Read a column of one row."""
        kind, width, key, count = self.head()
        if count != 1:
            raise ColumnsError(f"column {key!r} has {count} values for 1 rows")
        value: FieldValue
        size = 0
        if kind == BOOLEAN and width == 0:
            byte = self.take(1)[0]
            if byte > 1:
                raise ColumnsError("a mask has bits beyond its rows")
            value = byte == 1
        elif kind == EXACT and width in _INTS:
            value = int.from_bytes(self.take(width), "little", signed=True)
        elif kind == APPROXIMATE and width == 8:
            value = _DOUBLE.unpack(self.take(8))[0]
        elif kind == STRING and width in _CODES:
            texts, size = self.unpack(_SIZES)
            if texts != 1 or self.unpack(_END) != (size,):
                raise ColumnsError(f"column {key!r} has a malformed dictionary")
            value = _text(self.take(size), f"column {key!r}")
            if any(self.take(width)):
                raise ColumnsError(f"column {key!r} has codes beside its dictionary")
        else:
            raise ColumnsError(f"column {key!r} has an unknown kind {kind} of width {width}")
        return Listed(key, kind, [value], size)

    def listed(self, rows: int) -> Listed:
        """Read a column of a few rows, with the checks of `column`."""
        kind, width, key, count = self.head()
        mask = None
        if width & PARTIAL:
            width &= ~PARTIAL
            mask = self.flags(rows)
            if sum(mask) != count:
                raise ColumnsError(f"column {key!r} has {count} values, its mask another number")
        if not count or (count == rows) != (mask is None):
            raise ColumnsError(f"column {key!r} has {count} values for {rows} rows")
        longest = 0
        values: Values
        if kind == BOOLEAN and width == 0:
            values = list(self.flags(count))
        elif kind == EXACT and width in _INTS:
            values = list(self.numbers(_LETTERS[width], width, count))
        elif kind == APPROXIMATE and width == 8:
            values = list(self.numbers("d", width, count))
        elif kind == STRING and width in _CODES:
            values, longest = self.texts(key, width, count)
        else:
            raise ColumnsError(f"column {key!r} has an unknown kind {kind} of width {width}")
        if mask is not None:
            rest = iter(values)
            values = [next(rest) if is_present else None for is_present in mask]
        return Listed(key, kind, values, longest)

    def numbers(self, letter: str, width: int, count: int) -> tuple[Any, ...]:
        start = self.skip(count * width)
        return struct.unpack_from(f"<{count}{letter}", self.data, start)

    def flags(self, count: int) -> list[bool]:
        packed = int.from_bytes(self.take((count + 7) // 8), "little")
        if packed >> count:
            raise ColumnsError("a mask has bits beyond its rows")
        return [packed >> place & 1 == 1 for place in range(count)]

    def texts(self, key: str, width: int, count: int) -> tuple[Values, int]:
        """Read a dictionary and the codes of a few rows. Returns their texts and the length in bytes of the longest
        string of the dictionary."""
        known, size = self.unpack(_SIZES)
        ends = self.numbers("I", 4, known)
        blob = bytes(self.take(size))
        if not known or ends[-1] != size or list(ends) != sorted(ends):
            raise ColumnsError(f"column {key!r} has a malformed dictionary")
        if not blob.isascii():
            _text(blob, f"column {key!r}")
            if any(blob[end] & 0xC0 == 0x80 for end in ends if end < size):
                raise ColumnsError(f"column {key!r} has a string that is not UTF-8")
        codes = self.numbers(_LETTERS[width].upper(), width, count)
        if max(codes) + 1 != known:
            raise ColumnsError(f"column {key!r} has codes beside its dictionary")
        starts = (0, *ends)
        values: Values = [blob[starts[code] : ends[code]].decode("utf-8", "surrogatepass") for code in codes]
        return values, max([end - start for start, end in pairwise(starts)])

    def column(self, rows: int) -> Column:
        kind, width, key, count = self.head()
        mask = None
        if width & PARTIAL:
            width &= ~PARTIAL
            mask = self.bits(rows)
            if np.count_nonzero(mask) != count:
                raise ColumnsError(f"column {key!r} has {count} values, its mask another number")
        if not count or (count == rows) != (mask is None):
            raise ColumnsError(f"column {key!r} has {count} values for {rows} rows")
        strings = None
        values: Array
        if kind == BOOLEAN and width == 0:
            values = self.bits(count)
        elif kind == EXACT and width in _INTS:
            values = self.array(_INTS[width], count)
        elif kind == APPROXIMATE and width == 8:
            values = self.array("<f8", count)
        elif kind == STRING and width in _CODES:
            strings = self.strings(key)
            values = self.array(_CODES[width], count)
            if int(values.max()) + 1 != len(strings.ends):
                raise ColumnsError(f"column {key!r} has codes beside its dictionary")
        else:
            raise ColumnsError(f"column {key!r} has an unknown kind {kind} of width {width}")
        return Column(key, kind, mask, values, strings)

    def strings(self, key: str) -> Strings:
        count, size = self.unpack(_SIZES)
        ends = self.array("<u4", count)
        blob = bytes(self.take(size))
        if not count or int(ends[-1]) != size or (ends[1:] < ends[:-1]).any():
            raise ColumnsError(f"column {key!r} has a malformed dictionary")
        if not blob.isascii():
            _text(blob, f"column {key!r}")
            starts = np.frombuffer(blob, np.uint8)[ends[ends < size]]
            if ((starts & 0xC0) == 0x80).any():
                raise ColumnsError(f"column {key!r} has a string that is not UTF-8")
        return Strings(ends, blob)

    def check_end(self) -> None:
        if self.position != len(self.data):
            raise ColumnsError(f"{len(self.data) - self.position} bytes are left over after the columns")


def _text(data: bytes | memoryview, what: str) -> str:
    try:
        return bytes(data).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ColumnsError(f"{what} is not UTF-8") from None
