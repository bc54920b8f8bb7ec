"""What each Raft group gets of a batch whose messages have been routed to queues.

A group gets one batch with all messages for its queues, each of them once. If these are all messages of the client's
batch, it gets the client's own bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fifo.commands import Enqueue, Target
from fifo.frozen_dataclasses import dataclass
from fifo.limits import PRODUCTION
from quorum.api.hub.filters import ordered_by
from quorum.api.session.routing import Queues
from quorum.catalog.queues import CatalogQueue
from quorum.node.wire import batches
from quorum.node.wire.batches import BatchLimits, CheckedBatch, QueueColumns, StoredBatch
from quorum.node.wire.operations import MAX_RANGES
from quorum_selectors.known_fields import KeptFields

Kept = Mapping[int, tuple[KeptFields | None, int]]
"""By queue id: the fields that it keeps, and the maximum bytes of one message's fields, -1 for no limit."""


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
    groups: dict[int, Iterable[int]] = {}
    for ordinal in ordinals:
        queues = routes[ordinal]
        mine = groups.get(id(queues))
        if mine is None:
            mine = groups[id(queues)] = groups_of(queues)
        for group in mine:
            found.setdefault(group, []).append(ordinal)
    return found


def distinct(routes: Iterable[Queues]) -> Iterable[Queues]:
    """Each of these once. Messages of a batch that go to the same queues share one tuple."""
    return {id(queues): queues for queues in routes}.values()


def slices(routes: Sequence[Queues], most: int) -> Iterator[Sequence[Queues]]:
    """The routes of a batch, cut so that its messages count at most `most` in each slice, once for each of their
    queues; or one message. The messages of the other slices have no queues in it."""
    if sum(map(len, routes)) <= most:
        yield routes
        return
    first, copies = 0, 0
    for ordinal, queues in enumerate(routes):
        if copies and copies + len(queues) > most:
            yield _only(routes, first, ordinal)
            first, copies = ordinal, 0
        copies += len(queues)
    yield _only(routes, first, len(routes))


def _only(routes: Sequence[Queues], first: int, end: int) -> Sequence[Queues]:
    return [()] * first + list(routes[first:end]) + [()] * (len(routes) - end)


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
