"""Queries of a group's transactions (fifo/transactions.py, fifo/decisions.py). They change nothing.

A group has at most `Limits.open_transactions` transactions, whatever their state.
"""

from __future__ import annotations

from heapq import nsmallest
from itertools import chain

from fifo.embargo import Key
from fifo.group_machine import GroupMachine
from fifo.results import PreparedPart, TransactionInfo


def infos(group: GroupMachine, after: Key, most: int) -> tuple[TransactionInfo, ...]:
    """At most so many transactions with higher keys than this one, in the order of their keys."""
    found = group.transactions.by_key, group.decisions.prepared, group.decisions.decided
    return tuple(
        [_info(group, key) for key in nsmallest(most, [key for key in chain(*found) if key > after])]
    )


def prepared(group: GroupMachine, key: Key) -> PreparedPart | None:
    """A part that waits for the decision of another group; None if there is none with this key."""
    part = group.decisions.prepared.get(key)
    return None if part is None else PreparedPart(part.producer, part.number, part.record, part.ranges)


def _info(group: GroupMachine, key: Key) -> TransactionInfo:
    decided = group.decisions.decided.get(key)
    if decided is not None:
        return TransactionInfo(*key, "committed", decided.decided_ms, unfinished=decided.groups)
    part = group.decisions.prepared.get(key)
    if part is not None:
        state, since_ms, record = "prepared", part.prepared_ms, part.record
        queues, messages, size_bytes = part.queues, part.messages, part.size_bytes
    else:
        found = group.transactions.by_key[key]
        state, since_ms, record = "open", found.began_ms, 0
        queues, messages, size_bytes = found.queues, found.messages, found.size_bytes
    return TransactionInfo(
        *key,
        state,
        since_ms,
        record,
        queues=tuple(sorted(queues)),
        messages=messages,
        size_bytes=size_bytes,
    )
