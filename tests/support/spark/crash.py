"""The data source `quorum` with a sink that fails at the worst moment: after it has published, before Spark knows."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quorum.spark.options import SinkOptions, sink_options
from quorum.spark.sink import StreamWriter
from quorum.spark.source import QuorumSource


class CrashingSource(QuorumSource):
    """Option crashBatch: the number of the batch whose commit fails."""

    @classmethod
    def name(cls) -> str:
        return "quorum_crashing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        given = {name: value for name, value in self.options.items() if name.lower() != "crashbatch"}
        return CrashingWriter(sink_options(given, streaming=True), schema, int(self.options["crashBatch"]))


class CrashingWriter(StreamWriter):
    def __init__(self, options: SinkOptions, schema: StructType, crash_batch: int) -> None:
        super().__init__(options, schema)
        self._crash_batch = crash_batch

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == self._crash_batch:
            raise RuntimeError("as if the driver had died")
