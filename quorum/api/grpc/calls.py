"""Admission of calls: limit their number and time, count their bytes on the wire, and only then parse them.

A service is registered through a `Gate`, as with the gRPC server itself. The server sees only methods that take a
stream of bytes. Therefore the gate learns of a call before its first byte, and sees the bytes of each request before
they are parsed.

- Calls are admitted by kind and by the client's address, or its user once that is known (`Places`). Administration and
  health have their own places, which sessions do not take. Watches have their own places, too.
- If all places of a kind are taken, the first call of an address ends the oldest call of the address with the most
  calls.
- The first request has a time limit; a call without requests ends.
- A client has to take each answer within a time limit, and the call keeps its place until then, even if it is ended.
  gRPC keeps unread answers until the connection is closed, so the server closes it (`Gate.stalled`). The bytes of
  single answers are reserved in a window of their own until the client has taken them.
- The bytes of a request are reserved in the node's window for received requests before they are parsed, and released
  when the service is done with the request. A call that waits for the window is not read.
- A request with too many bytes or elements (request_limits.py) ends its call, and is not parsed.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from itertools import takewhile
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from fifo.frozen_dataclasses import dataclass
from quorum.api import status
from quorum.api.grpc import request_limits
from quorum.api.grpc.handlers import Context
from quorum.api.grpc.rpc_status import abort
from quorum.api.owners import CALLER, OF_USER, client_address
from quorum.api.security.access import USER, Access
from quorum.api.security.audit import DONE, NO_ANSWER
from quorum.api.security.certificates import common_name
from quorum.api.security.rights import OPEN
from quorum.api.shares import ByteWindow, Shares, WindowFull
from quorum.catalog.users import User
from quorum.node.wire.batches import BatchLimits
from quorum.node.wire.wire_scan import UNWALKED_BYTES, ScanError, Shape, scan

MAX_CALLS = 10_000
"""Maximum number of sessions and other calls at a time, without those of the next two limits."""
MAX_RESERVED_CALLS = 500
"""Maximum number of calls of administration, health checks and reflection at a time."""
MAX_WATCHES = 500
"""Maximum number of watches at a time: calls that clients keep open to be notified of changes."""
RESERVED_SERVICES = ("quorum.v1.Admin", "grpc.health.", "grpc.reflection.")
"""Prefixes of the names of services with reserved places."""
WATCHES = ("Health/Watch", "ServerReflection/ServerReflectionInfo")
ANSWERS_BYTES = 64 << 20
"""Maximum bytes of answers that clients have not taken, and of answers that wait for room. Only for calls with a single
answer: streams of answers have limits of their own."""
WATCH_LIMIT_S = 3_600.0
"""Time limit of a watch; its client then begins another one."""
ANSWER_LIMIT_S = 60.0
"""Time limit for a client to take an answer, which is about 1 MiB or one message."""
CLIENT_CALL = "quorum-call"
"""Header with the client's id of its call, which is the same in all tries."""
CLIENT_CALL_ID = re.compile("[0-9A-Za-z-]{1,64}")
OPEN_LIMIT_S = 5.0
"""Time limit for a session's first request."""
REQUEST_LIMIT_S = 30.0
"""Time limit for the first request of any other call: a request of 32 MiB takes a while on a slow link."""
UNCOUNTED_BYTES = UNWALKED_BYTES
"""A request or answer up to this size takes nothing from the windows, so a consumer's dispositions do not wait behind
publishes. All calls together have at most 43 MiB of such requests, and as much of such answers."""


class Places:
    """The calls of one kind that are under way, by address."""

    def __init__(self, most: int) -> None:
        self._shares = Shares(most)
        self._calls: dict[str, dict[Call, None]] = {}

    @property
    def most(self) -> int:
        return self._shares.most

    @most.setter
    def most(self, most: int) -> None:
        self._shares.most = most

    @property
    def total(self) -> int:
        return self._shares.total

    def of(self, address: str) -> int:
        return self._shares.of(address)

    def enter(self, address: str, call: Call) -> bool:
        """Enter a call. True: `leave` has to follow. False: the address has used its share, or there is no place."""
        if not self._shares.enter(address):
            if self._shares.of(address) or not self._end_one():
                return False
            self._shares.add(address, 1)
        self._calls.setdefault(address, {})[call] = None
        return True

    def _end_one(self) -> bool:
        """End the oldest call of the address with the most calls. False: no address has several calls."""
        calls = max(self._calls.values(), key=len, default={})
        if len(calls) < 2:
            return False
        oldest = next(iter(calls))
        del calls[oldest]
        oldest.end(_over("the call's place went to a client that had none"))
        return True

    def leave(self, address: str, call: Call) -> None:
        self._shares.leave(address)
        calls = self._calls.get(address)
        if calls is not None:
            calls.pop(call, None)
            if not calls:
                del self._calls[address]


class Call:
    """A call under way, which its handler uses as gRPC's context. It records unfinished writes."""

    __slots__ = ("_context", "_has_sent", "_serialize", "_since", "_task", "ended", "failure", "share")

    def __init__(self, context: Context, serialize: Callable[[Any], bytes], since: dict[Call, float]) -> None:
        """since: start time of each unfinished write, the oldest first; `over` has to follow."""
        self._context = context
        self._serialize = serialize
        self._since = since
        self._task = asyncio.current_task()
        self._has_sent = False
        self.ended: status.StatusError | None = None
        self.failure = ""
        """why its handler has ended it"""
        self.share = client_address(context.peer())
        """whose the call is, for shares and turns: the client's address, or its user once that is known; empty if the
        call has no place"""

    def peer(self) -> str:
        """As gRPC's, for a client without a user. Handlers ask for it to know whose the call is (owners.py)."""
        return self.share if self.share.startswith(OF_USER) else self.wire_peer()

    def wire_peer(self) -> str:
        """The peer of the connection, as gRPC names it."""
        found: str = self._context.peer()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort_with_status(self, given: Any) -> None:
        self.failure = given.details
        await self._context.abort_with_status(given)

    async def write(self, response: Any) -> None:
        await self._send(self._serialize(response))

    async def answer(self, response: Any, answers: ByteWindow, address: str) -> None:
        """Write the only answer, and wait until the client has taken it. A large one first waits for room among the
        unread answers of its address."""
        data = self._serialize(response)
        del response  # it takes more memory than its bytes
        size = len(data)
        if size <= UNCOUNTED_BYTES:
            await self._send(data)
            return
        try:
            await answers.take(size, address)
        except WindowFull as error:
            text = f"no room for an answer of {size} bytes, for this client's address: {error}"
            raise status.exhausted("overloaded", text) from error
        try:
            await self._send(data)
        finally:
            answers.give(size, address)

    async def _send(self, data: bytes) -> None:
        self._since[self] = time.monotonic()
        try:
            await (self._context.write(data) if self._has_sent else self._send_first(data))
        except grpc.aio.InternalError as error:
            # the client has ended the call; mostly grpcio cancels the handler before it can write
            raise asyncio.CancelledError from error
        del self._since[self]  # not if it is cancelled: gRPC sends the rest, and then the status

    async def _send_first(self, data: bytes) -> None:
        """Write the call's headers and first answer; a cancellation waits until they are sent. Until then grpcio
        cannot send a status: it would send the headers again, which fails."""
        writing = asyncio.ensure_future(self._context.write(data))
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.wait((writing,))
            except asyncio.CancelledError as error:
                cancelled = error
        writing.result()
        self._has_sent = True
        if cancelled is not None:
            raise cancelled

    def over(self) -> None:
        """The call has ended, and nothing of it waits to be sent."""
        self._since.pop(self, None)

    def end(self, why: status.StatusError) -> None:
        """End the call with this status."""
        self.ended = why
        assert self._task is not None
        self._task.cancel()


@dataclass(frozen=True, slots=True)
class _Method:
    name: str
    """as in Queue/Publish"""
    calls: Places
    limit_s: float
    max_bytes: int
    max_tags: int
    shape: Shape
    parse: Callable[[bytes], Any]
    serialize: Callable[[Any], bytes]
    behaviour: Callable[[Any, Any], Any]
    """the service's own method"""
    is_stream: bool
    """the client sends several requests"""
    has_stream: bool
    """the service sends several answers"""
    is_open: bool
    """its requests need no permission, or the service judges them"""

    def check_size(self, size: int) -> None:
        """StatusError if the request has too many bytes."""
        if size > self.max_bytes:
            text = f"{self.name}: a request of {size} bytes; allowed: {self.max_bytes}"
            raise status.exhausted("request_too_large", text)

    def read(self, data: bytes) -> Any:
        """Parse the request; StatusError if it is refused."""
        try:
            scan(data, self.shape, self.max_tags)
            return self.parse(data)
        except ScanError as error:
            text = f"{self.name}: {error}"
            if error.is_malformed:
                raise status.invalid("bad_request", text) from error
            raise status.exhausted("request_too_large", text) from error
        except DecodeError as error:
            raise status.invalid(
                "bad_request", f"{self.name}: the bytes are no {self.shape.name}: {error}"
            ) from error


class Gate:
    """Has the methods of grpc.aio.Server that register a service."""

    def __init__(
        self, server: grpc.aio.Server, batch: BatchLimits, received: ByteWindow, access: Access
    ) -> None:
        """received: bytes of requests that services are handling, by address."""
        self._server = server
        self._batch = batch
        self._received = received
        self._access = access
        self.answers = ByteWindow(ANSWERS_BYTES, max_waiting=ANSWERS_BYTES)
        """bytes of single answers that clients have not taken, by address"""
        self.calls = Places(MAX_CALLS)
        self.reserved = Places(MAX_RESERVED_CALLS)
        self.watches = Places(MAX_WATCHES)
        self._since: dict[Call, float] = {}

    def stalled(self) -> set[str]:
        """Return the peers that have not taken an answer for ANSWER_LIMIT_S."""
        before = time.monotonic() - ANSWER_LIMIT_S
        return {
            call.wire_peer() for call, _ in takewhile(lambda each: each[1] <= before, self._since.items())
        }

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Do nothing: `add_registered_method_handlers` registers the same handlers by name."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        methods = descriptor_pool.Default().FindServiceByName(service).methods_by_name
        taken = {
            name: self._handler(self._method(service, name, methods[name].input_type, handler))
            for name, handler in handlers.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, taken),))
        self._server.add_registered_method_handlers(service, taken)

    def _method(self, service: str, name: str, request: Descriptor, handler: Any) -> _Method:
        known = f"{service.rpartition('.')[2]}/{name}"
        return _Method(
            known,
            self._places(service, known),
            OPEN_LIMIT_S if known == "Queue/Session" else REQUEST_LIMIT_S,
            request_limits.max_bytes(known),
            request_limits.max_tags(self._batch),
            request_limits.request_shape(request, self._batch),
            handler.request_deserializer,
            handler.response_serializer,
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream,
            handler.request_streaming,
            handler.response_streaming,
            known in OPEN or known == "Queue/Session",
        )

    def _places(self, service: str, known: str) -> Places:
        if known in WATCHES:
            return self.watches
        return self.reserved if service.startswith(RESERVED_SERVICES) else self.calls

    # ---- a call

    def _handler(self, method: _Method) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler for the server that takes and gives streams of bytes, and runs this method."""

        async def run(_: AsyncIterator[bytes], context: Context) -> None:
            try:
                await self._run(method, context)
            except grpc.aio.AbortError as error:
                # The context keeps the error, and the frames of the error keep the context: until the next garbage
                # collection, the request would take memory.
                error.__context__ = None
                raise error.with_traceback(None) from None

        return grpc.stream_stream_rpc_method_handler(run, None, None)

    async def _run(self, method: _Method, context: Context) -> None:
        call = Call(context, method.serialize, self._since)
        CALLER.set(call.share)  # gRPC runs each call as a task of its own
        if not method.calls.enter(call.share, call):
            await abort(context, _no_room(method))
        limit_s = WATCH_LIMIT_S if method.name in WATCHES else None
        try:
            async with asyncio.timeout(limit_s):
                await self._admit(method, call, context)
        except TimeoutError:
            if limit_s is None:  # of the service itself
                raise
            await abort(context, _over(f"{method.name} ends after {limit_s:g} s; begin another one"))
        except asyncio.CancelledError:
            if call.ended is None:
                raise
            await abort(context, call.ended)
        finally:
            call.over()
            self._access.over(call)
            if call.share:
                method.calls.leave(call.share, call)

    async def _admit(self, method: _Method, call: Call, context: Context) -> None:
        headers = _headers(context)
        try:
            user = await self._access.admit(
                method.name, context.peer(), call.share, headers, _certificate(context)
            )
        except status.StatusError as error:
            await abort(context, error)
        if user is not None:
            await self._become(method, call, context, user)
        if (method.is_stream or method.has_stream) and method.name not in OPEN:
            self._access.begin(call, user, headers)
        await self._serve(method, call, context, user)

    async def _become(self, method: _Method, call: Call, context: Context, user: User) -> None:
        """From here on the call counts as its user's, and no more as its address's."""
        USER.set(user)
        method.calls.leave(call.share, call)
        call.share = OF_USER + user.name
        CALLER.set(call.share)
        if not method.calls.enter(call.share, call):
            call.share = ""
            await abort(context, _no_room(method))

    async def _serve(self, method: _Method, call: Call, context: Context, user: User | None) -> None:
        peer, client_call, access = context.peer(), _client_call(_headers(context)), self._access
        requests = Requests(
            method,
            context,
            self._received,
            call.share,
            lambda request: access.check(method.name, request, user, peer, client_call),
        )
        outcome = NO_ANSWER
        try:
            given = await requests.begin()
            if method.is_stream:
                given = requests
            elif given is None:
                raise status.invalid("bad_request", f"{method.name}: there is no request")
            made = method.behaviour(given, call)
            if inspect.isasyncgen(made):
                async with aclosing(made):
                    async for response in made:
                        await call.write(response)
            elif method.has_stream:
                await made
            else:
                answer = await made
                outcome = DONE
                await call.answer(answer, self.answers, call.share)
            outcome = DONE
        except status.StatusError as error:
            outcome = error.status.message
            await abort(context, error)
        finally:
            access.audit.finish(call.failure or outcome)
            requests.release()


class Requests:
    """The requests of one call. The bytes of a request are released by `release`, or when the next one is requested."""

    def __init__(
        self,
        method: _Method,
        context: Context,
        received: ByteWindow,
        address: str,
        check: Callable[[Any], None],
    ) -> None:
        """check: StatusError if the caller may not make a request."""
        self._method = method
        self._context = context
        self._received = received
        self._address = address
        self._check = check
        self._taken = 0
        self._first: Any = None

    async def begin(self) -> Any:
        """Return the first request, which `anext` returns too; None if the client has closed its side."""
        try:
            async with asyncio.timeout(self._method.limit_s):
                self._first = await anext(self, None)
        except TimeoutError as error:
            text = f"{self._method.name}: no request came within {self._method.limit_s:g} s"
            raise status.StatusError(
                status.make(status.Code.DEADLINE_EXCEEDED, "no_request", text)
            ) from error
        return self._first

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._taken:
            self.release()
        # read() instead of an iterator, which would keep the bytes until the next request
        data = await self._context.read()
        if data is grpc.aio.EOF:
            raise StopAsyncIteration
        size = len(data)
        self._method.check_size(size)
        if size > UNCOUNTED_BYTES:
            if not self._received.take_now(size, self._address):
                await self._wait_for_room(size)
            self._taken = size
        request = self._method.read(data)
        if not self._method.is_open:
            self._check(request)
        return request

    async def _wait_for_room(self, size: int) -> None:
        try:
            await self._received.take(size, self._address)
        except WindowFull as error:
            name = self._method.name
            text = f"{name}: no room for a request of {size} bytes, for this client's address: {error}"
            refused = status.unavailable if self._method.is_stream else status.exhausted
            raise refused("overloaded", text) from error

    def release(self) -> None:
        """Release the bytes of the last request."""
        if self._taken:
            self._received.give(self._taken, self._address)
            self._taken = 0


def _headers(context: Context) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _client_call(headers: Mapping[str, str]) -> str:
    """The client's id of its call; empty if there is none, or it is none that belongs into a log."""
    found = headers.get(CLIENT_CALL, "")
    return found if CLIENT_CALL_ID.fullmatch(found) else ""


def _certificate(context: Context) -> str:
    """The common name of the client's certificate; empty if it has shown none."""
    shown: Any = context.auth_context().get("x509_pem_cert", ())
    return common_name(shown[0]) if shown else ""


def _over(text: str) -> status.StatusError:
    return status.unavailable("overloaded", text)


def _no_room(method: _Method) -> status.StatusError:
    text = (
        f"{method.name}: {method.calls.total} calls are under way at this node, and this client has its share of them; "
        f"allowed: {method.calls.most}, and of one address as many as are left free"
    )
    return status.exhausted("too_many_calls", text)
