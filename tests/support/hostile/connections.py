"""Connections to the ports of a member that no client would make, drawn from a seed and counted by kind.

Each connection sends a little, before or after the handshake of TLS, and ends in one of three ways: at once, after the
first answer, or after it was silent for a while. Most calls have a right password, so that the member parses them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from quorum.client import encode_batch
from quorum.v1 import admin_pb2, bulk_pb2, queue_pb2
from support.hostile.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, SETTINGS, frame, literal
from support.processes.secured_member import PASSWORD, WORKER, SecuredMember

AT_ONCE = 40
"""Connections under way: fewer than the HTTP port has places."""
CONNECT_LIMIT_S = 60.0
ANSWER_LIMIT_S = 0.5
SILENT_S = 0.3
SILENT_ONE_IN = 25
QUEUE = "mine"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LOG_IN = "Basic " + base64.b64encode(f"{WORKER}:{PASSWORD}".encode()).decode()
_RESET = struct.pack("ii", 1, 0)

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


def mutated(chance: random.Random, data: bytes, most: int = 8) -> bytes:
    """`data` with 1 to `most` changes: bytes that differ, are missing, doubled or new, and numbers at their limits."""
    found = bytearray(data)
    for _ in range(chance.randint(1, most)):
        place = chance.randrange(len(found) + 1)
        match chance.randrange(7):
            case 0 if place < len(found):
                found[place] ^= 1 << chance.randrange(8)
            case 1 if place < len(found):
                found[place] = chance.choice((0, 0x7F, 0x80, 0xFF))
            case 2:
                del found[place : place + chance.randint(1, 16)]
            case 3:
                found[place:place] = found[place : place + chance.randint(1, 64)]
            case 4:
                found[place:place] = chance.randbytes(chance.randint(1, 16))
            case 5:
                del found[place:]
            case _:
                wide = chance.choice((2, 4, 8))
                found[place : place + wide] = chance.choice((b"\0", b"\xff", b"\x7f")) * wide
    return bytes(found)


def client_hello() -> bytes:
    """The first bytes of a handshake of TLS, as a client of gRPC sends them."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


REQUESTS: dict[str, list[bytes]] = {
    "/quorum.v1.Queue/Session": [
        each.SerializeToString()
        for each in (
            queue_pb2.SessionRequest(open=queue_pb2.Open(producer_id=bytes(range(16)), epoch=1)),
            queue_pb2.SessionRequest(
                publish=queue_pb2.PublishBatch(
                    routing_key=QUEUE,
                    first_sequence=1,
                    lowest_unconfirmed=1,
                    batch=encode_batch([b"one", b"two"]).data,
                )
            ),
            queue_pb2.SessionRequest(
                attach=queue_pb2.Attach(request_id=1, consumer_tag="c", queue=QUEUE, selector="a = 1")
            ),
            queue_pb2.SessionRequest(
                disposition=queue_pb2.Disposition(
                    request_id=2, consumer_tag="c", tags=[queue_pb2.Range(first=1, last=2)], outcome=1
                )
            ),
        )
    ],
    "/quorum.v1.Queue/Publish": [
        queue_pb2.PublishRequest(
            queue="mine.too", messages=[queue_pb2.Message(body=b"x" * 20)]
        ).SerializeToString()
    ],
    "/quorum.v1.Queue/Browse": [
        queue_pb2.BrowseRequest(queue=QUEUE, limit=3, selector="a = 1").SerializeToString()
    ],
    "/quorum.v1.Queue/Get": [queue_pb2.GetRequest(queue="mine.too", count=1).SerializeToString()],
    "/quorum.v1.Admin/DeclareQueue": [
        admin_pb2.DeclareQueueRequest(
            queue="mine.too", arguments={"x-max-length": queue_pb2.Value(integer=50)}
        ).SerializeToString()
    ],
    "/quorum.v1.Admin/DescribeQueue": [admin_pb2.DescribeQueueRequest(queue=QUEUE).SerializeToString()],
    "/quorum.v1.Bulk/QueueInfo": [bulk_pb2.QueueInfoRequest(queue=QUEUE).SerializeToString()],
    "/grpc.health.v1.Health/Check": [b""],
}
"""Right requests, by method. What they change is in the queue `mine.too`, which is short."""
PATHS = list(REQUESTS)

JSON_BODY = json.dumps(
    {"messages": [{"body": "x", "application_properties": {"a": 1, "b": {"double": "NaN"}, "c": "ü"}}]}
).encode()


def http_request(body: bytes, *, log_in: bool, path: str = "/api/v1/queues/mine.too/messages") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: {LOG_IN}\r\n" if log_in else ""
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


def headers_of(path: str, *, log_in: bool) -> bytes:
    fields = {":method": "POST", ":scheme": "https", ":path": path, ":authority": "localhost"}
    fields |= {"te": "trailers", "content-type": "application/grpc"}
    fields |= {"authorization": LOG_IN} if log_in else {}
    return b"".join(literal(name, value) for name, value in fields.items())


def call(path: str, requests: list[bytes], *, log_in: bool) -> bytes:
    """A whole call, from the preface of HTTP/2 on."""
    parts = [PREFACE, frame(SETTINGS, 0, 0), frame(HEADERS, END_HEADERS, 1, headers_of(path, log_in=log_in))]
    for number, request in enumerate(requests, 1):
        message = b"\0" + struct.pack(">I", len(request)) + request
        parts.append(frame(DATA, END_STREAM if number == len(requests) else 0, 1, message))
    return b"".join(parts)


@dataclass
class Attack:
    """What strangers and bad clients send to one member. counts: connections by kind. unanswered: connections that the
    member did not take."""

    member: SecuredMember
    seed: int = 1
    counts: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._hello = client_hello()
        self._http2 = self.member.context()
        self._http2.set_alpn_protocols(["h2"])
        self._http = self.member.context()
        self._peer = self.member.peer_context()
        self._stranger = self.member.peer_context(has_certificate=False)
        client, peer, http = (self.member.members[0].client, self.member.members[0].peer, self.member.http)
        self._kinds: list[tuple[str, str, ssl.SSLContext | None, Callable[[], bytes]]] = [
            *(
                (f"{name}: {what}", at, None, make)
                for name, at in (("clients", client), ("peers", peer), ("http", http))
                for what, make in (
                    ("random bytes", self._noise),
                    ("handshake cut short", self._cut_hello),
                    ("handshake mutated", self._mutated_hello),
                )
            ),
            ("clients: plain HTTP/2", client, None, lambda: call(PATHS[0], REQUESTS[PATHS[0]], log_in=True)),
            ("http: plain HTTP", http, None, lambda: http_request(JSON_BODY, log_in=True)),
            ("clients: random bytes in TLS", client, self._http2, self._noise),
            ("clients: mutated frames", client, self._http2, self._mutated_frames),
            ("clients: mutated requests", client, self._http2, self._mutated_requests),
            ("clients: no log-in", client, self._http2, self._without_log_in),
            ("peers: no certificate", peer, self._stranger, self._noise),
            ("peers: random bytes in TLS", peer, self._peer, self._noise),
            ("peers: mutated hello in TLS", peer, self._peer, self._mutated_peer),
            ("http: random bytes in TLS", http, self._http, self._noise),
            (
                "http: mutated head",
                http,
                self._http,
                lambda: mutated(self._chance, http_request(JSON_BODY, log_in=False)),
            ),
            (
                "http: mutated JSON",
                http,
                self._http,
                lambda: http_request(mutated(self._chance, JSON_BODY), log_in=True),
            ),
        ]

    # ---- what is sent

    def _noise(self) -> bytes:
        return self._chance.randbytes(self._chance.choice((1, 9, 100, 2_000)))

    def _cut_hello(self) -> bytes:
        return self._hello[: self._chance.randrange(1, len(self._hello))]

    def _mutated_hello(self) -> bytes:
        return mutated(self._chance, self._hello)

    def _mutated_frames(self) -> bytes:
        path = self._chance.choice(PATHS)
        whole = call(path, REQUESTS[path], log_in=False)
        return PREFACE + mutated(self._chance, whole[len(PREFACE) :])

    def _mutated_requests(self) -> bytes:
        """Some requests of a call are mutated, each behind a right length."""
        path = self._chance.choice(PATHS)
        requests = [
            mutated(self._chance, each, 3) if self._chance.random() < 0.6 else each for each in REQUESTS[path]
        ]
        return call(path, requests, log_in=True)

    def _without_log_in(self) -> bytes:
        path = self._chance.choice(PATHS)
        return call(path, REQUESTS[path], log_in=False)

    def _mutated_peer(self) -> bytes:
        return mutated(self._chance, b"QW\1\1" + self._chance.randbytes(348))

    # ---- connections

    async def run(self, count: int) -> None:
        """So many connections, some at a time."""
        left = iter(range(count))

        async def one_after_the_other() -> None:
            for _ in left:
                kind, at, context, make = self._chance.choice(self._kinds)
                self.counts[kind] += 1
                await self._connect(at, context, make())

        await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))

    async def _connect(self, at: str, context: ssl.SSLContext | None, data: bytes) -> None:
        host, _, port = at.rpartition(":")
        ending = self._chance.randrange(SILENT_ONE_IN)
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        except (ConnectionRefusedError, TimeoutError):
            self.unanswered += 1
            return
        except OSError:  # an alert, or closed: the member's answer
            return
        try:
            await _exchange(reader, writer, data, ending)
        finally:
            writer.transport.abort()


async def _exchange(reader: Reader, writer: Writer, data: bytes, ending: int) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        if ending == 0:
            half = len(data) // 2
            writer.write(data[:half])
            await asyncio.sleep(SILENT_S)
            data = data[half:]
        writer.write(data)
        await writer.drain()
        if ending == 1:  # the member gets a reset
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        elif ending % 2:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await reader.read(1 << 16)
