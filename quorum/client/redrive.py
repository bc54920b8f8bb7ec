"""Moves dead letters back to the queues where they died (docs/dead-letters.md).

A message is published to the queue that its `x-last-death-queue` names, and settled when that is confirmed. Messages
that cannot be moved stay checked out until the end, so that they are not looked at twice, and are requeued then.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from quorum.client.consumer import Consumer
from quorum.client.delivery import DeliveredMessage
from quorum.client.errors import OutcomeUnknown, PublishUnknown, QuorumError, RefusedError
from quorum.client.records import QueueDescription, Redriven
from quorum.client.values import FieldValue, Properties

FIRST_ROUND = 16
"""Messages of the first round, which may be large."""
AT_A_TIME = 500
ROUND_BYTES = 64 << 20
"""Bytes of a round, judged by the round before. A round is kept in memory, bodies included."""
MAX_PASSED = 100_000
"""Messages that the command leaves and holds, at most: it ends then."""
MAX_REASONS = 20
"""Reasons that are reported by themselves. They have names in them that a publisher has written."""
MAX_REASON = 200
"""Characters of a reason."""
CAME_FROM, WHY = "x-last-death-queue", "x-last-death-reason"
HISTORY = "x-death"
REDRIVEN = "redriven"
"""The reason in the record of a message that was moved back (quorum/api/death_history.py)."""
MAX_RECORDS = 64
"""Records that the service reads of a history."""
NO_HISTORY = f"no property {CAME_FROM}: it is no dead letter"
DIED_HERE = "it has died in this queue, so there is no other one to move it to"
OTHER_REASONS = "other reasons"


class Mover(Protocol):
    """What is needed of the client."""

    async def describe(self, name: str) -> QueueDescription: ...

    def consume(self, queue: str, selector: str | None = None, *, prefetch: int = 1000) -> Consumer: ...

    async def publish(
        self,
        queue: str,
        body: bytes,
        properties: Properties | Mapping[str, object] | None = None,
        application_properties: Mapping[str, FieldValue] | None = None,
    ) -> None: ...

    async def settle(self, target: DeliveredMessage, *, wait: bool = False) -> None: ...


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
    before = [each for each in found if (each.get("queue"), each.get("reason")) == (queue, REDRIVEN)]
    others = [each for each in found if each not in before]
    counts = [each["count"] for each in before if isinstance(each.get("count"), int)]
    made = {"queue": queue, "reason": REDRIVEN, "count": 1 + sum(counts), "time": time_ms}
    try:
        text = json.dumps([made, *others][:MAX_RECORDS], ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except (ValueError, RecursionError):  # JSON can name half a character, and a number of any length
        return history
    return text


def last_death(own: Mapping[str, FieldValue]) -> tuple[str, str]:
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


async def redrive(
    client: Mover, queue: str, selector: str | None, limit: int | None, only: str | None
) -> Redriven:
    """See Client.redrive. Messages that come to the queue meanwhile are not moved."""
    return await _Redrive(client, queue, limit, only).run(selector)


async def _round(consumer: Consumer) -> tuple[list[DeliveredMessage], int]:
    """The messages that a new consumer gets now, and the bytes of their batches."""
    await consumer.drain()
    found: list[DeliveredMessage] = []
    size = 0
    async for delivery in consumer.deliveries():
        found += [delivery[ordinal] for ordinal in range(len(delivery))]
        size += len(delivery.batch_bytes)
    return found, size


class _Redrive:
    """One redrive of a queue."""

    def __init__(self, client: Mover, queue: str, limit: int | None, only: str | None) -> None:
        self._client = client
        self._queue = queue
        self._limit = limit
        self._only = only
        self._moved: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._passed = 0
        """messages that are held without being asked for: they are newer, or come from another queue than `only`"""
        self._is_full = False
        """no more messages that stay can be held"""
        self._doubtful: dict[int, str] = {}
        """the queue of each message that may be in both queues, by sequence"""
        self._published: set[int] = set()
        """sequences of those that were published, so that they are only settled if they are delivered again"""

    async def run(self, selector: str | None) -> Redriven:
        info = (await self._client.describe(self._queue)).queue
        seen = 0
        count = FIRST_ROUND
        holders: list[Consumer] = []
        try:
            while (wanted := self._wanted(count)) > 0:
                holders.append(self._client.consume(self._queue, selector, prefetch=wanted))
                try:
                    messages, size = await _round(holders[-1])
                except RefusedError:
                    if not seen:
                        raise
                    self._is_full = True  # as by x-max-consumers: those that stay have a consumer
                    break
                older = [message for message in messages if message.sequence < info.next_sequence]
                seen += len(older)
                self._passed += len(messages) - len(older)
                await asyncio.gather(*map(self._look_at, older))
                if not holders[-1].held:
                    await holders.pop().cancel()
                # A queue with priorities may hand out newer messages before older ones.
                if not messages or (not older and seen >= info.ready):
                    break
                count = min(2 * count, AT_A_TIME, max(1, len(messages) * ROUND_BYTES // max(1, size)))
        finally:
            for holder in holders:
                await holder.cancel()
        doubtful = Counter(self._doubtful.values())
        return Redriven(dict(self._moved), dict(self._left), dict(doubtful), not self._is_full)

    def _wanted(self, count: int) -> int:
        """Messages of the next round."""
        self._is_full = self._passed + self._left.total() >= MAX_PASSED
        if self._is_full:
            return 0
        looked_at = self._moved.total() + self._left.total() + len(self._doubtful)
        return count if self._limit is None else min(count, self._limit - looked_at)

    async def _look_at(self, message: DeliveredMessage) -> None:
        own = {name: value for name, value in message.application_properties.items() if value is not None}
        target, _ = last_death(own)
        if self._only is not None and target != self._only:
            self._passed += 1
        elif not target:
            self._leave(NO_HISTORY)
        elif target == self._queue:
            self._leave(DIED_HERE)
        else:
            await self._move(message, target, own)

    async def _move(self, message: DeliveredMessage, target: str, own: dict[str, FieldValue]) -> None:
        number = message.sequence
        if isinstance(history := own.get(HISTORY), str):
            own[HISTORY] = moved_back(history, self._queue, time.time_ns() // 1_000_000)
        try:
            if number not in self._doubtful:
                await self._client.publish(target, message.body, message.properties, own)
                self._published.add(number)
                self._doubtful[number] = target
            if number in self._published:
                await self._client.settle(message, wait=True)
                del self._doubtful[number]
                self._moved[target] += 1
        except (PublishUnknown, OutcomeUnknown):
            self._doubtful[number] = target
        except QuorumError as error:
            if number not in self._doubtful:
                self._leave(str(error))

    def _leave(self, reason: str) -> None:
        reason = reason[:MAX_REASON]
        is_known = reason in self._left or len(self._left) < MAX_REASONS
        self._left[reason if is_known else OTHER_REASONS] += 1
