"""Counts the messages of a dead-letter queue by what their history says: `quorum pipeline deadletters`.

A batch read browses the queue, so nothing is settled. The properties of the history (docs/dead-letters.md) are read as
fields, and Spark's own functions group by them. Any publisher can write a history. A part of it that has another form
than the service writes is NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorum.spark.errors import OptionError
from quorum.spark.failures import cause
from quorum.spark.schema import COLUMNS, FIELDS, MAX_FIELDS, Field, parse_fields, seen_fields, source_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HISTORY, LAST_REASON, LAST_QUEUE = "x-death", "x-last-death-reason", "x-last-death-queue"
REASON, QUEUE, TIME = WORDS = ("reason", "queue", "time")
"""Columns for the last death of a message."""
RECORDS = "ARRAY<STRUCT<reason: STRING, queue: STRING, time: BIGINT>>"
MOVED_BACK = "redriven"
"""The reason of a record that is no death."""
MAX_TIME_MS = 253_402_300_800_000
"""End of the year 9999, which is the last one of a TIMESTAMP."""
MAX_GROUPS = 10_000
"""Groups that are returned, the largest ones."""


@dataclass(frozen=True, slots=True)
class Group:
    """values: one for each part of the group, in order; None if a message does not have it."""

    values: tuple[Any, ...]
    messages: int


@dataclass(frozen=True, slots=True)
class Counted:
    """The groups of a dead-letter queue, the largest first. messages: of all groups. more: smaller groups that are left
    out, because there are more than MAX_GROUPS."""

    messages: int
    groups: tuple[Group, ...]
    more: int


def letters(spark: SparkSession, url: str, queue: str, fields: str = "") -> DataFrame:
    """The ready messages of a queue, with all columns of the source but `body`, and these:

    - `reason` and `queue`: of the last death, instead of the name of the dead-letter queue
    - `time`: of the last death, a TIMESTAMP
    - each application property by its name, unless another column has this name; as `fields.NAME` in any case.

    fields: application properties as in the option filterFields; empty: those of messages at both ends of the queue.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    from quorum.spark.source import seen

    if "," in queue or queue != queue.strip():
        raise OptionError(
            f"a queue named {queue!r} cannot be read by Spark: no commas, no blanks at the ends"
        )
    history = [Field(name, StringType()) for name in (HISTORY, LAST_REASON, LAST_QUEUE)]
    known = {field.name for field in history}
    given = parse_fields(fields) if fields else seen_fields([seen(url, queue)])
    taken = [field for field in given if field.name.lower() not in known][: MAX_FIELDS - len(history)]
    schema = source_schema([*history, *taken], include_body=False)
    source = spark.read.format("quorum").option("url", url).option("queue", queue).schema(schema).load()

    def field(name: str) -> Column:
        return F.col(FIELDS).getField(name)

    records = F.from_json(field(HISTORY), RECORDS)
    # a short history has no other property than x-death
    last = F.get(F.filter(records, lambda record: ~record.reason.eqNullSafe(MOVED_BACK)), F.lit(0))
    time_ms = last.getField(TIME)
    died = {
        REASON: F.coalesce(field(LAST_REASON), last.getField(REASON)),
        QUEUE: F.coalesce(field(LAST_QUEUE), last.getField(QUEUE)),
        TIME: F.timestamp_millis(F.when(time_ms.between(0, MAX_TIME_MS - 1), time_ms)),
    }
    taken_names = {*(name.lower() for name in (*COLUMNS, FIELDS)), *WORDS}
    short = {each.name: field(each.name) for each in taken if each.name.lower() not in taken_names}
    return source.withColumns({**died, **short})


def count(found: DataFrame, by: Sequence[str], where: str = "") -> Counted:
    """Count `letters` by these columns; `time` counts by the hour. where: a predicate of Spark SQL on the columns;
    empty: all messages. Raises OptionError for an unknown column or a wrong predicate, and Spark's errors."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    columns = {column.lower() for column in found.columns}  # Spark ignores the case of names
    parts = [
        F.date_trunc("hour", TIME)
        if name.lower() == TIME
        else F.col(f"`{name.replace('`', '``')}`" if name.lower() in columns else name)
        for name in by
    ]
    try:
        chosen = found.where(where) if where else found
        grouped = chosen.groupBy(*(part.alias(f"part{n}") for n, part in enumerate(parts))).count()
    except AnalysisException as error:
        raise OptionError(f"{cause(error)} (--fields 'NAME TYPE' names further properties)") from None
    grouped = grouped.persist()
    try:
        (total,) = grouped.agg(F.count("*").alias("groups"), F.sum("count").alias("messages")).collect()
        order = [F.desc("count"), *(F.col(f"part{n}") for n in range(len(parts)))]
        rows = grouped.orderBy(*order).limit(MAX_GROUPS).collect()
    finally:
        grouped.unpersist()
    groups = tuple([Group(tuple(row[:-1]), row[-1]) for row in rows])
    return Counted(total["messages"] or 0, groups, total["groups"] - len(groups))


def selector_of(where: str) -> str:
    """The selector that chooses the messages of a predicate on application properties. Raises OptionError if there is
    none of the same meaning, and where the predicate names a column that is no application property."""
    from quorum.spark.translate import names_in, to_selector

    for names in names_in(where):
        if len(names) > 1:
            continue
        word = names[0].lower()
        if word in WORDS:
            hint = "; --only chooses by the queue" if word == QUEUE else ""
            raise OptionError(
                f"a selector cannot name {word!r} of the history, so it cannot choose by it{hint}"
            )
        if word in COLUMNS or word == FIELDS:
            raise OptionError(
                f"column {word} is no application property, so no selector can be made from it; fields.{word} is the "
                "property of this name"
            )
    return to_selector(where)
