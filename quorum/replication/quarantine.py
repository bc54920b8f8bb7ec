"""Quarantine: a member that has lost its promises, and how it may vote and acknowledge again.

Votes and acknowledgements count because the member that gave them keeps them. A replica can lose its hard state or
entries: its log cannot be read, its disk was emptied, or its journal begins late and no readable snapshot covers the
rest. Such a replica could vote twice in a term, or elect a leader without an entry that was committed with its help. So
it is *quarantined*: the mark is in its hard state and survives every restart. It is removed only in these steps:

1. The member is deaf. It does not vote, acknowledge or campaign, and asks all other members for their state.
2. All others have answered, and each of them is sound. Every member that it voted for, or acknowledged to, is among
   them and was in that term before it asked. So no vote or acknowledgement of the lost life has a higher term than the
   highest of the answers. This member continues in that term, with its vote spent. It hears leaders of that term or a
   later one, takes what they send, and acknowledges what it has on disk, which is true again. It still does not vote.
3. A leader of such a term has said where its log ended after the loss. That log has every entry that may have been
   committed with the lost life's help: the leader was elected without this member's second vote (Raft §5.4.3), and it
   holds what was acknowledged to itself. Once this member has the same entries up to there, on disk, it is as good as
   before. Its vote in that term is recorded as the leader's, which has won already, and the mark is removed.

*All others* are the voters of the newest configuration that an answer knows. While that one is not committed, they are
also the voters of the configuration before it. A majority of answers would not suffice, because the one candidate that
this member voted for may be the one that does not answer. The quarantine stays, and an operator has to decide
(docs/recovery.md), in these cases:

- another member is quarantined too, or stays away;
- there are only two members and no leader.

The leader forgets what the lost life had acknowledged (`Replicator.reset_progress`). Entries that were committed
because of it stay committed; no further entry counts because of it. The leader sends the member entries from where its
log ends now.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quorum.replication.errors import WireError

_REQUEST = struct.Struct("<IQ")
_RESPONSE = struct.Struct("<IQQQBBQB")


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """The request of a quarantined member for the others' state. nonce: a number of the asking process;
    the answers repeat it."""

    group: int
    nonce: int

    def encode(self) -> bytes:
        return _REQUEST.pack(self.group, self.nonce)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> RecoveryRequest:
        if len(data) != _REQUEST.size:
            raise WireError(f"a recovery request has {_REQUEST.size} bytes, not {len(data)}")
        return cls(*_REQUEST.unpack(data))


@dataclass(frozen=True, slots=True)
class RecoveryResponse:
    """The answer. Everything in it is on the answering member's disk.

    is_sound: the member itself is not quarantined. voters: those of the configuration in force in its log, an entry at
    configuration_index. While that one is not known to be committed, the voters of the configurations before it are
    added, back to a committed one, because a member that is being removed may have been elected meanwhile.
    """

    group: int
    nonce: int
    term: int
    last_index: int
    is_leader: bool
    is_sound: bool
    configuration_index: int
    voters: tuple[str, ...]

    def encode(self) -> bytes:
        head = _RESPONSE.pack(
            self.group,
            self.nonce,
            self.term,
            self.last_index,
            self.is_leader,
            self.is_sound,
            self.configuration_index,
            len(self.voters),
        )
        names = [name.encode() for name in self.voters]
        return head + b"".join(bytes((len(name),)) + name for name in names)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> RecoveryResponse:
        if len(data) < _RESPONSE.size:
            raise WireError(f"a recovery response has at least {_RESPONSE.size} bytes, not {len(data)}")
        group, nonce, term, last, leads, sound, index, count = _RESPONSE.unpack_from(data)
        if leads > 1 or sound > 1:
            raise WireError("a flag must be 0 or 1")
        at, voters = _RESPONSE.size, []
        for _ in range(count):
            if at >= len(data) or at + 1 + data[at] > len(data):
                raise WireError("a recovery response is cut off")
            end = at + 1 + data[at]
            try:
                voters.append(str(data[at + 1 : end], "utf-8"))
            except UnicodeDecodeError as error:
                raise WireError(f"no name of a voter: {error}") from error
            at = end
        if at != len(data):
            raise WireError(f"{len(data) - at} bytes after a recovery response")
        return cls(group, nonce, term, last, bool(leads), bool(sound), index, tuple(voters))


class Quarantine:
    """The state of one replica's quarantine."""

    def __init__(self, me: str, nonce: int, *, is_on: bool) -> None:
        self.is_on = is_on
        self.is_deaf = is_on
        """Whether the others have still to answer: until then, Raft's messages are ignored."""
        self.nonce = nonce
        self._me = me
        self._answers: dict[str, RecoveryResponse] = {}
        self.floor: int | None = None
        """The term below which nothing is heard; None until the others have answered."""
        self.target: tuple[int, str, int] | None = None
        """(term, leader, index): the entries that must be here"""

    def end(self) -> None:
        """End the quarantine: this member is as good as before."""
        self.is_on = self.is_deaf = False

    def take(self, peer: str, recovery_response: RecoveryResponse) -> bool:
        """Take an answer; True if it completes the floor."""
        if not self.is_on or recovery_response.nonce != self.nonce or not recovery_response.is_sound:
            return False
        is_news = False
        if self.floor is None:
            self._answers[peer] = recovery_response
            if self._answers.keys() >= self._wanted():
                self.floor = max(each.term for each in self._answers.values())
                self.is_deaf = False
                is_news = True
        counts = (
            self.floor is not None and recovery_response.is_leader and recovery_response.term >= self.floor
        )
        if counts and (self.target is None or self.target[0] < recovery_response.term):
            self.target = recovery_response.term, peer, recovery_response.last_index
        return is_news

    def _wanted(self) -> set[str]:
        """All other voters, as the newest answer has them. Any majorities of two configurations in force at a time have
        a member in common, so one of the answers has the newest. Once a configuration is committed, the voters of the
        one before it elect no leader of a later term; until then those have to answer, too."""
        newest = max(self._answers.values(), key=lambda each: each.configuration_index)
        return set(newest.voters) - {self._me}

    def leader_to_record(self, term: int, matched: int) -> str | None:
        """The leader whose log is here as far as required; None if it is not. matched: the index up to which the
        entries here, on disk, are those of this term's leader."""
        if not self.is_on or self.target is None:
            return None
        target_term, leader, index = self.target
        return leader if term == target_term and matched >= index else None
