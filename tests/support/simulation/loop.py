"""A process in simulated time: an asyncio event loop without threads, sockets or a clock of its own, and the clock that
it reads.

Every process, node or client, has a loop of its own. So a process that is paused is a loop that is not run, and one
that was killed is a loop that is never run again, with all that its tasks were about to do.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.simulation.world import World

RESOLUTION_S = 1e-6
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
        self._looked_ms = self._looks = 0

    def ms(self) -> int:
        return self._at(self._world.now_ms)

    def s(self) -> float:
        """Goes on with every look, a little: code that compares two looks at it in one step has to bear that."""
        if self._looked_ms != self._world.now_ms:
            self._looked_ms, self._looks = self._world.now_ms, 0
        self._looks = min(self._looks + 1, MOST_LOOKS)
        return (self.ms() + self._looks * LOOK_MS) / 1000

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


class _NoSelector:
    """Nothing ever comes from a socket."""

    def select(self, timeout: float | None) -> list[Any]:
        return []


class SimLoop(asyncio.BaseEventLoop):
    """Runs only when told to; its time is the process's clock."""

    def __init__(self, clock: Clock, failed: Callable[[str], None]) -> None:
        super().__init__()
        self._sim_clock = clock
        self._selector = _NoSelector()
        self._clock_resolution = RESOLUTION_S
        self._failed = failed
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Those that are not done, in the order in which they were made."""
        self.set_task_factory(self._task)
        self.set_exception_handler(lambda _, context: failed(_described(context)))

    def time(self) -> float:
        return self._sim_clock.s()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps that would have to be woken."""

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
        if self._ready:  # type: ignore[attr-defined]
            return -NEVER
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            timer = events_pop(scheduled)
            timer._scheduled = False
            self._timer_cancelled_count -= 1
        if not scheduled:
            return NEVER
        return math.ceil(scheduled[0]._when * 1000 - 1e-4)

    def run_now(self) -> None:
        """Everything that is ready or due, and what becomes ready by it."""
        events._set_running_loop(self)
        try:
            for _ in range(MAX_TURNS):
                if self.next_ms() > self._sim_clock.ms():
                    return
                self._run_once()  # type: ignore[attr-defined]
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
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()


def events_pop(scheduled: list[Any]) -> Any:
    import heapq

    return heapq.heappop(scheduled)


def _described(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {error!r}"
