"""Members compare the states that they have computed from the same entries.

Every machine keeps a running hash over (index, replies, effects). At every EVERY-th index each member tells all others
its own. If a majority of a group's voters has the same hash, they are right, whichever member leads; a member with
another hash has parted from them. Its log is as good as theirs, but its state and its snapshots are not: it serves
nothing until the replica is rebuilt from another member's snapshot (cluster/state_comparison.py). Without a majority
for one hash it is unknown which state is right: no member serves the group (*disputed*) until more hashes are heard or
the members change.

An entry at which a majority had this member's hash is *settled*, and so is every entry before it, because each hash
contains the ones before. Settled entries are not judged again: a voter that is added later has no hash there, and the
hash of a member that has been rebuilt since says nothing. Claims of a peer in quarantine are dropped: its state is
given up. A new connection is no reason to drop them: the two ends need not both see that it is new, and a dropped claim
that is not sent again would end a dispute, or begin one, without any news.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from quorum.node.errors import Diverged, PeerFrameError
from quorum.replication.configuration import majority

EVERY = 1_000
KEPT = 16
"""Own hashes and others' claims remembered: members rarely part by more than this many thousand entries."""

_CLAIM = struct.Struct("<IQI")


@dataclass(slots=True)
class StateHashes:
    """One group's hashes by index: own, and claimed by each other member."""

    group: int
    own: dict[int, int] = field(default_factory=dict)
    claimed: dict[int, dict[str, int]] = field(default_factory=dict)
    settled_to: int = 0
    """the last entry at which a majority of the voters had this member's hash"""

    def applied(self, index: int, running_hash: int) -> bytes | None:
        """To be called after each entry; at every EVERY-th one returns the claim that all others are sent."""
        if index % EVERY:
            return None
        self.own[index] = running_hash
        self.settled_to = min(self.settled_to, index - 1)  # lower only where entries are applied again
        _prune(self.own)
        return _CLAIM.pack(self.group, index, running_hash)

    def claims(self) -> Iterator[bytes]:
        """The claims for a member that was not connected and has not heard them."""
        return (_CLAIM.pack(self.group, index, running_hash) for index, running_hash in self.own.items())

    def claim(self, peer: str, index: int, running_hash: int) -> None:
        self.claimed.setdefault(index, {})[peer] = running_hash
        _prune(self.claimed)

    def forget(self, peer: str) -> None:
        """Drops what a peer has claimed: it has given up its state and begins from another member's snapshot."""
        for claims in self.claimed.values():
            claims.pop(peer, None)

    def judge(self, me: str, voters: Collection[str]) -> str:
        """A text that says what is disputed, for people; empty where nothing is. Raises Diverged if the majority
        disagrees with this member."""
        disputed = ""
        for index in sorted(each for each in self.own.keys() & self.claimed.keys() if each > self.settled_to):
            own = self.own[index]
            known = {**self.claimed[index], me: own}
            hashes = {voter: known[voter] for voter in sorted(voters) if voter in known}
            if not hashes:
                continue
            most, count = Counter(hashes.values()).most_common(1)[0]
            said = ", ".join(f"{voter} {each:08x}" for voter, each in hashes.items())
            is_majority = count >= majority(len(voters))
            if is_majority and most != own:
                raise Diverged(self.group, index, f"hash {own:08x} here, {most:08x} at most voters: {said}")
            if is_majority:
                self.settled_to, disputed = index, ""
            elif any(each != own for each in hashes.values()):
                disputed = (
                    f"entry {index}: no majority of the {len(voters)} voters has the same state: {said}"
                )
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
