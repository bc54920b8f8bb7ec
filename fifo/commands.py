"""What can be asked of a group of queues. Read this first, then effects.py.

Every command is a frozen record of plain values: what a member decodes from one operation of a Raft entry. Nothing
here holds a message body; a body is named by where its batch stands in the log (Raft index, operation, ordinal).

Numbering. A session is a *producer* (16 bytes, chosen by the client) in one *epoch* (one life of it). Its commands to
one group are numbered 1, 2, 3, ... (`n`). The machine takes n = last + 1 only: a lower n was done before and is
answered as such, a higher n is refused, so that a lost command is always noticed and sent again in order.
`Unnumbered` commands come from the members themselves and are idempotent instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Meta:
    """Where and when a Raft entry is applied. now_ms is group time: it never goes back."""

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
    """Who sends a numbered command."""

    producer: bytes
    epoch: int
    n: int


# ---- sessions

NODE = 0
"""The owner of a node's own sessions."""
UNKNOWN = 1
"""The owner where none is given, as in operations of version 1."""


@dataclass(frozen=True, slots=True)
class RegisterProducer:
    """Begins an epoch in this group. Its origin has n = 0.

    A higher epoch fences lower ones and detaches their consumers. owner: NODE, or 64 bits of a hash of the client's
    address: one owner may have a part of the producers that a group remembers. heard_ms: the group's time as the
    session's node knew it when the session was opened; 0 as of version 1.
    """

    address: Address
    owner: int = UNKNOWN
    heard_ms: int = 0


@dataclass(frozen=True, slots=True)
class CloseSession:
    """The session ends: its consumers are detached, what they hold is returned.

    is_clean: the producer knows what has become of all its messages and will send none of them again, so it need not
    be remembered.
    """

    is_clean: bool = False


@dataclass(frozen=True, slots=True)
class NodeDown:
    """Unnumbered. Every session of this node's process `boot`, or of an earlier one, has ended."""

    node: int
    boot: int


# ---- messages


@dataclass(frozen=True, slots=True)
class Enqueue:
    """One batch of one producer for one queue.

    first_client_sequence..+count-1 are the producer's own numbers; what is already accepted is not taken twice.
    lowest_unconfirmed lets the machine forget accepted numbers below it.
    ttl_ms: -1 none, else one for all; ttls_ms: one each (then ttl_ms is -1), -1 where none.
    columns: the filter fields as `quorum_selectors.columns` bytes; empty where the queue keeps none.
    """

    queue: int
    first_client_sequence: int
    lowest_unconfirmed: int
    count: int
    size_bytes: int
    ttl_ms: int = -1
    ttls_ms: Sequence[int] = ()
    columns: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Attach:
    """Adds a consumer. `selector` is the canonical encoding of an expression; empty means every message."""

    queue: int
    consumer_tag: str
    selector: bytes
    credit_to: int


@dataclass(frozen=True, slots=True)
class Credit:
    queue: int
    consumer_tag: str
    credit_to: int
    drain: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """No more deliveries. Messages held are returned if return_held, else they may still be settled."""

    queue: int
    consumer_tag: str
    return_held: bool


@dataclass(frozen=True, slots=True)
class Get:
    """Takes up to `count` ready messages now, for the session's own unnamed consumer; settled at once if `settled`."""

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
    """Back to their places in the queue, flagged as redelivered; not a failure."""


@dataclass(frozen=True, slots=True)
class Discard(Settle):
    """Refused by the consumer: dead-lettered, dropped where no target is set."""


@dataclass(frozen=True, slots=True)
class Modify(Settle):
    """Back to the queue with changes: delivery_failed counts against the delivery limit."""

    delivery_failed: bool = False
    undeliverable_here: bool = False


# ---- durable subscriptions


@dataclass(frozen=True, slots=True)
class OpenSubscription:
    """Makes a subscription, or begins its next generation: whoever reads with an older one is fenced.

    subscription: 1 to 255 bytes of UTF-8, unique in the queue. selector: as in Attach. start, used only when the
    subscription is new: "earliest" every message, "latest" those published from now on. timeout_ms: after this silence
    `on_expiry` is done with what it holds. owner: the share of subscriptions that it counts for, as in
    RegisterProducer. found: the generation that the caller found, 0 for no subscription, None for any. So an opening
    that arrives late fences no later one.
    """

    queue: int
    subscription: str
    selector: bytes
    start: Literal["earliest", "latest"]
    timeout_ms: int
    on_expiry: Literal["release", "discard", "keep"]
    owner: int = UNKNOWN
    found: int | None = None


@dataclass(frozen=True, slots=True)
class Reserve:
    """The reservation with offset after + 1: a new one if `after` is the last, else the one that was made before."""

    queue: int
    subscription: str
    generation: int
    after: int
    max_messages: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SettleReserved:
    """Done with the reservations up to offset `to`: one entry settles the first of them, or several that are small, so
    it is sent until `settled` is there."""

    queue: int
    subscription: str
    generation: int
    to: int


@dataclass(frozen=True, slots=True)
class KeepSubscription:
    """The subscription is alive."""

    queue: int
    subscription: str
    generation: int


@dataclass(frozen=True, slots=True)
class ReleaseSubscription:
    """Everything it holds goes back to its places. last: the newest offset that the caller found, None for any: a
    release that arrives late gives nothing back that was reserved since."""

    queue: int
    subscription: str
    generation: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteSubscription:
    """Like ReleaseSubscription, and the subscription is forgotten. generation: None for any. The caller names the one
    that it found: a deletion that arrives late takes no subscription that was opened since."""

    queue: int
    subscription: str
    generation: int | None = None


# ---- pins


@dataclass(frozen=True, slots=True)
class Pin:
    """Keeps which messages are ready now, to be read for ttl_ms, whatever becomes of them. owner: as in
    OpenSubscription."""

    queue: int
    ttl_ms: int
    owner: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Unpin:
    queue: int
    pin: int


# ---- staging: messages that wait in parts until all of them become visible at once (staging.py)


@dataclass(frozen=True, slots=True)
class Stage:
    """One chunk of a part; its messages are not visible.

    producer: a name of 1..255 bytes of UTF-8 that outlives sessions, unlike an `Origin`'s. batch: its batches ascend,
    0..2^63-1. part: 16 bytes, chosen by who writes it. chunk: 0, 1, 2, ... in each part. The rest as in Enqueue.
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


@dataclass(frozen=True, slots=True)
class PublishStaged:
    """The parts (part, how many messages it has) become visible in this order, all in one entry. owner: as in
    OpenSubscription, of the producers that are remembered."""

    queue: int
    producer: str
    batch: int
    parts: tuple[tuple[bytes, int], ...]
    owner: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class DiscardStaged:
    """Drops these parts of a batch, or all of it if none is named. Parts that are not there are passed over."""

    queue: int
    producer: str
    batch: int
    parts: tuple[bytes, ...] = ()


# ---- administration


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """A queue's effective arguments, checked and normalised by the catalog. -1 stands for no limit."""

    name: str
    filter_enabled: bool = False
    filter_field_names: tuple[str, ...] = ()
    filter_max_in_memory_bytes_per_msg: int = -1
    max_length: int = -1
    overflow: str = "drop_head"  # or "reject_publish"
    message_ttl_ms: int = -1
    delivery_limit: int = -1
    queue_mode: str = "default"  # or "lazy": what stays in memory, which decides nothing


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
    """Unnumbered, idempotent. Every queue here is configured as the catalog wished at this revision or later.

    mark: by which a leader knows it again; nothing else goes by it.
    """

    revision: int
    mark: int = 0


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Unnumbered, idempotent."""

    queue: int


@dataclass(frozen=True, slots=True)
class Purge:
    """Removes what is ready; what is held stays. before: only messages with a lower sequence, None for all. The caller
    names the queue's next sequence: a purge that arrives late removes nothing that was published since."""

    queue: int
    before: int | None = None


@dataclass(frozen=True, slots=True)
class Wake:
    """Unnumbered. Time has come (`next_wake`): go on with expiry, scans and whatever a budget has cut short."""


@dataclass(frozen=True, slots=True)
class SetVersion:
    """Unnumbered. From the next entry on, apply as machine version `version`."""

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
    | Purge
    | Wake
    | SetVersion
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One command of a Raft entry. `number` is its place in the entry (it names the batch of an Enqueue or Stage)."""

    number: int
    origin: Origin | None
    command: Command
