"""The members that this node knows of now, and their addresses.

The catalog is the source. Before this node's replica of the catalog has heard anything (a first start, a restart), the
node uses what it remembers of the catalog, and before that the founding members of its configuration. Numbers and
addresses of removed members stay known: groups may still contain them, and their sessions may still be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quorum.addresses import check_incarnation, host_port
from quorum.catalog.members import JOINED_MARK, CatalogMember
from quorum.node.identity.identity import NodeState
from quorum.replication.network.handshake import INCARNATION_BYTES, UNKNOWN

Address = tuple[str, int]
NOBODY = b"\xff" * INCARNATION_BYTES
"""No data directory has this incarnation, or not in the life of the universe."""


class MemberDirectory:
    """me: this node's id."""

    def __init__(self, me: str, node_state: NodeState, founders: Iterable[CatalogMember]) -> None:
        self.me = me
        self._node_state = node_state
        self.by_id: dict[str, CatalogMember] = {}
        """The current members, this node included if it is one."""
        founding = tuple(founders)
        self._past = {each.id: each for each in founding}
        self._take(node_state.members or founding)

    def follow(self, members: Mapping[str, CatalogMember]) -> bool:
        """Adopts the catalog's members, unless the catalog has heard nothing yet. Returns whether anything is new. News
        is stored as soon as the disk has room; after a restart the catalog supplies it again."""
        if not members or members == self.by_id:
            return False
        self._take(members.values())
        self._node_state.members = tuple(members.values())
        self._node_state.try_save()
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
        """The name of the member with this number; empty where it is not known."""
        everybody = (*self.by_id.values(), *self._past.values())
        return next((each.name for each in everybody if each.number == number), "")

    def name_of(self, member: str | None) -> str:
        """The name of the node with this id."""
        return (member or "").partition(JOINED_MARK)[0]

    def names_of(self, members: Iterable[str]) -> list[str]:
        """`unique_name_of` each, in order."""
        return sorted(self.unique_name_of(each) for each in members)

    def unique_name_of(self, member: str) -> str:
        """The member's name. An id is returned as it is if it belongs to no current member, or to one that is about to
        replace another of the same name."""
        found = self.by_id.get(member)
        return member if found is None or found.replaces else self.name_of(member)

    def incarnation(self, member: str) -> str:
        """The incarnation under which this node would speak to a member; empty where it would speak to any."""
        found = self.by_id.get(member)
        return (found.incarnation if found is not None else "") or self._node_state.known_incarnations.get(
            member, ""
        )

    def incarnation_bytes(self, member: str) -> bytes:
        """The incarnation in the form of a handshake: zeros where this node would speak to any. An invalid one, which
        an old entry may have put into the catalog, becomes one that no member has."""
        found = self.incarnation(member)
        if not found:
            return UNKNOWN
        try:
            check_incarnation(found)
        except ValueError:
            return NOBODY
        return bytes.fromhex(found)

    def dial_addresses(self, others: Iterable[str]) -> dict[str, Address]:
        """The members among these that this node dials, with their addresses. Of two founding members the one with the
        greater name dials; else the older member, since a newcomer knows no other member."""
        return self._addresses(other for other in others if self._is_dialer(other))

    def fallback_addresses(self, others: Iterable[str]) -> dict[str, Address]:
        """The members among these that this node dials if they have not dialed it, with their addresses. An older
        member may have been down when this node joined, and if this node is now the leader, no other member can tell it
        about this node. Founding members need none, as they know each other."""
        return self._addresses(
            other for other in others if self._one_joined(other) and not self._is_dialer(other)
        )

    def _addresses(self, members: Iterable[str]) -> dict[str, Address]:
        """The addresses of those members whose address is known and valid."""
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
    """Parses an address; None where it is invalid: an old entry may have put one into the catalog."""
    try:
        return host_port(text)
    except ValueError:
        return None
