"""A small cluster in memory behind real gRPC servers, to test the client against.

`FakeCluster` is the state all its nodes share, as if replication took no time: queues, and what each producer
has had accepted. `FakeNode` is one gRPC server on it. The session rules of queue.proto are kept: numbers are
taken once, a higher epoch fences lower ones, credit is absolute, tags start at 1 at each attach, a lost
stream returns what its consumers hold. Selectors are known by their text only: `cluster.selectors` maps a
text to a predicate.

Faults on command: `node.cut()` breaks the streams, `node.stop()` takes the server away, `node.muted` reads
and never answers, `node.is_cut_off` refuses attaches for want of a leader, `node.has_no_majority` answers calls of
administration only about the cluster's status, `node.holds_commits` says that
no commit is finished yet, `cluster.holds_confirms` accepts publishes and keeps the answers,
`cluster.cut_after` breaks the stream right after so many publishes were accepted, unanswered;
`node.losing` carries the next delete or purge out, is called, and the answer is lost.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from quorum.v1 import admin_pb2, admin_pb2_grpc, queue_pb2, queue_pb2_grpc

Predicate = Callable[[Any], bool]


class Refusal(Exception):
    def __init__(self, code: int, reason: str, text: str, **metadata: str) -> None:
        super().__init__(text)
        detail = any_pb2.Any()
        metadata = {"why": text, **metadata}
        detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="quorum", metadata=metadata))
        self.status = status_pb2.Status(code=code, message=text, details=[detail])


@dataclass
class StoredMessage:
    sequence: int
    body: bytes
    properties: Any
    handed_out: bool = False
    failed: int = 0


@dataclass
class FakeQueue:
    name: str
    id: int
    arguments: dict[str, Any]
    next_sequence: int = 1
    ready: dict[int, StoredMessage] = field(default_factory=dict)
    consumers: list[FakeConsumer] = field(default_factory=list)
    max_length: int = -1
    arrived: list[bytes] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    purged: int = 0

    def put_back(self, message: StoredMessage) -> None:
        message.handed_out = True
        self.ready[message.sequence] = message
        self.ready = dict(sorted(self.ready.items()))


@dataclass
class FakeConsumer:
    stream: FakeStream
    queue: FakeQueue
    tag: str
    attach: int
    credit_to: int
    matches: Predicate
    next_tag: int = 1
    held: dict[int, StoredMessage] = field(default_factory=dict)


@dataclass
class FakeProducer:
    epoch: int = 0
    stream: FakeStream | None = None
    accepted: set[int] = field(default_factory=set)
    last_tx: int = 0
    """the highest number of a transaction"""
    committed: set[int] = field(default_factory=set)


class FakeCluster:
    def __init__(self) -> None:
        self.queues: dict[str, FakeQueue] = {}
        self.leaders: dict[str, FakeNode] = {}
        """by queue, where clients can find one out"""
        self.policies: dict[str, Any] = {}
        self.exchanges: dict[str, Any] = {}
        self.bindings: list[Any] = []
        self.transactions: list[Any] = []
        self.producers: dict[bytes, FakeProducer] = {}
        self.selectors: dict[str, Predicate] = {}
        self.limits = queue_pb2.Opened(
            window_bytes=1 << 20, max_message_bytes=1 << 16, max_batch_messages=1000, max_window_messages=2000
        )
        self.holds_confirms = False
        self.holds_gets = False
        self.holds_dispositions = False
        self.holds_attaches = False
        self.held_attaches: list[Callable[[], None]] = []
        self.cut_after = -1
        self.max_unconfirmed_seen = 0
        self.publish_requests: list[tuple[int, int, int]] = []  # epoch, first, lowest unconfirmed
        self.dispositions: list[Any] = []
        self._held_confirms: list[tuple[FakeStream, int, int]] = []
        self._last_id = 0

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def declare(self, name: str, **arguments: Any) -> FakeQueue:
        queue = FakeQueue(name, self.new_id(), arguments)
        self.queues[name] = queue
        return queue

    def queue(self, name: str) -> FakeQueue:
        if name not in self.queues:
            raise Refusal(code_pb2.NOT_FOUND, "NOT_FOUND", f"there is no queue {name!r}", queue=name)
        return self.queues[name]

    def release_attaches(self) -> None:
        self.holds_attaches = False
        held, self.held_attaches = self.held_attaches, []
        for attach in held:
            attach()

    def release_confirms(self) -> None:
        held, self._held_confirms = self._held_confirms, []
        for stream, first, last in held:
            stream.confirm(first, last)

    def accept(self, stream: FakeStream, publish: Any) -> None:
        """Takes what of a batch was not taken before, and confirms all of it."""
        if publish.exchange:
            self.accept_routed(stream, publish)
            return
        if publish.routing_keys:
            self.accept_each(stream, publish)
            return
        queue = self.queue(publish.routing_key)
        batch = parse(publish.batch)
        first = publish.first_sequence
        last = first + batch.count - 1
        full = Refusal(code_pb2.RESOURCE_EXHAUSTED, "QUEUE_FULL", f"{queue.name} is full")
        room = max(0, queue.max_length - len(queue.ready)) if queue.max_length >= 0 else batch.count
        if room < batch.count:
            if not (publish.independent and room):
                raise full
            stream.reject(first + room, last, full)
            last = first + room - 1
        for ordinal, (body, properties) in enumerate(unpack(batch)[: last - first + 1]):
            self.take(stream, queue, first + ordinal, body, properties)
        self.answer_publish(stream, first, last)
        self.serve(queue)

    def accept_each(self, stream: FakeStream, publish: Any) -> None:
        """A batch with a queue for each message: all of it, or nothing."""
        queues = [self.queue(name) for name in publish.routing_keys]
        first, messages = publish.first_sequence, unpack(parse(publish.batch))
        for ordinal, (queue, (body, properties)) in enumerate(zip(queues, messages, strict=True)):
            self.take(stream, queue, first + ordinal, body, properties)
        self.answer_publish(stream, first, first + len(queues) - 1)
        for queue in queues:
            self.serve(queue)

    def accept_routed(self, stream: FakeStream, publish: Any) -> None:
        """A batch for an exchange, which compares whole keys: each message by itself."""
        if publish.exchange not in self.exchanges:
            raise Refusal(code_pb2.NOT_FOUND, "NO_EXCHANGE", f"there is no exchange {publish.exchange!r}")
        messages = unpack(parse(publish.batch))
        keys = list(publish.routing_keys) or [publish.routing_key] * len(messages)
        taken = []
        for number, key, (body, properties) in zip(
            count(publish.first_sequence), keys, messages, strict=False
        ):
            names = [
                each.queue
                for each in self.bindings
                if (each.source, each.routing_key) == (publish.exchange, key)
            ]
            if publish.mandatory and not names:
                stream.reject(
                    number, number, Refusal(code_pb2.NOT_FOUND, "UNROUTABLE", f"no queue for {key}")
                )
                continue
            for name in names:
                self.take(stream, self.queue(name), number, body, properties)
            taken.append(number)
        for number in taken[:1] if self.cut_after == 0 else taken:
            self.answer_publish(stream, number, number)
        for name in self.queues:
            self.serve(self.queues[name])

    def take(self, stream: FakeStream, queue: FakeQueue, number: int, body: bytes, properties: Any) -> None:
        if number not in stream.producer.accepted:
            stream.producer.accepted.add(number)
            self.put(queue, body, properties)

    def put(self, queue: FakeQueue, body: bytes, properties: Any) -> None:
        queue.ready[queue.next_sequence] = StoredMessage(queue.next_sequence, body, properties)
        queue.next_sequence += 1
        queue.arrived.append(body)

    def answer_publish(self, stream: FakeStream, first: int, last: int) -> None:
        if self.cut_after == 0:
            stream.cut()
        elif self.holds_confirms:
            self._held_confirms.append((stream, first, last))
        else:
            stream.confirm(first, last)

    def serve(self, queue: FakeQueue) -> None:
        """Hands out what is ready to whoever has credit, in order."""
        for consumer in queue.consumers:
            room = consumer.credit_to - consumer.next_tag + 1
            chosen = [message for message in queue.ready.values() if consumer.matches(message)]
            self.hand_out(consumer, chosen[: max(0, room)])

    def hand_out(self, consumer: FakeConsumer, chosen: list[StoredMessage], *, settled: bool = False) -> None:
        if not chosen:
            return
        first = consumer.next_tag
        delivery = queue_pb2.Delivery(
            consumer_tag=consumer.tag,
            attach=consumer.attach,
            first_tag=first,
            count=len(chosen),
            batch=pack(chosen),
        )
        for tag, message in enumerate(chosen, first):
            del consumer.queue.ready[message.sequence]
            if not settled:
                consumer.held[tag] = message
            delivery.sequences.add(first=message.sequence, last=message.sequence)
            if message.handed_out:
                delivery.redelivered.add(first=tag, last=tag)
            if message.failed:
                delivery.delivery_counts.add(tag=tag, count=message.failed)
        consumer.next_tag += len(chosen)
        consumer.stream.answer(delivery=delivery)

    def detach(self, consumer: FakeConsumer) -> None:
        for message in consumer.held.values():
            consumer.queue.put_back(message)
        consumer.held.clear()
        if consumer in consumer.queue.consumers:
            consumer.queue.consumers.remove(consumer)
        self.serve(consumer.queue)


class FakeStream:
    """One Session call."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.cluster = node.cluster
        self.producer = FakeProducer()
        self.epoch = 0
        self.consumers: dict[str, FakeConsumer] = {}
        self.getters: dict[str, FakeConsumer] = {}
        self.transactions: dict[int, list[tuple[str, Any]]] = {}
        """by number: the requests, by their kind"""
        self._out: asyncio.Queue[Any] = asyncio.Queue()
        self._end: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

    def cut(self, refusal: Refusal | None = None) -> None:
        if not self._end.done():
            self._end.set_result(refusal or Refusal(code_pb2.UNAVAILABLE, "STOPPING", "cut on command"))

    def answer(self, **response: Any) -> None:
        if not self.node.muted:
            self._out.put_nowait(queue_pb2.SessionResponse(**response))

    def confirm(self, first: int, last: int) -> None:
        self.answer(confirms=queue_pb2.Confirms(confirmed=[queue_pb2.Range(first=first, last=last)]))

    def reject(self, first: int, last: int, refusal: Refusal) -> None:
        rejection = queue_pb2.Rejection(range=queue_pb2.Range(first=first, last=last), status=refusal.status)
        self.answer(confirms=queue_pb2.Confirms(rejected=[rejection]))

    def fail(self, request_id: int, refusal: Refusal) -> None:
        self.answer(failed=queue_pb2.Failed(request_id=request_id, status=refusal.status))

    async def run(self, requests: AsyncIterator[Any], context: Any) -> None:
        await context.send_initial_metadata(())  # a status cannot follow a first write that was cancelled
        reading = asyncio.create_task(self._read(requests))
        writing = asyncio.create_task(self._write(context))
        try:
            await asyncio.wait({reading, writing, self._end}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not self._end.done():
                reading.result()
                while not self._out.empty():
                    await asyncio.sleep(0)
                return
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            for consumer in [*self.consumers.values(), *self.getters.values()]:
                self.cluster.detach(consumer)
            if self in self.node.streams:
                self.node.streams.remove(self)
        refusal = self._end.result() if self._end.done() else None
        if refusal is not None:
            await context.abort_with_status(rpc_status.to_status(refusal.status))

    async def _write(self, context: Any) -> None:
        while True:
            await context.write(await self._out.get())

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        handlers = {
            "open": self._open,
            "publish": self._publish,
            "attach": self._attach,
            "credit": self._credit,
            "disposition": self._disposition,
            "cancel": self._cancel,
            "get": self._get,
            "commit": self._commit,
            "rollback": self._rollback,
            "close": lambda _: None,
            "turn": self._turn,
        }
        async for request in requests:
            kind = request.WhichOneof("request")
            self.node.requests.append(kind)
            try:
                handlers[kind](getattr(request, kind))
            except Refusal as refusal:
                self.cut(refusal)
                return

    def _open(self, request: Any) -> None:
        if self.node.refuses_sessions is not None:
            raise self.node.refuses_sessions
        self.producer = self.cluster.producers.setdefault(request.producer_id, FakeProducer())
        if request.epoch <= self.producer.epoch:
            raise Refusal(code_pb2.ABORTED, "SESSION_FENCED", f"epoch {request.epoch} is not new")
        if self.producer.stream is not None:
            self.producer.stream.cut(Refusal(code_pb2.ABORTED, "SESSION_FENCED", "a higher epoch came"))
        self.producer.epoch = self.epoch = request.epoch
        self.producer.stream = self
        opened = queue_pb2.Opened()
        opened.CopyFrom(self.cluster.limits)
        opened.node = self.node.name
        self.answer(opened=opened)

    def _turn(self, request: Any) -> None:
        for disposition in request.dispositions:
            self._disposition(disposition)
        for credit in request.credits:
            self._credit(credit)
        if request.HasField("publish"):
            self._publish(request.publish)

    def _publish(self, request: Any) -> None:
        cluster = self.cluster
        if request.tx:
            self._embargo("publish", request)
            return
        cluster.publish_requests.append((self.epoch, request.first_sequence, request.lowest_unconfirmed))
        count = 1
        try:
            batch = parse(request.batch)
            count = batch.count
            span = request.first_sequence + count - request.lowest_unconfirmed
            cluster.max_unconfirmed_seen = max(cluster.max_unconfirmed_seen, span)
            if span > cluster.limits.max_window_messages:
                raise Refusal(code_pb2.INVALID_ARGUMENT, "WRONG_SEQUENCE", f"{span} messages unconfirmed")
            if request.lowest_unconfirmed > request.first_sequence:
                raise Refusal(
                    code_pb2.INVALID_ARGUMENT, "WRONG_SEQUENCE", "a confirmed message was sent again"
                )
            if any(len(body) > cluster.limits.max_message_bytes for body, _ in unpack(batch)):
                raise Refusal(code_pb2.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE", "a message is too large")
            if cluster.cut_after > 0:
                cluster.cut_after -= 1
            cluster.accept(self, request)
        except Refusal as refusal:
            self.reject(request.first_sequence, request.first_sequence + count - 1, refusal)

    def _attach(self, request: Any) -> None:
        if self.cluster.holds_attaches:
            self.cluster.held_attaches.append(lambda: self._attach(request))
            return
        if self.node.is_cut_off:
            text = f"the system group has no leader that {self.node.name} knows of"
            self.fail(request.request_id, Refusal(code_pb2.UNAVAILABLE, "NO_LEADER", text))
            return
        try:
            queue = self.cluster.queue(request.queue)
            matches: Predicate = lambda _: True  # noqa: E731
            if request.selector:
                if request.selector not in self.cluster.selectors:
                    text = f"cannot parse {request.selector!r}"
                    raise Refusal(code_pb2.INVALID_ARGUMENT, "BAD_SELECTOR", text)
                matches = self.cluster.selectors[request.selector]
        except Refusal as refusal:
            self.fail(request.request_id, refusal)
            return
        attach = self.cluster.new_id()
        consumer = FakeConsumer(self, queue, request.consumer_tag, attach, request.credit_to, matches)
        self.consumers[request.consumer_tag] = consumer
        queue.consumers.append(consumer)
        self.answer(
            attached=queue_pb2.Attached(
                request_id=request.request_id, consumer_tag=request.consumer_tag, attach=attach
            )
        )
        self.cluster.serve(queue)

    def _consumer(self, request: Any) -> FakeConsumer | None:
        consumer = self.consumers.get(request.consumer_tag)
        if consumer is None:
            refusal = Refusal(code_pb2.INVALID_ARGUMENT, "NOT_ATTACHED", f"no {request.consumer_tag!r} here")
            self.fail(request.request_id, refusal)
        return consumer

    def _credit(self, request: Any) -> None:
        consumer = self._consumer(request)
        if consumer is None:
            return
        consumer.credit_to = max(consumer.credit_to, request.credit_to)
        self.cluster.serve(consumer.queue)
        if request.drain:
            consumer.credit_to = consumer.next_tag - 1
            self.answer(
                drained=queue_pb2.Drained(consumer_tag=request.consumer_tag, next_tag=consumer.next_tag)
            )
        if request.request_id:
            self.answer(done=queue_pb2.Done(request_ids=[request.request_id]))

    def _disposition(self, request: Any) -> None:
        self.cluster.dispositions.append(request)
        if self.cluster.holds_dispositions:
            return
        if request.tx:
            self._embargo("disposition", request)
            return
        known = [*self.consumers.values(), *self.getters.values()]
        consumer = next((each for each in known if each.attach == request.attach), None)
        if consumer is None or consumer.tag != request.consumer_tag:
            wrong = Refusal(code_pb2.FAILED_PRECONDITION, "WRONG_ATTACH", "unknown attach")
            self.fail(request.request_id, wrong)
            return
        for given in request.tags:
            for tag in range(given.first, given.last + 1):
                message = consumer.held.pop(tag, None)
                if message is not None:
                    self._dispose(consumer.queue, message, request)
        consumer.credit_to = max(consumer.credit_to, request.credit_to)
        if request.request_id:
            self.answer(done=queue_pb2.Done(request_ids=[request.request_id]))
        self.cluster.serve(consumer.queue)

    def _dispose(self, queue: FakeQueue, message: StoredMessage, request: Any) -> None:
        if request.outcome == queue_pb2.Disposition.SETTLE:
            queue.settled.append(message.sequence)
        elif request.outcome == queue_pb2.Disposition.DISCARD or request.undeliverable_here:
            queue.discarded.append(message.sequence)
        else:
            message.failed += request.delivery_failed
            queue.put_back(message)

    def _embargo(self, kind: str, request: Any) -> None:
        """A part of a transaction. Its credit counts at once. One that begins has a higher number than those before, or
        it is refused."""
        if kind == "disposition" and (consumer := self.consumers.get(request.consumer_tag)) is not None:
            consumer.credit_to = max(consumer.credit_to, request.credit_to)
            self.cluster.serve(consumer.queue)
        if request.tx not in self.transactions:
            if request.tx <= self.producer.last_tx:
                return
            self.producer.last_tx = request.tx
        self.transactions.setdefault(request.tx, []).append((kind, request))

    def _commit(self, request: Any) -> None:
        """Carries out what the transaction asked for, or nothing if one of its queues is unknown."""
        cluster, committed = self.cluster, self.producer.committed
        if self.node.holds_commits:
            self.fail(request.request_id, Refusal(code_pb2.UNAVAILABLE, "IN_DOUBT", "not finished yet"))
            return
        parts = self.transactions.pop(request.tx, None)
        if parts is None and request.tx not in committed:
            refusal = Refusal(code_pb2.FAILED_PRECONDITION, "ROLLED_BACK", "not open")
            self.fail(request.request_id, refusal)
            return
        try:
            for kind, part in parts or ():
                if kind == "publish":
                    cluster.queue(part.routing_key)
        except Refusal as refusal:
            self.fail(request.request_id, refusal)
            return
        for kind, part in parts or ():
            part.tx = 0
            if kind == "disposition":
                self._disposition(part)
                continue
            queue = cluster.queue(part.routing_key)
            for body, properties in unpack(parse(part.batch)):
                cluster.put(queue, body, properties)
            cluster.serve(queue)
        committed.add(request.tx)
        if cluster.cut_after == 0:
            cluster.cut_after = -1
            self.cut()
        else:
            self.answer(done=queue_pb2.Done(request_ids=[request.request_id]))

    def _rollback(self, request: Any) -> None:
        self.transactions.pop(request.tx, None)
        self.answer(done=queue_pb2.Done(request_ids=[request.request_id]))

    def _cancel(self, request: Any) -> None:
        consumer = self._consumer(request)
        if consumer is None:
            return
        consumer.credit_to = 0
        if request.requeue:
            del self.consumers[request.consumer_tag]
            self.cluster.detach(consumer)
        self.answer(done=queue_pb2.Done(request_ids=[request.request_id]))

    def _get(self, request: Any) -> None:
        try:
            queue = self.cluster.queue(request.queue)
        except Refusal as refusal:
            self.fail(request.request_id, refusal)
            return
        getter = self.getters.setdefault(
            request.queue, FakeConsumer(self, queue, "", self.cluster.new_id(), 0, lambda _: True)
        )
        if self.cluster.holds_gets:
            return
        chosen = list(queue.ready.values())[: request.count]
        self.cluster.hand_out(getter, chosen, settled=request.settled)
        self.answer(done=queue_pb2.Done(request_ids=[request.request_id]))


class FakeNode(queue_pb2_grpc.QueueServicer, admin_pb2_grpc.AdminServicer):
    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.port = _port_of(self)
        self.muted = False
        self.is_cut_off = False
        self.has_no_majority = False
        self.unanswered_calls = 0
        self.holds_commits = False
        self.refuses_sessions: Refusal | None = None
        self.unavailable_calls = 0  # so many unary calls answer UNAVAILABLE first
        self.losing: Callable[[], None] | None = None
        self.streams: list[FakeStream] = []
        self.requests: list[str] = []
        """the kinds of all requests of sessions"""
        self.opens = asyncio.Event()
        """sessions are opened once it is set"""
        self.opens.set()
        self._server: Any = None

    async def start(self) -> FakeNode:
        self._server = grpc.aio.server(options=[("grpc.http2.min_ping_interval_without_data_ms", 500)])
        queue_pb2_grpc.add_QueueServicer_to_server(self, self._server)
        admin_pb2_grpc.add_AdminServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def cut(self, refusal: Refusal | None = None) -> None:
        for stream in list(self.streams):
            stream.cut(refusal)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> None:
        stream = FakeStream(self)
        self.streams.append(stream)
        await self.opens.wait()
        await stream.run(requests, context)

    async def FindLeader(self, request: Any, context: Any) -> Any:
        leader = self.cluster.leaders.get(request.queue)
        if leader is None:
            return queue_pb2.FindLeaderResponse()
        return queue_pb2.FindLeaderResponse(node=leader.name, address=leader.address)

    async def Browse(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._gate(context)
        queue = await self._queue(request.queue, context)
        chosen = [each for each in queue.ready.values() if each.sequence >= request.start_sequence]
        for message in chosen[: request.limit or None]:
            stored = queue_pb2.StoredMessage(sequence=message.sequence, redelivered=message.handed_out)
            stored.message.body = message.body
            stored.message.properties.CopyFrom(message.properties)
            yield queue_pb2.BrowseResponse(messages=[stored])
            await self._gate(context)

    async def DeclareQueue(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        created = request.queue not in self.cluster.queues
        if created:
            self.cluster.declare(request.queue, **dict(request.arguments))
        return admin_pb2.DeclareQueueResponse(created=created)

    async def DeleteQueue(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        queue = await self._queue(request.queue, context, request.id)
        del self.cluster.queues[request.queue]
        refusal = Refusal(code_pb2.NOT_FOUND, "QUEUE_DELETED", "the queue was deleted")
        for consumer in queue.consumers:
            cancelled = queue_pb2.Cancelled(consumer_tag=consumer.tag, status=refusal.status)
            consumer.stream.answer(cancelled=cancelled)
        await self._lose_answer(context)
        return admin_pb2.DeleteQueueResponse(message_count=len(queue.ready))

    async def PurgeQueue(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        queue = await self._queue(request.queue, context, request.id)
        before = request.before_sequence or queue.next_sequence
        ready = [] if request.dead_only else queue.ready
        chosen = [sequence for sequence in ready if sequence < before]
        for sequence in chosen:
            del queue.ready[sequence]
        queue.purged += len(chosen)
        await self._lose_answer(context)
        return admin_pb2.PurgeQueueResponse(message_count=len(chosen))

    async def ListQueues(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        names = sorted(name for name in self.cluster.queues if name.startswith(request.prefix))
        return admin_pb2.ListQueuesResponse(queues=[self._info(self.cluster.queues[name]) for name in names])

    async def DescribeQueue(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        queue = await self._queue(request.queue, context)
        response = admin_pb2.DescribeQueueResponse(queue=self._info(queue))
        for consumer in queue.consumers:
            response.consumers.add(consumer_tag=consumer.tag, node=self.name, checked_out=len(consumer.held))
        return response

    async def DeclareExchange(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        created = request.exchange not in self.cluster.exchanges
        if created:
            self.cluster.exchanges[request.exchange] = admin_pb2.ExchangeInfo(
                name=request.exchange,
                type=request.type,
                arguments=request.arguments,
                id=self.cluster.new_id(),
            )
        return admin_pb2.DeclareExchangeResponse(created=created)

    async def DeleteExchange(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        known = self.cluster.exchanges.get(request.exchange)
        if known is None or known.id != request.id:
            await self._missing(f"there is no exchange {request.exchange!r}", context)
        del self.cluster.exchanges[request.exchange]
        await self._lose_answer(context)
        return admin_pb2.DeleteExchangeResponse()

    async def ListExchanges(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        names = sorted(name for name in self.cluster.exchanges if name.startswith(request.prefix))
        found = [self.cluster.exchanges[name] for name in names if name > request.after]
        response = admin_pb2.ListExchangesResponse(exchanges=found[:1])
        if len(found) > 1:
            response.next_after = found[0].name
        return response

    async def AddBinding(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        if request.binding.source not in self.cluster.exchanges:
            await self._missing(f"there is no exchange {request.binding.source!r}", context)
        added = request.binding not in self.cluster.bindings
        if added:
            self.cluster.bindings.append(request.binding)
        return admin_pb2.AddBindingResponse(added=added)

    async def RemoveBinding(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        if request.binding not in self.cluster.bindings:
            await self._missing("there is no such binding", context)
        self.cluster.bindings.remove(request.binding)
        await self._lose_answer(context)
        return admin_pb2.RemoveBindingResponse()

    async def ListBindings(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        response = admin_pb2.ListBindingsResponse()
        for number, each in enumerate(self.cluster.bindings, 1):
            wanted = (request.source, request.queue, request.exchange)
            found = (each.source, each.queue, each.exchange)
            if number > request.after and all(a in ("", b) for a, b in zip(wanted, found, strict=True)):
                if response.bindings:  # a page has one
                    response.next_after = number - 1
                    break
                response.bindings.append(each)
        return response

    async def ListTransactions(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        key = attrgetter("id.group", "id.producer", "id.number")
        after = (request.after.group, request.after.producer, request.after.number)
        found = [
            each
            for each in sorted(self.cluster.transactions, key=key)
            if key(each) > after and request.group in (0, each.id.group)
        ]
        return admin_pb2.ListTransactionsResponse(transactions=found[:1], has_more=len(found) > 1)

    async def ResolveTransaction(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        found = [each for each in self.cluster.transactions if each.id == request.id]
        if not found:
            await self._missing("no such part waits", context)
        self.cluster.transactions.remove(found[0])
        await self._lose_answer(context)
        is_commit = request.outcome == admin_pb2.ResolveTransactionRequest.COMMIT
        return admin_pb2.ResolveTransactionResponse(committed=is_commit, by_hand=bool(request.outcome))

    async def _missing(self, text: str, context: Any) -> None:
        refusal = Refusal(code_pb2.NOT_FOUND, "NOT_FOUND", text)
        await context.abort_with_status(rpc_status.to_status(refusal.status))

    async def SetPolicy(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        changed = self.cluster.policies.get(request.policy.name) != request.policy
        self.cluster.policies[request.policy.name] = request.policy
        return admin_pb2.SetPolicyResponse(changed=changed)

    async def DeletePolicy(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        if self.cluster.policies.pop(request.name, None) is None:
            refusal = Refusal(code_pb2.NOT_FOUND, "NOT_FOUND", f"there is no policy {request.name!r}")
            await context.abort_with_status(rpc_status.to_status(refusal.status))
        return admin_pb2.DeletePolicyResponse()

    async def ListPolicies(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        policies = self.cluster.policies
        return admin_pb2.ListPoliciesResponse(policies=[policies[name] for name in sorted(policies)])

    async def RemoveMember(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no member {request.name!r}")

    async def ClusterStatus(self, request: Any, context: Any) -> Any:
        if not self.has_no_majority:
            await self._gate(context)
        response = admin_pb2.ClusterStatusResponse(answering_node=self.name)
        response.members.add(name=self.name, client_address=self.address, reachable=True)
        leader = "" if self.has_no_majority else self.name
        response.groups.add(group=1, leader=leader, members=[self.name])
        return response

    async def RebalanceLeaders(self, request: Any, context: Any) -> Any:
        return admin_pb2.RebalanceLeadersResponse()

    def _info(self, queue: FakeQueue) -> Any:
        held = sum(len(consumer.held) for consumer in queue.consumers)
        info = admin_pb2.QueueInfo(name=queue.name, id=queue.id, ready=len(queue.ready), checked_out=held)
        info.next_sequence = queue.next_sequence
        info.total = info.ready + held
        info.totals.published = queue.next_sequence - 1
        info.totals.purged = queue.purged
        for name, value in queue.arguments.items():
            info.arguments[name].CopyFrom(value)
            info.effective_arguments[name].CopyFrom(value)
        return info

    async def _queue(self, name: str, context: Any, number: int = 0) -> FakeQueue:
        try:
            queue = self.cluster.queue(name)
            if number not in (0, queue.id):
                text = f"there is no queue {name!r} with the id {number}"
                raise Refusal(code_pb2.NOT_FOUND, "NOT_FOUND", text, queue=name)
            return queue
        except Refusal as refusal:
            await context.abort_with_status(rpc_status.to_status(refusal.status))
            raise AssertionError("abort raises") from None

    async def _lose_answer(self, context: Any) -> None:
        if self.losing is not None:
            happens, self.losing = self.losing, None
            happens()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost on command")

    async def _gate(self, context: Any) -> None:
        if self.has_no_majority:
            self.unanswered_calls += 1
            await asyncio.Event().wait()
        if self.unavailable_calls > 0:
            self.unavailable_calls -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")


def _port_of(node: FakeNode) -> int:
    """A port that nothing else gets as long as the node exists, also while it is stopped."""
    held = socket.socket()
    held.setsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEPORT, 1
    )  # as gRPC's; only sockets that listen get connections
    held.bind(("127.0.0.1", 0))
    weakref.finalize(node, held.close)
    port: int = held.getsockname()[1]
    return port


def parse(data: bytes) -> Any:
    batch = queue_pb2.MessageBatch()
    try:
        batch.ParseFromString(data)
    except DecodeError:
        raise Refusal(code_pb2.INVALID_ARGUMENT, "BAD_BATCH", "not a MessageBatch") from None
    if batch.count == 0 or batch.count != len(batch.body_ends):
        raise Refusal(code_pb2.INVALID_ARGUMENT, "BAD_BATCH", "count and ends differ")
    return batch


def unpack(batch: Any) -> list[tuple[bytes, Any]]:
    starts = [0, *batch.body_ends[:-1]]
    bodies = [batch.bodies[start:end] for start, end in zip(starts, batch.body_ends, strict=True)]
    properties = list(batch.properties) or [batch.shared_properties] * batch.count
    return list(zip(bodies, properties, strict=True))


def pack(messages: list[StoredMessage]) -> bytes:
    batch = queue_pb2.MessageBatch(count=len(messages), bodies=b"".join(each.body for each in messages))
    end = 0
    for message in messages:
        end += len(message.body)
        batch.body_ends.append(end)
    batch.properties.extend(each.properties for each in messages)
    data: bytes = batch.SerializeToString()
    return data
