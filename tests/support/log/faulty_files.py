"""The operating system's files with the faults of a disk, for member processes in tests.

- `PowerCut` keeps what a power cut would take away: of every 512-byte sector written since its file's last sync the
  bytes before and after each write, of every file its lengths, of every directory the changes of its names. `cut` puts
  the durable state back, or a random part of what was not durable on top of it: sectors each by itself, so writes are
  torn and reordered, and of a directory's changes some first part. What a process that is only killed has written
  stays, as it does in the kernel's cache.
- `Faults` are read from a file that the test may replace at any time: syncs that take longer, the n-th write or sync
  from then on that fails, the room there is.

After a failed write or sync nothing may be written or synced any more: `FaultyFiles` says so in the process's output
if it happens.
"""

from __future__ import annotations

import errno
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import RLock

from quorum.log.files import File, Lock, RealFile, RealFiles
from support.log.disk import SECTOR

SIDE = "powercut"
"""Folder beside the data for files whose name is gone but not durably so."""
WORST_MOMENT_S = 5.0
"""A loaded member writes in it, however busy the machine is."""
WORTH_WAITING_S = 0.1
WORTH_LOSING = (1, SECTOR + 1, 16 * SECTOR)
FAILED = "fault: failed"
TOUCHED = "fault: the disk was touched after it had failed"


@dataclass(frozen=True, slots=True)
class Faults:
    """What the disk does from now on. fail: "write", "sync" or "", the `after`-th of them (from 1) gives EIO. room:
    bytes that may still be allocated or that new files may take, None for no limit. ignore_syncs: a disk that lies."""

    sync_delay_s: float = 0.0
    fail: str = ""
    after: int = 1
    room: int | None = None
    ignore_syncs: bool = False

    def write(self, path: Path) -> None:
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self)), encoding="ascii")
        temporary.replace(path)


@dataclass(slots=True)
class Unsynced:
    """One file's writes since its last sync: (offset of the first sector, bytes before, bytes after), and its lengths,
    the durable one first."""

    handle: int
    writes: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def hardened(self, writes: int, lengths: int) -> None:
        """So many of the first writes and lengths are durable now."""
        del self.writes[:writes]
        del self.lengths[: max(0, lengths - 1)]
        if len(self.lengths) == 1:
            self.lengths.clear()

    def sectors(self) -> dict[int, list[bytes]]:
        """Of each sector that is not durable: the durable bytes, and every version since."""
        found: dict[int, list[bytes]] = {}
        for offset, before, after in self.writes:
            for at in range(0, len(after), SECTOR):
                versions = found.setdefault(offset + at, [before[at : at + SECTOR].ljust(SECTOR, b"\0")])
                versions.append(after[at : at + SECTOR].ljust(SECTOR, b"\0"))
        return found

    def cut(self, chance: random.Random, keeps: bool) -> tuple[int, int]:
        """(sectors that were not durable, how many of them kept something of it)"""
        sectors = self.sectors()
        length = os.fstat(self.handle).st_size
        if self.lengths:
            length = chance.choice(self.lengths) if keeps else self.lengths[0]
        kept = 0
        for offset in sorted(sectors):
            number = chance.randrange(len(sectors[offset])) if keeps else 0
            kept += number > 0
            os.pwrite(self.handle, sectors[offset][number], offset)
        os.ftruncate(self.handle, length)
        os.fsync(self.handle)
        return len(sectors), kept


class PowerCut:
    """What is not durable. All changes go through it, under its lock; a sync's waiting does not hold the lock."""

    def __init__(self, side: Path, seed: int, patience_s: float = WORST_MOMENT_S) -> None:
        """patience_s: how long a cut waits for something that can be lost."""
        self.seed = seed
        self._patience_s = patience_s
        self.lock = RLock()
        self.files: dict[tuple[int, int], Unsynced] = {}
        self.names: dict[Path, list[Callable[[], None]]] = {}
        self._side = side
        self._side_number = 0
        side.mkdir(exist_ok=True)
        for (
            left
        ) in side.iterdir():  # by a process that was killed: its names are gone, as in the kernel's cache
            left.unlink()

    def of(self, handle: int) -> Unsynced:
        status = os.fstat(handle)
        key = (status.st_dev, status.st_ino)
        if key not in self.files:
            self.files[key] = Unsynced(os.dup(handle))
        return self.files[key]

    @contextmanager
    def change(self, handle: int, offset: int, end: int) -> Iterator[None]:
        """Around a call that changes these bytes or the file's length."""
        with self.lock:
            unsynced = self.of(handle)
            length = os.fstat(handle).st_size
            start = offset // SECTOR * SECTOR
            wanted = (end + SECTOR - 1) // SECTOR * SECTOR - start
            before = os.pread(handle, wanted, start).ljust(wanted, b"\0") if wanted else b""
            yield
            if wanted:
                after = os.pread(handle, wanted, start).ljust(wanted, b"\0")
                unsynced.writes.append((start, before, after))
            changed = os.fstat(handle).st_size
            if changed != length:
                unsynced.lengths += [changed] if unsynced.lengths else [length, changed]

    @contextmanager
    def sync(self, handle: int) -> Iterator[None]:
        """Around a call that makes durable what was written before it."""
        with self.lock:
            unsynced = self.of(handle)
            writes, lengths = len(unsynced.writes), len(unsynced.lengths)
        yield
        with self.lock:
            unsynced.hardened(writes, lengths)

    def keep_aside(self, path: Path) -> Path:
        """A second name for a file that is about to lose this one."""
        self._side_number += 1
        aside = self._side / f"{self._side_number}"
        os.link(path, aside)
        return aside

    def named(self, directory: Path, undo: Callable[[], None]) -> None:
        self.names.setdefault(directory, []).append(undo)

    def names_are_durable(self, directory: Path) -> None:
        with self.lock:
            self.names.pop(directory, None)
            if not any(self.names.values()):
                for aside in self._side.iterdir():
                    aside.unlink()

    def drop(self, handle: int) -> None:
        """What a failed sync does: the kernel believes these pages clean and may forget what they held."""
        with self.lock:
            unsynced = self.of(handle)
            for offset, before, _ in reversed(unsynced.writes):
                os.pwrite(handle, before, offset)
            unsynced.writes.clear()

    def dirty_bytes(self) -> int:
        return sum(len(after) for each in list(self.files.values()) for _, _, after in list(each.writes))

    def cut(self) -> str:
        """Takes everything away that is not durable, or a part of it. Nothing may be changed afterwards.

        It waits a moment for something that can be lost.
        """
        chance = random.Random(self.seed)
        wanted = chance.choice(WORTH_LOSING)
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < self._patience_s:
            if self.dirty_bytes() >= (wanted if waited < WORTH_WAITING_S else 1):
                break
            time.sleep(0)
        self.lock.acquire()  # for good
        keeps = chance.random() < 2 / 3
        files = [each for each in self.files.values() if each.writes or each.lengths]
        counts = [each.cut(chance, keeps) for each in files]
        names = undone = 0
        for directory in sorted(self.names):
            undo = self.names[directory]
            names += len(undo)
            for each in reversed(undo[chance.randint(0, len(undo)) if keeps else 0 :]):
                each()
                undone += 1
        sectors = sum(count for count, _ in counts)
        kept = sum(each for _, each in counts)
        return (
            f"{sectors} sectors of {len(files)} files were not durable, {kept} kept something; "
            f"{undone} of {names} changes of names undone; seed {self.seed}"
        )


class FaultyFile:
    """A file descriptor with faults."""

    def __init__(self, files: FaultyFiles, file: RealFile, handle: int) -> None:
        self._files = files
        self._file = file
        self._handle = handle

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        self._files.before("write")
        with self._files.power.change(self._handle, offset, offset + sum(map(len, buffers))):
            return self._file.pwritev(buffers, offset)

    def pread(self, length: int, offset: int) -> bytes:
        return self._file.pread(length, offset)

    def pread_cached(self, length: int, offset: int) -> bytes | None:
        return self._file.pread_cached(length, offset)

    def sync_data(self) -> None:
        self._sync(self._file.sync_data)

    def sync(self) -> None:
        self._sync(self._file.sync)

    def _sync(self, do: Callable[[], None]) -> None:
        try:
            faults = self._files.before("sync")
        except OSError:
            self._files.power.drop(self._handle)
            raise
        if faults.ignore_syncs:
            return
        with self._files.power.sync(self._handle):
            time.sleep(faults.sync_delay_s)
            do()

    def allocate(self, length: int) -> None:
        self._files.before("write")
        self._files.take_room(length)
        size = self.size()
        with self._files.power.change(self._handle, size, size):
            self._file.allocate(length)

    def truncate(self, length: int) -> None:
        self._files.before("write")
        with self._files.power.change(self._handle, length, max(length, self.size())):
            self._file.truncate(length)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class FaultyFiles(RealFiles):
    """`Files` of a process, with the faults that a file tells."""

    def __init__(self, faults: Path, power: PowerCut) -> None:
        super().__init__()
        self.power = power
        self._path = faults
        self._known = 0
        self._faults = Faults()
        self._counted = 0
        self._taken = 0
        self._failed = False

    # ---- faults

    def before(self, what: str) -> Faults:
        """To be called before every change; raises what is due."""
        faults = self.faults()
        if self._failed:
            _say(f"{TOUCHED}: {what}")
        elif what == faults.fail:
            self._counted += 1
            if self._counted == faults.after:
                self._failed = True
                _say(f"{FAILED}: {what} number {faults.after}")
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return faults

    def faults(self) -> Faults:
        try:
            changed = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            return self._faults
        if changed != self._known:
            self._known = changed
            self._faults = Faults(**json.loads(self._path.read_text(encoding="ascii")))
            self._counted = self._taken = 0
        return self._faults

    def take_room(self, length: int) -> None:
        room = self.faults().room
        if room is not None and self._taken + length > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._taken += length

    # ---- Files

    def make_directory(self, path: Path) -> None:
        super().make_directory(path)  # synced at once: nothing to forget

    def create(self, path: Path) -> File:
        self.before("write")
        with self.power.lock:
            aside = self.power.keep_aside(path) if path.exists() else None
            if aside is not None:
                path.unlink()
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            self.power.named(path.parent, lambda: _put_back(aside, path))
        return FaultyFile(self, RealFile(handle), handle)

    def open(self, path: Path, *, writable: bool = False) -> File:
        handle = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        return FaultyFile(self, RealFile(handle), handle)

    def rename(self, old: Path, new: Path) -> None:
        self.before("write")
        with self.power.lock:
            aside = self.power.keep_aside(new) if new.exists() else None

            def undo() -> None:
                os.rename(new, old)
                _put_back(aside, new)

            super().rename(old, new)
            self.power.named(new.parent, undo)

    def unlink(self, path: Path) -> None:
        self.before("write")
        with self.power.lock:
            aside = self.power.keep_aside(path)
            super().unlink(path)
            self.power.named(path.parent, lambda: _put_back(aside, path))

    def sync_directory(self, path: Path) -> None:
        faults = self.before("sync")
        if not faults.ignore_syncs:
            super().sync_directory(path)
            self.power.names_are_durable(path)

    def free_bytes(self, path: Path) -> int:
        room = self.faults().room
        return super().free_bytes(path) if room is None else max(0, room - self._taken)

    def lock(self, path: Path) -> Lock:
        return super().lock(path)


def _put_back(aside: Path | None, path: Path) -> None:
    """The name as it durably is: of the file kept aside, or of none."""
    path.unlink(missing_ok=True)
    if aside is not None:
        os.rename(aside, path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
