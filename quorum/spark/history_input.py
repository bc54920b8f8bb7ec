"""Reads recorded histories (histories.py) into Spark, and says of bad ones which file and line it is.

Spark looks at every record and says whether all are good; only if not are files read in Python, for the first bad line.
What the rules let pass goes to Parquet files in a scratch directory: the checks read it several times, by columns.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from quorum.spark.histories import COLUMNS, FLAG, FORMS, INTEGER, TEXT, HistoryError, condition, problem
from quorum.spark.written import check_written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JSON_ENDINGS = (".jsonl", ".jsonl.gz")
PARQUET_ENDING = ".parquet"
LOOKED_AT = 1_000
"""Lines at the beginning of a file that are looked at before Spark does: it does not mind unknown keys."""
NEVER_READ = "_."
"""Spark passes over files whose names begin so."""
TYPES = {TEXT: "STRING", INTEGER: "BIGINT", FLAG: "BOOLEAN"}
BAD_LINE, FILE = "bad_line", "file"


@dataclass(frozen=True, slots=True)
class Events:
    """A history as Spark has it. frame: the columns of histories.COLUMNS, `count` and `redelivered` never NULL, and
    `op` as its place among histories.FORMS."""

    frame: DataFrame
    records: int
    operations: int


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files that are meant: those named, and those of a history in the directories named. Raises HistoryError."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            if not path.exists():
                raise HistoryError(f"{path}: there is no such file or directory")
            found.append(path)
            continue
        endings = (*JSON_ENDINGS, PARQUET_ENDING)
        inside = sorted(each for each in path.rglob("*") if each.name.endswith(endings) and each.is_file())
        inside = [each for each in inside if each.name[0] not in NEVER_READ]
        if not inside:
            raise HistoryError(f"{path}: no file in it is a history; their names end in {', '.join(endings)}")
        found += inside
    for path in found:
        if path.name[0] in NEVER_READ:
            raise HistoryError(f"{path}: Spark reads no file whose name begins with '_' or '.'")
    return list(dict.fromkeys(path.resolve() for path in found))


def is_parquet(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def check(paths: Sequence[Path]) -> list[Path]:
    """What can be told without Spark: that there are files, and their beginnings are good. Raises HistoryError."""
    files = files_of(paths)
    for path in files:
        if is_parquet(path):
            _parquet_schema(path)
        else:
            _check_beginning(path)
    return files


def read(spark: SparkSession, paths: Sequence[Path], scratch: Path) -> Events:
    """Raises HistoryError for what is no history, QuorumSparkError where workers see another scratch directory."""
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
        raise _first_problem(Path(unquote(urlparse(told["where"]).path)))
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
    """One for all files with the same types: Spark reads a file only as what it is."""
    from pyspark.sql import functions as F

    groups: dict[str, list[Path]] = {}
    columns: dict[str, list[str]] = {}
    for path in files:
        schema = _parquet_schema(path)
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
    """Spark takes names for patterns."""
    return "".join("\\" + each if each in "*?[]{}\\" else each for each in str(path))


# ---- the first bad record


def _check_beginning(path: Path) -> None:
    for wrong in islice(_line_problems(path), LOOKED_AT):
        if wrong is not None:
            raise wrong


def _first_problem(path: Path) -> HistoryError:
    problems = _row_problems(path) if is_parquet(path) else _line_problems(path)
    for wrong in problems:
        if wrong is not None:
            return wrong
    return HistoryError(f"{path}: Spark cannot read a record that is good JSON")


def _line_problems(path: Path) -> Iterator[HistoryError | None]:
    """For each line that is not blank, what is wrong with it."""
    with gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as file:
        number = 0
        while True:
            number += 1
            try:
                line = file.readline()
            except (gzip.BadGzipFile, EOFError) as error:
                yield HistoryError(f"{path}, line {number}: the gzip stream is damaged: {error}")
                return
            if not line:
                return
            if not line.strip():
                continue
            try:
                wrong = problem(json.loads(line))
            except UnicodeDecodeError:
                wrong = "not UTF-8"
            except RecursionError:
                wrong = "JSON within JSON, too deep to be read"
            except ValueError as error:
                wrong = f"not JSON: {error}"
            yield None if wrong is None else HistoryError(f"{path}, line {number}: {wrong}")


def _row_problems(path: Path) -> Iterator[HistoryError | None]:
    number = 0
    for batch in pq.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            number += 1
            # a column that a kind of record has not is NULL there
            wrong = problem({key: value for key, value in row.items() if value is not None})
            yield None if wrong is None else HistoryError(f"{path}, row {number}: {wrong}")


def _parquet_schema(path: Path) -> pa.Schema:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{path}: not to be read as Parquet: {str(error).splitlines()[0]}") from None
    for field in schema:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise HistoryError(
                f"{path}: there is no column '{field.name}' in a history; allowed: {', '.join(COLUMNS)}"
            )
        if not pa.types.is_null(field.type) and not _fits(kind, field.type):
            raise HistoryError(f"{path}: column '{field.name}' is {field.type}; allowed: {kind}")
    return schema


def _fits(kind: str, given: pa.DataType) -> bool:
    if pa.types.is_dictionary(given):
        given = given.value_type
    if kind == TEXT:
        return bool(pa.types.is_string(given) or pa.types.is_large_string(given))
    return bool(pa.types.is_integer(given) if kind == INTEGER else pa.types.is_boolean(given))
