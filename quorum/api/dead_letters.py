"""Brings dead letters to their targets: on the node that leads the group of their queue.

The group's machine keeps the dead messages of a queue, and gives them numbers (fifo/messages/dead_letters.py). A worker
publishes them in the order of their numbers through a session of its own, as a client would, and says what the target
has confirmed. One batch is under way at a time.

Why a letter is neither lost nor doubled in its target:
- It is dead in its queue until the target has confirmed it.
- The session's producer is that of the queue, and a letter's number is its client sequence. So a repeat is dropped,
  also if the next leader's worker sends it. Each worker has a higher epoch, which fences the ones before it.
- A batch is taken as a whole by each group, or not at all. While one group refuses it, no later number goes to another
  one: so the same numbers can be sent again, and none is refused for being late.

A target that is missing or full holds up the letters of its queue. A refused batch is halved, so that what fits gets
through. A single refused letter is tried again after pauses that grow. The reason for a refusal is part of the queue's
state (`SettleDead.problem`), so that every node shows it.

Under at-most-once nothing waits: each letter is taken or dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from fifo import commands as c
from fifo.limits import PRODUCTION
from fifo.results import DeadWork
from quorum.api import status
from quorum.api.client_session import PRODUCER_BYTES, ClientSession
from quorum.api.death_history import Death, Letter, letter_of
from quorum.api.hub import Hub
from quorum.api.outcomes import Confirms
from quorum.api.owners import owner_of
from quorum.node.queries import FindDeadQueues, FindDeadWork
from quorum.v1 import queue_pb2 as pb

LOOK_S = 2.0
"""Interval between two looks at which groups this node leads. New dead messages need no look."""
BATCH_BYTES = 1 << 20
"""Approximate maximum bytes of a batch, or one message."""
LETTERS_AT_A_TIME = 64
"""Letters after which the other tasks of the event loop have their turn: they take about a millisecond."""
ANSWER_S = 30.0
"""Time after which an unanswered batch counts as a problem, and is sent again."""
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Waiting times while the target does not take the next letter, one after the other; the last one stays."""
PLACES = 32
"""Workers of a node that are at work at a time. One that waits for its target takes no place."""
BATCHES_A_TURN = 64
"""Batches after which a worker lets another one have its place."""
OWNER = owner_of("dead letters")
"""Whose share of a group's producers the workers' sessions count towards: they are remembered like those of clients."""
NO_TARGET = status.make(
    status.Code.FAILED_PRECONDITION,
    "no_target",
    "the queue has no dead-letter target any more; set x-dead-letter-exchange again, or purge the queue",
)
NO_ANSWER = status.make(status.Code.DEADLINE_EXCEEDED, "no_answer", f"no answer for {ANSWER_S:g} s")

Key = tuple[int, int]
"""A queue: its group, its id."""


def producer_of(queue: int) -> bytes:
    """The producer of a queue's dead letters. A queue's id is never used again."""
    return hashlib.blake2b(b"dead letters of queue %d" % queue, digest_size=PRODUCER_BYTES).digest()


async def forward_dead_letters(hub: Hub) -> None:
    """Keep a worker for each queue that needs one, until cancelled."""
    workers: dict[Key, _Worker] = {}
    places = asyncio.Semaphore(PLACES)

    def begin(queues: Iterable[Key]) -> None:
        for key in queues:
            if key not in workers or workers[key].task.done():
                workers[key] = _Worker(hub, *key, places)
            workers[key].has_news = True

    try:
        while True:
            found = await hub.requests.query_at_leisure(FindDeadQueues())
            for key, worker in list(workers.items()):
                if worker.task.done():
                    del workers[key]
                elif key[0] not in found.groups:
                    worker.task.cancel()
            begin(found.queues)
            next_look_s = hub.loop.time() + LOOK_S
            while (left_s := next_look_s - hub.loop.time()) > 0:
                begin(await hub.published.new_dead_queues(left_s))
    finally:
        for worker in workers.values():
            worker.task.cancel()


@dataclass(frozen=True, slots=True)
class _Batch:
    """Dead letters that are published together. first: the number of the first one."""

    first: int
    letters: Sequence[Letter]
    data: bytes

    @property
    def last(self) -> int:
        return self.first + len(self.letters) - 1

    def is_barred(self, ordinal: int, queue: str) -> bool:
        """Whether a letter may not go to this queue."""
        return self.letters[ordinal].closes_cycle(queue)


class _Refused(Exception):
    """The target does not take `count` letters together."""

    def __init__(self, why: status.Status, count: int) -> None:
        super().__init__(why.message)
        self.why = why
        self.count = count


class _Worker:
    """Brings the dead letters of one queue to their target, until there are none."""

    def __init__(self, hub: Hub, group: int, queue: int, places: asyncio.Semaphore) -> None:
        self._hub = hub
        self._group = group
        self._queue = queue
        self._places = places
        self._most = PRODUCTION.max_claimed
        """letters of the next batch"""
        self._pauses = 0
        """in a row"""
        self._logger = structlog.get_logger().bind(node=hub.node, group=group, queue=queue)
        self.has_news = False
        """messages have died since the last look"""
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                async with self._places:
                    self.has_news = False
                    is_done = await self._turn()
                if is_done and not self.has_news:
                    return
                continue
            except _Refused as error:
                if error.count > 1:
                    self._most = error.count // 2
                    continue
                await self._tell(error.why)
            except status.StatusError as error:
                if error.status.code not in (status.Code.UNAVAILABLE, status.Code.ABORTED):
                    await self._tell(error.status)
            except Exception as error:  # a defect; the letters stay where they are
                self._logger.critical("dead letters cannot be forwarded", exc_info=error)
            await asyncio.sleep(PAUSES_S[min(self._pauses, len(PAUSES_S) - 1)])
            self._pauses += 1

    async def _turn(self) -> bool:
        """Forward some batches. Return whether nothing is left."""
        work = await self._work()
        if work is None:
            return True
        if work.config.dead_letter_strategy == "none":
            raise _Refused(NO_TARGET, 1)
        await self._call(c.ClaimDead(self._queue, begins=True))
        session: _Session | None = None
        is_clean = False
        try:
            for _ in range(BATCHES_A_TURN):
                work = await self._work()
                if work is None:
                    break
                if not work.claimed:
                    await self._call(c.ClaimDead(self._queue))
                    continue
                if session is None:
                    session = _Session(self._hub, producer_of(self._queue), work.epoch)
                batch = await self._batch(work)
                await self._settle(batch, await session.send(work.config, batch))
            is_clean = True
        finally:
            if session is not None:
                await session.close(is_clean=is_clean)
        return work is None

    async def _work(self) -> DeadWork | None:
        """What there is to do; None if there is nothing."""
        work = await self._hub.requests.query(FindDeadWork(self._group, self._queue))
        return work if work is not None and (work.claimed or work.waiting) else None

    async def _call(self, command: c.Command) -> None:
        await self._hub.own_session.call(self._group, command)

    async def _batch(self, work: DeadWork) -> _Batch:
        """The next letters, as many as a batch may have."""
        most = min(self._most, self._hub.limits.max_messages)
        letters: list[Letter] = []
        bodies: list[bytes] = []
        ends: list[int] = []
        size = end = 0
        for claimed in work.claimed:
            death = Death(work.config.name, claimed.cause, claimed.time_ms)
            parts = self._hub.reader.parts(self._group, claimed.run)
            async for stored, first, count in self._hub.requests.readable(parts):
                for ordinal in range(first, first + count):
                    body = stored.bodies[stored.start(ordinal) : stored.ends[ordinal]]
                    letter = letter_of(stored.each[ordinal] if stored.each else stored.shared, death)
                    size += len(body) + letter.properties.ByteSize()
                    if letters and (len(letters) >= most or size > BATCH_BYTES):
                        return _made(work, letters, bodies, ends)
                    end += len(body)
                    letters.append(letter)
                    bodies.append(body)
                    ends.append(end)
                    if len(letters) % LETTERS_AT_A_TIME == 0:
                        await asyncio.sleep(0)
        return _made(work, letters, bodies, ends)

    async def _settle(self, batch: _Batch, forwarded: int) -> None:
        """The batch is decided: its messages are gone, and others get numbers."""
        self._pauses = 0
        self._most = min(2 * self._most, PRODUCTION.max_claimed)
        await asyncio.gather(
            self._call(c.SettleDead(self._queue, batch.last, forwarded)), self._call(c.ClaimDead(self._queue))
        )

    async def _tell(self, why: status.Status) -> None:
        """Say why the next letter waits: in the log of this node, and in the state of the queue."""
        problem = f"{why.reason.upper()}: {why.message}"[: c.MAX_PROBLEM]
        with contextlib.suppress(status.StatusError):
            work = await self._work()
            if why.reason == "refused_earlier":
                # It was routed to other groups before, and one of them has taken a later letter meanwhile.
                await self._call(c.ClaimDead(self._queue, begins=True, again=True))
            elif work is not None and work.problem != problem:
                name = work.config.name
                self._logger.warning("dead letters wait for their target", name=name, problem=problem)
                await self._call(c.SettleDead(self._queue, 0, 0, problem))


def _made(work: DeadWork, letters: list[Letter], bodies: list[bytes], ends: list[int]) -> _Batch:
    message = pb.MessageBatch(count=len(letters), bodies=b"".join(bodies), body_ends=ends)
    message.properties.extend([letter.properties for letter in letters])
    return _Batch(work.claimed[0].number, letters, message.SerializeToString(deterministic=True))


class _Session:
    """The session of one worker. One batch is under way at a time."""

    def __init__(self, hub: Hub, producer: bytes, epoch: int) -> None:
        self._session = ClientSession(hub)
        self._session.open(producer, epoch, OWNER)
        self._turns = self._session.outcomes()

    async def send(self, config: c.QueueConfig, batch: _Batch) -> int:
        """Publish a batch. Return how many of its letters the target has; the others were dropped. Raises _Refused if
        they have to wait."""
        is_dropped = config.dead_letter_strategy == "at_most_once"
        key = config.dead_letter_routing_key or config.name
        try:
            async with asyncio.timeout(ANSWER_S):
                barred = await self._session.publisher.forward(
                    config.dead_letter_exchange,
                    key,
                    batch.first,
                    batch.data,
                    batch.is_barred,
                    independent=is_dropped,
                )
                confirmed, why = await self._outcome(len(batch.letters))
        except TimeoutError:
            raise _Refused(NO_ANSWER, 1) from None
        if why is not None and not is_dropped:
            raise _Refused(why, len(batch.letters))
        return confirmed - barred

    async def _outcome(self, count: int) -> tuple[int, status.Status | None]:
        """The number of confirmed letters, and why the first of the others is refused."""
        confirmed = refused = 0
        why: status.Status | None = None
        while confirmed + refused < count:
            for outcome in await anext(self._turns):
                assert isinstance(outcome, Confirms)
                confirmed += sum([span.last - span.first + 1 for span in outcome.confirmed])
                for each in outcome.rejected:
                    refused += each.span.last - each.span.first + 1
                    why = why or each.why
        return confirmed, why

    async def close(self, *, is_clean: bool) -> None:
        """is_clean: everything is decided and settled, so the groups need not remember the producer."""
        if is_clean:
            self._session.client_closes()
        self._session.release()
        await self._turns.aclose()
