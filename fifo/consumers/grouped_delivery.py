"""The handing out of messages in a queue with message groups (message_groups.py).

A turn gives a consumer messages one after the other. Each is the first message that the consumer may get at that
moment: the one with the lowest sequence among those of the highest priority. When the head of a group was
handed out, the next message of that group may follow at once, because the consumer holds the group. All this is done a
block at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fifo.budgets import Entry
from fifo.consumers.delivery import Delivery
from fifo.messages import expiry
from fifo.messages.blocks import Block
from fifo.messages.message_groups import Heads, Place
from fifo.messages.messages import Messages


class Matches(Protocol):
    """The known matches of a selector."""

    def numbers(self) -> Iterable[int]:
        """The blocks with matches that may be heads, ascending."""
        ...

    def of(self, block: Block) -> int:
        """The matches in a block."""
        ...

    def are_among(self, block: Block, members: int) -> bool:
        """Whether some of these messages of a block match."""
        ...

    def none_free(self, number: int) -> None:
        """No match in the block is a head that any consumer may get. `numbers` leaves the block out until that has
        changed."""
        ...


def take_heads(
    messages: Messages, entry: Entry, delivery: Delivery, wanted: int, matches: Matches | None
) -> tuple[int, bool]:
    """Hands out up to `wanted` messages. matches: None without a selector. Returns the number of messages, and False if
    the budget ended it."""
    grouped, attach = messages.grouped, delivery.consumer.attach
    assert grouped is not None
    budget = entry.budget(messages.queue)
    left, taken = budget.left, 0
    while taken < wanted:
        place = _next_place(messages, delivery, matches)
        if place is None:
            return taken, True
        if not left.runs:
            return taken, False
        block = messages.blocks.get(place[1])
        if block.earliest <= entry.now_ms and block.number not in budget.expired:
            if not left.blocks:
                return taken, False
            expiry.expire_block(messages, entry, block, spares_new=True)
            continue
        matched = -1 if matches is None else matches.of(block)
        members = grouped.next_at(attach, place, block, matched, delivery.opens, wanted - taken)
        members = delivery.within(left, block, members, wanted - taken)
        count = members.bit_count()
        delivery.opens -= grouped.hand_out(attach, place, block, members)
        left.runs -= delivery.take(messages, block, members, count)
        taken += count
    return taken, True


def _next_place(messages: Messages, delivery: Delivery, matches: Matches | None) -> Place | None:
    """The place of the first message that a consumer may get; None if there is none."""
    grouped = messages.grouped
    assert grouped is not None
    own = grouped.own.get(delivery.consumer.attach)
    if matches is None:
        first = grouped.free.first if delivery.opens > 0 else None
        mine = None if own is None else own.first
        return min(first, mine) if first is not None and mine is not None else first or mine
    found = None if own is None else _first_match(messages, own, own.by_place, matches)
    if delivery.opens <= 0:
        return found
    for number in matches.numbers():
        if found is not None and not grouped.has_priorities and found[1] <= number:
            break
        first = _first_match(messages, grouped.free, grouped.places_of(number), matches)
        if first is None:
            matches.none_free(number)
        elif found is None or first < found:
            found = first
    return found


def _first_match(messages: Messages, heads: Heads, places: Iterable[Place], matches: Matches) -> Place | None:
    """The first of these places, which ascend, where a head matches."""
    for place in places:
        here = heads.at(place)
        if here and matches.are_among(messages.blocks.get(place[1]), here):
            return place
    return None
