"""Recorded histories as tables of Spark.

Spark checks every record with `condition`. Only if a record is bad, Python reads the files to find the first bad line.
Good records are written to Parquet files in a scratch directory, because the checks read them several times by columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from quorum.histories.files import check, first_problem, is_parquet, parquet_schema
from quorum.histories.records import (
    COLUMNS,
    FLAG,
    FORMS,
    INTEGER,
    LEFT_OF,
    MAX_COUNT,
    MAX_INTEGER,
    TEXT,
    UNKNOWN,
    HistoryError,
)
from quorum.spark.pipelines.output_check import check_written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPES = {TEXT: "STRING", INTEGER: "BIGINT", FLAG: "BOOLEAN"}
BAD_LINE, FILE = "bad_line", "file"


@dataclass(frozen=True, slots=True)
class Events:
    """A history in Spark. frame: the columns of records.COLUMNS; `count` and `redelivered` are never NULL, and `op` is
    its position among records.FORMS."""

    frame: DataFrame
    records: int
    operations: int


def read(spark: SparkSession, paths: Sequence[Path], scratch: Path) -> Events:
    """Read a history. HistoryError if it is not one; QuorumSparkError if workers see another scratch directory."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    files = check(paths)
    parquet = [path for path in files if is_parquet(path)]
    lines = [path for path in files if path not in set(parquet)]
    frames = [*_parquet_frames(spark, parquet), *_json_frames(spark, lines)]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    is_bad = F.expr(f"{BAD_LINE} IS NOT NULL OR NOT coalesce({condition()}, FALSE)")
    seen = Observation("read")
    kinds = F.array(*[F.lit(kind) for kind in FORMS])
    kept = (
        whole.withColumn("is_bad", is_bad)
        .withColumn("count", F.coalesce("count", F.lit(1)))
        .withColumn("redelivered", F.coalesce("redelivered", F.lit(False)))
        .observe(
            seen,
            F.count(F.lit(1)).alias("records"),
            F.sum("count").alias("operations"),
            F.count_if("is_bad").alias("bad"),
            F.min(F.when(F.col("is_bad"), F.col(FILE))).alias("where"),
        )
        .withColumn("op", (F.array_position(kinds, F.col("op")) - 1).cast("int"))
        .select(*COLUMNS)
    )
    target = str(scratch / "events")
    kept.write.parquet(target)
    told = seen.get
    if told["bad"]:
        raise first_problem(Path(unquote(urlparse(told["where"]).path)))
    if not told["records"]:
        raise HistoryError(f"{', '.join(map(str, paths))}: there is no record; nothing can be judged")
    check_written(scratch, [scratch / "events"], told["records"])
    return Events(spark.read.parquet(target), told["records"], told["operations"])


def _json_frames(spark: SparkSession, files: Sequence[Path]) -> list[DataFrame]:
    if not files:
        return []
    schema = ", ".join([*(f"`{name}` {TYPES[kind]}" for name, kind in COLUMNS.items()), f"{BAD_LINE} STRING"])
    reader = spark.read.schema(schema).option("columnNameOfCorruptRecord", BAD_LINE)
    return [_with_file(reader.json([_literally(path) for path in files]))]


def _parquet_frames(spark: SparkSession, files: Sequence[Path]) -> list[DataFrame]:
    """One frame for all files with the same types, because Spark does not convert types when it reads them."""
    from pyspark.sql import functions as F

    groups: dict[str, list[Path]] = {}
    columns: dict[str, list[str]] = {}
    for path in files:
        schema = parquet_schema(path)
        groups.setdefault(str(schema), []).append(path)
        columns[str(schema)] = schema.names
    frames = []
    for key, group in groups.items():
        frame = _with_file(spark.read.parquet(*[_literally(path) for path in group]))
        frames.append(
            frame.select(
                *[
                    (F.col(name) if name in columns[key] else F.lit(None)).cast(TYPES[kind]).alias(name)
                    for name, kind in COLUMNS.items()
                ],
                F.lit(None).cast("string").alias(BAD_LINE),
                F.col(FILE),
            )
        )
    return frames


def _with_file(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.withColumn(FILE, F.col("_metadata.file_path"))


def _literally(path: Path) -> str:
    """The path with glob characters escaped, because Spark reads names as patterns."""
    return "".join("\\" + each if each in "*?[]{}\\" else each for each in str(path))


def condition() -> str:
    """SQL over a history's columns: TRUE for a record in which `problem` finds no fault, else FALSE or NULL."""
    alternatives = []
    for kind, form in FORMS.items():
        terms = [f"op = '{kind}'"]
        terms += [f"{key} IS NOT NULL" for key in form.required]
        terms += [f"{key} IS NULL" for key in COLUMNS if key not in form.keys]
        terms += [
            f"coalesce({key} BETWEEN 0 AND {MAX_INTEGER}, TRUE)"
            for key in form.keys
            if COLUMNS[key] == INTEGER
        ]
        if "count" in form.keys:
            terms.append(f"coalesce(count, 1) BETWEEN {0 if kind == 'left' else 1} AND {MAX_COUNT}")
        if form.outcomes:
            terms.append("outcome IN ({})".format(", ".join(f"'{each}'" for each in form.outcomes)))
            terms.append(f"coalesce(returned_us >= invoked_us, outcome = '{UNKNOWN}')")
        if "held_until_us" in form.keys:
            terms.append("coalesce(held_until_us >= returned_us, TRUE)")
        if kind == "left":
            for key in LEFT_OF:
                terms.append(f"(coalesce(count, 1) = 0) = ({key} IS NULL)")
        alternatives.append("(" + " AND ".join(terms) + ")")
    return " OR ".join(alternatives)
