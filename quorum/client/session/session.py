"""The client's one stream to the service, and its replacement when it breaks.

One task owns the stream. It opens the stream at an endpoint and sends Open with the producer id and an epoch higher
than any before. Then it reads, writes and watches until one of the three ends. After that, open requests fail with
ConnectionLost, all messages that consumers hold become void, and the next endpoint is tried after a jittered pause. On
the new stream consumers are attached again and undecided publishes are resent in order.

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
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc import code_pb2

from quorum.client.connection.endpoints import OpenChannel
from quorum.client.errors import (
    ClosedError,
    ConnectionLost,
    QuorumError,
    RefusedError,
    ServiceError,
    TimedOut,
    TlsError,
    UnavailableError,
    UnreadableFile,
    from_rpc_error,
)
from quorum.client.session.attachments import Attachments
from quorum.client.session.gets import Gets
from quorum.client.session.limits import Limits
from quorum.client.session.open_transactions import OpenTransactions
from quorum.client.session.placement import FindLeader, Placement
from quorum.client.session.publisher import Publisher, boottime_s
from quorum.client.session.stream_state import StreamState
from quorum.v1 import queue_pb2, queue_pb2_grpc

if TYPE_CHECKING:
    from quorum.client.messages.tracing import Tracing

OPEN_TIMEOUT_S = 3.0
PAUSE_FIRST_S, PAUSE_LIMIT_S = 0.02, 0.5
WATCH_S = 0.25
LASTED_S = 2.0
"""A stream that ends earlier, and has decided no publish, is a failed attempt, as at a node without a leader."""
CLOSE_FLUSH_S = 0.5
REFUSALS_BEFORE_GIVING_UP = 3
HEALTHY_S = 10.0
"""What a stream resends is refused at once. A stream that has lasted so long was not refused for that."""

# The service has forgotten this producer: the outcome of open publishes stays unknown, and a new identity begins.
PRODUCER_FORGOTTEN = ("EXPIRED", "SESSION_EXPIRED", "PRODUCER_EXPIRED")
# Refusals of a stream that a new epoch resolves.
CURED_BY_EPOCH = ("FENCED", "SESSION_FENCED", "GAP", "NOT_REGISTERED")


FindTlsProblem = Callable[[str], Awaitable[tuple[str, bool]]]
"""What is wrong about TLS with an endpoint, and whether that is certain; empty if nothing is known."""


class _Moves(ConnectionLost):
    """The stream is ended to go on at another endpoint."""


class Session:
    """Opens and replaces the stream. What is done on it belongs to its parts: `publisher`, `attachments` (consumers),
    `gets` and `transactions`; `placement` chooses the endpoint."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        silence_ms: int,
        default_ms: Callable[[], int],
        channels: OpenChannel,
        clock_s: Callable[[], float] = boottime_s,
        find_leader: FindLeader | None = None,
        find_tls_problem: FindTlsProblem | None = None,
        linger_ms: int = 0,
        tracing: Tracing | None = None,
    ) -> None:
        """default_ms: returns the limit of a wait for which the caller names none. find_leader: None if the session
        does not move to the leader. find_tls_problem: None if nobody looks for such a problem. linger_ms: see
        Gathering. tracing: None if nothing makes spans."""
        self.endpoint = endpoints[0]
        self.reconnect_count = 0
        self._stream = StreamState(default_ms, tracing)
        self.placement = Placement(self._stream, endpoints, find_leader)
        self.publisher = Publisher(self._stream.outbox.wake, clock_s, linger_ms / 1000)
        self.attachments = Attachments(self._stream, self.placement)
        self.gets = Gets(self._stream, self.placement)
        self.transactions = OpenTransactions(self._stream, self.placement, self.publisher)
        self._endpoints = endpoints
        self._open_channel = channels
        self._silence_s = silence_ms / 1000
        self._find_tls_problem = find_tls_problem
        self._tls_problems: dict[str, TlsError] = {}
        """of endpoints, before the first stream"""
        self._is_reconnecting = False
        """A stream was lost, and none has been opened since."""
        self._received = 0
        self._silent_losses = 0
        self._refusals = 0
        self._pause_s = PAUSE_FIRST_S
        """before the present attempt, or the next one"""
        self._up_since_s = 0.0
        """time of the loop"""
        self._is_closing = False
        self._call: Any = None
        self._task: asyncio.Task[None] | None = None

    # ---- life

    @property
    def node(self) -> str:
        """The node that serves the session, as it names itself."""
        return self._stream.node

    @property
    def is_up(self) -> bool:
        """Whether a stream is up."""
        return self._stream.is_up

    def require_loop(self) -> None:
        """UsageError in another event loop than that of the session."""
        self._stream.require_loop()

    async def open(self, timeout_ms: int) -> None:
        """Starts, and waits for the first stream. Raises what the service answers if it refuses."""
        self._stream.loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(), name="quorum-session")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._stream.wait()
        except TimeoutError:
            problem = next(iter(self._tls_problems.values()), None)
            why = problem or self._stream.last_error or f"no answer from {', '.join(self._endpoints)}"
            raise TimedOut(f"no session within {timeout_ms} ms; last error: {why}") from None

    async def close(self, timeout_ms: int) -> None:
        """Wait for open publishes, then end the stream so that the service still reads everything written."""
        if self._task is None:
            return
        moving = self.placement.end()
        closed = ClosedError("the client has been closed")
        try:
            if self._stream.failure is None and timeout_ms:
                await self._decide_all(timeout_ms)
            self._is_closing = True
            if self._call is not None and self.is_up:
                if self.publisher.is_idle and not self.transactions:
                    self._stream.send(close=queue_pb2.Close())
                await self._half_close()
        finally:  # also if the caller stops waiting
            self._is_closing = True
            tasks = [self._task, *self.attachments.tasks, *([moving] if moving else [])]
            for task in tasks:
                task.cancel()
            self._task = None
            self._give_up(closed)
        # those that are done may belong to an event loop that has ended
        await asyncio.gather(*[task for task in tasks if not task.done()], return_exceptions=True)

    async def _decide_all(self, timeout_ms: int) -> None:
        """Wait until all publishes are decided, over another stream if need be, and all requests are written."""
        self.publisher.gathering.close_all()
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while self._stream.failure is None and not (
            self.publisher.is_idle and (self._stream.outbox.is_flushed or not self._has_stream)
        ):
            if asyncio.get_running_loop().time() >= deadline:
                return
            await asyncio.sleep(0.005)

    @property
    def _has_stream(self) -> bool:
        """Whether a stream is up, or is being opened at the leader's endpoint."""
        return self.is_up or self._stream.is_between

    # ---- the stream

    async def _run(self) -> None:
        try:
            await self._keep_a_stream()
        except asyncio.CancelledError:
            if not self._is_closing:  # the event loop ends, or the program has cancelled all tasks
                self._give_up(ClosedError("the client has ended: its task was cancelled"))
            raise
        except Exception as error:
            # a defect in this client: fail all callers, so that none of them waits for ever
            self._give_up(ServiceError(f"the client has failed: {error!r}"))
            raise

    async def _keep_a_stream(self) -> None:
        while not self._is_closing:
            decided = self.publisher.decided_batches
            endpoint = self.placement.endpoint
            error = await self._one_stream(endpoint)
            if self._is_closing:
                return
            if isinstance(error, _Moves):
                self._stream.moved(error)
                continue
            if not self._stream.node:
                error = await self._explained(endpoint, error)
            was_up = self._stream.is_up
            self._is_reconnecting |= was_up
            self._lost(error)
            self.publisher.give_up_old()
            has_decided = self.publisher.decided_batches > decided
            up_s = asyncio.get_running_loop().time() - self._up_since_s if was_up else 0.0
            if has_decided:
                self._refusals = self._silent_losses = 0
            if up_s >= HEALTHY_S:
                self._refusals = 0
            if not self._may_go_on(error):
                self._give_up(error)
                return
            is_first = (has_decided or up_s >= LASTED_S) and self._refusals == 0
            self._pause_s = PAUSE_FIRST_S if is_first else min(self._pause_s * 2, PAUSE_LIMIT_S)
            self.placement.go_on()
            await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.5))

    async def _one_stream(self, endpoint: str) -> QuorumError:
        """Open a stream and serve it to its end. Returns the error that ended it."""
        self._stream.next_epoch()
        channel: grpc.aio.Channel | None = None
        tasks: list[asyncio.Task[None]] = []
        try:
            channel = self._open_channel(endpoint)
            call = queue_pb2_grpc.QueueStub(channel).Session()
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                opened = await self._open_stream(call)
            self._opened(endpoint, call, opened)
            jobs = [self._read(call), self._write(call), self._watch()]
            if not self.placement.is_settled:
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
        except UnreadableFile as error:  # of a session that was open, it may be there again soon
            return ConnectionLost(f"{endpoint}: {error}") if self._stream.node else error
        except QuorumError as error:
            return error
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # also if the session is closed meanwhile
                self._call = None
                if channel is not None:
                    await channel.close()

    async def _explained(self, endpoint: str, error: QuorumError) -> QuorumError:
        """The error of an endpoint where no stream could be opened; TlsError if TLS is certainly the cause."""
        self._tls_problems.pop(endpoint, None)
        is_unknown = isinstance(error, UnavailableError) and not error.reason
        if self._find_tls_problem is None or not is_unknown or isinstance(error, TimedOut):
            return error
        problem, is_certain = await self._find_tls_problem(endpoint)
        if not is_certain:
            return UnavailableError(f"{error}; {problem}") if problem else error
        self._tls_problems[endpoint] = TlsError(problem)
        return self._tls_problems[endpoint]

    async def _open_stream(self, call: Any) -> Any:
        producer_id, epoch = self._stream.name
        hello = queue_pb2.Open(
            producer_id=producer_id,
            epoch=epoch,
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
        self.endpoint, self._call = endpoint, call
        self.reconnect_count += self._is_reconnecting
        self._is_reconnecting = False
        self.publisher.limits = Limits(
            opened.window_bytes,
            opened.max_message_bytes,
            opened.max_batch_messages,
            opened.max_window_messages,
            opened.max_batch_bytes or Limits().max_batch_bytes,
        )
        self.publisher.resend_all()
        self._up_since_s = asyncio.get_running_loop().time()
        self._stream.opened(opened.node)
        self.attachments.opened()
        self._stream.outbox.wake()

    async def _read(self, call: Any) -> None:
        handlers: dict[str, Callable[[Any], None]] = {
            "confirms": self.publisher.decide,
            "delivery": self._on_delivery,
            "done": self._on_done,
            "failed": self._stream.requests.failed,
            "attached": self._on_attached,
            "cancelled": self.attachments.cancelled,
            "drained": self.attachments.drained,
            "active_changed": self.attachments.active_changed,
            "timed_out": self.attachments.timed_out,
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
                await self._stream.outbox.pause()
                continue
            await call.write(request)

    async def _leave(self) -> None:
        """Raise _Moves if the session moves; else wait for the stream's end."""
        await self.placement.settled()
        if not self._stream.is_up:
            raise _Moves(f"the session moves from {self.endpoint} to {self.placement.endpoint}")
        await asyncio.Event().wait()

    async def _watch(self) -> None:
        """Raise ConnectionLost when the service owes an answer and has been silent too long. It counts its own ticks
        instead of the clock, because a pause of this process is no silence of the service."""
        seen, silent_s = self._received, 0.0
        patience_s = self._silence_s * 2 ** min(self._silent_losses, 4)
        while True:
            await asyncio.sleep(WATCH_S)
            self.publisher.give_up_old()
            is_owed = (
                not self.publisher.is_idle or bool(self._stream.requests) or bool(self.attachments.tasks)
            )
            if self._received != seen or not is_owed:
                seen, silent_s = self._received, 0.0
                continue
            silent_s += WATCH_S
            if silent_s >= patience_s:
                self._silent_losses += 1
                raise ConnectionLost(f"{self.endpoint} was silent for {silent_s:.1f} s")

    def _next_request(self) -> Any:
        """What is written next: requests, then what consumers say, with or before publishes. None: nothing yet."""
        outbox = self._stream.outbox
        if self._stream.is_between:
            return None
        if (request := outbox.next_request()) is not None:
            return request
        if not self.placement.is_settled:
            return None
        return outbox.next_turn(self.publisher.next_request)

    # ---- answers

    def _on_delivery(self, wire: Any) -> None:
        if wire.consumer_tag:
            self.attachments.receive(wire)
        else:
            self.gets.receive(wire)

    def _on_done(self, done: Any) -> None:
        for request_id in done.request_ids:
            self._stream.requests.answered(request_id, done)

    def _on_attached(self, attached: Any) -> None:
        if self.publisher.is_idle:  # else its group may still have no majority
            self._silent_losses = 0
        self.attachments.attached(attached)

    # ---- the end of a stream

    def _lost(self, error: QuorumError) -> None:
        """Reset everything that belongs to the stream, because it has ended."""
        self._stream.lost(error)
        self.gets.lost()
        self.attachments.lost()
        self.transactions.lost()

    def _may_go_on(self, error: QuorumError) -> bool:
        """Whether another stream may succeed after this error."""
        if isinstance(error, UnreadableFile):
            return False
        if isinstance(error, TlsError):  # as long as another endpoint may serve
            return len(self._tls_problems) < len(set(self._endpoints))
        if error.reason in PRODUCER_FORGOTTEN:
            self.publisher.begin_again(error)
            self._stream.begin_again()
            return True
        if not isinstance(error, RefusedError) or error.reason in CURED_BY_EPOCH:
            return True
        self._refusals += 1
        was_ever_open = bool(self._stream.node)
        return was_ever_open and self._refusals < REFUSALS_BEFORE_GIVING_UP

    def _give_up(self, error: QuorumError) -> None:
        """There will be no other stream: all who wait get the error."""
        self._stream.fail(error)
        self._lost(error)
        self.publisher.fail_all(error)
        self.attachments.end_all(None if self._is_closing else error)
        self.placement.stay()

    async def _half_close(self) -> None:
        """Half-close the stream after everything is written, and wait for the service, up to CLOSE_FLUSH_S in all."""
        task, call = self._task, self._call
        assert task is not None
        try:
            async with asyncio.timeout(CLOSE_FLUSH_S):
                while not self._stream.outbox.is_flushed:
                    await asyncio.sleep(0.001)
                await call.done_writing()
                await asyncio.wait({task})
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.InternalError):
            return  # the stream has ended: before, or (InternalError) during done_writing
