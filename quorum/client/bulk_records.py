"""What the bulk calls answer, as plain records. `index` goes into later reads: see proto/quorum/v1/bulk.proto."""

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
    """offset: of the reservation; the `after` of the call where nothing was reserved, count 0. ready: messages of the
    queue that are ready beside it. is_unfinished: nothing was found so far, and not all has been looked at."""

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
    """A member that can be asked. address: host:port."""

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
    """on_expiry: "release", "discard" or "keep". selector: one that means what the subscription's does, empty for all
    messages; filter: the same as quorum_selectors.canonical encodes it."""

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
    """What a commit has to know of a part. part: its 16 bytes."""

    part: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class Published:
    """is_duplicate: the batch, or a later one of the producer, was on record already; then the rest is 0. It may have
    been this very call, where its first answer was lost."""

    first_sequence: int
    count: int
    is_duplicate: bool
    index: int


@dataclass(frozen=True, slots=True)
class SeenField:
    """kind: "text", "integer", "floating", "boolean"; "" where no column can have what was seen."""

    name: str
    kind: str
    messages: int


@dataclass(frozen=True, slots=True)
class BulkQueueInfo:
    arguments: Mapping[str, FieldValue | None]
    first_sequence: int
    next_sequence: int
    ready: int
    held: int
    index: int
    filter_fields: tuple[str, ...]
    fields: tuple[SeenField, ...]
    endpoints: tuple[Endpoint, ...]
