"""The wire form of operations, the same on the peer wire and in the log.

A Raft entry's body is a *command*: a header with group time, a table of where each operation ends, and the
operations' bytes as the sessions' nodes made them. A leader joins operations without looking into them; every member
decodes them once, when it applies the entry; a reader finds the batch of operation k through the table.

    command    = version u8, now_ms u64, machine_version u16, count u16, count x end u32, operation bytes
    operation  = kind u8, flags u8, producer 16 bytes, epoch u32, n u64, queue u64, payload
    enqueue    = first u64, lowest_unconfirmed u64, count u32, size u64, ttl i64, columns u32, ttls u32,
                 columns bytes, ttls (count x i64), MessageBatch bytes
    stage      = batch u64, part 16 bytes, chunk u32, count u32, size u64, ttl i64, producer u16, columns u32, ttls u32,
                 producer bytes, columns bytes, ttls (count x i64), MessageBatch bytes

All numbers are little-endian. Bytes that do not decode raise OperationError: from a client's node that is a defect,
so a member that meets it in the log stops.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fifo import commands as c
from quorum.catalog import commands as cat
from quorum.catalog import lease_times as lt
from quorum.catalog import members as who
from quorum.node.wire import subscription_operations

FORMAT = 1
COMMAND_BYTES = 1 << 20
"""A command holds at most this many bytes, or one operation."""
MAX_OPERATION_BYTES = 28 << 20
"""One operation: a batch of the largest size with some columns, and below what an entry of a group may have."""
MAX_OPERATIONS = 4096
"""Operations of one command: bounds the work of one apply, and fits the table's u16."""

_COMMAND = struct.Struct("<BQHH")
_HEAD = struct.Struct("<BB16sIQQ")
_ENQUEUE = struct.Struct("<QQIQqII")
_STAGE = struct.Struct("<Q16sIIQqHII")
_STAGED = struct.Struct("<QHI")
_PART = struct.Struct("<16sQ")
_TWO_U64 = struct.Struct("<QQ")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_SET_LEASE_TIMES = struct.Struct("<QQq")
_SETTLE = struct.Struct("<QQHI")
_ATTACH = struct.Struct("<QHI")
_CREDIT = struct.Struct("<QB")
_GET = struct.Struct("<IB")
_ADDRESS = struct.Struct("<IQQ")
_REGISTER = struct.Struct("<IQQQQ")
_NODE_DOWN = struct.Struct("<IQ")
_CONFIG = struct.Struct("<BqqBqqBHH")

_TTL = {_ENQUEUE: 4, _STAGE: 5}
"""offset of the single time to live"""
_NUMBERED = 1
_NO_PRODUCER = bytes(16)

OVERFLOWS = ("drop_head", "reject_publish")
QUEUE_MODES = ("default", "lazy")


class OperationError(Exception):
    """Bytes that are not an operation or command of this format."""


# ---- commands: many operations, one Raft entry


def command_parts(operations: Sequence[bytes], now_ms: int, version: int) -> list[bytes]:
    """The body of a Raft entry as parts to be written one after the other."""
    ends = np.cumsum([len(operation) for operation in operations], dtype="<u4")
    head = _COMMAND.pack(FORMAT, now_ms, version, len(operations))
    return [head, ends.tobytes(), *operations]


def command_bytes(count: int, operation_bytes: int) -> int:
    """The size in bytes of a command of `count` operations, which have `operation_bytes` together."""
    return _COMMAND.size + 4 * count + operation_bytes


class Command:
    """A command taken apart: group time, machine version, and its operations as views."""

    __slots__ = ("_ends", "_start", "_view", "count", "now_ms", "version")

    def __init__(self, body: bytes | memoryview) -> None:
        self._view = memoryview(body)
        try:
            form, self.now_ms, self.version, self.count = _COMMAND.unpack_from(self._view)
        except struct.error as error:
            raise OperationError(f"a command of {len(body)} bytes is too short") from error
        if form != FORMAT:
            raise OperationError(f"command format {form}; known: {FORMAT}")
        self._start = _COMMAND.size + 4 * self.count
        if self._start > len(self._view):
            raise OperationError("the table of operations is cut off")
        self._ends = struct.unpack_from(f"<{self.count}I", self._view, _COMMAND.size)
        if self.count and (
            self._ends[-1] != len(self._view) - self._start or list(self._ends) != sorted(self._ends)
        ):
            raise OperationError("the table of operations does not fit the command")

    @property
    def size_bytes(self) -> int:
        return len(self._view)

    def operation(self, number: int) -> memoryview:
        first = self._ends[number - 1] if number else 0
        return self._view[self._start + first : self._start + self._ends[number]]

    def decode(self) -> list[c.Operation]:
        return [decode(self.operation(number), number) for number in range(self.count)]


def batch_of(operation: memoryview) -> memoryview:
    """The MessageBatch bytes of an enqueue or stage operation."""
    _, columns, size, ttls = _layout(operation)
    return operation[columns + size + ttls :]


def count_of(operation: memoryview) -> int:
    """The number of messages in an enqueue or stage operation."""
    return _layout(operation)[0]


def columns_of(operation: memoryview) -> memoryview:
    """The filter-field columns of an enqueue or stage operation."""
    _, columns, size, _ = _layout(operation)
    return operation[columns : columns + size]


def ttls_of(operation: memoryview) -> NDArray[np.int64]:
    """The times to live in ms of an enqueue or stage operation: one of all its messages, or one each; -1 none."""
    _, columns, size, ttls = _layout(operation)
    if ttls:
        start = columns + size
        return np.frombuffer(operation[start : start + ttls], dtype="<i8").astype(np.int64)
    head = _ENQUEUE if operation[0] == _KIND[c.Enqueue] else _STAGE
    ttl: int = head.unpack_from(operation, _HEAD.size)[_TTL[head]]
    return np.array([ttl], dtype=np.int64)


def _layout(operation: memoryview) -> tuple[int, int, int, int]:
    """(messages, where the columns begin, their bytes, the bytes of the TTLs behind them) of what carries messages."""
    kind = operation[0] if len(operation) else 0
    if kind == _KIND[c.Enqueue] and len(operation) >= _HEAD.size + _ENQUEUE.size:
        _, _, count, _, _, columns, ttls = _ENQUEUE.unpack_from(operation, _HEAD.size)
        return count, _HEAD.size + _ENQUEUE.size, columns, ttls
    if kind == _KIND[c.Stage] and len(operation) >= _HEAD.size + _STAGE.size:
        _, _, _, count, _, _, name, columns, ttls = _STAGE.unpack_from(operation, _HEAD.size)
        return count, _HEAD.size + _STAGE.size + name, columns, ttls
    raise OperationError("the operation is no enqueue or stage: it has no messages")


# ---- operations


def encode(command: c.Command | cat.CatalogCommand, origin: c.Origin | None, batch: bytes = b"") -> bytes:
    """One operation. `batch` is the MessageBatch of an Enqueue or Stage, stored as it is."""
    kind = _KIND[type(command)]
    queue = getattr(command, "queue", 0)
    payload = _ENCODERS[type(command)](command)
    if origin is None:
        head = _HEAD.pack(kind, 0, _NO_PRODUCER, 0, 0, queue)
    else:
        head = _HEAD.pack(kind, _NUMBERED, origin.producer, origin.epoch, origin.n, queue)
    return b"".join((head, payload, batch))


def decode(data: memoryview, number: int) -> c.Operation:
    """One operation of a command; its batch is left where it is."""
    try:
        kind, flags, producer, epoch, n, queue = _HEAD.unpack_from(data)
        origin = c.Origin(producer, epoch, n) if flags & _NUMBERED else None
        return c.Operation(number, origin, _DECODERS[kind](data[_HEAD.size :], queue))
    except (struct.error, KeyError, IndexError, UnicodeDecodeError, ValueError) as error:
        raise OperationError(f"operation {number} of {len(data)} bytes does not decode: {error}") from error


def _nothing(_: object) -> bytes:
    return b""


def _enqueue(x: c.Enqueue) -> bytes:
    ttls = np.asarray(x.ttls_ms, dtype="<i8").tobytes() if len(x.ttls_ms) else b""
    head = _ENQUEUE.pack(
        x.first_client_sequence,
        x.lowest_unconfirmed,
        x.count,
        x.size_bytes,
        x.ttl_ms,
        len(x.columns),
        len(ttls),
    )
    return b"".join((head, x.columns, ttls))


def _decode_enqueue(data: memoryview, queue: int) -> c.Enqueue:
    first, lowest, count, size, ttl, columns, ttls = _ENQUEUE.unpack_from(data)
    end = _ENQUEUE.size + columns
    each: Sequence[int] = ()
    if ttls:
        each = np.frombuffer(data[end : end + ttls], dtype="<i8").tolist()
    return c.Enqueue(
        queue, first, lowest, count, size, ttl, each, data[_ENQUEUE.size : end] if columns else b""
    )


def _stage(x: c.Stage) -> bytes:
    name = x.producer.encode()
    ttls = np.asarray(x.ttls_ms, dtype="<i8").tobytes() if len(x.ttls_ms) else b""
    head = _STAGE.pack(
        x.batch,
        _part(x.part),
        x.chunk,
        x.count,
        x.size_bytes,
        x.ttl_ms,
        len(name),
        len(x.columns),
        len(ttls),
    )
    return b"".join((head, name, x.columns, ttls))


def _decode_stage(data: memoryview, queue: int) -> c.Stage:
    batch, part, chunk, count, size, ttl, length, columns, ttls = _STAGE.unpack_from(data)
    producer, rest = _text(data[_STAGE.size :], length)
    if len(rest) < columns + ttls:
        raise ValueError("columns or TTLs are cut off")
    each: Sequence[int] = ()
    if ttls:
        each = np.frombuffer(rest[columns : columns + ttls], dtype="<i8").tolist()
    return c.Stage(
        queue, producer, batch, part, chunk, count, size, ttl, each, rest[:columns] if columns else b""
    )


def _part(part: bytes) -> bytes:
    if len(part) != 16:
        raise ValueError(f"the name of a part has {len(part)} bytes; allowed: 16")
    return part


def _publish_staged(x: c.PublishStaged) -> bytes:
    name = x.producer.encode()
    parts = [_PART.pack(_part(part), count) for part, count in x.parts]
    return b"".join((_STAGED.pack(x.batch, len(name), len(parts)), name, *parts, _U64.pack(x.owner)))


def _decode_publish_staged(data: memoryview, queue: int) -> c.PublishStaged:
    batch, length, count = _STAGED.unpack_from(data)
    producer, rest = _text(data[_STAGED.size :], length)
    end = _PART.size * count
    if len(rest) < end:
        raise ValueError(f"{len(rest)} bytes for {count} parts; wanted: {_PART.size} each")
    parts = tuple(_PART.iter_unpack(rest[:end]))
    return c.PublishStaged(queue, producer, batch, parts, subscription_operations.read_owner(rest[end:]))


def _discard_staged(x: c.DiscardStaged) -> bytes:
    name = x.producer.encode()
    parts = [_part(part) for part in x.parts]
    return b"".join((_STAGED.pack(x.batch, len(name), len(parts)), name, *parts))


def _decode_discard_staged(data: memoryview, queue: int) -> c.DiscardStaged:
    batch, length, count = _STAGED.unpack_from(data)
    producer, rest = _text(data[_STAGED.size :], length)
    if len(rest) != 16 * count:
        raise ValueError(f"{len(rest)} bytes for {count} parts; wanted: 16 each")
    return c.DiscardStaged(
        queue, producer, batch, tuple([bytes(rest[at : at + 16]) for at in range(0, len(rest), 16)])
    )


def _text(data: memoryview, length: int) -> tuple[str, memoryview]:
    if len(data) < length:
        raise ValueError("text is cut off")
    return str(data[:length], "utf-8"), data[length:]


def _settle(x: c.Settle) -> bytes:
    tag = x.consumer_tag.encode()
    ranges = np.asarray(x.tags, dtype="<u8").tobytes()
    return b"".join((_SETTLE.pack(x.attach, x.credit_to, len(tag), len(x.tags)), tag, ranges))


def _settle_fields(data: memoryview) -> tuple[str, int, tuple[tuple[int, int], ...], int, memoryview]:
    attach, credit_to, length, count = _SETTLE.unpack_from(data)
    tag, rest = _text(data[_SETTLE.size :], length)
    flat = struct.unpack_from(f"<{2 * count}Q", rest)
    return tag, attach, tuple(zip(flat[::2], flat[1::2], strict=True)), credit_to, rest[16 * count :]


def _decode_settle(kind: type[c.Settle]) -> Callable[[memoryview, int], c.Settle]:
    def decoder(data: memoryview, queue: int) -> c.Settle:
        tag, attach, tags, credit_to, _ = _settle_fields(data)
        return kind(queue, tag, attach, tags, credit_to)

    return decoder


def _modify(x: c.Modify) -> bytes:
    return _settle(x) + bytes((x.delivery_failed, x.undeliverable_here))


def _decode_modify(data: memoryview, queue: int) -> c.Modify:
    tag, attach, tags, credit_to, rest = _settle_fields(data)
    return c.Modify(queue, tag, attach, tags, credit_to, bool(rest[0]), bool(rest[1]))


def _attach(x: c.Attach) -> bytes:
    tag = x.consumer_tag.encode()
    return b"".join((_ATTACH.pack(x.credit_to, len(tag), len(x.selector)), tag, x.selector))


def _decode_attach(data: memoryview, queue: int) -> c.Attach:
    credit_to, length, selector = _ATTACH.unpack_from(data)
    tag, rest = _text(data[_ATTACH.size :], length)
    return c.Attach(queue, tag, bytes(rest[:selector]), credit_to)


def _credit(x: c.Credit) -> bytes:
    return _CREDIT.pack(x.credit_to, x.drain) + x.consumer_tag.encode()


def _decode_credit(data: memoryview, queue: int) -> c.Credit:
    credit_to, drain = _CREDIT.unpack_from(data)
    return c.Credit(queue, str(data[_CREDIT.size :], "utf-8"), credit_to, bool(drain))


def _cancel(x: c.Cancel) -> bytes:
    return bytes((x.return_held,)) + x.consumer_tag.encode()


def _decode_cancel(data: memoryview, queue: int) -> c.Cancel:
    return c.Cancel(queue, str(data[1:], "utf-8"), bool(data[0]))


def _decode_get(data: memoryview, queue: int) -> c.Get:
    count, settled = _GET.unpack_from(data)
    return c.Get(queue, count, bool(settled))


def _register(x: c.RegisterProducer) -> bytes:
    return _REGISTER.pack(x.address.node, x.address.boot, x.address.session, x.owner, x.heard_ms)


def _decode_register(data: memoryview, queue: int) -> c.RegisterProducer:
    if len(data) == _ADDRESS.size:  # as of version 1
        return c.RegisterProducer(c.Address(*_ADDRESS.unpack(data)))
    node, boot, session, owner, heard_ms = _REGISTER.unpack(data)
    return c.RegisterProducer(c.Address(node, boot, session), owner, heard_ms)


def _decode_close(data: memoryview, queue: int) -> c.CloseSession:
    return c.CloseSession(bool(data[0]) if len(data) else False)  # empty as of version 1


def _remove_policy(x: cat.RemovePolicy) -> bytes:
    return _I64.pack(x.seen) + x.name.encode()


def _decode_remove_policy(data: memoryview, queue: int) -> cat.RemovePolicy:
    (seen,) = _I64.unpack_from(data)
    return cat.RemovePolicy(str(data[_I64.size :], "utf-8"), seen)


def _decode_purge(data: memoryview, queue: int) -> c.Purge:
    return c.Purge(queue, *_U64.unpack(data)) if len(data) else c.Purge(queue)  # empty as of version 1


def _config(x: c.CreateQueue | c.UpdateConfig) -> bytes:
    config = x.config
    name = config.name.encode()
    fields = [field.encode() for field in config.filter_field_names]
    head = _CONFIG.pack(
        config.filter_enabled,
        config.filter_max_in_memory_bytes_per_msg,
        config.max_length,
        OVERFLOWS.index(config.overflow),
        config.message_ttl_ms,
        config.delivery_limit,
        QUEUE_MODES.index(config.queue_mode),
        len(name),
        len(fields),
    )
    return b"".join((head, name, *(struct.pack("<H", len(field)) + field for field in fields)))


def _decode_config(kind: type[c.CreateQueue | c.UpdateConfig]) -> Callable[[memoryview, int], c.Command]:
    def decoder(data: memoryview, queue: int) -> c.Command:
        enabled, max_bytes, max_length, overflow, ttl, limit, mode, length, count = _CONFIG.unpack_from(data)
        name, rest = _text(data[_CONFIG.size :], length)
        fields = []
        for _ in range(count):
            (size,) = struct.unpack_from("<H", rest)
            field, rest = _text(rest[2:], size)
            fields.append(field)
        config = c.QueueConfig(
            name,
            bool(enabled),
            tuple(fields),
            max_bytes,
            max_length,
            OVERFLOWS[overflow],
            ttl,
            limit,
            QUEUE_MODES[mode],
        )
        return kind(queue, config)

    return decoder


_TABLE: tuple[tuple[int, type, Callable[..., bytes], Callable[[memoryview, int], object]], ...] = (
    (1, c.RegisterProducer, _register, _decode_register),
    (2, c.CloseSession, lambda x: bytes((x.is_clean,)), _decode_close),
    (
        3,
        c.NodeDown,
        lambda x: _NODE_DOWN.pack(x.node, x.boot),
        lambda d, q: c.NodeDown(*_NODE_DOWN.unpack(d)),
    ),
    (4, c.Enqueue, _enqueue, _decode_enqueue),
    (5, c.Attach, _attach, _decode_attach),
    (6, c.Credit, _credit, _decode_credit),
    (7, c.Cancel, _cancel, _decode_cancel),
    (8, c.Get, lambda x: _GET.pack(x.count, x.settled), _decode_get),
    (9, c.Settle, _settle, _decode_settle(c.Settle)),
    (10, c.Return, _settle, _decode_settle(c.Return)),
    (11, c.Discard, _settle, _decode_settle(c.Discard)),
    (12, c.Modify, _modify, _decode_modify),
    (13, c.CreateQueue, _config, _decode_config(c.CreateQueue)),
    (14, c.UpdateConfig, _config, _decode_config(c.UpdateConfig)),
    (15, c.DeleteQueue, _nothing, lambda d, q: c.DeleteQueue(q)),
    (16, c.Purge, lambda x: b"" if x.before is None else _U64.pack(x.before), _decode_purge),
    (17, c.Wake, _nothing, lambda d, q: c.Wake()),
    (18, c.SetVersion, lambda x: _U64.pack(x.version), lambda d, q: c.SetVersion(*_U64.unpack(d))),
    (
        19,
        c.Configured,
        lambda x: _TWO_U64.pack(x.revision, x.mark),
        lambda d, q: c.Configured(*_TWO_U64.unpack(d)),
    ),
    *subscription_operations.TABLE,
    (28, c.Stage, _stage, _decode_stage),
    (29, c.PublishStaged, _publish_staged, _decode_publish_staged),
    (30, c.DiscardStaged, _discard_staged, _decode_discard_staged),
    (32, cat.DeclareQueue, cat.encode_declare, lambda d, q: cat.decode_declare(bytes(d))),
    (33, cat.RemoveQueue, lambda x: x.name.encode(), lambda d, q: cat.RemoveQueue(str(d, "utf-8"), q)),
    (34, who.FoundCluster, who.encode_member_command, lambda d, q: who.decode_found(bytes(d))),
    (35, who.MeetMember, who.encode_member_command, lambda d, q: who.decode_meet(bytes(d))),
    (36, who.AddMember, who.encode_member_command, lambda d, q: who.decode_add(bytes(d))),
    (37, who.RemoveMember, who.encode_member_command, lambda d, q: who.decode_remove(bytes(d))),
    (38, who.DrainMember, who.encode_member_command, lambda d, q: who.decode_drain(bytes(d))),
    (39, cat.SetPolicy, cat.encode_set_policy, lambda d, q: cat.decode_set_policy(bytes(d))),
    (
        40,
        cat.RemovePolicy,
        _remove_policy,
        lambda d, q: cat.RemovePolicy(str(d, "utf-8")),
    ),  # read only: version 1
    (42, cat.RemovePolicy, _remove_policy, _decode_remove_policy),
    (41, who.ConfirmMember, who.encode_member_command, lambda d, q: who.decode_confirm(bytes(d))),
    (
        44,
        lt.FoundLeaseTimes,
        lambda x: _TWO_U64.pack(x.lease_ms, x.step_down_ms),
        lambda d, q: lt.FoundLeaseTimes(*_TWO_U64.unpack(d)),
    ),
    (
        45,
        lt.SetLeaseTimes,
        lambda x: _SET_LEASE_TIMES.pack(x.lease_ms, x.step_down_ms, x.seen),
        lambda d, q: lt.SetLeaseTimes(*_SET_LEASE_TIMES.unpack(d)),
    ),
    (
        46,
        lt.SettleLeaseTimes,
        lambda x: _U64.pack(x.revision),
        lambda d, q: lt.SettleLeaseTimes(*_U64.unpack(d)),
    ),
)
_KIND = {kind: number for number, kind, _, _ in _TABLE}
_ENCODERS = {kind: encoder for _, kind, encoder, _ in _TABLE}
_DECODERS: dict[int, Callable[[memoryview, int], c.Command]] = {
    number: decoder  # type: ignore[misc]
    for number, _, _, decoder in _TABLE
}
