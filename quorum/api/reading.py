"""How calls read stored batches: in threads of their own, and within the bytes that answers under way may hold.

Reading and staging have threads of their own, so neither waits for the other. Administration uses the event loop's
threads, and health none: they wait for neither.

A call takes STEP_BYTES of the answers' window before each step of reading, by the client's address. After the step it
keeps what it holds while the client takes the answer: the answer, and the batches that its reader has cached. A client
that takes nothing therefore keeps its own further calls waiting, not the memory of the node growing.
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
"""What all answers under way may hold."""
STEP_BYTES = 32 << 20
"""What one step of reading may need, about: the largest batch, and what is made of it."""
READING_THREADS = 4
STAGING_THREADS = 2
STAGING_TURNS = 2 * STAGING_THREADS
"""Staging steps that wait for a thread or have one; each address may have one, and as many as are left free."""


class Holder(Protocol):
    """A reader with a cache."""

    @property
    def held_bytes(self) -> int:
        """What the cache takes in memory, about."""
        ...

    def drop(self) -> None:
        """Empties the cache."""
        ...


class Workers:
    """The threads and the window of one node."""

    def __init__(self, answers_bytes: int = ANSWERS_BYTES) -> None:
        self.answers = ByteWindow(answers_bytes)
        """bytes that answers under way hold, by address"""
        self._reading = ThreadPoolExecutor(READING_THREADS, "reading")
        self._staging = ThreadPoolExecutor(STAGING_THREADS, "staging")
        self._turns = ByteWindow(STAGING_TURNS, always_one=True)

    def answer(self, owner: str, reader: Holder) -> Answer:
        return Answer(self, owner, reader)

    async def read(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, step)

    async def stage(self, owner: str, step: Callable[[], T]) -> T:
        """One step of staging, when it is the owner's turn."""
        try:
            await self._turns.take(1, owner)
        except WindowFull as error:
            raise _overloaded("to stage more, for this client's address") from error
        try:
            return await asyncio.get_running_loop().run_in_executor(self._staging, step)
        finally:
            self._turns.give(1, owner)


class Answer:
    """What one call's answer holds. To be used in a `with` block."""

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
        """The next of the steps, made in a thread; None at the end. It is held until the next step begins.

        RESOURCE_EXHAUSTED where answers of this address that nobody takes leave no room.
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
    text = f"this node has no room {what}"
    return status.StatusError(status.make(status.Code.RESOURCE_EXHAUSTED, "overloaded", text))
