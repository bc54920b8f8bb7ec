"""The bytes that a log's segments take, and how much of that is live."""

from __future__ import annotations

from dataclasses import dataclass

from quorum.log import Log
from quorum.log.segment_files.segments import HEADER_BLOCK


@dataclass(frozen=True, slots=True)
class LogUsage:
    """Bytes of segments up to their end."""

    total_bytes: int
    live_bytes: int
    garbage_bytes: int
    segments: int


def usage(log: Log) -> LogUsage:
    """The usage of a log. Live bytes are those that the last survey saw."""
    sealed = log._store.history.sealed
    live = sum(log._collector.survey.live_bytes(found) for found in sealed)
    whole = sum(found.end - HEADER_BLOCK for found in sealed)
    rest = log._writer.position + HEADER_BLOCK * len(sealed)
    return LogUsage(rest + whole, rest + live, whole - live, len(log._store._segments))
