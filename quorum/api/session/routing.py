"""Routes the messages of a batch to queues.

The default exchange routes a message to the queue whose name is its routing key. Other exchanges route by the bindings
of the node's view of the catalog (`Routes`), to any number of queues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from fifo.frozen_dataclasses import dataclass
from quorum.api import status
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.status import Status
from quorum.api.turns import Turns
from quorum.catalog.queues import CatalogQueue
from quorum.catalog.router import MAX_STEPS, Fields, TooManySteps
from quorum.node.wire import batches
from quorum.node.wire.batches import FieldReader, StoredBatch

Queues = tuple[CatalogQueue, ...]
"""The queues of one message; empty: it has none."""
BATCH_STEPS = 1 << 22
"""Maximum steps of routing one batch (catalog.router). They take some seconds of a member's event loop, in slices."""
STEPS_AT_A_TIME = 8_192
"""Steps after which a session waits for its turn."""
STEPS_OF_A_TURN = 8
"""Steps of routing that count as one step of api.turns: they take some microseconds."""
EVERYTHING = FieldReader(None)


@dataclass(frozen=True, slots=True)
class Routes:
    """The queues of each message of a batch. refused: messages that were not routed, and why, by ordinal. is_alike: all
    messages have the same queues."""

    queues: Sequence[Queues]
    refused: Mapping[int, Status]
    is_alike: bool


class Turn:
    """When a session may route. It pays for steps after they are done, because nobody knows before how many a message
    takes: also for those of its earlier batches."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._unpaid = 0

    def spend(self, steps: int) -> None:
        self._unpaid += steps

    async def come(self, owner: int) -> None:
        """Wait for the turn of the owner's address, if the session has done a slice of work since the last one."""
        if self._unpaid > STEPS_AT_A_TIME:
            steps, self._unpaid = self._unpaid // STEPS_OF_A_TURN, 0
            await self._turns.take(owner, steps)


class _NeedsFields(Exception):
    """The route depends on the messages' properties."""


def _no_fields() -> Fields:
    raise _NeedsFields


def no_route(catalog: CatalogView, exchange: str, key: str) -> Status | None:
    """Why no message with this key comes to a queue, as far as the catalog's view knows; None if some may."""
    if not exchange:
        queue = catalog.queue(key)
        return status.no_queue(key).status if queue is None or catalog.was_deleted(queue) else None
    if catalog.routes.exchange(exchange) is None:
        return status.no_exchange(exchange).status
    try:
        routed = catalog.routes.router.route(exchange, key, _no_fields)
    except (_NeedsFields, TooManySteps):
        return None
    for name in routed.queues:
        queue = catalog.queue(name)
        if queue is not None and not catalog.was_deleted(queue):
            return None
    return status.unroutable(exchange, key)


async def route(
    catalog: CatalogView,
    exchange: str,
    keys: Sequence[str],
    count: int,
    read: Callable[[], Awaitable[StoredBatch]],
    turn: Turn,
    owner: int,
) -> Routes:
    """Route a batch through an exchange that exists. keys: one for all messages, or one each. read: `batches.read_each`
    of the batch, called only if the route depends on the properties. turn, owner: whose turn it has to be. Raises
    BatchError if they cannot be read."""
    lookup = _Lookup(catalog, exchange, turn, owner)
    try:
        for key in dict.fromkeys(keys):
            await lookup.of(key)
    except _NeedsFields:
        stored = await read()
        if stored.each:
            if len(stored.each) != count:
                raise batches.BatchError("bad_batch", f"{stored.count} messages, not {count}") from None
            return await _route_each(lookup, keys, stored)
        shared = {} if stored.shared is None else EVERYTHING.read(stored.shared)
        lookup.fields = lambda: shared
    if len(dict.fromkeys(keys)) == 1:
        found = await lookup.of(keys[0])
        if isinstance(found, Status):
            return Routes([()] * count, dict.fromkeys(range(count), found), is_alike=True)
        return Routes([found] * count, {}, is_alike=True)
    each = [await lookup.of(key) for key in keys]
    refused = {ordinal: queues for ordinal, queues in enumerate(each) if isinstance(queues, Status)}
    return Routes([() if isinstance(queues, Status) else queues for queues in each], refused, is_alike=False)


async def _route_each(lookup: _Lookup, keys: Sequence[str], stored: StoredBatch) -> Routes:
    queues: list[Queues] = []
    refused: dict[int, Status] = {}
    for ordinal, properties in enumerate(stored.each):
        lookup.by_key.clear()
        lookup.fields = lambda properties=properties: lookup.counted(EVERYTHING.read(properties))  # type: ignore[misc]
        found = await lookup.of(keys[0] if len(keys) == 1 else keys[ordinal])
        if isinstance(found, Status):
            refused[ordinal], found = found, ()
        queues.append(found)
    return Routes(queues, refused, is_alike=False)


class _Lookup:
    """Routes the messages of one batch. Those with the same queues share one tuple. by_key: the routes of messages that
    differ in their keys alone. fields: reads the properties of the present message."""

    def __init__(self, catalog: CatalogView, exchange: str, turn: Turn, owner: int) -> None:
        self._catalog = catalog
        self._exchange = exchange
        self._turn = turn
        self._owner = owner
        self._steps = 0
        self.by_key: dict[str, Queues | Status] = {}
        self._by_names: dict[tuple[str, ...], Queues] = {}
        self.fields = _no_fields

    def counted(self, fields: Fields) -> Fields:
        """Count the properties that were read for a message: each is a step."""
        self._spend(len(fields))
        return fields

    def _spend(self, steps: int) -> None:
        self._steps += steps
        self._turn.spend(steps)

    async def of(self, key: str) -> Queues | Status:
        """The queues of a message, or why it is not routed."""
        found = self.by_key.get(key)
        if found is None:
            await self._turn.come(self._owner)
            found = self.by_key[key] = self._route(key)
        return found

    def _route(self, key: str) -> Queues | Status:
        if self._steps > BATCH_STEPS:
            text = f"routing the messages of the batch takes over {BATCH_STEPS} steps; send fewer at a time"
            return status.make(status.Code.RESOURCE_EXHAUSTED, "limit", text)
        catalog = self._catalog
        try:
            routed = catalog.routes.router.route(self._exchange, key, self.fields)
        except TooManySteps as error:
            self._spend(MAX_STEPS)
            return status.make(status.Code.RESOURCE_EXHAUSTED, "limit", str(error))
        self._spend(routed.steps)
        queues = self._by_names.get(routed.queues)
        if queues is None:
            found = [catalog.queue(name) for name in routed.queues]
            queues = tuple([each for each in found if each is not None and not catalog.was_deleted(each)])
            self._by_names[routed.queues] = queues
        return queues
