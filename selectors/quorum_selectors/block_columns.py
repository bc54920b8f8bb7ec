"""The filter fields of one block of a queue: the columns of up to 16,384 messages, filled from batches.

A message is known by its *slot* in the block. Runs of messages are copied in from their batch with a few numpy calls
per column, whatever their number. A column covers only the slots from its first value on and grows by doubling. So a
field that few messages have costs little, and a small block is small. Exact numbers and codes of strings take the
narrowest type that holds the values so far. At most MAX_DENSE_COLUMNS columns are stored like this; later fields go
into a sparse table, as runs of slots with the same value.

Strings: a column's dictionary grows in log order. While it is small, the strings of a batch are looked up in it and
repeats share a code. Once it has more than SHARED_STRINGS entries, sharing would cost more than it saves, and each
batch's dictionary is appended whole. So equal strings can have several codes: compare strings, not codes.

The columns are local, never replicated: they can be dropped at any moment and filled again, in any order of slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quorum_selectors.batch_columns import (
    APPROXIMATE,
    BOOLEAN,
    CODE_TYPES,
    EXACT,
    INTEGER_TYPES,
    STRING,
    Array,
    BatchColumns,
    Bits,
    Column,
    Row,
    Strings,
    Values,
)
from quorum_selectors.expression import FieldValue
from quorum_selectors.sparse_fields import Run, SparseField, runs_bytes
from quorum_selectors.string_columns import BACK, FRONT, StringColumn

BLOCK_SIZE = 16384
MAX_DENSE_COLUMNS = 64
"""Maximum number of dense columns: more than any selector names. It bounds the cost of a message in a block."""
SHARED_STRINGS = 256
FIRST_CAPACITY = 16
FEW_PLACES = 16
"""Maximum number of occurrences among all letters at which a string is searched by checking each occurrence."""
_SPARE_SHIFT = 5
"""When the letters grow, 1/2^n of them is left free: a thirty-second, so a block's letters are copied some 130 times at
most."""

_LOOKUP_ENTRY_BYTES = 130

_HIGHEST: dict[Any, int] = {dtype: int(np.iinfo(dtype).max) for dtype in CODE_TYPES}
_FIRST_TYPES: dict[int, Any] = {BOOLEAN: np.bool_, EXACT: np.int8, APPROXIMATE: np.float64, STRING: np.uint8}
_FIRST_RANGES = {BOOLEAN: (0, 0), EXACT: (-128, 127), APPROXIMATE: (0, 0), STRING: (0, 255)}


class StringTable:
    """The strings of a column of a block, in log order.

    Their UTF-8 is in an array that `StringColumn` reads without copying it. The array has padding at both ends and is
    never changed in place; to grow, it is copied into another one.
    """

    __slots__ = ("_letters", "_size", "count", "ends", "lookup")

    def __init__(self) -> None:
        self._letters: NDArray[np.uint8] = np.zeros(FRONT + BACK, np.uint8)
        self._size = 0
        self.ends: NDArray[np.uint32] = np.zeros(FIRST_CAPACITY, np.uint32)
        self.count = 0
        self.lookup: dict[bytes, int] | None = {}

    def add(self, text: str) -> int:
        """The code of a single string; a new one unless the string is shared."""
        piece = text.encode("utf-8", "surrogatepass")
        code = None if self.lookup is None else self.lookup.get(piece)
        if code is not None:
            return code
        code = self.count
        self._reserve(code + 1)
        self._write(piece)
        self.ends[code] = self._size
        self.count += 1
        if self.lookup is not None:
            self.lookup[piece] = code
            if len(self.lookup) > SHARED_STRINGS:
                self.lookup = None
        return code

    def merge(self, strings: Strings, codes: Array) -> Array:
        """Add the strings that `codes` uses, and return their codes in this table."""
        pieces: list[bytes] | None = None
        if int(codes.max()) + 1 < len(strings.ends) or len(codes) < len(strings.ends):
            used, codes = np.unique(codes, return_inverse=True)
            all_pieces = strings.pieces()
            pieces = [all_pieces[code] for code in used.tolist()]
        size = len(strings.ends) if pieces is None else len(pieces)
        if self.lookup is not None and size <= SHARED_STRINGS:
            return self._share(strings.pieces() if pieces is None else pieces)[codes]
        self.lookup = None
        base = self.count
        if pieces is None:
            self._extend(strings.ends, strings.blob)
        else:
            ends = np.cumsum([len(piece) for piece in pieces], dtype=np.uint32)
            self._extend(ends, b"".join(pieces))
        return codes.astype(np.uint32) + np.uint32(base)

    def _share(self, pieces: list[bytes]) -> NDArray[np.uint32]:
        """The code of each piece; new pieces are added."""
        lookup = self.lookup
        assert lookup is not None
        table = np.empty(len(pieces), np.uint32)
        fresh: list[bytes] = []
        for place, piece in enumerate(pieces):
            code = lookup.get(piece)
            if code is None:
                code = lookup[piece] = self.count + len(fresh)
                fresh.append(piece)
            table[place] = code
        if fresh:
            self._extend(np.cumsum([len(piece) for piece in fresh], dtype=np.uint32), b"".join(fresh))
        if len(lookup) > SHARED_STRINGS:
            self.lookup = None
        return table

    def _extend(self, ends: NDArray[np.uint32], blob: bytes) -> None:
        total = self.count + len(ends)
        self._reserve(total)
        self.ends[self.count : total] = ends + np.uint32(self._size)
        self._write(blob)
        self.count = total

    def _write(self, blob: bytes) -> None:
        start = FRONT + self._size
        self._size += len(blob)
        needed = FRONT + self._size + BACK
        if needed > len(self._letters):
            grown = np.zeros(needed + (self._size >> _SPARE_SHIFT), np.uint8)
            grown[:start] = self._letters[:start]
            self._letters = grown
        self._letters[start : start + len(blob)] = np.frombuffer(blob, np.uint8)

    def _reserve(self, total: int) -> None:
        if total > len(self.ends):
            grown = np.zeros(max(total, 2 * len(self.ends)), np.uint32)
            grown[: self.count] = self.ends[: self.count]
            self.ends = grown

    def piece(self, code: int) -> bytes:
        """The UTF-8 of a code's string."""
        start = self.ends.item(code - 1) if code else 0
        return self._letters[FRONT + start : FRONT + self.ends.item(code)].tobytes()

    def text(self, code: int) -> str:
        return self.piece(code).decode("utf-8", "surrogatepass")

    def find(self, piece: bytes) -> list[int] | None:
        """The codes of a string, ascending; None if it occurs in so many places that other ways cost less."""
        if self.lookup is not None:
            code = self.lookup.get(piece)
            return [] if code is None else [code]
        if not piece:
            return None
        letters, at = self._letters[FRONT : FRONT + self._size].tobytes(), -1
        found: list[int] = []
        ends = self.ends[: self.count]
        for _ in range(FEW_PLACES):
            at = letters.find(piece, at + 1)
            if at < 0:
                return found
            code = int(np.searchsorted(ends, at, side="right"))
            if ends.item(code) == at + len(piece) and (code == 0 or ends.item(code - 1) == at):
                found.append(code)
        return None

    def bounds(self, codes: Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """Begin and end of the strings of these codes in the letters, and the letters."""
        at = codes.astype(np.int64)
        ends = self.ends[at].astype(np.int64)
        starts = np.where(at > 0, self.ends[at - 1], 0).astype(np.int64)
        return starts + FRONT, ends + FRONT, self._letters

    def lines(self, first: int, end: int) -> StringColumn:
        """The strings of codes first .. end-1."""
        start = self.ends.item(first - 1) if first else 0
        return StringColumn(self._letters[start:], self.ends[first:end].astype(np.int64) - start)

    @property
    def nbytes(self) -> int:
        lookup = 0 if self.lookup is None else len(self.lookup) * _LOOKUP_ENTRY_BYTES
        return self._letters.nbytes + self.ends.nbytes + lookup


class _DenseColumn:
    """Values of one type for the slots from `base` on; `mask` says which of them are present."""

    __slots__ = ("base", "dictionary", "high", "kind", "low", "mask", "values")

    def __init__(self, kind: int, base: int, limit: int) -> None:
        self.kind = kind
        self.base = base
        capacity = min(FIRST_CAPACITY, limit - base)
        self.mask: Bits = np.zeros(capacity, np.bool_)
        self.values: Array = np.zeros(capacity, _FIRST_TYPES[kind])
        self.low, self.high = _FIRST_RANGES[kind]  # of the present type of exact numbers and codes
        self.dictionary = StringTable() if kind == STRING else None

    def _retype(self, dtype: Any) -> None:
        self.values = self.values.astype(dtype)
        if self.kind in (EXACT, STRING):
            limits = np.iinfo(self.values.dtype)
            self.low, self.high = int(limits.min), int(limits.max)

    def put_one(self, slot: int, value: Any, count: int, limit: int) -> None:
        """Write one value for a run of slots."""
        number = value if self.dictionary is None else self.dictionary.add(value)
        if self.kind in (EXACT, STRING) and not self.low <= number <= self.high:
            widths = INTEGER_TYPES if self.kind == EXACT else CODE_TYPES
            self._retype(
                next(
                    dtype
                    for dtype in widths
                    if number <= np.iinfo(dtype).max and number >= np.iinfo(dtype).min
                )
            )
        place = slot - self.base
        if place < 0 or place + count > len(self.mask):
            self._cover(slot, slot + count, limit)
            place = slot - self.base
        if count == 1:
            self.mask[place] = True
            self.values[place] = number
        else:
            self.mask[place : place + count] = True
            self.values[place : place + count] = number

    def put(self, slot: int, mask: Bits | None, values: Array, count: int, limit: int) -> None:
        """Write a run of `count` slots: a value for each, or for each in the mask."""
        if values.dtype.itemsize > self.values.dtype.itemsize:
            self._retype(values.dtype)
        self._cover(slot, slot + count, limit)
        run = slice(slot - self.base, slot - self.base + count)
        if mask is None:
            self.mask[run] = True
            self.values[run] = values
        else:
            self.mask[run] = mask
            self.values[run][mask] = values

    def _cover(self, first: int, end: int, limit: int) -> None:
        base = min(self.base, first)
        needed = max(end, self.base + len(self.mask)) - base
        if base == self.base and needed <= len(self.mask):
            return
        capacity = min(limit - base, max(needed, 2 * len(self.mask), FIRST_CAPACITY))
        shift = self.base - base
        mask, values = np.zeros(capacity, np.bool_), np.zeros(capacity, self.values.dtype)
        mask[shift : shift + len(self.mask)] = self.mask
        values[shift : shift + len(self.values)] = self.values
        self.base, self.mask, self.values = base, mask, values

    def run(self, first: int, count: int) -> tuple[int, int]:
        """The part of these slots that the column covers, as positions in its arrays; empty if first >= end."""
        return max(0, first - self.base), min(len(self.mask), first + count - self.base)

    def get(self, slot: int) -> FieldValue | None:
        place = slot - self.base
        if not 0 <= place < len(self.mask) or not self.mask.item(place):
            return None
        value: FieldValue = self.values.item(place)
        if self.dictionary is not None:
            return self.dictionary.text(int(value))
        return value

    @property
    def nbytes(self) -> int:
        own = self.mask.nbytes + self.values.nbytes
        return own + (0 if self.dictionary is None else self.dictionary.nbytes)


class _Slot:
    """One slot as a table of one row. A field is read once."""

    __slots__ = ("_block", "_known", "_slot")

    def __init__(self, block: BlockColumns, slot: int) -> None:
        self._block = block
        self._slot = slot
        self._known: dict[str, Values] = {}

    def field_keys(self) -> list[str]:
        return self._block.field_keys()

    def values(self, key: str) -> Values:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = [self._block.get(self._slot, key)]
        return found


class BlockColumns:
    """The columns of the messages in slots 0..size-1. A slot without an append has no fields."""

    __slots__ = ("_dense", "_dense_count", "_filled", "_most_dense", "_sparse", "size", "sparse_bytes")

    def __init__(self, size: int = BLOCK_SIZE, most_dense: int | None = None) -> None:
        """most_dense: maximum number of dense columns; MAX_DENSE_COLUMNS if not given."""
        self.size = size
        self._most_dense = MAX_DENSE_COLUMNS if most_dense is None else most_dense
        self.drop()

    def drop(self) -> None:
        """Forget everything."""
        self._dense: dict[str, dict[int, _DenseColumn]] = {}
        self._dense_count = 0
        self._sparse: dict[str, SparseField] = {}
        self.sparse_bytes = 0
        """Approximate bytes of memory of values without a column."""
        self._filled = 0  # a bit for each slot with an append

    def append(self, first_slot: int, batch: BatchColumns, first_ordinal: int, count: int) -> None:
        """Give `count` slots the fields of as many messages of a batch, and replace their former fields."""
        if not 0 <= first_slot <= first_slot + count <= self.size:
            raise ValueError(f"slots {first_slot}+{count} of a block of {self.size}")
        if not 0 <= first_ordinal <= first_ordinal + count <= batch.count:
            raise ValueError(f"messages {first_ordinal}+{count} of a batch of {batch.count}")
        if not count:
            return
        run = (1 << count) - 1 << first_slot
        if self._filled & run:
            self._clear(first_slot, count)
        self._filled |= run
        for key, kind, values, _ in batch.listed:
            if batch.rows == 1:
                self._put_one(key, kind, first_slot, values[0], count)
                continue
            for slot, value in enumerate(values[first_ordinal : first_ordinal + count], first_slot):
                if value is not None:
                    self._put_one(key, kind, slot, value, 1)
        for column in batch.columns:
            self._append_column(first_slot, column, first_ordinal, count)

    def _put_one(self, key: str, kind: int, slot: int, value: Any, count: int) -> None:
        dense = self._dense_column(key, kind, slot)
        if dense is not None:
            dense.put_one(slot, value, count, self.size)
        else:
            self._put_sparse(key, [(slot, slot + count, value)])

    @property
    def filled(self) -> int:
        """A bit for each slot with an append."""
        return self._filled

    def _dense_column(self, key: str, kind: int, first_slot: int) -> _DenseColumn | None:
        """The column for this key and kind, made if necessary; None if there are too many already."""
        kinds = self._dense.get(key)
        dense = None if kinds is None else kinds.get(kind)
        if dense is None and self._dense_count < self._most_dense:
            dense = self._dense.setdefault(key, {})[kind] = _DenseColumn(kind, first_slot, self.size)
            self._dense_count += 1
        return dense

    def _append_column(self, slot: int, column: Column, ordinal: int, count: int) -> None:
        mask, values = column.mask, column.values
        if mask is not None:
            skipped = np.count_nonzero(mask[:ordinal])
            mask = mask[ordinal : ordinal + count]
            values = values[skipped : skipped + np.count_nonzero(mask)]
            if not len(values):
                return
        else:
            values = values[ordinal : ordinal + count]
        dense = self._dense_column(
            column.key, column.kind, slot if mask is None else slot + int(mask.argmax())
        )
        if dense is None:
            self._append_sparse(slot, column, mask, values, count)
            return
        if dense.dictionary is not None and column.strings is not None:
            values = dense.dictionary.merge(column.strings, values)
            highest = dense.dictionary.count - 1
            values = values.astype(next(dtype for dtype in CODE_TYPES if highest <= _HIGHEST[dtype]))
        if mask is not None:
            # Only the part with values, so that a rare field's column stays short.
            first, last = int(mask.argmax()), count - int(mask[::-1].argmax())
            slot, mask, count = slot + first, mask[first:last], last - first
        dense.put(slot, mask, values, count, self.size)

    def _append_sparse(self, slot: int, column: Column, mask: Bits | None, values: Array, count: int) -> None:
        part = Column(column.key, column.kind, None, values, column.strings)
        slots = range(slot, slot + count) if mask is None else (np.flatnonzero(mask) + slot).tolist()
        values_there = zip(slots, part.to_list(), strict=True)
        self._put_sparse(column.key, [(taken, taken + 1, value) for taken, value in values_there])

    def _put_sparse(self, key: str, runs: list[Run]) -> None:
        field = self._sparse.get(key)
        if field is None:
            field = self._sparse[key] = SparseField()
            self.sparse_bytes += field.nbytes
        field.put(runs)
        self.sparse_bytes += runs_bytes(runs)

    def _clear(self, slot: int, count: int) -> None:
        for kinds in self._dense.values():
            for column in kinds.values():
                start, end = column.run(slot, count)
                if start < end:
                    column.mask[start:end] = False
        for field in self._sparse.values():
            field.clear(slot, slot + count)
        self.sparse_bytes = sum([field.nbytes for field in self._sparse.values()])

    def get(self, slot: int, key: str) -> FieldValue | None:
        """One field of one message; None if it is absent."""
        for column in self._dense.get(key, {}).values():
            value = column.get(slot)
            if value is not None:
                return value
        field = self._sparse.get(key)
        return None if field is None else field.get(slot)

    def row(self, slot: int) -> Row:
        """The fields of the message in this slot."""
        if not 0 <= slot < self.size:
            raise IndexError(f"slot {slot} of a block of {self.size}")
        return Row(_Slot(self, slot), 0)

    def columns(
        self, key: str, first: int, count: int
    ) -> Iterator[tuple[int, Bits, Array, StringTable | None]]:
        """The columns of a key for the slots first .. first+count-1: kind, mask of present values, values (codes of
        strings), and the strings. Values outside of the mask are undefined."""
        for kind, column in sorted(self._dense.get(key, {}).items()):
            start, end = column.run(first, count)
            if start >= end or not column.mask[start:end].any():
                continue
            if end - start == count:
                yield kind, column.mask[start:end], column.values[start:end], column.dictionary
                continue
            mask, values = np.zeros(count, np.bool_), np.zeros(count, column.values.dtype)
            offset = column.base + start - first
            mask[offset : offset + end - start] = column.mask[start:end]
            values[offset : offset + end - start] = column.values[start:end]
            yield kind, mask, values, column.dictionary

    def sparse(self, key: str, first: int, count: int) -> Iterator[Run]:
        """The values of a key that are in no column, as runs of positions counted from slot `first`."""
        field = self._sparse.get(key)
        if field is not None:
            for start, end, value in field.runs(first, first + count):
                yield start - first, end - first, value

    def field_keys(self) -> list[str]:
        """The keys that any message may have, sorted."""
        return sorted(self._dense.keys() | self._sparse.keys())

    # ---- for summaries

    def sparse_keys(self) -> Collection[str]:
        """The keys that may have values without a column. They may have values in columns, too."""
        return self._sparse.keys()

    def dense_keys(self) -> Collection[str]:
        """The keys that may have values in columns. They may have values without a column, too."""
        return self._dense.keys()

    def present(self, key: str, chosen: Bits) -> Iterator[tuple[int, Array, StringTable | None]]:
        """The columns' values of a key in the chosen slots: kind, values (codes of strings) and the strings."""
        for kind, column in sorted(self._dense.get(key, {}).items()):
            here = column.mask & chosen[column.base : column.base + len(column.mask)]
            if here.any():
                yield kind, column.values[here], column.dictionary

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory of everything here."""
        dense = sum(column.nbytes for kinds in self._dense.values() for column in kinds.values())
        return dense + self.sparse_bytes + self.size // 8
