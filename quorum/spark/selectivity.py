"""What selectors would match in archived messages, and what their fields cost: `quorum pipeline selectivity`.

The service's own selector engine judges each message, in Spark's workers. A field is worth keeping in memory
(`x-filter-field-names`) if selectors use it, and the more so the fewer messages they match.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorum.spark.errors import OptionError
from quorum_selectors import jms
from quorum_selectors.compiled import compile_expression
from quorum_selectors.errors import SelectorError
from quorum_selectors.expression import field_names
from quorum_selectors.wellknown import APPLICATION, HEADER, PROPERTIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HEADERS = {
    "priority": HEADER + "priority",
    "message_id": PROPERTIES + "message-id",
    "correlation_id": PROPERTIES + "correlation-id",
    "subject": PROPERTIES + "subject",
    "group_id": PROPERTIES + "group-id",
}
"""Columns of an archive that a selector can read, besides application properties."""


MAX_KEPT = 50_000
"""Counts that a task keeps before it hands them on: values may all be different."""
Fact = tuple[str, str, str | None, int]
"""What is counted ("all", "selector", "field"), of which name, with which value, how often."""


@dataclass(frozen=True, slots=True)
class SelectorUse:
    selector: str
    matched: int
    """Messages."""


@dataclass(frozen=True, slots=True)
class FieldUse:
    field: str
    """As x-filter-field-names has it."""
    selectors: int
    """How many of the selectors look at it."""
    messages: int
    """How many messages have it."""
    distinct: int
    """Different values, estimated to about 5 %."""
    mean_bytes: float
    """Of a value as text."""


@dataclass(frozen=True, slots=True)
class Selectivity:
    messages: int
    selectors: tuple[SelectorUse, ...]
    fields: tuple[FieldUse, ...]


def selectivity(archive: DataFrame, selectors: Sequence[str]) -> Selectivity:
    """Judges the selectors on every message of an archive. Raises OptionError for one that is wrong."""
    from pyspark.sql import functions as F

    used: dict[str, int] = {}
    for text in selectors:
        try:
            parsed = jms.parse(text)
        except SelectorError as error:
            raise OptionError(str(error)) from None
        for key in field_names(parsed):
            used[key] = used.get(key, 0) + 1
    columns = [name for name in (*HEADERS, "fields", "properties") if name in archive.columns]
    texts = tuple(selectors)

    # by rows: mapInArrow would need pandas
    judged = archive.select(*columns).rdd.mapPartitions(lambda rows: _judge(rows, texts))
    facts = archive.sparkSession.createDataFrame(judged, "what STRING, name STRING, value STRING, n BIGINT")
    rows = (
        facts.groupBy("what", "name")
        .agg(
            F.sum("n").alias("n"),
            F.approx_count_distinct("value").alias("distinct"),
            F.sum(F.length("value") * F.col("n")).alias("bytes"),
        )
        .collect()
    )
    found = {(row["what"], row["name"]): row for row in rows}
    total = found.get(("all", ""))
    fields = []
    for (what, name), row in sorted(found.items()):
        if what == "field":
            fields.append(
                FieldUse(_spoken(name), used.get(name, 0), row["n"], row["distinct"], row["bytes"] / row["n"])
            )
    fields += [
        FieldUse(_spoken(key), count, 0, 0, 0.0) for key, count in used.items() if ("field", key) not in found
    ]
    return Selectivity(
        total["n"] if total else 0,
        tuple(
            SelectorUse(text, found[("selector", str(n))]["n"] if ("selector", str(n)) in found else 0)
            for n, text in enumerate(texts)
        ),
        tuple(sorted(fields, key=lambda each: (-each.selectors, each.field))),
    )


def _spoken(key: str) -> str:
    return key.removeprefix(APPLICATION)


def _judge(rows: Iterable[Any], selectors: Sequence[str]) -> Iterator[Fact]:
    """What one task sees, counted: all messages, matches by selector, values by field."""
    judges = [(str(number), compile_expression(jms.parse(text))) for number, text in enumerate(selectors)]
    counts: dict[tuple[str, str, str | None], int] = {}
    for row in rows:
        fields = _fields(row.asDict(recursive=True))
        facts: list[tuple[str, str, str | None]] = [("all", "", None)]
        facts += [("selector", number, None) for number, judge in judges if judge(fields) is True]
        for key, value in fields.items():
            facts.append(("field", key, value if isinstance(value, str) else json.dumps(value)))
        for fact in facts:
            counts[fact] = counts.get(fact, 0) + 1
        if len(counts) > MAX_KEPT:
            yield from ((*fact, count) for fact, count in counts.items())
            counts.clear()
    yield from ((*fact, count) for fact, count in counts.items())


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a selector would see of an archived message; bytes it does not see."""
    found = {key: row[name] for name, key in HEADERS.items() if row.get(name) is not None}
    for name, value in (row.get("fields") or {}).items():
        if value is not None:
            found[APPLICATION + name] = value
    for name, value in json.loads(row.get("properties") or "{}").items():
        if isinstance(value, dict):
            if "double" in value:
                found[APPLICATION + name] = float(value["double"])
        elif value is not None:
            found[APPLICATION + name] = value
    return found
