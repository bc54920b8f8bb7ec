"""The errors that a client receives, independent of the protocol: a code, a reason and a message.

The codes are those of google.rpc.Code. `reason` is a word for programs, the message is for people.
grpc/rpc_status.py converts a status to gRPC's form.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from fifo.effects import Refused
from fifo.frozen_dataclasses import dataclass
from quorum.catalog.arguments import ArgumentError
from quorum.node.events import LowDisk
from quorum.node.wire.batches import BatchError
from quorum_selectors.errors import EncodingError, FilterError, SelectorError

MAX_TEXT = 2_000
"""Maximum number of characters of a message. Messages quote the client's request, and unread answers stay in memory."""
MAX_METADATA = 255
"""Maximum number of characters of one metadata value."""
MAY_BE_IN = "may_be_in"
"""Metadata of a refused message: queues of other groups, which may have taken it."""
NO_CONSUMERS = "no_consumers"
"""The reason for the refusal of an immediate message."""


class Code(IntEnum):
    """The codes of google.rpc.Code that this service uses."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Status:
    """metadata: pairs (key, value), in order."""

    code: Code
    reason: str
    message: str
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        """Approximate bytes of its texts."""
        return len(self.reason) + len(self.message) + sum(len(key) + len(text) for key, text in self.metadata)


_REFUSED = {
    "not_found": Code.NOT_FOUND,
    "fenced": Code.ABORTED,
    "expired": Code.FAILED_PRECONDITION,
    "not_attached": Code.FAILED_PRECONDITION,
    "wrong_attach": Code.FAILED_PRECONDITION,
    "in_use": Code.FAILED_PRECONDITION,
    "different_arguments": Code.FAILED_PRECONDITION,
    "bad_argument": Code.INVALID_ARGUMENT,
    "field_not_kept": Code.INVALID_ARGUMENT,
    "queue_full": Code.RESOURCE_EXHAUSTED,
    "limit": Code.RESOURCE_EXHAUSTED,
    "wrong_generation": Code.FAILED_PRECONDITION,
    "settled": Code.FAILED_PRECONDITION,
    "released": Code.FAILED_PRECONDITION,
    "not_given": Code.FAILED_PRECONDITION,
    "missing_part": Code.FAILED_PRECONDITION,
    "published": Code.ALREADY_EXISTS,
    "refused_earlier": Code.FAILED_PRECONDITION,
    "last_administrator": Code.FAILED_PRECONDITION,
    "not_checked_out": Code.FAILED_PRECONDITION,
    "rolled_back": Code.FAILED_PRECONDITION,
    "in_doubt": Code.UNAVAILABLE,
}
"""The codes of the words of `Refused`; a word that is not here becomes FAILED_PRECONDITION."""
TOO_LARGE = ("batch_too_large", "message_too_large", "metadata_too_large")
"""Reasons of a BatchError that are about the size of a message or batch."""
_ENDED = {
    "fenced": (Code.ABORTED, "a session with a higher epoch has taken over this producer"),
    "expired": (
        Code.FAILED_PRECONDITION,
        "the producer's session ended more than a day ago and it has been forgotten; begin a new one",
    ),
    "node_down": (Code.UNAVAILABLE, "this node has lost its lease; open the session again, at any node"),
    "failed": (Code.INTERNAL, "this node has failed to serve the session; its log has the reason"),
    "limit": (
        Code.RESOURCE_EXHAUSTED,
        "a group remembers the maximum number of producers, of this client's address or of all; close sessions, "
        "or wait until the sessions that broke are a day old",
    ),
    "resync": (
        Code.UNAVAILABLE,
        "this node has missed answers, or the session is too old to begin at another group; open it again",
    ),
    "unreadable": (
        Code.UNAVAILABLE,
        "a message cannot be read on this node; open the session at another one",
    ),
    "overloaded": (
        Code.UNAVAILABLE,
        "too many deliveries wait for this client's address; read them, give less credit, and open the session again",
    ),
    "disk_full": (Code.UNAVAILABLE, "this node's disk is full; open the session at another one"),
    "outdated": (
        Code.UNAVAILABLE,
        "the queue of a request was deleted, and its name may belong to another queue now; begin again",
    ),
    "parted": (
        Code.UNAVAILABLE,
        "this node's state differs from most members' and is to be rebuilt; open the session at another one",
    ),
    "in_doubt": (
        Code.UNAVAILABLE,
        "a transaction of the last session is not finished in all groups yet; open the session again",
    ),
    "stopping": (Code.UNAVAILABLE, "this node is stopping; open the session at another one"),
    "drained": (Code.UNAVAILABLE, "this node is drained; open the session at another one"),
    "waiting": (Code.UNAVAILABLE, "this node is no member yet; open the session at another one"),
    "removed": (Code.UNAVAILABLE, "this node is no member any more; open the session at another one"),
    "meeting": (
        Code.UNAVAILABLE,
        "the cluster's members have not met yet; open the session at another one",
    ),
}


class StatusError(Exception):
    """An error that the client receives as a status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


def make(code: Code, reason: str, message: str, **metadata: str) -> Status:
    if len(message) > MAX_TEXT:
        message = f"{message[:MAX_TEXT]}... (cut, {len(message)} characters)"
    shown = tuple((key, value[:MAX_METADATA]) for key, value in metadata.items())
    return Status(code, reason, message, shown)


QUEUE_DELETED = make(Code.NOT_FOUND, "queue_deleted", "the queue was deleted")


def invalid(reason: str, message: str, **metadata: str) -> StatusError:
    return StatusError(make(Code.INVALID_ARGUMENT, reason, message, **metadata))


def unavailable(reason: str, message: str) -> StatusError:
    return StatusError(make(Code.UNAVAILABLE, reason, message))


def exhausted(reason: str, message: str) -> StatusError:
    return StatusError(make(Code.RESOURCE_EXHAUSTED, reason, message))


def outcome_unknown(why: Status) -> StatusError:
    """The error for a publish that its group has not decided. why: what has ended the waiting."""
    text = (
        "the publish may have happened, or may still happen; publishing it again may double its messages: "
        + why.message.partition("; ")[0]
    )
    return StatusError(make(Code.DEADLINE_EXCEEDED, "outcome_unknown", text))


def not_found(message: str) -> StatusError:
    return StatusError(make(Code.NOT_FOUND, "not_found", message))


def no_queue(name: str, number: int = 0) -> StatusError:
    """The error for an unknown queue. number: the requested queue id, 0 for any."""
    text = f"there is no queue {name!r}" + (f" with the id {number}" if number else "")
    return StatusError(make(Code.NOT_FOUND, "not_found", text, queue=name))


def no_exchange(name: str) -> StatusError:
    return StatusError(
        make(
            Code.NOT_FOUND,
            "no_exchange",
            f"there is no exchange {name!r}; the default exchange, whose name is empty, routes a message to the queue "
            "whose name is its routing key",
            exchange=name,
        )
    )


def unroutable(exchange: str, key: str) -> Status:
    """Why a mandatory message is refused that no queue gets."""
    text = f"exchange {exchange!r} routes no message with the routing key {key!r} and these properties to any queue"
    return make(Code.NOT_FOUND, "unroutable", text, exchange=exchange, routing_key=key)


def taken_elsewhere(why: Status, queues: Sequence[str]) -> Status:
    """The status of a message that one group refused and others took. queues: of the others, not empty."""
    shown = ", ".join(map(repr, queues[:3])) + (f" and {len(queues) - 3} more" if len(queues) > 3 else "")
    text = f"{why.message}; the message may be in other queues: {shown}"
    return make(why.code, why.reason, text, **dict(why.metadata), **{MAY_BE_IN: ",".join(queues[:3])})


def old_version(what: str, needed: int, used: int) -> StatusError:
    """A retry can succeed later, after every member runs a release that knows the machine version `needed`."""
    text = (
        f"{what} needs machine version {needed}, and the cluster uses {used} until every member knows {needed}; "
        "quorum cluster status shows the members that do not"
    )
    return StatusError(
        make(Code.FAILED_PRECONDITION, "old_version", text, needed=str(needed), used=str(used))
    )


def disk_low(disks: Sequence[LowDisk]) -> StatusError:
    """Publishes are refused until these members have disk space again; the client may retry later. disks: not empty."""
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
    return StatusError(make(Code.RESOURCE_EXHAUSTED, "disk_low", text, **metadata))


def of_refused(refused: Refused) -> Status:
    return make(_REFUSED.get(refused.reason, Code.FAILED_PRECONDITION), refused.reason, refused.detail)


def of_ended(reason: str) -> StatusError:
    code, text = _ENDED[reason]
    return StatusError(make(code, "session_" + reason, text))


def of_call_ended(reason: str) -> StatusError:
    """The same for a unary call: its client has no session that it could open again."""
    code, text = _ENDED[reason]
    if code is Code.UNAVAILABLE:
        text = text.partition("; ")[0] + "; repeat the call, at any member"
    return StatusError(make(code, "session_" + reason, text))


def of_error(
    error: BatchError | SelectorError | FilterError | ArgumentError | EncodingError,
) -> Status:
    """The status for an error in the caller's request, found before anything was written."""
    if isinstance(error, BatchError):
        code = Code.RESOURCE_EXHAUSTED if error.reason in TOO_LARGE else Code.INVALID_ARGUMENT
        return make(code, error.reason, str(error))
    if isinstance(error, SelectorError):
        place = {"line": str(error.line), "column": str(error.column)}
        return make(Code.INVALID_ARGUMENT, "bad_selector", str(error), **place)
    if isinstance(error, EncodingError):
        return make(Code.INVALID_ARGUMENT, "bad_selector", str(error))
    if isinstance(error, FilterError):
        return make(Code.INVALID_ARGUMENT, "bad_filter", str(error))
    return make(Code.INVALID_ARGUMENT, "bad_argument", str(error))
