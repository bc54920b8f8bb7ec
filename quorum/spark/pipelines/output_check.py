"""Checks that this process sees the Parquet files that Spark's tasks have written.

On a cluster without a shared file system, each worker writes to its own disk, and Spark reports no error. Rows are
therefore counted while they are written, and again in the files that this process finds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from quorum.spark.errors import QuorumSparkError


def rows_in(directories: Iterable[Path]) -> int:
    """Number of rows in the Parquet files directly in these directories; only the files' footers are read."""
    files = (file for each in directories for file in sorted(each.glob("*.parquet")))
    return sum(pq.read_metadata(file).num_rows for file in files)


def check_written(target: Path, directories: Iterable[Path], rows: int) -> None:
    """Raise QuorumSparkError unless the directories, which are in `target`, hold this number of rows together."""
    try:
        found = rows_in(directories)
    except (OSError, pa.ArrowException) as error:
        raise QuorumSparkError(f"the files written to {target} cannot be read: {error}") from error
    if found != rows:
        raise QuorumSparkError(
            f"{rows:,} rows were written to {target}, and {found:,} are there; on a cluster it has to be on a "
            "file system that the driver and all workers share"
        )
