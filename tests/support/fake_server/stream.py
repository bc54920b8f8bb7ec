"""One session of a client at a FakeNode, by the rules of queue.proto."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2
from grpc_status import rpc_status

from quorum.v1 import queue_pb2
from support.fake_server.cluster import (
    FakeConsumer,
    FakeProducer,
    FakeQueue,
    Predicate,
    Refusal,
    StoredMessage,
    parse,
    unpack,
)

if TYPE_CHECKING:
    from support.fake_server.server import FakeNode


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
        self.node.opened.append(request)
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
        self.cluster.attaches.append(request)
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
                    cluster.routed(part)
        except Refusal as refusal:
            self.fail(request.request_id, refusal)
            return
        for kind, part in parts or ():
            part.tx = 0
            if kind == "disposition":
                self._disposition(part)
                continue
            messages = unpack(parse(part.batch))
            for queues, (body, properties) in zip(cluster.routed(part), messages, strict=True):
                for queue in queues:
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
