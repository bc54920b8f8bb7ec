"""Disk space that is kept in reserve for the time when the disk is full.

The reserve is a few files of a segment's size, allocated at full length and never written. When no new segment can be
allocated, one of these files becomes it: the file is renamed and truncated, and is then an ordinary segment. So the
work that empties queues (settling, deleting, collecting) continues while the disk is full.

- The last files are the collector's: ordinary appends do not use them, because a collector that cannot write a new
  segment cannot remove an old one.
- Each file is a little larger than a segment. Truncating it returns a few blocks to the file system, which needs them
  for the next manifest and for directories.
- `release` returns a whole file to the file system for other uses: a snapshot, without which nothing can be collected.
- A file that a power cut has shortened is created again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from threading import Lock as ThreadLock

from quorum.log.files import NO_ROOM, Files, temporary_path

COLLECTOR_SEGMENTS = 2
"""Segments that the collector needs at most at a time: the one it writes, and one more before the first old one is
deleted."""
RESERVE_SEGMENTS = COLLECTOR_SEGMENTS + 1
"""One more for settling, deleting and leaders' records: 64 MiB hold some hundred thousand such commands."""
MARGIN_BYTES = 1 << 20
"""Blocks for a manifest, directories and inodes, and plenty of them."""

_NAME = re.compile(r"reserve-[0-9]{1,4}\.space")


def reserve_names(names: list[str]) -> list[str]:
    """The reserve's names among a directory's names."""
    return [name for name in names if _NAME.fullmatch(name)]


class Reserve:
    """The reserve of one log. `take` and `release` may be called from any thread."""

    def __init__(self, files: Files, directory: Path, *, segments: int, segment_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._file_bytes = segment_bytes + min(MARGIN_BYTES, segment_bytes // 4)
        self._lock = ThreadLock()
        self._paths = [directory / f"reserve-{number}.space" for number in range(1, segments + 1)]
        self._present: list[Path] = []

    def open(self) -> None:
        """Count the usable files, remove the others, and allocate missing ones."""
        with self._lock:
            self._present = []
            for name in reserve_names(self._files.list_directory(self._directory)):
                path = self._directory / name
                file = self._files.open(path)
                size = file.size()
                file.close()
                if path in self._paths and size == self._file_bytes:
                    self._present.append(path)
                else:
                    self._files.unlink(path)
        while self.refill():
            pass

    @property
    def size_bytes(self) -> int:
        """Bytes in reserve now."""
        return len(self._present) * self._file_bytes

    @property
    def is_whole(self) -> bool:
        return len(self._present) == len(self._paths)

    def refill(self) -> bool:
        """Allocate one missing file if the disk has space for it. True if it did; OSError for any error but lack of
        space."""
        with self._lock:
            missing = [path for path in self._paths if path not in self._present]
            if not missing or self._files.free_bytes(self._directory) < self._file_bytes:
                return False
            path = missing[0]
            file = self._files.create(path)
            try:
                file.allocate(self._file_bytes)
                file.sync()
            except OSError as error:
                self._files.unlink(path)
                if error.errno not in NO_ROOM:
                    raise
                return False  # another thread was faster
            finally:
                file.close()
            self._files.sync_directory(self._directory)
            self._present.append(path)
            return True

    def take(self, path: Path, allocated: int, *, for_collector: bool = False) -> bool:
        """Turn one file into the unfinished file of this name, for a segment of `allocated` bytes. False if none is
        left for this purpose, or none is large enough."""
        with self._lock:
            # an operator may have removed files: those that are left are the collector's
            names = set(self._files.list_directory(self._directory))
            self._present = [found for found in self._present if found.name in names]
            left = len(self._present) - (0 if for_collector else COLLECTOR_SEGMENTS)
            if left <= 0 or allocated > self._segment_bytes:
                return False
            return self._use(lambda found: self._files.rename(found, temporary_path(path)))

    def release(self) -> bool:
        """Return one file's space to the file system. False if no file is left."""
        with self._lock:
            return self._use(self._files.unlink)

    def _use(self, use: Callable[[Path], None]) -> bool:
        """Use one file. False if none is left: an operator may have removed them to make room."""
        while self._present:
            try:
                use(self._present.pop())
            except FileNotFoundError:
                continue
            return True
        return False
