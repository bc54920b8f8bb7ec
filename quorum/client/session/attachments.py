"""The consumers of a session. Each new stream attaches them again. The messages that they held on the last
stream are void."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from quorum.client.errors import (
    ClosedError,
    ConnectionLost,
    QuorumError,
    RefusedError,
    ServiceError,
    TimedOut,
    UnavailableError,
    UsageError,
    from_status,
)
from quorum.client.messages.requests import looked_at, within
from quorum.client.session.consumer import Consumer
from quorum.client.session.placement import Placement
from quorum.client.session.stream_state import StreamState
from quorum.v1 import queue_pb2

ATTACH_PAUSE_S = 0.1
NOT_ATTACHED = "NOT_ATTACHED"


class Attachments:
    """Implements consumer.Attaching."""

    def __init__(self, stream: StreamState, placement: Placement) -> None:
        self._stream = stream
        self._placement = placement
        self._consumers: dict[str, Consumer] = {}
        self._attaching: dict[Consumer, asyncio.Task[None]] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Attachments under way."""
        return list(self._attaching.values())

    # ---- for consumers

    @property
    def stream(self) -> StreamState:
        return self._stream

    async def attach(self, consumer: Consumer) -> None:
        if self._stream.failure is not None:
            raise self._stream.failure
        self._stream.require_loop()
        if consumer.consumer_tag in self._consumers:
            raise UsageError(f"consumer tag {consumer.consumer_tag!r} is in use in this client")
        self._consumers[consumer.consumer_tag] = consumer
        task = self._start(consumer)
        timeout_ms = consumer.options.timeout_ms
        done, _ = await asyncio.wait({task}, timeout=None if timeout_ms is None else timeout_ms / 1000)
        if done and task.cancelled():
            raise self._stream.failure or ClosedError(f"{consumer} was cancelled while it was being attached")
        if not done:
            last = self._stream.last_error
            why = f"; last error: {last}" if last is not None else ""
            self.abandon(consumer, TimedOut(f"{_attaching(consumer)} took over {timeout_ms} ms{why}"))

    def abandon(self, consumer: Consumer, error: QuorumError) -> None:
        """End a consumer whose attachment is given up."""
        consumer.end(error)
        task = self._attaching.get(consumer)
        if task is not None:
            task.cancel()
        self._consumers.pop(consumer.consumer_tag, None)
        if self._stream.is_up:  # the service may still attach it
            self._send_cancel(consumer, self._stream.next_request_id(), requeue=True)

    def attach_again(self, consumer: Consumer) -> None:
        """Begin a new attachment of a consumer on this stream. An error ends the consumer. Without the cancel the
        service might keep the old attachment."""
        consumer.void()
        if self._stream.is_up:  # else it is attached when the next stream is up
            self._send_cancel(consumer, self._stream.next_request_id(), requeue=True)
            self._start(consumer)

    async def cancel(self, consumer: Consumer, requeue: bool, timeout_ms: int | None) -> None:
        answer = self._ask_to_cancel(consumer, requeue=requeue)
        try:
            if answer is not None:
                limit_ms = self._stream.timeout_ms if timeout_ms is None else timeout_ms
                await within(limit_ms, answer, f"cancelling {consumer}")
        except ConnectionLost:
            pass  # the consumer has ended with its stream
        except RefusedError as error:
            if error.reason != NOT_ATTACHED:
                raise
            # this stream is newer than the attachment: there is nothing to cancel
        finally:
            if requeue:
                self._forget(consumer)

    def cancel_soon(self, consumer: Consumer) -> None:
        """As `cancel` with requeue, without waiting for the answer."""
        answer = self._ask_to_cancel(consumer, requeue=True)
        if answer is not None:
            answer.add_done_callback(looked_at)
        self._forget(consumer)

    def _ask_to_cancel(self, consumer: Consumer, *, requeue: bool) -> asyncio.Future[Any] | None:
        """A future of the answer. None if there is no stream, so nothing to cancel."""
        consumer.end(None)  # it is not attached again after this
        task = self._attaching.get(consumer)
        if task is not None:
            task.cancel()
        if not self._stream.is_up:
            return None
        request_id, answer = self._stream.ask(f"cancelling {consumer}")
        self._stream.outbox.flush(consumer)
        self._send_cancel(consumer, request_id, requeue=requeue)
        return answer

    def _forget(self, consumer: Consumer) -> None:
        """Its messages are ready in the queue again, or soon will be."""
        consumer.void()
        self._consumers.pop(consumer.consumer_tag, None)

    async def drain(self, consumer: Consumer) -> None:
        if not self._stream.is_up or not consumer.attach:
            return  # requested after the next attach
        request_id, answer = self._stream.ask(f"draining {consumer}")
        self._stream.send(credit=consumer.drain_request(request_id))
        try:
            await within(self._stream.timeout_ms, answer, f"draining {consumer}")
        except ConnectionLost:
            pass  # requested again after the next attach

    # ---- answers

    def receive(self, wire: Any) -> None:
        """A delivery with a consumer tag."""
        consumer = self._consumers.get(wire.consumer_tag)
        if consumer is None or wire.attach != consumer.attach:
            return  # cancelled, or of an earlier attachment: the messages are ready in the queue again, or soon will be
        consumer.receive(wire)

    def attached(self, attached: Any) -> None:
        consumer = self._consumers.get(attached.consumer_tag)
        if consumer is not None:
            consumer.attached(attached)
        self._stream.requests.answered(attached.request_id, attached)

    def cancelled(self, cancelled: Any) -> None:
        consumer = self._consumers.get(cancelled.consumer_tag)
        if consumer is None:
            return
        error = from_status(cancelled.status, f"{consumer} was ended by the service")
        consumer.void()
        if isinstance(error, UnavailableError):
            self._start(consumer)
            return
        del self._consumers[consumer.consumer_tag]
        consumer.end(error)

    def drained(self, drained: Any) -> None:
        consumer = self._consumers.get(drained.consumer_tag)
        if consumer is not None:
            consumer.drained()

    def active_changed(self, changed: Any) -> None:
        consumer = self._consumers.get(changed.consumer_tag)
        if consumer is not None and consumer.attach == changed.attach:
            consumer.is_active = changed.active

    def timed_out(self, timed_out: Any) -> None:
        consumer = self._consumers.get(timed_out.consumer_tag)
        if consumer is not None:
            consumer.timed_out(timed_out.attach, timed_out.last_tag)

    # ---- the stream's life

    def opened(self) -> None:
        """A stream is up: attach all consumers on it."""
        for consumer in list(self._consumers.values()):
            self._start(consumer)

    def lost(self) -> None:
        """The stream has ended: what consumers held is ready in its queue again."""
        for consumer in list(self._consumers.values()):
            consumer.void()
            if consumer.is_ended or consumer.is_drained:
                consumer.end(None)
                del self._consumers[consumer.consumer_tag]

    def end_all(self, error: QuorumError | None) -> None:
        """There will be no other stream. error: why; None if the caller asked for it."""
        for consumer in list(self._consumers.values()):
            consumer.end(error)
        self._consumers.clear()

    # ---- inside

    def _send_cancel(self, consumer: Consumer, request_id: int, *, requeue: bool) -> None:
        tag = consumer.consumer_tag
        self._stream.send(cancel=queue_pb2.Cancel(request_id=request_id, consumer_tag=tag, requeue=requeue))

    def _start(self, consumer: Consumer) -> asyncio.Task[None]:
        running = self._attaching.get(consumer)
        if running is not None:
            return running
        task = asyncio.create_task(self._attach(consumer))
        self._attaching[consumer] = task
        task.add_done_callback(partial(self._attach_done, consumer))
        return task

    def _attach_done(self, consumer: Consumer, task: asyncio.Task[None]) -> None:
        """End the consumer if a defect has ended its attachment: it would wait for ever."""
        self._attaching.pop(consumer, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            failed = ServiceError(f"the client has failed to attach {consumer}: {error!r}")
            failed.__cause__ = error
            self.abandon(consumer, failed)

    async def _attach(self, consumer: Consumer) -> None:
        """Retry the attachment until it succeeds or is refused for good. Errors go to the consumer, not to this task's
        caller."""
        await self._placement.settled_for(consumer.queue)
        while not consumer.is_ended:
            try:
                await self._stream.wait()
                request_id, answer = self._stream.ask(_attaching(consumer))
                self._stream.send(attach=consumer.attach_request(request_id))
                await answer
                if consumer.wants_drain:
                    await self.drain(consumer)
                return
            except UnavailableError:
                await asyncio.sleep(ATTACH_PAUSE_S)
            except QuorumError as error:
                self._consumers.pop(consumer.consumer_tag, None)
                consumer.end(error)


def _attaching(consumer: Consumer) -> str:
    """What is done, for errors."""
    return f"attaching to {consumer.queue!r}" if consumer.options.has_made_tag else f"attaching {consumer}"
