"""The way into a group: one call at a time, none before it is started, and none after one has failed.

The library's memory may have parted from the log where an exception has left a call half done, so any is the end of the
replica: every later call raises ReplicationFailed.
"""

from __future__ import annotations

from types import TracebackType

from quorum.replication.errors import ReentryError, ReplicationFailed


class Door:
    """`with door:` around what one call does. ReentryError, ReplicationFailed, ValueError."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._is_inside = False
        self.is_open = False
        """The group is started."""
        self.failure: BaseException | None = None

    def check(self) -> None:
        """Raises what entering would raise."""
        if self.failure is not None:
            raise ReplicationFailed(f"group {self._group} has stopped: {self.failure}") from self.failure
        if self._is_inside:
            raise ReentryError(f"group {self._group} was called from inside one of its calls")
        if not self.is_open:
            raise ValueError(f"group {self._group} is not started")

    def __enter__(self) -> None:
        self.check()
        self._is_inside = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_inside = False
        if error is not None:
            self.failure = error


class Excepting:
    """The same door, for a call in which this error leaves everything as it was."""

    def __init__(self, door: Door, harmless: type[Exception]) -> None:
        self._door = door
        self._harmless = harmless

    def __enter__(self) -> None:
        self._door.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_harmless = isinstance(error, self._harmless)
        self._door.__exit__(kind, None if is_harmless else error, trace)
