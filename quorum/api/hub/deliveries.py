"""Convert the machine's Deliver into batches for clients, with bodies from the node's own log."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from fifo.effects import Deliver, Run
from fifo.frozen_dataclasses import dataclass
from quorum.api.hub.reading import Workers
from quorum.log import EntryMissing, Log, LogDamaged, NotCached
from quorum.node.errors import BodyUnreadable
from quorum.node.wire import batches
from quorum.node.wire.operations import Command, batch_of, count_of

T = TypeVar("T")

DELIVERY_BYTES = 1 << 20
"""Approximate maximum bytes of a delivery, properties included, unless a single message is larger. A stream reads about
one delivery ahead."""

WHOLE_MESSAGES = 64
"""A stored batch of at least this many messages is sent unchanged, in its own delivery. Smaller ones are combined,
because each delivery costs a message of the stream and a disposition."""

CACHED_BYTES = 6 << 20
"""Bytes of parsed batches in a reader's cache: neighbouring runs, and consumers with different selectors, use the same
batches. The last one is kept, whatever its size."""
PARSED = 2
"""Approximate memory of a parsed batch, as a multiple of its bytes."""


@dataclass(frozen=True, slots=True)
class DeliveredBatch:
    """Messages for one consumer, with consecutive delivery tags from `first_tag` on.

    consumer_tag: empty for a get. batch: a serialized MessageBatch. sequences, redelivered: ranges (first, last) of
    sequences and of tags. delivery_counts: pairs (tag, failed deliveries) where not zero.
    """

    consumer_tag: str
    attach: int
    first_tag: int
    count: int
    batch: bytes
    sequences: tuple[tuple[int, int], ...]
    redelivered: tuple[tuple[int, int], ...] = ()
    delivery_counts: tuple[tuple[int, int], ...] = ()


class BodyOnDisk(BodyUnreadable):
    """The disk has to read the body, and the event loop does not wait for that. load: reads it in a thread, for the
    reader that has raised this; BodyUnreadable."""

    def __init__(self, group: int, index: int, load: Callable[[], Awaitable[None]]) -> None:
        super().__init__(group, index, "not in memory")
        self.load = load


class BodyReader:
    """Reads batches from the node's log. The sessions and gets of a node share one reader, which belongs to the event
    loop. Calls that read in worker threads have their own readers (Hub.body_reader).

    A damaged or missing body raises BodyUnreadable. The generators in this module yield the error instead and retry
    when they are resumed; the caller repairs the body in between (MemberRequests.readable).
    """

    def __init__(self, log: Log, cached_bytes: int = CACHED_BYTES, workers: Workers | None = None) -> None:
        """workers: for a reader of the event loop, which raises BodyOnDisk. Without them each read waits for the
        disk."""
        self._log = log
        self._workers = workers
        self._most_bytes = cached_bytes
        self._cached_bytes = 0
        self._last: tuple[int, int] = (-1, -1)
        self._command: Command | None = None
        self._batches: OrderedDict[tuple[int, int, int], tuple[batches.StoredBatch, int]] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        entry = 0 if self._command is None else self._command.size_bytes
        return self._cached_bytes + entry

    def drop(self) -> None:
        """Empty the cache."""
        self._batches.clear()
        self._cached_bytes = 0
        self._last, self._command = (-1, -1), None

    def command(self, group: int, index: int) -> Command:
        """Return the command of a whole entry."""
        if self._last != (group, index) or self._command is None:
            try:
                body = (
                    self._log.read(group, index)
                    if self._workers is None
                    else self._log.read(group, index, waits=False)
                )
            except NotCached as error:
                raise BodyOnDisk(group, index, partial(self._load, group, index)) from error
            except (EntryMissing, LogDamaged) as error:
                raise BodyUnreadable(group, index, str(error)) from error
            self._take(group, index, body)
        assert self._command is not None
        return self._command

    async def _load(self, group: int, index: int) -> None:
        assert self._workers is not None
        try:
            body = await self._workers.read(partial(self._log.read, group, index))
        except (EntryMissing, LogDamaged) as error:
            raise BodyUnreadable(group, index, str(error)) from error
        self._take(group, index, body)

    def _take(self, group: int, index: int, body: bytes) -> None:
        self._command = Command(memoryview(body)[1:])
        self._last = (group, index)

    def operation(self, group: int, index: int, operation: int) -> memoryview:
        return self.command(group, index).operation(operation)

    def batch(self, group: int, index: int, operation: int) -> batches.StoredBatch:
        key = (group, index, operation)
        known = self._batches.get(key)
        if known is not None:
            self._batches.move_to_end(key)
            return known[0]
        data = batch_of(self.operation(group, index, operation))
        made = batches.StoredBatch(data)
        size = PARSED * len(data)
        self._batches[key] = made, size
        self._cached_bytes += size
        while self._cached_bytes > self._most_bytes and len(self._batches) > 1:
            self._cached_bytes -= self._batches.popitem(last=False)[1][1]
        return made

    def parts(self, group: int, run: Run) -> Iterator[tuple[batches.StoredBatch, int, int] | BodyUnreadable]:
        """Yield the messages of a run as (batch, first ordinal, count)."""
        if not run.one_each:
            for batch in tried(lambda: self.batch(group, run.index, run.operation)):
                yield batch if isinstance(batch, BodyUnreadable) else (batch, run.ordinal, run.count)
            return
        for number in range(run.operation, run.operation + run.count):
            for operation in tried(partial(self.operation, group, run.index, number)):
                if isinstance(operation, BodyUnreadable):
                    yield operation
                else:
                    yield batches.StoredBatch(batch_of(operation)), 0, 1


def tried(read: Callable[[], T]) -> Iterator[T | BodyUnreadable]:
    """Yield each BodyUnreadable while a read fails, and finally the value."""
    while True:
        try:
            found = read()
        except BodyUnreadable as error:
            yield error
        else:
            yield found
            return


def delivered_batches(
    reader: BodyReader, group: int, deliver: Deliver
) -> Iterator[DeliveredBatch | BodyUnreadable]:
    """Yield batches to send, in order of delivery tags. Each has at most about DELIVERY_BYTES, or one message."""
    collected = _Collected(deliver)
    for run in deliver.runs:
        whole = None
        if len(deliver.runs) == 1 or run.count >= WHOLE_MESSAGES:
            whole = _whole_batch(reader, group, run)
        if whole is not None:
            yield from collected.take()
            yield collected.pass_on(run, whole)
            continue
        done = 0
        while done < run.count:
            found = _added(reader, group, run, done, collected)
            if isinstance(found, BodyUnreadable):
                yield found
                continue
            done = found
            if done < run.count:
                yield from collected.take()
    yield from collected.take()


def _added(
    reader: BodyReader, group: int, run: Run, done: int, collected: _Collected
) -> int | BodyUnreadable:
    """Add messages of the run from number `done` on, as long as they fit; return the number of the run's messages that
    have been added so far.

    This is a separate function, so that the suspended generator `delivered_batches` has no variable that refers to a
    batch: a stream that is not read does not keep whole batches in memory.
    """
    while done < run.count:
        try:
            if run.one_each:
                batch = batches.StoredBatch(
                    batch_of(reader.operation(group, run.index, run.operation + done))
                )
            else:
                batch = reader.batch(group, run.index, run.operation)
        except BodyUnreadable as error:
            return error
        first, count = (0, 1) if run.one_each else (run.ordinal + done, run.count - done)
        fitting = batch.fitting(first, count, DELIVERY_BYTES - collected.size_bytes)
        weight = batch.weight(first + fitting) - batch.weight(first)
        if collected.size_bytes and collected.size_bytes + weight > DELIVERY_BYTES:
            break
        collected.add(batch, first, fitting, run.first_sequence + done)
        done += fitting
    return done


class _Collected:
    """Messages collected for one delivery, and the next delivery tag."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._tag = deliver.first_tag
        self._builder = batches.BatchBuilder()
        self._sequences: list[list[int]] = []

    @property
    def size_bytes(self) -> int:
        return self._builder.size_bytes

    def add(self, batch: batches.StoredBatch, first: int, count: int, sequence: int) -> None:
        self._builder.add(batch, first, count)
        if self._sequences and self._sequences[-1][1] == sequence - 1:
            self._sequences[-1][1] += count
        else:
            self._sequences.append([sequence, sequence + count - 1])

    def take(self) -> Iterator[DeliveredBatch]:
        """Yield the collected messages as one delivery, if there are any."""
        builder, sequences = self._builder, self._sequences
        if builder.count:
            self._builder, self._sequences = batches.BatchBuilder(), []
            count, data = builder.count, builder.build()
            del builder  # it refers to whole batches, and the client may be slow
            yield self._made(count, data, sequences)

    def pass_on(self, run: Run, batch: bytes) -> DeliveredBatch:
        """Return a stored batch unchanged, as one delivery. The caller has taken the collected messages before."""
        return self._made(run.count, batch, [[run.first_sequence, run.first_sequence + run.count - 1]])

    def _made(self, count: int, batch: bytes, sequences: list[list[int]]) -> DeliveredBatch:
        made = _delivery(self._deliver, self._tag, count, batch, sequences)
        self._tag += count
        return made


def _whole_batch(reader: BodyReader, group: int, run: Run) -> bytes | None:
    """Return the stored bytes if the run is one whole batch of at most DELIVERY_BYTES; it needs no parsing."""
    if run.one_each or run.ordinal:
        return None
    try:
        operation = reader.operation(group, run.index, run.operation)
    except BodyUnreadable:
        return None  # `_added` reads the run again and returns the error
    data = batch_of(operation)
    if run.count != count_of(operation) or len(data) > DELIVERY_BYTES:
        return None
    return bytes(data)


def _delivery(
    deliver: Deliver, tag: int, count: int, batch: bytes, sequences: Sequence[Sequence[int]]
) -> DeliveredBatch:
    before = tag - deliver.first_tag
    redelivered = []
    again = deliver.redelivered >> before & ((1 << count) - 1)
    while again:
        low = (again & -again).bit_length() - 1
        length = (~(again >> low) & -~(again >> low)).bit_length() - 1
        redelivered.append((tag + low, tag + low + length - 1))
        again &= ~(((1 << length) - 1) << low)
    counts = [
        (deliver.first_tag + ordinal, failed)
        for ordinal, failed in deliver.delivery_counts
        if before <= ordinal < before + count
    ]
    return DeliveredBatch(
        deliver.consumer_tag,
        deliver.attach,
        tag,
        count,
        batch,
        tuple([(first, last) for first, last in sequences]),
        tuple(redelivered),
        tuple(counts),
    )
