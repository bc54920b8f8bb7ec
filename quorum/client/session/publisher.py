"""Publishes that are not yet confirmed or rejected (undecided): batches of a caller, and gathered ones (gathering.py).

Messages are numbered densely from 1 over all queues. An encoded batch is kept until all of its numbers are confirmed or
rejected. After a reconnect all undecided messages are resent in order with the same numbers. The service drops those
that it has taken already, so every message is published once. A batch gets its numbers when it is admitted to the
window. It cannot be abandoned after that, so there are no gaps.

Decided messages are never resent, not even with their undecided neighbours: a queue that was full when it refused a
message may have room now, and would take it.

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
from typing import Any, Protocol

from quorum.client.answers import Answer
from quorum.client.errors import (
    OutcomeUnknown,
    PublishRejected,
    QuorumError,
    ServiceError,
    TimedOut,
    UnavailableError,
    UsageError,
    from_status,
    retrieved,
)
from quorum.client.messages.batch import Message, PreparedBatch, part_of
from quorum.client.messages.requests import looked_at
from quorum.client.messages.routes import Address, Route, Through, describe, range_count
from quorum.client.messages.tags import TagRanges, count_of
from quorum.client.session.gathering import Gathered, Gathering
from quorum.client.session.limits import Limits
from quorum.v1 import queue_pb2

MAX_ROUTED = 4_096
"""Messages of a batch with a queue for each of them, or for an exchange."""
GIVEN_UP_AFTER_S = 23 * 3600.0
"""Seconds; one hour less than the service remembers the numbers it has taken."""


def boottime_s() -> float:
    """Monotonic seconds that include suspended time, if the system has such a clock: the service's day includes it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Outcome(Protocol):
    """Who is told what becomes of a batch. Places count from 0 in the batch."""

    def decided(self, first: int, last: int, refusal: QuorumError | None) -> None:
        """The messages at these places, both included, are confirmed or refused."""

    def finished(self) -> None:
        """All messages are decided."""

    def failed(self, error: QuorumError) -> None:
        """No answer will come."""


@dataclass(slots=True)
class Confirmation:
    """The outcome of a caller's batch: one future for all of its messages."""

    queue: Route
    count: int
    future: asyncio.Future[int]
    rejected: list[tuple[int, int]] = field(default_factory=list)
    refusal: QuorumError | None = None

    def decided(self, first: int, last: int, refusal: QuorumError | None) -> None:
        if refusal is not None:
            self.refusal = self.refusal or refusal
            self.rejected.append((first, last))

    def finished(self) -> None:
        if self.refusal is None:
            if not self.future.done():
                self.future.set_result(self.count)
            return
        rejected = tuple(sorted(self.rejected))
        refused = (
            f"{count_of(list(rejected))} of {self.count} messages to {describe(self.queue)} were refused"
        )
        message = f"{refused}: {self.refusal}"
        error = PublishRejected(
            message, reason=self.refusal.reason, metadata=self.refusal.metadata, rejected=rejected
        )
        error.__cause__ = self.refusal
        self.failed(error)

    def failed(self, error: QuorumError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            retrieved(self.future, error)


@dataclass(slots=True)
class Pending:
    """One undecided batch. `open`: its undecided numbers; None, in the usual case, while all of them are undecided.
    sent_to: its highest number that the present stream was given; 0 if it was given none."""

    queue: Route
    first: int
    batch: PreparedBatch
    outcome: Outcome
    is_independent: bool
    numbered_s: float
    open: TagRanges | None = None
    sent_to: int = 0

    @property
    def last(self) -> int:
        return self.first + self.batch.count - 1

    @property
    def size_bytes(self) -> int:
        return len(self.batch.data)

    def next_part(self) -> tuple[int, bytes] | None:
        """The next neighbours among the undecided messages that the stream was not given: their first number, and a
        batch of them. None if there are none."""
        if self.open is None:
            if self.sent_to:
                return None
            self.sent_to = self.last
            return self.first, self.batch.data
        for first, last in self.open.ranges():
            if last > self.sent_to:
                self.sent_to = last
                return first, part_of(self.batch, first - self.first, last - first + 1).data
        return None


@dataclass(slots=True)
class _Waiter:
    """A caller's batch for which the window has no room yet."""

    queue: Route
    batch: PreparedBatch
    admitted: asyncio.Future[asyncio.Future[int]]

    @property
    def count(self) -> int:
        return self.batch.count

    @property
    def size_bytes(self) -> int:
        return len(self.batch.data)


class Publisher:
    """Numbers batches, keeps them, and hands them to the stream. wake: called when there is something to send.
    clock_s: a monotonic clock, in seconds. linger_s: see Gathering."""

    def __init__(
        self, wake: Callable[[], None], clock_s: Callable[[], float] = boottime_s, linger_s: float = 0.0
    ) -> None:
        self._wake = wake
        self._clock_s = clock_s
        self._pending: dict[int, Pending] = {}  # by first number, ascending
        self._unsent: deque[Pending] = deque()
        self._waiters: deque[_Waiter | Gathered] = deque()
        self.gathering = Gathering(self, linger_s)
        self._next_number = 1
        self._ranges: deque[tuple[int, int]] = deque()
        """(last number, ranges) of the batches from the lowest undecided number on, those that are decided too"""
        self._range_count = 0
        self._bytes = 0
        self._failure: QuorumError | None = None
        self.limits = Limits()
        self.decided_batches = 0

    @property
    def is_idle(self) -> bool:
        """Whether no publish is undecided."""
        return not self._pending and not self._waiters and self.gathering.is_idle

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

    async def admit(self, queue: Route, batch: PreparedBatch, timeout_ms: int | None) -> asyncio.Future[int]:
        """Wait for room in the window. Returns a future of the number of confirmed messages.

        If this wait raises TimedOut, the batch is not sent. If it is cancelled, the batch is not sent either, unless
        the window had room just before: then it is numbered, and will be sent. For the same reason cancelling the
        future does not stop the batch.
        """
        if self._failure is not None:
            raise self._failure
        self.check(queue, batch)
        size = len(batch.data)
        self.gathering.close_before(queue)  # the order of calls is the order of messages
        if not self._waiters and self._has_room(queue, batch.count, size):
            return self._take(queue, batch)
        admitted: asyncio.Future[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(queue, batch, admitted)
        self._waiters.append(waiter)
        try:
            await asyncio.wait({admitted}, timeout=None if timeout_ms is None else timeout_ms / 1000)
        except asyncio.CancelledError:
            if admitted.done() and admitted.exception() is None:
                # it will be sent, and nobody awaits its outcome
                admitted.result().add_done_callback(looked_at)
            raise
        finally:
            if not admitted.done():
                self._waiters.remove(waiter)
                self._admit_waiters()  # a smaller batch behind it may have room
        if not admitted.done():
            raise TimedOut(
                f"no room in the window for {timeout_ms} ms; nothing was sent to {describe(queue)}"
            )
        return admitted.result()

    def check(self, queue: Route, batch: PreparedBatch) -> None:
        """Raise UsageError if the batch can never be sent."""
        allowed = min(self.limits.max_batch_messages, self.limits.max_window_messages)
        if batch.count > allowed:
            raise UsageError(f"a batch of {batch.count} messages; allowed: {allowed}")
        size = len(batch.data)
        if size > self.limits.max_batch_bytes:  # every stream would refuse it
            raise UsageError(
                f"a batch of {size} bytes, properties included; allowed: {self.limits.max_batch_bytes}, and "
                f"{self.limits.max_message_bytes} for the body of one message"
            )
        _check_route(queue, batch.count)

    def publish(
        self, queue: Address, message: Message, timeout_ms: int, future: asyncio.Future[Any] | Answer
    ) -> None:
        """Gather a single message; see Gathering.publish. queue: or an exchange, with the message's routing key."""
        if self._failure is not None:
            raise self._failure
        self.gathering.publish(queue, message, timeout_ms / 1000, future)

    def admit_gathered(self, batch: Gathered) -> None:
        """Take a gathered batch as soon as the window has room."""
        if self._failure is not None:
            batch.failed(self._failure)
            return
        self._waiters.append(batch)
        self._admit_waiters()

    def next_request(self, max_bytes: int | None = None) -> Any:
        """The next batch, or part of one, to send, as a SessionRequest; None if all are sent, or if the next batch has
        more than max_bytes."""
        while self._unsent:
            pending = self._unsent[0]
            if max_bytes is not None and pending.size_bytes > max_bytes:
                return None
            part = pending.next_part() if pending.first in self._pending else None
            if part is None:  # all of it is sent, or was decided while it waited to be resent
                self._unsent.popleft()
                continue
            first, data = part
            publish = queue_pb2.PublishBatch(
                first_sequence=first,
                lowest_unconfirmed=self.lowest_unconfirmed,
                batch=data,
                independent=pending.is_independent,
            )
            place, count = first - pending.first, pending.sent_to + 1 - first
            route = pending.queue
            if isinstance(route, Through):
                publish.exchange, publish.mandatory = route.exchange, route.mandatory
                publish.immediate = route.immediate
            keys = route.keys if isinstance(route, Through) else route
            if isinstance(keys, str):
                publish.routing_key = keys
            else:
                publish.routing_keys.extend(keys[place : place + count])
            return queue_pb2.SessionRequest(publish=publish)
        return None

    def resend_all(self) -> None:
        """Resend all undecided messages in order on a new stream, except for those that are too old."""
        self.give_up_old()
        for pending in self._pending.values():
            pending.sent_to = 0
        self._unsent = deque(self._pending.values())

    def give_up_old(self) -> None:
        """Fail batches that are undecided for GIVEN_UP_AFTER_S, because the service may soon forget them."""
        before_s = self._clock_s() - GIVEN_UP_AFTER_S
        while self._pending:
            pending = next(iter(self._pending.values()))
            if pending.numbered_s > before_s:
                return
            del self._pending[pending.first]
            self._bytes -= pending.size_bytes
            error = OutcomeUnknown(
                f"{pending.batch.count} messages to {describe(pending.queue)} were not answered for "
                f"{GIVEN_UP_AFTER_S / 3600:.0f} hours; they may be published or not, and are not sent again"
            )
            pending.outcome.failed(error)
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

    def fail_all(self, error: QuorumError) -> None:
        """Fail all publishes, and all later ones."""
        self._failure = error
        self._fail_pending(error)
        self.gathering.close_all()
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if isinstance(waiter, _Waiter):
                waiter.admitted.set_exception(error)
            else:
                waiter.failed(error)

    def begin_again(self, error: QuorumError) -> None:
        """Fail what has a number, and restart the numbers at 1, for a new producer identity."""
        self._fail_pending(error)
        self._next_number = 1
        self._ranges.clear()
        self._range_count = 0
        self._admit_waiters()

    # ---- inside

    def _fail_pending(self, error: QuorumError) -> None:
        given_up = list(self._pending.values())
        self._pending.clear()
        self._unsent.clear()
        self._bytes = 0
        for pending in given_up:
            pending.outcome.failed(error)

    def _has_room(self, queue: Route, count: int, size_bytes: int) -> bool:
        lowest = self.lowest_unconfirmed
        while self._ranges and self._ranges[0][0] < lowest:
            self._range_count -= self._ranges.popleft()[1]
        if not self._pending:
            return True
        ranges = range_count(queue, count)
        span = self._next_number + count - lowest
        return (
            self._bytes + size_bytes <= self.limits.window_bytes
            and span <= self.limits.max_window_messages
            and self._range_count + ranges <= self.limits.max_window_ranges
        )

    def _take(self, queue: Route, batch: PreparedBatch) -> asyncio.Future[int]:
        confirmation: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._number(queue, batch, Confirmation(queue, batch.count, confirmation), is_independent=False)
        return confirmation

    def _number(self, queue: Route, batch: PreparedBatch, outcome: Outcome, *, is_independent: bool) -> None:
        first = self._next_number
        self._next_number = first + batch.count
        ranges = range_count(queue, batch.count)
        self._ranges.append((self._next_number - 1, ranges))
        self._range_count += ranges
        pending = Pending(queue, first, batch, outcome, is_independent, self._clock_s())
        self._pending[first] = pending
        self._unsent.append(pending)
        self._bytes += len(batch.data)
        self._wake()

    def _admit_waiters(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if not self._has_room(waiter.queue, waiter.count, waiter.size_bytes):
                return
            self._waiters.popleft()
            if isinstance(waiter, _Waiter):
                waiter.admitted.set_result(self._take(waiter.queue, waiter.batch))
            elif (batch := waiter.encode()) is not None:
                self._number(waiter.route, batch, waiter, is_independent=True)

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
        for a, b in taken:
            pending.outcome.decided(a - pending.first, b - pending.first, refusal)
        if is_whole or not pending.open:
            self._finish(pending)

    def _finish(self, pending: Pending) -> None:
        del self._pending[pending.first]
        self._bytes -= pending.size_bytes
        self.decided_batches += 1
        pending.outcome.finished()


def _check_route(route: Route, count: int) -> None:
    """Raise UsageError if a batch of so many messages cannot have this route."""
    keys, what = (route.keys, "routing keys") if isinstance(route, Through) else (route, "queues")
    if not isinstance(keys, str) and (len(keys) != count or count > MAX_ROUTED):
        raise UsageError(
            f"{len(keys)} {what} for {count} messages; give one for all, or one each of at most {MAX_ROUTED}"
        )
    if isinstance(route, Through) and route.exchange and count > MAX_ROUTED:
        raise UsageError(f"a batch of {count} messages for an exchange; allowed: {MAX_ROUTED}")
