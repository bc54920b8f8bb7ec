"""Immediate messages as simply as they can be said: message by message (beside group.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fifo import commands as c
from quorum_selectors.evaluate import evaluate
from support.fifo.model.records import tree_of
from support.fifo.model.scans import END
from support.fifo.model.staging import Fields, due_at

if TYPE_CHECKING:
    from support.fifo.model.queues import ModelQueue
    from support.fifo.model.records import Left, Line


def taken_at_once(
    queue: ModelQueue,
    meta: c.Meta,
    left: Left,
    command: c.Enqueue,
    rows: Mapping[int, Fields],
    fresh: list[int],
) -> set[int]:
    """The ordinals of `fresh` that a consumer of the queue can take at once. rows: the fields of all messages of the
    batch that are for the queue."""
    if queue.unfinished or queue.config.message_groups or not queue.line:
        return set()
    wanted = [ordinal for ordinal in fresh if due_at(meta.now_ms, command.due_times_ms, ordinal) < 0]
    fields = rows if queue.config.filter_enabled else {ordinal: {} for ordinal in rows}
    seen = look_up(queue, left, fields, wanted)
    index, first = queue.fronts.entry
    arrived = queue.next_sequence - first if index == meta.index else 0
    ahead = {True: arrived, False: len(queue.ready())}
    found: set[int] = set()
    for priority in sorted({x.priority for group in queue.line for x in group.consumers}, reverse=True):
        for group in [each for each in queue.line if each.of(priority)]:
            credit = (
                sum(queue.credit(consumer) for consumer in group.of(priority)) - ahead[bool(group.selector)]
            )
            for ordinal in wanted:
                if (
                    credit > 0
                    and ordinal not in found
                    and matches(group, fields.get(ordinal, {}), ordinal in seen)
                ):
                    found.add(ordinal)
                    credit -= 1
    return found


def look_up(queue: ModelQueue, left: Left, fields: Mapping[int, Fields], wanted: list[int]) -> set[int]:
    """The messages that the budget allows to look up."""
    sharing = queue.fronts.sharing()
    if not sharing:
        return set()
    each = queue.fronts.steps_a_message(sharing) * (1 + queue.fronts.text_factor(list(fields.values())))
    seen = wanted[: max(0, left.rest.snapshot_bodies // 2 // each)]
    left.rest.snapshot_bodies -= each * len(seen)
    return set(seen)


def matches(group: Line, fields: Fields, is_seen: bool) -> bool:
    if not group.selector:
        return True
    return is_seen and group.scan_position == END and evaluate(tree_of(group.selector), fields) is True
