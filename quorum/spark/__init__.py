"""Quorum in Spark: the data source `quorum` (source and sink), a session that is set up for it, and pipelines.

    from quorum.spark import session, to_selector

    spark = session()
    flights = spark.read.format("quorum").option("queue", "flights").load()

It needs the distribution's extra `spark`: pyspark, pyarrow, and a Java runtime (the one from PyPI if there is no
other). Importing this package needs none of them. docs/spark.md lists options, columns and guarantees.
"""

from __future__ import annotations

from quorum.spark.errors import DataLoss, OptionError, QueryFailed, QuorumSparkError, SetupError
from quorum.spark.failures import cause, plain_failures
from quorum.spark.lag import Lag, lag
from quorum.spark.session import session
from quorum.spark.translate import to_selector

__all__ = [
    "DataLoss",
    "Lag",
    "OptionError",
    "QueryFailed",
    "QuorumSparkError",
    "SetupError",
    "cause",
    "lag",
    "plain_failures",
    "session",
    "to_selector",
]
