"""Answers to questions about a queue. They are not replicated."""

from __future__ import annotations

from dataclasses import dataclass

from fifo.effects import Run


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """What a queue holds. total = ready + checked_out.

    first_sequence: of the oldest message, next_sequence if there is none.
    ready_bytes: estimated block by block from the mean size of the messages published into it.
    dropped: how many ever left because they expired, were rejected, failed too often, were too many (in this order).
    """

    ready: int
    checked_out: int
    total: int
    consumers: int
    first_sequence: int
    next_sequence: int
    ready_bytes: int
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    """opens: how often it was outstanding when its subscription was opened. size_bytes is estimated."""

    offset: int
    index: int
    count: int
    size_bytes: int
    opens: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A durable subscription; `reservations` are those outstanding, ascending, `outstanding` their messages."""

    name: str
    generation: int
    settled: int
    last: int
    outstanding: int
    selector: bytes
    start_sequence: int
    last_seen_ms: int
    timeout_ms: int
    on_expiry: str
    has_untold_loss: bool
    reservations: tuple[ReservationInfo, ...]


@dataclass(frozen=True, slots=True)
class ReservationPage:
    """Neighbours of a reservation. redelivered, delivery_counts: as in Deliver. opens: as in ReservationInfo. has_more:
    it ends early, since it has gone through many blocks."""

    runs: tuple[Run, ...]
    redelivered: int
    delivery_counts: tuple[tuple[int, int], ...]
    opens: int
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class PinInfo:
    """A pin, with what was pinned as Pinned says it. copy_bytes: what is kept for it of blocks that have changed."""

    pin: int
    index: int
    first_sequence: int
    end_sequence: int
    count: int
    made_ms: int
    expires_ms: int
    copy_bytes: int


@dataclass(frozen=True, slots=True)
class BrowsePage:
    """One page of the ready messages. next_sequence: the start of the next page, None at the end."""

    runs: tuple[Run, ...]
    next_sequence: int | None
