"""The index file of a sealed segment: which bodies and pages it holds, and where.

    segment-N.index beside segment-N.log
    header    magic 8, format 4, parts 4, rows 8, segment number 8, its file id 16, its end 8,
              CRC32C of the parts 4, of the columns 4, of all that 4
    parts     for each group with bodies, then each with pages: page (0 or 1) 4, group 4, first row 8, rows 8,
              lowest key 8, highest key 8, bytes of these records in the segment 8
    columns   keys 8, LSNs 8, terms 8, offsets 4, lengths 4, kinds 1, each for all rows

The key of a body is its entry's index, of a page its LSN; within a part rows ascend by key, then LSN. All of it
can be rebuilt from the segment, so the file is not synced when a segment is sealed. A file that is missing, torn or
of another segment is rebuilt, which reads and checks the whole segment. The parts stay in memory; columns are read on
demand into a bounded cache.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from quorum.log.files import NO_ROOM, File, Files, read_file, replace_unsynced
from quorum.log.record import HEADER_BYTES, crc32c, extend_crc32c
from quorum.log.segment_files.segments import Listed, Segment
from quorum.log.table import OFFSET_MASK, PLACE_SHIFT, Rows

FORMAT = 1
CACHE_BYTES = 12 << 20
"""Size of the columns kept in memory: those of one segment full of single messages, or of many segments. A row has 33
bytes: 10 MB where records have 200 bytes. Reading such a file again takes some milliseconds."""

_MAGIC = b"QUORUMIX"
_HEADER = struct.Struct("<8sIIQQ16sQII")
_PART = struct.Struct("<IIQQQQQ")
_COLUMNS = (np.int64, np.int64, np.int64, np.uint32, np.uint32, np.uint8)


@dataclass(frozen=True, slots=True)
class Part:
    """One group's bodies, or its pages, in one segment."""

    is_page: bool
    group: int
    start: int
    count: int
    low: int
    high: int
    size: int
    """Bytes of their records, headers included."""


class Columns:
    """All rows of one segment."""

    def __init__(self, columns: list[npt.NDArray[np.generic]], number: int) -> None:
        self.keys, self.lsns, self.terms, self.offsets, self.lengths, self.kinds = columns
        self.number = number
        self.size = sum(column.nbytes for column in columns)

    def rows(self, part: Part, low: int | None = None, high: int | None = None) -> Rows:
        """A part's rows; only those with keys low..high if given."""
        start, end = part.start, part.start + part.count
        if low is not None and high is not None:
            keys = self.keys[start:end]
            start, end = (
                start + int(np.searchsorted(keys, np.int64(low), "left")),
                start + int(np.searchsorted(keys, np.int64(high), "right")),
            )
        places = self.offsets[start:end].astype(np.int64) | self.number << PLACE_SHIFT
        return Rows(
            self.keys[start:end],  # type: ignore[arg-type]
            self.lsns[start:end],  # type: ignore[arg-type]
            self.terms[start:end],  # type: ignore[arg-type]
            places,
            self.lengths[start:end].astype(np.int64),
            self.kinds[start:end],  # type: ignore[arg-type]
        )


class Sealed:
    """A sealed segment and the content of its index file."""

    def __init__(self, segment: Segment, listed: Listed, parts: Iterable[Part]) -> None:
        self.segment = segment
        self.listed = listed
        self.parts = {(part.is_page, part.group): part for part in parts}

    @property
    def number(self) -> int:
        return self.segment.number

    @property
    def end(self) -> int:
        """Its length in bytes."""
        assert self.listed.end is not None
        return self.listed.end


def index_path(segment: Path) -> Path:
    """The path of this segment file's index file."""
    return segment.with_suffix(".index")


def arrange(
    bodies: Iterable[tuple[int, Rows]], pages: Iterable[tuple[int, Rows]], number: int
) -> tuple[list[Part], Columns]:
    """Parts and columns from the rows of each group. Rows ascend by key, groups come in any order; the columns may
    share the rows' memory."""
    parts: list[Part] = []
    collected: list[Rows] = []
    start = 0
    for is_page, groups in ((False, bodies), (True, pages)):
        for group, rows in sorted(groups, key=lambda pair: pair[0]):
            count = len(rows.keys)
            if not count:
                continue
            size = int(rows.lengths.sum()) + HEADER_BYTES * count
            low, high = int(rows.keys[0]), int(rows.keys[-1])
            parts.append(Part(is_page, group, start, count, low, high, size))
            collected.append(rows)
            start += count
    joined = (
        [column[0] if len(column) == 1 else np.concatenate(column) for column in zip(*collected, strict=True)]
        if collected
        else [np.zeros(0)] * 6
    )
    keys, lsns, terms, places, lengths, kinds = joined
    offsets = places.astype(np.int64, copy=False) & OFFSET_MASK
    columns = zip((keys, lsns, terms, offsets, lengths, kinds), _COLUMNS, strict=True)
    return parts, Columns([np.ascontiguousarray(column, kind) for column, kind in columns], number)


def encode_index(listed: Listed, parts: Iterable[Part], columns: Columns) -> list[bytes]:
    """The index file's bytes, in pieces."""
    lines = [
        _PART.pack(part.is_page, part.group, part.start, part.count, part.low, part.high, part.size)
        for part in parts
    ]
    directory = b"".join(lines)
    all_columns = (columns.keys, columns.lsns, columns.terms, columns.offsets, columns.lengths, columns.kinds)
    pieces = [column.tobytes() for column in all_columns]
    data_crc = 0
    for piece in pieces:
        data_crc = extend_crc32c(data_crc, piece)
    assert listed.end is not None
    fields = _HEADER.pack(
        _MAGIC,
        FORMAT,
        len(lines),
        len(columns.keys),
        listed.number,
        listed.file_id,
        listed.end,
        crc32c(directory),
        data_crc,
    )
    return [fields + crc32c(fields).to_bytes(4, "little"), directory, *pieces]


def write_index(files: Files, segment: Path, pieces: list[bytes]) -> None:
    """Write an index file, not synced. An OSError while writing leaves no temporary file."""
    replace_unsynced(files, index_path(segment), pieces)


def write_index_if_room(files: Files, segment: Path, pieces: list[bytes]) -> None:
    """The same, but skip it if there is no space, because it can be made again."""
    try:
        write_index(files, segment, pieces)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def _decode_header(data: bytes) -> tuple[int, int, int, bytes, int, int, int] | None:
    """(parts, rows, segment number, file id, end, CRC of the parts, CRC of the columns)."""
    at = _HEADER.size
    if len(data) < at + 4 or crc32c(data[:at]) != int.from_bytes(data[at : at + 4], "little"):
        return None
    magic, version, *fields = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != FORMAT:
        return None
    parts, rows, number, file_id, end, parts_crc, columns_crc = fields
    return parts, rows, number, file_id, end, parts_crc, columns_crc


def read_parts(files: Files, segment: Path, listed: Listed) -> list[Part] | None:
    """The parts that the index file lists; None if no complete index file of this segment can be read."""
    try:
        with closing(files.open(index_path(segment))) as file:
            return _read_parts(file, listed)
    except OSError:
        return None  # whatever the reason, the segment itself has the same information


def _read_parts(file: File, listed: Listed) -> list[Part] | None:
    start = _HEADER.size + 4
    header = _decode_header(file.pread(start, 0))
    if header is None or header[2:5] != (listed.number, listed.file_id, listed.end):
        return None
    directory = file.pread(header[0] * _PART.size, start)
    row_bytes = sum(np.dtype(kind).itemsize for kind in _COLUMNS)
    if crc32c(directory) != header[5] or file.size() < start + len(directory) + header[1] * row_bytes:
        return None
    return [Part(bool(page), *rest) for page, *rest in _PART.iter_unpack(directory)]


def decode_index(data: bytes) -> tuple[int, list[Part], Columns] | None:
    """Segment number, parts and columns of a complete index file; None if it is not one."""
    header = _decode_header(data)
    if header is None:
        return None
    parts, rows, number, _, _, parts_crc, columns_crc = header
    start = _HEADER.size + 4
    directory = data[start : start + parts * _PART.size]
    start += len(directory)
    if crc32c(directory) != parts_crc or crc32c(data[start:]) != columns_crc:
        return None
    columns: list[npt.NDArray[np.generic]] = []
    for kind in _COLUMNS:
        columns.append(np.frombuffer(data, kind, rows, start))
        start += columns[-1].nbytes
    found = [Part(bool(page), *rest) for page, *rest in _PART.iter_unpack(directory)]
    return number, found, Columns(columns, number)


class IndexCache:
    """Columns of sealed segments, read on demand, bounded by bytes. Any thread."""

    def __init__(self, files: Files, limit_bytes: int) -> None:
        self._files = files
        self._limit = limit_bytes
        self._lock = Lock()
        self._loaded: OrderedDict[bytes, Columns] = OrderedDict()
        self._bytes = 0

    def get(self, sealed: Sealed) -> Columns | None:
        """The columns; None if the file cannot be used. The segment must be held by the caller."""
        key = sealed.listed.file_id
        with self._lock:
            found = self._loaded.get(key)
            if found is not None:
                self._loaded.move_to_end(key)
                return found
        try:
            decoded = decode_index(read_file(self._files, index_path(sealed.segment.path)))
        except OSError:
            decoded = None  # whatever the reason, the segment itself has the same information
        if decoded is None or {(part.is_page, part.group): part for part in decoded[1]} != sealed.parts:
            return None
        self.put(sealed, decoded[2])
        return decoded[2]

    def put(self, sealed: Sealed, columns: Columns) -> None:
        """Keep these columns, and evict others for them."""
        with self._lock:
            if sealed.listed.file_id in self._loaded:
                return
            self._loaded[sealed.listed.file_id] = columns
            self._bytes += columns.size
            while self._bytes > self._limit and len(self._loaded) > 1:
                self._bytes -= self._loaded.popitem(last=False)[1].size

    def drop(self, sealed: Sealed) -> None:
        """Drop the columns of a deleted segment."""
        with self._lock:
            columns = self._loaded.pop(sealed.listed.file_id, None)
            if columns is not None:
                self._bytes -= columns.size
