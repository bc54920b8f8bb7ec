"""Routes the messages of a batch to queues, and cuts a batch whose messages are checked one by one by Raft groups.

The default exchange routes a message to the queue whose name is its routing key, so a message has one target. A group
gets one batch with all messages for its queues. If these are all messages of the client's batch, it gets the
client's own bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fifo.commands import Target
from quorum.api.status import Status
from quorum.catalog.queues import CatalogQueue
from quorum.node.wire import batches
from quorum.node.wire.batches import BatchLimits, CheckedBatch, QueueColumns, StoredBatch
from quorum_selectors.known_fields import KeptFields

Kept = Mapping[int, tuple[KeptFields | None, int]]
"""By queue id: the fields that it keeps, and the maximum bytes of one message's fields, -1 for no limit."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one group gets. ordinals: the places of its messages in the client's batch. batch: these messages alone.
    targets: for each queue, the places of its messages in that batch."""

    ordinals: Sequence[int]
    batch: CheckedBatch
    queues: tuple[CatalogQueue, ...]
    targets: tuple[Target, ...]


def by_group(routes: Sequence[CatalogQueue | None], ordinals: Iterable[int]) -> dict[int, list[int]]:
    """These ordinals by the group of their queues. Those without a queue are left out."""
    found: dict[int, list[int]] = {}
    for ordinal in ordinals:
        if (queue := routes[ordinal]) is not None:
            found.setdefault(queue.group, []).append(ordinal)
    return found


def cut(
    data: bytes,
    stored: StoredBatch,
    ordinals: Sequence[int],
    routes: Sequence[CatalogQueue | None],
    kept: Kept,
    limits: BatchLimits,
) -> Part:
    """Return the part with these messages; their queues belong to one group. Raises BatchError if the part exceeds a
    limit."""
    if len(ordinals) < stored.count:
        builder = batches.BatchBuilder()
        for first, count in ranges(ordinals):
            builder.add(stored, first, count)
        data = builder.build()
    queues: dict[int, CatalogQueue] = {}
    places: dict[int, list[int]] = {}
    for place, ordinal in enumerate(ordinals):
        queue = routes[ordinal]
        assert queue is not None
        queues[queue.id] = queue
        places.setdefault(queue.id, []).append(place)
    has_priorities = any(queue.config.max_priority > 0 for queue in queues.values())
    checked = batches.check(data, limits, None, -1, has_priorities=has_priorities)
    targets = []
    encoder = QueueColumns(stored)
    size = batches.stored_bytes(data, checked.ttls_ms, priorities=checked.priorities)
    for number, mine in places.items():
        fields, _ = kept[number]
        columns = b"" if fields is None else encoder.of([ordinals[place] for place in mine], fields)
        targets.append(Target(number, ranges(mine), columns))
        size += batches.target_bytes(targets[-1])
        if size > batches.MAX_STORED_BYTES:
            text = f"a batch of {size} bytes with its filter fields; at most {batches.MAX_STORED_BYTES}"
            raise batches.together(stored, "batch_too_large", text)
    return Part(ordinals, checked, tuple(queues.values()), tuple(targets))


def ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges (first, count)."""
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
