"""Who is served next.

Groups with a consumer that has credit take turns, and inside a group its consumers with credit do. A turn gives one
consumer the lowest ready messages that its group selects: as many as its credit allows, but at most an even share of
what was ready when the checkout began, and at most 1,024, so that a large batch is spread over all who wait. A
consumer that is alone takes all its turns at once. After a turn that gave something, the group and the consumer go to
the end of their lines; a group that finds nothing keeps its place. Who found all there is for it is not asked again.

A checkout ends when nobody with credit can be given anything, or with its budget; then it goes on in a later entry.
"""

from __future__ import annotations

from collections import deque

from fifo.budgets import UNLIMITED, Entry
from fifo.consumers.delivery import Delivery
from fifo.consumers.selector_groups import SelectorGroups
from fifo.messages.messages import Messages


def run(messages: Messages, groups: SelectorGroups, entry: Entry) -> bool:
    """Serves whoever can be served; False if the budget ended it."""
    if not groups.turns or not messages.ready_count:
        return True
    left = entry.budget(messages.queue).left
    share = UNLIMITED
    if groups.eligible_count > 1:
        share = min(entry.limits.turn, -(-messages.ready_count // groups.eligible_count))
    deliveries: dict[tuple[bytes, str], Delivery] = {}
    groups.shared.move(entry)
    line = deque(groups.in_line())
    is_done = True
    while line and messages.ready_count:
        if not left.may_hand_out:
            break
        group = line.popleft()
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
            if groups.served(group, consumer) and (taken == wanted or not is_complete):
                line.append(group)
        if taken < wanted and is_complete:
            groups.found_all(group)
    entry.effects.extend([delivery.effect() for delivery in deliveries.values()])
    is_done = is_done and groups.shared.behind is None
    # Who sleeps is not in the line, and who sleeps is local: so this asks for all with credit.
    return is_done and (left.may_hand_out or not groups.turns or not messages.ready_count)
