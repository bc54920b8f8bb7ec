"""The answers of the administrative calls and of browsing as plain records."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from quorum.client.values import FieldValue, Properties, decode_properties, values_to_dict


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """Numbers of a queue's messages since it was declared (docs/queues.md). published: they are ready, checked out or
    dead, or have left by one of the next six causes. returned and redelivered count each time. dead_lettered: of those
    that have left, how many a dead-letter target has."""

    published: int = 0
    settled: int = 0
    expired: int = 0
    rejected: int = 0
    delivery_limit: int = 0
    maxlen: int = 0
    purged: int = 0
    returned: int = 0
    redelivered: int = 0
    dead_lettered: int = 0

    @classmethod
    def of(cls, wire: Any) -> QueueTotals:
        return cls(**{each.name: getattr(wire, each.name) for each in fields(cls)})


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue. delayed: messages that become ready later. total: ready, checked-out, delayed and dead messages.
    arguments: as it was declared, sorted by name. policy: name of the policy that applies, empty if none.
    effective_arguments: its own and the policy's. ready_by_priority: of a queue with priorities, where there are any,
    the highest first. held_groups: message groups that consumers hold. dead: messages that wait for the dead-letter
    target. dead_letter_problem: why it does not take the next of them; empty if nothing is known against it. owner: the
    user that declared it, empty if unknown."""

    name: str
    id: int
    group: int
    leader: str
    arguments: dict[str, FieldValue | None]
    ready: int
    checked_out: int
    total: int
    consumers: int
    first_sequence: int
    next_sequence: int
    ready_bytes: int
    policy: str = ""
    effective_arguments: dict[str, FieldValue | None] = field(default_factory=dict)
    totals: QueueTotals = QueueTotals()
    ready_by_priority: dict[int, int] = field(default_factory=dict)
    delayed: int = 0
    held_groups: int = 0
    dead: int = 0
    dead_letter_problem: str = ""
    owner: str = ""

    @classmethod
    def of(cls, wire: Any) -> QueueInfo:
        return cls(
            name=wire.name,
            id=wire.id,
            group=wire.group,
            leader=wire.leader,
            arguments=values_to_dict(wire.arguments),
            ready=wire.ready,
            checked_out=wire.checked_out,
            total=wire.total,
            consumers=wire.consumers,
            first_sequence=wire.first_sequence,
            next_sequence=wire.next_sequence,
            ready_bytes=wire.ready_bytes,
            policy=wire.policy,
            effective_arguments=values_to_dict(wire.effective_arguments),
            totals=QueueTotals.of(wire.totals),
            ready_by_priority={each.priority: each.ready for each in wire.ready_by_priority},
            delayed=wire.delayed,
            held_groups=wire.held_groups,
            dead=wire.dead,
            dead_letter_problem=wire.dead_letter_problem,
            owner=wire.owner,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """Arguments for every queue whose whole name matches the pattern, `*` for any characters. arguments are sorted by
    name."""

    name: str
    pattern: str
    priority: int
    arguments: dict[str, FieldValue | None]

    @classmethod
    def of(cls, wire: Any) -> Policy:
        return cls(wire.name, wire.pattern, wire.priority, values_to_dict(wire.arguments))


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user and its permissions: patterns that match whole names of queues and exchanges, `*` for any characters;
    empty: none. has_password: without one it logs in with a certificate or a token. queues: how many it has declared
    that still exist."""

    name: str
    administers: bool
    monitors: bool
    configure: str
    write: str
    read: str
    has_password: bool
    queues: int = 0

    @classmethod
    def of(cls, wire: Any) -> UserInfo:
        return cls(
            wire.user,
            wire.administers,
            wire.monitors,
            wire.configure,
            wire.write,
            wire.read,
            wire.has_password,
            wire.queues,
        )


@dataclass(frozen=True, slots=True)
class ExchangeInfo:
    """One exchange. type: direct, fanout, topic, headers or selector. id: 0 for an exchange that is always there.
    bindings: number of bindings from it."""

    name: str
    type: str
    arguments: dict[str, FieldValue | None]
    id: int
    bindings: int

    @classmethod
    def of(cls, wire: Any) -> ExchangeInfo:
        return cls(wire.name, wire.type, values_to_dict(wire.arguments), wire.id, wire.bindings)


@dataclass(frozen=True, slots=True)
class BindingInfo:
    """A binding from the exchange `source` to a queue or an exchange, as `to` says. arguments are sorted by name; a
    selector is equivalent to the one that was given."""

    source: str
    to: str
    destination: str
    routing_key: str
    arguments: dict[str, FieldValue | None]
    id: int

    @classmethod
    def of(cls, wire: Any) -> BindingInfo:
        to = wire.WhichOneof("destination")
        return cls(
            wire.source,
            to,
            getattr(wire, to),
            wire.routing_key,
            values_to_dict(wire.arguments),
            wire.id,
        )


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction in one Raft group. group, producer and number identify it.

    state: open; prepared, if the group waits for the decision of deciding_group; or committed, while the
    unfinished_groups may not have heard of it. since_ms: when this state began, in ms since the epoch. queues: those of
    the group. messages: that the transaction publishes and settles in them. bytes: of the published bodies. These three
    are not known of a committed transaction."""

    group: int
    producer: bytes
    number: int
    state: str
    since_ms: int
    deciding_group: int
    unfinished_groups: tuple[int, ...]
    queues: tuple[str, ...]
    messages: int
    bytes: int

    @classmethod
    def of(cls, wire: Any) -> TransactionInfo:
        return cls(
            wire.id.group,
            wire.id.producer,
            wire.id.number,
            type(wire).State.Name(wire.state).lower(),
            wire.since_ms,
            wire.deciding_group,
            tuple(wire.unfinished_groups),
            tuple(wire.queues),
            wire.messages,
            wire.bytes,
        )


@dataclass(frozen=True, slots=True)
class ResolvedTransaction:
    """committed: the outcome; False if it was rolled back. by_hand: the group that decides could not be asked."""

    committed: bool
    by_hand: bool


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """checked_out: messages that it holds. selector: equivalent to the consumer's own; empty if it has none, or a
    property filter. filter: either of them as quorum_selectors.canonical encodes it, empty for every message. active:
    False if it is given nothing, because another one is the single active consumer or messages have timed out.
    timed_out: messages that have timed out and that it has not settled since."""

    consumer_tag: str
    node: str
    filtered: bool
    credit: int
    checked_out: int
    selector: str = ""
    filter: bytes = b""
    priority: int = 0
    active: bool = True
    timed_out: int = 0

    @classmethod
    def of(cls, wire: Any) -> ConsumerInfo:
        return cls(
            wire.consumer_tag,
            wire.node,
            wire.filtered,
            wire.credit,
            wire.checked_out,
            wire.selector,
            wire.filter,
            wire.priority,
            wire.active,
            wire.timed_out,
        )


@dataclass(frozen=True, slots=True)
class StorageInfo:
    """Where the answering node stores a queue's messages; alpha + beta + gamma + delta = total (docs/queues.md)."""

    alpha: int
    beta: int
    gamma: int
    delta: int
    warm_blocks: int
    cold_blocks: int
    warm_bytes: int

    @classmethod
    def of(cls, wire: Any) -> StorageInfo:
        return cls(
            wire.alpha,
            wire.beta,
            wire.gamma,
            wire.delta,
            wire.warm_blocks,
            wire.cold_blocks,
            wire.warm_bytes,
        )


@dataclass(frozen=True, slots=True)
class QueueDescription:
    queue: QueueInfo
    consumers: tuple[ConsumerInfo, ...]
    storage: StorageInfo


@dataclass(frozen=True, slots=True)
class DiskInfo:
    """A member's report of its disk. low: publishes are refused. full: its log takes no entries. slow: another member
    should lead. sync_p99_us: 99th percentile of recent syncs, in microseconds."""

    free_bytes: int
    limit_bytes: int
    low: bool
    full: bool
    slow: bool
    sync_p99_us: int


@dataclass(frozen=True, slots=True)
class MemberInfo:
    name: str
    client_address: str
    peer_address: str
    reachable: bool
    boot: int
    disk: DiskInfo | None = None
    """None without a recent report"""
    id: str = ""
    incarnation: str = ""
    drained: bool = False
    joining: bool = False
    """it does not vote in every group yet"""
    replaces: str = ""
    """id of the member that is removed once this one votes in every group"""
    known_version: int = 0
    """the highest machine version that it knows, as it said last; 0: it has said nothing to the answering node yet"""

    @classmethod
    def of(cls, wire: Any) -> MemberInfo:
        return cls(
            wire.name,
            wire.client_address,
            wire.peer_address,
            wire.reachable,
            wire.boot,
            _disk(wire.disk) if wire.HasField("disk") else None,
            wire.id,
            wire.incarnation,
            wire.drained,
            wire.joining,
            wire.replaces,
            wire.known_version,
        )


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """How far a member has come in a group. match_index: it has every entry up to this one, as the leader knows; 0 if
    the leader has not heard that yet. reachable: whether the answering node, which is the leader, reaches it."""

    name: str
    match_index: int
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """leader: empty if none is known. members: the voters. settled: voters and learners are committed. last_index: of
    the answering node's log. progress: of the other members; empty unless the answering node leads the group.

    Of the answering node's own data: repaired, bodies that were damaged or missing and are repaired; unreadable, bodies
    that it cannot read; fetching, bodies that it needs before it can install a snapshot; quarantined."""

    group: int
    leader: str
    term: int
    commit_index: int
    applied_index: int
    members: tuple[str, ...]
    learners: tuple[str, ...] = ()
    settled: bool = True
    repaired: int = 0
    unreadable: int = 0
    fetching: int = 0
    quarantined: bool = False
    disputed: str = ""
    """which difference of states keeps the answering node from serving the group; empty if it serves it"""
    version: int = 0
    """the machine version that the group has switched to"""
    last_index: int = 0
    progress: tuple[MemberProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The cluster's lease times. lease_ms: a member may deliver for this time after a leader last heard from it.
    leader_fallback_ms: a leader may grant leases for this time after a majority last answered it. settled: every member
    uses these times; otherwise a change to them is under way."""

    lease_ms: int
    leader_fallback_ms: int
    settled: bool


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """standing: of the answering node, a word of admin.proto. own: that node's data as `add_member` takes them."""

    answering_node: str
    members: tuple[MemberInfo, ...]
    groups: tuple[GroupInfo, ...]
    resident_bytes: int
    standing: str
    own: MemberInfo
    skipped_entries: tuple[str, ...] = ()
    """GROUP:INDEX of entries that the answering node skips, as long as its log has them"""
    lease_times: LeaseTimes | None = None
    """None while the answering node does not know them yet"""

    @classmethod
    def of(cls, wire: Any) -> ClusterStatus:
        # a group names a member by its id while that replaces another one of its name
        lost = {each.id if each.replaces else each.name for each in wire.members if not each.reachable}
        return cls(
            answering_node=wire.answering_node,
            members=tuple(map(MemberInfo.of, wire.members)),
            groups=tuple(
                GroupInfo(
                    g.group,
                    g.leader,
                    g.term,
                    g.commit_index,
                    g.applied_index,
                    tuple(g.members),
                    tuple(g.learners),
                    g.settled,
                    g.repaired,
                    g.unreadable,
                    g.fetching,
                    g.quarantined,
                    g.disputed,
                    g.version,
                    g.last_index,
                    tuple(
                        [
                            MemberProgress(each.name, each.match_index, each.name not in lost)
                            for each in g.progress
                        ]
                    ),
                )
                for g in wire.groups
            ),
            resident_bytes=wire.resident_bytes,
            standing=wire.standing,
            own=MemberInfo.of(wire.own),
            skipped_entries=tuple(wire.skipped_entries),
            lease_times=_lease_times(wire) if wire.HasField("lease_times") else None,
        )


def _lease_times(wire: Any) -> LeaseTimes:
    times = wire.lease_times
    return LeaseTimes(times.lease_ms, times.leader_fallback_ms, wire.lease_times_settled)


def _disk(wire: Any) -> DiskInfo:
    return DiskInfo(wire.free_bytes, wire.limit_bytes, wire.low, wire.full, wire.slow, wire.sync_p99_us)


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message that was read without being taken. Its properties are decoded on access."""

    wire: Any

    @property
    def sequence(self) -> int:
        return int(self.wire.sequence)

    @property
    def redelivered(self) -> bool:
        return bool(self.wire.redelivered)

    @property
    def delivery_count(self) -> int:
        return int(self.wire.delivery_count)

    @property
    def due_time(self) -> int | None:
        """When a delayed message becomes ready, in ms since 1970; None for a ready one."""
        return int(self.wire.due_time) or None

    @property
    def body(self) -> bytes:
        body: bytes = self.wire.message.body
        return body

    @property
    def properties(self) -> Properties:
        return decode_properties(self.wire.message.properties)

    @property
    def application_properties(self) -> dict[str, FieldValue | None]:
        return values_to_dict(self.wire.message.properties.application_properties)
