"""Whether Parquet files that Spark's tasks have written are where this process sees them.

On a cluster whose machines have no file system in common, each worker writes to its own disk, and Spark finds nothing
wrong with it. So rows are counted while they are written, and again in the files that are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from quorum.spark.errors import QuorumSparkError


def rows_in(directories: Iterable[Path]) -> int:
    """Of all Parquet files in these directories, not in those below them; only the ends of the files are read."""
    files = (file for each in directories for file in sorted(each.glob("*.parquet")))
    return sum(pq.read_metadata(file).num_rows for file in files)


def check_written(target: Path, directories: Iterable[Path], rows: int) -> None:
    """Raises QuorumSparkError unless the directories, which are in `target`, hold so many rows together."""
    try:
        found = rows_in(directories)
    except (OSError, pa.ArrowException) as error:
        raise QuorumSparkError(f"what was written to {target} cannot be read again: {error}") from error
    if found != rows:
        raise QuorumSparkError(
            f"{rows:,} rows were written to {target}, and {found:,} are there; on a cluster it has to be on a "
            "file system that the driver and all workers see as the same"
        )
