"""Files with definitions: their JSON, the places in it that errors name, and Quorum's own format.

    {"quorum_definitions": 1,
     "exchanges": [{"name": "shop", "type": "topic", "arguments": {}}],
     "queues":    [{"name": "orders", "arguments": {"x-max-length": 1000}}],
     "bindings":  [{"source": "shop", "to": "queue", "destination": "orders", "routing_key": "new", "arguments": {}}],
     "policies":  [{"name": "short", "pattern": "*", "priority": 0, "arguments": {"x-message-ttl": 1000}}]}

A file with an unknown key, or with a value of the wrong kind, is refused as a whole: nothing of it is sent. What names
and arguments mean is the service's to judge. rabbitmq_definitions.py reads RabbitMQ's format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from quorum.v1 import admin_pb2

FieldValue = bool | int | float | str
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FORMAT_KEY = "quorum_definitions"
FORMAT = 1
MAX_FILE_BYTES = 64 << 20
"""Maximum bytes of a file. The largest catalog has 32 MiB of bindings."""
MAX_NAME_BYTES = 255
MAX_TEXT_BYTES = 64 << 10
MAX_ARGUMENTS = 1_000
"""The service takes no request with a longer name, a longer text or more arguments, so these are refused here."""

KINDS = ("exchange", "queue", "binding", "policy")
"""The order of an import: a binding needs its ends, and a policy finds its queues."""


class DefinitionsError(ValueError):
    """A file that cannot be read. The text names the place, as a JSON path."""


@dataclass(slots=True)
class Definition:
    """One object of a file. kind: of KINDS. name: for people. place: its JSON path. wire: the message of the API.
    notes: what it means otherwise here. refusal: why it is not sent; empty: it is."""

    kind: str
    name: str
    place: str
    wire: Any
    notes: list[str] = field(default_factory=list)
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Contents:
    """A file's definitions in the order of an import, and what is said about the whole file."""

    definitions: tuple[Definition, ...]
    notes: tuple[str, ...] = ()


def in_order(definitions: Iterable[Definition]) -> tuple[Definition, ...]:
    return tuple(sorted(definitions, key=lambda each: KINDS.index(each.kind)))


# ---- values and their places


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file. place: its JSON path, as in $.queues[3].name."""

    value: Any
    place: str

    def wrong(self, allowed: str) -> DefinitionsError:
        return DefinitionsError(f"{self.place}: {_described(self.value)}; allowed: {allowed}")

    def fields(self) -> dict[str, Node]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        for name in self.value:
            Node(name, f"{self.place}, a key").text()
        return {name: Node(value, self.place + _step(name)) for name, value in self.value.items()}

    def items(self) -> list[Node]:
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [Node(value, f"{self.place}[{number}]") for number, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("text")
        try:
            self.value.encode()
        except UnicodeEncodeError as error:
            raise self.wrong("text without half a surrogate pair") from error
        return self.value

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong("true, false")
        return self.value

    def integer(self, lowest: int = INT64_MIN, highest: int = INT64_MAX) -> int:
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise self.wrong(f"an integer, {lowest}..{highest}")
        return value

    def scalar(self) -> FieldValue:
        """A boolean, number or text."""
        if isinstance(self.value, str):
            return self.text()
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return self.integer()
        if isinstance(self.value, float) and not isfinite(self.value):
            raise self.wrong("a finite number")
        if not isinstance(self.value, bool | float):
            raise self.wrong("a boolean, a number or text")
        return self.value

    def arguments(self) -> dict[str, FieldValue]:
        return {name: node.scalar() for name, node in self.fields().items()}


def _step(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{json.dumps(name)}]"


def _described(value: object) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    shown = json.dumps(value, default=repr)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."


class Fields:
    """The fields of one object, each of which is read once."""

    def __init__(self, node: Node) -> None:
        self.place = node.place
        self._left = node.fields()

    def take(self, name: str) -> Node:
        """A field that has to be there."""
        node = self._left.pop(name, None)
        if node is None:
            raise DefinitionsError(f"{self.place}: {name!r} is missing")
        return node

    def take_or(self, name: str, default: object) -> Node:
        return self._left.pop(name, Node(default, self.place + _step(name)))

    def left(self) -> list[str]:
        return sorted(self._left)

    def end(self, known: Sequence[str]) -> None:
        """DefinitionsError if a field is left."""
        for name in self.left():
            raise DefinitionsError(f"{self.place}: unknown key {name!r}; known: {', '.join(known)}")


# ---- files


def parse(data: str | bytes | Mapping[str, Any]) -> Node:
    """The file's JSON object. data: its text, or the object itself."""
    if isinstance(data, Mapping):
        return Node(dict(data), "$")
    if not isinstance(data, str | bytes | bytearray):
        raise DefinitionsError(
            f"definitions are JSON, as text or bytes, or its object, not {type(data).__name__}"
        )
    size = len(data)
    if size > MAX_FILE_BYTES:
        raise DefinitionsError(f"a file of {size} bytes or more; allowed: {MAX_FILE_BYTES}")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise DefinitionsError(f"byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise DefinitionsError(f"line {error.lineno}, column {error.colno}: no JSON: {error.msg}") from error
    except RecursionError as error:
        raise DefinitionsError("the JSON is nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits
        raise DefinitionsError(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Node(found, "$").wrong("an object")
    return Node(found, "$")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise DefinitionsError(f"an object has the key {name!r} twice")
            seen.add(name)
    return found


def _no_number(text: str) -> float:
    raise DefinitionsError(f"{text} is no JSON; allowed: finite numbers")


def read(file: Node) -> Contents:
    """The definitions of a file in Quorum's own format."""
    fields = Fields(file)
    number = fields.take(FORMAT_KEY)
    if number.integer() != FORMAT:
        raise DefinitionsError(f"{number.place}: format {number.value}; this release reads format {FORMAT}")
    found: list[Definition] = []
    for section, reader in _READERS.items():
        found += [reader(Fields(each)) for each in fields.take_or(section, []).items()]
    fields.end((FORMAT_KEY, *_READERS))
    check_names(found)
    check_sizes(found)
    return Contents(in_order(found))


def check_names(definitions: Iterable[Definition]) -> None:
    """DefinitionsError if two exchanges, queues or policies have the same name."""
    seen: dict[tuple[str, str], str] = {}
    for each in definitions:
        if each.kind != "binding":
            first = seen.setdefault((each.kind, each.name), each.place)
            if first != each.place:
                raise DefinitionsError(f"{each.place}: {each.kind} {each.name!r} is at {first} already")


def check_sizes(definitions: Iterable[Definition]) -> None:
    """Refuse the definitions that no request could carry."""
    for each in definitions:
        each.refusal = each.refusal or _too_large(each.wire)


def _too_large(wire: Any) -> str:
    for descriptor, value in wire.ListFields():
        if descriptor.name == "arguments":
            if len(value) > MAX_ARGUMENTS:
                return f"{len(value)} arguments; allowed: {MAX_ARGUMENTS}"
            for name, each in value.items():
                if len(name.encode()) > MAX_NAME_BYTES:
                    return f"an argument's name of {len(name.encode())} bytes; allowed: {MAX_NAME_BYTES}"
                if len(each.text.encode()) > MAX_TEXT_BYTES:
                    return f"argument {name!r} has {len(each.text.encode())} bytes; allowed: {MAX_TEXT_BYTES}"
        elif isinstance(value, str) and len(value.encode()) > MAX_NAME_BYTES:
            words = descriptor.name.replace("_", " ")
            return f"a {words} of {len(value.encode())} bytes; allowed: {MAX_NAME_BYTES}"
    return ""


def set_arguments(wire: Any, arguments: Mapping[str, FieldValue]) -> None:
    for name, value in arguments.items():
        target = wire.arguments[name]
        if isinstance(value, bool):
            target.boolean = value
        elif isinstance(value, int):
            target.integer = value
        elif isinstance(value, float):
            target.floating = value
        else:
            target.text = value


def arguments_of(wire: Any) -> dict[str, Any]:
    """The arguments of a definition, sorted by name."""
    kinds = {name: wire.arguments[name].WhichOneof("kind") for name in sorted(wire.arguments)}
    return {name: kind and getattr(wire.arguments[name], kind) for name, kind in kinds.items()}


def binding_name(wire: Any) -> str:
    """A binding in words."""
    to = "exchange " if wire.WhichOneof("destination") == "exchange" else ""
    key = f" ({wire.routing_key})" if wire.routing_key else ""
    arguments = arguments_of(wire)
    more = f" {json.dumps(arguments, ensure_ascii=False)}" if arguments else ""
    return f"{wire.source} -> {to}{wire.queue or wire.exchange}{key}{more}"


def binding(
    source: str, to: str, destination: str, routing_key: str, arguments: Mapping[str, FieldValue]
) -> Any:
    wire = admin_pb2.Binding(source=source, routing_key=routing_key)
    setattr(wire, to, destination)
    set_arguments(wire, arguments)
    return wire


def _exchange(fields: Fields) -> Definition:
    wire = admin_pb2.ExchangeDefinition(name=fields.take("name").text(), type=fields.take("type").text())
    set_arguments(wire, fields.take_or("arguments", {}).arguments())
    fields.end(("name", "type", "arguments"))
    return Definition("exchange", wire.name, fields.place, wire)


def _queue(fields: Fields) -> Definition:
    wire = admin_pb2.QueueDefinition(name=fields.take("name").text())
    set_arguments(wire, fields.take_or("arguments", {}).arguments())
    fields.end(("name", "arguments"))
    return Definition("queue", wire.name, fields.place, wire)


def _binding(fields: Fields) -> Definition:
    to = fields.take_or("to", "queue")
    if to.value not in ("queue", "exchange"):
        raise to.wrong('"queue", "exchange"')
    wire = binding(
        fields.take("source").text(),
        to.text(),
        fields.take("destination").text(),
        fields.take_or("routing_key", "").text(),
        fields.take_or("arguments", {}).arguments(),
    )
    fields.end(("source", "to", "destination", "routing_key", "arguments"))
    return Definition("binding", binding_name(wire), fields.place, wire)


def _policy(fields: Fields) -> Definition:
    wire = admin_pb2.Policy(
        name=fields.take("name").text(),
        pattern=fields.take("pattern").text(),
        priority=fields.take_or("priority", 0).integer(-(1 << 31), (1 << 31) - 1),
    )
    set_arguments(wire, fields.take("arguments").arguments())
    fields.end(("name", "pattern", "priority", "arguments"))
    return Definition("policy", wire.name, fields.place, wire)


_READERS: dict[str, Callable[[Fields], Definition]] = {
    "exchanges": _exchange,
    "queues": _queue,
    "bindings": _binding,
    "policies": _policy,
}


# ---- exports


def document(definitions: Any) -> dict[str, Any]:
    """The file's object for a message Definitions, in an order that depends on its contents alone."""

    def named(each: Any, *fields: str) -> dict[str, Any]:
        return {"name": each.name, **{name: getattr(each, name) for name in fields}, **_arguments(each)}

    bindings = []
    for each in definitions.bindings:
        to = each.WhichOneof("destination")
        shown = {"source": each.source, "to": to, "destination": getattr(each, to)}
        bindings.append({**shown, "routing_key": each.routing_key, **_arguments(each)})
    found: dict[str, list[dict[str, Any]]] = {
        "exchanges": [named(each, "type") for each in definitions.exchanges],
        "queues": [named(each) for each in definitions.queues],
        "bindings": bindings,
        "policies": [named(each, "pattern", "priority") for each in definitions.policies],
    }
    sorted_lists = {section: sorted(found[section], key=_sort_key) for section in sorted(found)}
    return dict(sorted({FORMAT_KEY: FORMAT, **sorted_lists}.items()))


def _arguments(wire: Any) -> dict[str, Any]:
    return {"arguments": arguments_of(wire)}


def _sort_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """By name, or by the ends of a binding."""
    texts = [row.get(name, "") for name in ("name", "source", "to", "destination", "routing_key")]
    return *texts, json.dumps(row["arguments"], sort_keys=True)


def text_of(found: Mapping[str, Any]) -> str:
    """The file's text: equal for equal definitions."""
    return json.dumps(found, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
