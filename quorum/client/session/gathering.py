"""Gathers single messages into batches.

`publish` puts a message into the open batch of its queue. If no gathered batch of the queue is under way, the open
batch leaves as soon as the event loop has run the tasks that are ready, with what they have published. Otherwise it
gathers until the batch under way is decided, or until it is full. So a lone message waits for nothing, and under load a
batch holds what was published during one round trip. Messages for an exchange are gathered in the same way, whatever
their routing keys.

With a linger time, the open batch also waits until this time has passed since the queue's last batch left. So a message
waits only if others of its queue left just before.

An answer wakes tasks, and most of them publish again. So the next batch closes after these tasks have run.

Each message has its own outcome: the batches are independent (queue_pb2.PublishBatch).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any, Protocol

from quorum.client.answers import Answer
from quorum.client.errors import PublishRejected, PublishUnknown, QuorumError, TimedOut, UsageError, retrieved
from quorum.client.messages.batch import Message, PreparedBatch, body_of, encode_parts
from quorum.client.messages.requests import looked_at
from quorum.client.messages.routes import IMMEDIATE, Address, Route, Through, describe
from quorum.client.session.limits import Limits
from quorum.client.values import encode_properties

MAX_MESSAGES = 4_096
"""Maximum messages of a gathered batch. The service allows no more in a batch of independent messages."""
MAX_BYTES = 1 << 20
"""Approximate maximum size of a gathered batch: that of an entry of a group's log."""
ALONE_BYTES = 256 << 10
"""A message of this size is a batch by itself."""
MESSAGE_BYTES = 8
"""Approximate bytes of a message in a batch, without its body and properties."""
BATCH_BYTES = 64
"""Bytes of a batch without its messages, rounded up."""


class Window(Protocol):
    """Where closed batches go (publisher.Publisher)."""

    @property
    def limits(self) -> Limits: ...

    def admit_gathered(self, batch: Gathered) -> None: ...


class Gathered:
    """A batch of single messages, and the futures of their outcomes (publisher.Outcome).

    A caller may stop waiting before the batch is numbered. Then the batch is sent without its message.
    """

    __slots__ = (
        "_bodies",
        "_deadlines",
        "_described",
        "_futures",
        "_gathering",
        "_keys",
        "_timer",
        "is_sent",
        "queue",
        "size_bytes",
    )

    def __init__(self, gathering: Gathering, queue: Address) -> None:
        self.queue = queue
        self.size_bytes = 0
        """its approximate encoded size"""
        self.is_sent = False
        """it is numbered: all its messages will be sent"""
        self._gathering = gathering
        self._bodies: list[bytes] = []
        self._described: list[Any] = []
        self._futures: list[asyncio.Future[Any] | Answer] = []
        self._deadlines: list[float] = []
        self._keys: list[str] = []
        """the routing keys of messages for an exchange"""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        return len(self._bodies)

    @property
    def route(self) -> Route:
        """Where the messages go, once they are encoded."""
        if isinstance(self.queue, str):
            return self.queue
        keys = self._keys[0] if len(dict.fromkeys(self._keys)) == 1 else tuple(self._keys)
        return replace(self.queue, keys=keys)

    def add(
        self,
        body: bytes,
        properties: Any,
        size: int,
        deadline: float,
        future: asyncio.Future[Any] | Answer,
        key: str | None = None,
    ) -> None:
        """properties: a queue_pb2.Properties, or None. deadline: by the loop's clock. future: of its outcome. key: the
        routing key of a message for an exchange."""
        self._bodies.append(body)
        if key is not None:
            self._keys.append(key)
        self._described.append(properties)
        self._futures.append(future)
        self._deadlines.append(deadline)
        self.size_bytes += size
        if self._timer is None or deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    # ---- on its way (publisher.Outcome)

    def encode(self) -> PreparedBatch | None:
        """The batch as it is sent, without the messages that nobody waits for any more; None if none are left."""
        self.is_sent = True
        left = [place for place, future in enumerate(self._futures) if not future.done()]
        if len(left) < len(self._futures):
            self._bodies = [self._bodies[place] for place in left]
            self._described = [self._described[place] for place in left]
            self._futures = [self._futures[place] for place in left]
            self._deadlines = [self._deadlines[place] for place in left]
            if self._keys:
                self._keys = [self._keys[place] for place in left]
        if not left:
            self.finished()
            return None
        batch = encode_parts(self._bodies, self._described)
        self._bodies, self._described = [], []
        return batch

    def decided(self, first: int, last: int, refusal: QuorumError | None) -> None:
        """The messages at these places are confirmed, or refused."""
        for future in self._futures[first : last + 1]:
            if future.done():
                continue
            if refusal is None:
                future.set_result(1)
            else:
                error = PublishRejected(
                    f"the message to {describe(self.queue)} was refused: {refusal}",
                    reason=refusal.reason,
                    metadata=refusal.metadata,
                    rejected=((0, 0),),
                )
                error.__cause__ = refusal
                future.set_exception(error)

    def finished(self) -> None:
        """All messages are decided."""
        if self._timer is not None:
            self._timer.cancel()
        self._gathering.finished(self)

    def failed(self, error: QuorumError) -> None:
        """No answer will come."""
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
                if isinstance(future, asyncio.Future):
                    retrieved(future, error)
        self.finished()

    # ---- inside

    def _expire(self) -> None:
        """Tells the callers whose time is up."""
        loop = asyncio.get_running_loop()
        now, following = loop.time(), None
        for place, (future, deadline) in enumerate(zip(self._futures, self._deadlines, strict=True)):
            if future.done():
                continue
            if deadline > now:
                following = deadline if following is None else min(following, deadline)
            elif self.is_sent:
                self._futures[place] = later = loop.create_future()
                later.add_done_callback(looked_at)  # the caller need not await it
                self._deadlines[place] = float("inf")
                text = f"publishing to {describe(self.queue)} was not confirmed in time; it may still be confirmed"
                future.set_exception(PublishUnknown(text, later))
            else:
                future.set_exception(
                    TimedOut(f"not sent in time; nothing was sent to {describe(self.queue)}")
                )
        self._timer = None if following in (None, float("inf")) else loop.call_at(following, self._expire)


class Gathering:
    """The open batches of a session."""

    def __init__(self, window: Window, linger_s: float = 0.0) -> None:
        self._window = window
        self._linger_s = linger_s
        self._open: dict[Address, Gathered] = {}
        self._under_way: Counter[Address] = Counter()
        """by queue or exchange: closed batches that are not decided"""
        self._flushing: set[Address] = set()
        """queues and exchanges whose open batch closes soon"""
        self._lingering: dict[Address, asyncio.TimerHandle] = {}
        """queues and exchanges whose last batch has just left; the timer ends this"""
        self._has_immediate = False
        """whether there were immediate messages for queues"""

    @property
    def is_idle(self) -> bool:
        return not self._open

    def publish(
        self, queue: Address, message: Message, timeout_s: float, future: asyncio.Future[Any] | Answer
    ) -> None:
        """Gather a message. The future is set to its outcome: a result if it was confirmed, PublishRejected if it was
        refused, TimedOut if it was not sent in time, PublishUnknown if it was sent and not answered in time. A message
        whose future is cancelled before it is sent is not sent. Raises UsageError if the message is too large. queue:
        or an exchange, with the message's routing key."""
        body = body_of(message)
        described = encode_properties(message.properties, message.application_properties)
        size = len(body) + MESSAGE_BYTES + (0 if described is None else described.ByteSize())
        limits = self._window.limits
        if size + BATCH_BYTES > limits.max_batch_bytes:  # every stream would refuse it
            size = len(encode_parts([body], [described]).data)
            if size > limits.max_batch_bytes:
                raise UsageError(
                    f"a message of {size} bytes, properties included; allowed: {limits.max_batch_bytes}, and "
                    f"{limits.max_message_bytes} for its body"
                )
        key = None
        if isinstance(queue, Through):
            assert isinstance(queue.keys, str)
            key, queue = queue.keys, queue.address
            self._close_others(key, queue)
            size += len(key)
        elif self._has_immediate:
            self.close(IMMEDIATE)  # it may be for this queue
        batch = self._open.get(queue)
        most = min(MAX_BYTES, limits.max_batch_bytes - BATCH_BYTES)
        if batch is not None and (size >= ALONE_BYTES or batch.size_bytes + size > most):
            self.close(queue)
            batch = None
        if batch is None:
            batch = self._open[queue] = Gathered(self, queue)
            if not self._waits(queue):
                self._close_soon(queue)
        batch.add(body, described, size, asyncio.get_running_loop().time() + timeout_s, future, key)
        if size >= ALONE_BYTES or batch.count >= min(MAX_MESSAGES, limits.max_batch_messages):
            self.close(queue)

    def _close_others(self, key: str, queue: Through) -> None:
        """Close the open batches with messages that may be for the same queues, so that the order is kept."""
        if queue.exchange:
            for mandatory, immediate in itertools.product((False, True), repeat=2):
                other = Through(queue.exchange, "", mandatory, immediate)
                if other != queue:
                    self.close(other)
        else:
            self._has_immediate = True
            self.close(key)

    def close(self, queue: Address) -> None:
        """Send the open batch of this queue, if there is one."""
        batch = self._open.pop(queue, None)
        if batch is not None:
            self._under_way[queue] += 1
            self._linger(queue)
            self._window.admit_gathered(batch)

    def close_before(self, route: Route) -> None:
        """Send the open batches that may have messages for the same queues as a batch that the caller sends by this
        route. An exchange may route to any queue."""
        names = {route} if isinstance(route, str) else route
        for address in list(self._open):
            if isinstance(names, Through) or isinstance(address, Through) or address in names:
                self.close(address)

    def close_all(self) -> None:
        for queue in list(self._open):
            self.close(queue)

    def finished(self, batch: Gathered) -> None:
        """A closed batch is decided, or given up."""
        queue = batch.queue
        self._under_way[queue] -= 1
        if not self._under_way[queue]:
            del self._under_way[queue]
            if not self._waits(queue):
                self._close_soon(queue)

    def _close_soon(self, queue: Address) -> None:
        """Close the open batch after the loop has run what is ready now."""
        if queue not in self._flushing:
            self._flushing.add(queue)
            asyncio.get_running_loop().call_soon(self._flush, queue)

    def _flush(self, queue: Address) -> None:
        self._flushing.discard(queue)
        if not self._waits(queue):  # else it was full already, and another one is open
            self.close(queue)

    def _waits(self, queue: Address) -> bool:
        """Whether the queue's open batch gathers for longer than the tasks that are ready."""
        return self._under_way[queue] > 0 or queue in self._lingering

    def _linger(self, queue: Address) -> None:
        """A batch of this queue leaves."""
        if self._linger_s:
            if queue in self._lingering:  # the batch was full, or had to leave before another one
                self._lingering[queue].cancel()
            loop = asyncio.get_running_loop()
            self._lingering[queue] = loop.call_later(self._linger_s, self._end_linger, queue)

    def _end_linger(self, queue: Address) -> None:
        del self._lingering[queue]
        if not self._waits(queue):
            self.close(queue)
