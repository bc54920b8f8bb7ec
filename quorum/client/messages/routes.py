"""Where messages go: a queue, a queue for each of them, or an exchange."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from quorum.client.errors import UsageError
from quorum.client.values import require_flag


@dataclass(frozen=True, slots=True)
class Through:
    """An exchange. keys: the routing key of all messages, or one of each message. mandatory: messages that no queue
    gets are refused. immediate: messages that no consumer can take at once are refused."""

    exchange: str
    keys: str | tuple[str, ...] = ""
    mandatory: bool = False
    immediate: bool = False

    @property
    def address(self) -> Through:
        """The same for messages with any keys, which are gathered together."""
        return replace(self, keys="")


IMMEDIATE = Through("", immediate=True)
"""Immediate messages for queues, whose names are the keys."""
Address = str | Through
"""What single messages are gathered by: a queue, or an exchange without keys."""
Route = str | tuple[str, ...] | Through
"""The queue of all messages of a batch, one of each message, or an exchange."""


def check_names(route: Route) -> None:
    """Raise UsageError if no request could carry this route."""
    names = route
    if isinstance(route, Through):
        for what in ("mandatory", "immediate"):
            require_flag(what, getattr(route, what))
        check_name(route.exchange)
        names = route.keys
    for name in dict.fromkeys(names) if isinstance(names, tuple) else (names,):
        check_name(name)


def check_name(name: object) -> None:
    """Raise UsageError if this cannot be the name of a queue or exchange, or a routing key."""
    if not isinstance(name, str):
        raise UsageError(
            f"the name of a queue or exchange, or a routing key, is text, not {type(name).__name__}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name!r} is not UTF-8 text: it has half a surrogate pair") from None


def range_count(route: Route, count: int) -> int:
    """The most ranges of numbers that a group remembers of a batch. An exchange may route each message elsewhere."""
    if isinstance(route, Through):
        return count if route.exchange else range_count(route.keys, count)
    if isinstance(route, str):
        return 1
    return sum(name != after for name, after in pairwise((*route, None)))


def of_batch(names: str | Sequence[str]) -> str | tuple[str, ...]:
    """The queue or routing key of all messages of a batch, or those of each message. Raises UsageError for what is
    neither."""
    if isinstance(names, str):
        return names
    if not isinstance(names, Iterable) or isinstance(names, bytes | bytearray | memoryview):
        raise UsageError(
            "the queue or routing key of a batch is text, or a list with a text for each message; "
            f"not {type(names).__name__}"
        )
    return tuple(names)


def at_once(queue: str | tuple[str, ...], immediate: bool) -> Route:
    """The queue of a batch, or those of its messages; through the default exchange if they are immediate."""
    return Through("", queue, immediate=True) if immediate else queue


def describe(route: str | Sequence[str] | Through) -> str:
    """The queues or the exchange of a batch, for the text of an error."""
    if isinstance(route, str):
        return repr(route)
    if isinstance(route, Through):
        if route.keys and not route.exchange:
            return describe(route.keys)
        return f"exchange {route.exchange!r}" if route.exchange else "the default exchange"
    names = list(dict.fromkeys(route))
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more queues" if len(names) > 3 else "")
