"""Members compare what they have made of the same entries.

Every machine keeps a running hash over (index, replies, effects). At every EVERY-th index each member tells all others
its own. Where most of a group's voters have the same one, they are right, whoever leads: a member with another one has
parted from them. Its log is as good as theirs, its state is not, and neither are its snapshots: the replica begins
anew from another member's snapshot, in quarantine, before it serves, votes or stands for office (Founding). Where no
majority has the same one nobody can say who is right: then nobody serves the group (*disputed*) until more hashes are
heard or the members change.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from quorum.node.leases import PeerFrameError

EVERY = 1_000
KEPT = 16
"""Own hashes and others' claims remembered: members rarely part by more than this many thousand entries."""

_CLAIM = struct.Struct("<IQI")


class Diverged(Exception):
    """This member's state differs from what most voters have at the same entry."""

    def __init__(self, group: int, index: int, reason: str) -> None:
        super().__init__(f"group {group}, entry {index}: {reason}")
        self.group = group
        self.index = index


@dataclass(slots=True)
class Digests:
    """One group's hashes by index: own, and claimed by each other member."""

    group: int
    own: dict[int, int] = field(default_factory=dict)
    claimed: dict[int, dict[str, int]] = field(default_factory=dict)

    def applied(self, index: int, running_hash: int) -> bytes | None:
        """To be called after each entry; at every EVERY-th one returns the claim that all others are sent."""
        if index % EVERY:
            return None
        self.own[index] = running_hash
        _prune(self.own)
        return _CLAIM.pack(self.group, index, running_hash)

    def claims(self) -> Iterator[bytes]:
        """What a member that was not connected has not heard."""
        return (_CLAIM.pack(self.group, index, running_hash) for index, running_hash in self.own.items())

    def claim(self, peer: str, index: int, running_hash: int) -> None:
        self.claimed.setdefault(index, {})[peer] = running_hash
        _prune(self.claimed)

    def judge(self, me: str, voters: Collection[str]) -> str:
        """What is disputed, for people; empty where nothing is. Raises Diverged where the majority is against this
        member."""
        disputed = ""
        for index in sorted(self.own.keys() & self.claimed.keys()):
            own = self.own[index]
            known = {**self.claimed[index], me: own}
            hashes = {voter: known[voter] for voter in sorted(voters) if voter in known}
            if all(each == own for each in hashes.values()):
                continue
            most, count = Counter(hashes.values()).most_common(1)[0]
            said = ", ".join(f"{voter} {each:08x}" for voter, each in hashes.items())
            if 2 * count <= len(voters):
                disputed = (
                    f"entry {index}: no majority of the {len(voters)} voters has the same state: {said}"
                )
            elif most != own:
                raise Diverged(self.group, index, f"hash {own:08x} here, {most:08x} at most voters: {said}")
        return disputed


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
