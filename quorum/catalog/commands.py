"""What can be asked of the system group, and what it answers beside `fifo.effects`.

Sessions number their commands to the system group as they do to any group: RegisterProducer, CloseSession and Wake (a
barrier, when it is numbered) are those of `fifo.commands`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from fifo.effects import Ok
from quorum.catalog.arguments import ArgumentValue
from quorum.catalog.members import MemberCommand


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Makes a queue, or finds that it exists with the same meaning. arguments: as the client gave them, by name."""

    name: str
    arguments: tuple[tuple[str, ArgumentValue], ...]


@dataclass(frozen=True, slots=True)
class RemoveQueue:
    """The queue's name is free at once; its group's leader then deletes its messages."""

    name: str


CatalogCommand = DeclareQueue | RemoveQueue | MemberCommand


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
    value = json.loads(data)
    match value:
        case [str(name), list(pairs)]:
            arguments = []
            for pair in pairs:
                match pair:
                    case [str(argument), bool() | int() | float() | str() as content]:
                        arguments.append((argument, content))
                    case _:
                        raise ValueError(f"no argument of a declaration: {pair!r}")
            return DeclareQueue(name, tuple(arguments))
    raise ValueError("not a declaration")
