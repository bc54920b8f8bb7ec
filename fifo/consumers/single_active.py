"""The single active consumer of a queue: one consumer is given messages, and the others wait.

The consumer with the highest priority is *active*. Among equals it is the one that is active already, else the one that
was attached first. A queue is asked for its active consumer at the end of each entry, so there is no event after which
it could be forgotten.

At most one consumer of the queue holds messages. If another consumer becomes the first one, the active consumer is
given nothing more, and the other one becomes active when no message is checked out by anybody else. So a message is
never delivered while an earlier one is still being worked on by another consumer.

Consumers that were cancelled do not take part; messages that they still hold are waited for.
"""

from __future__ import annotations

from sortedcontainers import SortedDict

from fifo.budgets import Entry
from fifo.consumers.consumer import Consumer
from fifo.consumers.selector_groups import SelectorGroups
from fifo.effects import Notify
from fifo.messages.messages import Messages


class SingleActive:
    """The consumers that may become active. active: the one that is."""

    __slots__ = ("_groups", "_messages", "active", "candidates")

    def __init__(self, messages: Messages, groups: SelectorGroups) -> None:
        self._messages = messages
        self._groups = groups
        self.candidates: SortedDict[tuple[int, int], Consumer] = SortedDict()
        """by priority, the highest first, and attach number"""
        self.active: Consumer | None = None

    def join(self, consumer: Consumer) -> None:
        """Adds a consumer. It waits, unless it was active before it was restored."""
        self.candidates[-consumer.priority, consumer.attach] = consumer
        if consumer.is_active:
            self.active = consumer

    def leave(self, consumer: Consumer) -> None:
        """Removes a consumer, if it is one of them."""
        self.candidates.pop((-consumer.priority, consumer.attach), None)
        consumer.is_active = False
        if self.active is consumer:
            self.active = None

    @property
    def first(self) -> Consumer | None:
        """The consumer that should be active; None if there is no consumer."""
        if not self.candidates:
            return None
        found: Consumer = self.candidates.peekitem(0)[1]
        return self.active if self.active is not None and self.active.priority == found.priority else found

    def elect(self, entry: Entry) -> None:
        """Makes the first consumer active, as soon as no other one holds messages."""
        first = self.first
        if first is self.active:
            return
        if self.active is not None:
            self._set_active(entry, self.active, is_active=False)
            self.active = None
        if first is not None and first.held_count == self._messages.checked_out_count:
            self._set_active(entry, first, is_active=True)
            self.active = first

    def _set_active(self, entry: Entry, consumer: Consumer, *, is_active: bool) -> None:
        consumer.is_active = is_active
        self._groups.credit_changed(consumer, entry)
        place = (consumer.address, self._messages.queue, consumer.tag, consumer.attach)
        entry.effects.append(Notify(*place, "active" if is_active else "inactive"))
