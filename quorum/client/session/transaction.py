"""A transaction: publishes and settlements that count all at once, or never.

`async with client.transaction() as tx` commits at the end, and rolls back if the block raises. Requests leave at once
and are not answered one by one: the commit says whether all of them count.

A transaction belongs to the stream on which it began, and is lost with it: then everything of it is dropped, and every
call raises ConnectionLost. A commit that was sent is different: if its answer is lost, the client sends it again on the
next stream, and receives the outcome.

The client asks for the outcome also when the caller no longer waits for it. If the commit was refused, the client
returns the messages that the transaction has settled. Otherwise they would stay checked out, and nobody would settle
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from quorum.client.errors import (
    ConnectionLost,
    OutcomeUnknown,
    QuorumError,
    RefusedError,
    RolledBack,
    TimedOut,
    UnavailableError,
    UsageError,
)
from quorum.client.messages.batch import Batch, Message, PreparedBatch, prepare
from quorum.client.messages.delivery import (
    DISCARD,
    MODIFY,
    RETURN,
    SETTLE,
    Holder,
    Target,
    by_holder,
    require_changes,
)
from quorum.client.messages.requests import looked_at, within
from quorum.client.messages.routes import Route, Through, at_once, of_batch
from quorum.client.session.open_transactions import OpenTransactions
from quorum.client.values import FieldValue, Properties, require_flag, with_delay
from quorum.v1 import queue_pb2

RETRY_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""Between two attempts to commit: the first pause, and the longest one. Each is twice as long as the one before."""


class Transaction:
    """One transaction of a client. It begins with its first request."""

    def __init__(self, open_transactions: OpenTransactions, timeout_ms: int) -> None:
        self._open = open_transactions
        self._stream = open_transactions.stream
        self._timeout_ms = timeout_ms
        self._number = 0
        """0 until its first request is sent"""
        self._began_on = (b"", 0)
        """the producer and the epoch of the stream on which it began"""
        self._settled: list[tuple[Holder, int, list[tuple[int, int]]]] = []
        """what it has settled: holder, its generation, tags"""
        self._is_over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if kind is None:
            await self.commit()
        elif issubclass(kind, asyncio.CancelledError):
            self._roll_back_soon()
        else:
            await self.rollback()

    # ---- its parts

    async def publish(
        self,
        queue: str,
        body: bytes,
        properties: Properties | Mapping[str, object] | None = None,
        application_properties: Mapping[str, FieldValue] | None = None,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        immediate: bool = False,
    ) -> None:
        """Publish one message with the commit. Returns when it is about to be sent. A delay counts from now on.
        immediate: the commit fails (NO_CONSUMERS) if no consumer can take the message at once, judged when it is
        published."""
        message = Message(body, with_delay(properties, delay, at), application_properties)
        await self._publish(_for_queue(queue, immediate), [message], is_single=True)

    async def publish_batch(
        self, queue: str | Sequence[str], batch: Batch, *, immediate: bool = False
    ) -> None:
        """Publish a batch with the commit. queue: of all messages, or one of each message."""
        await self._publish(_for_queue(queue, immediate), batch)

    async def publish_to(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Properties | Mapping[str, object] | None = None,
        application_properties: Mapping[str, FieldValue] | None = None,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        """Publish one message to an exchange with the commit. mandatory: the commit fails (UNROUTABLE) if no queue gets
        the message; otherwise the message is dropped then. immediate: as in `publish`."""
        message = Message(body, with_delay(properties, delay, at), application_properties)
        route = Through(exchange, of_batch(routing_key), mandatory, immediate)
        await self._publish(route, [message], is_single=True)

    async def publish_batch_to(
        self,
        exchange: str,
        routing_key: str | Sequence[str],
        batch: Batch,
        *,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        """Publish a batch of at most 4,096 messages to an exchange with the commit. routing_key: of all messages, or
        one of each message."""
        await self._publish(Through(exchange, of_batch(routing_key), mandatory, immediate), batch)

    async def _publish(self, route: Route, batch: Batch, *, is_single: bool = False) -> None:
        prepared = prepare(batch)
        tracing = self._stream.tracing
        if tracing is None:
            await self._send_batch(route, prepared)
        else:
            with tracing.sending_batch(route, prepared, is_single=is_single) as traced:
                await self._send_batch(route, traced)

    async def _send_batch(self, route: Route, batch: PreparedBatch) -> None:
        self._open.check(route, batch)
        names, exchange = (route.keys, route.exchange) if isinstance(route, Through) else (route, "")
        queue = names if isinstance(names, str) else next(iter(names), "")
        await self._may_send(None if exchange else queue, is_publish=True)
        request = queue_pb2.PublishBatch(
            tx=self._begun(),
            batch=batch.data,
            exchange=exchange,
            routing_key=names if isinstance(names, str) else "",
            routing_keys=() if isinstance(names, str) else names,
            mandatory=isinstance(route, Through) and route.mandatory,
            immediate=isinstance(route, Through) and route.immediate,
        )
        self._stream.send(publish=request)

    async def settle(self, target: Target) -> None:
        """Settle messages with the commit: a message, a delivery, or several messages."""
        await self._dispose(target, SETTLE)

    async def return_(self, target: Target) -> None:
        """Return messages to their queues with the commit; this counts no failure."""
        await self._dispose(target, RETURN)

    async def discard(self, target: Target) -> None:
        """Reject messages with the commit."""
        await self._dispose(target, DISCARD)

    async def modify(
        self, target: Target, *, delivery_failed: bool = False, undeliverable_here: bool = False
    ) -> None:
        """Return messages with changes, with the commit."""
        require_changes(delivery_failed, undeliverable_here)
        await self._dispose(target, MODIFY, delivery_failed, undeliverable_here)

    async def _dispose(
        self,
        target: Target,
        outcome: queue_pb2.Disposition.Outcome,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
    ) -> None:
        for holder, part in by_holder(target):
            await self._may_send(holder.queue)
            tags = holder.take(part)
            number = self._begun()
            self._settled.append((holder, holder.generation, tags))
            for disposition in holder.dispositions(tags, outcome, delivery_failed, undeliverable_here):
                disposition.tx = number
                self._stream.send(disposition=disposition)

    async def _may_send(self, queue: str | None, *, is_publish: bool = False) -> None:
        """Wait until the next request can be sent. queue: that it is about to use, None for an exchange. is_publish:
        wait also until what was published before is being written."""
        self._stream.require_loop()
        if not self._number and not self._is_over:
            if queue is None:
                self._open.placement.use_exchange()
            else:
                self._open.placement.use(queue)
        while not self._is_over:
            if self._number and not self._has_stream():
                raise ConnectionLost("the transaction was lost with its stream; nothing of it counts")
            if not self._number and not self._open.has_room:
                await self._open.wait_for_room(self._timeout_ms)
            elif is_publish and self._stream.outbox.has_requests:
                await self._stream.outbox.written(self._timeout_ms)
            else:
                return
        raise UsageError("the transaction is over")

    def _begun(self) -> int:
        """The number for a request that is sent at once. The first one begins the transaction. An await between the
        number and the sending would let a later transaction overtake this one."""
        if not self._number:
            self._number = self._open.begin()
            self._began_on = self._stream.name
        return self._number

    def _has_stream(self) -> bool:
        return self._stream.is_up and self._stream.name == self._began_on

    # ---- its end

    async def commit(self) -> None:
        """Make everything count. RolledBack: the service refused it, so nothing counts. OutcomeUnknown: no answer came
        in time; all of it counts, or nothing. If nothing counts, the messages that it has settled are delivered
        again."""
        if not self._end():
            return
        tracing = self._stream.tracing
        if tracing is None:
            await self._commit()
        else:
            with tracing.committing():
                await self._commit()

    async def _commit(self) -> None:
        if not self._has_stream():
            self._open.end(self._number)
            raise ConnectionLost("the transaction was lost with its stream; nothing of it counts")
        answer = asyncio.ensure_future(self._committed(self._send_commit()))
        try:
            await within(self._timeout_ms, answer, f"committing transaction {self._number}")
        except TimedOut as error:
            raise OutcomeUnknown(f"{error}; all of it counts, or nothing") from None
        except RefusedError as error:
            self._give_back()
            raise RolledBack(str(error), reason=error.reason, metadata=error.metadata) from error
        finally:
            if answer.done():
                self._has_ended(answer)
            else:
                answer.add_done_callback(self._has_ended)

    def _has_ended(self, answer: asyncio.Future[None]) -> None:
        """The commit was answered, or never will be."""
        self._open.end(self._number)
        is_refused = not answer.cancelled() and isinstance(answer.exception(), RefusedError)
        for holder, generation, tags in self._settled:
            if is_refused:
                holder.given_up(generation, tags)
            else:
                holder.committed(generation, tags)

    def _send_commit(self) -> asyncio.Future[Any]:
        """Send a Commit on the stream that is up; returns a future of its answer. An await in between could lose the
        request with that stream, and nothing would answer it."""
        self._open.commits(self._number)
        request_id, answer = self._stream.ask(f"committing transaction {self._number}")
        self._stream.send(commit=queue_pb2.Commit(request_id=request_id, tx=self._number))
        return answer

    async def _committed(self, answer: asyncio.Future[Any]) -> None:
        doing = f"committing transaction {self._number}"
        pause_s = RETRY_PAUSE_S
        while True:
            try:
                await answer
                return
            except UnavailableError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                await self._stream.wait()
            except QuorumError as error:
                raise OutcomeUnknown(f"{doing}: {error}; all of it counts, or nothing") from error
            if self._stream.name[0] != self._began_on[0]:
                raise OutcomeUnknown(f"{doing}: the service has forgotten this client")
            answer = self._send_commit()

    async def rollback(self) -> None:
        """Drop everything. What was settled is held again, and may be settled in another way."""
        if not self._end():
            return
        answer = self._send_rollback()
        if answer is None:
            return
        try:
            await within(self._timeout_ms, answer, f"rolling back transaction {self._number}")
        except (ConnectionLost, TimedOut):
            pass  # it ends with its stream; a late answer changes nothing
        finally:  # also if the caller is cancelled: the request is on its way
            self._give_back()

    def _roll_back_soon(self) -> None:
        """As `rollback`, without waiting: a task that is cancelled ends at once, also if no leader answers."""
        if self._end():
            answer = self._send_rollback()
            if answer is not None:
                answer.add_done_callback(looked_at)
                self._give_back()

    def _send_rollback(self) -> asyncio.Future[Any] | None:
        """A future of the answer. None if the transaction was lost with its stream."""
        self._open.end(self._number)
        if not self._has_stream():
            return None
        request_id, answer = self._stream.ask(f"rolling back transaction {self._number}")
        self._stream.send(rollback=queue_pb2.Rollback(request_id=request_id, tx=self._number))
        return answer

    def _end(self) -> bool:
        """The transaction is over; whether there is anything to end at the service."""
        if self._is_over:
            raise UsageError("the transaction is over")
        self._is_over = True
        return bool(self._number)

    def _give_back(self) -> None:
        settled, self._settled = self._settled, []
        for holder, generation, tags in settled:
            holder.rolled_back(generation, tags)


def _for_queue(queue: str | Sequence[str], immediate: bool) -> Route:
    require_flag("immediate", immediate)
    return at_once(of_batch(queue), immediate)
