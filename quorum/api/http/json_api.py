"""The services as JSON over HTTP, for curl and for programs without gRPC: one table of paths.

A path names a method of the services. The request is made from the path, the query and the JSON body. Then it takes the
same way as over gRPC: log-in before its body is read, limits, permissions, and the service's own handler. Sessions and
the bulk calls are not here: they are streams.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from google.rpc import error_details_pb2, status_pb2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from quorum.api import request_limits
from quorum.api.access import USER
from quorum.api.http import json_codec
from quorum.api.http.json_codec import JsonError
from quorum.api.http.metrics import DISTRIBUTION
from quorum.api.hub import Hub
from quorum.api.owners import CALLER, client_address
from quorum.api.rpc_status import to_proto
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
EVENTS_LIMIT_S = 3_600.0
"""Time limit of a stream of events; its client then begins another one."""
PREFIX = "/api/v1"

_HTTP = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.ABORTED: 409,
    Code.FAILED_PRECONDITION: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}


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


def _request_class(rpc: str) -> Any:
    service, _, method = rpc.partition("/")
    module = admin_pb2 if service == "Admin" else queue_pb2
    return getattr(
        module, module.DESCRIPTOR.services_by_name[service].methods_by_name[method].input_type.name
    )


def _answer(rpc: str) -> Any:
    service, _, method = rpc.partition("/")
    module = admin_pb2 if service == "Admin" else queue_pb2
    return module.DESCRIPTOR.services_by_name[service].methods_by_name[method].output_type


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
        return [Route("/openapi.json", self._described, methods=["GET"]), events, *found]

    async def _described(self, request: Request) -> Response:
        """The description of the paths, for every user."""
        try:
            await self._admitted(_CLUSTER, request, peer_of(request))
        except StatusError as error:
            return _failed(error.status)
        return JSONResponse(openapi())

    async def _events(self, request: Request) -> Response:
        """What changes, as server-sent events: the cluster's status, and with ?queue= one queue."""
        peer = peer_of(request)
        address = client_address(peer)
        name = request.query_params.get("queue", "")
        calls: list[tuple[Call, dict[str, str]]] = [(_CLUSTER, {})]
        if name:
            calls.append((_QUEUE, {"queue": name}))
        if not self._calls.enter(address):
            return _failed(_no_place())
        try:
            user = await self._admitted(_CLUSTER, request, peer)
            await self._event(calls, user, peer)  # a refusal ends the request, and not its stream
        except _Aborted as error:
            self._calls.leave(address)
            return _failed_with(error.status)
        except StatusError as error:
            self._calls.leave(address)
            return _failed(error.status)
        except BaseException:
            self._calls.leave(address)
            raise

        async def stream() -> AsyncIterator[str]:
            end = time.monotonic() + EVENTS_LIMIT_S
            try:
                while time.monotonic() < end and not await request.is_disconnected():
                    user = await self._admitted(_CLUSTER, request, peer)
                    yield f"data: {json.dumps(await self._event(calls, user, peer))}\n\n"
                    await asyncio.sleep(EVENT_S)
            except (_Aborted, StatusError):
                return  # it may not go on; the next stream is told why
            finally:
                self._calls.leave(address)

        return StreamingResponse(
            stream(), media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )

    async def _event(
        self, calls: list[tuple[Call, dict[str, str]]], user: User | None, peer: str
    ) -> dict[str, Any]:
        event = {}
        for call, path in calls:
            made = call.request(**path)
            self._hub.access.check(call.rpc, made, user, peer)
            event["cluster" if call is _CLUSTER else "queue"] = await self._call(call, made, _Context(peer))
        return event

    async def _admitted(self, call: Call, request: Request, peer: str) -> User | None:
        """The user. StatusError if there is none, or the request comes from a page of another site."""
        address = client_address(peer)
        CALLER.set(address)
        user = await self._hub.access.admit(call.rpc, peer, address, dict(request.headers))
        check_origin(request, has_user=user is not None)
        USER.set(user)
        return user

    def _endpoint(self, call: Call) -> Any:
        async def endpoint(request: Request) -> Response:
            peer = peer_of(request)
            address = client_address(peer)
            if not self._calls.enter(address):
                return _failed(_no_place())
            try:
                user = await self._admitted(call, request, peer)
                return await self._serve(call, request, user, peer)
            except _Aborted as error:
                return _failed_with(error.status)
            except StatusError as error:
                return _failed(error.status)
            except JsonError as error:
                return _failed(make(Code.INVALID_ARGUMENT, "bad_request", str(error)))
            finally:
                self._calls.leave(address)

        return endpoint

    async def _serve(self, call: Call, request: Request, user: User | None, peer: str) -> Response:
        address = client_address(peer)
        size = _length(request) if call.has_body else 0
        try:
            await self._hub.received.take(size, address)
        except WindowFull as error:
            text = f"no room for a request of {size} bytes, for this client's address: {error}"
            raise StatusError(make(Code.RESOURCE_EXHAUSTED, "overloaded", text)) from error
        try:
            made = request_of(call, request.path_params, request.query_params, await _body(request, size))
            try:
                scan(made.SerializeToString(), self._shapes[call.rpc], self._max_tags)
            except ScanError as error:
                raise invalid("request_too_large", str(error)) from error
            self._hub.access.check(call.rpc, made, user, peer)
            return JSONResponse(await self._call(call, made, _Context(peer)))
        finally:
            self._hub.received.give(size, address)

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


def _no_place() -> Status:
    text = "this client has its share of the requests that the member answers at a time"
    return make(Code.RESOURCE_EXHAUSTED, "too_many_calls", text)


def check_origin(request: Request, *, has_user: bool) -> None:
    """StatusError for a request that a page of another site makes in a browser. A browser says which site that is, and
    adds a user's password by itself. Without users, the name of this member has to be an address or `localhost`,
    because a site may give its own name the address of this machine."""
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if origin is not None and origin.partition("://")[2] != host:
        raise _foreign(f"a page of {origin[:255]}")
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


def _failed(why: Any) -> Response:
    return _failed_with(to_proto(why))


def _failed_with(found: Any) -> Response:
    info = error_details_pb2.ErrorInfo()
    for detail in found.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    error = {"code": Code(found.code).name, "reason": info.reason, "message": found.message}
    headers = {"www-authenticate": 'Basic realm="quorum"'} if found.code == Code.UNAUTHENTICATED else None
    shown = {"error": {**error, "metadata": dict(sorted(info.metadata.items()))}}
    status = 413 if info.reason == "REQUEST_TOO_LARGE" else _HTTP[Code(found.code)]
    return JSONResponse(shown, status, headers)


# ---- its description


def openapi() -> dict[str, Any]:
    """The paths as an OpenAPI document."""
    known: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for call in CALLS:
        described = call.request.DESCRIPTOR
        if call.within:
            described = described.fields_by_name[call.within].message_type
        operation: dict[str, Any] = {
            "operationId": call.rpc.replace("/", ""),
            "summary": call.summary,
            "parameters": [*_parameters(call.names, "path"), *_parameters(call.query, "query", described)],
            "responses": {
                "200": _content("the answer", json_codec.schema_of(_answer(call.rpc), known)),
                "default": _content("an error", ERROR),
            },
        }
        if call.has_body:
            schema = json_codec.schema_of(described, known, call.names)
            operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        paths.setdefault(PREFIX + call.path, {})[call.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quorum", "version": metadata.version(DISTRIBUTION)},
        "paths": paths,
        "components": {
            "schemas": known,
            "securitySchemes": {"password": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"password": []}],
    }


ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"enum": [code.name for code in _HTTP]},
                "reason": {"type": "string"},
                "message": {"type": "string"},
                "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["code", "reason", "message"],
        }
    },
    "required": ["error"],
}


def _content(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _parameters(names: Iterable[str], place: str, described: Any = None) -> list[dict[str, Any]]:
    found = []
    for name in names:
        schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255}
        if described is not None:
            schema = json_codec.one_schema(described.fields_by_name[name], {})
        found.append({"name": name, "in": place, "required": place == "path", "schema": schema})
    return found
