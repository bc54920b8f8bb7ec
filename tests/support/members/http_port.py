"""A member with its HTTP port, and a small client of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from quorum.api.http.json_api import JsonApi
from quorum.api.http.server import HttpServer
from quorum.api.security.certificates import Certificates
from quorum.local_cluster.ports import free_ports
from support.members.served import serving

PASSWORD = "longpassword"
LIMIT_S = 120.0


class Http:
    """A client of one member."""

    def __init__(self, url: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """tls: for connections with TLS."""
        self.url = url
        self.base = f"http://127.0.0.1:{port}"
        self._port = port
        self._tls = tls

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)

    async def _answer(self, data: bytes) -> tuple[bytes, bytes]:
        reader, writer = await self.connection()
        writer.write(data)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return head, body

    async def raw(self, data: bytes) -> tuple[int, str]:
        head, body = await self._answer(data)
        return int(head.split()[1]), body.decode()

    async def head(self, method: str, path: str) -> str:
        """The headers of an answer."""
        request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        return (await self._answer(request.encode()))[0].decode().replace("\r\n", "\n")

    async def event_head(self, path: str) -> str:
        """The headers of a stream of events."""
        reader, writer = await self.connection()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return head.decode()

    async def ask(self, method: str, path: str, body: Any = None, user: str = "") -> tuple[int, Any]:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        if body is not None:
            lines += [f"Content-Length: {len(data)}", "Content-Type: application/json"]
        if user:
            pair = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
            lines.append(f"Authorization: Basic {pair}")
        status, text = await self.raw("\r\n".join([*lines, "", ""]).encode() + data)
        return status, json.loads(text) if text.startswith(("{", "[")) else text

    async def events(self, path: str, count: int) -> list[dict[str, Any]]:
        """The first events of a stream."""
        reader, writer = await self.connection()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        found: list[dict[str, Any]] = []
        while len(found) < count:
            line = await reader.readline()
            assert line, "the stream has ended"
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
        writer.close()
        return found

    async def ok(self, method: str, path: str, body: Any = None, user: str = "") -> Any:
        status, found = await self.ask(method, path, body, user)
        assert status == 200, found
        return found

    async def got(self, path: str, count: int) -> list[dict[str, Any]]:
        """Messages, once the member may deliver: it has just started."""
        while True:
            status, found = await self.ask("POST", path, {"count": count})
            if status != 503:
                assert status == 200, found
                return list(found["messages"])
            await asyncio.sleep(0.05)

    async def refused(self, method: str, path: str, body: Any = None, user: str = "") -> tuple[int, str, str]:
        status, found = await self.ask(method, path, body, user)
        assert status >= 400, found
        return status, found["error"]["reason"], found["error"]["message"]


@contextlib.asynccontextmanager
async def member(certificates: Path | None = None) -> AsyncIterator[Http]:
    """certificates: a folder with ca.pem and a certificate of 127.0.0.1, for TLS at the port of HTTP."""
    own = tls = None
    if certificates is not None:
        own = Certificates(certificates / "127.0.0.1.pem", certificates / "127.0.0.1.key")
        tls = ssl.create_default_context(cafile=certificates / "ca.pem")
    async with asyncio.timeout(LIMIT_S), serving() as (url, [api]):
        http = HttpServer(api.hub, JsonApi(api.hub, api.admin, api.queues, api.bulk), own)
        port = await http.start(f"127.0.0.1:{free_ports(1)[0]}")
        try:
            yield Http(url, port, tls)
        finally:
            await http.stop()
