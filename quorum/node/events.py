"""What passes between the two threads of a member: inputs to a step, outputs of it.

A `token` is the API's own: it comes back with the answer, untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fifo.commands import UNKNOWN, Command
from fifo.effects import Deliver, Notify, Reply
from quorum.catalog.commands import CatalogCommand

StateT = TypeVar("StateT")
"""what a question may look at: the member"""

# ---- inputs


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A client stream has been opened here. `number` is not used twice in a process. owner: as in RegisterProducer."""

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
    """A command of a session to a group; answered by Answered(session, token, reply) unless token is None. is_wanted:
    asked on the Raft thread before the command is sent again; where the answer is no, its number is given to nothing at
    all."""

    session: int
    group: int
    command: Command | CatalogCommand
    token: object
    batch: bytes = b""
    is_wanted: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Ask(Generic[StateT]):
    """A question about the member's state, answered by Told(token, question(member)). It must not change anything.

    groups: those that the question looks at, None for all. A replica that applies again what it had applied before does
    not answer until it is done. is_current: the answer shows everything that was answered anywhere before the question
    was asked. Without a leader of each group there is no such answer: whoever asks gives up after some time."""

    question: Callable[[StateT], object]
    token: object
    groups: tuple[int, ...] | None = None
    is_current: bool = False


@dataclass(frozen=True, slots=True)
class AwaitQueue:
    """Told(token, True) once this node's replica has the queue (present) or no longer has it (not present)."""

    group: int
    queue: int
    present: bool
    token: object


@dataclass(frozen=True, slots=True)
class AwaitConfigured:
    """Told(token, True) once this node's replica has its queues configured as the catalog wished at this revision."""

    group: int
    revision: int
    token: object


@dataclass(frozen=True, slots=True)
class MendBody:
    """An entry's body could not be read: Told(token, True) once it can be."""

    group: int
    index: int
    token: object


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody waits any more for the answer to the Ask, AwaitQueue, AwaitConfigured or MendBody with this token."""

    token: object


@dataclass(frozen=True, slots=True)
class Transfer:
    """Asks the group's leader, wherever it is, to hand over to the member with this id. See in who leads whether it
    worked."""

    group: int
    to: str


@dataclass(frozen=True, slots=True)
class Leave:
    """This process is about to stop: everything it leads is handed over, as far as somebody can take it."""


Input = (
    OpenSession
    | EndSession
    | Submit
    | Ask[Any]
    | AwaitQueue
    | AwaitConfigured
    | MendBody
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
    """The lease has ended without being renewed in time: what consumers here hold of the group may be with others
    already. Their sessions have to end, whatever leases come later."""

    group: int


@dataclass(frozen=True, slots=True)
class LowDisk:
    """A member whose disk has too little room left. free_bytes is -1 where only others have said so."""

    member: str
    free_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class DisksLow:
    """Which groups must get no more publishes for now, and why: the voters with little room. It replaces what was said
    before; a group that is not named is well."""

    groups: Mapping[int, tuple[LowDisk, ...]]


@dataclass(frozen=True, slots=True)
class Told:
    token: object
    value: object


Output = Answered | Delivered | Notified | Ended | LeaseGranted | LeaseLapsed | DisksLow | Told


class Outputs:
    """What a step says to the API, in order."""

    def __init__(self) -> None:
        self._told: list[Output] = []

    def tell(self, output: Output) -> None:
        self._told.append(output)

    def take(self) -> list[Output]:
        """Everything since the last call."""
        taken, self._told = self._told, []
        return taken
