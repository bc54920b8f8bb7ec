"""Threads for reading and staging batches, and a limit for the memory of unfinished answers.

- Reading and staging have separate threads, so neither waits for the other.
- Administration uses the event loop's thread pool, and health uses no threads. They wait for neither.

Each step of reading first reserves STEP_BYTES of the answers' window, which is shared by client address. After the step
the call keeps only the bytes in use until the client takes the answer: the answer, and the batches in its reader's
cache. A client that does not read therefore blocks its own further calls, and the node's memory does not grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self, TypeVar

from quorum.api import status
from quorum.api.shares import ByteWindow, WindowFull

T = TypeVar("T")

ANSWERS_BYTES = 256 << 20
"""Maximum bytes of all unfinished answers."""
STEP_BYTES = 32 << 20
"""Approximate maximum bytes of one step of reading: the largest batch, and the answer made from it."""
READING_THREADS = 4
STAGING_THREADS = 2
STAGING_TURNS = 2 * STAGING_THREADS
"""Limit for staging steps that have a thread or wait for one. An address may have as many as are left free (shares.py),
and always one, even beyond the limit."""


class Holder(Protocol):
    """A reader with a cache."""

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the cache, in bytes."""
        ...

    def drop(self) -> None:
        """Empty the cache."""
        ...


class Workers:
    """One node's threads for reading and staging, and its window for answers."""

    def __init__(self, answers_bytes: int = ANSWERS_BYTES) -> None:
        self.answers = ByteWindow(answers_bytes)
        """bytes of unfinished answers, by address"""
        self._reading = ThreadPoolExecutor(READING_THREADS, "reading")
        self._staging = ThreadPoolExecutor(STAGING_THREADS, "staging")
        self._turns = ByteWindow(STAGING_TURNS, always_one=True)

    def answer(self, owner: str, reader: Holder) -> Answer:
        return Answer(self, owner, reader)

    async def read(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, step)

    async def stage(self, owner: str, step: Callable[[], T]) -> T:
        """Run one step of staging in a thread, when it is the owner's turn.

        Raises RESOURCE_EXHAUSTED if the step waits and none of the owner's steps ends for shares.PATIENCE_S.
        """
        try:
            await self._turns.take(1, owner)
        except WindowFull as error:
            raise _overloaded("to stage more, for this client's address") from error
        try:
            return await asyncio.get_running_loop().run_in_executor(self._staging, step)
        finally:
            self._turns.give(1, owner)


class Answer:
    """The bytes that one call's answer holds. Use it in a `with` block, which releases them."""

    def __init__(self, workers: Workers, owner: str, reader: Holder) -> None:
        self._workers = workers
        self._owner = owner
        self._reader = reader
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep(0)

    async def step(self, steps: Iterator[T], size_of: Callable[[T], int]) -> T | None:
        """Run the next step in a thread and return its item; None at the end.

        size_of: bytes of an item; they are held until the next step begins. Raises RESOURCE_EXHAUSTED if the window has
        no room for this address and the address releases nothing for shares.PATIENCE_S.
        """
        self._keep(0)
        window = self._workers.answers
        if not window.take_now(STEP_BYTES, self._owner):
            self._reader.drop()
            try:
                await window.take(STEP_BYTES, self._owner)
            except WindowFull as error:
                raise _overloaded(f"for an answer, for this client's address: {error}") from error
        self._held = STEP_BYTES
        item = await self._workers.read(lambda: next(steps, None))
        self._keep(0 if item is None else self._reader.held_bytes + size_of(item))
        return item

    def _keep(self, size: int) -> None:
        size = min(size, self._held)
        if self._held > size:
            self._workers.answers.give(self._held - size, self._owner)
        self._held = size


def _overloaded(what: str) -> status.StatusError:
    return status.exhausted("overloaded", f"this node has no room {what}")
