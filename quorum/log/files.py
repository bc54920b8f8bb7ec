"""The disk as the log sees it: the few calls that the log needs, so that a simulated disk can replace the real one.

The log relies on these guarantees only:

- Bytes written to a file survive a power cut once that file's `sync` or `sync_data` has returned. Until then any
  512-byte sector may hold its old or its new bytes, independently of its neighbours.
- A created, renamed or removed name survives once `sync_directory` has returned.
- `allocate` makes the file that long; the new bytes read as zeros, and later writes inside need no new space.

Errors are OSError, as the operating system raises them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")

TEMPORARY = ".new"
"""Suffix of a file that is not complete yet; opening removes such files after a crash."""

NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors that mean no more files can be opened, by this process or by the system."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT}) | NO_DESCRIPTORS
"""Errors that mean there is no space, on the disk or for an open file: the disk has not failed."""
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)
_UNREAD = memoryview(bytearray(64 << 10))
"""Takes bytes that are only asked for: they are read again, into an object of their own size, if they are there."""
MAX_BUFFERS = 1024
"""Buffers that one call of pwritev takes (IOV_MAX)."""

SPARE_DESCRIPTORS = 32
"""Open files that a member keeps for its log. They suffice for a snapshot, a segment with its index, and directories
that are being synced, by several groups and threads at a time."""


class File(Protocol):
    """An open file. `pread` and `pread_cached` may be called from any thread, everything else from one."""

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers one after the other at offset; returns the number of bytes taken, perhaps not all."""

    def pread(self, length: int, offset: int) -> bytes:
        """At most length bytes from offset; fewer only at the end of the file."""

    def pread_cached(self, length: int, offset: int) -> bytes | None:
        """The same, but None if it would wait for the disk: the bytes are not in the system's page cache."""

    def sync_data(self) -> None:
        """Make all bytes written so far survive a power cut (fdatasync)."""

    def sync(self) -> None:
        """The same, with the file's metadata (fsync)."""

    def allocate(self, length: int) -> None:
        """Reserve space for length bytes from the start and make the file at least that long."""

    def truncate(self, length: int) -> None:
        """Make the file this long."""

    def size(self) -> int:
        """The file's length in bytes."""

    def close(self) -> None:
        """Close the file. Syncs nothing."""


class Lock(Protocol):
    """An exclusive hold on a directory."""

    def release(self) -> None:
        """Release the directory."""


class Files(Protocol):
    """Operations on file names and directories."""

    def make_directory(self, path: Path) -> None:
        """Make sure that the directory exists, durably."""

    def create(self, path: Path) -> File:
        """Create an empty file to write and read; an old file of this name is emptied."""

    def open(self, path: Path, *, writable: bool = False) -> File:
        """Open an existing file; FileNotFoundError if there is none."""

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name; a file that had this name is replaced."""

    def unlink(self, path: Path) -> None:
        """Remove a name."""

    def sync_directory(self, path: Path) -> None:
        """Make the names created, changed and removed in this directory survive a power cut."""

    def list_directory(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""

    def free_bytes(self, path: Path) -> int:
        """Free bytes on the file system of this directory."""

    def lock(self, path: Path) -> Lock:
        """Hold this lock file exclusively; BlockingIOError if another process holds it."""


class RealFile:
    """A file descriptor. close: the function that closes it."""

    def __init__(self, descriptor: int, close: Callable[[int], None] = os.close) -> None:
        self._fd = descriptor
        self._close = close

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        return os.pwritev(self._fd, buffers, offset)

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < length:  # a read may be cut short by the kernel's own limits, not only by the end
            data = os.pread(self._fd, length - got, offset + got)
            if not data:
                break
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def pread_cached(self, length: int, offset: int) -> bytes | None:
        whole, rest = divmod(length, len(_UNREAD))
        try:
            count = os.preadv(self._fd, [*[_UNREAD] * whole, _UNREAD[:rest]], offset, _NO_WAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # the file system cannot tell
                raise
            count = length
        return self.pread(length, offset) if count == length else None

    def sync_data(self) -> None:
        os.fdatasync(self._fd)

    def sync(self) -> None:
        os.fsync(self._fd)

    def allocate(self, length: int) -> None:
        os.posix_fallocate(self._fd, 0, length)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        self._close(self._fd)


class RealLock:
    """flock on an open descriptor: the kernel releases it when the process dies."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def release(self) -> None:
        os.close(self._fd)


class SpareDescriptors:
    """Spare descriptors, open on nothing, that can be closed when no more files can be opened. Any thread."""

    def __init__(self, count: int) -> None:
        self._most = count
        self._lock = threading.Lock()
        self._kept = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(count)]
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if count else -1

    def __len__(self) -> int:
        return len(self._kept)

    def release(self) -> bool:
        """Close one spare descriptor; False if none is left."""
        with self._lock:
            if not self._kept:
                return False
            os.close(self._kept.pop())
            return True

    def close(self, descriptor: int) -> None:
        """Close a file. If a spare descriptor is missing, the file's descriptor becomes one, so that no other open gets
        it in between."""
        with self._lock:
            if len(self._kept) < self._most:
                os.dup2(self._null, descriptor, inheritable=False)
                self._kept.append(descriptor)
                return
        os.close(descriptor)

    def refill(self) -> None:
        """Open the missing spare descriptors, as far as the system allows."""
        with self._lock, suppress(OSError):
            while len(self._kept) < self._most:
                self._kept.append(os.dup(self._null))


class RealFiles:
    """The operating system's files. spare: number of descriptors used when no more files can be opened; they are opened
    again afterwards."""

    def __init__(self, spare: int = 0) -> None:
        self.spare = SpareDescriptors(spare)

    def _open(self, do: Callable[[], T]) -> T:
        """Call do(), which opens a file, perhaps only for a moment. It is called again as long as a spare descriptor
        helps."""
        while True:
            try:
                done = do()
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self.spare.release():
                    raise
            else:
                self.spare.refill()
                return done

    def make_directory(self, path: Path) -> None:
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self.sync_directory(directory.parent)

    def create(self, path: Path) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return RealFile(self._open(lambda: os.open(path, flags, 0o640)), self.spare.close)

    def open(self, path: Path, *, writable: bool = False) -> File:
        flags = os.O_RDWR if writable else os.O_RDONLY
        return RealFile(self._open(lambda: os.open(path, flags | os.O_CLOEXEC)), self.spare.close)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def sync_directory(self, path: Path) -> None:
        descriptor = self._open(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            os.fsync(descriptor)
        finally:
            self.spare.close(descriptor)

    def list_directory(self, path: Path) -> list[str]:
        return sorted(self._open(lambda: os.listdir(path)))

    def free_bytes(self, path: Path) -> int:
        figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize

    def lock(self, path: Path) -> Lock:
        descriptor = self._open(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return RealLock(descriptor)


def write_fully(file: File, buffers: Sequence[bytes], offset: int) -> int:
    """Write all buffers at offset, however few bytes one call takes; returns the offset after them.

    A call that takes nothing is an error, because trying for ever would hang the node.
    """
    start = 0
    count = len(buffers)
    while start < count:
        batch: Sequence[bytes] = buffers[start : start + MAX_BUFFERS]
        wanted = sum(map(len, batch))
        taken = file.pwritev(batch, offset)
        offset += taken
        start += len(batch)
        if taken == wanted:
            continue
        left = memoryview(b"".join(batch))[taken:]
        while left:
            taken = file.pwritev([bytes(left)], offset)
            if taken == 0:
                raise OSError("the disk took no byte of a write")
            offset += taken
            left = left[taken:]
    return offset


def read_file(files: Files, path: Path) -> bytes:
    """The content of a small file."""
    file = files.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


@contextmanager
def temporary_file(files: Files, path: Path) -> Iterator[File]:
    """A new file to write, under the temporary name of `path`. After an OSError it is removed."""
    temporary = temporary_path(path)
    file = files.create(temporary)
    try:
        with closing(file):
            yield file
    except OSError:
        files.unlink(temporary)
        raise


def prepare_file(files: Files, path: Path, buffers: Sequence[bytes]) -> None:
    """Write a file's bytes under a temporary name, synced. After an OSError it is removed, and the old file stays."""
    with temporary_file(files, path) as file:
        write_fully(file, buffers, 0)
        file.sync()


def replace_unsynced(files: Files, path: Path, buffers: Sequence[bytes]) -> None:
    """Write a file that may be lost, and replace an old one. An OSError while writing leaves no temporary file."""
    with temporary_file(files, path) as file:
        write_fully(file, buffers, 0)
    files.rename(temporary_path(path), path)


def commit_file(files: Files, path: Path) -> None:
    """Give a prepared file its name, durably. After an OSError either file may be there."""
    files.rename(temporary_path(path), path)
    files.sync_directory(path.parent)


def temporary_path(path: Path) -> Path:
    """The name of a file until it is complete."""
    return path.with_name(path.name + TEMPORARY)
