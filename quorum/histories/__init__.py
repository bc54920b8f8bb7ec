"""Recorded histories: the operations of clients with their answers, and checks of the service's guarantees on them.

    records    the form of a record
    recorder   writes a history while clients run
    files      reads histories: JSON lines, Parquet
    judge      the six violations, in plain Python; `quorum.spark.verify` has the same rules for large histories
    report     the result of both

docs/histories.md describes the form, the violations and the report.
"""

from quorum.histories.judge import judge
from quorum.histories.recorder import Recorder, Run, now_us
from quorum.histories.records import HistoryError

__all__ = ["HistoryError", "Recorder", "Run", "judge", "now_us"]
