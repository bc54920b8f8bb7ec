"""Frames between members that carry operations to their group's leader.

A frame is the group's number, then each operation with its length before it. There is no answer: every node sees the
outcome when it applies the entry, and the sessions' nodes resend operations that were lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from quorum.node.errors import PeerFrameError
from quorum.node.wire.operations import MAX_OPERATION_BYTES

KIND_PROPOSE = 1
FRAME_BYTES = 4 << 20

GROUP = struct.Struct("<I")
_LENGTH = struct.Struct("<I")


def frames(group: int, operations: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The parts of each frame; one is about FRAME_BYTES at most, or one operation."""
    parts = [GROUP.pack(group)]
    size = 0
    for operation in operations:
        if size and size + len(operation) > FRAME_BYTES:
            yield parts
            parts, size = [GROUP.pack(group)], 0
        parts += (_LENGTH.pack(len(operation)), operation)
        size += len(operation)
    yield parts


def operations(view: memoryview) -> Iterator[bytes]:
    """The operations of a frame. PeerFrameError, at the one that is cut off or too long."""
    at = GROUP.size
    while at < len(view):
        if len(view) - at < _LENGTH.size:
            raise PeerFrameError(f"the length of an operation is cut off at byte {at}")
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if length > len(view) - at:
            raise PeerFrameError(f"an operation of {length} bytes is cut off")
        if length > MAX_OPERATION_BYTES:
            raise PeerFrameError(f"an operation of {length} bytes; at most {MAX_OPERATION_BYTES}")
        yield bytes(view[at : at + length])
        at += length
