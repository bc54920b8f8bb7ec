"""The recorded history of a run, which quorum.histories judges: what clients asked for, what nodes delivered to them,
and what clients were told.

A delivery is recorded when a node writes it, so that those which no client reads any more count, too. It is not
recorded if the client has left the call: a member that lags behind may write then what the client's next session has
settled. What is read from a reservation is a delivery to its group. Times are microseconds since the run began; no two
events have the same.

Many judgements of one run see the same records again, and the judge takes little time: a run has some thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from quorum.client.messages.delivery import DeliveredMessage
from quorum.histories import MemoryRecorder, Run, judge
from quorum.histories.records import CONFIRMED, OK, REJECTED, UNKNOWN, Record
from support.histories import checkers


class History:
    """See the module's text. clock_ms: the world's time."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._recorder = MemoryRecorder()
        self._clock_ms = clock_ms
        self._start_ms = clock_ms()
        self._last_us = 0
        self._has_confirmed = False

    def now_us(self) -> int:
        """A time of its own, for a record that is made later."""
        return self._now_us()

    def _now_us(self) -> int:
        self._last_us = max(self._last_us + 1, (self._clock_ms() - self._start_ms) * 1000)
        return self._last_us

    # ---- what is recorded

    def sends(self, queue: str, producer: int, numbers: range) -> Record:
        """A producer is about to send these messages."""
        return self._recorder.publish(
            queue,
            str(producer),
            numbers[0],
            count=len(numbers),
            invoked_us=self._now_us(),
            outcome=UNKNOWN,
        )

    def confirms(self, sent: Record) -> None:
        self._recorder.conclude(sent, CONFIRMED, self._now_us())
        self._has_confirmed = True

    def refuses(self, sent: Record) -> None:
        self._recorder.conclude(sent, REJECTED, self._now_us())

    def delivers(self, queue: str, consumer: str, messages: Iterable[Run]) -> None:
        self._recorder.deliver(queue, consumer, messages, at_us=self._now_us())

    def settles(
        self, queue: str, consumer: str, messages: Iterable[Run], *, began_us: int = 0
    ) -> list[Record]:
        """A consumer, or a durable reader, is about to settle these, or has asked for it at `began_us`."""
        invoked_us = began_us or self._now_us()
        return self._recorder.settle(queue, consumer, messages, invoked_us=invoked_us, outcome=UNKNOWN)

    def returns(self, queue: str, consumer: str, messages: Iterable[Run]) -> list[Record]:
        return self._recorder.return_(queue, consumer, messages, invoked_us=self._now_us(), outcome=UNKNOWN)

    def done(self, asked: Iterable[Record]) -> None:
        """The service has answered that these are settled, or returned."""
        for each in asked:
            self._recorder.conclude(each, OK, self._now_us())

    # ---- what is judged

    def violations(self, left: Iterable[tuple[str, Run]], *, is_over: bool) -> list[str]:
        """One sentence a violation. left: (queue, message) of what has left its queue in another way, for good reason.

        is_over: the queues are empty, so that whatever is not settled is lost.
        """
        if not self._has_confirmed:
            return []
        end = MemoryRecorder()
        for queue, message in left:
            end.left(queue, [message])
        for queue in sorted({each["queue"] for each in self._recorder.records}):
            end.left(queue)
        report = judge([*self._recorder.records, *end.records], is_over=is_over)
        return checkers.violations(report)

    def check_attachments(self, unordered: Sequence[str] = (), *, is_over: bool) -> None:
        """Raise checkers.Violation if an attachment got messages out of order, or a repeat without its flag. unordered:
        queues that hand out messages in another order."""
        ordered = [each for each in self._recorder.records if each["queue"] not in unordered]
        if is_over or any(each["op"] == "deliver" for each in ordered):
            checkers.first_deliveries_are_in_order(ordered, across_attachments=False, must_compare=is_over)
        checkers.repeats_are_flagged(self._recorder.records)


def attachment(client: str, consumer: str, attach: int) -> str:
    """What the history calls a consumer. attach: unique in the queue."""
    return f"{client}/{consumer}/{attach}"


def by_attachment(client: str, messages: Iterable[DeliveredMessage]) -> dict[tuple[str, str], list[Run]]:
    """(queue, attachment) -> the messages that a client disposes of."""
    found: dict[tuple[str, str], list[Run]] = {}
    for each in messages:
        delivery = each.delivery
        who = attachment(client, delivery.wire.consumer_tag, delivery.attach)
        found.setdefault((each.queue, who), []).append(Run(each.sequence, "", 0))
    return found
