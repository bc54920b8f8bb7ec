"""Pieces of selector text, each written so that the service's parser reads back what was meant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from quorum_selectors import jms
from quorum_selectors.errors import SelectorError
from quorum_selectors.wellknown import JMS_HEADERS, JMS_REFUSED

MAX_INT64 = (1 << 63) - 1


def identifier(name: str) -> str | None:
    """The name of an application property as a selector writes it; None where no identifier names it."""
    if not name or name.upper() in jms.KEYWORDS or name in JMS_HEADERS or name in JMS_REFUSED:
        return None
    if name == "JMSDeliveryMode" or not jms.is_identifier_start(name[0]):
        return None
    return name if all(jms.is_identifier_part(each) for each in name) else None


def literal(value: Any) -> str | None:
    """A value as a selector writes it; None where it cannot: NaN, infinities, what is beyond 64 bits, lone halves."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return None
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int):
        return str(value) if -MAX_INT64 - 1 <= value <= MAX_INT64 else None
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    return None


def comparison(name: str, operator: str, value: Any) -> str | None:
    text = literal(value)
    return None if text is None else f"{name} {operator} {text}"


def one_of(name: str, values: Sequence[Any]) -> str | None:
    """IN takes strings only; others are written out."""
    texts = [literal(each) for each in values]
    if not texts or None in texts:
        return None
    if all(isinstance(each, str) for each in values):
        return f"{name} IN ({', '.join(str(each) for each in texts)})"
    return "(" + " OR ".join(f"{name} = {each}" for each in texts) + ")"


def like(name: str, before: str, text: str, after: str) -> str:
    """`text` itself, with a wildcard before or after it or none."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    pattern = literal(before + escaped + after)
    return f"{name} LIKE {pattern}" + (" ESCAPE '\\'" if escaped != text else "")


def is_sound(selector: str) -> bool:
    """Whether the service takes it: within its limits, and a condition."""
    try:
        jms.parse(selector)
    except SelectorError:
        return False
    return True


def check(selector: str) -> None:
    """Raises OptionError for a selector that the service would refuse, before anything is asked of it."""
    from quorum.spark.errors import OptionError

    try:
        jms.parse(selector)
    except SelectorError as error:
        raise OptionError(f"option selector: {error}") from None
