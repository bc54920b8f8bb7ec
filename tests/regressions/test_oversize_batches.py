"""A batch that clients may send, with columns as large as itself, was written where no follower would take it."""

from __future__ import annotations

import pytest

from fifo.commands import Enqueue, Origin
from quorum.node import batches
from quorum.node.operations import MAX_OPERATION_BYTES, encode
from quorum.replication.codec import MAX_BODY_BYTES
from quorum.v1 import queue_pb2 as pb
from quorum_selectors.wellknown import resolve_field_names

LIMITS = batches.BatchLimits(max_messages=16_384, max_message_bytes=16 << 20, max_batch_bytes=18 << 20)
KEPT = resolve_field_names(("*",))


def with_properties(count: int, size: int) -> bytes:
    made = pb.MessageBatch(count=count, body_ends=[0] * count)
    for number in range(count):
        made.properties.add().application_properties["a"].text = f"{number}".rjust(size, "x")
    return made.SerializeToString()


def test_a_batch_whose_columns_would_not_fit_beside_it_is_refused() -> None:
    data = with_properties(1_000, 17_500)
    assert len(data) < LIMITS.max_batch_bytes
    assert batches.check(data, LIMITS, None, -1).columns == b""
    with pytest.raises(batches.BatchError, match="filter fields") as refused:
        batches.check(data, LIMITS, KEPT, -1)
    assert refused.value.reason == "batch_too_large"


def test_the_largest_batch_that_is_taken_fits_into_an_operation_and_an_entry() -> None:
    checked = batches.check(with_properties(1_000, 14_000), LIMITS, KEPT, -1)
    assert len(checked.data) + len(checked.columns) > 0.95 * batches.MAX_STORED_BYTES
    command = Enqueue(1, 1, 1, checked.count, checked.size_bytes, checked.ttl_ms, (), checked.columns)
    assert len(encode(command, Origin(bytes(16), 1, 1), checked.data)) <= MAX_OPERATION_BYTES
    assert MAX_OPERATION_BYTES + (64 << 10) < MAX_BODY_BYTES
