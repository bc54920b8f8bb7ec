"""The table of query types and the parts that answer them. Each part registers the types that it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from quorum.node.queries import Query

AnswerT = TypeVar("AnswerT")
QueryT = TypeVar("QueryT", bound=Query[Any])


class QueryTable:
    """The handlers of one member by type of query."""

    def __init__(self) -> None:
        self._handlers: dict[type, Callable[[Any, int], Any]] = {}

    def add(self, kind: type[QueryT], handler: Callable[[QueryT, int], object]) -> None:
        """Registers a handler. handler(query, now_ms) returns a frozen answer and changes nothing. It raises
        BodyUnreadable or PageUnreadable where a body or page cannot be read; any other exception is the end of the
        member."""
        assert kind not in self._handlers, f"two handlers of {kind.__name__}"
        self._handlers[kind] = handler

    def answer(self, query: Query[AnswerT], now_ms: int) -> AnswerT:
        answer: AnswerT = self._handlers[type(query)](query, now_ms)
        return answer
