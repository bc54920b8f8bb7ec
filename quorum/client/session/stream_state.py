"""The state of a session's stream that its parts share: whether a stream is up, its open requests, and what it sends
next.

Only the session changes it, when it opens or ends a stream (`opened`, `leave`, `lost`, `fail`). The parts read it, wait
for a stream, and send requests.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quorum.client.errors import QuorumError, UsageError
from quorum.client.messages.delivery import Holder
from quorum.client.messages.requests import Requests
from quorum.client.session.outbox import Outbox

if TYPE_CHECKING:
    from quorum.client.messages.tracing import Tracing


class StreamState:
    """Implements delivery.Link. default_ms: returns the limit of a wait for which the caller names none. tracing: makes
    spans; None if nothing does."""

    def __init__(self, default_ms: Callable[[], int], tracing: Tracing | None = None) -> None:
        self._default_ms = default_ms
        self.tracing = tracing
        self.node = ""
        """the node that served the last stream; empty before the first one"""
        self.requests = Requests()
        self.outbox = Outbox()
        self.failure: QuorumError | None = None
        """why there will be no other stream"""
        self.last_error: QuorumError | None = None
        self.is_between = False
        """The session has left its stream for the leader's endpoint, where none has been opened yet."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """the event loop of the session; None before it is opened"""
        self._producer_id = secrets.token_bytes(16)
        self._epoch = 0
        self._up = asyncio.Event()
        self._failed = asyncio.Event()

    # ---- for the parts

    @property
    def timeout_ms(self) -> int:
        """Limit of the wait for an answer that begins now, where a caller names none."""
        return self._default_ms()

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    @property
    def name(self) -> tuple[bytes, int]:
        """The producer and the epoch of the present stream, or of the one before."""
        return self._producer_id, self._epoch

    def require_loop(self) -> None:
        """UsageError in another event loop than that of the session: there no answer could be awaited."""
        if self.failure is None and self.loop is not asyncio.get_running_loop():
            raise UsageError(
                "the client belongs to another event loop; open one for each loop, or use quorum.sync for threads"
            )

    async def wait(self) -> None:
        """Wait until a stream is up. Raises the failure if there will be none."""
        while not self._up.is_set():
            if self.failure is not None:
                raise self.failure
            up = asyncio.ensure_future(self._up.wait())
            failed = asyncio.ensure_future(self._failed.wait())
            try:
                await asyncio.wait({up, failed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
                failed.cancel()

    def dirty(self, holder: Holder) -> None:
        self.outbox.dirty(holder)

    def next_request_id(self) -> int:
        return self.requests.next_id()

    def expect(self, request_id: int, doing: str) -> asyncio.Future[Any]:
        return self.requests.expect(request_id, doing)

    def forget(self, request_id: int) -> None:
        self.requests.forget(request_id)

    def ask(self, doing: str) -> tuple[int, asyncio.Future[Any]]:
        """A new request's id, and its answer."""
        request_id = self.requests.next_id()
        return request_id, self.requests.expect(request_id, doing)

    def send(self, **request: Any) -> None:
        """Queue a request, before all that is not queued yet."""
        self.outbox.send(**request)

    # ---- for the session

    def next_epoch(self) -> None:
        """A stream is about to be opened."""
        self._epoch += 1

    def begin_again(self) -> None:
        """The service has forgotten the producer: another one begins."""
        self._producer_id = secrets.token_bytes(16)
        self._epoch = 0

    def opened(self, node: str) -> None:
        self.node = node
        self.is_between = False
        self.outbox.drop_requests()
        self._up.set()

    def leave(self) -> None:
        """The stream is about to end, for one at another endpoint."""
        self._up.clear()
        self.is_between = True

    def lost(self, error: QuorumError) -> None:
        """The stream has ended: its open requests fail."""
        self._up.clear()
        self.is_between = False
        self.last_error = error
        self.outbox.drop_all()
        self.requests.lost(error)

    def moved(self, error: QuorumError) -> None:
        """The stream was left before anything but requests was sent on it."""
        self.outbox.drop_requests()
        self.requests.lost(error)

    def fail(self, error: QuorumError) -> None:
        """There will be no other stream. The first failure counts."""
        if self.failure is None:
            self.failure = error
        self._failed.set()
