"""Routes the messages of a batch to queues, and cuts a batch whose messages are checked one by one by Raft groups.

The default exchange routes a message to the queue whose name is its routing key. Other exchanges route by the bindings
of the node's view of the catalog (`Routes`), to any number of queues. A group gets one batch with all messages for its
queues, each of them once. If these are all messages of the client's batch, it gets the client's own bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

from fifo.commands import Enqueue, Target
from fifo.frozen_dataclasses import dataclass
from fifo.limits import PRODUCTION
from quorum.api import status
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.hub.filters import ordered_by
from quorum.api.session.outcomes import Outbox
from quorum.api.status import NO_CONSUMERS, Status
from quorum.catalog.queues import CatalogQueue
from quorum.catalog.router import Fields, TooManySteps
from quorum.node.wire import batches
from quorum.node.wire.batches import BatchLimits, CheckedBatch, FieldReader, QueueColumns, StoredBatch
from quorum.node.wire.operations import MAX_RANGES
from quorum_selectors.known_fields import KeptFields

Kept = Mapping[int, tuple[KeptFields | None, int]]
"""By queue id: the fields that it keeps, and the maximum bytes of one message's fields, -1 for no limit."""
Queues = tuple[CatalogQueue, ...]
"""The queues of one message; empty: it has none."""
BATCH_STEPS = 1 << 22
"""Maximum steps of routing one batch (catalog.router). They take some seconds of a member's event loop, in slices."""
STEPS_AT_A_TIME = 8_192
"""Steps after which other sessions have their turn."""
EVERYTHING = FieldReader(None)


@dataclass(frozen=True, slots=True)
class Part:
    """What one group gets. ordinals: the places of its messages in the client's batch. batch: these messages alone.
    targets: for each queue, the places of its messages in that batch."""

    ordinals: Sequence[int]
    batch: CheckedBatch
    queues: Queues
    targets: tuple[Target, ...]

    def command(
        self,
        first: int,
        lowest_unconfirmed: int,
        numbers: tuple[tuple[int, int], ...] = (),
        *,
        independent: bool = False,
        immediate: bool = False,
    ) -> Enqueue:
        """The command for the group. It has no targets if its messages are for one queue and numbered without gaps.
        numbers: as in Enqueue."""
        is_plain = len(self.targets) == 1 and not numbers
        return self.batch.command(
            self.targets[0].queue if is_plain else 0,
            first,
            lowest_unconfirmed,
            self.targets[0].columns if is_plain else b"",
            () if is_plain else self.targets,
            numbers,
            independent=independent,
            immediate=immediate,
        )


def by_group(routes: Sequence[Queues], ordinals: Iterable[int]) -> dict[int, list[int]]:
    """These ordinals by the groups of their queues. Those without a queue are left out."""
    found: dict[int, list[int]] = {}
    for ordinal in ordinals:
        queues = routes[ordinal]
        for group in (queues[0].group,) if len(queues) == 1 else groups_of(queues):
            found.setdefault(group, []).append(ordinal)
    return found


def groups_of(queues: Queues) -> dict[int, None]:
    """The groups of these queues, each once, in order."""
    return dict.fromkeys([queue.group for queue in queues])


def cut(
    data: bytes,
    stored: StoredBatch,
    group: int,
    ordinals: Sequence[int],
    routes: Sequence[Queues],
    kept: Kept,
    limits: BatchLimits,
) -> Part:
    """Return the part with these messages for a group. Raises BatchError if the part exceeds a limit."""
    queues: dict[int, CatalogQueue] = {}
    places: dict[int, list[int]] = {}
    count = 0
    for place, ordinal in enumerate(ordinals):
        for queue in routes[ordinal]:
            if queue.group == group:
                queues[queue.id] = queue
                places.setdefault(queue.id, []).append(place)
                count += 1
        if count > PRODUCTION.max_targeted:
            text = (
                f"messages that count as more than {PRODUCTION.max_targeted}, once for each of their queues"
            )
            raise batches.TogetherTooLarge("batch_too_large", text)
    if len(ordinals) < stored.count:
        builder = batches.BatchBuilder()
        for first, some in ranges(ordinals):
            builder.add(stored, first, some)
        data = builder.build()
    checked = batches.check(data, limits, None, -1, **ordered_by(queues.values()))
    targets = []
    encoder = QueueColumns(stored)
    size = batches.stored_bytes(
        data,
        checked.ttls_ms,
        priorities=checked.priorities,
        due_times_ms=checked.due_times_ms,
        group_keys=checked.group_keys,
    )
    rows = len(ordinals)
    for number, mine in places.items():
        fields, _ = kept[number]
        columns = b"" if fields is None else encoder.of([ordinals[place] for place in mine], fields)
        targets.append(Target(number, ranges(mine), columns))
        size += batches.target_bytes(targets[-1])
        rows += len(targets[-1].ranges)
        if size > batches.MAX_STORED_BYTES:
            text = f"a batch of {size} bytes with its filter fields; at most {batches.MAX_STORED_BYTES}"
            raise batches.together(stored, "batch_too_large", text)
        if rows > MAX_RANGES:
            text = f"a batch of over {MAX_RANGES} messages and ranges of messages for one queue each"
            raise batches.TogetherTooLarge("batch_too_large", text)
    return Part(ordinals, checked, tuple(queues.values()), tuple(targets))


def alike(checked: CheckedBatch, queues: Queues) -> Part:
    """Return the part of a batch whose messages all go to the same queues of a group. They keep no filter fields."""
    targets = tuple([Target(queue.id, ((0, checked.count),)) for queue in queues])
    return Part(range(checked.count), checked, queues, targets)


def ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges (first, count)."""
    if isinstance(numbers, range):
        return ((numbers[0], len(numbers)),)
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and sum(found[-1]) == number:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return tuple(found)


def numbers_of(first: int, ordinals: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The client sequences of these messages as ranges (first, count). first: the client sequence of the batch's
    first message."""
    if isinstance(ordinals, range):
        return ((first + ordinals[0], len(ordinals)),)
    return ranges([first + ordinal for ordinal in ordinals])


def neighbours(refused: Mapping[int, Status]) -> Iterator[tuple[int, int, Status]]:
    """Ranges (first, last, why) of refused ordinals with the same reason."""
    found: tuple[int, int, Status] | None = None
    for ordinal in sorted(refused):
        why = refused[ordinal]
        if found is not None:
            if ordinal == found[1] + 1 and why == found[2]:
                found = (found[0], ordinal, why)
                continue
            yield found
        found = (ordinal, ordinal, why)
    if found is not None:
        yield found


# ---- through exchanges


@dataclass(frozen=True, slots=True)
class Routes:
    """The queues of each message of a batch. refused: messages that were not routed, and why, by ordinal. is_alike: all
    messages have the same queues."""

    queues: Sequence[Queues]
    refused: Mapping[int, Status]
    is_alike: bool


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
) -> Routes:
    """Route a batch through an exchange that exists. keys: one for all messages, or one each. read: `batches.read_each`
    of the batch, called only if the route depends on the properties. Raises BatchError if they cannot be read."""
    lookup = _Lookup(catalog, exchange)
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
    """Routes the messages of one batch. by_key: the routes of messages that differ in their keys alone. fields: reads
    the properties of the present message."""

    def __init__(self, catalog: CatalogView, exchange: str) -> None:
        self._catalog = catalog
        self._exchange = exchange
        self._steps = 0
        self._pause_at = STEPS_AT_A_TIME
        self.by_key: dict[str, Queues | Status] = {}
        self.fields = _no_fields

    def counted(self, fields: Fields) -> Fields:
        """Count the properties that were read for a message: each is a step."""
        self._steps += len(fields)
        return fields

    async def of(self, key: str) -> Queues | Status:
        """The queues of a message, or why it is not routed."""
        found = self.by_key.get(key)
        if found is None:
            if self._steps > self._pause_at:
                self._pause_at = self._steps + STEPS_AT_A_TIME
                await asyncio.sleep(0)
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
            self._steps += PRODUCTION.max_targeted
            return status.make(status.Code.RESOURCE_EXHAUSTED, "limit", str(error))
        self._steps += routed.steps
        found = [catalog.queue(name) for name in routed.queues]
        return tuple([queue for queue in found if queue is not None and not catalog.was_deleted(queue)])


# ---- messages for several groups


class Shared:
    """The outcomes of messages that several groups get. A message is confirmed when all of them have taken it. If one
    of them refuses it, it is rejected when all have answered, with the queues that may have it. A group without a
    consumer for an immediate message has no part in it, unless all groups are without one."""

    def __init__(self, outbox: Outbox, groups: dict[int, int]) -> None:
        """groups: the number of groups of each message, by its client sequence; others are told at once."""
        self._outbox = outbox
        self._left = groups
        self._refused: dict[int, Status] = {}
        self._taken: dict[int, list[Queues]] = {}
        self._made: dict[tuple[Status, tuple[str, ...]], Status] = {}

    def of(self, queues: Queues) -> GroupOutcomes:
        """Where the outcomes of one group go. queues: of its part of the batch."""
        return GroupOutcomes(self, queues)

    def decide(self, first: int, last: int, why: Status | None, queues: Queues) -> None:
        for number in range(first, last + 1):
            left = self._left.get(number)
            if left is None:
                self._tell(number, why)
                continue
            if why is None:
                self._taken.setdefault(number, []).append(queues)
            elif number not in self._refused or self._refused[number].reason == NO_CONSUMERS:
                self._refused[number] = why
            if left > 1:
                self._left[number] = left - 1
                continue
            del self._left[number]
            refused, taken = self._refused.pop(number, None), self._taken.pop(number, [])
            if refused is not None and taken:
                refused = None if refused.reason == NO_CONSUMERS else self._with_queues(refused, taken)
            self._tell(number, refused)

    def _tell(self, number: int, why: Status | None) -> None:
        if why is None:
            self._outbox.confirm(number, number)
        else:
            self._outbox.reject(number, number, why)

    def _with_queues(self, why: Status, taken: list[Queues]) -> Status:
        names = tuple([queue.name for queues in taken for queue in queues])
        made = self._made.get((why, names))
        if made is None:
            made = self._made[why, names] = status.taken_elsewhere(why, names)
        return made


@dataclass(frozen=True, slots=True)
class GroupOutcomes:
    """Takes the outcomes of one group, as the outbox does."""

    shared: Shared
    queues: Queues

    def confirm(self, first: int, last: int) -> None:
        self.shared.decide(first, last, None, self.queues)

    def reject(self, first: int, last: int, why: Status) -> None:
        self.shared.decide(first, last, why, self.queues)


def shared_messages(
    outbox: Outbox, routes: Sequence[Queues], parts: Sequence[Part], first: int
) -> Shared | None:
    """What brings the outcomes of several groups together; None if no message of these parts has several groups. first:
    the client sequence of the batch's first message."""
    if len(parts) < 2:
        return None
    groups: dict[int, int] = {}
    for part in parts:
        for ordinal in part.ordinals:
            if len(routes[ordinal]) > 1 and (count := len(groups_of(routes[ordinal]))) > 1:
                groups[first + ordinal] = count
    return Shared(outbox, groups) if groups else None
