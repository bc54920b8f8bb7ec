"""The fields of commands, and of the records that both commands and states have, in the order in which they are written
(fifo/records.py). `persistence/layouts.py` has those of snapshots.

To add a field: one line here, at the end of its record, with the machine version that it comes with and its default;
the field in its class; and its meaning behind `if entry.version >= ...` where behaviour differs. docs/changing.md
says more.

Enqueue, Stage, Credit, Settle and its kin are packed by hand in quorum/node/wire/operations.py, because they are a
member's daily work. A test compares those layouts with the descriptions.
"""

from __future__ import annotations

from fifo import commands as c
from fifo.kinds import (
    BYTES,
    FLAG,
    I64,
    NAME,
    NAMED,
    NAMES,
    OPEN_TEXT,
    OPTIONAL,
    TEXT,
    U32,
    U64,
    Choice,
    Items,
    Kind,
    Parts,
    Tuple,
)
from fifo.numbering import Fence
from fifo.records import Field, Record

ADDRESS = Tuple("IQQ", c.Address, "node", "boot", "session")
TAGS = Items("QQ")
MILLISECONDS = Items("q", counts_bytes=True)
GROUPS = Items("Q")

CONFIG = Record(
    c.QueueConfig,
    (
        Field("name", TEXT),
        Field("filter_enabled", FLAG),
        Field("filter_field_names", NAMES),
        Field("filter_max_in_memory_bytes_per_msg", I64),
        Field("max_length", I64),
        Field("overflow", Choice(*c.OVERFLOWS)),
        Field("message_ttl_ms", I64),
        Field("delivery_limit", I64),
        Field("queue_mode", Choice(*c.QUEUE_MODES)),
        Field("single_active_consumer", FLAG, since=2, default=False),
        Field("consumer_timeout_ms", I64, since=2, default=-1),
        Field("max_length_bytes", I64, since=2, default=-1),
        Field("max_consumers", I64, since=2, default=-1),
        Field("expires_ms", I64, since=2, default=-1),
        Field("max_priority", I64, since=2, default=-1),
        Field("delayed_retry_min_ms", I64, since=2, default=-1),
        Field("delayed_retry_max_ms", I64, since=2, default=-1),
        Field("message_groups", FLAG, since=2, default=False),
        Field("dead_letter_strategy", Choice(*c.DEAD_LETTER_STRATEGIES), since=2, default="none"),
        Field("dead_letter_exchange", TEXT, since=2, default=""),
        Field("dead_letter_routing_key", TEXT, since=2, default=""),
    ),
)
FENCE = Record(Fence, (Field("epoch", U64), Field("ended_ms", U64)))

SETTLE = (
    Field("consumer_tag", TEXT),
    Field("attach", U64),
    Field("tags", TAGS),
    Field("credit_to", U64),
)


def _subscription(kind: type, *rest: Field) -> Record:
    return Record(kind, (Field("subscription", NAME), *rest))


def _only(kind: type, **numbers: Kind) -> Record:
    return Record(kind, tuple(Field(name, number) for name, number in numbers.items()))


COMMANDS: tuple[Record, ...] = (
    Record(
        c.RegisterProducer,
        (
            Field("address", ADDRESS),
            Field("owner", U64, since=2, default=c.UNKNOWN),
            Field("heard_ms", U64, since=2, default=0),
        ),
    ),
    Record(c.CloseSession, (Field("is_clean", FLAG, since=2, default=False),)),
    _only(c.NodeDown, node=U32, boot=U64),
    Record(
        c.Enqueue,
        (
            Field("first_client_sequence", U64),
            Field("lowest_unconfirmed", U64),
            Field("count", U32),
            Field("size_bytes", U64),
            Field("ttl_ms", I64),
            Field("columns", BYTES),
            Field("ttls_ms", MILLISECONDS),
        ),
        others=(
            "independent",
            "immediate",
            "targets",
            "numbers",
            "priorities",
            "due_times_ms",
            "group_keys",
        ),  # in the operation: see quorum/node/wire/operations.py
        has_body=True,
    ),
    Record(
        c.Attach,
        (
            Field("consumer_tag", TEXT),
            Field("selector", BYTES),
            Field("credit_to", U64),
            Field("priority", I64, since=2, default=0),
        ),
    ),
    Record(c.Credit, (Field("credit_to", U64), Field("drain", FLAG), Field("consumer_tag", OPEN_TEXT))),
    Record(c.Cancel, (Field("requeue", FLAG), Field("consumer_tag", OPEN_TEXT))),
    _only(c.Get, count=U32, settled=FLAG),
    Record(c.Settle, SETTLE),
    Record(c.Return, SETTLE),
    Record(c.Discard, SETTLE),
    Record(
        c.Modify,
        (*SETTLE, Field("delivery_failed", FLAG, is_apart=True), Field("undeliverable_here", FLAG)),
    ),
    Record(c.Commit, (Field("tx", U64), Field("operations", U32), Field("ranges", U32)), since=2),
    Record(c.Rollback, (Field("tx", U64),), since=2),
    Record(
        c.Prepare,
        (Field("tx", U64), Field("operations", U32), Field("ranges", U32), Field("record", U64)),
        since=2,
    ),
    Record(
        c.Decide,
        (Field("tx", U64), Field("operations", U32), Field("ranges", U32), Field("groups", GROUPS)),
        since=2,
    ),
    Record(
        c.Finish,
        (Field("producer", BYTES), Field("tx", U64), Field("is_committed", FLAG), Field("ranges", U32)),
        since=2,
    ),
    Record(c.Resolve, (Field("producer", BYTES), Field("tx", U64)), since=2),
    Record(c.Finished, (Field("producer", BYTES), Field("tx", U64)), since=2),
    _only(c.DeleteQueue),
    Record(c.UseQueue, (), since=2),
    Record(
        c.Purge,
        (
            Field("dead_only", FLAG, since=2, default=False),
            Field("before", OPTIONAL, since=2, default=None),
        ),
    ),
    Record(c.ClaimDead, (Field("epoch", U64), Field("producer", BYTES)), since=2),
    Record(
        c.SettleDead,
        (
            Field("epoch", U64),
            Field("to", U64),
            Field("forwarded", U64),
            Field("again_to", U64),
            Field("problem", OPEN_TEXT),
        ),
        since=2,
    ),
    _only(c.Wake),
    _only(c.SetVersion, version=U64),
    _only(c.Configured, revision=U64, mark=U64),
    _subscription(
        c.OpenSubscription,
        Field("selector", BYTES),
        Field("timeout_ms", U64),
        Field("start", Choice(*c.STARTS)),
        Field("on_expiry", Choice(*c.ON_EXPIRY)),
        Field("owner", U64, since=2, default=c.UNKNOWN),
        Field("found", OPTIONAL, since=2, default=None),
    ),
    _subscription(
        c.Reserve,
        Field("generation", U64),
        Field("after", U64),
        Field("max_messages", U64),
        Field("max_bytes", U64),
    ),
    _subscription(c.SettleReserved, Field("generation", U64), Field("to", U64)),
    _subscription(c.KeepSubscription, Field("generation", U64)),
    _subscription(
        c.ReleaseSubscription, Field("generation", U64), Field("last", OPTIONAL, since=2, default=None)
    ),
    _subscription(c.DeleteSubscription, Field("generation", OPTIONAL, since=2, default=None)),
    Record(c.Pin, (Field("ttl_ms", U64), Field("owner", U64, since=2, default=c.UNKNOWN))),
    _only(c.Unpin, pin=U64),
    Record(
        c.Stage,
        (
            Field("batch", U64),
            Field("part", NAMED),
            Field("chunk", U32),
            Field("count", U32),
            Field("size_bytes", U64),
            Field("ttl_ms", I64),
            Field("producer", TEXT),
            Field("columns", BYTES),
            Field("ttls_ms", MILLISECONDS),
        ),
        others=("priorities", "group_keys"),
        has_body=True,
    ),
    Record(
        c.PublishStaged,
        (
            Field("producer", TEXT),
            Field("batch", U64),
            Field("parts", Parts("16sQ")),
            Field("owner", U64, since=2, default=c.UNKNOWN),
            Field("staged_to", U64, since=2, default=0),
        ),
    ),
    Record(
        c.DiscardStaged,
        (
            Field("producer", TEXT),
            Field("batch", U64),
            Field("parts", Parts("16s")),
            Field("forget", FLAG, since=2, default=False),
        ),
    ),
)
