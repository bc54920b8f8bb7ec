"""The results of queries of a queue. They are not replicated."""

from __future__ import annotations

from fifo.commands import QueueConfig
from fifo.effects import Run
from fifo.frozen_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """Numbers of messages since the queue was declared.

    published = ready + checked out + delayed + dead + settled + expired + rejected + delivery_limit + maxlen + purged.
    returned: times that a message was requeued. redelivered: times that a message was handed out that had been before.
    dead_lettered: of those that have left, how many a dead-letter target has.
    """

    published: int
    settled: int
    expired: int
    rejected: int
    delivery_limit: int
    maxlen: int
    purged: int
    returned: int
    redelivered: int
    dead_lettered: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """The counts of a queue. total = ready + checked_out + delayed + dead.

    first_sequence: of the oldest message that is ready, checked out or delayed, next_sequence if there is none.
    ready_bytes: as the queue's limit on bytes counts them; without one, estimated block by block from the mean size of
    the messages published into it.
    ready_levels: (priority, number of its ready messages) where there are any, the highest first; none without
    priorities. held_groups: the message groups that consumers hold.
    dead: messages that wait for the dead-letter target. dead_letter_problem: why it does not take them; empty if it
    does, as far as is known.
    """

    ready: int
    checked_out: int
    delayed: int
    total: int
    consumers: int
    first_sequence: int
    next_sequence: int
    ready_bytes: int
    totals: QueueTotals
    ready_levels: tuple[tuple[int, int], ...] = ()
    held_groups: int = 0
    dead: int = 0
    dead_letter_problem: str = ""


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """Neighbouring dead messages with numbers, of one batch. number: of the first one. cause: of their death. time_ms:
    group time of the claim."""

    number: int
    run: Run
    cause: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class DeadWork:
    """What the dead-letter worker of a queue has to do. claimed: as many as were asked for, ascending by number; some
    numbers may be missing. waiting: dead messages without a number. epoch: of the last worker that has begun.
    inherited_to: the highest number that messages have got before it, 0 if none of these is left. producer: its
    session's, empty before the first one; no client may learn it."""

    config: QueueConfig
    claimed: tuple[ClaimedRun, ...]
    waiting: int
    epoch: int
    inherited_to: int
    producer: bytes
    problem: str


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    """A reservation. opens: the number of openings of its subscription while it was outstanding. size_bytes is
    estimated."""

    offset: int
    index: int
    count: int
    size_bytes: int
    opens: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A durable subscription. reservations: the outstanding ones, ascending. outstanding: the number of their
    messages."""

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
    """Neighbouring messages of a reservation. redelivered, delivery_counts: as in Deliver. opens: as in
    ReservationInfo. has_more: the page ends early, because it has visited the allowed number of blocks."""

    runs: tuple[Run, ...]
    redelivered: int
    delivery_counts: tuple[tuple[int, int], ...]
    opens: int
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class BrowsePage:
    """One page of the ready or delayed messages, by sequence. next_sequence: the start of the next page, None at the
    end. due_times_ms: one of each delayed message."""

    runs: tuple[Run, ...]
    next_sequence: int | None
    due_times_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction as one group has it.

    state: "open"; "prepared" while it waits for the decision of the group `record`; "committed" while the groups
    `unfinished` may not have finished it. since_ms: group time at which this state began. queues: ids, ascending.
    messages: published and settled ones. Of a committed transaction, queues, messages and bytes are not known any
    more."""

    producer: bytes
    tx: int
    state: str
    since_ms: int
    record: int = 0
    unfinished: tuple[int, ...] = ()
    queues: tuple[int, ...] = ()
    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """A part of a transaction that waits for the decision of the group `record`. ranges: of its messages."""

    producer: bytes
    tx: int
    record: int
    ranges: int


@dataclass(frozen=True, slots=True)
class DecidedTransaction:
    """A committed transaction that these groups may not have finished. ranges: of messages, at most, in each."""

    producer: bytes
    tx: int
    ranges: int
    groups: tuple[int, ...]
