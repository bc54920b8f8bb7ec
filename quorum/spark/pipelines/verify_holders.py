"""Finds messages that were held twice: at any time, at most one consumer may hold a message.

A consumer certainly holds a message from the time when it received the delivery. This hold ends at the first of these
that applies:

1. the time when the consumer sent its request to settle, return or discard the message, if the request succeeded
2. the time in the record of the delivery (`held_until_us`)
3. the consumer's end

Two such holds of different consumers must not overlap.

If none of the three applies, the end of the hold is unknown. Then only its beginning is checked: it must not be within
a certain hold of another consumer. This check is made only if the certain hold is not marked as redelivered. Otherwise
the delivery whose end is unknown may be the earlier one of the two, which its consumer read late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum.histories.records import FORMS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KINDS = list(FORMS)
DELIVER, END = _KINDS.index("deliver"), _KINDS.index("end")
CLOSING = ", ".join(str(_KINDS.index(kind)) for kind in ("settle", "return", "discard"))
PLACE = ("queue", "sequence")


def held_twice(events: DataFrame, places: DataFrame) -> DataFrame:
    """One row for each message that two consumers held at the same time, with the first such pair of consumers.
    Columns: queue, sequence, producer, number, consumer, end_us (when the certain hold of `consumer` ends),
    other_consumer, other_at_us (when `other_consumer` received the message)."""
    from pyspark.sql import functions as F

    several = places.where("consumer <> other_consumer").select(*PLACE, "producer", "number")
    holds = _holds(events, several)
    one = holds.where("end_us IS NOT NULL")
    other = holds.selectExpr(
        *PLACE, "consumer AS other_consumer", "at_us AS other_at_us", "end_us AS other_end_us"
    )
    both_certain = (
        "other_end_us IS NOT NULL AND other_at_us >= at_us AND other_at_us < end_us AND other_end_us > other_at_us"
        " AND end_us > at_us"
    )
    one_certain = "other_end_us IS NULL AND NOT redelivered AND other_at_us > at_us AND other_at_us < end_us"
    pairs = one.join(other, list(PLACE)).where(
        f"consumer <> other_consumer AND (({both_certain}) OR ({one_certain}))"
    )
    columns = ("other_at_us", "consumer", "end_us", "other_consumer")
    first = pairs.groupBy(*PLACE).agg(F.min(F.struct(*columns)).alias("first"))
    return first.select(*PLACE, "first.*").join(several, list(PLACE))


def _holds(events: DataFrame, several: DataFrame) -> DataFrame:
    """One row for each delivery of these messages: queue, sequence, consumer, at_us, end_us (NULL: unknown),
    redelivered."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    wanted = events.where(f"op = {DELIVER} OR (op IN ({CLOSING}) AND outcome = 'ok')")
    steps = (
        wanted.withColumn("step", F.explode(F.expr("sequence(0L, count - 1)")))
        .withColumn("sequence", F.col("sequence") + F.col("step"))
        .join(several.select(*PLACE), list(PLACE), "left_semi")
        .selectExpr(
            *PLACE,
            "consumer",
            f"op <> {DELIVER} AS is_close",
            f"if(op = {DELIVER}, returned_us, invoked_us) AS at_us",
            "held_until_us",
            "redelivered",
        )
    )
    own = Window.partitionBy(*PLACE, "consumer").orderBy("at_us", "is_close")
    follows = F.lead(F.struct("is_close", "at_us")).over(own)
    ends = events.where(f"op = {END}").groupBy("queue", "consumer").agg(F.min("invoked_us").alias("ended_us"))
    return (
        steps.withColumn("next", follows)
        .where("NOT is_close")
        .join(ends, ["queue", "consumer"], "left")
        .withColumn(
            "end_us",
            F.expr(
                "coalesce(if(next.is_close, next.at_us, NULL), held_until_us, "
                "if(ended_us IS NULL, NULL, greatest(ended_us, at_us)))"
            ),
        )
        .select(*PLACE, "consumer", "at_us", "end_us", "redelivered")
    )
