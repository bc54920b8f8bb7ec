"""Errors as JSON: those of the services, and those that are found before a request comes to one of them."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from google.rpc import error_details_pb2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ExceptionHandler
from uvicorn.protocols.http.h11_impl import H11Protocol

from quorum.api.grpc.rpc_status import to_proto
from quorum.api.http.json_answer import JsonAnswer
from quorum.api.http.json_codec import JsonError
from quorum.api.status import Code, Status, StatusError, make

HTTP_STATUS = {
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
BY_REASON = {"REQUEST_TOO_LARGE": 413, "WRONG_METHOD": 405}
"""Reasons that have a status of their own."""
BUFFERED_BYTES = 64 << 10
"""Bytes that a connection keeps for its client before a sender waits. asyncio's own limit with TLS is 512 KiB."""
MAX_PATH = 255
"""Characters of a path that an error quotes."""


class Aborted(Exception):
    """The service has ended the call."""

    def __init__(self, found: Any) -> None:
        self.status = found


REFUSALS = (Aborted, StatusError, JsonError)
"""How a request is refused."""
NO_PLACE = make(
    Code.RESOURCE_EXHAUSTED,
    "too_many_calls",
    "this client has its share of the requests that the member answers at a time",
)


def status_of(error: Aborted | StatusError | JsonError) -> Any:
    """As google.rpc.Status."""
    if isinstance(error, Aborted):
        return error.status
    if isinstance(error, StatusError):
        return to_proto(error.status)
    return to_proto(make(Code.INVALID_ARGUMENT, "bad_request", str(error)))


def given_status(error: Aborted) -> Status:
    """What the service has given."""
    found = error.status
    info = _info(found)
    return Status(Code(found.code), info.reason.lower(), found.message, tuple(sorted(info.metadata.items())))


def _info(found: Any) -> Any:
    """The ErrorInfo of a google.rpc.Status."""
    info = error_details_pb2.ErrorInfo()
    for detail in found.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    return info


def failed(why: Status) -> Response:
    return failed_with(to_proto(why))


def failed_with(found: Any) -> Response:
    """found: a google.rpc.Status."""
    info = _info(found)
    error = {"code": Code(found.code).name, "reason": info.reason, "message": found.message}
    headers = {"www-authenticate": 'Basic realm="quorum"'} if found.code == Code.UNAUTHENTICATED else None
    shown = {"error": {**error, "metadata": dict(sorted(info.metadata.items()))}}
    return JsonAnswer(shown, BY_REASON.get(info.reason, HTTP_STATUS[Code(found.code)]), headers)


async def _no_endpoint(request: Request, error: Exception) -> Response:
    """The answer for a path that does not exist, or that has no such method."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:MAX_PATH]
    if error.status_code == 404:
        text = f"there is no path {path!r}; /openapi.json has those of JSON"
        return failed(make(Code.NOT_FOUND, "no_path", text))
    if error.status_code == 405:
        found = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
        allowed = ", ".join(sorted({method for route in found for method in route.methods or ()}))
        text = f"{path!r} has no method {request.method[:MAX_PATH]}; allowed: {allowed}"
        answer = failed(make(Code.INVALID_ARGUMENT, "wrong_method", text, allowed=allowed))
        answer.headers["allow"] = allowed
        return answer
    answer = failed(make(Code.INVALID_ARGUMENT, "bad_request", error.detail))
    answer.status_code = error.status_code
    return answer


async def _defect(request: Request, error: Exception) -> Response:
    """uvicorn logs it."""
    return failed(make(Code.INTERNAL, "internal", "the request has met a defect; the member's log has it"))


HANDLERS: dict[Any, ExceptionHandler] = {HTTPException: _no_endpoint, Exception: _defect}
"""For Starlette."""


def too_many_connections(most: int) -> Response:
    text = f"the member has {most} connections or requests of HTTP, as many as it takes; try again later"
    answer = failed(make(Code.UNAVAILABLE, "overloaded", text))
    answer.headers["connection"] = "close"
    return answer


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, which answers other bytes with an error in JSON."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(BUFFERED_BYTES)
        super().connection_made(transport)

    def send_400_response(self, msg: str) -> None:
        answer = failed(make(Code.INVALID_ARGUMENT, "bad_request", "the bytes are no request of HTTP/1.1"))
        headers = [*answer.raw_headers, (b"connection", b"close")]
        events = (
            h11.Response(status_code=answer.status_code, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
