"""Work that threads leave for a loop: one wake-up for all of it, one answer for each, and none that never comes."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from functools import partial

import pytest

from quorum.client.answers import MOST_IDLE_PAUSES, MOST_PAUSES, Answer, Inbox, Running, at_once
from quorum.client.errors import ClosedError


class StillLoop(asyncio.SelectorEventLoop):
    """Keeps what is to be called; the test calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[Callable[[], object]] = []
        self.wakes = 0

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object, **_: object) -> object:  # type: ignore[override]
        self._check_closed()  # type: ignore[attr-defined]
        self.wakes += 1
        return self.call_soon(callback)

    def call_soon(self, callback: Callable[..., object], *args: object, **_: object) -> object:  # type: ignore[override]
        self.due.append(callback)
        return None

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


@pytest.fixture
def loop() -> Iterator[StillLoop]:
    loop = StillLoop()
    yield loop
    loop.close()


def doubled(number: int) -> Callable[[Answer], None]:
    return lambda answer: answer.set_result(2 * number)


def answered_threads(inbox: Inbox, count: int) -> None:
    """As if so many threads that come back were answered."""
    for _ in range(count):
        inbox.answered()


def held(taken: list[Answer]) -> Callable[[Answer], None]:
    return taken.append


def test_the_loop_is_woken_once_for_all_work_and_takes_it_in_order(loop: StillLoop) -> None:
    inbox = Inbox(loop)
    taken: list[Answer] = []
    left = [inbox.leave(held(taken)) for _ in range(50)]
    assert loop.wakes == 1
    loop.turn()
    assert taken == left
    inbox.leave(held(taken))
    assert loop.wakes == 2
    loop.turn()
    assert len(taken) == 51


def test_each_answer_is_that_of_its_work(loop: StillLoop) -> None:
    inbox = Inbox(loop)

    def fails(_: Answer) -> None:
        raise ValueError("no")

    answers = [inbox.leave(doubled(1)), inbox.leave(fails), inbox.leave(doubled(3))]
    assert [answer.done() for answer in answers] == [False] * 3
    loop.turn()
    assert (answers[0].wait(), answers[2].wait()) == (2, 6)
    with pytest.raises(ValueError, match="no"):
        answers[1].wait()


def test_a_waiting_thread_is_woken_by_its_answer(loop: StillLoop) -> None:
    inbox, found, taken = Inbox(loop), list[int](), list[Answer]()
    answer = inbox.leave(held(taken))
    thread = threading.Thread(target=lambda: found.append(answer.wait()))
    thread.start()
    loop.turn()
    taken[0].set_result(7)
    thread.join()
    assert found == [7]


def test_only_the_first_outcome_counts(loop: StillLoop) -> None:
    answer = Inbox(loop).leave(doubled(2))
    loop.turn()
    answer.set_exception(ValueError("late"))
    answer.set_result(9)
    assert answer.wait() == 4


@pytest.mark.parametrize("answered", [1, 2, 5])
def test_what_answered_threads_leave_is_taken_in_one_turn(loop: StillLoop, answered: int) -> None:
    pauses, taken = [], list[Answer]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        inbox.leave(held(taken), comes_back=True)  # one thread after the other

    inbox = Inbox(loop, pause)
    answered_threads(inbox, answered)
    loop.turn()
    assert len(pauses) == len(taken) == (answered if answered > 1 else 0)  # one alone is never waited for
    assert loop.wakes == 0
    loop.turn()
    assert len(pauses) == len(taken)


def test_threads_that_leave_nothing_more_are_not_waited_for(loop: StillLoop) -> None:
    pauses: list[float] = []
    inbox = Inbox(loop, pauses.append)
    answered_threads(inbox, 10)
    loop.turn()
    assert len(pauses) == MOST_IDLE_PAUSES
    inbox.leave(doubled(1))
    loop.turn()
    assert len(pauses) == MOST_IDLE_PAUSES


def test_a_turn_has_a_bounded_number_of_pauses(loop: StillLoop) -> None:
    pauses, taken = [], list[Answer]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        inbox.leave(held(taken))

    inbox = Inbox(loop, pause)
    answered_threads(inbox, 10 * MOST_PAUSES)
    loop.turn()
    assert len(pauses) == len(taken) == MOST_PAUSES


def test_work_that_is_left_when_the_loop_ends_is_refused(loop: StillLoop) -> None:
    inbox = Inbox(loop)
    before = inbox.leave(doubled(1))
    loop.close()
    inbox.close()
    for answer in (before, inbox.leave(doubled(2))):
        with pytest.raises(ClosedError):
            answer.wait()


def test_work_for_a_loop_that_was_just_closed_is_refused(loop: StillLoop) -> None:
    inbox = Inbox(loop)
    loop.close()
    for _ in range(2):
        with pytest.raises(ClosedError):
            inbox.leave(doubled(1)).wait()


def test_a_wait_that_is_interrupted_counts_as_answered(loop: StillLoop) -> None:
    class Interrupted:
        def acquire(self) -> None:
            raise KeyboardInterrupt

    taken: list[Answer] = []
    answer = Inbox(loop).leave(held(taken))
    answer._set = Interrupted()  # type: ignore[assignment]
    loop.turn()
    with pytest.raises(KeyboardInterrupt):
        answer.wait()
    assert taken[0].done()
    taken[0].set_result(1)  # is no error


class Interrupting(StillLoop):
    """Its first wakes are interrupted, before or after they have their effect."""

    def __init__(self, interrupts: int, *, late: bool) -> None:
        super().__init__()
        self.interrupts, self.late = interrupts, late

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object, **_: object) -> object:  # type: ignore[override]
        self.interrupts -= 1
        if self.late or self.interrupts < 0:
            super().call_soon_threadsafe(callback)
        if self.interrupts >= 0:
            raise KeyboardInterrupt
        return None


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("interrupts", [1, 2])
def test_work_is_taken_after_an_interrupt_while_the_loop_was_being_woken(interrupts: int, late: bool) -> None:
    loop = Interrupting(interrupts, late=late)
    inbox = Inbox(loop)
    taken: list[Answer] = []
    with pytest.raises(KeyboardInterrupt):
        inbox.leave(held(taken))
    if interrupts == 2:
        inbox.leave(held(taken))
    loop.turn()
    assert taken[0].done()  # its thread does not wait
    assert len(taken) == interrupts
    answer = inbox.leave(doubled(2))
    loop.turn()
    assert answer.wait() == 4
    loop.close()


def test_a_turn_after_the_end_begins_nothing(loop: StillLoop) -> None:
    inbox, taken = Inbox(loop), list[Answer]()
    inbox.leave(held(taken))
    inbox._is_closed = True  # a thread that has left its work just before relies on the turn
    loop.turn()
    assert taken == []
    assert inbox._left == deque()


def test_only_threads_that_come_back_are_waited_for(loop: StillLoop) -> None:
    pauses: list[float] = []
    inbox = Inbox(loop, pauses.append)
    for comes_back in (False, True):
        for _ in range(5):
            inbox.leave(doubled(1), comes_back=comes_back)
        loop.turn()
        loop.turn()
        assert len(pauses) == (MOST_IDLE_PAUSES if comes_back else 0)


# ---- coroutines


async def tripled(number: int) -> int:
    return 3 * number


async def fails() -> int:
    raise ValueError("no")


async def waits() -> None:
    await asyncio.Event().wait()


class Once:
    """Lets the loop run once."""

    def __await__(self) -> Iterator[None]:
        yield


async def lets_others_run() -> None:
    await Once()


def test_work_that_never_waits_is_run_without_a_task(loop: StillLoop) -> None:
    inbox = Inbox(loop)
    answers = [
        inbox.leave(partial(at_once, begin)) for begin in (partial(tripled, 3), fails, lets_others_run)
    ]
    loop.turn()
    assert loop.due == []
    assert answers[0].wait() == 9
    with pytest.raises(ValueError, match="no"):
        answers[1].wait()
    with pytest.raises(AssertionError, match="waits"):
        answers[2].wait()


def test_a_coroutine_whose_thread_was_interrupted_before_it_began_is_not_begun(loop: StillLoop) -> None:
    inbox = Inbox(loop)
    running = Running(loop, waits())
    answer = inbox.leave(running.begin)
    answer.give_up()
    running.cancel()
    loop.turn()
    assert asyncio.all_tasks(loop) == set()


def test_a_coroutine_has_the_context_variables_of_its_thread() -> None:
    """Also if the loop begins it in a turn for which another thread has woken it."""
    name = ContextVar("name", default="")

    async def named() -> str:
        return name.get()

    def leave(inbox: Inbox, loop: asyncio.AbstractEventLoop, mine: str) -> Answer:
        name.set(mine)
        return inbox.leave(Running(loop, named()).begin)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        inbox = Inbox(loop)
        answers = [copy_context().run(leave, inbox, loop, mine) for mine in ("first", "second")]
        while not all(answer.done() for answer in answers):
            await asyncio.sleep(0)
        assert [answer.wait() for answer in answers] == ["first", "second"]

    asyncio.run(scenario())


def test_a_coroutine_whose_thread_was_interrupted_is_cancelled() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        inbox = Inbox(loop)
        running = Running(loop, waits())
        answer = inbox.leave(running.begin)
        await asyncio.sleep(0)
        [task] = asyncio.all_tasks() - {asyncio.current_task()}
        answer.give_up()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def test_a_coroutine_for_a_loop_that_has_ended_is_closed(loop: StillLoop) -> None:
    inbox = Inbox(loop)
    running = Running(loop, waits())
    loop.close()
    with pytest.raises(ClosedError):
        inbox.leave(running.begin).wait()
    running.cancel()  # else a warning says that it was never awaited


def test_a_coroutine_that_was_refused_is_closed_without_the_loop(loop: StillLoop) -> None:
    """The loop may end before it runs anything more."""
    inbox = Inbox(loop)
    inbox.close()
    work = waits()
    running = Running(loop, work)
    with pytest.raises(ClosedError):
        inbox.leave(running.begin).wait()
    running.refused()
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    assert loop.due == []
