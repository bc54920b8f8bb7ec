"""Records by description: one list of fields for a record, and three layouts that follow from it.

A `Record` names a class and its fields: what kind each one is, since which machine version it is there, and what it is
where a record is from before that. Descriptions are in `fifo/layouts.py` and `quorum/catalog/layouts.py`.

 - *packed*, in log commands: fixed-size numbers. Fields of one version make a part: first all numbers, then the
   lengths, then what has a length. Parts follow each other in the order of versions. A record that ends before a part
   is from before it. A part of a version above BASE is written only where one of its fields is not at its default; the
   edge allows that only after the switch to the version (`needed_version`), so older members never see it.
 - *compact*, in snapshots: numbers of variable length, one field after the other. The version of the state that the
   record belongs to says which fields are there.
 - *JSON lists*, in the catalog's commands: the fields in their order. A list that ends before a field is from before
   it.

What was written once is read for ever: fields are only added, behind those of earlier versions, with a default.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from operator import attrgetter
from typing import Any

from fifo.codec import Reader, Writer
from fifo.versions import BASE, FIRST


class Kind:
    """What a field's values are. A kind has what the layouts need in which it is used."""

    fixed = ""
    """packed: the struct characters of its numbers; none where it has a length"""
    length = ""
    """packed: the struct character of its length; none where it says its length itself, or goes to the record's end"""
    is_open = False
    """packed: it goes to the end of the record: nothing can follow it"""

    def numbers(self, value: Any) -> tuple[Any, ...]:
        """packed, fixed: the value as struct takes it."""
        return (value,)

    def from_numbers(self, *numbers: Any) -> Any:
        return numbers[0]

    def body(self, value: Any) -> tuple[bytes, int]:
        """packed, with a length: the bytes, and the number that is written as their length."""
        raise NotImplementedError

    def from_body(self, data: memoryview, length: int) -> tuple[Any, memoryview]:
        """packed, with a length: the value, and what follows it. ValueError if it is cut off."""
        raise NotImplementedError

    def write(self, out: Writer, value: Any) -> None:
        """compact"""
        raise NotImplementedError

    def read(self, reader: Reader) -> Any:
        """compact"""
        raise NotImplementedError

    def from_json(self, value: Any) -> Any:
        """JSON: ValueError where the value is none of this kind."""
        raise NotImplementedError


class Number(Kind):
    """An integer from 0 on. Of how many bits, the struct character says."""

    def __init__(self, fixed: str) -> None:
        self.fixed = fixed

    def write(self, out: Writer, value: int) -> None:
        out.number(value)

    def read(self, reader: Reader) -> int:
        return reader.number()

    def from_json(self, value: Any) -> int:
        if type(value) is not int:
            raise ValueError(f"{value!r} is no integer")
        return value


class Signed(Number):
    def write(self, out: Writer, value: int) -> None:
        out.signed(value)

    def read(self, reader: Reader) -> int:
        return reader.signed()


class Flag(Number):
    def __init__(self) -> None:
        super().__init__("B")

    def from_numbers(self, *numbers: Any) -> bool:
        return bool(numbers[0])

    def read(self, reader: Reader) -> bool:
        return bool(reader.number())


class Choice(Kind):
    """One of a few words: packed as its place among them, compact as a text. Words are only added, at the end."""

    fixed = "B"

    def __init__(self, *words: str) -> None:
        self.words = words

    def numbers(self, value: str) -> tuple[int]:
        return (self.words.index(value),)

    def from_numbers(self, *numbers: Any) -> str:
        place: int = numbers[0]
        return self.words[place]

    def write(self, out: Writer, value: str) -> None:
        out.text(value)

    def read(self, reader: Reader) -> str:
        return reader.text()


class Named(Kind):
    """16 bytes that name something."""

    fixed = "16s"

    def numbers(self, value: bytes) -> tuple[bytes]:
        if len(value) != 16:
            raise ValueError(f"the name of a part has {len(value)} bytes; allowed: 16")
        return (value,)


class Tuple(Kind):
    """A record of numbers within a record."""

    def __init__(self, fixed: str, kind: Callable[..., Any], *names: str) -> None:
        self.fixed = fixed
        self._kind = kind
        self._names = names

    def numbers(self, value: Any) -> tuple[Any, ...]:
        return tuple([getattr(value, name) for name in self._names])

    def from_numbers(self, *numbers: Any) -> Any:
        return self._kind(*numbers)

    def write(self, out: Writer, value: Any) -> None:
        for number in self.numbers(value):
            out.number(number)

    def read(self, reader: Reader) -> Any:
        return self._kind(*[reader.number() for _ in self._names])


class Bytes(Kind):
    def __init__(self, length: str = "I") -> None:
        self.length = length

    def body(self, value: bytes) -> tuple[bytes, int]:
        return value, len(value)

    def from_body(self, data: memoryview, length: int) -> tuple[bytes, memoryview]:
        found, rest = _cut(data, length)
        return bytes(found), rest

    def write(self, out: Writer, value: bytes) -> None:
        out.blob(value)

    def read(self, reader: Reader) -> bytes:
        return reader.blob()


class Text(Bytes):
    """Its length is in bytes of UTF-8."""

    def __init__(self, length: str = "H") -> None:
        super().__init__(length)

    def body(self, value: str) -> tuple[bytes, int]:  # type: ignore[override]
        data = value.encode()
        return data, len(data)

    def from_body(self, data: memoryview, length: int) -> tuple[str, memoryview]:  # type: ignore[override]
        found, rest = _cut(data, length)
        return str(found, "utf-8"), rest

    def write(self, out: Writer, value: str) -> None:  # type: ignore[override]
        out.text(value)

    def read(self, reader: Reader) -> str:  # type: ignore[override]
        return reader.text()

    def from_json(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no text")
        return value


class Name(Text):
    """A text with its length in front of it."""

    def __init__(self) -> None:
        super().__init__("")

    def body(self, value: str) -> tuple[bytes, int]:  # type: ignore[override]
        data = value.encode()
        return _U16.pack(len(data)) + data, 0

    def from_body(self, data: memoryview, length: int) -> tuple[str, memoryview]:  # type: ignore[override]
        (length,) = _U16.unpack_from(data)
        found, rest = _cut(data[_U16.size :], length)
        return str(found, "utf-8"), rest


class OpenText(Text):
    """A text that goes to the end of the record."""

    is_open = True

    def __init__(self) -> None:
        super().__init__("")

    def from_body(self, data: memoryview, length: int) -> tuple[str, memoryview]:  # type: ignore[override]
        return str(data, "utf-8"), data[len(data) :]


class Optional(Kind):
    """A number or None, at the end of the record: nothing for None."""

    is_open = True

    def body(self, value: int | None) -> tuple[bytes, int]:
        return (b"" if value is None else _U64.pack(value)), 0

    def from_body(self, data: memoryview, length: int) -> tuple[int | None, memoryview]:
        if not len(data):
            return None, data
        return _U64.unpack_from(data)[0], data[_U64.size :]


class Names(Kind):
    """Texts, each with its length in front of it."""

    length = "H"

    def body(self, value: Sequence[str]) -> tuple[bytes, int]:
        return b"".join([_NAME.body(each)[0] for each in value]), len(value)

    def from_body(self, data: memoryview, length: int) -> tuple[tuple[str, ...], memoryview]:
        found = []
        for _ in range(length):
            name, data = _NAME.from_body(data, 0)
            found.append(name)
        return tuple(found), data

    def write(self, out: Writer, value: Sequence[str]) -> None:
        out.number(len(value))
        for each in value:
            out.text(each)

    def read(self, reader: Reader) -> tuple[str, ...]:
        return tuple([reader.text() for _ in range(reader.number())])


class Items(Kind):
    """Numbers, or tuples of numbers, all of one struct. Where `counts_bytes`, the length is theirs in bytes."""

    def __init__(self, item: str, length: str = "I", *, counts_bytes: bool = False) -> None:
        self.length = length
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

    def write(self, out: Writer, value: Sequence[tuple[int, ...]]) -> None:
        out.number(len(value))
        for row in value:
            for number in row:
                out.number(number)


class Parts(Items):
    """Items whose first number names a part: 16 bytes."""

    def body(self, value: Iterable[Any]) -> tuple[bytes, int]:
        rows = list(value)
        for row in rows:
            NAMED.numbers(row if self._is_single else row[0])
        return super().body(rows)


def _cut(data: memoryview, length: int) -> tuple[memoryview, memoryview]:
    if len(data) < length:
        raise ValueError(f"{length} bytes are said to follow, and {len(data)} do")
    return data[:length], data[length:]


_U16, _U64 = struct.Struct("<H"), struct.Struct("<Q")
_NAME = Name()
U8, U16, U32, U64, I64 = Number("B"), Number("H"), Number("I"), Number("Q"), Signed("q")
FLAG, NAMED = Flag(), Named()
TEXT, NAME, OPEN_TEXT, NAMES = Text(), _NAME, OpenText(), Names()
BYTES, OPTIONAL = Bytes(), Optional()

REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Field:
    """since: the machine version that it came with. default: its value in records from before that. is_apart: packed,
    it begins a new part though it is of the same version."""

    name: str
    kind: Kind
    since: int = FIRST
    default: Any = REQUIRED
    is_apart: bool = False


class _Part:
    """Fields that are packed together."""

    def __init__(self, described: Sequence[Field]) -> None:
        self.since = described[0].since
        self.fields = described
        fixed = [each for each in described if each.kind.fixed]
        self._long = [each for each in described if not each.kind.fixed]
        characters = [each.kind.fixed for each in fixed] + [each.kind.length for each in self._long]
        self._head = struct.Struct("<" + "".join(characters))
        self._size = self._head.size
        self._fixed = [(each.name, each.kind, _count(each.kind)) for each in fixed]
        self._values = _getter([each.name for each in fixed]) if all(map(_is_plain, fixed)) else None
        """of a part whose numbers are packed as they are"""

    def is_default(self, value: Any) -> bool:
        return all(getattr(value, each.name) == each.default for each in self.fields)

    def pack(self, value: Any) -> bytes:
        if self._values is not None:
            head = self._values(value)
        else:
            head = [n for name, kind, _ in self._fixed for n in kind.numbers(getattr(value, name))]
        if not self._long:
            return self._head.pack(*head)
        lengths, bodies = [], [b""]
        for each in self._long:
            body, length = each.kind.body(getattr(value, each.name))
            bodies.append(body)
            if each.kind.length:
                lengths.append(length)
        bodies[0] = self._head.pack(*head, *lengths)
        return b"".join(bodies)

    def unpack(self, data: memoryview, found: dict[str, Any]) -> memoryview:
        head = self._head.unpack_from(data)
        at = 0
        for name, kind, count in self._fixed:
            found[name] = kind.from_numbers(*head[at : at + count])
            at += count
        rest = data[self._size :]
        for each in self._long:
            length = 0
            if each.kind.length:
                length = head[at]
                at += 1
            found[each.name], rest = each.kind.from_body(rest, length)
        return rest

    @property
    def layout(self) -> str:
        """The struct format of its numbers and lengths."""
        return self._head.format


def _count(kind: Kind) -> int:
    """How many numbers a value is, packed."""
    form = "<" + kind.fixed
    return len(struct.unpack(form, bytes(struct.calcsize(form))))


def _is_plain(described: Field) -> bool:
    return type(described.kind).numbers is Kind.numbers


def _getter(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """The values of these attributes, in order."""
    if not names:
        return lambda value: ()
    found = attrgetter(*names)
    return found if len(names) > 1 else lambda value: (found(value),)


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """kind: the class of its values, or what makes one of the fields by name. fields: in the order in which they are
    written. has_body: other bytes follow the packed record; then nothing can be added to it."""

    kind: type
    fields: tuple[Field, ...]
    has_body: bool = False
    since: int = FIRST
    """the machine version that the record itself came with, as a command"""
    parts: tuple[_Part, ...] = field(init=False)
    has_queue: bool = field(init=False)
    """its values have a queue that is not described: packed, the operation's head has it"""

    def __post_init__(self) -> None:
        versions = [each.since for each in self.fields]
        open_at = [place for place, each in enumerate(self.fields) if each.kind.is_open]
        assert versions == sorted(versions), f"{self.kind.__name__}: later fields stand behind earlier ones"
        assert open_at in ([], [len(self.fields) - 1]), f"{self.kind.__name__}: nothing follows an open field"
        assert not self.has_body or versions[-1] <= BASE, (
            f"{self.kind.__name__}: nothing is added before a body"
        )
        for each in self.fields:
            assert each.since == FIRST or each.default is not REQUIRED, f"{each.name} has no default"
        described = [each.name for each in self.fields]
        own = [each.name for each in fields(self.kind)]
        unknown = [name for name in described if name not in own]
        others = [name for name in own if name not in described]
        assert not unknown, f"{self.kind.__name__} has no {unknown}"
        assert others in ([], ["queue"]), f"{self.kind.__name__}: {others} is not described"
        object.__setattr__(self, "has_queue", "queue" in others)
        number = 0
        keys = []
        for each in self.fields:
            number += each.is_apart
            keys.append((each.since, number))
        grouped = groupby(zip(keys, self.fields, strict=True), key=lambda pair: pair[0])
        object.__setattr__(self, "parts", tuple(_Part([each for _, each in group]) for _, group in grouped))

    # ---- packed

    def pack(self, value: Any) -> bytes:
        parts = self.parts
        if len(parts) == 1:
            return parts[0].pack(value)
        count = len(parts)
        while count and parts[count - 1].since > BASE and parts[count - 1].is_default(value):
            count -= 1
        return b"".join([part.pack(value) for part in parts[:count]])

    def unpack(self, data: memoryview, queue: int = 0) -> Any:
        """ValueError, struct.error, IndexError or UnicodeDecodeError where the bytes are none. What follows a record
        without a body is of a version that this build does not know."""
        found: dict[str, Any] = {"queue": queue} if self.has_queue else {}
        for part in self.parts:
            if part.since > FIRST and not len(data):
                found |= {each.name: each.default for each in part.fields}
            else:
                data = part.unpack(data, found)
        if len(data) and not self.has_body:
            raise ValueError(f"{len(data)} bytes behind a {self.kind.__name__}")
        return self.kind(**found)

    # ---- compact

    def write(self, out: Writer, value: Any, version: int) -> None:
        """version: of the state that the record belongs to."""
        for each in self.fields:
            if each.since <= max(version, BASE):
                each.kind.write(out, getattr(value, each.name))

    def read(self, reader: Reader, version: int) -> Any:
        return self.kind(
            **{
                each.name: each.kind.read(reader) if each.since <= max(version, BASE) else each.default
                for each in self.fields
            }
        )

    # ---- JSON lists

    def dump(self, value: Any) -> bytes:
        found = [getattr(value, each.name) for each in self.fields]
        while (
            found
            and self.fields[len(found) - 1].since > BASE
            and found[-1] == self.fields[len(found) - 1].default
        ):
            found.pop()
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()

    def load(self, data: bytes | memoryview) -> Any:
        """ValueError where the bytes are none."""
        values = json.loads(bytes(data))
        if not isinstance(values, list) or len(values) > len(self.fields):
            raise ValueError(f"not a {self.kind.__name__}")
        found = {
            each.name: each.kind.from_json(value) for each, value in zip(self.fields, values, strict=False)
        }
        for each in self.fields[len(values) :]:
            if each.since == FIRST:
                raise ValueError(f"a {self.kind.__name__} without {each.name}")
            found[each.name] = each.default
        return self.kind(**found)

    # ----

    def needed_version(self, value: Any) -> int:
        """The machine version that a cluster needs for this value: the latest of those that the record and its fields
        came with, of the fields that are not at their defaults."""
        return max(
            self.since,
            BASE,
            *(
                each.since
                for each in self.fields
                if each.since > BASE and getattr(value, each.name) != each.default
            ),
        )
