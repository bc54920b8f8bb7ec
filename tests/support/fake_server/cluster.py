"""The state that all nodes of a FakeCluster share: queues, consumers, and what each producer has had accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from quorum.v1 import queue_pb2

if TYPE_CHECKING:
    from support.fake_server.server import FakeNode
    from support.fake_server.stream import FakeStream

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
        self.attaches: list[Any] = []
        self.browses: list[Any] = []
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
            names = self.bound(publish.exchange, key)
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

    def bound(self, exchange: str, key: str) -> list[str]:
        """The queues that an exchange routes a key to."""
        return [each.queue for each in self.bindings if (each.source, each.routing_key) == (exchange, key)]

    def routed(self, publish: Any) -> list[list[FakeQueue]]:
        """The queues of each message of a batch, of which all or none is taken."""
        keys = list(publish.routing_keys) or [publish.routing_key] * parse(publish.batch).count
        names = [self.bound(publish.exchange, key) if publish.exchange else [key] for key in keys]
        if publish.mandatory and not all(names):
            raise Refusal(code_pb2.NOT_FOUND, "UNROUTABLE", "no queue for a message")
        return [[self.queue(name) for name in each] for each in names]

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
        """Hands out what is ready, in order, to the consumers that have credit."""
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
