"""Garbage collection of the node's log: planned and adopted by the member's thread, run on a background thread.

`Background` runs the survey and the copying: in a process on a thread of its own, in a simulation immediately, so that
a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Generic, Protocol, TypeVar

from quorum.log import LogFull

PLAN_MS = 1_000
"""Interval between garbage-collection plans."""
RETRY_MS = 10_000
"""Interval until the next attempt after a collection that found no room."""


class Runnable(Protocol):
    """One collection, planned by the log."""

    def run(self) -> None: ...


Planned = TypeVar("Planned", bound=Runnable)


class CollectedLog(Protocol[Planned]):
    """The part of the node's log that garbage collection needs."""

    def survey(self) -> None: ...
    def plan_collection(self) -> Planned | None: ...
    def adopt(self, collection: Planned) -> bool: ...


class Background(Protocol):
    """Does one piece of work at a time."""

    def start(self, work: Callable[[], None]) -> None: ...

    def is_done(self) -> bool:
        """Whether the work is over; raises the error that ended it."""
        ...


class Threaded:
    """Does work on a thread that does not keep the process from ending."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        assert self._thread is None or not self._thread.is_alive(), "one piece of work at a time"
        self._error = None

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error  # raised where it is asked for

        self._thread = Thread(target=run, name="collector", daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True


class GarbageCollection(Generic[Planned]):
    """Runs one collection after the other, as long as the log finds something to collect."""

    def __init__(self, log: CollectedLog[Planned], background: Background) -> None:
        self._log = log
        self._background = background
        self._collection: Planned | None = None
        self._is_surveying = False
        self._next_ms = 0
        self.adopted = 0
        """Collections so far."""

    @property
    def is_under_way(self) -> bool:
        """The background is at work for it, or a collection is planned and not yet adopted."""
        return self._is_surveying or self._collection is not None

    def turn(self, now_ms: int) -> None:
        """Runs the next due step. Retries later if the disk has no room; raises any other error."""
        if now_ms < self._next_ms:
            return
        if not self.is_under_way:
            self._is_surveying = True
            self._background.start(self._log.survey)
        try:
            if not self._background.is_done():
                return
            if self._is_surveying:
                self._is_surveying = False
                self._collection = self._log.plan_collection()
                if self._collection is None:
                    self._next_ms = now_ms + PLAN_MS
                else:
                    self._background.start(self._collection.run)
            elif self._collection is not None:
                collection, self._collection = self._collection, None
                self.adopted += self._log.adopt(collection)
        except LogFull:
            self._collection = None
            self._is_surveying = False
            self._next_ms = now_ms + RETRY_MS
