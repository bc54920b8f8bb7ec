"""One table of arithmetic and comparison for every evaluator.

Values are NULL (None), boolean, exact number (int of 64 bits), approximate number (float), string. Anything
else that turns up in a field counts as a value unlike all of these; a whole number beyond 64 bits counts as
an overflow: UNKNOWN.

    operands             =  <>            <  <=  >  >=      +  -  *  /
    one is NULL          UNKNOWN          UNKNOWN           NULL
    exact, exact         exact            exact             exact; NULL on overflow and on / 0
    exact, approximate   as two doubles   as two doubles    as two doubles; NULL if infinite and on / 0
    string, string       code points      FALSE             NULL
    boolean, boolean     equal or not     FALSE             NULL
    unlike               FALSE (both)     FALSE             NULL

Sources: JMS 3.1 §3.8.1.1 ("only like type values can be compared", "the value of the operation is false",
Java numeric promotion) and §3.8.1.2. Exact division truncates towards zero, as in Java. NaN compares as IEEE
754 says: TRUE only under `<>`. An exact number becomes a double before a mixed comparison, as in Java; Python
alone would compare 2**53+1 with 2.0**53 exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isinf
from typing import Any

from quorum_selectors.expression import Truth

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

Value = Any
"""A field's value as given: one of the types above, or any other object."""

_KINDS: dict[type, str] = {bool: "boolean", int: "number", float: "number", str: "string"}

ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def admit(raw: Value) -> Value:
    """A field's value for calculations; NULL for a whole number beyond 64 bits."""
    if type(raw) is int and not INT64_MIN <= raw <= INT64_MAX:
        return None
    return raw


def is_number(value: Value) -> bool:
    """Whether a value is of exactly these types: True is no number, nor is a number of a foreign type."""
    return type(value) is int or type(value) is float


def compare(op: str, left: Value, right: Value) -> Truth:
    """The truth of a comparison. Both operands must have passed `admit`."""
    if left is None or right is None:
        return None
    kind = _KINDS.get(type(left))
    if kind is None or kind != _KINDS.get(type(right)):
        return False
    if kind == "number":
        if type(left) is not type(right):
            left, right = float(left), float(right)
    elif op not in ("=", "<>"):
        return False
    return ORDER[op](left, right)


def calculate(op: str, left: Value, right: Value) -> Value:
    """The result as a number, or NULL."""
    if not (is_number(left) and is_number(right)):
        return None
    if type(left) is int and type(right) is int:
        return _exact(op, left, right)
    return _approximate(op, float(left), float(right))


def signed(op: str, operand: Value) -> Value:
    """Unary plus or minus: a number, or NULL. The least exact number has no negative."""
    if not is_number(operand):
        return None
    return operand if op == "+" else admit(-operand)


def _exact(op: str, left: int, right: int) -> int | None:
    if op == "+":
        result = left + right
    elif op == "-":
        result = left - right
    elif op == "*":
        result = left * right
    elif right == 0:
        return None
    else:
        result = abs(left) // abs(right)
        if (left < 0) != (right < 0):
            result = -result
    return result if INT64_MIN <= result <= INT64_MAX else None


def _approximate(op: str, left: float, right: float) -> float | None:
    if op == "+":
        result = left + right
    elif op == "-":
        result = left - right
    elif op == "*":
        result = left * right
    elif right == 0.0:
        return None
    else:
        result = left / right
    return None if isinf(result) else result
