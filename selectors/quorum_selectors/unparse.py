"""Expressions back to text: the selector that a canonical encoding stands for.

`jms.parse` reads the printed text as an expression of the same encoding; a property test checks that. The text is
seldom the one that a user typed, because the normal form has sorted and folded it. It can be longer than the typed one,
and so beyond the limits of a selector: it is for people, and programs use the encoding.

Some expressions have no selector: those of property filters, which use other fields and know no UNKNOWN. They are
printed for people too, with AMQP's names of fields, and with `IS TRUE` where UNKNOWN becomes FALSE.
"""

from __future__ import annotations

from math import isfinite

from quorum_selectors import jms
from quorum_selectors.arithmetic import INT64_MAX, INT64_MIN
from quorum_selectors.expression import (
    And,
    Arithmetic,
    Comparison,
    DeliveryMode,
    Expression,
    Field,
    FieldValue,
    In,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Not,
    Or,
    Sign,
)
from quorum_selectors.known_fields import APPLICATION, DEFAULT_PRIORITY, JMS_HEADERS, JMS_REFUSED
from quorum_selectors.like import Pattern

ESCAPE = "\\"
DELIVERY_MODE = "JMSDeliveryMode"

_IDENTIFIERS = {key: name for name, key in JMS_HEADERS.items() if name != DELIVERY_MODE}
_PRIORITY = Field(JMS_HEADERS["JMSPriority"], DEFAULT_PRIORITY)
_NO_NUMBER, _UNKNOWN = "(1 / 0)", "(1 / 0 = 0)"
"""NULL in a selector, which has no word for it as a value or a condition."""


def selector(expression: Expression) -> str | None:
    """The selector with this meaning; None if there is none."""
    printer = _Printer()
    text = printer.condition(expression)
    return text if printer.is_selector else None


def shown(expression: Expression) -> str:
    """The same for people, for any expression."""
    return _Printer().condition(expression)


def identifier(name: str) -> str | None:
    """The name of an application property as a selector writes it; None if no identifier names it."""
    if not name or name.upper() in jms.KEYWORDS or name in JMS_HEADERS or name in JMS_REFUSED:
        return None
    if not jms.is_identifier_start(name[0]):
        return None
    return name if all(map(jms.is_identifier_part, name)) else None


def literal(value: FieldValue) -> str | None:
    """A value as a selector writes it; None if it cannot: NaN, infinities, numbers beyond 64 bits, lone surrogates."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return None
        return _quoted(value)
    if isinstance(value, int):
        return str(value) if INT64_MIN <= value <= INT64_MAX else None
    return repr(value) if isfinite(value) else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def escaped(text: str) -> str:
    """A text escaped with ESCAPE for a LIKE pattern."""
    for special in (ESCAPE, "%", "_"):
        text = text.replace(special, ESCAPE + special)
    return text


def _like(pattern: Pattern) -> str:
    """The operand of LIKE."""
    runs = [["_" * run if isinstance(run, int) else run for run in segment] for segment in pattern]
    is_plain = not any(
        special in run for segment in pattern for run in segment if isinstance(run, str) for special in "%_"
    )
    if not is_plain:
        runs = [
            [
                shape if isinstance(run, int) else escaped(run)
                for run, shape in zip(segment, shapes, strict=True)
            ]
            for segment, shapes in zip(pattern, runs, strict=True)
        ]
    text = _quoted("%".join("".join(segment) for segment in runs))
    return text if is_plain else f"{text} ESCAPE {_quoted(ESCAPE)}"


_VALUES = (Literal, Field, DeliveryMode, Sign, Arithmetic)
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}


class _Printer:
    """Prints one expression. is_selector: whether everything printed so far is valid in a selector."""

    def __init__(self) -> None:
        self.is_selector = True

    def condition(self, node: Expression) -> str:
        match node:
            case Or(operands):
                return " OR ".join(self._operand(each, Or) for each in operands)
            case And(operands):
                return " AND ".join(self._operand(each, Or, And) for each in operands)
            case Not(Like() | IsNull() as operand):
                return self._test(operand, "NOT ")
            case Not(In(Field() | DeliveryMode()) as operand):
                return self._test(operand, "NOT ")
            case Not(operand):
                return f"NOT {self._bracketed(operand)}"
            case IsTrue(operand):
                self.is_selector = False
                return f"{self._bracketed(operand)} IS TRUE"
            case Comparison(op, left, right):
                if op not in ("=", "<>") and not (isinstance(left, _VALUES) and isinstance(right, _VALUES)):
                    self.is_selector = False  # conditions have no order
                return f"{self._compared(left)} {op} {self._compared(right)}"
            case In(Field() | DeliveryMode()) | Like() | IsNull():
                return self._test(node, "")
            case In(operand, values):  # IN takes identifiers only; the normal form joins others, too
                asked = self._compared(operand)
                return "(" + " OR ".join(f"{asked} = {self._literal(value)}" for value in values) + ")"
            case Literal(None):
                return _UNKNOWN
            case Literal(bool()) | Field() | DeliveryMode():
                return self._value(node)
            case _:
                self.is_selector = False  # no condition, and so never TRUE
                return self._value(node)

    def _operand(self, node: Expression, *looser: type) -> str:
        text = self.condition(node)
        return f"({text})" if isinstance(node, looser) else text

    def _bracketed(self, node: Expression) -> str:
        text = self.condition(node)
        return text if isinstance(node, Field | DeliveryMode | Literal) else f"({text})"

    def _test(self, node: Expression, negation: str) -> str:
        match node:
            case In(operand, values):
                listed = ", ".join(self._literal(value) for value in values)
                return f"{self._tested(operand)} {negation}IN ({listed})"
            case Like(operand, pattern):
                return f"{self._tested(operand)} {negation}LIKE {_like(pattern)}"
            case IsNull(operand):
                return f"{self._tested(operand)} IS {negation}NULL"
            case _:
                raise AssertionError(node)

    def _tested(self, node: Expression) -> str:
        """The left side of an operator that takes identifiers only."""
        if not isinstance(node, Field | DeliveryMode):
            self.is_selector = False
        return self._compared(node)

    def _compared(self, node: Expression) -> str:
        match node:
            case _ if isinstance(node, _VALUES):
                return self._value(node)
            case _:
                return f"({self.condition(node)})"

    def _value(self, node: Expression) -> str:
        match node:
            case Literal(None):
                return _NO_NUMBER
            case Literal(bool() | int() | float() | str() as value):
                return self._literal(value)
            case Field():
                return self._field(node)
            case DeliveryMode():
                return DELIVERY_MODE
            case Sign(op, Field() | DeliveryMode() as operand):
                return f"{op}{self._value(operand)}"
            case Sign(op, operand):
                return f"{op}({self._number(operand)})"
            case Arithmetic(op, left, right):
                return f"{self._term(left, _BINDS[op])} {op} {self._term(right, _BINDS[op] + 1)}"
            case _:
                return self._compared(node)

    def _term(self, node: Expression, binds: int) -> str:
        """One side of a calculation, in brackets if it binds more loosely than `binds`."""
        text = self._number(node)
        return f"({text})" if isinstance(node, Arithmetic) and _BINDS[node.op] < binds else text

    def _number(self, node: Expression) -> str:
        match node:
            case Literal(bool() | str()):
                self.is_selector = False
            case Literal() | Field() | DeliveryMode() | Sign() | Arithmetic():
                pass
            case _:
                self.is_selector = False
        return self._value(node)

    def _literal(self, value: FieldValue) -> str:
        text = literal(value)
        if text is None:
            self.is_selector = False
            return (
                _quoted(value.encode("utf-8", "replace").decode()) if isinstance(value, str) else repr(value)
            )
        return text

    def _field(self, field: Field) -> str:
        key = field.key
        is_property = key.startswith(APPLICATION)
        name = identifier(key[len(APPLICATION) :]) if is_property else _IDENTIFIERS.get(key)
        if name is None or field.default != (_PRIORITY.default if key == _PRIORITY.key else None):
            self.is_selector = False
            return key.removeprefix(APPLICATION)
        return name
