"""Sets of a block's messages in the smaller of two forms: sorted 2-byte slots, or a bit set (bitsets.py)."""

from __future__ import annotations

import numpy as np

from fifo.messages import bitsets

_FEW = 8

Packed = bytes | int


def pack(members: int, sparse: int) -> Packed:
    """The smaller form of a set: slots up to `sparse` members, a bit set above."""
    count = members.bit_count()
    if count > sparse:
        return members
    if count == 1:
        return (members.bit_length() - 1).to_bytes(2, "little")
    if count <= _FEW:
        return b"".join([slot.to_bytes(2, "little") for slot in bitsets.members(members)])
    flags = bitsets.as_flags(members, members.bit_length())
    return np.flatnonzero(flags).astype("<u2").tobytes()


def unpack(packed: Packed) -> int:
    """The bit set of a packed set."""
    if isinstance(packed, int):
        return packed
    if len(packed) == 2:
        return 1 << int.from_bytes(packed, "little")
    if len(packed) <= 2 * _FEW:
        members = 0
        for at in range(0, len(packed), 2):
            members |= 1 << int.from_bytes(packed[at : at + 2], "little")
        return members
    slots = np.frombuffer(packed, "<u2").astype(np.intp)
    return bitsets.from_positions(slots, int(slots[-1]) + 1)
