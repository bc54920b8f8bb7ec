"""A disk in memory that forgets what was not synced, in every way a real one may.

What a power cut leaves, decided by a seed alone:

- of each 512-byte sector written since the file's last sync: the synced bytes or any of the versions written
  since, each sector by itself, so writes are torn and reordered;
- of a file's length: the synced one or any since;
- of a directory's names: those of its last sync and some first part of the changes since.

A process that only dies (`restart`) keeps everything, synced or not, as the kernel's cache does. A failed
sync is reported once: the cache then believes its pages clean, and later syncs do not write them.

`crash_at` raises Crashed in the middle of the n-th changing operation, `fail_at` raises OSError there. A
crashed or cut disk serves no further call through old handles.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

SECTOR = 512

Do = Callable[[], None]


class Crashed(BaseException):
    """The machine stopped here. No code of the process runs after this, so nothing may catch it."""


class Inode:
    """One file's bytes: as the cache shows them, as the disk has them, and the versions between."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.versions: dict[int, list[bytes]] = {}
        self.lengths: list[int] = []
        self.unreadable = range(0)
        """The bytes that the disk cannot read."""

    def sector(self, number: int) -> bytes:
        """A sector as the cache shows it, padded with zeros."""
        return bytes(self.data[number * SECTOR : (number + 1) * SECTOR]).ljust(SECTOR, b"\0")

    def touch(self, start: int, end: int) -> None:
        """Note the present version of all sectors that these bytes touch."""
        for number in range(start // SECTOR, (end + SECTOR - 1) // SECTOR):
            self.versions.setdefault(number, []).append(self.sector(number))

    def harden(self) -> None:
        """What a successful sync does: dirty sectors and the length reach the disk."""
        if self.lengths:
            self.set_durable_length(len(self.data))
        for number in self.versions:
            start = number * SECTOR
            self.durable[start : start + SECTOR] = self.data[start : start + SECTOR]
        self.versions.clear()
        self.lengths.clear()

    def set_durable_length(self, length: int) -> None:
        del self.durable[length:]
        self.durable.extend(bytes(length - len(self.durable)))

    def forget(self) -> None:
        """What a failed sync does: the cache goes on showing what never reached the disk."""
        self.versions.clear()
        self.lengths.clear()

    def cut(self, chance: random.Random) -> None:
        """What the power leaves."""
        length = chance.choice([len(self.durable), *self.lengths])
        self.set_durable_length(max(length, len(self.durable)))
        for number in sorted(self.versions):
            kept = chance.choice([None, *self.versions[number]])
            start = number * SECTOR
            if kept is not None and start < len(self.durable):
                end = min(start + SECTOR, len(self.durable))
                self.durable[start:end] = kept[: end - start]
        self.set_durable_length(length)
        self.data = bytearray(self.durable)
        self.versions.clear()
        self.lengths.clear()


class SimFile:
    """A handle."""

    def __init__(self, disk: SimDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk.life
        self._open = True

    def _use(self) -> Inode:
        if not self._open or self._life != self._disk.life:
            raise OSError(errno.EBADF, "the handle is closed")
        return self._inode

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        inode = self._use()
        data = b"".join(buffers)
        if self._disk.short_writes and len(data) > 1:
            data = data[: self._disk.chance.randint(1, len(data))]

        self._disk.need(offset + len(data) - len(inode.data))

        def write() -> None:
            end = offset + len(data)
            if end > len(inode.data):
                inode.data.extend(bytes(end - len(inode.data)))
                inode.lengths.append(end)
            inode.data[offset:end] = data
            inode.touch(offset, end)

        self._disk.change("write", write)
        return len(data)

    def pread(self, length: int, offset: int) -> bytes:
        inode = self._use()
        self._disk.reads += 1
        self._disk.read_bytes += length
        bad = inode.unreadable
        if self._disk.bad_reads or max(offset, bad.start) < min(offset + length, bad.stop):
            raise OSError(errno.EIO, "the disk cannot read this")
        return bytes(inode.data[offset : offset + length])

    def pread_cached(self, length: int, offset: int) -> bytes | None:
        return None if self._disk.is_cold else self.pread(length, offset)

    def sync_data(self) -> None:
        inode = self._use()
        self._disk.syncs += 1
        self._disk.during_sync()
        self._disk.change("sync", inode.harden, inode.forget)

    def sync(self) -> None:
        self.sync_data()

    def allocate(self, length: int) -> None:
        inode = self._use()

        def allocate() -> None:
            if length > len(inode.data):
                inode.data.extend(bytes(length - len(inode.data)))
                inode.lengths.append(length)

        if length > self._disk.room:
            self._disk.refused()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._disk.need(length - len(inode.data))
        self._disk.change("allocate", allocate)

    def truncate(self, length: int) -> None:
        inode = self._use()

        def truncate() -> None:
            del inode.data[length:]
            inode.data.extend(bytes(length - len(inode.data)))
            inode.lengths.append(length)

        self._disk.change("truncate", truncate)

    def size(self) -> int:
        return len(self._use().data)

    def close(self) -> None:
        self._open = False


class SimLock:
    """A hold on a name."""

    def __init__(self, disk: SimDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimDisk:
    """The `Files` of the log, on such a disk. Directories are implied by the names in them."""

    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.name_changes: dict[Path, list[tuple[Path, Inode | None]]] = {}
        self.locks: set[Path] = set()
        self.life = 0
        self.operations: list[str] = []
        self.crash_at: int | None = None
        self.fail_at: dict[int, int] = {}
        self.room = 1 << 40
        """What one allocation may ask for, whatever was allocated before."""
        self.capacity: int | None = None
        """All files together, if anybody counts. Files without a name count no more, even if they are open."""
        self.short_writes = False
        self.bad_reads = False
        self.is_cold = False
        """The page cache has nothing."""
        self.during_sync: Callable[[], None] = lambda: None
        """Called in each sync of a file: a slow disk moves the clock there."""
        self.refused: Callable[[], None] = lambda: None
        """Called where an allocation finds no room."""
        self.syncs = 0
        self.reads = 0
        self.read_bytes = 0

    # ---- faults

    def change(self, what: str, do: Do, instead: Do | None = None) -> None:
        """One changing operation, with the fault that is due at it."""
        number = len(self.operations)
        self.operations.append(what)
        error = self.fail_at.get(number)
        if error is not None:
            (instead or (lambda: None))()
            raise OSError(error, os.strerror(error))
        if number == self.crash_at:
            if what != "sync" and self.chance.random() < 0.5:
                do()
            self.life += 1
            raise Crashed(f"at operation {number}: {what}")
        do()

    def restart(self) -> None:
        """The process dies; the machine goes on, and its cache with it."""
        self.life += 1
        self.locks.clear()
        self.crash_at = None
        self.fail_at = {}

    def power_cut(self, seed: int) -> None:
        """The machine dies: what was not synced is gone, or not."""
        self.restart()
        chance = random.Random(seed)
        for directory in sorted(self.name_changes):
            changes = self.name_changes[directory]
            for path, inode in changes[: chance.randint(0, len(changes))]:
                self._set(self.durable_names, path, inode)
        self.name_changes.clear()
        self.names = dict(self.durable_names)
        seen = set()
        for path in sorted(self.names):
            inode = self.names[path]
            if id(inode) not in seen:
                seen.add(id(inode))
                inode.cut(chance)

    def flip(self, path: Path, bit: int) -> None:
        """Turn one bit over, on the disk (if it has got there) and in the cache."""
        inode = self.names[path]
        inode.data[bit >> 3] ^= 1 << (bit & 7)
        if bit >> 3 < len(inode.durable):
            inode.durable[bit >> 3] ^= 1 << (bit & 7)

    @staticmethod
    def _set(names: dict[Path, Inode], path: Path, inode: Inode | None) -> None:
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode

    def _name(self, *changes: tuple[Path, Inode | None]) -> None:
        for path, inode in changes:
            self._set(self.names, path, inode)
            self.name_changes.setdefault(path.parent, []).append((path, inode))

    # ---- Files

    def make_directory(self, path: Path) -> None:
        """Nothing to do: directories are implied."""

    def create(self, path: Path) -> SimFile:
        inode = Inode()
        self.change("create", lambda: self._name((path, inode)))
        return SimFile(self, inode)

    def open(self, path: Path, *, writable: bool = False) -> SimFile:
        self._need_name(path)
        return SimFile(self, self.names[path])

    def _need_name(self, path: Path) -> None:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def rename(self, old: Path, new: Path) -> None:
        self._need_name(old)

        def rename() -> None:
            inode = self.names[old]
            self._set(self.names, new, inode)
            self._set(self.names, old, None)
            self.name_changes.setdefault(new.parent, []).append((new, inode))
            self.name_changes[new.parent].append((old, None))

        self.change("rename", rename)

    def unlink(self, path: Path) -> None:
        self._need_name(path)
        self.change("unlink", lambda: self._name((path, None)))

    def sync_directory(self, path: Path) -> None:
        def sync() -> None:
            for changed, inode in self.name_changes.pop(path, []):
                self._set(self.durable_names, changed, inode)

        self.change("sync directory", sync)

    def list_directory(self, path: Path) -> list[str]:
        parts = path.parts
        depth = len(parts)
        names = {
            found.parts[depth]
            for found in self.names
            if len(found.parts) > depth and found.parts[:depth] == parts
        }
        if not names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return sorted(names)

    def free_bytes(self, path: Path) -> int:
        return self.room if self.capacity is None else max(0, self.capacity - self.used_bytes())

    def used_bytes(self) -> int:
        """What all files together have allocated."""
        return sum(len(inode.data) for inode in {id(inode): inode for inode in self.names.values()}.values())

    def need(self, more: int) -> None:
        """ENOSPC if a file cannot become so much longer."""
        if self.capacity is not None and more > 0 and self.used_bytes() + more > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def lock(self, path: Path) -> SimLock:
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.locks.add(path)
        if path not in self.names:
            self._name((path, Inode()))
        return SimLock(self, path)
