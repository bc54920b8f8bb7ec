"""The queues with dead messages whose groups this node leads: which of them has its turn, and which have to wait.

A queue that waits is a key in a line, and nothing else. The first ones in line have one of PLACES places each, with a
task that forwards their letters (worker.py).

A queue whose target does not take its letters waits together with all other queues that have this target. After a
pause, one of them tries: a retry with back-off. Each time that the target takes something, one more of them is in line;
otherwise the pause grows. So a target that is full or missing costs the same for one queue and for many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from quorum.api.hub.hub import Hub
from quorum.api.status import Status
from quorum.catalog.policies import Policies
from quorum.node.queries import FindDeadQueues

LOOK_S = 2.0
"""Interval between two pages of queues with dead messages. The first dead message of a queue is told at once."""
PAGE = 1_000
"""Queues of a page."""
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Waiting times until a target is tried again, one after the other; the last one stays."""
PLACES = 32
"""Queues of a node that have their turn at a time."""
LOG_EVERY_S = 60.0
"""Interval between two lines of the log about one queue with the same reason."""

Key = tuple[int, int]
"""A queue: its group, its id."""


class Place:
    """One of the places, while its task holds it."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_held = True

    def leave(self) -> None:
        if self._is_held:
            self._is_held = False
            self._places.release()

    async def retake(self) -> None:
        if not self._is_held:
            await self._places.acquire()
            self._is_held = True

    async def let_others(self) -> None:
        """Let those that wait have the place first."""
        self.leave()
        await self.retake()


@dataclass
class _Waiting:
    """The queues that wait for one target."""

    keys: dict[Key, asyncio.Future[None] | None] = field(default_factory=dict)
    """a future if the queue's task waits as well"""
    pauses: int = 0
    """in a row"""
    trying: set[Key] = field(default_factory=set)
    """those that may try whether the target takes something"""
    policies: Policies | None = None
    """those that the node knew when the last pause began"""
    timer: asyncio.TimerHandle | None = None
    why: Status | None = None
    """why the target takes nothing, if a queue knows it"""


class DeadQueues:
    """One per node."""

    def __init__(
        self, hub: Hub, forward: Callable[[DeadQueues, Key, Place], Coroutine[Any, Any, Hashable]]
    ) -> None:
        """forward: brings the letters of a queue to their target, until there are none; returns None then, or what the
        queue has to wait for."""
        self._hub = hub
        self._forward = forward
        self._places = asyncio.Semaphore(PLACES)
        self._ready: dict[Key, None] = {}
        self._has_ready = asyncio.Event()
        self._working: dict[Key, asyncio.Task[Hashable]] = {}
        self._renewed: set[Key] = set()
        """working queues in which a message may have died since they looked"""
        self._waiting: dict[Hashable, _Waiting] = {}
        """by target"""
        self._target_of: dict[Key, Hashable] = {}
        """the target that each waiting queue waits for"""
        self._trying: dict[Key, Hashable] = {}
        """the target that a queue is trying"""
        self._groups: tuple[int, ...] = ()
        self._logged: dict[Key, tuple[str, float]] = {}
        self.clean_epochs: dict[Key, int] = {}
        """of waiting queues whose last session at the target has ended with nothing in doubt"""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._find())
            tasks.create_task(self._hear())
            while True:
                await self._has_ready.wait()
                await self._places.acquire()
                if not self._ready:
                    self._places.release()
                    self._has_ready.clear()
                    continue
                key = next(iter(self._ready))
                del self._ready[key]
                place = Place(self._places)
                self._working[key] = task = tasks.create_task(self._work(key, place))
                task.add_done_callback(partial(self._has_worked, key, place))

    async def _find(self) -> None:
        """Look at one page after the other: at once where there is something new, otherwise after a while."""
        after = (0, 0)
        while True:
            found = await self._hub.requests.query_at_leisure(FindDeadQueues(after, PAGE))
            begun = self._lead(found.groups)
            has_new = self._add(found.queues)
            after = (0, 0) if len(found.queues) < PAGE else found.queues[-1]
            if begun:
                after = (min(begun), 0)
            elif not has_new or len(self._ready) > PAGE:
                self._forget_logged()
                await asyncio.sleep(LOOK_S)

    async def _hear(self) -> None:
        while True:
            self._add(await self._hub.published.new_dead_queues())

    def _add(self, keys: Iterable[Key]) -> bool:
        """These queues have dead messages. Return whether one of them was not known."""
        before = len(self._ready)
        for key in keys:
            if key in self._working:
                self._renewed.add(key)
            elif key not in self._target_of and key[0] in self._groups:
                self._ready[key] = None
        self._has_ready.set()
        return len(self._ready) > before

    def _lead(self, groups: tuple[int, ...]) -> set[int]:
        """This node leads these groups now, and no others. Return those that are new."""
        begun = {*groups} - {*self._groups}
        if groups == self._groups:
            return begun
        self._groups = groups
        for key in [each for each in [*self._ready, *self._target_of] if each[0] not in groups]:
            self._ready.pop(key, None)
            self.clean_epochs.pop(key, None)
            self._end_wait(key)
            self._end_try(key)
        for key, task in self._working.items():
            if key[0] not in groups:
                task.cancel()
        return begun

    async def _work(self, key: Key, place: Place) -> Hashable:
        """Return what the queue has to wait for, None if there is nothing."""
        try:
            return await self._forward(self, key, place)
        except Exception as error:  # a defect holds up its own queue only
            structlog.get_logger().critical("dead letters cannot be forwarded", queue=key, exc_info=error)
            return key

    def _has_worked(self, key: Key, place: Place, task: asyncio.Task[Hashable]) -> None:
        """The queue's task has ended; it has not even begun if it was cancelled at once."""
        target = None if task.cancelled() else task.result()
        place.leave()
        del self._working[key]
        if target is not None:
            self._wait(target, key, None)
        else:
            self.clean_epochs.pop(key, None)
            if key in self._renewed:
                self._add([key])
        self._renewed.discard(key)
        self._end_try(key)

    # ---- targets

    def has_target(self, key: Key, target: Hashable) -> None:
        """This is the queue's target now, None if it has no letters any more. If it was to try another one, it does not
        learn whether that one takes something: one more of those that wait for it may try."""
        tried = self._trying.get(key)
        if tried is not None and tried not in (target, key):
            self._try_next(tried, self._waiting[tried])
            self._end_try(key)

    def does_not_answer(self, target: Hashable, key: Key) -> None:
        """The target has not answered the queue for some time: others wait until it takes something, but for one more
        after each pause."""
        if key not in self._trying:
            self._waiting.setdefault(target, _Waiting()).trying.add(key)
            self._trying[key] = target

    def refuses(self, target: Hashable, why: Status) -> None:
        """Why the target takes nothing; those that wait for it may say so."""
        self._waiting.setdefault(target, _Waiting()).why = why

    def why(self, target: Hashable) -> Status | None:
        """Why the target takes nothing, as far as is known."""
        return self._waiting[target].why if target in self._waiting else None

    def may_try(self, target: Hashable, key: Key) -> bool:
        """Whether the queue may send something to the target now, or has to wait with others."""
        return target not in self._waiting or key in self._waiting[target].trying

    def is_slow(self, target: Hashable) -> bool:
        """Whether the target has taken nothing a moment ago, so that little should be sent to it at first."""
        return target in self._waiting

    def pauses(self, target: Hashable) -> int:
        """How often in a row the target has taken nothing."""
        return self._waiting[target].pauses if target in self._waiting else 0

    def takes(self, *targets: Hashable) -> None:
        """The targets have taken something: one more of the queues that wait for each of them may try."""
        for target in targets:
            waiting = self._waiting.get(target)
            if waiting is not None:
                waiting.pauses = 0
                waiting.why = None
                self._try_next(target, waiting)

    async def wait(self, target: Hashable, key: Key, place: Place) -> None:
        """Wait for the target, without a place."""
        place.leave()
        future: asyncio.Future[None] = self._hub.loop.create_future()
        self._wait(target, key, future)
        self._end_try(key)
        try:
            await future
        finally:
            self._end_wait(key)
        await place.retake()

    def _wait(self, target: Hashable, key: Key, future: asyncio.Future[None] | None) -> None:
        waiting = self._waiting.setdefault(target, _Waiting())
        waiting.keys[key] = future
        self._target_of[key] = target
        self._pause(target, waiting)

    def _pause(self, target: Hashable, waiting: _Waiting) -> None:
        if waiting.timer is None:
            pause_s = PAUSES_S[min(waiting.pauses, len(PAUSES_S) - 1)]
            waiting.pauses += 1
            waiting.policies = self._hub.catalog.policies
            waiting.timer = self._hub.loop.call_later(pause_s, self._pause_ends, target, waiting)

    def _pause_ends(self, target: Hashable, waiting: _Waiting) -> None:
        """One queue tries. If policies have changed, all look whether they have another target by now: nothing else
        gives a queue another one."""
        waiting.timer = None
        is_new = waiting.policies is not self._hub.catalog.policies
        self._try_next(target, waiting)
        for key in list(waiting.keys) if is_new else ():
            self._release(waiting, key)
        if waiting.keys:  # they do not depend on what becomes of the one that tries
            self._pause(target, waiting)
        self._clear(target)

    def _try_next(self, target: Hashable, waiting: _Waiting) -> None:
        key = next(iter(waiting.keys), None)
        if key is not None:
            waiting.trying.add(key)
            self._trying[key] = target
            self._release(waiting, key)

    def _release(self, waiting: _Waiting, key: Key) -> None:
        future = waiting.keys.pop(key)
        del self._target_of[key]
        if future is None:
            self._ready[key] = None
        elif not future.done():
            future.set_result(None)
        self._has_ready.set()

    def _end_wait(self, key: Key) -> None:
        target = self._target_of.pop(key, None)
        if target is not None:
            del self._waiting[target].keys[key]
            self._clear(target)

    def _end_try(self, key: Key) -> None:
        target = self._trying.pop(key, None)
        if target is not None:
            self._waiting[target].trying.discard(key)
            self._clear(target)

    def _clear(self, target: Hashable) -> None:
        """Forget the target if no queue waits for it, or tries."""
        waiting = self._waiting.get(target)
        if waiting is not None and not waiting.keys and not waiting.trying:
            if waiting.timer is not None:
                waiting.timer.cancel()
            del self._waiting[target]

    # ---- the log

    def may_log(self, key: Key, reason: str) -> bool:
        """Whether the log of this node has not said the same of the queue a moment ago."""
        now_s = self._hub.loop.time()
        before, at_s = self._logged.get(key, ("", 0.0))
        if before == reason and now_s < at_s + LOG_EVERY_S:
            return False
        self._logged[key] = reason, now_s
        return True

    def _forget_logged(self) -> None:
        old_s = self._hub.loop.time() - LOG_EVERY_S
        self._logged = {key: each for key, each in self._logged.items() if each[1] > old_s}
