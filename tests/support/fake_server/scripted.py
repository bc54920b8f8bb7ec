"""A service without sockets, whose streams a test answers and ends by hand: for sessions on a clock of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from quorum.client.errors import DETAILS_KEY, UnreadableFile
from quorum.client.session.session import FindTlsProblem, Session
from quorum.v1 import queue_pb2
from support.fake_server.cluster import Refusal

SILENCE_MS = 3_000


def ended(code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, reason: str = "") -> grpc.aio.AioRpcError:
    """How a call ends; with a reason: as the service ends it."""
    details = grpc.aio.Metadata()
    if reason:
        status = Refusal(code.value[0], reason, "ended by the service").status
        details.add(DETAILS_KEY, status.SerializeToString())
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), details, "ended by the test")


class ScriptedStream:
    """One Session call (grpc.aio.StreamStreamCall). It is opened at once, and answers nothing else by itself."""

    def __init__(self, service: ScriptedService, channel: ScriptedChannel) -> None:
        self._service = service
        self.endpoint = channel.endpoint
        self.requests: list[Any] = []
        self.breaks = False
        """its next write fails, and its read takes long to be cancelled"""
        self._responses: asyncio.Queue[Any] = asyncio.Queue()

    def answer(self, **response: Any) -> None:
        self.say(queue_pb2.SessionResponse(**response))

    def confirm(self, first: int, last: int) -> None:
        self.answer(confirms=queue_pb2.Confirms(confirmed=[queue_pb2.Range(first=first, last=last)]))

    def end(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, reason: str = "") -> None:
        self.say(ended(code, reason))

    def say(self, response: Any) -> None:
        """What the next `read` returns, or raises if it is an error."""
        self._responses.put_nowait(response)

    async def write(self, request: Any) -> None:
        if self.breaks:
            raise asyncio.InvalidStateError("the call has ended")
        self.requests.append(request)
        if not request.HasField("open") or not self._service.opens:
            return
        if self.endpoint in self._service.refusals:
            self.say(self._service.refusals[self.endpoint])
        elif self._service.first_answer is not None:
            self.say(self._service.first_answer)
        else:
            opened = queue_pb2.Opened(
                node=self.endpoint,
                window_bytes=1 << 20,
                max_message_bytes=1 << 16,
                max_batch_messages=1_000,
                max_window_messages=2_000,
            )
            self.answer(opened=opened)

    async def read(self) -> Any:
        try:
            response = await self._responses.get()
        except asyncio.CancelledError:
            if self.breaks:
                await asyncio.sleep(60)
            raise
        if isinstance(response, Exception):
            raise response
        return response

    async def done_writing(self) -> None:
        self.say(grpc.aio.EOF)


class ScriptedChannel:
    """A channel (grpc.aio.Channel) on which only sessions are opened."""

    def __init__(self, service: ScriptedService, endpoint: str) -> None:
        self._service = service
        self.endpoint = endpoint
        self.is_closed = False

    def stream_stream(self, *_: Any, **__: Any) -> Any:
        return self._session

    def unary_unary(self, *_: Any, **__: Any) -> None: ...

    def unary_stream(self, *_: Any, **__: Any) -> None: ...

    async def close(self) -> None:
        self.is_closed = True

    def _session(self) -> ScriptedStream:
        stream = ScriptedStream(self._service, self)
        self._service.streams.append(stream)
        return stream


class ScriptedService:
    def __init__(self) -> None:
        self.streams: list[ScriptedStream] = []
        self.channels: list[ScriptedChannel] = []
        self.opens = True
        """whether it answers the requests that open sessions"""
        self.first_answer: Any = None
        """its answer to them, if it is not Opened"""
        self.refusals: dict[str, grpc.aio.AioRpcError] = {}
        """how it ends the streams at these endpoints, in place of an answer"""
        self.unreadable: UnreadableFile | None = None
        """why no channel can be opened"""

    def open_channel(self, endpoint: str) -> Any:
        if self.unreadable is not None:
            raise self.unreadable
        channel = ScriptedChannel(self, endpoint)
        self.channels.append(channel)
        return channel

    def session(self, find_tls_problem: FindTlsProblem | None = None) -> Session:
        """A session with this service, at two endpoints in turn. It is not open yet."""
        return Session(
            ("n1:1", "n2:1"),
            SILENCE_MS,
            lambda: SILENCE_MS,
            self.open_channel,
            find_tls_problem=find_tls_problem,
        )

    @property
    def stream(self) -> ScriptedStream:
        """The latest stream."""
        return self.streams[-1]

    async def next_stream(self, session: Session) -> ScriptedStream:
        """The stream after the latest one, once the session is up on it."""
        count = len(self.streams)
        while len(self.streams) == count or not session.is_up:
            await asyncio.sleep(0.001)
        return self.stream
