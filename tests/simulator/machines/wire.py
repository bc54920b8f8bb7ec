"""gRPC without a network: channels for the real client, a server for the real services, and connections between them
that delay, stall, break and fall silent as those of machines do.

The generated stubs and handlers are the real ones, so every message is serialized and parsed. One connection carries
one call. A side learns of the other's end by a message; of a side that died without a word, or cannot be reached, by
the keepalive: it gives a silent connection up after its limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from quorum.client.connection.endpoints import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS

if TYPE_CHECKING:
    from simulator.machines.node import Node
    from simulator.machines.process import Process

CLIENT_PATIENCE_MS = KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS
SERVER_PATIENCE_MS = 15_000
"""The server's keepalive: ten seconds, and five for the answer."""
WATCH_MS = 500
WINDOW = 32
"""Messages on their way in one direction: past it, the writer waits, as with a full HTTP/2 window."""

OK = (grpc.StatusCode.OK, "", ())
GONE = (grpc.StatusCode.UNAVAILABLE, "the connection broke", ())
REFUSED = (grpc.StatusCode.UNAVAILABLE, "connection refused", ())
CANCELLED = (grpc.StatusCode.CANCELLED, "cancelled here", ())
LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded", ())

Outcome = tuple[grpc.StatusCode, str, Any]


def error_of(outcome: Outcome) -> grpc.aio.AioRpcError:
    code, details, trailing = outcome
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details)


def _bytes_of(message: Any) -> bytes:
    """As the stubs serialize it, but for the order of maps, which is the process's own otherwise."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


class Ended(Exception):
    """The service has ended its call with a status."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome[1])
        self.outcome = outcome


class Direction:
    """Messages to one side, in order."""

    def __init__(self, connection: Connection, to: Process) -> None:
        self._connection = connection
        self._to = to
        self._last_ms = 0
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.is_stalled = False
        self.on_way = 0
        self._writers: deque[asyncio.Future[None]] = deque()

    def send(self, work: Callable[..., None], *arguments: Any) -> None:
        world = self._connection.world
        at = max(self._last_ms, world.now_ms + world.client_delay_ms())
        self._last_ms = at
        self.on_way += 1
        world.at(at, lambda: self._arrive(work, arguments))

    def _arrive(self, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.is_stalled or self._waiting:
            self._waiting.append((work, arguments))
        else:
            self._hand_over(work, arguments)

    def _hand_over(self, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.on_way -= 1
        self._to.soon(work, *arguments)
        while self._writers and self.on_way < WINDOW:
            writer = self._writers.popleft()
            if not writer.done():
                self._connection.other(self._to).soon(_wake, writer)

    def stall(self, is_stalled: bool) -> None:
        self.is_stalled = is_stalled
        if not is_stalled:
            while self._waiting:
                self._hand_over(*self._waiting.popleft())

    async def room(self) -> None:
        while self.on_way >= WINDOW:
            writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers.append(writer)
            await writer

    def drop(self) -> None:
        """What is on its way, or stuck, is lost; writers hear of the end in another way."""
        self._waiting.clear()
        writers, self._writers = self._writers, deque()
        self.on_way = 0
        for writer in writers:
            if not writer.done():
                self._connection.other(self._to).soon(_wake, writer)


def _wake(writer: asyncio.Future[None]) -> None:
    if not writer.done():
        writer.set_result(None)


class Connection:
    """One call between a client's process and a node's."""

    def __init__(self, client: Process, node: Node, call: Call) -> None:
        self.world = client.world
        self.client = client
        self.node = node
        self.call = call
        self.served: ServedCall | None = None
        self.to_node = Direction(self, node)
        self.to_client = Direction(self, client)
        self.client_is_there = True
        self.node_is_there = True
        self._client_heard_ms = self._node_heard_ms = self.world.now_ms
        self.world.connections[self] = None
        self.world.after(WATCH_MS, self._watch)

    def other(self, process: Process) -> Process:
        return self.client if process is self.node else self.node

    @property
    def is_over(self) -> bool:
        return not self.client_is_there and not self.node_is_there

    def stall(self, to_node: bool, to_client: bool) -> None:
        self.to_node.stall(to_node)
        self.to_client.stall(to_client)

    def _watch(self) -> None:
        """The keepalive of both sides."""
        if self.is_over:
            return
        now = self.world.now_ms
        flows = not self.to_node.is_stalled and not self.to_client.is_stalled
        if flows and self.node.runs and self.node_is_there:
            self._client_heard_ms = now
        elif self.client_is_there and self.client.runs and now - self._client_heard_ms > CLIENT_PATIENCE_MS:
            self.leave_client(GONE)
        if flows and self.client.runs and self.client_is_there:
            self._node_heard_ms = now
        elif self.node_is_there and self.node.runs and now - self._node_heard_ms > SERVER_PATIENCE_MS:
            self.leave_node()
        self.world.after(WATCH_MS, self._watch)

    def leave_client(self, outcome: Outcome) -> None:
        """The client's side is gone: the call ends there."""
        if self.client_is_there:
            self.client_is_there = False
            self.to_client.drop()
            self.client.soon(self.call.finish, outcome)
            self._forget()

    def leave_node(self) -> None:
        """The node's side is gone: the handler is cancelled."""
        if self.node_is_there:
            self.node_is_there = False
            self.to_node.drop()
            if self.served is not None:
                self.node.soon(self.served.cancel)
            self._forget()

    def _forget(self) -> None:
        if self.is_over:
            self.world.connections.pop(self, None)

    def reset(self) -> None:
        """Both sides hear at once that it is broken."""
        self.leave_client(GONE)
        self.leave_node()

    def close_client(self) -> None:
        """The client ends the call: the node hears of it, if it can be reached."""
        if self.client_is_there:
            self.client_is_there = False
            self.to_client.drop()
            if self.node_is_there:
                self.to_node.send(self.leave_node)
            self._forget()

    def end_from_node(self, outcome: Outcome) -> None:
        """The handler has returned: what it wrote arrives first."""
        if self.node_is_there:
            self.node_is_there = False
            self.to_node.drop()
            if self.client_is_there:
                self.to_client.send(self.leave_client, outcome)
            self._forget()


class Call:
    """The client's side, as grpc.aio's calls look: write, read, done_writing, cancel; a unary one is awaited."""

    def __init__(self, channel: SimChannel, method: str, decode: Any) -> None:
        self._process = channel.process
        self._decode = decode
        self._arrived: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._outcome: Outcome | None = None
        self._connection: Connection | None = None
        self._begin(channel.node_of(channel.endpoint), method)

    def _begin(self, node: Node | None, method: str) -> None:
        process = self._process
        world = process.world
        if node is None or not node.is_up:
            if node is None or node.is_known_down:
                world.after(
                    1 + world.client_delay_ms(), lambda: process.soon(self.finish, REFUSED)
                )  # the machine is there and says so
            return  # no machine, no answer
        connection = self._connection = Connection(process, node, self)
        connection.to_node.send(node.serve, connection, method)

    def finish(self, outcome: Outcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._news.set()

    def take(self, data: bytes) -> None:
        if self._outcome is None:
            self._arrived.append(data)
            self._news.set()

    def _check(self) -> Connection:
        if self._outcome is not None:
            if self._outcome[0] != grpc.StatusCode.OK:
                raise error_of(self._outcome)
            raise asyncio.InvalidStateError("the call has ended")
        assert self._connection is not None
        return self._connection

    async def _connected(self) -> None:
        while self._connection is None and self._outcome is None:
            self._news.clear()
            await self._news.wait()

    async def write(self, request: Any) -> None:
        await self._connected()
        connection = self._check()
        data = _bytes_of(request)
        self._process.world.note(b">" + data)
        await connection.to_node.room()
        self._check()
        connection.to_node.send(_to_served, connection, data)

    async def done_writing(self) -> None:
        connection = self._check()
        connection.to_node.send(_to_served, connection, None)

    async def read(self) -> Any:
        while not self._arrived:
            if self._outcome is not None:
                if self._outcome[0] != grpc.StatusCode.OK:
                    raise error_of(self._outcome)
                return grpc.aio.EOF
            self._news.clear()
            await self._news.wait()
        return self._decode(self._arrived.popleft())

    def cancel(self) -> bool:
        if self._outcome is not None:
            return False
        if self._connection is not None:
            self._connection.close_client()
        self.finish(CANCELLED)
        return True

    async def unary(self, request: Any, timeout: float | None) -> Any:
        try:
            async with asyncio.timeout(timeout):
                await self.write(request)
                response = await self.read()
            if response is grpc.aio.EOF:
                raise error_of((grpc.StatusCode.INTERNAL, "no response", ()))
            return response
        except TimeoutError:
            raise error_of(LATE) from None
        finally:
            self.cancel()


def _to_served(connection: Connection, data: bytes | None) -> None:
    if connection.served is not None:
        connection.served.take(data)


class SimChannel:
    """What the generated stubs call a channel."""

    def __init__(self, process: Process, endpoint: str) -> None:
        self.process = process
        self.endpoint = endpoint
        self._calls: dict[Call, None] = {}

    def node_of(self, endpoint: str) -> Node | None:
        return self.process.world.nodes.get(endpoint.partition(":")[0])

    def _call(self, method: str, decode: Any) -> Call:
        call = Call(self, method, decode)
        self._calls[call] = None
        return call

    def stream_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        return lambda **_: self._call(method, response_deserializer)

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def begin(request: Any, timeout: float | None = None, **_: Any) -> Any:
            return self._call(method, response_deserializer).unary(request, timeout)

        return begin

    def stream_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return self.stream_stream(method, request_serializer, response_deserializer)

    def unary_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def begin(request: Any, **_: Any) -> Call:
            call = self._call(method, response_deserializer)
            sending = asyncio.ensure_future(call.write(request))
            sending.add_done_callback(lambda done: done.cancelled() or done.exception())
            return call

        return begin

    async def close(self) -> None:
        calls, self._calls = self._calls, {}
        for call in calls:
            call.cancel()


class ServedCall:
    """The node's side: what the services call a context and iterate for requests. `rules` watch what goes through."""

    def __init__(self, connection: Connection, handler: Any) -> None:
        self.connection = connection
        self.node = connection.node
        self._handler = handler
        self._arrived: deque[bytes | None] = deque()
        self._news = asyncio.Event()
        self.is_open = True
        self.held: dict[tuple[str, int, int], tuple[tuple[str, int], int]] = {}
        """(consumer tag, attach, delivery tag) -> (queue, sequence), and when the queue gave it out. It is for the
        rules, as is `queues`: consumer tag -> queue"""
        self.queues: dict[str, str] = {}
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_used(self) -> bool:
        """There is somebody at both ends."""
        return self.is_open and self.connection.client_is_there

    def peer(self) -> str:
        """gRPC's name of the client."""
        return f"unix:{self.connection.client.name}"

    # ---- requests

    def take(self, data: bytes | None) -> None:
        self._arrived.append(data)
        self._news.set()

    def cancel(self) -> None:
        self._task.cancel()

    def __aiter__(self) -> ServedCall:
        return self

    async def __anext__(self) -> Any:
        while not self._arrived:
            self._news.clear()
            await self._news.wait()
        data = self._arrived[0]
        if data is None:
            raise StopAsyncIteration
        self._arrived.popleft()
        try:
            request = self._handler.request_deserializer(data)
        except DecodeError as error:  # gRPC ends the call, and the service never hears of it
            raise Ended((grpc.StatusCode.INTERNAL, "these bytes are no request", ())) from error
        self.node.world.rules.requested(self, request)
        return request

    # ---- responses

    async def write(self, response: Any) -> None:
        connection = self.connection
        self.node.world.rules.writes(self, response)
        await connection.to_client.room()
        self.node.world.rules.answered(self, response)
        data = _bytes_of(response)
        self.node.world.note(b"<" + data)
        if connection.node_is_there and connection.client_is_there:
            connection.to_client.send(connection.call.take, data)

    async def abort_with_status(self, status: Any) -> None:
        raise Ended((status.code, status.details, status.trailing_metadata))

    async def _run(self) -> None:
        handler, outcome = self._handler, OK
        try:
            if handler.request_streaming and handler.response_streaming:
                await handler.stream_stream(self, self)
            elif handler.request_streaming:
                await self.write(await handler.stream_unary(self, self))
            else:
                request = await anext(self)
                if handler.response_streaming:
                    async for response in handler.unary_stream(request, self):
                        await self.write(response)
                else:
                    await self.write(await handler.unary_unary(request, self))
        except Ended as ended:
            outcome = ended.outcome
        except StopAsyncIteration:
            outcome = CANCELLED
        except asyncio.CancelledError:
            outcome = CANCELLED
        except Exception as error:
            self.node.world.defect(f"{self.node.name}: a handler raised {error!r}", error)
        finally:
            self.is_open = False
            self.connection.end_from_node(outcome)


class SimServer:
    """What the generated code adds its handlers to."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """The registered ones are the same."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.handlers.update({f"/{service}/{name}": handler for name, handler in handlers.items()})
