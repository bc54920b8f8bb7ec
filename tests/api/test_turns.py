"""Turns for work that holds the event loop (quorum/api/turns.py)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quorum.api.turns import LARGE_STEPS, STEPS_OF_A_PASS, Turns

HALF = STEPS_OF_A_PASS // 2


class Work:
    """Starts pieces of work, and notes the order in which they are done."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.done: list[str] = []

    def start(self, name: str, steps: int = HALF) -> asyncio.Task[None]:
        """The owner is the first character of the name."""
        return asyncio.create_task(self.turns.run(name[0], steps, lambda: self.done.append(name)))


def with_work(scenario: Callable[[Work], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(60):
            await scenario(Work())

    asyncio.run(body())


def test_a_pass_of_the_event_loop_does_a_few_steps_only() -> None:
    async def scenario(work: Work) -> None:
        tasks = [work.start(f"a{number}") for number in range(20)]
        before, passes = 0, 0
        while len(work.done) < len(tasks):
            await asyncio.sleep(0)
            passes += 1
            assert len(work.done) - before <= 2
            before = len(work.done)
        assert work.done == [f"a{number}" for number in range(20)]
        assert passes <= 12

    with_work(scenario)


def test_a_large_piece_is_followed_by_passes_without_such_work() -> None:
    async def scenario(work: Work) -> None:
        await work.turns.take("a", 8 * STEPS_OF_A_PASS)
        second = work.start("a1")
        for _ in range(7):
            await asyncio.sleep(0)
            assert not second.done()
        await second
        assert work.done == ["a1"]

    with_work(scenario)


def test_owners_take_turns() -> None:
    async def scenario(work: Work) -> None:
        names = ("a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1", "c0")
        await asyncio.gather(*[work.start(name) for name in names])
        assert work.done == ["a0", "a1", "a2", "b0", "c0", "a3", "b1", "a4", "a5"]

    with_work(scenario)


def test_work_without_steps_does_not_wait() -> None:
    async def scenario(work: Work) -> None:
        tasks = [work.start(f"a{number}", STEPS_OF_A_PASS) for number in range(3)]
        await asyncio.sleep(0)
        assert await work.turns.run("a", 0, lambda: 7) == 7
        assert work.done == ["a0"]
        await asyncio.gather(*tasks)

    with_work(scenario)


def test_a_caller_that_waits_no_more_takes_no_turn() -> None:
    async def scenario(work: Work) -> None:
        tasks = [work.start(f"a{number}", STEPS_OF_A_PASS) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[2].cancel()
        await tasks[3]
        assert work.done == ["a0", "a3"]
        await work.start("b0")
        assert work.done[-1] == "b0"

    with_work(scenario)


def test_an_error_is_the_callers_and_ends_its_turn() -> None:
    async def scenario(work: Work) -> None:
        for steps in (1, LARGE_STEPS + 1):
            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    await work.turns.run("a", steps, lambda: 1 // 0)

    with_work(scenario)


class Threads:
    """Large pieces of work: each waits in the thread until it is let go."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self._goes = {name: threading.Event() for name in ("a0", "a1", "a2", "b0")}
        self._loop = asyncio.get_running_loop()
        self._has_begun = asyncio.Event()

    def start(self, name: str) -> asyncio.Task[int]:
        def run() -> int:
            assert threading.current_thread() is not threading.main_thread()
            self.begun.append(name)
            self._loop.call_soon_threadsafe(self._has_begun.set)
            self._goes[name].wait(60)
            return int(name[1])

        return asyncio.create_task(self.turns.run(name[0], LARGE_STEPS + 1, run))

    async def next_begins(self) -> None:
        await self._has_begun.wait()
        self._has_begun.clear()

    def let_go(self, name: str) -> None:
        self._goes[name].set()


def test_large_work_is_done_in_a_thread_in_turns() -> None:
    async def scenario(work: Work) -> None:
        threads = Threads(work.turns)
        tasks = {name: threads.start(name) for name in ("a0", "a1", "a2", "b0")}
        for name in ("a0", "a1", "b0", "a2"):
            await threads.next_begins()
            assert threads.begun[-1] == name
            assert await work.turns.run("c", 1, lambda: 7) == 7  # the event loop is free
            threads.let_go(name)
            assert await tasks[name] == int(name[1])
        assert len(threads.begun) == 4

    with_work(scenario)


def test_a_caller_that_waits_no_more_keeps_the_thread_until_its_work_is_over() -> None:
    async def scenario(work: Work) -> None:
        threads = Threads(work.turns)
        first = threads.start("a0")
        await threads.next_begins()
        second, third, other = threads.start("a1"), threads.start("a2"), threads.start("b0")
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.wait({first, second})
        assert threads.begun == ["a0"]
        threads.let_go("a0")
        await threads.next_begins()
        threads.let_go("b0")
        threads.let_go("a2")
        assert (await third, await other) == (2, 0)
        assert threads.begun in (["a0", "a2", "b0"], ["a0", "b0", "a2"])

    with_work(scenario)
