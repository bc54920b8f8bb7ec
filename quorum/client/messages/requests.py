"""The open requests of a stream, by request_id, and their answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from quorum.client.errors import ConnectionLost, QuorumError, TimedOut, from_status


@dataclass(slots=True)
class _Request:
    doing: str
    answer: asyncio.Future[Any]


class Requests:
    """Open requests. Each is answered once, by Done, Attached or Failed, or is lost with the stream."""

    def __init__(self) -> None:
        self._under_way: dict[int, _Request] = {}
        self._last_id = 0

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def expect(self, request_id: int, doing: str) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._under_way[request_id] = _Request(doing, answer)
        return answer

    def answered(self, request_id: int, answer: Any) -> None:
        """Deliver an answer to its request. Answers to unknown requests (request_id 0, or given up) are ignored."""
        request = self._under_way.pop(request_id, None)
        if request is not None and not request.answer.done():
            request.answer.set_result(answer)

    def forget(self, request_id: int) -> None:
        """The request is not sent, so no answer will come."""
        self._under_way.pop(request_id, None)

    def failed(self, wire: Any) -> None:
        request = self._under_way.pop(wire.request_id, None)
        if request is not None and not request.answer.done():
            request.answer.set_exception(from_status(wire.status, request.doing))

    def lost(self, error: QuorumError) -> None:
        """Fail all open requests, because the stream has ended. The service may have carried them out or not."""
        under_way, self._under_way = self._under_way, {}
        for request in under_way.values():
            if not request.answer.done():
                request.answer.set_exception(ConnectionLost(f"{request.doing}: {error}"))


async def within(timeout_ms: int, answer: asyncio.Future[Any], doing: str) -> Any:
    """Await an answer; raise TimedOut if it has not arrived yet. It may still arrive later."""
    answer.add_done_callback(looked_at)  # it may fail after the caller has stopped waiting
    try:
        async with asyncio.timeout(timeout_ms / 1000):  # not wait_for: that may swallow a cancellation
            return await asyncio.shield(answer)
    except TimeoutError:
        raise TimedOut(f"{doing} took over {timeout_ms} ms", reason="DEADLINE_EXCEEDED") from None


def looked_at(answer: asyncio.Future[Any]) -> None:
    """Retrieve the error, so that asyncio does not log one whose caller has stopped waiting."""
    if not answer.cancelled():
        answer.exception()
