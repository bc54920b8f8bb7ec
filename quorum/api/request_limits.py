"""What a request may be: bytes of each call's messages, and elements of each field.

Every field of every request has a limit (node/wire_scan.py); here are those for which its defaults are not right.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

from fifo.staging import STAGED_PARTS
from quorum.api.session_service import MAX_RANGES
from quorum.node.batches import FRAME_BYTES, PROPERTIES, BatchLimits
from quorum.node.wire_scan import Limit, Limits, Shape, shape_of

REQUEST_BYTES = 1 << 20
"""A request that brings no messages."""
BRINGS_MESSAGES = frozenset({"Queue/Session", "Queue/Publish", "Bulk/Stage"})
"""Calls whose requests may be as large as a gRPC message."""
TAGS_A_MESSAGE = 4
"""Of a message in a request: the message, its body, its properties, and one more."""


def limits_of(batch: BatchLimits) -> Limits:
    """By Type.field."""
    return {
        "Disposition.tags": Limit(count=MAX_RANGES),
        "Message.body": Limit(size_bytes=FRAME_BYTES),
        "Message.properties": PROPERTIES,
        "PublishBatch.batch": Limit(size_bytes=FRAME_BYTES),
        "PublishRequest.messages": Limit(count=batch.max_messages),
        "PublishStagedRequest.parts": Limit(count=STAGED_PARTS),
        "DiscardStagedRequest.parts": Limit(count=STAGED_PARTS),
        "StageRequest.arrow": Limit(size_bytes=FRAME_BYTES),
    }


def max_bytes(method: str) -> int:
    """Of one request of a call, as in "Queue/Publish"."""
    return FRAME_BYTES if method in BRINGS_MESSAGES else REQUEST_BYTES


def max_tags(batch: BatchLimits) -> int:
    return TAGS_A_MESSAGE * max(batch.max_messages, MAX_RANGES)


def request_shape(request: Descriptor, batch: BatchLimits) -> Shape:
    return shape_of(request, limits_of(batch))
