"""The times at which messages were delivered, for a queue whose consumers have a timeout.

Messages that a consumer has held for longer than the timeout are requeued. That is no failed delivery. The consumer is
given nothing more until it has settled, returned, discarded or modified each of these messages, or is attached again.
Its late answers have no other effect, because the messages are not its own any more.

A delivery is noted with one assignment, whatever its number of messages. Time is divided into steps of a sixteenth of
the timeout. For each step, a *mark* has the consumers that were given messages, and the highest tag of each. A mark
counts as the end of its step, so messages are requeued up to a sixteenth late, and never early. When a mark is due, a
consumer's tags up to the noted one are requeued, as far as it still holds them. There are no more marks than steps in a
timeout, and settling changes none of them.

Messages that were checked out by Get time out, too. The session may get more all the same, because that is a request of
its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from fifo.consumers.consumer import Consumer
from fifo.messages.runs import NEVER

STEPS = 16
"""Steps of time in a timeout."""


class Timeouts:
    """The marks of one queue."""

    __slots__ = ("marks",)

    def __init__(self) -> None:
        self.marks: dict[int, OrderedDict[Consumer, int]] = {}
        """by time, ascending: a mark is not empty. A dict would pass all consumers that were taken before, each time
        that the first one is asked for"""

    def note(self, now_ms: int, timeout_ms: int, consumers: Iterable[Consumer]) -> None:
        """Notes that these consumers were given messages up to their last tags."""
        end = max(_end_of_step(now_ms, timeout_ms), next(reversed(self.marks), 0))
        noted = OrderedDict((consumer, consumer.next_tag - 1) for consumer in consumers)
        if noted:
            self.marks.setdefault(end, OrderedDict()).update(noted)

    def shorten(self, now_ms: int, timeout_ms: int) -> None:
        """Moves marks of longer steps back to the present one of this timeout: they are of earlier deliveries."""
        end = _end_of_step(now_ms, timeout_ms)
        for late in [each for each in self.marks if each > end]:
            consumers = self.marks.pop(late)
            self.marks.setdefault(end, OrderedDict()).update(consumers)

    def forget(self, consumer: Consumer) -> None:
        """Drops a consumer that is detached."""
        for end in [end for end, mark in self.marks.items() if consumer in mark]:
            self.take(end, consumer)

    def take(self, end: int, consumer: Consumer) -> None:
        """Removes a consumer from a mark."""
        del self.marks[end][consumer]
        if not self.marks[end]:
            del self.marks[end]

    def first(self) -> tuple[int, Consumer, int] | None:
        """The time of the first mark, one of its consumers, and the highest tag of that; None if there are no marks."""
        for end, mark in self.marks.items():
            for consumer, tag in mark.items():
                return end, consumer, tag
        return None

    def next_due(self, timeout_ms: int) -> int:
        """The group time at which messages may have to be requeued; NEVER if there is none."""
        return next(iter(self.marks)) + timeout_ms if self.marks else NEVER


def _end_of_step(now_ms: int, timeout_ms: int) -> int:
    step = max(timeout_ms // STEPS, 1)
    return -(-now_ms // step) * step
