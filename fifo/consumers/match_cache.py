"""Match sets: which of the evaluated messages match a selector. Local; any of it may be dropped at any moment.

There is one set for each selector and block. A set with few members is kept as sorted 2-byte ordinals, a larger one as
a bit set. Match sets that exceed the queue's memory budget are evicted (EVICTED). The block is still known to have been
evaluated; its matches are computed again on the next visit. So a thousand groups that match everything take no more
memory than the budget. The entry itself stays: some 250 bytes for each selector and block with matches.

A block whose matches are all checked out is marked exhausted until a match there becomes ready again. A consumer with
unsettled messages all over a long queue therefore skips those blocks without reading them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fifo.limits import Limits
from fifo.messages import bitsets
from fifo.messages.packed_sets import SLOT_BYTES, Packed, pack, unpack

EVICTED = -1
"""Marks a match set that is not kept. It is no set of messages."""

_ENTRY_BYTES = 250
"""Memory of a set beside its bytes: two entries of dicts and an object."""


class MatchCache:
    """The matches of one queue's selectors, by selector and block."""

    __slots__ = ("_by_block", "_exhausted", "_limits", "_of", "size_bytes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of: dict[bytes, dict[int, Packed]] = {}
        self._by_block: dict[int, dict[bytes, None]] = {}
        self._exhausted: dict[int, dict[bytes, None]] = {}
        self.size_bytes = 0

    def numbers(self, selector: bytes) -> list[int]:
        """The blocks where a selector has matches, ascending."""
        return sorted(self._of.get(selector, ()))

    def has(self, selector: bytes) -> bool:
        return selector in self._of

    def get(self, selector: bytes, number: int) -> int:
        """The matches of a selector in a block; EVICTED if they have to be computed again."""
        own = self._of.get(selector)
        packed = None if own is None else own.get(number)
        return 0 if packed is None else unpack(packed)

    def selectors(self, number: int) -> Iterable[bytes]:
        """The selectors with matches in a block, in the order of their first match."""
        return self._by_block.get(number, ())

    def that_match(
        self, number: int, members: int, selectors: Iterable[bytes]
    ) -> tuple[list[bytes], list[bytes]]:
        """Those of these selectors that match some of these messages of a block, and those whose set there was evicted.
        All have matches there. Sets of slots are compared together, because there may be thousands."""
        known = [(selector, self._of[selector][number]) for selector in selectors]
        slots = b"".join([packed for _, packed in known if isinstance(packed, bytes)])
        flags = bitsets.as_flags(members, self._limits.block_size)
        hits = flags[np.frombuffer(slots, "<u2")].tobytes()
        found: list[bytes] = []
        evicted: list[bytes] = []
        place = 0
        for selector, packed in known:
            if packed == EVICTED:
                evicted.append(selector)
                continue
            if isinstance(packed, int):
                is_hit = bool(packed & members)
            else:
                end = place + len(packed) // SLOT_BYTES
                is_hit, place = b"\x01" in hits[place:end], end
            if is_hit:
                found.append(selector)
        return found, evicted

    def is_evicted(self, selector: bytes, number: int) -> bool:
        """Whether the matches of a selector in a block have to be computed again."""
        return self._of.get(selector, {}).get(number) == EVICTED

    def is_exhausted(self, selector: bytes, number: int) -> bool:
        """Whether the block is known to be exhausted: none of the selector's matches there is ready."""
        return number in self._exhausted and selector in self._exhausted[number]

    def is_all_exhausted(self, selector: bytes) -> bool:
        """Whether all of the selector's matches are known not to be ready."""
        return all(self.is_exhausted(selector, number) for number in self._of.get(selector, ()))

    def mark_exhausted(self, selector: bytes, number: int) -> None:
        """Marks a block as exhausted: none of the selector's matches there is ready."""
        self._exhausted.setdefault(number, {})[selector] = None

    def invalidate_exhausted(self, number: int) -> None:
        """Ends the exhaustion of a block for all selectors, because messages there are ready again."""
        self._exhausted.pop(number, None)

    def add(self, selector: bytes, number: int, members: int, live: int) -> None:
        """Adds matches in a block. live: the block's messages; earlier matches that are gone leave the set, so it stays
        small. A set that was evicted stays evicted."""
        self._clear_exhausted(selector, number)
        before = self.get(selector, number)
        if before != EVICTED:
            self.put(selector, number, before & live | members if before else members)

    def put(self, selector: bytes, number: int, members: int) -> None:
        """Sets all matches of a selector in a block."""
        own = self._of.setdefault(selector, {})
        before = own.get(number)
        if before is None:
            self._by_block.setdefault(number, {})[selector] = None
            self.size_bytes += _ENTRY_BYTES
        else:
            self.size_bytes -= _size(before)
        packed = pack(members, self._limits.sparse_matches)
        if self.size_bytes + _size(packed) > self._limits.matched_bytes:
            packed = EVICTED
        own[number] = packed
        self.size_bytes += _size(packed)

    def drop(self, selector: bytes, number: int) -> None:
        """Drops the set of a selector: no message that it matches is left in the block."""
        self._leave(selector, number)
        holders = self._by_block[number]
        del holders[selector]
        if not holders:
            del self._by_block[number]

    def drop_block(self, number: int) -> None:
        """Drops all sets of a block: no message is left there."""
        self._exhausted.pop(number, None)
        for selector in self._by_block.pop(number, ()):
            self._leave(selector, number)

    def forget(self, selector: bytes) -> None:
        """Drops everything of a selector."""
        for number in self.numbers(selector):
            self.drop(selector, number)

    def _clear_exhausted(self, selector: bytes, number: int) -> None:
        exhausted = self._exhausted.get(number)
        if exhausted is not None:
            exhausted.pop(selector, None)
            if not exhausted:
                del self._exhausted[number]

    def _leave(self, selector: bytes, number: int) -> None:
        self._clear_exhausted(selector, number)
        own = self._of[selector]
        self.size_bytes -= _ENTRY_BYTES + _size(own.pop(number))
        if not own:
            del self._of[selector]


def _size(packed: Packed) -> int:
    if isinstance(packed, bytes):
        return len(packed)
    return 0 if packed == EVICTED else packed.bit_length() >> 3
