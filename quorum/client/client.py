"""The asyncio client: one session for publishing and consuming, unary calls for the rest.

Every call that waits takes timeout_ms; None means the client's default. If the deadline of a publish passes while it
waits for the window, it was not sent (TimedOut). If it was sent, it raises PublishUnknown, whose `confirmation` can be
awaited again.

While a node is unavailable, unary calls are retried at the next endpoint until their deadline; all of them may be
repeated safely. A delete or purge names its queue by the id that the queue had when the call began.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import grpc

from quorum.client.admin.calls import DOING, UNARY_PAUSE_S
from quorum.client.admin.definitions import DefinitionCalls
from quorum.client.admin.exchanges import ExchangeCalls
from quorum.client.admin.members import MemberCalls
from quorum.client.admin.policies import PolicyCalls
from quorum.client.admin.records import (
    BrowsedMessage,
    ConsumerInfo,
    QueueDescription,
    QueueInfo,
    StorageInfo,
)
from quorum.client.admin.redrive import redrive
from quorum.client.admin.transactions import TransactionCalls
from quorum.client.admin.users import UserCalls
from quorum.client.answers import Answer
from quorum.client.connection import tls
from quorum.client.connection.endpoints import (
    DEFAULT_TIMEOUT_MS,
    MAX_LINGER_MS,
    Channels,
    OpenChannel,
    parse_url,
)
from quorum.client.errors import (
    ClosedError,
    PublishUnknown,
    TimedOut,
    UnavailableError,
    UsageError,
    from_rpc_error,
)
from quorum.client.messages.batch import Batch, Message, prepare
from quorum.client.messages.delivery import DeliveredMessage, Delivery, Target, by_holder
from quorum.client.messages.requests import looked_at
from quorum.client.messages.routes import (
    Address,
    Route,
    Through,
    at_once,
    check_name,
    check_names,
    describe,
    of_batch,
)
from quorum.client.session.consumer import MAX_COUNT, Consumer, ConsumerOptions
from quorum.client.session.publisher import boottime_s
from quorum.client.session.session import Session
from quorum.client.session.transaction import Transaction
from quorum.client.values import (
    FieldValue,
    Properties,
    require_flag,
    require_selector,
    require_text,
    require_timeout,
    require_whole,
    with_delay,
)
from quorum.client.values import arguments as values
from quorum.client.values import property_filter as filter_value
from quorum.redrive import Redriven
from quorum.v1 import admin_pb2, queue_pb2, queue_pb2_grpc

if TYPE_CHECKING:
    from quorum.client.messages.tracing import Tracing

CONNECT_TIMEOUT_MS = 10_000
CLOSE_TIMEOUT_MS = 5_000
SILENCE_MS = 3_000
MAX_SEQUENCE = (1 << 64) - 1
LISTED_QUEUES = 1_000
"""Queues that one call of ListQueues asks for."""

PropertyFilterArgument = Mapping[str, Mapping[str, FieldValue]]


class Client(MemberCalls, PolicyCalls, UserCalls, ExchangeCalls, DefinitionCalls, TransactionCalls):
    """A connection to the service. `async with connect(url) as client`, or `await connect(url)` and
    `close()`."""

    def __init__(
        self,
        url: str,
        *,
        timeout_ms: int | Callable[[], int] = DEFAULT_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        silence_ms: int = SILENCE_MS,
        near_leader: bool = True,
        linger_ms: int | None = None,
        tracing: bool = False,
        has_session: bool = True,
        channels: OpenChannel | None = None,
        clock_s: Callable[[], float] = boottime_s,
    ) -> None:
        """timeout_ms: a number, or a function that returns the limit of a call that begins now. has_session: False for
        a client with only the calls of administration, which a drained member serves, too. channels: opens a channel to
        an endpoint; None: as the URL says. clock_s: a monotonic clock, in seconds."""
        service = parse_url(url)
        if not callable(timeout_ms):
            require_timeout("timeout_ms", timeout_ms)
        require_timeout("connect_timeout_ms", connect_timeout_ms)
        require_timeout("silence_ms", silence_ms)
        require_flag("near_leader", near_leader)
        if linger_ms is not None:
            require_whole("linger_ms", linger_ms, 0, MAX_LINGER_MS)
        require_flag("tracing", tracing)
        self.tracing = self._make_tracing() if tracing else None
        """Makes the spans, also those of the blocking client; None without the option."""
        self._endpoints = service.endpoints
        self._default_ms = timeout_ms if callable(timeout_ms) else lambda: timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._silence_ms = silence_ms
        self._near_leader = near_leader
        self._linger_ms = service.linger_ms if linger_ms is None else linger_ms
        self._has_session = has_session
        self._open_channel = channels or service.open_channel
        self._clock_s = clock_s
        self._find_tls_problem = None if channels else partial(tls.problem, service)
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._channels = Channels(service, self._open_channel)
        self._is_closed = False

    # ---- life

    async def open(self) -> Self:
        async with self._opening:
            if self._session is None and self._has_session:
                self._require_not_closed()
                self._session = await self._opened()
        return self

    async def _opened(self) -> Session:
        session = Session(
            self._endpoints,
            self._silence_ms,
            self._default_ms,
            self._open_channel,
            self._clock_s,
            self._find_leader if self._near_leader else None,
            self._find_tls_problem,
            self._linger_ms,
            self.tracing,
        )
        try:
            await session.open(self._connect_timeout_ms)
            self._require_not_closed()  # it may have been closed meanwhile
        except BaseException:
            await session.close(0)
            raise
        return session

    async def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Wait for open publishes, up to timeout_ms, and end the session; checked-out messages are returned."""
        require_timeout("timeout_ms", timeout_ms, may_be_over=True)
        self._is_closed = True
        session, self._session = self._session, None
        try:
            if session is not None:
                await session.close(timeout_ms)
        finally:  # also if the caller stops waiting
            for channel in self._channels.take_all():
                await channel.close()

    def __await__(self) -> Any:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def node(self) -> str:
        """The node that serves the session, as it names itself."""
        return self._live().node

    @property
    def endpoint(self) -> str:
        return self._live().endpoint

    @property
    def reconnect_count(self) -> int:
        """Number of times that the session has moved to another stream."""
        return self._live().reconnect_count

    # ---- publishing

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
        timeout_ms: int | None = None,
    ) -> None:
        """Publish one message and wait until it is confirmed. What many tasks publish at a time is sent together.

        delay: seconds after which the message becomes ready for consumers. at: or the time of that, with a zone.
        immediate: PublishRejected, reason NO_CONSUMERS, if no consumer can take the message at once.
        """
        message = Message(body, with_delay(properties, delay, at), application_properties)
        address = Through("", queue, immediate=True) if immediate else queue
        await self._confirmed(address, message, timeout_ms)

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
        timeout_ms: int | None = None,
    ) -> None:
        """Publish one message to an exchange and wait until all queues that it routes to have confirmed it.

        mandatory: PublishRejected, reason UNROUTABLE, if there are none; otherwise the message is dropped then.
        immediate: only queues where a consumer can take the message at once get it. PublishRejected, reason
        NO_CONSUMERS, if there are none.
        """
        message = Message(body, with_delay(properties, delay, at), application_properties)
        address = Through(exchange, routing_key, mandatory, immediate)
        await self._confirmed(address, message, timeout_ms)

    def _confirmed(self, queue: Address, message: Message, timeout_ms: int | None) -> Awaitable[None]:
        """Gather a message. What is returned waits for its outcome, without a coroutine if nothing makes spans."""
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.tracing is not None:
            return self._publish_traced(self.tracing, queue, message, timeout_ms, outcome)
        self.gather(queue, message, timeout_ms, outcome)
        return outcome

    async def _publish_traced(
        self,
        tracing: Tracing,
        queue: Address,
        message: Message,
        timeout_ms: int | None,
        outcome: asyncio.Future[Any],
    ) -> None:
        with tracing.sending(queue, message) as traced:
            self.gather(queue, traced, timeout_ms, outcome)
            await outcome

    def gather(
        self, queue: Address, message: Message, timeout_ms: int | None, outcome: asyncio.Future[Any] | Answer
    ) -> None:
        """`publish` or `publish_to` without waiting: the outcome is set when it is known. The blocking client uses
        this. queue: or an exchange with the message's routing key."""
        session = self._live()
        session.require_loop()
        check_names(queue)
        check_name(queue.keys if isinstance(queue, Through) else queue)  # of one message
        if isinstance(queue, Through) and queue.exchange:
            session.placement.use_exchange()
        else:
            session.placement.use(str(queue.keys) if isinstance(queue, Through) else queue)
        session.publisher.publish(queue, message, self._limit(timeout_ms), outcome)

    async def publish_batch(
        self,
        queue: str | Sequence[str],
        batch: Batch,
        *,
        immediate: bool = False,
        timeout_ms: int | None = None,
    ) -> int:
        """Publish a batch, wait until all of it is confirmed, and return its number of messages.

        `queue` is the queue of all messages, or one of each message. `batch` is messages, a PreparedBatch from
        `encode_batch`, or a serialized MessageBatch. immediate: PublishRejected, reason NO_CONSUMERS, if consumers
        cannot take all messages at once; then no message of the Raft group is published.
        """
        return await self._publish_batch(at_once(of_batch(queue), immediate), batch, timeout_ms)

    async def publish_batch_to(
        self,
        exchange: str,
        routing_key: str | Sequence[str],
        batch: Batch,
        *,
        mandatory: bool = False,
        immediate: bool = False,
        timeout_ms: int | None = None,
    ) -> int:
        """Publish a batch of at most 4,096 messages to an exchange, wait until all of it is confirmed, and return its
        number of messages. routing_key: of all messages, or one of each. mandatory: PublishRejected, reason UNROUTABLE,
        if a message has no queue; then no message is published. immediate: as in `publish_to` and `publish_batch`."""
        route = _through(exchange, routing_key, mandatory, immediate)
        return await self._publish_batch(route, batch, timeout_ms)

    async def _publish_batch(self, queue: Route, batch: Batch, timeout_ms: int | None) -> int:
        limit_ms = self._limit(timeout_ms)
        loop = asyncio.get_running_loop()
        started = loop.time()
        confirmation = await self._send_batch(queue, batch, limit_ms)
        confirmation.add_done_callback(looked_at)  # it may fail after the caller has stopped waiting
        left_s = max(0.0, limit_ms / 1000 - (loop.time() - started))
        try:
            async with asyncio.timeout(left_s):
                return await asyncio.shield(confirmation)
        except TimeoutError:
            raise PublishUnknown(
                f"publishing to {describe(queue)} took over {limit_ms} ms; it may still be confirmed",
                confirmation,
            ) from None

    async def send_batch(
        self,
        queue: str | Sequence[str],
        batch: Batch,
        *,
        immediate: bool = False,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[int]:
        """Publish without waiting for the confirm. Returns a future of it as soon as the window has room."""
        return await self._send_batch(at_once(of_batch(queue), immediate), batch, timeout_ms)

    async def send_batch_to(
        self,
        exchange: str,
        routing_key: str | Sequence[str],
        batch: Batch,
        *,
        mandatory: bool = False,
        immediate: bool = False,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[int]:
        """`publish_batch_to` without waiting for the confirm. Returns a future of it as soon as the window has room."""
        route = _through(exchange, routing_key, mandatory, immediate)
        return await self._send_batch(route, batch, timeout_ms)

    async def _send_batch(self, route: Route, batch: Batch, timeout_ms: int | None) -> asyncio.Future[int]:
        prepared = prepare(batch)
        check_names(route)
        session = self._live()
        session.require_loop()
        if isinstance(route, Through) and route.exchange:
            session.placement.use_exchange()
        else:
            queues = route.keys if isinstance(route, Through) else route
            session.placement.use(queues if isinstance(queues, str) else next(iter(queues), ""))
        admit, limit_ms = session.publisher.admit, self._limit(timeout_ms)
        if self.tracing is None:
            return await admit(route, prepared, limit_ms)
        return await self.tracing.sent(route, prepared, lambda traced: admit(route, traced, limit_ms))

    def transaction(self, *, timeout_ms: int | None = None) -> Transaction:
        """Publishes and settlements that count all at once. `async with` commits at the end, and rolls back if the
        block raises. timeout_ms: of the commit."""
        return Transaction(self._live().transactions, self._limit(timeout_ms))

    # ---- consuming

    def consume(
        self,
        queue: str,
        selector: str | None = None,
        property_filter: PropertyFilterArgument | None = None,
        prefetch: int = 1000,
        auto_settle: bool = False,
        *,
        consumer_tag: str | None = None,
        priority: int = 0,
        timeout_ms: int | None = None,
    ) -> Consumer:
        """A consumer. It attaches when it is awaited, entered, or first iterated.

        prefetch: unsettled messages at a time, 1 or more; the client keeps their bodies in memory. auto_settle: a
        message is settled when the same iteration is asked for the next one; the last one before a `break` is not.
        priority: -10 to 10; consumers with a higher one are served first."""
        options = ConsumerOptions(
            selector=selector,
            property_filter=None if property_filter is None else filter_value(property_filter),
            prefetch=prefetch,
            auto_settle=auto_settle,
            timeout_ms=self._limit(timeout_ms),
            priority=priority,
            has_made_tag=consumer_tag is None,
        )
        tag = f"consumer-{secrets.token_hex(4)}" if consumer_tag is None else consumer_tag
        require_text("consumer_tag", tag)
        require_flag("auto_settle", auto_settle)
        if not tag:
            raise UsageError("a consumer tag has at least one character")
        return Consumer(self._live().attachments, queue, tag, options)

    async def get(
        self, queue: str, count: int = 1, settled: bool = False, *, timeout_ms: int | None = None
    ) -> list[DeliveredMessage]:
        """Take up to `count` messages that are ready now. settled: they are settled at once (at most once)."""
        require_whole("count", count, 1, MAX_COUNT)
        check_name(queue)
        require_flag("settled", settled)
        session = self._live()
        session.require_loop()
        getting = self._get(session, queue, count, settled, self._limit(timeout_ms))
        deliveries = await (getting if self.tracing is None else self.tracing.received(queue, getting))
        return [message for delivery in deliveries for message in delivery]

    async def _get(
        self, session: Session, queue: str, count: int, settled: bool, limit_ms: int
    ) -> list[Delivery]:
        task = asyncio.create_task(session.gets.get(queue, count, settled))
        try:
            await asyncio.wait({task}, timeout=limit_ms / 1000)
        finally:
            is_done = task.done()
            if not is_done:
                session.gets.abandon(task)
        if not is_done:
            raise TimedOut(f"get from {queue!r} took over {limit_ms} ms")
        return task.result()

    async def settle(self, target: Target, *, wait: bool = False) -> None:
        """Settle a message, a delivery, or several messages. wait=True: return when that is committed."""
        for holder, part in by_holder(target):
            await holder.settle(part, wait=wait)

    async def return_(self, target: Target, *, wait: bool = False) -> None:
        """Return messages to the queue; this counts no failure."""
        for holder, part in by_holder(target):
            await holder.return_(part, wait=wait)

    async def discard(self, target: Target, *, wait: bool = False) -> None:
        """Reject messages; they are dead-lettered, or dropped if the queue has no dead-letter target."""
        for holder, part in by_holder(target):
            await holder.discard(part, wait=wait)

    async def modify(
        self,
        target: Target,
        *,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        wait: bool = False,
    ) -> None:
        """Return messages to the queue with changes: count a failed delivery, or treat them as discarded."""
        for holder, part in by_holder(target):
            await holder.modify(
                part, delivery_failed=delivery_failed, undeliverable_here=undeliverable_here, wait=wait
            )

    async def browse(
        self,
        queue: str,
        selector: str | None = None,
        start_sequence: int = 0,
        limit: int = 0,
        *,
        property_filter: PropertyFilterArgument | None = None,
        delayed: bool = False,
        timeout_ms: int | None = None,
    ) -> AsyncIterator[BrowsedMessage]:
        """Read ready messages in order without removing them; continue at another node if one fails.

        limit 0: all. delayed: the delayed messages instead, by sequence. timeout_ms limits the wait for each part, not
        for the whole.
        """
        check_name(queue)
        require_whole("start_sequence", start_sequence, 0, MAX_SEQUENCE)
        require_whole("limit", limit, 0, MAX_SEQUENCE)
        require_flag("delayed", delayed)
        request = queue_pb2.BrowseRequest(
            queue=queue, start_sequence=start_sequence, limit=limit, delayed=delayed
        )
        if selector is not None:
            require_selector(selector)
            request.selector = selector
        if property_filter is not None:
            request.property_filter.CopyFrom(filter_value(property_filter))
        left = limit
        limit_ms = self._limit(timeout_ms)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_ms / 1000
        why = ""
        for attempt in itertools.count():
            call = queue_pb2_grpc.QueueStub(self._channel(attempt)).Browse(request, wait_for_ready=False)
            try:
                while True:
                    async with asyncio.timeout_at(deadline):
                        response = await call.read()
                    if response is grpc.aio.EOF:
                        return
                    for wire in response.messages:
                        request.start_sequence = wire.sequence + 1
                        left -= 1
                        yield BrowsedMessage(wire)
                        if limit and left <= 0:
                            return
                    deadline = loop.time() + limit_ms / 1000
            except TimeoutError:
                raise TimedOut(f"browsing {queue!r}: no answer for {limit_ms} ms{why}") from None
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem, f"browsing {queue!r}")
                if not isinstance(error, UnavailableError) or deadline - loop.time() <= 2 * UNARY_PAUSE_S:
                    raise error from problem
                why = f"; last error: {error}"
            except asyncio.CancelledError:
                self._require_own_cancellation()
                raise
            finally:
                call.cancel()
            if limit:
                request.limit = left
            await asyncio.sleep(UNARY_PAUSE_S)

    # ---- administration

    async def declare(
        self, name: str, arguments: Mapping[str, object] | None = None, *, timeout_ms: int | None = None
    ) -> bool:
        """Make sure that the queue exists with these arguments. True if this call created it."""
        check_name(name)
        request = admin_pb2.DeclareQueueRequest(queue=name, arguments=values(arguments))
        return bool((await self._admin("DeclareQueue", request, timeout_ms)).created)

    async def delete(self, name: str, *, timeout_ms: int | None = None) -> int:
        """Delete the queue. Returns the number of messages deleted with it (0 if an earlier try deleted it). A repeat
        never deletes another queue that was declared under this name meanwhile."""
        left_ms = self._time_left(timeout_ms)
        queue = await self._look_up(name, "DeleteQueue", left_ms())
        request = admin_pb2.DeleteQueueRequest(queue=name, id=queue.id)
        return int((await self._admin("DeleteQueue", request, left_ms())).message_count)

    async def purge(self, name: str, *, dead_only: bool = False, timeout_ms: int | None = None) -> int:
        """Remove the ready, delayed and dead messages; checked-out ones stay. Returns the number of removed messages
        (fewer if an earlier try removed some). Messages that are published after the call began may stay; a repeat
        never removes them. dead_only: remove only those that wait for a dead-letter target."""
        require_flag("dead_only", dead_only)
        left_ms = self._time_left(timeout_ms)
        queue = await self._look_up(name, "PurgeQueue", left_ms())
        request = admin_pb2.PurgeQueueRequest(
            queue=name, id=queue.id, before_sequence=queue.next_sequence, dead_only=dead_only
        )
        return int((await self._admin("PurgeQueue", request, left_ms())).message_count)

    async def redrive(
        self, queue: str, selector: str | None = None, *, limit: int | None = None, only: str | None = None
    ) -> Redriven:
        """Move the messages that are ready in a dead-letter queue back to the queues where they died last. A message is
        settled when the other queue has confirmed it: if this client ends in between, it is in both. limit: the highest
        number of messages, with those that stay. only: the queue where they have died; others are passed over."""
        if limit is not None:
            require_whole("limit", limit, 0, MAX_SEQUENCE)
        if only is not None:
            require_text("only", only)
        return await redrive(self, queue, selector, limit, only)

    async def queues(self, prefix: str = "", *, timeout_ms: int | None = None) -> list[QueueInfo]:
        """Queues whose names begin with prefix, sorted by name as the service sorts them."""
        check_name(prefix)
        found: list[QueueInfo] = []
        request = admin_pb2.ListQueuesRequest(prefix=prefix, limit=LISTED_QUEUES)
        left_ms = self._time_left(timeout_ms)
        while True:
            response = await self._admin("ListQueues", request, left_ms())
            found += (QueueInfo.of(queue) for queue in response.queues)
            if not response.next_after:
                return found
            request.after = response.next_after

    async def describe(self, name: str, *, timeout_ms: int | None = None) -> QueueDescription:
        check_name(name)
        request = admin_pb2.DescribeQueueRequest(queue=name)
        consumers: list[ConsumerInfo] = []
        left_ms = self._time_left(timeout_ms)
        while True:
            response = await self._admin("DescribeQueue", request, left_ms())
            consumers += (ConsumerInfo.of(consumer) for consumer in response.consumers)
            if not response.next_consumers_after:
                break
            request.consumers_after = response.next_consumers_after
        return QueueDescription(
            QueueInfo.of(response.queue), tuple(consumers), StorageInfo.of(response.storage)
        )

    # ---- inside

    def _make_tracing(self) -> Tracing:
        """UsageError without OpenTelemetry. No other client needs its time to import, and its memory."""
        try:
            from quorum.client.messages.tracing import Tracing
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "opentelemetry":
                raise
            raise UsageError(
                f"tracing needs {error.name}: pip install 'FILE.whl[otel]', where FILE.whl is the wheel of this "
                "release; '.[otel]' in its source tree"
            ) from error
        return Tracing(self._served_by)

    def _served_by(self) -> str:
        """The endpoint of the session; empty if there is none. Any thread may call this."""
        session = self._session
        return "" if session is None else session.endpoint

    async def _find_leader(self, queue: str) -> tuple[str, str]:
        """placement.FindLeader, asked at the session's endpoint."""
        stub = queue_pb2_grpc.QueueStub(self._channel(0))
        try:
            found = await stub.FindLeader(queue_pb2.FindLeaderRequest(queue=queue))
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem, f"finding the leader of queue {queue!r}") from problem
        return found.node, found.address

    async def _look_up(self, name: str, method: str, timeout_ms: int) -> admin_pb2.QueueInfo:
        """The queue that has the name now; its id serves all tries of this method's call."""
        check_name(name)
        request = admin_pb2.DescribeQueueRequest(queue=name)
        response = await self._admin("DescribeQueue", request, timeout_ms, DOING[method])
        found: admin_pb2.QueueInfo = response.queue
        return found

    def _channel(self, attempt: int) -> grpc.aio.Channel:
        """A channel to the session's endpoint (or the first one) for attempt 0, then to the others in turn."""
        self._require_not_closed()
        first = self._endpoints.index(self._live().endpoint) if self._has_session else 0
        endpoint = self._endpoints[(first + attempt) % len(self._endpoints)]
        channel: grpc.aio.Channel = self._channels.get(endpoint)
        return channel

    def _require_not_closed(self) -> None:
        if self._is_closed:
            raise ClosedError("the client has been closed")

    def _require_own_cancellation(self) -> None:
        """After a CancelledError: raise ClosedError unless the caller's task was cancelled. `close` cancels the calls
        of gRPC."""
        task = asyncio.current_task()
        if self._is_closed and (task is None or not task.cancelling()):
            raise ClosedError("the client has been closed") from None

    def _live(self) -> Session:
        self._require_not_closed()
        if not self._has_session:
            raise UsageError("the client has no session: it has only the calls of administration")
        if self._session is None:
            raise UsageError("the client is not open: use `async with`, or await it")
        return self._session


def connect(
    url: str,
    *,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    silence_ms: int = SILENCE_MS,
    near_leader: bool = True,
    linger_ms: int | None = None,
    tracing: bool = False,
) -> Client:
    """A client for quorum://host:port,host:port, or quorums:// with TLS; open it with `async with` or `await`.

    timeout_ms: default deadline of every call. silence_ms: if no answer arrives for this time while one is due, the
    session moves to the next endpoint. near_leader: when its first queue is used, the session moves to the endpoint
    whose node leads that queue's group, if it is in the URL; otherwise it stays where it was opened. linger_ms: least
    time between two batches of single messages of a queue; None: as the URL says, else 0. tracing: make spans of
    OpenTelemetry, and put their context into the messages; needs the extra `otel`.
    """
    return Client(
        url,
        timeout_ms=timeout_ms,
        connect_timeout_ms=connect_timeout_ms,
        silence_ms=silence_ms,
        near_leader=near_leader,
        linger_ms=linger_ms,
        tracing=tracing,
    )


def _through(exchange: str, routing_key: str | Sequence[str], mandatory: bool, immediate: bool) -> Route:
    return Through(exchange, of_batch(routing_key), mandatory, immediate)
