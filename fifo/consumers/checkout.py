"""Which consumer is served next: the highest priority, then round robin.

A message goes to a consumer of the highest priority among those that have credit and whose selector matches it. The
priority is the consumer's, not the group's: consumers of one selector may have different ones. So a checkout serves one
priority after the other, the highest first. It goes on to the next one when no consumer of the present one can be given
anything. Where a budget has kept a group with such a consumer from looking at all messages, it stops there, because a
message that was not looked at may match.

Consumers of one priority are served round robin. The service queue has the selector groups with a consumer that has
credit. Inside a group, the consumers with credit rotate, too. A turn gives one consumer the lowest ready messages that
its group selects. It gives as many as the consumer's credit allows, but not more than
- an even share, among the consumers of the priority, of the messages that were ready when its first turn began;
- `Limits.quantum` messages, so that a large batch is spread over all consumers that have credit.
A consumer that is alone in its priority takes all its turns at once. After a turn that gave messages, the group and the
consumer move to the end of their queues. A group that finds nothing keeps its place. A group that has found all its
messages is not asked again.

In a queue with message groups (messages/message_groups.py), a turn also takes no more than an even share of the heads
that any consumer may get, so that message groups are spread. When the turns are over, consumers are given what is ready
of the message groups that they hold, in the order of attaching.

A checkout ends when no consumer with credit can be given anything, or when its budget is spent; then a later entry
continues it.
"""

from __future__ import annotations

from collections import deque

from fifo.budgets import UNLIMITED, Entry
from fifo.consumers.consumer import Key
from fifo.consumers.delivery import Delivery
from fifo.consumers.selector_groups import SelectorGroups
from fifo.consumers.timeouts import Timeouts
from fifo.messages.messages import Messages


def run(messages: Messages, groups: SelectorGroups, timeouts: Timeouts, entry: Entry) -> bool:
    """Serves all consumers that can be served; False if the budget ended it."""
    if not groups.service_queue or not messages.ready_count:
        return True
    left = entry.budget(messages.queue).left
    deliveries: dict[Key, Delivery] = {}
    groups.shared.move(entry)
    is_done = True
    is_filed = messages.grouped is None or messages.grouped.file(left, messages.next_sequence)
    for priority in sorted(groups.eligible_counts, reverse=True):
        is_done = _serve(messages, groups, entry, priority, deliveries) and is_filed
        if not is_done or groups.may_find_more(priority):
            break
    entry.effects.extend([delivery.effect() for delivery in deliveries.values()])
    messages.count_redelivered(entry, sum([delivery.again for delivery in deliveries.values()]))
    timeout_ms = messages.config.consumer_timeout_ms
    if timeout_ms >= 0:
        timeouts.note(entry.now_ms, timeout_ms, [delivery.consumer for delivery in deliveries.values()])
    is_done = is_done and groups.shared.behind is None
    if messages.grouped is not None and groups.service_queue and is_done:
        is_done = not messages.grouped.may_file(messages.next_sequence)  # what was handed out has made room
    # Idle groups are not among the runnable ones, and which are idle is local: so this asks for all with credit.
    return is_done and (left.may_hand_out or not groups.service_queue or not messages.ready_count)


def _serve(
    messages: Messages, groups: SelectorGroups, entry: Entry, priority: int, deliveries: dict[Key, Delivery]
) -> bool:
    """Serves the consumers of a priority; False if the budget ended it."""
    left = entry.budget(messages.queue).left
    count, share, opens = groups.eligible_counts[priority], UNLIMITED, UNLIMITED
    if count > 1:
        share = min(entry.limits.quantum, -(-messages.ready_count // count))
        if messages.grouped is not None:
            opens = -(-messages.grouped.free.count // count)
    runnable = deque(groups.runnable(priority))
    is_done = True
    while runnable and messages.ready_count:
        if left.messages <= 0 or left.runs <= 0:  # left.may_hand_out, once a turn
            break
        group = runnable.popleft()
        consumer = group.next_consumer(priority)
        delivery = deliveries.get(consumer.key)
        if delivery is None:
            delivery = Delivery(consumer, messages.queue)
        delivery.opens = opens
        wanted = min(consumer.credit, share, left.messages)
        taken, is_complete = groups.take(group, entry, delivery, wanted)
        is_done = is_done and is_complete
        if taken:
            deliveries[consumer.key] = delivery
            left.messages -= taken
            may_find_more = not is_complete or (taken == wanted and not groups.rest_follower(group))
            may_find_more = may_find_more or messages.grouped is not None  # others may open what is left
            if groups.rotate(group, consumer) and may_find_more:
                runnable.append(group)
        if taken < wanted and is_complete:
            groups.found_all(group)
    for consumer in groups.continuing(priority):
        if not left.may_hand_out:
            break
        delivery = deliveries.get(consumer.key) or Delivery(consumer, messages.queue)
        delivery.opens = 0
        assert consumer.group is not None
        wanted = min(consumer.credit, left.messages)
        taken, is_complete = groups.take(consumer.group, entry, delivery, wanted)
        is_done = is_done and is_complete
        if taken:
            deliveries[consumer.key] = delivery
            left.messages -= taken
            groups.rotate(consumer.group, consumer)
    return is_done
