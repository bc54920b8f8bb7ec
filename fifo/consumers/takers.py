"""Which of a batch's messages a consumer of the queue can take at once: for messages that are published as
*immediate*.

A message can be taken at once by a consumer that has credit, and whose selector matches the message, if nothing is
ahead of the message for this consumer. It is judged when the batch is applied, before its messages are in the queue:

- A selector group has to be caught up, so that nothing in the queue waits to be evaluated for it.
- A queue with unfinished work has no taker, because consumers with credit may have messages ahead.
- Messages that have arrived in the same entry before count as ahead for every consumer, whether they match or not.
- A queue with message groups has no taker, because a message waits there for those of its group.

The judgement is a function of the entry and the replicated state. It takes at most half of the budget that the entry
has left for looking up arrivals, so that the other half remains for the delivery. Messages for which the budget is too
small have no taker.

Messages are judged in their order. Each one uses up one credit of the group that would be served first, so a batch
finds at most as many takers as there is credit. Fair shares among consumers (`checkout`) are not considered. Where
several groups match the same messages, the delivery may therefore give the messages to others than was judged, and one
of them may wait in the queue after all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fifo.budgets import Entry
from fifo.consumers.selector_groups import SelectorGroups
from fifo.messages import bitsets
from fifo.messages.messages import Messages
from quorum_selectors.columns import BatchColumns


def taken_at_once(
    messages: Messages,
    groups: SelectorGroups,
    entry: Entry,
    columns: BatchColumns | None,
    texts: int,
    rows: Sequence[tuple[int, int]],
) -> int:
    """The messages that can be taken at once, as a set of places among `rows`. rows: (row, count) of the messages in
    `columns`, which are the batch's filter fields, None for none. texts: their text factor. The caller has checked that
    the queue has no unfinished work."""
    count = sum([width for _, width in rows])
    if messages.grouped is not None or not groups.service_queue:
        return 0
    left, found = bitsets.span(0, count), 0
    ahead = messages.next_sequence - entry.arrived_from.get(messages.queue, messages.next_sequence)
    matched = _matched(messages, groups, entry, columns, texts, rows)
    for priority in sorted(groups.eligible_counts, reverse=True):
        for group in groups.with_credit(priority, matched):
            mine = left & matched[group.selector] if group.selector else left
            before = ahead if group.selector else messages.ready_count
            credit = group.credit(priority, before + mine.bit_count()) - before
            if credit > 0:
                taken = bitsets.lowest(mine, credit)
                found |= taken
                left ^= taken
            if not left:
                return found
    return found


def _matched(
    messages: Messages,
    groups: SelectorGroups,
    entry: Entry,
    columns: BatchColumns | None,
    texts: int,
    rows: Sequence[tuple[int, int]],
) -> Mapping[bytes, int]:
    """The matches of the selectors that are caught up, as far as the budget allows."""
    each = groups.shared.steps * (1 + texts)
    if not each:
        return {}
    left = entry.budget(messages.queue).left
    some: list[tuple[int, int]] = []
    room = left.arrivals // 2 // each
    for row, count in rows:
        if room <= 0:
            break
        some.append((row, min(count, room)))
        room -= count
    if not some:
        return {}
    left.arrivals -= each * sum([count for _, count in some])
    return groups.matches_of(columns, some)
