"""The outcomes that a session sends to its client, independent of the protocol, and the outbox in which they wait.

Neighbouring confirms are merged into ranges, and so are neighbouring refusals for the same reason. Deliveries wait as
references: their bodies are read immediately before they are sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from fifo.effects import Deliver
from fifo.frozen_dataclasses import dataclass
from quorum.api.hub.deliveries import DeliveredBatch
from quorum.api.status import Status

RECORD_BYTES = 64
"""Approximate bytes of an outcome on the wire, without its texts and ranges."""
RANGE_BYTES = 16
"""Approximate bytes of a range."""

DELIVERY_BYTES = 256
"""Approximate memory of a delivery that waits, without its runs."""
RUN_BYTES = 160
"""Approximate memory of a run of a delivery that waits, and of a message's count of failed deliveries."""

CONFIRMS_ROWS = 1_000
"""Ranges of confirmed messages, and rejections, of one Confirms: some milliseconds."""
CONFIRMS_BYTES = 1 << 20
"""Of the rejections of one Confirms: one more may come on top."""


class Span(NamedTuple):
    """A range of numbers, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """Messages whose refusal is final."""

    span: Span
    why: Status


@dataclass(frozen=True, slots=True)
class Confirms:
    """Decided messages, by client sequence. confirmed: ascending; neighbouring ranges are merged."""

    confirmed: tuple[Span, ...]
    rejected: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Requests that were executed."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that was refused."""

    request_id: int
    why: Status


@dataclass(frozen=True, slots=True)
class Attached:
    """A consumer was attached. attach: the Raft index of the attachment; deliveries and settlements contain it."""

    request_id: int
    consumer_tag: str
    attach: int


@dataclass(frozen=True, slots=True)
class Drained:
    """A consumer's credit was given back. next_tag: the delivery tag of its next delivery."""

    consumer_tag: str
    next_tag: int


@dataclass(frozen=True, slots=True)
class ActiveChanged:
    """A consumer has become the single active one of its queue, or is it no more."""

    consumer_tag: str
    attach: int
    is_active: bool


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The messages up to this tag that a consumer held were requeued, because it has held them for too long."""

    consumer_tag: str
    attach: int
    last_tag: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The service has ended a consumer."""

    consumer_tag: str
    why: Status


Queued = Failed | Attached | Drained | ActiveChanged | TimedOut | Cancelled
Outcome = Confirms | Done | Queued | DeliveredBatch
"""Done also waits in the queue if a TimedOut does: it may answer a settlement that came after the timeout, and the
client has to hear of that first."""


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A delivery whose bodies are not read yet. request_id: the get that it answers; 0 for a consumer's delivery."""

    group: int
    deliver: Deliver
    request_id: int

    @property
    def size_bytes(self) -> int:
        """Approximate memory while it waits."""
        deliver = self.deliver
        rows = len(deliver.runs) + len(deliver.delivery_counts)
        return DELIVERY_BYTES + RUN_BYTES * rows + deliver.redelivered.bit_length() // 8


class Outbox:
    """Outcomes that wait to be sent."""

    def __init__(self) -> None:
        self._confirmed: list[Span] = []
        self._rejected: list[Rejection] = []
        self._done: list[int] = []
        self._queue: deque[Queued | Done | PendingDelivery] = deque()
        self._timed_out = 0
        """the number of TimedOut in the queue"""
        self.size_bytes = 0
        """approximate bytes of the waiting outcomes, without confirmed ranges, Done and deliveries"""

    def __len__(self) -> int:
        return len(self._confirmed) + len(self._rejected) + len(self._done) + len(self._queue)

    @property
    def has_decisions(self) -> bool:
        """Whether a confirm or rejection of messages waits to be sent to the producer."""
        return bool(self._confirmed or self._rejected)

    @property
    def is_owed(self) -> bool:
        """Whether outcomes wait that have to be sent before the session ends."""
        return bool(self._confirmed or self._rejected or self._queue)

    def confirm(self, first: int, last: int) -> None:
        if self._confirmed and self._confirmed[-1].last == first - 1:
            first = self._confirmed.pop().first
        self._confirmed.append(Span(first, last))

    def reject(self, first: int, last: int, why: Status) -> None:
        if self._rejected:
            before = self._rejected[-1]
            if before.span.last == first - 1 and before.why == why:
                self._rejected[-1] = Rejection(Span(before.span.first, last), before.why)
                return
        rejection = Rejection(Span(first, last), why)
        self.size_bytes += _size(rejection)
        self._rejected.append(rejection)

    def done(self, request_id: int) -> None:
        """request_id: 0 if the client wants no answer."""
        if request_id and self._timed_out:
            self._queue.append(Done((request_id,)))
        elif request_id:
            self._done.append(request_id)

    def add(self, outcome: Queued) -> None:
        self.size_bytes += _size(outcome)
        self._timed_out += isinstance(outcome, TimedOut)
        self._queue.append(outcome)

    def deliver(self, delivery: PendingDelivery) -> None:
        self._queue.append(delivery)

    def drop_deliveries(self) -> None:
        self._queue = deque(item for item in self._queue if not isinstance(item, PendingDelivery))

    def take(self) -> Iterator[Outcome | PendingDelivery]:
        """Yield and remove the outcomes that wait, and those that are added meanwhile. A Confirms precedes
        each other outcome if decisions wait."""
        while self._confirmed or self._rejected or self._done or self._queue:
            if self._confirmed or self._rejected:
                yield self._take_confirms()
            if self._done:
                done, self._done = self._done, []
                yield Done(tuple(done))
            if self._queue:
                item = self._queue.popleft()
                self._timed_out -= isinstance(item, TimedOut)
                if not isinstance(item, (PendingDelivery, Done)):
                    self.size_bytes -= _size(item)
                yield item

    def _take_confirms(self) -> Confirms:
        rejections = size = 0
        for rejection in islice(self._rejected, CONFIRMS_ROWS):
            if size > CONFIRMS_BYTES:
                break
            size += _size(rejection)
            rejections += 1
        taken = Confirms(tuple(merged(self._confirmed[:CONFIRMS_ROWS])), tuple(self._rejected[:rejections]))
        del self._confirmed[:CONFIRMS_ROWS], self._rejected[:rejections]
        self.size_bytes -= size
        return taken


def merged(spans: list[Span]) -> Iterator[Span]:
    """Yield the same numbers in ascending order, with adjacent spans merged. spans: without overlaps."""
    if not spans:
        return
    ordered = iter(sorted(spans))
    first, last = next(ordered)
    for span in ordered:
        if span.first == last + 1:
            last = span.last
        else:
            yield Span(first, last)
            first, last = span
    yield Span(first, last)


def weigh(outcome: Outcome) -> tuple[int, int]:
    """What an outcome is on the wire: the number of its records, and approximate bytes. Its ranges and refusals are
    records, and most outcomes are one more."""
    if isinstance(outcome, DeliveredBatch):
        ranges = len(outcome.sequences) + len(outcome.redelivered) + len(outcome.delivery_counts)
        size = RECORD_BYTES + len(outcome.consumer_tag) + RANGE_BYTES * ranges + len(outcome.batch)
        return 1 + ranges, size
    if isinstance(outcome, Confirms):
        records = len(outcome.confirmed) + len(outcome.rejected)
        return records, RANGE_BYTES * len(outcome.confirmed) + sum(map(_size, outcome.rejected))
    if isinstance(outcome, Done):
        return 1, RANGE_BYTES * len(outcome.request_ids)
    return 1, _size(outcome)


def _size(outcome: Queued | Rejection) -> int:
    if isinstance(outcome, Attached | Drained | ActiveChanged | TimedOut):
        return RECORD_BYTES + len(outcome.consumer_tag)
    tag = len(outcome.consumer_tag) if isinstance(outcome, Cancelled) else 0
    return RECORD_BYTES + tag + outcome.why.size_bytes
