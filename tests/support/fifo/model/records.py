"""Records of the model (group.py): a message, a consumer, a line, a producer, and what an entry has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fifo import commands as c
from fifo import effects as e
from quorum_selectors import canonical
from support.fifo.model.staging import Fields

NEVER = 1 << 70
tree_of = lru_cache(maxsize=1_000)(canonical.decode)
"""The tree of a selector. The model asks for it at every message."""


@dataclass(eq=False)
class Message:
    sequence: int
    body: tuple[int, int, int]  # index, operation, ordinal
    expiry: int
    index: int
    fields: Fields
    is_alone: bool  # in its batch
    priority: int = 0
    key: int = 0  # of its message group
    size: int | None = None  # where its block notes sizes
    due_ms: int = -1  # while it is delayed
    is_held: bool = False
    is_gone: bool = False
    was_delivered: bool = False
    failures: int = 0

    @property
    def is_ready(self) -> bool:
        return not self.is_held and self.due_ms < 0


@dataclass(eq=False)
class ModelConsumer:
    producer: bytes
    tag: str
    address: c.Address
    attach: int
    selector: bytes | None
    credit_to: int = 0
    next_tag: int = 1
    checked_out: dict[int, Message] = field(default_factory=dict)
    owner: int = c.UNKNOWN
    priority: int = 0
    is_active: bool = True
    timed_out: list[int] = field(default_factory=list)  # tags


@dataclass(eq=False)
class Line:
    """A selector group: its consumers with credit in order, and its front."""

    selector: bytes
    scan_position: int = 0
    consumers: list[ModelConsumer] = field(default_factory=list)

    def of(self, priority: int) -> list[ModelConsumer]:
        return [consumer for consumer in self.consumers if consumer.priority == priority]


@dataclass
class Rest:
    """What an entry may still do."""

    blocks: int
    messages: int
    runs: int
    steps: int
    snapshot_bodies: int
    copies: int
    moved: int = 0
    finished: int = 0
    due: int = 0

    def is_enough(self) -> bool:
        return (
            not self.finished
            or min(self.blocks, self.messages, self.runs, self.steps, self.snapshot_bodies) > 0
        )


@dataclass
class Left:
    """What an entry may still do in a queue, and what it has paid for there."""

    rest: Rest
    read: set[int] = field(default_factory=set)  # sequences
    reads_arrivals: bool = False
    expired: set[int] = field(default_factory=set)


@dataclass(eq=False)
class ModelProducer:
    name: bytes
    epoch: int
    address: c.Address
    owner: int = c.UNKNOWN
    last_n: int = 0
    floor: int = 0
    accepted: set[int] = field(default_factory=set)
    highest: int = -1  # of all that were taken
    last_tx: int = 0
    named_tx: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    ended_ms: int = -1

    def name_tx(self, number: int) -> None:
        self.named_tx.add(number)
        self.last_tx = max(self.last_tx, number)

    def may_begin(self, number: int, window: int) -> bool:
        return number > self.last_tx - window and number not in self.named_tx


def as_refused(refused: dict[int, str], first: int) -> list[tuple[int, int, e.Refused]]:
    """Ranges of numbers from ordinals and why each was refused."""
    found: list[tuple[int, int, e.Refused]] = []
    for ordinal, reason in refused.items():
        number = first + ordinal
        if found and found[-1][1] == number - 1 and found[-1][2].reason == reason:
            found[-1] = (found[-1][0], number, found[-1][2])
        else:
            found.append((number, number, e.Refused(reason, "")))
    return found


def delivered(
    consumer: ModelConsumer, queue: int, tags: Sequence[int], settled: bool = False
) -> tuple[Any, ...]:
    messages = [consumer.checked_out[tag] for tag in tags]
    return (
        "deliver",
        consumer.address,
        queue,
        consumer.tag,
        consumer.attach,
        tags[0],
        [(message.sequence, *message.body) for message in messages],
        [message.was_delivered for message in messages],
        [message.failures for message in messages],
        settled,
    )


def gaps(numbers: set[int]) -> int:
    """How many ranges they are, but for the first."""
    return max(0, len(as_ranges(numbers)) - 1)


def as_ranges(numbers: set[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)
