"""The replies and effects of a group of queues. Read second, after commands.py.

A *reply* belongs to one operation. Every member computes it; the node that holds the operation's session takes it
from its own replica. An *effect* is an additional
act outside of the machine. It is carried out by the session's node (at `address`) or by the leader. Every member
computes all effects. Effects may repeat after a fail-over, so their receivers must tolerate repeats.
"""

from __future__ import annotations

from typing import Literal

from fifo.commands import Address
from fifo.frozen_dataclasses import dataclass

# ---- replies


@dataclass(frozen=True, slots=True)
class Ok:
    """Done. count: the number of messages, where that means something. For a purge or a deletion it counts the messages
    removed, for Stage those of the part so far, for DiscardStaged those dropped, for InTransaction those embargoed, for
    ClaimDead those that have numbers, for SettleDead those that are gone."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """To an operation whose number is at or below the last one accepted: it was done before."""


@dataclass(frozen=True, slots=True)
class Registered:
    """accepted: ranges of client sequences that this group accepted, above the producer's lowest unconfirmed one.

    known: False when the producer was not remembered. It proves nothing (fifo/producers.py), and is used in the running
    hash only.
    """

    accepted: tuple[tuple[int, int], ...]
    known: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed. reason: one of the words below. detail: what was wrong, and what is allowed.

    not_found, fenced (a higher epoch exists, or the session has ended), gap (n or a chunk too high), not_registered,
    expired (producer forgotten), outdated (the session was opened too long ago to register), not_attached,
    wrong_attach, in_use, bad_argument, field_not_kept, queue_full, limit, wrong_generation (a subscription was opened
    again, or another dead-letter worker has begun), settled, released (what became of an offset), not_given (an offset
    that was never given out), published (a chunk of a batch that is done), missing_part (not staged, or with other
    messages than said), refused_earlier (a message below the highest one taken of its producer, and not taken itself),
    not_checked_out (a settlement in a transaction names other messages, or some that another transaction settles),
    rolled_back (the transaction is not open, and was not committed), no_consumers (no consumer can take an immediate
    message at once)
    """

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The messages first..last were accepted, now or before.

    refused: (first, last, why) of ranges among them that were not accepted. That happens in an independent batch, or
    where other messages of the batch were accepted before; else the whole batch is refused.
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

    settled: the offset up to which all reservations are settled or released. last: the offset of the newest
    reservation. outstanding: the number of messages reserved in between.
    """

    generation: int
    settled: int
    last: int
    outstanding: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation. index: the Raft index that a replica must have applied to read it. size_bytes is estimated.

    offset == after: nothing was reserved, because no message matches (is_complete) or a budget ended the search.
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
    """The messages first_sequence .. first_sequence+count-1. Their bodies have `count` ordinals from `ordinal` on in
    the batch (index, operation). If one_each, they are the single messages of operations operation, operation+1, ..."""

    first_sequence: int
    count: int
    index: int
    operation: int
    ordinal: int
    one_each: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """Delivers the messages of `runs`, in that order, with consecutive delivery tags from first_tag on.

    redelivered: bit i set = i-th message was handed out before. delivery_counts: (i, failed deliveries) where not 0.
    settled: the messages are settled already, and no settle will follow (Get with settled).
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
    """event: "drained" (credit given back; value = next tag), "queue_deleted", "fenced", "active" or "inactive" (the
    consumer has become the single active one, or is it no more), "timed_out" (the messages up to tag `value` that the
    consumer held were requeued)."""

    address: Address
    queue: int
    consumer_tag: str
    attach: int
    event: Literal["drained", "queue_deleted", "fenced", "active", "inactive", "timed_out"]
    value: int = 0


@dataclass(frozen=True, slots=True)
class QueueExpired:
    """The queue was not used for `expires_ms`, and its group has deleted it. Every member tells its API so. The system
    group's leader removes it from the catalog."""

    queue: int


Effect = Deliver | Notify | QueueExpired


@dataclass(frozen=True, slots=True)
class Applied:
    """replies[i] answers the i-th operation of the entry; None for unnumbered operations that need none."""

    replies: tuple[Reply | None, ...]
    effects: tuple[Effect, ...]
