"""Where PySpark finds the data source `quorum`.

PySpark imports every top-level module named pyspark_* and registers its `DefaultSource`. It catches nothing there: a
module that fails would take all Python data sources with it. So this one imports nothing until it is asked, and where
something is missing it has no DefaultSource, rather than an error.
"""

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from quorum.spark.source import QuorumSource
        except Exception as error:
            # not only ImportError: generated code raises errors of its own for a protobuf or grpc that is too old
            raise AttributeError(f"the data source quorum cannot be imported: {error}") from error
        return QuorumSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
