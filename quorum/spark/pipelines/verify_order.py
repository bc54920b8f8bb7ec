"""Order: if a producer's message e1 was confirmed before its message e2 was sent, e1 has the lower sequence.

A violation is a pair: e1 returned before e2 was invoked, but sequence(e1) > sequence(e2). One misplaced message makes a
pair with each message in between. The check therefore looks from both sides: each e2 names the e1 behind it that
returned first, and each e1 names the e2 before it that was invoked last. The culprit of a pair is the message that more
others name; a message that is in order with all others is not named. Only a confirmed e1 counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXAMPLES = 20
KEYS = ("queue", "producer")


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A misplaced message, with the reason."""

    number: int
    why: str


@dataclass(slots=True)
class Disorder:
    """The number of misplaced messages of one producer in one queue, and examples."""

    queue: int
    producer: int
    total: int = 0
    examples: list[Misplaced] = field(default_factory=list)


def culprits_of_order(placed: DataFrame) -> Iterator[Disorder]:
    """Find the misplaced messages. placed has one row for each message: queue, producer, number, sequence, invoked_us,
    confirmed_us (NULL: not confirmed)."""
    late = _named(placed, "late")
    late.persist()
    try:
        if not late.head(1):
            return
        early = _named(placed, "early")
        early.persist()
        try:
            yield from _culprits(late, early)
        finally:
            early.unpersist()
    finally:
        late.unpersist()


def _named(placed: DataFrame, side: str) -> DataFrame:
    """Messages out of order, each with the culprit that it names: for `late` a message too far behind, for `early` one
    too far ahead. Columns: queue, producer, number, sequence, culprit (number), culprit_sequence."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    is_late = side == "late"
    order = F.desc("sequence") if is_late else F.asc("sequence")
    others = Window.partitionBy(*KEYS).orderBy(order).rowsBetween(Window.unboundedPreceding, -1)
    if is_late:
        confirmed = F.struct("confirmed_us", "number", "sequence")
        worst = F.min(F.when(F.col("confirmed_us").isNotNull(), confirmed)).over(others)
        wrong = "worst.confirmed_us < invoked_us"
    else:
        worst = F.max(F.struct("invoked_us", "number", "sequence")).over(others)
        wrong = "confirmed_us < worst.invoked_us"
    return (
        placed.withColumn("worst", worst)
        .where(wrong)
        .selectExpr(
            *KEYS, "number", "sequence", "worst.number AS culprit", "worst.sequence AS culprit_sequence"
        )
    )


def _culprits(late: DataFrame, early: DataFrame) -> Iterator[Disorder]:
    from pyspark.sql import functions as F

    found: dict[tuple[int, int], Disorder] = {}
    counts = {side: _counts(frame) for side, frame in (("late", late), ("early", early))}
    for side, own, other, is_bigger in (
        ("late", late, "early", "named_by_victims > named_by"),
        ("early", early, "late", "named_by_victims >= named_by"),
    ):
        # a victim that more others name is itself the culprit, not the message that it names
        victims = counts[other].withColumnsRenamed({"culprit": "number", "named_by": "named_by_victims"})
        kept = (
            own.join(counts[side], [*KEYS, "culprit"])
            .join(victims, [*KEYS, "number"], "left")
            .where(f"NOT coalesce({is_bigger}, FALSE)")
            .groupBy(*KEYS, "culprit", "culprit_sequence", "named_by")
            .agg(F.min(F.struct("number", "sequence")).alias("example"))
        )
        kept.persist()
        for row in kept.groupBy(*KEYS).count().collect():
            key = (row["queue"], row["producer"])
            found.setdefault(key, Disorder(*key)).total += row["count"]
        for row in kept.orderBy(F.desc("named_by"), *KEYS, "culprit").limit(EXAMPLES).collect():
            found[row["queue"], row["producer"]].examples.append(_misplaced(side, row))
        kept.unpersist()
    yield from (found[key] for key in sorted(found))


def _counts(named: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return named.groupBy(*KEYS, "culprit").agg(F.count("*").alias("named_by"))


def _misplaced(side: str, row: object) -> Misplaced:
    number, sequence, example = row["culprit"], row["culprit_sequence"], row["example"]  # type: ignore[index]
    more = row["named_by"] - 1  # type: ignore[index]
    others = f", and before {more:,} more" if more else ""
    if side == "late":
        why = (
            f"confirmed before {example['number']} was sent, yet behind it: at sequence {sequence}, "
            f"{example['number']} at {example['sequence']}"
        )
        return Misplaced(number, why + others)
    others = f", and after {more:,} more" if more else ""
    why = (
        f"sent after {example['number']} was confirmed, yet before it: at sequence {sequence}, "
        f"{example['number']} at {example['sequence']}"
    )
    return Misplaced(number, why + others)
