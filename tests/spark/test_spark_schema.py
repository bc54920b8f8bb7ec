"""Columns: what a read offers, what a user's schema may ask for, what a sink takes, and batches in their shape."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
    VariantVal,
)

from quorum.spark import OptionError
from quorum.spark.options import SinkOptions
from quorum.spark.rows import ToService, ToSpark, wanted_columns
from quorum.spark.schema import (
    COLUMNS,
    Field,
    check_projection,
    check_sink,
    fields_of,
    parse_fields,
    seen_fields,
    source_schema,
)

SINK = SinkOptions("quorum://x:1", "orders", "", None, False)


def struct(*columns: tuple[str, Any]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


def test_all_columns_in_the_documented_order() -> None:
    schema = source_schema(parse_fields("color STRING, size INT"), include_body=True)
    assert schema.simpleString() == (
        "struct<queue:string,sequence:bigint,raft_index:bigint,enqueued:timestamp,message_id:string,"
        "correlation_id:string,reply_to:string,content_type:string,subject:string,group_id:string,"
        "content_encoding:string,to:string,user_id:string,reply_to_group_id:string,"
        "priority:smallint,deliveries:int,expires:timestamp,fields:struct<color:string,size:int>,"
        "properties:variant,body:binary>"
    )
    bare = source_schema((), include_body=False).names
    assert "fields" not in bare and "body" not in bare


def test_filter_fields_are_names_and_types() -> None:
    assert parse_fields("color STRING, `odd, name` bigint,size:Integer , ok BOOLEAN") == (
        Field("color", StringType()),
        Field("odd, name", LongType()),
        Field("size", IntegerType()),
        Field("ok", BooleanType()),
    )
    assert [field.kind for field in parse_fields("a SHORT, b DOUBLE")] == ["integer", "floating"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at character 0 a name and a type are expected"),
        ("color", "at character 0 a name and a type"),
        ("color STRING size INT", "at character 0"),
        ("color VARCHAR", "color has the type VARCHAR; allowed: STRING, BOOLEAN"),
        ("a INT, A STRING", "names the field A twice"),
    ],
)
def test_wrong_filter_fields_are_refused(text: str, words: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_fields(text)
    assert words in str(raised.value)


def test_seen_properties_become_fields_where_they_are_of_one_kind() -> None:
    queues = [
        {"b": "integer", "a": "text", "mixed": "text", "raw": ""},
        {"A": "text", "mixed": "boolean"},
    ]
    assert seen_fields(queues) == (Field("A", StringType()), Field("b", LongType()))


def test_a_name_with_a_zero_byte_is_no_field_because_spark_loses_its_values() -> None:
    assert seen_fields([{"a\0b": "text", "c": "text"}]) == (Field("c", StringType()),)
    fields = ("fields", struct(("a\0b", StringType())))
    for refused in (
        lambda: parse_fields("`a\0b` STRING"),
        lambda: check_projection(struct(fields)),
        lambda: check_sink(struct(("body", BinaryType()), fields), SINK),
    ):
        with pytest.raises(OptionError, match="zero byte in its name"):
            refused()


def test_a_users_schema_is_a_choice_of_columns() -> None:
    check_projection(
        struct(("body", BinaryType()), ("properties", StringType()), ("priority", IntegerType()))
    )
    fields = struct(("color", StringType()))
    check_projection(struct(("fields", fields)))
    assert fields_of(struct(("fields", fields))) == (Field("color", StringType()),)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (struct(("size", IntegerType())), "the schema names a column size; columns are: queue, sequence"),
        (struct(("body", StringType())), "column body is binary; the schema says string"),
        (struct(("priority", StringType())), "column priority is smallint or int"),
        (struct(("queue", StringType()), ("queue", StringType())), "names the column queue twice"),
        (
            struct(("fields", MapType(StringType(), StringType()))),
            "column fields is a struct of application properties",
        ),
        (
            struct(("fields", struct(("t", TimestampType())))),
            "field t has the type timestamp; allowed: STRING",
        ),
    ],
)
def test_a_users_schema_that_does_not_fit_is_refused(schema: StructType, words: str) -> None:
    with pytest.raises(OptionError) as raised:
        check_projection(schema)
    assert words in str(raised.value)


def test_a_schema_calls_only_columns_not_null_that_have_a_value_in_every_row() -> None:
    """Spark trusts it, and reads NULL in place of all values, or fails with an error of the JVM."""

    def check(name: str, kind: DataType) -> None:
        check_projection(StructType([StructField(name, kind, nullable=False)]))

    for column in ("sequence", "deliveries", "body"):
        check(column, COLUMNS[column][0])
    check("fields", struct(("a", IntegerType())))
    with pytest.raises(OptionError, match="the column subject is NOT NULL, but a message may have no value"):
        check("subject", StringType())
    with pytest.raises(OptionError, match="the field a is NOT NULL, but a message may have no value"):
        check("fields", StructType([StructField("a", IntegerType(), nullable=False)]))


def test_more_fields_than_a_read_has_are_refused_before_it_begins() -> None:
    names = [f"f{number} INT" for number in range(257)]
    assert len(parse_fields(", ".join(names[:-1]))) == 256
    with pytest.raises(OptionError, match="option filterFields names 257 fields; at most 256 are read"):
        parse_fields(", ".join(names))


def test_a_sink_takes_what_a_message_has() -> None:
    schema = struct(
        ("body", StringType()),
        ("fields", struct(("a", DoubleType()))),
        ("properties", VariantType()),
        ("ttl_ms", LongType()),
    )
    assert check_sink(schema, SINK) == ("body", "fields", "properties", "ttl_ms")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            struct(("key", StringType())),
            "there is no column key in a message; columns of a sink are: queue, body",
        ),
        (struct(("message_id", StringType())), "a sink needs a column body"),
        (struct(("body", IntegerType())), "column body of a sink is binary or string; this one is int"),
        (
            struct(("body", BinaryType()), ("fields", struct(("a", ArrayType(LongType()))))),
            "column fields of a sink is",
        ),
        (
            struct(("body", BinaryType()), ("fields", struct(("a", LongType()), ("b", TimestampType())))),
            "integers, doubles and booleans; field b is timestamp",
        ),
        (
            struct(("body", BinaryType()), ("priority", StringType())),
            "column priority of a sink is an integer",
        ),
    ],
)
def test_what_a_sink_cannot_write_is_refused(schema: StructType, words: str) -> None:
    with pytest.raises(OptionError) as raised:
        check_sink(schema, SINK)
    assert words in str(raised.value)


def test_a_sink_without_a_queue_needs_a_column_and_may_pass_over_unknown_ones() -> None:
    nowhere = SinkOptions("quorum://x:1", "", "", None, True)
    with pytest.raises(OptionError, match="set the option queue, or add a column queue"):
        check_sink(struct(("body", BinaryType())), nowhere)
    schema = struct(("queue", StringType()), ("body", BinaryType()), ("key", StringType()))
    assert check_sink(schema, nowhere) == ("queue", "body")


FROM_THE_SERVICE = pa.record_batch(
    {
        "sequence": pa.array([1, 2, 3], pa.int64()),
        "enqueued": pa.array([0, 1, 2], pa.timestamp("us", tz="UTC")),
        "priority": pa.array([None, 4, 255], pa.int16()),
        "fields": pa.StructArray.from_arrays(
            [pa.array([1, None, 1 << 40], pa.int64()), pa.array(["red", None, "x"])], names=["size", "color"]
        ),
        "properties": pa.array(['{"a":1}', None, '{"a":1,"b":{"double":"NaN"}}'], pa.string()),
        "body": pa.array([b"", b"x", b"y"], pa.binary()),
    }
)


def test_a_batch_gets_exactly_the_shape_of_the_schema() -> None:
    schema = struct(
        ("queue", StringType()),
        ("sequence", LongType()),
        ("priority", ShortType()),
        ("fields", struct(("size", IntegerType()), ("color", StringType()))),
        ("properties", VariantType()),
    )
    assert wanted_columns(schema) == ("sequence", "priority", "fields", "properties")
    batch = ToSpark(schema, "orders")(FROM_THE_SERVICE)
    assert batch.column("queue").to_pylist() == ["orders"] * 3
    assert batch.column("priority").to_pylist() == [None, 4, 255]
    # a number that a narrower type does not hold is in the properties
    assert batch.column("fields").field("size").to_pylist() == [1, None, None]
    found = batch.column("properties").to_pylist()
    assert found[1] is None
    assert VariantVal(found[0]["value"], found[0]["metadata"]).toPython() == {"a": 1}
    assert (
        str(VariantVal(found[2]["value"], found[2]["metadata"]).toPython())
        == "{'a': 1, 'b': nan, 'size': 1099511627776}"
    )


def test_a_number_that_does_not_fit_its_field_is_not_lost() -> None:
    """An archive removes the message from its queue."""
    fields = struct(("size", IntegerType()), ("weight", ShortType()), ("color", StringType()))
    numbers = [[1, None, -(1 << 31), 1 << 31], [1 << 15, -(1 << 15), 7, -(1 << 15) - 1]]
    children = [*(pa.array(each, pa.int64()) for each in numbers), pa.array(["é"] * 4)]
    given = pa.record_batch(
        {
            "fields": pa.StructArray.from_arrays(children, names=fields.names),
            "properties": pa.array(['{"a": 1.0, "x": {"base64": "AA=="}, "ü": "é"}', None, None, None]),
        }
    ).slice(0, 4)
    text = ToSpark(struct(("fields", fields), ("properties", StringType())), "q")
    for batch in (text(given), pa.Table.from_batches([text(given.slice(0, 1)), text(given.slice(1))])):
        assert batch.column("properties").to_pylist() == [
            '{"a": 1.0, "weight": 32768, "x": {"base64": "AA=="}, "ü": "é"}',
            None,
            None,
            '{"size": 2147483648, "weight": -32769}',
        ]
    shown = text(given).column("fields").to_pylist()
    assert [(row["size"], row["weight"]) for row in shown] == [
        (1, None),
        (None, -(1 << 15)),
        (-(1 << 31), 7),
        (None, None),
    ]
    assert ToSpark(struct(("fields", fields)), "q")(given).num_rows == 4


def test_a_schema_of_the_queue_alone_still_counts_rows() -> None:
    schema = struct(("queue", StringType()))
    assert wanted_columns(schema) == ("sequence",)
    assert ToSpark(schema, "a")(FROM_THE_SERVICE).to_pydict() == {"queue": ["a"] * 3}


def test_times_and_json_texts_pass_as_they_are() -> None:
    schema = struct(("enqueued", TimestampType()), ("properties", StringType()))
    batch = ToSpark(schema, "a")(FROM_THE_SERVICE)
    assert batch.column("enqueued")[2].as_py() == datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=UTC)
    assert batch.column("properties").to_pylist()[0] == '{"a":1}'


def test_rows_are_parted_by_queue_and_keep_their_order() -> None:
    schema = struct(("queue", StringType()), ("body", StringType()))
    convert = ToService(schema, ("queue", "body"), "rest")
    batch = pa.record_batch({"queue": ["b", None, "b", "a"], "body": ["1", "2", "3", "4"]})
    parts = {name: part.to_pydict() for name, part in convert(batch).items()}
    assert parts == {"b": {"body": [b"1", b"3"]}, "rest": {"body": [b"2"]}, "a": {"body": [b"4"]}}
    with pytest.raises(OptionError, match="a row has no queue"):
        ToService(schema, ("queue", "body"), "")(batch)


def test_properties_go_out_as_json_whatever_they_come_as() -> None:
    def sent(kind: Any, column: pa.Array) -> list[str | None]:
        schema = struct(("body", BinaryType()), ("properties", kind))
        batch = pa.record_batch({"body": [b""] * len(column), "properties": column})
        (part,) = ToService(schema, ("body", "properties"), "a")(batch).values()
        found: list[str | None] = part.column("properties").to_pylist()
        return found

    assert sent(StringType(), pa.array(['{"a":1}', None])) == ['{"a":1}', None]
    pairs = pa.array([[("b", "2"), ("a", None)], None], pa.map_(pa.string(), pa.string()))
    assert sent(MapType(StringType(), StringType()), pairs) == ['{"b":"2"}', None]
    value = VariantVal.parseJson('{"a": 1.5, "t": "x"}')
    variants = pa.array([{"value": value.value, "metadata": value.metadata}, None])
    assert sent(VariantType(), variants) == ['{"a":1.5,"t":"x"}', None]


def test_a_body_that_is_null_is_refused() -> None:
    schema = struct(("body", BinaryType()))
    with pytest.raises(OptionError, match="a row's body is NULL"):
        ToService(schema, ("body",), "a")(pa.record_batch({"body": pa.array([None], pa.binary())}))
