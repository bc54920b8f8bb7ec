"""`to_selector`: translates a predicate of Spark SQL to a selector.

In a stream, a `where` after the source takes messages from the queue and then drops them; a selector leaves them in the
queue. A predicate without a selector of the same meaning is therefore refused, never weakened. Spark's own parser reads
the text. Both languages have the same three truth values. If a property is of one kind in all messages, they agree with
one exception: Spark orders NaN above all numbers, a selector does not order it.
"""

from __future__ import annotations

from typing import Any

from quorum.spark.errors import OptionError, SetupError
from quorum.spark.selector_text import identifier, is_sound, literal

_COMPARISONS = {
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_ARITHMETIC = {"Add": "+", "Subtract": "-", "Multiply": "*"}
_INTEGERS = ("tinyint", "smallint", "int", "bigint", "byte", "short", "integer", "long")


def to_selector(predicate: str) -> str:
    """The selector for a predicate of Spark SQL on application properties: `color = 'red' AND size < 3`.

    Properties have plain names or names such as `fields.color`. OptionError if no selector has the same meaning;
    SetupError without an active session (a Connect session does not count, because its client has no parser).
    """
    text = _condition(_parsed(predicate))
    if not is_sound(text):
        raise OptionError(f"the selector for {predicate!r} is longer than a selector may be, or no condition")
    return text


def names_in(predicate: str) -> list[list[str]]:
    """The columns that a predicate names, each as the parts of its name. Errors as `to_selector`."""
    found: list[list[str]] = []
    waiting = [_parsed(predicate)]
    while waiting:
        node = waiting.pop()
        waiting += reversed(_children(node))
        if _kind(node) == "UnresolvedAttribute":
            found.append(_parts(node))
    return found


def _parsed(predicate: str) -> Any:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    jvm_session = getattr(spark, "_jsparkSession", None)
    if jvm_session is None:
        raise SetupError("to_selector reads the predicate with Spark's parser: start a session first")
    from pyspark.errors import ParseException

    try:
        return jvm_session.sessionState().sqlParser().parseExpression(predicate)
    except ParseException as error:
        first = str(error).strip().splitlines()[0]
        raise OptionError(f"{predicate!r} is not a predicate of Spark SQL: {first}") from None


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _children(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(place) for place in range(children.size())]


def _refuse(node: Any, why: str = "") -> OptionError:
    return OptionError(f"{node.sql()} has no selector of the same meaning{': ' + why if why else ''}")


def _condition(node: Any) -> str:
    kind = _kind(node)
    if kind in ("And", "Or"):
        left, right = (_condition(each) for each in _children(node))
        return f"({left} {kind.upper()} {right})"
    if kind == "Not":
        (inner,) = _children(node)
        if _kind(inner) == "EqualTo":
            left, right = (_value(each) for each in _children(inner))
            return f"{left} <> {right}"
        return f"NOT ({_condition(inner)})"
    if kind in _COMPARISONS:
        return _compared(node, _COMPARISONS[kind])
    if kind == "EqualNullSafe":
        return _null_safe(node)
    if kind in ("IsNull", "IsNotNull"):
        (operand,) = _children(node)
        return f"{_name(operand)} IS {'NOT ' if kind == 'IsNotNull' else ''}NULL"
    if kind == "In":
        return _in(node)
    if kind == "Like":
        return _like(node)
    if kind == "UnresolvedFunction" and _function(node) == "between":
        value, low, high = (_value(each) for each in _children(node))
        if "'" in (low[0], high[0]):
            raise _refuse(node, "a selector orders numbers only")
        return f"{value} BETWEEN {low} AND {high}"
    if kind == "UnresolvedAttribute" or (kind == "Literal" and node.dataType().typeName() == "boolean"):
        return _value(node)
    raise _refuse(node)


def _function(node: Any) -> str:
    parts = node.nameParts()
    return str(parts.apply(parts.size() - 1)).lower()


def _compared(node: Any, operator: str) -> str:
    left, right = (_value(each) for each in _children(node))
    if operator != "=" and "'" in (left[0], right[0]):
        raise _refuse(node, "a selector orders numbers only")
    return f"{left} {operator} {right}"


def _null_safe(node: Any) -> str:
    left, right = _children(node)
    if _kind(left) == "Literal":
        left, right = right, left
    if _kind(right) != "Literal":
        raise _refuse(node, "<=> takes a property and a literal")
    name = _name(left)
    if right.value() is None:
        return f"{name} IS NULL"
    return f"({name} IS NOT NULL AND {name} = {_value(right)})"


def _in(node: Any) -> str:
    operand, *values = _children(node)
    name = _name(operand)
    if any(_kind(each) == "Literal" and each.value() is None for each in values):
        raise _refuse(node, "a list in a selector has no NULL")
    texts = [_value(each) for each in values]
    if all(each.startswith("'") for each in texts):
        return f"{name} IN ({', '.join(texts)})"
    return "(" + " OR ".join(f"{name} = {each}" for each in texts) + ")"


def _like(node: Any) -> str:
    operand, pattern = _children(node)
    if _kind(pattern) != "Literal" or pattern.dataType().typeName() != "string":
        raise _refuse(node, "LIKE takes a text in quotes")
    escape = str(node.escapeChar())
    text = literal(str(pattern.value().toString()))
    return f"{_name(operand)} LIKE {text}" + (f" ESCAPE {literal(escape)}" if escape in str(text) else "")


def _name(node: Any) -> str:
    if _kind(node) != "UnresolvedAttribute":
        raise _refuse(node, "only a property is allowed here")
    names = _parts(node)
    if len(names) == 2 and names[0].lower() == "fields":
        names = names[1:]
    found = identifier(names[0]) if len(names) == 1 else None
    if found is None:
        raise _refuse(node, "a selector can name no such property")
    return found


def _parts(node: Any) -> list[str]:
    parts = node.nameParts()
    return [str(parts.apply(place)) for place in range(parts.size())]


def _value(node: Any) -> str:
    kind = _kind(node)
    if kind == "UnresolvedAttribute":
        return _name(node)
    if kind == "Literal":
        return _literal(node)
    if kind == "UnaryMinus":
        (inner, *_) = _children(node)
        text = _value(inner)
        return text[1:] if text.startswith("-") else f"-{text}"
    if kind in _ARITHMETIC:
        left, right = (_value(each) for each in _children(node))
        if "'" in (left[0], right[0]):
            raise _refuse(node, "a selector calculates with numbers only")
        # a blank after a sign, because two signs together would be a comment
        return f"({left} {_ARITHMETIC[kind]} {right})"
    raise _refuse(node)


def _literal(node: Any) -> str:
    kind, value = str(node.dataType().typeName()), node.value()
    if value is None:
        raise _refuse(node, "NULL is written IS NULL")
    text: str | None = None
    if kind == "string":
        text = literal(str(value.toString()))
    elif kind == "boolean":
        text = literal(bool(value))
    elif kind in _INTEGERS:
        text = literal(int(value))
    elif kind in ("double", "float") or kind.startswith("decimal"):
        text = literal(float(str(value)))
    if text is None:
        raise _refuse(node)
    return text
