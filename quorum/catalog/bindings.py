"""Exchanges and bindings as records, and what their names and arguments may be.

An exchange has a type, which says how its bindings select messages:

    direct      the routing key is the binding's key
    fanout      every message
    topic       the routing key matches the binding's key, a pattern of words (topics.py)
    headers     the application properties have the values of the binding's arguments, all or any of them
    selector    a JMS selector over the application properties and the well-known fields

The checks are pure, and the catalog's machine calls them while it applies a command. So they are part of the machine's
version. A selector arrives here as its canonical bytes, because a machine parses no selectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Literal as OneOf
from typing import get_args

from fifo.frozen_dataclasses import dataclass
from quorum.catalog.arguments import ArgumentError, Arguments, ArgumentValue, check_size, check_text
from quorum_selectors import canonical
from quorum_selectors.arithmetic import INT64_MAX, INT64_MIN
from quorum_selectors.errors import EncodingError
from quorum_selectors.expression import EVERYTHING, And, Comparison, Expression, Field, Literal, Or
from quorum_selectors.known_fields import APPLICATION, nearest

ExchangeType = OneOf["direct", "fanout", "topic", "headers", "selector"]
EXCHANGE_TYPES: tuple[ExchangeType, ...] = get_args(ExchangeType)
Kind = OneOf["queue", "exchange"]
"""What a binding leads to."""
KINDS: tuple[Kind, ...] = get_args(Kind)

RESERVED = "amq."
"""Names that begin so belong to the exchanges that are always there."""
ALTERNATE = "alternate-exchange"
MATCH = "x-match"
SELECTOR = "x-selector"
"""The binding's argument with a selector's text, at the API. In the catalog a binding has the selector's bytes."""
MATCHES = ("all", "any", "all-with-x", "any-with-x")
UNMATCHED = "x-"
"""Arguments that begin so are compared only with x-match all-with-x or any-with-x."""
KEYED = ("direct", "topic")
"""Types whose bindings have a routing key."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange as it was declared. id: never given to another exchange; 0 for one that is always there. arguments:
    by name."""

    id: int
    name: str
    type: str
    arguments: Arguments = ()

    @property
    def alternate(self) -> str:
        """The exchange that gets the messages that no binding selects; empty: none."""
        return str(dict(self.arguments).get(ALTERNATE, ""))


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding from an exchange to a queue or another exchange. id: never given to another binding. arguments: by
    name. selector: the canonical encoding of a selector in hexadecimal digits; empty for other exchanges, and for the
    selector that selects every message."""

    id: int
    source: str
    kind: str
    destination: str
    routing_key: str = ""
    arguments: Arguments = ()
    selector: str = ""

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for bindings with the same meaning. Arguments of different types are different, as in 1 and true."""
        arguments = tuple([(name, repr(value)) for name, value in self.arguments])
        return self.source, self.kind, self.destination, self.routing_key, arguments, self.selector

    @property
    def size_bytes(self) -> int:
        """Approximate bytes in a snapshot of the catalog."""
        texts = (self.source, self.destination, self.routing_key, self.selector)
        arguments = sum([len(name.encode()) + len(str(value).encode()) for name, value in self.arguments])
        return arguments + sum([len(text.encode()) for text in texts])


PREDECLARED = {
    name: Exchange(0, name, kind)
    for name, kind in (
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.headers", "headers"),
        ("amq.topic", "topic"),
    )
}
"""The exchanges that are always there, by name."""


def check_exchange_name(name: str) -> None:
    """Check for 1 to 255 bytes of UTF-8 without control characters; raises ArgumentError. The default exchange, whose
    name is empty, cannot be changed."""
    if not name:
        raise ArgumentError(
            "the default exchange, whose name is empty, routes to the queue whose name is the routing key; it cannot "
            "be declared, deleted or bound"
        )
    check_text("exchange name", name)


def check_exchange(name: str, kind: str, arguments: Mapping[str, ArgumentValue]) -> None:
    """Check an exchange before it is declared; raises ArgumentError."""
    check_exchange_name(name)
    if kind not in EXCHANGE_TYPES:
        raise ArgumentError(f"exchange {name!r} has the unknown type {kind!r}{nearest(kind, EXCHANGE_TYPES)}")
    for argument in sorted(arguments):
        if argument != ALTERNATE:
            raise ArgumentError(f"unknown argument {argument!r} of an exchange; known: {ALTERNATE}")
        alternate = arguments[argument]
        if not isinstance(alternate, str):
            raise ArgumentError(
                f"argument {argument!r} is {alternate!r}; allowed: the name of an exchange, as text"
            )
        check_text(f"name in {argument!r}", alternate)


def check_reserved(name: str) -> None:
    """Raise ArgumentError if an exchange of this name can be neither created nor deleted."""
    if name.startswith(RESERVED):
        raise ArgumentError(
            f"exchange {name!r}: names that begin with {RESERVED!r} are reserved; {', '.join(PREDECLARED)} are always "
            "there, and no exchange of such a name is created or deleted"
        )


def check_binding(kind: str, binding: Binding) -> None:
    """Check a binding's routing key and arguments. kind: the type of its exchange. Raises ArgumentError."""
    what = f"a binding of the {kind} exchange {binding.source!r}"
    if binding.kind not in KINDS:
        raise ArgumentError(f"{what} leads to {binding.kind!r}; allowed: {', '.join(KINDS)}")
    if kind in KEYED:
        if binding.routing_key:
            check_text("routing key", binding.routing_key)
    elif binding.routing_key:
        raise ArgumentError(f"{what} has the routing key {binding.routing_key!r}; it takes none")
    arguments = dict(binding.arguments)
    if len(arguments) < len(binding.arguments):
        raise ArgumentError(f"{what} has an argument twice")
    check_size(arguments)
    if kind != "selector" and binding.selector:
        raise ArgumentError(f"{what} has a selector; only those of selector exchanges have one")
    if kind != "headers" and arguments:
        allowed = f"only {SELECTOR!r}" if kind == "selector" else "none"
        raise ArgumentError(f"{what} has the argument {min(arguments)!r}; it takes {allowed}")
    if kind == "headers":
        _check_headers(what, arguments)
    try:
        condition_of(kind, binding)
    except EncodingError as error:
        raise ArgumentError(f"{what}: {error}") from error


def _check_headers(what: str, arguments: Mapping[str, ArgumentValue]) -> None:
    match = arguments.get(MATCH, MATCHES[0])
    if match not in MATCHES:
        raise ArgumentError(f"{what} has {MATCH} {match!r}; allowed: {', '.join(MATCHES)}")
    for name in sorted(arguments):
        value = arguments[name]
        if name == MATCH:
            continue
        if name.startswith(UNMATCHED) and match in ("all", "any"):
            raise ArgumentError(
                f"{what} has the argument {name!r}, which is compared only if {MATCH} is all-with-x or any-with-x"
            )
        if not name:
            raise ArgumentError(f"{what} has an argument without a name")
        if isinstance(value, float) and not isfinite(value):
            raise ArgumentError(f"{what} has {value} as {name!r}; allowed: finite numbers")
        if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
            raise ArgumentError(f"{what} has {value} as {name!r}; allowed: integers of 64 bits")


def condition_of(kind: str, binding: Binding) -> tuple[bytes, Expression]:
    """The condition under which a binding of a headers or selector exchange selects a message, with its encoding; that
    which selects every message for other types. Raises EncodingError if the selector's bytes are none."""
    if kind == "selector":
        try:
            encoded = bytes.fromhex(binding.selector)
        except ValueError as error:
            raise EncodingError("a selector that is not written in hexadecimal digits") from error
        return encoded, canonical.decode(encoded)
    expression = _headers(dict(binding.arguments)) if kind == "headers" else EVERYTHING
    return canonical.encode(expression), expression


def _headers(arguments: dict[str, ArgumentValue]) -> Expression:
    is_all = str(arguments.pop(MATCH, MATCHES[0])).startswith("all")
    equal = tuple(
        [Comparison("=", Field(APPLICATION + name), Literal(arguments[name])) for name in sorted(arguments)]  # type: ignore[arg-type]
    )
    if not equal:
        return Literal(is_all)
    if len(equal) == 1:
        return equal[0]
    return And(equal) if is_all else Or(equal)
