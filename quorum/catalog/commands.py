"""What can be asked of the system group, and what it answers beside `fifo.effects`.

Sessions number their commands to the system group as they do to any group: RegisterProducer, CloseSession and Wake are
those of `fifo.commands`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fifo.effects import Ok
from quorum.catalog.arguments import Arguments
from quorum.catalog.lease_times import UNSEEN, LeaseTimesCommand, SetLeaseTimes
from quorum.catalog.members import AddMember, DrainMember, MemberCommand, RemoveMember


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Makes a queue, or finds that it exists with the same meaning. arguments: as the client gave them, by name. seen:
    how many queues had been removed (CatalogMachine.removals); no queue is made if it is more by now."""

    name: str
    arguments: Arguments
    seen: int = UNSEEN


NO_QUEUE = (1 << 64) - 1
"""The id of no queue."""


@dataclass(frozen=True, slots=True)
class RemoveQueue:
    """The queue's name is free at once; its group's leader then deletes its messages. queue: the id that is meant, 0
    for any."""

    name: str
    queue: int = 0


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Makes a policy or changes it. arguments: as the operator gave them, by name. seen: as in SeenChanges."""

    name: str
    pattern: str
    priority: int
    arguments: Arguments
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class RemovePolicy:
    """seen: as in SeenChanges."""

    name: str
    seen: int = UNSEEN


SeenChanges = SetPolicy | RemovePolicy | AddMember | RemoveMember | DrainMember | SetLeaseTimes
"""Commands that say how many of these the catalog had taken (CatalogMachine.changes) when the command was made. The
command is refused if there are more by now. So a command whose caller has given up, and which arrives late, undoes
nothing that was changed since."""

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
