"""An HTTP/2 client by hand, for what no gRPC client does: it opens calls and gives their answers no window."""

from __future__ import annotations

import asyncio
import struct
from typing import Self

DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, END_HEADERS, ACK = 1, 4, 1
_INITIAL_WINDOW_SIZE = 4
_CANCEL = 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header field without indexing and without Huffman coding (RFC 7541 §6.2.2)."""
    return b"\0" + b"".join(bytes([len(each)]) + each.encode() for each in (name, value))


class StalledClient:
    """The server may send headers, and of each call's messages only the bytes of a window, which is never renewed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._stream = 1

    @classmethod
    async def connect(cls, port: int, window_bytes: int = 0) -> Self:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        window = struct.pack(">HI", _INITIAL_WINDOW_SIZE, window_bytes)
        client._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, window))
        return client

    async def call(self, path: str, request: bytes) -> None:
        """Opens a call with one request; returns when the server has sent the headers of the answer."""
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(literal(name, value) for name, value in fields.items())
        message = b"\0" + struct.pack(">I", len(request)) + request
        self._writer.write(
            frame(HEADERS, END_HEADERS, self._stream, block) + frame(DATA, END_STREAM, self._stream, message)
        )
        while await self._read() != (HEADERS, self._stream):
            pass
        self._stream += 2

    async def _read(self) -> tuple[int, int]:
        """Kind and stream of the next frame."""
        head = await self._reader.readexactly(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        if kind == SETTINGS and not flags & ACK:
            self._writer.write(frame(SETTINGS, ACK, 0))
        return kind, stream

    def close(self) -> None:
        self._writer.close()


class FloodingClient(StalledClient):
    """Opens calls and resets them at once, and sends pings without end."""

    async def reset_calls(self, path: str, count: int) -> None:
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        fields |= {"te": "trailers", "content-type": "application/grpc"}
        block = b"".join(literal(name, value) for name, value in fields.items())
        cancelled = struct.pack(">I", _CANCEL)
        for _ in range(count):
            self._writer.write(
                frame(HEADERS, END_HEADERS, self._stream, block)
                + frame(RST_STREAM, 0, self._stream, cancelled)
            )
            self._stream += 2
        await self._writer.drain()

    async def ping(self, count: int) -> None:
        for number in range(count):
            self._writer.write(frame(PING, 0, 0, struct.pack(">Q", number)))
        await self._writer.drain()
