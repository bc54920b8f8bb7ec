"""A MessageBatch at the edge of the cluster: checked once when it arrives, cut when only a part of it is sent.

Inside the cluster a batch is bytes, and in quorum.node only this module parses it. It reads sizes and ends, times to
live, and, if the queue keeps filter fields, the fields as columns. `check` does not loop over messages unless they have
properties of their own. The elements are counted on the wire (wire_scan) before a client's batch is parsed.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fifo.commands import MAX_DELAY_MS, MAX_MESSAGE_TTL_MS, Enqueue, Stage, Target
from fifo.frozen_dataclasses import dataclass
from quorum.node.wire.operations import MAX_OPERATION_BYTES
from quorum.node.wire.wire_scan import (
    MAX_UNKNOWN,
    Limit,
    ScanError,
    Shape,
    read_number,
    read_sizes,
    scan,
    shape_of,
)
from quorum.v1 import queue_pb2 as pb
from quorum_selectors import columns
from quorum_selectors.errors import ColumnsError
from quorum_selectors.known_fields import APPLICATION, KeptFields

FieldValue = bool | int | float | str
KeptByQueues = Sequence[tuple[KeptFields | None, int]]
"""What each queue of a message keeps: its filter fields, None for none, and `max_field_bytes`, -1 for no limit."""

MAX_PROPERTIES_BYTES = 64 << 10
"""Bytes of the encoded properties of one message. A member keeps nothing else of a message beside its body."""
MAX_BATCH_PROPERTIES_BYTES = 4 << 20
"""Bytes of the properties of all messages of a batch. 600,000 application properties of 7 bytes take 0.11 s and 73 MB
to parse, here and at each delivery, and the event loop does nothing else in that time."""
MAX_MESSAGE_FIELDS = 1_024
"""Application properties of one message. A batch of many messages with shared properties stores them once, so the bytes
of a batch do not bound what every member keeps for its messages."""
MAX_BATCH_FIELDS = 131_072
"""Application properties of all messages of a batch: 8 for each message of a batch of 16,384, or more for fewer."""
MAX_BATCH_COLUMNS = 4_096
"""Different filter fields of a batch, counted for each of its queues: each is a column, with a bit for every message. A
member takes 2 to 15 us for a column."""
PROPERTIES = Limit(size_bytes=MAX_PROPERTIES_BYTES, total_bytes=MAX_BATCH_PROPERTIES_BYTES, is_opaque=True)
ALL_PROPERTIES = replace(PROPERTIES, size_bytes=MAX_BATCH_PROPERTIES_BYTES)
"""The limit if each message is checked separately."""
FRAME_BYTES = 32 << 20
"""Maximum bytes of a gRPC message: one message of maximum size with its properties. As text, the properties may take
six times as many bytes."""
NO_GROUP = bytes(8)
"""The key of messages without a group."""
MAX_INDEPENDENT = 4_096
"""Maximum messages of an independent batch, and of a batch with a routing key for each message. They may be checked one
by one."""
TARGET_BYTES = 24
"""Maximum bytes in the log of one target of a batch, and of each of its ranges with its range of numbers."""
MAX_STORED_BYTES = MAX_OPERATION_BYTES - (64 << 10)
"""Maximum stored bytes of a batch, columns included. With its head it has to fit into one operation."""
FEW_PROPERTIES_BYTES = 1 << 10
"""Checking so many bytes of properties takes no longer than receiving them."""
_STEP_BYTES = 4
_BODIES = frozenset((pb.MessageBatch.BODIES_FIELD_NUMBER, pb.MessageBatch.BODY_ENDS_FIELD_NUMBER))
_FIRST_TAGS = 4

_HEADER = (("header.durable", "durable"), ("header.priority", "priority"))
_PROPERTIES = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
)
WELL_KNOWN = (*_HEADER, *((f"properties.{name.replace('_', '-')}", name) for name in _PROPERTIES))
"""(field key, name in quorum.v1.Properties)"""


class BatchError(Exception):
    """A batch that is refused. `reason` is a word for programs, the text is for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class TogetherTooLarge(BatchError):
    """Messages that are too many, or too large, only together: a part of them is within the limit."""


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """A checked batch, and what later steps need to know about it. ttl_ms, ttls_ms, priorities and
    due_times_ms and group_keys as in fifo.commands.Enqueue."""

    data: bytes
    count: int
    size_bytes: int
    ttl_ms: int
    ttls_ms: Sequence[int]
    columns: bytes
    priorities: bytes = b""
    due_times_ms: Sequence[int] = ()
    group_keys: bytes = b""

    def command(
        self,
        queue: int,
        first: int,
        lowest_unconfirmed: int,
        columns: bytes | memoryview,
        targets: tuple[Target, ...] = (),
        numbers: tuple[tuple[int, int], ...] = (),
        *,
        independent: bool = False,
        immediate: bool = False,
    ) -> Enqueue:
        """The command that publishes this batch."""
        return Enqueue(
            queue,
            first,
            lowest_unconfirmed,
            self.count,
            self.size_bytes,
            self.ttl_ms,
            self.ttls_ms,
            columns,
            independent,
            targets,
            numbers,
            self.priorities,
            self.due_times_ms,
            self.group_keys,
            immediate,
        )


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """user_id: the only one that a message may have; None: any."""

    max_messages: int
    max_message_bytes: int
    max_batch_bytes: int
    user_id: str | None = None


@lru_cache(maxsize=16)
def _shape(max_messages: int, properties: Limit) -> Shape:
    limits = {
        "MessageBatch.bodies": Limit(size_bytes=FRAME_BYTES),
        "MessageBatch.body_ends": Limit(count=max_messages),
        "MessageBatch.shared_properties": properties,
        "MessageBatch.properties": replace(properties, count=max_messages),
    }
    return shape_of(pb.MessageBatch.DESCRIPTOR, limits)


def _parse(data: bytes, limits: BatchLimits, properties: Limit = PROPERTIES) -> pb.MessageBatch:
    """A batch with as many ends, and properties, as it has messages. Raises BatchError."""
    if len(data) > limits.max_batch_bytes:
        raise TogetherTooLarge(
            "batch_too_large", f"a batch of {len(data)} bytes; at most {limits.max_batch_bytes}"
        )
    try:
        scan(data, _shape(limits.max_messages, properties), 2 * limits.max_messages + MAX_UNKNOWN)
        batch: pb.MessageBatch = pb.MessageBatch.FromString(data)
    except ScanError as error:
        raise BatchError("metadata_too_large" if error.is_size else "bad_batch", str(error)) from error
    except DecodeError as error:
        raise BatchError("bad_batch", "the bytes of `batch` are not a serialized MessageBatch") from error
    count, rows = batch.count, len(batch.properties)
    if not 1 <= count <= limits.max_messages:
        raise BatchError("bad_batch", f"a batch of {count} messages; allowed: 1..{limits.max_messages}")
    if len(batch.body_ends) != count:
        raise BatchError("bad_batch", f"{len(batch.body_ends)} body_ends for {count} messages; give one each")
    if rows and rows != count:
        raise BatchError(
            "bad_batch", f"{rows} properties for {count} messages; give none, shared_properties, or one each"
        )
    if rows and batch.HasField("shared_properties"):
        raise BatchError("bad_batch", "shared_properties and properties exclude each other")
    return batch


def claimed_count(data: bytes) -> int:
    """The number of messages that a batch claims to have, without parsing it; 1 where it claims none."""
    return read_number(data, pb.MessageBatch.COUNT_FIELD_NUMBER) or 1


def check_steps(data: bytes) -> int:
    """The steps that `check` or `read_each` takes for a batch, of about 1 us each: one for 4 bytes besides the bodies
    and their ends; 0 for a few bytes."""
    if len(data) <= FEW_PROPERTIES_BYTES:
        return 0
    return steps_of(len(data) - read_sizes(data, _BODIES, _FIRST_TAGS))


def steps_of(size: int) -> int:
    """The steps of checking so many bytes of properties."""
    return 0 if size <= FEW_PROPERTIES_BYTES else size // _STEP_BYTES


def check(
    data: bytes,
    limits: BatchLimits,
    kept: KeptFields | None,
    max_field_bytes: int,
    *,
    has_priorities: bool = False,
    has_groups: bool = False,
) -> CheckedBatch:
    """Reads a batch as a client sent it. kept: the queue's filter fields, None where it keeps none.

    max_field_bytes: `x-filter-max-in-memory-bytes-per-msg`, -1 for no limit. has_priorities, has_groups: the queue has
    priorities or message groups, so those of the messages are read. Raises BatchError.
    """
    batch = _parse(data, limits)
    sizes = _sizes(batch.body_ends, batch.bodies)
    if sizes.max() > limits.max_message_bytes:
        at = int(np.argmax(sizes))
        raise _too_large(at, int(sizes[at]), limits)
    ttl = -1
    ttls: tuple[int, ...] = ()
    rows: Sequence[pb.Properties] = batch.properties
    if batch.HasField("shared_properties"):
        _check_properties(batch.shared_properties)
        _check_user_id(batch.shared_properties, limits)
        ttl = _ttl(batch.shared_properties)
    elif rows:
        _check_fields(rows)
        for number, row in enumerate(rows):
            _check_properties(row, number)
        if limits.user_id is not None:
            for number, row in enumerate(rows):
                _check_user_id(row, limits, number)
        each = [_ttl(row) for row in rows]
        if each.count(each[0]) == len(each):
            ttl = each[0]
        else:
            ttls = tuple(each)
    encoded = b"" if kept is None else _columns(batch, kept, max_field_bytes)
    priorities = _priorities(batch) if has_priorities else b""
    due_times = _due_times(batch)
    keys = _group_keys(batch) if has_groups else b""
    size = stored_bytes(data, ttls, encoded, (), priorities, due_times, keys)
    if size > MAX_STORED_BYTES:
        raise TogetherTooLarge(
            "batch_too_large",
            f"a batch of {len(data)} bytes and {len(encoded)} bytes of filter fields; "
            f"at most {MAX_STORED_BYTES} together",
        )
    return CheckedBatch(data, batch.count, len(batch.bodies), ttl, ttls, encoded, priorities, due_times, keys)


def check_independent(
    data: bytes,
    limits: BatchLimits,
    kept: KeptFields | None,
    max_field_bytes: int,
    *,
    has_priorities: bool = False,
    has_groups: bool = False,
) -> CheckedBatch:
    """`check` for a batch of independent messages. Raises BatchError also if only some of them are wrong."""
    checked = check(data, limits, kept, max_field_bytes, has_priorities=has_priorities, has_groups=has_groups)
    if checked.count > MAX_INDEPENDENT:
        raise BatchError(
            "bad_batch", f"a batch of {checked.count} independent messages; at most {MAX_INDEPENDENT}"
        )
    return checked


def read_each(data: bytes, limits: BatchLimits) -> StoredBatch:
    """A batch whose messages are to be checked one by one. Raises BatchError if the bytes are no batch of at most
    MAX_INDEPENDENT messages, or what all of them share is wrong. `refused_each` checks a user_id that they share: the
    batch may have been taken before its user lost a right, and only its queues tell that."""
    allowed = min(limits.max_messages, MAX_INDEPENDENT)
    batch = _parse(data, replace(limits, max_messages=allowed), ALL_PROPERTIES)
    if batch.HasField("shared_properties"):
        if batch.shared_properties.ByteSize() > MAX_PROPERTIES_BYTES:
            raise _too_much_metadata("the shared properties", batch.shared_properties)
        _check_properties(batch.shared_properties)
    return StoredBatch(batch)


def refused_each(
    stored: StoredBatch, limits: BatchLimits, kept: Sequence[KeptByQueues]
) -> dict[int, BatchError]:
    """The messages that are wrong by themselves, and why, by their ordinals. kept: for each message, what each of its
    queues keeps; a message without queues is not checked. Raises BatchError if the ends do not fit the bodies, or
    `kept` does not fit the messages."""
    if stored.count != len(kept):
        raise BatchError("bad_batch", f"{len(kept)} routing keys for {stored.count} messages; give one each")
    refused: dict[int, BatchError] = {}
    shared: dict[tuple[KeptFields | None, int], BatchError | None] = {}
    wrong_name = None if stored.shared is None else _wrong_user_id(stored.shared, limits)
    for number, (size, fields) in enumerate(
        zip(_sizes(stored.ends, stored.bodies).tolist(), kept, strict=True)
    ):
        if not fields:
            continue
        try:
            if size > limits.max_message_bytes:
                raise _too_large(number, size, limits)
            if stored.each:
                _check_message(stored.each[number], number, fields, limits)
                continue
        except BatchError as error:
            refused[number] = error
            continue
        if wrong_name is not None:
            refused[number] = wrong_name
            continue
        for each in fields:
            if each not in shared:
                shared[each] = _refused_shared(stored, *each)
            if (why := shared[each]) is not None:
                refused[number] = why
                break
    return refused


def _refused_shared(stored: StoredBatch, kept: KeptFields | None, max_field_bytes: int) -> BatchError | None:
    """Why a queue refuses the fields that all messages share."""
    if stored.shared is None or kept is None:
        return None
    try:
        _check_row(_reader(kept).read(stored.shared), 0, max_field_bytes)
    except BatchError as error:
        return error
    return None


def stored_bytes(
    data: bytes,
    ttls_ms: Sequence[int],
    columns: bytes | memoryview = b"",
    targets: Sequence[Target] = (),
    priorities: bytes | memoryview = b"",
    due_times_ms: Sequence[int] = (),
    group_keys: bytes | memoryview = b"",
) -> int:
    """Maximum bytes in the log of a batch, without its head."""
    own = 8 * (len(ttls_ms) + len(due_times_ms)) + len(columns) + len(priorities) + len(group_keys)
    return len(data) + own + sum(map(target_bytes, targets))


def command_bytes(data: bytes, command: Enqueue | Stage) -> int:
    """`stored_bytes` of a command with its batch."""
    targets: Sequence[Target] = ()
    due_times_ms: Sequence[int] = ()
    if isinstance(command, Enqueue):
        targets, due_times_ms = command.targets, command.due_times_ms
    return stored_bytes(
        data, command.ttls_ms, command.columns, targets, command.priorities, due_times_ms, command.group_keys
    )


def target_bytes(target: Target) -> int:
    return len(target.columns) + TARGET_BYTES * (1 + len(target.ranges))


class QueueColumns:
    """Encodes the filter fields of a batch for one queue after the other."""

    def __init__(self, stored: StoredBatch) -> None:
        self._stored = stored
        self._count = 0
        self._shared: dict[KeptFields, Mapping[str, FieldValue]] = {}

    def of(self, ordinals: Sequence[int], kept: KeptFields) -> bytes:
        """The fields of these messages for a queue. Raises BatchError, before they are encoded, if the queues so far
        have too many together."""
        stored = self._stored
        if stored.each:
            rows = [_reader(kept).read(stored.each[ordinal]) for ordinal in ordinals]
            self._add(len(set().union(*rows)))
            return _encoded_rows(rows)
        row = self._shared.get(kept)
        if row is None:
            row = self._shared[kept] = _reader(kept).read(stored.shared or pb.Properties())
        self._add(len(row))
        return _encoded_shared(row, len(ordinals))

    def _add(self, names: int) -> None:
        self._count += names
        if self._count > MAX_BATCH_COLUMNS:
            raise together(
                self._stored,
                "metadata_too_large",
                f"the queues of a batch keep {self._count} different filter fields, counted for each of them; "
                f"at most {MAX_BATCH_COLUMNS}",
            )


def together(stored: StoredBatch, reason: str, text: str) -> BatchError:
    """Messages that exceed a limit together. Those that share properties are not sent in parts, because each part
    would have a copy of these."""
    return (TogetherTooLarge if stored.shared is None else BatchError)(reason, text)


def _check_message(properties: pb.Properties, number: int, fields: KeptByQueues, limits: BatchLimits) -> None:
    """What `check` looks at in the properties of a message by itself. Raises BatchError."""
    if properties.ByteSize() > MAX_PROPERTIES_BYTES:
        raise _too_much_metadata(f"message {number} of the batch", properties)
    _check_properties(properties, number)
    _check_user_id(properties, limits, number)
    for kept, max_field_bytes in fields:
        if kept is not None and max_field_bytes >= 0:
            _check_row(_reader(kept).read(properties), number, max_field_bytes)


def _too_much_metadata(what: str, properties: pb.Properties) -> BatchError:
    return BatchError(
        "metadata_too_large",
        f"{what}: {properties.ByteSize()} bytes of properties; at most {MAX_PROPERTIES_BYTES}",
    )


def _sizes(body_ends: Sequence[int], bodies: bytes) -> NDArray[np.int64]:
    """Bytes of each body. Raises BatchError where the ends do not fit the bodies."""
    ends = np.array(body_ends, dtype=np.int64)
    if ends[-1] != len(bodies):
        raise BatchError(
            "bad_batch", f"the last of body_ends is {ends[-1]}, the bodies are {len(bodies)} bytes"
        )
    sizes = ends.copy()
    sizes[1:] -= ends[:-1]  # np.diff takes five times as long
    decreasing = sizes < 0
    if decreasing.any():
        at = int(np.argmax(decreasing))
        raise BatchError("bad_batch", f"body_ends decreases at message {at}; ends must not go back")
    return sizes


def _too_large(number: int, size: int, limits: BatchLimits) -> BatchError:
    return BatchError(
        "message_too_large",
        f"message {number} of the batch has {size} bytes; allowed: {limits.max_message_bytes}",
    )


def _check_properties(properties: pb.Properties, number: int | None = None) -> None:
    """number: the message's place in the batch, None for shared properties. The size was checked on the wire."""
    count = len(properties.application_properties)
    if count > MAX_MESSAGE_FIELDS:
        raise BatchError(
            "metadata_too_large",
            f"{_place(number)}: {count} application properties; at most {MAX_MESSAGE_FIELDS} a message",
        )
    if properties.HasField("priority") and properties.priority > 255:
        raise BatchError("bad_batch", f"priority {properties.priority}; allowed: 0..255")
    if properties.HasField("delivery_time") and properties.HasField("delivery_delay_ms"):
        raise BatchError("bad_batch", "delivery_delay_ms and delivery_time exclude each other")


def _check_user_id(properties: pb.Properties, limits: BatchLimits, number: int | None = None) -> None:
    """number: as for `_check_properties`."""
    error = _wrong_user_id(properties, limits, number)
    if error is not None:
        raise error


def _wrong_user_id(
    properties: pb.Properties, limits: BatchLimits, number: int | None = None
) -> BatchError | None:
    user = limits.user_id
    if user is None or not properties.HasField("user_id") or properties.user_id == user:
        return None
    return BatchError(
        "wrong_user_id",
        f"{_place(number)}: user_id {properties.user_id[:40]!r}, and the user that publishes it is {user!r}; "
        f"allowed: {user!r} or none; only an administrator may give another name",
    )


def _place(number: int | None) -> str:
    return "the shared properties" if number is None else f"message {number} of the batch"


def _check_fields(rows: Sequence[pb.Properties]) -> None:
    count = sum(len(row.application_properties) for row in rows)
    if count > MAX_BATCH_FIELDS:
        raise TogetherTooLarge(
            "metadata_too_large",
            f"{count} application properties in a batch; at most {MAX_BATCH_FIELDS}",
        )


def _priorities(batch: pb.MessageBatch) -> bytes:
    """One for all messages if all have the same, else one each; empty if all are 0."""
    rows: Sequence[pb.Properties] = batch.properties or [batch.shared_properties]
    each = bytes([row.priority for row in rows])
    if each.count(each[0]) == len(each):
        each = each[:1]
    return b"" if each == b"\x00" else each


def _due_times(batch: pb.MessageBatch) -> tuple[int, ...]:
    """One for all messages if all have the same, else one each; empty if all are ready at once."""
    rows: Sequence[pb.Properties] = batch.properties or [batch.shared_properties]
    each = [_due_time(row) for row in rows]
    if each.count(each[0]) == len(each):
        return (each[0],) if each[0] else ()
    return tuple(each)


def _due_time(properties: pb.Properties) -> int:
    """A delay below 0, or a time above 0; 0: at once. A time of before 1970 has come."""
    if properties.delivery_delay_ms:
        return -min(properties.delivery_delay_ms, MAX_DELAY_MS)
    return max(min(properties.delivery_time, MAX_DELAY_MS), 0)


def _group_keys(batch: pb.MessageBatch) -> bytes:
    """One for all messages if all have the same group, else one each; empty if none has a group."""
    if not batch.properties:
        key = group_key(batch.shared_properties.group_id)
        return b"" if key == NO_GROUP else key
    names = [row.group_id for row in batch.properties]
    if not any(names):
        return b""
    if names.count(names[0]) == len(names):
        return group_key(names[0])
    return b"".join(map(group_key, names))


@lru_cache(maxsize=4096)
def group_key(name: str) -> bytes:
    """The key of a message group: 8 bytes of a hash of its name, zeros for the empty name, which is no group. It must
    not change from release to release: messages of one group have to have the same key."""
    if not name:
        return NO_GROUP
    found = hashlib.blake2b(name.encode(), digest_size=len(NO_GROUP)).digest()
    return found if found != NO_GROUP else bytes([1, *NO_GROUP[1:]])


def _ttl(properties: pb.Properties) -> int:
    if not properties.HasField("ttl_ms"):
        return -1
    return min(properties.ttl_ms, MAX_MESSAGE_TTL_MS)


# ---- filter fields


class FieldReader:
    """Reads messages' filter fields by field key: the fields that `kept` keeps, all fields if it is None."""

    __slots__ = ("_everything", "_keys", "_well_known")

    def __init__(self, kept: KeptFields | None) -> None:
        self._well_known = tuple((key, name) for key, name in WELL_KNOWN if kept is None or kept.keeps(key))
        self._everything = kept is None or kept.all_application_properties
        self._keys: dict[str, str] = {}  # application property -> field key
        if kept is not None:
            self._keys = {
                key.removeprefix(APPLICATION): key for key in kept.keys if key.startswith(APPLICATION)
            }

    def read(self, properties: pb.Properties) -> dict[str, FieldValue]:
        row: dict[str, FieldValue] = {}
        for key, name in self._well_known:
            if properties.HasField(name):
                row[key] = getattr(properties, name)
        for name, value in properties.application_properties.items():
            if self._everything:
                key = APPLICATION + name
            elif name in self._keys:
                key = self._keys[name]
            else:
                continue
            kind = value.WhichOneof("kind")
            if kind is not None and kind != "binary":
                row[key] = getattr(value, kind)
        return row


@lru_cache(maxsize=1024)
def _reader(kept: KeptFields) -> FieldReader:
    return FieldReader(kept)


def _columns(batch: pb.MessageBatch, kept: KeptFields, max_bytes: int) -> bytes:
    if not batch.properties:
        row = _reader(kept).read(batch.shared_properties)
        _check_row(row, 0, max_bytes)
        return _encoded_shared(row, batch.count)
    read = _reader(kept).read
    rows = [read(properties) for properties in batch.properties]
    if max_bytes >= 0:
        for number, row in enumerate(rows):
            _check_row(row, number, max_bytes)
    return _encoded_rows(rows)


def _encoded_shared(row: Mapping[str, FieldValue], count: int) -> bytes:
    return _encoded(lambda: columns.encode_shared(row, count))


def _encoded_rows(rows: Sequence[Mapping[str, FieldValue]]) -> bytes:
    if sum(map(len, rows)) > MAX_BATCH_COLUMNS and (names := len(set().union(*rows))) > MAX_BATCH_COLUMNS:
        raise TogetherTooLarge(
            "metadata_too_large",
            f"the messages of a batch have {names} different filter fields; at most {MAX_BATCH_COLUMNS}",
        )
    return _encoded(lambda: columns.encode(rows))


def _encoded(encode: Callable[[], bytes]) -> bytes:
    try:
        return encode()
    except ColumnsError as error:
        raise BatchError("metadata_too_large", str(error)) from error


def _check_row(row: Mapping[str, FieldValue], number: int, max_bytes: int) -> None:
    if max_bytes >= 0:
        size = columns.estimate_size(row)
        if size > max_bytes:
            raise BatchError(
                "metadata_too_large",
                f"the filter fields of message {number} take {size} bytes; "
                f"x-filter-max-in-memory-bytes-per-msg allows {max_bytes}",
            )


# ---- parts of a batch


class StoredBatch:
    """A stored MessageBatch taken apart once, to be cut many times."""

    __slots__ = ("_property_ends", "bodies", "count", "each", "ends", "shared", "shared_bytes")

    def __init__(self, data: bytes | memoryview | pb.MessageBatch) -> None:
        batch = data if isinstance(data, pb.MessageBatch) else pb.MessageBatch.FromString(bytes(data))
        self.count: int = batch.count
        self.bodies: bytes = batch.bodies
        self.ends: list[int] = list(batch.body_ends)
        self.each: Sequence[pb.Properties] = batch.properties
        self.shared: pb.Properties | None = (
            batch.shared_properties if batch.HasField("shared_properties") else None
        )
        self.shared_bytes = b"" if self.shared is None else self.shared.SerializeToString(deterministic=True)
        self._property_ends: list[int] | None = None

    def weight(self, ordinal: int) -> int:
        """Bytes of bodies and properties before a message: the cost of sending the messages up to it."""
        size = self.start(ordinal) + ordinal * len(self.shared_bytes)
        if self.each:
            if self._property_ends is None:
                self._property_ends = [0, *accumulate(properties.ByteSize() for properties in self.each)]
            size += self._property_ends[ordinal]
        return size

    def start(self, ordinal: int) -> int:
        """Where a message's body begins in `bodies`."""
        return self.ends[ordinal - 1] if ordinal else 0

    def fitting(self, first: int, count: int, max_bytes: int) -> int:
        """The number of messages from first .. first+count-1 that weigh at most max_bytes together; at least 1."""
        limit = self.weight(first) + max_bytes
        ends = range(first + 1, first + count + 1)
        return max(1, bisect_right(ends, limit, key=self.weight))


class BatchBuilder:
    """Puts messages of stored batches together into one MessageBatch."""

    def __init__(self) -> None:
        self._parts: list[tuple[StoredBatch, int, int]] = []
        self.count = 0
        self.size_bytes = 0

    def add(self, batch: StoredBatch, first: int, count: int) -> None:
        self._parts.append((batch, first, count))
        self.count += count
        self.size_bytes += batch.weight(first + count) - batch.weight(first)

    def build(self) -> bytes:
        bodies, ends, end = [], [], 0
        for batch, first, count in self._parts:
            start = batch.start(first)
            bodies.append(batch.bodies[start : batch.ends[first + count - 1]])
            shift = end - start
            ends += [at + shift for at in batch.ends[first : first + count]]
            end = ends[-1]
        made = pb.MessageBatch(count=self.count, bodies=b"".join(bodies), body_ends=ends)
        shared = self._parts[0][0].shared_bytes
        if any(batch.each for batch, _, _ in self._parts) or any(
            batch.shared_bytes != shared for batch, _, _ in self._parts
        ):
            for batch, first, count in self._parts:
                made.properties.extend(
                    batch.each[first : first + count]
                    if batch.each
                    else [batch.shared or pb.Properties()] * count
                )
        elif self._parts[0][0].shared is not None:
            made.shared_properties.CopyFrom(self._parts[0][0].shared)
        data: bytes = made.SerializeToString(deterministic=True)
        return data


def messages(data: bytes | memoryview) -> Iterator[tuple[bytes, pb.Properties]]:
    """Body and properties of each message."""
    batch = StoredBatch(data)
    start = 0
    for number, end in enumerate(batch.ends):
        properties = batch.each[number] if batch.each else batch.shared or pb.Properties()
        yield batch.bodies[start:end], properties
        start = end
