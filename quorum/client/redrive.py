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
from quorum.client.errors import QuorumError
from quorum.client.records import QueueDescription, Redriven
from quorum.client.values import FieldValue, Properties

AT_A_TIME = 500
CAME_FROM = "x-last-death-queue"
HISTORY = "x-death"
REDRIVEN = "redriven"
"""The reason in the record of a message that was moved back (quorum/api/death_history.py)."""
MAX_RECORDS = 64
"""Records that the service reads of a history."""
NO_HISTORY = f"no property {CAME_FROM}: it is no dead letter"


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


async def redrive(client: Mover, queue: str, selector: str | None, limit: int | None) -> Redriven:
    """See Client.redrive. Messages that come to the queue meanwhile are not moved."""
    end = (await client.describe(queue)).queue.next_sequence
    moved: Counter[str] = Counter()
    left: Counter[str] = Counter()
    holders: list[Consumer] = []
    try:
        while limit is None or moved.total() < limit:
            wanted = AT_A_TIME if limit is None else min(AT_A_TIME, limit - moved.total())
            holders.append(client.consume(queue, selector, prefetch=wanted))
            await holders[-1].drain()
            found = [message async for message in holders[-1] if message.sequence < end]
            if not found:
                break
            outcomes = await asyncio.gather(*(_move(client, message) for message in found))
            for target, reason in outcomes:
                if reason:
                    left[reason] += 1
                else:
                    moved[target] += 1
    finally:
        for holder in holders:
            await holder.cancel()
    return Redriven(dict(moved), dict(left))


async def _move(client: Mover, message: DeliveredMessage) -> tuple[str, str]:
    """The queue that has the message now, and why it could not be moved; empty if it was."""
    own = {name: value for name, value in message.application_properties.items() if value is not None}
    target = own.get(CAME_FROM)
    if not isinstance(target, str) or not target:
        return "", NO_HISTORY
    if isinstance(history := own.get(HISTORY), str):
        own[HISTORY] = moved_back(history, message.queue, time.time_ns() // 1_000_000)
    try:
        await client.publish(target, message.body, message.properties, own)
        await client.settle(message, wait=True)
    except QuorumError as error:
        return target, str(error)
    return target, ""
