"""Errors to gRPC status: the one place.

Every status carries a google.rpc.ErrorInfo: `reason` is a word for programs, the message is for people.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from fifo.effects import Refused
from quorum.catalog.arguments import ArgumentError
from quorum.node.events import LowDisk
from quorum.node.wire.batches import BatchError
from quorum_selectors.errors import EncodingError, FilterError, SelectorError

DOMAIN = "quorum"
MAX_TEXT = 2_000
"""Characters of a message: what a client has sent is in it, and answers that a client does not read are kept."""
MAX_METADATA = 255
"""Characters of one value."""

_REFUSED = {
    "not_found": code_pb2.NOT_FOUND,
    "fenced": code_pb2.ABORTED,
    "expired": code_pb2.FAILED_PRECONDITION,
    "not_attached": code_pb2.FAILED_PRECONDITION,
    "wrong_attach": code_pb2.FAILED_PRECONDITION,
    "in_use": code_pb2.FAILED_PRECONDITION,
    "different_arguments": code_pb2.FAILED_PRECONDITION,
    "bad_argument": code_pb2.INVALID_ARGUMENT,
    "field_not_kept": code_pb2.INVALID_ARGUMENT,
    "queue_full": code_pb2.RESOURCE_EXHAUSTED,
    "limit": code_pb2.RESOURCE_EXHAUSTED,
    "wrong_generation": code_pb2.FAILED_PRECONDITION,
    "settled": code_pb2.FAILED_PRECONDITION,
    "released": code_pb2.FAILED_PRECONDITION,
    "not_given": code_pb2.FAILED_PRECONDITION,
    "missing_part": code_pb2.FAILED_PRECONDITION,
    "published": code_pb2.ALREADY_EXISTS,
    "refused_earlier": code_pb2.FAILED_PRECONDITION,
}
_TOO_LARGE = ("batch_too_large", "message_too_large", "metadata_too_large")
_ENDED = {
    "fenced": (code_pb2.ABORTED, "a session with a higher epoch has taken over this producer"),
    "expired": (
        code_pb2.FAILED_PRECONDITION,
        "the producer's session ended more than a day ago and it has been forgotten; begin a new one",
    ),
    "node_down": (code_pb2.UNAVAILABLE, "this node has lost its lease; open the session again, at any node"),
    "failed": (code_pb2.INTERNAL, "this node has failed to serve the session; its log says how"),
    "limit": (
        code_pb2.RESOURCE_EXHAUSTED,
        "a group remembers as many producers as it may, of this client's address or of all; close sessions, "
        "or wait until those that broke are a day old",
    ),
    "resync": (
        code_pb2.UNAVAILABLE,
        "this node has missed answers, or the session is too old to begin at another group; open it again",
    ),
    "unreadable": (
        code_pb2.UNAVAILABLE,
        "a message cannot be read on this node; open the session at another one",
    ),
    "disk_full": (code_pb2.UNAVAILABLE, "this node's disk is full; open the session at another one"),
    "outdated": (
        code_pb2.UNAVAILABLE,
        "a queue that this named was deleted, and its name may belong to another one now; begin again",
    ),
    "parted": (
        code_pb2.UNAVAILABLE,
        "this node's state differs from most members' and is to be rebuilt; open the session at another one",
    ),
    "stopping": (code_pb2.UNAVAILABLE, "this node is stopping; open the session at another one"),
    "drained": (code_pb2.UNAVAILABLE, "this node is drained; open the session at another one"),
    "waiting": (code_pb2.UNAVAILABLE, "this node is no member yet; open the session at another one"),
    "removed": (code_pb2.UNAVAILABLE, "this node is no member any more; open the session at another one"),
    "meeting": (
        code_pb2.UNAVAILABLE,
        "the cluster's members have not met yet; open the session at another one",
    ),
}


class StatusError(Exception):
    """An outcome that a client is told as a gRPC status."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


def make(code: int, reason: str, message: str, **metadata: str) -> status_pb2.Status:
    if len(message) > MAX_TEXT:
        message = f"{message[:MAX_TEXT]}... (cut, {len(message)} characters)"
    shown = {key: value[:MAX_METADATA] for key, value in metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=reason.upper(), domain=DOMAIN, metadata=shown)
    detail = any_pb2.Any()
    detail.Pack(info, deterministic=True)
    return status_pb2.Status(code=code, message=message, details=[detail])


def invalid(reason: str, message: str, **metadata: str) -> StatusError:
    return StatusError(make(code_pb2.INVALID_ARGUMENT, reason, message, **metadata))


def unavailable(reason: str, message: str) -> StatusError:
    return StatusError(make(code_pb2.UNAVAILABLE, reason, message))


def not_found(message: str) -> StatusError:
    return StatusError(make(code_pb2.NOT_FOUND, "not_found", message))


def no_queue(name: str, number: int = 0) -> StatusError:
    """number: the id that was asked for, 0 for any."""
    text = f"there is no queue {name!r}" + (f" with the id {number}" if number else "")
    return StatusError(make(code_pb2.NOT_FOUND, "not_found", text, queue=name))


def old_version(what: str, needed: int, used: int) -> StatusError:
    """Later is right: when every member runs a release that knows the version."""
    text = (
        f"{what} needs machine version {needed}, and the cluster uses {used} until every member knows {needed}; "
        "quorum cluster status shows who does not"
    )
    return StatusError(
        make(code_pb2.FAILED_PRECONDITION, "old_version", text, needed=str(needed), used=str(used))
    )


def disk_low(disks: Sequence[LowDisk]) -> StatusError:
    """Publishes are refused until these members have room again; publishing later is right."""
    worst = min(disks, key=lambda each: each.free_bytes if each.free_bytes >= 0 else 1 << 63)
    names = ", ".join(each.member for each in disks)
    text = f"no room for more messages: the disk of {names} is low"
    metadata = {"member": worst.member}
    if worst.free_bytes >= 0:
        text += (
            f" ({worst.free_bytes} bytes free on {worst.member}, disk_free_limit_bytes is {worst.limit_bytes}); "
            "consuming makes room"
        )
        metadata |= {"free_bytes": str(worst.free_bytes), "limit_bytes": str(worst.limit_bytes)}
    return StatusError(make(code_pb2.RESOURCE_EXHAUSTED, "disk_low", text, **metadata))


def of_refused(refused: Refused) -> status_pb2.Status:
    return make(_REFUSED.get(refused.reason, code_pb2.FAILED_PRECONDITION), refused.reason, refused.detail)


def of_ended(reason: str) -> StatusError:
    code, text = _ENDED[reason]
    return StatusError(make(code, "session_" + reason, text))


def of_error(
    error: BatchError | SelectorError | FilterError | ArgumentError | EncodingError,
) -> status_pb2.Status:
    """What the caller did wrong, as found before anything was written."""
    if isinstance(error, BatchError):
        code = code_pb2.RESOURCE_EXHAUSTED if error.reason in _TOO_LARGE else code_pb2.INVALID_ARGUMENT
        return make(code, error.reason, str(error))
    if isinstance(error, SelectorError):
        place = {"line": str(error.line), "column": str(error.column)}
        return make(code_pb2.INVALID_ARGUMENT, "bad_selector", str(error), **place)
    if isinstance(error, EncodingError):
        return make(code_pb2.INVALID_ARGUMENT, "bad_selector", str(error))
    if isinstance(error, FilterError):
        return make(code_pb2.INVALID_ARGUMENT, "bad_filter", str(error))
    return make(code_pb2.INVALID_ARGUMENT, "bad_argument", str(error))


async def abort(context: grpc.aio.ServicerContext, error: StatusError) -> None:
    await context.abort_with_status(rpc_status.to_status(error.status))
