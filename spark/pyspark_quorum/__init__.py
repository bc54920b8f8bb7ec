"""Makes PySpark find the data source `quorum`.

PySpark imports every top-level module named pyspark_* and registers its `DefaultSource`. It catches no errors there: a
module that fails would disable all Python data sources. This module therefore imports nothing until its DefaultSource
is requested, and has no DefaultSource if something is missing.
"""

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from quorum.spark.source import QuorumSource
        except Exception as error:
            # not only ImportError, because generated code raises other errors for a protobuf or grpc that is too old
            raise AttributeError(f"the data source quorum cannot be imported: {error}") from error
        return QuorumSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
