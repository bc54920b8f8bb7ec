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
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from fifo.effects import Ok, Refused, Reply
from fifo.frozen_dataclasses import dataclass
from quorum.addresses import MAX_MEMBERS, check_id, check_incarnation, check_name, host_port, shown
from quorum.catalog.lease_times import UNSEEN

T = TypeVar("T")

KEPT_REMOVED = 1_000
"""Number of removed members' ids that are remembered, so that none of them is taken for one that this catalog has not
heard of yet."""
JOINED_MARK = "~"
INCARNATION_PART = 12
"""Hex digits of the incarnation in the id of a member that joined: enough that all ids in a cluster differ."""


def joined_id(name: str, incarnation: str) -> str:
    """The id of a member that joins a running cluster."""
    return f"{name}{JOINED_MARK}{incarnation[:INCARNATION_PART]}"


@dataclass(frozen=True, slots=True)
class CatalogMember:
    """peer, client: addresses, host:port. incarnation: of the data directory, hex; empty until it is known (founding
    members). is_joining: the member does not vote in every group yet. replaces: the id of the member that is removed
    once it does."""

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
    """The members that found a cluster: numbers from 1 in the order of names. addresses: name -> (peer, client)."""
    return tuple(
        CatalogMember(number, name, name, *addresses[name])
        for number, name in enumerate(sorted(addresses), 1)
    )


@dataclass(frozen=True, slots=True)
class BootstrapCluster:
    """Sets the founding members; proposed by the system group's first leader. Changes nothing if they are set
    already."""

    members: tuple[CatalogMember, ...]


@dataclass(frozen=True, slots=True)
class RecordIncarnation:
    """Sets a founding member's incarnation, when it is first known."""

    id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class AddMember:
    """Adds a member. replaces: it replaces the present member of this name, which is removed once the new one votes in
    every group. Another member of this name that is still joining is dropped. seen: as in commands.SeenChanges."""

    id: str
    name: str
    peer: str
    client: str
    incarnation: str
    replaces: bool = False
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class ConfirmMember:
    """Says that a joining member votes in every group; proposed by the system group's leader."""

    id: str


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Removes a member. name: its name or id; the id tells a joining member from the one that it replaces. seen: as in
    commands.SeenChanges."""

    name: str
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class DrainMember:
    """Drains a member, or ends that. is_drained: it must not lead any group. seen: as in commands.SeenChanges."""

    name: str
    is_drained: bool
    seen: int = UNSEEN


def check_member(command: AddMember) -> None:
    """Raise ValueError unless every member can use the command's values. It is checked before the proposal, and again
    when it is applied (Members.add), because the Raft thread of every member uses the values in the catalog."""
    check_id(command.id)
    check_name(command.name)
    host_port(command.peer)
    host_port(command.client)
    check_incarnation(command.incarnation)


MemberCommand = BootstrapCluster | RecordIncarnation | AddMember | ConfirmMember | RemoveMember | DrainMember


def encode_member_command(command: MemberCommand) -> bytes:
    return json.dumps(asdict(command), ensure_ascii=False, separators=(",", ":")).encode()


def decode_bootstrap(data: bytes) -> BootstrapCluster:
    """Decode the command. Raises ValueError if the bytes are none, as the other decoders do."""
    value = _object(data)
    return BootstrapCluster(tuple(map(_member, value.get("members", ()))))


def decode_incarnation(data: bytes) -> RecordIncarnation:
    return _decoded(RecordIncarnation, data)


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


class Members:
    """The members by id, in the order of their numbers. Each command is checked before it changes anything."""

    def __init__(self) -> None:
        self.by_id: dict[str, CatalogMember] = {}
        self.removed: list[str] = []
        """ids, the latest one last"""
        self.next_number = 1

    def named(self, name: str) -> CatalogMember | None:
        return next((each for each in self.by_id.values() if name in (each.name, each.id)), None)

    # ---- commands

    def bootstrap(self, command: BootstrapCluster) -> Reply | None:
        if not self.by_id:
            self.by_id = {each.id: each for each in command.members}
            self.next_number = len(command.members) + 1
        return None

    def record_incarnation(self, command: RecordIncarnation) -> Reply | None:
        known = self.by_id.get(command.id)
        if known is not None and not known.incarnation:
            self.by_id[command.id] = replace(known, incarnation=command.incarnation)
        return None

    def add(self, command: AddMember, version: int) -> Reply:
        """Add a member. Adding the same one again changes nothing, because the reply may have been lost. version: the
        entry's; before version 2 nothing was checked."""
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
                f"there is a member {command.name!r} already; to replace it: "
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
        """The joining member of this name, or None. There is one at most."""
        return next((each for each in self.by_id.values() if each.name == name and each.is_joining), None)

    def confirm(self, command: ConfirmMember) -> Reply | None:
        """End the joining of a member. Changes nothing if the member was dropped, or is drained, because at least one
        member must remain that may lead."""
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
        """Whether other members are left that may lead. Before version 2 a joining member counted too."""
        others = (each for each in self.by_id.values() if each is not member and not each.is_drained)
        return any(version < 2 or not each.is_joining for each in others)

    def _drop(self, member: CatalogMember) -> None:
        del self.by_id[member.id]
        self.removed = [*self.removed, member.id][-KEPT_REMOVED:]
