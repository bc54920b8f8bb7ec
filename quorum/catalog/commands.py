"""The commands of the system group, and its replies beside those of `fifo.effects`.

Sessions number their commands to the system group as they do to any group: RegisterProducer, CloseSession and Wake are
those of `fifo.commands`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from fifo.effects import Ok
from quorum.catalog.arguments import Arguments
from quorum.catalog.lease_times import UNSEEN, LeaseTimesCommand, SetLeaseTimes
from quorum.catalog.members import AddMember, DrainMember, MemberCommand, RemoveMember


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Declares a queue: creates it, or confirms that it exists with the same meaning. arguments: as the client gave
    them, by name. seen: the number of removed queues (CatalogMachine.removals) when the command was made; no queue is
    created if there are more by now."""

    name: str
    arguments: Arguments
    seen: int = UNSEEN


NO_QUEUE = (1 << 64) - 1
"""An id that no queue has."""


@dataclass(frozen=True, slots=True)
class RemoveQueue:
    """Removes a queue. Its name is free at once; its group's leader then deletes its messages. queue: the id that is
    meant, 0 for any."""

    name: str
    queue: int = 0


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Creates or changes a policy. arguments: as the operator gave them, by name. seen: as in SeenChanges."""

    name: str
    pattern: str
    priority: int
    arguments: Arguments
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class RemovePolicy:
    """Removes a policy. seen: as in SeenChanges."""

    name: str
    seen: int = UNSEEN


SeenChanges = SetPolicy | RemovePolicy | AddMember | RemoveMember | DrainMember | SetLeaseTimes
"""Commands with the number of such commands that the catalog had taken (CatalogMachine.changes) when the command was
made. The command is refused if there are more by now. So a late command whose caller has given up undoes no later
change."""

CatalogCommand = DeclareQueue | RemoveQueue | SetPolicy | RemovePolicy | MemberCommand | LeaseTimesCommand


@dataclass(frozen=True, slots=True)
class QueueDeclared(Ok):
    """The reply to DeclareQueue. count: 1 if the queue was created, 0 if it existed with the same configuration."""

    queue: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class QueueRemoved(Ok):
    """The reply to RemoveQueue. count: 1."""

    queue: int = 0
    group: int = 0


def encode_declare(command: DeclareQueue) -> bytes:
    """Encode a declaration as JSON, because JSON tells 1, 1.0 and true apart. No argument's value may be bytes; those
    are refused before this."""
    fields = [command.name, command.arguments, command.seen]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_declare(data: bytes) -> DeclareQueue:
    """Decode a declaration. Raises ValueError if the bytes are none."""
    match json.loads(data):
        case [str(name), list(pairs)]:  # as of version 1
            return DeclareQueue(name, _arguments(pairs))
        case [str(name), list(pairs), int(seen)]:
            return DeclareQueue(name, _arguments(pairs), seen)
    raise ValueError("not a declaration")


def encode_set_policy(command: SetPolicy) -> bytes:
    """Encode a policy as JSON, like a declaration."""
    fields = [command.name, command.pattern, command.priority, command.arguments, command.seen]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_set_policy(data: bytes) -> SetPolicy:
    """Decode a policy. Raises ValueError if the bytes are none."""
    match json.loads(data):
        case [str(name), str(pattern), int(priority), list(pairs)] if not isinstance(
            priority, bool
        ):  # version 1
            return SetPolicy(name, pattern, priority, _arguments(pairs))
        case [str(name), str(pattern), int(priority), list(pairs), int(seen)] if not isinstance(
            priority, bool
        ):
            return SetPolicy(name, pattern, priority, _arguments(pairs), seen)
    raise ValueError("not a policy")


def _arguments(pairs: list[object]) -> Arguments:
    arguments = []
    for pair in pairs:
        match pair:
            case [str(argument), bool() | int() | float() | str() as content]:
                arguments.append((argument, content))
            case _:
                raise ValueError(f"no argument: {pair!r}")
    return tuple(arguments)
