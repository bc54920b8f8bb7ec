"""The limits of requests: bytes of each call's requests, and bytes and elements of each field.

Every field of every request has a limit (node/wire/wire_scan.py). This module has the limits that differ from the
defaults there.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fifo.commands import MAX_NAME_BYTES
from fifo.limits import PRODUCTION
from fifo.staging import PART_BYTES
from quorum.api.security.passwords import MAX_PASSWORD_BYTES
from quorum.api.session.consumers import MAX_RANGES
from quorum.node.wire.batches import FRAME_BYTES, MAX_INDEPENDENT, PROPERTIES, BatchLimits
from quorum.node.wire.wire_scan import DEFAULT_BYTES, Limit, Limits, Shape, shape_of
from quorum_selectors.errors import MAX_SELECTOR_CHARACTERS

REQUEST_BYTES = 1 << 20
"""Maximum bytes of a request that carries no messages."""
BRINGS_MESSAGES = frozenset({"Queue/Session", "Queue/Publish", "Bulk/Stage"})
"""Calls whose requests carry messages; their limit is FRAME_BYTES."""
MAX_TURN = 1_024
"""Dispositions, and credits, of one turn."""
TAGS_A_MESSAGE = 4
"""Tags of one message in a request: the message, its body, its properties, and one more."""


PACKAGE = "quorum.v1"
ADDRESS_BYTES = 300
"""Maximum bytes of a host name with a port."""
SELECTOR_BYTES = 4 * MAX_SELECTOR_CHARACTERS
TEXT_BYTES = {
    **dict.fromkeys(("queue", "subscription", "producer", "consumer_tag"), MAX_NAME_BYTES),
    **dict.fromkeys(("exchange", "routing_key", "routing_keys", "source", "type"), MAX_NAME_BYTES),
    **dict.fromkeys(("name", "id", "incarnation", "replaces", "to", "pattern"), MAX_NAME_BYTES),
    **dict.fromkeys(("key", "names", "prefix", "after"), MAX_NAME_BYTES),
    **dict.fromkeys(("user", "configure", "write", "read"), MAX_NAME_BYTES),
    "password": MAX_PASSWORD_BYTES,
    **dict.fromkeys(("client_address", "peer_address"), ADDRESS_BYTES),
    **dict.fromkeys(("part", "parts", "producer_id"), PART_BYTES),
    **dict.fromkeys(("selector", "ApplicationPropertiesEntry.key", "Field.name"), SELECTOR_BYTES),
    **dict.fromkeys(("Value.text", "Value.binary"), DEFAULT_BYTES),
}
"""Maximum bytes of a field of text or bytes, by Type.field, or by the field's name alone; Type.field has precedence.
Every such field of this project's requests has an entry here or in `limits_of`."""


def texts_of(message: Descriptor, opaque: Limits, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield Type.field of each field of text or bytes in a message, inner messages included. A field that `opaque`
    marks as opaque is not entered."""
    for each in message.fields:
        name = f"{message.name}.{each.name}"
        if each.message_type is not None:
            known = opaque.get(name)
            if each.message_type.full_name not in seen and not (known is not None and known.is_opaque):
                yield from texts_of(each.message_type, opaque, seen | {each.message_type.full_name})
        elif each.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield name


def _text_limit(name: str, known: Limit | None) -> Limit:
    if known is not None and known.size_bytes is not None:
        return known
    size = TEXT_BYTES.get(name, TEXT_BYTES.get(name.rpartition(".")[2]))
    if size is None:
        raise ValueError(f"{name} has no limit; request_limits.TEXT_BYTES has to name one")
    return Limit(None if known is None else known.count, size)


def limits_of(batch: BatchLimits) -> Limits:
    """Return the limits of single fields, by Type.field."""
    return {
        "Disposition.tags": Limit(count=MAX_RANGES),
        "Message.body": Limit(size_bytes=FRAME_BYTES),
        "Message.properties": PROPERTIES,
        "RequestTurn.dispositions": Limit(count=MAX_TURN),
        "RequestTurn.credits": Limit(count=MAX_TURN),
        "PublishBatch.batch": Limit(size_bytes=FRAME_BYTES),
        "PublishBatch.routing_keys": Limit(count=min(batch.max_messages, MAX_INDEPENDENT)),
        "PublishRequest.messages": Limit(count=batch.max_messages),
        "PublishStagedRequest.parts": Limit(count=PRODUCTION.staged_parts),
        "DiscardStagedRequest.parts": Limit(count=PRODUCTION.staged_parts),
        "StageRequest.arrow": Limit(size_bytes=FRAME_BYTES),
    }


def max_bytes(method: str) -> int:
    """Maximum bytes of one request. method: service and method, as in "Queue/Publish"."""
    return FRAME_BYTES if method in BRINGS_MESSAGES else REQUEST_BYTES


def max_tags(batch: BatchLimits) -> int:
    return TAGS_A_MESSAGE * max(batch.max_messages, MAX_RANGES)


def request_shape(request: Descriptor, batch: BatchLimits) -> Shape:
    limits = dict(limits_of(batch))
    if request.file.package == PACKAGE:
        limits |= {name: _text_limit(name, limits.get(name)) for name in texts_of(request, limits)}
    return shape_of(request, limits)
