"""The views that batch reads of this machine have open, so that their number for a queue stays small.

Spark does not tell when a DataFrame is not used any more. It ends planning processes that are idle for a minute, but
not their parent. So each open view is an empty file of this user, named by the parent process, the queue, the time and
the view. Views of parents that have ended are closed like the oldest ones of this one. Otherwise short programs that
are run one after the other would use up what one address may have open.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LONGEST_S = 24 * 3_600
"""No view stays longer."""


@dataclass(frozen=True, slots=True, order=True)
class _Listed:
    opened_ns: int
    parent: str
    queue: str
    """A hash of the URL and the queue's name: a URL may have a password in it."""
    view: int

    @property
    def name(self) -> str:
        return f"{self.parent}.{self.queue}.{self.opened_ns}.{self.view}"


def add(url: str, queue: str, view: int) -> None:
    """List a new view."""
    with suppress(OSError):  # without a list it stays until its time is over
        (_directory() / _Listed(time.time_ns(), str(os.getppid()), _hash(url, queue), view).name).touch()


def take_oldest(url: str, queue: str, kept: int) -> list[int]:
    """Remove the oldest views of a queue from the list, so that `kept` remain. The caller closes them."""
    with suppress(OSError):
        directory = _directory()
        own = str(os.getppid())
        found = sorted(
            each
            for each in _all(directory)
            if each.queue == _hash(url, queue) and (each.parent == own or _has_ended(each.parent))
        )
        taken = found[: max(0, len(found) - kept)]
        return [each.view for each in taken if _remove(directory, each)]
    return []


def _directory() -> Path:
    """OSError if it is not this user's."""
    user = getattr(os, "getuid", lambda: 0)()
    path = Path(tempfile.gettempdir()) / f"quorum-spark-views-{user}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.lstat().st_uid != user:
        raise PermissionError(f"{path} belongs to another user")
    return path


def _all(directory: Path) -> Iterator[_Listed]:
    """Remove those whose time is over, and yield the others."""
    oldest_ns = time.time_ns() - LONGEST_S * 10**9
    for path in directory.iterdir():
        parts = path.name.split(".")
        if len(parts) == 4 and parts[2].isdigit() and parts[3].isdigit():
            found = _Listed(int(parts[2]), parts[0], parts[1], int(parts[3]))
            if found.opened_ns >= oldest_ns:
                yield found
            else:
                _remove(directory, found)


def _remove(directory: Path, listed: _Listed) -> bool:
    """False if another process has removed it."""
    try:
        (directory / listed.name).unlink()
    except FileNotFoundError:
        return False
    return True


def _has_ended(process: str) -> bool:
    """False also on systems that do not show it."""
    return Path("/proc").is_dir() and not Path("/proc", process).exists()


def _hash(url: str, queue: str) -> str:
    return hashlib.sha256(f"{url}\n{queue}".encode()).hexdigest()[:32]
