"""Canonical bytes: integers as variable-length numbers, texts and bit sets with their length in front."""

from __future__ import annotations

import sys
from array import array


class Writer:
    """Appends values; the same values always give the same bytes."""

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, value: int) -> None:
        """An integer from 0 on, of any size."""
        if value < 0:
            raise ValueError(f"encoding the number {value}; allowed: 0 and above")
        while value > 0x7F:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def signed(self, value: int) -> None:
        self.number(value << 1 if value >= 0 else (-value << 1) - 1)

    def blob(self, value: bytes | bytearray | memoryview) -> None:
        self.number(len(value))
        self.data += value

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
    """Takes the values out again. Raises ValueError where the bytes end too early."""

    def __init__(self, data: bytes | memoryview) -> None:
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
