"""The wire form of operations, the same on the peer wire and in the log.

A Raft entry's body is a *command*: a header with group time, a table of where each operation ends, and the
operations' bytes as the sessions' nodes made them. A leader joins operations without looking into them; every member
decodes them once, when it applies the entry; a reader finds the batch of operation k through the table.

    command    = version u8, now_ms u64, machine_version u16, count u16, count x end u32, operation bytes
    operation  = kind u8, flags u8, producer 16 bytes, epoch u32, n u64, queue u64, payload
    flags      = 1 numbered (else producer, epoch and n are 0), 2 the messages of an enqueue are independent, 4 an
                 enqueue has targets, 8 an enqueue or stage has priorities, 16 an enqueue or settlement is part of a
                 transaction, whose number, a u64, comes before the payload then, 32 an enqueue has due times, 64 an
                 enqueue or stage has keys of message groups, 128 the messages of an enqueue are immediate
    enqueue    = first u64, lowest_unconfirmed u64, count u32, size u64, ttl i64, columns u32, ttls u32,
                 columns bytes, ttls (count x i64), [priorities], [due times], [keys], MessageBatch bytes
    priorities = count u32, count x u8 (one for all messages, or one each); there only with their flag
    due times  = count u32, count x i64 (the same); there only with their flag
    keys       = size u32, size / 8 x u64 (the same); there only with their flag
    targets    = in the place of an enqueue's columns, whose queue is 0 then:
                 numbers u32, targets u32, columns u32, numbers x (first u64, count u32),
                 targets x (queue u64, ranges u32, columns u32), ranges of all targets x (ordinal u32, count u32),
                 columns x size u32, columns bytes
                 (a target's `columns` is the number of its columns among them, 2^32-1 for none)
    stage      = batch u64, part 16 bytes, chunk u32, count u32, size u64, ttl i64, producer u16, columns u32, ttls u32,
                 producer bytes, columns bytes, ttls (count x i64), [priorities], [keys], MessageBatch bytes

These two, and those of Credit, Settle and its kin, are packed by hand here; all others as fifo/layouts.py and
quorum/catalog/layouts.py describe them (fifo/records.py), the members' commands as JSON objects.

All numbers are little-endian. Bytes that do not decode raise OperationError: from a client's node that is a defect,
so a member that meets it in the log stops.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fifo import commands as c
from fifo.consumers.filter_fields import StoredFields
from fifo.kinds import NAMED
from fifo.layouts import COMMANDS, CONFIG
from fifo.records import Record
from fifo.versions import BASE
from quorum.catalog import arguments
from quorum.catalog import commands as cat
from quorum.catalog import layouts as catalog
from quorum.catalog import lease_times as lt
from quorum.catalog import members as who

FORMAT = 1
COMMAND_BYTES = 1 << 20
"""A command holds at most this many bytes, or one operation."""
MAX_OPERATION_BYTES = 28 << 20
"""One operation: a batch of the largest size with some columns, and below what an entry of a group may have."""
MAX_OPERATIONS = 4096
"""Operations of one command: bounds the work of one apply, and fits the table's u16."""
MAX_RANGES = 16_384
"""Ranges (`range_count`) of the operations of one command, or one operation: some microseconds each in one apply."""
TARGET_RANGES = 4
"""Ranges that take as long as placing a batch in one of several queues, besides its ranges there."""

_COMMAND = struct.Struct("<BQHH")
_HEAD = struct.Struct("<BB16sIQQ")
_TX = struct.Struct("<Q")
_ENQUEUE = struct.Struct("<QQIQqII")
_STAGE = struct.Struct("<Q16sIIQqHII")
_SETTLE = struct.Struct("<QQHI")
_CREDIT = struct.Struct("<QB")

_TTL = {_ENQUEUE: 4, _STAGE: 5}
"""offset of the single time to live"""
_NUMBERED = 1
_INDEPENDENT = 2
_HAS_TARGETS = 4
_HAS_PRIORITIES = 8
_IN_TRANSACTION = 16
_HAS_DUE_TIMES = 32
_HAS_KEYS = 64
_IMMEDIATE = 128
_HAS_PARTS = _HAS_PRIORITIES | _HAS_DUE_TIMES | _HAS_KEYS
_NO_PARTS = (b"", b"", b"", b"")
_SIZE = struct.Struct("<I")
_NO_COLUMNS = (1 << 32) - 1
_TARGETS = struct.Struct("<III")
_NUMBERS = np.dtype([("first", "<u8"), ("count", "<u4")])
_TARGET = np.dtype([("queue", "<u8"), ("ranges", "<u4"), ("columns", "<u4")])
_RANGE = np.dtype([("ordinal", "<u4"), ("count", "<u4")])
_NO_PRODUCER = bytes(16)


class OperationError(Exception):
    """Bytes that are not an operation or command of this format."""


# ---- commands: many operations, one Raft entry


def command_parts(operations: Sequence[bytes], now_ms: int, version: int) -> list[bytes]:
    """The body of a Raft entry as parts to be written one after the other."""
    head = _COMMAND.pack(FORMAT, now_ms, version, len(operations))
    ends = struct.pack(f"<{len(operations)}I", *accumulate(map(len, operations)))
    return [head, ends, *operations]


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
    return _cut(operation[columns + size + ttls :], operation[1])[3]


def count_of(operation: memoryview) -> int:
    """The number of messages in an enqueue or stage operation."""
    return _layout(operation)[0]


def range_count(operation: bytes | memoryview) -> int:
    """The most ranges of messages that a group takes up for an operation, or refuses one by one, and TARGET_RANGES for
    each target. That is what an enqueue of empty messages costs, which has few bytes. Bytes that do not decode have
    none."""
    kind = operation[0] if len(operation) else 0
    if kind not in _WITH_RANGES:
        return 0
    try:
        if kind != _KIND[c.Enqueue]:
            command = _DECODERS[kind](memoryview(operation)[_HEAD.size :], 0)
            assert isinstance(command, c.Commit | c.Prepare | c.Decide | c.Finish)
            return command.ranges
        start = _payload(operation)
        _, _, count, *_ = _ENQUEUE.unpack_from(operation, start)
        found: int = 0
        if not operation[1] & _IN_TRANSACTION:
            found = count // 2  # every other message may have been accepted before
        if not operation[1] & _HAS_TARGETS:
            return found
        at = start + _ENQUEUE.size
        numbers, targets, _ = _TARGETS.unpack_from(operation, at)
        table = np.frombuffer(operation, _TARGET, targets, at + _TARGETS.size + numbers * _NUMBERS.itemsize)
        found += numbers + int(table["ranges"].sum()) + TARGET_RANGES * targets
        return found
    except (struct.error, ValueError):
        return 0


def columns_of(operation: memoryview, queue: int) -> StoredFields:
    """The filter-field columns of an enqueue or stage operation for this queue, and the ordinals that they are of, no
    ranges for all messages."""
    _, columns, size, _ = _layout(operation)
    found = operation[columns : columns + size]
    if operation[0] != _KIND[c.Enqueue] or not operation[1] & _HAS_TARGETS:
        return found, ()
    table = _TargetTable(found)
    places = np.flatnonzero(table.targets["queue"] == queue)
    if not len(places):
        raise OperationError(f"queue {queue} is no target of the operation")
    place = int(places[0])
    return table.columns(place), table.ranges(place)


def ttls_of(operation: memoryview) -> NDArray[np.int64]:
    """The times to live in ms of an enqueue or stage operation: one of all its messages, or one each; -1 none."""
    _, columns, size, ttls = _layout(operation)
    if ttls:
        start = columns + size
        return np.frombuffer(operation[start : start + ttls], dtype="<i8").astype(np.int64)
    head = _ENQUEUE if operation[0] == _KIND[c.Enqueue] else _STAGE
    ttl: int = head.unpack_from(operation, _payload(operation))[_TTL[head]]
    return np.array([ttl], dtype=np.int64)


def _cut(data: memoryview, flags: int) -> tuple[memoryview, memoryview, memoryview, memoryview]:
    """The priorities, the due times, the keys, and the batch behind them."""
    parts = []
    for flag, width in ((_HAS_PRIORITIES, 1), (_HAS_DUE_TIMES, 8), (_HAS_KEYS, 1)):
        start = end = 0
        if flags & flag:
            (size,) = _SIZE.unpack_from(data)
            start, end = _SIZE.size, _SIZE.size + width * size
            if len(data) < end:
                raise OperationError("the priorities, due times or keys of an operation are cut off")
        parts.append(data[start:end])
        data = data[end:]
    return parts[0], parts[1], parts[2], data


def _layout(operation: memoryview) -> tuple[int, int, int, int]:
    """(messages, where the columns begin, their bytes, the bytes of the TTLs behind them) of what carries messages."""
    kind = operation[0] if len(operation) else 0
    if kind == _KIND[c.Enqueue] and len(operation) >= (start := _payload(operation)) + _ENQUEUE.size:
        _, _, count, _, _, columns, ttls = _ENQUEUE.unpack_from(operation, start)
        return count, start + _ENQUEUE.size, columns, ttls
    if kind == _KIND[c.Stage] and len(operation) >= _HEAD.size + _STAGE.size:
        _, _, _, count, _, _, name, columns, ttls = _STAGE.unpack_from(operation, _HEAD.size)
        return count, _HEAD.size + _STAGE.size + name, columns, ttls
    raise OperationError("the operation is no enqueue or stage: it has no messages")


def _payload(operation: bytes | memoryview) -> int:
    """Where the payload of an operation begins."""
    return _HEAD.size + (_TX.size if len(operation) > 1 and operation[1] & _IN_TRANSACTION else 0)


# ---- operations


def encode(command: c.Command | cat.CatalogCommand, origin: c.Origin | None, batch: bytes = b"") -> bytes:
    """One operation. `batch` is the MessageBatch of an Enqueue or Stage, stored as it is."""
    if type(command) is c.InTransaction:
        data = encode(command.command, origin, batch)
        in_front = bytearray(data[: _HEAD.size])
        in_front[1] |= _IN_TRANSACTION
        return b"".join((in_front, _TX.pack(command.tx), memoryview(data)[_HEAD.size :]))
    kind = _KIND[type(command)]
    queue = getattr(command, "queue", 0)
    payload = _ENCODERS[type(command)](command)
    flags = 0
    if type(command) is c.Enqueue:
        flags = _INDEPENDENT * command.independent | _HAS_TARGETS * bool(command.targets)
        flags |= _IMMEDIATE * command.immediate
    if isinstance(command, c.Enqueue | c.Stage):
        due_times = command.due_times_ms if type(command) is c.Enqueue else ()
        for flag, count, each in (
            (_HAS_PRIORITIES, len(command.priorities), command.priorities),
            (_HAS_DUE_TIMES, len(due_times), np.asarray(due_times, dtype="<i8").tobytes()),
            (_HAS_KEYS, len(command.group_keys), command.group_keys),
        ):
            if count:
                flags |= flag
                payload = b"".join((payload, _SIZE.pack(count), each))
    if origin is None:
        head = _HEAD.pack(kind, flags, _NO_PRODUCER, 0, 0, queue)
    else:
        head = _HEAD.pack(kind, flags | _NUMBERED, origin.producer, origin.epoch, origin.n, queue)
    return b"".join((head, payload, batch))


def decode(data: memoryview, number: int) -> c.Operation:
    """One operation of a command; its batch is left where it is."""
    try:
        kind, flags, producer, epoch, n, queue = _HEAD.unpack_from(data)
        origin = c.Origin(producer, epoch, n) if flags & _NUMBERED else None
        decoder, payload = _DECODERS[kind], data[_payload(data) :]
        command = decoder(payload, queue, flags) if kind in _WITH_MESSAGES else decoder(payload, queue)
        if flags & _IN_TRANSACTION:
            if not isinstance(command, c.Enqueue | c.Settle):
                raise ValueError(f"a {type(command).__name__} in a transaction")
            (tx,) = _TX.unpack_from(data, _HEAD.size)
            command = c.InTransaction(tx, command)
        return c.Operation(number, origin, command)
    except (struct.error, KeyError, IndexError, UnicodeDecodeError, ValueError) as error:
        raise OperationError(f"operation {number} of {len(data)} bytes does not decode: {error}") from error


def _enqueue(x: c.Enqueue) -> bytes:
    columns = _target_table(x) if x.targets else x.columns
    ttls = np.asarray(x.ttls_ms, dtype="<i8").tobytes() if len(x.ttls_ms) else b""
    head = _ENQUEUE.pack(
        x.first_client_sequence,
        x.lowest_unconfirmed,
        x.count,
        x.size_bytes,
        x.ttl_ms,
        len(columns),
        len(ttls),
    )
    return b"".join((head, columns, ttls))


def _target_table(x: c.Enqueue) -> bytes:
    """Each target has columns of its own, also if they are equal to another's, because every member reads them for each
    target: the bytes of an entry limit the work of applying it."""
    columns: list[bytes | memoryview] = []
    heads: list[tuple[int, int, int]] = []
    ranges: list[tuple[int, int]] = []
    for target in x.targets:
        number = _NO_COLUMNS
        if len(target.columns):
            number = len(columns)
            columns.append(target.columns)
        heads.append((target.queue, len(target.ranges), number))
        ranges += target.ranges
    return b"".join(
        (
            _TARGETS.pack(len(x.numbers), len(heads), len(columns)),
            np.array(list(x.numbers), dtype=_NUMBERS).tobytes(),
            np.array(heads, dtype=_TARGET).tobytes(),
            np.array(ranges, dtype=_RANGE).tobytes(),
            np.array([len(each) for each in columns], dtype="<u4").tobytes(),
            *columns,
        )
    )


class _TargetTable:
    """The targets of an enqueue taken apart. ValueError if the bytes are none."""

    def __init__(self, data: memoryview) -> None:
        numbers, targets, columns = _TARGETS.unpack_from(data)
        at = _TARGETS.size
        self.numbers = np.frombuffer(data, _NUMBERS, numbers, at)
        at += self.numbers.nbytes
        self.targets = np.frombuffer(data, _TARGET, targets, at)
        at += self.targets.nbytes
        self._range_ends = np.cumsum(self.targets["ranges"], dtype=np.int64)
        self._ranges = np.frombuffer(data, _RANGE, int(self._range_ends[-1]) if targets else 0, at)
        at += self._ranges.nbytes
        sizes = np.frombuffer(data, "<u4", columns, at)
        at += sizes.nbytes
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._columns = data[at:]
        if len(self._columns) != (int(self._ends[-1]) if columns else 0):
            raise ValueError("the columns of its targets are cut off")

    def ranges(self, place: int) -> tuple[tuple[int, int], ...]:
        end = int(self._range_ends[place])
        return tuple(self._ranges[end - int(self.targets[place]["ranges"]) : end].tolist())

    def columns(self, place: int) -> memoryview:
        number = int(self.targets[place]["columns"])
        if number == _NO_COLUMNS:
            return self._columns[:0]
        start = int(self._ends[number - 1]) if number else 0
        return self._columns[start : int(self._ends[number])]


def _targets(fields: bytes | memoryview) -> tuple[tuple[c.Target, ...], tuple[tuple[int, int], ...]]:
    """The targets and the numbers of an enqueue."""
    table = _TargetTable(memoryview(fields))
    queues = table.targets["queue"].tolist()
    targets = tuple(
        [c.Target(queue, table.ranges(place), table.columns(place)) for place, queue in enumerate(queues)]
    )
    if not targets:
        raise ValueError("it has no target")
    return targets, tuple(table.numbers.tolist())


def _decode_enqueue(data: memoryview, queue: int, flags: int) -> c.Enqueue:
    first, lowest, count, size, ttl, columns, ttls = _ENQUEUE.unpack_from(data)
    end = _ENQUEUE.size + columns
    fields = data[_ENQUEUE.size : end] if columns else b""
    targets: tuple[c.Target, ...] = ()
    numbers: tuple[tuple[int, int], ...] = ()
    if flags & _HAS_TARGETS:
        targets, numbers = _targets(fields)
        fields = b""
    each = _milliseconds(data[end : end + ttls]) if ttls else ()
    priorities, due_times, keys, _ = _cut(data[end + ttls :], flags) if flags & _HAS_PARTS else _NO_PARTS
    return c.Enqueue(
        queue,
        first,
        lowest,
        count,
        size,
        ttl,
        each,
        fields,
        bool(flags & _INDEPENDENT),
        targets,
        numbers,
        priorities,
        _milliseconds(due_times) if due_times else (),
        keys,
        bool(flags & _IMMEDIATE),
    )


def _stage(x: c.Stage) -> bytes:
    name = x.producer.encode()
    ttls = np.asarray(x.ttls_ms, dtype="<i8").tobytes() if len(x.ttls_ms) else b""
    head = _STAGE.pack(
        x.batch,
        *NAMED.numbers(x.part),
        x.chunk,
        x.count,
        x.size_bytes,
        x.ttl_ms,
        len(name),
        len(x.columns),
        len(ttls),
    )
    return b"".join((head, name, x.columns, ttls))


def _decode_stage(data: memoryview, queue: int, flags: int) -> c.Stage:
    batch, part, chunk, count, size, ttl, length, columns, ttls = _STAGE.unpack_from(data)
    producer, rest = _text(data[_STAGE.size :], length)
    end = columns + ttls
    if len(rest) < end:
        raise ValueError("columns or TTLs are cut off")
    each = _milliseconds(rest[columns:end]) if ttls else ()
    fields = rest[:columns] if columns else b""
    priorities, _, keys, _ = _cut(rest[end:], flags) if flags & _HAS_PARTS else _NO_PARTS
    return c.Stage(queue, producer, batch, part, chunk, count, size, ttl, each, fields, priorities, keys)


def _milliseconds(data: bytes | memoryview) -> Sequence[int]:
    found: list[int] = np.frombuffer(data, dtype="<i8").tolist()
    return found


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


def _credit(x: c.Credit) -> bytes:
    return _CREDIT.pack(x.credit_to, x.drain) + x.consumer_tag.encode()


def _decode_credit(data: memoryview, queue: int) -> c.Credit:
    credit_to, drain = _CREDIT.unpack_from(data)
    return c.Credit(queue, str(data[_CREDIT.size :], "utf-8"), credit_to, bool(drain))


_Row = tuple[int, type, Callable[..., bytes], Callable[..., object]]
_DESCRIBED = {record.kind: record for record in (*COMMANDS, *catalog.LEASE_TIMES, catalog.REMOVE_EXPIRED)}


def _described(number: int, kind: type) -> _Row:
    """Packed as its description says."""
    record = _DESCRIBED[kind]
    return number, kind, record.pack, record.unpack


def _configuring(number: int, kind: type[c.CreateQueue | c.UpdateConfig]) -> _Row:
    return number, kind, lambda x: CONFIG.pack(x.config), lambda d, q: kind(q, CONFIG.unpack(d))


def _listed(number: int, record: Record) -> _Row:
    """A JSON list."""
    return number, record.kind, record.dump, lambda d, q: record.load(d)


def _of_members(number: int, kind: type, decode: Callable[[bytes], object]) -> _Row:
    return number, kind, who.encode_member_command, lambda d, q: decode(bytes(d))


_TABLE: tuple[_Row, ...] = (
    _described(1, c.RegisterProducer),
    _described(2, c.CloseSession),
    _described(3, c.NodeDown),
    (4, c.Enqueue, _enqueue, _decode_enqueue),
    _described(5, c.Attach),
    (6, c.Credit, _credit, _decode_credit),
    _described(7, c.Cancel),
    _described(8, c.Get),
    (9, c.Settle, _settle, _decode_settle(c.Settle)),
    (10, c.Return, _settle, _decode_settle(c.Return)),
    (11, c.Discard, _settle, _decode_settle(c.Discard)),
    _described(12, c.Modify),
    _configuring(13, c.CreateQueue),
    _configuring(14, c.UpdateConfig),
    _described(15, c.DeleteQueue),
    _described(16, c.Purge),
    _described(17, c.Wake),
    _described(18, c.SetVersion),
    _described(19, c.Configured),
    _described(20, c.OpenSubscription),
    _described(21, c.Reserve),
    _described(22, c.SettleReserved),
    _described(23, c.KeepSubscription),
    _described(24, c.ReleaseSubscription),
    _described(25, c.DeleteSubscription),
    _described(26, c.Pin),
    _described(27, c.Unpin),
    (28, c.Stage, _stage, _decode_stage),
    _described(29, c.PublishStaged),
    _described(30, c.DiscardStaged),
    _described(47, c.UseQueue),
    _described(48, cat.RemoveExpired),
    _described(53, c.Commit),
    _described(54, c.Rollback),
    _described(55, c.SettleDead),
    _described(56, c.ClaimDead),
    _described(60, c.Prepare),
    _described(61, c.Decide),
    _described(62, c.Finish),
    _described(63, c.Resolve),
    _described(64, c.Finished),
    _listed(32, catalog.DECLARE_QUEUE),
    (33, cat.RemoveQueue, catalog.REMOVE_QUEUE.pack, catalog.REMOVE_QUEUE.unpack),
    _of_members(34, who.BootstrapCluster, who.decode_bootstrap),
    _of_members(35, who.RecordIncarnation, who.decode_incarnation),
    _of_members(36, who.AddMember, who.decode_add),
    _of_members(37, who.RemoveMember, who.decode_remove),
    _of_members(38, who.DrainMember, who.decode_drain),
    _listed(39, catalog.SET_POLICY),
    # 40 is read only: what version 1 wrote
    (40, cat.RemovePolicy, catalog.REMOVE_POLICY.pack, lambda d, q: cat.RemovePolicy(str(d, "utf-8"))),
    (42, cat.RemovePolicy, catalog.REMOVE_POLICY.pack, catalog.REMOVE_POLICY.unpack),
    _of_members(41, who.ConfirmMember, who.decode_confirm),
    _described(44, lt.FoundLeaseTimes),
    _described(45, lt.SetLeaseTimes),
    _described(46, lt.SettleLeaseTimes),
    _listed(49, catalog.DECLARE_EXCHANGE),
    _listed(50, catalog.DELETE_EXCHANGE),
    _listed(51, catalog.BIND),
    _listed(52, catalog.UNBIND),
    _listed(65, catalog.SET_USER),
    _listed(66, catalog.SET_PERMISSIONS),
    _listed(67, catalog.REMOVE_USER),
)
_LISTED = (
    catalog.DECLARE_QUEUE,
    catalog.SET_POLICY,
    catalog.DECLARE_EXCHANGE,
    catalog.DELETE_EXCHANGE,
    catalog.BIND,
    catalog.UNBIND,
    catalog.SET_USER,
    catalog.SET_PERMISSIONS,
    catalog.REMOVE_USER,
)
_RECORDS = _DESCRIBED | {each.kind: each for each in _LISTED}


def needed_version(command: c.Command | cat.CatalogCommand) -> int:
    """The machine version that the cluster has to use for this command; BASE where any will do."""
    if isinstance(command, c.CreateQueue | c.UpdateConfig):
        return CONFIG.needed_version(command.config)
    record = _RECORDS.get(type(command))
    needed = BASE if record is None else record.needed_version(command)
    if isinstance(command, cat.DeclareQueue | cat.SetPolicy):
        needed = max(needed, arguments.needed_version(argument for argument, _ in command.arguments))
    return needed


_KIND = {kind: number for number, kind, _, _ in _TABLE}
_WITH_MESSAGES = (_KIND[c.Enqueue], _KIND[c.Stage])
"""Their decoders also get the flags, which say what the payload has."""
_WITH_RANGES = tuple([_KIND[kind] for kind in (c.Enqueue, c.Commit, c.Prepare, c.Decide, c.Finish)])
_ENCODERS = {kind: encoder for _, kind, encoder, _ in _TABLE}
_DECODERS: dict[int, Callable[..., c.Command]] = {
    number: decoder  # type: ignore[misc]
    for number, _, _, decoder in _TABLE
}
