"""Members compare what they have made of the same entries.

Every machine keeps a running hash over (index, replies, effects). At every EVERY-th index a leader tells its followers
its own; whoever has another one has parted from the group and stops: a member that computes something else must not go
on answering and voting. What a follower has not applied yet is compared when it has.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from quorum.node.leases import PeerFrameError

EVERY = 1_000
KEPT = 16
"""Own hashes and leaders' claims remembered: members rarely part by more than this many thousand entries."""

_CLAIM = struct.Struct("<IQI")


class Diverged(Exception):
    """This member's state differs from its leader's at the same entry."""


@dataclass(slots=True)
class Digests:
    """One group's hashes by index, own and claimed by its leader."""

    group: int
    own: dict[int, int] = field(default_factory=dict)
    claimed: dict[int, tuple[str, int]] = field(default_factory=dict)

    def applied(self, index: int, running_hash: int) -> bytes | None:
        """To be called after each entry; at every EVERY-th one returns the claim that a leader sends."""
        if index % EVERY:
            return None
        self.own[index] = running_hash
        _prune(self.own)
        self._compare(index)
        return _CLAIM.pack(self.group, index, running_hash)

    def claim(self, leader: str, index: int, running_hash: int) -> None:
        self.claimed[index] = (leader, running_hash)
        _prune(self.claimed)
        self._compare(index)

    def _compare(self, index: int) -> None:
        if index in self.own and index in self.claimed:
            leader, running_hash = self.claimed.pop(index)
            if running_hash != self.own[index]:
                raise Diverged(
                    f"group {self.group}, entry {index}: hash {self.own[index]:08x} here, "
                    f"{running_hash:08x} at its leader {leader}"
                )


def decode_claim(data: bytes | memoryview) -> tuple[int, int, int]:
    """(group, index, hash). Raises PeerFrameError."""
    try:
        group, index, running_hash = _CLAIM.unpack(data)
    except struct.error as error:
        raise PeerFrameError(f"a digest of {len(data)} bytes; expected {_CLAIM.size}") from error
    return group, index, running_hash


def _prune(known: dict[int, Any]) -> None:
    while len(known) > KEPT:
        del known[min(known)]
