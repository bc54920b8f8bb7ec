"""The way into a group: one call at a time, none before the group is started, and none after one has failed.

After an exception in the middle of a call the library's memory may differ from the log, so any exception is the end of
the replica, except those in which a call changes nothing.
"""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn

from quorum.replication.errors import ReentryError, ReplicationFailed


class CallGuard:
    """A context around the work of one call. ReentryError, ReplicationFailed, ValueError."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._is_started = False
        self._is_free = False
        """Whether the group is started, and no call is inside."""
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Let calls in from now on."""
        self._is_started = self._is_free = True

    def check(self) -> None:
        """Raise the error that entering would raise."""
        if self.failure is not None or not self._is_free:
            self._refuse()

    def _refuse(self) -> NoReturn:
        if self.failure is not None:
            raise ReplicationFailed(f"group {self._group} has stopped: {self.failure}") from self.failure
        if self._is_started:
            raise ReentryError(f"group {self._group} was called from inside one of its calls")
        raise ValueError(f"group {self._group} is not started")

    def __enter__(self) -> None:
        if self.failure is not None or not self._is_free:
            self._refuse()
        self._is_free = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_free = True
        if error is not None:
            self.failure = error


class HarmlessWhen:
    """The same guard, for a call in which this error changes nothing."""

    def __init__(self, guard: CallGuard, harmless: type[Exception]) -> None:
        self._guard = guard
        self._harmless = harmless

    def __enter__(self) -> None:
        self._guard.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_harmless = isinstance(error, self._harmless)
        self._guard.__exit__(kind, None if is_harmless else error, trace)
