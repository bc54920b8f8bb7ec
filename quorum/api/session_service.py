"""A client's session stream: requests in, responses out.

Requests are taken in order. What a request does is decided elsewhere: here it is checked against the protocol, turned
into a numbered command, and its answer is turned into a response. Responses leave through one writer, which merges
confirms and reads message bodies only when it is about to send them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import grpc
import structlog
from google.rpc import code_pb2, status_pb2

from fifo import commands as c
from fifo.effects import AttachedReply, Confirmed, Deliver, Notify, Ok, Refused, Reply
from fifo.group_machine import MAX_CLIENT_SEQUENCE
from fifo.limits import PRODUCTION
from quorum.api import deliveries, status
from quorum.api.filters import expression_bytes, kept_fields
from quorum.api.hub import Hub
from quorum.api.owners import owner_of
from quorum.catalog.arguments import ArgumentError
from quorum.catalog.queues import CatalogQueue
from quorum.log import LogError
from quorum.node import events
from quorum.node.errors import BodyUnreadable
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire import batches
from quorum.v1 import queue_pb2 as pb
from quorum_selectors.errors import EncodingError, FilterError, SelectorError
from quorum_selectors.wellknown import KeptFields

MAX_CONSUMERS = 1_000
MAX_RANGES = 10_000
MAX_TAG_BYTES = 255
MAX_UNSENT = 10_000
"""Answers that wait to be sent: past it, a client that does not read is not read either."""
MAX_UNSENT_BYTES = 1 << 20
"""Bytes of those answers, deliveries apart: they wait as references."""
MAX_UNDER_WAY = 10_000
"""Requests that their group has not answered yet, publishing apart: past it, the stream is not read."""
MAX_UINT64 = (1 << 64) - 1

_OUTCOMES: dict[int, type[c.Settle]] = {
    pb.Disposition.SETTLE: c.Settle,
    pb.Disposition.RETURN: c.Return,
    pb.Disposition.DISCARD: c.Discard,
    pb.Disposition.MODIFY: c.Modify,
}


@dataclass(slots=True)
class _Consumer:
    tag: str
    group: int
    queue: int
    attach: int = 0
    attaching: int = 0
    """requests to attach it that are not answered"""


@dataclass(frozen=True, slots=True)
class _Published:
    queue: CatalogQueue
    first: int
    last: int
    size: int


@dataclass(frozen=True, slots=True)
class _Attaching:
    queue: CatalogQueue
    request_id: int
    consumer: _Consumer


@dataclass(frozen=True, slots=True)
class _Asked:
    """request_id 0: no answer is wanted."""

    request_id: int


@dataclass(frozen=True, slots=True)
class _Getting:
    queue: CatalogQueue
    request_id: int


class Stream:
    """One Session call."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._number = 0
        self._consumers: dict[str, _Consumer] = {}
        self._kept: dict[int, tuple[KeptFields | None, int]] = {}
        """by queue id: see _look_up_kept"""
        self._next_sequence = 1
        self._new_from = 0
        """What the client says: numbers from here on were sent in no earlier session. 0: not told."""
        self._taken_to: dict[int, int] = {}
        """By id of each queue whose group was asked: numbers above it were taken in no earlier session."""
        self._origin = (b"", 0)
        """producer, epoch"""
        self._unanswered = 0
        self._under_way = 0
        self._bytes = 0
        self._bytes_of: Counter[int] = Counter()
        """by group: what is taken of the node's window"""
        self._room = asyncio.Event()
        self._work = asyncio.Event()
        self._confirmed: list[tuple[int, int]] = []
        self._rejected: list[pb.Rejection] = []
        self._done: list[int] = []
        self._outbox: deque[pb.SessionResponse | tuple[int, Deliver, int]] = deque()
        self._unsent_bytes = 0
        """of rejections, and of responses in the outbox"""
        self._gets: dict[int, deque[int]] = {}
        self._getters: dict[int, _Consumer] = {}
        self._ended: status.StatusError | None = None
        self._is_clean = False
        """the client has said that nothing is unconfirmed"""

    # ---- what the hub says (StreamHandler)

    def answered(self, token: object, reply: Reply | None) -> None:
        if not isinstance(token, _Published):
            self._under_way -= 1
            self._room.set()
        if self._is_outdated(token, reply):
            self.ended("outdated")  # the client sends it again, in order, on its next stream
            return
        if isinstance(token, asyncio.Future):
            if not token.done():
                token.set_result(reply)
        elif isinstance(token, _Published):
            self._unanswered -= 1
            self._bytes -= token.size
            self._bytes_of[token.queue.group] -= token.size
            self._hub.publishing.give(token.size, token.queue.group)
            self._room.set()
            if isinstance(reply, Refused):
                self._reject(token.first, token.last, status.of_refused(reply))
            else:
                assert isinstance(reply, Confirmed)
                self._decided(token, reply)
        elif isinstance(token, _Attaching):
            consumer = token.consumer
            consumer.attaching -= 1
            if isinstance(reply, AttachedReply):
                consumer.attach = reply.attach
                attached = pb.Attached(
                    request_id=token.request_id, consumer_tag=consumer.tag, attach=reply.attach
                )
                self._send(pb.SessionResponse(attached=attached))
            else:
                is_known = (
                    self._consumers.get(consumer.tag) is consumer
                )  # it may be cancelled and another one
                if is_known and not consumer.attach and not consumer.attaching:
                    del self._consumers[consumer.tag]  # else it is attached, or perhaps will be
                self._fail(token.request_id, reply)
        elif isinstance(token, _Getting):
            if isinstance(reply, Ok) and reply.count:
                self._gets.setdefault(token.queue.id, deque()).append(token.request_id)
            else:
                self._finish(token.request_id, reply)
        else:
            assert isinstance(token, _Asked)
            self._finish(token.request_id, reply)
        self._work.set()

    def _is_outdated(self, token: object, reply: Reply | None) -> bool:
        """Whether this was refused because the node took the queue's name for a queue that was deleted."""
        return (
            isinstance(reply, Refused)
            and reply.reason == "not_found"
            and isinstance(token, _Published | _Attaching | _Getting)
            and self._hub.is_outdated(token.queue)
        )

    def _decided(self, token: _Published, reply: Confirmed) -> None:
        """A batch of which some messages were perhaps refused."""
        first = token.first
        for start, end, refused in reply.refused:
            if first < start:
                self._confirmed.append((first, start - 1))
            self._reject(start, end, status.of_refused(refused))
            first = end + 1
        if first <= token.last:
            self._confirmed.append((first, token.last))

    def _finish(self, request_id: int, reply: Reply | None) -> None:
        if not request_id:
            return
        if isinstance(reply, Refused):
            self._fail(request_id, reply)
        else:
            self._done.append(request_id)

    def _fail(self, request_id: int, reply: Reply | None) -> None:
        assert isinstance(reply, Refused)
        self._send(_failed(request_id, status.StatusError(status.of_refused(reply))))

    def _send(self, response: pb.SessionResponse) -> None:
        self._unsent_bytes += response.ByteSize()
        self._outbox.append(response)

    def _reject(self, first: int, last: int, why: status_pb2.Status) -> None:
        rejection = pb.Rejection(range=pb.Range(first=first, last=last), status=why)
        self._unsent_bytes += rejection.ByteSize()
        self._rejected.append(rejection)

    def delivered(self, group: int, deliver: Deliver) -> None:
        request_id = 0
        if not deliver.consumer_tag and self._gets.get(deliver.queue):
            request_id = self._gets[deliver.queue].popleft()
        self._outbox.append((group, deliver, request_id))
        self._work.set()

    def notified(self, notify: Notify) -> None:
        if notify.event == "drained":
            drained = pb.Drained(consumer_tag=notify.consumer_tag, next_tag=notify.value)
            self._send(pb.SessionResponse(drained=drained))
        elif notify.event == "queue_deleted":
            self._consumers.pop(notify.consumer_tag, None)
            cancelled = pb.Cancelled(consumer_tag=notify.consumer_tag)
            cancelled.status.CopyFrom(status.make(5, "queue_deleted", "the queue was deleted"))
            self._send(pb.SessionResponse(cancelled=cancelled))
        else:
            self.ended("fenced")
        self._work.set()

    def ended(self, reason: str) -> None:
        if self._ended is None:
            self._ended = status.of_ended(reason)
        self._work.set()
        self._room.set()

    def consumed_groups(self) -> set[int]:
        return {each.group for holders in (self._consumers, self._getters) for each in holders.values()}

    # ---- the call

    async def run(
        self,
        requests: AsyncIterator[pb.SessionRequest],
        context: grpc.aio.ServicerContext[pb.SessionRequest, pb.SessionResponse],
    ) -> None:
        reading: asyncio.Task[None] | None = None
        try:
            await self._open(requests, context)
            reading = asyncio.create_task(self._read(requests))
            await self._write(context, reading)
        except status.StatusError as error:
            await status.abort(context, error)
        finally:
            if reading is not None:
                reading.cancel()
            if self._number:
                self._hub.end_session(self._number, is_clean=self._is_clean)
            for group, size in self._bytes_of.items():
                if size:
                    self._hub.publishing.give(size, group)
            self._bytes_of.clear()

    async def _open(
        self,
        requests: AsyncIterator[pb.SessionRequest],
        context: grpc.aio.ServicerContext[pb.SessionRequest, pb.SessionResponse],
    ) -> None:
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("request") != "open":
            raise status.invalid("bad_session", "the first request of a session must be open")
        if len(first.open.producer_id) != 16:
            length = len(first.open.producer_id)
            raise status.invalid("bad_session", f"producer_id has {length} bytes; it must have 16")
        if first.open.epoch < 1:
            raise status.invalid("bad_session", "epoch must be 1 or more, and grow by 1 at each reconnect")
        refusal = self._hub.refusal()
        if refusal is not None:
            raise status.of_ended(refusal)
        self._new_from = first.open.first_new_sequence or int(first.open.epoch == 1)
        self._origin = (first.open.producer_id, first.open.epoch)
        owner = owner_of(context.peer())
        self._number = self._hub.open_session(self, first.open.producer_id, first.open.epoch, owner)
        limits = self._hub.limits
        opened = pb.Opened(
            node=self._hub.member.config.name,
            session=self._number,
            window_bytes=self._hub.session_window,
            max_message_bytes=limits.max_message_bytes,
            max_batch_messages=limits.max_messages,
            max_window_messages=PRODUCTION.window,
            max_batch_bytes=limits.max_batch_bytes,
        )
        await context.write(pb.SessionResponse(opened=opened))

    # ---- reading

    async def _read(self, requests: AsyncIterator[pb.SessionRequest]) -> None:
        release = getattr(requests, "release", None)  # api/calls.py: bytes that this request takes in memory
        try:
            async for request in requests:
                await self._take(request)
                del request
                if self._is_full():
                    if release is not None:
                        release()
                    await self._wait_for_room()
        finally:
            self._work.set()

    async def _take(self, request: pb.SessionRequest) -> None:
        kind = request.WhichOneof("request")
        self._is_clean = False
        if kind == "publish":
            await self._publish(request.publish)
        elif kind == "disposition":
            self._disposition(request.disposition)
        elif kind == "credit":
            self._credit(request.credit)
        elif kind == "attach":
            await self._attach(request.attach)
        elif kind == "cancel":
            self._cancel(request.cancel)
        elif kind == "get":
            await self._get(request.get)
        elif kind == "close":
            self._is_clean = not (self._unanswered or self._confirmed or self._rejected)
        else:
            raise status.invalid("bad_session", f"unexpected request {kind or 'without content'}")

    def _is_full(self) -> bool:
        """Whether the client is not read for now: what it has asked for waits for a group, or its answers for it."""
        return (
            self._bytes > self._hub.session_window
            or self._under_way > MAX_UNDER_WAY
            or self._unsent() > MAX_UNSENT
            or self._unsent_bytes > MAX_UNSENT_BYTES
        )

    async def _wait_for_room(self) -> None:
        while self._is_full():
            self._room.clear()
            await self._room.wait()

    def _unsent(self) -> int:
        return len(self._confirmed) + len(self._rejected) + len(self._done) + len(self._outbox)

    def _submit(self, consumer: _Consumer, command: c.Command, token: object) -> None:
        self._under_way += 1
        self._hub.submit(events.Submit(self._number, consumer.group, command, token))

    async def _publish(self, request: pb.PublishBatch) -> None:
        batch, first = request.batch, request.first_sequence
        queue = None
        try:
            queue = await self._hub.queue(request.queue)
            kept, max_bytes = self._kept.get(queue.id) or await self._look_up_kept(queue)
            checked = batches.check(batch, self._hub.limits, kept, max_bytes)
            count = checked.count
            self._check_sequence(request, count)
            self._hub.check_room(queue.group)
        except (batches.BatchError, status.StatusError) as error:
            if isinstance(error, status.StatusError) and error.status.code == code_pb2.UNAVAILABLE:
                raise  # the client sends it again, in order, on its next stream
            why = error.status if isinstance(error, status.StatusError) else status.of_error(error)
            await self._refuse_batch(request, queue, why)
            return
        self._next_sequence = first + count
        size = len(batch)
        await self._hub.take_room(queue.group, size)
        self._bytes += size
        self._bytes_of[queue.group] += size
        self._unanswered += 1
        enqueue = c.Enqueue(
            queue.id,
            first,
            request.lowest_unconfirmed,
            count,
            checked.size_bytes,
            checked.ttl_ms,
            checked.ttls_ms,
            checked.columns,
        )
        token = _Published(queue, first, first + count - 1, size)
        self._hub.submit(events.Submit(self._number, queue.group, enqueue, token, batch))

    async def _look_up_kept(self, queue: CatalogQueue) -> tuple[KeptFields | None, int]:
        """What this session keeps of the messages it publishes to a queue: what the queue keeps when it begins."""
        if queue.config.filter_enabled:  # a change of policies that was answered elsewhere counts
            kept = await self._hub.ask_now(lambda member: kept_fields(member.catalog, queue), (SYSTEM_GROUP,))
        else:
            kept = kept_fields(self._hub.member.catalog, queue)
        self._kept[queue.id] = kept
        return kept

    async def _refuse_batch(
        self, request: pb.PublishBatch, queue: CatalogQueue | None, why: status_pb2.Status
    ) -> None:
        """Rejects the messages of a batch, except those that were taken in an earlier session: these are confirmed,
        because their producer would publish them once more under new numbers."""
        first = request.first_sequence
        count = min(batches.claimed_count(request.batch), PRODUCTION.window)
        last = min(first + count - 1, MAX_UINT64)
        taken: list[tuple[int, int]] = []
        if queue is not None and self._is_in_sequence(request, count):
            taken = await self._taken_before(queue, first, last)
        if last < MAX_CLIENT_SEQUENCE:
            self._next_sequence = max(self._next_sequence, last + 1)
        for start, end in taken:
            if first < start:
                self._reject(first, start - 1, why)
            self._confirmed.append((start, end))
            first = end + 1
        if first <= last:
            self._reject(first, last, why)
        self._work.set()

    async def _taken_before(self, queue: CatalogQueue, first: int, last: int) -> list[tuple[int, int]]:
        """Which of the messages the queue's group has taken in an earlier session. It can tell when this session is
        registered there: earlier sessions are fenced from then on, so what it has not taken by then it never takes."""
        if 0 < self._new_from <= first or first > self._taken_to.get(queue.id, MAX_UINT64):
            return []
        group, name = queue.group, queue.name
        if queue.id not in self._taken_to:
            current = await self._hub.ask_now(lambda member: member.catalog.queue(name), (SYSTEM_GROUP,))
            if current is None or current.id != queue.id:
                raise status.of_ended("outdated")  # another group may know of these messages
            registered: asyncio.Future[Reply | None] = self._hub.loop.create_future()
            self._under_way += 1
            self._hub.submit(events.Submit(self._number, group, c.Wake(), registered))
            await self._hub.decided((group,), registered)
        found = await self._hub.ask(
            lambda member: member.queue_machine(group).taken(*self._origin, first, last), group
        )
        if found is None:
            raise status.of_ended("resync")
        ranges, self._taken_to[queue.id] = found
        return ranges

    def _is_in_sequence(self, request: pb.PublishBatch, count: int) -> bool:
        try:
            self._check_sequence(request, count)
        except status.StatusError:
            return False
        return True

    def _check_sequence(self, request: pb.PublishBatch, count: int) -> None:
        first, lowest = request.first_sequence, request.lowest_unconfirmed
        if first < self._next_sequence:
            raise status.invalid(
                "wrong_sequence", f"first_sequence {first} was used before; the next is {self._next_sequence}"
            )
        if first + count > MAX_CLIENT_SEQUENCE:
            raise status.invalid(
                "wrong_sequence",
                f"first_sequence {first}; a producer's numbers end at {MAX_CLIENT_SEQUENCE - 1}",
            )
        if not 1 <= lowest <= first:
            raise status.invalid(
                "wrong_sequence",
                f"lowest_unconfirmed {lowest}; allowed: 1..{first} (this batch's first_sequence)",
            )
        if first + count - lowest > PRODUCTION.window:
            raise status.invalid(
                "wrong_sequence",
                f"{first + count - lowest} messages from lowest_unconfirmed {lowest} on; "
                f"at most {PRODUCTION.window} may be unconfirmed",
            )

    async def _attach(self, request: pb.Attach) -> None:
        tag = request.consumer_tag
        try:
            if not 1 <= len(tag.encode()) <= MAX_TAG_BYTES:
                raise status.invalid("bad_argument", f"a consumer tag has 1..{MAX_TAG_BYTES} bytes")
            if tag not in self._consumers and len(self._consumers) >= MAX_CONSUMERS:
                raise status.invalid("limit", f"a session has at most {MAX_CONSUMERS} consumers")
            queue = await self._hub.queue(request.queue)
            known = self._consumers.get(tag)
            if known is not None and known.queue != queue.id:
                raise status.invalid(
                    "in_use", f"consumer {tag!r} of this session is attached to another queue"
                )
            selector = expression_bytes(request, queue)
        except status.StatusError as error:
            self._refuse(request.request_id, error)
            return
        except (SelectorError, FilterError, ArgumentError, EncodingError) as error:
            self._refuse(request.request_id, status.StatusError(status.of_error(error)))
            return
        consumer = known or _Consumer(tag, queue.group, queue.id)
        self._consumers[tag] = consumer
        consumer.attaching += 1
        command = c.Attach(queue.id, tag, selector, request.credit_to)
        self._submit(consumer, command, _Attaching(queue, request.request_id, consumer))

    def _refuse(self, request_id: int, error: status.StatusError) -> None:
        self._send(_failed(request_id, error))
        self._work.set()

    def _consumer(self, tag: str, request_id: int) -> _Consumer | None:
        consumer = self._consumers.get(tag)
        if consumer is None:
            text = f"this session has no consumer {tag!r}; attached: {len(self._consumers)} others"
            self._refuse(request_id, status.invalid("not_attached", text))
        return consumer

    def _credit(self, request: pb.Credit) -> None:
        consumer = self._consumer(request.consumer_tag, request.request_id)
        if consumer is not None:
            command = c.Credit(consumer.queue, consumer.tag, request.credit_to, request.drain)
            self._submit(consumer, command, _Asked(request.request_id))

    def _disposition(self, request: pb.Disposition) -> None:
        consumer: _Consumer | None
        if request.consumer_tag:
            consumer = self._consumer(request.consumer_tag, request.request_id)
        else:
            queue = self._hub.member.catalog.queue(request.queue)
            consumer = None if queue is None else self._getters.get(queue.id)
            if consumer is None:
                self._refuse(
                    request.request_id,
                    status.invalid(
                        "not_attached", f"nothing was got from queue {request.queue!r} in this session"
                    ),
                )
        if consumer is None:
            return
        kind = _OUTCOMES.get(request.outcome)
        tags = tuple((each.first, each.last) for each in request.tags)
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
            self._refuse(request.request_id, status.invalid("bad_argument", text))
            return
        if kind is c.Modify:
            command: c.Settle = c.Modify(
                consumer.queue,
                consumer.tag,
                request.attach,
                tags,
                request.credit_to,
                request.delivery_failed,
                request.undeliverable_here,
            )
        else:
            command = kind(consumer.queue, consumer.tag, request.attach, tags, request.credit_to)
        self._submit(consumer, command, _Asked(request.request_id))

    def _cancel(self, request: pb.Cancel) -> None:
        consumer = self._consumer(request.consumer_tag, request.request_id)
        if consumer is not None:
            command = c.Cancel(consumer.queue, consumer.tag, request.return_held)
            self._submit(consumer, command, _Asked(request.request_id))
            if request.return_held:
                del self._consumers[consumer.tag]

    async def _get(self, request: pb.SessionGet) -> None:
        try:
            queue = await self._hub.queue(request.queue)
            if not 1 <= request.count <= self._hub.limits.max_messages:
                raise status.invalid(
                    "bad_argument",
                    f"get {request.count} messages; allowed: 1..{self._hub.limits.max_messages}",
                )
        except status.StatusError as error:
            self._refuse(request.request_id, error)
            return
        consumer = self._getters.setdefault(queue.id, _Consumer("", queue.group, queue.id))
        command = c.Get(queue.id, request.count, request.settled)
        self._submit(consumer, command, _Getting(queue, request.request_id))

    # ---- writing

    async def _write(
        self,
        context: grpc.aio.ServicerContext[pb.SessionRequest, pb.SessionResponse],
        reading: asyncio.Task[None],
    ) -> None:
        response: pb.SessionResponse
        while True:
            self._work.clear()
            async for response in self._hub.readable(self._responses()):
                await context.write(response)
                self._room.set()
            if self._ended is not None:
                raise self._ended
            if reading.done():
                reading.result()
                if self._unanswered == 0 and not self._outbox and not self._confirmed and not self._rejected:
                    return
            await self._work.wait()

    def _responses(self) -> Iterator[pb.SessionResponse | BodyUnreadable]:
        """What there is to send now; confirms first, merged."""
        while self._confirmed or self._rejected or self._done or self._outbox:
            if self._confirmed or self._rejected:
                confirms = pb.Confirms(rejected=self._rejected)
                for first, last in _merged(self._confirmed):
                    confirms.confirmed.add(first=first, last=last)
                self._unsent_bytes -= sum(each.ByteSize() for each in self._rejected)
                self._confirmed, self._rejected = [], []
                yield pb.SessionResponse(confirms=confirms)
            if self._done:
                done, self._done = self._done, []
                yield pb.SessionResponse(done=pb.Done(request_ids=done))
            if self._outbox:
                item = self._outbox.popleft()
                if isinstance(item, pb.SessionResponse):
                    self._unsent_bytes -= item.ByteSize()
                    yield item
                elif self._is_current(item[1]):
                    yield from self._deliver(*item)

    def _is_current(self, deliver: Deliver) -> bool:
        """Whether what waited here is still held by the attachment it was handed to: a consumer that was cancelled, or
        attached anew, has given it back, and it may be with another one."""
        consumer = self._consumers.get(deliver.consumer_tag)
        return not deliver.consumer_tag or (consumer is not None and consumer.attach == deliver.attach)

    def _deliver(
        self, group: int, deliver: Deliver, request_id: int
    ) -> Iterator[pb.SessionResponse | BodyUnreadable]:
        if not deliver.consumer_tag:
            self._getters.setdefault(
                deliver.queue, _Consumer("", group, deliver.queue)
            ).attach = deliver.attach
        try:
            for delivery in deliveries.responses(self._hub.reader, group, deliver):
                if isinstance(delivery, BodyUnreadable):
                    yield delivery
                    continue
                if not self._is_current(deliver):
                    return  # given back while the part before was on its way, or this one was mended
                if not self._hub.may_deliver(group):
                    raise status.of_ended("node_down")
                if self._ended is not None:
                    raise self._ended
                yield pb.SessionResponse(delivery=delivery)
        except LogError as error:
            structlog.get_logger().error("a body cannot be read", group=group, error=str(error))
            raise status.of_ended("unreadable") from error
        if request_id:
            self._done.append(request_id)


def _failed(request_id: int, error: status.StatusError) -> pb.SessionResponse:
    failed = pb.Failed(request_id=request_id)
    failed.status.CopyFrom(error.status)
    return pb.SessionResponse(failed=failed)


def _merged(ranges: list[tuple[int, int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for first, last in sorted(ranges):
        if merged and merged[-1][1] == first - 1:
            merged[-1][1] = last
        else:
            merged.append([first, last])
    return merged
