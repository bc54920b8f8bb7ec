"""A client's session, independent of its protocol: windows, numbering, consumers, and the outcome of each request.

A protocol's adapter calls one method for each request, in order, and sends what `outcomes` yields; session_service.py
is the adapter for gRPC. Batches are serialized `MessageBatch`es, because the log stores these bytes and consumers
receive them. Nothing else here depends on a protocol.

The session checks each request and submits it as a command to the queue's group, which decides it. The group's answer
becomes an outcome. Each command has a token that converts the answer. A request with the id 0 gets no Done, and no
Failed if its group refuses it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Protocol

import structlog

from fifo import commands as c
from fifo.effects import AttachedReply, Confirmed, Deliver, Notify, Ok, Refused, Reply
from fifo.limits import PRODUCTION
from quorum.api import deliveries, status
from quorum.api.filters import Filter, expression_bytes, kept_fields
from quorum.api.hub import Hub
from quorum.api.outcomes import (
    Attached,
    Cancelled,
    Drained,
    Failed,
    Outbox,
    Outcome,
    PendingDelivery,
)
from quorum.api.producer_numbers import ProducerNumbers
from quorum.catalog.arguments import ArgumentError
from quorum.catalog.queues import CatalogQueue
from quorum.log import LogError
from quorum.node import events
from quorum.node.errors import BodyUnreadable
from quorum.node.queries import FindTaken
from quorum.node.wire import batches
from quorum_selectors.errors import EncodingError, FilterError, SelectorError
from quorum_selectors.wellknown import KeptFields

PRODUCER_BYTES = 16
MAX_CONSUMERS = 1_000
MAX_RANGES = 10_000
MAX_TAG_BYTES = 255
MAX_UNSENT = 10_000
"""Outcomes that wait to be sent. Above this number the session accepts no further request, because its client does not
read."""
MAX_UNSENT_BYTES = 1 << 20
"""Approximate bytes of those outcomes, without deliveries, confirms and completed requests. Above this number the
session accepts no further request."""
MAX_UNDER_WAY = 10_000
"""Requests, except publishes, that their groups have not answered yet. Above this number the session accepts no further
request."""
MAX_UINT64 = (1 << 64) - 1


@dataclass(slots=True)
class Consumer:
    """A consumer of this session. An empty tag: the unnamed consumer that holds the messages of gets from one queue."""

    tag: str
    group: int
    queue: int
    attach: int = 0
    """Raft index of its attachment; 0 until it is known"""
    attaching: int = 0
    """number of unanswered requests to attach it"""


@dataclass(frozen=True, slots=True)
class Disposition:
    """A client's decision about delivered messages. kind: None if the client has not set it. tags: inclusive ranges
    (first, last) of delivery tags of the attachment `attach`. credit_to: 0 leaves the credit as it is. delivery_failed,
    undeliverable_here: for Modify only."""

    kind: type[c.Settle] | None
    attach: int
    tags: tuple[tuple[int, int], ...]
    credit_to: int = 0
    delivery_failed: bool = False
    undeliverable_here: bool = False

    def command(self, kind: type[c.Settle], consumer: Consumer) -> c.Settle:
        if kind is c.Modify:
            return c.Modify(
                consumer.queue,
                consumer.tag,
                self.attach,
                self.tags,
                self.credit_to,
                self.delivery_failed,
                self.undeliverable_here,
            )
        return kind(consumer.queue, consumer.tag, self.attach, self.tags, self.credit_to)


class Token(Protocol):
    """Converts the answer to one command into outcomes. queue: the queue that the request named; None if no queue can
    be outdated."""

    @property
    def queue(self) -> CatalogQueue | None: ...

    def answered(self, session: ClientSession, reply: Reply | None) -> None: ...


@dataclass(frozen=True, slots=True)
class _Published:
    """A published batch of `size` bytes with the client sequences first..last."""

    queue: CatalogQueue
    first: int
    last: int
    size: int

    def answered(self, session: ClientSession, reply: Reply | None) -> None:
        session.batch_decided(self.queue.group, self.size)
        if isinstance(reply, Refused):
            session.outbox.reject(self.first, self.last, status.of_refused(reply))
            return
        assert isinstance(reply, Confirmed)
        first = self.first
        for start, end, refused in reply.refused:
            if first < start:
                session.outbox.confirm(first, start - 1)
            session.outbox.reject(start, end, status.of_refused(refused))
            first = end + 1
        if first <= self.last:
            session.outbox.confirm(first, self.last)


@dataclass(frozen=True, slots=True)
class _Attaching:
    queue: CatalogQueue
    request_id: int
    consumer: Consumer

    def answered(self, session: ClientSession, reply: Reply | None) -> None:
        session.request_answered()
        consumer = self.consumer
        consumer.attaching -= 1
        if isinstance(reply, AttachedReply):
            consumer.attach = reply.attach
            session.outbox.add(Attached(self.request_id, consumer.tag, reply.attach))
        else:
            session.attach_refused(consumer)
            session.finish(self.request_id, reply)


@dataclass(frozen=True, slots=True)
class _Requested:
    """A request whose outcome is Done or Failed."""

    request_id: int
    queue: None = None

    def answered(self, session: ClientSession, reply: Reply | None) -> None:
        session.request_answered()
        session.finish(self.request_id, reply)


@dataclass(frozen=True, slots=True)
class _Getting:
    queue: CatalogQueue
    request_id: int

    def answered(self, session: ClientSession, reply: Reply | None) -> None:
        session.request_answered()
        if isinstance(reply, Ok) and reply.count:
            session.get_answered(self.queue.id, self.request_id)
        else:
            session.finish(self.request_id, reply)


@dataclass(frozen=True, slots=True)
class _Registering:
    """An empty command, which registers the session with a group. After that the group can tell which messages it has
    accepted."""

    registered: asyncio.Future[Reply | None]
    queue: None = None

    def answered(self, session: ClientSession, reply: Reply | None) -> None:
        session.request_answered()
        if not self.registered.done():
            self.registered.set_result(reply)


class ClientSession:
    """One client's session at this node (hub.SessionHandler)."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.number = 0
        """0 until it is open"""
        self.outbox = Outbox()
        self.consumers: dict[str, Consumer] = {}
        """by tag"""
        self._getters: dict[int, Consumer] = {}
        """queue id -> the unnamed consumer that holds the messages of gets"""
        self._gets: dict[int, deque[int]] = {}
        """queue id -> ids of answered gets whose delivery follows, the oldest first"""
        self._kept: dict[int, tuple[KeptFields | None, int]] = {}
        """queue id -> the result of _look_up_kept"""
        self._numbers = ProducerNumbers()
        self._new_from = 0
        """No earlier session has sent client sequences from this one on. The client gives it; if it does not, 1 in the
        first epoch and 0 (unknown) in a later one."""
        self._taken_to: dict[int, int] = {}
        """id of each queue whose group was asked -> the group has accepted no higher client sequence in an earlier
        session"""
        self._origin = (b"", 0)
        """producer, epoch"""
        self._undecided = 0
        """number of batches that their groups have not decided"""
        self._under_way = 0
        """number of other requests that their groups have not answered"""
        self._bytes = 0
        """bytes of undecided batches"""
        self._bytes_of: Counter[int] = Counter()
        """group -> bytes that this session uses of the node's window for publishing"""
        self._room = asyncio.Event()
        self._work = asyncio.Event()
        self._end: status.StatusError | None = None
        self._is_input_over = False
        self._input_error: BaseException | None = None
        self._is_clean = False
        """the client has closed the session, and nothing was unconfirmed then"""

    # ---- opening and closing

    def open(self, producer: bytes, epoch: int, owner: int, first_new: int = 0) -> None:
        """Open the session at this node.

        producer: 16 bytes, the id of the client's producer. epoch: 1 or more, higher in each session of the producer.
        owner: as in RegisterProducer. first_new: no earlier session has sent client sequences from this one on; 0: not
        given. INVALID_ARGUMENT for a bad producer or epoch, UNAVAILABLE if this node opens no sessions now.
        """
        if len(producer) != PRODUCER_BYTES:
            raise status.invalid(
                "bad_session", f"producer_id has {len(producer)} bytes; it must have {PRODUCER_BYTES}"
            )
        if epoch < 1:
            raise status.invalid("bad_session", "epoch must be 1 or more, and grow by 1 at each reconnect")
        refusal = self._hub.refusal()
        if refusal is not None:
            raise status.of_ended(refusal)
        self._new_from = first_new or int(epoch == 1)
        self._origin = (producer, epoch)
        self.number = self._hub.open_session(self, producer, epoch, owner)

    def client_closes(self) -> None:
        """Take the client's statement that it sends nothing more. The session ends cleanly if all its messages are
        decided and the decisions have been sent."""
        self._is_clean = not (self._undecided or self.outbox.has_decisions)

    def input_over(self, error: BaseException | None) -> None:
        """Record that there are no further requests. error: the cause if reading them failed; `outcomes` raises it."""
        self._is_input_over, self._input_error = True, error
        self._work.set()

    def release(self) -> None:
        """End the session and release everything that it holds at this node."""
        if self.number:
            self._hub.end_session(self.number, is_clean=self._is_clean)
        for group, size in self._bytes_of.items():
            if size:
                self._hub.publishing.give(size, group)
        self._bytes_of.clear()

    @property
    def is_full(self) -> bool:
        """Whether to accept no request for now, because too many earlier requests, or bytes of them, wait for their
        groups, or too many outcomes for the client."""
        return (
            self._bytes > self._hub.session_window
            or self._under_way > MAX_UNDER_WAY
            or len(self.outbox) > MAX_UNSENT
            or self.outbox.size_bytes > MAX_UNSENT_BYTES
        )

    async def room(self) -> None:
        """Return when the session is not full."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    async def outcomes(self) -> AsyncIterator[Outcome]:
        """Yield the outcomes to send to the client.

        It ends when there are no further requests, all batches are decided and all outcomes so far are yielded. It does
        not wait for the answers to other requests. StatusError if the service ends the session. The error of
        `input_over` is raised too.
        """
        while True:
            self._work.clear()
            for item in self._ready():
                if isinstance(item, BodyUnreadable):
                    await self._hub.repair(item)
                else:
                    yield item
                    self._room.set()
            if self._end is not None:
                raise self._end
            if self._is_input_over:
                if self._input_error is not None:
                    raise self._input_error
                if not self._undecided and not self.outbox.is_owed:
                    return
            await self._work.wait()

    def _ready(self) -> Iterator[Outcome | BodyUnreadable]:
        for item in self.outbox.take():
            if not isinstance(item, PendingDelivery):
                yield item
            elif self._is_current(item.deliver):
                yield from self._deliver(item)

    def _is_current(self, deliver: Deliver) -> bool:
        """Whether the messages of a waiting delivery are still checked out to the same attachment. If the consumer was
        cancelled with return_held, or attached again with another selector, they were requeued, and another consumer
        may have them."""
        consumer = self.consumers.get(deliver.consumer_tag)
        return not deliver.consumer_tag or (consumer is not None and consumer.attach == deliver.attach)

    def _deliver(self, item: PendingDelivery) -> Iterator[deliveries.DeliveredBatch | BodyUnreadable]:
        group, deliver = item.group, item.deliver
        if not deliver.consumer_tag:
            self._getter(deliver.queue, group).attach = deliver.attach
        try:
            for batch in deliveries.delivered_batches(self._hub.reader, group, deliver):
                if isinstance(batch, BodyUnreadable):
                    yield batch
                    continue
                if not self._is_current(deliver):
                    return  # requeued while the previous part was being sent, or this one repaired
                if not self._hub.may_deliver(group):
                    raise status.of_ended("node_down")
                if self._end is not None:
                    raise self._end
                yield batch
        except LogError as error:
            structlog.get_logger().error("a body cannot be read", group=group, error=str(error))
            raise status.of_ended("unreadable") from error
        self.outbox.done(item.request_id)

    def _getter(self, queue: int, group: int) -> Consumer:
        return self._getters.setdefault(queue, Consumer("", group, queue))

    # ---- events from the node (hub.SessionHandler)

    def answered(self, token: Token, reply: Reply | None) -> None:
        if self._is_outdated(token, reply):
            self.ended("outdated")  # the client resends the request, in order, in its next session
            return
        token.answered(self, reply)
        self._work.set()

    def _is_outdated(self, token: Token, reply: Reply | None) -> bool:
        """Whether the request was refused because this node resolved the queue's name to a deleted queue."""
        return (
            isinstance(reply, Refused)
            and reply.reason == "not_found"
            and token.queue is not None
            and self._hub.is_outdated(token.queue)
        )

    def delivered(self, group: int, deliver: Deliver) -> None:
        request_id = 0
        if not deliver.consumer_tag and self._gets.get(deliver.queue):
            request_id = self._gets[deliver.queue].popleft()
        self.outbox.deliver(PendingDelivery(group, deliver, request_id))
        self._work.set()

    def notified(self, notify: Notify) -> None:
        if notify.event == "drained":
            self.outbox.add(Drained(notify.consumer_tag, notify.value))
        elif notify.event == "queue_deleted":
            self.consumers.pop(notify.consumer_tag, None)
            self.outbox.add(Cancelled(notify.consumer_tag, status.QUEUE_DELETED))
        else:
            self.ended("fenced")
        self._work.set()

    def ended(self, reason: str) -> None:
        if self._end is None:
            self._end = status.of_ended(reason)
        self._work.set()
        self._room.set()

    def consumed_groups(self) -> set[int]:
        return {each.group for holders in (self.consumers, self._getters) for each in holders.values()}

    # ---- effects of answers, called by tokens

    def request_answered(self) -> None:
        """Record the answer to a request other than a publish."""
        self._under_way -= 1
        self._room.set()

    def batch_decided(self, group: int, size: int) -> None:
        """Record the group's decision on a batch of `size` bytes, and release them."""
        self._undecided -= 1
        self._bytes -= size
        self._bytes_of[group] -= size
        self._hub.publishing.give(size, group)
        self._room.set()

    def attach_refused(self, consumer: Consumer) -> None:
        """Remove a consumer that could not be attached. It stays if it is attached already, or another request may
        attach it. A newer consumer with the same tag stays too."""
        is_known = self.consumers.get(consumer.tag) is consumer
        if is_known and not consumer.attach and not consumer.attaching:
            del self.consumers[consumer.tag]

    def get_answered(self, queue: int, request_id: int) -> None:
        """Expect the delivery of the messages that a get has taken."""
        self._gets.setdefault(queue, deque()).append(request_id)

    def finish(self, request_id: int, reply: Reply | None) -> None:
        """Add the outcome of a request that its group has carried out or refused."""
        if isinstance(reply, Refused) and request_id:
            self.outbox.add(Failed(request_id, status.of_refused(reply)))
        else:
            self.outbox.done(request_id)

    # ---- publishing

    async def publish(self, name: str, first: int, lowest_unconfirmed: int, batch: bytes) -> None:
        """Publish a batch to the queue of this name, with client sequences from `first` on. Its outcome is part of a
        Confirms. UNAVAILABLE if the session has to end, so that the client resends the batch, in order."""
        self._is_clean = False
        queue = None
        try:
            queue = await self._hub.queue(name)
            kept, max_bytes = self._kept.get(queue.id) or await self._look_up_kept(queue)
            checked = batches.check(batch, self._hub.limits, kept, max_bytes)
            count = checked.count
            self._numbers.check(first, count, lowest_unconfirmed)
            self._hub.check_room(queue.group)
        except batches.BatchError as error:
            await self._refuse_batch(batch, first, lowest_unconfirmed, queue, status.of_error(error))
            return
        except status.StatusError as error:
            if error.status.code == status.Code.UNAVAILABLE:
                raise
            await self._refuse_batch(batch, first, lowest_unconfirmed, queue, error.status)
            return
        self._numbers.next = first + count
        size = len(batch)
        await self._hub.take_room(queue.group, size)
        self._bytes += size
        self._bytes_of[queue.group] += size
        self._undecided += 1
        enqueue = c.Enqueue(
            queue.id,
            first,
            lowest_unconfirmed,
            count,
            checked.size_bytes,
            checked.ttl_ms,
            checked.ttls_ms,
            checked.columns,
        )
        token = _Published(queue, first, first + count - 1, size)
        self._hub.submit(events.Submit(self.number, queue.group, enqueue, token, batch))

    async def _look_up_kept(self, queue: CatalogQueue) -> tuple[KeptFields | None, int]:
        """Return the fields that the queue keeps and their maximum bytes, as in filters.kept_fields. The session uses
        them for all batches that it publishes there, also if a policy changes later."""
        if queue.config.filter_enabled:  # policy changes that another node has answered must count
            kept = kept_fields(await self._hub.current_catalog(), queue)
        else:
            kept = kept_fields(self._hub.catalog, queue)
        self._kept[queue.id] = kept
        return kept

    async def _refuse_batch(
        self,
        batch: bytes,
        first: int,
        lowest_unconfirmed: int,
        queue: CatalogQueue | None,
        why: status.Status,
    ) -> None:
        """Reject the messages of a batch, except those that were accepted in an earlier session. These are confirmed,
        because the client would publish rejected messages again under new numbers."""
        count = min(batches.claimed_count(batch), PRODUCTION.window)
        last = min(first + count - 1, MAX_UINT64)
        taken: tuple[tuple[int, int], ...] = ()
        if queue is not None and self._numbers.may_have(first, count, lowest_unconfirmed):
            taken = await self._taken_before(queue, first, last)
        self._numbers.use(last)
        for start, end in taken:
            if first < start:
                self.outbox.reject(first, start - 1, why)
            self.outbox.confirm(start, end)
            first = end + 1
        if first <= last:
            self.outbox.reject(first, last, why)
        self._work.set()

    async def _taken_before(self, queue: CatalogQueue, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """Return the messages of first..last that the queue's group has accepted in an earlier session: ranges (first,
        last), ascending. The group can tell after this session is registered there: from then on earlier sessions are
        fenced, so the group accepts none of their messages any more. UNAVAILABLE if the session has to end."""
        if 0 < self._new_from <= first or first > self._taken_to.get(queue.id, MAX_UINT64):
            return ()
        group = queue.group
        if queue.id not in self._taken_to:
            current = (await self._hub.current_catalog()).queue(queue.name)
            if current is None or current.id != queue.id:
                raise status.of_ended("outdated")  # another group may have accepted these messages
            registered: asyncio.Future[Reply | None] = self._hub.loop.create_future()
            self._under_way += 1
            self._hub.submit(events.Submit(self.number, group, c.Wake(), _Registering(registered)))
            await self._hub.decided((group,), registered)
        found = await self._hub.query(FindTaken(group, *self._origin, first, last))
        if found is None:
            raise status.of_ended("resync")
        self._taken_to[queue.id] = found.highest
        return found.ranges

    # ---- consuming

    def _submit(self, consumer: Consumer, command: c.Command, token: Token) -> None:
        self._is_clean = False
        self._under_way += 1
        self._hub.submit(events.Submit(self.number, consumer.group, command, token))

    def _refuse(self, request_id: int, error: status.StatusError) -> None:
        self.outbox.add(Failed(request_id, error.status))
        self._work.set()

    async def attach(self, request_id: int, tag: str, name: str, wanted: Filter, credit_to: int) -> None:
        """Attach a consumer to the queue of this name, or attach the consumer with this tag again. Attached or Failed
        follows."""
        try:
            if not 1 <= len(tag.encode()) <= MAX_TAG_BYTES:
                raise status.invalid("bad_argument", f"a consumer tag has 1..{MAX_TAG_BYTES} bytes")
            if tag not in self.consumers and len(self.consumers) >= MAX_CONSUMERS:
                raise status.invalid("limit", f"a session has at most {MAX_CONSUMERS} consumers")
            queue = await self._hub.queue(name)
            known = self.consumers.get(tag)
            if known is not None and known.queue != queue.id:
                raise status.invalid(
                    "in_use", f"consumer {tag!r} of this session is attached to another queue"
                )
            selector = expression_bytes(wanted, queue)
        except status.StatusError as error:
            self._refuse(request_id, error)
            return
        except (SelectorError, FilterError, ArgumentError, EncodingError) as error:
            self._refuse(request_id, status.StatusError(status.of_error(error)))
            return
        consumer = known or Consumer(tag, queue.group, queue.id)
        self.consumers[tag] = consumer
        consumer.attaching += 1
        command = c.Attach(queue.id, tag, selector, credit_to)
        self._submit(consumer, command, _Attaching(queue, request_id, consumer))

    def consumer(self, request_id: int, tag: str) -> Consumer | None:
        """Return the consumer with this tag. If there is none, refuse the request and return None."""
        consumer = self.consumers.get(tag)
        if consumer is None:
            text = f"this session has no consumer {tag!r}; attached: {len(self.consumers)} others"
            self._refuse(request_id, status.invalid("not_attached", text))
        return consumer

    def getter(self, request_id: int, name: str) -> Consumer | None:
        """Return the unnamed consumer that holds the messages of gets from the queue of this name. If the session has
        sent no get for that queue, refuse the request and return None."""
        queue = self._hub.catalog.queue(name)
        getter = None if queue is None else self._getters.get(queue.id)
        if getter is None:
            text = f"nothing was got from queue {name!r} in this session"
            self._refuse(request_id, status.invalid("not_attached", text))
        return getter

    def credit(self, request_id: int, tag: str, credit_to: int, *, drain: bool) -> None:
        """Allow deliveries to the consumer up to the delivery tag `credit_to`. drain: give back the credit for which
        there is no message. Done or Failed follows."""
        consumer = self.consumer(request_id, tag)
        if consumer is not None:
            command = c.Credit(consumer.queue, consumer.tag, credit_to, drain)
            self._submit(consumer, command, _Requested(request_id))

    def settle(self, request_id: int, consumer: Consumer, disposition: Disposition) -> None:
        """Settle, return, discard or modify messages that are checked out to the consumer. Done or Failed follows."""
        tags, kind = disposition.tags, disposition.kind
        bad = [pair for pair in tags if pair[0] > pair[1] or pair[0] < 1]
        if kind is None or bad or len(tags) > MAX_RANGES:
            what = (
                "outcome is not set"
                if kind is None
                else f"ranges {bad[:3]}"
                if bad
                else f"{len(tags)} ranges"
            )
            text = f"disposition of {consumer.tag!r}: {what}; allowed: up to {MAX_RANGES} ranges, first <= last, from 1"
            self._refuse(request_id, status.invalid("bad_argument", text))
            return
        command = disposition.command(kind, consumer)
        self._submit(consumer, command, _Requested(request_id))

    def cancel(self, request_id: int, tag: str, *, return_held: bool) -> None:
        """End deliveries to a consumer. return_held: requeue its checked-out messages; otherwise they may still be
        settled. Done or Failed follows."""
        consumer = self.consumer(request_id, tag)
        if consumer is not None:
            command = c.Cancel(consumer.queue, consumer.tag, return_held)
            self._submit(consumer, command, _Requested(request_id))
            if return_held:
                del self.consumers[consumer.tag]

    async def get(self, request_id: int, name: str, count: int, *, settled: bool) -> None:
        """Take up to `count` ready messages. settled: they are settled immediately. Their deliveries follow, then Done;
        only Done if no message is ready; Failed if the get is refused."""
        try:
            queue = await self._hub.queue(name)
            if not 1 <= count <= self._hub.limits.max_messages:
                raise status.invalid(
                    "bad_argument", f"get {count} messages; allowed: 1..{self._hub.limits.max_messages}"
                )
        except status.StatusError as error:
            self._refuse(request_id, error)
            return
        command = c.Get(queue.id, count, settled)
        self._submit(self._getter(queue.id, queue.group), command, _Getting(queue, request_id))
