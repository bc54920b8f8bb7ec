"""The messages between the two threads of a member, that of the API and the Raft thread. The inputs go from the API to
`Member.step`, and the outputs go from there to the API.

All messages are frozen and hold nothing that either thread changes later. The API chooses the `token` of an input, and
the answer to this input has the same token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fifo.commands import UNKNOWN, Command
from fifo.effects import Deliver, Notify, Reply
from fifo.frozen_dataclasses import dataclass
from fifo.results import DecidedTransaction, PreparedPart
from quorum.catalog.commands import CatalogCommand
from quorum.catalog.exchanges import RoutingChanges
from quorum.catalog.policies import Policy
from quorum.catalog.queues import CatalogQueue
from quorum.catalog.users import User
from quorum.node.queries import Query

# ---- inputs


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A client has opened a stream to this member. number: the session's; a process never uses a number twice.
    owner: as in RegisterProducer (fifo/commands.py)."""

    number: int
    producer: bytes
    epoch: int
    owner: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class EndSession:
    """The stream has ended. is_clean: as in CloseSession."""

    number: int
    is_clean: bool = False


@dataclass(frozen=True, slots=True)
class Submit:
    """A command of a session to a group; answered by Answered(session, token, reply) unless token is None."""

    session: int
    group: int
    command: Command | CatalogCommand
    token: object
    batch: bytes = b""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The caller of the command with this token has stopped waiting. If the command would have to be resent, an empty
    operation takes its number; if it has arrived, it stays done. The answer comes all the same."""

    session: int
    group: int
    token: object


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A query; QueryResult(token, answer) follows. A replica that applies again what it had applied before does not
    answer until it is done. is_current: the answer shows everything that any member answered before the query was
    asked. Without a leader of each of its groups there is no such answer: the caller gives up after some time. owner:
    whose turn it takes among the questions: the address of the client that needs the answer; empty for the node
    itself."""

    query: Query[Any]
    token: object
    is_current: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class AwaitQueue:
    """QueryResult(token, True) once this node's replica has the queue (present) or no longer has it (not present). A
    queue that was deleted, or removed from the catalog before its group had it, is not waited for."""

    group: int
    queue: int
    present: bool
    token: object


@dataclass(frozen=True, slots=True)
class AwaitConfigured:
    """QueryResult(token, True) once this node's replica has its queues configured as the catalog had them at this
    revision."""

    group: int
    revision: int
    token: object


@dataclass(frozen=True, slots=True)
class RepairBody:
    """An entry's body could not be read: QueryResult(token, True) once it can be."""

    group: int
    index: int
    token: object


@dataclass(frozen=True, slots=True)
class Forget:
    """The caller of the RunQuery, AwaitQueue, AwaitConfigured or RepairBody with this token has stopped waiting."""

    token: object


@dataclass(frozen=True, slots=True)
class Transfer:
    """Asks the group's leader, on any member, to hand over to the member with this id. The group's next leader shows
    whether it worked."""

    group: int
    to: str


@dataclass(frozen=True, slots=True)
class Leave:
    """This process is about to stop: it hands over every group for which another member can lead."""


Input = (
    OpenSession
    | EndSession
    | Submit
    | Withdraw
    | RunQuery
    | AwaitQueue
    | AwaitConfigured
    | RepairBody
    | Forget
    | Transfer
    | Leave
)

# ---- outputs


@dataclass(frozen=True, slots=True)
class Answered:
    session: int
    token: object
    reply: Reply | None


@dataclass(frozen=True, slots=True)
class Delivered:
    session: int
    group: int
    deliver: Deliver


@dataclass(frozen=True, slots=True)
class Notified:
    session: int
    notify: Notify


@dataclass(frozen=True, slots=True)
class Ended:
    """The service ends this session: fenced (a higher epoch exists), expired, node_down (lease lost), resync (answers
    were missed, or it was opened too long ago to register), limit (too many producers).
    Nothing else is said about it afterwards."""

    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """This node may deliver messages of the group until then, on the member's clock."""

    group: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class LeaseLapsed:
    """The lease has ended without being renewed in time: messages checked out to consumers here may be checked out
    elsewhere already. Their sessions have to end, whatever leases come later."""

    group: int


@dataclass(frozen=True, slots=True)
class LowDisk:
    """A member whose disk has too little room left. free_bytes is -1 where only others have said so."""

    member: str
    free_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class DisksLow:
    """The groups that must get no publishes for now, with the reason: the voters with little room. It replaces the last
    report; groups that are not named may get publishes."""

    groups: Mapping[int, tuple[LowDisk, ...]]


@dataclass(frozen=True, slots=True)
class CatalogChanged:
    """Changes of the catalog since the last such output, as this node has applied it. A view that applies all of them,
    in order, equals the catalog (api/hub/catalog_view.py).

    is_whole: the view is replaced by this one; true for the first output, and after another state has replaced this
    node's. queues: new ones. removed: ids of removed queues. policies: all of them; None if they are the same.
    next_queue_id, removals, changes, revision: as in CatalogMachine. queue_groups: never changes. routing: changes of
    exchanges and bindings, None for none. users: all of them; None if they are the same.
    """

    queues: tuple[CatalogQueue, ...]
    removed: tuple[int, ...]
    policies: tuple[Policy, ...] | None
    next_queue_id: int
    removals: int
    changes: int
    revision: int
    queue_groups: tuple[int, ...]
    is_whole: bool = False
    routing: RoutingChanges | None = None
    users: tuple[User, ...] | None = None


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """The queue's group has deleted it, as this node has applied it: no queue gets this id again. The catalog here may
    still have it."""

    queue: int


@dataclass(frozen=True, slots=True)
class DecisionsDue:
    """This node leads a group that waits for others: for their decisions about parts that it has prepared, or for the
    end of what it has decided itself (fifo/decisions.py). It is said again as long as that is so."""

    group: int
    prepared: tuple[PreparedPart, ...]
    decided: tuple[DecidedTransaction, ...]


@dataclass(frozen=True, slots=True)
class MessagesDied:
    """These queues have got their first dead message, and this node leads their group."""

    group: int
    queues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StandingChanged:
    """This node's current standing in its cluster: one of queries.STANDINGS."""

    standing: str


@dataclass(frozen=True, slots=True)
class VersionChanged:
    """The machine version that the cluster uses now: all groups have switched to it."""

    version: int


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer to a query, or True where something was awaited."""

    token: object
    value: object


Output = (
    Answered
    | Delivered
    | Notified
    | Ended
    | LeaseGranted
    | LeaseLapsed
    | DisksLow
    | CatalogChanged
    | QueueDeleted
    | DecisionsDue
    | MessagesDied
    | StandingChanged
    | VersionChanged
    | QueryResult
)


class Outputs:
    """The outputs of a step to the API, in order."""

    def __init__(self) -> None:
        self._emitted: list[Output] = []

    def emit(self, output: Output) -> None:
        self._emitted.append(output)

    def take(self) -> list[Output]:
        """Everything since the last call."""
        taken, self._emitted = self._emitted, []
        return taken
