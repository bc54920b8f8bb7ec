"""Records by description (fifo/records.py): the layouts of the log's commands and of records in snapshots."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import pytest

from cases.operation_bytes import HEAD_BYTES, VERSION_2, VERSION_3
from fifo import commands as c
from fifo.codec import Reader, Writer
from fifo.kinds import BYTES, FLAG, I64, OPEN_TEXT, OPTIONAL, TEXT, U32, U64
from fifo.layouts import COMMANDS, CONFIG, SETTLE
from fifo.records import Field, Record
from fifo.versions import BASE
from quorum.catalog import layouts as catalog
from quorum.node.wire import operations as op

NEW = BASE + 1
BY_KIND = {record.kind: record for record in COMMANDS}


@pytest.mark.parametrize(
    ("command", "written", "version"),
    [*[(*each, 2) for each in VERSION_2], *[(*each, 3) for each in VERSION_3]],
    ids=lambda each: type(each).__name__,
)
def test_commands_are_written_and_read_as_their_version_did(
    command: c.Command, written: str, version: int
) -> None:
    assert op.needed_version(command) == version
    data = bytes.fromhex(written)
    assert op.encode(command, None) == data
    decoded = op.decode(memoryview(data), 0).command
    if isinstance(decoded, c.InTransaction):
        assert isinstance(command, c.InTransaction)
        assert decoded.tx == command.tx
        decoded, command = decoded.command, command.command
    if isinstance(decoded, c.Enqueue | c.Stage):
        decoded = replace(
            decoded,
            ttls_ms=tuple(decoded.ttls_ms),
            columns=bytes(decoded.columns),
            priorities=bytes(decoded.priorities),
        )
    if isinstance(decoded, c.Enqueue):
        targets = tuple([replace(each, columns=bytes(each.columns)) for each in decoded.targets])
        decoded = replace(decoded, targets=targets, due_times_ms=tuple(decoded.due_times_ms))
    assert decoded == command


def test_every_kind_of_command_has_an_example() -> None:
    kinds = {kind for _, kind, _, _ in op._TABLE}
    assert kinds | {c.InTransaction} == {type(command) for command, _ in VERSION_2}


@pytest.mark.parametrize("kind", [c.Enqueue, c.Stage, c.Credit, c.Settle, c.Return, c.Discard])
def test_what_is_packed_by_hand_is_packed_as_described(kind: type) -> None:
    record = BY_KIND[kind]
    found = [
        (command, written)
        for command, written in VERSION_2
        if type(command) is kind
        and not getattr(command, "targets", ())
        and not getattr(command, "priorities", b"")
        and not getattr(command, "due_times_ms", ())
        and not getattr(command, "immediate", False)
    ]
    assert found
    for command, written in found:
        data = bytes.fromhex(written)[HEAD_BYTES:]
        assert record.pack(command) == data
        assert record.unpack(memoryview(data), 7) == command


def test_the_heads_that_are_packed_by_hand_have_the_described_fields() -> None:
    for kind, head in (
        (c.Enqueue, op._ENQUEUE),
        (c.Stage, op._STAGE),
        (c.Settle, op._SETTLE),
        (c.Credit, op._CREDIT),
    ):
        assert BY_KIND[kind].parts[0].layout == head.format


def test_all_that_is_packed_by_hand_is_in_these_tests() -> None:
    described = {record.pack for record in COMMANDS}
    by_hand = {kind for _, kind, pack, _ in op._TABLE if kind in BY_KIND and pack not in described}
    assert by_hand == {c.Enqueue, c.Stage, c.Credit, c.Settle, c.Return, c.Discard}


# ---- a field that comes with a later version


@dataclass(frozen=True, slots=True)
class Order:
    queue: int
    name: str
    size: int
    is_urgent: bool = False
    note: str = ""
    limit: int = -1


OLD_FIELDS = (Field("name", TEXT), Field("size", U32))
LATER_FIELDS = (
    Field("is_urgent", FLAG, since=NEW, default=False),
    Field("note", TEXT, since=NEW, default=""),
    Field("limit", I64, since=NEW + 1, default=-1),
)
ORDER = Record(Order, (*OLD_FIELDS, *LATER_FIELDS))
PLAIN, URGENT = Order(7, "nails", 5), Order(7, "nails", 5, True, "soon")
LIMITED = replace(PLAIN, limit=9)


@dataclass(frozen=True, slots=True)
class OldOrder:
    queue: int
    name: str
    size: int


OLD_ORDER = Record(OldOrder, OLD_FIELDS)


def test_a_later_field_is_packed_only_where_it_is_not_at_its_default() -> None:
    assert ORDER.pack(PLAIN) == OLD_ORDER.pack(OldOrder(7, "nails", 5)) == struct.pack("<IH", 5, 5) + b"nails"
    assert ORDER.pack(URGENT) == ORDER.pack(PLAIN) + struct.pack("<BH", 1, 4) + b"soon"
    assert ORDER.pack(LIMITED) == ORDER.pack(PLAIN) + struct.pack("<BHq", 0, 0, 9)


@pytest.mark.parametrize("order", [PLAIN, URGENT, LIMITED])
def test_packed_records_of_all_versions_are_read(order: Order) -> None:
    assert ORDER.unpack(memoryview(ORDER.pack(order)), 7) == order


def test_an_older_build_refuses_a_field_that_it_does_not_know() -> None:
    assert OLD_ORDER.unpack(memoryview(ORDER.pack(PLAIN)), 7) == OldOrder(7, "nails", 5)
    with pytest.raises(ValueError, match="7 bytes behind a OldOrder"):
        OLD_ORDER.unpack(memoryview(ORDER.pack(URGENT)), 7)


def test_a_cut_record_is_refused() -> None:
    data = ORDER.pack(URGENT)
    whole_part = len(ORDER.pack(PLAIN))
    for size in set(range(len(data))) - {whole_part}:
        with pytest.raises((ValueError, struct.error)):
            ORDER.unpack(memoryview(data[:size]), 7)


@pytest.mark.parametrize(("order", "needed"), [(PLAIN, BASE), (URGENT, NEW), (LIMITED, NEW + 1)])
def test_a_record_says_which_version_it_needs(order: Order, needed: int) -> None:
    assert ORDER.needed_version(order) == needed


@pytest.mark.parametrize("version", [1, BASE, NEW, NEW + 1])
def test_a_state_of_a_version_has_the_fields_of_that_version(version: int) -> None:
    record = Record(Config, CONFIG_FIELDS)
    out = Writer(version)
    record.write(out, Config("orders", 5, True))
    found = record.read(Reader(out.data, version))
    assert found == Config("orders", 5, version >= NEW)
    assert len(out.data) == 8 + (version >= NEW)


@dataclass(frozen=True, slots=True)
class Config:
    name: str
    size: int
    is_urgent: bool = False


CONFIG_FIELDS = (*OLD_FIELDS, LATER_FIELDS[0])


def test_a_json_list_ends_before_the_fields_that_it_does_not_need() -> None:
    record = Record(Config, (*CONFIG_FIELDS[:2], Field("is_urgent", U64, since=NEW, default=0)))
    assert record.dump(Config("orders", 5, 0)) == b'["orders",5]'  # type: ignore[arg-type]
    assert record.dump(Config("orders", 5, 1)) == b'["orders",5,1]'  # type: ignore[arg-type]
    assert record.load(b'["orders",5]') == Config("orders", 5, 0)  # type: ignore[arg-type]
    for data in (b'["orders"]', b"{}", b'["orders",5,1,1]', b'["orders",true]', b'[5,"orders"]'):
        with pytest.raises(ValueError):
            record.load(data)


# ---- what cannot be described


@pytest.mark.parametrize(
    "fields",
    [
        (Field("size", U32, since=NEW, default=0), Field("name", TEXT)),
        (Field("name", OPEN_TEXT), Field("size", U32)),
        (Field("name", TEXT), Field("size", OPTIONAL), Field("is_urgent", FLAG)),
        (Field("name", TEXT), Field("size", U32, since=NEW)),
        (Field("name", TEXT), Field("sizes", BYTES)),
        (Field("name", TEXT),),
    ],
    ids=[
        "not in order",
        "behind an open field",
        "behind an optional one",
        "no default",
        "no such field",
        "one lacks",
    ],
)
def test_a_description_that_cannot_be_read_again_is_refused(fields: tuple[Field, ...]) -> None:
    with pytest.raises(AssertionError):
        Record(Config, fields)


def test_every_field_of_a_command_is_described() -> None:
    """Record checks this; here, that every command has a record at all."""
    described = {*BY_KIND, CONFIG.kind} | {catalog.DECLARE_QUEUE.kind, catalog.SET_POLICY.kind}
    for command, _ in VERSION_2:
        kind = type(command)
        if kind.__module__ == c.__name__:
            assert kind in described or kind in (c.CreateQueue, c.UpdateConfig, c.InTransaction), kind
    assert [each.name for each in SETTLE] == ["consumer_tag", "attach", "tags", "credit_to"]
