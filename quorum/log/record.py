"""One record of the log: 56 bytes of header, then the body.

     0  magic      4   of the segment: derived from its random file id, no byte of it is zero
     4  header CRC 4   CRC32C of the segment's file id and of bytes 8..55
     8  body CRC   4   CRC32C of the body
    12  length     4   of the body
    16  LSN        8   the record's place in this node's log, never given twice
    24  synced     8   the highest LSN known to be synced when this record was made
    32  term       8
    40  index      8
    48  group      4
    52  kind       1
    53  zero       3

All numbers are little endian. The header's CRC covers the body's CRC, so both together cover the whole record
and the identity of the file it belongs to: a record left over in a recycled file, or one that a client
published as a body, is not believed. Two CRCs instead of one say more about damage: with the header intact,
the term and index of a record whose body is bad are still known.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

HEADER_BYTES = 56
MAX_BODY_BYTES = 256 << 20
"""Far above the largest command (16 MiB); a longer length is an error."""

_FRONT = struct.Struct("<4sI")
_REST = struct.Struct("<IIQQQQIB3x")

crc32c = google_crc32c.value
extend_crc32c = google_crc32c.extend


class RecordKind(IntEnum):
    """The kinds of records. The numbers are on disk: never change one."""

    ENTRY = 1
    """A Raft entry; the body is the entry's."""
    TRUNCATE = 2
    """The group's entries from index on are cut. No body."""
    HARD_STATE = 3
    """The group's term (in the header) and vote (the body: 0, or 1 and the name in UTF-8)."""
    COMPACT = 4
    """The journal's view begins at entry index, with this term: a snapshot covers the entries below. No body."""
    RESET = 5
    """A snapshot at (term, index) replaces the journal; the body is the index up to which bodies stay (8
    bytes)."""
    MARK = 6
    """States only what is synced. No body."""
    PAGE = 7
    """A piece of a group's state that was moved out of memory; its name is its LSN. Local to this member."""
    COPY = 8
    """The body of entry (term, index) as another member sent it: it replaces an earlier one. It changes no journal."""


WITH_BODY = frozenset({RecordKind.ENTRY, RecordKind.PAGE, RecordKind.COPY})
"""Records that are kept for their body; all other records only say what happened."""


class Header(NamedTuple):
    """A record's header, decoded."""

    body_crc: int
    length: int
    lsn: int
    synced: int
    term: int
    raft_index: int
    group: int
    kind: int


class Stamp:
    """The mark of one segment's records: encodes and decodes their headers."""

    __slots__ = ("magic", "seed")

    def __init__(self, file_id: bytes) -> None:
        if len(file_id) != 16:
            raise ValueError(f"a file id has 16 bytes, not {len(file_id)}")
        self.seed: int = crc32c(file_id)
        self.magic = (crc32c(b"magic of " + file_id) | 0x01010101).to_bytes(4, "little")

    def encode(
        self, body: bytes, *, kind: int, lsn: int, synced: int, group: int, term: int, index: int
    ) -> bytes:
        """The header of a record with this body."""
        rest = _REST.pack(crc32c(body), len(body), lsn, synced, term, index, group, kind)
        return _FRONT.pack(self.magic, extend_crc32c(self.seed, rest)) + rest

    def decode(self, data: bytes, at: int = 0) -> Header | None:
        """The header at this place, or None if there is no valid one of this segment."""
        if len(data) - at < HEADER_BYTES or data[at : at + 4] != self.magic:
            return None
        if int.from_bytes(data[at + 4 : at + 8], "little") != extend_crc32c(
            self.seed, data[at + 8 : at + HEADER_BYTES]
        ):
            return None
        return Header._make(_REST.unpack_from(data, at + 8))


def body_is_good(header: Header, body: bytes) -> bool:
    """Whether these are the bytes that the header was made for."""
    return len(body) == header.length and crc32c(body) == header.body_crc
