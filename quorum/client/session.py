"""The client's one stream to the service, and its replacement when it breaks.

One task owns the stream. It opens the stream at an endpoint and sends Open with the producer id and an epoch higher
than any before. Then it reads, writes and watches until one of the three ends. After that, open requests fail with
ConnectionLost, all messages that consumers hold become void, and the next endpoint is tried after a jittered pause. On
the new stream consumers are attached again and undecided publishes are resent in order.

A session that has not been used yet moves once to the node that leads the group of its first queue (`use`): there, a
message needs no hop to the leader and no hop back. Until then nothing of the first queue is sent.

The writer sends requests first, then dispositions (merged until that moment), then publishes. A settlement therefore
never waits behind megabytes of publishes.

The client detects a lost stream in three ways:

- the transport reports it;
- keepalive pings stay unanswered;
- while an answer is due, nothing arrives for `silence_ms`, or only answers that the service is unavailable. A node that
  is cut off from its leader still answers pings, and answers requests with UNAVAILABLE.

The silence limit doubles after each silent stream without progress, so that resends do not flood a cluster without a
majority.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.rpc import code_pb2

from quorum.client.batch import PreparedBatch
from quorum.client.consumer import Consumer
from quorum.client.delivery import MAX_RANGES, Delivery, GetHolder, Holder
from quorum.client.endpoints import OpenChannel, open_channel
from quorum.client.errors import (
    ClosedError,
    ConnectionLost,
    QuorumError,
    RefusedError,
    ServiceError,
    TimedOut,
    UnavailableError,
    UsageError,
    from_rpc_error,
    from_status,
)
from quorum.client.limits import Limits
from quorum.client.publisher import Publisher, boottime_s
from quorum.client.requests import Requests, within
from quorum.client.routes import Route, check_names
from quorum.v1 import queue_pb2, queue_pb2_grpc

OPEN_TIMEOUT_S = 3.0
FIND_LEADER_S = 0.5
PAUSE_FIRST_S, PAUSE_LIMIT_S = 0.02, 0.5
ATTACH_PAUSE_S = 0.1
WATCH_S = 0.25
CLOSE_FLUSH_S = 1.0
MAX_TURN = 1_024
"""Dispositions and credits that are sent together. The service allows so many of each."""
MAX_TURN_RANGES = 10_000
"""Ranges of tags in one turn: with the other fields of its requests half of what any service allows, or less."""
REFUSALS_BEFORE_GIVING_UP = 3
HEALTHY_S = 10.0
"""What a stream resends is refused at once. A stream that has lasted so long was not refused for that."""
MAX_TRANSACTIONS = 256
"""How far the numbers of transactions may be apart whose outcome is not known."""

# The service has forgotten this producer: the outcome of open publishes stays unknown, and a new identity begins.
PRODUCER_FORGOTTEN = ("EXPIRED", "SESSION_EXPIRED", "PRODUCER_EXPIRED")
# Refusals of a stream that a new epoch resolves.
CURED_BY_EPOCH = ("FENCED", "SESSION_FENCED", "GAP", "NOT_REGISTERED")
NOT_ATTACHED = "NOT_ATTACHED"

FindLeader = Callable[[str], Awaitable[tuple[str, str]]]
"""(node, endpoint) of the leader of a queue's group; empty if none is known. Raises QuorumError."""


class _Moves(ConnectionLost):
    """The stream is ended to go on at another endpoint."""


class Session:
    """Implements consumer.ConsumerLink over reconnecting streams."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        silence_ms: int,
        timeout_ms: int,
        channels: OpenChannel = open_channel,
        clock_s: Callable[[], float] = boottime_s,
        find_leader: FindLeader | None = None,
    ) -> None:
        """find_leader: None if the session does not move to the leader."""
        self.endpoint = endpoints[0]
        self.timeout_ms = timeout_ms
        self.node = ""
        self.publisher = Publisher(self._wake_writer, clock_s)
        self.reconnect_count = 0
        self._endpoints = endpoints
        self._open_channel = channels
        self._place = 0
        self._find_leader = find_leader if len(endpoints) > 1 else None
        self._moving: asyncio.Task[None] | None = None
        self._is_moved = asyncio.Event()
        """The session is where it stays, as long as its stream lasts."""
        if self._find_leader is None:
            self._is_moved.set()
        self._silence_s = silence_ms / 1000
        self._producer_id = secrets.token_bytes(16)
        self._epoch = 0
        self._control: deque[Any] = deque()
        self._dirty: dict[int, Holder] = {}
        self._taken = asyncio.Event()
        """the writer has taken a request, or they are dropped"""
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self._is_up = asyncio.Event()
        self._is_between = False
        """The session has left its stream for the leader's endpoint, where none has been opened yet."""
        self._is_reconnecting = False
        """A stream was lost, and none has been opened since."""
        self._requests = Requests()
        self._consumers: dict[str, Consumer] = {}
        self._attaching: dict[str, asyncio.Task[None]] = {}
        self._get_holders: dict[tuple[str, int], GetHolder] = {}  # by queue and attach
        self._get_lock = asyncio.Lock()
        self._next_tx = 1
        self._open_tx: dict[int, None] = {}
        """transactions whose outcome is not known, ascending"""
        self._ended_tx = asyncio.Event()
        self._got: tuple[str, list[Delivery]] | None = None
        self._getting: asyncio.Task[Any] | None = None
        """the task whose get has been requested"""
        self._received = 0
        self._silent_losses = 0
        self._refusals = 0
        self._up_since_s = 0.0
        """time of the loop"""
        self._last_error: QuorumError | None = None
        self._failure: QuorumError | None = None
        self._failed = asyncio.Event()
        self._is_closing = False
        self._call: Any = None
        self._task: asyncio.Task[None] | None = None

    # ---- life

    async def open(self, timeout_ms: int) -> None:
        """Starts, and waits for the first stream. Raises what the service answers if it refuses."""
        self._task = asyncio.create_task(self._run(), name="quorum-session")
        up = asyncio.create_task(self._is_up.wait())
        failed = asyncio.create_task(self._failed.wait())
        await asyncio.wait({up, failed}, timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        failed.cancel()
        if self._failure is not None:
            raise self._failure
        if not self._is_up.is_set():
            why = self._last_error or f"no answer from {', '.join(self._endpoints)}"
            raise TimedOut(f"no session within {timeout_ms} ms; last error: {why}")

    async def close(self, timeout_ms: int) -> None:
        """Wait for open publishes, then end the stream so that the service still reads everything written."""
        if self._task is None:
            return
        if self._moving is not None:
            self._moving.cancel()
            self._stay()
        closed = ClosedError("the client has been closed")
        try:
            if self._failure is None and timeout_ms:
                await self._decide_all(timeout_ms)
            self._is_closing = True
            if self._call is not None and self._is_up.is_set():
                if self.publisher.is_idle and not self._open_tx:
                    self._send(close=queue_pb2.Close())
                await self._half_close()
        finally:  # also if the caller stops waiting
            self._is_closing = True
            tasks = [self._task, *self._attaching.values(), *([self._moving] if self._moving else [])]
            for task in tasks:
                task.cancel()
            self._task = None
            self._give_up(closed)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _decide_all(self, timeout_ms: int) -> None:
        """Wait until all publishes are decided, over another stream if need be, and all requests are written."""
        self.publisher.gathering.close_all()
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while self._failure is None and not (
            self.publisher.is_idle and (self._is_flushed() or not self._has_stream)
        ):
            if asyncio.get_running_loop().time() >= deadline:
                return
            await asyncio.sleep(0.005)

    @property
    def _has_stream(self) -> bool:
        """Whether a stream is up, or is being opened at the leader's endpoint."""
        return self._is_up.is_set() or self._is_between

    async def stream(self) -> None:
        """Wait until a stream is up. Raises if the session has failed for good."""
        while not self._is_up.is_set():
            if self._failure is not None:
                raise self._failure
            up = asyncio.ensure_future(self._is_up.wait())
            failed = asyncio.ensure_future(self._failed.wait())
            try:
                await asyncio.wait({up, failed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
                failed.cancel()

    # ---- the move to the leader

    def use(self, queue: str) -> None:
        """The session is about to be used for this queue. If it is the first one, the session moves to its leader."""
        if self._moving is None and self._find_leader is not None:
            self._moving = asyncio.create_task(self._move(queue, self._find_leader))

    def use_exchange(self) -> None:
        """The session is about to be used for an exchange, whose queues may have any leaders. If it is the first use,
        the session stays where it is."""
        if self._moving is None:
            self._find_leader = None
            self._is_moved.set()
            self._wake_writer()

    async def _move(self, queue: str, find_leader: FindLeader) -> None:
        """End the stream if another endpoint is the leader's. If that is not found out soon, the session stays."""
        try:
            async with asyncio.timeout(FIND_LEADER_S):
                node, endpoint = await find_leader(queue)
            if self._is_up.is_set() and node != self.node and endpoint in self._endpoints:
                self._place = self._endpoints.index(endpoint)
                self._is_up.clear()
                self._is_between = True
        except (QuorumError, TimeoutError):
            pass  # any node serves the session
        finally:
            self._stay()

    def _stay(self) -> None:
        """From now on the session is where it stays."""
        self._is_moved.set()
        self._wake_writer()

    # ---- requests (consumer.ConsumerLink)

    def dirty(self, holder: Holder) -> None:
        self._dirty[id(holder)] = holder
        self._wake_writer()

    def next_request_id(self) -> int:
        return self._requests.next_id()

    def expect(self, request_id: int, doing: str) -> asyncio.Future[Any]:
        return self._requests.expect(request_id, doing)

    async def attach(self, consumer: Consumer) -> None:
        if self._failure is not None:
            raise self._failure
        if consumer.consumer_tag in self._consumers:
            raise UsageError(f"consumer tag {consumer.consumer_tag!r} is in use in this client")
        try:
            consumer.attach_request(0)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{consumer} cannot be attached: {error}") from error
        self._consumers[consumer.consumer_tag] = consumer
        task = self._start_attaching(consumer)
        timeout_ms = consumer.options.timeout_ms
        done, _ = await asyncio.wait({task}, timeout=None if timeout_ms is None else timeout_ms / 1000)
        if done and task.cancelled():
            raise self._failure or ClosedError(f"{consumer} was cancelled while it was being attached")
        if not done:
            why = f"; last error: {self._last_error}" if self._last_error is not None else ""
            self.abandon(consumer, TimedOut(f"attaching {consumer} took over {timeout_ms} ms{why}"))

    def abandon(self, consumer: Consumer, error: QuorumError) -> None:
        """End a consumer for whose attachment nobody waits any more."""
        task = self._attaching.get(consumer.consumer_tag)
        if task is not None:
            task.cancel()
        self._consumers.pop(consumer.consumer_tag, None)
        if self._is_up.is_set():  # the service may still attach it
            self._send_cancel(consumer, self.next_request_id(), requeue=True)
        consumer.end(error)

    def attach_again(self, consumer: Consumer) -> None:
        """Begin a new attachment of a consumer on this stream. An error ends the consumer. Without the cancel the
        service might keep the old attachment."""
        if self._is_up.is_set():  # else it is attached when the next stream is up
            self._send_cancel(consumer, self.next_request_id(), requeue=True)
            self._start_attaching(consumer)

    async def cancel(self, consumer: Consumer, requeue: bool, timeout_ms: int | None) -> None:
        consumer.end(None)  # it is not attached again after this
        task = self._attaching.get(consumer.consumer_tag)
        if task is not None:
            task.cancel()
        try:
            if self._is_up.is_set():
                request_id = self.next_request_id()
                answer = self.expect(request_id, f"cancelling {consumer}")
                self._flush_dispositions(consumer)
                self._send_cancel(consumer, request_id, requeue=requeue)
                limit_ms = self.timeout_ms if timeout_ms is None else timeout_ms
                await within(limit_ms, answer, f"cancelling {consumer}")
        except ConnectionLost:
            pass  # the consumer has ended with its stream
        except RefusedError as error:
            if error.reason != NOT_ATTACHED:
                raise
            # this stream is newer than the attachment: there is nothing to cancel
        finally:
            if requeue:
                consumer.void()
                self._consumers.pop(consumer.consumer_tag, None)

    async def drain(self, consumer: Consumer) -> None:
        if not self._is_up.is_set() or not consumer.attach:
            return  # requested after the next attach
        request_id = self.next_request_id()
        answer = self.expect(request_id, f"draining {consumer}")
        self._send(credit=consumer.drain_request(request_id))
        try:
            await within(self.timeout_ms, answer, f"draining {consumer}")
        except ConnectionLost:
            pass  # requested again after the next attach

    async def get(self, queue: str, count: int, settled: bool) -> list[Delivery]:
        """Take up to `count` messages. Only one get is open at a time: its deliveries precede its answer.

        A get is repeated after a lost connection unless `settled`: those messages may be lost with the connection.
        """
        self.use(queue)
        await self._is_moved.wait()
        async with self._get_lock:
            while True:
                await self.stream()
                request_id = self.next_request_id()
                answer = self.expect(request_id, f"get from {queue!r}")
                got: list[Delivery] = []
                self._got, self._getting = (queue, got), asyncio.current_task()
                self._send(
                    get=queue_pb2.SessionGet(request_id=request_id, queue=queue, count=count, settled=settled)
                )
                try:
                    await answer
                except ConnectionLost:
                    if settled:
                        raise
                    continue
                finally:
                    self._got = self._getting = None
                if settled:
                    for delivery in got:
                        delivery.holder.held.remove(delivery.first_tag, delivery.last_tag)
                return got

    def abandon_get(self, task: asyncio.Task[list[Delivery]]) -> None:
        """Nobody waits for this task's get any more. If it has been requested, messages that it takes are returned."""
        if self._getting is task:
            task.add_done_callback(_give_back)
        else:
            task.cancel()

    # ---- transactions (transaction.Link)

    @property
    def is_up(self) -> bool:
        return self._is_up.is_set()

    @property
    def stream_name(self) -> tuple[bytes, int]:
        """The producer and the epoch of the present stream, or of the one before."""
        return self._producer_id, self._epoch

    async def ready_for_transaction(self, timeout_ms: int) -> None:
        """Wait until a stream is up and the window has room for one more transaction."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._is_moved.wait()
                await self.stream()
                while self._open_tx and self._next_tx - next(iter(self._open_tx)) >= MAX_TRANSACTIONS:
                    self._ended_tx.clear()
                    await self._ended_tx.wait()
                    await self.stream()
        except TimeoutError:
            raise TimedOut(f"no transaction could begin for {timeout_ms} ms") from None

    def check(self, queue: Route, batch: PreparedBatch) -> None:
        """Raise UsageError if the service never takes such a batch."""
        check_names(queue)
        self.publisher.check(queue, batch)

    async def written(self, timeout_ms: int) -> None:
        """Wait until the last of the requests is being written, or their stream is lost."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self._control:
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            raise TimedOut(f"earlier requests were not sent for {timeout_ms} ms; nothing was sent") from None

    def begin_transaction(self) -> int:
        """The number of a new transaction."""
        number, self._next_tx = self._next_tx, self._next_tx + 1
        self._open_tx[number] = None
        return number

    def end_transaction(self, number: int) -> None:
        """The outcome of a transaction is known, or nobody waits for it any more."""
        self._open_tx.pop(number, None)
        self._ended_tx.set()

    def ask(self, doing: str) -> tuple[int, asyncio.Future[Any]]:
        """A new request's id, and its answer."""
        request_id = self.next_request_id()
        return request_id, self.expect(request_id, doing)

    def send(self, **request: Any) -> None:
        """Queue a request, before all that is not queued yet."""
        self._send(**request)

    # ---- the stream

    async def _run(self) -> None:
        try:
            await self._keep_a_stream()
        except Exception as error:
            # a defect in this client: fail all callers, so that none of them waits for ever
            self._give_up(ServiceError(f"the client has failed: {error!r}"))
            raise

    async def _keep_a_stream(self) -> None:
        pause = PAUSE_FIRST_S
        while not self._is_closing:
            decided = self.publisher.decided_batches
            error = await self._one_stream(self._endpoints[self._place])
            if self._is_closing:
                return
            if isinstance(error, _Moves):
                self._drop_requests(error)  # nothing else was sent
                continue
            was_up = self._is_up.is_set()
            self._is_reconnecting |= was_up
            self._lost(error)
            self.publisher.give_up_old()
            if self.publisher.decided_batches > decided:
                self._refusals = self._silent_losses = 0
            if was_up and asyncio.get_running_loop().time() >= self._up_since_s + HEALTHY_S:
                self._refusals = 0
            if not self._may_go_on(error):
                self._give_up(error)
                return
            pause = PAUSE_FIRST_S if was_up and self._refusals == 0 else min(pause * 2, PAUSE_LIMIT_S)
            self._place = (self._place + 1) % len(self._endpoints)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))

    async def _one_stream(self, endpoint: str) -> QuorumError:
        """Open a stream and serve it to its end. Returns the error that ended it."""
        self._epoch += 1
        channel = self._open_channel(endpoint)
        tasks: list[asyncio.Task[None]] = []
        try:
            call = queue_pb2_grpc.QueueStub(channel).Session()
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                opened = await self._open_stream(call)
            self._opened(endpoint, call, opened)
            jobs = [self._read(call), self._write(call), self._watch()]
            if not self._is_moved.is_set():
                jobs.append(self._leave())
            tasks = [asyncio.create_task(job) for job in jobs]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            return ConnectionLost(f"{endpoint} ended the stream")
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error, f"session with {endpoint}")
        except TimeoutError:
            return TimedOut(f"{endpoint} did not open a session within {OPEN_TIMEOUT_S} s")
        except asyncio.InvalidStateError as error:  # a write after the call has ended
            return ConnectionLost(f"{endpoint}: {error}")
        except QuorumError as error:
            return error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._call = None
            await channel.close()

    async def _open_stream(self, call: Any) -> Any:
        hello = queue_pb2.Open(
            producer_id=self._producer_id,
            epoch=self._epoch,
            first_new_sequence=self.publisher.first_new,
            takes_turns=True,
        )
        await call.write(queue_pb2.SessionRequest(open=hello))
        response = await call.read()
        if response is grpc.aio.EOF:
            raise ConnectionLost("the stream ended before it was opened")
        if response.WhichOneof("response") != "opened":
            raise ServiceError(f"the first answer is {response.WhichOneof('response')}, not opened")
        return response.opened

    def _opened(self, endpoint: str, call: Any, opened: Any) -> None:
        self.endpoint, self.node, self._call = endpoint, opened.node, call
        self.reconnect_count += self._is_reconnecting
        self._is_reconnecting = self._is_between = False
        self.publisher.limits = Limits(
            opened.window_bytes,
            opened.max_message_bytes,
            opened.max_batch_messages,
            opened.max_window_messages,
            opened.max_batch_bytes or Limits().max_batch_bytes,
        )
        self.publisher.resend_all()
        self._control.clear()
        self._taken.set()
        self._up_since_s = asyncio.get_running_loop().time()
        self._is_up.set()
        for consumer in list(self._consumers.values()):
            self._start_attaching(consumer)
        self._wake_writer()

    async def _read(self, call: Any) -> None:
        handlers: dict[str, Callable[[Any], None]] = {
            "confirms": self.publisher.decide,
            "delivery": self._on_delivery,
            "done": self._on_done,
            "failed": self._requests.failed,
            "attached": self._on_attached,
            "cancelled": self._on_cancelled,
            "drained": self._on_drained,
            "active_changed": self._on_active_changed,
            "timed_out": self._on_timed_out,
        }
        while (received := await call.read()) is not grpc.aio.EOF:
            for response in received.turn.responses if received.HasField("turn") else (received,):
                kind = response.WhichOneof("response")
                if kind != "failed" or response.failed.status.code != code_pb2.UNAVAILABLE:
                    self._received += 1
                if kind in handlers:
                    handlers[kind](getattr(response, kind))
                elif kind == "opened":
                    raise ServiceError("the session was opened twice")

    async def _write(self, call: Any) -> None:
        while True:
            request = self._next_request()
            if request is None:
                self._flushed.set()
                self._wake.clear()
                await self._wake.wait()
                self._flushed.clear()
                continue
            await call.write(request)

    async def _leave(self) -> None:
        """Raise _Moves if the session moves; else wait for the stream's end."""
        await self._is_moved.wait()
        if not self._is_up.is_set():
            raise _Moves(f"the session moves from {self.endpoint} to {self._endpoints[self._place]}")
        await asyncio.Event().wait()

    async def _watch(self) -> None:
        """Raise ConnectionLost when the service owes an answer and has been silent too long. It counts its own ticks
        instead of the clock, because a pause of this process is no silence of the service."""
        seen, silent_s = self._received, 0.0
        patience_s = self._silence_s * 2 ** min(self._silent_losses, 4)
        while True:
            await asyncio.sleep(WATCH_S)
            self.publisher.give_up_old()
            is_owed = not self.publisher.is_idle or bool(self._requests) or bool(self._attaching)
            if self._received != seen or not is_owed:
                seen, silent_s = self._received, 0.0
                continue
            silent_s += WATCH_S
            if silent_s >= patience_s:
                self._silent_losses += 1
                raise ConnectionLost(f"{self.endpoint} was silent for {silent_s:.1f} s")

    def _next_request(self) -> Any:
        if self._is_between:
            return None
        if self._control:
            self._taken.set()
            return self._control.popleft()
        if not self._is_moved.is_set():
            return None
        return self._next_turn() or self.publisher.next_request()

    def _next_turn(self) -> Any:
        """The dispositions and credits that wait, one request alone or many together; None if none wait."""
        found: list[Any] = []
        ranges = 0
        while self._dirty and len(found) < MAX_TURN and ranges + MAX_RANGES <= MAX_TURN_RANGES:
            key = next(iter(self._dirty))
            request = self._dirty[key].next_request()
            if request is None:
                del self._dirty[key]
            else:
                found.append(request)
                ranges += len(request.disposition.tags)
        if len(found) < 2:
            return found[0] if found else None
        turn = queue_pb2.RequestTurn()
        for request in found:
            if request.HasField("disposition"):
                turn.dispositions.append(request.disposition)
            else:
                turn.credits.append(request.credit)
        return queue_pb2.SessionRequest(turn=turn)

    # ---- answers

    def _on_delivery(self, wire: Any) -> None:
        if not wire.consumer_tag:
            self._on_got(wire)
            return
        consumer = self._consumers.get(wire.consumer_tag)
        if consumer is None or (consumer.attach and wire.attach != consumer.attach):
            return  # cancelled, or of an earlier attachment: the messages are ready in the queue again
        consumer.receive(wire)

    def _on_got(self, wire: Any) -> None:
        if self._got is None:
            raise ServiceError(f"the service sent {wire.count} messages without a get")
        queue, deliveries = self._got
        holder = self._get_holders.get((queue, wire.attach))
        if holder is None:
            holder = self._get_holders[queue, wire.attach] = GetHolder(self, queue, "")
        deliveries.append(holder.receive(wire))

    def _on_done(self, done: Any) -> None:
        for request_id in done.request_ids:
            self._requests.answered(request_id, done)

    def _on_attached(self, attached: Any) -> None:
        consumer = self._consumers.get(attached.consumer_tag)
        if consumer is not None:
            consumer.attach = attached.attach
        if self.publisher.is_idle:
            self._silent_losses = (
                0  # not while publishes are undecided, because their group may still have no majority
            )
        self._requests.answered(attached.request_id, attached)

    def _on_cancelled(self, cancelled: Any) -> None:
        consumer = self._consumers.get(cancelled.consumer_tag)
        if consumer is None:
            return
        error = from_status(cancelled.status, f"{consumer} was ended by the service")
        consumer.void()
        if isinstance(error, UnavailableError):
            self._start_attaching(consumer)
            return
        del self._consumers[consumer.consumer_tag]
        consumer.end(error)

    def _on_drained(self, drained: Any) -> None:
        consumer = self._consumers.get(drained.consumer_tag)
        if consumer is not None:
            consumer.drained()

    def _on_active_changed(self, changed: Any) -> None:
        consumer = self._consumers.get(changed.consumer_tag)
        if consumer is not None and consumer.attach == changed.attach:
            consumer.is_active = changed.active

    def _on_timed_out(self, timed_out: Any) -> None:
        consumer = self._consumers.get(timed_out.consumer_tag)
        if consumer is not None and consumer.attach == timed_out.attach:
            consumer.timed_out()

    # ---- inside

    def _send(self, **request: Any) -> None:
        self._control.append(queue_pb2.SessionRequest(**request))
        self._wake_writer()

    def _send_cancel(self, consumer: Consumer, request_id: int, *, requeue: bool) -> None:
        tag = consumer.consumer_tag
        self._send(cancel=queue_pb2.Cancel(request_id=request_id, consumer_tag=tag, requeue=requeue))

    def _wake_writer(self) -> None:
        self._wake.set()

    def _is_flushed(self) -> bool:
        return self._flushed.is_set() and not self._wake.is_set()

    def _flush_dispositions(self, holder: Holder) -> None:
        """Queue this holder's dispositions before the next request."""
        while (request := holder.next_request()) is not None:
            self._control.append(request)

    def _start_attaching(self, consumer: Consumer) -> asyncio.Task[None]:
        running = self._attaching.get(consumer.consumer_tag)
        if running is not None:
            return running
        task = asyncio.create_task(self._attach(consumer))
        self._attaching[consumer.consumer_tag] = task
        task.add_done_callback(lambda _: self._attaching.pop(consumer.consumer_tag, None))
        return task

    async def _attach(self, consumer: Consumer) -> None:
        """Retry the attachment until it succeeds or is refused for good. Errors go to the consumer, not to this task's
        caller."""
        self.use(consumer.queue)
        await self._is_moved.wait()
        while not consumer.is_ended:
            try:
                await self.stream()
                request_id = self.next_request_id()
                answer = self.expect(request_id, f"attaching {consumer}")
                self._send(attach=consumer.attach_request(request_id))
                await answer
                if consumer.wants_drain:
                    await self.drain(consumer)
                return
            except UnavailableError:
                await asyncio.sleep(ATTACH_PAUSE_S)
            except QuorumError as error:
                self._consumers.pop(consumer.consumer_tag, None)
                consumer.end(error)

    def _lost(self, error: QuorumError) -> None:
        """Reset everything that belongs to the stream, because it has ended."""
        self._is_up.clear()
        self._is_between = False
        self._last_error = error
        self._drop_requests(error)
        self._dirty.clear()
        for holder in self._get_holders.values():
            holder.void()
        self._get_holders.clear()
        for consumer in list(self._consumers.values()):
            consumer.void()
            if consumer.is_ended or consumer.is_drained:
                consumer.end(None)
                del self._consumers[consumer.consumer_tag]

    def _drop_requests(self, error: QuorumError) -> None:
        """Fail the requests that the stream has not answered."""
        self._control.clear()
        self._taken.set()
        self._requests.lost(error)

    def _may_go_on(self, error: QuorumError) -> bool:
        """Whether another stream may succeed after this error."""
        if error.reason in PRODUCER_FORGOTTEN:
            self.publisher.begin_again(error)
            self._producer_id = secrets.token_bytes(16)
            self._epoch = 0
            return True
        if not isinstance(error, RefusedError) or error.reason in CURED_BY_EPOCH:
            return True
        self._refusals += 1
        was_ever_open = bool(self.node)
        return was_ever_open and self._refusals < REFUSALS_BEFORE_GIVING_UP

    def _give_up(self, error: QuorumError) -> None:
        if self._failure is None:
            self._failure = error
        self._lost(error)
        self.publisher.fail_all(error)
        ended = None if isinstance(error, ClosedError) else error
        for consumer in list(self._consumers.values()):
            consumer.end(ended)
        self._consumers.clear()
        self._is_moved.set()
        self._failed.set()

    async def _half_close(self) -> None:
        """Half-close the stream after everything is written, and wait up to CLOSE_FLUSH_S for the service."""
        task, call = self._task, self._call
        assert task is not None
        try:
            async with asyncio.timeout(CLOSE_FLUSH_S):
                while not self._is_flushed():
                    await asyncio.sleep(0.001)
                await call.done_writing()
            await asyncio.wait({task}, timeout=CLOSE_FLUSH_S)
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.InternalError):
            return  # the stream has ended: before, or (InternalError) during done_writing


def _give_back(task: asyncio.Task[list[Delivery]]) -> None:
    """Return the messages of a get whose caller has stopped waiting."""
    if task.cancelled() or task.exception() is not None:
        return
    for delivery in task.result():
        if delivery.holder.held and not delivery.is_void:
            delivery.holder.give_back(delivery)
