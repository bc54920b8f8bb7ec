"""Deliveries and their settlement.

A consumer is attached again on every new stream. Its tags then start at 1, and the messages it held before are void:
they are ready in the queue again and are redelivered. A `Delivery` remembers its attachment. Settling a void *message*
raises VoidDelivery; settling a void *batch* returns False. In both cases nothing is sent.

Credit is absolute: the service may send deliveries up to tag (settled so far + prefetch), so the client never holds
more than `prefetch` messages. The client raises credit in steps of half the prefetch, inside dispositions. It uses
smaller steps only when the service has no credit left and the caller waits. What a transaction settles counts once it
is committed, and earlier only if the caller waits.

Dispositions are collected until the stream can take one, and adjacent tags are merged. A caller that settles message by
message therefore costs the service one operation per write, not per message. `wait=True` returns when the settlement is
committed. Without it, a settlement that is lost with the connection shows as a redelivery.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from quorum.client.errors import UsageError, VoidDelivery
from quorum.client.messages.batch import BatchReader, PreparedBatch, part_of
from quorum.client.messages.requests import within
from quorum.client.messages.tags import TagRanges, count_of
from quorum.client.values import FieldValue, Properties, require_flag
from quorum.v1 import queue_pb2

if TYPE_CHECKING:
    from quorum.client.messages.tracing import Tracing

SETTLE = queue_pb2.Disposition.SETTLE
RETURN = queue_pb2.Disposition.RETURN
DISCARD = queue_pb2.Disposition.DISCARD
MODIFY = queue_pb2.Disposition.MODIFY

MAX_RANGES = 1_000  # of tags in one disposition


class Link(Protocol):
    """The part of the session that a holder needs: sending, and answers to requests. timeout_ms: limit of the wait for
    an answer. tracing: None if the client makes no spans."""

    @property
    def timeout_ms(self) -> int: ...

    @property
    def tracing(self) -> Tracing | None: ...

    def dirty(self, holder: Holder) -> None: ...

    def next_request_id(self) -> int: ...

    def expect(self, request_id: int, doing: str) -> asyncio.Future[Any]: ...

    def forget(self, request_id: int) -> None: ...


class ReceivedMessage:
    """One message of a delivery. Body and properties are decoded on access. The subclasses can settle it."""

    __slots__ = ("delivery", "ordinal")

    def __init__(self, delivery: Delivery, ordinal: int) -> None:
        self.delivery = delivery
        self.ordinal = ordinal

    def __repr__(self) -> str:
        return f"<message {self.sequence} of {self.delivery.holder.queue!r}, tag {self.tag}>"

    @property
    def tag(self) -> int:
        return self.delivery.first_tag + self.ordinal

    @property
    def queue(self) -> str:
        return self.delivery.queue

    @property
    def sequence(self) -> int:
        """Permanent place of the message in its queue."""
        return self.delivery.sequence_at(self.ordinal)

    @property
    def redelivered(self) -> bool:
        return self.delivery.redelivered_at(self.ordinal)

    @property
    def delivery_count(self) -> int:
        """Number of failed deliveries."""
        return self.delivery.delivery_count_at(self.ordinal)

    @property
    def body(self) -> bytes:
        return self.delivery.reader.body(self.ordinal)

    @property
    def properties(self) -> Properties:
        return self.delivery.reader.properties(self.ordinal)

    @property
    def application_properties(self) -> dict[str, FieldValue | None]:
        return self.delivery.reader.application_properties(self.ordinal)

    def span(self) -> AbstractContextManager[None]:
        """A span of OpenTelemetry for `with`: the program processes the message. Without the client's option `tracing`
        it does nothing."""
        tracing = self.delivery.holder.tracing
        if tracing is None:
            return nullcontext()
        return tracing.processing(self.queue, self.delivery.reader, self.ordinal, self.sequence)


class DeliveredMessage(ReceivedMessage):
    """A message of the asyncio client."""

    __slots__ = ()

    async def settle(self, *, wait: bool = False) -> None:
        await self.delivery.holder.settle(self, wait=wait)

    async def return_(self, *, wait: bool = False) -> None:
        await self.delivery.holder.return_(self, wait=wait)

    async def discard(self, *, wait: bool = False) -> None:
        await self.delivery.holder.discard(self, wait=wait)

    async def modify(
        self, *, delivery_failed: bool = False, undeliverable_here: bool = False, wait: bool = False
    ) -> None:
        await self.delivery.holder.modify(
            self, delivery_failed=delivery_failed, undeliverable_here=undeliverable_here, wait=wait
        )


class Delivery:
    """A delivered batch: `count` messages with tags from first_tag on. Iteration decodes lazily."""

    __slots__ = ("attach", "count", "first_tag", "generation", "holder", "queue", "reader", "wire")

    def __init__(self, holder: Holder, wire: Any, generation: int) -> None:
        self.holder = holder
        self.queue = holder.queue
        self.wire = wire
        self.generation = generation
        self.attach: int = wire.attach
        self.first_tag: int = wire.first_tag
        self.count: int = wire.count
        self.reader = BatchReader(wire.batch, wire.count)

    @property
    def last_tag(self) -> int:
        return self.first_tag + self.count - 1

    @property
    def batch_bytes(self) -> bytes:
        """The serialized MessageBatch."""
        return self.reader.data

    @property
    def is_void(self) -> bool:
        """Whether the attachment has ended, so that these messages are ready in the queue again."""
        return self.generation != self.holder.generation

    def span(self) -> AbstractContextManager[None]:
        """As that of a message, for all messages of the delivery together."""
        tracing = self.holder.tracing
        return nullcontext() if tracing is None else tracing.processing_batch(self.queue, self.reader)

    def rest(self, place: int) -> Delivery:
        """A delivery of its messages from this place on."""
        if not place:
            return self
        wire = queue_pb2.Delivery()
        wire.CopyFrom(self.wire)
        count = self.count - place
        wire.first_tag, wire.count = self.first_tag + place, count
        wire.batch = part_of(PreparedBatch(self.batch_bytes, self.count), place, count).data
        del wire.sequences[:]
        for given in self.wire.sequences:
            first = given.first + place
            if first <= given.last:
                wire.sequences.add(first=first, last=given.last)
            place = max(0, first - given.last - 1)
        return Delivery(self.holder, wire, self.generation)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, ordinal: int) -> DeliveredMessage:
        if not 0 <= ordinal < self.count:
            raise IndexError(ordinal)
        return DeliveredMessage(self, ordinal)

    def __iter__(self) -> Iterator[DeliveredMessage]:
        return map(self.__getitem__, range(self.count))

    def sequence_at(self, ordinal: int) -> int:
        for given in self.wire.sequences:
            size: int = given.last - given.first + 1
            if ordinal < size:
                return int(given.first) + ordinal
            ordinal -= size
        return 0

    def redelivered_at(self, ordinal: int) -> bool:
        tag = self.first_tag + ordinal
        return any(given.first <= tag <= given.last for given in self.wire.redelivered)

    def delivery_count_at(self, ordinal: int) -> int:
        tag = self.first_tag + ordinal
        return next((int(given.count) for given in self.wire.delivery_counts if given.tag == tag), 0)


Target = ReceivedMessage | Delivery | Iterable[ReceivedMessage]


@dataclass(slots=True)
class _Disposal:
    outcome: queue_pb2.Disposition.Outcome
    delivery_failed: bool
    undeliverable_here: bool
    tags: list[tuple[int, int]]
    waiting: asyncio.Future[Any] | None = None
    request_id: int = 0
    attach: int = 0
    """the attachment in which it was sent"""
    late_to: int = 0
    """the service has requeued the messages up to this tag before the disposal came"""

    def same_kind(self, other: _Disposal) -> bool:
        return (self.outcome, self.delivery_failed, self.undeliverable_here) == (
            other.outcome,
            other.delivery_failed,
            other.undeliverable_here,
        )


class Holder:
    """Holds deliveries under one consumer tag and disposes of them."""

    def __init__(self, link: Link, queue: str, consumer_tag: str) -> None:
        self.queue = queue
        self.consumer_tag = consumer_tag
        self.generation = 0  # increases whenever the held messages become void
        self.attach = 0  # 0 if it has none: then it takes no delivery
        self.held = TagRanges()
        self.in_transactions = 0  # messages that open transactions dispose of; they are not in `held`
        self._link = link
        self._disposals: deque[_Disposal] = deque()
        self._sent: deque[_Disposal] = deque()
        """those whose answers callers wait for, and some that are answered"""

    @property
    def tracing(self) -> Tracing | None:
        """What makes spans; None if nothing does."""
        return self._link.tracing

    async def settle(self, target: Target, *, wait: bool = False) -> None:
        """Settle messages. wait=True: return when that is committed."""
        await self._dispose_messages(target, _Disposal(SETTLE, False, False, []), wait)

    async def return_(self, target: Target, *, wait: bool = False) -> None:
        """Return messages to their places in the queue; this counts no failure."""
        await self._dispose_messages(target, _Disposal(RETURN, False, False, []), wait)

    async def discard(self, target: Target, *, wait: bool = False) -> None:
        """Reject messages; they are dead-lettered, or dropped if the queue has no dead-letter target."""
        await self._dispose_messages(target, _Disposal(DISCARD, False, False, []), wait)

    async def modify(
        self,
        target: Target,
        *,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        wait: bool = False,
    ) -> None:
        """Return messages to the queue; delivery_failed counts a failure, undeliverable_here discards."""
        require_changes(delivery_failed, undeliverable_here)
        await self._dispose_messages(target, _Disposal(MODIFY, delivery_failed, undeliverable_here, []), wait)

    async def settle_batch(self, delivery: Delivery, *, wait: bool = False) -> bool:
        """Settle the messages of a delivery that are still held; False if it is void. No work per message."""
        if delivery.generation != self.generation:
            return False
        await self._settle_tags([(delivery.first_tag, delivery.last_tag)], wait)
        return True

    async def settle_if_held(self, target: ReceivedMessage | Delivery) -> None:
        """Settle a message or the messages of a delivery, without those that are void or settled already."""
        if isinstance(target, Delivery):
            await self.settle_batch(target)
        elif target.delivery.generation == self.generation:
            await self._settle_tags([(target.tag, target.tag)], wait=False)

    # ---- for the connection

    def give_back(self, delivery: Delivery) -> None:
        """Return the messages of a delivery that are still held, because no caller will read it."""
        tags = self.held.remove(delivery.first_tag, delivery.last_tag)
        if tags:
            self._enqueue(_Disposal(RETURN, False, False, tags))

    def receive(self, wire: Any) -> Delivery:
        delivery = Delivery(self, wire, self.generation)
        self.held.add(delivery.first_tag, delivery.last_tag)
        return delivery

    def void(self) -> None:
        """Forget all held messages, because the stream has ended."""
        self.generation += 1
        self.attach = 0
        self.held.clear()
        self.in_transactions = 0
        disposals, self._disposals = self._disposals, deque()
        for disposal in disposals:
            self._link.forget(disposal.request_id)
            if disposal.waiting is not None and not disposal.waiting.done():
                disposal.waiting.set_exception(VoidDelivery(f"{self}: its attachment has ended; not settled"))

    def too_late_to(self, attach: int, tag: int) -> None:
        """The service has requeued the messages of this attachment up to this tag: the disposals of these that it has
        not answered yet have no effect, though it answers them as if they had. The attachment may be void already."""
        for disposal in self._sent:
            if disposal.attach == attach and disposal.waiting is not None and not disposal.waiting.done():
                disposal.late_to = max(disposal.late_to, tag)

    def dispositions(
        self,
        tags: list[tuple[int, int]],
        outcome: queue_pb2.Disposition.Outcome,
        delivery_failed: bool,
        undeliverable_here: bool,
    ) -> list[Any]:
        """Dispositions of these tags by a transaction, which are sent by themselves, in this order. `committed` or
        `rolled_back` follows."""
        merged: list[tuple[int, int]] = []
        _merge(merged, tags)
        self.in_transactions += count_of(merged)
        disposal = _Disposal(outcome, delivery_failed, undeliverable_here, [])
        return [
            self._disposition(replace(disposal, tags=merged[place : place + MAX_RANGES]))
            for place in range(0, len(merged), MAX_RANGES)
        ]

    def committed(self, generation: int, tags: list[tuple[int, int]]) -> None:
        """A transaction that has disposed of these tags counts, or may count."""
        if generation == self.generation:
            self.in_transactions -= count_of(tags)
            self._disposed(count_of(tags))
            self._link.dirty(self)  # there may be credit to send

    def rolled_back(self, generation: int, tags: list[tuple[int, int]]) -> None:
        """A transaction that has disposed of these tags does not count: they are held again."""
        if generation == self.generation:
            self.in_transactions -= count_of(tags)
            for first, last in tags:
                self.held.add(first, last)

    def given_up(self, generation: int, tags: list[tuple[int, int]]) -> None:
        """A transaction that has disposed of these tags does not count, and its caller no longer waits. Nobody would
        dispose of them again, so they are returned."""
        if generation == self.generation:
            self.in_transactions -= count_of(tags)
            self._enqueue(_Disposal(RETURN, False, False, list(tags)))

    def next_request(self) -> Any:
        """The next SessionRequest to send; None if there is none."""
        disposition = self._next_disposition()
        return None if disposition is None else queue_pb2.SessionRequest(disposition=disposition)

    def _next_disposition(self) -> Any:
        if not self._disposals:
            return None
        disposal = self._disposals[0]
        if len(disposal.tags) > MAX_RANGES:  # send the first part now; the answer belongs to the last part
            part = replace(disposal, tags=disposal.tags[:MAX_RANGES], waiting=None, request_id=0)
            disposal.tags = disposal.tags[MAX_RANGES:]
            disposal = part
        else:
            self._disposals.popleft()
            if disposal.waiting is not None:
                while self._sent and (before := self._sent[0].waiting) is not None and before.done():
                    self._sent.popleft()
                disposal.attach = self.attach
                self._sent.append(disposal)
        return self._disposition(disposal)

    def _disposition(self, disposal: _Disposal) -> Any:
        return queue_pb2.Disposition(
            request_id=disposal.request_id,
            consumer_tag=self.consumer_tag,
            attach=self.attach,
            tags=[queue_pb2.Range(first=first, last=last) for first, last in disposal.tags],
            outcome=disposal.outcome,
            delivery_failed=disposal.delivery_failed,
            undeliverable_here=disposal.undeliverable_here,
            credit_to=self._credit_due(),
            queue="" if self.consumer_tag else self.queue,
        )

    # ---- inside

    def __str__(self) -> str:
        return f"consumer {self.consumer_tag!r} of {self.queue!r}"

    def _credit_due(self) -> int:
        return 0

    def _disposed(self, count: int) -> None:
        """Hook: `count` tags were disposed of, with any outcome."""

    async def _dispose_messages(self, target: Target, disposal: _Disposal, wait: bool) -> None:
        disposal.tags = self.take(target)
        await self._dispose(disposal, wait)

    def take(self, target: Target) -> list[tuple[int, int]]:
        """Take messages from those that are held. Returns their tags, ascending."""
        if isinstance(target, Delivery):
            messages: Iterable[tuple[Delivery, int, int]] = [(target, target.first_tag, target.last_tag)]
        elif isinstance(target, ReceivedMessage):
            messages = [(target.delivery, target.tag, target.tag)]
        else:
            messages = [(message.delivery, message.tag, message.tag) for message in _messages(target)]
        tags: list[tuple[int, int]] = []
        try:
            for delivery, first, last in messages:
                tags.extend(self._take(delivery, first, last))
        except BaseException:  # nothing is sent, so the messages before this one are still held
            for first, last in tags:
                self.held.add(first, last)
            raise
        tags.sort()
        return tags

    def _take(self, delivery: Delivery, first: int, last: int) -> list[tuple[int, int]]:
        """Take tags of a delivery from those that are held. Raises an error if none of them are."""
        if delivery.holder is not self:
            raise UsageError(f"{self} cannot settle a message of {delivery.holder}")
        if delivery.is_void:
            raise VoidDelivery(f"{self}: delivery {first} is void; the queue will redeliver it")
        taken = self.held.remove(first, last)
        if not taken:
            raise UsageError(f"{self} has no delivery {first}; held: {self.held}")
        return taken

    async def _settle_tags(self, ranges: Iterable[tuple[int, int]], wait: bool) -> int:
        """Settle what is held of these ranges. Returns its number."""
        taken = [part for first, last in ranges for part in self.held.remove(first, last)]
        await self._dispose(_Disposal(SETTLE, False, False, taken), wait)
        return count_of(taken)

    async def _dispose(self, disposal: _Disposal, wait: bool) -> None:
        if not disposal.tags:
            return
        lowest = min(first for first, _ in disposal.tags)
        queued = self._enqueue(disposal)
        if not wait:
            return
        if queued.waiting is None:
            queued.request_id = self._link.next_request_id()
            queued.waiting = self._link.expect(queued.request_id, f"settling for {self}")
        await within(self._link.timeout_ms, queued.waiting, f"settling for {self}")
        if lowest <= queued.late_to:
            raise VoidDelivery(f"{self}: delivery {lowest} had timed out before; the queue will redeliver it")

    def _enqueue(self, disposal: _Disposal) -> _Disposal:
        """Queue a disposal for sending. Returns the disposal that it was merged into, or itself."""
        self._disposed(count_of(disposal.tags))
        self._link.dirty(self)
        last = self._disposals[-1] if self._disposals else None
        if last is not None and last.same_kind(disposal):
            _merge(last.tags, disposal.tags)
            return last
        self._disposals.append(disposal)
        return disposal


def require_changes(delivery_failed: bool, undeliverable_here: bool) -> None:
    """UsageError unless no request is wrong because of them: it is made when it is sent, and would end the client."""
    require_flag("delivery_failed", delivery_failed)
    require_flag("undeliverable_here", undeliverable_here)


def _merge(into: list[tuple[int, int]], tags: list[tuple[int, int]]) -> None:
    """Add ascending ranges and join neighbours; sort only if they are out of order."""
    for first, last in tags:
        if into and into[-1][1] + 1 == first:
            into[-1] = (into[-1][0], last)
        else:
            into.append((first, last))
    if any(into[i][0] < into[i - 1][0] for i in range(max(1, len(into) - len(tags)), len(into))):
        into.sort()


def by_holder(target: Target) -> list[tuple[Holder, Target]]:
    """Split the target by the holder of its messages; one call may name messages of several consumers."""
    if isinstance(target, ReceivedMessage):
        return [(target.delivery.holder, target)]
    if isinstance(target, Delivery):
        return [(target.holder, target)]
    parts: dict[int, tuple[Holder, list[ReceivedMessage]]] = {}
    for message in _messages(target):
        holder = message.delivery.holder
        parts.setdefault(id(holder), (holder, []))[1].append(message)
    return [(holder, messages) for holder, messages in parts.values()]


def _messages(target: Iterable[ReceivedMessage]) -> Iterator[ReceivedMessage]:
    """The messages. UsageError for what is no message."""
    for message in target if isinstance(target, Iterable) else (target,):
        if not isinstance(message, ReceivedMessage):
            raise UsageError(
                f"wanted: a message, a delivery, or several messages; not {type(message).__name__}"
            )
        yield message


class GetHolder(Holder):
    """Holds messages that `get` took, under the session's own consumer without a tag."""

    def __init__(self, link: Link, queue: str, attach: int) -> None:
        super().__init__(link, queue, "")
        self.attach = attach

    def __str__(self) -> str:
        return f"get from {self.queue!r}"
