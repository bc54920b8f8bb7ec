"""The wire form of operations (quorum/node/wire/operations.py): every command survives it, rubbish is refused."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fifo import commands as c
from quorum.node.replica.proposals import Proposals
from quorum.node.wire import operations as op

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
ms = st.integers(-1, 2**53)
tag = st.text(max_size=40)
part = st.binary(min_size=16, max_size=16)
ranges = st.lists(st.tuples(u64, u64), max_size=5).map(tuple)
config_fields: dict[str, st.SearchStrategy[Any]] = {
    "name": tag,
    "filter_enabled": st.booleans(),
    "filter_field_names": st.lists(tag, max_size=4).map(tuple),
    "filter_max_in_memory_bytes_per_msg": ms,
    "max_length": ms,
    "overflow": st.sampled_from(("drop_head", "reject_publish")),
    "message_ttl_ms": ms,
    "delivery_limit": ms,
    "queue_mode": st.sampled_from(("default", "lazy")),
    "single_active_consumer": st.booleans(),
    "consumer_timeout_ms": ms,
    "max_length_bytes": ms,
    "max_consumers": ms,
    "expires_ms": ms,
    "max_priority": ms,
    "delayed_retry_min_ms": ms,
    "delayed_retry_max_ms": ms,
    "message_groups": st.booleans(),
    "dead_letter_strategy": st.sampled_from(c.DEAD_LETTER_STRATEGIES),
    "dead_letter_exchange": tag,
    "dead_letter_routing_key": tag,
}
config = st.builds(c.QueueConfig, **config_fields)
settle_fields = {"queue": u64, "consumer_tag": tag, "attach": u64, "tags": ranges, "credit_to": u64}
commands = st.one_of(
    st.builds(c.RegisterProducer, st.builds(c.Address, u32, u64, u64), u64, u64),
    st.builds(c.CloseSession, st.booleans()),
    st.builds(c.NodeDown, u32, u64),
    st.builds(c.Attach, u64, tag, st.binary(max_size=50), u64, st.integers(-(2**63), 2**63 - 1)),
    st.builds(c.Credit, u64, tag, u64, st.booleans()),
    st.builds(c.Cancel, u64, tag, st.booleans()),
    st.builds(c.Get, u64, u32, st.booleans()),
    st.builds(c.Settle, **settle_fields),
    st.builds(c.Return, **settle_fields),
    st.builds(c.Discard, **settle_fields),
    st.builds(c.Modify, **settle_fields, delivery_failed=st.booleans(), undeliverable_here=st.booleans()),
    st.builds(
        c.OpenSubscription,
        u64,
        tag,
        st.binary(max_size=50),
        st.sampled_from(("earliest", "latest")),
        u64,
        st.sampled_from(("release", "discard", "keep")),
        u64,
        st.none() | u64,
    ),
    st.builds(c.Reserve, u64, tag, u64, u64, u64, u64),
    st.builds(c.SettleReserved, u64, tag, u64, u64),
    st.builds(c.KeepSubscription, u64, tag, u64),
    st.builds(c.ReleaseSubscription, u64, tag, u64, st.none() | u64),
    st.builds(c.DeleteSubscription, u64, tag, st.none() | u64),
    st.builds(c.Pin, u64, u64, u64),
    st.builds(c.Unpin, u64, u64),
    st.builds(
        c.PublishStaged, u64, tag, u64, st.lists(st.tuples(part, u64), max_size=5).map(tuple), u64, u64
    ),
    st.builds(c.DiscardStaged, u64, tag, u64, st.lists(part, max_size=5).map(tuple), st.booleans()),
    st.builds(c.CreateQueue, u64, config),
    st.builds(c.UpdateConfig, u64, config),
    st.builds(c.Configured, u64, u64),
    st.builds(c.DeleteQueue, u64),
    st.builds(c.Purge, u64, st.none() | u64, st.booleans()),
    st.builds(c.ClaimDead, u64, u64, st.binary(max_size=16)),
    st.builds(c.SettleDead, u64, u64, u64, u64, st.booleans(), tag),
    st.builds(c.Wake),
    st.builds(c.SetVersion, u64),
)
origins = st.none() | st.builds(c.Origin, st.binary(min_size=16, max_size=16), u32, u64)


def entry(*operations: bytes) -> bytes:
    return b"".join(op.command_parts(operations, 77, 1))


@pytest.mark.parametrize(
    ("command", "later"),
    [
        (c.OpenSubscription(7, "spark", b"selector", "earliest", 1_000, "keep"), 8),
        (c.Pin(7, 1_000), 8),
        (c.PublishStaged(7, "writer", 3, ((bytes(16), 5),)), 16),
        (c.DiscardStaged(7, "writer", 3, (bytes(16),)), 1),
    ],
)
def test_operations_of_version_1_end_before_later_fields(command: c.Command, later: int) -> None:
    """later: bytes of the later fields."""
    written = op.encode(command, None)[:-later]
    assert op.decode(memoryview(written), 0).command == command


def test_the_strategy_of_configurations_has_every_field() -> None:
    assert set(config_fields) == {each.name for each in fields(c.QueueConfig)}


@given(commands, origins)
def test_every_command_survives_the_wire(command: c.Command, origin: c.Origin | None) -> None:
    [decoded] = op.Command(entry(op.encode(command, origin))).decode()
    assert decoded == c.Operation(0, origin, command)


@given(
    u64,
    u64,
    u64,
    st.lists(ms, min_size=1, max_size=5),
    st.binary(max_size=30),
    st.binary(max_size=30),
    st.binary(max_size=5),
    st.lists(ms, max_size=5),
    st.binary(max_size=9),
)
def test_an_enqueue_survives_and_its_batch_is_found(
    queue: int,
    first: int,
    lowest: int,
    ttls: list[int],
    columns: bytes,
    batch: bytes,
    priorities: bytes,
    due_times: list[int],
    keys: bytes,
) -> None:
    command = c.Enqueue(
        queue,
        first,
        lowest,
        len(ttls),
        len(batch),
        -1,
        tuple(ttls),
        columns,
        priorities=priorities,
        due_times_ms=due_times,
        group_keys=keys,
    )
    origin = c.Origin(bytes(16), 1, 2)
    body = op.Command(entry(op.encode(c.Wake(), None), op.encode(command, origin, batch)))
    decoded = body.decode()[1].command
    assert isinstance(decoded, c.Enqueue)
    assert (decoded.queue, decoded.first_client_sequence, decoded.lowest_unconfirmed) == (
        queue,
        first,
        lowest,
    )
    assert (decoded.count, decoded.size_bytes, tuple(decoded.ttls_ms)) == (len(ttls), len(batch), tuple(ttls))
    assert (bytes(decoded.columns), bytes(decoded.priorities)) == (columns, priorities)
    assert list(decoded.due_times_ms) == due_times
    assert bytes(decoded.group_keys) == keys
    assert bytes(op.batch_of(body.operation(1))) == batch
    assert op.columns_of(body.operation(1), queue) == (columns, ())
    assert op.count_of(body.operation(1)) == len(ttls)


@given(
    st.builds(
        c.Stage,
        queue=u64,
        producer=tag,
        batch=u64,
        part=part,
        chunk=u32,
        count=u32,
        size_bytes=u64,
        ttl_ms=ms,
        ttls_ms=st.lists(ms, max_size=5).map(tuple),
        columns=st.binary(max_size=30),
        priorities=st.binary(max_size=5),
        group_keys=st.binary(max_size=9),
    ),
    st.binary(max_size=30),
)
def test_a_stage_survives_and_its_batch_is_found(command: c.Stage, batch: bytes) -> None:
    origin = c.Origin(bytes(16), 1, 2)
    body = op.Command(entry(op.encode(c.Wake(), None), op.encode(command, origin, batch)))
    decoded = body.decode()[1].command
    assert isinstance(decoded, c.Stage)
    assert (
        replace(
            decoded,
            ttls_ms=tuple(decoded.ttls_ms),
            columns=bytes(decoded.columns),
            priorities=bytes(decoded.priorities),
            group_keys=bytes(decoded.group_keys),
        )
        == command
    )
    assert bytes(op.batch_of(body.operation(1))) == batch
    assert op.columns_of(body.operation(1), command.queue) == (command.columns, ())
    assert op.count_of(body.operation(1)) == command.count


def test_the_columns_of_each_target_are_found() -> None:
    targets = (
        c.Target(7, ((0, 2), (3, 1)), b"columns"),
        c.Target(9, ((1, 2),)),
        c.Target(8, ((2, 1),), b"more"),
    )
    command = c.Enqueue(0, 11, 5, 4, 300, -1, (1, 2, 3, 4), targets=targets, numbers=((11, 2), (15, 2)))
    body = op.Command(entry(op.encode(command, c.Origin(bytes(16), 1, 2), b"batch")))
    operation = body.operation(0)
    for target in targets:
        assert op.columns_of(operation, target.queue) == (target.columns, target.ranges)
    with pytest.raises(op.OperationError, match="queue 5 is no target"):
        op.columns_of(operation, 5)
    assert (op.batch_of(operation), op.count_of(operation)) == (b"batch", 4)
    assert op.ttls_of(operation).tolist() == [1, 2, 3, 4]


def routed(count: int, ranges: int = 1) -> bytes:
    """A batch of `count` messages with numbers that have gaps, for two queues."""
    targets = tuple([c.Target(queue, ((0, 1),) * ranges, b"fields") for queue in (1, 2)])
    numbers = tuple([(2 * ordinal, 1) for ordinal in range(count)])
    return op.encode(c.Enqueue(0, 0, 0, count, 0, targets=targets, numbers=numbers), None, b"batch")


def to_many(queues: int) -> bytes:
    """A message for so many queues."""
    targets = tuple([c.Target(queue, ((0, 1),)) for queue in range(queues)])
    return op.encode(c.Enqueue(0, 1, 1, 1, 0, targets=targets), None, b"batch")


def test_the_ranges_of_an_operation_are_counted_without_decoding_it() -> None:
    assert op.range_count(routed(10, 7)) == 10 // 2 + 10 + 2 * 7 + 2 * op.TARGET_RANGES
    assert op.range_count(op.encode(c.Enqueue(1, 1, 1, 1, 0), None)) == 0
    assert op.range_count(op.encode(c.Enqueue(1, 1, 1, 1_000, 0), None)) == 500
    assert op.range_count(op.encode(c.Wake(), None)) == op.range_count(b"") == 0
    whole = routed(10)
    for cut in range(len(whole)):
        assert 0 <= op.range_count(whole[:cut]) <= op.range_count(whole)


@pytest.mark.parametrize(
    ("operation", "fits"),
    [(routed(1_000), 10), (to_many(1_000), 3), (op.encode(c.Enqueue(1, 1, 1, 8_000, 0), None), 4)],
)
def test_an_entry_holds_a_limited_number_of_ranges_and_one_operation_at_least(
    operation: bytes, fits: int
) -> None:
    proposals = Proposals()
    proposals.add([operation] * (2 * fits + 1) + [routed(op.MAX_RANGES)] * 2)
    found = []
    while proposals.pending:
        found.append(len(proposals.next_entry()[0]))
    assert found == [fits, fits, 1, 1, 1]


def test_targets_with_equal_columns_are_as_long_as_others() -> None:
    """Columns that many targets shared made an entry of few bytes a work of seconds."""
    sizes = [
        len(op.encode(c.Enqueue(0, 1, 1, 2, 2, targets=(c.Target(1, ((0, 1),), one), other)), None))
        for one in (b"columns", b"another")
        for other in [c.Target(2, ((1, 1),), b"columns")]
    ]
    assert sizes[0] == sizes[1]


def test_columns_that_targets_share_are_read() -> None:
    """Earlier builds wrote equal columns once."""
    targets = (c.Target(1, ((0, 1),), b"columns"), c.Target(2, ((1, 1),), b"columns"))
    written = op.encode(c.Enqueue(0, 1, 1, 2, 2, targets=targets), None)
    size = struct.calcsize("<III") + 2 * struct.calcsize("<QII") + 2 * struct.calcsize("<II")
    start = len(written) - size - 8 - 14
    table = written[start : start + size]
    shared = struct.pack("<III", 0, 2, 1) + table[12:40] + struct.pack("<I", 0) + table[44:]
    payload = shared + struct.pack("<I", 7) + b"columns"
    head = op.encode(c.Enqueue(0, 1, 1, 2, 2, columns=payload), None)
    decoded = op.decode(memoryview(head[:1] + b"\x04" + head[2:]), 0).command
    assert isinstance(decoded, c.Enqueue)
    assert [(each.queue, each.ranges, bytes(each.columns)) for each in decoded.targets] == [
        (each.queue, each.ranges, each.columns) for each in targets
    ]


def test_priorities_and_keys_stand_between_the_columns_of_targets_and_the_batch() -> None:
    targets = (c.Target(7, ((0, 2),), b"columns"), c.Target(9, ((1, 1),)))
    command = c.Enqueue(
        0, 1, 1, 2, 2, -1, (5, 6), targets=targets, priorities=b"\x03\x00", group_keys=bytes(8)
    )
    operation = memoryview(op.encode(command, None, b"batch"))
    decoded = op.decode(operation, 0).command
    assert isinstance(decoded, c.Enqueue)
    assert (decoded.priorities, decoded.group_keys) == (b"\x03\x00", bytes(8))
    assert len(decoded.targets) == 2
    assert (op.batch_of(operation), op.columns_of(operation, 7)) == (b"batch", (b"columns", ((0, 2),)))
    assert op.ttls_of(operation).tolist() == [5, 6]


@pytest.mark.parametrize("cut", range(1, 21))
def test_due_times_that_are_cut_off_do_not_decode(cut: int) -> None:
    whole = op.encode(c.Enqueue(7, 1, 1, 2, 2, due_times_ms=(5, -6)), None)
    with pytest.raises(op.OperationError):
        op.decode(memoryview(whole)[:-cut], 0)


@pytest.mark.parametrize("cut", range(1, 19))
def test_priorities_and_keys_that_are_cut_off_do_not_decode(cut: int) -> None:
    whole = op.encode(c.Enqueue(7, 1, 1, 2, 2, priorities=b"\x03\x00", group_keys=bytes(8)), None)
    with pytest.raises(op.OperationError):
        op.decode(memoryview(whole)[:-cut], 0)


def test_targets_whose_bytes_are_cut_off_do_not_decode() -> None:
    columns = (b"some", b"others")
    targets = tuple([c.Target(number, ((number, 1),), each) for number, each in enumerate(columns)])
    whole = op.encode(c.Enqueue(0, 1, 1, 2, 2, targets=targets, numbers=((1, 1), (3, 1))), None)
    size = len(whole) - len(op.encode(c.Enqueue(0, 1, 1, 2, 2), None))
    assert isinstance(op.decode(memoryview(whole), 0).command, c.Enqueue)
    for cut in range(size):
        wrong = op.encode(c.Enqueue(0, 1, 1, 2, 2, columns=whole[-size:][:cut]), None)
        with pytest.raises(op.OperationError):
            op.decode(memoryview(wrong[:1] + b"\x04" + wrong[2:]), 0)


def test_operations_of_version_1_are_read() -> None:
    origin = c.Origin(b"p" * 16, 3, 0)
    address = c.Address(7, 8, 9)
    wire = op.encode(c.RegisterProducer(address, 12345, 678), origin)
    assert op.decode(memoryview(wire[:-16]), 0) == c.Operation(0, origin, c.RegisterProducer(address))
    wire = op.encode(c.CloseSession(is_clean=True), origin)
    assert op.decode(memoryview(wire[:-1]), 0) == c.Operation(0, origin, c.CloseSession())


@pytest.mark.parametrize("name", [b"", bytes(15), bytes(17)])
def test_a_part_is_named_by_16_bytes(name: bytes) -> None:
    for command in (
        c.Stage(1, "p", 1, name, 0, 1, 1),
        c.PublishStaged(1, "p", 1, ((name, 1),)),
        c.DiscardStaged(1, "p", 1, (name,)),
    ):
        with pytest.raises(ValueError, match="allowed: 16"):
            op.encode(command, None)


def test_a_cut_stage_is_refused() -> None:
    whole = op.encode(c.Stage(1, "producer", 1, bytes(16), 0, 2, 1, -1, (5, 6), b"columns"), None)
    for size in range(len(whole)):
        with pytest.raises(op.OperationError):
            op.decode(memoryview(whole[:size]), 0)


def test_a_command_carries_time_and_version() -> None:
    body = op.Command(entry(op.encode(c.Wake(), None)))
    assert (body.now_ms, body.version, body.count) == (77, 1, 1)


@given(st.binary(max_size=200))
def test_rubbish_is_refused_with_one_error(data: bytes) -> None:
    try:
        op.Command(data).decode()
    except op.OperationError:
        pass


@given(commands, st.data())
def test_a_cut_command_is_refused(command: c.Command, data: st.DataObject) -> None:
    whole = entry(op.encode(command, None))
    with pytest.raises(op.OperationError):
        op.Command(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_no_batch_is_found_in_what_is_no_enqueue() -> None:
    with pytest.raises(op.OperationError, match="no enqueue"):
        op.batch_of(memoryview(op.encode(c.Wake(), None)))
