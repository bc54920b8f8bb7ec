"""The fields of the records in snapshots and checkpoints, in the order in which they are written (fifo/records.py).

To add a field: one line here, at the end of its record, with the machine version that it comes with and its default,
and the field in its class. A state has the field from the switch to that version on. Some things of version 2 stand
behind the parts of version 1, whose states end there: the values behind all records of a list (`..._OWNER`,
HAS_UNTOLD_LOSS, USED_MS, TEXTS), and records of their own (FENCES, EXPIRED, MARKS).
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from fifo.codec import Reader, Writer
from fifo.commands import ON_EXPIRY, UNKNOWN
from fifo.consumers.consumer import CheckedOut, Consumer
from fifo.decisions import Decision, Prepared
from fifo.embargo import EmbargoedBatch, EmbargoedSettlement, Outcome
from fifo.group_state import GroupState
from fifo.kinds import BYTES, FLAG, I64, TEXT, U64, Coded, Column, Many, Maybe, Row
from fifo.layouts import ADDRESS, FENCE
from fifo.messages.dead_letters import Claim
from fifo.messages.life import COUNTED
from fifo.number_ranges import NumberRanges
from fifo.numbering import Fences
from fifo.pins import QueuePin
from fifo.producers import Producer
from fifo.queue_machine import IN_USE, QueueMachine
from fifo.records import Field, Record
from fifo.staging import LastBatch, Part
from fifo.subscriptions import Disposition, Reservation, Subscription
from fifo.transactions import Transaction

UNKNOWN_COUNT = -1
"""In place of a count that states of version 1 do not have."""
MANY = 16
"""Numbers from which on writing them together is faster than one by one."""


class _CheckedOut:
    """The runs of a consumer: their tags, sequences and counts."""

    def write(self, out: Writer, checked_out: CheckedOut) -> None:
        out.column(checked_out.tags)
        out.column(checked_out.sequences)
        out.column(checked_out.counts)

    def read(self, reader: Reader) -> CheckedOut:
        checked_out = CheckedOut()
        checked_out.tags, checked_out.sequences, checked_out.counts = (
            reader.column("Q"),
            reader.column("Q"),
            reader.column("I"),
        )
        checked_out.total = sum(checked_out.counts)
        return checked_out


class NumberRangesKind:
    """The first and the last number of each range, after their number."""

    def write(self, out: Writer, ranges: NumberRanges) -> None:
        out.number(len(ranges))
        if len(ranges) < MANY:
            out.numbers(chain.from_iterable(ranges))
        else:
            pairs = np.stack(
                (np.frombuffer(ranges.firsts, "=u8"), np.frombuffer(ranges.lasts, "=u8")), axis=1
            )
            out.many_numbers(pairs.ravel())

    def read(self, reader: Reader) -> NumberRanges:
        return NumberRanges([(reader.number(), reader.number()) for _ in range(reader.number())])


class _Counts:
    """A number for each cause of COUNTED."""

    def write(self, out: Writer, counts: dict[str, int]) -> None:
        for cause in COUNTED:
            out.number(counts[cause])

    def read(self, reader: Reader) -> dict[str, int]:
        return {cause: reader.number() for cause in COUNTED}


def _sorted_items(value: dict[int, Any]) -> list[tuple[int, Any]]:
    return sorted(value.items())


NUMBERS = Many(U64)
RANGES = Many(Row(U64, U64))
KEYS = Many(U64, dict.fromkeys)
CHECKED_OUT = _CheckedOut()
OWNER = Field("owner", U64, since=2, default=UNKNOWN)
"""of producers, subscriptions, pins, and producers of staged batches; behind all of them"""

# ---- a group

BEGINNING = Record(
    GroupState, (Field("index", U64), Field("now_ms", U64), Field("version", U64), Field("running_hash", U64))
)
"""It is read before the version is known: no field can be added."""
GROUP = Record(
    GroupState,
    (
        Field("configured", U64),
        Field("deleted", Column("Q")),
        Field("backlog", KEYS),
        Field("sessions.departed", Many(Row(U64, U64), dict, _sorted_items)),
        Field("sessions.departing", Many(U64, dict.fromkeys, sorted)),
    ),
)
PRODUCER = Record(
    Producer,
    (
        Field("name", BYTES),
        Field("epoch", U64),
        Field("address", ADDRESS),
        Field("last_n", U64),
        Field("floor", U64),
        Field("ended_ms", I64),
        Field("accepted", NumberRangesKind()),
        Field("consumers", Many(Row(U64, TEXT), dict.fromkeys)),
    ),
    others=("counted", "owner", "last_tx", "unnamed_tx", "committed", "open_tx"),
)
PRODUCERS = Many(PRODUCER)
ENDED = Many(BYTES, dict.fromkeys)
FENCES = Record(
    Fences,
    (Field("by_name", Many(Row(BYTES, FENCE), dict, dict.items)), Field("lost_ms", I64)),
)

EXPIRED = Record(GroupState, (Field("expired", KEYS),))
# ---- its transactions, and what producers have committed: there only if a producer has named a transaction

NAMED_TX = Many(Row(BYTES, U64, NumberRangesKind()))
"""of each producer that has named a transaction: its name, its highest number, and those that were committed"""
UNNAMED_TX = Many(Row(BYTES, NumberRangesKind()))
"""of each producer that has left out numbers of transactions: its name, and these numbers"""
TRANSACTION = Record(
    Transaction,
    (Field("producer.name", BYTES), Field("number", U64), Field("began_ms", U64)),
    others=("queues", "operations", "messages", "size_bytes", "ranges"),
)
TRANSACTIONS = Many(TRANSACTION)
PREPARED = Record(
    Prepared,
    (
        Field("producer", BYTES),
        Field("owner", U64),
        Field("number", U64),
        Field("record", U64),
        Field("prepared_ms", U64),
    ),
    others=("queues", "messages", "size_bytes", "ranges"),
)
DECISION = Record(
    Decision,
    (
        Field("producer", BYTES),
        Field("owner", U64),
        Field("number", U64),
        Field("decided_ms", U64),
        Field("ranges", U64),
        Field("groups", Many(U64, tuple)),
    ),
)
PREPARED_PARTS, DECISIONS = Many(PREPARED), Many(DECISION)
"""Behind the transactions: there only if a part is prepared, or a decision is not finished everywhere."""

# ---- a queue

CLAIM = Record(
    Claim,
    (
        Field("number", U64),
        Field("sequence", U64),
        Field("count", U64),
        Field("time_ms", U64),
        Field("epoch", U64),
    ),
)
QUEUE = Record(
    QueueMachine,
    (
        Field("messages.next_sequence", U64),
        Field("consumers.next_attach", U64),
        Field("unfinished", FLAG),
        Field("messages.dropped", _Counts()),
        Field("messages.settled_count", U64, since=2, default=UNKNOWN_COUNT),
        Field("messages.purged_count", U64, since=2, default=0),
        Field("messages.returned_count", U64, since=2, default=0),
        Field("messages.redelivered_count", U64, since=2, default=0),
        Field("used_ms", I64, since=2, default=IN_USE),
        Field("messages.filed_to", U64, since=2, default=0),
        Field("messages.dead.last_number", U64, since=2, default=0),
        Field("messages.dead.epoch", U64, since=2, default=0),
        Field("messages.dead.forwarded_count", U64, since=2, default=0),
        Field("messages.dead.problem", TEXT, since=2, default=""),
        Field("messages.dead.claims", Many(CLAIM, tuple), since=2, default=()),
        Field("messages.dead.producer", BYTES, since=2, default=b""),
    ),
)
CONSUMER = Record(
    Consumer,
    (
        Field("producer", BYTES),
        Field("tag", TEXT),
        Field("address", ADDRESS),
        Field("attach", U64),
        Field("credit_to", U64),
        Field("next_tag", U64),
        Field("selector", Maybe(BYTES)),
        Field("checked_out", CHECKED_OUT),
        Field("priority", I64, since=2, default=0),
        Field("is_active", FLAG, since=2, default=True),
        Field("timed_out", Maybe(CHECKED_OUT), since=2, default=None),
    ),
    others=("group", "key", "max_checked_out", "owner", "embargoed", "embargoed_count"),
)
CONSUMERS = Many(CONSUMER)
MARKS = Many(Row(U64, Many(Row(U64, U64))))
"""Of the consumer timeout: time, then places and tags of consumers."""

# ---- its subscriptions

RESERVATION = Record(
    Reservation,
    (
        Field("offset", U64),
        Field("first_tag", U64),
        Field("count", U64),
        Field("size_bytes", U64),
        Field("index", U64),
        Field("time_ms", U64),
        Field("is_complete", FLAG),
        Field("opens", U64),
        Field("disposition", Coded(*Disposition)),
    ),
)
SUBSCRIPTION = Record(
    Subscription,
    (
        Field("consumer.tag", TEXT),
        Field("generation", U64),
        Field("start_sequence", U64),
        Field("timeout_ms", U64),
        Field("on_expiry", Coded(*ON_EXPIRY)),
        Field("last_seen_ms", U64),
        Field("settled", U64),
        Field("last", U64),
        Field("consumer.next_tag", U64),
        Field("consumer.checked_out", CHECKED_OUT),
        Field("reservations", Many(RESERVATION)),
        Field("released", RANGES),
    ),
    others=("has_untold_loss", "owner"),
)
SUBSCRIPTIONS = Many(SUBSCRIPTION)
HAS_UNTOLD_LOSS = Field("has_untold_loss", FLAG, since=2, default=False)

# ---- its pins

PIN = Record(
    QueuePin,
    (
        Field("number", U64),
        Field("index", U64),
        Field("made_ms", U64),
        Field("expires_ms", U64),
        Field("first_sequence", U64),
        Field("end_sequence", U64),
        Field("count", U64),
        Field("copy_bytes", U64),
        Field("blocks", KEYS),
    ),
    others=("owner",),
)
PINS = Many(PIN)

# ---- its staged parts

PART = Record(
    Part,
    (
        Field("last_ms", U64),
        Field("indexes", Column("Q")),
        Field("operations", Column("I")),
        Field("counts", Column("I")),
        Field("sizes", Column("Q")),
        Field("ttl_counts", Column("I")),
        Field("ttls", Column("q")),
    ),
    others=("rows", "size_bytes", "texts", "priorities", "group_keys"),
)
PARTS = Many(Row(Row(TEXT, U64, BYTES), PART), dict, dict.items)
"""by producer, batch and name"""
TEXTS = Field("texts", Column("I"))
"""There only if a chunk has long texts, priorities or group keys."""
PRIORITIES = Field("priorities", Many(Row(U64, BYTES), dict, dict.items))
"""There only if a chunk has priorities or group keys."""
GROUP_KEYS = Field("group_keys", Many(Row(U64, BYTES), dict, dict.items))
"""There only if a chunk has group keys."""
LAST_BATCH = Record(LastBatch, (Field("number", U64),), others=("used_ms", "owner"))
LAST_BATCHES = Many(Row(TEXT, LAST_BATCH), dict, dict.items)
USED_MS = Field("used_ms", U64, since=2, default=0)

# ---- its embargo, behind the staged parts: there only if it has parts

EMBARGOED_BATCH = Record(
    EmbargoedBatch,
    (
        Field("index", U64),
        Field("operation", U64),
        Field("batch_count", U64),
        Field("size_bytes", U64),
        Field("texts", U64),
        Field("ordinals", Column("I")),
        Field("counts", Column("I")),
        Field("ttls", Column("q")),
        Field("priorities", BYTES),
        Field("dues", Column("q")),
        Field("group_keys", BYTES),
    ),
)
EMBARGOED_SETTLEMENT = Record(
    EmbargoedSettlement,
    (
        Field("consumer_tag", TEXT),
        Field("attach", U64),
        Field("outcome", Coded(*Outcome)),
        Field("held", CHECKED_OUT),
    ),
)
