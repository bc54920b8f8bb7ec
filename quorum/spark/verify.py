"""Whether recorded histories show what a queue must never do. The format and the findings: docs/histories.md.

Three passes: a row a sequence (who had it, how it ended), joined with a row a published message; the order of sequences
against times and numbers; and, only for what was delivered more than once, who held it when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorum.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA = (
    "kind STRING, queue STRING, client STRING, producer STRING, number BIGINT, sequence BIGINT, count BIGINT, "
    "invoked BIGINT, returned BIGINT, outcome STRING"
)
CORRUPT = "_unreadable"

OF_A_MESSAGE = ("queue", "client", "sequence", "invoked")
NEEDS: dict[str, tuple[str, ...]] = {
    "publish": ("queue", "producer", "number", "invoked"),
    "deliver": ("queue", "client", "producer", "number", "sequence", "returned"),
    "settle": OF_A_MESSAGE,
    "return": OF_A_MESSAGE,
    "discard": OF_A_MESSAGE,
    "release": ("client", "invoked"),
    "remain": ("queue", "producer", "number", "sequence"),
}
OUTCOMES = ("ok", "refused", "unknown")
JSON_ENDINGS = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz")
MAX_COUNT = 1_000_000
ORDER_BLOCK = 1 << 17
"""Sequences that one task looks at for their order."""

FINDINGS = (
    "lost",
    "phantom",
    "duplicated",
    "sequence-reused",
    "reordered",
    "held-twice",
    "settled-then-delivered",
    "settled-twice",
    "settled-but-there",
)


@dataclass
class Report:
    operations: int
    messages: int
    """Published, or seen."""
    findings: dict[str, int] = field(default_factory=dict)
    """How often, by kind of finding; only what was found."""
    examples: list[str] = field(default_factory=list)
    """A line each, some of every kind."""

    @property
    def is_clean(self) -> bool:
        return not self.findings


def verify(
    spark: SparkSession, paths: Sequence[str], *, is_complete: bool = True, examples: int = 10
) -> Report:
    """Checks the histories in these files together. is_complete: what remained at the end is in them.

    Raises OptionError for what is no history.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    events = _read(spark, paths).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        operations = _check(events)
        single = _singles(events)
        sequences = _sequences(single).persist(StorageLevel.MEMORY_AND_DISK)
        messages = _messages(single, sequences).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            total = messages.select("queue", "producer", "number").distinct().count()
            report = Report(operations, total)
            found = [
                *_of_messages(messages, is_complete),
                *_of_sequences(sequences),
                _duplicated(sequences),
                _in_time(messages),
                _in_numbers(messages),
                _held_twice(single),
            ]
            # together, so that Spark runs them side by side
            every = reduce(lambda one, other: one.unionByName(other), found).persist(
                StorageLevel.MEMORY_AND_DISK
            )
            try:
                counts = {
                    row["kind"]: row["n"]
                    for row in every.groupBy("kind").agg(F.count("*").alias("n")).collect()
                }
                for kind in FINDINGS:
                    if kind in counts:
                        report.findings[kind] = counts[kind]
                        some = (
                            every.where(F.col("kind") == kind)
                            .orderBy("queue", "text")
                            .limit(examples)
                            .collect()
                        )
                        report.examples.extend(f"{kind}: queue {row['queue']}: {row['text']}" for row in some)
            finally:
                every.unpersist()
            return report
        finally:
            messages.unpersist()
            sequences.unpersist()
    finally:
        events.unpersist()


# ---- reading


def _read(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F

    frames = []
    for path in paths:
        names = _files(path)
        if names[0].endswith(".parquet"):
            frame = spark.read.parquet(*names)
            frame = frame.select(
                *(_column(frame, each) for each in SCHEMA.split(", ")), F.lit(None).alias(CORRUPT)
            )
        else:
            frame = spark.read.schema(f"{SCHEMA}, {CORRUPT} STRING").json(
                names, columnNameOfCorruptRecord=CORRUPT, mode="PERMISSIVE"
            )
        frames.append(frame)
    return reduce(lambda one, other: one.unionByName(other), frames).fillna({"count": 1, "outcome": "ok"})


def _column(frame: DataFrame, declared: str) -> Column:
    from pyspark.sql import functions as F

    name, kind = declared.split()
    return (F.col(name) if name in frame.columns else F.lit(None)).cast(kind).alias(name)


def _files(path: str) -> list[str]:
    at = Path(path)
    files = sorted(str(each) for each in at.rglob("*") if each.is_file()) if at.is_dir() else [str(at)]
    files = [each for each in files if not Path(each).name.startswith((".", "_"))]
    if not at.exists() or not files:
        raise OptionError(f"{path}: there is no history")
    as_json = [each for each in files if each.endswith(JSON_ENDINGS)]
    as_parquet = [each for each in files if each.endswith(".parquet")]
    if len(as_json) not in (0, len(files)) or len(as_json) + len(as_parquet) < len(files):
        raise OptionError(
            f"{path}: a history is JSON lines ({', '.join(JSON_ENDINGS)}) or Parquet (.parquet), "
            "and a directory has only the one or the other"
        )
    return files


def _check(events: DataFrame) -> int:
    """How many operations. Raises OptionError for the first that is none."""
    from pyspark.sql import functions as F

    problem = F.when(F.col(CORRUPT).isNotNull(), F.concat(F.lit("no JSON object of this form: "), CORRUPT))
    problem = problem.when(
        F.col("kind").isNull() | ~F.col("kind").isin(*NEEDS), F.lit(f"kind is none of {', '.join(NEEDS)}")
    )
    problem = problem.when(
        ~F.col("outcome").isin(*OUTCOMES), F.lit(f"outcome is none of {', '.join(OUTCOMES)}")
    )
    problem = problem.when(~F.col("count").between(1, MAX_COUNT), F.lit(f"count is not in 1..{MAX_COUNT}"))
    for kind, needed in NEEDS.items():
        for name in needed:
            problem = problem.when(
                (F.col("kind") == kind) & F.col(name).isNull(), F.lit(f"a {kind} needs {name}")
            )
    is_answered = F.col("kind").isin("publish", "settle") & (F.col("outcome") == "ok")
    problem = problem.when(
        is_answered & F.col("returned").isNull(), F.lit("an ok publish or settle needs returned")
    )
    problem = problem.when(F.col("returned") < F.col("invoked"), F.lit("it returned before it was invoked"))
    judged = events.withColumn("problem", problem)
    row = judged.agg(
        F.count("*").alias("n"),
        F.count("problem").alias("bad"),
        F.first(F.when(F.col("problem").isNotNull(), F.struct("problem", _shown(events))), True).alias(
            "first"
        ),
    ).first()
    assert row is not None
    if row["bad"]:
        raise OptionError(
            f"{row['bad']} operations cannot be read; one: {row['first'][0]}: {row['first'][1][:300]}"
        )
    return int(row["n"])


def _shown(events: DataFrame) -> Column:
    from pyspark.sql import functions as F

    return F.to_json(F.struct(*(name for name in events.columns if name != CORRUPT)))


def _singles(events: DataFrame) -> DataFrame:
    """An operation a message: counts are gone."""
    from pyspark.sql import functions as F

    one = events.where("count = 1").drop("count", CORRUPT)
    many = (
        events.where("count > 1")
        .withColumn("at", F.explode(F.expr("sequence(0L, count - 1)")))
        .withColumn("number", F.col("number") + F.col("at"))
        .withColumn("sequence", F.col("sequence") + F.col("at"))
        .drop("at", "count", CORRUPT)
    )
    return one.unionByName(many)


# ---- a row a sequence, a row a message


def _is(kind: str, *outcomes: str) -> Column:
    from pyspark.sql import functions as F

    return (F.col("kind") == kind) & F.col("outcome").isin(*(outcomes or OUTCOMES))


def _sequences(single: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    is_seen = F.col("kind").isin("deliver", "remain")
    name = F.struct("producer", "number")
    return (
        single.where(F.col("sequence").isNotNull() & ~F.col("kind").isin("publish", "release"))
        .groupBy("queue", "sequence")
        .agg(
            F.min(F.when(is_seen, name)).alias("least"),
            F.max(F.when(is_seen, name)).alias("most"),
            F.count_if(_is("settle", "ok")).alias("settled"),
            F.count_if(_is("settle", "ok", "unknown") | _is("discard", "ok", "unknown")).alias("ended"),
            F.count_if(F.col("kind") == "remain").alias("remains"),
            F.count_if(F.col("kind") == "deliver").alias("delivered"),
            F.min(F.when(_is("settle", "ok"), F.col("returned"))).alias("settled_at"),
            F.max(F.when(F.col("kind") == "deliver", F.struct("returned", "client"))).alias("last_delivery"),
        )
    )


def _messages(single: DataFrame, sequences: DataFrame) -> DataFrame:
    """By queue, producer and number: how it was published, and each sequence it has."""
    from pyspark.sql import functions as F

    published = (
        single.where(F.col("kind") == "publish")
        .groupBy("queue", "producer", "number")
        .agg(
            F.lit(True).alias("is_published"),
            F.count_if(F.col("outcome") == "ok").alias("confirmed"),
            F.count_if(F.col("outcome") != "refused").alias("possible"),
            F.min("invoked").alias("invoked"),
            F.min(F.when(F.col("outcome") == "ok", F.col("returned"))).alias("returned"),
        )
    )
    seen = sequences.where(F.col("least").isNotNull()).select(
        "queue",
        F.col("least.producer").alias("producer"),
        F.col("least.number").alias("number"),
        "sequence",
        "ended",
        "remains",
        "delivered",
    )
    return published.join(seen, ["queue", "producer", "number"], "full_outer")


def _found(frame: DataFrame, kind: str, condition: Column, text: Column) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.where(condition).select(F.lit(kind).alias("kind"), "queue", text.alias("text"))


def _text(form: str, *values: Any) -> Column:
    """`form` with %s, one for each column."""
    from pyspark.sql import functions as F

    parts: list[Column] = []
    for literal, value in zip(form.split("%s"), [*values, None], strict=True):
        parts.append(F.lit(literal))
        if value is not None:
            column = F.col(value) if isinstance(value, str) else value
            parts.append(F.coalesce(column.cast("string"), F.lit("?")))
    return F.concat(*parts)


def _of_messages(messages: DataFrame, is_complete: bool) -> list[DataFrame]:
    from pyspark.sql import functions as F

    never = (F.col("confirmed") > 0) & F.col("sequence").isNull()
    gone = (F.col("confirmed") > 0) & (F.col("ended") == 0) & (F.col("remains") == 0)
    unknown = F.col("sequence").isNotNull() & (F.col("is_published").isNull() | (F.col("possible") == 0))
    why = F.when(F.col("is_published").isNull(), F.lit("nobody published it")).otherwise(
        F.lit("its publish was refused")
    )
    found = [
        _found(
            messages,
            "phantom",
            unknown,
            _text("producer %s number %s has sequence %s, and %s", "producer", "number", "sequence", why),
        )
    ]
    if is_complete:
        found += [
            _found(
                messages,
                "lost",
                never,
                _text(
                    "producer %s number %s was confirmed at %s, was never delivered, and is not there",
                    "producer",
                    "number",
                    "returned",
                ),
            ),
            _found(
                messages,
                "lost",
                gone,
                _text(
                    "producer %s number %s, sequence %s, was confirmed at %s and delivered %s times, "
                    "nobody settled it, and it is not there",
                    "producer",
                    "number",
                    "sequence",
                    "returned",
                    "delivered",
                ),
            ),
        ]
    return found


def _of_sequences(sequences: DataFrame) -> list[DataFrame]:
    from pyspark.sql import functions as F

    who = ("sequence", "least.producer", "least.number")
    return [
        _found(
            sequences,
            "sequence-reused",
            F.col("least") != F.col("most"),
            _text(
                "sequence %s is of producer %s number %s and of producer %s number %s",
                *who,
                "most.producer",
                "most.number",
            ),
        ),
        _found(
            sequences,
            "settled-then-delivered",
            F.col("last_delivery.returned") > F.col("settled_at"),
            _text(
                "sequence %s, producer %s number %s, was settled at %s and came to %s at %s",
                *who,
                "settled_at",
                "last_delivery.client",
                "last_delivery.returned",
            ),
        ),
        _found(
            sequences,
            "settled-twice",
            F.col("settled") > 1,
            _text("sequence %s, producer %s number %s, was settled %s times", *who, "settled"),
        ),
        _found(
            sequences,
            "settled-but-there",
            (F.col("settled") > 0) & (F.col("remains") > 0),
            _text("sequence %s, producer %s number %s, was settled at %s and is there", *who, "settled_at"),
        ),
    ]


def _duplicated(sequences: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    several = (
        sequences.where(F.col("least").isNotNull())
        .groupBy("queue", F.col("least.producer").alias("producer"), F.col("least.number").alias("number"))
        .agg(F.count("*").alias("n"), F.min("sequence").alias("first"), F.max("sequence").alias("last"))
    )
    form = "producer %s number %s has %s sequences, the first %s, the last %s"
    return _found(
        several, "duplicated", F.col("n") > 1, _text(form, "producer", "number", "n", "first", "last")
    )


# ---- order


def _in_time(messages: DataFrame) -> DataFrame:
    """What was confirmed before another one was sent comes before it.

    For each message the earliest confirmation among those behind it: that one should have been in front if it was
    earlier than this one was sent. In blocks of sequences, so that a queue is not one task.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    known = messages.where("sequence IS NOT NULL AND is_published").select(
        "queue",
        "sequence",
        "invoked",
        F.struct("returned", "sequence", "producer", "number").alias("me"),
        F.floor(F.col("sequence") / ORDER_BLOCK).alias("block"),
    )
    confirmed = F.when(F.col("me.returned").isNotNull(), F.col("me"))
    behind = Window.partitionBy("queue").orderBy(F.desc("block")).rowsBetween(Window.unboundedPreceding, -1)
    blocks = (
        known.groupBy("queue", "block")
        .agg(F.min(confirmed).alias("least"))
        .withColumn("later", F.min("least").over(behind))
        .drop("least")
    )
    within = (
        Window.partitionBy("queue", "block")
        .orderBy(F.desc("sequence"))
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    judged = known.join(F.broadcast(blocks), ["queue", "block"]).withColumn(
        "culprit", F.least(F.min(confirmed).over(within), "later")
    )
    wrong = (
        judged.where(F.col("culprit.returned") < F.col("invoked"))
        .groupBy("queue", "culprit")
        .agg(F.count("*").alias("n"), F.max(F.struct("sequence", "invoked")).alias("one"))
    )
    return _found(
        wrong,
        "reordered",
        F.lit(True),
        _text(
            "producer %s number %s was confirmed at %s and has sequence %s, behind %s sent later; "
            "one has sequence %s, sent at %s",
            "culprit.producer",
            "culprit.number",
            "culprit.returned",
            "culprit.sequence",
            "n",
            "one.sequence",
            "one.invoked",
        ),
    )


def _in_numbers(messages: DataFrame) -> DataFrame:
    """A producer's numbers ascend with their sequences."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    known = messages.where("sequence IS NOT NULL AND is_published").select(
        "queue", "producer", "number", "sequence"
    )
    behind = (
        Window.partitionBy("queue", "producer")
        .orderBy(F.desc("sequence"))
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    wrong = (
        known.withColumn("culprit", F.min(F.struct("number", "sequence")).over(behind))
        .where(F.col("culprit.number") < F.col("number"))
        .groupBy("queue", "producer", "culprit")
        .agg(F.count("*").alias("n"), F.max(F.struct("number", "sequence")).alias("one"))
    )
    return _found(
        wrong,
        "reordered",
        F.lit(True),
        _text(
            "producer %s number %s has sequence %s, behind %s with higher numbers; one is number %s, sequence %s",
            "producer",
            "culprit.number",
            "culprit.sequence",
            "n",
            "one.number",
            "one.sequence",
        ),
    )


# ---- who held what when


def _held_twice(single: DataFrame) -> DataFrame:
    """Of deliveries that follow one another, the earlier one has to be over when the later one comes.

    It is over from the moment its client sent its end, whatever became of that, or from the moment the client last knew
    its session to be alive.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    in_turn = Window.partitionBy("queue", "sequence").orderBy("returned", "client")
    pairs = (
        single.where(F.col("kind") == "deliver")
        .select("queue", "sequence", "producer", "number", "client", "returned")
        .withColumn("then", F.lead(F.struct("client", "returned")).over(in_turn))
        .where(F.col("then").isNotNull())
        .withColumn("pair", F.monotonically_increasing_id())
    )
    ends = single.where(F.col("kind").isin("settle", "return", "discard")).select(
        "queue", "sequence", "client", F.col("invoked").alias("end")
    )
    releases = single.where(F.col("kind") == "release").select(
        F.col("queue").alias("of"), "client", F.col("invoked").alias("end")
    )
    is_between = F.col("end").between(F.col("returned"), F.col("then.returned"))
    left = (
        pairs.join(ends, ["queue", "sequence", "client"], "left")
        .groupBy("pair")
        .agg(
            F.first("queue").alias("queue"),
            F.first("sequence").alias("sequence"),
            F.first("producer").alias("producer"),
            F.first("number").alias("number"),
            F.first("client").alias("client"),
            F.first("returned").alias("returned"),
            F.first("then").alias("then"),
            F.count_if(is_between).alias("over"),
        )
        .where("over = 0")
    )
    a, b = left.alias("a"), releases.alias("b")
    over = (F.col("a.client") == F.col("b.client")) & (
        F.col("b.of").isNull() | (F.col("b.of") == F.col("a.queue"))
    )
    held = a.join(
        b, over & F.col("b.end").between(F.col("a.returned"), F.col("a.then.returned")), "left_anti"
    )
    return _found(
        held,
        "held-twice",
        F.lit(True),
        _text(
            "sequence %s, producer %s number %s, came to %s at %s and to %s at %s, while the first still held it",
            "sequence",
            "producer",
            "number",
            "client",
            "returned",
            "then.client",
            "then.returned",
        ),
    )
