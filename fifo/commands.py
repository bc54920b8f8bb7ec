"""The commands of a group of queues. Read this first, then effects.py.

Every command is a frozen record of plain values that a member decodes from one operation of a Raft entry. No command
holds a message body. A body is named by the place of its batch in the log: Raft index, operation, ordinal.

Numbering. A session is a *producer* (16 bytes, chosen by the client) in one *epoch* (one life of it). Its commands to
one group are numbered 1, 2, 3, ... (`n`). The machine accepts n = last + 1 only. A lower n was done before, and the
answer says so. A higher n is refused, so a lost command is always noticed and sent again in order.
`Unnumbered` commands come from the members themselves and are idempotent instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from fifo.frozen_dataclasses import dataclass

MAX_NAME_BYTES = 255
"""Bytes of the longest name, in UTF-8: of a queue, policy, subscription, consumer (its tag), or producer of staged
batches."""
MAX_MESSAGE_TTL_MS = 1 << 53
"""The longest time to live of a message."""
MAX_DELAY_MS = 1 << 53
"""The longest delay of a message, and the latest time at which it may become ready."""
MAX_PRIORITY = 31
"""The highest priority that a queue may have. A message may name a higher one: its queue lowers it."""
OVERFLOWS = ("drop_head", "reject_publish")
"""What a full queue does. Stored by number, like the words below: more are added at the end."""
DEAD_LETTER_STRATEGIES = ("none", "at_least_once", "at_most_once")
"""What becomes of messages that leave without having been settled. none: they are dropped, because there is no target.
at_most_once: they are dropped if the target does not take them."""
QUEUE_MODES = ("default", "lazy")
"""lazy: less stays in memory; it changes no reply or effect."""
Start = Literal["earliest", "latest"]
STARTS: tuple[Start, ...] = get_args(Start)
OnExpiry = Literal["release", "discard", "keep"]
ON_EXPIRY: tuple[OnExpiry, ...] = get_args(OnExpiry)


@dataclass(frozen=True, slots=True)
class Meta:
    """The index, time and machine version of a Raft entry. now_ms is group time: it never decreases."""

    index: int
    term: int
    now_ms: int
    version: int


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A session as its node knows it: (node number, boot number of that node's process, session number)."""

    node: int
    boot: int
    session: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The sender of a numbered command: a producer, its epoch, and the command's number."""

    producer: bytes
    epoch: int
    n: int


# ---- sessions

NODE = 0
"""The owner of a node's own sessions."""
UNKNOWN = 1
"""The owner of operations that name none, such as those of version 1."""


@dataclass(frozen=True, slots=True)
class RegisterProducer:
    """Begins an epoch in this group. Its origin has n = 0.

    A higher epoch fences lower ones and detaches their consumers. owner: NODE, or 64 bits of a hash of the client's
    address. An owner may have only a share of the producers that a group remembers. heard_ms: the group time that the
    session's node knew when the session was opened; 0 in version 1.
    """

    address: Address
    owner: int = UNKNOWN
    heard_ms: int = 0


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Ends the session: its consumers are detached, and their checked-out messages are requeued.

    is_clean: the producer knows the outcome of all its messages and will send none of them again, so the group need not
    remember it.
    """

    is_clean: bool = False


@dataclass(frozen=True, slots=True)
class NodeDown:
    """Unnumbered. Ends every session of this node's process `boot` and of its earlier processes."""

    node: int
    boot: int


# ---- messages


@dataclass(frozen=True, slots=True)
class Target:
    """The messages of a batch that are for one queue.

    ranges: (ordinal, count), ascending, with gaps between them. columns: the filter fields of these messages alone, in
    their order; empty where the queue keeps none.
    """

    queue: int
    ranges: tuple[tuple[int, int], ...]
    columns: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Enqueue:
    """One batch of one producer, for one queue or several.

    first_client_sequence..+count-1 are the producer's own numbers. A message that was accepted before is not accepted
    twice. lowest_unconfirmed lets the machine forget accepted numbers below it.
    ttl_ms: -1 none, else one for all; ttls_ms: one each (then ttl_ms is -1), -1 where none.
    columns: the filter fields as `quorum_selectors.columns` bytes; empty where the queue keeps none.
    independent: each message is accepted or refused by itself. Without it all are refused if one does not fit.
    immediate: a message is accepted only by those of its queues where a consumer can take it at once
    (consumers/takers.py), and refused if there is none. It has no due time.
    targets: the queues of the messages, each at most once; `queue` is 0 and `columns` is empty then. Every message has
    a target. A message is accepted for all of its queues or for none. Empty: all messages are for `queue`.
    numbers: with targets, the messages' own numbers as ranges (first, count), ascending; the first one begins with
    first_client_sequence. Empty: they are consecutive.
    priorities: one byte for all messages, or one each; empty: all are 0. Only queues with priorities look at them, and
    each lowers them to its own maximum.
    due_times_ms: when messages become ready. One for all messages, or one each; empty: at once. From 0 on a group time,
    below 0 the delay from the entry that takes the message.
    group_keys: the keys of message groups (messages/message_groups.py): 8 bytes for all messages, or 8 each; empty: no
    message has a group. Only queues with message groups look at them.
    """

    queue: int
    first_client_sequence: int
    lowest_unconfirmed: int
    count: int
    size_bytes: int
    ttl_ms: int = -1
    ttls_ms: Sequence[int] = ()
    columns: bytes | memoryview = b""
    independent: bool = False
    targets: tuple[Target, ...] = ()
    numbers: tuple[tuple[int, int], ...] = ()
    priorities: bytes | memoryview = b""
    due_times_ms: Sequence[int] = ()
    group_keys: bytes | memoryview = b""
    immediate: bool = False

    @property
    def mean_bytes(self) -> int:
        """The size of each message, as a limit on bytes counts it."""
        return self.size_bytes // self.count


MAX_CONSUMER_PRIORITY = 10
"""The highest priority of a consumer; the lowest is its negative."""


@dataclass(frozen=True, slots=True)
class Attach:
    """Adds a consumer. `selector` is the canonical encoding of an expression; empty means every message. priority: a
    consumer with a higher one is served first (consumers/checkout.py)."""

    queue: int
    consumer_tag: str
    selector: bytes
    credit_to: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Credit:
    queue: int
    consumer_tag: str
    credit_to: int
    drain: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends deliveries to a consumer. Its checked-out messages are requeued if requeue; else they may still be
    settled."""

    queue: int
    consumer_tag: str
    requeue: bool


@dataclass(frozen=True, slots=True)
class Get:
    """Delivers up to `count` ready messages now, to the session's own unnamed consumer. They are settled at once if
    `settled`."""

    queue: int
    count: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Settle:
    """tags: inclusive ranges (first, last) of delivery tags, ascending. Unknown tags are ignored (settled before).

    credit_to: 0 leaves the credit as it is. attach must be the consumer's present attachment.
    """

    queue: int
    consumer_tag: str
    attach: int
    tags: tuple[tuple[int, int], ...]
    credit_to: int = 0


@dataclass(frozen=True, slots=True)
class Return(Settle):
    """Requeues messages to their places, flagged as redelivered. That is no failed delivery."""


@dataclass(frozen=True, slots=True)
class Discard(Settle):
    """Rejects messages: they are dead-lettered, or dropped where no target is set."""


@dataclass(frozen=True, slots=True)
class Modify(Settle):
    """Requeues messages with changes. delivery_failed counts towards the delivery limit."""

    delivery_failed: bool = False
    undeliverable_here: bool = False


# ---- transactions (transactions.py)


@dataclass(frozen=True, slots=True)
class InTransaction:
    """A publish or a settlement that counts when the transaction commits. Until then the group keeps it embargoed.

    tx: the number that the producer gives the transaction, from 1 on. A new one has a higher number than all before.
    The first command that names a transaction begins it. command: an Enqueue or a settlement.
    The client sequences of an Enqueue do not count, and either all of its messages are accepted or none. All messages
    of a settlement have to be checked out. The credit that a settlement carries counts at once, not at the commit.
    """

    tx: int
    command: Enqueue | Settle

    @property
    def queue(self) -> int:
        return self.command.queue


@dataclass(frozen=True, slots=True)
class Commit:
    """Makes everything of a transaction count, in its order and in this entry. Or nothing of it, if it is refused.

    operations: the number of its settlements, and of its batches, counted once for each of their queues, as the
    session's node has sent them; 0 if the node does not know. A transaction with another number is refused.
    ranges: how many ranges of messages that may be, at most. Leaders bound the work of an entry by it; it decides
    nothing.
    """

    tx: int
    operations: int = 0
    ranges: int = 0


@dataclass(frozen=True, slots=True)
class Rollback:
    """Drops everything of a transaction. Messages that it settles stay checked out."""

    tx: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Makes a part of a transaction wait for the decision of another group (decisions.py). Nothing else ends it then.

    operations, ranges: as in Commit. record: the group that decides.
    """

    tx: int
    operations: int
    ranges: int
    record: int


@dataclass(frozen=True, slots=True)
class Decide:
    """Commits a transaction that has parts in other groups, where all of them are prepared.

    operations: as in Commit, of the part of this group. ranges: the most that a group has. groups: the others.
    """

    tx: int
    operations: int
    ranges: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Tells a group the decision about a part that it has prepared. ranges: as in Commit."""

    producer: bytes
    tx: int
    is_committed: bool
    ranges: int = 0


@dataclass(frozen=True, slots=True)
class Resolve:
    """Asks the group that decides for the decision. Without one, the transaction is rolled back for ever."""

    producer: bytes
    tx: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Tells the group that has decided that all others have finished."""

    producer: bytes
    tx: int


# ---- durable subscriptions


@dataclass(frozen=True, slots=True)
class OpenSubscription:
    """Makes a subscription, or begins its next generation. Readers with an older generation are fenced.

    subscription: 1 to 255 bytes of UTF-8, unique in the queue. selector: as in Attach. start, used only when the
    subscription is new: "earliest" every message, "latest" those published from now on. timeout_ms: after this silence
    `on_expiry` is done with its outstanding messages. owner: whose share of the subscriptions it counts towards, as in
    RegisterProducer. found: the generation that the caller found, 0 for no subscription, None for any. An opening that
    arrives late therefore fences no later one.
    """

    queue: int
    subscription: str
    selector: bytes
    start: Start
    timeout_ms: int
    on_expiry: OnExpiry
    owner: int = UNKNOWN
    found: int | None = None


@dataclass(frozen=True, slots=True)
class Reserve:
    """Asks for the reservation with offset after + 1: a new one if `after` is the last, else the existing one."""

    queue: int
    subscription: str
    generation: int
    after: int
    max_messages: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SettleReserved:
    """Settles the reservations up to offset `to`. One entry settles the first of them, or several small ones, so the
    caller repeats the command until `settled` has reached `to`."""

    queue: int
    subscription: str
    generation: int
    to: int


@dataclass(frozen=True, slots=True)
class KeepSubscription:
    """Says that the subscription is alive: its silence begins again."""

    queue: int
    subscription: str
    generation: int


@dataclass(frozen=True, slots=True)
class ReleaseSubscription:
    """Requeues all messages of a subscription. last: the newest offset that the caller found, None for any. A release
    that arrives late therefore requeues nothing that was reserved since."""

    queue: int
    subscription: str
    generation: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteSubscription:
    """Requeues all messages of a subscription and deletes it. generation: the one that the caller found, None for any.
    A deletion that arrives late therefore deletes no subscription that was opened since."""

    queue: int
    subscription: str
    generation: int | None = None


# ---- pins


@dataclass(frozen=True, slots=True)
class Pin:
    """Keeps the messages that are ready now readable for ttl_ms, even if they leave the queue. owner: as in
    OpenSubscription."""

    queue: int
    ttl_ms: int
    owner: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Unpin:
    queue: int
    pin: int


# ---- staging: parts of messages that become visible all at once (staging.py)


@dataclass(frozen=True, slots=True)
class Stage:
    """One chunk of a part; its messages are not visible.

    producer: a name of 1..255 bytes of UTF-8 that outlives sessions, unlike an `Origin`'s. batch: its batches ascend,
    0..2^63-1. part: 16 bytes, chosen by the writer. chunk: 0, 1, 2, ... in each part. The rest as in Enqueue.
    """

    queue: int
    producer: str
    batch: int
    part: bytes
    chunk: int
    count: int
    size_bytes: int
    ttl_ms: int = -1
    ttls_ms: Sequence[int] = ()
    columns: bytes | memoryview = b""
    priorities: bytes | memoryview = b""
    group_keys: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class PublishStaged:
    """Makes the parts visible in this order, all in one entry. Each part is given as (part, number of messages). owner:
    as in OpenSubscription, for the share of remembered producers. staged_to: a part with a chunk in a later entry does
    not count; 0 for no limit."""

    queue: int
    producer: str
    batch: int
    parts: tuple[tuple[bytes, int], ...]
    owner: int = UNKNOWN
    staged_to: int = 0


@dataclass(frozen=True, slots=True)
class DiscardStaged:
    """Drops these parts of a batch, or the whole batch if none is named. Unknown parts are ignored. forget: the
    producer is never used again, and the queue forgets its last batch."""

    queue: int
    producer: str
    batch: int
    parts: tuple[bytes, ...] = ()
    forget: bool = False


# ---- administration


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """A queue's effective arguments, checked and normalised by the catalog. -1 stands for no limit.

    max_length_bytes: of the bodies of ready and delayed messages. max_consumers: consumers of sessions that may be
    attached. expires_ms: after so long without use the queue is deleted. max_priority: the highest priority of its
    messages, -1 if it has no priorities; it never changes. delayed_retry_min_ms: the delay of requeued messages for
    each of their failed deliveries. delayed_retry_max_ms: its maximum.
    dead_letter_exchange, dead_letter_routing_key: the target of dead letters; the strategy says whether there is one.
    An empty key stands for the queue's name.
    """

    name: str
    filter_enabled: bool = False
    filter_field_names: tuple[str, ...] = ()
    filter_max_in_memory_bytes_per_msg: int = -1
    max_length: int = -1
    overflow: str = "drop_head"  # of OVERFLOWS
    message_ttl_ms: int = -1
    delivery_limit: int = -1
    queue_mode: str = "default"  # of QUEUE_MODES
    single_active_consumer: bool = False  # fixed when the queue is made
    consumer_timeout_ms: int = -1
    max_length_bytes: int = -1
    max_consumers: int = -1
    expires_ms: int = -1
    max_priority: int = -1
    delayed_retry_min_ms: int = -1
    delayed_retry_max_ms: int = -1
    message_groups: bool = False  # fixed when the queue is made
    dead_letter_strategy: str = "none"  # of DEAD_LETTER_STRATEGIES
    dead_letter_exchange: str = ""
    dead_letter_routing_key: str = ""


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """Unnumbered, idempotent. A queue id is never used again."""

    queue: int
    config: QueueConfig


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Unnumbered, idempotent."""

    queue: int
    config: QueueConfig


@dataclass(frozen=True, slots=True)
class Configured:
    """Unnumbered, idempotent. Every queue here has the configuration of this revision of the policies, or a later one.

    mark: lets a leader recognise its own command; it has no other use.
    """

    revision: int
    mark: int = 0


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Unnumbered, idempotent."""

    queue: int


@dataclass(frozen=True, slots=True)
class UseQueue:
    """Says that the queue is in use, because it was declared again: its time without use begins again."""

    queue: int


@dataclass(frozen=True, slots=True)
class Purge:
    """Drops ready, delayed and dead messages; checked-out messages stay. before: only messages with a lower sequence,
    None for all. The caller names the queue's next sequence, so a purge that arrives late drops nothing that was
    published since. dead_only: ready and delayed messages stay, too.

    One purge drops the messages of a bounded number of blocks, the oldest first. The caller repeats it until the reply
    counts no message."""

    queue: int
    before: int | None = None
    dead_only: bool = False


# ---- dead letters (messages/dead_letters.py)


PRODUCER_BYTES = 16
"""Bytes of a producer's name."""
MAX_PROBLEM = 200
"""Characters that are kept of why a dead-letter target takes nothing."""


@dataclass(frozen=True, slots=True)
class ClaimDead:
    """Of no client. A worker begins to bring a queue's dead messages to their target. Some of them get numbers.

    epoch: of the worker, higher than those of all before it; refused otherwise, so only one worker has an epoch.
    producer: PRODUCER_BYTES random bytes, which become the name of the queue's producer if it has none yet.
    """

    queue: int
    epoch: int
    producer: bytes


@dataclass(frozen=True, slots=True)
class SettleDead:
    """Of no client; idempotent. The dead messages with numbers up to `to` are gone, and others get numbers. Refused if
    a later worker has begun.

    epoch: of the worker. forwarded: how many of those that are gone the target has; the others were dropped. again_to:
    messages with numbers up to this one lose them, and get new ones. problem: why the target does not take the next
    one; empty if nothing is known against it. With a problem, no message gets a number: the worker may not have begun,
    and what has a number from an earlier worker counts as sent by it.
    """

    queue: int
    epoch: int
    to: int = 0
    forwarded: int = 0
    again_to: int = 0
    problem: str = ""


# ---- time and versions


@dataclass(frozen=True, slots=True)
class Wake:
    """Unnumbered. The group time `next_wake` has come: continues expiry, scans and work that a budget cut short."""


@dataclass(frozen=True, slots=True)
class SetVersion:
    """Unnumbered. Sets the machine version of the next entries."""

    version: int


Command = (
    RegisterProducer
    | CloseSession
    | NodeDown
    | Enqueue
    | Attach
    | Credit
    | Cancel
    | Get
    | Settle
    | InTransaction
    | Commit
    | Rollback
    | Prepare
    | Decide
    | Finish
    | Resolve
    | Finished
    | OpenSubscription
    | Reserve
    | SettleReserved
    | KeepSubscription
    | ReleaseSubscription
    | DeleteSubscription
    | Pin
    | Unpin
    | Stage
    | PublishStaged
    | DiscardStaged
    | CreateQueue
    | UpdateConfig
    | Configured
    | DeleteQueue
    | UseQueue
    | Purge
    | ClaimDead
    | SettleDead
    | Wake
    | SetVersion
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One command of a Raft entry. `number` is its place in the entry (it names the batch of an Enqueue or Stage)."""

    number: int
    origin: Origin | None
    command: Command
