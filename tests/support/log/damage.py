"""Damage that an open log meets in its files."""

from __future__ import annotations

from quorum.log import Log
from quorum.log.segment_files.index import Sealed, index_path
from quorum.log.segment_files.segments import HEADER_BLOCK
from support.log.disk import SimDisk


def make_unreadable(disk: SimDisk, log: Log, sealed: Sealed) -> None:
    """The segment loses its index file and has a bad header, so that the log does not know its records."""
    disk.flip(sealed.segment.path, (HEADER_BLOCK + 33) * 8)
    disk.names.pop(index_path(sealed.segment.path), None)
    log._store.history.cache.drop(sealed)
