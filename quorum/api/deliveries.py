"""From the machine's Deliver to what goes out on a stream: bodies are read from the node's own log, here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from fifo.effects import Deliver, Run
from quorum.log import EntryMissing, Log, LogDamaged
from quorum.node import batches
from quorum.node.healing import BodyUnreadable
from quorum.node.operations import Command, batch_of, count_of
from quorum.v1 import queue_pb2 as pb

T = TypeVar("T")

DELIVERY_BYTES = 1 << 20
"""Messages are read this far ahead of a stream that takes them; a delivery is about this much, properties included, or
one message."""

CACHED_BATCHES = 64
"""Batches a reader keeps apart: neighbouring runs, and consumers with different selectors, cut the same ones."""
CACHED_BYTES = 256 * 1024
"""Larger batches are not kept."""


class BodyReader:
    """Reads batches from the node's log. One for all streams of a node; the event loop's.

    A body that is damaged, or not here, raises BodyUnreadable. The generators here yield it in the place of what they
    could not read, and try again when they are resumed: it is to be mended meanwhile (Hub.readable).
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._last: tuple[int, int] = (-1, -1)
        self._command: Command | None = None
        self._batches: OrderedDict[tuple[int, int, int], batches.StoredBatch] = OrderedDict()

    def operation(self, group: int, index: int, operation: int) -> memoryview:
        if self._last != (group, index) or self._command is None:
            try:
                body = self._log.read(group, index)
            except (EntryMissing, LogDamaged) as error:
                raise BodyUnreadable(group, index, str(error)) from error
            self._command = Command(memoryview(body)[1:])
            self._last = (group, index)
        return self._command.operation(operation)

    def batch(self, group: int, index: int, operation: int) -> batches.StoredBatch:
        key = (group, index, operation)
        known = self._batches.get(key)
        if known is not None:
            self._batches.move_to_end(key)
            return known
        data = batch_of(self.operation(group, index, operation))
        made = batches.StoredBatch(data)
        if len(data) <= CACHED_BYTES:
            self._batches[key] = made
            if len(self._batches) > CACHED_BATCHES:
                self._batches.popitem(last=False)
        return made

    def parts(self, group: int, run: Run) -> Iterator[tuple[batches.StoredBatch, int, int] | BodyUnreadable]:
        """The messages of a run as (batch, first ordinal, count)."""
        if not run.one_each:
            for batch in _tried(lambda: self.batch(group, run.index, run.operation)):
                yield batch if isinstance(batch, BodyUnreadable) else (batch, run.ordinal, run.count)
            return
        for number in range(run.operation, run.operation + run.count):
            for operation in _tried(partial(self.operation, group, run.index, number)):
                if isinstance(operation, BodyUnreadable):
                    yield operation
                else:
                    yield batches.StoredBatch(batch_of(operation)), 0, 1


def _tried(read: Callable[[], T]) -> Iterator[T | BodyUnreadable]:
    """What was read, at last; before it, what stands in the way, as often as it does."""
    while True:
        try:
            found = read()
        except BodyUnreadable as error:
            yield error
        else:
            yield found
            return


def responses(reader: BodyReader, group: int, deliver: Deliver) -> Iterator[pb.Delivery | BodyUnreadable]:
    """What to send, in order of delivery tags; each at most about DELIVERY_BYTES or one message."""
    whole = _whole_batch(reader, group, deliver)
    if whole is not None:
        first, last = (
            deliver.runs[0].first_sequence,
            deliver.runs[0].first_sequence + deliver.runs[0].count - 1,
        )
        yield _delivery(deliver, deliver.first_tag, deliver.runs[0].count, whole, [[first, last]])
        return
    tag = deliver.first_tag
    builder = batches.BatchBuilder()
    sequences: list[list[int]] = []
    for run in deliver.runs:
        sequence = run.first_sequence
        for part in reader.parts(group, run):
            if isinstance(part, BodyUnreadable):
                yield part
                continue
            batch, ordinal, messages = part
            left = messages
            while left:
                taken = batch.fitting(ordinal + messages - left, left, DELIVERY_BYTES - builder.size_bytes)
                if (
                    builder.count
                    and builder.size_bytes + _size(batch, ordinal + messages - left, taken) > DELIVERY_BYTES
                ):
                    yield _delivery(deliver, tag, builder.count, builder.build(), sequences)
                    tag += builder.count
                    builder, sequences = batches.BatchBuilder(), []
                    continue
                builder.add(batch, ordinal + messages - left, taken)
                if sequences and sequences[-1][1] == sequence - 1:
                    sequences[-1][1] += taken
                else:
                    sequences.append([sequence, sequence + taken - 1])
                sequence += taken
                left -= taken
    yield _delivery(deliver, tag, builder.count, builder.build(), sequences)


def _size(batch: batches.StoredBatch, first: int, count: int) -> int:
    return batch.weight(first + count) - batch.weight(first)


def _whole_batch(reader: BodyReader, group: int, deliver: Deliver) -> bytes | None:
    """The stored bytes, where the delivery is one whole batch: nothing is taken apart then."""
    run = deliver.runs[0]
    if len(deliver.runs) > 1 or run.one_each or run.ordinal:
        return None
    try:
        operation = reader.operation(group, run.index, run.operation)
    except BodyUnreadable:
        return None  # taken apart, it is met again
    data = batch_of(operation)
    if run.count != count_of(operation) or len(data) > DELIVERY_BYTES:
        return None
    return bytes(data)


def _delivery(
    deliver: Deliver, tag: int, count: int, batch: bytes, sequences: Sequence[Sequence[int]]
) -> pb.Delivery:
    delivery = pb.Delivery(
        consumer_tag=deliver.consumer_tag,
        attach=deliver.attach,
        first_tag=tag,
        count=count,
        batch=batch,
        sequences=[pb.Range(first=first, last=last) for first, last in sequences],
    )
    before = tag - deliver.first_tag
    again = deliver.redelivered >> before & ((1 << count) - 1)
    while again:
        low = (again & -again).bit_length() - 1
        length = (~(again >> low) & -~(again >> low)).bit_length() - 1
        delivery.redelivered.add(first=tag + low, last=tag + low + length - 1)
        again &= ~(((1 << length) - 1) << low)
    for ordinal, failed in deliver.delivery_counts:
        if before <= ordinal < before + count:
            delivery.delivery_counts.add(tag=deliver.first_tag + ordinal, count=failed)
    return delivery
