"""The blocking client: a facade for the asyncio client, which runs on an event loop in its own thread.

Names, arguments and errors are the same; this module only forwards calls. Several threads may call its methods; what
they publish at a time is sent together, as what many tasks publish (client/answers.py).
Messages and deliveries have the fields of the asyncio client's; their methods that settle are blocking ones.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from quorum.client import client as aio
from quorum.client.admin.definitions import ImportReport
from quorum.client.admin.records import (
    BindingInfo,
    BrowsedMessage,
    ClusterStatus,
    ExchangeInfo,
    MemberInfo,
    Policy,
    QueueDescription,
    QueueInfo,
    ResolvedTransaction,
    TransactionInfo,
    UserInfo,
)
from quorum.client.answers import Inbox, Running, Work, at_once
from quorum.client.errors import ClosedError, PublishUnknown, UsageError
from quorum.client.messages import delivery as aio_delivery
from quorum.client.messages.batch import Batch, Message, PreparedBatch, encode_batch
from quorum.client.messages.delivery import ReceivedMessage, Target
from quorum.client.messages.routes import Address, Through
from quorum.client.session.consumer import Consumer as AioConsumer
from quorum.client.session.transaction import Transaction as AioTransaction
from quorum.client.values import FieldValue, Properties, require_timeout, with_delay
from quorum.redrive import Redriven

if TYPE_CHECKING:
    from quorum.client.messages.tracing import Tracing

__all__ = [
    "Client",
    "Consumer",
    "DeliveredMessage",
    "Delivery",
    "Message",
    "PreparedBatch",
    "Properties",
    "Transaction",
    "connect",
    "encode_batch",
]

T = TypeVar("T")


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="quorum-client", daemon=True)
        self._thread.start()
        self._inbox = Inbox(self._loop)
        self._stopping = threading.Lock()

    def publish(self, work: Work) -> None:
        """Run a publish on the loop, together with those of other threads, and wait for its answer."""
        self._require_running()
        try:
            self._inbox.leave(work, comes_back=True).wait()
        except PublishUnknown as error:
            raise self._for_threads(error) from None

    def at_once(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work that never waits for anything on the loop, and wait until it has run."""
        self._require_running()
        result: T = self._inbox.leave(partial(at_once, begin)).wait()
        return result

    def _require_running(self) -> None:
        """The thread is also gone in the child after a fork; nobody would answer there."""
        if not self._thread.is_alive():
            raise ClosedError("the client has been closed")
        if threading.get_ident() == self._thread.ident:  # it would wait for itself
            raise UsageError("a callback of a future runs in the client's own thread, where no call can wait")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop and wait for it. A KeyboardInterrupt here cancels the work there."""
        try:
            self._require_running()
        except UsageError:
            work.close()
            raise
        running = Running(self._loop, work)
        try:
            result: T = self._inbox.leave(running.begin).wait()
        except PublishUnknown as error:
            raise self._for_threads(error) from None
        except ClosedError:
            running.refused()
            raise
        except BaseException:
            running.cancel()
            raise
        return result

    def follow(
        self, begin: Callable[[], Coroutine[Any, Any, asyncio.Future[T]]]
    ) -> concurrent.futures.Future[T]:
        """Run work that gives a future of the loop. Returns a thread-safe future that follows it. Cancelling that does
        not cancel the loop's future."""
        followed: concurrent.futures.Future[T] = concurrent.futures.Future()

        def copy(done: asyncio.Future[T]) -> None:
            # always retrieved, because asyncio logs an exception that was never retrieved
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if not followed.set_running_or_notify_cancel():
                return
            if error is not None:
                followed.set_exception(error)
            else:
                followed.set_result(done.result())

        async def work() -> None:
            (await begin()).add_done_callback(copy)

        self.run(work())
        return followed

    def _for_threads(self, error: PublishUnknown) -> PublishUnknown:
        """The error with a confirmation that a thread can wait for."""

        async def confirmation() -> asyncio.Future[int]:
            found: asyncio.Future[int] = error.confirmation
            return found

        return PublishUnknown(str(error), self.follow(confirmation))

    def stop(self) -> None:
        """Refuse new work, end the remaining tasks, then the loop and its thread. Several threads may call this."""
        with self._stopping:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
                self._inbox.close()

    async def _end_tasks(self) -> None:
        self._inbox.close()  # no other task begins after this
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()  # browses that were broken off


class _Settling:
    """The settling methods, which a consumer and a client (for messages of `get`) share."""

    def __init__(self, loop: _Loop, wrapped: AioConsumer | aio.Client) -> None:
        self._loop = loop
        self._wrapped = wrapped

    def settle(self, target: Target, *, wait: bool = False) -> None:
        self._dispose(partial(self._wrapped.settle, target, wait=wait), wait)

    def return_(self, target: Target, *, wait: bool = False) -> None:
        self._dispose(partial(self._wrapped.return_, target, wait=wait), wait)

    def discard(self, target: Target, *, wait: bool = False) -> None:
        self._dispose(partial(self._wrapped.discard, target, wait=wait), wait)

    def modify(
        self,
        target: Target,
        *,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        wait: bool = False,
    ) -> None:
        changed = partial(
            self._wrapped.modify,
            target,
            delivery_failed=delivery_failed,
            undeliverable_here=undeliverable_here,
            wait=wait,
        )
        self._dispose(changed, wait)

    def _dispose(self, begin: Callable[[], Coroutine[Any, Any, T]], wait: bool) -> T:
        """Without `wait`, messages are only put among those that the next request settles."""
        return self._loop.run(begin()) if wait else self._loop.at_once(begin)


class DeliveredMessage(ReceivedMessage):
    """A message of a consumer or of `get`."""

    __slots__ = ("_settling",)

    def __init__(self, delivery: aio_delivery.Delivery, ordinal: int, settling: _Settling) -> None:
        super().__init__(delivery, ordinal)
        self._settling = settling

    def settle(self, *, wait: bool = False) -> None:
        self._settling.settle(self, wait=wait)

    def return_(self, *, wait: bool = False) -> None:
        self._settling.return_(self, wait=wait)

    def discard(self, *, wait: bool = False) -> None:
        self._settling.discard(self, wait=wait)

    def modify(
        self, *, delivery_failed: bool = False, undeliverable_here: bool = False, wait: bool = False
    ) -> None:
        self._settling.modify(
            self, delivery_failed=delivery_failed, undeliverable_here=undeliverable_here, wait=wait
        )


class Delivery(aio_delivery.Delivery):
    """A delivered batch, whose messages are those above."""

    __slots__ = ("_settling",)

    def __init__(self, delivery: aio_delivery.Delivery, settling: _Settling) -> None:
        super().__init__(delivery.holder, delivery.wire, delivery.generation)
        self._settling = settling

    def __getitem__(self, ordinal: int) -> DeliveredMessage:  # type: ignore[override]  # it has blocking methods
        found = super().__getitem__(ordinal)
        return DeliveredMessage(self, found.ordinal, self._settling)

    def __iter__(self) -> Iterator[DeliveredMessage]:  # type: ignore[override]  # they have blocking methods
        return map(self.__getitem__, range(self.count))


class Consumer(_Settling):
    """The messages of one queue: `for message in consumer`, or `for delivery in consumer.deliveries()`."""

    def __init__(self, loop: _Loop, consumer: AioConsumer) -> None:
        super().__init__(loop, consumer)
        self._consumer = consumer
        self._begun: deque[tuple[aio_delivery.Delivery, int]] = deque()
        """deliveries that no caller has, and those whose iteration was broken off; the place of the next message"""

    @property
    def consumer_tag(self) -> str:
        return self._consumer.consumer_tag

    @property
    def is_active(self) -> bool:
        return self._consumer.is_active

    def __enter__(self) -> Self:
        self._loop.run(self._consumer.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._consumer.__aexit__())

    def __iter__(self) -> Iterator[DeliveredMessage]:
        """The loop is asked once for each delivery, and not for each message of it."""
        settles = self._consumer.options.auto_settle
        while (found := self._next(None)) is not None:
            delivery, place = found
            try:
                while place < delivery.count and not delivery.is_void:
                    message = DeliveredMessage(delivery, place, self)
                    place += 1
                    yield message
                    if settles:  # the loop decides whether the message is void: it may become so meanwhile
                        self._dispose(partial(self._consumer.settle_if_held, message), wait=False)
            finally:
                if place < delivery.count:
                    self._begun.append((delivery, place))

    def deliveries(self) -> Iterator[Delivery]:
        while (delivery := self.next_delivery()) is not None:
            yield delivery
            if self._consumer.options.auto_settle:
                self.settle_batch(delivery)

    def next_delivery(self, timeout_ms: int | None = None) -> Delivery | None:
        """The next batch; None when the consumer has ended, or if no batch arrives within timeout_ms."""
        if timeout_ms is not None:
            require_timeout("timeout_ms", timeout_ms, may_be_over=True)
        found = self._next(timeout_ms)
        if found is None:
            return None
        delivery, place = found
        return Delivery(delivery.rest(place), self)

    def _next(self, timeout_ms: int | None) -> tuple[aio_delivery.Delivery, int] | None:
        """The next batch, and the place of the first message in it that the caller was not given."""

        async def has_arrived() -> bool:
            """The loop leaves the batch where the next call finds it, if this thread is interrupted meanwhile."""
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    arrived = await self._consumer.next_delivery()
            except TimeoutError:
                return False
            if arrived is not None:
                self._begun.append((arrived, 0))
            return arrived is not None

        while True:
            while self._begun:
                with contextlib.suppress(IndexError):  # another thread was faster
                    delivery, place = self._begun.popleft()
                    if not delivery.is_void:
                        return delivery, place
            if not self._loop.run(has_arrived()):
                return None

    def settle_batch(self, delivery: Delivery, *, wait: bool = False) -> bool:
        return self._dispose(partial(self._consumer.settle_batch, delivery, wait=wait), wait)

    def settle_ranges(self, ranges: Iterable[tuple[int, int]], *, wait: bool = False) -> int:
        return self._dispose(partial(self._consumer.settle_ranges, ranges, wait=wait), wait)

    def settle_up_to(self, tag: int, *, wait: bool = False) -> int:
        return self._dispose(partial(self._consumer.settle_up_to, tag, wait=wait), wait)

    def drain(self) -> None:
        self._loop.run(self._consumer.drain())

    def cancel(self, *, requeue: bool = True, timeout_ms: int | None = None) -> None:
        self._loop.run(self._consumer.cancel(requeue=requeue, timeout_ms=timeout_ms))


class Transaction:
    """Publishes and settlements that count all at once: `with client.transaction() as tx`."""

    def __init__(self, loop: _Loop, transaction: AioTransaction) -> None:
        self._loop = loop
        self._transaction = transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._loop.run(self._transaction.__aexit__(*raised))

    def publish(
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
        publishing = self._transaction.publish(
            queue, body, properties, application_properties, delay=delay, at=at, immediate=immediate
        )
        self._loop.run(publishing)

    def publish_batch(self, queue: str | Sequence[str], batch: Batch, *, immediate: bool = False) -> None:
        self._loop.run(self._transaction.publish_batch(queue, batch, immediate=immediate))

    def publish_to(
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
        publishing = self._transaction.publish_to(
            exchange,
            routing_key,
            body,
            properties,
            application_properties,
            delay=delay,
            at=at,
            mandatory=mandatory,
            immediate=immediate,
        )
        self._loop.run(publishing)

    def publish_batch_to(
        self,
        exchange: str,
        routing_key: str | Sequence[str],
        batch: Batch,
        *,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        publishing = self._transaction.publish_batch_to(
            exchange, routing_key, batch, mandatory=mandatory, immediate=immediate
        )
        self._loop.run(publishing)

    def settle(self, target: Target) -> None:
        self._loop.run(self._transaction.settle(target))

    def return_(self, target: Target) -> None:
        self._loop.run(self._transaction.return_(target))

    def discard(self, target: Target) -> None:
        self._loop.run(self._transaction.discard(target))

    def modify(
        self, target: Target, *, delivery_failed: bool = False, undeliverable_here: bool = False
    ) -> None:
        changed = self._transaction.modify(
            target, delivery_failed=delivery_failed, undeliverable_here=undeliverable_here
        )
        self._loop.run(changed)

    def commit(self) -> None:
        self._loop.run(self._transaction.commit())

    def rollback(self) -> None:
        self._loop.run(self._transaction.rollback())


class Client(_Settling):
    """A blocking client. `with connect(url) as client`, or `connect(url)` and `close()`."""

    def __init__(self, url: str, **options: Any) -> None:
        loop = _Loop()
        try:
            self._client = aio.Client(url, **options)
            loop.run(self._client.open())
        except BaseException:
            loop.stop()
            raise
        super().__init__(loop, self._client)

    def close(self, *, timeout_ms: int = aio.CLOSE_TIMEOUT_MS) -> None:
        try:
            with contextlib.suppress(ClosedError):  # closed already, or by another thread meanwhile
                self._loop.run(self._client.close(timeout_ms=timeout_ms))
        except UsageError:  # nothing was done: a wrong time limit, or a callback in the loop's own thread
            raise
        except BaseException:  # such as KeyboardInterrupt: no other call may come that ends the thread
            self._loop.stop()
            raise
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def node(self) -> str:
        return self._client.node

    @property
    def reconnect_count(self) -> int:
        return self._client.reconnect_count

    def publish(
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
        message = Message(body, with_delay(properties, delay, at), application_properties)
        address = Through("", queue, immediate=True) if immediate else queue
        if self._client.tracing is None:
            self._loop.publish(partial(self._client.gather, address, message, timeout_ms))
        else:
            self._publish_traced(self._client.tracing, address, message, timeout_ms)

    def publish_to(
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
        message = Message(body, with_delay(properties, delay, at), application_properties)
        route = Through(exchange, routing_key, mandatory, immediate)
        if self._client.tracing is None:
            self._loop.publish(partial(self._client.gather, route, message, timeout_ms))
        else:
            self._publish_traced(self._client.tracing, route, message, timeout_ms)

    def _publish_traced(
        self, tracing: Tracing, queue: Address, message: Message, timeout_ms: int | None
    ) -> None:
        """The span begins in this thread, whose current span is its parent."""
        with tracing.sending(queue, message) as traced:
            self._loop.publish(partial(self._client.gather, queue, traced, timeout_ms))

    def publish_batch(
        self,
        queue: str | Sequence[str],
        batch: Batch,
        *,
        immediate: bool = False,
        timeout_ms: int | None = None,
    ) -> int:
        return self._loop.run(
            self._client.publish_batch(queue, batch, immediate=immediate, timeout_ms=timeout_ms)
        )

    def send_batch(
        self,
        queue: str | Sequence[str],
        batch: Batch,
        *,
        immediate: bool = False,
        timeout_ms: int | None = None,
    ) -> concurrent.futures.Future[int]:
        """Publish and wait only for room in the window. Returns a future of the confirm."""
        send = self._client.send_batch
        return self._loop.follow(partial(send, queue, batch, immediate=immediate, timeout_ms=timeout_ms))

    def publish_batch_to(
        self,
        exchange: str,
        routing_key: str | Sequence[str],
        batch: Batch,
        *,
        mandatory: bool = False,
        immediate: bool = False,
        timeout_ms: int | None = None,
    ) -> int:
        return self._loop.run(
            self._client.publish_batch_to(
                exchange,
                routing_key,
                batch,
                mandatory=mandatory,
                immediate=immediate,
                timeout_ms=timeout_ms,
            )
        )

    def send_batch_to(
        self,
        exchange: str,
        routing_key: str | Sequence[str],
        batch: Batch,
        *,
        mandatory: bool = False,
        immediate: bool = False,
        timeout_ms: int | None = None,
    ) -> concurrent.futures.Future[int]:
        """Publish and wait only for room in the window. Returns a future of the confirm."""
        send = self._client.send_batch_to
        return self._loop.follow(
            partial(
                send,
                exchange,
                routing_key,
                batch,
                mandatory=mandatory,
                immediate=immediate,
                timeout_ms=timeout_ms,
            )
        )

    def transaction(self, *, timeout_ms: int | None = None) -> Transaction:
        return Transaction(self._loop, self._client.transaction(timeout_ms=timeout_ms))

    def consume(
        self,
        queue: str,
        selector: str | None = None,
        property_filter: aio.PropertyFilterArgument | None = None,
        prefetch: int = 1000,
        auto_settle: bool = False,
        *,
        consumer_tag: str | None = None,
        priority: int = 0,
        timeout_ms: int | None = None,
    ) -> Consumer:
        """Attach a consumer at once and return it. The arguments are those of the asyncio client's `consume`."""

        async def attach() -> AioConsumer:
            consumer = self._client.consume(
                queue,
                selector,
                property_filter,
                prefetch,
                auto_settle,
                consumer_tag=consumer_tag,
                priority=priority,
                timeout_ms=timeout_ms,
            )
            return await consumer.start()

        return Consumer(self._loop, self._loop.run(attach()))

    def get(
        self, queue: str, count: int = 1, settled: bool = False, *, timeout_ms: int | None = None
    ) -> list[DeliveredMessage]:
        messages = self._loop.run(self._client.get(queue, count, settled, timeout_ms=timeout_ms))
        return [DeliveredMessage(message.delivery, message.ordinal, self) for message in messages]

    def browse(
        self,
        queue: str,
        selector: str | None = None,
        start_sequence: int = 0,
        limit: int = 0,
        *,
        property_filter: aio.PropertyFilterArgument | None = None,
        delayed: bool = False,
        timeout_ms: int | None = None,
    ) -> Iterator[BrowsedMessage]:
        return _iterate(
            self._loop,
            self._client.browse(
                queue,
                selector,
                start_sequence,
                limit,
                property_filter=property_filter,
                delayed=delayed,
                timeout_ms=timeout_ms,
            ),
        )

    def declare(
        self, name: str, arguments: Mapping[str, object] | None = None, *, timeout_ms: int | None = None
    ) -> bool:
        return self._loop.run(self._client.declare(name, arguments, timeout_ms=timeout_ms))

    def delete(self, name: str, *, timeout_ms: int | None = None) -> int:
        return self._loop.run(self._client.delete(name, timeout_ms=timeout_ms))

    def purge(self, name: str, *, dead_only: bool = False, timeout_ms: int | None = None) -> int:
        return self._loop.run(self._client.purge(name, dead_only=dead_only, timeout_ms=timeout_ms))

    def redrive(
        self, queue: str, selector: str | None = None, *, limit: int | None = None, only: str | None = None
    ) -> Redriven:
        return self._loop.run(self._client.redrive(queue, selector, limit=limit, only=only))

    def queues(self, prefix: str = "", *, timeout_ms: int | None = None) -> list[QueueInfo]:
        return self._loop.run(self._client.queues(prefix, timeout_ms=timeout_ms))

    def describe(self, name: str, *, timeout_ms: int | None = None) -> QueueDescription:
        return self._loop.run(self._client.describe(name, timeout_ms=timeout_ms))

    def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        arguments: Mapping[str, object] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> bool:
        return self._loop.run(self._client.declare_exchange(name, type, arguments, timeout_ms=timeout_ms))

    def delete_exchange(self, name: str, *, if_unused: bool = False, timeout_ms: int | None = None) -> None:
        self._loop.run(self._client.delete_exchange(name, if_unused=if_unused, timeout_ms=timeout_ms))

    def exchanges(self, prefix: str = "", *, timeout_ms: int | None = None) -> list[ExchangeInfo]:
        return self._loop.run(self._client.exchanges(prefix, timeout_ms=timeout_ms))

    def describe_exchange(
        self, name: str, *, timeout_ms: int | None = None
    ) -> tuple[ExchangeInfo, list[BindingInfo], list[BindingInfo]]:
        return self._loop.run(self._client.describe_exchange(name, timeout_ms=timeout_ms))

    def bind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        arguments: Mapping[str, object] | None = None,
        *,
        to: str = "queue",
        timeout_ms: int | None = None,
    ) -> bool:
        return self._loop.run(
            self._client.bind(source, destination, routing_key, arguments, to=to, timeout_ms=timeout_ms)
        )

    def unbind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        arguments: Mapping[str, object] | None = None,
        *,
        to: str = "queue",
        timeout_ms: int | None = None,
    ) -> None:
        self._loop.run(
            self._client.unbind(source, destination, routing_key, arguments, to=to, timeout_ms=timeout_ms)
        )

    def bindings(
        self, source: str = "", *, queue: str = "", exchange: str = "", timeout_ms: int | None = None
    ) -> list[BindingInfo]:
        return self._loop.run(
            self._client.bindings(source, queue=queue, exchange=exchange, timeout_ms=timeout_ms)
        )

    def transactions(self, group: int = 0, *, timeout_ms: int | None = None) -> list[TransactionInfo]:
        return self._loop.run(self._client.transactions(group, timeout_ms=timeout_ms))

    def resolve_transaction(
        self,
        group: int,
        producer: bytes,
        number: int,
        outcome: str = "",
        *,
        timeout_ms: int | None = None,
    ) -> ResolvedTransaction:
        return self._loop.run(
            self._client.resolve_transaction(group, producer, number, outcome, timeout_ms=timeout_ms)
        )

    def set_policy(
        self,
        name: str,
        pattern: str,
        arguments: Mapping[str, object],
        priority: int = 0,
        *,
        timeout_ms: int | None = None,
    ) -> bool:
        return self._loop.run(
            self._client.set_policy(name, pattern, arguments, priority, timeout_ms=timeout_ms)
        )

    def delete_policy(self, name: str, *, timeout_ms: int | None = None) -> None:
        self._loop.run(self._client.delete_policy(name, timeout_ms=timeout_ms))

    def set_user(
        self,
        user: str,
        password: str = "",
        *,
        administers: bool = False,
        monitors: bool = False,
        timeout_ms: int | None = None,
    ) -> bool:
        return self._loop.run(
            self._client.set_user(
                user, password, administers=administers, monitors=monitors, timeout_ms=timeout_ms
            )
        )

    def set_permissions(
        self, user: str, configure: str, write: str, read: str, *, timeout_ms: int | None = None
    ) -> bool:
        return self._loop.run(
            self._client.set_permissions(user, configure, write, read, timeout_ms=timeout_ms)
        )

    def delete_user(self, user: str, *, timeout_ms: int | None = None) -> None:
        self._loop.run(self._client.delete_user(user, timeout_ms=timeout_ms))

    def users(self, *, timeout_ms: int | None = None) -> list[UserInfo]:
        return self._loop.run(self._client.users(timeout_ms=timeout_ms))

    def policies(self, *, timeout_ms: int | None = None) -> list[Policy]:
        return self._loop.run(self._client.policies(timeout_ms=timeout_ms))

    def export_definitions(self, *, timeout_ms: int | None = None) -> dict[str, Any]:
        return self._loop.run(self._client.export_definitions(timeout_ms=timeout_ms))

    def import_definitions(
        self,
        data: str | bytes | Mapping[str, Any],
        *,
        dry_run: bool = False,
        vhost: str | None = None,
        timeout_ms: int | None = None,
    ) -> ImportReport:
        return self._loop.run(
            self._client.import_definitions(data, dry_run=dry_run, vhost=vhost, timeout_ms=timeout_ms)
        )

    def cluster_status(self, *, timeout_ms: int | None = None) -> ClusterStatus:
        return self._loop.run(self._client.cluster_status(timeout_ms=timeout_ms))

    def add_member(self, member: MemberInfo, *, replace: bool = False, timeout_ms: int | None = None) -> bool:
        return self._loop.run(self._client.add_member(member, replace=replace, timeout_ms=timeout_ms))

    def remove_member(self, name: str, *, timeout_ms: int | None = None) -> None:
        self._loop.run(self._client.remove_member(name, timeout_ms=timeout_ms))

    def set_lease_times(
        self, lease_ms: int, leader_fallback_ms: int, *, timeout_ms: int | None = None
    ) -> bool:
        return self._loop.run(
            self._client.set_lease_times(lease_ms, leader_fallback_ms, timeout_ms=timeout_ms)
        )

    def drain_member(self, name: str, *, drained: bool = True, timeout_ms: int | None = None) -> None:
        self._loop.run(self._client.drain_member(name, drained=drained, timeout_ms=timeout_ms))

    def transfer_leadership(self, group: int, to: str, *, timeout_ms: int | None = None) -> None:
        self._loop.run(self._client.transfer_leadership(group, to, timeout_ms=timeout_ms))

    def rebalance_leaders(self, *, timeout_ms: int | None = None) -> dict[int, str]:
        return self._loop.run(self._client.rebalance_leaders(timeout_ms=timeout_ms))


def connect(url: str, **options: Any) -> Client:
    """A connected blocking client for quorum://host:port,host:port. Options as for `quorum.connect`."""
    return Client(url, **options)


def _iterate(loop: _Loop, items: AsyncIterator[T]) -> Iterator[T]:
    async def step() -> tuple[bool, T | None]:
        try:
            return True, await anext(items)
        except StopAsyncIteration:
            return False, None

    while True:
        more, item = loop.run(step())
        if not more:
            return
        yield item  # type: ignore[misc]  # more says that it is one
