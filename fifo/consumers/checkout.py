"""Which consumer is served next: round robin.

The service queue has the selector groups with a consumer that has credit. Inside a group, the consumers with credit
rotate, too. A turn gives one consumer the lowest ready messages that its group selects. It gives as many as the
consumer's credit allows, but not more than
- an even share of the messages that were ready when the checkout began;
- `Limits.quantum` messages, so that a large batch is spread over all consumers that have credit.
A consumer that is alone takes all its turns at once. After a turn that gave messages, the group and the consumer move
to the end of their queues. A group that finds nothing keeps its place. A group that has found all its messages is not
asked again.

A checkout ends when no consumer with credit can be given anything, or when its budget is spent; then a later entry
continues it.
"""

from __future__ import annotations

from collections import deque

from fifo.budgets import UNLIMITED, Entry
from fifo.consumers.delivery import Delivery
from fifo.consumers.selector_groups import SelectorGroups
from fifo.messages.messages import Messages


def run(messages: Messages, groups: SelectorGroups, entry: Entry) -> bool:
    """Serves all consumers that can be served; False if the budget ended it."""
    if not groups.service_queue or not messages.ready_count:
        return True
    left = entry.budget(messages.queue).left
    share = UNLIMITED
    if groups.eligible_count > 1:
        share = min(entry.limits.quantum, -(-messages.ready_count // groups.eligible_count))
    deliveries: dict[tuple[bytes, str], Delivery] = {}
    groups.shared.move(entry)
    runnable = deque(groups.runnable())
    is_done = True
    while runnable and messages.ready_count:
        if left.messages <= 0 or left.runs <= 0:  # left.may_hand_out, once a turn
            break
        group = runnable.popleft()
        consumer = group.next_consumer()
        delivery = deliveries.get(consumer.key)
        if delivery is None:
            delivery = Delivery(consumer, messages.queue)
        wanted = min(consumer.credit, share, left.messages)
        taken, is_complete = groups.take(group, entry, delivery, wanted)
        is_done = is_done and is_complete
        if taken:
            deliveries[consumer.key] = delivery
            left.messages -= taken
            may_find_more = not is_complete or (taken == wanted and not groups.rest_follower(group))
            if groups.rotate(group, consumer) and may_find_more:
                runnable.append(group)
        if taken < wanted and is_complete:
            groups.found_all(group)
    entry.effects.extend([delivery.effect() for delivery in deliveries.values()])
    messages.count_redelivered(entry, sum([delivery.again for delivery in deliveries.values()]))
    is_done = is_done and groups.shared.behind is None
    # Idle groups are not among the runnable ones, and which are idle is local: so this asks for all with credit.
    return is_done and (left.may_hand_out or not groups.service_queue or not messages.ready_count)
