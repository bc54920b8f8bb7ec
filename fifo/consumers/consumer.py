"""Consumers, their checked-out messages, and the groups that they form by their selectors."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fifo.commands import UNKNOWN, Address, Attach
from fifo.consumers.selector import Selector, decoded
from fifo.number_ranges import NumberRanges

Key = tuple[bytes, str]
"""A consumer in its queue: the session's producer, and the consumer tag."""

MANY_RANGES = 64
"""Number of tag ranges from which one pass over all runs of a consumer may be cheaper than a cut for each range."""


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
        """Removes the tags of many ranges (first, last); like `remove` of each."""
        if len(ranges) == 1:
            return self.remove(*ranges[0])
        if len(ranges) < MANY_RANGES or len(ranges) * 128 < len(self.tags):
            return [pair for first, last in ranges for pair in self.remove(first, last)]
        # One pass over everything: cheaper than moving the arrays' rest for every range.
        wanted = deque(sorted(ranges))
        before = CheckedOut()
        before.tags, before.sequences, before.counts = self.tags, self.sequences, self.counts
        self.tags, self.sequences, self.counts, self.total = array("Q"), array("Q"), array("I"), 0
        out: list[tuple[int, int]] = []
        for tag, sequence, count in zip(before.tags, before.sequences, before.counts, strict=True):
            place, end = tag, tag + count
            while place < end:
                while wanted and wanted[0][1] < place:
                    wanted.popleft()
                first, last = wanted[0] if wanted else (end, end)
                kept = min(max(first - place, 0), end - place)
                if kept:
                    self.add(place, sequence + place - tag, kept)
                    place += kept
                taken = min(last + 1, end) - place
                if taken > 0:
                    out.append((sequence + place - tag, taken))
                    place += taken
        return out

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
    embargoed: NumberRanges | None = None  # tags that open transactions settle: nothing else settles them

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
        allowed, free = self.credit_to + 1 - self.next_tag, self.max_checked_out - self.checked_out.total
        least = allowed if allowed < free else free
        return least if least > 0 else 0

    def embargo(self, tags: Iterable[tuple[int, int]]) -> None:
        """Notes that an open transaction settles these ranges (first, last) of tags."""
        if self.embargoed is None:
            self.embargoed = NumberRanges()
        for first, last in tags:
            self.embargoed.add(first, last)

    def lift_embargo(self, tags: Iterable[tuple[int, int]]) -> None:
        """Notes that it does not settle them any more, or has done so."""
        assert self.embargoed is not None
        for first, last in tags:
            self.embargoed.remove(first, last)
        if not len(self.embargoed):
            self.embargoed = None


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

    def next_consumer(self, priority: int) -> Consumer:
        return next(iter(self.eligible[priority].values()))
