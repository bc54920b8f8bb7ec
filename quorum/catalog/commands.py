"""What can be asked of the system group, and what it answers beside `fifo.effects`.

Sessions number their commands to the system group as they do to any group: RegisterProducer, CloseSession and Wake are
those of `fifo.commands`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from fifo.effects import Ok
from quorum.catalog.arguments import Arguments
from quorum.catalog.lease_times import LeaseTimesCommand
from quorum.catalog.members import MemberCommand


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Makes a queue, or finds that it exists with the same meaning. arguments: as the client gave them, by name."""

    name: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class RemoveQueue:
    """The queue's name is free at once; its group's leader then deletes its messages."""

    name: str


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Makes a policy or changes it. arguments: as the operator gave them, by name."""

    name: str
    pattern: str
    priority: int
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class RemovePolicy:
    name: str


CatalogCommand = DeclareQueue | RemoveQueue | SetPolicy | RemovePolicy | MemberCommand | LeaseTimesCommand


@dataclass(frozen=True, slots=True)
class QueueDeclared(Ok):
    """count: 1 if the queue was created, 0 if it existed with the same configuration."""

    queue: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class QueueRemoved(Ok):
    """count: 1."""

    queue: int = 0
    group: int = 0


def encode_declare(command: DeclareQueue) -> bytes:
    """JSON, for it tells 1, 1.0 and true apart. Bytes are no value of any argument, and are refused before this."""
    return json.dumps([command.name, command.arguments], ensure_ascii=False, separators=(",", ":")).encode()


def decode_declare(data: bytes) -> DeclareQueue:
    """Raises ValueError where the bytes are no declaration."""
    match json.loads(data):
        case [str(name), list(pairs)]:
            return DeclareQueue(name, _arguments(pairs))
    raise ValueError("not a declaration")


def encode_set_policy(command: SetPolicy) -> bytes:
    """JSON, as a declaration."""
    fields = [command.name, command.pattern, command.priority, command.arguments]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_set_policy(data: bytes) -> SetPolicy:
    """Raises ValueError where the bytes are none."""
    match json.loads(data):
        case [str(name), str(pattern), int(priority), list(pairs)] if not isinstance(priority, bool):
            return SetPolicy(name, pattern, priority, _arguments(pairs))
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
