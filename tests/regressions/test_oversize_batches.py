"""A batch that clients may send, with columns as large as itself, was written where no follower would take it."""

from __future__ import annotations

import pytest

from fifo.commands import Enqueue, Origin
from quorum.node.wire import batches
from quorum.node.wire.operations import MAX_OPERATION_BYTES, encode
from quorum.replication.codec import MAX_BODY_BYTES
from quorum.v1 import queue_pb2 as pb
from quorum_selectors.known_fields import resolve_field_names

LIMITS = batches.BatchLimits(max_messages=16_384, max_message_bytes=16 << 20, max_batch_bytes=18 << 20)
VALUES = (pb.Value(text="t"), pb.Value(integer=1), pb.Value(boolean=True))
KEPT = resolve_field_names(("*",))


def with_columns(body_bytes: int) -> bytes:
    """A batch with 20 MB of columns: 4,096 filter fields, each of three kinds, a bit for each of 13,000 messages."""
    made = pb.MessageBatch(count=13_000, bodies=bytes(body_bytes), body_ends=[0] * 12_999 + [body_bytes])
    for number in range(0, 65_000, 5):
        row = made.properties.add().application_properties
        for each in range(number, number + 5):
            row[f"{each % 4_096}"].CopyFrom(VALUES[each % 3])
    return made.SerializeToString()


def test_a_batch_whose_columns_would_not_fit_beside_it_is_refused() -> None:
    data = with_columns(15 << 20)
    assert len(data) < LIMITS.max_batch_bytes
    assert batches.check(data, LIMITS, None, -1).columns == b""
    with pytest.raises(batches.BatchError, match="of filter fields") as refused:
        batches.check(data, LIMITS, KEPT, -1)
    assert refused.value.reason == "batch_too_large"


def test_the_largest_batch_that_is_taken_fits_into_an_operation_and_an_entry() -> None:
    columns = len(batches.check(with_columns(0), LIMITS, KEPT, -1).columns)
    checked = batches.check(with_columns(int(0.95 * batches.MAX_STORED_BYTES) - columns), LIMITS, KEPT, -1)
    assert len(checked.data) + len(checked.columns) > 0.95 * batches.MAX_STORED_BYTES
    command = Enqueue(1, 1, 1, checked.count, checked.size_bytes, checked.ttl_ms, (), checked.columns)
    assert len(encode(command, Origin(bytes(16), 1, 1), checked.data)) <= MAX_OPERATION_BYTES
    assert MAX_OPERATION_BYTES + (64 << 10) < MAX_BODY_BYTES
