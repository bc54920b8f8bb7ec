"""A process in simulated time: an asyncio event loop without threads, sockets or a clock of its own, and the clock that
it reads.

Every process, node or client, has a loop of its own. So a process that is paused is a loop that is not run, and one
that was killed is a loop that is never run again, with all that its tasks were about to do.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.world import World

RESOLUTION_S = 1e-6
NOTHING: tuple[Any, ...] = ()
PARTS = 1_000_000
LOOK_MS, MOST_LOOKS = 0.002, 400
NEVER = 1 << 62
MAX_TURNS = 10_000
"""Turns of a loop at one moment: more is a loop that runs in circles."""


class Clock:
    """A process's own clock: it drifts, and has nothing to do with the clocks of others. `wall_jump_ms` is what
    somebody has done to its wall clock."""

    def __init__(self, world: World, offset_ms: int, drift_ppm: int) -> None:
        self._world = world
        self._since_ms = world.now_ms
        self._base_ms = world.now_ms + offset_ms
        self._drift_ppm = drift_ppm
        self.wall_jump_ms = 0
        self._looked_ms, self._looks = -1, 0
        self._shown_ms = 0
        """what it shows at the world's _looked_ms"""

    def ms(self) -> int:
        if self._looked_ms != self._world.now_ms:
            self._look()
        return self._shown_ms

    def s(self) -> float:
        """Goes on with every look, a little: code that compares two looks at it in one step has to bear that."""
        if self._looked_ms != self._world.now_ms:
            self._look()
        if self._looks < MOST_LOOKS:
            self._looks += 1
        return (self._shown_ms + self._looks * LOOK_MS) / 1000

    def _look(self) -> None:
        """For the first time at this moment of the world."""
        self._looked_ms, self._looks = self._world.now_ms, 0
        self._shown_ms = self._at(self._looked_ms)

    def _at(self, now_ms: int) -> int:
        passed = now_ms - self._since_ms
        return self._base_ms + passed + passed * self._drift_ppm // PARTS

    def drift(self, ppm: int) -> None:
        """Runs at another speed from now on."""
        self._base_ms, self._since_ms, self._drift_ppm = self.ms(), self._world.now_ms, ppm

    def world_ms(self, mine_ms: int) -> int:
        """The first moment of the world at which this clock shows at least this."""
        wanted = mine_ms - self._base_ms
        guess = self._since_ms + wanted * PARTS // (PARTS + self._drift_ppm)
        while self._at(guess) < mine_ms:
            guess += 1
        return guess


class Handle:
    """A callback that the loop calls once, with the methods of asyncio's handles."""

    __slots__ = ("_when_s", "arguments", "context", "is_cancelled", "work")

    def __init__(
        self, when_s: float, work: Callable[..., Any], arguments: tuple[Any, ...], context: Context | None
    ) -> None:
        self._when_s = when_s
        self.work: Callable[..., Any] | None = work
        self.arguments = arguments
        self.context = copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.work, self.arguments = None, NOTHING

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when_s


class SimLoop(asyncio.BaseEventLoop):
    """Runs only when told to; its time is the process's clock. The queues of callbacks are its own: asyncio's do more
    than is needed here, for every callback."""

    def __init__(self, clock: Clock, failed: Callable[[str], None]) -> None:
        super().__init__()
        self._sim_clock = clock
        self._failed = failed
        self._soon: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._timer_numbers = itertools.count()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Those that are not done, in the order in which they were made."""
        self.set_task_factory(self._task)
        self.set_exception_handler(lambda _, context: failed(_described(context)))

    def time(self) -> float:
        return self._sim_clock.s()

    # ---- callbacks

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(0.0, callback, args, context)
        self._soon.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(when, callback, args, context)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._sim_clock.s() + delay, callback, *args, context=context)

    def _turn(self) -> None:
        """Calls everything that is ready or due; what that makes ready, in the next turn."""
        soon, timers = self._soon, self._timers
        if not soon and timers:
            self._sim_clock.s()
        end_s = self._sim_clock.s() + RESOLUTION_S
        while timers and timers[0][0] < end_s:
            soon.append(heapq.heappop(timers)[2])
        for _ in range(len(soon)):
            handle = soon.popleft()
            if not handle.is_cancelled:
                try:
                    handle.context.run(handle.work, *handle.arguments)  # type: ignore[arg-type]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    message = f"Exception in callback {handle.work}"
                    self.call_exception_handler({"message": message, "exception": error})

    def _task(self, loop: Any, work: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        self.tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """What a service has done beside its loop is done at the loop's next turn: there are no threads here."""
        done = self.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except BaseException as error:
                done.set_exception(error)

        self.call_soon(work)
        return done

    def next_ms(self) -> int:
        """When there is something to run, on the process's clock."""
        if self._soon:
            return -NEVER
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        if not timers:
            return NEVER
        return math.ceil(timers[0][0] * 1000 - 1e-4)

    def run_now(self) -> None:
        """Everything that is ready or due, and what becomes ready by it."""
        now_ms = self._sim_clock.ms()
        events._set_running_loop(self)
        try:
            for _ in range(MAX_TURNS):
                if not self._soon and self.next_ms() > now_ms:
                    return
                self._turn()
        finally:
            events._set_running_loop(None)
        self._failed(f"a loop runs in circles: {list(self.tasks)[:5]}")

    def call(self, work: Callable[[], Any]) -> Any:
        """Calls it as if from inside the loop."""
        events._set_running_loop(self)
        try:
            return work()
        finally:
            events._set_running_loop(None)

    def bury(self) -> None:
        """Ends every task, so that nothing of a dead process is left to the collector's whims."""
        self.set_exception_handler(lambda *_: None)
        for _ in range(100):
            tasks = list(self.tasks)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.run_now()
        assert not self.tasks, f"tasks that cannot be ended: {list(self.tasks)}"
        self._soon.clear()
        self._timers.clear()
        self.close()


def _described(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {error!r}"
