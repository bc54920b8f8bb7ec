"""Records by description: one list of fields for a record, and three layouts that follow from it.

A `Record` names a class and its fields: what kind each one is, since which machine version it is there, and what it is
where a record is from before that. Descriptions are in `fifo/layouts.py`, `fifo/persistence/layouts.py` and
`quorum/catalog/layouts.py`.

 - *packed*, in log commands: fixed-size numbers. Fields of one version make a part: first all numbers, then the
   lengths, then what has a length. Parts follow each other in the order of versions. A record that ends before a part
   is from before it. A part of a version above BASE is written only where one of its fields is not at its default; the
   edge allows that only after the switch to the version (`needed_version`), so older members never see it.
 - *compact*, in the snapshots of groups: numbers of variable length, one field after the other. The version of the
   state that the record belongs to (`Writer.version`, `Reader.version`) says which fields are there.
 - *JSON*, lists in the catalog's commands and in its snapshot, objects in its snapshot. A list has the fields in their
   order, an object has them by name. What ends before a field, or lacks it, is from before it.

What was written once is read for ever: fields are only added, behind those of earlier versions, with a default.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from fifo.codec import Reader, Writer
from fifo.frozen_dataclasses import dataclass
from fifo.kinds import Compact, Fixed, InJson, Kind, Sized, Tuple, getter, is_number
from fifo.versions import BASE, FIRST

REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Field:
    """name: of the attribute; with dots, of an attribute of an attribute. since: the machine version that it came with.
    default: its value in records from before that, immutable. is_apart: packed, it begins a new part though it is of
    the same version."""

    name: str
    kind: Kind
    since: int = FIRST
    default: Any = REQUIRED
    is_apart: bool = False

    def write_each(self, out: Writer, records: Iterable[Any]) -> None:
        """compact: the field of each of these records. It stands behind all of them."""
        kind: Any = self.kind  # is Compact; to ask a protocol takes longer than to write a few numbers
        values = map(attrgetter(self.name), records)
        if is_number(kind):
            out.numbers(values)
        else:
            for value in values:
                kind.write(out, value)

    def read_each(self, reader: Reader, records: Iterable[Any]) -> None:
        """Reads what `write_each` wrote into the records. The default where the bytes of an earlier build end."""
        kind: Any = self.kind
        is_there, read = not reader.is_at_end(), kind.read
        for each in records:
            setattr(each, self.name, read(reader) if is_there else self.default)


class _Part:
    """Fields that are packed together."""

    def __init__(self, described: Sequence[Field]) -> None:
        self.since = described[0].since
        self.fields = described
        fixed = [(each.name, each.kind) for each in described if isinstance(each.kind, Fixed)]
        self._long = [(each.name, each.kind) for each in described if isinstance(each.kind, Sized)]
        assert len(fixed) + len(self._long) == len(described), f"{described} cannot be packed"
        characters = [kind.fixed for _, kind in fixed] + [kind.length for _, kind in self._long]
        self._head = struct.Struct("<" + "".join(characters))
        self._size = self._head.size
        self._fixed = [(name, kind, _count(kind)) for name, kind in fixed]
        is_plain = all(type(kind).numbers is Fixed.numbers for _, kind in fixed)
        self._values = getter([name for name, _ in fixed]) if is_plain else None
        """of a part whose numbers are packed as they are"""

    def is_default(self, value: Any) -> bool:
        return all(getattr(value, each.name) == each.default for each in self.fields)

    def pack(self, value: Any) -> bytes:
        head: Sequence[Any]
        if self._values is not None:
            head = self._values(value)
        else:
            head = [n for name, kind, _ in self._fixed for n in kind.numbers(getattr(value, name))]
        if not self._long:
            return self._head.pack(*head)
        lengths, bodies = [], [b""]
        for name, kind in self._long:
            body, length = kind.body(getattr(value, name))
            bodies.append(body)
            if kind.length:
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
        for name, sized in self._long:
            length = 0
            if sized.length:
                length = head[at]
                at += 1
            found[name], rest = sized.from_body(rest, length)
        return rest

    @property
    def layout(self) -> str:
        """The struct format of its numbers and lengths."""
        return self._head.format


def _count(kind: Fixed) -> int:
    """How many numbers a value is, packed."""
    form = "<" + kind.fixed
    return len(struct.unpack(form, bytes(struct.calcsize(form))))


class _Form(NamedTuple):
    """A record in states of one version."""

    names: list[str]
    values: Callable[[Any], tuple[Any, ...]]
    writes: list[tuple[Callable[[Any], Any], Callable[[Writer, Any], None]]]
    """how a field, or neighbours that are numbers, are got from a value and written"""
    reads: list[tuple[str, Callable[[Reader], Any]]]
    nested: list[tuple[int, Record]]
    """the fields that are records: place and description"""
    missing: dict[str, Any]
    """the defaults of later fields"""


def _writes(present: Sequence[Field]) -> list[tuple[Callable[[Any], Any], Callable[[Writer, Any], None]]]:
    found: list[tuple[Callable[[Any], Any], Callable[[Writer, Any], None]]] = []
    for are_numbers, group in groupby(present, key=lambda each: bool(_numbers(each))):
        neighbours = list(group)
        names = [name for each in neighbours for name in _numbers(each)]
        if are_numbers and len(names) > 1:
            found.append((attrgetter(*names), Writer.numbers))
        else:
            found += [
                (attrgetter(each.name), each.kind.write)
                for each in neighbours
                if isinstance(each.kind, Compact)
            ]
    return found


def _numbers(described: Field) -> list[str]:
    """The attributes that are written as numbers, one each; none if the field has another form."""
    if isinstance(described.kind, Tuple):
        return [f"{described.name}.{name}" for name in described.kind.names]
    return [described.name] if is_number(described.kind) else []


class Record:
    """kind: the class of the values. fields: in the order in which they are written. others: fields of the class that
    are not described, because they follow from the state or stand elsewhere. has_body: other bytes follow the packed
    record; then nothing can be added to it. since: the machine version that the record itself came with, as a
    command."""

    def __init__(
        self,
        kind: type,
        described: tuple[Field, ...],
        *,
        others: tuple[str, ...] = (),
        has_body: bool = False,
        since: int = FIRST,
    ) -> None:
        self.kind = kind
        self.fields = described
        self.has_body = has_body
        self.since = since
        own = [each.name for each in fields(kind)] if is_dataclass(kind) else []
        known = [each.name.partition(".")[0] for each in described]
        self.has_queue = "queue" in own and "queue" not in known
        """its values have a queue that is not described: packed, the operation's head has it"""
        self._check(own, known, others)
        self._forms: dict[int, _Form] = {}

    def _check(self, own: list[str], known: list[str], others: tuple[str, ...]) -> None:
        name = self.kind.__name__
        versions = [each.since for each in self.fields]
        open_at = [place for place, each in enumerate(self.fields) if getattr(each.kind, "is_open", False)]
        assert versions == sorted(versions), f"{name}: later fields stand behind earlier ones"
        assert open_at in ([], [len(self.fields) - 1]), f"{name}: nothing follows an open field"
        assert not self.has_body or versions[-1] <= BASE, f"{name}: nothing is added before a body"
        for each in self.fields:
            assert each.since == FIRST or each.default is not REQUIRED, f"{each.name} has no default"
        if own:
            unknown = [each for each in (*known, *others) if not hasattr(self.kind, each)]
            assert not unknown, f"{name} has no {unknown}"
            left = [each for each in own if each not in ("queue", *known, *others)]
            assert not left, f"{name}: {left} is not described"

    # ---- packed

    @cached_property
    def parts(self) -> tuple[_Part, ...]:
        number = 0
        keys = []
        for each in self.fields:
            number += each.is_apart
            keys.append((each.since, number))
        grouped = groupby(zip(keys, self.fields, strict=True), key=lambda pair: pair[0])
        return tuple(_Part([each for _, each in group]) for _, group in grouped)

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

    # ---- in a state

    def _form(self, version: int) -> _Form:
        form = self._forms.get(version)
        if form is None:
            present = [each for each in self.fields if each.since <= version]
            names, kinds = [each.name for each in present], [each.kind for each in present]
            form = self._forms[version] = _Form(
                names,
                getter(names),
                _writes(present),
                [(each.name, each.kind.read) for each in present if isinstance(each.kind, Compact)],
                [(place, kind) for place, kind in enumerate(kinds) if isinstance(kind, Record)],
                {each.name: each.default for each in self.fields[len(present) :]},
            )
        return form

    # ---- compact

    def write(self, out: Writer, value: Any) -> None:
        """The fields that a state of the writer's version has."""
        form = self._forms.get(out.version) or self._form(out.version)
        for get, write in form.writes:
            write(out, get(value))

    def read(self, reader: Reader) -> Any:
        return self.kind(**self.read_fields(reader))

    def read_fields(self, reader: Reader) -> dict[str, Any]:
        """The fields by name, for a class that is not made of them alone."""
        form = self._forms.get(reader.version) or self._form(reader.version)
        found = {name: read(reader) for name, read in form.reads}
        found.update(form.missing)
        return found

    def read_into(self, reader: Reader, target: Any) -> None:
        """Sets the fields of an object."""
        for name, value in self.read_fields(reader).items():
            path, _, last = name.rpartition(".")
            setattr(attrgetter(path)(target) if path else target, last, value)

    # ---- JSON

    def row(self, value: Any, version: int) -> list[Any]:
        """A list of the fields that a state of this version has."""
        form = self._form(max(version, BASE))
        found = list(form.values(value))
        for place, record in form.nested:
            found[place] = record.row(found[place], version)
        return found

    def by_name(self, value: Any, version: int) -> dict[str, Any]:
        """The fields that a state of this version has, by name."""
        return dict(zip(self._form(max(version, BASE)).names, self.row(value, version), strict=True))

    def from_row(self, values: Any) -> Any:
        """ValueError if it is no list of the fields."""
        return self.kind(**self.row_fields(values))

    from_json = from_row

    def row_fields(self, values: Any) -> dict[str, Any]:
        """The fields of a list by name, for a class that is not made of them alone."""
        if not isinstance(values, list) or len(values) > len(self.fields):
            raise ValueError(f"not a {self.kind.__name__}")
        return self._json_fields({each.name: value for each, value in zip(self.fields, values, strict=False)})

    def from_object(self, found: Any) -> Any:
        """ValueError if it is no object of the fields."""
        names = [each.name for each in self.fields]
        if not isinstance(found, dict) or not all(name in names for name in found):
            raise ValueError(f"not a {self.kind.__name__}")
        return self.kind(**self._json_fields(found))

    def set_fields(self, found: Mapping[str, Any], target: Any) -> None:
        """Sets the fields of an object by those of a JSON object, which may have others."""
        for name, value in self._json_fields(found).items():
            setattr(target, name, value)

    @cached_property
    def _parsers(self) -> list[tuple[str, Callable[[Any], Any], Any]]:
        """(name, reader of its JSON form, default) of each field"""
        return [
            (each.name, each.kind.from_json, each.default)
            for each in self.fields
            if isinstance(each.kind, InJson)
        ]

    def _json_fields(self, found: Mapping[str, Any]) -> dict[str, Any]:
        made = {}
        for name, parse, default in self._parsers:
            if name in found:
                made[name] = parse(found[name])
            elif default is REQUIRED:
                raise ValueError(f"a {self.kind.__name__} without {name}")
            else:
                made[name] = default
        return made

    def dump(self, value: Any) -> bytes:
        """A list with the fields of the version that the value needs."""
        found = self.row(value, self.needed_version(value))
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()

    def load(self, data: bytes | memoryview) -> Any:
        """ValueError where the bytes are none."""
        return self.from_row(json.loads(bytes(data)))

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
