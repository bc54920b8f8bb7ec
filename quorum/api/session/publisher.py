"""The publishing side of a client's session: the numbers of its messages, its window, and what becomes of each batch.

Batches are serialized `MessageBatch`es, because the log stores these bytes and a consumer receives them.
session_routes.py finds what each group gets of a batch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import MappingProxyType

from fifo import commands as c
from fifo.effects import Confirmed, Refused, Reply
from fifo.frozen_dataclasses import dataclass
from fifo.limits import PRODUCTION
from quorum.api import status
from quorum.api.hub.hub import Hub
from quorum.api.session.commands import SessionCommands
from quorum.api.session.group_parts import Part, by_group, distinct, groups_of, numbers_of
from quorum.api.session.outcomes import Outbox
from quorum.api.session.producer_numbers import ProducerNumbers
from quorum.api.session.routing import Queues
from quorum.api.session.session_routes import KEYS_EXCLUDE, MAX_KNOWN, Route, SessionRoutes, check_copies
from quorum.api.session.shared_outcomes import GroupOutcomes, SharedOutcomes, neighbours, shared_outcomes
from quorum.catalog.queues import CatalogQueue
from quorum.node.queries import FindTaken
from quorum.node.wire import batches
from quorum.node.wire.batches import MAX_INDEPENDENT, CheckedBatch

MAX_UINT64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class _Published:
    """What one group gets of a batch: client sequences as ranges (first, last), `size` bytes. rows: ranges that its
    answer may have. outcomes: where its answer goes. told: gets the answer to a batch of a transaction, which has no
    client sequences."""

    publisher: SessionPublisher
    group: int
    queues: Sequence[CatalogQueue]
    numbers: Sequence[tuple[int, int]]
    size: int
    rows: int
    outcomes: Outbox | GroupOutcomes
    told: Callable[[Reply | None], None] | None = None

    def answered(self, reply: Reply | None) -> None:
        self.publisher.decided(self, reply)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch with the numbers of its messages: see `SessionPublisher.publish`. data: the serialized MessageBatch."""

    data: bytes
    first: int
    lowest_unconfirmed: int
    independent: bool = False
    mandatory: bool = False
    immediate: bool = False

    @property
    def count(self) -> int:
        """As the batch says, which may be unchecked."""
        return batches.claimed_count(self.data)


class SessionPublisher:
    """The producer of one session."""

    def __init__(self, hub: Hub, commands: SessionCommands, routes: SessionRoutes) -> None:
        self._hub = hub
        self._routes = routes
        self._commands = commands
        self._outbox = commands.outbox
        self._numbers = ProducerNumbers()
        self._new_from = 0
        """The client says: numbers from here on were sent in no earlier session. 0: not told."""
        self._taken_to: dict[int, int] = {}
        """By each group that was asked: numbers above it were taken in no earlier session."""
        self._current: set[int] = set()
        """ids of queues that were in the current catalog when a message for them was refused"""
        self._origin = (b"", 0)
        """producer, epoch"""
        self.size_bytes = 0
        """of the batches that their groups have not decided"""
        self._bytes_of: Counter[int] = Counter()
        """the same by group: the session's part of the node's window"""
        self._places_of: Counter[int] = Counter()
        """by group: queues in which it has to place the session's batches, each batch without its first one"""
        self.undecided_rows = 0
        """ranges that the answers of these batches may have"""

    def begin(self, producer: bytes, epoch: int, first_new: int) -> None:
        """See ClientSession.open."""
        self._new_from = first_new or int(epoch == 1)
        self._origin = (producer, epoch)

    def release(self) -> None:
        """Give back the session's part of the node's windows."""
        for group, size in self._bytes_of.items():
            if size:
                self._hub.publishing.give(size, group)
        self._bytes_of.clear()
        for group, places in self._places_of.items():
            if places:
                self._hub.placing.give(places, group, self._commands.owner)
        self._places_of.clear()

    async def publish(
        self,
        routing_key: str,
        first: int,
        lowest_unconfirmed: int,
        batch: bytes,
        *,
        independent: bool = False,
        exchange: str = "",
        routing_keys: Sequence[str] = (),
        mandatory: bool = False,
        immediate: bool = False,
        denied: Mapping[str, status.Status] = MappingProxyType({}),
    ) -> None:
        """Messages for an exchange, numbered from `first` on. routing_keys: one of each message, instead of one of all.
        The outcome is among Confirms. independent: each message has an outcome of its own. mandatory: messages that no
        queue gets are rejected; the default exchange rejects them always. immediate: messages that no consumer can take
        at once are rejected. denied: why messages with some of the routing_keys are rejected, if the exchange is the
        default one and the batch independent. StatusError (UNAVAILABLE) if the session has to end, so that its client
        sends the batch again, in order."""
        self._commands.resume()
        given = _Batch(batch, first, lowest_unconfirmed, independent, mandatory, immediate)
        if routing_key and routing_keys:
            await self._refuse(given, None, KEYS_EXCLUDE)
        elif exchange:
            await self._publish_through(Route(exchange, routing_key, routing_keys), given)
        elif routing_keys:
            await self._publish_each(routing_keys, given, denied)
        else:
            await self._publish_to(routing_key, given)

    async def _publish_to(self, name: str, given: _Batch) -> None:
        """A batch for one queue."""
        queue = None
        try:
            queue = await self._hub.requests.queue(name)
            checked = await self._routes.check(queue, given.data, independent=given.independent)
            self._numbers.check(given.first, checked.count, given.lowest_unconfirmed)
            self._hub.published.check_disks(queue.group)
        except batches.BatchError as error:
            count = given.count
            if given.independent and 1 < count <= MAX_INDEPENDENT:
                assert queue is not None  # its batch was checked
                await self._publish_routed([(queue,)] * count, {}, given)
            else:
                await self._refuse(given, queue, status.of_error(error))
            return
        except status.StatusError as error:
            if error.status.code == status.Code.UNAVAILABLE:
                raise
            await self._refuse(given, queue, error.status)
            return
        await self._send(queue, checked, given)

    async def refuse(
        self, route: Route, first: int, lowest_unconfirmed: int, batch: bytes, why: status.StatusError
    ) -> None:
        """Reject all messages of a batch, except those that were taken in an earlier session. StatusError
        (UNAVAILABLE) as for `publish`."""
        self._commands.resume()
        given = _Batch(batch, first, lowest_unconfirmed)
        groups = self._hub.catalog.queue_groups
        count = given.count
        if not route.exchange or self._is_new(first):
            await self._refuse(given, None, why.status, groups)
            return
        routes: Sequence[Queues] | None = None
        if self._numbers.may_have(first, count, lowest_unconfirmed):
            try:
                found, _ = await self._routes.through(route, batch, count, mandatory=False)
                routes = found.queues
            except batches.BatchError:
                pass  # no earlier session has sent it
            except status.StatusError as error:
                if error.status.code == status.Code.UNAVAILABLE:
                    raise
        if routes is None:
            await self._refuse(given, None, why.status)
            return
        self._numbers.use(first + count - 1)
        await self._refuse_each(dict.fromkeys(range(count), why.status), routes, first, groups)

    async def _send(self, queue: CatalogQueue, checked: CheckedBatch, given: _Batch) -> None:
        last = given.first + checked.count - 1
        self._numbers.use(last)
        enqueue = checked.command(
            queue.id,
            given.first,
            given.lowest_unconfirmed,
            checked.columns,
            independent=given.independent and checked.count > 1,
            immediate=given.immediate,
        )
        await self._submit(queue.group, (queue,), ((given.first, last),), enqueue, checked.data)

    async def _submit(
        self,
        group: int,
        queues: Sequence[CatalogQueue],
        numbers: Sequence[tuple[int, int]],
        command: c.Enqueue,
        data: bytes,
        shared: SharedOutcomes | None = None,
        *,
        tx: int = 0,
        told: Callable[[Reply | None], None] | None = None,
    ) -> None:
        size = batches.command_bytes(data, command)
        if places := len(queues) - 1:
            await self._hub.placing.take(places, group, self._commands.owner)
            self._places_of[group] += places
        await self._hub.publishing.take_room(size, group)
        rows = len(numbers) + sum([len(each.ranges) for each in command.targets])
        self._commands.undecided += 1
        self.size_bytes += size
        self.undecided_rows += rows
        self._bytes_of[group] += size
        outcomes = self._outbox if shared is None else shared.of(tuple(queues))
        token = _Published(self, group, queues, numbers, size, rows, outcomes, told)
        self._commands.publish(group, c.InTransaction(tx, command) if tx else command, token, data)

    def decided(self, batch: _Published, reply: Reply | None) -> None:
        """The group has taken or refused a batch, or parts of it."""
        group, size = batch.group, batch.size
        self._commands.undecided -= 1
        self.size_bytes -= size
        self.undecided_rows -= batch.rows
        self._bytes_of[group] -= size
        self._hub.publishing.give(size, group)
        if places := len(batch.queues) - 1:
            self._places_of[group] -= places
            self._hub.placing.give(places, group, self._commands.owner)
        self._commands.room.set()
        if batch.told is not None:
            batch.told(reply)
            return
        outcomes = batch.outcomes
        if isinstance(reply, Refused):
            why = status.of_refused(reply)
            for first, last in batch.numbers:
                outcomes.reject(first, last, why)
            return
        assert isinstance(reply, Confirmed)
        refused = iter(reply.refused)
        part = next(refused, None)
        for first, last in batch.numbers:
            next_one = first
            while part is not None and part[0] <= last:
                if next_one < part[0]:
                    outcomes.confirm(next_one, part[0] - 1)
                outcomes.reject(part[0], part[1], status.of_refused(part[2]))
                next_one = part[1] + 1
                part = next(refused, None)
            if next_one <= last:
                outcomes.confirm(next_one, last)

    # ---- a batch for several queues, or with wrong messages among others

    async def _publish_each(
        self, keys: Sequence[str], given: _Batch, denied: Mapping[str, status.Status]
    ) -> None:
        """A batch with a routing key for each message. denied: as for `publish`."""
        try:
            routes, missing = await self._routes.by_keys(keys, given.count)
        except status.StatusError as error:
            if error.status.code == status.Code.UNAVAILABLE:
                raise
            await self._refuse(given, None, error.status)
            return
        if denied:
            missing |= {place: denied[key] for place, key in enumerate(keys) if key in denied}
            allowed = [() if key in denied else queues for key, queues in zip(keys, routes, strict=True)]
            await self._publish_routed(allowed, missing, given, groups=self._hub.catalog.queue_groups)
        elif len(dict.fromkeys(keys)) == 1:
            await self._publish_to(keys[0], given)
        else:
            await self._publish_routed(routes, missing, given)

    async def _publish_through(self, route: Route, given: _Batch) -> None:
        """A batch for another exchange than the default one."""
        try:
            found, missing = await self._routes.through(
                route, given.data, given.count, mandatory=given.mandatory
            )
        except batches.BatchError as error:
            await self._refuse(given, None, status.of_error(error))
            return
        except status.StatusError as error:
            if error.status.code == status.Code.UNAVAILABLE:
                raise
            await self._refuse(given, None, error.status)
            return
        routes = found.queues
        if found.is_alike and len(routes[0]) == 1:
            await self._publish_to(routes[0][0].name, given)
            return
        groups = self._hub.catalog.queue_groups
        await self._publish_routed(routes, missing, given, is_alike=found.is_alike, groups=groups)

    async def forward(
        self,
        exchange: str,
        routing_key: str,
        first: int,
        batch: bytes,
        allowed_of: Sequence[Callable[[Queues], Queues]],
        *,
        independent: bool,
    ) -> set[int]:
        """Dead letters for an exchange, also the default one, numbered from `first` on; everything below is decided,
        and so is what this session has sent before. allowed_of: for each letter, those of its queues that it may go to.
        One that no queue may get is confirmed; the ordinals of these are returned. One that is routed to no queue is
        rejected. Letters may be sent again under the same numbers after they were rejected. If one is too large,
        nothing is sent, also if `independent`, so that a smaller form of it may have its number."""
        self._commands.resume()
        given = _Batch(batch, first, first, independent)
        count = given.count
        try:
            if exchange:
                route = Route(exchange, routing_key, ())
                found, missing = await self._routes.through(route, batch, count, mandatory=True)
                routes = found.queues
            else:
                routes, missing = [(await self._hub.requests.queue(routing_key),)] * count, {}
            check_copies(routes)
        except (batches.BatchError, status.StatusError) as error:
            why = status.of_error(error) if isinstance(error, batches.BatchError) else error.status
            if why.code == status.Code.UNAVAILABLE:
                raise
            self._outbox.reject(first, first + count - 1, why)
            self._commands.work.set()
            return set()
        allowed = [choose(queues) for choose, queues in zip(allowed_of, routes, strict=True)]
        refused = await self._send_routed(allowed, missing, given, together=status.TOO_LARGE)
        for begin, last, why in neighbours(refused):
            self._outbox.reject(first + begin, first + last, why)
        self._commands.work.set()
        return {ordinal for ordinal, queues in enumerate(routes) if queues and not allowed[ordinal]}

    async def _publish_routed(
        self,
        routes: Sequence[Queues],
        missing: dict[int, status.Status],
        given: _Batch,
        *,
        is_alike: bool = False,
        groups: Sequence[int] = (),
    ) -> None:
        """A batch of which each message is checked by itself. What one group gets of it is one command, or several
        commands of an independent batch that exceeds a limit. missing: messages without a queue that are refused, by
        ordinal; the others without a queue are confirmed. is_alike: all messages have the same queues. groups: those
        that may have taken, in an earlier session, a message that has no queue now."""
        count = len(routes)
        try:
            self._numbers.check(given.first, count, given.lowest_unconfirmed)
        except status.StatusError as error:
            await self._refuse(given, None, error.status)
            return
        self._numbers.use(given.first + count - 1)
        refused = await self._send_routed(routes, missing, given, is_alike=is_alike)
        await self._refuse_each(refused, routes, given.first, groups)

    async def _send_routed(
        self,
        routes: Sequence[Queues],
        missing: dict[int, status.Status],
        given: _Batch,
        *,
        is_alike: bool = False,
        together: Collection[str] = (),
    ) -> dict[int, status.Status]:
        """Send the parts of a batch to their groups, as `_publish_routed` says. Return the messages that are refused
        here, by ordinal. together: reasons for which the whole batch is refused if one of its messages is."""
        refused: dict[int, status.Status] = {}
        pieces = self._routes.parts(
            routes, missing, given.data, independent=given.independent, is_alike=is_alike
        )
        async with aclosing(pieces):
            async for parts, more in pieces:
                refused |= more
                for ordinal in sorted(more) if together else ():
                    if more[ordinal].reason in together:
                        return dict.fromkeys(range(len(routes)), more[ordinal])
                shared = shared_outcomes(self._outbox, routes, parts, given.first)
                for part in parts:
                    await self._send_part(part, given, shared)
        if not all(routes):
            dropped = [place for place, queues in enumerate(routes) if not queues and place not in refused]
            for number, some in numbers_of(given.first, dropped):
                self._outbox.confirm(number, number + some - 1)
        return refused

    async def _send_part(self, part: Part, given: _Batch, shared: SharedOutcomes | None) -> None:
        numbers = numbers_of(given.first, part.ordinals)
        command = part.command(
            numbers[0][0],
            given.lowest_unconfirmed,
            () if len(numbers) == 1 else numbers,
            independent=given.independent and part.batch.count > 1,
            immediate=given.immediate,
        )
        spans = tuple([(number, number + count - 1) for number, count in numbers])
        await self._submit(part.queues[0].group, part.queues, spans, command, part.batch.data, shared)

    # ---- batches of transactions

    async def embargo(
        self, part: Part, tx: int, told: Callable[[Reply | None], None], *, immediate: bool
    ) -> None:
        """Send a batch of a transaction. told: gets the group's answer."""
        command = part.command(0, 0, immediate=immediate)
        await self._submit(part.queues[0].group, part.queues, (), command, part.batch.data, tx=tx, told=told)

    # ---- messages that are refused here

    async def _refuse(
        self,
        given: _Batch,
        queue: CatalogQueue | None,
        why: status.Status,
        groups: Sequence[int] = (),
    ) -> None:
        """Reject messages, except those that were taken in an earlier session: these are confirmed, because their
        producer would publish them once more under new numbers. groups: those that may have taken them, if their queue
        is not known."""
        first, count = given.first, min(given.count, PRODUCTION.window)
        last = min(first + count - 1, MAX_UINT64)
        may_be_taken = self._numbers.may_have(first, count, given.lowest_unconfirmed)
        self._numbers.use(last)
        asked: dict[int, Collection[CatalogQueue]] = dict.fromkeys(groups, ())
        if queue is not None:
            asked = {queue.group: (queue,)}
        taken: list[tuple[int, int]] = []
        for group, queues in asked.items() if may_be_taken else ():
            taken += await self._taken_before(group, queues, given.first, last)
        for start, end in sorted(taken):
            if first < start:
                self._outbox.reject(first, start - 1, why)
            if first <= end:
                self._outbox.confirm(max(first, start), end)
                first = end + 1
        if first <= last:
            self._outbox.reject(first, last, why)
        self._commands.work.set()

    async def _refuse_each(
        self,
        refused: dict[int, status.Status],
        routes: Sequence[Queues],
        first: int,
        groups: Sequence[int],
    ) -> None:
        """The same for messages of a batch whose first message has the number `first`, by their ordinals. A message was
        taken if all of its groups have taken it; one without a queue, if any of `groups` has taken it."""
        left: dict[int, int] = {}
        asked = {} if self._is_new(first) else by_group(routes, sorted(refused))
        if homeless := [ordinal for ordinal in sorted(refused) if not routes[ordinal]]:
            for group in groups:
                asked[group] = sorted([*asked.get(group, ()), *homeless])
        for group, ordinals in asked.items():
            ways = distinct([routes[ordinal] for ordinal in ordinals])
            queues = {queue.id: queue for way in ways for queue in way if queue.group == group}
            start, end = first + ordinals[0], first + ordinals[-1]
            known = await self._taken_before(group, queues.values(), start, end)
            numbers = {number for span in known for number in range(span[0], span[1] + 1)}
            for ordinal in ordinals:
                if first + ordinal in numbers:
                    left[ordinal] = left.get(ordinal, len(groups_of(routes[ordinal]))) - 1
        taken = sorted([ordinal for ordinal, count in left.items() if count <= 0])
        for number, count in numbers_of(first, taken):
            self._outbox.confirm(number, number + count - 1)
        for ordinal in taken:
            del refused[ordinal]
        for begin, last, why in neighbours(refused):
            self._outbox.reject(first + begin, first + last, why)
        self._commands.work.set()

    def _is_new(self, first: int) -> bool:
        """Whether the client says that no earlier session has sent messages with this number or a higher one."""
        return 0 < self._new_from <= first

    async def _taken_before(
        self, group: int, queues: Collection[CatalogQueue], first: int, last: int
    ) -> Sequence[tuple[int, int]]:
        """The ranges of these messages that the queues' group has taken in an earlier session. It knows when this
        session is registered there: earlier sessions are fenced from then on, and it takes no more of theirs."""
        if self._is_new(first):
            return ()
        unknown = [queue for queue in queues if queue.id not in self._current]
        if unknown:
            catalog = await self._hub.requests.current_catalog()
            for queue in unknown:
                current = catalog.queue(queue.name)
                if current is None or current.id != queue.id:
                    raise status.of_ended("outdated")  # another group may know of these messages
            if len(self._current) > MAX_KNOWN:
                self._current.clear()
            self._current.update([queue.id for queue in unknown])
        if first > self._taken_to.get(group, MAX_UINT64):
            return ()
        if group not in self._taken_to:  # the group has to know the session first
            registered: asyncio.Future[Reply | None] = self._hub.loop.create_future()
            self._commands.submit(group, c.Wake(), partial(_set_unless_done, registered))
            await self._hub.requests.decided((group,), registered)
        found = await self._hub.requests.query(FindTaken(group, *self._origin, first, last))
        if found is None:
            raise status.of_ended("resync")
        self._taken_to[group] = found.highest
        return found.ranges


def _set_unless_done(future: asyncio.Future[Reply | None], reply: Reply | None) -> None:
    if not future.done():  # its caller may have stopped waiting
        future.set_result(reply)
