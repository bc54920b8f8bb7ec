"""The JVM of a Spark session of this process, and what it said before it ended: its standard error goes to a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINES = 60
"""Of each file, at most so many lines are shown."""


class Jvm:
    """folder: an existing directory, for the JVM's files."""

    def __init__(self, folder: Path) -> None:
        self._said = folder / "jvm-stderr.txt"
        self._crash = folder / "jvm-crash.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self.options = f"-XX:ErrorFile={self._crash}"
        """For its command line: where it writes if it crashes."""

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Processes that are started in this block write their standard error to the file."""
        sys.stderr.flush()
        kept = os.dup(2)
        with self._said.open("wb") as said:
            os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def last_words(self) -> str:
        """Whether it runs, and the ends of its files."""
        if self._process is None:
            state = "Spark's JVM has not started"
        elif (code := self._process.poll()) is None:
            state = "Spark's JVM runs"
        else:
            state = f"Spark's JVM ended by itself, with exit code {code}"
        return "\n".join([state, *_last_lines(self._said), *_last_lines(self._crash)])


def _last_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
