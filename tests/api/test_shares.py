"""What clients share (quorum/api/shares.py): an owner has as much as is left free, and those who wait come in turn."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quorum.api import shares
from quorum.api.shares import ByteWindow, DeliveryWindow, WindowFull
from support import virtual_time


class Window(ByteWindow):
    """Notes who was let in, and counts its looks for room."""

    def __init__(self, limit: int, **options: Any) -> None:
        super().__init__(limit, **options)
        self.order: list[str] = []
        self.looks = 0

    def _enter(self, size: int, owner: Any) -> bool:
        self.looks += 1
        return super()._enter(size, owner)

    def start(self, name: str, size: int, owner: str) -> asyncio.Task[None]:
        async def taken() -> None:
            await self.take(size, owner)
            self.order.append(name)

        return asyncio.create_task(taken())


def with_window(window: Callable[[], Window], run: Callable[[Window], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await run(window())

    virtual_time.run(body())


async def settle_down() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_an_owner_has_half_of_the_window_and_the_next_one_half_of_the_rest() -> None:
    async def run(window: Window) -> None:
        taken = {owner: sum(window.take_now(10, owner) for _ in range(100)) for owner in "abc"}
        assert taken == {"a": 50, "b": 25, "c": 13}
        assert window.take_now(10, "d"), "a newcomer always finds room"

    with_window(lambda: Window(1_000), run)


def test_a_request_larger_than_the_window_is_let_in_alone() -> None:
    async def run(window: Window) -> None:
        assert window.take_now(5_000, "a")
        large, small = window.start("large", 5_000, "b"), window.start("small", 1, "c")
        await settle_down()
        assert window.order == []
        window.give(5_000, "a")
        await large
        assert window.order == ["large"]
        window.give(5_000, "b")
        await small
        window.give(1, "c")
        assert window.used == window.waiting == 0

    with_window(lambda: Window(1_000), run)


def test_an_owners_requests_are_let_in_in_order_at_a_cost_that_grows_with_their_number_only() -> None:
    async def run(window: Window) -> None:
        assert window.take_now(500, "a")
        waiting = [window.start(str(number), 500, "a") for number in range(2_000)]
        await settle_down()
        window.looks = 0
        for task in waiting:
            window.give(500, "a")
            await task
        assert window.order == [str(number) for number in range(2_000)]
        assert window.looks <= 3 * 2_000

    with_window(lambda: Window(1_000), run)


def test_owners_take_turns() -> None:
    async def run(window: Window) -> None:
        assert window.take_now(1_000, "z")
        tasks = [window.start(f"{owner}{number}", 300, owner) for owner in "ab" for number in range(3)]
        await settle_down()
        window.give(1_000, "z")
        await settle_down()
        for given in ("a", "b", "a", "b"):
            window.give(300, given)
            await settle_down()
        await asyncio.gather(*tasks)
        assert window.order == ["a0", "b0", "a1", "b1", "a2", "b2"]

    with_window(lambda: Window(1_000), run)


def test_small_requests_do_not_keep_a_large_one_out() -> None:
    async def run(window: Window) -> None:
        assert window.take_now(500, "a")
        large = window.start("large", 900, "b")
        await settle_down()
        assert not window.take_now(1, "c")
        small = window.start("small", 1, "c")
        await settle_down()
        assert window.order == [], "there is room for the small one, but the large one comes first"
        window.give(500, "a")
        await asyncio.gather(large, small)
        assert window.order == ["large", "small"]

    with_window(lambda: Window(1_000), run)


def test_one_large_amount_that_is_given_back_lets_in_all_that_fit() -> None:
    async def run(window: Window) -> None:
        assert window.take_now(900, "z")
        tasks = [window.start(f"b{number}", 120, "b") for number in range(3)]
        await settle_down()
        assert window.order == []
        window.give(900, "z")
        await settle_down()
        assert window.order == ["b0", "b1", "b2"]
        await asyncio.gather(*tasks)

    with_window(lambda: Window(1_000), run)


def test_an_owner_that_waits_beyond_its_share_keeps_no_other_out() -> None:
    async def run(window: Window) -> None:
        assert window.take_now(500, "a")
        more, other = window.start("more", 500, "a"), window.start("other", 200, "b")
        await settle_down()
        assert window.order == ["other"]
        window.give(500, "a")
        await asyncio.gather(more, other)

    with_window(lambda: Window(1_000), run)


def test_each_of_a_few_owners_always_has_one() -> None:
    async def run(window: Window) -> None:
        assert all(window.take_now(900, owner) for owner in "abcd")
        assert not window.take_now(1, "a")

    with_window(lambda: Window(1_000, always_one=True), run)


def test_one_that_gives_up_leaves_nothing_behind() -> None:
    async def run(window: Window) -> None:
        assert window.take_now(900, "a")
        first, second = window.start("first", 900, "b"), window.start("second", 10, "c")
        await settle_down()
        first.cancel()
        await second
        third = window.start("third", 900, "b")
        await settle_down()
        window.give(900, "a")
        third.cancel()  # it was let in and does not know yet
        await settle_down()
        assert window.order == ["second"]
        assert (window.used, window.waiting, window._lines) == (10, 0, {})

    with_window(lambda: Window(1_000), run)


def test_what_waits_is_shared_and_limited_too() -> None:
    async def run(window: Window) -> None:
        assert window.take_now(1_000, "a")
        waiting = [window.start(owner, 100, owner) for owner in "bbbbb"]
        await settle_down()
        with pytest.raises(
            WindowFull, match="requests of 500 bytes wait already, 500 of them of this origin"
        ):
            await window.take(100, "b")
        waiting.append(window.start("c", 100, "c"))
        await settle_down()
        assert window.waiting == 600
        for task in waiting:
            task.cancel()

    with_window(lambda: Window(1_000, max_waiting=1_000), run)


def test_one_waits_as_long_as_something_of_its_owner_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(window: Window) -> None:
        passed = 0

        async def patience_passes(waiters: object, timeout: float) -> None:
            nonlocal passed
            passed += 1
            if passed <= 4:
                window.give(100, "a")

        monkeypatch.setattr(shares.asyncio, "wait", patience_passes)
        for _ in range(5):
            assert window.take_now(100, "a")
        with pytest.raises(WindowFull, match="nothing was given back for 3 s"):
            await window.take(900, "a")
        assert passed == 5
        window.give(100, "a")
        assert window.used == window.waiting == 0

    with_window(lambda: Window(1_000), run)


# ---- deliveries that wait


class Slow:
    """A session that is told if it has too much."""

    def __init__(self) -> None:
        self.is_over = False

    def overloaded(self) -> None:
        self.is_over = True


def test_the_session_with_the_most_deliveries_ends_when_its_address_has_no_room() -> None:
    window = DeliveryWindow(100)
    small, large, other = Slow(), Slow(), Slow()
    assert window.take(10, "a", small)
    assert window.take(30, "a", large)
    assert window.take(20, "b", other)
    assert window.take(10, "a", small)
    assert (small.is_over, large.is_over, other.is_over) == (False, True, False)
    assert window.used == 40
    assert not window.take(50, "a", small)
    assert (small.is_over, other.is_over, window.used) == (True, False, 20)


def test_an_address_without_waiting_deliveries_is_given_one() -> None:
    window = DeliveryWindow(100)
    sessions = [Slow() for _ in range(10)]
    assert all(window.take(60, number, session) for number, session in enumerate(sessions))
    assert not window.take(1, 5, sessions[5])
    for number, session in enumerate(sessions):
        window.give(60, number, session)  # also what the ended session has not any more
    assert window.used == 0


def test_a_session_gives_back_its_deliveries_one_by_one_or_together() -> None:
    window, session = DeliveryWindow(100), Slow()
    assert window.take(10, "a", session) and window.take(20, "a", session)
    window.give(10, "a", session)
    assert (window.used, window.of("a", session)) == (20, 20)
    window.give_all("a", session)
    window.give_all("a", session)
    assert (window.used, window.of("a", session)) == (0, 0)


def test_what_a_session_has_given_back_ends_no_session_later() -> None:
    window, reads, other = DeliveryWindow(100), Slow(), Slow()
    assert window.take(60, 0, other)
    assert window.take(10, 1, reads)
    window.give(10, 1, reads)
    assert window.take(60, 1, reads), "its address has nothing that waits"
    window.give(20, 1, reads)
    assert (window.used, window.of(1, reads)) == (100, 40)
    assert not reads.is_over and not other.is_over


def test_an_address_that_has_given_everything_back_is_forgotten() -> None:
    class Address:
        pass

    window, session, address = DeliveryWindow(100), Slow(), Address()
    forgotten = weakref.ref(address)
    assert window.take(10, address, session)
    window.give(10, address, session)
    del address
    assert forgotten() is None
