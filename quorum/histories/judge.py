"""The judge of a history, in plain Python and in memory: the definition of the six violations.

The judge builds two tables. `_Place` holds the events at one sequence of one queue, `_Message` the events of one
(producer, number) in all queues. Each violation is a short rule over these. Order compares the messages of one producer
in one queue (order.py), holders the deliveries at one place (holders.py). An event whose outcome is unknown counts
neither for nor against a message.

Messages that were treated alike are judged as one (pieces.py). Where something is wrong, all are judged one by one.

`quorum.spark.pipelines.verify` applies the same rules to histories that are too large for this module; tests compare
the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quorum.histories.holders import Hold, first_overlap, holds_of
from quorum.histories.order import Placed, misplaced
from quorum.histories.pieces import alike, one_by_one
from quorum.histories.records import CONFIRMED, OK, REJECTED, HistoryError, Record
from quorum.histories.report import KINDS, SHOWN, Culprit, Line, Report

MAX_OPERATIONS = 200_000
"""Highest number of operations that is judged here; they take some 300 MB of memory and a few seconds."""

Key = tuple[str, int]
"""(producer, number)."""


@dataclass(slots=True)
class _Place:
    """A sequence of a queue. keys: the messages that were delivered or left there; exactly one if all is correct."""

    queue: str
    sequence: int
    count: int = 1
    """Sequences that are judged as one, this one and those that follow."""
    keys: set[Key] = field(default_factory=set)
    deliveries: list[Record] = field(default_factory=list)
    closings: list[Record] = field(default_factory=list)
    """Settlements, returns and discards."""
    settled_us: list[int] = field(default_factory=list)
    """Times at which a settlement or discard of the message was answered."""
    may_be_settled: bool = False
    is_discarded: bool = False
    is_left: bool = False

    @property
    def owner(self) -> Key:
        """The message that owns the place: the one with the lowest number."""
        return min(self.keys, key=lambda key: (key[1], key[0]))

    @property
    def intruder(self) -> Key:
        """The message with the highest number, if more than one was found here."""
        return max(self.keys, key=lambda key: (key[1], key[0]))

    @property
    def last_delivered_us(self) -> int:
        return max((each["returned_us"] for each in self.deliveries), default=0)

    @property
    def is_settled_then_delivered(self) -> bool:
        settled = self.settled_us
        return bool(settled) and (
            len(settled) > 1
            or self.is_left
            or bool(self.deliveries and self.last_delivered_us > min(settled))
        )

    @property
    def text(self) -> str:
        return f"found at sequence {self.sequence} of '{self.queue}'"


@dataclass(slots=True)
class _Message:
    """publishes: the records that published it. places: its places, by queue and sequence."""

    producer: str
    number: int
    count: int = 1
    """Messages that are judged as one, this one and those that follow."""
    publishes: list[Record] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)

    @property
    def queue(self) -> str:
        """The queue to which the message is counted."""
        if self.publishes:
            return str(self.publishes[0]["queue"])
        return self.places[0].queue

    @property
    def confirmed_us(self) -> int | None:
        times = [each["returned_us"] for each in self.publishes if each["outcome"] == CONFIRMED]
        return min(times, default=None)

    @property
    def is_accepted(self) -> bool:
        """Whether at least one publish of it was not refused."""
        return any(each["outcome"] != REJECTED for each in self.publishes)

    @property
    def is_lost(self) -> bool:
        return self.confirmed_us is not None and not any(
            place.settled_us or place.may_be_settled or place.is_left for place in self.places
        )

    @property
    def is_duplicated(self) -> bool:
        """Whether it has too many places; a discarded message may be dead-lettered into another queue."""
        kept = sum(not place.is_discarded for place in self.places)
        queues = {place.queue for place in self.places}
        return len(self.places) > 1 and (kept > 1 or len(queues) == 1)

    @property
    def is_phantom(self) -> bool:
        return bool(self.places) and not self.is_accepted

    @property
    def is_settled_then_delivered(self) -> bool:
        return any(place.is_settled_then_delivered for place in self.places)


def judge(records: Iterable[Record], *, is_over: bool = True) -> Report:
    """Judge a history of good records (`records.problem`), in any order. Raises HistoryError if it cannot be judged.

    is_over: False while clients still run; then no message is lost yet, and no queue needs a record `left`.
    """
    records = list(records)
    _check(records, is_over)
    report = _judged(alike(records), is_over)
    if not report.is_clean:
        report = _judged(one_by_one(records), is_over)
    report.records, report.operations = len(records), sum(each.get("count", 1) for each in records)
    return report


def _judged(pieces: Iterable[Record], is_over: bool) -> Report:
    pieces = [each for each in pieces if each.get("count") != 0]
    places = _places(pieces)
    messages = _messages(pieces, places)
    judgement = _Judgement(pieces, places, messages)
    judgement.run(is_over)
    culprits = {kind: judgement.culprits[kind] for kind in KINDS if kind in judgement.culprits}
    lines = sorted(judgement.lines.values(), key=lambda line: (line.queue, line.producer))
    return Report(0, 0, lines, culprits)


# ---- the two tables


def _check(records: list[Record], is_over: bool) -> None:
    told = {each["queue"] for each in records if each["op"] == "left"}
    if is_over and (silent := sorted({each["queue"] for each in records} - told)):
        raise HistoryError(
            f"no record shows what was left in queue '{silent[0]}' at the end; add records 'left', "
            f"or one with 'count' 0 if the queue was empty"
        )
    if not any(each["op"] == "publish" and each["outcome"] == CONFIRMED for each in records):
        raise HistoryError("no message was confirmed in this history; there is nothing to judge")


def _places(pieces: list[Record]) -> list[_Place]:
    """The places, sorted by queue and sequence."""
    found: dict[tuple[str, int], _Place] = {}
    for each in pieces:
        if each["op"] in ("publish", "end"):
            continue
        at = (each["queue"], each["sequence"])
        place = found.get(at)
        if place is None:
            place = found[at] = _Place(*at, each.get("count", 1))
        if each["op"] in ("deliver", "left"):
            place.keys.add((each["producer"], each["number"]))
        _note(place, each)
    for place in (found[at] for at in sorted(found)):
        if not place.keys:
            raise HistoryError(
                f"sequence {place.sequence} of queue '{place.queue}' is "
                f"settled, returned or discarded, but was never delivered; each delivery needs a record"
            )
    return [found[at] for at in sorted(found)]


def _note(place: _Place, record: Record) -> None:
    op = record["op"]
    if op == "deliver":
        place.deliveries.append(record)
    elif op == "left":
        place.is_left = True
    else:
        place.closings.append(record)
        place.is_discarded |= op == "discard"
        if op in ("settle", "discard"):
            if record["outcome"] == OK:
                place.settled_us.append(record["returned_us"])
            else:
                place.may_be_settled = True


def _messages(pieces: list[Record], places: list[_Place]) -> list[_Message]:
    """The messages, sorted by producer and number."""
    found: dict[Key, _Message] = {}

    def message(key: Key, count: int) -> _Message:
        if key not in found:
            found[key] = _Message(*key, count)
        return found[key]

    for each in pieces:
        if each["op"] == "publish":
            key = (each["producer"], each["number"])
            message(key, each.get("count", 1)).publishes.append(each)
    for place in places:
        message(place.owner, place.count).places.append(place)
    for key in sorted(found):
        if len({each["queue"] for each in found[key].publishes}) > 1:
            raise HistoryError(
                f"producer '{key[0]}' has published number {key[1]} "
                f"to two queues; each number of a producer must belong to one message"
            )
    return [found[key] for key in sorted(found)]


# ---- the rules


class _Judgement:
    def __init__(self, pieces: list[Record], places: list[_Place], messages: list[_Message]) -> None:
        self._pieces = pieces
        self._places = places
        self._messages = messages
        self._queue_of = {(each.producer, each.number): each.queue for each in messages}
        self.lines: dict[tuple[str, str], Line] = {}
        self.culprits: dict[str, list[Culprit]] = {}

    def run(self, is_over: bool) -> None:
        for message in self._messages:
            self._count(message)
        self._judge_messages(is_over)
        self._judge_places()
        self._judge_order()
        self._judge_holders()

    def _line(self, queue: str, producer: str) -> Line:
        return self.lines.setdefault((queue, producer), Line(queue, producer))

    def _blame(self, kind: str, queue: str, key: Key, why: str) -> None:
        self._line(queue, key[0]).broken[kind] += 1
        self._show(kind, queue, key, why)

    def _show(self, kind: str, queue: str, key: Key, why: str) -> None:
        shown = self.culprits.setdefault(kind, [])
        if len(shown) < SHOWN:
            shown.append(Culprit(queue, *key, why))

    def _count(self, message: _Message) -> None:
        counts = self._line(message.queue, message.producer).counts
        is_confirmed = message.confirmed_us is not None
        found = {
            "confirmed": is_confirmed,
            "rejected": bool(message.publishes) and not message.is_accepted,
            "unknown": message.is_accepted and not is_confirmed,
            "delivered": any(place.deliveries for place in message.places),
            "settled": any(place.settled_us for place in message.places),
            "left": any(place.is_left for place in message.places),
        }
        for name, is_counted in found.items():
            counts[name] += message.count * is_counted

    def _judge_messages(self, is_over: bool) -> None:
        rules: dict[str, tuple[Callable[[_Message], bool], Callable[[_Message], str]]] = {
            "lost": (lambda message: is_over and message.is_lost, _why_lost),
            "duplicated": (lambda message: message.is_duplicated, _why_duplicated),
            "phantom": (lambda message: message.is_phantom, _why_phantom),
        }
        for kind, (is_broken, why) in rules.items():
            for each in filter(is_broken, self._messages):
                self._blame(kind, each.queue, (each.producer, each.number), why(each))
        for each in self._messages:
            if each.is_settled_then_delivered:
                self._line(each.queue, each.producer).broken["settled_then_delivered"] += 1

    def _judge_places(self) -> None:
        for place in self._places:
            producer, number = place.owner
            if len(place.keys) > 1:
                self._line(self._queue_of[producer, number], producer).broken["phantom"] += 1
                why = f"{place.text}, which is {producer}:{number}'s"
                self._show("phantom", place.queue, place.intruder, why)
            if place.is_settled_then_delivered:
                self._show("settled_then_delivered", place.queue, place.owner, _why_late(place))

    def _judge_order(self) -> None:
        """Compare only messages whose places are all in the queue that they were published to."""
        rows: dict[tuple[str, str], list[Placed]] = defaultdict(list)
        for each in self._messages:
            if each.is_accepted and {place.queue for place in each.places} == {each.queue}:
                sequence = each.places[0].sequence
                invoked = min(record["invoked_us"] for record in each.publishes)
                row = Placed(each.number, sequence, invoked, each.confirmed_us)
                rows[each.queue, each.producer].append(row)
        for (queue, producer), placed in sorted(rows.items()):
            for number, why in misplaced(placed):
                self._blame("reordered", queue, (producer, number), why)

    def _judge_holders(self) -> None:
        ends: dict[tuple[str, str], int] = {}
        for each in self._pieces:
            if each["op"] == "end":
                who = (each["queue"], each["consumer"])
                ends[who] = min(each["invoked_us"], ends.get(who, each["invoked_us"]))
        for place in self._places:
            if len({each["consumer"] for each in place.deliveries}) > 1:
                found = first_overlap(list(holds_of(place.deliveries, place.closings, ends)))
                if found is not None:
                    self._blame("held_twice", place.queue, place.owner, _why_held(place, *found))


def _why_lost(message: _Message) -> str:
    if not message.places:
        return "confirmed, never delivered, not left in the queue"
    return f"confirmed, {message.places[0].text}, never settled, not left in the queue"


def _why_duplicated(message: _Message) -> str:
    queues = sorted({place.queue for place in message.places})
    count = len(message.places)
    if len(queues) > 1:
        return f"{count} times, in the queues '{queues[0]}' and '{queues[-1]}'"
    sequences = [place.sequence for place in message.places]
    return f"{count} times in '{queues[0]}', among them at {min(sequences)} and {max(sequences)}"


def _why_phantom(message: _Message) -> str:
    how = "refused when it was published" if message.publishes else "never published"
    return f"{message.places[0].text}, and {how}"


def _why_late(place: _Place) -> str:
    late_us = place.last_delivered_us - min(place.settled_us)
    why = f"sequence {place.sequence}, "
    if late_us > 0:
        who = min(
            each["consumer"] for each in place.deliveries if each["returned_us"] == place.last_delivered_us
        )
        return why + f"delivered to '{who}' {late_us / 1e6:.6f} s after it was settled for certain"
    if len(place.settled_us) > 1:
        return why + f"settled for certain {len(place.settled_us)} times"
    return why + "settled for certain, and left in the queue"


def _why_held(place: _Place, one: Hold, other: Hold) -> str:
    assert one.end_us is not None
    return (
        f"sequence {place.sequence}, delivered to '{other.consumer}' at {other.at_us / 1e6:.6f} s, "
        f"while '{one.consumer}' held until {one.end_us / 1e6:.6f} s"
    )
