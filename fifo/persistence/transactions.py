"""Transactions as bytes: the end of a group's head, and the embargo of a queue, in snapshots and checkpoints."""

from __future__ import annotations

from fifo.codec import Reader, Writer
from fifo.embargo import Embargo, EmbargoedBatch
from fifo.group_state import GroupState
from fifo.persistence.layouts import (
    DECISIONS,
    EMBARGOED_BATCH,
    EMBARGOED_SETTLEMENT,
    NAMED_TX,
    PREPARED_PARTS,
    TRANSACTION,
    TRANSACTIONS,
    UNNAMED_TX,
)
from fifo.transactions import Transaction


def write_transactions(out: Writer, group: GroupState) -> None:
    """Nothing if no producer has named a transaction."""
    named = [each for each in group.sessions.producers.values() if each.last_tx]
    decisions = group.decisions
    are_waiting = bool(decisions.prepared or decisions.decided)
    if named or are_waiting:
        NAMED_TX.write(out, [(each.name, each.last_tx, each.committed) for each in named])
        TRANSACTIONS.write(out, group.transactions.by_key.values())
    with_gaps = [each for each in named if len(each.unnamed_tx)]
    if are_waiting or with_gaps:
        PREPARED_PARTS.write(out, decisions.prepared.values())
        DECISIONS.write(out, decisions.decided.values())
    if with_gaps:
        UNNAMED_TX.write(out, [(each.name, each.unnamed_tx) for each in with_gaps])


def read_transactions(reader: Reader, group: GroupState) -> None:
    """Reads the transactions without their parts, which are in the queues."""
    producers = group.sessions.producers
    for name, last_tx, committed in NAMED_TX.read(reader):
        producers[name].last_tx, producers[name].committed = last_tx, committed
    for _ in range(reader.number()):
        found = TRANSACTION.read_fields(reader)
        group.transactions.add(Transaction(producers[found.pop("producer.name")], **found))
    if not reader.is_at_end():
        for part in PREPARED_PARTS.read(reader):
            group.decisions.add(part)
        for decision in DECISIONS.read(reader):
            group.decisions.add_decision(decision)
    if not reader.is_at_end():
        for name, unnamed in UNNAMED_TX.read(reader):
            producers[name].unnamed_tx = unnamed


def write_embargo(out: Writer, embargo: Embargo) -> None:
    out.number(len(embargo.parts))
    for (producer, number), parts in embargo.parts.items():
        out.blob(producer)
        out.number(number)
        out.number(len(parts))
        for part in parts:
            is_batch = isinstance(part, EmbargoedBatch)
            out.number(is_batch)
            (EMBARGOED_BATCH if is_batch else EMBARGOED_SETTLEMENT).write(out, part)


def read_embargo(reader: Reader, embargo: Embargo) -> None:
    for _ in range(reader.number()):
        key = reader.blob(), reader.number()
        embargo.parts[key] = [
            (EMBARGOED_BATCH if reader.number() else EMBARGOED_SETTLEMENT).read(reader)
            for _ in range(reader.number())
        ]
