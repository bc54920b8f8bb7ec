"""Stored batches as Arrow: blocks of at most BLOCK_ROWS rows and about BLOCK_BYTES, each an Arrow IPC stream.

Bodies, sequences and times are copied in whole parts of batches. Single messages are read only for requested
properties. The first bulk call imports this module, so a member without bulk calls does not need pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fifo.effects import Run
from quorum.api.bulk.columns import OF_PROPERTIES, Wanted
from quorum.api.bulk.json_values import Writer
from quorum.api.bulk.stored_rows import Batch, Failures, Ints, Part, RowReader
from quorum.columns import TEXTS
from quorum.node.errors import BodyUnreadable
from quorum.node.wire.batches import FieldReader
from quorum.v1 import bulk_pb2
from quorum.v1 import queue_pb2 as pb

BLOCK_ROWS = 8_192
BLOCK_BYTES = 1 << 20
MOST_BLOCK_BYTES = 3 << 19
"""Maximum bytes of a block of whole batches, many of which take about 1 MiB."""
HELD_BYTES = 8 << 20
"""Maximum bytes of the batches that a block uses, possibly for one message each; or one batch."""
ROW_BYTES = 48
"""Approximate bytes of a row besides body and properties."""
TIME = pa.timestamp("us", tz="UTC")
MOST_MS = 253_402_300_799_999
"""The end of the year 9999, the last date of Python and others. Later expiry times are reported as this one."""
TYPES = {
    "sequence": pa.int64(),
    "raft_index": pa.int64(),
    "enqueued": TIME,
    **dict.fromkeys(TEXTS, pa.string()),
    "priority": pa.int16(),
    "deliveries": pa.int32(),
    "expires": TIME,
    "properties": pa.string(),
    "body": pa.binary(),
}
FIELD_TYPES = {"text": pa.string(), "integer": pa.int64(), "floating": pa.float64(), "boolean": pa.bool_()}

Matches = Callable[[Mapping[str, Any]], bool | None]

pa.set_memory_pool(pa.system_memory_pool())  # so that the process's allocator settings apply


def schema_of(wanted: Wanted) -> pa.Schema:
    fields = pa.struct([(name, FIELD_TYPES[kind]) for name, kind in wanted.fields])
    return pa.schema([(name, fields if name == "fields" else TYPES[name]) for name in wanted.names])


class Blocks:
    """Collect messages and return blocks of them.

    message_ttl_ms: the queue's TTL, -1 for none. matches: selects messages, None for all. limit: maximum number of
    messages, -1 for all; `left` is the rest of it.
    """

    def __init__(
        self,
        reader: RowReader,
        wanted: Wanted,
        message_ttl_ms: int = -1,
        matches: Matches | None = None,
        limit: int = -1,
    ) -> None:
        self._reader = reader
        self._wanted = wanted
        self._schema = schema_of(wanted)
        self._ttl_ms = message_ttl_ms
        self._matches = matches
        self._with_bodies = "body" in wanted.names
        self._with_properties = not OF_PROPERTIES.isdisjoint(wanted.names)
        self._writer = Writer(dict(wanted.fields))
        self._fields = FieldReader(None)
        self.left = limit
        self._clear()

    def _clear(self) -> None:
        self._parts: list[Part] = []
        self._deliveries: list[Ints] = []
        self._maps: list[tuple[set[str], Sequence[Any], int]] | None = None
        self._found: list[list[list[Any]]] | None = None
        self._rows = 0
        self._size = 0
        self._held = 0

    # ---- collecting

    def feed(self, runs: Sequence[Run], failures: Failures) -> Iterator[bulk_pb2.Block | BodyUnreadable]:
        """Add the messages of runs and yield full blocks. `failures` numbers the messages from 0 on.

        Yields BodyUnreadable for an unreadable body; the caller repairs it before it resumes the iterator."""
        number = 0
        for part in self._reader.parts(runs):
            if isinstance(part, BodyUnreadable):
                yield part
                continue
            for first, count in self._chosen(part):
                yield from self._add(part, first, count, failures, number + first - part.first)
                if self.left == 0:
                    return
            number += part.count

    def take(self) -> Iterator[bulk_pb2.Block]:
        """Yield the last block, if messages are left for it."""
        if self._rows:
            yield self._build()

    def so_far(self, next_sequence: int) -> Iterator[bulk_pb2.Block]:
        """Yield a block of the remaining messages, possibly empty: a read can continue at next_sequence after it."""
        yield self._build() if self._rows else self._encoded([], next_sequence)

    def _chosen(self, part: Part) -> Iterator[tuple[int, int]]:
        """Yield the matching messages of a part as (first ordinal, count)."""
        if self._matches is None:
            yield part.first, part.count
            return
        end = part.first + part.count
        if part.batch.each is None:
            shared = part.batch.shared or pb.Properties()
            if self._matches(self._fields.read(shared)) is True:
                yield part.first, part.count
            return
        start = -1
        for at in range(part.first, end):
            if self._matches(self._fields.read(part.batch.each[at])) is True:
                if start < 0:
                    start = at
            elif start >= 0:
                yield start, at - start
                start = -1
        if start >= 0:
            yield start, end - start

    def _add(
        self, part: Part, first: int, count: int, failures: Failures, number: int
    ) -> Iterator[bulk_pb2.Block]:
        if self.left >= 0:
            count = min(count, self.left)
            self.left -= count
        while count:
            taken = min(count, BLOCK_ROWS - self._rows)
            size = self._weight(part.batch, first, taken)
            if self._size + size > MOST_BLOCK_BYTES:
                if self._rows and size <= MOST_BLOCK_BYTES:  # too small to cut
                    yield self._build()
                    continue
                taken = self._fitting(part.batch, first, taken)
                if not taken:
                    yield self._build()
                    continue
                size = self._weight(part.batch, first, taken)
            sequence = part.sequence + first - part.first
            if not self._parts or self._parts[-1].batch is not part.batch:
                self._held += part.batch.held_bytes
            self._parts.append(Part(part.batch, first, taken, sequence))
            self._deliveries.append(failures.of(number, taken))
            self._rows += taken
            self._size += size
            first, count, number = first + taken, count - taken, number + taken
            if self._rows == BLOCK_ROWS or self._size >= BLOCK_BYTES or self._held >= HELD_BYTES:
                yield self._build()

    def _weight(self, batch: Batch, first: int, count: int) -> int:
        size = ROW_BYTES * count
        if self._with_bodies:
            size += int(batch.starts[first + count] - batch.starts[first])
        if self._with_properties and batch.property_bytes:
            if count == batch.count:
                size += batch.property_bytes
            else:
                weights = batch.property_weights()
                size += int(weights[first + count] - weights[first])
        return size

    def _fitting(self, batch: Batch, first: int, count: int) -> int:
        """Return how many of these messages still fit into the block; at least one if it is empty."""
        weights = ROW_BYTES * np.arange(1, count + 1)
        if self._with_bodies:
            weights += batch.starts[first + 1 : first + count + 1] - batch.starts[first]
        if self._with_properties and batch.property_bytes:
            each = batch.property_weights()
            weights += each[first + 1 : first + count + 1] - each[first]
        fitting = int(np.searchsorted(weights, BLOCK_BYTES - self._size, side="right"))
        return fitting if fitting or self._rows else 1

    # ---- building

    def _build(self) -> bulk_pb2.Block:
        columns = [self._column(name) for name in self._wanted.names]
        last = self._parts[-1]
        block = self._encoded(columns, last.sequence + last.count)
        self._clear()
        return block

    def _encoded(self, columns: list[pa.Array], next_sequence: int) -> bulk_pb2.Block:
        sink = pa.BufferOutputStream()
        arrays = columns or [pa.nulls(0, field.type) for field in self._schema]
        with pa.ipc.new_stream(sink, self._schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        return bulk_pb2.Block(
            arrow=sink.getvalue().to_pybytes(), rows=self._rows, next_sequence=next_sequence
        )

    def _column(self, name: str) -> pa.Array:
        if name == "body":
            return self._bodies()
        if name == "sequence":
            return pa.array(self._sequences())
        if name == "raft_index":
            return pa.array(self._repeated([part.batch.index for part in self._parts]))
        if name == "enqueued":
            return _times(self._repeated([part.batch.enqueued_ms for part in self._parts]))
        if name == "deliveries":
            return pa.array(np.concatenate(self._deliveries).astype(np.int32))
        if name == "expires":
            return self._expires()
        if name == "fields":
            return self._struct()
        if name == "properties":
            return self._json()
        if name == "priority":
            return self._optional("priority", pa.int16())
        return self._optional(name, pa.string())

    def _repeated(self, values: Sequence[int]) -> Ints:
        counts = [part.count for part in self._parts]
        return np.repeat(np.array(values, dtype=np.int64), counts)

    def _sequences(self) -> Ints:
        counts = np.array([part.count for part in self._parts], dtype=np.int64)
        firsts = np.array([part.sequence for part in self._parts], dtype=np.int64)
        return np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(self._rows)

    def _bodies(self) -> pa.Array:
        pieces, sizes = [], []
        for part in self._parts:
            starts = part.batch.starts[part.first : part.first + part.count + 1]
            pieces.append(memoryview(part.batch.bodies)[int(starts[0]) : int(starts[-1])])
            sizes.append(np.diff(starts))
        offsets = np.zeros(self._rows + 1, dtype=np.int32)
        np.cumsum(np.concatenate(sizes), out=offsets[1:])
        data = pa.py_buffer(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return pa.BinaryArray.from_buffers(pa.binary(), self._rows, [None, pa.py_buffer(offsets), data])

    def _expires(self) -> pa.Array:
        ttls = np.concatenate([part.batch.ttls(part.first, part.count) for part in self._parts])
        if self._ttl_ms >= 0:
            ttls = np.where(ttls < 0, self._ttl_ms, np.minimum(ttls, self._ttl_ms))
        none = ttls < 0
        if none.all():
            return pa.nulls(self._rows, TIME)
        enqueued = self._repeated([part.batch.enqueued_ms for part in self._parts])
        return _times(np.minimum(enqueued + np.minimum(ttls, MOST_MS), MOST_MS), none)

    def _optional(self, name: str, kind: pa.DataType) -> pa.Array:
        values: list[Any] = []
        is_there = False
        for part in self._parts:
            batch = part.batch
            if not batch.union().HasField(name):
                values += [None] * part.count
                continue
            is_there = True
            if batch.each is not None:
                rows = batch.each[part.first : part.first + part.count]
                values += [getattr(row, name) if row.HasField(name) else None for row in rows]
            else:
                values += [getattr(batch.shared, name)] * part.count
        return pa.array(values, kind) if is_there else pa.nulls(self._rows, kind)

    def _applications(self) -> list[tuple[set[str], Sequence[Any], int]]:
        """For each part: (all names, the application properties of each message, how often each counts)."""
        if self._maps is None:
            self._maps = []
            for part in self._parts:
                batch = part.batch
                names = set(batch.union().application_properties)
                if not names:
                    self._maps.append((names, (), part.count))
                elif batch.each is not None:
                    rows = batch.each[part.first : part.first + part.count]
                    self._maps.append((names, [row.application_properties for row in rows], 1))
                else:
                    assert batch.shared is not None
                    self._maps.append((names, [batch.shared.application_properties], part.count))
        return self._maps

    def _field_values(self) -> list[list[list[Any]]]:
        """For each part and field: the value of each message, in the order of `_applications`; None if no message has
        a value of that kind."""
        if self._found is None:
            self._found = []
            for names, rows, _ in self._applications():
                of_part: list[list[Any]] = []
                for name, kind in self._wanted.fields:
                    found = [row.get(name) for row in rows] if name in names else [None] * len(rows)
                    of_part.append(
                        [
                            getattr(value, kind) if value is not None and value.HasField(kind) else None
                            for value in found
                        ]
                    )
                self._found.append(of_part)
        return self._found

    def _struct(self) -> pa.Array:
        children = []
        maps, found = self._applications(), self._field_values()
        for number, (_, kind) in enumerate(self._wanted.fields):
            values: list[Any] = []
            for (_, rows, times), of_part in zip(maps, found, strict=True):
                values += of_part[number] * times if rows else [None] * times
            children.append(pa.array(values, FIELD_TYPES[kind]))
        return pa.StructArray.from_arrays(children, names=[name for name, _ in self._wanted.fields])

    def _json(self) -> pa.Array:
        """Return the properties that are not in the struct, because of their name or their kind."""
        write = self._writer.write
        texts: list[str | None] = []
        for (names, rows, times), of_part in zip(self._applications(), self._field_values(), strict=True):
            if names <= self._writer.elsewhere.keys():
                in_struct = sum(len(values) - values.count(None) for values in of_part)
                if in_struct == sum(map(len, rows)):
                    texts += [None] * (len(rows) or 1) * times
                    continue
            texts += [write(row) for row in rows] * times
        return pa.array(texts, pa.string())


def _times(milliseconds: Ints, none: Any = None) -> pa.Array:
    return pa.array(milliseconds * 1000, pa.int64(), mask=none).cast(TIME)
