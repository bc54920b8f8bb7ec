"""Moving dead letters back to the queues where they died (docs/dead-letters.md): the rules and the steps.

A message is published to the queue that its `x-last-death-queue` names, and settled when that is confirmed. Messages
that cannot be moved stay checked out until the end, so that they are not looked at twice, and are requeued then.

`Redrive` has the steps. A `Source` takes, publishes and settles: a client with its consumers
(quorum/client/admin/redrive.py), or a member with a session of its own (quorum/api/http/dead_letters.py).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

FIRST_ROUND = 16
"""Messages of the first round, which may be large."""
MAX_REASONS = 20
"""Reasons that are reported by themselves. They have names in them that a publisher has written."""
MAX_REASON = 200
"""Characters of a reason."""
CAME_FROM, WHY = "x-last-death-queue", "x-last-death-reason"
HISTORY = "x-death"
REDRIVEN = "redriven"
"""The reason in the record of a message that was moved back (quorum/api/dead_letters/history.py)."""
MAX_RECORDS = 64
"""Records that the service reads of a history."""
NO_HISTORY = f"no property {CAME_FROM}: it is no dead letter"
DIED_HERE = "it has died in this queue, so there is no other one to move it to"
OTHER_REASONS = "other reasons"


@dataclass(frozen=True, slots=True)
class Redriven:
    """What became of the messages of a dead-letter queue. moved: by the queue that has them now. left: those that are
    still where they were, by the reason. doubtful: by the queue that they were published to, those that are or may be
    in both queues, because the publish or the settlement was not answered. is_complete: False if the command ended
    early, because it held as many messages that stay as it may, because the queue had too many consumers, or because
    it was deleted meanwhile."""

    moved: dict[str, int]
    left: dict[str, int]
    doubtful: dict[str, int] = field(default_factory=dict)
    is_complete: bool = True


def moved_back(history: str, queue: str, time_ms: int) -> str:
    """The history (`x-death`) of a message that is moved back from this dead-letter queue: with a record that says so,
    the latest one. So what comes after it is no cycle of the message by itself. A text that is no history stays as it
    is."""
    try:
        found = json.loads(history)
    except (ValueError, RecursionError):
        return history
    if not isinstance(found, list) or not found or not all(isinstance(each, dict) for each in found):
        return history
    before: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for each in found:
        is_before = (each.get("queue"), each.get("reason")) == (queue, REDRIVEN)
        (before if is_before else others).append(each)
    counts = [each["count"] for each in before if isinstance(each.get("count"), int)]
    made = {"queue": queue, "reason": REDRIVEN, "count": 1 + sum(counts), "time": time_ms}
    try:
        text = json.dumps([made, *others][:MAX_RECORDS], ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except (ValueError, RecursionError):  # JSON can name half a character, and a number of any length
        return history
    return text


def other_is_active(queue: str) -> str:
    return f"queue {queue!r} gives its messages to one consumer, and another one is active; end it first"


def last_death(own: Mapping[str, object]) -> tuple[str, str]:
    """(queue, reason) of a message's last death; an empty queue if it has no history. A short history is `x-death`
    alone."""
    if (found := own.get(CAME_FROM)) is not None:
        return _text(found), _text(own.get(WHY))
    try:
        deaths = json.loads(str(own.get(HISTORY, "")))
    except (ValueError, RecursionError):
        return "", ""
    for each in deaths if isinstance(deaths, list) else []:
        if not isinstance(each, dict):
            break
        if each.get("reason") != REDRIVEN:
            return _text(each.get("queue")), _text(each.get("reason"))
    return "", ""


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""


class Letter(Protocol):
    """What the steps need of a message of the dead-letter queue."""

    @property
    def sequence(self) -> int: ...

    @property
    def application_properties(self) -> Mapping[str, object]: ...


LetterT = TypeVar("LetterT", bound=Letter)


class CannotTake(Exception):
    """The source gets no more messages. The cause says why."""


class Refused(Exception):
    """The target has not taken a message, and the text says why."""


class InDoubt(Exception):
    """A message may be in both queues."""


class Source(Protocol[LetterT]):
    """Takes messages of a dead-letter queue, and holds those that are not settled."""

    async def take(self, count: int) -> tuple[list[LetterT], int]:
        """Up to so many messages that are ready now, and their bytes. CannotTake."""

    async def publish(self, letter: LetterT, target: str, history: str | None) -> None:
        """Publish a message to this queue. history: replaces its own, if it is not None. Refused or InDoubt."""

    async def settle(self, letter: LetterT) -> None:
        """InDoubt unless it is settled."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """at_a_time, round_bytes: of a round. limit: messages that are moved, left or in doubt. most_held: messages that
    stay. most_taken: all messages. A redrive that ends at one of the last two is not complete."""

    at_a_time: int
    round_bytes: int
    limit: int | None = None
    most_held: int | None = None
    most_taken: int | None = None


class Redrive(Generic[LetterT]):
    """One redrive of a queue. only: the messages that died last in this queue; None for all. Messages from
    next_sequence on are not moved: they have come meanwhile. ready: the number of messages that were ready before."""

    def __init__(
        self,
        source: Source[LetterT],
        queue: str,
        bounds: Bounds,
        only: str | None,
        next_sequence: int,
        ready: int | None = None,
    ) -> None:
        self._source = source
        self._queue = queue
        self._bounds = bounds
        self._only = only
        self._next_sequence = next_sequence
        self._ready = ready
        self._moved: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._taken = 0
        self._passed = 0
        """messages that are held without being asked for: they are newer, or come from another queue than `only`"""
        self._doubtful: dict[int, str] = {}
        """the queue of each message that may be in both queues, by sequence"""
        self._published: set[int] = set()
        """sequences of those that were published, so that they are only settled if they are delivered again"""
        self.is_complete = True
        """False if there may be more messages that could be moved"""

    @property
    def result(self) -> Redriven:
        """What was moved so far, also if `run` was cancelled."""
        doubtful = Counter(self._doubtful.values())
        return Redriven(dict(self._moved), dict(self._left), dict(doubtful), self.is_complete)

    async def run(self) -> None:
        """Move the messages. The cause of CannotTake, if no message could be taken."""
        seen = 0
        count = FIRST_ROUND
        while (wanted := self._wanted(count)) > 0:
            try:
                letters, size = await self._source.take(wanted)
            except CannotTake as error:
                if not self._taken:
                    raise error.__cause__ or error from None
                self.is_complete = False
                return
            self._taken += len(letters)
            older = [letter for letter in letters if letter.sequence < self._next_sequence]
            seen += len(older)
            self._passed += len(letters) - len(older)
            await asyncio.gather(*map(self._look_at, older))
            # A queue with priorities may hand out newer messages before older ones.
            if not letters or (not older and self._ready is not None and seen >= self._ready):
                return
            fitting = max(1, len(letters) * self._bounds.round_bytes // max(1, size))
            count = min(2 * count, self._bounds.at_a_time, fitting)

    def _wanted(self, count: int) -> int:
        """Messages of the next round."""
        bounds = self._bounds
        if bounds.most_held is not None and self._passed + self._left.total() >= bounds.most_held:
            self.is_complete = False
            return 0
        if bounds.most_taken is not None:
            count = min(count, bounds.most_taken - self._taken)
            self.is_complete = count > 0
        if bounds.limit is not None:
            looked_at = self._moved.total() + self._left.total() + len(self._doubtful)
            count = min(count, bounds.limit - looked_at)
        return count

    async def _look_at(self, letter: LetterT) -> None:
        own = letter.application_properties
        target, _ = last_death(own)
        if self._only is not None and target != self._only:
            self._passed += 1
        elif not target:
            self._leave(NO_HISTORY)
        elif target == self._queue:
            self._leave(DIED_HERE)
        else:
            history = own.get(HISTORY)
            await self._move(letter, target, history if isinstance(history, str) else None)

    async def _move(self, letter: LetterT, target: str, history: str | None) -> None:
        """The message is in doubt until both are answered, also if this is cancelled in between."""
        number = letter.sequence
        if history is not None:
            history = moved_back(history, self._queue, time.time_ns() // 1_000_000)
        try:
            if number not in self._doubtful:
                self._doubtful[number] = target
                await self._source.publish(letter, target, history)
                self._published.add(number)
            if number in self._published:
                await self._source.settle(letter)
                del self._doubtful[number]
                self._moved[target] += 1
        except InDoubt:
            return
        except Refused as error:
            del self._doubtful[number]
            self._leave(str(error))

    def _leave(self, reason: str) -> None:
        reason = reason[:MAX_REASON]
        is_known = reason in self._left or len(self._left) < MAX_REASONS
        self._left[reason if is_known else OTHER_REASONS] += 1
