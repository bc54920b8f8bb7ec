"""The answers of the bulk calls as plain records. `index` goes into later reads: see proto/quorum/v1/bulk.proto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quorum.client.values import FieldValue


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """settled: everything up to this offset is settled or released. last: the newest reservation's offset."""

    generation: int
    settled: int
    last: int
    outstanding: int
    index: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """offset: the call's `after` if nothing was reserved; count is then 0. ready: messages of the queue that are still
    ready. is_unfinished: no match was found yet, and the scan is not complete."""

    offset: int
    count: int
    size_bytes: int
    ready: int
    index: int
    is_unfinished: bool = False


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    offset: int
    count: int
    size_bytes: int
    opens: int
    reserved_ms: int
    index: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A member that can serve reads. address: host:port."""

    name: str
    address: str
    leader: bool


@dataclass(frozen=True, slots=True)
class Reservations:
    reservations: tuple[ReservationInfo, ...]
    endpoints: tuple[Endpoint, ...]
    subscription: SubscriptionState


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """on_expiry: "release", "discard" or "keep". selector: equivalent to the subscription's, empty for all messages.
    filter: the same, as quorum_selectors.canonical encodes it."""

    subscription: str
    state: SubscriptionState
    filtered: bool
    start_sequence: int
    last_seen_ms: int
    timeout_ms: int
    on_expiry: str
    reservations: int
    selector: str = ""
    filter: bytes = b""


@dataclass(frozen=True, slots=True)
class View:
    """first_sequence <= sequence < end_sequence for all messages in it."""

    view: int
    first_sequence: int
    end_sequence: int
    count: int
    index: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part as `publish` needs it. part: its name, 16 bytes. rows: number of its rows. index: up to which it was
    staged; 0 if that is not known."""

    part: bytes
    rows: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """is_duplicate: the batch, or a later one of the producer, was published before; the sequence and count are then 0.
    A repeat of this very call, after a lost answer, is also reported as a duplicate."""

    first_sequence: int
    count: int
    is_duplicate: bool
    index: int


@dataclass(frozen=True, slots=True)
class SeenField:
    """An application property of sampled messages. kind: "text", "integer", "floating" or "boolean"; "" if no column
    can have its values. messages: number of sampled messages that have it."""

    name: str
    kind: str
    messages: int


@dataclass(frozen=True, slots=True)
class BulkQueueInfo:
    """ready_bytes: bodies of the ready messages, estimated without `x-max-length-bytes`."""

    arguments: Mapping[str, FieldValue | None]
    first_sequence: int
    next_sequence: int
    ready: int
    checked_out: int
    index: int
    filter_fields: tuple[str, ...]
    fields: tuple[SeenField, ...]
    endpoints: tuple[Endpoint, ...]
    ready_bytes: int
