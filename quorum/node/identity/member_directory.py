"""The members that this node knows of now, and their addresses.

The catalog is the source. Before this node's replica of the catalog has heard anything (a first start, a restart), the
node uses what it remembers of the catalog, and before that the founding members of its configuration. Numbers and
addresses of removed members stay known: groups may still contain them, and their sessions may still be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quorum.addresses import check_incarnation, host_port
from quorum.catalog.members import JOINED_MARK, CatalogMember
from quorum.node.identity.identity import Memory
from quorum.replication.network.handshake import INCARNATION_BYTES, UNKNOWN

Address = tuple[str, int]
NOBODY = b"\xff" * INCARNATION_BYTES
"""No data directory has this incarnation, or not in the life of the universe."""


class MemberDirectory:
    """me: this node's id."""

    def __init__(self, me: str, memory: Memory, founders: Iterable[CatalogMember]) -> None:
        self.me = me
        self._memory = memory
        self.by_id: dict[str, CatalogMember] = {}
        """The members of now, this node included if it is one."""
        founding = tuple(founders)
        self._past = {each.id: each for each in founding}
        self._take(memory.members or founding)

    def follow(self, members: Mapping[str, CatalogMember]) -> bool:
        """Takes over what the catalog says, unless it has heard nothing yet. Whether anything is new; it is remembered
        then, as soon as the disk has room: after a restart the catalog says it again."""
        if not members or members == self.by_id:
            return False
        self._take(members.values())
        self._memory.members = tuple(members.values())
        self._memory.try_save()
        return True

    def _take(self, members: Iterable[CatalogMember]) -> None:
        self._past |= self.by_id
        self.by_id = {each.id: each for each in members}

    @property
    def own(self) -> CatalogMember | None:
        return self.by_id.get(self.me)

    def number(self, member: str | None) -> int:
        """0 where it is not known."""
        found = self.by_id.get(member or "") or self._past.get(member or "")
        return 0 if found is None else found.number

    def name(self, number: int) -> str:
        """What people call the member with this number; empty where it is not known."""
        everybody = (*self.by_id.values(), *self._past.values())
        return next((each.name for each in everybody if each.number == number), "")

    def name_of(self, member: str | None) -> str:
        """What people call the node with this id."""
        return (member or "").partition(JOINED_MARK)[0]

    def names_of(self, members: Iterable[str]) -> list[str]:
        """In order; an id stays an id where it is no member's now, or that of one which is about to replace another
        one of its name."""
        return sorted(self._name_now(each) for each in members)

    def _name_now(self, member: str) -> str:
        found = self.by_id.get(member)
        return member if found is None or found.replaces else self.name_of(member)

    def incarnation(self, member: str) -> str:
        """Under which this node would speak to it; empty where it would speak to any."""
        found = self.by_id.get(member)
        return (found.incarnation if found is not None else "") or self._memory.met.get(member, "")

    def incarnation_bytes(self, member: str) -> bytes:
        """The same as a handshake has it: zeros where this node would speak to any. An incarnation that is none, which
        an old entry may have put into the catalog, is one that nobody has."""
        found = self.incarnation(member)
        if not found:
            return UNKNOWN
        try:
            check_incarnation(found)
        except ValueError:
            return NOBODY
        return bytes.fromhex(found)

    def dials(self, others: Iterable[str]) -> dict[str, Address]:
        """Whom of these this node dials, and where. Of two founding members the one with the greater name does; else
        the one that was there first, since a newcomer knows nobody."""
        return self._addresses(other for other in others if self._is_dialer(other))

    def reserve(self, others: Iterable[str]) -> dict[str, Address]:
        """Whom of these this node dials when they have not come by themselves, and where. Who was there first may have
        been away while the newcomer came, and who could tell it of the newcomer may be the newcomer itself: a leader.
        Founding members need none, as they know each other."""
        return self._addresses(
            other for other in others if self._one_joined(other) and not self._is_dialer(other)
        )

    def _addresses(self, members: Iterable[str]) -> dict[str, Address]:
        """Of those whose address is known, and is one."""
        found = {}
        for each in members:
            known = self.by_id.get(each) or self._past.get(each)
            address = None if known is None else _address(known.peer)
            if address is not None:
                found[each] = address
        return found

    def _is_dialer(self, other: str) -> bool:
        if not self._one_joined(other):
            return self.me > other
        mine = self.number(self.me)
        return 0 < mine < self.number(other)

    def _one_joined(self, other: str) -> bool:
        """Whether this node or the other one is no founding member."""
        return JOINED_MARK in self.me or JOINED_MARK in other


def _address(text: str) -> Address | None:
    """None where it is no address: an old entry may have put one into the catalog."""
    try:
        return host_port(text)
    except ValueError:
        return None
