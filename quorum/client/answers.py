"""Answers that other threads wait for: what the blocking client uses in place of the loop's futures.

A thread leaves its work with the loop and waits for one `Answer`. The loop takes what all threads have left in one
turn. Each answer wakes its own thread directly. A message needs no task, callback or future of the loop.

The threads that the loop has just answered usually leave more work, but each of them needs some microseconds to wake.
The loop pauses for them, so that what they publish leaves together. A thread that is alone is never waited for.
"""

from __future__ import annotations

import asyncio
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any

from quorum.client.errors import ClosedError

CLOSED = "the client has been closed"
PAUSE_S = 0.000_05
"""Length of one pause, in which threads wake. The system needs about twice this time."""
MOST_PAUSES, MOST_IDLE_PAUSES = 20, 3
"""Pauses of one turn, and pauses in a row that bring no work: the loop stands still for 2 ms at most."""


class Answer:
    """The outcome of one piece of work. The loop sets it with the methods that futures have. One thread waits for
    it."""

    __slots__ = ("_error", "_inbox", "_is_done", "_set", "_value")

    def __init__(self, inbox: Inbox | None) -> None:
        """inbox: counts the answer, because the thread will probably leave more work; None if not."""
        self._inbox = inbox
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._set = allocate_lock()  # released when the answer is there
        self._set.acquire()

    def done(self) -> bool:
        return self._is_done

    def set_result(self, value: Any) -> None:
        if not self._is_done:
            self._value = value
            self._is_done = True
            self._set.release()
            if self._inbox is not None:
                self._inbox.answered()

    def set_exception(self, error: BaseException) -> None:
        if not self._is_done:
            self._error = error
            self._is_done = True
            self._set.release()
            if self._inbox is not None:
                self._inbox.answered()

    def give_up(self) -> None:
        """The thread does not wait any more. If its message was not sent yet, it is not sent."""
        self._is_done = True

    def wait(self) -> Any:
        """Block until the answer is there; return it, or raise it."""
        try:
            self._set.acquire()
        except BaseException:  # such as a KeyboardInterrupt
            self.give_up()
            raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # no cycle through the traceback
        return self._value


Work = Callable[[Answer], object]
"""A function that runs on the loop and has to set the answer. If it raises an error, that is the answer."""


class Running:
    """A coroutine that a thread waits for. It runs in the context of the thread, so that it has the thread's context
    variables, such as the current span."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._work = work
        self._context = copy_context()
        self._task: asyncio.Task[Any] | None = None

    def begin(self, answer: Answer) -> None:
        """Start the coroutine: the Work that a thread leaves."""
        if answer.done():
            self._work.close()
            return
        self._task = self._loop.create_task(self._work, context=self._context)
        self._task.add_done_callback(partial(_copy, answer))

    def refused(self) -> None:
        """The answer is ClosedError. If the loop has ended, it never begins the coroutine. Called in the thread."""
        if self._task is None:
            self._work.close()

    def cancel(self) -> None:
        """The thread does not wait any more. Called in the thread."""
        if self._task is not None and self._task.done():
            return
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed
            self._work.close()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # it was refused, or will not be begun
            self._work.close()


def _copy(answer: Answer, done: asyncio.Task[Any]) -> None:
    if done.cancelled():  # with the loop, or the thread does not wait any more
        answer.set_exception(ClosedError(CLOSED))
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


def at_once(begin: Callable[[], Coroutine[Any, Any, Any]], answer: Answer) -> None:
    """Run a coroutine that never waits, without a task."""
    work = begin()
    try:
        work.send(None)
    except StopIteration as end:
        answer.set_result(end.value)
    else:
        work.close()
        raise AssertionError(f"{work} waits")


class Inbox:
    """Work that threads have left for a loop. The loop is woken once for all of it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._loop = loop
        self._pause = pause
        self._left: deque[tuple[Answer, Work]] = deque()
        self._is_awake = False
        """a turn will run, and will take what is left now"""
        self._is_closed = False
        self._awaited = 0
        """threads that were answered since the last turn and will probably leave more work"""

    def leave(self, work: Work, *, comes_back: bool = False) -> Answer:
        """Leave work, from any thread except the loop's. The answer is ClosedError if the loop has ended. comes_back:
        the thread will probably leave more when it is answered."""
        answer = Answer(self if comes_back else None)
        self._left.append((answer, work))
        if self._is_closed:
            self._refuse_all()
        elif not self._is_awake:
            try:
                self._wake()
            except BaseException:  # such as a KeyboardInterrupt: other threads may rely on this turn already
                answer.give_up()
                self._wake()
                raise
        return answer

    def answered(self) -> None:
        """Count a thread that was answered and will probably leave more work."""
        self._awaited += 1
        if not self._is_awake and not self._is_closed:
            self._is_awake = True
            self._loop.call_soon(self._turn)

    def close(self) -> None:
        """The loop ends, or has ended: refuse what is left, and all that follows."""
        self._is_closed = True
        self._refuse_all()

    def _wake(self) -> None:
        """Let the loop run a turn. A second one does no harm."""
        try:
            self._is_awake = True
            self._loop.call_soon_threadsafe(self._turn)
        except RuntimeError:  # the loop was closed meanwhile
            self.close()
        except BaseException:
            self._is_awake = False  # else no later work would wake the loop
            raise

    def _turn(self) -> None:
        """Take the work of all threads."""
        if self._is_closed:
            self._refuse_all()
            return
        left = self._left
        if self._awaited > 1:
            idle = before = 0
            for _ in range(MOST_PAUSES):
                if len(left) >= self._awaited or idle == MOST_IDLE_PAUSES:
                    break
                self._pause(PAUSE_S)
                idle = idle + 1 if len(left) == before else 0
                before = len(left)
        self._awaited = 0
        self._is_awake = False
        while left:
            answer, work = left.popleft()
            try:
                work(answer)
            except Exception as error:
                answer.set_exception(error)

    def _refuse_all(self) -> None:
        while self._left:
            try:
                answer, _ = self._left.popleft()
            except IndexError:  # another thread was faster
                return
            answer.set_exception(ClosedError(CLOSED))
