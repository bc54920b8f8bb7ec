"""Damage that an open log meets in its files."""

from __future__ import annotations

from quorum.log import Log
from quorum.log.record import HEADER_BYTES
from quorum.log.segment_files.index import Sealed, index_path
from quorum.log.segment_files.segments import HEADER_BLOCK
from quorum.log.table import OFFSET_MASK
from support.log.disk import SimDisk


def make_unreadable(disk: SimDisk, log: Log, sealed: Sealed) -> None:
    """The segment loses its index file and has a bad header, so that the log does not know its records."""
    disk.flip(sealed.segment.path, (HEADER_BLOCK + 33) * 8)
    disk.names.pop(index_path(sealed.segment.path), None)
    log._store.history.cache.drop(sealed)


def flip_body(disk: SimDisk, log: Log, group: int, key: int, *, is_page: bool = False) -> None:
    """One bit in the body of an entry or a page, wherever the log has it."""
    found, segment = log._store.look_up(group, key, is_page=is_page)
    assert found is not None
    assert segment is not None, "it is on disk"
    log._store.release(segment)
    disk.flip(segment.path, 8 * ((found.place & OFFSET_MASK) + HEADER_BYTES + found.length // 2))
