"""Reading the columns of many batches of one message at once.

Messages of one producer mostly have the same *layout*: the same fields in the same types and widths, so that their
bytes differ only in the values. The batches are sorted by size, and all batches that share a layout are read with a few
numpy calls a field. A batch with a layout of its own is read by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quorum_selectors.batch_columns import (
    ARRAY_TYPES,
    BOOLEAN,
    EXACT,
    STRING,
    Array,
    BatchColumns,
    Bits,
    Column,
    Listed,
    Strings,
    decode,
    value_places,
)

FEW_ROWS = 8
"""Fewer batches than this are read one by one."""
MAX_LAYOUTS = 16
"""Maximum number of layouts for batches of one size; batches with other layouts are read one by one."""


@dataclass(slots=True)
class _Gathered:
    """The values of one field in one type: the rows that have one, and the values, part by part."""

    rows: list[Array] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, rows: Array, values: Any) -> None:
        self.rows.append(rows)
        self.values.append(values)


def decode_singles(batches: Sequence[bytes | memoryview]) -> BatchColumns:
    """The columns of batches of one message each, as those of one batch. An empty batch has no field.

    The caller must have decoded the bytes with `decode` before: of batches with the same layout only the first is
    checked.
    """
    found: dict[tuple[str, int], _Gathered] = {}
    by_size: dict[int, list[int]] = {}
    for row, data in enumerate(batches):
        if len(data):
            by_size.setdefault(len(data), []).append(row)
    for size, rows in by_size.items():
        letters = np.frombuffer(b"".join([batches[row] for row in rows]), np.uint8).reshape(len(rows), size)
        left = np.array(rows)
        for _ in range(MAX_LAYOUTS):
            if len(left) < FEW_ROWS:
                break
            same = _read_alike(found, bytes(letters[0]), letters, left)
            letters, left = letters[~same], left[~same]
        for row in left.tolist():
            for key, kind, (value,), _ in decode(batches[row], 1).listed:
                values = [_encoded(value)] if isinstance(value, str) else np.array([value], ARRAY_TYPES[kind])
                found.setdefault((key, kind), _Gathered()).add(np.array([row]), values)
    count = len(batches)
    return _whole(count, {key: found[key] for key in sorted(found)})


def _read_alike(found: dict[tuple[str, int], _Gathered], first: bytes, letters: Array, rows: Array) -> Bits:
    """Read all batches that have the layout of the first; returns which these are."""
    places = value_places(first)
    is_layout = np.ones(len(first), np.bool_)
    for _, start, end in places:
        is_layout[start:end] = False
    wanted = np.frombuffer(first, np.uint8)[is_layout]
    same: Bits = (letters[:, is_layout] == wanted).all(axis=1)
    chosen, chosen_rows = (letters, rows) if same.all() else (letters[same], rows[same])
    for (key, kind, _, _), start, end in places:
        part = chosen[:, start:end]
        if kind == STRING:
            blob, width = part.tobytes(), end - start
            values: Any = [blob[at * width : (at + 1) * width] for at in range(len(chosen))]
        elif kind == BOOLEAN:
            values = part[:, 0] != 0
        else:
            letter = "i" if kind == EXACT else "f"
            values = np.ascontiguousarray(part).view(f"<{letter}{end - start}")[:, 0]
        found.setdefault((key, kind), _Gathered()).add(chosen_rows, values)
    return same


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _whole(count: int, found: dict[tuple[str, int], _Gathered]) -> BatchColumns:
    if count == 1:
        listed: list[Listed] = []
        for (key, kind), gathered in found.items():
            value = gathered.values[0][0]
            if kind == STRING:
                listed.append(Listed(key, kind, [value.decode("utf-8", "surrogatepass")], len(value)))
            else:
                listed.append(Listed(key, kind, [value.item()]))
        return BatchColumns(1, 1, listed=tuple(listed))
    return BatchColumns(count, count, tuple([_column(count, *key, of) for key, of in found.items()]))


def _column(count: int, key: str, kind: int, gathered: _Gathered) -> Column:
    rows = np.concatenate(gathered.rows)
    strings = None
    values: Array
    if kind == STRING:
        pieces = [piece for part in gathered.values for piece in part]
        codes = {piece: code for code, piece in enumerate(dict.fromkeys(pieces))}
        strings = Strings(np.cumsum([len(piece) for piece in codes], dtype=np.uint32), b"".join(codes))
        values = np.fromiter(map(codes.__getitem__, pieces), np.uint32, len(pieces))
    else:
        values = np.concatenate(gathered.values)
    mask: Bits = np.zeros(count, np.bool_)
    mask[rows] = True
    placed = np.zeros(count, values.dtype)
    placed[rows] = values
    return Column(key, kind, None if mask.all() else mask, placed[mask], strings)
