"""The desired members of the cluster: the part of the catalog that groups' leaders carry out voter by voter.

A member has an *id* that is never given out again, beside the *name* that people use. A founding member's id is its
name. A later member's id is `NAME~` and the beginning of its incarnation, which its data directory got at its first
start. So an emptied directory is another member, whatever its name. The *number* names a member in sessions' addresses
and is given out once, like an id.

A new member is *joining* until it votes in every group; the system group's leader sees that and proposes
`ConfirmMember`. Only then is the member that it replaces removed, so that an address without a server removes no
member. A joining member does not count as one in whose favour others can be removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from fifo.effects import Ok, Refused, Reply
from quorum.addresses import MAX_MEMBERS, check_id, check_incarnation, check_name, host_port, shown
from quorum.catalog.lease_times import UNSEEN

T = TypeVar("T")

KEPT_REMOVED = 1_000
"""Ids of removed members that are remembered, so that none is taken for one that this catalog has not heard of yet."""
JOINED_MARK = "~"
INCARNATION_PART = 12
"""Hex digits of the incarnation in the id of a member that joined: enough that no two are alike in one cluster."""


def joined_id(name: str, incarnation: str) -> str:
    """The id of a member that joins a running cluster."""
    return f"{name}{JOINED_MARK}{incarnation[:INCARNATION_PART]}"


@dataclass(frozen=True, slots=True)
class CatalogMember:
    """peer, client: host:port. incarnation: of the data directory, hex; empty until it is known (founding members).
    is_joining: it does not vote in every group yet. replaces: the id of the member that is removed when it does."""

    number: int
    id: str
    name: str
    peer: str = ""
    client: str = ""
    incarnation: str = ""
    is_drained: bool = False
    is_joining: bool = False
    replaces: str = ""


def founders(addresses: dict[str, tuple[str, str]]) -> tuple[CatalogMember, ...]:
    """What a cluster begins with: numbers from 1 in the order of names. addresses: name -> (peer, client)."""
    return tuple(
        CatalogMember(number, name, name, *addresses[name])
        for number, name in enumerate(sorted(addresses), 1)
    )


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """The founding members, said by the system group's first leader; nothing if they are there already."""

    members: tuple[CatalogMember, ...]


@dataclass(frozen=True, slots=True)
class MeetMember:
    """A founding member's incarnation, when it is first known."""

    id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class AddMember:
    """A new member. replaces: it takes the place of the present member of this name, which is removed once the new one
    votes in every group. A newcomer that is still joining under this name is given up. seen: as in
    commands.SeenChanges."""

    id: str
    name: str
    peer: str
    client: str
    incarnation: str
    replaces: bool = False
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class ConfirmMember:
    """A joining member votes in every group; said by the system group's leader."""

    id: str


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """name: or the id, which tells a newcomer from the member that it replaces. seen: as in commands.SeenChanges."""

    name: str
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class DrainMember:
    """is_drained: it shall lead nothing. seen: as in commands.SeenChanges."""

    name: str
    is_drained: bool
    seen: int = UNSEEN


def check_member(command: AddMember) -> None:
    """Whether everybody can use what it says: raises ValueError. Asked before it is proposed, and again when it is
    applied (Members.add): what stands in the catalog is used on the Raft thread of every member."""
    check_id(command.id)
    check_name(command.name)
    host_port(command.peer)
    host_port(command.client)
    check_incarnation(command.incarnation)


MemberCommand = FoundCluster | MeetMember | AddMember | ConfirmMember | RemoveMember | DrainMember


def encode_member_command(command: MemberCommand) -> bytes:
    return json.dumps(asdict(command), ensure_ascii=False, separators=(",", ":")).encode()


def decode_found(data: bytes) -> FoundCluster:
    """Raises ValueError where the bytes are none, as the others."""
    value = _object(data)
    return FoundCluster(tuple(map(_member, value.get("members", ()))))


def decode_meet(data: bytes) -> MeetMember:
    return _decoded(MeetMember, data)


def decode_add(data: bytes) -> AddMember:
    return _decoded(AddMember, data)


def decode_confirm(data: bytes) -> ConfirmMember:
    return _decoded(ConfirmMember, data)


def decode_remove(data: bytes) -> RemoveMember:
    return _decoded(RemoveMember, data)


def decode_drain(data: bytes) -> DrainMember:
    return _decoded(DrainMember, data)


def _object(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("not a member command")
    return value


def _decoded(kind: type[T], data: bytes) -> T:
    return _made(kind, _object(data))


def _made(kind: type[T], fields: Mapping[str, Any]) -> T:
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error


def _member(fields: Mapping[str, Any]) -> CatalogMember:
    return _made(CatalogMember, fields)


def _fields(member: CatalogMember) -> dict[str, object]:
    """As a snapshot has them: what only joining members have stands there only for them."""
    found = asdict(member)
    if not member.is_joining:
        del found["is_joining"], found["replaces"]
    return found


class Members:
    """The members by id, in the order of their numbers. Check first, then change."""

    def __init__(self) -> None:
        self.by_id: dict[str, CatalogMember] = {}
        self.removed: list[str] = []
        """ids, the latest last"""
        self.next_number = 1

    def named(self, name: str) -> CatalogMember | None:
        return next((each for each in self.by_id.values() if name in (each.name, each.id)), None)

    # ---- commands

    def found(self, command: FoundCluster) -> Reply | None:
        if not self.by_id:
            self.by_id = {each.id: each for each in command.members}
            self.next_number = len(command.members) + 1
        return None

    def meet(self, command: MeetMember) -> Reply | None:
        known = self.by_id.get(command.id)
        if known is not None and not known.incarnation:
            self.by_id[command.id] = replace(known, incarnation=command.incarnation)
        return None

    def add(self, command: AddMember, version: int) -> Reply:
        """Adding the same one again is nothing: the answer may have been lost. version: the entry's; before 2 nothing
        was checked."""
        if version >= 2:
            try:
                check_member(command)
            except ValueError as error:
                return Refused("bad_argument", str(error))
        if command.id in self.by_id:
            return Ok(0)
        if command.id in self.removed:
            return Refused(
                "bad_argument",
                f"{command.id!r} was a member and has been removed: it may join again with an emptied data directory",
            )
        known = self.named(command.name)
        if known is not None and not command.replaces:
            return Refused(
                "in_use",
                f"there is a member {command.name!r} already; if this is to take its place: "
                f"quorum cluster replace {command.name}",
            )
        if known is None and command.replaces:
            return Refused("not_found", f"there is no member {command.name!r} to replace")
        waiting = self._joining(command.name) if version >= 2 else None
        if known is None and len(self.by_id) >= MAX_MEMBERS:
            return Refused("limit", f"there are {len(self.by_id)} members; at most {MAX_MEMBERS} are allowed")
        for each in self.by_id.values():
            if each not in (known, waiting) and {command.peer, command.client} & {each.peer, each.client}:
                return Refused(
                    "bad_argument", f"member {each.name!r} has the address {command.peer} or {command.client}"
                )
        replaces = ""
        if known is not None:
            replaces = known.id if waiting is None else waiting.replaces
            gone = known if version < 2 else waiting
            if gone is not None:
                self._drop(gone)
        self.by_id[command.id] = CatalogMember(
            self.next_number, command.id, command.name, command.peer, command.client, command.incarnation
        )
        if version >= 2:
            self.by_id[command.id] = replace(self.by_id[command.id], is_joining=True, replaces=replaces)
        self.next_number += 1
        return Ok(1)

    def _joining(self, name: str) -> CatalogMember | None:
        """The newcomer of this name that does not vote everywhere yet. There is one at most."""
        return next((each for each in self.by_id.values() if each.name == name and each.is_joining), None)

    def confirm(self, command: ConfirmMember) -> Reply | None:
        """Nothing where the newcomer was given up, or is drained: somebody has to be left that may lead."""
        known = self.by_id.get(command.id)
        if known is not None and known.is_joining and not known.is_drained:
            replaced = self.by_id.get(known.replaces)
            if replaced is not None:
                self._drop(replaced)
            self.by_id[known.id] = replace(known, is_joining=False, replaces="")
        return None

    def remove(self, command: RemoveMember, version: int) -> Reply:
        known = self.named(command.name)
        if known is None:
            return Refused("not_found", f"there is no member {shown(command.name)}")
        if not self._may_lead_without(known, version):
            return Refused("bad_argument", f"{command.name!r} is the last member that may lead")
        self._drop(known)
        return Ok(1)

    def drain(self, command: DrainMember, version: int) -> Reply:
        known = self.named(command.name)
        if known is None:
            return Refused("not_found", f"there is no member {shown(command.name)}")
        if command.is_drained and not self._may_lead_without(known, version):
            return Refused("bad_argument", f"{command.name!r} is the last member that may lead")
        self.by_id[known.id] = replace(known, is_drained=command.is_drained)
        return Ok(int(known.is_drained != command.is_drained))

    def _may_lead_without(self, member: CatalogMember, version: int) -> bool:
        """Whether others are there that may lead. Before version 2 a joining member counted too."""
        others = (each for each in self.by_id.values() if each is not member and not each.is_drained)
        return any(version < 2 or not each.is_joining for each in others)

    def _drop(self, member: CatalogMember) -> None:
        del self.by_id[member.id]
        self.removed = [*self.removed, member.id][-KEPT_REMOVED:]

    # ---- snapshot

    def state(self) -> list[object]:
        """As JSON can hold it."""
        return [self.next_number, [_fields(each) for each in self.by_id.values()], self.removed]

    @classmethod
    def restored(cls, state: Sequence[object]) -> Members:
        """Raises ValueError, TypeError where the state is none."""
        made = cls()
        number, members, removed = state
        if not isinstance(number, int) or not isinstance(members, list) or not isinstance(removed, list):
            raise ValueError("no members")
        made.next_number = number
        made.by_id = {each.id: each for each in map(_member, members)}
        made.removed = [str(each) for each in removed]
        return made
