"""Turns for clients' work that holds the event loop: parsing selectors, checking the properties of batches, and routing
messages through exchanges.

The work is counted in steps, which follow from the bytes of a request and not from a clock. In one pass of the event
loop, at most about STEPS_OF_A_PASS are done for all clients together, so everything else that the loop serves runs in
between. A piece with more steps is followed by as many passes without such work. Work above LARGE_STEPS is done in a
thread, one piece at a time, if it can be. Other work waits, and the owners take turns (round robin). So an owner with
many sessions delays its own work, and each piece of another owner's work by one piece only.

An owner is the number of a client's address (owners.owner_of).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from quorum.round_robin import RoundRobin

T = TypeVar("T")

STEPS_OF_A_PASS = 512
"""Steps in one pass of the event loop; one more piece of work may be begun. A step is a character of a selector, which
takes 0.1 to 5 us, and up to 50 us in a deep sum, or 4 bytes of properties, which take about 1 us. A pass takes some
milliseconds, and about 20 ms in the worst case."""
LARGE_STEPS = 4_608
"""Work above it is done in a thread. The longest selector is below it."""


class Turns:
    """One per event loop."""

    def __init__(self) -> None:
        self._left = STEPS_OF_A_PASS
        """steps left in this pass; below 0: steps of coming passes that are done already"""
        self._is_pass_counted = False
        self._waiting: RoundRobin[tuple[asyncio.Future[None], int]] = RoundRobin()
        self._thread = ThreadPoolExecutor(1, "checking")
        self._is_thread_busy = False
        self._waiting_for_thread: RoundRobin[asyncio.Future[None]] = RoundRobin()

    async def run(self, owner: Hashable, steps: int, work: Callable[[], T]) -> T:
        """Return the result of `work`, which is run when it is the owner's turn: on the event loop, or in a thread if
        it has many steps. Work of 0 steps does not wait."""
        if steps > LARGE_STEPS:
            return await self._run_in_thread(owner, work)
        await self.take(owner, steps)
        return work()

    async def take(self, owner: Hashable, steps: int) -> None:
        """Wait until it is the owner's turn to do this number of steps on the event loop. Work of 0 steps does not
        wait."""
        if steps and (self._waiting or self._left <= 0):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(owner, (turn, steps))
            await turn
        elif steps:
            self._spend(steps)

    def _spend(self, steps: int) -> None:
        self._left -= steps
        self._count_pass()

    def _count_pass(self) -> None:
        if not self._is_pass_counted:
            self._is_pass_counted = True
            asyncio.get_running_loop().call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        self._is_pass_counted = False
        self._left = min(self._left + STEPS_OF_A_PASS, STEPS_OF_A_PASS)
        while self._waiting and self._left > 0:
            turn, steps = self._waiting.take()
            if not turn.done():  # its caller waits
                turn.set_result(None)
                self._spend(steps)
        if self._left <= 0:
            self._count_pass()

    # ---- the thread

    async def _run_in_thread(self, owner: Hashable, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        if self._is_thread_busy:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting_for_thread.add(owner, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # the thread was kept for this piece
                    self._thread_is_free()
                raise
        self._is_thread_busy = True
        done = loop.run_in_executor(self._thread, work)
        done.add_done_callback(lambda _: self._thread_is_free())
        return await asyncio.shield(done)  # the work goes on if the caller waits no more

    def _thread_is_free(self) -> None:
        while self._waiting_for_thread:
            turn = self._waiting_for_thread.take()
            if not turn.done():
                turn.set_result(None)  # the thread stays busy
                return
        self._is_thread_busy = False
