"""Builds pieces of selector text from names and values. The service's parser reads each piece with the same meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quorum_selectors import jms
from quorum_selectors.errors import SelectorError
from quorum_selectors.unparse import ESCAPE, escaped, identifier, literal

__all__ = ["check", "comparison", "identifier", "is_sound", "like", "literal", "one_of"]


def comparison(name: str, operator: str, value: Any) -> str | None:
    text = literal(value)
    return None if text is None else f"{name} {operator} {text}"


def one_of(name: str, values: Sequence[Any]) -> str | None:
    """An IN condition if all values are strings. Otherwise comparisons joined by OR, because IN takes only strings.
    None if a selector cannot express one of the values, or if there are no values."""
    texts = [literal(each) for each in values]
    if not texts or None in texts:
        return None
    if all(isinstance(each, str) for each in values):
        return f"{name} IN ({', '.join(str(each) for each in texts)})"
    return "(" + " OR ".join(f"{name} = {each}" for each in texts) + ")"


def like(name: str, before: str, text: str, after: str) -> str:
    """A LIKE condition for the literal `text`, with optional wildcards before and after it."""
    quoted = escaped(text)
    pattern = literal(before + quoted + after)
    return f"{name} LIKE {pattern}" + (f" ESCAPE '{ESCAPE}'" if quoted != text else "")


def is_sound(selector: str) -> bool:
    """Whether the service accepts the selector: it is within the limits, and it parses as a condition."""
    try:
        jms.parse(selector)
    except SelectorError:
        return False
    return True


def check(selector: str) -> None:
    """Raise OptionError for a selector that the service would refuse, before the service is called."""
    from quorum.spark.errors import OptionError

    try:
        jms.parse(selector)
    except SelectorError as error:
        raise OptionError(f"option selector: {error}") from None
