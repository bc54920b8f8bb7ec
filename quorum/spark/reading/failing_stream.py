"""A stream with wrong options: it raises their error at Spark's first call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from quorum.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error at every call but `stop`."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, int]:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self._refuse()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()

    def stop(self) -> None:
        """Do nothing; a refused stream never started."""
