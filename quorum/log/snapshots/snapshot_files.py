"""Snapshot files: the state of one group at (index, term), checked piece by piece and as a whole.

    header   magic 8, format 4, group 4, index 8, term 8, state length 8, chunk length 4, CRC32C of all that 4
    chunks   CRC32C 4, bytes (the last may be shorter)
    footer   magic 8, CRC32C of the whole state 4

The store writes such files whole (kept_snapshots.py) or as another member sends them (received.py).
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

from quorum.log.files import Files
from quorum.log.record import crc32c, extend_crc32c

CHUNK_BYTES = 1 << 20
END = b"SNAPSEND"
FORMAT = 1

_MAGIC = b"QUORUMSN"
_HEADER = struct.Struct("<8sIIQQQI")
_NAME = re.compile(r"group-([0-9a-f]{8})-index-([0-9a-f]{16})-term-([0-9a-f]{16})\.snapshot")


class SnapshotDamaged(ValueError):
    """A snapshot file is not what was written."""


def snapshot_name(group: int, index: int, term: int) -> str:
    return f"group-{group:08x}-index-{index:016x}-term-{term:016x}.snapshot"


def parse_name(name: str) -> tuple[int, int, int] | None:
    """(group, index, term) of a snapshot file's name, None if it is no such name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1], 16), int(match[2], 16), int(match[3], 16))


def encode_snapshot(group: int, index: int, term: int, state: bytes) -> list[bytes]:
    """The file's bytes, in pieces."""
    pieces = [encode_header(group, index, term, len(state))]
    whole = 0
    for start in range(0, len(state), CHUNK_BYTES):
        chunk = state[start : start + CHUNK_BYTES]
        whole = extend_crc32c(whole, chunk)
        pieces += (crc32c(chunk).to_bytes(4, "little"), chunk)
    pieces.append(encode_footer(whole))
    return pieces


def encode_header(group: int, index: int, term: int, size: int) -> bytes:
    """The bytes before the chunks."""
    fields = _HEADER.pack(_MAGIC, FORMAT, group, index, term, size, CHUNK_BYTES)
    crc: bytes = crc32c(fields).to_bytes(4, "little")
    return fields + crc


def encode_footer(crc: int) -> bytes:
    """The bytes after the chunks of a snapshot. crc: of the whole state."""
    return END + crc.to_bytes(4, "little")


def decode_snapshot_header(data: bytes) -> tuple[int, int, int, int]:
    """(group, index, term, length of the state), from the file's first bytes; SnapshotDamaged."""
    return _decode_header(data)[:4]


def _decode_header(data: bytes) -> tuple[int, int, int, int, int]:
    at = _HEADER.size + 4
    if len(data) < at or crc32c(data[: _HEADER.size]) != int.from_bytes(data[at - 4 : at], "little"):
        raise SnapshotDamaged("the header fails its CRC")
    magic, version, of, index, term, length, chunk_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != FORMAT:
        raise SnapshotDamaged(f"format {version} is not known")
    if chunk_bytes < 1:
        raise SnapshotDamaged("chunks of no bytes")
    return of, index, term, length, chunk_bytes


def decode_snapshot(data: bytes, group: int) -> tuple[int, int, bytes]:
    """(index, term, state); SnapshotDamaged if the bytes are not exactly a snapshot of this group."""
    of, index, term, length, chunk_bytes = _decode_header(data)
    at = _HEADER.size + 4
    if of != group:
        raise SnapshotDamaged(f"it is of group {of}, not {group}")
    whole = 0
    chunks: list[bytes] = []
    left = length
    while left:
        size = min(left, chunk_bytes)
        chunk = data[at + 4 : at + 4 + size]
        if len(chunk) != size or crc32c(chunk) != int.from_bytes(data[at : at + 4], "little"):
            raise SnapshotDamaged(f"chunk {len(chunks)} fails its CRC")
        whole = extend_crc32c(whole, chunk)
        chunks.append(chunk)
        at += 4 + size
        left -= size
    if data[at:] != encode_footer(whole):
        raise SnapshotDamaged("the footer is wrong")
    return index, term, b"".join(chunks)


class SnapshotFile:
    """A snapshot that is read piece by piece, each piece checked. It can be read even after its name was removed."""

    def __init__(self, files: Files, path: Path, group: int) -> None:
        """SnapshotDamaged if header or footer are not what was written; OSError."""
        self._file = files.open(path)
        try:
            self.index, self.term, self.size = self._read_header(group)
            self.crc = self._read_footer()
        except BaseException:
            self._file.close()
            raise
        self._chunk = b""
        self._chunk_number = -1

    def _read_header(self, group: int) -> tuple[int, int, int]:
        of, index, term, size, self._chunk_bytes = _decode_header(self._file.pread(_HEADER.size + 4, 0))
        if of != group:
            raise SnapshotDamaged(f"it is of group {of}, not {group}")
        return index, term, size

    def _read_footer(self) -> int:
        chunks = -(-self.size // self._chunk_bytes)
        footer = self._file.pread(len(END) + 4, _HEADER.size + 4 + self.size + 4 * chunks)
        if len(footer) != len(END) + 4 or footer[: len(END)] != END:
            raise SnapshotDamaged("the footer is wrong")
        return int.from_bytes(footer[len(END) :], "little")

    def prepare(self) -> bool:
        """Always True: a snapshot file is ready to be read at once."""
        return True

    def read(self, offset: int, length: int) -> bytes:
        """Part of the state, fewer bytes at its end. SnapshotDamaged, OSError."""
        pieces = []
        end = min(offset + length, self.size)
        while offset < end:
            number, start = divmod(offset, self._chunk_bytes)
            piece = self._read_chunk(number)[start : start + end - offset]
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def _read_chunk(self, number: int) -> bytes:
        if number != self._chunk_number:
            first = number * self._chunk_bytes
            size = min(self._chunk_bytes, self.size - first)
            data = self._file.pread(4 + size, _HEADER.size + 4 + first + 4 * number)
            if len(data) != 4 + size or crc32c(data[4:]) != int.from_bytes(data[:4], "little"):
                raise SnapshotDamaged(f"chunk {number} fails its CRC")
            self._chunk, self._chunk_number = data[4:], number
        return self._chunk

    def close(self) -> None:
        self._file.close()
