"""The requests of a session that wait to be sent, without its publishes: requests in their order, and the dispositions
and credits of holders.

The writer of the stream takes requests first, then dispositions and credits (merged until that moment), then publishes.
A settlement therefore never waits behind megabytes of publishes. A small batch that waits goes with the settlements in
one request: a program that settles a message and publishes the next one sends one request for each message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from quorum.client.errors import TimedOut
from quorum.client.messages.delivery import MAX_RANGES, Holder
from quorum.v1 import queue_pb2

MAX_TURN = 1_024
"""Dispositions and credits that are sent together. The service allows so many of each."""
MAX_TURN_RANGES = 10_000
"""Ranges of tags in one turn: with the other fields of its requests half of what any service allows, or less."""
MAX_TURN_BATCH_BYTES = 64 << 10
"""Bytes of a batch that goes with dispositions and credits."""


class Outbox:
    """Filled by the parts of a session, emptied by the one task that writes its stream."""

    def __init__(self) -> None:
        self._requests: deque[Any] = deque()
        self._holders: dict[int, Holder] = {}
        """by id(holder): those with dispositions or credit to send"""
        self._taken = asyncio.Event()
        """the writer has taken a request, or they are dropped"""
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()

    # ---- for the parts

    def send(self, **request: Any) -> None:
        """Queue a request, before all that is not queued yet."""
        self._requests.append(queue_pb2.SessionRequest(**request))
        self.wake()

    def dirty(self, holder: Holder) -> None:
        """The holder has something to send."""
        self._holders[id(holder)] = holder
        self.wake()

    def flush(self, holder: Holder) -> None:
        """Queue this holder's dispositions before the next request."""
        while (request := holder.next_request()) is not None:
            self._requests.append(request)

    @property
    def has_requests(self) -> bool:
        """Whether requests wait that are not being written yet."""
        return bool(self._requests)

    async def written(self, timeout_ms: int) -> None:
        """Wait until the last of the requests is being written, or their stream is lost."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.has_requests:
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            raise TimedOut(f"earlier requests were not sent for {timeout_ms} ms; nothing was sent") from None

    # ---- for the writer

    def wake(self) -> None:
        """The writer looks again what there is to send."""
        self._wake.set()

    async def pause(self) -> None:
        """Nothing is to be sent: wait for the next `wake`."""
        self._flushed.set()
        self._wake.clear()
        await self._wake.wait()
        self._flushed.clear()

    @property
    def is_flushed(self) -> bool:
        """Whether the writer has written everything and waits."""
        return self._flushed.is_set() and not self._wake.is_set()

    def next_request(self) -> Any:
        """The next request in order; None if none is left."""
        if not self._requests:
            return None
        self._taken.set()
        return self._requests.popleft()

    def next_turn(self, next_publish: Callable[[int | None], Any]) -> Any:
        """The dispositions and credits that wait and a batch, one request alone or many together; None if none wait.

        next_publish: returns the request of the next batch, or None. Its argument is the most bytes that the batch may
        have, or None.
        """
        found: list[Any] = []
        ranges = 0
        while self._holders and len(found) < MAX_TURN and ranges + MAX_RANGES <= MAX_TURN_RANGES:
            key = next(iter(self._holders))
            request = self._holders[key].next_request()
            if request is None:
                del self._holders[key]
            else:
                found.append(request)
                ranges += len(request.disposition.tags)
        publish = next_publish(MAX_TURN_BATCH_BYTES if found else None)
        if not found:
            return publish
        if len(found) == 1 and publish is None:
            return found[0]
        turn = queue_pb2.RequestTurn(publish=None if publish is None else publish.publish)
        for request in found:
            if request.HasField("disposition"):
                turn.dispositions.append(request.disposition)
            else:
                turn.credits.append(request.credit)
        return queue_pb2.SessionRequest(turn=turn)

    # ---- when the stream ends

    def drop_requests(self) -> None:
        self._requests.clear()
        self._taken.set()

    def drop_all(self) -> None:
        self.drop_requests()
        self._holders.clear()
