"""The transactions of a session whose outcome is not known: their numbers, and how far these may be apart."""

from __future__ import annotations

import asyncio

from quorum.client.errors import TimedOut
from quorum.client.messages.batch import PreparedBatch
from quorum.client.messages.routes import Route, check_names
from quorum.client.session.placement import Placement
from quorum.client.session.publisher import Publisher
from quorum.client.session.stream_state import StreamState

MAX_TRANSACTIONS = 256
"""How far the numbers of transactions may be apart whose outcome is not known."""


class OpenTransactions:
    """Implements transaction.Link."""

    def __init__(self, stream: StreamState, placement: Placement, publisher: Publisher) -> None:
        self.stream = stream
        self.placement = placement
        self._publisher = publisher
        self._next = 1
        self._open: dict[int, bool] = {}
        """by number, ascending: whether its commit was sent"""
        self._ended = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def has_room(self) -> bool:
        """Whether a transaction can begin: a stream is up, and the window has room for one more."""
        return self.placement.is_settled and self.stream.is_up and not self._is_full

    @property
    def _is_full(self) -> bool:
        return bool(self._open) and self._next - next(iter(self._open)) >= MAX_TRANSACTIONS

    async def wait_for_room(self, timeout_ms: int) -> None:
        """Wait until a transaction can begin. Raises the failure if there will be no stream."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.placement.settled()
                await self.stream.wait()
                while self._is_full:
                    self._ended.clear()
                    await self._ended.wait()
                    await self.stream.wait()
        except TimeoutError:
            raise TimedOut(f"no transaction could begin for {timeout_ms} ms") from None

    def check(self, queue: Route, batch: PreparedBatch) -> None:
        """Raise UsageError if the service never takes such a batch."""
        check_names(queue)
        self._publisher.check(queue, batch)

    def begin(self) -> int:
        """The number of a new transaction. Its first request has to be sent at once, before another one begins: a group
        refuses a new transaction whose number is not above those before."""
        number, self._next = self._next, self._next + 1
        self._open[number] = False
        return number

    def commits(self, number: int) -> None:
        """The commit of a transaction is sent: only the service knows the outcome."""
        self._open[number] = True

    def lost(self) -> None:
        """The stream has ended, and with it each transaction whose commit was not sent."""
        self._open = {number: True for number, is_committing in self._open.items() if is_committing}
        self._ended.set()

    def end(self, number: int) -> None:
        """The outcome of a transaction is known, or never will be."""
        self._open.pop(number, None)
        self._ended.set()
