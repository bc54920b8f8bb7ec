"""A data source over messages in memory that pushes filters as the source `quorum` does.

It selects as the service does, and stands for push-down alone: what Spark makes of a predicate, what is pushed of it,
and what a selector makes of that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quorum.spark.reading.pushdown import Pushed, PushFilters, push
from quorum.spark.schema import Field, fields_of
from quorum_selectors import evaluate, jms
from quorum_selectors.known_fields import APPLICATION

DDL = "sequence BIGINT, fields STRUCT<color: STRING, size: INT, weight: DOUBLE, ok: BOOLEAN, big: BIGINT>"
KINDS: dict[str, type] = {"text": str, "integer": int, "floating": float, "boolean": bool}


def column_value(value: Any, field: Field) -> Any:
    """What the column says of a property: NULL unless it is of the field's kind, and fits."""
    if type(value) is not KINDS[field.kind]:
        return None
    if field.type.simpleString() == "int" and not -(1 << 31) <= value < 1 << 31:
        return None
    return value


class ProbeReader(DataSourceReader):
    def __init__(self, schema: StructType, messages: list[dict[str, Any]], notes: str) -> None:
        self._fields = fields_of(schema)
        self._messages = messages
        self._notes = notes
        self._pushed = Pushed()
        self.pushFilters = PushFilters(self._take)  # type: ignore[assignment, method-assign]

    def _take(self, filters: list[Any]) -> None:
        self._pushed = push(filters, self._fields)

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        pushed = self._pushed
        with open(self._notes, "a", encoding="utf-8") as notes:
            notes.write(json.dumps([pushed.selector, pushed.start, pushed.end]) + "\n")
        wanted = jms.parse(pushed.selector)
        for sequence, message in enumerate(self._messages):
            keyed = {APPLICATION + name: value for name, value in message.items()}
            if sequence < pushed.start or (pushed.end is not None and sequence >= pushed.end):
                continue
            if evaluate.evaluate(wanted, keyed) is True:
                yield sequence, tuple(column_value(message.get(f.name), f) for f in self._fields)


class ProbeSource(DataSource):
    """Options: messages (JSON; {"nan": true} stands for NaN), notes (a file that is told what was pushed)."""

    @classmethod
    def name(cls) -> str:
        return "quorum_probe"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        messages = json.loads(self.options["messages"], object_hook=_revived)
        return ProbeReader(schema, messages, self.options["notes"])


def _revived(found: dict[str, Any]) -> Any:
    return math.nan if found == {"nan": True} else found
