"""Sets of a block's messages in the smaller of two forms: sorted 2-byte slots, or a bit set (bitsets.py)."""

from __future__ import annotations

import numpy as np

from fifo.messages import bitsets

SLOT_BYTES = 2
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


def pack_slots(slots: bytes, sparse: int) -> Packed:
    """The smaller form of a set that is given by its sorted slots."""
    return slots if len(slots) <= SLOT_BYTES * sparse else unpack(slots)


def is_single(packed: Packed) -> bool:
    """Whether a packed set is known to have one member."""
    return isinstance(packed, bytes) and len(packed) == SLOT_BYTES


def lowest(packed: Packed) -> bytes:
    """The lowest member of a packed set that is not empty, as a slot of 2 bytes."""
    if isinstance(packed, int):
        return bitsets.first(packed).to_bytes(SLOT_BYTES, "little")
    return packed[:SLOT_BYTES]


def united(packed: Packed, slots: bytes, sparse: int) -> Packed:
    """A packed set with further members, which are given by their sorted slots."""
    if isinstance(packed, int):
        return packed | unpack(slots)
    return pack_slots(np.sort(np.frombuffer(packed + slots, "<u2")).tobytes(), sparse)


def without(packed: Packed, slots: bytes, sparse: int) -> Packed:
    """A packed set without these slots, which are sorted; empty if none is left. Some need not be members."""
    if isinstance(packed, bytes) and packed.startswith(slots):
        return packed[len(slots) :]
    if isinstance(packed, int) or len(packed) > 2 * _FEW:
        return pack(unpack(packed) & ~unpack(slots), sparse)
    members = [packed[at : at + 2] for at in range(0, len(packed), 2)]
    gone = dict.fromkeys([slots[at : at + 2] for at in range(0, len(slots), 2)])
    return b"".join([slot for slot in members if slot not in gone])
