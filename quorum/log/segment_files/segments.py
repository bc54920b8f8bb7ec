"""Segment files.

A log is a sequence of segment files. Each begins with a 4,096-byte block that names it (number, first LSN, allocated
length, random file id). Its full length is allocated before it is used, so a write inside needs no new space. The
manifest is the durable list of segments, replaced as a whole at every change. The last listed segment is active; every
other is *sealed*: the manifest states its end and its last LSN, and bytes after that end do not count. So a segment
that is missing, shortened or not part of the log is noticed.

Order of a roll:

1. The new segment's file is made (allocate, header, fsync, rename, fsync of the directory).
2. The old segment is written out and synced.
3. The manifest is replaced.
4. Only then a record is written to the new segment.

Hence an unlisted segment file that begins after the active one holds no record. If it does hold one, the manifest is
not the newest, and that is damage. A collection made or replaced an unlisted file that begins earlier (`collector`).
Both are removed when the log is opened.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from quorum.log.errors import Damage, LogDamaged, LogUnknown
from quorum.log.files import (
    File,
    Files,
    commit_file,
    temporary_path,
    write_fully,
)
from quorum.log.record import Stamp, crc32c

FORMAT = 2
HEADER_BLOCK = 4096
"""Size of the first block. Records begin after it, so that no record shares a page with the header."""
MAX_SEGMENT_BYTES = 1 << 31
"""Maximum size of a segment, because offsets are kept in 32 bits."""

SNAPSHOTS = "snapshots"
"""The folder of the groups' snapshot files."""

_MAGIC = b"QUORUMLG"
_BLOCK = struct.Struct("<8sIIQQQ16s")
_NAME = re.compile(r"segment-([0-9]{10})\.log")
_INDEX_NAME = re.compile(r"segment-([0-9]{10})\.index")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The content of a segment's first block."""

    number: int
    first_lsn: int
    allocated: int
    file_id: bytes

    def encode(self) -> bytes:
        """The whole block."""
        fields = _BLOCK.pack(
            _MAGIC, FORMAT, HEADER_BLOCK, self.number, self.first_lsn, self.allocated, self.file_id
        )
        data: bytes = fields + crc32c(fields).to_bytes(4, "little")
        return data.ljust(HEADER_BLOCK, b"\0")


def decode_header(data: bytes, path: Path) -> SegmentHeader:
    """The content of a segment's first block; LogDamaged or LogUnknown if it is not one."""
    end = _BLOCK.size
    if len(data) < HEADER_BLOCK or data[:8] != _MAGIC:
        raise LogDamaged(Damage(str(path), 0, None, "not a segment of a log"))
    if crc32c(data[:end]) != int.from_bytes(data[end : end + 4], "little") or any(
        data[end + 4 : HEADER_BLOCK]
    ):
        raise LogDamaged(Damage(str(path), 0, None, "the segment's first block fails its CRC"))
    _, version, block, number, first_lsn, allocated, file_id = _BLOCK.unpack_from(data)
    if version != FORMAT or block != HEADER_BLOCK:
        raise LogUnknown(f"{path}: format {version}, this program knows {FORMAT}")
    return SegmentHeader(number, first_lsn, allocated, file_id)


class Segment:
    """An open segment file. Readers hold it while they read, so it is never closed under them."""

    file: File

    def __init__(self, path: Path, header: SegmentHeader, file: File | None = None) -> None:
        self.path = path
        self.header = header
        if file is not None:
            self.file = file
        self.stamp = Stamp(header.file_id)
        self.holders = 1
        """Guarded by the log's lock; the log itself is one holder."""
        self.block_damage: Damage | None = None
        """Of its first block when it was opened. The header is then the manifest's."""
        self.is_replaced = False
        """A collection has replaced it: the file is removed when it is closed."""

    @property
    def number(self) -> int:
        return self.header.number


@dataclass(frozen=True, slots=True)
class Listed:
    """A segment as the manifest lists it. end and last_lsn are None for the active one."""

    number: int
    file_id: bytes
    first_lsn: int
    last_lsn: int | None = None
    end: int | None = None


def segment_path(directory: Path, number: int) -> Path:
    """The path of the segment of this number."""
    return directory / f"segment-{number:010d}.log"


def segment_numbers(files: Files, directory: Path) -> list[int]:
    """The numbers of the segment files in the directory, ascending."""
    found = (_NAME.fullmatch(name) for name in files.list_directory(directory))
    return sorted(int(match[1]) for match in found if match)


def index_numbers(files: Files, directory: Path) -> list[tuple[int, str]]:
    """The numbers of the index files in the directory, with their names."""
    found = (_INDEX_NAME.fullmatch(name) for name in files.list_directory(directory))
    return [(int(match[1]), match[0]) for match in found if match]


def create_segment(
    files: Files,
    directory: Path,
    number: int,
    *,
    first_lsn: int,
    allocated: int,
    random_bytes: Callable[[int], bytes],
    is_reserved: bool = False,
) -> Segment:
    """Create an empty, durable segment file that no manifest lists yet. An OSError leaves no temporary file.

    is_reserved: the temporary file already exists, from the reserve: it is allocated and reads as zeros.
    """
    header = SegmentHeader(number, first_lsn, allocated, random_bytes(16))
    path = segment_path(directory, number)
    temporary = temporary_path(path)
    file = files.open(temporary, writable=True) if is_reserved else files.create(temporary)
    try:
        if is_reserved:
            file.truncate(allocated)
        else:
            file.allocate(allocated)
        write_fully(file, [header.encode()], 0)
        file.sync()
    except OSError:
        file.close()
        files.unlink(temporary)
        raise
    try:
        commit_file(files, path)
    except OSError:
        file.close()
        raise
    return Segment(path, header, file)


def write_first_block(files: Files, segment: Segment) -> None:
    """Write a sealed segment's first block again, durably."""
    with closing(files.open(segment.path, writable=True)) as file:
        write_fully(file, [segment.header.encode()], 0)
        file.sync()


def open_segment(files: Files, directory: Path, listed: Listed, *, writable: bool) -> Segment:
    """Open the file of a listed segment; LogDamaged if it is missing, too short, or not the one listed.

    If only the first block of a sealed segment is bad, it is opened all the same, with `block_damage`: the manifest has
    everything in the block but the allocated length, which counts no more. Each record proves by its CRC that it is of
    this file. The active segment needs its allocated length.
    """
    path = segment_path(directory, listed.number)
    try:
        file = files.open(path, writable=writable)
    except FileNotFoundError:
        raise LogDamaged(
            Damage(str(path), 0, listed.first_lsn, "the manifest lists this file, but it is missing")
        ) from None
    try:
        header, damage = _read_header(file, path, listed)
        size = file.size()
        if (header.number, header.file_id, header.first_lsn) != (
            listed.number,
            listed.file_id,
            listed.first_lsn,
        ):
            raise LogDamaged(Damage(str(path), 0, listed.first_lsn, "another file than the manifest lists"))
        wanted = header.allocated if listed.end is None else listed.end
        if size < wanted:
            raise LogDamaged(
                Damage(str(path), size, None, f"the file is shorter than the {wanted} bytes it had")
            )
    except BaseException:
        file.close()
        raise
    segment = Segment(path, header, file)
    segment.block_damage = damage
    return segment


def _read_header(file: File, path: Path, listed: Listed) -> tuple[SegmentHeader, Damage | None]:
    """The header in the first block. If a sealed segment's block is bad: the manifest's, and the damage."""
    try:
        return decode_header(file.pread(HEADER_BLOCK, 0), path), None
    except (LogDamaged, OSError) as error:
        if listed.end is None:
            raise
        if isinstance(error, LogDamaged):
            damage = error.damages[0]
        else:
            damage = Damage(str(path), 0, None, f"the segment's first block cannot be read: {error}")
    return SegmentHeader(listed.number, listed.first_lsn, listed.end, listed.file_id), damage
