"""Brings dead letters to their targets: on the node that leads the group of their queue.

The group's machine keeps the dead messages of a queue, and gives them numbers (fifo/messages/dead_letters.py). The
node's worker for the queue publishes them in the order of their numbers through a session of its own, as a client
would, and says what the target has confirmed. One batch is under way at a time. queues.py decides when a queue has its
turn.

Why a letter is neither lost nor doubled in its target:
- It is dead in its queue until the target has confirmed it.
- The session's producer is that of the queue, and a letter's number is its client sequence. So a repeat is dropped,
  also if the next leader's worker sends it. Each worker has a higher epoch, which fences the ones before it, at the
  target and in the queue.
- A worker has one session. The target's groups remember it as long as it lives. Only if no letter is in doubt does it
  end cleanly, so that the groups forget it.
- A batch is taken as a whole by each group, or not at all. While one group refuses it, no later number goes to another
  one: so the same numbers can be sent again, and none is refused for being late.
- No batch is sent while an earlier one has no answer.

A target that is missing or full holds up the letters of its queue. Nothing is written while this node knows no route. A
batch that a full target refuses is halved, so that what fits gets through; a letter that is refused alone waits. The
reason for a refusal is part of the queue's state (`SettleDead.problem`), so that every node shows it.

Under at-most-once no letter waits for a missing or full target: each is taken or dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Sequence, Set
from functools import partial

import structlog

from fifo import commands as c
from fifo.frozen_dataclasses import dataclass
from fifo.limits import PRODUCTION
from fifo.results import ClaimedRun, DeadWork
from quorum.api import status
from quorum.api.dead_letters.history import Death, Letter, letter_of
from quorum.api.dead_letters.queues import DeadQueues, Key, Place
from quorum.api.hub.deliveries import BodyReader
from quorum.api.hub.hub import Hub
from quorum.api.owners import owner_of
from quorum.api.session import routing
from quorum.api.session.client_session import ClientSession
from quorum.api.session.outcomes import Confirms, Outcome
from quorum.node.errors import BodyUnreadable
from quorum.node.queries import FindDeadWork
from quorum.node.wire.batches import FRAME_BYTES, BatchLimits, StoredBatch
from quorum.v1 import queue_pb2 as pb

BATCH_BYTES = 1 << 20
"""Approximate maximum bytes of a batch, or one message."""
KEPT_BYTES = 1 << 20
"""Maximum bytes of stored batches that a worker keeps to read on; larger ones are read again."""
PATIENCE_S = 1.0
"""A worker whose batch has no answer after this time leaves its place to another queue."""
ANSWER_S = 30.0
"""Time after which an unanswered batch counts as a problem. The worker waits on: the letters are in doubt."""
STEPS_A_TURN = 64
"""Steps, most of them batches, after which a worker lets another one have its place."""
FAILURES = 3
"""Failed attempts in a row after which the queue says why, whatever the reason."""
OWNER = owner_of("dead letters")
"""The workers of all nodes share a group's places for producers as one client address would. A session that ends
cleanly gives its place back."""
LETTER_LIMITS = BatchLimits(PRODUCTION.max_claimed, FRAME_BYTES, FRAME_BYTES)
"""A letter has been accepted before, so the present settings for clients do not count for it."""
DIVISIBLE = ("queue_full", "unroutable", *status.TOO_LARGE)
"""Reasons for which a part of a refused batch may be taken."""
NO_TARGET = status.make(
    status.Code.FAILED_PRECONDITION,
    "no_target",
    "the queue has no dead-letter target any more; set x-dead-letter-exchange again, or purge the queue",
)
NO_ANSWER = status.make(status.Code.DEADLINE_EXCEEDED, "no_answer", f"no answer for {ANSWER_S:g} s")


async def forward_dead_letters(hub: Hub) -> None:
    """Forward the dead letters of all queues whose groups this node leads, until cancelled."""

    async def forward(queues: DeadQueues, key: Key, place: Place) -> Hashable:
        return await _Worker(hub, queues, key, place).run()

    await DeadQueues(hub, forward).run()


@dataclass(frozen=True, slots=True)
class _Batch:
    """Dead letters that are published together. first: the number of the first one; the others follow without a gap."""

    first: int
    letters: Sequence[Letter]
    data: bytes

    @property
    def last(self) -> int:
        return self.first + len(self.letters) - 1


@dataclass(frozen=True, slots=True)
class _Result:
    """What became of a batch. decided: for each letter, by its ordinal, why it is refused, None if it is confirmed.
    barred: the ordinals of confirmed letters that no queue has, because they could go round for ever."""

    decided: Sequence[status.Status | None]
    barred: Set[int]

    @property
    def taken(self) -> int:
        """The number of letters before the first refused one."""
        return next((ordinal for ordinal, why in enumerate(self.decided) if why), len(self.decided))

    @property
    def forwarded(self) -> int:
        """How many of these a queue has."""
        return len([ordinal for ordinal in range(self.taken) if ordinal not in self.barred])

    @property
    def forwarded_in_all(self) -> int:
        """How many letters of the batch a queue has."""
        return len([1 for ordinal, why in enumerate(self.decided) if not why and ordinal not in self.barred])

    @property
    def why(self) -> status.Status | None:
        """The refusal of the first letter that is refused, None if all are confirmed."""
        return next((why for why in self.decided if why), None)

    @property
    def refused_earlier(self) -> int:
        """The number of neighbouring letters from the first refused one on whose numbers are too late for a group."""
        found = 0
        for why in self.decided[self.taken :]:
            if why is None or why.reason != "refused_earlier":
                break
            found += 1
        return found

    @property
    def is_anywhere(self) -> bool:
        """Whether a group may have a letter of the batch."""
        return any(why is None or status.MAY_BE_IN in dict(why.metadata) for why in self.decided)


class _Waits(Exception):
    """The queue has to wait for its target. why: None if the queue has said it already, or if it is too early."""

    def __init__(self, target: Hashable, why: status.Status | None = None) -> None:
        super().__init__(target)
        self.target = target
        self.why = why


class _Worker:
    """Brings the dead letters of one queue to their target, until there are none."""

    def __init__(self, hub: Hub, queues: DeadQueues, key: Key, place: Place) -> None:
        self._hub = hub
        self._queues = queues
        self._key = key
        self._group, self._queue = key
        self._place = place
        self._reader = hub.body_reader(KEPT_BYTES)
        self._session: _Session | None = None
        self._epoch = 0
        """0 until the worker has begun"""
        self._most = PRODUCTION.max_claimed
        """letters of the next batch"""
        self._bare = 0
        """the number of a letter that the target does not take with its history"""
        self._taken_to = self._settled_to = 0
        """The highest numbers that a group may have taken, and that are settled. Nothing is in doubt if the first is
        not above the second."""

    async def run(self) -> Hashable:
        """Forward letters until there are none. Return what the queue has to wait for otherwise."""
        try:
            await self._work_off()
            return None
        except _Waits as waits:
            await self._tell(waits.why)
            return waits.target
        except status.StatusError as error:
            failed = error.status
        except Exception as error:  # a defect; the letters stay where they are
            failed = status.make(status.Code.INTERNAL, "failed", f"{type(error).__name__}: {error}")
            if self._queues.may_log(self._key, failed.reason):
                self._logger().critical("dead letters cannot be forwarded", exc_info=error)
        finally:
            await self._close()
        if self._queues.pauses(self._key) >= FAILURES - 1:
            await self._tell(failed)
        return self._key

    async def _work_off(self) -> None:
        steps = 0
        while (work := await self._work()) is not None:
            waits = await self._go_on(work)
            del work  # it may be large, and a wait may take days
            if waits is not None:
                await self._wait(waits)
            steps += 1
            if steps % STEPS_A_TURN == 0:
                await self._place.let_others()
        self._queues.has_target(self._key, None)

    async def _go_on(self, work: DeadWork) -> _Waits | None:
        """Do the next step of the work. Return what the next letter has to wait for, if it has to."""
        target, why = await self._target(work.config)
        self._queues.has_target(self._key, target)
        if why is not None or not self._queues.may_try(target, self._key):
            return _Waits(target, why or self._queues.why(target))
        if self._session is None:
            await self._begin(work, target)
            return None
        if not work.claimed:
            await self._settle(0)
            return None
        batch = await self._batch(work)
        result = await self._send(work.config, batch, target)
        waits = await self._decided(batch, result, work.config, target)
        if waits is not None and waits.why is not None:
            self._queues.refuses(waits.target, waits.why)
        return waits

    async def _work(self) -> DeadWork | None:
        """What there is to do; None if there is nothing, or if this node does not lead the group."""
        work = await self._hub.requests.query(FindDeadWork(self._group, self._queue, self._most))
        return work if work is not None and (work.claimed or work.waiting) else None

    async def _target(self, config: c.QueueConfig) -> tuple[Hashable, status.Status | None]:
        """What the letters of the queue wait for if they have to; and why they have to, if this node knows no route."""
        if config.dead_letter_strategy == "none":
            return NO_TARGET.reason, NO_TARGET
        if config.dead_letter_strategy == "at_most_once":
            return self._key, None
        route = config.dead_letter_exchange, config.dead_letter_routing_key or config.name
        why = routing.no_route(self._hub.catalog, *route)
        if why is not None and not self._queues.pauses(route):
            # this node may have been started a moment ago
            why = routing.no_route(await self._hub.requests.current_catalog(), *route)
        return route, why

    async def _wait(self, waits: _Waits) -> None:
        """Wait for the target: with the session if letters are in doubt, otherwise without (raises _Waits)."""
        if self._taken_to <= self._settled_to:
            raise waits
        await self._tell(waits.why)
        self._reader.drop()
        await self._queues.wait(waits.target, self._key, self._place)
        self._most = 1

    async def _begin(self, work: DeadWork, target: Hashable) -> None:
        epoch = work.epoch + 1
        await self._call(c.ClaimDead(self._queue, epoch, self._hub.random_bytes(c.PRODUCER_BYTES)))
        self._epoch = epoch
        begun = await self._work()
        if begun is None:
            return
        if begun.epoch != epoch:
            raise status.of_ended("fenced")
        is_clean = self._queues.clean_epochs.pop(self._key, None) == work.epoch
        self._taken_to = 0 if is_clean else begun.inherited_to  # an earlier worker may have sent them
        if self._queues.is_slow(target) or self._queues.is_slow(self._key):
            self._most = 1
        self._session = _Session(self._hub, begun.producer, epoch)

    # ---- a batch

    async def _batch(self, work: DeadWork) -> _Batch:
        """The next letters, as many as a batch may have."""
        is_bare = work.claimed[0].number == self._bare
        make = partial(
            _next_batch,
            self._reader,
            self._group,
            work.config.name,
            work.claimed,
            1 if is_bare else self._most,
            is_bare,
        )
        while True:
            try:
                return await self._hub.workers.read(make)
            except BodyUnreadable as error:
                await self._hub.requests.repair(error)

    async def _send(self, config: c.QueueConfig, batch: _Batch, target: Hashable) -> _Result:
        """Publish a batch, and wait for the answers of its groups: without a place if that takes long. Raises _Waits if
        the session ends: what has ended it concerns all queues with this target."""
        assert self._session is not None
        before, self._taken_to = self._taken_to, max(self._taken_to, batch.last)
        sending = asyncio.ensure_future(self._session.send(config, batch))
        try:
            await asyncio.wait({sending}, timeout=PATIENCE_S)
            if not sending.done():
                self._place.leave()
                self._reader.drop()
                self._queues.does_not_answer(target, self._key)
                await asyncio.wait({sending}, timeout=ANSWER_S - PATIENCE_S)
            if not sending.done():
                self._queues.refuses(target, NO_ANSWER)
                await self._tell(NO_ANSWER)
                await asyncio.wait({sending})
            await self._place.retake()
            result = sending.result()
        except status.StatusError as error:
            if error.status.reason == "fenced":  # another worker has begun
                raise
            if self._queues.pauses(target) >= FAILURES - 1:
                self._queues.refuses(target, error.status)
            raise _Waits(target, self._queues.why(target)) from error
        finally:
            sending.cancel()
        if not result.is_anywhere:
            self._taken_to = before
        return result

    async def _decided(
        self, batch: _Batch, result: _Result, config: c.QueueConfig, target: Hashable
    ) -> _Waits | None:
        """The batch is decided: what the target has is gone. Return why the next letter has to wait, if it has to."""
        count, why = len(batch.letters), result.why
        is_dropping = config.dead_letter_strategy == "at_most_once"
        may_fit = (
            why is not None and why.reason in status.TOO_LARGE and (count > 1 or self._bare != batch.first)
        )
        if why is None or (is_dropping and not may_fit):
            await self._settle(batch.last, result.forwarded_in_all)
            self._most = min(2 * self._most, PRODUCTION.max_claimed)
            self._queues.takes(target, self._key)
            return None
        last = batch.first + result.taken - 1
        if why.reason == "refused_earlier":
            # It was routed to other groups before, and one of them has taken a later letter meanwhile.
            again_to = last + result.refused_earlier
            await self._settle(last if result.taken else 0, result.forwarded, again_to)
            self._settled_to = max(self._settled_to, again_to)  # these numbers are never sent again
            return None
        if result.taken:
            await self._settle(last, result.forwarded)
            return None
        if count > 1 and why.reason in DIVISIBLE:
            self._most = count // 2
            return None
        if may_fit:
            self._bare = batch.first
            return None
        is_about_letter = why.reason != "queue_full" and why.reason in DIVISIBLE
        return _Waits(self._key if is_about_letter else target, why)

    async def _settle(self, to: int, forwarded: int = 0, again_to: int = 0) -> None:
        """These messages are gone, and others get numbers."""
        await self._call(c.SettleDead(self._queue, self._epoch, to, forwarded, again_to))
        self._settled_to = max(self._settled_to, to)

    async def _call(self, command: c.Command) -> None:
        await self._hub.own_session.call(self._group, command)

    # ---- its end, and what it says

    async def _close(self) -> None:
        is_clean = self._taken_to <= self._settled_to
        if self._session is not None:
            await self._session.close(is_clean=is_clean)
        if is_clean and self._epoch:
            self._queues.clean_epochs[self._key] = self._epoch

    def _logger(self) -> structlog.stdlib.BoundLogger:
        logger: structlog.stdlib.BoundLogger = structlog.get_logger()
        return logger.bind(node=self._hub.node, group=self._group, queue=self._queue)

    async def _tell(self, why: status.Status | None) -> None:
        """Say why the next letter waits: in the log of this node, and in the state of the queue."""
        if why is None:
            return
        reason = why.reason.upper()
        problem = f"{reason}: {why.message}"[: c.MAX_PROBLEM]
        with contextlib.suppress(status.StatusError):
            work = await self._work()
            if work is None:
                return
            if self._queues.may_log(self._key, reason):
                self._logger().warning(
                    "dead letters wait for their target", name=work.config.name, problem=problem
                )
            if work.problem.partition(":")[0] != reason:
                await self._call(c.SettleDead(self._queue, work.epoch, problem=problem))


def _next_batch(
    reader: BodyReader, group: int, queue: str, claimed: Sequence[ClaimedRun], most: int, is_bare: bool
) -> _Batch:
    """Read the first claimed messages, and make letters of them. Raises BodyUnreadable. A batch has no gap in its
    numbers. Letters that share their properties are published like this, because those of a large batch would be many
    times as large if each had its own."""
    building = _Building(claimed[0].number, most)
    shared: tuple[StoredBatch, Death, Letter] | None = None
    for each in claimed:
        if each.number != building.next_number:
            break
        death = Death(queue, each.cause, each.time_ms)
        for part in reader.parts(group, each.run):
            if isinstance(part, BodyUnreadable):
                raise part
            stored, first, count = part
            if not stored.each and (shared is None or (shared[0], shared[1]) != (stored, death)):
                shared = stored, death, letter_of(stored.shared, death, is_bare=is_bare)
            for ordinal in range(first, first + count):
                if stored.each:
                    letter = letter_of(stored.each[ordinal], death, is_bare=is_bare)
                else:
                    assert shared is not None
                    letter = shared[2]
                if not building.add(stored.bodies[stored.start(ordinal) : stored.ends[ordinal]], letter):
                    return building.made()
    return building.made()


class _Building:
    """A batch that is being built."""

    def __init__(self, first: int, most: int) -> None:
        self._first = first
        self._most = most
        self._letters: list[Letter] = []
        self._bodies: list[bytes] = []
        self._ends: list[int] = []
        self._end = 0
        self._sizes = 0
        """bytes of the properties of all letters, if each has its own"""
        self._is_shared = True

    @property
    def next_number(self) -> int:
        return self._first + len(self._letters)

    def add(self, body: bytes, letter: Letter) -> bool:
        """Add a letter, unless the batch is full. The first one always fits."""
        size = letter.properties.ByteSize()
        is_shared = self._is_shared and (not self._letters or letter is self._letters[0])
        whole = self._end + len(body) + size + (0 if is_shared else self._sizes)
        if self._letters and (len(self._letters) >= self._most or whole > BATCH_BYTES):
            return False
        self._is_shared = is_shared
        self._sizes += size
        self._end += len(body)
        self._letters.append(letter)
        self._bodies.append(body)
        self._ends.append(self._end)
        return True

    def made(self) -> _Batch:
        batch = pb.MessageBatch(count=len(self._letters), bodies=b"".join(self._bodies), body_ends=self._ends)
        if self._is_shared:
            batch.shared_properties.CopyFrom(self._letters[0].properties)
        else:
            batch.properties.extend([letter.properties for letter in self._letters])
        return _Batch(self._first, self._letters, batch.SerializeToString(deterministic=True))


class _Session:
    """The session of one worker. One batch is under way at a time."""

    def __init__(self, hub: Hub, producer: bytes, epoch: int) -> None:
        self._session = ClientSession(hub, LETTER_LIMITS)
        self._session.open(producer, epoch, OWNER)
        self._turns = self._session.outcomes()

    async def send(self, config: c.QueueConfig, batch: _Batch) -> _Result:
        """Publish a batch, and wait until each of its groups has answered. StatusError if the session ends."""
        barred = await self._session.publisher.forward(
            config.dead_letter_exchange,
            config.dead_letter_routing_key or config.name,
            batch.first,
            batch.data,
            [letter.allowed for letter in batch.letters],
            independent=config.dead_letter_strategy == "at_most_once",
        )
        decided: dict[int, status.Status | None] = {}
        while len(decided) < len(batch.letters):
            for outcome in await anext(self._turns):
                _note(decided, outcome, batch.first)
        return _Result([decided[ordinal] for ordinal in range(len(batch.letters))], barred)

    async def close(self, *, is_clean: bool) -> None:
        """is_clean: everything is decided and settled, so the groups need not remember the producer."""
        if is_clean:
            self._session.client_closes()
        self._session.release()
        with contextlib.suppress(RuntimeError):  # a batch was on its way
            await self._turns.aclose()


def _note(decided: dict[int, status.Status | None], outcome: Outcome, first: int) -> None:
    """Note the letters that an outcome decides, by their ordinals, and why they are refused."""
    assert isinstance(outcome, Confirms)
    for span in outcome.confirmed:
        decided.update(dict.fromkeys(range(span.first - first, span.last - first + 1)))
    for each in outcome.rejected:
        decided.update(dict.fromkeys(range(each.span.first - first, each.span.last - first + 1), each.why))
