"""Offsets that say whose they are.

An offset of a queue is a number: that of a reservation (mode=consume), or a sequence (mode=tail). With the checkpoint
of another subscription or mode, a query would take such a number for its own, and settle messages that nobody has read.
So an offset in a checkpoint also has the mode and the subscription, under the empty name, which no queue has.
Checkpoints of version 0.2.0 have no such entry, and are used as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from quorum.spark.errors import OptionError
from quorum.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from quorum.spark.reading.stream import ConsumeReader
    from quorum.spark.reading.tail import TailReader

OWNER = ""


class OwnedOffsets(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of which Spark gets owned offsets. The reader itself has numbers by queue."""

    def __init__(self, reader: ConsumeReader | TailReader, options: SourceOptions) -> None:
        self._reader = reader
        self._owner = {"mode": options.mode}
        if options.mode == "consume":
            self._owner["subscription"] = options.subscription

    def _owned(self, offset: Mapping[str, int]) -> dict[str, Any]:
        return {OWNER: self._owner, **offset}

    def _numbers(self, offset: Mapping[str, Any]) -> dict[str, int]:
        """OptionError if another subscription or mode has written the offset."""
        numbers = dict(offset)
        owner = numbers.pop(OWNER, self._owner)
        if owner != self._owner:
            raise OptionError(
                f"the checkpoint was written with {_text(owner)}, and this query has {_text(self._owner)}: use the "
                "options of the checkpoint, or another checkpoint"
            )
        return numbers

    def initialOffset(self) -> dict[str, Any]:
        return self._owned(self._reader.initialOffset())

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._reader.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        self._reader.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._owned(self._reader.latestOffset(self._numbers(start), limit))

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._reader.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._reader.partitions(self._numbers(start), self._numbers(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(self._numbers(end))

    def stop(self) -> None:
        self._reader.stop()


def _text(owner: Mapping[str, str]) -> str:
    return " and ".join([f"{key}={value}" for key, value in owner.items()])
