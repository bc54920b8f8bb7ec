"""Consumers, their checked-out messages, and the groups that they form by their selectors."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fifo.commands import UNKNOWN, Address, Attach
from fifo.consumers.selector import Selector, decoded

Key = tuple[bytes, str]
"""A consumer in its queue: the session's producer, and the consumer tag."""

MANY_RANGES = 64
"""Number of tag ranges from which a few steps for all runs of a consumer are cheaper than a cut for each range."""


class CheckedOut:
    """The messages that one consumer has received and not settled, as runs in parallel arrays, ascending by tag.

    A run is (delivery tag, sequence, count): neighbouring tags of neighbouring sequences.

        >>> messages = CheckedOut()
        >>> messages.add(1, 100, 5)
        >>> messages.remove(2, 3)
        [(101, 2)]
        >>> messages.between(1, 5), messages.total
        ([(100, 1), (103, 2)], 3)
    """

    __slots__ = ("counts", "sequences", "tags", "total")

    def __init__(self) -> None:
        self.tags = array("Q")
        self.sequences = array("Q")
        self.counts = array("I")
        self.total = 0

    def add(self, tag: int, sequence: int, count: int) -> None:
        self.total += count
        if self.tags:
            before = self.counts[-1]
            if self.tags[-1] + before == tag and self.sequences[-1] + before == sequence:
                self.counts[-1] = before + count
                return
        self.tags.append(tag)
        self.sequences.append(sequence)
        self.counts.append(count)

    def remove(self, first: int, last: int) -> list[tuple[int, int]]:
        """Removes the tags first..last. Returns their messages as (sequence, count), in the order of the tags."""
        tags, sequences, counts = self.tags, self.sequences, self.counts
        i = max(bisect_right(tags, first) - 1, 0)
        if i < len(tags) and tags[i] + counts[i] <= first:
            i += 1
        j = bisect_right(tags, last, i)
        if i == j:
            return []
        if j == i + 1 and first <= tags[i] and tags[i] + counts[i] <= last + 1:  # one whole run, as usual
            count = counts.pop(i)
            del tags[i]
            self.total -= count
            return [(sequences.pop(i), count)]
        out = list(zip(sequences[i:j], counts[i:j], strict=True))
        kept: list[tuple[int, int, int]] = []
        ahead = first - tags[i]
        behind = tags[j - 1] + counts[j - 1] - 1 - last
        if ahead > 0:
            sequence, count = out[0]
            kept.append((tags[i], sequence, ahead))
            out[0] = (sequence + ahead, count - ahead)
        if behind > 0:
            sequence, count = out[-1]
            kept.append((last + 1, sequence + count - behind, behind))
            out[-1] = (sequence, count - behind)
        tags[i:j] = array("Q", [tag for tag, _, _ in kept])
        sequences[i:j] = array("Q", [sequence for _, sequence, _ in kept])
        counts[i:j] = array("I", [count for _, _, count in kept])
        self.total -= sum(count for _, count in out)
        return out

    def remove_many(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Removes the tags of many ranges (first, last); like `remove` of each. The cost is that of what is removed."""
        if len(ranges) < MANY_RANGES:
            return [pair for first, last in ranges for pair in self.remove(first, last)]
        wanted = self._present(ranges)
        if len(wanted) < MANY_RANGES:
            return [pair for first, last in wanted for pair in self.remove(first, last)]
        return self._cut_out(wanted).ranges()

    def _cut_out(self, ranges: Sequence[tuple[int, int]]) -> CheckedOut:
        """Removes the tags of these ranges, and returns them. A few steps for all runs together are cheaper than moving
        the rest of the arrays for every range."""
        out = CheckedOut()
        if not self.tags:
            return out
        tags = np.frombuffer(self.tags, dtype=np.uint64).astype(np.int64)
        sequences = np.frombuffer(self.sequences, dtype=np.uint64).astype(np.int64)
        ends = tags + np.frombuffer(self.counts, dtype=np.uint32)
        firsts, stops = _joined(ranges, int(ends[-1]))
        # Runs are split where a range begins or stops inside them; then each is removed as a whole, or stays.
        edges = np.union1d(firsts, stops)
        places = np.searchsorted(tags, edges, side="right") - 1
        is_inside = (places >= 0) & (edges > tags[places]) & (edges < ends[places])
        edges, places = edges[is_inside], places[is_inside]
        sequences = np.insert(sequences, places + 1, sequences[places] + edges - tags[places])
        tags, ends = np.insert(tags, places + 1, edges), np.insert(ends, places, edges)
        changes = np.zeros(len(tags) + 1, dtype=np.int64)
        np.add.at(changes, np.searchsorted(tags, firsts), 1)
        np.add.at(changes, np.searchsorted(tags, stops), -1)
        is_removed = np.cumsum(changes[:-1]) > 0
        for target, some in ((out, is_removed), (self, ~is_removed)):
            target._fill(tags[some], sequences[some], (ends - tags)[some])
        return out

    def _fill(self, tags: NDArray[np.int64], sequences: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Replaces its runs."""
        self.tags = array("Q", tags.tobytes())
        self.sequences = array("Q", sequences.tobytes())
        self.counts = array("I", counts.astype(np.uint32).tobytes())
        self.total = int(counts.sum())

    def _present(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of these ranges of which it has tags."""
        found, tags, counts = [], self.tags, self.counts
        for first, last in ranges:
            place = bisect_right(tags, last) - 1
            if place >= 0 and tags[place] + counts[place] > first:
                found.append((first, last))
        return found

    def count_of(self, first: int, last: int) -> int:
        """How many of the tags first..last it has: one sum over its runs."""
        start, end = max(bisect_right(self.tags, first) - 1, 0), bisect_right(self.tags, last)
        if start == end:
            return 0
        found = int(np.frombuffer(self.counts, dtype=np.uint32)[start:end].sum(dtype=np.int64))
        found -= min(max(first - self.tags[start], 0), self.counts[start])
        return found - max(self.tags[end - 1] + self.counts[end - 1] - 1 - last, 0)

    def run_count(self, first: int, last: int) -> int:
        """How many of its runs have some of the tags first..last, at most."""
        return bisect_right(self.tags, last) - max(bisect_right(self.tags, first) - 1, 0)

    def take(self, ranges: Sequence[tuple[int, int]]) -> CheckedOut:
        """Removes the tags of these ranges (first, last), ascending, all of which it has. Returns them."""
        if len(ranges) >= MANY_RANGES:
            return self._cut_out(ranges)
        found = CheckedOut()
        for first, last in ranges:
            start, end = bisect_right(self.tags, first) - 1, bisect_right(self.tags, last)
            part = CheckedOut()
            part.tags, part.sequences, part.counts = (
                self.tags[start:end], self.sequences[start:end], self.counts[start:end]
            )  # fmt: skip
            skipped = first - part.tags[0]
            part.tags[0] += skipped
            part.sequences[0] += skipped
            part.counts[0] -= skipped
            part.counts[-1] -= part.tags[-1] + part.counts[-1] - 1 - last
            part.total = last - first + 1
            found._insert(len(found.tags), part)
            self._delete(first, last)
        return found

    def _delete(self, first: int, last: int) -> None:
        """Removes the tags first..last, all of which it has."""
        start, end = bisect_right(self.tags, first) - 1, bisect_right(self.tags, last)
        kept = CheckedOut()
        ahead = first - self.tags[start]
        if ahead:
            kept.add(self.tags[start], self.sequences[start], ahead)
        behind = self.tags[end - 1] + self.counts[end - 1] - 1 - last
        if behind:
            kept.add(last + 1, self.sequences[end - 1] + self.counts[end - 1] - behind, behind)
        self.tags[start:end] = kept.tags
        self.sequences[start:end] = kept.sequences
        self.counts[start:end] = kept.counts
        self.total -= last - first + 1

    def take_back(self, others: CheckedOut) -> None:
        """Adds messages under tags that it does not have."""
        if not others.tags:
            return
        place = bisect_right(self.tags, others.tags[0])
        if place == bisect_right(self.tags, others.tags[-1]):
            self._insert(place, others)
        elif len(others.tags) * 128 < len(self.tags):  # a transaction may give back thousands of small parts
            for tag, sequence, count in zip(others.tags, others.sequences, others.counts, strict=True):
                run = CheckedOut()
                run.add(tag, sequence, count)
                self._insert(bisect_right(self.tags, tag), run)
        else:
            self._merge(others)

    def _insert(self, place: int, others: CheckedOut) -> None:
        """Adds messages whose tags are between those of its runs `place - 1` and `place`."""
        end = place + len(others.tags)
        self.tags[place:place] = others.tags
        self.sequences[place:place] = others.sequences
        self.counts[place:place] = others.counts
        self.total += others.total
        for seam in (end, place):  # neighbours become one run
            if 0 < seam < len(self.tags):
                count = self.counts[seam - 1]
                is_next = self.tags[seam - 1] + count == self.tags[seam]
                if is_next and self.sequences[seam - 1] + count == self.sequences[seam]:
                    self.counts[seam - 1] += self.counts[seam]
                    del self.tags[seam], self.sequences[seam], self.counts[seam]

    def _merge(self, others: CheckedOut) -> None:
        """Adds messages anywhere between its own."""
        tags = np.concatenate([np.frombuffer(each.tags, dtype=np.uint64) for each in (self, others)])
        sequences = np.concatenate(
            [np.frombuffer(each.sequences, dtype=np.uint64) for each in (self, others)]
        )
        counts = np.concatenate([np.frombuffer(each.counts, dtype=np.uint32) for each in (self, others)])
        order = np.argsort(tags, kind="stable")
        tags, sequences, counts = tags[order], sequences[order], counts[order]
        follows = (tags[1:] == tags[:-1] + counts[:-1]) & (sequences[1:] == sequences[:-1] + counts[:-1])
        starts = np.flatnonzero(np.concatenate([[True], ~follows]))  # neighbours become one run
        self.tags = array("Q", tags[starts].tobytes())
        self.sequences = array("Q", sequences[starts].tobytes())
        self.counts = array("I", np.add.reduceat(counts, starts).astype(np.uint32).tobytes())
        self.total += others.total

    def cut(self, last: int) -> CheckedOut:
        """Removes the tags up to `last` and returns them."""
        found = CheckedOut()
        for place in range(bisect_right(self.tags, last)):
            tag = self.tags[place]
            found.add(tag, self.sequences[place], min(self.counts[place], last - tag + 1))
        self.remove(0, last)
        return found

    def has_up_to(self, last: int) -> bool:
        """Whether it has a message with a tag up to `last`."""
        return bool(self.tags) and self.tags[0] <= last

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """The messages of the tags first..last, as (sequence, count) in the order of the tags."""
        tags, sequences, counts = self.tags, self.sequences, self.counts
        found = []
        for place in range(max(bisect_right(tags, first) - 1, 0), bisect_right(tags, last)):
            skipped = max(first - tags[place], 0)
            count = min(tags[place] + counts[place] - 1, last) - tags[place] - skipped + 1
            if count > 0:
                found.append((sequences[place] + skipped, count))
        return found

    def ranges(self) -> list[tuple[int, int]]:
        """All messages, as (sequence, count) in the order of the tags."""
        return list(zip(self.sequences, self.counts, strict=True))

    def remove_all(self) -> list[tuple[int, int]]:
        out = self.ranges()
        for column in (self.tags, self.sequences, self.counts):
            del column[:]
        self.total = 0
        return out


def _joined(ranges: Sequence[tuple[int, int]], end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same numbers below `end` as ranges (first, last) with gaps between them, ascending: the first number of each,
    and the one after its last."""
    pairs = np.array(
        [(first, min(last + 1, end)) for first, last in sorted(ranges) if first < end], dtype=np.int64
    )
    firsts, stops = pairs.reshape(-1, 2).T
    stops = np.maximum.accumulate(stops)
    is_first = np.ones(len(firsts), dtype=np.bool_)
    is_first[1:] = firsts[1:] > stops[:-1]
    is_last = np.ones(len(firsts), dtype=np.bool_)
    is_last[:-1] = is_first[1:]
    return firsts[is_first], stops[is_last]


@dataclass(slots=True)
class Embargoed:
    """The messages of a consumer that a transaction settles."""

    first_tag: int
    count: int


@dataclass(slots=True, eq=False)
class Consumer:
    """One attachment of a session to a queue."""

    producer: bytes
    tag: str  # "" for the session's own consumer of Get
    address: Address
    attach: int  # unique in the queue
    group: SelectorGroup | None  # None for Get, and once cancelled
    max_checked_out: int
    credit_to: int = 0  # tags up to here may be handed out
    next_tag: int = 1
    checked_out: CheckedOut = field(default_factory=CheckedOut)
    owner: int = UNKNOWN  # of its session
    priority: int = 0
    is_active: bool = True  # False: it is given nothing
    timed_out: CheckedOut | None = None
    """the messages that were requeued after the consumer timeout and that it has not answered since; None if there are
    none"""
    embargoed: dict[int, Embargoed] = field(default_factory=dict)
    """what its open transactions settle, by their numbers: they have these messages, nothing else settles them"""
    embargoed_count: int = 0

    key: Key = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.producer, self.tag

    @property
    def selector(self) -> bytes | None:
        """The selector of its group; None without a group."""
        return None if self.group is None else self.group.selector

    def is_like(self, command: Attach) -> bool:
        """Whether it is attached as this command would attach it, and no message has timed out."""
        is_alike = self.selector == command.selector and self.priority == command.priority
        return is_alike and self.timed_out is None

    def time_out(self, overdue: CheckedOut) -> None:
        """Notes messages that it held for too long: it is given nothing until it has answered all of them."""
        self.is_active = False
        if self.timed_out is None:
            self.timed_out = overdue
        else:
            for tag, sequence, count in zip(overdue.tags, overdue.sequences, overdue.counts, strict=True):
                self.timed_out.add(tag, sequence, count)

    def answer_late(self, tags: Sequence[tuple[int, int]]) -> bool:
        """Notes that these tags are answered. Returns whether that was the last of the messages that timed out."""
        if self.timed_out is None:
            return False
        self.timed_out.remove_many(tags)
        if self.timed_out.total:
            return False
        self.timed_out = None
        return True

    @property
    def selector_bytes(self) -> int:
        """The bytes of its selector, 0 if it is cancelled."""
        return 0 if self.group is None else len(self.group.selector)

    @property
    def credit(self) -> int:
        """The number of messages that it may receive now."""
        if not self.is_active:
            return 0
        allowed, free = self.credit_to + 1 - self.next_tag, self.max_checked_out - self.held_count
        least = allowed if allowed < free else free
        return least if least > 0 else 0

    @property
    def held_count(self) -> int:
        """The messages that it has not settled, or whose settlement does not count yet."""
        return self.checked_out.total + self.embargoed_count

    @property
    def is_full(self) -> bool:
        return self.held_count >= self.max_checked_out

    def has_up_to(self, last: int) -> bool:
        """Whether it holds a message with a tag up to `last`."""
        return self.checked_out.has_up_to(last) or any(
            each.first_tag <= last for each in self.embargoed.values()
        )

    def may_have_back(self, attach: int, held: CheckedOut) -> bool:
        """Whether it may hold messages again that this attachment had."""
        return (
            self.attach == attach and self.is_active and self.held_count + held.total <= self.max_checked_out
        )

    def embargo(self, transaction: int, held: CheckedOut) -> None:
        """Notes that a transaction settles these messages, which are not among the others any more."""
        known = self.embargoed.setdefault(transaction, Embargoed(held.tags[0], 0))
        known.first_tag = min(known.first_tag, held.tags[0])
        known.count += held.total
        self.embargoed_count += held.total

    def lift_embargo(self, transaction: int) -> None:
        """Notes that the transaction has come to its end, or needs this consumer no more."""
        known = self.embargoed.pop(transaction, None)
        if known is not None:
            self.embargoed_count -= known.count


class SelectorGroup:
    """The consumers with one selector; b"" is the group of consumers without a selector, which need no scan."""

    __slots__ = (
        "_decoded",
        "eligible",
        "evaluated_to",
        "queue_position",
        "scan_position",
        "selector",
        "size",
    )

    def __init__(self, selector: bytes) -> None:
        self.selector = selector
        self.size = 0  # its consumers
        self.scan_position = 0
        self.queue_position = 0  # its place among the groups with credit
        self.eligible: dict[int, OrderedDict[Key, Consumer]] = {}
        """those with credit by their priority; the first of a priority is next"""
        self._decoded: Selector | None = None
        self.evaluated_to = 0

    @property
    def decoded(self) -> Selector:
        if self._decoded is None:
            self._decoded = decoded(self.selector)
        return self._decoded

    def credit(self, priority: int, enough: int) -> int:
        """The credit of its consumers of a priority; it stops to count at `enough`."""
        found = 0
        for consumer in self.eligible.get(priority, {}).values():
            found += consumer.credit
            if found >= enough:
                break
        return found

    def next_consumer(self, priority: int) -> Consumer:
        return next(iter(self.eligible[priority].values()))
