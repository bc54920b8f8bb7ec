"""The services as JSON over HTTP, for curl and for programs without gRPC.

A path names a method of the services. The request is made from the path, the query and the JSON body. Then it takes the
same way as over gRPC: log-in before its body is read, limits, permissions, and the service's own handler. Sessions and
the bulk calls with messages are not here: they are streams. Three paths are no single call: the events of the page
(events.py), the dead letters of a queue, and their redrive (dead_letters.py). calls.py has the table, errors.py what a
refused request gets, callers.py who asks, description.py the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from google.rpc import status_pb2
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quorum.api.grpc import request_limits
from quorum.api.http import dead_letters, definition_file, json_codec
from quorum.api.http.callers import NoPlace, Place, check_origin, peer_of
from quorum.api.http.calls import (
    BROWSE,
    CALLS,
    CLUSTER,
    DEAD_LETTERS_PATH,
    PREFIX,
    QUEUE,
    REDRIVE_PATH,
    Call,
    request_of,
)
from quorum.api.http.dead_letters import Redriver
from quorum.api.http.errors import NO_PLACE, REFUSALS, Aborted, failed, failed_with, given_status, status_of
from quorum.api.http.events import Events
from quorum.api.http.json_answer import JsonAnswer
from quorum.api.http.json_codec import JsonError
from quorum.api.http.sums import AllQueues
from quorum.api.hub.hub import Hub
from quorum.api.owners import CALLER, OF_USER, client_address, owner_of
from quorum.api.security.access import USER
from quorum.api.security.audit import DONE, NO_ANSWER
from quorum.api.shares import Shares, WindowFull
from quorum.api.status import Code, StatusError, exhausted, invalid, make
from quorum.catalog.users import User
from quorum.node.wire import batches
from quorum.node.wire.wire_scan import ScanError, scan
from quorum.redrive import Refused
from quorum.v1 import admin_pb2, queue_pb2

MAX_BODY = 4 << 20
"""Maximum bytes of a request's body."""
BODY_LIMIT_S = 30.0
"""Time limit for a request's body."""
MAX_CALLS = 48
"""Requests of a member at a time; an address, or a user, may have as many as are left free."""
MAX_BROWSED = 100
"""Maximum number of messages in an answer."""
BROWSED_BYTES = 4 << 20
"""An answer of messages ends with the message that brings it to this size."""

T = TypeVar("T")
_Serve = Callable[[Request, User | None, str], Awaitable[dict[str, Any]]]
"""Makes the answer for a user and a peer."""


class _Context:
    """What the handlers use of gRPC's context."""

    def __init__(self) -> None:
        self._caller = CALLER.get()

    def peer(self) -> str:
        """Whose the call is (owners.py)."""
        return self._caller

    async def abort_with_status(self, given: Any) -> None:
        for key, value in given.trailing_metadata:
            if key == "grpc-status-details-bin":
                raise Aborted(status_pb2.Status.FromString(value))
        raise Aborted(status_pb2.Status(code=Code.INTERNAL, message=given.details))


class JsonApi:
    """The paths of a member. admin, queues, bulk: its services."""

    def __init__(self, hub: Hub, admin: Any, queues: Any, bulk: Any) -> None:
        self._hub = hub
        self._services = {"Admin": admin, "Bulk": bulk, "Queue": queues}
        self._calls = Shares(MAX_CALLS)
        self._events = Events(self._calls, AllQueues(hub), self._admitted, self._checked_call)
        self._redriver = Redriver(hub)
        self._max_tags = request_limits.max_tags(hub.limits)
        self._shapes = {
            call.rpc: request_limits.request_shape(call.request.DESCRIPTOR, hub.limits) for call in CALLS
        }

    def routes(self) -> list[Route]:
        """A name in a path may have slashes, so paths with more behind the name come first."""
        found = [
            Route(PREFIX + call.path.replace("}", ":path}"), self._endpoint(call), methods=[call.method])
            for call in sorted(CALLS, key=lambda call: call.path.endswith("}"))
        ]
        events = Route(PREFIX + "/events", self._events.answer, methods=["GET"])
        own = [
            Route(
                PREFIX + DEAD_LETTERS_PATH.replace("}", ":path}"),
                self._guarded(BROWSE.rpc, self._dead_letters),
            ),
            Route(
                PREFIX + REDRIVE_PATH.replace("}", ":path}"),
                self._guarded(BROWSE.rpc, self._redrive),
                methods=["POST"],
            ),
        ]
        return [events, *own, *found]

    async def refused(self, request: Request) -> Response | None:
        """The answer to a client that has not logged in; None if it has."""
        try:
            await self._admitted(CLUSTER.rpc, request, peer_of(request))
        except StatusError as error:
            return failed(error.status)
        return None

    async def _checked_call(self, call: Call, made: Any, user: User | None, peer: str) -> dict[str, Any]:
        self._hub.access.check(call.rpc, made, user, peer)
        return await self._call(call, made, _Context())

    # ---- dead letters

    async def _dead_letters(self, request: Request, user: User | None, peer: str) -> dict[str, Any]:
        _no_query(request.query_params)
        name = request.path_params["queue"]
        self._hub.access.check(BROWSE.rpc, BROWSE.request(queue=name), user, peer)
        context = _Context()
        return await dead_letters.counted(lambda made: self._services["Queue"].Browse(made, context), name)

    async def _redrive(self, request: Request, user: User | None, peer: str) -> dict[str, Any]:
        _no_query(request.query_params)
        name = request.path_params["queue"]
        async with self._received(request) as data:
            only, limit = await self._read(data, _redrive_fields)
        self._hub.access.check("Queue/Get", queue_pb2.GetRequest(queue=name), user, peer)
        described = await self._checked_call(QUEUE, QUEUE.request(queue=name), user, peer)

        async def publish(made: queue_pb2.PublishRequest) -> None:
            try:
                self._hub.access.check("Queue/Publish", made, user, peer)
            except StatusError as error:
                raise Refused(error.status.message) from error
            try:
                await self._services["Queue"].publish_stored(made, _Context())
            except Aborted as error:
                raise StatusError(given_status(error)) from error

        return await self._redriver.run(
            name, only, limit, described["queue"]["next_sequence"], publish, peer, user.name if user else ""
        )

    # ---- a request

    async def _admitted(self, rpc: str, request: Request, peer: str) -> User | None:
        """The user. StatusError if there is none, or the request comes from a page of another site."""
        address = client_address(peer)
        CALLER.set(address)
        user = await self._hub.access.admit(rpc, peer, address, dict(request.headers))
        check_origin(request, has_user=user is not None)
        USER.set(user)
        if user is not None:
            CALLER.set(OF_USER + user.name)
        return user

    def _endpoint(self, call: Call) -> Any:
        async def serve(request: Request, user: User | None, peer: str) -> dict[str, Any]:
            return await self._serve(call, request, user, peer)

        return self._guarded(call.rpc, serve)

    def _guarded(self, rpc: str, serve: _Serve) -> Any:
        """An endpoint with a place among the requests, a log-in, and errors as JSON."""

        async def endpoint(request: Request) -> Response:
            peer = peer_of(request)
            try:
                place = Place(self._calls, peer)
            except NoPlace:
                return failed(NO_PLACE)
            outcome = NO_ANSWER
            try:
                user = await self._admitted(rpc, request, peer)
                place.pass_to(CALLER.get())
                found = await serve(request, user, peer)
                outcome = DONE
                return JsonAnswer(found)
            except REFUSALS as error:
                found_status = status_of(error)
                outcome = found_status.message
                return failed_with(found_status)
            except NoPlace:
                return failed(NO_PLACE)
            finally:
                self._hub.access.audit.finish(outcome)
                place.leave()

        return endpoint

    @contextlib.asynccontextmanager
    async def _received(self, request: Request) -> AsyncIterator[bytes]:
        """The body, whose bytes count until the end."""
        caller, size = CALLER.get(), _length(request)
        try:
            await self._hub.received.take(size, caller)
        except WindowFull as error:
            text = f"no room for a request of {size} bytes, for this client: {error}"
            raise exhausted("overloaded", text) from error
        try:
            yield await _body(request, size)
        finally:
            self._hub.received.give(size, caller)

    async def _serve(self, call: Call, request: Request, user: User | None, peer: str) -> dict[str, Any]:
        if not call.has_body:
            return await self._serve_body(call, request, b"", user, peer)
        async with self._received(request) as data:
            return await self._serve_body(call, request, data, user, peer)

    async def _serve_body(
        self, call: Call, request: Request, data: bytes, user: User | None, peer: str
    ) -> dict[str, Any]:
        def make(body: object) -> Any:
            if call.rpc == definition_file.RPC and definition_file.is_file(body):
                _no_query(request.query_params)
                made: Any = definition_file.request_of_file(body)
            else:
                made = request_of(call, request.path_params, request.query_params, body)
            try:
                scan(made.SerializeToString(), self._shapes[call.rpc], self._max_tags)
            except ScanError as error:
                raise invalid("request_too_large", str(error)) from error
            return made

        return await self._checked_call(call, await self._read(data, make), user, peer)

    async def _read(self, data: bytes, make: Callable[[object], T]) -> T:
        """What `make` makes of the JSON of a body. A large one takes seconds, so it is read when it is the client's
        turn, and in a thread."""
        steps = batches.steps_of(len(data))
        return await self._hub.turns.run(owner_of(CALLER.get()), steps, lambda: make(json_codec.parsed(data)))

    async def _call(self, call: Call, made: Any, context: Any) -> dict[str, Any]:
        service, _, method = call.rpc.partition("/")
        handler = getattr(self._services[service], method)
        if method == "Browse":
            made.limit = min(made.limit or MAX_BROWSED, MAX_BROWSED)
            browsed, size = queue_pb2.BrowseResponse(), 0
            async with contextlib.aclosing(handler(made, context)) as parts:
                async for part in parts:
                    browsed.MergeFrom(part)
                    size += part.ByteSize()
                    if size >= BROWSED_BYTES:
                        break
            return json_codec.write(browsed)
        if method == "ExportDefinitions":
            whole = admin_pb2.ExportDefinitionsResponse()
            async for part in handler(made, context):
                whole.MergeFrom(part)
            return json_codec.write(whole)
        if method == "ImportDefinitions":
            answer = admin_pb2.ImportDefinitionsResponse()
            async for part in handler(_one(made), context):
                answer.MergeFrom(part)
            written = json_codec.write(answer)
            return {**written, "results": definition_file.named_results(made, written["results"])}
        return json_codec.write(await handler(made, context))


def _no_query(query: Any) -> None:
    for name in query:
        raise JsonError(f"unknown query {name[:64]!r}; allowed: none")


def _redrive_fields(body: object) -> tuple[str, int]:
    """(only, limit). JsonError."""
    if not isinstance(body, dict):
        raise JsonError("the request: wanted: an object")
    for name in body:
        if name not in ("only", "limit"):
            raise JsonError(f"the request: unknown field {name[:64]!r}; allowed: only, limit")
    only, limit = body.get("only", ""), body.get("limit", dead_letters.MAX_MOVED)
    if not isinstance(only, str):
        raise JsonError("only: wanted: text")
    if type(limit) is not int or not 1 <= limit <= dead_letters.MAX_MOVED:
        raise JsonError(f"limit: wanted: a whole number from 1 to {dead_letters.MAX_MOVED}")
    return only, limit


async def _one(request: Any) -> AsyncIterator[Any]:
    yield request


def _length(request: Request) -> int:
    given = request.headers.get("content-length", "")
    is_chunked = "transfer-encoding" in request.headers  # then HTTP ignores the length beside it
    if not given and not is_chunked:
        return 0
    if is_chunked or not given.isdecimal() or len(given) > 12:
        raise invalid("bad_request", "a body without a content-length")
    if int(given) > MAX_BODY:
        text = f"a body of {int(given)} bytes; allowed: {MAX_BODY}"
        raise exhausted("request_too_large", text)
    return int(given)


async def _body(request: Request, size: int) -> bytes:
    if not size:
        return b""
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            return await request.body()
    except TimeoutError as error:
        text = f"no body of {size} bytes came within {BODY_LIMIT_S:g} s"
        raise StatusError(make(Code.DEADLINE_EXCEEDED, "no_request", text)) from error
