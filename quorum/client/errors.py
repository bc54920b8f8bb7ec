"""The client's errors and their causes.

    QuorumError
    ├── UsageError          the caller: an argument or order of calls that can never work; nothing was sent
    │   ├── UnreadableFile      a file that the URL names cannot be read
    │   ├── ClosedError         the client or the consumer has been closed
    │   └── VoidDelivery        the delivery belongs to an attachment that has ended; it will be redelivered
    ├── RefusedError        the caller: the service refuses the request, and will refuse it again
    │   ├── NotFound            no such queue or consumer
    │   ├── PublishRejected     messages of a batch (queue full, too large, unknown queue)
    │   ├── RolledBack          a transaction: nothing of it counts
    │   └── PermissionRefused   not authenticated, or not allowed
    ├── UnavailableError    the network or cluster: the service cannot be reached or cannot decide now; try again
    │   ├── ConnectionLost      the stream ended before the request was answered
    │   ├── TlsError            the client and the members cannot agree about TLS; change the URL or certificates
    │   └── TimedOut            the deadline passed; the outcome is unknown
    │       └── PublishUnknown      of a publish; `confirmation` can be awaited again
    ├── OutcomeUnknown      the network or cluster: a publish was not answered for 23 hours and is given up, or the
    │                       commit of a transaction was not answered in time
    └── ServiceError        the service: it failed, or its answer violates the protocol

Every error has `reason`, the service's word for it (google.rpc.ErrorInfo.reason); "" if there is none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from collections.abc import Mapping
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

DETAILS_KEY = "grpc-status-details-bin"


class QuorumError(Exception):
    """Base of everything the client raises on purpose."""

    def __init__(self, message: str, *, reason: str = "", metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata: dict[str, str] = dict(metadata or {})


class UsageError(QuorumError):
    """An argument or an order of calls that can never work. Nothing was sent."""


class UnreadableFile(UsageError):
    """A file that the URL names, such as a certificate or a token, cannot be read."""


class ClosedError(UsageError):
    """The client or the consumer has been closed."""


class VoidDelivery(UsageError):
    """The delivery belongs to an attachment that has ended: its messages are ready in the queue again."""


class RefusedError(QuorumError):
    """The service refuses this request, now and when it is repeated."""


class NotFound(RefusedError):
    """No such queue or consumer."""


class PermissionRefused(RefusedError):
    """Not authenticated, or not allowed."""


class PublishRejected(RefusedError):
    """Messages of a batch were refused. rejected: (first, last) positions in the batch, from 0, inclusive."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        rejected: tuple[tuple[int, int], ...] = (),
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata)
        self.rejected = rejected


class UnavailableError(QuorumError):
    """The service cannot be reached or cannot decide now; try again."""


class ConnectionLost(UnavailableError):
    """The stream ended before the request was answered."""


class TlsError(UnavailableError):
    """One end uses TLS and the other does not, or one does not accept the certificate of the other. Trying again helps
    only when the URL or the certificates are changed."""


class TimedOut(UnavailableError):
    """The deadline passed. The service may still carry out the request."""


class PublishUnknown(TimedOut):
    """A publish was sent and is not decided yet. The client keeps resending it: to avoid duplicates, await
    `confirmation` again instead of publishing again."""

    def __init__(
        self, message: str, confirmation: asyncio.Future[int] | concurrent.futures.Future[int]
    ) -> None:
        super().__init__(message, reason="DEADLINE_EXCEEDED")
        self._confirmation = confirmation

    @property
    def confirmation(self) -> Any:
        """A future of the outcome; from the blocking client one of concurrent.futures, whose `result(timeout)` waits.
        If it is cancelled, as by `asyncio.wait_for`, the next one is not."""
        waited = self._confirmation
        return asyncio.shield(waited) if isinstance(waited, asyncio.Future) else waited


class RolledBack(RefusedError):
    """The service refused a transaction: nothing of it counts. `reason` says why."""


class OutcomeUnknown(QuorumError):
    """What was sent may count or not: a publish that was not answered for 23 hours, or the commit of a transaction that
    was not answered in time. The client does not send the publish again, because the service drops repeats only for a
    day and could take it twice. Of the transaction, all counts or nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="OUTCOME_UNKNOWN")


class ServiceError(QuorumError):
    """The service failed, or its answer violates the protocol."""


def retrieved(future: asyncio.Future[Any], error: QuorumError) -> None:
    """Marks the future's error as seen if the caller closed the client itself: no "never retrieved" in the log."""
    if isinstance(error, ClosedError):
        future.exception()


_BY_CODE: dict[grpc.StatusCode, type[QuorumError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: RefusedError,
    grpc.StatusCode.FAILED_PRECONDITION: RefusedError,
    grpc.StatusCode.OUT_OF_RANGE: RefusedError,
    grpc.StatusCode.ALREADY_EXISTS: RefusedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RefusedError,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.PERMISSION_DENIED: PermissionRefused,
    grpc.StatusCode.UNAUTHENTICATED: PermissionRefused,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.ABORTED: UnavailableError,
    grpc.StatusCode.CANCELLED: ConnectionLost,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOut,
}
_WRITE_FAILED = "Internal error from Core"
"""Details of an INTERNAL that grpcio's client makes itself: the service ended the call during a write. grpcio 1.85.3
often loses the status that the service sent. The next try learns it."""
_NOT_REACHED = (
    (
        re.compile(
            r"failed to connect to all addresses; last error: .*Failed to connect to remote host: (.+)"
        ),
        "cannot connect",
    ),
    (re.compile(r"errors resolving .*: ([^:\]]+)\]"), "its address cannot be found"),
)
"""What gRPC says of a member that it cannot reach, with the system's reason as the group, and plain words."""
_CODE_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def reason_of(status: Any) -> tuple[str, dict[str, str]]:
    """Reason and metadata of a google.rpc.Status; empty if it carries no ErrorInfo."""
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
            return info.reason, dict(sorted(info.metadata.items()))
    return "", {}


def from_status(status: Any, doing: str = "") -> QuorumError:
    """The error for a google.rpc.Status from inside a stream."""
    reason, metadata = reason_of(status)
    code = _CODE_BY_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
    kind = _BY_CODE.get(code, ServiceError)
    text = status.message or code.name.lower()
    return kind(f"{doing}: {text}" if doing else text, reason=reason, metadata=metadata)


def from_rpc_error(error: grpc.aio.AioRpcError | grpc.RpcError, doing: str) -> QuorumError:
    """The error for a failed call, with the details of its trailing metadata."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            status = status_pb2.Status()
            try:
                status.ParseFromString(value)
            except Exception as problem:
                return ServiceError(f"{doing}: unreadable status details ({problem})")
            return from_status(status, doing)
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == _WRITE_FAILED:
        return ConnectionLost(f"{doing}: the service ended the call during a write")
    kind = _BY_CODE.get(error.code(), ServiceError)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return kind(f"{doing}: no answer came in time")
    return kind(f"{doing}: {plain_details(error) or error.code().name.lower()}")


def plain_details(error: grpc.aio.AioRpcError | grpc.RpcError) -> str:
    """What gRPC says of a failed call, in plain words if the member could not be reached."""
    details = error.details() or ""
    for pattern, words in _NOT_REACHED:
        found = pattern.fullmatch(details)
        if found is not None:
            return f"{words}: {found[1]}"
    return details
