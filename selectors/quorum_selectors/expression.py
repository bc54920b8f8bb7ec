"""The tree that selectors and property filters become: frozen nodes of plain values.

A node is a *value* (Literal, Field, DeliveryMode, Sign, Arithmetic) or a *condition* (the rest). A condition is TRUE,
FALSE or UNKNOWN (True, False, None). A field or a literal may be used as a condition, and is UNKNOWN unless it is a
boolean. A condition may be compared with a boolean.

A *field key* names a field everywhere: `header.priority`, `properties.subject`, `application-properties.colour`. In a
mapping from keys to values, an absent key and None both are NULL.

BETWEEN has no node: by definition it is two comparisons (JMS 3.1 §3.8.1.1). Equality of nodes is that of Python, in
which 1 == 1.0 == True: to compare expressions, compare their canonical encodings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal as OneOf

from quorum_selectors.like import Pattern

FieldValue = bool | int | float | str
"""The types of a field's value: a boolean, an exact number (64 bit), an approximate one (double), a string."""

Truth = bool | None
"""None is UNKNOWN."""

Comparator = OneOf["=", "<>", "<", "<=", ">", ">="]
TURNED: dict[str, Comparator] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The comparator that says the same with its operands exchanged."""
Operator = OneOf["+", "-", "*", "/"]

DURABLE = "header.durable"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. None is NULL: the folded result of an overflow or a division by zero."""

    value: FieldValue | None


@dataclass(frozen=True, slots=True)
class Field:
    """The value of a field; `default` if it is absent (AMQP's header has defaults), else NULL."""

    key: str
    default: FieldValue | None = None


@dataclass(frozen=True, slots=True)
class DeliveryMode:
    """JMSDeliveryMode: 'PERSISTENT' if `header.durable` is true, else 'NON_PERSISTENT' (AMQP's default is false)."""


@dataclass(frozen=True, slots=True)
class Sign:
    op: OneOf["+", "-"]
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    op: Operator
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Comparison:
    op: Comparator
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class In:
    """Whether a string is one of `values`; FALSE for other types."""

    operand: Expression
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """Whether a whole string matches a pattern (see like.py); FALSE for other types."""

    operand: Expression
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Expression


@dataclass(frozen=True, slots=True)
class IsTrue:
    """Turns UNKNOWN into FALSE, because an AMQP property filter either matches or does not."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Not:
    operand: Expression


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Expression, ...]


Expression = (
    Literal
    | Field
    | DeliveryMode
    | Sign
    | Arithmetic
    | Comparison
    | In
    | Like
    | IsNull
    | IsTrue
    | Not
    | And
    | Or
)

EVERYTHING = Literal(True)
"""The expression that selects every message: the meaning of a blank selector."""


def children(node: Expression) -> tuple[Expression, ...]:
    """The nodes directly below, left to right."""
    match node:
        case Literal() | Field() | DeliveryMode():
            return ()
        case And(operands) | Or(operands):
            return operands
        case Arithmetic(_, left, right) | Comparison(_, left, right):
            return (left, right)
        case Sign(_, operand) | In(operand, _) | Like(operand, _):
            return (operand,)
        case IsNull(operand) | IsTrue(operand) | Not(operand):
            return (operand,)


def walk(node: Expression) -> Iterator[Expression]:
    """Every node once, a parent before its children. Uses its own stack, so any depth works."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        below = children(top)
        if below:
            stack.extend(below[::-1])


VALUES_A_STEP = 16


def steps(node: Expression) -> int:
    """The highest cost of evaluating an expression for one message, used to divide work. One step for

    - each comparison, calculation and test;
    - each segment of a LIKE pattern;
    - each VALUES_A_STEP values of an IN list.
    """
    count = 0
    for part in walk(node):
        match part:
            case In(_, values):
                count += -(-len(values) // VALUES_A_STEP)
            case Like(_, pattern):
                count += len(pattern)
            case Comparison() | Arithmetic() | Sign() | IsNull():
                count += 1
    return max(count, 1)


def field_names(node: Expression) -> tuple[str, ...]:
    """The keys of the fields an expression reads, sorted, each once."""
    keys = set()
    for part in walk(node):
        if isinstance(part, Field):
            keys.add(part.key)
        elif isinstance(part, DeliveryMode):
            keys.add(DURABLE)
    return tuple(sorted(keys))
