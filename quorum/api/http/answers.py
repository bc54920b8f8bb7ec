"""Answers that clients have not taken yet: their bytes and their time have limits, as in gRPC (grpc/calls.py).

A server of HTTP keeps an answer until its client has read it. So a client with many connections, which reads nothing,
could fill the member's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quorum.api.connections import close_peers
from quorum.api.grpc.calls import ANSWER_LIMIT_S, ANSWERS_BYTES, UNCOUNTED_BYTES
from quorum.api.http.errors import BUFFERED_BYTES, failed
from quorum.api.owners import CALLER, client_address
from quorum.api.shares import ByteWindow, WindowFull
from quorum.api.status import Code, make


class Answers:
    """Sends the answers of an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.unread = ByteWindow(ANSWERS_BYTES, max_waiting=ANSWERS_BYTES)
        """bytes of large answers, by address"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("client"):
            await self._app(scope, receive, _Answer(self.unread, scope, receive, send).send)
        else:
            await self._app(scope, receive, send)


class _Answer:
    def __init__(self, unread: ByteWindow, scope: Scope, receive: Receive, send: Send) -> None:
        self._unread = unread
        self._scope = scope
        self._receive = receive
        self._send = send
        self._host, self._port = scope["client"]
        self._start: Message | None = None
        """not sent yet: another answer may take its place"""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        start, self._start = self._start, None
        size = len(message.get("body", b""))
        if start is None or message.get("more_body", False) or size <= UNCOUNTED_BYTES:
            await self._in_time((message,) if start is None else (start, message))
            return
        caller = CALLER.get() or client_address(_peer(self._host, self._port))
        try:
            await self._unread.take(size, caller)
        except WindowFull as error:
            text = f"no room for an answer of {size} bytes, for this client: {error}"
            refusal = failed(make(Code.RESOURCE_EXHAUSTED, "overloaded", text))
            await refusal(self._scope, self._receive, self._send)
            return
        try:
            await self._in_time(_pieces(start, message))
        finally:
            self._unread.give(size, caller)

    async def _in_time(self, messages: Iterable[Message]) -> None:
        """Send these; close the connection if the client does not take them."""
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                for each in messages:
                    await self._send(each)
        except TimeoutError:
            peer = _peer(self._host, self._port)
            structlog.get_logger().warning(
                "HTTP connection closed: it did not take its answer", peer=peer, waited_s=ANSWER_LIMIT_S
            )
            await asyncio.to_thread(close_peers, self._scope["server"][1], {peer})
            await self._send(each)  # returns when the server has seen the end


def _pieces(start: Message, message: Message) -> Iterator[Message]:
    """A large answer in pieces, each of which is sent when the client has taken most of those before it. The end, which
    is empty, is sent when the client has taken most of all. With TLS, asyncio takes one large piece at once, and its
    sender does not wait."""
    yield start
    body = message["body"]
    for first in range(0, len(body), BUFFERED_BYTES):
        yield {**message, "body": body[first : first + BUFFERED_BYTES], "more_body": True}
    yield {"type": message["type"]}


def _peer(host: str, port: int) -> str:
    """As close_peers calls it."""
    host = host.removeprefix("::ffff:")
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
