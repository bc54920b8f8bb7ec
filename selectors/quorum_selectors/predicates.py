"""An index over expressions: which of many may select a message, without evaluating each of them.

Every expression is indexed by a few *predicates* over single fields. At least one of them is TRUE wherever the
expression is TRUE (`requirement`). A message's fields are looked up in the index: the expressions found have to be
evaluated, all others are certainly not TRUE. Under three-valued logic that is the only safe direction: a predicate is
never derived from what makes an expression FALSE.

    x = 'a', x IN (..), x = 5, x, NOT x       a table of values
    x LIKE 'a%', x LIKE '%a'                  tables of beginnings and ends, by length
    x < 5, x BETWEEN 1 AND 5                  spans, sorted by where they begin
    x <> 5, x NOT IN (..), x NOT LIKE ..      messages that have the field at all
    everything else                           the rest, which is always evaluated

AND takes the rarest of its operands' requirements; OR needs some of each of them, at most MAX_PREDICATES together.
Numbers are looked up as doubles, and spans include their ends: the index finds a little more than matches, never less.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan
from typing import Generic, TypeVar

import numpy as np

from quorum_selectors import like
from quorum_selectors.arithmetic import admit, is_number
from quorum_selectors.batch_columns import Array, Bits
from quorum_selectors.expression import (
    TURNED,
    And,
    Comparison,
    Expression,
    Field,
    FieldValue,
    In,
    IsTrue,
    Like,
    Literal,
    Not,
    Or,
    steps,
)
from quorum_selectors.string_columns import encode_text
from quorum_selectors.vectorised import Messages

MAX_PREDICATES = 16
"""Maximum number of predicates of one expression. An expression that would need more is evaluated for every message."""

LOOKUPS_A_STEP = 10
"""Approximate number of values that can be looked up in the time that one step of an expression takes over all
messages."""
VALUES_A_LOOKUP = 50
"""The same for many messages: values that a step processes in the time of one lookup."""

Place = tuple[str, FieldValue | None]
"""A field as an expression sees it: its key, and the value used if it is absent."""


@dataclass(frozen=True, slots=True)
class Equal:
    """A value: text as UTF-8, a number as a double, or a boolean."""

    place: Place
    value: bytes | float | bool
    cost = 1


@dataclass(frozen=True, slots=True)
class Begins:
    place: Place
    text: bytes
    cost = 4


@dataclass(frozen=True, slots=True)
class Ends:
    place: Place
    text: bytes
    cost = 4


@dataclass(frozen=True, slots=True)
class Between:
    """A number from low to high, both included."""

    place: Place
    low: float
    high: float

    @property
    def cost(self) -> int:
        return 8 if self.low > -inf and self.high < inf else 32


@dataclass(frozen=True, slots=True)
class Present:
    place: Place
    cost = 64


Predicate = Equal | Begins | Ends | Between | Present
Requirement = tuple[Predicate, ...]


def requirement(node: Expression) -> Requirement | None:
    """Predicates, at least one of which is TRUE wherever the expression is. Empty for an expression that is never TRUE,
    None if no predicate can be derived."""
    match node:
        case Literal(value):
            return None if value is True else ()
        case Field():
            return (Equal(_place(node), True),)
        case Comparison(op, Field() as field, Literal(value)):
            return _compared(op, _place(field), admit(value))
        case Comparison(op, Literal(value), Field() as field):
            return _compared(TURNED[op], _place(field), admit(value))
        case In(Field() as field, values):
            return _few(Equal(_place(field), encode_text(value)) for value in values)
        case Like(Field() as field, pattern):
            return _like(_place(field), pattern)
        case IsTrue(operand):
            return requirement(operand)
        case Not(Field() as field):
            return (Equal(_place(field), False),)
        case Not(In(Field() as field, _) | Like(Field() as field, _)):
            return (Present(_place(field)),)
        case Not(Comparison(_, Field() as field, Literal()) | Comparison(_, Literal(), Field() as field)):
            return (Present(_place(field)),)
        case And(operands):
            return _rarest(operands)
        case Or(operands):
            found = [requirement(operand) for operand in operands]
            if any(each is None for each in found):
                return None
            return _few(predicate for each in found if each is not None for predicate in each)
        case _:
            return None


def _place(field: Field) -> Place:
    return field.key, admit(field.default)


def _few(predicates: Iterable[Predicate]) -> Requirement | None:
    # For Python 1.0 is True, but a predicate for one does not match the other.
    found = tuple(
        {(type(each), type(getattr(each, "value", None)), each): each for each in predicates}.values()
    )
    return found if len(found) <= MAX_PREDICATES else None


def _compared(op: str, place: Place, value: FieldValue | None) -> Requirement:
    if value is None:
        return ()  # UNKNOWN
    if op == "<>":
        return (Present(place),)
    if op == "=":
        if isinstance(value, str):
            return (Equal(place, encode_text(value)),)
        return (Equal(place, value if isinstance(value, bool) else float(value)),)
    if not is_number(value):
        return ()  # FALSE: strings and booleans have no order here
    number = float(value)
    if isnan(number):
        return ()  # FALSE, and spans would have no order
    return (Between(place, *((-inf, number) if op in ("<", "<=") else (number, inf))),)


def _like(place: Place, pattern: like.Pattern) -> Requirement:
    text = like.literal_text(pattern)
    if text is not None:
        return (Equal(place, encode_text(text)),)
    first, last = pattern[0], pattern[-1]
    if first and isinstance(first[0], str):
        return (Begins(place, encode_text(first[0])),)
    if last and isinstance(last[-1], str):
        return (Ends(place, encode_text(last[-1])),)
    return (Present(place),)


def _rarest(operands: tuple[Expression, ...]) -> Requirement | None:
    found = [each for each in map(requirement, operands) if each is not None]
    spans: dict[Place, Between] = {}
    for each in found:
        for predicate in each if len(each) == 1 else ():
            if isinstance(predicate, Between):
                other = spans.get(predicate.place, predicate)
                low, high = max(predicate.low, other.low), min(predicate.high, other.high)
                spans[predicate.place] = Between(predicate.place, low, high)
    found += [(span,) for span in spans.values()]
    return min(found, key=lambda each: sum(predicate.cost for predicate in each), default=None)


T = TypeVar("T", bound=Hashable)

Tokens = dict[T, None]
"""A set that keeps its order."""


class _OfField(Generic[T]):
    """The predicates on one field."""

    def __init__(self) -> None:
        self.values: dict[tuple[type, bytes | float | bool], Tokens[T]] = {}
        self.begins: dict[int, dict[bytes, Tokens[T]]] = {}
        self.ends: dict[int, dict[bytes, Tokens[T]]] = {}
        self.spans: dict[tuple[float, float], Tokens[T]] = {}
        self.present: Tokens[T] = {}
        self.steps = 0
        """of all expressions that were added, with each of their predicates"""
        self._sorted: tuple[Array, Array, list[Tokens[T]]] | None = None

    def add(self, predicate: Predicate, token: T, steps: int) -> None:
        self._tokens_of(predicate)[token] = None
        self.steps += steps

    def remove(self, predicate: Predicate, token: T, steps: int) -> None:
        tokens = self._tokens_of(predicate)
        tokens.pop(token, None)
        self.steps -= steps
        if not tokens:
            self._forget(predicate)

    def _tokens_of(self, predicate: Predicate) -> Tokens[T]:
        match predicate:
            case Equal(_, value):
                return self.values.setdefault((type(value), value), {})
            case Begins(_, text):
                return self.begins.setdefault(len(text), {}).setdefault(text, {})
            case Ends(_, text):
                return self.ends.setdefault(len(text), {}).setdefault(text, {})
            case Between(_, low, high):
                self._sorted = None
                return self.spans.setdefault((low, high), {})
            case Present():
                return self.present

    def _forget(self, predicate: Predicate) -> None:
        match predicate:
            case Equal(_, value):
                del self.values[type(value), value]
            case Begins(_, text) | Ends(_, text):
                table = self.begins if isinstance(predicate, Begins) else self.ends
                del table[len(text)][text]
                if not table[len(text)]:
                    del table[len(text)]
            case Between(_, low, high):
                del self.spans[low, high]

    @property
    def is_empty(self) -> bool:
        return not (self.values or self.begins or self.ends or self.spans or self.present)

    def texts(self) -> Iterator[Tokens[T]]:
        """All entries that require strings."""
        yield from (found for (kind, _), found in self.values.items() if kind is bytes)
        for table in (*self.begins.values(), *self.ends.values()):
            yield from table.values()

    def numbers(self) -> Iterator[Tokens[T]]:
        """All entries that require numbers."""
        yield from (found for (kind, _), found in self.values.items() if kind is float)
        yield from self.spans.values()

    def with_text(self, piece: bytes) -> Iterator[Tokens[T]]:
        """The entries that require this string."""
        found = self.values.get((bytes, piece))
        if found:
            yield found
        for length, table in self.begins.items():
            if length <= len(piece) and (found := table.get(piece[:length])):
                yield found
        for length, table in self.ends.items():
            if length <= len(piece) and (found := table.get(piece[len(piece) - length :])):
                yield found

    def with_number(self, number: float) -> Iterator[Tokens[T]]:
        """The entries that require this number."""
        found = self.values.get((float, number))
        if found:
            yield found
        if self.spans and not isnan(number):
            if self._sorted is None:
                pairs = sorted(self.spans)
                low, high = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
                self._sorted = low, high, [self.spans[pair] for pair in pairs]
            low, high, tokens = self._sorted
            begun = int(np.searchsorted(low, number, side="right"))
            for at in np.flatnonzero(high[:begun] >= number).tolist():
                yield tokens[at]

    def with_value(self, value: FieldValue) -> Iterator[Tokens[T]]:
        """The entries that this value meets."""
        if isinstance(value, str):
            yield from self.with_text(encode_text(value))
        elif isinstance(value, bool):
            if found := self.values.get((bool, value)):
                yield found
        else:
            yield from self.with_number(float(value))
        if self.present:
            yield self.present


class PredicateIndex(Generic[T]):
    """Expressions by tokens, and the messages that each of them may select."""

    def __init__(self) -> None:
        self._fields: dict[Place, _OfField[T]] = {}
        self._filed: dict[T, tuple[Requirement | None, int]] = {}
        """predicates and steps"""
        self.rest: Tokens[T] = {}
        """expressions that may select any message"""

    def __len__(self) -> int:
        return len(self._filed)

    def __contains__(self, token: T) -> bool:
        return token in self._filed

    @property
    def lookups(self) -> int:
        """The number of lookups that a message costs: the fields that the expressions outside of `rest` are filed
        under."""
        return len(self._fields)

    def add(self, token: T, expression: Expression) -> None:
        """Add the expression of a token, which has none yet."""
        self.file(token, requirement(expression), steps(expression))

    def file(self, token: T, found: Requirement | None, cost: int) -> None:
        """Add an expression whose requirement and steps are known."""
        if token in self._filed:
            raise ValueError(f"{token!r} has an expression already; remove that first")
        self._filed[token] = found, cost
        if found is None:
            self.rest[token] = None
            return
        for predicate in found:
            table = self._fields.get(predicate.place)
            if table is None:
                table = self._fields[predicate.place] = _OfField()
            table.add(predicate, token, cost)

    def remove(self, token: T) -> None:
        """Remove a token's expression; KeyError if there is none."""
        found, cost = self._filed.pop(token)
        self.rest.pop(token, None)
        for predicate in found or ():
            table = self._fields[predicate.place]
            table.remove(predicate, token, cost)
            if table.is_empty:
                del self._fields[predicate.place]

    def named(self, fields: Mapping[str, FieldValue]) -> Tokens[T]:
        """The tokens outside of `rest` whose expression may select a message with these fields. For a few messages it
        costs less than `candidates`, which lays their fields out in arrays. Integers have at most 64 bits."""
        found: Tokens[T] = {}
        for (key, default), table in self._fields.items():
            value = fields.get(key, default)
            if value is not None:
                for tokens in table.with_value(value):
                    found.update(tokens)
        return found

    def candidates(self, messages: Messages) -> dict[T, list[Array]]:
        """For each token outside of `rest` whose expression may select some of the messages: their positions in the
        run. The arrays may overlap, and are shared."""
        found: dict[T, list[Array]] = {}

        def note(tokens: Iterable[T], places: Array) -> None:
            for token in tokens:
                found.setdefault(token, []).append(places)

        for place, table in self._fields.items():
            vector = messages.field_or(*place)
            for mask, texts in vector.texts:
                places = _places(mask, messages.count)
                codes = _at(texts.codes, places)
                if _is_rather_asked(table, codes):
                    for tokens in table.texts():
                        note(tokens, places)
                    continue
                for code, members in _groups(codes, places):
                    for tokens in table.with_text(texts.table.piece(int(code))):
                        note(tokens, members)
            for mask, values in vector.numbers():
                places = _places(mask, messages.count)
                numbers = _at(values, places).astype(np.float64)
                if _is_rather_asked(table, numbers):
                    for tokens in table.numbers():
                        note(tokens, places)
                    continue
                for number, members in _groups(numbers, places):
                    for tokens in table.with_number(number):
                        note(tokens, members)
            if vector.boolean is not None:
                mask, flags = vector.boolean
                for value in (True, False):
                    asking = table.values.get((bool, value))
                    if asking:
                        note(asking, _places(mask & (flags == value), messages.count))
            if table.present:
                note(table.present, _places(vector.present(), messages.count))
        return found


def _places(mask: Bits, count: int) -> Array:
    return np.flatnonzero(np.broadcast_to(mask, (count,)))


def _at(values: Array, places: Array) -> Array:
    """The values at these positions; a single value is valid for all."""
    return np.broadcast_to(values, places.shape) if len(values) == 1 else values[places]


def _is_rather_asked(table: _OfField[T], values: Array) -> bool:
    """Whether evaluating all entries costs less than looking up each different value."""
    asking = table.steps * max(LOOKUPS_A_STEP, len(values) // VALUES_A_LOOKUP)
    return asking < len(values) and asking < len(np.unique(values))


def _groups(values: Array, places: Array) -> Iterator[tuple[float, Array]]:
    """The positions of each different value."""
    if not len(values):
        return
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for first, members in zip([0, *cuts.tolist()], np.split(places[order], cuts), strict=True):
        yield ordered[first].item(), members
