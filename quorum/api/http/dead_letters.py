"""What waits in a dead-letter queue, and moving it back to the queues where it died, for the page and for curl.

The rules and the steps are those of `quorum queues redrive` (docs/dead-letters.md, quorum/redrive.py). Here a
session of this member's own takes the messages and settles them, and requeues those that stay at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import structlog

from fifo import commands as c
from fifo.frozen_dataclasses import dataclass
from quorum.api.hub.deliveries import DeliveredBatch
from quorum.api.hub.hub import Hub
from quorum.api.owners import CALLER, owner_of
from quorum.api.session import outcomes as o
from quorum.api.session.client_session import ClientSession
from quorum.api.session.consumers import Consumer, Disposition
from quorum.api.status import Code, Status, StatusError, exhausted, make, unavailable
from quorum.node.wire import batches
from quorum.redrive import (
    HISTORY,
    Bounds,
    CannotTake,
    InDoubt,
    Redrive,
    Redriven,
    Refused,
    last_death,
    other_is_active,
)
from quorum.v1 import queue_pb2

LOOKED_AT = 1_000
"""Messages that are counted, at most."""
LOOK_S = 2.0
"""Time limit for the count: bodies may be large."""
MAX_GROUPS = 20
"""Pairs of reason and queue that are told by themselves. Publishers may have written them."""
MAX_NAME = 255
MAX_MOVED = 10_000
"""Messages of one redrive, with those that stay: they are checked out until its end."""
REDRIVE_S = 60.0
"""Time limit of a redrive."""
END_S = 5.0
"""Time limit for requeueing the messages that stay; the end of the session requeues them otherwise."""
AT_A_TIME, ROUND_BYTES = 200, 16 << 20
"""Messages of a round, and their bytes: fewer than a client takes, because they are in the member's memory."""
TAG = "redrive"
UNKNOWN = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
"""After these the message may have been published."""
TIMED_OUT = make(
    Code.FAILED_PRECONDITION, "wrong_attach", "messages were checked out for longer than the queue allows"
)

Publish = Callable[[queue_pb2.PublishRequest], Any]
"""Checks the permission and publishes. Refused if the user may not, StatusError after any other failure."""


@dataclass(frozen=True, slots=True)
class _Letter:
    sequence: int
    tag: int
    body: bytes
    properties: queue_pb2.Properties

    @property
    def application_properties(self) -> dict[str, Any]:
        return _own(self.properties)


def _own(properties: queue_pb2.Properties) -> dict[str, Any]:
    """The application properties that are texts."""
    return {
        name: value.text
        for name, value in properties.application_properties.items()
        if value.WhichOneof("kind") == "text"
    }


async def counted(browse: Any, queue: str) -> dict[str, Any]:
    """The ready messages of a queue by their last death, from the first on. browse(request): yields answers."""
    groups: Counter[tuple[str, str]] = Counter()
    others = looked_at = 0
    end = time.monotonic() + LOOK_S
    is_all = True
    async with contextlib.aclosing(
        browse(queue_pb2.BrowseRequest(queue=queue, limit=LOOKED_AT + 1))
    ) as parts:
        async for part in parts:
            for stored in part.messages:
                if looked_at == LOOKED_AT or time.monotonic() > end:
                    is_all = False
                    break
                looked_at += 1
                name, reason = last_death(_own(stored.message.properties))
                if name:
                    groups[reason[:MAX_NAME], name[:MAX_NAME]] += 1
                else:
                    others += 1
            if not is_all:
                break
    shown = groups.most_common(MAX_GROUPS)
    return {
        "looked_at": looked_at,
        "is_all": is_all,
        "groups": [{"reason": reason, "queue": name, "messages": count} for (reason, name), count in shown],
        "in_other_groups": groups.total() - sum(count for _, count in shown),
        "without_history": others,
    }


class Redriver:
    """One redrive at a time for this member."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_busy = False

    async def run(
        self, queue: str, only: str, limit: int, next_sequence: int, publish: Publish, peer: str, user: str
    ) -> dict[str, Any]:
        """Move at most `limit` messages. only: those that died last in this queue; empty: all. next_sequence: messages
        from there on are not moved. StatusError."""
        if self._is_busy:
            text = (
                "this member moves dead letters back already, and does one redrive at a time; try again when it has "
                f"ended, in {REDRIVE_S:g} s at most, or ask another member"
            )
            raise exhausted("too_many_calls", text)
        self._hub.access.audit.begin("redrive", user, peer, f"queue={queue}")
        self._is_busy = True
        redrive: Redrive[_Letter] | None = None
        try:
            async with (
                asyncio.timeout(REDRIVE_S),
                _Session(self._hub, queue, owner_of(CALLER.get()), publish) as session,
            ):
                bounds = Bounds(AT_A_TIME, ROUND_BYTES, most_taken=limit)
                redrive = Redrive(session, queue, bounds, only or None, next_sequence)
                await redrive.run()
        except TimeoutError as error:
            if redrive is None:
                text = f"no leader has answered for the queue {queue!r} within {REDRIVE_S:g} s; nothing was moved"
                raise unavailable("no_leader", text) from error
            redrive.is_complete = False
        finally:
            self._is_busy = False
        return _told(redrive.result)


class _Session:
    """A session that takes messages of one queue and settles them: a `Source` of a redrive."""

    def __init__(self, hub: Hub, queue: str, owner: int, publish: Publish) -> None:
        self._session = ClientSession(hub)
        self._catalog = hub.catalog
        self._queue = queue
        self._owner = owner
        self._publish = publish
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._drained: asyncio.Future[int] = hub.loop.create_future()
        self._loop = hub.loop
        self._batches: list[DeliveredBatch] = []
        self._number = 0
        self._next_tag = 1
        self._failure: Status | None = None
        """why it holds no message any more; settlements have no effect then, and perhaps no answer"""
        self._is_active = False
        """Whether it has the active consumer, of a queue with a single active consumer"""

    async def __aenter__(self) -> _Session:
        self._session.open(os.urandom(c.PRODUCER_BYTES), 1, self._owner, 1)
        self._reading = asyncio.create_task(self._read())
        try:
            number = self._request()
            await self._session.consumers.attach(number, TAG, self._queue, None, 0)
            await self._answered(number)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            async with asyncio.timeout(END_S):
                number = self._request()
                self._session.consumers.cancel(number, TAG, requeue=True)
                await self._answered(number)
        except (StatusError, TimeoutError) as error:
            structlog.get_logger().info("a redrive could not end its consumer", error=str(error))
        finally:
            await self._end()

    async def _end(self) -> None:
        self._session.client_closes()
        self._session.release()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def _request(self) -> int:
        self._number += 1
        self._answers[self._number] = self._loop.create_future()
        return self._number

    async def _answered(self, number: int) -> None:
        """StatusError if it was refused, or the session has ended."""
        try:
            await self._answers[number]
        finally:
            del self._answers[number]

    async def _read(self) -> None:
        try:
            async for turn in self._session.outcomes():
                for each in turn:
                    self._take(each)
        except StatusError as error:
            self._fail(error.status)
        except Exception as error:
            structlog.get_logger().critical("a redrive has failed", exc_info=error)
            text = "this member has failed to serve the redrive; its log has the reason"
            self._fail(make(Code.INTERNAL, "failed", text))

    def _take(self, outcome: o.Outcome) -> None:
        if isinstance(outcome, DeliveredBatch):
            self._batches.append(outcome)
        elif isinstance(outcome, o.Attached):
            self._answer(outcome.request_id)
        elif isinstance(outcome, o.Done):
            for number in outcome.request_ids:
                self._answer(number)
        elif isinstance(outcome, o.Failed):
            self._answer(outcome.request_id, outcome.why)
        elif isinstance(outcome, o.Drained) and not self._drained.done():
            self._drained.set_result(outcome.next_tag)
        elif isinstance(outcome, o.ActiveChanged):
            self._is_active = outcome.is_active
        elif isinstance(outcome, o.Cancelled):
            self._fail(outcome.why)
        elif isinstance(outcome, o.TimedOut):  # a consumer timeout: the messages are in the queue again
            self._fail(TIMED_OUT)

    def _answer(self, number: int, why: Status | None = None) -> None:
        future = self._answers.get(number)
        if future is None or future.done():
            return
        if why is None:
            future.set_result(None)
        else:
            future.set_exception(StatusError(why))

    def _fail(self, why: Status) -> None:
        self._failure = self._failure or why
        for number in self._answers:
            self._answer(number, why)
        if not self._drained.done():
            self._drained.set_exception(StatusError(why))
            self._drained.exception()  # asyncio does not complain if no further message is taken

    async def take(self, count: int) -> tuple[list[_Letter], int]:
        try:
            letters = await self._taken(count)
        except StatusError as error:
            raise CannotTake from error
        return letters, sum(len(each.body) + each.properties.ByteSize() for each in letters)

    async def _taken(self, count: int) -> list[_Letter]:
        """StatusError."""
        if self._drained.done():
            self._drained.result()  # the session has ended
        number = self._request()
        self._session.consumers.credit(number, TAG, self._next_tag - 1 + count, drain=True)
        await self._answered(number)
        self._next_tag = await self._drained
        self._drained = self._loop.create_future()
        found, self._batches = self._batches, []
        if not found and self._is_another_active():
            raise StatusError(make(Code.FAILED_PRECONDITION, "in_use", other_is_active(self._queue)))
        return [letter for batch in found for letter in _letters(batch)]

    def _is_another_active(self) -> bool:
        queue = self._catalog.queue(self._queue)
        return queue is not None and queue.config.single_active_consumer and not self._is_active

    async def publish(self, letter: _Letter, target: str, history: str | None) -> None:
        request = queue_pb2.PublishRequest(queue=target)
        message = request.messages.add(body=letter.body, properties=letter.properties)
        if history is not None:
            message.properties.application_properties[HISTORY].text = history
        try:
            await self._publish(request)
        except StatusError as error:
            if error.status.code in UNKNOWN:
                raise InDoubt from error
            raise Refused(error.status.message) from error

    async def settle(self, letter: _Letter) -> None:
        if self._failure is not None:
            raise InDoubt from StatusError(self._failure)
        number = self._request()
        consumer = self._session.consumers.find(number, TAG)
        if consumer is not None:
            self._session.consumers.settle(number, consumer, _settled(consumer, letter.tag))
        try:
            await self._answered(number)
        except StatusError as error:
            raise InDoubt from error


def _settled(consumer: Consumer, tag: int) -> Disposition:
    return Disposition(c.Settle, consumer.attach, ((tag, tag),))


def _letters(batch: DeliveredBatch) -> Iterator[_Letter]:
    sequences = (each for first, last in batch.sequences for each in range(first, last + 1))
    tags = range(batch.first_tag, batch.first_tag + batch.count)
    for sequence, tag, (body, properties) in zip(sequences, tags, batches.messages(batch.batch), strict=True):
        yield _Letter(sequence, tag, body, properties)


def _told(found: Redriven) -> dict[str, Any]:
    return {
        "moved": _rows("queue", found.moved.items()),
        "left": _rows("reason", found.left.items()),
        "in_doubt": _rows("queue", found.doubtful.items()),
        "is_complete": found.is_complete,
    }


def _rows(name: str, counts: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{name: key, "messages": count} for key, count in sorted(counts) if count]
