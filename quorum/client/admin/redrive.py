"""A client moves dead letters back to the queues where they died (quorum/redrive.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from quorum.client.admin.records import QueueDescription
from quorum.client.errors import (
    ClosedError,
    NotFound,
    PublishRejected,
    PublishUnknown,
    QuorumError,
    RefusedError,
    TimedOut,
    UsageError,
)
from quorum.client.messages.delivery import DeliveredMessage, Delivery
from quorum.client.session.consumer import Consumer
from quorum.client.values import FieldValue, Properties
from quorum.redrive import HISTORY, Bounds, CannotTake, InDoubt, Redrive, Redriven, Refused, other_is_active

AT_A_TIME = 500
ROUND_BYTES = 64 << 20
"""Bytes of a round, judged by the round before. A round is kept in memory, bodies included."""
MAX_PASSED = 50_000
"""Messages that the command leaves and holds, at most: it ends then. One consumer may hold a little more."""


class Mover(Protocol):
    """What is needed of the client."""

    async def describe(self, name: str) -> QueueDescription: ...

    def consume(self, queue: str, selector: str | None = None, *, prefetch: int = 1000) -> Consumer: ...

    async def publish(
        self,
        queue: str,
        body: bytes,
        properties: Properties | Mapping[str, object] | None = None,
        application_properties: Mapping[str, FieldValue] | None = None,
    ) -> None: ...

    async def settle(self, target: DeliveredMessage, *, wait: bool = False) -> None: ...


async def redrive(
    client: Mover, queue: str, selector: str | None, limit: int | None, only: str | None
) -> Redriven:
    """See Client.redrive. Messages that come to the queue meanwhile are not moved."""
    info = (await client.describe(queue)).queue
    is_single_active = bool(info.arguments.get("x-single-active-consumer"))
    source = _OneConsumer(client, queue, info.id, selector, is_single_active=is_single_active)
    bounds = Bounds(AT_A_TIME, ROUND_BYTES, limit, most_held=MAX_PASSED)
    moving = Redrive(source, queue, bounds, only, info.next_sequence, info.ready)
    try:
        await moving.run()
    finally:
        await source.close()
    return moving.result


class _OneConsumer:
    """A client as a source. One consumer takes all messages, because the queue may give more to it alone: it holds the
    message groups of those that stay, or it is the single active consumer."""

    def __init__(
        self, client: Mover, queue: str, queue_id: int, selector: str | None, *, is_single_active: bool
    ) -> None:
        """is_single_active: whether the queue has a single active consumer."""
        self._client = client
        self._queue = queue
        self._queue_id = queue_id
        self._selector = selector
        self._is_single_active = is_single_active
        self._consumer: Consumer | None = None

    async def take(self, count: int) -> tuple[list[DeliveredMessage], int]:
        while True:
            try:
                deliveries = await self._deliveries(count)
            except RefusedError as error:
                raise CannotTake from error
            held = [each for each in deliveries if not each.is_void]
            # If the stream has ended, the queue has the messages again, and perhaps gives them to another redrive.
            if held or not deliveries:
                size = sum(len(each.batch_bytes) for each in held)
                return [letter for each in held for letter in each], size

    async def _deliveries(self, count: int) -> list[Delivery]:
        """The deliveries of up to so many messages that are ready now. RefusedError."""
        await self._end_unless_held()
        if self._consumer is None:
            self._consumer = self._client.consume(self._queue, self._selector, prefetch=count)
            await self._consumer.drain()
        else:
            await self._consumer.drain_more(count)
        found = [each async for each in self._consumer.deliveries()]
        if self._is_single_active and not (found or self._consumer.is_active):
            raise RefusedError(other_is_active(self._queue), reason="IN_USE")
        await self._require_same_queue()
        return found

    async def _require_same_queue(self) -> None:
        """NotFound if the name belongs to another queue now. The consumer attaches by name, and the sequences of
        another queue begin at 1 again: they would name other messages than those that this redrive has published."""
        if (await self._client.describe(self._queue)).queue.id != self._queue_id:
            text = f"queue {self._queue!r} was deleted and declared again meanwhile; begin again"
            raise NotFound(text, reason="QUEUE_DELETED")

    async def _end_unless_held(self) -> None:
        """End a consumer that holds nothing: perhaps its stream has ended, or its messages have timed out."""
        if self._consumer is not None and not self._consumer.held:
            await self.close()

    async def publish(self, letter: DeliveredMessage, target: str, history: str | None) -> None:
        own = {name: value for name, value in letter.application_properties.items() if value is not None}
        if history is not None:
            own[HISTORY] = history
        try:
            await self._client.publish(target, letter.body, letter.properties, own)
        except (PublishUnknown, ClosedError) as error:
            raise InDoubt from error
        except (PublishRejected, TimedOut, UsageError) as error:
            raise Refused(str(error)) from error
        except QuorumError as error:  # the session was lost after the message was sent
            raise InDoubt from error

    async def settle(self, letter: DeliveredMessage) -> None:
        try:
            await self._client.settle(letter, wait=True)
        except QuorumError as error:
            raise InDoubt from error

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.cancel()
