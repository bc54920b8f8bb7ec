"""A client's session, whatever protocol it speaks: windows, numbering, consumers, and what becomes of each request.

A protocol's adapter calls one method for each request, in order, and sends what `outcomes` yields; session_service.py
is the adapter for gRPC. Batches are serialized `MessageBatch`es, because these bytes are what the log stores and what a
consumer receives; nothing else here belongs to a protocol.

What a request does is decided by the queue's group. Here the request is checked, turned into a numbered command, and
the group's answer is turned into an outcome. Each command has a token that knows what its answer means.
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
MAX_UNSENT = 10_000
"""Outcomes that wait to be sent: past it, no further request is taken from a client that does not read."""
MAX_UNSENT_BYTES = 1 << 20
"""Bytes of those outcomes, deliveries apart."""
MAX_UNDER_WAY = 10_000
"""Requests that their group has not answered yet, publishing apart: past it, no further request is taken."""
MAX_UINT64 = (1 << 64) - 1


@dataclass(slots=True)
class Consumer:
    tag: str
    group: int
    queue: int
    attach: int = 0
    attaching: int = 0
    """requests to attach it that are not answered"""


@dataclass(frozen=True, slots=True)
class Disposition:
    """What becomes of delivered messages. kind: None where the client has not said. tags: ranges (first, last) of
    delivery tags of the attachment `attach`. delivery_failed, undeliverable_here: of Modify only."""

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
    """What a command's answer means. queue: what its request named, None where no queue can be outdated."""

    @property
    def queue(self) -> CatalogQueue | None: ...

    def answered(self, session: ClientSession, reply: Reply | None) -> None: ...


@dataclass(frozen=True, slots=True)
class _Published:
    """A batch: client sequences first..last, of `size` bytes."""

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
    """A request that is done or refused. request_id 0: no answer is wanted."""

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
    """The session has to be known to a group before it can ask what the group has taken."""

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
        """by queue id: who holds what was got"""
        self._gets: dict[int, deque[int]] = {}
        """by queue id: requests whose messages are about to come"""
        self._kept: dict[int, tuple[KeptFields | None, int]] = {}
        """by queue id: see _look_up_kept"""
        self._numbers = ProducerNumbers()
        self._new_from = 0
        """What the client says: numbers from here on were sent in no earlier session. 0: not told."""
        self._taken_to: dict[int, int] = {}
        """By id of each queue whose group was asked: numbers above it were taken in no earlier session."""
        self._origin = (b"", 0)
        """producer, epoch"""
        self._undecided = 0
        """batches that their groups have not decided"""
        self._under_way = 0
        """other requests that their groups have not answered"""
        self._bytes = 0
        self._bytes_of: Counter[int] = Counter()
        """by group: what is taken of the node's window"""
        self._room = asyncio.Event()
        self._work = asyncio.Event()
        self._end: status.StatusError | None = None
        self._is_input_over = False
        self._input_error: BaseException | None = None
        self._is_clean = False
        """the client has said that nothing is unconfirmed"""

    # ---- its life

    def open(self, producer: bytes, epoch: int, owner: int, first_new: int = 0) -> None:
        """producer: 16 bytes that name the client's producer; its epoch grows with each session. owner: as in
        RegisterProducer. first_new: client sequences from there on were sent in no earlier session; 0: not told.
        StatusError where this node opens no session."""
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
        """The client says that it sends nothing again. The session ends cleanly if everything was decided by then."""
        self._is_clean = not (self._undecided or self.outbox.has_decisions)

    def input_over(self, error: BaseException | None) -> None:
        """No request comes any more. error: why not, where that is wrong; `outcomes` raises it."""
        self._is_input_over, self._input_error = True, error
        self._work.set()

    def release(self) -> None:
        """The session is over for its client: gives back everything that it holds at this node."""
        if self.number:
            self._hub.end_session(self.number, is_clean=self._is_clean)
        for group, size in self._bytes_of.items():
            if size:
                self._hub.publishing.give(size, group)
        self._bytes_of.clear()

    @property
    def is_full(self) -> bool:
        """Whether no request should be taken for now: earlier ones wait for their group, or outcomes for the client."""
        return (
            self._bytes > self._hub.session_window
            or self._under_way > MAX_UNDER_WAY
            or len(self.outbox) > MAX_UNSENT
            or self.outbox.size_bytes > MAX_UNSENT_BYTES
        )

    async def room(self) -> None:
        """Returns when the session is not full."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    async def outcomes(self) -> AsyncIterator[Outcome]:
        """What to tell the client, until the requests are over and everything is decided and told. StatusError where
        the service ends the session, and the error of `input_over`."""
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
        """Whether what waited here is still held by the attachment it was handed to: a consumer that was cancelled, or
        attached again, has returned it, and another consumer may have it."""
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
                    return  # given back while the part before was on its way, or this one was repaired
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

    # ---- what the node says (hub.SessionHandler)

    def answered(self, token: Token, reply: Reply | None) -> None:
        if self._is_outdated(token, reply):
            self.ended("outdated")  # the client sends it again, in order, in its next session
            return
        token.answered(self, reply)
        self._work.set()

    def _is_outdated(self, token: Token, reply: Reply | None) -> bool:
        """Whether this was refused because the node took the queue's name for a queue that was deleted."""
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

    # ---- what answers mean: tokens call these

    def request_answered(self) -> None:
        """A request that is no batch is not under way any more."""
        self._under_way -= 1
        self._room.set()

    def batch_decided(self, group: int, size: int) -> None:
        """A batch of so many bytes waits for its group no more."""
        self._undecided -= 1
        self._bytes -= size
        self._bytes_of[group] -= size
        self._hub.publishing.give(size, group)
        self._room.set()

    def attach_refused(self, consumer: Consumer) -> None:
        """The consumer is forgotten, unless it is attached already or another request may attach it. A consumer of the
        same tag may have taken its place."""
        is_known = self.consumers.get(consumer.tag) is consumer
        if is_known and not consumer.attach and not consumer.attaching:
            del self.consumers[consumer.tag]

    def get_answered(self, queue: int, request_id: int) -> None:
        """The messages that a get has taken are about to be delivered."""
        self._gets.setdefault(queue, deque()).append(request_id)

    def finish(self, request_id: int, reply: Reply | None) -> None:
        """A request is done, or refused by its group."""
        if isinstance(reply, Refused) and request_id:
            self.outbox.add(Failed(request_id, status.of_refused(reply)))
        else:
            self.outbox.done(request_id)

    # ---- publishing

    async def publish(self, name: str, first: int, lowest_unconfirmed: int, batch: bytes) -> None:
        """Messages for the queue of this name, numbered from `first` on. The outcome is among Confirms. StatusError
        (UNAVAILABLE) where the session has to end, so that its client sends the batch again, in order."""
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
        """What this session keeps of the messages it publishes to a queue: what the queue keeps when it begins."""
        if queue.config.filter_enabled:  # a change of policies that was answered elsewhere counts
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
        """Rejects the messages of a batch, except those that were taken in an earlier session: these are confirmed,
        because their producer would publish them once more under new numbers."""
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
        """Which of the messages the queue's group has taken in an earlier session. It can tell when this session is
        registered there: earlier sessions are fenced from then on, so what it has not taken by then it never takes."""
        if 0 < self._new_from <= first or first > self._taken_to.get(queue.id, MAX_UINT64):
            return ()
        group = queue.group
        if queue.id not in self._taken_to:
            current = (await self._hub.current_catalog()).queue(queue.name)
            if current is None or current.id != queue.id:
                raise status.of_ended("outdated")  # another group may know of these messages
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
        """A consumer of the queue of this name; one of the same tag is attached again. Attached or Failed follows."""
        try:
            if not 1 <= len(tag.encode()) <= c.MAX_NAME_BYTES:
                raise status.invalid("bad_argument", f"a consumer tag has 1..{c.MAX_NAME_BYTES} bytes")
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
        """The consumer of this tag; None, and the request is refused, where there is none."""
        consumer = self.consumers.get(tag)
        if consumer is None:
            text = f"this session has no consumer {tag!r}; attached: {len(self.consumers)} others"
            self._refuse(request_id, status.invalid("not_attached", text))
        return consumer

    def getter(self, request_id: int, name: str) -> Consumer | None:
        """The holder of what was got from the queue of this name; None, and the request is refused, where nothing
        was."""
        queue = self._hub.catalog.queue(name)
        getter = None if queue is None else self._getters.get(queue.id)
        if getter is None:
            text = f"nothing was got from queue {name!r} in this session"
            self._refuse(request_id, status.invalid("not_attached", text))
        return getter

    def credit(self, request_id: int, tag: str, credit_to: int, *, drain: bool) -> None:
        """The consumer may be delivered tags up to `credit_to`. drain: give back the credit that finds no message."""
        consumer = self.consumer(request_id, tag)
        if consumer is not None:
            command = c.Credit(consumer.queue, consumer.tag, credit_to, drain)
            self._submit(consumer, command, _Requested(request_id))

    def settle(self, request_id: int, consumer: Consumer, disposition: Disposition) -> None:
        """Settles, returns, discards or modifies what the consumer holds."""
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
        """Ends a consumer. return_held: what it holds goes back to the queue; otherwise it may still be settled."""
        consumer = self.consumer(request_id, tag)
        if consumer is not None:
            command = c.Cancel(consumer.queue, consumer.tag, return_held)
            self._submit(consumer, command, _Requested(request_id))
            if return_held:
                del self.consumers[consumer.tag]

    async def get(self, request_id: int, name: str, count: int, *, settled: bool) -> None:
        """Takes up to `count` messages that are ready. settled: they leave the queue at once."""
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
