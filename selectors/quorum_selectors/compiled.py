"""An expression as one closure over a message's fields: for evaluating the same expression many times.

It always agrees with `evaluate`; a property test checks that. The common shapes (a field against a literal, IN, LIKE,
IS NULL on a field) have closures of their own. Other closures are composed from the arithmetic table that `evaluate`
uses. A closure never leaves its process; the encoded tree is what is sent and stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorum_selectors import like
from quorum_selectors.arithmetic import INT64_MAX, INT64_MIN, ORDER, Value, admit, calculate, compare, signed
from quorum_selectors.evaluate import NON_PERSISTENT, PERSISTENT
from quorum_selectors.expression import (
    DURABLE,
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
    Truth,
)

Fields = Mapping[str, FieldValue]
Condition = Callable[[Fields], Truth]
_Getter = Callable[[Any], Value]


def compile_expression(expression: Expression) -> Condition:
    """A function from a message's fields to True, False or None; it never raises."""
    match expression:
        case And(operands):
            return _least(False, [compile_expression(operand) for operand in operands])
        case Or(operands):
            return _least(True, [compile_expression(operand) for operand in operands])
        case Not(operand):
            return _negation(compile_expression(operand))
        case IsTrue(operand):
            inner = compile_expression(operand)
            return lambda fields: inner(fields) is True
        case IsNull(operand):
            return _is_null(operand)
        case In(operand, values):
            return _string_test(operand, frozenset(values).__contains__)
        case Like(operand, pattern):
            return _string_test(operand, like.compile_pattern(pattern))
        case Comparison(op, Field(key, None), Literal(value)):
            return _field_comparison(op, key, value)
        case Comparison(op, left, right):
            return _comparison(op, _getter(left), _getter(right))
        case _:
            return _truth(_getter(expression))


def _truth(get: _Getter) -> Condition:
    def truth(fields: Fields) -> Truth:
        value = get(fields)
        return value if value is True or value is False else None

    return truth


def _negation(inner: Condition) -> Condition:
    def negation(fields: Fields) -> Truth:
        truth = inner(fields)
        return None if truth is None else not truth

    return negation


def _least(decisive: bool, conditions: list[Condition]) -> Condition:
    otherwise = not decisive
    if len(conditions) == 2:
        first, second = conditions

        def least_of_two(fields: Fields) -> Truth:
            truth = first(fields)
            if truth is decisive:
                return decisive
            other = second(fields)
            return truth if other is otherwise else other

        return least_of_two

    def least(fields: Fields) -> Truth:
        result: Truth = otherwise
        for condition in conditions:
            truth = condition(fields)
            if truth is decisive:
                return decisive
            if truth is None:
                result = None
        return result

    return least


def _is_null(operand: Expression) -> Condition:
    if isinstance(operand, Field):
        key = operand.key
        if operand.default is not None:
            return lambda fields: False
        return lambda fields: fields.get(key) is None
    get = _getter(operand)
    return lambda fields: get(fields) is None


def _string_test(operand: Expression, test: Callable[[str], bool]) -> Condition:
    get = _getter(operand)

    def string_test(fields: Fields) -> Truth:
        value = get(fields)
        if type(value) is str:
            return test(value)
        return None if value is None else False

    return string_test


def _field_comparison(op: str, key: str, value: FieldValue | None) -> Condition:
    """A comparison of a field with a literal: the literal's type is known, so one check decides most messages."""
    order = ORDER[op]
    literal = admit(value)
    kind = type(literal)
    if literal is None:
        return lambda fields: None
    if kind is int or kind is float:
        approximate = float(literal)

        def compare_number(fields: Fields) -> Truth:
            raw = fields.get(key)
            if type(raw) is int:
                if INT64_MIN <= raw <= INT64_MAX:
                    return order(raw, literal) if kind is int else order(float(raw), literal)
                return None
            if type(raw) is float:
                return order(raw, approximate)
            return None if raw is None else False

        return compare_number
    # Strings and booleans: only = and <> can be other than FALSE.
    is_ordered = op not in ("=", "<>")

    def compare_other(fields: Fields) -> Truth:
        raw = fields.get(key)
        if type(raw) is kind:
            return False if is_ordered else order(raw, literal)
        return None if admit(raw) is None else False

    return compare_other


def _comparison(op: str, left: _Getter, right: _Getter) -> Condition:
    return lambda fields: compare(op, left(fields), right(fields))


def _getter(node: Expression) -> _Getter:
    """A function that returns the node's value, after `admit`."""
    match node:
        case Literal(value):
            constant = admit(value)
            return lambda fields: constant
        case Field(key, default):
            return _field(key, default)
        case DeliveryMode():
            return lambda fields: PERSISTENT if fields.get(DURABLE) is True else NON_PERSISTENT
        case Sign(op, operand):
            inner = _getter(operand)
            return lambda fields: signed(op, inner(fields))
        case Arithmetic(op, left, right):
            first, second = _getter(left), _getter(right)
            return lambda fields: calculate(op, first(fields), second(fields))
        case _:
            return compile_expression(node)


def _field(key: str, default: FieldValue | None) -> _Getter:
    def field(fields: Fields) -> Value:
        raw = fields.get(key)
        if type(raw) is str:
            return raw
        return admit(default if raw is None else raw)

    return field
