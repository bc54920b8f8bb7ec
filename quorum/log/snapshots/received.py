"""A snapshot that another member sends: written as it arrives, in the snapshot file format, under a name of its own.

The name has the snapshot's index, term, size and CRC, as its sender gives them. So bytes received of another snapshot
are never taken for this one. A chunk is written only when it is complete, with its CRC; shorter pieces wait in memory.
A process that finds such a file checks its chunks, one at a time, and continues after the last good one. It writes
each good chunk again: after a failed sync of the earlier process, the chunk may be in the kernel's cache only, and a
later sync would not write it. The file gets a snapshot's name only when it is complete, its CRC is right, and
everything is synced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from quorum.log.errors import LogError, LogFull
from quorum.log.files import File, Files, write_fully
from quorum.log.record import crc32c, extend_crc32c
from quorum.log.snapshots.snapshot_files import CHUNK_BYTES, SnapshotFile, encode_footer

SYNC_CHUNKS = 8
"""Number of chunks written between two syncs, so that the last sync has little left to do."""

_NAME = re.compile(
    r"group-([0-9a-f]{8})-index-([0-9a-f]{16})-term-[0-9a-f]{16}-size-[0-9a-f]{16}-crc-[0-9a-f]{8}\.received"
)

Write = Callable[[Callable[[], None]], None]
"""Calls a function that writes, and calls it again if there was no space and some was made; LogFull."""


def received_name(group: int, index: int, term: int, size: int, crc: int) -> str:
    return f"group-{group:08x}-index-{index:016x}-term-{term:016x}-size-{size:016x}-crc-{crc:08x}.received"


def parse_received_name(name: str) -> tuple[int, int] | None:
    """(group, index) of the snapshot that a file of this name receives; None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1], 16), int(match[2], 16))


class ReceivedSnapshot:
    """A snapshot file that is being received (see the module's text). An OSError other than lack of space also passes
    through `write`."""

    def __init__(
        self,
        files: Files,
        path: Path,
        index: int,
        term: int,
        size: int,
        crc: int,
        header: bytes,
        write: Write,
        opened: Callable[[Path], SnapshotFile],
        keep: Callable[[ReceivedSnapshot], None],
    ) -> None:
        """opened(path): opens a finished file for reading. keep(received): does the work of `keep`."""
        self.path = path
        self.index = index
        self.term = term
        self.size = size
        self._crc = crc
        self._files = files
        self._header = header
        self._write = write
        self._opened = opened
        self._keep = keep
        self._good = 0
        """bytes of the state that are in the file, in complete and checked chunks"""
        self._good_crc = 0
        self._begun = bytearray()
        """the beginning of the next chunk"""
        self._unsynced = 0
        self._is_checked = False
        self._file = self._open()

    def _open(self) -> File:
        try:
            file = self._files.open(self.path, writable=True)
        except OSError:
            return self._create()

        def write_again() -> None:
            write_fully(file, [self._header], 0)

        try:
            has_header = file.pread(len(self._header), 0) == self._header
        except OSError:
            has_header = False  # to be written again
        try:
            if has_header:
                self._write(write_again)
                return file
        except LogError:
            file.close()
            raise
        file.close()
        return self._create()

    def _create(self) -> File:
        made: list[File] = []

        def create() -> None:
            file = self._files.create(self.path)
            try:
                write_fully(file, [self._header], 0)
                file.sync()
                self._files.sync_directory(self.path.parent)
            except OSError:
                file.close()
                raise
            made.append(file)

        self._write(create)
        self._is_checked = True
        return made[0]

    def check(self) -> bool:
        """Check one chunk that an earlier process has left, and write it again; True once none is left to check."""
        if not self._is_checked:
            size = min(CHUNK_BYTES, self.size - self._good)
            try:
                data = self._file.pread(4 + size, self._place())
            except OSError:
                data = b""  # to be written again
            chunk = data[4:]
            if size and len(chunk) == size and crc32c(chunk) == int.from_bytes(data[:4], "little"):
                try:
                    self._write_chunk(chunk)
                except LogFull:
                    self._is_checked = True  # it is received again, once there is room
            else:
                self._is_checked = True
        return self._is_checked

    @property
    def received(self) -> int:
        """Number of bytes of the state that are here, from its beginning."""
        return self._good + len(self._begun)

    @property
    def is_whole(self) -> bool:
        return self._is_checked and self._good == self.size

    def add(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Take a piece that begins where the last one ended; other pieces are ignored. After LogFull, waiting bytes are
        tried again first, also with an empty piece."""
        self._put_begun()
        if offset == self.received and offset + len(data) <= self.size:
            self._begun += data
            self._put_begun()

    def _put_begun(self) -> None:
        while len(self._begun) >= CHUNK_BYTES or (self._begun and self.received == self.size):
            self._put(bytes(self._begun[:CHUNK_BYTES]))

    def _put(self, chunk: bytes) -> None:
        self._write_chunk(chunk)
        del self._begun[: len(chunk)]

    def _write_chunk(self, chunk: bytes) -> None:
        """Write the next chunk, and sync the file if some chunks are unsynced."""

        def write() -> None:
            write_fully(self._file, [crc32c(chunk).to_bytes(4, "little"), chunk], self._place())
            if self._unsynced + 1 >= SYNC_CHUNKS:
                self._file.sync_data()

        self._write(write)
        self._unsynced = (self._unsynced + 1) % SYNC_CHUNKS
        self._good_crc = extend_crc32c(self._good_crc, chunk)
        self._good += len(chunk)

    def _place(self) -> int:
        """The offset of the next chunk in the file."""
        return len(self._header) + self._good + 4 * (self._good // CHUNK_BYTES)

    def finish(self) -> bool:
        """Make the complete state durable; False if its CRC is wrong."""
        if self._good_crc != self._crc:
            return False

        def end() -> None:
            chunks = -(-self.size // CHUNK_BYTES)
            write_fully(self._file, [encode_footer(self._crc)], len(self._header) + self.size + 4 * chunks)
            self._file.sync()

        self._write(end)
        return True

    def open(self) -> SnapshotFile:
        """Open the finished file to read it piece by piece, also after it has got its name; the caller closes it."""
        return self._opened(self.path)

    def keep(self) -> None:
        """Put the finished snapshot in place, durably. LogFull."""
        self._keep(self)

    def move(self, path: Path) -> None:
        """Give the finished file its name, durably."""
        self._files.rename(self.path, path)
        self._files.sync_directory(path.parent)
        self._file.close()

    def drop(self) -> None:
        """Remove a file that is no longer wanted."""
        self._file.close()
        with suppress(FileNotFoundError):  # the file may have been lost before
            self._files.unlink(self.path)
