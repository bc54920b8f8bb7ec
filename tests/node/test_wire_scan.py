"""Elements are counted on the wire, before a message is parsed (quorum/node/wire/wire_scan.py)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum.node.wire import batches, wire_scan
from quorum.node.wire.batches import BatchError, BatchLimits
from quorum.node.wire.wire_scan import DEFAULT_COUNT, Limit, ScanError, read_number, scan, shape_of
from quorum.v1 import bulk_pb2
from quorum.v1 import queue_pb2 as pb
from support.hostile.protobuf import field

MIB = 1 << 20
LIMITS = BatchLimits(16_384, 16 * MIB, 18 * MIB)
DISPOSITIONS = shape_of(pb.SessionRequest.DESCRIPTOR, {"Disposition.tags": Limit(count=10_000)})
PUBLISHES = shape_of(
    pb.PublishRequest.DESCRIPTOR,
    {
        "PublishRequest.messages": Limit(count=16_384),
        "Message.properties": Limit(size_bytes=1_000, total_bytes=10_000, is_opaque=True),
    },
)


class Counted(bytes):
    """Counts how many of its bytes are looked at."""

    looked_at = 0

    def __getitem__(self, place: Any) -> Any:
        self.looked_at += 1
        return super().__getitem__(place)


def refused(data: bytes, shape: wire_scan.Shape, text: str, max_tags: int = 100_000) -> ScanError:
    with pytest.raises(ScanError, match=text) as caught:
        scan(data, shape, max_tags)
    return caught.value


def test_the_walk_stops_at_the_first_element_above_the_limit() -> None:
    data = Counted(field(5, field(4, b"") * (8 * MIB)))
    refused(data, DISPOSITIONS, r"Disposition.tags has 10001 elements or more; allowed: 10000")
    assert data.looked_at < 60_000
    data = Counted(field(2, b"") * (8 * MIB))
    refused(data, PUBLISHES, r"PublishRequest.messages has 16385 elements or more; allowed: 16384")
    assert data.looked_at < 100_000


def test_a_large_field_of_bytes_is_passed_over_in_one_step() -> None:
    data = Counted(field(2, field(1, b"orders") + field(4, bytes(16 * MIB))))
    shape = shape_of(pb.SessionRequest.DESCRIPTOR, {"PublishBatch.batch": Limit(size_bytes=18 * MIB)})
    scan(data, shape)
    assert data.looked_at < 30


def test_a_field_that_nobody_named_has_a_limit_too() -> None:
    shape = shape_of(bulk_pb2.ReadReservedRequest.DESCRIPTOR, {})
    many = bulk_pb2.ReadReservedRequest(columns=bulk_pb2.Columns(names=["name"] * (DEFAULT_COUNT + 1)))
    refused(many.SerializeToString(), shape, "Columns.names has 1001 elements or more; allowed: 1000")
    long = bulk_pb2.ReadReservedRequest(queue="x" * 70_000)
    assert refused(long.SerializeToString(), shape, "queue has 70000 bytes; allowed: 65536").is_size


def test_a_field_that_stands_once_does_not_stand_twice() -> None:
    session = field(1, field(1, bytes(16))) * 300
    refused(session, DISPOSITIONS, "SessionRequest.open has 2 elements or more; allowed: 1")
    refused(b"\x10\x01" * 3_000, shape_of(pb.GetRequest.DESCRIPTOR, {}), "GetRequest.count has 2 elements")


def test_fields_of_nobody_are_counted() -> None:
    refused(b"\xf8\x07\x01" * 2_000, PUBLISHES, "unknown fields has 33 elements or more; allowed: 32")


def test_nested_elements_count_together() -> None:
    one = field(2, field(1, b"body"))
    scan(one * 10_000, PUBLISHES, 20_000)
    refused(one * 10_001, PUBLISHES, "20001 fields or more", 20_000)
    large = field(2, field(2, bytes(900)))
    refused(large * 12, PUBLISHES, "Message.properties has 10800 bytes or more in all; allowed: 10000")


def test_packed_numbers_are_counted() -> None:
    shape = shape_of(pb.MessageBatch.DESCRIPTOR, {"MessageBatch.body_ends": Limit(count=2_000)})
    scan(pb.MessageBatch(body_ends=[1] * 2_000).SerializeToString(), shape)
    refused(pb.MessageBatch(body_ends=[1] * 2_001).SerializeToString(), shape, "body_ends has 8004 bytes")
    done = shape_of(pb.Done.DESCRIPTOR, {"Done.request_ids": Limit(count=2_000)})
    scan(pb.Done(request_ids=[1 << 40] * 2_000).SerializeToString(), done)
    refused(pb.Done(request_ids=[5] * 5_000).SerializeToString(), done, "has 5000 elements or more")


def test_bytes_that_are_no_message_are_told_apart() -> None:
    for data, text in (
        (b"\xff" * 5_000, "more than 5 bytes"),
        (b"\x0b" * 5_000, "wire type 3"),
        (field(2, b"") * 3_000 + b"\x12\x05a", "ends 4 bytes behind"),
        (field(2, b"") * 3_000 + b"\x12", "end within a number"),
        (field(2, b"") * 3_000 + b"\x0d\x00", "end within a field"),
    ):
        assert refused(data, PUBLISHES, text).is_malformed


@given(st.binary(min_size=1, max_size=300), st.integers(0, 200))
def test_whatever_the_bytes_are_a_scan_ends_with_an_answer(tail: bytes, repeats: int) -> None:
    data = field(2, b"a body") * 1_000 + tail * repeats
    with contextlib.suppress(ScanError):
        scan(data, PUBLISHES)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=50), st.booleans())
def test_what_the_library_writes_is_scanned_to_its_end(bodies: list[bytes], padded: bool) -> None:
    request = pb.PublishRequest(queue="orders")
    for body in bodies:
        request.messages.add(body=body, properties=pb.Properties(subject="s" * (len(body) % 7)))
    if padded:
        request.messages.add(body=bytes(6_000))
    scan(request.SerializeToString(), PUBLISHES)


@pytest.mark.parametrize(
    ("data", "reason", "text"),
    [
        (field(5, b"") * (8 * MIB), "bad_batch", "properties has 16385 elements or more; allowed: 16384"),
        (field(3, bytes(4 * 16_385)), "bad_batch", "body_ends has 65540 bytes; allowed: 65536"),
        (field(4, bytes(65_537)), "metadata_too_large", "shared_properties has 65537 bytes; allowed: 65536"),
        (field(5, bytes(65_000)) * 65, "metadata_too_large", "bytes or more in all; allowed: 4194304"),
    ],
)
def test_a_bomb_in_a_batch_is_refused_before_it_is_parsed(data: bytes, reason: str, text: str) -> None:
    bomb = Counted(pb.MessageBatch(count=1).SerializeToString() + data)
    with pytest.raises(BatchError, match=text) as caught:
        batches.check(bomb, LIMITS, None, -1)
    assert caught.value.reason == reason
    assert bomb.looked_at < 100_000


def test_the_count_of_a_refused_batch_is_read_without_a_parse() -> None:
    data = pb.MessageBatch(count=700, bodies=bytes(1_000)).SerializeToString()
    assert batches.claimed_count(data + field(5, b"") * MIB) == 700
    assert batches.claimed_count(b"\xff" * 100) == 1
    assert read_number(pb.GetRequest(queue="q", count=300).SerializeToString(), 2) == 300
