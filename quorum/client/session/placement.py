"""The endpoint where a session stays.

A session that has not been used yet moves once to the node that leads the group of its first queue: there, a message
needs no hop to the leader and no hop back. Until then nothing of the first queue is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quorum.client.errors import QuorumError
from quorum.client.session.stream_state import StreamState

FIND_LEADER_S = 0.5

FindLeader = Callable[[str], Awaitable[tuple[str, str]]]
"""(node, endpoint) of the leader of a queue's group; empty if none is known. Raises QuorumError."""


class Placement:
    """Chooses the endpoint of the next stream. find_leader: None if the session does not move to the leader."""

    def __init__(
        self, stream: StreamState, endpoints: tuple[str, ...], find_leader: FindLeader | None
    ) -> None:
        self._stream = stream
        self._endpoints = endpoints
        self._place = 0
        self._find_leader = find_leader if len(endpoints) > 1 else None
        self._moving: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """The session is where it stays, as long as its stream lasts."""
        if self._find_leader is None:
            self._settled.set()

    @property
    def endpoint(self) -> str:
        """Where the next stream is opened."""
        return self._endpoints[self._place]

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set()

    async def settled(self) -> None:
        await self._settled.wait()

    async def settled_for(self, queue: str) -> None:
        """The session is about to be used for this queue: wait until it is where it stays."""
        self.use(queue)
        await self._settled.wait()

    def use(self, queue: str) -> None:
        """The session is about to be used for this queue. If it is the first one, the session moves to its leader."""
        if self._moving is None and self._find_leader is not None:
            self._moving = asyncio.create_task(self._move(queue, self._find_leader))

    def use_exchange(self) -> None:
        """The session is about to be used for an exchange, whose queues may have any leaders. If it is the first use,
        the session stays where it is."""
        if self._moving is None:
            self._find_leader = None
            self.stay()

    def stay(self) -> None:
        """From now on the session is where it stays."""
        self._settled.set()
        self._stream.outbox.wake()

    def go_on(self) -> None:
        """The stream has ended: the next one is opened at the next endpoint."""
        self._place = (self._place + 1) % len(self._endpoints)

    def end(self) -> asyncio.Task[None] | None:
        """The session ends: it moves no more. Returns the task of a move under way, which has been cancelled."""
        if self._moving is not None:
            self._moving.cancel()
            self.stay()
        return self._moving

    async def _move(self, queue: str, find_leader: FindLeader) -> None:
        """End the stream if another endpoint is the leader's. If that is not found out soon, the session stays."""
        try:
            async with asyncio.timeout(FIND_LEADER_S):
                node, endpoint = await find_leader(queue)
            if self._stream.is_up and node != self._stream.node and endpoint in self._endpoints:
                self._place = self._endpoints.index(endpoint)
                self._stream.leave()
        except (QuorumError, TimeoutError):
            pass  # any node serves the session
        finally:
            self.stay()
