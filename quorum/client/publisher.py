"""Publishes that are not yet confirmed or rejected (undecided).

Messages are numbered densely from 1 over all queues. An encoded batch is kept until all of its numbers are confirmed or
rejected. After a reconnect all kept batches are resent in order with the same numbers. The service drops those that it
has taken already, so every message is published once. A batch gets its numbers when it is admitted to the window. It
cannot be abandoned after that, so there are no gaps.

The service drops repeats for 24 hours after a stream has broken. A batch that is undecided for 23 hours is therefore
given up and never resent. It may be published or not; its future raises OutcomeUnknown.

The window holds at most `window_bytes` of encoded batches, and at most `max_window_messages` between the lowest
undecided number and the highest assigned one. Decided numbers in between count too, because the service remembers that
span. A batch that is larger than the whole window is admitted alone.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quorum.client.batch import PreparedBatch
from quorum.client.errors import (
    ClosedError,
    OutcomeUnknown,
    PublishRejected,
    QuorumError,
    ServiceError,
    TimedOut,
    UnavailableError,
    UsageError,
    from_status,
)
from quorum.client.tags import TagRanges, count_of
from quorum.v1 import queue_pb2

GIVEN_UP_AFTER_S = 23 * 3600.0
"""Seconds; one hour less than the service remembers the numbers it has taken."""


def boottime_s() -> float:
    """Monotonic seconds that include suspended time, if the system has such a clock: the service's day includes it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(slots=True)
class Limits:
    """Limits of a session, from Opened."""

    window_bytes: int = 8 * 1024 * 1024
    max_message_bytes: int = 16 * 1024 * 1024
    max_batch_messages: int = 65_536
    max_window_messages: int = 65_536
    max_batch_bytes: int = 18 * 1024 * 1024


@dataclass(slots=True)
class Pending:
    """One undecided batch. `open`: its undecided numbers; None, in the usual case, while all of them are undecided."""

    queue: str
    first: int
    last: int
    data: bytes
    confirmation: asyncio.Future[int]
    numbered_s: float
    open: TagRanges | None = None
    rejected: list[tuple[int, int]] = field(default_factory=list)
    refusal: QuorumError | None = None


@dataclass(slots=True)
class _Waiter:
    queue: str
    batch: PreparedBatch
    admitted: asyncio.Future[asyncio.Future[int]]


class Publisher:
    """Numbers batches, keeps them, and hands them to the stream. wake: called when there is something to send.
    clock_s: a monotonic clock, in seconds."""

    def __init__(self, wake: Callable[[], None], clock_s: Callable[[], float] = boottime_s) -> None:
        self._wake = wake
        self._clock_s = clock_s
        self._pending: dict[int, Pending] = {}  # by first number, ascending
        self._unsent: deque[Pending] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._next_number = 1
        self._bytes = 0
        self._failure: QuorumError | None = None
        self.limits = Limits()
        self.decided_batches = 0

    @property
    def unconfirmed_bytes(self) -> int:
        return self._bytes

    @property
    def is_idle(self) -> bool:
        """Whether no publish is undecided."""
        return not self._pending

    @property
    def first_new(self) -> int:
        """The lowest number that was never assigned, and so never sent."""
        return self._next_number

    @property
    def lowest_unconfirmed(self) -> int:
        """The number below which every publish is decided."""
        for pending in self._pending.values():
            return pending.first if pending.open is None else pending.open.ranges()[0][0]
        return self._next_number

    async def admit(self, queue: str, batch: PreparedBatch, timeout_ms: int | None) -> asyncio.Future[int]:
        """Wait for room in the window. Returns a future of the number of confirmed messages.

        If this wait is cancelled or raises TimedOut, the batch is not sent. Cancelling the future does not stop the
        batch, because by then it is numbered and will be sent.
        """
        if self._failure is not None:
            raise self._failure
        allowed = min(self.limits.max_batch_messages, self.limits.max_window_messages)
        if batch.count > allowed:
            raise UsageError(f"a batch of {batch.count} messages; allowed: {allowed}")
        size = len(batch.data)
        if size > self.limits.max_batch_bytes:  # every stream would refuse it
            raise UsageError(
                f"a batch of {size} bytes, properties included; allowed: {self.limits.max_batch_bytes}, and "
                f"{self.limits.max_message_bytes} for the body of one message"
            )
        if not self._waiters and self._has_room(batch):
            return self._take(queue, batch)
        admitted: asyncio.Future[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(queue, batch, admitted)
        self._waiters.append(waiter)
        try:
            await asyncio.wait({admitted}, timeout=None if timeout_ms is None else timeout_ms / 1000)
        finally:
            if not admitted.done():
                self._waiters.remove(waiter)
                self._admit_waiters()  # a smaller batch behind it may have room
        if not admitted.done():
            raise TimedOut(f"no room in the window for {timeout_ms} ms; nothing was sent to {queue!r}")
        return admitted.result()

    def next_request(self) -> Any:
        """The next batch to send, as a SessionRequest; None if all are sent."""
        while self._unsent:
            pending = self._unsent.popleft()
            if pending.first not in self._pending:  # decided while it waited to be resent
                continue
            return queue_pb2.SessionRequest(
                publish=queue_pb2.PublishBatch(
                    queue=pending.queue,
                    first_sequence=pending.first,
                    lowest_unconfirmed=self.lowest_unconfirmed,
                    batch=pending.data,
                )
            )
        return None

    def resend_all(self) -> None:
        """Resend all undecided batches in order on a new stream, except for those that are too old."""
        self.give_up_old()
        self._unsent = deque(self._pending.values())

    def give_up_old(self) -> None:
        """Fail batches that are undecided for GIVEN_UP_AFTER_S, because the service may soon forget them."""
        before_s = self._clock_s() - GIVEN_UP_AFTER_S
        while self._pending:
            pending = next(iter(self._pending.values()))
            if pending.numbered_s > before_s:
                return
            del self._pending[pending.first]
            self._bytes -= len(pending.data)
            error = OutcomeUnknown(
                f"{pending.last - pending.first + 1} messages to {pending.queue!r} were not answered for "
                f"{GIVEN_UP_AFTER_S / 3600:.0f} hours; they may be published or not, and are not sent again"
            )
            _fail(pending.confirmation, error)
            self._admit_waiters()

    def decide(self, confirms: Any) -> None:
        """Process a Confirms answer. Numbers that were decided before are ignored, because answers may repeat.

        A rejection with UNAVAILABLE decides nothing. It is raised and ends the stream, so that the same numbers are
        resent on the next one.
        """
        unavailable: QuorumError | None = None
        for given in confirms.confirmed:
            self._decide(given.first, given.last, None)
        for rejection in confirms.rejected:
            refusal = from_status(rejection.status)
            if isinstance(refusal, UnavailableError):
                unavailable = refusal
                continue
            self._decide(rejection.range.first, rejection.range.last, refusal)
        if self._waiters:
            self._admit_waiters()
        if unavailable is not None:
            raise unavailable

    def fail_all(self, error: QuorumError, *, for_good: bool) -> None:
        """Fail all undecided batches; with for_good, later publishes, too."""
        if for_good:
            self._failure = error
        given_up = list(self._pending.values())
        self._pending.clear()
        self._unsent.clear()
        self._bytes = 0
        for pending in given_up:
            _fail(pending.confirmation, error)
        if for_good:
            waiters, self._waiters = self._waiters, deque()
            for waiter in waiters:
                waiter.admitted.set_exception(error)
        else:
            self._admit_waiters()

    def restart_numbers(self) -> None:
        """Restart at 1 for a new producer identity. No publish may be undecided."""
        assert not self._pending
        self._next_number = 1

    # ---- inside

    def _has_room(self, batch: PreparedBatch) -> bool:
        if not self._pending:
            return True
        span = self._next_number + batch.count - self.lowest_unconfirmed
        return (
            self._bytes + len(batch.data) <= self.limits.window_bytes
            and span <= self.limits.max_window_messages
        )

    def _take(self, queue: str, batch: PreparedBatch) -> asyncio.Future[int]:
        confirmation: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        first = self._next_number
        self._next_number = first + batch.count
        pending = Pending(queue, first, self._next_number - 1, batch.data, confirmation, self._clock_s())
        self._pending[first] = pending
        self._unsent.append(pending)
        self._bytes += len(batch.data)
        self._wake()
        return confirmation

    def _admit_waiters(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if not self._has_room(waiter.batch):
                return
            self._waiters.popleft()
            waiter.admitted.set_result(self._take(waiter.queue, waiter.batch))

    def _decide(self, first: int, last: int, refusal: QuorumError | None) -> None:
        if last >= self._next_number or first < 1:
            raise ServiceError(
                f"the service answered for numbers {first}..{last}; sent so far: 1..{self._next_number - 1}"
            )
        place = first
        while place <= last and (pending := self._pending.get(place)) is not None:
            self._decide_part(pending, pending.first, min(last, pending.last), refusal)
            place = pending.last + 1
        if place > last:
            return
        firsts = list(self._pending)  # rare: the range begins inside a batch, or covers decided ones
        for number in firsts[max(0, bisect_right(firsts, place) - 1) :]:
            pending = self._pending[number]
            if pending.first > last:
                return
            if pending.last >= place:
                self._decide_part(pending, max(place, pending.first), min(last, pending.last), refusal)

    def _decide_part(self, pending: Pending, first: int, last: int, refusal: QuorumError | None) -> None:
        taken = [(first, last)]
        is_whole = first == pending.first and last == pending.last and pending.open is None
        if not is_whole:
            if pending.open is None:
                pending.open = TagRanges()
                pending.open.add(pending.first, pending.last)
            taken = pending.open.remove(first, last)
        if refusal is not None and taken:
            pending.refusal = pending.refusal or refusal
            pending.rejected.extend((a - pending.first, b - pending.first) for a, b in taken)
        if is_whole or not pending.open:
            self._finish(pending)

    def _finish(self, pending: Pending) -> None:
        del self._pending[pending.first]
        self._bytes -= len(pending.data)
        self.decided_batches += 1
        if pending.refusal is None:
            if not pending.confirmation.done():
                pending.confirmation.set_result(pending.last - pending.first + 1)
            return
        rejected = tuple(sorted(pending.rejected))
        refused, whole = count_of(list(rejected)), pending.last - pending.first + 1
        message = f"{refused} of {whole} messages to {pending.queue!r} were refused: {pending.refusal}"
        error = PublishRejected(
            message, reason=pending.refusal.reason, metadata=pending.refusal.metadata, rejected=rejected
        )
        error.__cause__ = pending.refusal
        _fail(pending.confirmation, error)


def _fail(confirmation: asyncio.Future[int], error: QuorumError) -> None:
    if not confirmation.done():
        confirmation.set_exception(error)
        if isinstance(error, ClosedError):
            confirmation.exception()  # the caller closed the client itself: no "never retrieved" in the log
