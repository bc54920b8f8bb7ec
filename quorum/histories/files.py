"""Reads the files of a history: JSON lines and Parquet, mixed. The error for a bad record names its file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from quorum.histories.records import COLUMNS, INTEGER, TEXT, HistoryError, Record, problem

JSON_ENDINGS = (".jsonl", ".jsonl.gz")
PARQUET_ENDING = ".parquet"
LOOKED_AT = 1_000
"""Lines at the beginning of a file that `check` reads: Spark, which reads the rest, ignores unknown keys."""
NEVER_READ = "_."
"""Spark ignores files whose names begin with one of these characters."""


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The given files, and the files of a history in the given directories. Raises HistoryError."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            if not path.exists():
                raise HistoryError(f"{path}: this file or directory does not exist")
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
    """Whether the file's content is Parquet; its name does not matter."""
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def check(paths: Sequence[Path]) -> list[Path]:
    """Check the beginnings of the files and return the files. Raises HistoryError."""
    files = files_of(paths)
    for path in files:
        if is_parquet(path):
            parquet_schema(path)
        else:
            _check_beginning(path)
    return files


def read(paths: Sequence[Path], most_operations: int) -> list[Record] | None:
    """The records of a history, in any order; None if it has more than `most_operations`.

    HistoryError for the first bad record, and if there is no record.
    """
    found: list[Record] = []
    operations = 0
    for path in files_of(paths):
        for record in _rows(path) if is_parquet(path) else _lines(path):
            if isinstance(record, HistoryError):
                raise record
            found.append(record)
            operations += record.get("count", 1)
            if operations > most_operations:
                return None
    if not found:
        raise HistoryError(f"{', '.join(map(str, paths))}: there is no record; nothing can be judged")
    return found


def _check_beginning(path: Path) -> None:
    for found in islice(_lines(path), LOOKED_AT):
        if isinstance(found, HistoryError):
            raise found


def first_problem(path: Path) -> HistoryError:
    """The first bad record of a file that has one."""
    for found in _rows(path) if is_parquet(path) else _lines(path):
        if isinstance(found, HistoryError):
            return found
    return HistoryError(f"{path}: Spark cannot read a record that is good JSON")


def _lines(path: Path) -> Iterator[Record | HistoryError]:
    """The record of each line that is not blank, or the error of the line."""
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
            record: Record = {}
            try:
                record = json.loads(line)
                wrong = problem(record)
            except UnicodeDecodeError:
                wrong = "not UTF-8"
            except RecursionError:
                wrong = "JSON within JSON, too deep to be read"
            except ValueError as error:
                wrong = f"not JSON: {error}"
            if wrong is not None:
                yield HistoryError(f"{path}, line {number}: {wrong}")
            else:
                yield _without_nulls(record)


def _rows(path: Path) -> Iterator[Record | HistoryError]:
    parquet_schema(path)
    number = 0
    for batch in pq.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            number += 1
            record = _without_nulls(row)  # a column that does not belong to the kind of record is NULL
            wrong = problem(record)
            yield record if wrong is None else HistoryError(f"{path}, row {number}: {wrong}")


def _without_nulls(record: Record) -> Record:
    return {key: value for key, value in record.items() if value is not None}


def parquet_schema(path: Path) -> pa.Schema:
    """The columns of a file. HistoryError for a column that no history has."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from None
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
