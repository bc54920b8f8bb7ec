"""The blocking facade's loop: outcomes reach who waits, and nothing is left behind when it ends."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Queue

import pytest

from quorum.client.errors import ClosedError, UsageError
from quorum.sync import _Loop


async def _future() -> asyncio.Future[int]:
    return asyncio.get_running_loop().create_future()


async def _same(future: asyncio.Future[int]) -> asyncio.Future[int]:
    return future


async def _fail(future: asyncio.Future[int]) -> None:
    future.set_exception(ClosedError("the client has been closed"))


def test_a_followed_future_gives_its_result() -> None:
    loop = _Loop()

    async def done() -> asyncio.Future[int]:
        future = await _future()
        future.set_result(7)
        return future

    assert loop.follow(done).result() == 7
    loop.stop()


def test_a_failure_that_nobody_waited_for_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    loop = _Loop()
    future = loop.run(_future())
    followed = loop.follow(partial(_same, future))
    loop.run(_fail(future))
    loop.stop()
    assert isinstance(followed.exception(), ClosedError)
    del future, followed
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


def test_a_cancelled_follower_leaves_the_future_alone() -> None:
    loop = _Loop()
    future = loop.run(_future())
    assert loop.follow(partial(_same, future)).cancel()
    loop.run(_fail(future))
    assert isinstance(future.exception(), ClosedError)
    loop.stop()


def test_what_still_runs_is_ended_with_the_loop() -> None:
    loop = _Loop()
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("yes")

    async def begin() -> asyncio.Task[None]:
        task = asyncio.ensure_future(forever())
        await asyncio.sleep(0)
        return task

    loop.run(begin())
    loop.stop()
    assert ended == ["yes"]


def test_a_thread_whose_call_is_ended_with_the_loop_is_told() -> None:
    loop = _Loop()
    begun = threading.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: loop.run(forever()))
        begun.wait()
        loop.stop()
        with pytest.raises(ClosedError):
            waiting.result()


def test_the_coroutine_of_a_refused_call_is_closed_although_the_loop_runs_nothing_more() -> None:
    """Otherwise Python warns that it was never awaited."""
    loop = _Loop()
    ends = threading.Event()
    loop._loop.call_soon_threadsafe(ends.wait)
    loop._inbox.close()
    work = _future()
    with pytest.raises(ClosedError):
        loop.run(work)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    ends.set()
    loop.stop()


def test_a_call_that_comes_while_the_loop_ends_is_refused() -> None:
    """What runs at the end is ended first; a call that comes meanwhile would be begun and never ended."""
    loop = _Loop()
    refused: list[ClosedError] = []

    async def forever() -> None:
        await asyncio.Event().wait()

    def call() -> None:
        try:
            loop.run(forever())
        except ClosedError as error:
            refused.append(error)

    late = threading.Thread(target=call, daemon=True)

    async def ends_slowly() -> None:
        try:
            await forever()
        finally:
            late.start()
            await asyncio.sleep(0.05)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.ensure_future(ends_slowly())
        await asyncio.sleep(0)
        return task

    loop.run(begin())
    loop.stop()
    late.join(60)
    assert len(refused) == 1


def test_several_threads_may_end_the_loop() -> None:
    loop = _Loop()
    threads = [threading.Thread(target=loop.stop, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in [*threads, loop._thread])


def test_a_call_after_the_end_of_the_loop_is_refused() -> None:
    loop = _Loop()
    loop.stop()
    with pytest.raises(ClosedError):
        loop.run(_future())
    with pytest.raises(ClosedError):
        loop.at_once(_future)
    with pytest.raises(ClosedError):
        loop.follow(_future)


def test_calls_are_refused_where_the_loop_has_no_thread() -> None:
    """As in the child after a fork: nobody would answer."""
    loop = _Loop()
    loop._loop.call_soon_threadsafe(loop._loop.stop)
    loop._thread.join()
    for call in (lambda: loop.run(_future()), lambda: loop.at_once(_future), lambda: loop.publish(print)):
        with pytest.raises(ClosedError):
            call()
    loop._loop.close()


def test_a_call_in_the_thread_of_the_loop_is_refused() -> None:
    """A callback of a future runs there: a call would wait for itself."""
    loop = _Loop()
    told: Queue[BaseException | None] = Queue()

    def call() -> None:
        try:
            loop.run(asyncio.sleep(0))
        except UsageError as error:
            told.put(error)
        else:
            told.put(None)

    future = loop.run(_future())
    loop.follow(partial(_same, future)).add_done_callback(lambda _: call())
    loop.run(_fail(future))
    assert isinstance(told.get(), UsageError)
    loop.stop()


def test_an_iterator_that_was_not_finished_is_closed_with_the_loop() -> None:
    loop = _Loop()
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append("yes")

    found = numbers()

    async def step() -> int:
        return await anext(found)

    assert loop.run(step()) == 1
    loop.stop()
    assert closed == ["yes"]
