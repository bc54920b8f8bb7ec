"""A consumer: its deliveries, its credit, and its attachments over several streams. delivery.py covers the messages
that it holds and settles."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, Generic, Protocol, Self, TypeVar

from quorum.client.errors import ClosedError, QuorumError, UsageError
from quorum.client.messages.delivery import DeliveredMessage, Delivery, Holder, Link
from quorum.client.messages.routes import check_name
from quorum.client.values import require_flag, require_selector, require_timeout, require_whole
from quorum.v1 import queue_pb2

T = TypeVar("T", bound=DeliveredMessage | Delivery)

MAX_COUNT = (1 << 32) - 1
"""Messages that one get or one prefetch may name."""
MAX_PRIORITY = 10
"""The highest priority; the lowest is its negative."""


class Attaching(Protocol):
    """The part of the session that a consumer needs."""

    @property
    def stream(self) -> Link: ...

    async def attach(self, consumer: Consumer) -> None: ...

    def attach_again(self, consumer: Consumer) -> None: ...

    def abandon(self, consumer: Consumer, error: QuorumError) -> None: ...

    async def cancel(self, consumer: Consumer, requeue: bool, timeout_ms: int | None) -> None: ...

    def cancel_soon(self, consumer: Consumer) -> None: ...

    async def drain(self, consumer: Consumer) -> None: ...


@dataclass(slots=True)
class ConsumerOptions:
    selector: str | None = None
    property_filter: Any = None
    prefetch: int = 1000
    auto_settle: bool = False
    timeout_ms: int | None = None
    priority: int = 0
    has_made_tag: bool = False
    """The client has made the tag, so it says nothing to the caller."""


@dataclass(slots=True)
class _State:
    """is_timed_out: the service has taken the held messages back, and gives none before the consumer is attached again.
    is_drained: no more deliveries will arrive; held messages may still be settled. is_ended: the same, and the
    service has removed the consumer or soon will; `error` is the cause, None if the caller asked for it."""

    was_started: bool = False
    is_timed_out: bool = False
    is_draining: bool = False
    is_drained: bool = False
    is_ended: bool = False
    error: QuorumError | None = None


class Consumer(Holder):
    """The messages of one queue: `async for message in consumer`, or `async for delivery in consumer.deliveries()` for
    whole batches. The consumer attaches by `await consumer`, `async with`, or the first iteration.

    With auto_settle, a message or batch is settled when the same iteration is asked for the next one. The last one
    before a `break`, a `return` or an exception is not settled, because nothing shows that the caller is done with it.

    An iteration that is broken off, or whose wait is cancelled, loses nothing: the next iteration, or `next_delivery`,
    continues where it ended.
    """

    def __init__(
        self, attachments: Attaching, queue: str, consumer_tag: str, options: ConsumerOptions
    ) -> None:
        super().__init__(attachments.stream, queue, consumer_tag)
        self._attachments = attachments
        check_name(queue)
        require_whole("prefetch", options.prefetch, 1, MAX_COUNT)
        require_whole("priority", options.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if options.selector is not None:
            require_selector(options.selector)
        if options.selector is not None and options.property_filter is not None:
            raise UsageError("a consumer has a selector or a property filter, not both")
        self.options = options
        self.is_active = False
        """Whether it is the active consumer of a queue with x-single-active-consumer."""
        self._arrived: deque[Delivery] = deque()
        self._begun: tuple[Delivery, int] | None = None
        """a delivery that iterations have given a part of, and the place of its next message"""
        self._signal = asyncio.Event()
        self._waiting = 0
        self._state = _State()
        self._disposed_count = 0
        self._credit_sent = options.prefetch
        self._last_tag = 0
        self._given_to = 0
        """the highest tag of this attachment that the caller was given"""
        self._attach_request_id = 0
        """of the newest request to attach it"""

    # ---- life

    async def start(self) -> Consumer:
        """Attach the consumer; raise the service's refusal. No effect if it is attached already. A caller that is
        cancelled meanwhile may have no other way to end the consumer, so that ends it."""
        try:
            await self._start()
        except asyncio.CancelledError:
            self._attachments.abandon(self, ClosedError(f"{self} was cancelled while it was being attached"))
            raise
        return self

    async def _start(self) -> None:
        if not self._state.was_started:
            self._state.was_started = True
            try:
                await self._attachments.attach(self)
            except QuorumError:
                self._state.was_started = self._state.is_ended  # else the next call would wait for ever
                raise
        if self._state.error is not None:
            raise self._state.error

    def __await__(self) -> Any:
        return self.start().__await__()

    async def __aenter__(self) -> Consumer:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """A task that is cancelled ends at once, also if no leader answers."""
        if self._state.is_ended:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self._attachments.cancel_soon(self)
        else:
            await self.cancel()

    async def cancel(self, *, requeue: bool = True, timeout_ms: int | None = None) -> None:
        """End deliveries. Held messages are returned to the queue; if not requeue, they may still be settled."""
        require_flag("requeue", requeue)
        if timeout_ms is not None:
            require_timeout("timeout_ms", timeout_ms, may_be_over=True)
        if self._state.is_ended or not self._state.was_started:
            self.end(None)
            return
        await self._attachments.cancel(self, requeue, timeout_ms)

    async def drain(self) -> None:
        """Take the messages that are ready now, within the credit; iteration ends after them. Credit is not
        refilled."""
        await self._start()
        self._state.is_draining = True
        await self._attachments.drain(self)

    async def drain_more(self, count: int) -> None:
        """As `drain`, after another drain whose messages were iterated, for up to `count` further messages."""
        self.options.prefetch = count  # of a new attachment, if the stream ends meanwhile
        self._credit_sent = self._last_tag + count  # the service has voided the rest of the credit before
        self._state.is_drained = False
        await self.drain()

    # ---- deliveries

    async def next_delivery(self) -> Delivery | None:
        """The next batch; None when the consumer has ended. Raises the cause if the service ended it."""
        found = await self._next()
        if found is None:
            return None
        delivery, place = found
        return delivery.rest(place)

    async def _next_message(self) -> DeliveredMessage | None:
        found = self._begun
        if found is None or found[0].is_void:
            found = await self._next()
            if found is None:
                return None
        delivery, place = found
        self._begun = (delivery, place + 1) if place + 1 < delivery.count else None
        return DeliveredMessage(delivery, place)

    async def _next(self) -> tuple[Delivery, int] | None:
        """Take the next batch, and the place of the first message in it that the caller was not given."""
        await self._start()
        while True:
            begun, self._begun = self._begun, None
            if begun is not None and not begun[0].is_void:
                return begun
            while self._arrived:
                delivery = self._arrived.popleft()
                if not delivery.is_void:
                    self._given_to = delivery.last_tag
                    return delivery, 0
            if self._state.error is not None:
                raise self._state.error
            if self._state.is_ended or self._state.is_drained:
                return None
            if self._state.is_timed_out:
                self._state.is_timed_out = False
                self._attachments.attach_again(self)
            self._signal.clear()
            self._waiting += 1
            if self._is_starved():
                self._link.dirty(self)
            try:
                await self._signal.wait()
            finally:
                self._waiting -= 1

    def deliveries(self) -> AsyncIterator[Delivery]:
        """Whole batches, in order."""
        return _Iteration(self, self.next_delivery)

    def __aiter__(self) -> AsyncIterator[DeliveredMessage]:
        return _Iteration(self, self._next_message)

    # ---- settling by tag

    async def settle_ranges(self, ranges: Iterable[tuple[int, int]], *, wait: bool = False) -> int:
        """Settle inclusive ranges of tags of the present attachment. Returns the number that were still held.

        Tags begin at 1 again after a reconnect. So a tag that the caller was not given yet is not settled: the caller
        means a message of the attachment before.
        """
        try:
            tags = [(index(first), min(index(last), self._given_to)) for first, last in ranges]
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"delivery tags are given as (first, last), two whole numbers: {error}"
            ) from None
        return await self._settle_tags(tags, wait)

    async def settle_up_to(self, tag: int, *, wait: bool = False) -> int:
        """Settle every held tag up to this one. Returns their number."""
        return await self.settle_ranges([(1, tag)], wait=wait)

    # ---- for the connection

    @property
    def is_ended(self) -> bool:
        return self._state.is_ended

    @property
    def wants_drain(self) -> bool:
        """Whether a drain was requested and is not answered yet."""
        return self._state.is_draining and not self._state.is_drained

    @property
    def is_drained(self) -> bool:
        return self._state.is_drained

    def next_request(self) -> Any:
        request = super().next_request()
        if request is None and self.attach and (credit_to := self._credit_due()):
            credit = queue_pb2.Credit(consumer_tag=self.consumer_tag, credit_to=credit_to)
            request = queue_pb2.SessionRequest(credit=credit)
        return request

    def drain_request(self, request_id: int) -> Any:
        return queue_pb2.Credit(
            request_id=request_id, consumer_tag=self.consumer_tag, credit_to=self._credit_sent, drain=True
        )

    def attach_request(self, request_id: int) -> Any:
        """Begin a new attachment: tags and credit start again."""
        self._attach_request_id = request_id
        self._state.is_timed_out = False
        self._disposed_count = self._last_tag = 0
        self._credit_sent = self.options.prefetch
        request = queue_pb2.Attach(
            request_id=request_id,
            consumer_tag=self.consumer_tag,
            queue=self.queue,
            credit_to=self._credit_sent,
            priority=self.options.priority,
        )
        if self.options.selector is not None:
            request.selector = self.options.selector
        elif self.options.property_filter is not None:
            request.property_filter.CopyFrom(self.options.property_filter)
        return request

    def attached(self, wire: Any) -> None:
        """The attachment has begun, unless the answer is to an earlier request, or to a consumer that had this tag
        before. Its deliveries follow; those of any other attachment are not taken."""
        if wire.request_id == self._attach_request_id:
            self.attach = wire.attach

    def receive(self, wire: Any) -> Delivery:
        delivery = super().receive(wire)
        self._last_tag = delivery.last_tag
        self._arrived.append(delivery)
        self._signal.set()
        return delivery

    def void(self) -> None:
        super().void()
        self.is_active = False
        self._arrived.clear()
        self._begun = None
        self._given_to = 0

    def timed_out(self, attach: int, last_tag: int) -> None:
        """The caller has held messages for longer than the queue's x-consumer-timeout: all held messages are void. The
        consumer is attached again when the caller asks for a delivery, because that shows that it has not stopped.
        last_tag: disposals of tags up to it that are not answered yet have come too late. Further messages of the same
        attachment may time out later."""
        self.too_late_to(attach, last_tag)
        if attach != self.attach:
            return
        self.void()
        self._state.is_timed_out = True
        self._signal.set()

    def end(self, error: QuorumError | None) -> None:
        """Record that no more deliveries will arrive. The first error is kept."""
        if not self._state.is_ended:
            self._state.is_ended = True
            self._state.error = error
        self._signal.set()

    def drained(self) -> None:
        """Record that the service has given back the rest of the credit."""
        self._state.is_drained = True
        self._signal.set()

    # ---- inside

    def _disposed(self, count: int) -> None:
        self._disposed_count += count

    def _is_starved(self) -> bool:
        """Whether the caller waits while the service has no credit left to send."""
        return self._waiting > 0 and self._last_tag >= self._credit_sent

    def _credit_due(self) -> int:
        if self._state.is_draining or self._state.is_ended:
            return 0  # unchanged
        due, step = self._disposed_count + self.options.prefetch, max(1, self.options.prefetch // 2)
        if self._is_starved():  # for ever, if an open transaction has to settle more than the prefetch
            due, step = due + self.in_transactions, 1
        if due - self._credit_sent < step:
            return 0
        self._credit_sent = due
        return due


class _Iteration(Generic[T]):
    """One `async for`. The consumer keeps the position, so a cancelled wait or a `break` loses nothing."""

    __slots__ = ("_consumer", "_last", "_next")

    def __init__(self, consumer: Consumer, next_item: Callable[[], Awaitable[T | None]]) -> None:
        self._consumer = consumer
        self._next: Callable[[], Awaitable[T | None]] = next_item
        self._last: T | None = None
        """what is settled when the next item is requested"""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        last, self._last = self._last, None
        if last is not None:
            await self._consumer.settle_if_held(last)
        item = await self._next()
        if item is None:
            raise StopAsyncIteration
        if self._consumer.options.auto_settle:
            self._last = item
        return item

    async def aclose(self) -> None:
        """For contextlib.aclosing. There is nothing to release."""
