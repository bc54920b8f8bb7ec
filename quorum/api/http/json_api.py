"""The services as JSON over HTTP, for curl and for programs without gRPC: one table of paths.

A path names a method of the services. The request is made from the path, the query and the JSON body. Then it takes the
same way as over gRPC: log-in before its body is read, limits, permissions, and the service's own handler. Sessions and
the bulk calls are not here: they are streams. Three paths are no single call: the events of the page, the dead letters
of a queue, and their redrive (dead_letters.py). description.py has the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.rpc import status_pb2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from quorum.api import request_limits
from quorum.api.access import USER
from quorum.api.audit import DONE, NO_ANSWER
from quorum.api.http import dead_letters, json_codec
from quorum.api.http.dead_letters import Redriver
from quorum.api.http.errors import failed, failed_with
from quorum.api.http.json_codec import JsonError
from quorum.api.http.sums import AllQueues
from quorum.api.hub import Hub
from quorum.api.owners import CALLER, client_address
from quorum.api.shares import Shares, WindowFull
from quorum.api.status import Code, Status, StatusError, invalid, make
from quorum.catalog.users import User
from quorum.node.wire.wire_scan import ScanError, scan
from quorum.v1 import admin_pb2, queue_pb2

MAX_BODY = 4 << 20
"""Maximum bytes of a request's body."""
BODY_LIMIT_S = 30.0
"""Time limit for a request's body."""
MAX_CALLS = 48
"""Requests of a member at a time; an address may have as many as are left free."""
MAX_BROWSED = 100
"""Maximum number of messages in an answer."""
EVENT_S = 2.0
"""Interval between two events."""
PART_LIMIT_S = 2.0
"""Time limit for the parts of an event that may need a leader."""
MAX_LISTED = 100
"""Maximum number of queues in an event."""
EVENTS_LIMIT_S = 3_600.0
"""Time limit of a stream of events; its client then begins another one."""
PREFIX = "/api/v1"
JSON = "application/json"
DEAD_LETTERS_PATH, REDRIVE_PATH = "/queues/{queue}/dead-letters", "/queues/{queue}/redrive"


@dataclass(frozen=True, slots=True)
class Call:
    """One method of HTTP on one path. rpc: as in rights.BY_METHOD. query: fields that the query may have. within: the
    field that path and body fill, such as `policy`; empty: the request itself."""

    method: str
    path: str
    rpc: str
    summary: str
    query: tuple[str, ...] = ()
    has_body: bool = False
    within: str = ""

    @property
    def names(self) -> list[str]:
        """The fields in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def request(self) -> Any:
        """The class of its requests."""
        return _request_class(self.rpc)


CALLS = (
    Call("GET", "/queues", "Admin/ListQueues", "Queues by name", ("prefix", "limit", "after")),
    Call(
        "GET",
        "/queues/{queue}",
        "Admin/DescribeQueue",
        "One queue, its consumers and storage",
        ("consumers_after",),
    ),
    Call("PUT", "/queues/{queue}", "Admin/DeclareQueue", "Declare a queue", has_body=True),
    Call("DELETE", "/queues/{queue}", "Admin/DeleteQueue", "Delete a queue with its messages", ("id",)),
    Call("POST", "/queues/{queue}/purge", "Admin/PurgeQueue", "Remove waiting messages", has_body=True),
    Call(
        "GET",
        "/queues/{queue}/messages",
        "Queue/Browse",
        "Read waiting messages, and remove none",
        ("selector", "start_sequence", "limit", "delayed"),
    ),
    Call("POST", "/queues/{queue}/messages", "Queue/Publish", "Publish messages", has_body=True),
    Call(
        "POST",
        "/queues/{queue}/get",
        "Queue/Get",
        "Take messages, which leave the queue at once",
        has_body=True,
    ),
    Call("GET", "/policies", "Admin/ListPolicies", "Policies by name"),
    Call(
        "PUT",
        "/policies/{name}",
        "Admin/SetPolicy",
        "Make or change a policy",
        has_body=True,
        within="policy",
    ),
    Call("DELETE", "/policies/{name}", "Admin/DeletePolicy", "Delete a policy"),
    Call("GET", "/exchanges", "Admin/ListExchanges", "Exchanges by name", ("prefix", "limit", "after")),
    Call("PUT", "/exchanges/{exchange}", "Admin/DeclareExchange", "Declare an exchange", has_body=True),
    Call(
        "DELETE", "/exchanges/{exchange}", "Admin/DeleteExchange", "Delete an exchange", ("id", "if_unused")
    ),
    Call("GET", "/bindings", "Admin/ListBindings", "Bindings", ("source", "queue", "exchange", "after")),
    Call("POST", "/bindings", "Admin/AddBinding", "Make a binding", has_body=True, within="binding"),
    Call(
        "POST", "/bindings/remove", "Admin/RemoveBinding", "Remove a binding", has_body=True, within="binding"
    ),
    Call("GET", "/users", "Admin/ListUsers", "Users by name"),
    Call("PUT", "/users/{user}/permissions", "Admin/SetPermissions", "Replace permissions", has_body=True),
    Call("PUT", "/users/{user}", "Admin/SetUser", "Make or change a user", has_body=True),
    Call("DELETE", "/users/{user}", "Admin/DeleteUser", "Delete a user"),
    Call("GET", "/cluster", "Admin/ClusterStatus", "Members and Raft groups, as this member sees them"),
    Call("GET", "/transactions", "Admin/ListTransactions", "Transactions in doubt"),
    Call("GET", "/definitions", "Admin/ExportDefinitions", "Queues, exchanges, bindings and policies"),
    Call("POST", "/definitions", "Admin/ImportDefinitions", "Make what is missing of these", has_body=True),
)


def service_method(rpc: str) -> Any:
    """The descriptor of a method."""
    service, _, method = rpc.partition("/")
    return _module(service).DESCRIPTOR.services_by_name[service].methods_by_name[method]


def _module(service: str) -> Any:
    return admin_pb2 if service == "Admin" else queue_pb2


def _request_class(rpc: str) -> Any:
    return getattr(_module(rpc.partition("/")[0]), service_method(rpc).input_type.name)


_Serve = Callable[[Request, User | None, str], Awaitable[dict[str, Any]]]
"""Makes the answer for a user and a peer."""


class _Aborted(Exception):
    """The service has ended the call."""

    def __init__(self, found: Any) -> None:
        self.status = found


class _Context:
    """What the handlers use of gRPC's context."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    async def abort_with_status(self, given: Any) -> None:
        for key, value in given.trailing_metadata:
            if key == "grpc-status-details-bin":
                raise _Aborted(status_pb2.Status.FromString(value))
        raise _Aborted(status_pb2.Status(code=Code.INTERNAL, message=given.details))


class JsonApi:
    """The paths of a member. admin, queues: its services."""

    def __init__(self, hub: Hub, admin: Any, queues: Any) -> None:
        self._hub = hub
        self._services = {"Admin": admin, "Queue": queues}
        self._calls = Shares(MAX_CALLS)
        self._all_queues = AllQueues(hub)
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
        events = Route(PREFIX + "/events", self._events, methods=["GET"])
        own = [
            Route(
                PREFIX + DEAD_LETTERS_PATH.replace("}", ":path}"),
                self._guarded(_BROWSE.rpc, self._dead_letters),
            ),
            Route(
                PREFIX + REDRIVE_PATH.replace("}", ":path}"),
                self._guarded(_BROWSE.rpc, self._redrive),
                methods=["POST"],
            ),
        ]
        return [events, *own, *found]

    async def refused(self, request: Request) -> Response | None:
        """The answer to a client that has not logged in; None if it has."""
        try:
            await self._admitted(_CLUSTER.rpc, request, peer_of(request))
        except StatusError as error:
            return failed(error.status)
        return None

    # ---- events

    async def _events(self, request: Request) -> Response:
        """What changes, as server-sent events: the cluster's status, and what the query names."""
        peer = peer_of(request)
        address = client_address(peer)
        if not self._calls.enter(address):
            return failed(_no_place())
        try:
            watched = _watched(request.query_params)
            user = await self._admitted(_CLUSTER.rpc, request, peer)
            first = await self._event(watched, user, peer)  # a refusal ends the request, and not its stream
        except _Aborted as error:
            self._calls.leave(address)
            return failed_with(error.status)
        except StatusError as error:
            self._calls.leave(address)
            return failed(error.status)
        except JsonError as error:
            self._calls.leave(address)
            return failed(make(Code.INVALID_ARGUMENT, "bad_request", str(error)))
        except BaseException:
            self._calls.leave(address)
            raise

        async def stream() -> AsyncIterator[str]:
            end = time.monotonic() + EVENTS_LIMIT_S
            try:
                yield _line(first)
                await asyncio.sleep(EVENT_S)
                while time.monotonic() < end and not await request.is_disconnected():
                    user = await self._admitted(_CLUSTER.rpc, request, peer)
                    yield _line(await self._event(watched, user, peer))
                    await asyncio.sleep(EVENT_S)
            except (_Aborted, StatusError):
                return  # it may not go on; the next stream is told why
            finally:
                self._calls.leave(address)

        return StreamingResponse(
            stream(), media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )

    async def _event(self, watched: _Watched, user: User | None, peer: str) -> dict[str, Any]:
        """The cluster's status needs no leader. If the other parts get no answer in time, `problem` says so in their
        place."""
        event: dict[str, Any] = {"at_ms": time.monotonic_ns() // 1_000_000}
        event["cluster"] = await self._checked_call(_CLUSTER, _CLUSTER.request(), user, peer)
        try:
            async with asyncio.timeout(PART_LIMIT_S):
                for name, call, made in watched.calls:
                    event[name] = await self._checked_call(call, made, user, peer)
                if watched.has_totals:
                    event["totals"] = await self._all_queues.shown()
        except TimeoutError:
            event["problem"] = "The queues' Raft groups do not answer."
        except _Aborted as error:
            if error.status.code not in _PASSING:
                raise
            event["problem"] = error.status.message
        except StatusError as error:
            if error.status.code not in _PASSING:
                raise
            event["problem"] = error.status.message
        return event

    async def _checked_call(self, call: Call, made: Any, user: User | None, peer: str) -> dict[str, Any]:
        self._hub.access.check(call.rpc, made, user, peer)
        return await self._call(call, made, _Context(peer))

    # ---- dead letters

    async def _dead_letters(self, request: Request, user: User | None, peer: str) -> dict[str, Any]:
        _no_query(request.query_params)
        name = request.path_params["queue"]
        self._hub.access.check(_BROWSE.rpc, _BROWSE.request(queue=name), user, peer)
        context = _Context(peer)
        return await dead_letters.counted(lambda made: self._services["Queue"].Browse(made, context), name)

    async def _redrive(self, request: Request, user: User | None, peer: str) -> dict[str, Any]:
        _no_query(request.query_params)
        name = request.path_params["queue"]
        async with self._received(request, peer) as body:
            only, limit = _redrive_fields(body)
        self._hub.access.check("Queue/Get", queue_pb2.GetRequest(queue=name), user, peer)
        described = await self._checked_call(_QUEUE, _QUEUE.request(queue=name), user, peer)

        async def publish(made: queue_pb2.PublishRequest) -> None:
            self._hub.access.check("Queue/Publish", made, user, peer)
            try:
                await self._services["Queue"].Publish(made, _Context(peer))
            except _Aborted as error:
                raise StatusError(
                    make(Code(error.status.code), "bad_request", error.status.message)
                ) from error

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
        return user

    def _endpoint(self, call: Call) -> Any:
        async def serve(request: Request, user: User | None, peer: str) -> dict[str, Any]:
            return await self._serve(call, request, user, peer)

        return self._guarded(call.rpc, serve)

    def _guarded(self, rpc: str, serve: _Serve) -> Any:
        """An endpoint with a place among the requests, a log-in, and errors as JSON."""

        async def endpoint(request: Request) -> Response:
            peer = peer_of(request)
            address = client_address(peer)
            if not self._calls.enter(address):
                return failed(_no_place())
            outcome = NO_ANSWER
            try:
                user = await self._admitted(rpc, request, peer)
                found = await serve(request, user, peer)
                outcome = DONE
                return JSONResponse(found)
            except _Aborted as error:
                outcome = error.status.message
                return failed_with(error.status)
            except StatusError as error:
                outcome = error.status.message
                return failed(error.status)
            except JsonError as error:
                return failed(make(Code.INVALID_ARGUMENT, "bad_request", str(error)))
            finally:
                self._hub.access.audit.finish(outcome)
                self._calls.leave(address)

        return endpoint

    @contextlib.asynccontextmanager
    async def _received(self, request: Request, peer: str) -> AsyncIterator[object]:
        """The JSON of the body, whose bytes count until the end."""
        address = client_address(peer)
        size = _length(request)
        try:
            await self._hub.received.take(size, address)
        except WindowFull as error:
            text = f"no room for a request of {size} bytes, for this client's address: {error}"
            raise StatusError(make(Code.RESOURCE_EXHAUSTED, "overloaded", text)) from error
        try:
            yield await _body(request, size)
        finally:
            self._hub.received.give(size, address)

    async def _serve(self, call: Call, request: Request, user: User | None, peer: str) -> dict[str, Any]:
        if not call.has_body:
            return await self._serve_body(call, request, {}, user, peer)
        async with self._received(request, peer) as body:
            return await self._serve_body(call, request, body, user, peer)

    async def _serve_body(
        self, call: Call, request: Request, body: object, user: User | None, peer: str
    ) -> dict[str, Any]:
        made = request_of(call, request.path_params, request.query_params, body)
        try:
            scan(made.SerializeToString(), self._shapes[call.rpc], self._max_tags)
        except ScanError as error:
            raise invalid("request_too_large", str(error)) from error
        return await self._checked_call(call, made, user, peer)

    async def _call(self, call: Call, made: Any, context: Any) -> dict[str, Any]:
        service, _, method = call.rpc.partition("/")
        handler = getattr(self._services[service], method)
        if method == "Browse":
            made.limit = min(made.limit or MAX_BROWSED, MAX_BROWSED)
            browsed = queue_pb2.BrowseResponse()
            async for part in handler(made, context):
                browsed.MergeFrom(part)
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
            return json_codec.write(answer)
        return json_codec.write(await handler(made, context))


_CLUSTER = next(each for each in CALLS if each.rpc == "Admin/ClusterStatus")
_QUEUE = next(each for each in CALLS if each.rpc == "Admin/DescribeQueue")
_QUEUES = next(each for each in CALLS if each.rpc == "Admin/ListQueues")
_BROWSE = next(each for each in CALLS if each.rpc == "Queue/Browse")
_PASSING = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.ABORTED)
"""Errors after which a stream of events goes on."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """What a stream of events shows beside the cluster. calls: with the name in the event."""

    calls: tuple[tuple[str, Call, Any], ...]
    has_totals: bool


def _watched(query: Any) -> _Watched:
    """JsonError."""
    allowed = ("queue", "totals", "queues", "prefix", "after")
    for name in query:
        if name not in allowed:
            raise JsonError(f"unknown query {name[:64]!r}; allowed: {', '.join(allowed)}")
    calls: list[tuple[str, Call, Any]] = []
    if name := query.get("queue", ""):
        calls.append(("queue", _QUEUE, request_of(_QUEUE, {"queue": name}, _Plain(), {})))
    if limit := query.get("queues", ""):
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MAX_LISTED):
            raise JsonError(f"queues: wanted: a whole number from 1 to {MAX_LISTED}")
        listed = [("limit", limit), ("prefix", query.get("prefix", "")), ("after", query.get("after", ""))]
        calls.append(("queues", _QUEUES, request_of(_QUEUES, {}, _Plain(listed), {})))
    totals = query.get("totals", "false")
    if totals not in ("true", "false"):
        raise JsonError("totals: wanted: true or false")
    return _Watched(tuple(calls), totals == "true")


class _Plain(list[tuple[str, str]]):
    """A query."""

    def multi_items(self) -> list[tuple[str, str]]:
        return self


def _line(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"


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


def _no_place() -> Status:
    text = "this client has its share of the requests that the member answers at a time"
    return make(Code.RESOURCE_EXHAUSTED, "too_many_calls", text)


def check_origin(request: Request, *, has_user: bool) -> None:
    """StatusError for a request that a page of another site makes in a browser. A browser says which site that is, and
    adds a user's password by itself. A foreign page cannot send a POST with JSON: for that, and for PUT and DELETE, a
    browser first asks with OPTIONS, which is refused. Without users, the name of this member has to be an address or
    `localhost`, because a site may give its own name the address of this machine."""
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if origin is not None and origin.partition("://")[2] != host:
        raise _foreign(f"a page of {origin[:255]}")
    if request.method == "POST" and kind != JSON:
        raise _foreign(
            "a POST without content-type: application/json, which a page of another site could send"
        )
    if not has_user and name != "localhost" and not _is_address(name.strip("[]")):
        raise _foreign(f"a request to {name[:255]!r}; without users, an IP address or localhost is needed")


def _foreign(what: str) -> StatusError:
    return StatusError(make(Code.PERMISSION_DENIED, "other_site", what))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _one(request: Any) -> AsyncIterator[Any]:
    yield request


def peer_of(request: Request) -> str:
    """The client, as gRPC would name it. ClientDisconnect if it has gone before its address was read."""
    if request.client is None:
        raise ClientDisconnect
    host, port = request.client
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _length(request: Request) -> int:
    given = request.headers.get("content-length", "")
    if not given and "transfer-encoding" not in request.headers:
        return 0
    if not given.isdecimal() or len(given) > 12:
        raise StatusError(make(Code.INVALID_ARGUMENT, "bad_request", "a body without a content-length"))
    if int(given) > MAX_BODY:
        text = f"a body of {int(given)} bytes; allowed: {MAX_BODY}"
        raise StatusError(make(Code.RESOURCE_EXHAUSTED, "request_too_large", text))
    return int(given)


async def _body(request: Request, size: int) -> object:
    """The JSON of the body; an empty object without one."""
    if not size:
        return {}
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            data = await request.body()
    except TimeoutError as error:
        text = f"no body of {size} bytes came within {BODY_LIMIT_S:g} s"
        raise StatusError(make(Code.DEADLINE_EXCEEDED, "no_request", text)) from error
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"the body is no JSON: {error}") from error


def request_of(call: Call, path: Any, query: Any, body: object) -> Any:
    """The request of a call. JsonError."""
    made = call.request()
    target = getattr(made, call.within) if call.within else made
    if call.within:
        target.SetInParent()
    json_codec.read(target, body, without=call.names)
    fields = target.DESCRIPTOR.fields_by_name
    for name in call.names:
        json_codec.read(target, {name: path[name]})
    for name, text in query.multi_items():
        if name not in call.query:
            raise JsonError(f"unknown query {name[:64]!r}; allowed: {', '.join(call.query) or 'none'}")
        json_codec.read(target, {name: _plain(fields[name], text, name)})
    return made


def _plain(field: Any, text: str, name: str) -> object:
    """A value of the query as its field has it."""
    if field.cpp_type == field.CPPTYPE_BOOL:
        if text not in ("true", "false"):
            raise JsonError(f"{name}: wanted: true or false")
        return text == "true"
    if field.cpp_type == field.CPPTYPE_STRING:
        return text
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise JsonError(f"{name}: wanted: a whole number")
    return int(text)
