"""The commands of the system group, and its replies beside those of `fifo.effects`.

Sessions number their commands to the system group as they do to any group: RegisterProducer, CloseSession and Wake are
those of `fifo.commands`.
"""

from __future__ import annotations

from fifo.effects import Ok
from fifo.frozen_dataclasses import dataclass
from quorum.catalog.arguments import Arguments
from quorum.catalog.exchanges import ExchangeCommand
from quorum.catalog.lease_times import UNSEEN, LeaseTimesCommand, SetLeaseTimes
from quorum.catalog.members import AddMember, DrainMember, MemberCommand, RemoveMember
from quorum.catalog.queues import MAX_QUEUES
from quorum.catalog.users import RemoveUser, SetPermissions, SetUser, UserCommand


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Declares a queue: creates it, or confirms that it exists with the same meaning. arguments: as the client gave
    them, by name. seen: the number of removed queues (CatalogMachine.removals) when the command was made; no queue is
    created if there are more by now. max_queues: none is created if there are so many. owner: the user who declares it,
    empty if there is none. max_owned: none is created if the owner has so many; it is at its default without an owner.
    """

    name: str
    arguments: Arguments
    seen: int = UNSEEN
    max_queues: int = MAX_QUEUES
    owner: str = ""
    max_owned: int = MAX_QUEUES


NO_QUEUE = (1 << 64) - 1
"""An id that no queue has."""


@dataclass(frozen=True, slots=True)
class RemoveQueue:
    """Removes a queue. Its name is free at once; its group's leader then deletes its messages. queue: the id that is
    meant, 0 for any."""

    name: str
    queue: int = 0


@dataclass(frozen=True, slots=True)
class RemoveExpired:
    """Unnumbered, idempotent. Removes a queue that its group has deleted because it was not used for
    QueueConfig.expires_ms. queue: its id."""

    queue: int


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


SeenChanges = (
    SetPolicy
    | RemovePolicy
    | AddMember
    | RemoveMember
    | DrainMember
    | SetLeaseTimes
    | SetUser
    | SetPermissions
    | RemoveUser
)
"""Commands with the number of such commands that the catalog had taken (CatalogMachine.changes) when the command was
made. The command is refused if there are more by now. So a late command whose caller has given up undoes no later
change."""

CatalogCommand = (
    DeclareQueue
    | RemoveQueue
    | RemoveExpired
    | UserCommand
    | SetPolicy
    | RemovePolicy
    | ExchangeCommand
    | MemberCommand
    | LeaseTimesCommand
)


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
