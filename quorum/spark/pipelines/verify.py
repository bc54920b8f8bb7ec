"""Checks recorded histories on Spark for six kinds of violation (docs/histories.md defines them and gives the reasons).

Names become numbers, so that Spark aggregates in place. There are two tables: `places`, with the events at each
sequence of each queue, and `messages`, with the events of each (producer, number) in all queues. All counts come from
these. Only two kinds compare pairs: reordered messages, and messages held twice, among those that two consumers had. An
operation with an unknown outcome counts neither for nor against a violation.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorum.histories.records import FORMS, HistoryError
from quorum.histories.report import COUNTS, KINDS, SHOWN, Culprit, Line, Report
from quorum.spark.failures import plain_failures
from quorum.spark.pipelines.history_input import Events, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_NAMES = 1_000_000
"""Highest number of queues, producers and consumers together, because the driver keeps their names in memory."""

Tell = Callable[[str], None]


def verify(
    spark: SparkSession, paths: Sequence[Path], tell: Tell | None = None, scratch: Path | None = None
) -> Report:
    """Read these files and directories as one history and check it. tell: called with progress.

    scratch: a directory for a temporary one; on a cluster all machines have to share it. HistoryError if the history
    cannot be checked, QueryFailed if Spark fails.
    """
    started = time.monotonic()
    with plain_failures(), tempfile.TemporaryDirectory(prefix="quorum-verify-", dir=scratch) as own:
        check = _Check(tell or (lambda text: None))
        try:
            check.tell(f"reading {', '.join(map(str, paths))}")
            report = check.run(read(spark, paths, Path(own)))
        finally:
            check.forget()
    report.seconds = time.monotonic() - started
    return report


def _code(kind: str) -> int:
    return list(FORMS).index(kind)


PUBLISH, DELIVER, SETTLE, RETURN = _code("publish"), _code("deliver"), _code("settle"), _code("return")
DISCARD, LEFT = _code("discard"), _code("left")
_DONE = f"op IN ({SETTLE}, {DISCARD})"
_CLOSES = f"op IN ({SETTLE}, {RETURN}, {DISCARD})"

PLACES = {
    # two messages at one sequence: the one with the lowest number owns the place, the highest is an intruder
    "number": "min(number)",
    "producer": "if(min(number) = max(number), min(producer), min_by(producer, number))",
    "other_number": "max(number)",
    "other_producer": "if(min(number) = max(number), max(producer), max_by(producer, number))",
    "deliveries": f"count_if(op = {DELIVER})",
    "last_delivered_us": f"max(if(op = {DELIVER}, returned_us, NULL))",
    "consumer": f"min(if(op = {DELIVER}, consumer, NULL))",
    "other_consumer": f"max(if(op = {DELIVER}, consumer, NULL))",
    "settled_us": f"min(if({_DONE} AND outcome = 'ok', returned_us, NULL))",
    "settlements": f"count_if({_DONE} AND outcome = 'ok')",
    "maybe_settled": f"count_if({_DONE} AND outcome <> 'ok')",
    "discards": f"count_if(op = {DISCARD})",
    "lefts": f"count_if(op = {LEFT})",
}
"""Aggregates by (queue, sequence)."""

IS_BACK = "(last_delivered_us > settled_us OR settlements > 1 OR (settlements > 0 AND lefts > 0))"
"""Whether a place was settled for certain, but delivered later, settled again, or left in the queue."""

MESSAGES = {
    "queue": "min(queue)",
    "other_queue": "max(queue)",
    "publishes": "count(queue)",
    "invoked_us": "min(invoked_us)",
    "confirmed_us": "min(confirmed_us)",
    "accepted": "count_if(is_accepted)",
    "confirmed": "count_if(confirmed_us IS NOT NULL)",
    "places": "count(place_queue)",
    "kept_places": "count_if(NOT is_discarded)",
    "place_queue": "min(place_queue)",
    "other_place_queue": "max(place_queue)",
    "sequence": "min(sequence)",
    "other_sequence": "max(sequence)",
    "delivered": "count_if(is_delivered)",
    "settled": "count_if(is_settled)",
    "maybe_settled": "count_if(is_maybe_settled)",
    "lefts": "count_if(is_left)",
    "late": "count_if(is_late)",
    "intruders": "count_if(has_intruder)",
}
"""Aggregates by (producer, number), over its publishes and its places."""

IS = {
    "lost": "confirmed > 0 AND settled = 0 AND maybe_settled = 0 AND lefts = 0",
    # a discarded message may be dead-lettered into another queue
    "duplicated": "places > 1 AND (kept_places > 1 OR place_queue = other_place_queue)",
    "settled_then_delivered": "late > 0",
    "phantom": "places > 0 AND accepted = 0",
}


class _Check:
    """The checks of one history. Names are numbers in every frame."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self._kept: list[DataFrame] = []
        self._names: dict[int, str] = {}
        self._lines: dict[tuple[int, int], Line] = {}
        self._culprits: dict[str, list[Culprit]] = {}

    def run(self, events: Events) -> Report:
        from pyspark.sql import functions as F

        self.tell(f"{events.operations:,} operations in {events.records:,} records")
        self._read_names(events.frame)
        numbered = {name: F.expr(_number_of(name)) for name in ("queue", "producer", "consumer")}
        self._events = events.frame.withColumns(numbered)
        self.tell("what happened to each message")
        places = self._keep(self._places())
        several = self._have_several_consumers(places)
        messages = self._keep(self._messages(places))
        self._judge_messages(messages)
        self._show_judged(messages, places)
        self.tell("order")
        self._judge_order(messages)
        if several:
            self.tell("messages that several consumers had")
            self._judge_holders(places)
        lines = sorted(self._lines.values(), key=lambda line: (line.queue, line.producer))
        culprits = {kind: self._culprits[kind] for kind in KINDS if kind in self._culprits}
        return Report(events.records, events.operations, lines, culprits)

    def forget(self) -> None:
        for frame in self._kept:
            frame.unpersist()

    def _keep(self, frame: DataFrame) -> DataFrame:
        from pyspark import StorageLevel

        frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(frame)
        return frame

    # ---- names

    def _read_names(self, frame: DataFrame) -> None:
        from pyspark.sql import functions as F

        queues = frame.groupBy("queue").agg(
            F.count_if(F.col("op") == LEFT).alias("lefts"),
            F.expr(f"count_if(op = {PUBLISH} AND outcome = 'confirmed')").alias("confirmed"),
        )
        told = {row["queue"]: row for row in queues.collect()}
        if silent := sorted(queue for queue, row in told.items() if not row["lefts"]):
            raise HistoryError(
                f"no record shows what was left in queue '{silent[0]}' at the end; add records 'left', "
                f"or one with 'count' 0 if the queue was empty"
            )
        if not any(row["confirmed"] for row in told.values()):
            raise HistoryError("no message was confirmed in this history; there is nothing to judge")
        everybody = frame.select(F.explode(F.array("queue", "producer", "consumer")).alias("name"))
        names = everybody.where("name IS NOT NULL").distinct().limit(MAX_NAMES + 1)
        found = names.selectExpr("name", f"{_number_of('name')} AS id").collect()
        if len(found) > MAX_NAMES:
            raise HistoryError(
                f"the history names more than {MAX_NAMES:,} queues, producers and consumers; "
                f"at most this number can be judged at once"
            )
        self._names = {row["id"]: row["name"] for row in found}
        if len(self._names) < len(found):
            taken = next(row["name"] for row in found if self._names[row["id"]] != row["name"])
            raise HistoryError(f"the name '{taken}' has the same hash as another one; rename it")

    def _name(self, number: int | None) -> str:
        assert number is not None
        return self._names[number]

    # ---- the two tables

    def _places(self) -> DataFrame:
        from pyspark.sql import functions as F

        touched = _each_message(
            self._events.where(f"(op = {DELIVER} OR {_CLOSES} OR op = {LEFT}) AND count > 0")
        )
        return touched.groupBy("queue", "sequence").agg(
            *[F.expr(text).alias(name) for name, text in PLACES.items()]
        )

    def _messages(self, places: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        published = _each_message(self._events.where(f"op = {PUBLISH}")).selectExpr(
            "producer",
            "number",
            "queue",
            "invoked_us",
            "if(outcome = 'confirmed', returned_us, NULL) AS confirmed_us",
            "outcome <> 'rejected' AS is_accepted",
        )
        found = places.where("number IS NOT NULL").selectExpr(
            "producer",
            "number",
            "queue AS place_queue",
            "sequence",
            "discards > 0 AS is_discarded",
            "deliveries > 0 AS is_delivered",
            "settled_us IS NOT NULL AS is_settled",
            "maybe_settled > 0 AS is_maybe_settled",
            "lefts > 0 AS is_left",
            f"{IS_BACK} AS is_late",
            "number <> other_number OR producer <> other_producer AS has_intruder",
        )
        return (
            published.unionByName(found, allowMissingColumns=True)
            .groupBy("producer", "number")
            .agg(*[F.expr(text).alias(name) for name, text in MESSAGES.items()])
        )

    # ---- checks of each message alone

    def _judge_messages(self, messages: DataFrame) -> None:
        from pyspark.sql import functions as F

        rows = (
            messages.groupBy(F.coalesce("queue", "place_queue").alias("of_queue"), "producer")
            .agg(
                F.expr("count_if(confirmed > 0)").alias("confirmed"),
                F.expr("count_if(publishes > 0 AND accepted = 0)").alias("rejected"),
                F.expr("count_if(accepted > 0 AND confirmed = 0)").alias("unknown"),
                F.expr("count_if(delivered > 0)").alias("delivered"),
                F.expr("count_if(settled > 0)").alias("settled"),
                F.expr("count_if(lefts > 0)").alias("left"),
                *[F.expr(f"count_if({IS[kind]})").alias(f"is_{kind}") for kind in IS],
                F.sum("intruders").alias("intruders"),
                F.expr("min(if(queue <> other_queue, number, NULL))").alias("in_two_queues"),
            )
            .collect()
        )
        for row in rows:
            if row["in_two_queues"] is not None:
                raise HistoryError(
                    f"producer '{self._name(row['producer'])}' has published number {row['in_two_queues']} "
                    f"to two queues; each number of a producer must belong to one message"
                )
            line = self._line(row["of_queue"], row["producer"])
            line.counts.update({name: row[name] for name in COUNTS})
            line.broken.update({kind: row[f"is_{kind}"] for kind in IS})
            line.broken["phantom"] += row["intruders"]

    def _line(self, queue: int, producer: int) -> Line:
        if (queue, producer) not in self._lines:
            self._lines[queue, producer] = Line(self._name(queue), self._name(producer))
        return self._lines[queue, producer]

    def _total(self, kind: str) -> int:
        return sum(line.broken[kind] for line in self._lines.values())

    def _show_judged(self, messages: DataFrame, places: DataFrame) -> None:
        explanations: dict[str, Callable[[Any], str]] = {
            "lost": self._why_lost,
            "duplicated": self._why_duplicated,
            "phantom": lambda row: (
                f"{self._where(row['place_queue'], row['sequence'])}, and "
                + ("refused when it was published" if row["publishes"] else "never published")
            ),
        }
        for kind, explain in explanations.items():
            if self._total(kind):
                for row in messages.where(IS[kind]).orderBy("producer", "number").limit(SHOWN).collect():
                    queue = row["queue"] if row["queue"] is not None else row["place_queue"]
                    self._show(kind, queue, row["producer"], row["number"], explain(row))
        if any(line.broken["phantom"] for line in self._lines.values()):
            self._show_intruders(places)
        if self._total("settled_then_delivered"):
            self._show_late(places)

    def _have_several_consumers(self, places: DataFrame) -> bool:
        """Whether a message was delivered to two consumers. HistoryError if the record of a delivery is missing."""
        from pyspark.sql import functions as F

        told = places.agg(
            F.min(F.when(F.col("number").isNull(), F.struct("queue", "sequence"))).alias("orphan"),
            F.count_if(F.expr("consumer <> other_consumer")).alias("several"),
        ).collect()[0]
        if told["orphan"] is not None:
            raise HistoryError(
                f"sequence {told['orphan']['sequence']} of queue '{self._name(told['orphan']['queue'])}' is "
                f"settled, returned or discarded, but was never delivered; each delivery needs a record"
            )
        return bool(told["several"])

    def _why_lost(self, row: Any) -> str:
        if not row["places"]:
            return "confirmed, never delivered, not left in the queue"
        return f"confirmed, {self._where(row['place_queue'], row['sequence'])}, never settled, not left in the queue"

    def _why_duplicated(self, row: Any) -> str:
        first = f"'{self._name(row['place_queue'])}'"
        last = f"'{self._name(row['other_place_queue'])}'"
        if first != last:
            return f"{row['places']} times, in the queues {first} and {last}"
        return (
            f"{row['places']} times in {first}, among them at {row['sequence']} and {row['other_sequence']}"
        )

    def _where(self, queue: int, sequence: int) -> str:
        return f"found at sequence {sequence} of '{self._name(queue)}'"

    def _show_intruders(self, places: DataFrame) -> None:
        found = places.where("number <> other_number OR producer <> other_producer")
        for row in found.orderBy("queue", "sequence").limit(SHOWN).collect():
            owner = f"{self._name(row['producer'])}:{row['number']}"
            why = f"{self._where(row['queue'], row['sequence'])}, which is {owner}'s"
            self._show("phantom", row["queue"], row["other_producer"], row["other_number"], why)

    def _show_late(self, places: DataFrame) -> None:
        for row in places.where(IS_BACK).orderBy("queue", "sequence").limit(SHOWN).collect():
            why = f"sequence {row['sequence']}, "
            late = ((row["last_delivered_us"] or 0) - row["settled_us"]) / 1e6
            if late > 0:
                consumer = self._consumer_at(row["queue"], row["sequence"], row["last_delivered_us"])
                why += f"delivered to '{consumer}' {late:.6f} s after it was settled for certain"
            elif row["settlements"] > 1:
                why += f"settled for certain {row['settlements']} times"
            else:
                why += "settled for certain, and left in the queue"
            self._show("settled_then_delivered", row["queue"], row["producer"], row["number"], why)

    def _consumer_at(self, queue: int, sequence: int, at_us: int) -> str:
        text = (
            f"op = {DELIVER} AND queue = {queue} AND returned_us = {at_us} "
            f"AND {sequence} BETWEEN sequence AND sequence + count - 1"
        )
        return self._name(min(row["consumer"] for row in self._events.where(text).collect()))

    def _show(self, kind: str, queue: int, producer: int, number: int, why: str) -> None:
        shown = self._culprits.setdefault(kind, [])
        if len(shown) < SHOWN:
            shown.append(Culprit(self._name(queue), self._name(producer), number, why))

    # ---- order

    def _judge_order(self, messages: DataFrame) -> None:
        from quorum.spark.pipelines.verify_order import culprits_of_order

        placed = messages.where(
            "publishes > 0 AND accepted > 0 AND place_queue = other_place_queue AND place_queue = queue"
        ).select("queue", "producer", "number", "sequence", "invoked_us", "confirmed_us")
        for found in culprits_of_order(placed):
            self._line(found.queue, found.producer).broken["reordered"] += found.total
            for example in found.examples[:SHOWN]:
                self._show("reordered", found.queue, found.producer, example.number, example.why)

    # ---- holders

    def _judge_holders(self, places: DataFrame) -> None:
        from quorum.spark.pipelines.verify_holders import held_twice

        found = self._keep(held_twice(self._events, places))
        for row in found.groupBy("queue", "producer").count().collect():
            self._line(row["queue"], row["producer"]).broken["held_twice"] += row["count"]
        for row in found.orderBy("queue", "sequence").limit(SHOWN).collect():
            until = f"held until {row['end_us'] / 1e6:.6f} s"
            why = (
                f"sequence {row['sequence']}, delivered to '{self._name(row['other_consumer'])}' at "
                f"{row['other_at_us'] / 1e6:.6f} s, while '{self._name(row['consumer'])}' {until}"
            )
            self._show("held_twice", row["queue"], row["producer"], row["number"], why)


def _number_of(name: str) -> str:
    """SQL for a name's number; the names are checked for collisions. NULL stays NULL."""
    return f"if({name} IS NULL, NULL, xxhash64({name}))"


def _each_message(events: DataFrame) -> DataFrame:
    """One row for each message."""
    from pyspark.sql import functions as F

    spread = events.withColumn("step", F.explode(F.expr("sequence(0L, count - 1)")))
    return spread.withColumns(
        {"sequence": F.col("sequence") + F.col("step"), "number": F.col("number") + F.col("step")}
    ).drop("step", "count")
