"""Canonical bytes: integers as variable-length numbers; texts and bit sets after their length."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fifo.versions import BASE


class Source(Protocol):
    """Bytes that are stored elsewhere. `read` returns at most the size asked for. It may return fewer bytes at the end,
    or where the source prefers that."""

    @property
    def size(self) -> int: ...
    def read(self, offset: int, length: int) -> bytes: ...


class Held:
    """Bytes in memory, as a source."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])


class Writer:
    """Appends values; the same values always give the same bytes. version: the machine version of the state that is
    written. It says which fields records have (fifo/records.py): at least those of BASE."""

    def __init__(self, version: int = BASE) -> None:
        self.version = max(version, BASE)
        self.data = bytearray()

    def number(self, value: int) -> None:
        """An integer from 0 on, of any size."""
        if 0 <= value <= 0x7F:
            self.data.append(value)
        else:
            self.numbers((value,))

    def numbers(self, values: Iterable[int]) -> None:
        """Integers from 0 on, one after the other; faster than one by one."""
        data = self.data
        for each in values:
            value = each
            if value < 0:
                raise ValueError(f"encoding the number {value}; allowed: 0 and above")
            while value > 0x7F:
                data.append(value & 0x7F | 0x80)
                value >>= 7
            data.append(value)

    def many_numbers(self, values: NDArray[np.uint64]) -> None:
        """The bytes that `numbers` writes; faster for very many values."""
        columns: list[NDArray[np.uint64]] = []
        ends: list[NDArray[np.bool_]] = []
        is_left = np.ones(len(values), dtype=np.bool_)
        while is_left.any():
            columns.append(values & np.uint64(0x7F))
            ends.append(is_left)
            values = values >> np.uint64(7)
            is_left = values > 0
            columns[-1] |= is_left.astype(np.uint64) << np.uint64(7)
        if columns:
            self.data += np.stack(columns, axis=1)[np.stack(ends, axis=1)].astype(np.uint8).tobytes()

    def signed(self, value: int) -> None:
        self.number(value << 1 if value >= 0 else (-value << 1) - 1)

    def blob(self, value: bytes | bytearray | memoryview) -> None:
        size, data = len(value), self.data
        if size <= 0x7F:
            data.append(size)
        else:
            self.number(size)
        data += value

    def text(self, value: str) -> None:
        self.blob(value.encode("utf-8", "surrogatepass"))

    def bits(self, value: int) -> None:
        self.blob(value.to_bytes((value.bit_length() + 7) // 8, "little"))

    def column(self, values: array[int]) -> None:
        """An array, little-endian."""
        if sys.byteorder == "big":
            values = values[:]
            values.byteswap()
        self.blob(values.tobytes())


class Reader:
    """Reads the values back. Raises ValueError where the bytes end too early. version: as the writer's; for bytes of a
    release that did not know BASE, that release's."""

    def __init__(self, data: bytes | memoryview, version: int = BASE) -> None:
        self.version = version
        self.data = memoryview(data)
        self.position = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            if self.position >= len(self.data):
                raise ValueError(f"a snapshot ends inside a number, at byte {self.position}")
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def signed(self) -> int:
        value = self.number()
        return value >> 1 if not value & 1 else -((value + 1) >> 1)

    def blob(self) -> bytes:
        size = self.number()
        if size > len(self.data) - self.position:
            raise ValueError(
                f"a snapshot ends at byte {len(self.data)}, {size} more expected at {self.position}"
            )
        self.position += size
        return bytes(self.data[self.position - size : self.position])

    def text(self) -> str:
        return self.blob().decode("utf-8", "surrogatepass")

    def bits(self) -> int:
        return int.from_bytes(self.blob(), "little")

    def column(self, typecode: str) -> array[int]:
        values = array(typecode)
        values.frombytes(self.blob())
        if sys.byteorder == "big":
            values.byteswap()
        return values

    def is_at_end(self) -> bool:
        return self.position == len(self.data)


class Sections:
    """Reads numbers and blobs from a source. `window_bytes` of the source, or one longer section, are in memory. Raises
    ValueError where the source ends too early, and what the source raises."""

    def __init__(self, source: Source, window_bytes: int) -> None:
        self._source = source
        self._window_bytes = window_bytes
        self._window = b""
        self._window_at = 0
        self.position = 0

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return self._source.size - self.position

    def is_at_end(self) -> bool:
        return self.position == self._source.size

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > self.left:
            raise ValueError(
                f"a snapshot ends at byte {self._source.size}, {size} more expected at {self.position}"
            )
        start = self.position - self._window_at
        if start + size > len(self._window):
            self._read_on(size)
            start = 0
        self.position += size
        return self._window[start : start + size]

    def _read_on(self, size: int) -> None:
        """Moves the window to the present position and fills it with at least `size` bytes."""
        wanted = min(max(size, self._window_bytes), self.left)
        found = bytearray()
        while len(found) < size:
            piece = self._source.read(self.position + len(found), wanted - len(found))
            if not piece:
                raise ValueError(f"a snapshot cannot be read on at byte {self.position + len(found)}")
            found += piece
        self._window, self._window_at = bytes(found), self.position

    def number(self) -> int:
        value = shift = 0
        while True:
            if not self.left:
                raise ValueError(f"a snapshot ends inside a number, at byte {self.position}")
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def blob(self) -> bytes:
        return self.take(self.number())
