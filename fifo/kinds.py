"""Kinds of a field's values, with their forms in the three layouts of records (fifo/records.py).

A kind has a form for each layout in which it is used:
 - packed, in log commands: `Fixed` or `Sized`;
 - compact, in the snapshots of groups: `Compact`;
 - JSON, in the catalog's commands and snapshot: `InJson`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

from fifo.codec import Reader, Writer

# ---- the forms


class Fixed:
    """packed: numbers of fixed size, whose struct characters `fixed` has. A value is one number if no method says
    otherwise."""

    fixed: str

    def numbers(self, value: Any) -> tuple[Any, ...]:
        """The value as struct takes it."""
        return (value,)

    def from_numbers(self, *numbers: Any) -> Any:
        return numbers[0]


@runtime_checkable
class Sized(Protocol):
    """packed: bytes behind the numbers."""

    length: str = ""
    """the struct character of its length; empty if it says its length itself, or goes to the record's end"""
    is_open: bool = False
    """it goes to the end of the record: nothing can follow it"""

    def body(self, value: Any, /) -> tuple[bytes, int]:
        """The bytes, and the number that is written as their length."""

    def from_body(self, data: memoryview, length: int, /) -> tuple[Any, memoryview]:
        """The value, and what follows it. ValueError if it is cut off."""


@runtime_checkable
class Compact(Protocol):
    """compact: it is written and read as a whole. ValueError where the bytes end too early."""

    def write(self, out: Writer, value: Any, /) -> None: ...
    def read(self, reader: Reader, /) -> Any: ...


@runtime_checkable
class InJson(Protocol):
    """JSON: values are written as they are."""

    def from_json(self, value: Any, /) -> Any:
        """ValueError where the value is none of this kind."""


Kind = Fixed | Sized | Compact | InJson


def is_number(kind: object) -> bool:
    """Whether its compact form is one number: `Writer.numbers` writes several of them at once."""
    return getattr(kind, "write", None) is Writer.number


# ---- the kinds


class Number(Fixed):
    """An integer from 0 on. Of how many bits, the struct character says."""

    write = staticmethod(Writer.number)
    read = staticmethod(Reader.number)

    def __init__(self, fixed: str) -> None:
        self.fixed = fixed

    def from_json(self, value: Any) -> int:
        if type(value) is not int:
            raise ValueError(f"{value!r} is no integer")
        return value


class Signed(Number):
    write = staticmethod(Writer.signed)
    read = staticmethod(Reader.signed)


class Flag(Fixed):
    fixed = "B"
    write = staticmethod(Writer.number)

    def from_numbers(self, *numbers: Any) -> bool:
        return bool(numbers[0])

    def read(self, reader: Reader) -> bool:
        return bool(reader.number())

    def from_json(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return value


class Choice(Fixed):
    """One of a few words: packed as its place among them, compact as a text. Words are only added, at the end."""

    fixed = "B"
    write = staticmethod(Writer.text)
    read = staticmethod(Reader.text)

    def __init__(self, *words: str) -> None:
        self.words = words

    def numbers(self, value: str) -> tuple[int]:
        return (self.words.index(value),)

    def from_numbers(self, *numbers: Any) -> str:
        place: int = numbers[0]
        return self.words[place]


class Coded:
    """One of a few values, compact as its place among them. Values are only added, at the end."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def write(self, out: Writer, value: Any) -> None:
        out.number(self._values.index(value))

    def read(self, reader: Reader) -> Any:
        place = reader.number()
        if place >= len(self._values):
            raise ValueError(f"{place} is the code of no value; known: 0..{len(self._values) - 1}")
        return self._values[place]


class Named(Fixed):
    """16 bytes that name something."""

    fixed = "16s"

    def numbers(self, value: bytes) -> tuple[bytes]:
        if len(value) != 16:
            raise ValueError(f"the name of a part has {len(value)} bytes; allowed: 16")
        return (value,)


class Tuple(Fixed):
    """A record of numbers within a record."""

    def __init__(self, fixed: str, kind: Callable[..., Any], *names: str) -> None:
        self.fixed = fixed
        self.names = names
        self._kind = kind
        self._values = getter(names)

    def numbers(self, value: Any) -> tuple[Any, ...]:
        return self._values(value)

    def from_numbers(self, *numbers: Any) -> Any:
        return self._kind(*numbers)

    def write(self, out: Writer, value: Any) -> None:
        out.numbers(self._values(value))

    def read(self, reader: Reader) -> Any:
        return self._kind(*[reader.number() for _ in self.names])


class Bytes(Sized):
    length = "I"
    write = staticmethod(Writer.blob)
    read = staticmethod(Reader.blob)

    def body(self, value: bytes) -> tuple[bytes, int]:
        return value, len(value)

    def from_body(self, data: memoryview, length: int) -> tuple[bytes, memoryview]:
        found, rest = _cut(data, length)
        return bytes(found), rest


class Text(Sized):
    """Its length is in bytes of UTF-8."""

    length = "H"
    write = staticmethod(Writer.text)
    read = staticmethod(Reader.text)

    def body(self, value: str) -> tuple[bytes, int]:
        data = value.encode()
        return data, len(data)

    def from_body(self, data: memoryview, length: int) -> tuple[str, memoryview]:
        found, rest = _cut(data, length)
        return str(found, "utf-8"), rest

    def from_json(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no text")
        return value


class Name(Sized):
    """A text with its length in front of it."""

    def body(self, value: str) -> tuple[bytes, int]:
        data = value.encode()
        return _U16.pack(len(data)) + data, 0

    def from_body(self, data: memoryview, length: int) -> tuple[str, memoryview]:
        (length,) = _U16.unpack_from(data)
        found, rest = _cut(data[_U16.size :], length)
        return str(found, "utf-8"), rest


class OpenText(Sized):
    """A text that goes to the end of the record."""

    is_open = True

    def body(self, value: str) -> tuple[bytes, int]:
        return value.encode(), 0

    def from_body(self, data: memoryview, length: int) -> tuple[str, memoryview]:
        return str(data, "utf-8"), data[len(data) :]


class Optional(Sized):
    """A number or None, at the end of the record: nothing for None."""

    is_open = True

    def body(self, value: int | None) -> tuple[bytes, int]:
        return (b"" if value is None else _U64.pack(value)), 0

    def from_body(self, data: memoryview, length: int) -> tuple[int | None, memoryview]:
        if not len(data):
            return None, data
        return _U64.unpack_from(data)[0], data[_U64.size :]


class Names(Sized):
    """Texts, each with its length in front of it."""

    length = "H"

    def body(self, value: Sequence[str]) -> tuple[bytes, int]:
        return b"".join([NAME.body(each)[0] for each in value]), len(value)

    def from_body(self, data: memoryview, length: int) -> tuple[tuple[str, ...], memoryview]:
        found = []
        for _ in range(length):
            name, data = NAME.from_body(data, 0)
            found.append(name)
        return tuple(found), data

    def write(self, out: Writer, value: Sequence[str]) -> None:
        out.number(len(value))
        for each in value:
            out.text(each)

    def read(self, reader: Reader) -> tuple[str, ...]:
        return tuple([reader.text() for _ in range(reader.number())])


class Items(Sized):
    """Numbers, or tuples of numbers, all of one struct. Where `counts_bytes`, the length is theirs in bytes."""

    length = "I"

    def __init__(self, item: str, *, counts_bytes: bool = False) -> None:
        self._item = struct.Struct("<" + item)
        self._is_single = len(self._item.unpack(bytes(self._item.size))) == 1
        self._counts_bytes = counts_bytes

    def body(self, value: Iterable[Any]) -> tuple[bytes, int]:
        found = [self._item.pack(each) if self._is_single else self._item.pack(*each) for each in value]
        return b"".join(found), len(found) * (self._item.size if self._counts_bytes else 1)

    def from_body(self, data: memoryview, length: int) -> tuple[tuple[Any, ...], memoryview]:
        found, rest = _cut(data, length if self._counts_bytes else length * self._item.size)
        rows = self._item.iter_unpack(found)
        return tuple([row[0] for row in rows] if self._is_single else rows), rest


class Parts(Items):
    """Items whose first number names a part: 16 bytes."""

    def body(self, value: Iterable[Any]) -> tuple[bytes, int]:
        rows = list(value)
        for row in rows:
            NAMED.numbers(row if self._is_single else row[0])
        return super().body(rows)


class Column:
    """An array of this typecode."""

    write = staticmethod(Writer.column)

    def __init__(self, typecode: str) -> None:
        self._typecode = typecode

    def read(self, reader: Reader) -> Any:
        return reader.column(self._typecode)


class Maybe:
    """A value of a kind, or None."""

    def __init__(self, kind: Compact) -> None:
        self._write, self._read = kind.write, kind.read

    def write(self, out: Writer, value: Any) -> None:
        out.number(value is not None)
        if value is not None:
            self._write(out, value)

    def read(self, reader: Reader) -> Any:
        return self._read(reader) if reader.number() else None


class Row:
    """A tuple of values, each of its own kind."""

    def __init__(self, *kinds: Compact) -> None:
        self.are_numbers = all(map(is_number, kinds))
        self._writes = [(place, kind.write) for place, kind in enumerate(kinds)]
        self._reads = [kind.read for kind in kinds]

    def write(self, out: Writer, value: Sequence[Any]) -> None:
        for place, write in self._writes:
            write(out, value[place])

    def read(self, reader: Reader) -> tuple[Any, ...]:
        return tuple([read(reader) for read in self._reads])


class Many:
    """Values of one kind, after their number. made: makes the collection of a list. order: the values of the collection
    in the order in which they are written; as they are iterated if it is not given."""

    def __init__(
        self,
        kind: Compact,
        made: Callable[[list[Any]], Any] = list,
        order: Callable[[Any], Iterable[Any]] | None = None,
    ) -> None:
        self._kind = kind
        self._made = made
        self._order = order
        self._are_numbers = is_number(kind)
        self._are_rows_of_numbers = isinstance(kind, Row) and kind.are_numbers

    def write(self, out: Writer, values: Any) -> None:
        out.number(len(values))
        ordered = values if self._order is None else self._order(values)
        if self._are_numbers:
            out.numbers(ordered)
        elif self._are_rows_of_numbers:
            out.numbers(chain.from_iterable(ordered))
        else:
            write = self._kind.write
            for each in ordered:
                write(out, each)

    def read(self, reader: Reader) -> Any:
        read = self._kind.read
        return self._made([read(reader) for _ in range(reader.number())])


def _cut(data: memoryview, length: int) -> tuple[memoryview, memoryview]:
    if len(data) < length:
        raise ValueError(f"{length} bytes are said to follow, and {len(data)} do")
    return data[:length], data[length:]


def getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The values of these attributes, in order."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda value: ()
    get = attrgetter(*names)
    return lambda value: (get(value),)


_U16, _U64 = struct.Struct("<H"), struct.Struct("<Q")
U32, U64, I64 = Number("I"), Number("Q"), Signed("q")
FLAG, NAMED = Flag(), Named()
TEXT, NAME, OPEN_TEXT, NAMES = Text(), Name(), OpenText(), Names()
BYTES, OPTIONAL = Bytes(), Optional()
