"""Shared code of call handlers: errors become the call's status, and an outdated queue is looked up again.

A node's catalog may lag behind: a queue that was deleted and declared again at another node has a new id, and this node
still knows the old one. The queue's group refuses the old id as not found. So a handler whose request
names a queue is run again after such a refusal; `MemberRequests.queue` then looks up the current queue of that name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from quorum.api import status
from quorum.api.grpc.rpc_status import abort
from quorum.api.hub.hub import Hub
from quorum.catalog.arguments import ArgumentError
from quorum.catalog.queues import CatalogQueue
from quorum.node.wire.batches import BatchError
from quorum_selectors.errors import EncodingError, FilterError, SelectorError

LISTED_BYTES = 3 << 20
"""Approximate maximum bytes of an answer with a part of a list: gRPC clients accept 4 MiB by default."""

Context = grpc.aio.ServicerContext[Any, Any]
Call = TypeVar("Call", bound=Callable[..., Any])


def unary(handler: Call) -> Call:
    """Wrap a handler: its StatusErrors, and errors in its request, become the call's status."""

    @unary_once
    @functools.wraps(handler)
    async def handle(self: Any, request: Any, context: Any) -> Any:
        known = _known(self._hub, request)
        try:
            return await handler(self, request, context)
        except status.StatusError as error:
            if not is_outdated(self._hub, known, error):
                raise
        return await handler(self, request, context)

    return handle  # type: ignore[return-value]


def unary_once(handler: Call) -> Call:
    """Wrap a handler that is not run again, because it looks up the current queue or creates it."""

    @functools.wraps(handler)
    async def handle(self: Any, request: Any, context: Any) -> Any:
        try:
            return await handler(self, request, context)
        except _ERRORS as error:
            await abort(context, _status_of(error))

    return handle  # type: ignore[return-value]


def streaming(handler: Call) -> Call:
    """Wrap a handler that yields its answers. What the handler holds is given back when the wrapper is closed."""

    @functools.wraps(handler)
    async def handle(self: Any, request: Any, context: Any) -> Any:
        known, has_answered = _known(self._hub, request), False
        try:
            try:
                async with aclosing(handler(self, request, context)) as answers:
                    async for answer in answers:
                        yield answer
                        has_answered = True
                return
            except status.StatusError as error:
                if has_answered or not is_outdated(self._hub, known, error):
                    raise
            async with aclosing(handler(self, request, context)) as answers:
                async for answer in answers:
                    yield answer
        except _ERRORS as error:
            await abort(context, _status_of(error))

    return handle  # type: ignore[return-value]


def _known(hub: Hub, request: Any) -> CatalogQueue | None:
    """Return the request's queue as this node knows it. None for a stream of requests, which can be read only once."""
    name = getattr(request, "queue", "")
    return hub.catalog.queue(name) if name else None


def is_outdated(hub: Hub, known: CatalogQueue | None, error: status.StatusError) -> bool:
    """Whether this error says that a queue was not found and its name may belong to another queue."""
    return error.status.code == status.Code.NOT_FOUND and known is not None and hub.catalog.is_outdated(known)


_ERRORS = (status.StatusError, BatchError, SelectorError, FilterError, ArgumentError, EncodingError)


def _status_of(error: Exception) -> status.StatusError:
    if isinstance(error, status.StatusError):
        return error
    assert isinstance(error, BatchError | SelectorError | FilterError | ArgumentError | EncodingError)
    return status.StatusError(status.of_error(error))
