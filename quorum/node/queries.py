"""The API's queries to a member and their answers, all frozen.

A query is answered on the Raft thread, between two steps of the groups (reads/questions.py). Its answer holds no object
that the Raft thread changes later. `Query[A]` is a query whose answer has the type A; `groups` are the Raft groups that
it reads, so the answer is at least as new as everything that this member has shown of them.

To add a query: its record here, and a line in `take_queries` of the part that answers it (reads/queue_answers.py,
reads/cluster_answers.py). Queries about the catalog are not here: the API has a view of it (events.CatalogChanged), and
`ReadBarrier` makes that view current.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Generic, TypeVar

from fifo.effects import Refused, Run
from fifo.frozen_dataclasses import dataclass
from fifo.queries.storage import Storage
from fifo.results import (
    BrowsePage,
    DeadWork,
    PreparedPart,
    QueueInfo,
    ReservationPage,
    SubscriptionInfo,
    TransactionInfo,
)
from quorum.catalog.lease_times import LeaseSettings
from quorum.catalog.members import CatalogMember
from quorum.catalog.queues import CatalogQueue
from quorum.node.leases.disk_state import DiskState

AnswerT = TypeVar("AnswerT")
FailureCounts = tuple[tuple[int, int], ...]
"""(number, failed deliveries) of messages, numbered from 0, where not zero."""


class Query(Generic[AnswerT]):
    """The base of all queries."""

    __slots__ = ()

    @property
    def groups(self) -> tuple[int, ...]:
        """The Raft groups whose state the query reads."""
        return ()


@dataclass(frozen=True, slots=True)
class GroupQuery(Query[AnswerT]):
    """A query that reads one Raft group."""

    group: int

    @property
    def groups(self) -> tuple[int, ...]:
        return (self.group,)


@dataclass(frozen=True, slots=True)
class QueueQuery(GroupQuery[AnswerT]):
    """A query about one queue, given by its id."""

    queue: int


@dataclass(frozen=True, slots=True)
class ReadBarrier(Query[None]):
    """Answered as soon as these groups' states may be read. A read barrier ensures that events sent to the API before
    the answer show those states, or later ones."""

    raft_groups: tuple[int, ...]

    @property
    def groups(self) -> tuple[int, ...]:
        return self.raft_groups


# ---- a group's queues


@dataclass(frozen=True, slots=True)
class AppliedIndex(GroupQuery[int]):
    """The last entry that the group's machine has applied here."""


@dataclass(frozen=True, slots=True)
class StateHash:
    index: int
    crc: int


@dataclass(frozen=True, slots=True)
class HashState(GroupQuery[StateHash | None]):
    """A number of the group's whole state (fifo/persistence/state_crc.py), and the entry it is the state of. None: a
    part of the work is done, the query has to be repeated."""


@dataclass(frozen=True, slots=True)
class QueueCounts(QueueQuery[QueueInfo | None]):
    """The counts of a queue; None if the group has no such queue. O(blocks)."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """leader: the name of the member that leads the queue's group; empty where it is not known."""

    info: QueueInfo
    leader: str


PART_QUEUES, PART_BLOCKS = 200, 5_000
"""Limits of one ListQueues: queues, and blocks of messages in them. It takes some milliseconds of a step."""


@dataclass(frozen=True, slots=True)
class ListQueues(Query[tuple[QueueStatus | None, ...]]):
    """The status of the first of these queues: as many as one step has time for (`most_blocks`), at least one. None
    means that the queue's group does not have it."""

    queues: tuple[CatalogQueue, ...]
    most_blocks: int

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(sorted({queue.group for queue in self.queues}))


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """node: the name of the member that serves the consumer; empty where it is not known. selector: canonical; empty
    for every message. is_active: False for a consumer that is given nothing, because another one is the single active
    consumer or because messages have timed out. timed_out: the number of those that it has not answered."""

    tag: str
    attach: int
    node: str
    selector: bytes
    credit: int
    checked_out: int
    priority: int
    is_active: bool
    timed_out: int


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """consumers_after: the `attach` to continue after; None at the end."""

    status: QueueStatus
    storage: Storage
    consumers: tuple[ConsumerStatus, ...]
    consumers_after: int | None


@dataclass(frozen=True, slots=True)
class DescribeQueue(QueueQuery[QueueDescription | None]):
    """One queue with a page of its consumers, those attached after the entry `after`: at most `most_consumers`, and as
    many selectors as `most_selector_bytes` holds, or one."""

    after: int
    most_consumers: int
    most_selector_bytes: int


@dataclass(frozen=True, slots=True)
class BrowseReady(QueueQuery[BrowsePage | Refused]):
    """A page of the ready messages that match, from a sequence on; or of the delayed ones."""

    start: int
    count: int
    selector: bytes = b""
    delayed: bool = False


@dataclass(frozen=True, slots=True)
class UpcomingMessages(QueueQuery[BrowsePage | Refused]):
    """The messages that a Get of `count` messages would take now, in their order."""

    count: int


@dataclass(frozen=True, slots=True)
class CountedPage:
    """failures: failed deliveries of the page's messages, by sequence."""

    page: BrowsePage
    failures: FailureCounts


@dataclass(frozen=True, slots=True)
class BrowsePinned(QueueQuery[CountedPage | Refused]):
    """A page of the messages that a pin holds and that match, start <= sequence < end; pin 0: of the ready messages.
    with_failures: count the failed deliveries too."""

    pin: int
    start: int
    end: int
    count: int
    selector: bytes
    with_failures: bool


@dataclass(frozen=True, slots=True)
class TakenMessages:
    """ranges: of client sequences, ascending. highest: of all that the group has taken of this producer."""

    ranges: tuple[tuple[int, int], ...]
    highest: int


@dataclass(frozen=True, slots=True)
class FindTaken(GroupQuery[TakenMessages | None]):
    """Which of a producer's messages first..last the group has taken. None where the producer is not in this epoch."""

    producer: bytes
    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StagedParts(QueueQuery[tuple[bytes, ...]]):
    """The names of a staged batch's parts."""

    producer: str
    batch: int


@dataclass(frozen=True, slots=True)
class StagedOwner(QueueQuery[int]):
    """The owner of a producer of staged batches; UNKNOWN if the queue does not remember the producer."""

    producer: str


# ---- dead letters


@dataclass(frozen=True, slots=True)
class DeadQueues:
    """groups: those that this node leads. queues: (group, id) of queues there with dead messages, ascending."""

    groups: tuple[int, ...]
    queues: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FindDeadQueues(Query[DeadQueues]):
    """The first `most` queues above `after` whose dead messages this node has to bring to their targets."""

    after: tuple[int, int]
    most: int


@dataclass(frozen=True, slots=True)
class FindDeadWork(QueueQuery[DeadWork | None]):
    """What the worker of a queue has to do, with so many claimed messages; None if the group has no such queue, or if
    this node does not lead it."""

    most: int


# ---- transactions


@dataclass(frozen=True, slots=True)
class ListTransactions(GroupQuery[tuple[TransactionInfo, ...]]):
    """At most so many transactions of a group with higher keys than `after`, in the order of their keys."""

    after: tuple[bytes, int]
    most: int


@dataclass(frozen=True, slots=True)
class FindPrepared(GroupQuery[PreparedPart | None]):
    """The part of a transaction that waits in this group for the decision of another one; None if there is none."""

    producer: bytes
    tx: int


# ---- subscriptions


@dataclass(frozen=True, slots=True)
class FindSubscription(QueueQuery[SubscriptionInfo | None]):
    """One subscription of a queue."""

    name: str


@dataclass(frozen=True, slots=True)
class SubscriptionList:
    index: int
    subscriptions: tuple[SubscriptionInfo, ...]


@dataclass(frozen=True, slots=True)
class ListSubscriptions(QueueQuery[SubscriptionList]):
    """All subscriptions of a queue, in the order in which they were made; none if there is no such queue."""


@dataclass(frozen=True, slots=True)
class ReservePreview:
    """may_reserve: a Reserve could find something, or the group has to say why not. subscription: None where the group
    has to judge the request. ready: messages of the queue. index: as in AppliedIndex."""

    subscription: SubscriptionInfo | None
    may_reserve: bool
    ready: int
    index: int


@dataclass(frozen=True, slots=True)
class PreviewReserve(QueueQuery[ReservePreview]):
    """The outcome that a Reserve of this subscription would have now. generation, after: as the client knows them."""

    name: str
    generation: int
    after: int


@dataclass(frozen=True, slots=True)
class ReadReservation(QueueQuery[ReservationPage | Refused]):
    """A slice by ordinals of an outstanding reservation."""

    name: str
    offset: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A member that clients may use. address: host:port, empty where the catalog has none."""

    id: str
    name: str
    address: str
    is_leader: bool
    is_own: bool


@dataclass(frozen=True, slots=True)
class LeaderEndpoint(GroupQuery[Endpoint | None]):
    """The member that leads the group; None if this node knows of none that clients can use."""


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    subscription: SubscriptionInfo
    index: int
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class DescribeSubscription(QueueQuery[SubscriptionDescription | None]):
    """One subscription with its outstanding reservations, and the members that can be asked."""

    name: str


@dataclass(frozen=True, slots=True)
class BulkDescription:
    """runs: messages at both ends of the queue."""

    info: QueueInfo
    index: int
    endpoints: tuple[Endpoint, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class DescribeForBulk(QueueQuery[BulkDescription | None]):
    """A queue, the members that can be asked, and up to `end_messages` ready messages at each end of it."""

    end_messages: int


# ---- the member and its cluster

STANDINGS = {
    "meeting": "the founding members have not all met yet; one that lost its data directory waits for ever: let it "
    "join (join = true) and replace the old member (quorum cluster replace)",
    "waiting": "quorum cluster add, or replace, with this node's client address makes it a member",
    "removed": "it was removed; it may join again with an emptied data directory",
    "drained": "quorum cluster undrain lets it work again",
    "member": "a member",
}
"""The possible standings of a node in its cluster, and what each means to an operator."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads a Raft group, as this node knows. leader: a member's id, empty for none. term: Raft's."""

    leader: str
    term: int


@dataclass(frozen=True, slots=True)
class Health:
    """standing: this node's standing in its cluster (one of STANDINGS). reason_to_leave: why clients have
    to leave a node that is not ready; empty if they need not. leaderships: by group. is_catching_up: the node was a
    member when it stopped, and its standing is only that of the old entries that it has applied so far. others: whether
    each other member can be reached, by name. refused: the names of those that refuse this node, or that it refuses."""

    standing: str
    is_ready: bool
    reason_to_leave: str
    leaderships: Mapping[int, Leadership]
    is_catching_up: bool = False
    others: Mapping[str, bool] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CheckHealth(Query[Health]):
    """Whether this node serves clients."""


@dataclass(frozen=True, slots=True)
class HasHandedOver(Query[bool]):
    """Whether this node leads nothing that another one could lead."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """A group that this node cannot reach, or does not serve. node: this node's id. disputed: why states differ; empty:
    the group has no leader that this node knows of."""

    group: int
    node: str
    disputed: str


@dataclass(frozen=True, slots=True)
class FindUnserved(Query[Unserved | None]):
    """The first of these groups that is not served here now."""

    raft_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FindLeader(Query[str | None]):
    """The id of the member that leads the group, as far as this node knows."""

    group: int


@dataclass(frozen=True, slots=True)
class TransferTarget:
    """id: of the member that can take over; empty where none can. problem: why not."""

    id: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FindTransferTarget(Query[TransferTarget]):
    """Whether a group's leadership can be transferred to the member of this name or id."""

    group: int
    name: str


@dataclass(frozen=True, slots=True)
class Successors:
    """changes: as in CatalogMachine, of the members that were looked at. problem: why no member could serve instead."""

    changes: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FindSuccessors(GroupQuery[Successors]):
    """Whether another member than this one may lead and can be reached now. group: the system group."""

    name: str


@dataclass(frozen=True, slots=True)
class PlanRebalance(Query[tuple[tuple[int, str], ...]]):
    """(group, name of the member that should lead it) for each group whose leader should change. Every member leads as
    many groups as any other, give or take one; no other group moves."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """boot: the last boot number heard of; 0 if none. disk: None where nothing is known of it. known_version: the
    highest machine version that the member has said it knows; 0 if it has said nothing."""

    member: CatalogMember
    boot: int
    is_reachable: bool
    disk: DiskState | None
    known_version: int


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """name: as in GroupStatus.voters. match_index: a member has every entry up to this one, as the leader knows; 0 if
    it has not heard that yet."""

    name: str
    match_index: int


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """leader: its name. leader_id: empty for none. voters, learners: names; the id of a member that replaces another
    one of its name. repaired, unreadable, fetching: numbers of entries. version: the machine version that the group
    uses. last_index: of this node's log. progress: of the other members, if this node leads."""

    group: int
    leader: str
    leader_id: str
    term: int
    commit_index: int
    applied_index: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    is_settled: bool
    repaired: int
    unreadable: int
    fetching: int
    is_quarantined: bool
    disputed: str
    version: int
    last_index: int
    progress: tuple[MemberProgress, ...]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """id, incarnation, known_version: of this node. members: by name. skipped_entries: GROUP:INDEX. peer_events: what
    has happened to the connections with other members since the start, and how often."""

    standing: str
    id: str
    incarnation: str
    known_version: int
    members: tuple[MemberStatus, ...]
    groups: tuple[GroupStatus, ...]
    skipped_entries: tuple[str, ...]
    peer_events: tuple[tuple[str, int], ...]
    lease_settings: LeaseSettings | None


@dataclass(frozen=True, slots=True)
class DescribeCluster(Query[ClusterStatus]):
    """The cluster as this node sees it."""
