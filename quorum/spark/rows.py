"""Conversion of Arrow record batches between the service and Spark, and the columns to request.

A batch for Spark has exactly the types of its declared schema, because Spark's JVM would misread its memory otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    IntegerType,
    MapType,
    ShortType,
    StringType,
    StructType,
    VariantType,
    VariantVal,
)

from quorum.spark import variant
from quorum.spark.errors import OptionError
from quorum.spark.schema import FIELDS, fields_of


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """The columns to request from the service; never empty, because an empty list means all columns."""
    return tuple(name for name in schema.names if name != "queue") or ("sequence",)


class ToSpark:
    """Converts the service's record batches of one queue to a schema."""

    def __init__(self, schema: StructType, queue: str) -> None:
        self._schema = schema
        self._queue = queue
        self._target: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._narrow = {
            each.name: to_arrow_type(each.type)
            for each in fields_of(schema)
            if isinstance(each.type, ShortType | IntegerType)
        }
        """types of the fields whose range is smaller than a property's"""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if "properties" in self._schema.names:
            batch = _with_beyond(batch, self._narrow)
        arrays = [self._column(batch, place) for place in range(len(self._target))]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _column(self, batch: pa.RecordBatch, place: int) -> pa.Array:
        name, target = self._target.field(place).name, self._target.field(place).type
        if name == "queue":
            return pa.repeat(pa.scalar(self._queue, target), batch.num_rows)
        found = batch.column(name)
        if isinstance(self._schema.fields[place].dataType, VariantType):
            return _variants(found, target)
        if name == FIELDS:
            return _struct(found, target)
        return found if found.type == target else found.cast(target)


def _struct(found: pa.StructArray, target: pa.StructType) -> pa.StructArray:
    children = []
    for place in range(target.num_fields):
        child, wanted = found.field(target.field(place).name), target.field(place).type
        children.append(child if child.type == wanted else _narrowed(child, wanted))
    # the service's struct itself is never NULL; only its fields are
    return pa.StructArray.from_arrays(
        children, fields=[target.field(place) for place in range(target.num_fields)]
    )


def _narrowed(numbers: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast to a narrower type. Numbers that do not fit become NULL, like values of another kind."""
    if not pa.types.is_integer(numbers.type) or not pa.types.is_integer(wanted):
        return numbers.cast(wanted)
    return pc.if_else(_fits(numbers, wanted), numbers, pa.scalar(None, numbers.type)).cast(wanted)


def _fits(numbers: pa.Array, wanted: pa.DataType) -> pa.Array:
    bound = 1 << (wanted.bit_width - 1)
    return pc.and_(pc.greater_equal(numbers, -bound), pc.less(numbers, bound))


def _with_beyond(batch: pa.RecordBatch, narrow: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """The batch with the numbers that their fields do not hold in the column `properties`."""
    beyond: dict[int, dict[str, int]] = {}
    for name, wanted in narrow.items():
        numbers = batch.column(FIELDS).field(name)
        rows = pc.indices_nonzero(pc.invert(_fits(numbers, wanted)))
        for row, value in zip(rows.to_pylist(), numbers.take(rows).to_pylist(), strict=True):
            beyond.setdefault(row, {})[name] = value
    if not beyond:
        return batch
    place = batch.schema.names.index("properties")
    texts = batch.column(place).to_pylist()
    for row, more in beyond.items():
        texts[row] = json.dumps(
            {**json.loads(texts[row] or "{}"), **more}, ensure_ascii=False, sort_keys=True
        )
    return batch.set_column(place, batch.schema.field(place), pa.array(texts, batch.column(place).type))


def _variants(texts: pa.Array, target: pa.StructType) -> pa.StructArray:
    fields = [target.field(place) for place in range(target.num_fields)]
    # many messages have the same properties, so each distinct text is parsed once
    known = texts.dictionary_encode()
    pairs = [variant.from_json(text) for text in known.dictionary.to_pylist()]
    places = known.indices.fill_null(len(pairs))
    pairs.append((b"\x00", b"\x01\x00\x00"))
    halves = {"value": 0, "metadata": 1}
    children = [pa.array([pair[halves[f.name]] for pair in pairs], pa.binary()).take(places) for f in fields]
    return pa.StructArray.from_arrays(children, fields=fields, mask=texts.is_null())


class ToService:
    """Converts Spark's record batches to the columns that the service stages, split by queue."""

    def __init__(self, schema: StructType, columns: Sequence[str], queue: str) -> None:
        self._types = {field.name: field.dataType for field in schema.fields}
        self._columns = [name for name in columns if name != "queue"]
        self._has_queue = "queue" in columns
        self._queue = queue
        self.target = "" if self._has_queue else queue
        """The queue for all rows; empty: each row names its own."""

    def __call__(self, batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        """Record batches by queue, in the order of the queues' first rows; rows keep their order. Raises
        OptionError."""
        names = batch.schema.names
        arrays = [self._column(name, batch.column(names.index(name))) for name in self._columns]
        whole = pa.RecordBatch.from_arrays(arrays, names=self._columns)
        if not self._has_queue:
            return {self._queue: whole} if whole.num_rows else {}
        queues = batch.column(names.index("queue"))
        if queues.null_count:
            if not self._queue:
                raise OptionError("a row has no queue; set the option queue for such rows")
            queues = queues.fill_null(self._queue)
        distinct = queues.unique()
        if len(distinct) == 1:
            return {distinct[0].as_py(): whole}
        return {each.as_py(): whole.filter(pc.equal(queues, each)) for each in distinct}

    def _column(self, name: str, found: pa.Array) -> pa.Array:
        if name == "body":
            if found.null_count:
                raise OptionError("a row's body is NULL; a message needs a body, which may be empty")
            return found if found.type == pa.binary() else found.cast(pa.binary())
        if name == "properties":
            return self._properties(found)
        return found

    def _properties(self, found: pa.Array) -> pa.Array:
        given = self._types["properties"]
        if isinstance(given, StringType):
            return found
        if isinstance(given, MapType):
            return pa.array(
                [None if each is None else _map_text(each) for each in found.to_pylist()], pa.string()
            )
        assert isinstance(given, VariantType)
        return pa.array(
            [None if each is None else _variant_text(each) for each in found.to_pylist()], pa.string()
        )


def _map_text(pairs: list[tuple[str, Any]]) -> str:
    return variant.to_json(dict(pairs))


def _variant_text(halves: dict[str, bytes]) -> str:
    found = VariantVal(halves["value"], halves["metadata"]).toPython()
    if not isinstance(found, dict):
        raise OptionError(f"properties are a {type(found).__name__} in a row; allowed: an object of scalars")
    return variant.to_json(found)
