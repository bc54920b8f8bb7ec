"""An event loop with a clock of its own: when nothing is ready, it jumps to the next timer.

So a test waits for hours in no time, and a slow machine changes nothing: however long a step takes, no timer comes
before it is over. It is for tests that use asyncio alone. With threads, processes or sockets, the clock would jump
while they still work.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Does not wait: what would be its waiting time passes on the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("all tasks wait, and there is no timer: this would wait for ever")
        self.now_s += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Jumping()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, with such a loop."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(scenario)
