"""The event loop whose clock jumps."""

from __future__ import annotations

import asyncio

import pytest

from support import virtual_time


def test_the_clock_jumps_to_the_next_timer_when_nothing_is_ready() -> None:
    async def scenario() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        async def after(delay_s: float, name: str) -> None:
            await asyncio.sleep(delay_s)
            for _ in range(1_000):
                await asyncio.sleep(0)
            seen.append((name, loop.time()))

        await asyncio.gather(after(7_200.0, "late"), after(3_600.0, "early"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(800.0):
                await asyncio.Event().wait()
        return [*seen, ("end", loop.time())]

    assert virtual_time.run(scenario()) == [("early", 3_600.0), ("late", 7_200.0), ("end", 8_000.0)]


def test_what_would_wait_for_ever_is_an_error() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="wait for ever"):
        virtual_time.run(scenario())
