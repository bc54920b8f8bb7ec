"""Batches for several queues of a group: which message goes where, and which messages are accepted.

A batch is stored once. Each of its targets names a queue and the ordinals that are for it, so a message with several
targets has one body that several queues refer to. `choose` decides about all messages before any queue changes: a
message is accepted for all its targets or for none.

*Immediate* messages are accepted only by those of their queues where a consumer can take them at once
(`at_once`).

A group gets only the messages that are for its queues, so their client sequences may have gaps (`Numbers`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

from fifo.batch_times import AT_ONCE, read_times
from fifo.budgets import Entry
from fifo.commands import Enqueue, Target
from fifo.consumers.filter_fields import Rows
from fifo.effects import Refused
from fifo.frozen_dataclasses import dataclass
from fifo.messages import bitsets, overflow
from fifo.messages.message_groups import refuse_keys
from fifo.queue_machine import BatchFields, QueueMachine

NO_CONSUMERS = Refused(
    "no_consumers",
    "the message is immediate, and no consumer can take it at once: none has credit and a selector that matches it",
)

Ranges = Sequence[tuple[int, int]]
"""(first, count), ascending and disjoint."""
_ordinal, _why = itemgetter(0), itemgetter(2)
Part = tuple[int, int, tuple[int, ...]]
"""Neighbouring messages with the same targets: first ordinal, count, and the places of their targets, ascending."""


def refuse_lengths(command: Enqueue) -> Refused | None:
    """Return a refusal if the batch has values for another number of messages than it has, else None."""
    count = command.count
    if len(command.ttls_ms) not in (0, count):
        return Refused("bad_argument", f"{len(command.ttls_ms)} TTLs for {count} messages")
    if len(command.priorities) not in (0, 1, count):
        return Refused("bad_argument", f"{len(command.priorities)} priorities for {count} messages")
    if len(command.due_times_ms) not in (0, 1, count):
        return Refused("bad_argument", f"{len(command.due_times_ms)} due times for {count} messages")
    return refuse_keys(command.group_keys, count)


def refuse(command: Enqueue, allowed: int) -> Refused | None:
    """Return a refusal if the targets or numbers do not fit the batch, else None. allowed: the maximum number of
    messages; a message for two queues counts twice."""
    if len(dict.fromkeys([target.queue for target in command.targets])) < len(command.targets):
        return Refused("bad_argument", "two targets of a batch are the same queue")
    total = 0
    for target in command.targets:
        end = -1
        for ordinal, count in target.ranges:
            if ordinal <= end or count < 1 or ordinal + count > command.count:
                return Refused(
                    "bad_argument",
                    f"messages {ordinal}..{ordinal + count - 1} of {command.count} for queue {target.queue}; allowed: "
                    "ascending ranges with gaps between them",
                )
            end = ordinal + count
            total += count
    if total > allowed:
        return Refused(
            "limit", f"a batch of {total} messages, counted for each of their queues; allowed: {allowed}"
        )
    end = command.first_client_sequence
    for first, count in command.numbers:
        if first < end or count < 1:
            return Refused("bad_argument", f"numbers {first}..{first + count - 1} after {end}")
        end = first + count
    if command.numbers and (
        command.numbers[0][0] != command.first_client_sequence
        or sum(count for _, count in command.numbers) != command.count
    ):
        return Refused("bad_argument", f"the numbers of a batch are not those of {command.count} messages")
    return None


def split(command: Enqueue) -> list[Part] | Refused:
    """Return the batch as parts; the messages of a part have the same targets. A refusal if a message has no target."""
    changes: dict[int, list[int]] = {}
    for place, target in enumerate(command.targets):
        for ordinal, count in target.ranges:
            changes.setdefault(ordinal, []).append(place)
            changes.setdefault(ordinal + count, []).append(place)
    parts: list[Part] = []
    active: dict[int, None] = {}
    start = 0
    for ordinal in sorted(changes):
        if ordinal > start:
            if not active:
                break
            parts.append((start, ordinal - start, tuple(sorted(active))))
            start = ordinal
        for place in changes[ordinal]:
            if place in active:
                del active[place]
            else:
                active[place] = None
    if start < command.count:
        return Refused("bad_argument", f"message {start} of a batch is for no queue")
    return parts


def without(parts: Sequence[Part], gone: Sequence[int]) -> list[Part]:
    """The parts without these places of targets, ascending. Messages that are for no other queue keep theirs."""
    known = dict.fromkeys(gone)
    return [
        (ordinal, count, tuple([each for each in places if each not in known]) or places)
        for ordinal, count, places in parts
    ]


def at_once(
    entry: Entry,
    command: Enqueue,
    wanted: Sequence[Target],
    parts: Sequence[Part],
    queues: Mapping[int, QueueMachine],
    fields_of: FieldsOnce,
) -> Offer:
    """The parts of an immediate batch with those targets only where a consumer can take the messages at once. Messages
    without such a target are refused. wanted: the targets that the parts name by their places."""
    times = read_times(command, entry.now_ms)
    if isinstance(times, Refused):
        return _all_refused(parts, times)
    everything, due = bitsets.span(0, command.count), 0
    for first, count, _, due_ms in times.stretches(0, command.count):
        due |= bitsets.span(first, count) if due_ms == AT_ONCE else 0
    taken: dict[int, int] = {}
    for place, ranges in ranges_of(parts).items():
        machine = queues.get(wanted[place].queue)
        if machine is None:
            taken[place] = everything  # it is refused for that
            continue
        fields = fields_of(machine, wanted[place])
        if isinstance(fields, Refused):
            return _all_refused(parts, fields)
        some = [each for first, count in ranges for each in _cut(due, first, count)]
        chosen = machine.taken_at_once(entry, fields, rows_of(wanted[place], some))
        found, at = 0, 0
        for first, count in some:
            found |= (chosen >> at & bitsets.span(0, count)) << first
            at += count
        taken[place] = found
    return _only(parts, taken)


def _all_refused(parts: Sequence[Part], why: Refused) -> Offer:
    return Offer([], [(ordinal, count, why) for ordinal, count, _ in parts])


def _cut(members: int, first: int, count: int) -> list[tuple[int, int]]:
    """The members of a set among first..first+count-1, as ranges (first, count)."""
    return [(first + at, width) for at, width in bitsets.ranges(members >> first & bitsets.span(0, count))]


def _only(parts: Sequence[Part], taken: Mapping[int, int]) -> Offer:
    """The parts with those targets only that take the messages. taken: the ordinals that each target takes, as a set by
    the target's place."""
    found: list[Part] = []
    refused: list[tuple[int, int]] = []
    for ordinal, count, places in parts:
        each = {place: taken[place] >> ordinal & bitsets.span(0, count) for place in places}
        edges = dict.fromkeys((0, count))
        for members in each.values():
            for slot, width in bitsets.ranges(members):
                edges[slot] = edges[slot + width] = None
        for first, end in pairwise(sorted(edges)):
            mine = tuple([place for place, members in each.items() if members >> first & 1])
            if mine:
                found.append((ordinal + first, end - first, mine))
            else:
                _append(refused, ordinal + first, end - first)
    return Offer(found, [(first, count, NO_CONSUMERS) for first, count in refused])


def ranges_of(parts: Sequence[Part]) -> dict[int, list[tuple[int, int]]]:
    """The messages (ordinal, count) of the parts by the place of each target."""
    found: dict[int, list[tuple[int, int]]] = {}
    for ordinal, count, places in parts:
        for place in places:
            _append(found.setdefault(place, []), ordinal, count)
    return found


def within(parts: Sequence[Part], ranges: Ranges) -> list[Part]:
    """The parts, cut down to these ordinals."""
    found: list[Part] = []
    place = 0
    for first, count in ranges:
        end = first + count
        while place < len(parts):
            ordinal, some, places = parts[place]
            start, stop = max(ordinal, first), min(ordinal + some, end)
            if start < stop:
                found.append((start, stop - start, places))
            if ordinal + some > end:
                break
            place += 1
    return found


@dataclass(frozen=True, slots=True)
class Offer:
    """What is offered to the queues. refused: (ordinal, count, why) of messages that are refused already."""

    parts: Sequence[Part]
    refused: Sequence[tuple[int, int, Refused]]


class FieldsOnce:
    """The filter fields of a batch by target. Equal columns of several targets are decoded once."""

    __slots__ = ("_entry", "_known")

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._known: dict[tuple[bool, bytes, int], BatchFields | Refused] = {}

    def __call__(self, machine: QueueMachine, target: Target) -> BatchFields | Refused:
        encoded = bytes(target.columns)
        count = sum([each for _, each in target.ranges])
        key = machine.messages.config.filter_enabled, encoded, count
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = machine.read_fields(self._entry, encoded, count)
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    """taken: the ordinals of accepted messages. by_target: the same by the place of each target that gets some of
    them. refused: (ordinal, count, why)."""

    taken: list[tuple[int, int]]
    by_target: dict[int, list[tuple[int, int]]]
    refused: list[tuple[int, int, Refused]]


def choose(command: Enqueue, offer: Offer, queues: Mapping[int, QueueMachine]) -> Choice:
    """Which messages of an offer their queues accept. Independent messages are accepted as far as each has room in
    all its queues; of others, all or none. A queue refuses all its messages with the same words, those of the first."""
    choice = Choice([], {}, [*offer.refused])
    left = {
        place: overflow.room(queues[target.queue].messages, command.mean_bytes)
        for place, target in enumerate(command.targets)
        if target.queue in queues
    }
    causes: dict[int, Refused] = {}  # by the place of the target that refuses
    for ordinal, count, places in offer.parts:
        fitting, refusing = count, -1
        for place in places:
            room = left.get(place, -1)
            if room < fitting:
                fitting, refusing = room, place
        if fitting > 0:
            for place in places:
                left[place] -= fitting
                _append(choice.by_target.setdefault(place, []), ordinal, fitting)
            _append(choice.taken, ordinal, fitting)
        if fitting < count:
            rest = count - max(fitting, 0)
            if refusing not in causes:
                causes[refusing] = _cause(queues, command.targets[refusing].queue, rest, command.mean_bytes)
            choice.refused.append((ordinal + count - rest, rest, causes[refusing]))
    if command.independent or not choice.refused:
        return choice
    why = min(choice.refused, key=_ordinal)[2]
    return Choice([], {}, [(ordinal, count, why) for ordinal, count, _ in (*offer.parts, *offer.refused)])


def _cause(queues: Mapping[int, QueueMachine], queue: int, count: int, size: int) -> Refused:
    """Why the queue refuses `count` messages of `size` bytes each above its room."""
    if queue not in queues:
        return Refused("not_found", f"no queue {queue} in this group")
    messages = queues[queue].messages
    wanted = overflow.room(messages, size) + count
    refused = overflow.refuse_more(messages, wanted, wanted * size)
    assert refused is not None
    return refused


def _append(ranges: list[tuple[int, int]], first: int, count: int) -> None:
    if ranges and ranges[-1][0] + ranges[-1][1] == first:
        ranges[-1] = (ranges[-1][0], ranges[-1][1] + count)
    else:
        ranges.append((first, count))


def rows_of(target: Target, ranges: Ranges) -> list[tuple[int, int]]:
    """The places of these ordinals among the messages of a target. Each range is within one of the target's."""
    places = Rows(target.ranges)
    return [(places.of(ordinal), count) for ordinal, count in ranges]


class Numbers:
    """The client sequences of a batch's messages. ranges: (ordinal, count, number of the first one)."""

    __slots__ = ("_firsts", "ranges")

    def __init__(self, command: Enqueue) -> None:
        self.ranges: list[tuple[int, int, int]] = []
        ordinal = 0
        for number, count in command.numbers or ((command.first_client_sequence, command.count),):
            self.ranges.append((ordinal, count, number))
            ordinal += count
        self._firsts = [each[0] for each in self.ranges]

    @property
    def last(self) -> int:
        _, count, number = self.ranges[-1]
        return number + count - 1

    def of(self, ordinals: Ranges) -> list[tuple[int, int]]:
        """The numbers of these messages as ranges (first, last)."""
        found: list[tuple[int, int]] = []
        for ordinal, count in ordinals:
            end = ordinal + count
            for place in range(bisect_right(self._firsts, ordinal) - 1, len(self.ranges)):
                start, some, number = self.ranges[place]
                if start >= end:
                    break
                shift = number - start
                first, last = max(ordinal, start) + shift, min(end, start + some) - 1 + shift
                if found and found[-1][1] + 1 == first:
                    found[-1] = (found[-1][0], last)
                else:
                    found.append((first, last))
        return found

    def refused(self, parts: Sequence[tuple[int, int, Refused]]) -> tuple[tuple[int, int, Refused], ...]:
        """The parts (ordinal, count, why) as ranges (first, last, why) of numbers, ascending. Neighbours that were
        refused for equal causes are one range."""
        found: list[tuple[int, int, Refused]] = []
        for why, alike in groupby(sorted(parts, key=_ordinal), key=_why):
            joined: list[tuple[int, int]] = []
            for ordinal, count, _ in alike:
                _append(joined, ordinal, count)
            found += [(first, last, why) for first, last in self.of(joined)]
        return tuple(found)
