"""Deliveries, and what is held of them.

A consumer is attached anew on every stream; each time its tags start at 1 and what it held before is void:
the queue has those messages back and hands them out again, flagged as redelivered. A `Delivery` remembers its
attachment. Settling a void *message* raises VoidDelivery; settling a void *batch* answers False; either way
nothing is sent.

Credit is absolute: deliveries up to tag (settled so far + prefetch) may come, so that never more than
`prefetch` messages are held. It is raised in steps of half the prefetch and rides on the dispositions; in
smaller steps only when the service has none left and the caller waits for more.

Dispositions are collected until the stream can take one and merged where they touch: a caller who settles
message by message costs the service one operation per write, not per message. `wait=True` answers when the
settlement is committed; without it, a settlement lost with the connection shows as a redelivery.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from quorum.client.batch import BatchReader
from quorum.client.errors import UsageError, VoidDelivery
from quorum.client.requests import within
from quorum.client.tags import TagRanges, count_of
from quorum.client.values import FieldValue, Properties
from quorum.v1 import queue_pb2

SETTLE = queue_pb2.Disposition.SETTLE
RETURN = queue_pb2.Disposition.RETURN
DISCARD = queue_pb2.Disposition.DISCARD
MODIFY = queue_pb2.Disposition.MODIFY

MAX_RANGES = 1_000  # of tags in one disposition


class Link(Protocol):
    """What a holder needs of the client: a way out and answers to requests. timeout_ms: how long to wait for
    one."""

    timeout_ms: int

    def dirty(self, holder: Holder) -> None: ...

    def next_request_id(self) -> int: ...

    def expect(self, request_id: int, doing: str) -> asyncio.Future[Any]: ...


class DeliveredMessage:
    """One message of a delivery. Body and properties are decoded when looked at."""

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
        """Its place in its queue, for ever."""
        return self.delivery.sequence_at(self.ordinal)

    @property
    def redelivered(self) -> bool:
        return self.delivery.redelivered_at(self.ordinal)

    @property
    def delivery_count(self) -> int:
        """How often its delivery has failed."""
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
    """A batch as it was delivered: `count` messages with tags from first_tag on. Iterating decodes lazily."""

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
        """Its attachment is gone: the queue has these messages back."""
        return self.generation != self.holder.generation

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, ordinal: int) -> DeliveredMessage:
        if not 0 <= ordinal < self.count:
            raise IndexError(ordinal)
        return DeliveredMessage(self, ordinal)

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


Target = DeliveredMessage | Delivery | Iterable[DeliveredMessage]


@dataclass(slots=True)
class _Disposal:
    outcome: queue_pb2.Disposition.Outcome
    delivery_failed: bool
    undeliverable_here: bool
    tags: list[tuple[int, int]]
    waiting: asyncio.Future[Any] | None = None
    request_id: int = 0

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
        self.generation = 0  # one more whenever what is held becomes void
        self.attach = 0
        self.held = TagRanges()
        self._link = link
        self._disposals: deque[_Disposal] = deque()

    async def settle(self, target: Target, *, wait: bool = False) -> None:
        """Done with these. wait=True: answers when that is committed."""
        await self._dispose_messages(target, _Disposal(SETTLE, False, False, []), wait)

    async def return_(self, target: Target, *, wait: bool = False) -> None:
        """Back to their places in the queue; not a failure."""
        await self._dispose_messages(target, _Disposal(RETURN, False, False, []), wait)

    async def discard(self, target: Target, *, wait: bool = False) -> None:
        """Refused: dead-lettered, or dropped where no target is set."""
        await self._dispose_messages(target, _Disposal(DISCARD, False, False, []), wait)

    async def modify(
        self,
        target: Target,
        *,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        wait: bool = False,
    ) -> None:
        """Back to the queue; delivery_failed counts a failure, undeliverable_here discards."""
        await self._dispose_messages(target, _Disposal(MODIFY, delivery_failed, undeliverable_here, []), wait)

    async def settle_batch(self, delivery: Delivery, *, wait: bool = False) -> bool:
        """Settles what is still held of a whole delivery; False if it is void. No work per message."""
        if delivery.generation != self.generation:
            return False
        disposal = _Disposal(SETTLE, False, False, self.held.remove(delivery.first_tag, delivery.last_tag))
        await self._dispose(disposal, wait)
        return True

    async def settle_ranges(self, ranges: Iterable[tuple[int, int]], *, wait: bool = False) -> int:
        """Settles tags of the present attachment by inclusive ranges; says how many were still held."""
        taken = [part for first, last in ranges for part in self.held.remove(first, last)]
        await self._dispose(_Disposal(SETTLE, False, False, taken), wait)
        return count_of(taken)

    async def settle_up_to(self, tag: int, *, wait: bool = False) -> int:
        """Settles every held tag up to this one; says how many."""
        return await self.settle_ranges([(1, tag)], wait=wait)

    # ---- for the connection

    def give_back(self, delivery: Delivery) -> None:
        """Returns what is still held of a delivery that nobody will look at."""
        tags = self.held.remove(delivery.first_tag, delivery.last_tag)
        if tags:
            self._enqueue(_Disposal(RETURN, False, False, tags))

    def receive(self, wire: Any) -> Delivery:
        delivery = Delivery(self, wire, self.generation)
        self.attach = wire.attach
        self.held.add(delivery.first_tag, delivery.last_tag)
        return delivery

    def void(self) -> None:
        """The stream is gone, and with it all that is held."""
        self.generation += 1
        self.attach = 0
        self.held.clear()
        disposals, self._disposals = self._disposals, deque()
        for disposal in disposals:
            if disposal.waiting is not None and not disposal.waiting.done():
                disposal.waiting.set_exception(VoidDelivery(f"{self}: the connection was lost; not settled"))

    def next_request(self) -> Any:
        """The next SessionRequest to send; None if there is none."""
        disposition = self._next_disposition()
        return None if disposition is None else queue_pb2.SessionRequest(disposition=disposition)

    def _next_disposition(self) -> Any:
        if not self._disposals:
            return None
        disposal = self._disposals[0]
        if len(disposal.tags) > MAX_RANGES:  # the first part goes now; whoever waits hears of the last one
            part = replace(disposal, tags=disposal.tags[:MAX_RANGES], waiting=None, request_id=0)
            disposal.tags = disposal.tags[MAX_RANGES:]
            disposal = part
        else:
            self._disposals.popleft()
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
        """Told how many tags were given back, in whatever way."""

    async def _dispose_messages(self, target: Target, disposal: _Disposal, wait: bool) -> None:
        if isinstance(target, Delivery):
            messages: Iterable[tuple[Delivery, int, int]] = [(target, target.first_tag, target.last_tag)]
        elif isinstance(target, DeliveredMessage):
            messages = [(target.delivery, target.tag, target.tag)]
        else:
            messages = [(message.delivery, message.tag, message.tag) for message in target]
        for delivery, first, last in messages:
            if delivery.holder is not self:
                raise UsageError(f"{self} was asked about a message of {delivery.holder}")
            if delivery.is_void:
                raise VoidDelivery(f"{self}: delivery {first} is void, the queue has it back")
            taken = self.held.remove(first, last)
            if not taken:
                raise UsageError(f"{self} has no delivery {first}; held: {self.held}")
            disposal.tags.extend(taken)
        disposal.tags.sort()
        await self._dispose(disposal, wait)

    async def _dispose(self, disposal: _Disposal, wait: bool) -> None:
        if not disposal.tags:
            return
        queued = self._enqueue(disposal)
        if not wait:
            return
        if queued.waiting is None:
            queued.request_id = self._link.next_request_id()
            queued.waiting = self._link.expect(queued.request_id, f"settling for {self}")
        await within(self._link.timeout_ms, queued.waiting, f"settling for {self}")

    def _enqueue(self, disposal: _Disposal) -> _Disposal:
        """Adds to what goes out next; answers the disposal it became part of."""
        self._disposed(count_of(disposal.tags))
        self._link.dirty(self)
        last = self._disposals[-1] if self._disposals else None
        if last is not None and last.same_kind(disposal):
            _merge(last.tags, disposal.tags)
            return last
        self._disposals.append(disposal)
        return disposal


def _merge(into: list[tuple[int, int]], tags: list[tuple[int, int]]) -> None:
    """Adds ascending ranges, joining neighbours; sorts only when they do not come in order."""
    for first, last in tags:
        if into and into[-1][1] + 1 == first:
            into[-1] = (into[-1][0], last)
        else:
            into.append((first, last))
    if any(into[i][0] < into[i - 1][0] for i in range(max(1, len(into) - len(tags)), len(into))):
        into.sort()


class GetHolder(Holder):
    """What `get` took: the session's own consumer without a name."""

    def __str__(self) -> str:
        return f"get from {self.queue!r}"
