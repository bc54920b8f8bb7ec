"""Snapshot files of one group: the state at (index, term), checked piece by piece and as a whole.

    header   magic 8, format 4, group 4, index 8, term 8, state length 8, chunk length 4, CRC32C of all that 4
    chunks   CRC32C 4, bytes (the last may be shorter)
    footer   magic 8, CRC32C of the whole state 4

A file is written under another name, synced, renamed, and its directory synced; the last two are kept, so
that one damaged file is not the end. One that another member sends is written as it comes (received.py).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from quorum.log.errors import Damage
from quorum.log.files import Files, commit_file, prepare_file, read_file
from quorum.log.received import (
    CHUNK_BYTES,
    END,
    ReceivedSnapshot,
    Write,
    encode_footer,
    parse_received_name,
    received_name,
)
from quorum.log.record import crc32c, extend_crc32c
from quorum.log.segments import SNAPSHOTS

FORMAT = 1
KEPT = 2

_MAGIC = b"QUORUMSN"
_HEADER = struct.Struct("<8sIIQQQI")
_NAME = re.compile(r"group-([0-9a-f]{8})-index-([0-9a-f]{16})-term-([0-9a-f]{16})\.snapshot")


class SnapshotDamaged(ValueError):
    """A snapshot file is not what was written."""


def _name(group: int, index: int, term: int) -> str:
    return f"group-{group:08x}-index-{index:016x}-term-{term:016x}.snapshot"


def parse_name(name: str) -> tuple[int, int, int] | None:
    """(group, index, term) of a snapshot file's name, None if it is no such name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1], 16), int(match[2], 16), int(match[3], 16))


def _index(name: str) -> int:
    found = parse_name(name)
    assert found is not None
    return found[1]


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
    """What stands before the chunks."""
    fields = _HEADER.pack(_MAGIC, FORMAT, group, index, term, size, CHUNK_BYTES)
    crc: bytes = crc32c(fields).to_bytes(4, "little")
    return fields + crc


def decode_snapshot_header(data: bytes) -> tuple[int, int, int, int]:
    """(group, index, term, length of the state), as the file's first bytes say; SnapshotDamaged."""
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
    """A snapshot that is read piece by piece, each checked; it can be read on after its name is gone."""

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
        data = self._file.pread(_HEADER.size + 4, 0)
        fields = data[: _HEADER.size]
        if len(data) < _HEADER.size + 4 or crc32c(fields) != int.from_bytes(data[_HEADER.size :], "little"):
            raise SnapshotDamaged("the header fails its CRC")
        magic, version, of, index, term, size, chunk_bytes = _HEADER.unpack(fields)
        if magic != _MAGIC or version != FORMAT or of != group or chunk_bytes < 1:
            raise SnapshotDamaged(f"format {version}, group {of}: not a snapshot of group {group}")
        self._chunk_bytes = chunk_bytes
        return index, term, size

    def _read_footer(self) -> int:
        chunks = -(-self.size // self._chunk_bytes)
        footer = self._file.pread(len(END) + 4, _HEADER.size + 4 + self.size + 4 * chunks)
        if len(footer) != len(END) + 4 or footer[: len(END)] != END:
            raise SnapshotDamaged("the footer is wrong")
        return int.from_bytes(footer[len(END) :], "little")

    def prepare(self) -> bool:
        """Everything is known."""
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


class SnapshotStore:
    """The snapshot files of one group."""

    def __init__(self, files: Files, directory: Path, group: int) -> None:
        self.directory = directory / SNAPSHOTS
        self._files = files
        self._group = group
        self._damaged: dict[str, str] = {}
        self._receiving = ""
        """the name of the file that is being received now, or was"""
        self._good: frozenset[str] = frozenset()
        """The files that were saved or loaded in this life and are kept; replaced as a whole, for any thread."""

    @property
    def damaged(self) -> tuple[str, ...]:
        """Names of files that could not be used, with the reason."""
        return tuple(f"{name}: {reason}" for name, reason in self._damaged.items())

    def save(self, index: int, term: int, state: bytes) -> None:
        """Put a snapshot in place, durably, and remove all but the two newest good ones."""
        self._files.make_directory(self.directory)
        path = self.directory / _name(self._group, index, term)
        prepare_file(self._files, path, encode_snapshot(self._group, index, term, state))
        commit_file(self._files, path)
        self._saved(path.name)

    def receive(
        self,
        index: int,
        term: int,
        size: int,
        crc: int,
        write: Write,
        keep: Callable[[ReceivedSnapshot], None],
    ) -> ReceivedSnapshot:
        """A file for a snapshot that comes in pieces, or what is there of it. Others that were begun are removed."""
        self._files.make_directory(self.directory)
        name = received_name(self._group, index, term, size, crc)
        self._receiving = name
        self._remove_begun()
        return ReceivedSnapshot(
            self._files,
            self.directory / name,
            index,
            term,
            size,
            crc,
            encode_header(self._group, index, term, size),
            write,
            lambda path: SnapshotFile(self._files, path, self._group),
            keep,
        )

    def keep(self, received: ReceivedSnapshot) -> None:
        """Put a received snapshot that is whole in place, as `save` does."""
        path = self.directory / _name(self._group, received.index, received.term)
        received.move(path)
        self._saved(path.name)

    def _remove_begun(self, to_index: int | None = None) -> None:
        """What was begun to be received before, of snapshots up to this index."""
        for name in self._listed():
            found = parse_received_name(name)
            if found is None or found[0] != self._group or name == self._receiving:
                continue
            if to_index is None or found[1] <= to_index:
                self._files.unlink(self.directory / name)

    def _saved(self, name: str) -> None:
        self._damaged.pop(name, None)
        self._remove_begun(_index(name))
        names = self._names()
        kept = self._staying(names)
        self._good = frozenset(kept)
        for found in names:
            if found not in kept:
                self._files.unlink(self.directory / found)
                self._damaged.pop(found, None)

    def load(self) -> tuple[int, int, bytes] | None:
        """The newest snapshot that is whole, or None."""
        names = self._names()
        if names:  # the last process may have died between giving a file its name and syncing that name
            self._files.sync_directory(self.directory)
        return next(self._whole(names), None)

    def load_older(self, than: int) -> list[tuple[int, int, bytes]]:
        """All below this index that are whole, the newest first."""
        return list(self._whole([name for name in self._names() if _index(name) < than]))

    def _whole(self, names: list[str]) -> Iterator[tuple[int, int, bytes]]:
        """Those of these that are whole, read one by one."""
        for name in names:
            try:
                found = decode_snapshot(read_file(self._files, self.directory / name), self._group)
            except (SnapshotDamaged, OSError) as error:
                self._damaged[name] = str(error)
            else:
                self._good |= {name}
                yield found

    def indices(self) -> list[int]:
        """Of the snapshots that stay: the two newest not known to be damaged, the newest first."""
        return [_index(name) for name in self._staying(self._names())]

    def check(self) -> tuple[int, list[Damage]]:
        """Reads the good ones whole: how many bytes, and which are good no more. Any thread."""
        checked, damages = 0, []
        for name in sorted(self._good):
            try:
                checked += self._check(name)
            except (SnapshotDamaged, OSError) as error:
                if name in self._good:  # else another one has taken its place meanwhile
                    damages.append(Damage(str(self.directory / name), 0, None, str(error)))
        return checked, damages

    def _check(self, name: str) -> int:
        file = SnapshotFile(self._files, self.directory / name, self._group)
        try:
            crc = 0
            for offset in range(0, file.size, CHUNK_BYTES):
                crc = extend_crc32c(crc, file.read(offset, CHUNK_BYTES))
            if crc != file.crc:
                raise SnapshotDamaged("the footer is wrong")
            return file.size
        finally:
            file.close()

    def open(self) -> SnapshotFile | None:
        """The newest snapshot not known to be damaged, to be read piece by piece, or None."""
        for name in self._staying(self._names()):
            try:
                return SnapshotFile(self._files, self.directory / name, self._group)
            except (SnapshotDamaged, OSError) as error:
                self._damaged[name] = str(error)
        return None

    def discard(self, reason: str) -> None:
        """None of the snapshots here can be used; the next one that is saved takes their place."""
        for name in self._names():
            self._damaged[name] = reason
        self._good = frozenset()

    def remove_before(self, index: int) -> None:
        """Removes the snapshots below this index: their states are wrong."""
        for name in self._names():
            if _index(name) < index:
                self._files.unlink(self.directory / name)
                self._damaged.pop(name, None)
                self._good -= {name}
        self._files.sync_directory(self.directory)

    def note_damaged(self, index: int, term: int, reason: str) -> None:
        """A snapshot could not be read to its end."""
        name = _name(self._group, index, term)
        self._damaged[name] = reason
        self._good -= {name}

    def _staying(self, names: list[str]) -> list[str]:
        """Those of these names, newest first, that stay: a power cut may have brought back older ones."""
        return [name for name in names if name not in self._damaged][:KEPT]

    def _names(self) -> list[str]:
        """This group's files, newest first."""
        matches = [
            match
            for match in map(_NAME.fullmatch, self._listed())
            if match and int(match[1], 16) == self._group
        ]
        matches.sort(key=lambda match: (int(match[2], 16), int(match[3], 16)), reverse=True)
        return [match[0] for match in matches]

    def _listed(self) -> list[str]:
        try:
            return self._files.list_directory(self.directory)
        except FileNotFoundError:
            return []
