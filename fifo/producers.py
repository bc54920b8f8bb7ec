"""The producers of a group of queues: their sessions, and which of their messages were accepted.

`fifo.numbering` has the rule for the numbers of commands, for fences, and for the number of producers.

Every message also has a number of the client's own. The group remembers the accepted numbers as ranges above the
producer's lowest unconfirmed one, so a message that is sent twice is accepted once. New messages are accepted in
ascending order only. A number below the highest accepted one that was not accepted itself is refused for ever, because
its message would be in the queue after later ones.

The number of ranges is limited for a producer, and for all of a group's producers together: owners share these places
as they share the places of producers (`fifo.numbering`). The first range of a producer needs no place. So a client that
publishes to one group only is never refused for ranges that others have.

The time for which a producer is remembered, and why that is enough:
- A producer with a session is remembered as long as the session lives.
- After a session that broke, or was closed with unconfirmed messages, the producer is remembered for 27 hours of group
  time, which are at least 24 hours of true time. Its client resends unconfirmed messages for 23 hours at most.
- A producer that will send nothing again is forgotten at once. That is so if its session was closed with nothing
  unconfirmed, if the session is a node's own, or if the group has accepted no message of the producer.
- Operations of a producer's earlier session may arrive after that. So every forgotten producer leaves a fence.

A producer that is not known here may be new to the group in a late epoch, because sessions register with a group when
they first need it, and message numbers run over all groups. So its epoch and its numbers prove nothing, and the rules
above are the whole protection.

Entries of version 1 forget the oldest ended producer to make room, and take messages in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fifo.commands import NODE, UNKNOWN, Address, Enqueue, Origin, RegisterProducer
from fifo.effects import Refused, Registered, Reply
from fifo.limits import Limits
from fifo.number_ranges import NumberRanges
from fifo.numbering import DAY_MS, Fences, describe, refuse_command, refuse_ended, refuse_more, refuse_over
from fifo.shares import Owned


@dataclass(slots=True, eq=False)
class Producer:
    """One producer. accepted: the numbers of accepted messages, not below `floor`."""

    name: bytes
    epoch: int
    address: Address
    owner: int = UNKNOWN
    last_n: int = 0
    floor: int = 0  # client sequences below are confirmed and known to be so
    accepted: NumberRanges = field(default_factory=NumberRanges)
    ended_ms: int = -1  # -1 while the session lives
    counted: int = 0  # how many of its ranges `Sessions.ranges` counts
    last_tx: int = 0  # the highest number of a transaction that it has named
    unnamed_tx: NumberRanges = field(
        default_factory=NumberRanges
    )  # lower ones of the window that it has not named
    committed: NumberRanges = field(default_factory=NumberRanges)  # transactions, as far back as the window
    open_tx: dict[int, None] = field(
        default_factory=dict
    )  # the numbers of its open transactions, in the order of their beginning
    consumers: dict[tuple[int, str], None] = field(
        default_factory=dict
    )  # (queue, tag), in the order of attaching

    def forget_below(self, floor: int) -> None:
        if floor <= self.floor:
            return
        self.floor = floor
        self.accepted.forget_below(floor)

    def fresh(self, command: Enqueue) -> list[tuple[int, int]]:
        """The messages of a batch that were not accepted before, as (ordinal, count). Those below the floor were."""
        first, lasts = command.first_client_sequence, self.accepted.lasts
        floor = max(self.floor, command.lowest_unconfirmed)
        if first >= floor and (not lasts or lasts[-1] < first):
            return [(0, command.count)]
        return [
            (ordinal, count) for ordinal, count, _ in self.fresh_numbers([(0, command.count, first)], floor)
        ]

    def fresh_numbers(
        self, ranges: Iterable[tuple[int, int, int]], floor: int
    ) -> Iterator[tuple[int, int, int]]:
        """The messages of these ranges (ordinal, count, number of the first one) that were not accepted before, as
        ranges of the same form. Those below the floor were."""
        highest = self.highest
        for ordinal, count, first in ranges:
            position, end = max(first, floor), first + count
            if position <= highest:
                for start, last in self.accepted.overlapping(position, end - 1):
                    if start > position:
                        yield ordinal + position - first, start - position, position
                    position = last + 1
            if position < end:
                yield ordinal + position - first, end - position, position

    def late(self, fresh: list[tuple[int, int]], first: int) -> int:
        """The number of ranges of `fresh` that are below the highest accepted message: all, or all but the last one.
        first: the number of the batch's first message."""
        lasts = self.accepted.lasts
        if not fresh or not lasts:
            return 0
        return len(fresh) - (first + fresh[-1][0] > lasts[-1])

    def ranges_with(self, ranges: Sequence[tuple[int, int]], floor: int) -> tuple[int, int]:
        """(those that are left, more) of its ranges if the numbers below `floor` are forgotten and these are accepted,
        as (first, last) above all accepted ones."""
        kept = self.accepted.count_from(floor)
        return kept, len(ranges) - (kept > 0 and self.accepted.lasts[-1] + 1 == ranges[0][0])

    def taken(self, first: int, last: int) -> list[tuple[int, int]]:
        """The accepted ones of the messages first..last: disjoint ranges (first, last), ascending."""
        found = [(first, min(last, self.floor - 1))] if first < self.floor else []
        found += [
            (max(start, first), min(end, last)) for start, end in self.accepted.overlapping(first, last)
        ]
        return found

    @property
    def highest(self) -> int:
        """The highest accepted number; 0 if none was accepted."""
        lasts = self.accepted.lasts
        return lasts[-1] if lasts else max(0, self.floor - 1)

    @property
    def is_blank(self) -> bool:
        """Whether no message of the producer was accepted here, and no transaction is known."""
        return not len(self.accepted) and not self.floor and not self.last_tx

    def may_begin(self, number: int) -> bool:
        """Whether no transaction of this number has begun or ended here. A client begins its transactions in ascending
        order, but one with parts in several groups may come to one of them later than its successors."""
        return number > self.last_tx or any(self.unnamed_tx.overlapping(number, number))

    def name_tx(self, number: int, window: int) -> None:
        """Notes that the number of a transaction is used. window: numbers up to the highest one that may be used."""
        if number <= self.last_tx:
            self.unnamed_tx.remove(number)
            return
        first = max(self.last_tx + 1, number - window + 1)
        if first < number:
            self.unnamed_tx.add(first, number - 1)
        self.unnamed_tx.forget_below(number - window + 1)
        self.last_tx = number

    def accept(self, first: int, last: int) -> None:
        """Remembers first..last as accepted. Some of them may be remembered already."""
        lasts = self.accepted.lasts
        if lasts and lasts[-1] >= first:
            first = max(first, self.floor)
            if first > last:
                return
        self.accepted.add(first, last)


def _refuse_ranges(what: str, more: str, allowed: str, floor: int) -> Refused:
    return Refused(
        "limit",
        f"{what} of accepted messages {more} would be; allowed: {allowed}."
        f" Other groups have the messages between them: publish on when {floor} is confirmed",
    )


class Sessions:
    """The producers of a group by name."""

    __slots__ = (
        "departed",
        "departing",
        "ended",
        "fences",
        "limits",
        "live",
        "owned",
        "producers",
        "ranges",
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.producers: dict[bytes, Producer] = {}
        self.ended: dict[bytes, None] = {}  # those without a session, in the order of ending
        self.fences = Fences(limits)
        self.owned: dict[int, int] = {}  # owner -> how many producers; follows from them
        self.live: dict[tuple[int, int], int] = {}  # (node, boot) -> its live sessions; follows from them
        self.ranges = Owned()  # the ranges of clients' producers but for the first of each; follow from them
        self.departed: dict[int, int] = {}  # node -> boot: that process and all before it have gone
        self.departing: dict[int, None] = {}  # nodes whose sessions have not all been ended yet

    def admit(self, origin: Origin) -> Producer | Reply:
        """The producer, if this is its next command; else the answer to the command."""
        producer = self.producers.get(origin.producer)
        if producer is None:
            return self.fences.refuse_unknown(origin)
        if origin.epoch == producer.epoch and (
            producer.ended_ms >= 0 or (self.departing and self.is_departed(producer.address))
        ):
            return refuse_ended(origin)
        refused = refuse_command(origin, producer.epoch, producer.last_n)
        return producer if refused is None else refused

    def count_ranges(self, producer: Producer) -> None:
        """Counts a producer's ranges again, after messages were accepted or forgotten."""
        count = len(producer.accepted.lasts)
        further = count - 1 if count > 1 and producer.owner != NODE else 0
        if further != producer.counted:
            self.ranges.add(producer.owner, further - producer.counted)
            producer.counted = further

    def is_crowded(self, producer: Producer, first: int) -> bool:
        """Whether a new message with this number makes a range, and that may be one too many."""
        lasts, limits = producer.accepted.lasts, self.limits
        if not lasts or lasts[-1] + 1 == first:
            return False
        return len(lasts) >= limits.max_accepted or not self.ranges.has_room(
            producer.owner, limits.max_ranges
        )

    def refuse_ranges(
        self, producer: Producer, ranges: Sequence[tuple[int, int]], floor: int
    ) -> Refused | None:
        """The refusal if these numbers, as (first, last) above all accepted ones, would make too many ranges, else
        None. floor: numbers below it are to be forgotten."""
        if not ranges:
            return None
        kept, more = producer.ranges_with(ranges, floor)
        allowed = self.limits.max_accepted
        if kept + more > allowed:
            return _refuse_ranges(f"{kept} ranges", f"from {floor} on, {more} more", f"{allowed}", floor)
        further, allowed = kept + more - 1 - producer.counted, self.limits.max_ranges
        if further <= 0 or producer.owner == NODE or self.ranges.has_room(producer.owner, allowed, further):
            return None
        free = max(0, allowed - self.ranges.total)
        return _refuse_ranges(
            f"{self.ranges.counts.get(producer.owner, 0)} ranges",
            f"of this client address, {further} more",
            f"as many as are left free of {allowed}, {free} now",
            floor,
        )

    def is_departed(self, address: Address) -> bool:
        return address.boot <= self.departed.get(address.node, -1)

    def refuse_register(
        self, origin: Origin, command: RegisterProducer, owner: int, version: int
    ) -> Refused | None:
        """The refusal if this epoch cannot begin, else None."""
        address = command.address
        producer = self.producers.get(origin.producer)
        if self.is_departed(address):
            return Refused("fenced", f"process {address.boot} of node {address.node} was declared gone")
        if producer is not None:
            if origin.epoch < producer.epoch:
                return refuse_over(origin, producer.epoch)
            if origin.epoch == producer.epoch and (producer.ended_ms >= 0 or producer.address != address):
                used = f"{describe(origin)} was used by another session; a higher one is needed"
                return Refused("fenced", used)
            return None
        refused = self.fences.refuse(origin)
        if refused is not None:
            return refused
        if version < 2:
            if len(self.producers) < self.limits.max_producers or self.ended:
                return None
            return Refused(
                "limit",
                f"{len(self.producers)} producers have sessions; allowed: {self.limits.max_producers}",
            )
        refused = None if owner == NODE else self.fences.refuse_outdated(origin, command.heard_ms)
        if refused is not None:
            return refused
        clients, most = len(self.producers) - self.owned.get(NODE, 0), self.limits.max_producers
        return refuse_more(clients, self.owned.get(owner, 0), owner, most)

    def register(self, origin: Origin, address: Address, owner: int, version: int) -> Registered:
        """Begins the epoch. The producer's earlier session must have been ended."""
        producer = self.producers.get(origin.producer)
        if producer is None:
            if version < 2 and len(self.producers) >= self.limits.max_producers:
                self._forget(next(iter(self.ended)))
            self.fences.remove(origin.producer)
            self.add(Producer(origin.producer, origin.epoch, address, owner))
            return Registered((), known=False)
        if origin.epoch > producer.epoch:
            self._count(producer, -1)
            producer.owner = owner
            self._count(producer, 1)
            self.count_ranges(producer)
            self._count_live(producer, -1)
            producer.epoch = origin.epoch
            producer.address = address
            producer.last_n = 0
            producer.ended_ms = -1
            self._count_live(producer, 1)
            self.ended.pop(producer.name, None)
        return Registered(tuple(producer.accepted), known=True)

    def add(self, producer: Producer) -> None:
        """Adds a producer as it is."""
        self.producers[producer.name] = producer
        self._count(producer, 1)
        self._count_live(producer, 1)
        self.count_ranges(producer)

    def end(self, producer: Producer, now_ms: int, *, is_clean: bool, version: int) -> None:
        """Notes that the producer's session has ended. is_clean: it was closed with nothing unconfirmed."""
        self._count_live(producer, -1)
        producer.ended_ms = now_ms
        self.ended.pop(producer.name, None)
        self.ended[producer.name] = None
        if version >= 2 and (is_clean or producer.is_blank or producer.owner == NODE):
            self._fence(producer, now_ms)

    def forget_idle(self, now_ms: int, version: int) -> None:
        """Forgets a bounded number of expired producers."""
        remembered_ms = self.limits.remembered_ms if version >= 2 else DAY_MS
        for _ in range(self.limits.forgotten_per_entry):
            name = next(iter(self.ended), None)
            if name is None or self.producers[name].ended_ms + remembered_ms > now_ms:
                break
            if version >= 2:
                self._fence(self.producers[name], now_ms)
            else:
                self._forget(name)

    def _fence(self, producer: Producer, now_ms: int) -> None:
        """Forgets the producer except for its epoch."""
        self._forget(producer.name)
        self.fences.add(producer.name, producer.epoch, now_ms)

    def _forget(self, name: bytes) -> None:
        del self.ended[name]
        self._count(self.producers.pop(name), -1)

    def _count_live(self, producer: Producer, change: int) -> None:
        """Counts a producer for its process, or no longer, if its session lives."""
        if producer.ended_ms < 0:
            process = producer.address.node, producer.address.boot
            self.live[process] = self.live.get(process, 0) + change
            if not self.live[process]:
                del self.live[process]

    def _count(self, producer: Producer, change: int) -> None:
        """Counts a producer and its ranges for its owner, or no longer."""
        owner = producer.owner
        self.ranges.add(owner, change * producer.counted)
        self.owned[owner] = self.owned.get(owner, 0) + change
        if not self.owned[owner]:
            del self.owned[owner]
