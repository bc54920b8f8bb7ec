"""Background work without a thread."""

from __future__ import annotations

from collections.abc import Callable


class Inline:
    """Does work immediately."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        self._error = None
        try:
            work()
        except Exception as error:
            self._error = error  # told like a thread's

    def is_done(self) -> bool:
        if self._error is not None:
            raise self._error
        return True
