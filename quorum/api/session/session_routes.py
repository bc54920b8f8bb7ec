"""What each group gets of a batch of a client's session: the queues of its messages, the checks, and the cut.

routing.py and group_parts.py have the steps that need no session. publisher.py numbers the parts and sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from fifo import commands as c
from fifo.limits import PRODUCTION
from quorum.api import status
from quorum.api.hub.filters import kept_fields, ordered_by
from quorum.api.hub.hub import Hub
from quorum.api.session import routing
from quorum.api.session.commands import SessionCommands
from quorum.api.session.group_parts import Part, alike, by_group, cut, distinct, groups_of, slices
from quorum.api.session.routing import Queues
from quorum.catalog.queues import CatalogQueue
from quorum.node.wire import batches
from quorum.node.wire.batches import FRAME_BYTES, MAX_INDEPENDENT, BatchLimits, CheckedBatch
from quorum.node.wire.operations import MAX_RANGES
from quorum_selectors.known_fields import KeptFields

T = TypeVar("T")

KEYS_EXCLUDE = status.invalid("bad_batch", "routing_key and routing_keys exclude each other").status
STEPS_OF_A_COPY = 2
"""Steps of routing that cutting takes for each message, counted once for each of its queues."""
MAX_KNOWN = 8_192
"""Queues of which a session remembers something; above it, it forgets them all."""


class Route(NamedTuple):
    """Where messages go. routing_key: of all messages. routing_keys: if each message has its own."""

    exchange: str
    routing_key: str
    routing_keys: Sequence[str]


def check_copies(routes: Sequence[Queues]) -> None:
    """BatchError if the messages, each counted once for each of its queues, are too many."""
    if (copies := sum(map(len, routes))) > PRODUCTION.max_targeted:
        raise batches.BatchError(
            "batch_too_large",
            f"a batch of {len(routes)} messages that counts as {copies}, once for each of their queues; at most "
            f"{PRODUCTION.max_targeted}",
        )


class SessionRoutes:
    """The routes of one session."""

    def __init__(self, hub: Hub, commands: SessionCommands, limits: BatchLimits) -> None:
        """limits: of the session's batches."""
        self._hub = hub
        self._commands = commands
        self._limits = limits
        self._kept: dict[int, tuple[KeptFields | None, int]] = {}
        """by queue id: see `look_up_kept`"""
        self._routed_by = 0
        """the revision of exchanges and bindings that the session routed by last"""
        self._turn = routing.Turn(hub.turns)
        self._is_current = False
        """Whether this node has known all exchanges and bindings that were there when the session routed its first
        message. A node that was started again lacks some for a moment."""

    # ---- the queues of messages

    async def by_keys(self, keys: Sequence[str], count: int) -> tuple[list[Queues], dict[int, status.Status]]:
        """The queue of each message, whose name is its key, after one look at the current catalog if a name is unknown;
        and the messages for unknown queues, by ordinal. The fields that the queues keep are known then. StatusError if
        there is not a key for each message."""
        if len(keys) != count or count > MAX_INDEPENDENT:
            text = f"{len(keys)} routing keys for {count} messages; give one each, at most {MAX_INDEPENDENT}"
            raise status.invalid("bad_batch", text)
        catalog = self._hub.catalog
        names = dict.fromkeys(keys)
        if any((queue := catalog.queue(name)) is None or catalog.was_deleted(queue) for name in names):
            await self._hub.requests.current_catalog()
        by_name: dict[str, Queues] = {
            name: () if (queue := catalog.queue(name)) is None else (queue,) for name in names
        }
        await self.look_up_kept(by_name.values())
        missing = {
            ordinal: status.no_queue(name).status for ordinal, name in enumerate(keys) if not by_name[name]
        }
        return [by_name[name] for name in keys], missing

    async def through(
        self, route: Route, batch: bytes, count: int, *, mandatory: bool
    ) -> tuple[routing.Routes, dict[int, status.Status]]:
        """The queues of a batch's messages, and the messages that are refused, by ordinal."""
        exchange, routing_key, routing_keys = route
        if count > MAX_INDEPENDENT or (routing_keys and len(routing_keys) != count):
            text = (
                f"{len(routing_keys) or 1} routing keys for {count} messages; give one for all, or one each, and "
                f"at most {MAX_INDEPENDENT} messages for an exchange"
            )
            raise status.invalid("bad_batch", text)
        keys = routing_keys or (routing_key,)
        found = await self._route(exchange, keys, batch, count)
        missing = dict(found.refused)
        if mandatory and not all(found.queues):
            for ordinal, queues in enumerate(found.queues):
                if not queues and ordinal not in missing:
                    key = keys[0] if len(keys) == 1 else keys[ordinal]
                    missing[ordinal] = status.unroutable(exchange, key)
        return found, missing

    async def _route(self, exchange: str, keys: Sequence[str], batch: bytes, count: int) -> routing.Routes:
        """Route a batch by the exchanges and bindings that this node knows; by the current ones if it is the session's
        first, or if the node knows no queue for a message. Before the session routes by newer ones than before,
        everything that it has sent is decided. All messages of a batch are routed by the same ones."""
        is_current = not self._is_current
        if is_current:
            await self._hub.requests.current_catalog()
            self._is_current = True

        async def read() -> batches.StoredBatch:
            return await self._in_turn(batch, partial(batches.read_each, batch, self._limits))

        while True:
            while self._routed_by != (revision := self._hub.catalog.routes.revision):
                if not self._commands.undecided:
                    self._routed_by = revision
                    break
                self._commands.room.clear()
                await self._commands.room.wait()
            is_known = self._hub.catalog.routes.exchange(exchange) is not None
            if is_known:
                found = await routing.route(
                    self._hub.catalog, exchange, keys, count, read, self._turn, self._commands.owner
                )
                if self._hub.catalog.routes.revision != self._routed_by:
                    continue  # they have changed while the session waited for its turn
            if is_known and (is_current or all(found.queues)):
                return found
            if is_current:
                raise status.no_exchange(exchange)
            await self._hub.requests.current_catalog()
            is_current = True

    async def look_up_kept(self, routes: Iterable[Queues]) -> None:
        """Look up the fields that the session extracts for these queues: those that each queue keeps when the session
        first publishes to it."""
        if len(self._kept) > MAX_KNOWN:
            self._kept.clear()
        catalog = self._hub.catalog
        known = {queue.id: queue for queues in distinct(routes) for queue in queues}
        new = [queue for number, queue in known.items() if number not in self._kept]
        if any(
            queue.config.filter_enabled for queue in new
        ):  # a change of policies that was answered elsewhere counts
            catalog = await self._hub.requests.current_catalog()
        for queue in new:
            self._kept[queue.id] = kept_fields(catalog, queue)

    # ---- checks

    async def check(self, queue: CatalogQueue, data: bytes, *, independent: bool = False) -> CheckedBatch:
        """Check a batch for one queue. Raises BatchError."""
        if queue.id not in self._kept:
            await self.look_up_kept([(queue,)])
        kept, max_bytes = self._kept[queue.id]
        check = batches.check_independent if independent else batches.check
        return await self._in_turn(
            data, partial(check, data, self._limits, kept, max_bytes, **ordered_by([queue]))
        )

    async def _in_turn(self, batch: bytes, work: Callable[[], T]) -> T:
        """The result of work on a batch, when it is the turn of the client's address. Such work may run in a thread."""
        return await self._hub.turns.run(self._commands.owner, batches.check_steps(batch), work)

    # ---- the parts of a batch

    async def parts(
        self,
        routes: Sequence[Queues],
        missing: dict[int, status.Status],
        batch: bytes,
        *,
        independent: bool,
        is_alike: bool,
    ) -> AsyncGenerator[tuple[list[Part], dict[int, status.Status]], None]:
        """The parts of the batch that the groups get, and the messages that are refused here, by ordinal. A batch that
        is independent and counts as too many messages comes in several pieces, each to be sent before the next is made.
        Of another batch, either all messages are refused or none. missing: messages without a queue that are refused.
        is_alike: all messages have the same queues."""
        if is_alike:
            await self.look_up_kept(routes[:1])
            if parts := await self._alike(routes, batch):
                yield parts, missing
                return
        await asyncio.sleep(0)  # other sessions have their turn
        limits = replace(self._limits, max_batch_bytes=FRAME_BYTES) if independent else self._limits
        try:
            if not independent:
                check_copies(routes)
            stored = await self._in_turn(batch, partial(batches.read_each, batch, limits))
            for some in slices(routes, PRODUCTION.max_targeted) if independent else (routes,):
                yield await self._parts_of_each(some, missing, batch, stored, independent=independent)
                missing = {}
        except batches.BatchError as error:
            yield [], dict.fromkeys(range(len(routes)), status.of_error(error))

    async def _alike(self, routes: Sequence[Queues], batch: bytes) -> list[Part]:
        """The parts of a batch whose messages all have the same queues. Empty if something has to be refused or if a
        queue keeps fields: then the messages are checked one by one."""
        queues, parts = routes[0], []
        if not queues or any(self._kept[queue.id][0] is not None for queue in queues):
            return []
        if len(queues) * len(routes) > PRODUCTION.max_targeted or len(queues) + len(routes) > MAX_RANGES:
            return []
        try:
            checked = await self._in_turn(
                batch,
                partial(batches.check, batch, self._limits, None, -1, **ordered_by(queues)),
            )
            for group in groups_of(queues):
                self._hub.published.check_disks(group)
                mine = tuple([queue for queue in queues if queue.group == group])
                parts.append(alike(checked, mine))
        except (batches.BatchError, status.StatusError):
            return []
        return parts

    async def _parts_of_each(
        self,
        routes: Sequence[Queues],
        missing: dict[int, status.Status],
        batch: bytes,
        stored: batches.StoredBatch,
        *,
        independent: bool,
    ) -> tuple[list[Part], dict[int, status.Status]]:
        """The parts of the messages that have queues in `routes`, and those that are refused, as for `parts`. If the
        batch is not independent, each group gets one part. If it is independent, messages that exceed a limit together
        are halved until they fit. Raises BatchError if `routes` do not fit the batch."""
        await self._turn.come(self._commands.owner)
        self._turn.spend(STEPS_OF_A_COPY * sum(map(len, routes)))
        await self.look_up_kept(routes)
        kept_by = {id(queues): [self._kept[queue.id] for queue in queues] for queues in distinct(routes)}
        kept = [kept_by[id(queues)] for queues in routes]
        work = partial(batches.refused_each, stored, self._limits, kept)
        wrong = await self._in_turn(batch, work)
        refused = missing | {ordinal: status.of_error(error) for ordinal, error in wrong.items()}
        for group, ordinals in by_group(routes, range(len(routes))).items():
            try:
                self._hub.published.check_disks(group)
            except status.StatusError as error:
                refused |= dict.fromkeys([each for each in ordinals if each not in refused], error.status)
        parts: list[Part] = []
        is_done = False
        while not is_done and (independent or not refused):
            accepted = [ordinal for ordinal in range(len(routes)) if ordinal not in refused]
            parts, more = await self._cut(routes, accepted, batch, stored, independent=independent)
            refused |= more
            # a message that one group does not get must not go to its other groups
            is_done = not any(len(routes[ordinal]) > 1 for ordinal in more)
        if refused and not independent:
            return [], dict.fromkeys(range(len(routes)), refused[min(refused)])
        return parts, refused

    async def _cut(
        self,
        routes: Sequence[Queues],
        accepted: Sequence[int],
        batch: bytes,
        stored: batches.StoredBatch,
        *,
        independent: bool,
    ) -> tuple[list[Part], dict[int, status.Status]]:
        """The parts with the accepted messages, and those of them that exceed a limit."""
        limits = self._limits
        parts: list[Part] = []
        refused: dict[int, status.Status] = {}
        for group, ordinals in by_group(routes, accepted).items():
            waiting = [ordinals]
            while waiting:
                await asyncio.sleep(0)
                some = waiting.pop()
                try:
                    work = partial(cut, batch, stored, group, some, routes, self._kept, limits)
                    parts.append(await self._in_turn(batch, work))
                except batches.BatchError as error:
                    if independent and isinstance(error, batches.TogetherTooLarge) and len(some) > 1:
                        middle = len(some) // 2
                        waiting += (some[middle:], some[:middle])
                    else:
                        refused |= dict.fromkeys(some, status.of_error(error))
        return parts, refused

    # ---- batches of transactions

    async def of_transaction(self, route: Route, batch: bytes, *, mandatory: bool) -> list[Part]:
        """What each group gets of a batch of a transaction; nothing if no message has a queue. StatusError if a message
        is refused here."""
        if route.routing_key and route.routing_keys:
            raise status.StatusError(KEYS_EXCLUDE)
        try:
            if not route.exchange and not route.routing_keys:
                return [await self._whole(await self._hub.requests.queue(route.routing_key), batch)]
            return await self._of_transaction(route, batch, mandatory=mandatory)
        except batches.BatchError as error:
            raise status.StatusError(status.of_error(error)) from error

    async def _whole(self, queue: CatalogQueue, batch: bytes) -> Part:
        """A batch for one queue."""
        checked = await self.check(queue, batch)
        self._hub.published.check_disks(queue.group)
        target = c.Target(queue.id, ((0, checked.count),), checked.columns)
        return Part(range(checked.count), checked, (queue,), (target,))

    async def _of_transaction(self, route: Route, batch: bytes, *, mandatory: bool) -> list[Part]:
        """A batch whose messages may have different queues."""
        count = batches.claimed_count(batch)
        routes: Sequence[Queues]
        is_alike = False
        if route.exchange:
            found, refused = await self.through(route, batch, count, mandatory=mandatory)
            routes = found.queues
            if found.is_alike and len(routes[0]) == 1:
                return [await self._whole(routes[0][0], batch)]
            is_alike = found.is_alike and not refused
        else:
            routes, refused = await self.by_keys(route.routing_keys, count)
        pieces = self.parts(routes, refused, batch, independent=False, is_alike=is_alike)
        [(parts, refused)] = [each async for each in pieces]
        if refused:
            raise status.StatusError(refused[min(refused)])
        return parts
