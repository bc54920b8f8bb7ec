"""Messages that a session takes without a consumer: one get at a time."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakValueDictionary

from quorum.client.errors import ConnectionLost, ServiceError
from quorum.client.messages.delivery import Delivery, GetHolder
from quorum.client.session.placement import Placement
from quorum.client.session.stream_state import StreamState
from quorum.v1 import queue_pb2


class Gets:
    """The gets of a session, and what they hold."""

    def __init__(self, stream: StreamState, placement: Placement) -> None:
        self._stream = stream
        self._placement = placement
        self._holders: WeakValueDictionary[tuple[str, int], GetHolder] = WeakValueDictionary()
        """by queue and attach, as long as the caller has a message, or something waits to be sent"""
        self._lock = asyncio.Lock()
        self._got: tuple[str, list[Delivery]] | None = None
        """the queue of the get that is open, and what it has taken"""
        self._getting: asyncio.Task[Any] | None = None
        """the task whose get has been requested"""
        self._is_abandoned = False
        """nobody waits for this task any more"""

    async def get(self, queue: str, count: int, settled: bool) -> list[Delivery]:
        """Take up to `count` messages. Only one get is open at a time: its deliveries precede its answer.

        A get is repeated after a lost connection, unless nobody waits for it any more, or it is `settled`: those
        messages may be lost with the connection.
        """
        await self._placement.settled_for(queue)
        async with self._lock:
            while True:
                await self._stream.wait()
                request_id, answer = self._stream.ask(f"get from {queue!r}")
                got: list[Delivery] = []
                self._got, self._getting = (queue, got), asyncio.current_task()
                self._is_abandoned = False
                self._stream.send(
                    get=queue_pb2.SessionGet(request_id=request_id, queue=queue, count=count, settled=settled)
                )
                try:
                    await answer
                except ConnectionLost:
                    if settled or self._is_abandoned:
                        raise
                    continue
                finally:
                    self._got = self._getting = None
                if settled:
                    for delivery in got:
                        delivery.holder.held.remove(delivery.first_tag, delivery.last_tag)
                return got

    def abandon(self, task: asyncio.Task[list[Delivery]]) -> None:
        """Nobody waits for this task's get any more. If it has been requested, messages that it takes are returned."""
        if self._getting is task:
            self._is_abandoned = True
            task.add_done_callback(_give_back)
        else:
            task.cancel()

    def receive(self, wire: Any) -> None:
        """A delivery without a consumer tag."""
        if self._got is None:
            raise ServiceError(f"the service sent {wire.count} messages without a get")
        queue, deliveries = self._got
        holder = self._holders.get((queue, wire.attach))
        if holder is None:
            holder = self._holders[queue, wire.attach] = GetHolder(self._stream, queue, wire.attach)
        deliveries.append(holder.receive(wire))

    def lost(self) -> None:
        """The stream has ended: what was taken on it is ready in its queue again."""
        for holder in list(self._holders.values()):
            holder.void()
        self._holders.clear()


def _give_back(task: asyncio.Task[list[Delivery]]) -> None:
    """Return the messages of a get whose caller has stopped waiting."""
    if task.cancelled() or task.exception() is not None:
        return
    for delivery in task.result():
        if delivery.holder.held and not delivery.is_void:
            delivery.holder.give_back(delivery)
