"""Every field of every request has a limit, named or not (quorum/api/grpc/request_limits.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from quorum.api.grpc import request_limits
from quorum.api.grpc.request_limits import (
    BRINGS_MESSAGES,
    REQUEST_BYTES,
    limits_of,
    max_bytes,
    request_shape,
    texts_of,
)
from quorum.client.session import outbox
from quorum.node.wire.batches import FRAME_BYTES, MAX_BATCH_PROPERTIES_BYTES, BatchLimits
from quorum.node.wire.wire_scan import DEFAULT_BYTES, DEFAULT_COUNT, Field, Limit, ScanError, Shape, scan
from quorum.v1 import admin_pb2, bulk_pb2, queue_pb2
from support.hostile.protobuf import field

BATCH = BatchLimits(16_384, 16 << 20, 18 << 20)
SERVICES = tuple(
    service
    for module in (admin_pb2, bulk_pb2, queue_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
)
METHODS = tuple(method for service in SERVICES for method in service.methods)


def name_of(method: MethodDescriptor) -> str:
    return f"{method.containing_service.name}/{method.name}"


def fields_of(message: Descriptor, found: set[str]) -> Iterator[FieldDescriptor]:
    """Of a message and of those in it."""
    for each in message.fields:
        if each.full_name in found:
            continue
        found.add(each.full_name)
        yield each
        if each.message_type is not None:
            yield from fields_of(each.message_type, found)


def check_limited(message: Descriptor, limited: Mapping[str, Field], *, is_within: bool) -> None:
    """is_within: the bytes of the message itself are limited closely."""
    for each in message.fields:
        name = f"{message.name}.{each.name}"
        limit = limited.get(name)
        assert limit is not None or is_within, f"{name} has no limit"
        if limit is not None:
            most = limits_of(BATCH).get(name, Limit(count=DEFAULT_COUNT if each.is_repeated else 1)).count
            assert limit.count == (most or 1), name
            assert limit.size_bytes <= FRAME_BYTES or limit.inside is not None, name
        if each.message_type is not None:
            within = limit is None or (limit.inside is None and limit.size_bytes <= DEFAULT_BYTES)
            check_limited(each.message_type, limited, is_within=within)


def all_fields(shape: Shape) -> dict[str, Field]:
    """Every field that a walk of this shape checks, by name."""
    found: dict[str, Field] = {}
    for each in shape.fields.values():
        found[each.name] = each
        if each.inside is not None:
            found |= all_fields(each.inside)
    return found


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_every_field_of_a_request_has_a_limit(method: MethodDescriptor) -> None:
    """A new field has one without being named: by itself, or by that of a message around it."""
    limited = all_fields(request_shape(method.input_type, BATCH))
    check_limited(method.input_type, limited, is_within=False)


def test_a_client_sends_no_larger_turn_than_a_session_takes() -> None:
    assert outbox.MAX_TURN <= request_limits.MAX_TURN


def test_every_text_of_a_request_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one has to be given one."""
    for method in METHODS:
        request = method.input_type
        limited = all_fields(request_shape(request, BATCH))
        for name in texts_of(request, limits_of(BATCH)):
            wide = limited[name].size_bytes == DEFAULT_BYTES
            assert not wide or name in ("Value.text", "Value.binary"), name
    monkeypatch.delitem(request_limits.TEXT_BYTES, "consumer_tag")
    with pytest.raises(ValueError, match=r"Attach\.consumer_tag has no limit"):
        request_shape(queue_pb2.SessionRequest.DESCRIPTOR, BATCH)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (queue_pb2.BrowseRequest(queue="q" * 5_000), "BrowseRequest.queue has 5000 bytes; allowed: 255"),
        (
            queue_pb2.SessionRequest(credit=queue_pb2.Credit(consumer_tag="t" * 5_000)),
            "Credit.consumer_tag has 5000 bytes; allowed: 255",
        ),
        (bulk_pb2.StageRequest(producer="p" * 5_000), "StageRequest.producer has 5000 bytes; allowed: 255"),
        (
            admin_pb2.SetPolicyRequest(policy=admin_pb2.Policy(name="p" * 5_000)),
            "Policy.name has 5000 bytes; allowed: 255",
        ),
        (
            queue_pb2.BrowseRequest(selector="x" * 20_000),
            "BrowseRequest.selector has 20000 bytes; allowed: 16384",
        ),
    ],
)
def test_a_name_is_refused_before_it_is_parsed(request_: Message, text: str) -> None:
    with pytest.raises(ScanError, match=text):
        scan(request_.SerializeToString(), request_shape(request_.DESCRIPTOR, BATCH))


def test_every_named_text_is_of_a_field_that_there_is() -> None:
    known = {name for method in METHODS for name in texts_of(method.input_type, {})}
    assert set(request_limits.TEXT_BYTES) <= known | {name.rpartition(".")[2] for name in known}


def test_every_named_limit_is_of_a_field_that_there_is() -> None:
    known = {
        f"{each.containing_type.name}.{each.name}"
        for method in METHODS
        for each in fields_of(method.input_type, set())
    }
    assert set(limits_of(BATCH)) <= known
    assert {name_of(method) for method in METHODS} >= BRINGS_MESSAGES


def test_a_call_that_brings_no_messages_has_a_small_request() -> None:
    assert {max_bytes(name_of(method)) for method in METHODS} == {REQUEST_BYTES, FRAME_BYTES}
    assert max_bytes("Admin/DeclareQueue") == max_bytes("Health/Check") == REQUEST_BYTES


@pytest.mark.parametrize(
    ("request_type", "bomb", "text"),
    [
        (queue_pb2.PublishRequest, field(2, b"") * (1 << 24), "PublishRequest.messages has 16385 elements"),
        (
            queue_pb2.SessionRequest,
            field(5, field(4, b"") * (1 << 24)),
            "Disposition.tags has 10001 elements",
        ),
        (bulk_pb2.PublishStagedRequest, field(4, b"") * (1 << 18), "PublishStagedRequest.parts has 4097"),
        (queue_pb2.PublishBatch, field(7, b"") * 4_097, "PublishBatch.routing_keys has 4097"),
        (
            queue_pb2.PublishRequest,
            field(2, field(2, field(30, b"") * 20_000)) * 100,
            f"Message.properties has .* allowed: {MAX_BATCH_PROPERTIES_BYTES}",
        ),
    ],
)
def test_a_bomb_is_refused(request_type: type, bomb: bytes, text: str) -> None:
    shape = request_shape(request_type.DESCRIPTOR, BATCH)
    with pytest.raises(ScanError, match=text):
        scan(bomb, shape, request_limits.max_tags(BATCH))
