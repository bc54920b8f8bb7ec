"""The Spark session of a pipeline command that reads queues or archives."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from quorum.cli.console import CliError, note
from quorum.cli.pipelines.spark_options import heap, settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MemoryOption = Annotated[str, typer.Option(metavar="SIZE", help="of Spark's JVM here: 2g, 4096m")]


@contextmanager
def spark_session(
    name: str, memory: str, master: str | None, conf: list[str] | None
) -> Iterator[SparkSession]:
    """A Spark session for one command. A wrong option or a failed query becomes a CliError with its cause."""
    from quorum.spark import OptionError, plain_failures, session
    from quorum.spark.failures import quiet_query_errors
    from quorum.spark.java import java_home
    from quorum.spark.session import LOCAL

    settings = {"spark.driver.memory": heap(memory), **settings_of(conf)}
    java_home()
    note("starting Spark")
    quiet_query_errors()
    with plain_failures():
        spark = session(f"quorum pipeline {name}", master or LOCAL, **settings)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's own handler would call the JVM
    try:
        with plain_failures():
            yield spark
    except OptionError as error:
        raise CliError(str(error)) from None
    finally:
        spark.stop()
