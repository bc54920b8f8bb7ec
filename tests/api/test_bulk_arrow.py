"""Messages as Arrow blocks and back (quorum/api/bulk/arrow_in.py, arrow_out.py, stored_rows.py, json_values.py)."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fifo import commands as c
from fifo.effects import Run
from quorum.api import status
from quorum.api.bulk import arrow_in, arrow_out, json_values
from quorum.api.bulk.columns import NAMES, TEXTS, Wanted, wanted
from quorum.api.bulk.stored_rows import Failures, RowReader
from quorum.api.hub.deliveries import BodyReader
from quorum.log import EntryMissing
from quorum.node.errors import BodyUnreadable
from quorum.node.wire.batches import BatchError, BatchLimits, check
from quorum.node.wire.operations import command_parts, encode
from quorum.v1 import bulk_pb2
from quorum.v1 import queue_pb2 as pb
from quorum_selectors import jms
from quorum_selectors.compiled import compile_expression
from quorum_selectors.known_fields import resolve_field_names

GROUP, QUEUE, NOW_MS = 3, 7, 1_700_000_000_123
LIMITS = BatchLimits(16_384, 16 << 20, 18 << 20)
ORIGIN = c.Origin(bytes(16), 1, 1)


class FakeLog:
    """Entries by index; some cannot be read at first."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.unreadable: set[int] = set()

    def read(self, group: int, index: int) -> bytes:
        if index in self.unreadable:
            raise EntryMissing(f"entry {index}")
        return self.entries[index]

    def add(self, *batches: bytes, now_ms: int = NOW_MS) -> int:
        """An entry of one Enqueue for each batch; its index."""
        operations = []
        for data in batches:
            checked = check(data, LIMITS, None, -1)
            command = c.Enqueue(
                QUEUE, 1, 1, checked.count, checked.size_bytes, checked.ttl_ms, checked.ttls_ms
            )
            operations.append(encode(command, ORIGIN, data))
        index = len(self.entries) + 1
        self.entries[index] = b"\0" + b"".join(command_parts(operations, now_ms, 1))
        return index


def batch(rows: Sequence[tuple[bytes, pb.Properties | None]]) -> bytes:
    made = pb.MessageBatch(count=len(rows), bodies=b"".join(body for body, _ in rows))
    end = 0
    for body, _ in rows:
        end += len(body)
        made.body_ends.append(end)
    if any(properties is not None for _, properties in rows):
        made.properties.extend(properties or pb.Properties() for _, properties in rows)
    data: bytes = made.SerializeToString()
    return data


def properties(application: Mapping[str, Any] | None = None, **known: Any) -> pb.Properties:
    made = pb.Properties(**known)
    for name, value in (application or {}).items():
        target = made.application_properties[name]
        if isinstance(value, bool):
            target.boolean = value
        elif isinstance(value, int):
            target.integer = value
        elif isinstance(value, float):
            target.floating = value
        elif isinstance(value, str):
            target.text = value
        elif value is not None:
            target.binary = value
    return made


def read_blocks(blocks: Sequence[bulk_pb2.Block]) -> list[pa.RecordBatch]:
    found = []
    for block in blocks:
        with pa.ipc.open_stream(block.arrow) as stream:
            (made,) = list(stream)
        made.validate(full=True)
        assert made.num_rows == block.rows
        found.append(made)
    return found


def read(
    log: FakeLog,
    runs: Sequence[Run],
    columns: Wanted | None = None,
    failures: Failures | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """The rows of all blocks."""
    reader = RowReader(BodyReader(log), GROUP)  # type: ignore[arg-type]
    blocks = arrow_out.Blocks(reader, columns or Wanted(NAMES_WITHOUT_FIELDS), **options)
    found: list[bulk_pb2.Block] = []
    for item in [*blocks.feed(runs, failures or Failures()), *blocks.take()]:
        assert not isinstance(item, BodyUnreadable)
        found.append(item)
    return [row for made in read_blocks(found) for row in made.to_pylist()]


NAMES_WITHOUT_FIELDS = tuple(name for name in NAMES if name != "fields")


def at_ms(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=ms)


# ---- out


def test_a_message_without_properties_has_its_place_its_time_and_its_body() -> None:
    log = FakeLog()
    index = log.add(batch([(b"ab", None), (b"", None), (b"c", None)]))
    rows = read(log, [Run(41, 3, index, 0, 0)])
    assert [(row["sequence"], row["body"]) for row in rows] == [(41, b"ab"), (42, b""), (43, b"c")]
    nothing = dict.fromkeys((*TEXTS, "priority", "expires", "properties"))
    assert rows[0] == {
        "sequence": 41, "raft_index": index, "enqueued": at_ms(NOW_MS), "deliveries": 0, "body": b"ab", **nothing
    }  # fmt: skip


def test_a_run_is_cut_out_of_its_batch_and_runs_follow_one_another() -> None:
    log = FakeLog()
    first = log.add(batch([(b"%d" % n, properties(message_id=f"m{n}")) for n in range(10)]))
    second = log.add(batch([(b"x", None)]), batch([(b"y", properties(subject="s"))]), now_ms=NOW_MS + 5)
    runs = [Run(100, 2, first, 0, 7), Run(5, 2, second, 0, 0, one_each=True), Run(1, 1, first, 0, 0)]
    rows = read(log, runs)
    assert [row["sequence"] for row in rows] == [100, 101, 5, 6, 1]
    assert [row["body"] for row in rows] == [b"7", b"8", b"x", b"y", b"0"]
    assert [row["message_id"] for row in rows] == ["m7", "m8", None, None, "m0"]
    assert [row["subject"] for row in rows] == [None, None, None, "s", None]
    assert [row["raft_index"] for row in rows] == [first, first, second, second, first]
    assert [row["enqueued"] for row in rows] == [at_ms(NOW_MS)] * 2 + [at_ms(NOW_MS + 5)] * 2 + [
        at_ms(NOW_MS)
    ]


def test_shared_properties_are_those_of_every_message() -> None:
    log = FakeLog()
    made = pb.MessageBatch(count=3, bodies=b"abc", body_ends=[1, 2, 3])
    made.shared_properties.CopyFrom(properties({"color": "red", "n": 1}, priority=200, ttl_ms=10))
    index = log.add(made.SerializeToString())
    columns = Wanted(("priority", "fields", "properties", "expires"), (("color", "text"),))
    row = {
        "priority": 200,
        "fields": {"color": "red"},
        "properties": '{"n": 1}',
        "expires": at_ms(NOW_MS + 10),
    }
    assert read(log, [Run(1, 2, index, 0, 1)], columns) == [row, row]


def test_every_text_of_a_message_has_a_column_that_is_read_and_staged() -> None:
    """So that an archive keeps it: the encoding says what a body is."""
    texts = [field.name for field in pb.Properties.DESCRIPTOR.fields if field.type == field.TYPE_STRING]
    assert sorted(TEXTS) == sorted(texts)
    given = dict(zip(texts, (f"{name} ü" for name in texts), strict=True))
    log = FakeLog()
    (row,) = read(log, [Run(1, 1, log.add(batch([(b"a", properties(**given))])), 0, 0)])
    assert {name: row[name] for name in TEXTS} == given
    staged = arrow({"body": [b"a"], **{name: [value] for name, value in given.items()}})
    assert list(messages(staged)) == [(b"a", properties(**given))]


def test_a_field_of_another_kind_is_null_and_among_the_other_properties() -> None:
    """Or who keeps what was read instead of the message would keep it without that property."""
    log = FakeLog()
    values: list[Any] = [1, 1.0, True, "1", b"1", None]
    texts = ['{"a": 1}', '{"a": 1.0}', '{"a": true}', '{"a": "1"}', '{"a": {"base64": "MQ=="}}', None]
    index = log.add(batch([(b"", properties({"a": value})) for value in values]))
    shared = pb.MessageBatch(count=2, body_ends=[0, 0])
    shared.shared_properties.CopyFrom(properties({"a": 1}))
    index_of_shared = log.add(shared.SerializeToString())
    runs = [Run(1, 6, index, 0, 0), Run(7, 2, index_of_shared, 0, 0)]
    for kind, place in (("integer", 0), ("floating", 1), ("boolean", 2), ("text", 3)):
        rows = read(log, runs, Wanted(("fields", "properties"), (("a", kind), ("b", kind))))
        assert [row["fields"]["a"] for row in rows] == [
            value if at == place else None for at, value in enumerate(values)
        ] + [1 if kind == "integer" else None] * 2
        assert [row["properties"] for row in rows] == [
            None if at == place else text for at, text in enumerate(texts)
        ] + [None if kind == "integer" else '{"a": 1}'] * 2
        assert {row["fields"]["b"] for row in rows} == {None}


def test_other_properties_are_json_with_nothing_lost() -> None:
    log = FakeLog()
    given_ = {
        "ü": '\u0001"ü',
        "n": -5,
        "d": 1.0,
        "nan": math.nan,
        "inf": -math.inf,
        "t": True,
        "b": b"\xff",
        "z": None,
    }
    index = log.add(batch([(b"", properties(given_))]))
    (row,) = read(log, [Run(1, 1, index, 0, 0)], Wanted(("properties",)))
    assert json.loads(row["properties"]) == {
        "b": {"base64": "/w=="},
        "d": 1.0,
        "inf": {"double": "-Infinity"},
        "n": -5,
        "nan": {"double": "NaN"},
        "t": True,
        "z": None,
        "ü": '\u0001"ü',
    }
    assert list(json.loads(row["properties"])) == sorted(given_)


def test_times_to_live_give_the_shorter_of_the_messages_and_the_queues() -> None:
    log = FakeLog()
    ttls = [None, 5, 50, (1 << 63) - 1]
    index = log.add(batch([(b"", None if ttl is None else properties(ttl_ms=ttl)) for ttl in ttls]))
    runs = [Run(1, 4, index, 0, 0)]
    own = [row["expires"] for row in read(log, runs, Wanted(("expires",)))]
    assert own == [None, at_ms(NOW_MS + 5), at_ms(NOW_MS + 50), at_ms(arrow_out.MOST_MS)]
    with_queue = [row["expires"] for row in read(log, runs, Wanted(("expires",)), message_ttl_ms=20)]
    assert with_queue == [at_ms(NOW_MS + ms) for ms in (20, 5, 20, 20)]


def test_deliveries_are_the_failed_ones_beside_those_of_the_reservation() -> None:
    log = FakeLog()
    index = log.add(batch([(b"", None)] * 6))
    runs = [Run(1, 3, index, 0, 0), Run(10, 3, index, 0, 3)]
    rows = read(log, runs, Wanted(("deliveries",)), Failures(((0, 2), (4, 7)), base=3))
    assert [row["deliveries"] for row in rows] == [5, 3, 3, 3, 10, 3]


def test_columns_are_those_that_were_asked_for_in_their_order() -> None:
    log = FakeLog()
    index = log.add(batch([(b"x", properties({"a": 1}, subject="s"))]))
    assert read(log, [Run(1, 1, index, 0, 0)], Wanted(("body", "sequence"))) == [
        {"body": b"x", "sequence": 1}
    ]
    schema = arrow_out.schema_of(Wanted(NAMES, (("a", "integer"), ("b", "text"))))
    assert schema.names == list(NAMES)
    assert str(schema.field("enqueued").type) == "timestamp[us, tz=UTC]"
    assert str(schema.field("fields").type) == "struct<a: int64, b: string>"


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (bulk_pb2.Columns(names=["sequense"]), "did you mean 'sequence'"),
        (bulk_pb2.Columns(names=["body", "body"]), "column 'body' is requested twice"),
        (bulk_pb2.Columns(names=["fields"]), "without names of fields"),
        (bulk_pb2.Columns(names=["body"], fields=[bulk_pb2.Field(name="a", kind=1)]), "is not requested"),
        (bulk_pb2.Columns(fields=[bulk_pb2.Field(name="a")]), "field 'a' has no kind"),
        (
            bulk_pb2.Columns(fields=[bulk_pb2.Field(name="a", kind=1), bulk_pb2.Field(name="a", kind=2)]),
            "field 'a' is requested twice",
        ),
    ],
)
def test_columns_that_there_are_not_are_refused(request_: bulk_pb2.Columns, problem: str) -> None:
    with pytest.raises(status.StatusError, match=problem):
        wanted(request_)


def test_no_columns_means_all_of_them() -> None:
    assert wanted(bulk_pb2.Columns()).names == NAMES_WITHOUT_FIELDS
    assert wanted(bulk_pb2.Columns(fields=[bulk_pb2.Field(name="a", kind=1)])) == Wanted(
        NAMES, (("a", "text"),)
    )


def sizes(log: FakeLog, runs: Sequence[Run], columns: Wanted) -> list[tuple[int, int]]:
    """(rows, bytes) of each block."""
    reader = RowReader(BodyReader(log), GROUP)  # type: ignore[arg-type]
    blocks = arrow_out.Blocks(reader, columns)
    found = [*blocks.feed(runs, Failures()), *blocks.take()]
    assert all(isinstance(item, bulk_pb2.Block) for item in found)
    return [(item.rows, len(item.arrow)) for item in found if isinstance(item, bulk_pb2.Block)]


def test_blocks_are_bounded_in_rows_and_bytes_and_a_large_message_stands_alone() -> None:
    log = FakeLog()
    small = log.add(batch([(b"", None)] * 16_000))
    runs = [Run(1, 16_000, small, 0, 0)]
    assert [rows for rows, _ in sizes(log, [*runs, *runs], Wanted(("sequence",)))] == [8192, 8192, 8192, 7424]
    large = log.add(
        batch([(bytes(10), None), (bytes(3 << 20), None), (bytes(10), None), (bytes(500_000), None)])
    )
    assert [rows for rows, _ in sizes(log, [Run(1, 4, large, 0, 0)], Wanted(("body",)))] == [1, 1, 2]
    assert [rows for rows, _ in sizes(log, [Run(1, 4, large, 0, 0)], Wanted(("sequence",)))] == [4]
    heavy = log.add(
        batch([(b"", properties({"a": "x" * 65_000 if n % 20 < 15 else "y"})) for n in range(40)])
    )
    assert [rows for rows, _ in sizes(log, [Run(1, 40, heavy, 0, 0)], Wanted(("properties",)))] == [21, 19]
    shared = pb.MessageBatch(count=4_000, body_ends=[0] * 4_000)
    shared.shared_properties.CopyFrom(properties({"a": "x" * 1000}))
    many = log.add(shared.SerializeToString())
    for rows, size in sizes(log, [Run(1, 4_000, many, 0, 0)], Wanted(("properties",))):
        assert rows < 1_100 and size < 1_200_000


def test_what_cannot_be_read_is_said_and_read_when_the_reader_goes_on() -> None:
    log = FakeLog()
    indexes = [log.add(batch([(b"%d" % n, None)])) for n in range(3)]
    runs = [Run(n + 1, 1, index, 0, 0) for n, index in enumerate(indexes)]
    log.unreadable = {indexes[1]}
    blocks = arrow_out.Blocks(RowReader(BodyReader(log), GROUP), Wanted(("body",)))  # type: ignore[arg-type]
    steps = blocks.feed(runs, Failures())
    problem = next(steps)
    assert isinstance(problem, BodyUnreadable) and problem.index == indexes[1]
    assert isinstance(next(steps), BodyUnreadable)
    log.unreadable.clear()
    assert list(steps) == []
    (made,) = read_blocks(list(blocks.take()))
    assert made.column("body").to_pylist() == [b"0", b"1", b"2"]


def test_a_selector_is_judged_on_the_messages_themselves() -> None:
    log = FakeLog()
    index = log.add(
        batch([(b"%d" % n, properties({"n": n}, subject="s" if n < 5 else "t")) for n in range(10)])
    )
    plain = log.add(batch([(b"p", None)] * 2))
    runs = [Run(1, 10, index, 0, 0), Run(11, 2, plain, 0, 0)]
    columns = Wanted(("sequence", "body", "deliveries"))

    def chosen(selector: str, **options: Any) -> list[int]:
        matches = compile_expression(jms.parse(selector))
        rows = read(log, runs, columns, Failures(((6, 1),)), matches=matches, **options)
        assert [row["sequence"] for row in rows if row["deliveries"]] in ([7], [])
        return [row["sequence"] for row in rows]

    assert chosen("n IN ('x') OR JMSType = 's'") == [1, 2, 3, 4, 5]
    assert chosen("n > 2 AND n <> 6 AND n < 9") == [4, 5, 6, 8, 9]
    assert chosen("n IS NULL") == [11, 12]
    assert chosen("n > 2", limit=3) == [4, 5, 6]


def test_no_more_messages_come_than_were_asked_for() -> None:
    log = FakeLog()
    index = log.add(batch([(b"", None)] * 10))
    assert len(read(log, [Run(1, 10, index, 0, 0)] * 3, Wanted(("sequence",)), limit=13)) == 13


# ---- in


def arrow(columns: Mapping[str, Any], schema: pa.Schema | None = None) -> bytes:
    made = pa.RecordBatch.from_pydict(dict(columns), schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as stream:
        stream.write_batch(made)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def messages(data: bytes, max_rows: int = 8192) -> Iterator[tuple[bytes, pb.Properties | None]]:
    for encoded, count in arrow_in.chunks(data, max_rows):
        made = pb.MessageBatch.FromString(encoded)
        assert (made.count, len(made.body_ends)) == (count, count)
        check(encoded, LIMITS, None, -1)
        start = 0
        for row, end in enumerate(made.body_ends):
            yield made.bodies[start:end], made.properties[row] if made.properties else None
            start = end


def test_bodies_alone_become_a_batch_without_properties() -> None:
    assert list(messages(arrow({"body": [b"a", b"", b"ccc"]}))) == [(b"a", None), (b"", None), (b"ccc", None)]
    sliced = pa.RecordBatch.from_pydict({"body": [b"a", b"bb", b"ccc", b"d"]}).slice(1, 2)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sliced.schema) as stream:
        stream.write_batch(sliced)
        stream.write_batch(sliced.slice(0, 0))
        stream.write_batch(sliced)
    assert [body for body, _ in messages(sink.getvalue().to_pybytes())] == [b"bb", b"ccc"] * 2


def test_a_block_becomes_chunks_of_bounded_size() -> None:
    counts = [count for _, count in arrow_in.chunks(arrow({"body": [b""] * 20_000}))]
    assert counts == [8192, 8192, 3616]
    assert [count for _, count in arrow_in.chunks(arrow({"body": [b""] * 10}), 4)] == [4, 4, 2]
    large = [bytes(600_000), bytes(600_000), bytes(2 << 20), bytes(10), bytes(20)]
    assert [count for _, count in arrow_in.chunks(arrow({"body": large}))] == [1, 1, 1, 2]
    wide = {"body": [b""] * 4, "subject": ["x" * 400_000] * 4}
    assert [count for _, count in arrow_in.chunks(arrow(wide))] == [2, 2]


def test_types_that_mean_the_same_are_taken() -> None:
    narrow = pa.struct([("f", pa.float32()), ("i", pa.int8()), ("n", pa.null())])
    columns = {
        "body": pa.array(["text", "ü"], pa.large_string()),
        "subject": pa.array(["a", None]).dictionary_encode(),
        "priority": pa.array([9, None], pa.uint8()),
        "message_id": pa.nulls(2),
        "fields": pa.array([{"f": 1.5, "i": 3, "n": None}, None], narrow),
    }
    first, second = messages(arrow(columns))
    assert first == (b"text", properties({"f": 1.5, "i": 3}, subject="a", priority=9))
    assert second == ("ü".encode(), pb.Properties())


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"boddy": [b""]}, "no column 'boddy'; did you mean 'body'"),
        ({"body": [b""], "queue": ["q"]}, "no column 'queue'.*allowed: body, message_id"),
        ({"subject": ["x"]}, "there is no column 'body'"),
        ({"body": [b"", None]}, "'body' is NULL in row 1"),
        ({"body": [1]}, "'body' is int64"),
        ({"body": [b""], "subject": [1]}, "'subject' is int64; allowed: string"),
        ({"body": [b"", b""], "priority": [1, 256]}, "'priority' is 256 in row 1; allowed: 0..255"),
        ({"body": [b""], "priority": ["1"]}, "'priority' is string"),
        ({"body": [b""], "ttl_ms": [-1]}, "'ttl_ms' is -1 in row 0"),
        ({"body": [b""], "fields": ["x"]}, "'fields' is string; allowed: a struct"),
        ({"body": [b""], "fields": [{"a": [1]}]}, "'fields' has 'a' as list"),
        ({"body": [b""], "properties": ["[1]"]}, "row 0: it is no JSON object"),
        ({"body": [b""], "properties": ["{"]}, "'properties' in row 0: '{' is no JSON object: Expecting"),
        ({"body": [b""], "properties": [""]}, "'properties' in row 0: '' is no JSON object"),
        ({"body": [b""], "properties": ["[" * 100_000]}, "'properties' in row 0"),
        ({"body": [b""], "properties": ['{"a": [1]}']}, "'a' is a list; allowed: text"),
        ({"body": [b""], "properties": ['{"a": {"base64": "?"}}']}, "bad base64"),
        ({"body": [b""], "properties": ['{"a": {"double": []}}']}, "the property 'a' is an object; allowed"),
        ({"body": [b""], "properties": ['{"a": {"x": 1}}']}, "'a' is an object"),
        ({"body": [b""], "properties": ['{"a": 9223372036854775808}']}, "does not fit 64 bits"),
        ({"body": [b""], "properties": ['{"a": NaN}']}, "NaN is no JSON"),
        ({"body": [b""], "properties": ['{"a": 1e999}']}, "too large for a double"),
        ({"body": [b""], "fields": [{"a": 1}], "properties": ['{"a": 1}']}, "'a' is given twice"),
    ],
)
def test_bad_blocks_are_refused_with_what_is_wrong(columns: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(status.StatusError, match=problem):
        list(arrow_in.chunks(arrow(columns)))


@pytest.mark.parametrize("name", ["subject", "fields"])
def test_a_text_that_is_not_utf_8_is_refused_with_its_column(name: str) -> None:
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    column = text if name == "subject" else pa.StructArray.from_arrays([text], names=["a"])
    with pytest.raises(status.StatusError, match=f"the column '{name}' is not valid: .*UTF8"):
        list(arrow_in.chunks(arrow({"body": [b""], name: column})))


def test_a_chunk_has_no_more_names_of_properties_than_a_queue_keeps() -> None:
    """Rows may have properties of their own: together they have more names than a batch may have filter fields."""
    texts = [json.dumps({f"{row}-{number}": 1 for number in range(1_000)}) for row in range(9)]
    made = list(arrow_in.chunks(arrow({"body": [b""] * 9, "properties": texts})))
    assert [count for _, count in made] == [4, 4, 1]
    assert all(check(data, LIMITS, resolve_field_names(["*"]), -1).count == count for data, count in made)


def test_a_column_that_is_there_twice_is_refused() -> None:
    made = pa.RecordBatch.from_arrays([pa.array([b""]), pa.array([b""])], names=["body", "body"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as stream:
        stream.write_batch(made)
    with pytest.raises(status.StatusError, match="'body' appears twice"):
        list(arrow_in.chunks(sink.getvalue().to_pybytes()))


def stream_of(columns: Mapping[str, pa.Array], compression: str | None = None) -> bytes:
    made = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, made.schema, options=options) as stream:
        stream.write_batch(made)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", [pa.binary(), pa.dictionary(pa.int8(), pa.binary())])
def test_a_compressed_block_is_refused_before_it_is_unpacked(compression: str, kind: pa.DataType) -> None:
    column = pa.array([bytes(1 << 20)] * 4).cast(kind)
    assert [count for _, count in arrow_in.chunks(stream_of({"body": column}))] == [1, 1, 1, 1]
    before = pa.total_allocated_bytes()
    with pytest.raises(status.StatusError, match="it is compressed; allowed: no compression"):
        list(arrow_in.chunks(stream_of({"body": column}, compression)))
    assert pa.total_allocated_bytes() - before < 1 << 20


def shared(count: int, text: str) -> pa.Array:
    """The same text in every row, written once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int8()), pa.array([text]))


@pytest.mark.parametrize("where", ["body", "subject", "fields"])
def test_texts_that_rows_share_are_unpacked_little_by_little(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_in, "MOST_NESTED_BYTES", 1 << 20)
    spread: list[int] = []
    rows_of = arrow_in._Rows

    def noted(batch: pa.RecordBatch) -> arrow_in._Rows:
        spread.append(batch.num_rows)
        return rows_of(batch)

    monkeypatch.setattr(arrow_in, "_Rows", noted)
    text = shared(100, "x" * 100_000)
    columns = {"body": pa.array([b"b"] * 100)}
    columns |= {where: pa.StructArray.from_arrays([text], names=["f"]) if where == "fields" else text}
    made = [pb.MessageBatch.FromString(data) for data, _ in arrow_in.chunks(stream_of(columns))]
    assert sum(each.count for each in made) == sum(spread) == 100
    assert max(spread) <= 10
    size = sum(len(each.bodies) + sum(row.ByteSize() for row in each.properties) for each in made)
    assert size >= 100 * 100_000


def test_a_row_that_is_too_large_once_unpacked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_in, "MOST_NESTED_BYTES", 1 << 16)
    flags = [pa.array([True, None])] * 1_000
    fields = pa.StructArray.from_arrays(flags, names=[f"{n:05}" for n in range(1_000)])
    with pytest.raises(status.StatusError, match="row 0 takes 69001 bytes; at most 65536"):
        list(arrow_in.chunks(stream_of({"body": pa.array([b"b"] * 2), "fields": fields})))


def test_many_names_and_values_of_few_bytes_are_unpacked_little_by_little() -> None:
    flags = pa.array([True] * 8_192)
    fields = pa.StructArray.from_arrays([flags] * 40, names=[f"{n:0>400}" for n in range(40)])
    data = stream_of({"body": pa.array([b""] * 8_192), "fields": fields})
    assert len(data) < 1 << 20
    assert max(count for _, count in arrow_in.chunks(data)) < 8_192
    (first, _), *_ = arrow_in.chunks(data)
    assert len(pb.MessageBatch.FromString(first).properties[0].application_properties) == 40


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.string_view(), pa.large_binary(), pa.binary(3)])
def test_bodies_in_whatever_way_arrow_keeps_them(kind: pa.DataType) -> None:
    values = [b"abc", b"def", b"xyz"]
    column = pa.array([b"?!."] * 2 + values).cast(kind).slice(2)
    columns = {
        "body": column,
        "subject": pa.array(["long enough to lie elsewhere", None, "s"], pa.string_view()),
    }
    ((data, count),) = arrow_in.chunks(stream_of(columns))
    made = pb.MessageBatch.FromString(data)
    assert (made.bodies, count) == (b"abcdefxyz", 3)
    assert [row.subject for row in made.properties] == ["long enough to lie elsewhere", "", "s"]


@pytest.mark.parametrize(
    "column",
    [
        pa.nulls(3),
        pa.array([1, 2, 3]),
        pa.RunEndEncodedArray.from_arrays(pa.array([3], pa.int32()), pa.array([b""])),
    ],
)
def test_bodies_that_are_no_bytes_are_refused(column: pa.Array) -> None:
    with pytest.raises(status.StatusError, match=r"the column 'body' is .*; allowed: binary"):
        list(arrow_in.chunks(stream_of({"body": column})))


@given(st.binary(max_size=200), st.integers(0, 1 << 16), st.binary(max_size=8))
def test_any_bytes_are_a_block_or_a_clear_error(noise: bytes, at: int, change: bytes) -> None:
    whole = arrow({"body": [b"abc", b"de"], "subject": ["x", None], "fields": [{"a": 1}, None]})
    at %= len(whole)
    for data in (noise, whole[:at], whole[:at] + change + whole[at + len(change) :]):
        with contextlib.suppress(status.StatusError):
            for encoded, count in arrow_in.chunks(data):
                assert pb.MessageBatch.FromString(encoded).count == count


# ---- there and back

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
double = st.floats(allow_nan=False)
FIELD_KINDS = {
    "t": (text, pa.string()),
    "i": (int64, pa.int64()),
    "d": (double, pa.float64()),
    "b": (st.booleans(), pa.bool_()),
}
names = text.filter(lambda name: name not in FIELD_KINDS)
others = st.dictionaries(
    names, st.one_of(text, int64, st.floats(), st.booleans(), st.binary(max_size=5)), max_size=3
)
rows = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=20),
        **{name: st.none() | text for name in TEXTS},
        "priority": st.none() | st.integers(0, 255),
        "ttl_ms": st.none() | st.integers(0, 1 << 40),
        "fields": st.fixed_dictionaries({name: st.none() | kind for name, (kind, _) in FIELD_KINDS.items()}),
        "properties": st.none() | others,
    }
)
SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        *((name, pa.string()) for name in TEXTS),
        ("priority", pa.int16()),
        ("ttl_ms", pa.int64()),
        ("fields", pa.struct([(name, kind) for name, (_, kind) in FIELD_KINDS.items()])),
        ("properties", pa.string()),
    ]
)
FIELDS = (("t", "text"), ("i", "integer"), ("d", "floating"), ("b", "boolean"))


@given(st.lists(rows, min_size=1, max_size=8), st.sets(st.sampled_from(SCHEMA.names)), st.data())
def test_what_goes_in_comes_out(
    given_: list[dict[str, Any]], left_out: set[str], data: st.DataObject
) -> None:
    columns = [name for name in SCHEMA.names if name == "body" or name not in left_out]
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    values = {name: [row[name] for row in given_] for name in columns}
    if "properties" in values:
        writer = json_values.Writer()
        values["properties"] = [
            None if row is None else writer.write(properties(row).application_properties)
            for row in values["properties"]
        ]
    log = FakeLog()
    max_rows = data.draw(st.integers(1, 8))
    chunks = [encoded for encoded, _ in arrow_in.chunks(arrow(values, schema), max_rows)]
    index = log.add(*chunks)
    runs, sequence = [], 100
    for operation, encoded in enumerate(chunks):
        count = pb.MessageBatch.FromString(encoded).count
        runs.append(Run(sequence, count, index, operation, 0))
        sequence += count
    found = read(log, runs, Wanted(NAMES, FIELDS))
    assert [row["sequence"] for row in found] == list(range(100, 100 + len(given_)))
    assert [row["body"] for row in found] == [row["body"] for row in given_]
    nothing = dict.fromkeys(FIELD_KINDS)
    for row, before in zip(found, given_, strict=True):
        for name in (*TEXTS, "priority"):
            assert row[name] == (before[name] if name in columns else None)
        assert row["fields"] == (before["fields"] if "fields" in columns else nothing)
        ttl = before["ttl_ms"] if "ttl_ms" in columns else None
        assert row["expires"] == (None if ttl is None else at_ms(NOW_MS + ttl))
        again = pb.Properties()
        if row["properties"] is not None:
            json_values.read_into(again.application_properties, row["properties"])
        expected = properties((before["properties"] or {}) if "properties" in columns else {})
        assert again.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


@pytest.mark.parametrize("rows", [1, 20])
def test_a_row_with_too_many_fields_is_refused_before_anything_is_made_of_it(rows: int) -> None:
    fields = pa.StructArray.from_arrays([pa.array([True] * rows)] * 1_025, [f"f{n}" for n in range(1_025)])
    made = pa.record_batch({"body": pa.array([b""] * rows, pa.binary()), "fields": fields})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as stream:
        stream.write_batch(made)
    with pytest.raises(status.StatusError, match="the column 'fields' has 1025 fields; at most 1024"):
        list(arrow_in.chunks(sink.getvalue().to_pybytes()))


def test_a_row_with_too_many_fields_and_properties_is_refused_before_it_is_staged() -> None:
    names = {f"f{n}": 1 for n in range(600)}
    columns = {"body": [b""], "fields": [names], "properties": [json.dumps({f"p{n}": 1 for n in range(600)})]}
    ((chunk, _),) = arrow_in.chunks(arrow(columns))
    with pytest.raises(BatchError, match="message 0 of the batch: 1200 application properties; at most 1024"):
        check(chunk, BatchLimits(8_192, 1 << 20, 8 << 20), None, -1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{" + ",".join(f'"{n}":1' for n in range(1_025)) + "}",
            "it has 1025 properties; at most 1024 a message",
        ),
        ('{"a": "' + "x" * 400_000 + '"}', "it has 400009 characters; at most 393216"),
    ],
)
def test_properties_beyond_a_messages_limits_are_refused_before_anything_is_made_of_them(
    text: str, problem: str
) -> None:
    made = pb.Properties()
    with pytest.raises(ValueError, match=problem):
        json_values.read_into(made.application_properties, text)
    assert not made.application_properties


def test_bodies_that_take_no_bytes_are_no_messages() -> None:
    rows = 1 << 30
    column = pa.Array.from_buffers(pa.binary(0), rows, [None, pa.py_buffer(b"")])
    with pytest.raises(status.StatusError, match="values of 0 bytes; allowed: from 1 on, or binary"):
        next(arrow_in.chunks(stream_of({"body": column})))


def test_a_block_may_have_a_row_for_each_byte_of_an_index() -> None:
    block = stream_of({"body": pa.array([b""] * 5_000)})
    assert [count for _, count in arrow_in.chunks(block)] == [5_000]
    places = pa.array([0] * 5_000, pa.int8())
    pairs = {"body": pa.DictionaryArray.from_arrays(places, pa.array([b""]))}
    assert sum(count for _, count in arrow_in.chunks(stream_of(pairs))) == 5_000
