"""What a group of queues answers. Read second, after commands.py.

A *reply* belongs to one operation and goes to the node that holds the operation's session. An *effect* happens beside
it; each names who carries it out: `session` (the node at `address`) or `leader`. Every member computes all of them.
Effects may repeat after a fail-over, so their receivers must cope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fifo.commands import Address

# ---- replies


@dataclass(frozen=True, slots=True)
class Ok:
    """Done. `count`: how many messages it touched, where that means something (purge, delete, the messages of a part so
    far for Stage, those dropped for DiscardStaged)."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """An operation with a number at or below the last one taken: it was done before."""


@dataclass(frozen=True, slots=True)
class Registered:
    """accepted: ranges of client sequences this group has taken, above the producer's lowest unconfirmed one.

    known: False when the producer was not remembered. It proves nothing (fifo/producers.py), and only goes into the
    running hash.
    """

    accepted: tuple[tuple[int, int], ...]
    known: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed. `reason` is one of the words below, `detail` says what and what is allowed.

    not_found, fenced (a higher epoch exists, or the session has ended), gap (n or a chunk too high), not_registered,
    expired (producer forgotten), outdated (the session was opened too long ago to register), not_attached,
    wrong_attach, in_use, bad_argument, field_not_kept, queue_full, limit, wrong_generation (a subscription was opened
    again), settled, released (what became of an offset), not_given (an offset that was never given out), published
    (a chunk of a batch that is done), missing_part (not staged, or with other messages than said), refused_earlier
    (a message below the highest one taken of its producer, and not taken itself)
    """

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """first..last have been taken, now or before.

    refused: (first, last, why) of ranges among them that have not; only where others of the same batch were taken
    before, else the whole batch is refused.
    """

    first: int
    last: int
    refused: tuple[tuple[int, int, Refused], ...] = ()


@dataclass(frozen=True, slots=True)
class AttachedReply:
    attach: int


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """To OpenSubscription, SettleReserved, KeepSubscription and ReleaseSubscription.

    settled: the offset up to which everything is settled or released. last: the newest reservation's. outstanding:
    messages held in between.
    """

    generation: int
    settled: int
    last: int
    outstanding: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation. index: the Raft index that a replica must have applied to read it. size_bytes is estimated.

    offset == after: nothing was reserved, since nothing is there (is_complete), or since a budget ended the look.
    """

    offset: int
    index: int
    count: int
    size_bytes: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Pinned:
    """first_sequence <= sequence < end_sequence for all that is pinned. index: as in Reserved."""

    pin: int
    index: int
    first_sequence: int
    end_sequence: int
    count: int


@dataclass(frozen=True, slots=True)
class Published:
    """To PublishStaged: the messages have the sequences first_sequence .. first_sequence+count-1.

    is_duplicate: this batch or a later one of the producer was published before; nothing was added, both are 0.
    """

    first_sequence: int
    count: int
    is_duplicate: bool = False


Reply = (
    Ok
    | Done
    | Registered
    | Confirmed
    | AttachedReply
    | SubscriptionState
    | Reserved
    | Pinned
    | Published
    | Refused
)

# ---- effects


@dataclass(frozen=True, slots=True)
class Run:
    """Messages first_sequence .. first_sequence+count-1, whose bodies are `count` ordinals from `ordinal` on in the
    batch (index, operation); if one_each, they are the single messages of operations operation, operation+1, ..."""

    first_sequence: int
    count: int
    index: int
    operation: int
    ordinal: int
    one_each: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """The messages of `runs`, in that order, have the consecutive delivery tags from first_tag on.

    redelivered: bit i set = i-th message was handed out before. delivery_counts: (i, failed deliveries) where not 0.
    settled: nothing is held, no settle will follow (Get with settled).
    """

    address: Address
    queue: int
    consumer_tag: str
    attach: int
    first_tag: int
    runs: tuple[Run, ...]
    redelivered: int = 0
    delivery_counts: tuple[tuple[int, int], ...] = ()
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """event: "drained" (credit given back; value = next tag), "queue_deleted", "fenced"."""

    address: Address
    queue: int
    consumer_tag: str
    attach: int
    event: Literal["drained", "queue_deleted", "fenced"]
    value: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Carried out by the leader, once dead-letter targets exist: `runs` left `queue` for `reason`."""

    queue: int
    runs: tuple[Run, ...]
    reason: Literal["expired", "rejected", "delivery_limit", "maxlen"]


Effect = Deliver | Notify | DeadLetter


@dataclass(frozen=True, slots=True)
class Applied:
    """replies[i] answers the i-th operation of the entry; None for unnumbered operations that need none."""

    replies: tuple[Reply | None, ...]
    effects: tuple[Effect, ...]
