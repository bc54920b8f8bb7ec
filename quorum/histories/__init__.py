"""Recorded histories: the operations of clients with their answers, and checks of the service's guarantees on them.

    records    the form of a record
    recorder   records a history while clients run, in a file or in memory
    files      reads histories: JSON lines, Parquet
    pieces     records cut so that messages that were treated alike are judged as one
    judge      the six violations, in plain Python; `quorum.spark.pipelines.verify` has the same rules for large
               histories
    report     the result of both

docs/histories.md describes the form, the violations and the report.
"""

from quorum.histories.judge import judge
from quorum.histories.recorder import MemoryRecorder, Recorder, Run, now_us
from quorum.histories.records import HistoryError

__all__ = ["HistoryError", "MemoryRecorder", "Recorder", "Run", "judge", "now_us"]
