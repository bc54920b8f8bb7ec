"""Who may speak to a group: producers, their epochs and numbers, and which of their messages were taken.

A session is a producer in one epoch. Its commands are numbered 1, 2, 3, ...: `admit` lets the next one in, says that
a lower one was done and refuses the rest. Beside that, every message has a number of the client's own; which of them
were accepted is remembered as ranges above the producer's lowest unconfirmed one, so that a client that has lost its
node learns on registering again what has arrived, and a message sent twice is taken once.

A producer whose session has ended is remembered for 24 hours of group time, unless more than 10,000 want to be.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter

from fifo.commands import Address, Enqueue, Origin
from fifo.effects import Done, Refused, Registered, Reply

WINDOW = 65_536
"""How far a producer's numbers may reach above its lowest unconfirmed one: bounds the ranges remembered for it."""

MAX_PRODUCERS = 10_000
REMEMBERED_MS = 24 * 3600 * 1000

FORGOTTEN_PER_ENTRY = 64

DONE = Done()

_end = itemgetter(1)


@dataclass(slots=True, eq=False)
class Producer:
    """One producer. `accepted` are disjoint ranges (first, last), ascending, with gaps between, all above `floor`."""

    name: bytes
    epoch: int
    address: Address
    last_n: int = 0
    floor: int = 0  # client sequences below are confirmed and known to be so
    accepted: list[tuple[int, int]] = field(default_factory=list)
    ended_ms: int = -1  # -1 while the session lives
    consumers: dict[tuple[int, str], None] = field(
        default_factory=dict
    )  # (queue, tag), in the order of attaching

    def forget_below(self, floor: int) -> None:
        if floor <= self.floor:
            return
        self.floor = floor
        accepted = self.accepted
        if accepted and accepted[0][1] < floor:
            del accepted[: bisect_left(accepted, floor, key=_end)]
        if accepted and accepted[0][0] < floor:
            accepted[0] = (floor, accepted[0][1])

    def fresh(self, command: Enqueue) -> list[tuple[int, int]]:
        """The part of a batch not accepted before, as (ordinal, count). What is below the floor was accepted."""
        first = command.first_client_sequence
        last = first + command.count - 1
        accepted = self.accepted
        floor = max(self.floor, command.lowest_unconfirmed)
        if first >= floor and (not accepted or accepted[-1][1] < first):
            return [(0, command.count)]
        found = []
        position = max(first, floor)
        for start, end in islice(accepted, bisect_left(accepted, position, key=_end), None):
            if start > last:
                break
            if start > position:
                found.append((position - first, start - position))
            position = end + 1
        if position <= last:
            found.append((position - first, last - position + 1))
        return found

    def accept(self, first: int, last: int) -> None:
        """Remembers first..last (no harm if some are)."""
        accepted = self.accepted
        if not accepted or accepted[-1][1] + 1 < first:
            accepted.append((first, last))
            return
        if accepted[-1][1] + 1 == first:
            accepted[-1] = (accepted[-1][0], last)
            return
        first = max(first, self.floor)
        if first > last:
            return
        start = bisect_left(accepted, first - 1, key=_end)
        end = start
        while end < len(accepted) and accepted[end][0] <= last + 1:
            first = min(first, accepted[end][0])
            last = max(last, accepted[end][1])
            end += 1
        accepted[start:end] = [(first, last)]


class Sessions:
    """The producers of a group by name."""

    __slots__ = ("departed", "departing", "ended", "producers")

    def __init__(self) -> None:
        self.producers: dict[bytes, Producer] = {}
        self.ended: dict[bytes, None] = {}  # those without a session, in the order of ending
        self.departed: dict[int, int] = {}  # node -> boot: that process and all before it have gone
        self.departing: dict[int, None] = {}  # nodes whose sessions have not all been ended yet

    def admit(self, origin: Origin) -> Producer | Reply:
        """The producer whose next command this is, or the answer why not."""
        producer = self.producers.get(origin.producer)
        if producer is None:
            if origin.n > 1:
                return Refused("expired", f"producer {origin.producer.hex()} was forgotten")
            return Refused("not_registered", f"producer {origin.producer.hex()} is not registered")
        if origin.epoch != producer.epoch or producer.ended_ms >= 0 or self.departing:
            refused = self._refuse(origin, producer)
            if refused is not None:
                return refused
        if origin.n == producer.last_n + 1:
            return producer
        if origin.n <= producer.last_n:
            return DONE
        return Refused("gap", f"operation {origin.n} of an epoch; expected: {producer.last_n + 1}")

    def _refuse(self, origin: Origin, producer: Producer) -> Refused | None:
        name = f"epoch {origin.epoch} of producer {producer.name.hex()}"
        if origin.epoch > producer.epoch:
            return Refused("not_registered", f"{name} is not registered; the present one: {producer.epoch}")
        if origin.epoch < producer.epoch:
            return Refused("fenced", f"{name} is over; the present one: {producer.epoch}")
        if producer.ended_ms >= 0 or self.is_departed(producer.address):
            return Refused("fenced", f"{name} has ended; a higher one has to be registered")
        return None

    def is_departed(self, address: Address) -> bool:
        return address.boot <= self.departed.get(address.node, -1)

    def refuse_register(self, origin: Origin, address: Address) -> Refused | None:
        """Why this epoch cannot begin."""
        producer = self.producers.get(origin.producer)
        name = f"epoch {origin.epoch} of producer {origin.producer.hex()}"
        if self.is_departed(address):
            return Refused("fenced", f"process {address.boot} of node {address.node} was declared gone")
        if producer is not None:
            if origin.epoch < producer.epoch:
                return Refused("fenced", f"{name} is over; the present one: {producer.epoch}")
            if origin.epoch == producer.epoch and (producer.ended_ms >= 0 or producer.address != address):
                return Refused("fenced", f"{name} was used by another session; a higher one is needed")
        elif len(self.producers) >= MAX_PRODUCERS and not self.ended:
            return Refused(
                "limit", f"{len(self.producers)} producers have sessions; allowed: {MAX_PRODUCERS}"
            )
        return None

    def register(self, origin: Origin, address: Address) -> Registered:
        """Begins the epoch; the session before must have been ended."""
        producer = self.producers.get(origin.producer)
        if producer is None:
            if len(self.producers) >= MAX_PRODUCERS:
                self._forget_oldest()
            self.producers[origin.producer] = Producer(origin.producer, origin.epoch, address)
            return Registered((), known=False)
        if origin.epoch > producer.epoch:
            producer.epoch = origin.epoch
            producer.address = address
            producer.last_n = 0
            producer.ended_ms = -1
            self.ended.pop(producer.name, None)
        return Registered(tuple(producer.accepted), known=True)

    def end(self, producer: Producer, now_ms: int) -> None:
        producer.ended_ms = now_ms
        self.ended.pop(producer.name, None)
        self.ended[producer.name] = None

    def forget_idle(self, now_ms: int) -> None:
        """Forgets some producers whose time is over."""
        for _ in range(FORGOTTEN_PER_ENTRY):
            if not self.ended:
                return
            oldest = next(iter(self.ended))
            if self.producers[oldest].ended_ms + REMEMBERED_MS > now_ms:
                return
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = next(iter(self.ended))
        del self.ended[oldest]
        del self.producers[oldest]
