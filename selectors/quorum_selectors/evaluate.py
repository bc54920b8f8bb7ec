"""The meaning of an expression: a plain tree walk, written as the reference for the other evaluators, not for speed.

Three-valued logic as in JMS 3.1 §3.8.1.2: AND is the least, OR the greatest of its operands under FALSE < UNKNOWN <
TRUE; NOT keeps UNKNOWN. No evaluation raises, whatever values the fields have.
"""

from __future__ import annotations

from collections.abc import Mapping

from quorum_selectors import like
from quorum_selectors.arithmetic import Value, admit, calculate, compare, signed
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

PERSISTENT = "PERSISTENT"
NON_PERSISTENT = "NON_PERSISTENT"


def evaluate(expression: Expression, fields: Mapping[str, FieldValue]) -> Truth:
    """The truth of an expression for one message. Only True selects it; False and None (UNKNOWN) do not."""
    value = _value(expression, fields)
    return value if value is True or value is False else None


def _value(node: Expression, fields: Mapping[str, FieldValue]) -> Value:
    match node:
        case Literal(value):
            return admit(value)
        case Field(key, default):
            raw = fields.get(key)
            return admit(default if raw is None else raw)
        case DeliveryMode():
            return PERSISTENT if fields.get(DURABLE) is True else NON_PERSISTENT
        case Sign(op, operand):
            return signed(op, _value(operand, fields))
        case Arithmetic(op, left, right):
            return calculate(op, _value(left, fields), _value(right, fields))
        case Comparison(op, left, right):
            return compare(op, _value(left, fields), _value(right, fields))
        case In(operand, values):
            value = _value(operand, fields)
            return None if value is None else type(value) is str and value in values
        case Like(operand, pattern):
            value = _value(operand, fields)
            return None if value is None else type(value) is str and like.matches(pattern, value)
        case IsNull(operand):
            return _is_null(operand, fields)
        case IsTrue(operand):
            return _value(operand, fields) is True
        case Not(operand):
            truth = evaluate(operand, fields)
            return None if truth is None else not truth
        case And(operands):
            return _least(False, operands, fields)
        case Or(operands):
            return _least(True, operands, fields)


def _is_null(operand: Expression, fields: Mapping[str, FieldValue]) -> bool:
    # A value too large to calculate with is present all the same.
    if isinstance(operand, Field):
        return operand.default is None and fields.get(operand.key) is None
    return _value(operand, fields) is None


def _least(decisive: bool, operands: tuple[Expression, ...], fields: Mapping[str, FieldValue]) -> Truth:
    """AND for decisive False, OR for decisive True: that value if any operand has it, else UNKNOWN if any operand
    is."""
    result: Truth = not decisive
    for operand in operands:
        truth = evaluate(operand, fields)
        if truth is decisive:
            return decisive
        if truth is None:
            result = None
    return result
