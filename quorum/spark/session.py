"""A Spark session prepared for the data source `quorum`: it finds Java and configures logging."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorum.spark.errors import SetupError
from quorum.spark.java import INSTALL, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2-quiet.properties")
LOCAL = "local[2,4]"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
"""Left at Spark's default, off: if it is on, Spark may read a DataFrame with the filter of an earlier query of it."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

WORKER_TIMEOUT = "spark.python.authenticate.socketTimeout"
"""Time that Spark's JVM and Python sides wait for each other when they open a connection."""

DEFAULTS = {
    # Spark's default of 15 s is too short on an overloaded machine
    WORKER_TIMEOUT: "300s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
LOCAL_DEFAULTS = {
    # one for each core of this machine; Spark's default of 200 is for clusters
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
STARTS = 3
"""Attempts to start the JVM."""
EXECUTOR_PATH = "spark.executorEnv.PYTHONPATH"


def session(app_name: str = "quorum", master: str = LOCAL, **conf: Any) -> SparkSession:
    """Start a Spark session, or return the present one with those settings changed that may be. Raises SetupError.

    master: local[threads,attempts] (Spark retries no task under plain local[2]), or a cluster's spark://host:port. The
    cluster's machines need Python at the same path and this package (docs/spark.md, On a cluster); they get this
    process's PYTHONPATH. conf: Spark settings by name, `**{"spark.driver.memory": "4g"}`; they override the defaults
    here. Sets JAVA_HOME, PYSPARK_PYTHON and, for a local master, SPARK_LOCAL_IP in the environment if they are not set.
    """
    require_spark()
    prepare_environment(master)
    from pyspark.sql import SparkSession

    own = {**DEFAULTS, **(LOCAL_DEFAULTS if is_local(master) else _for_executors(os.environ))}
    settings = {**own, **{name: _text(value) for name, value in conf.items()}}
    options = settings.get(JAVA_OPTIONS, "")
    if "log4j2.configurationFile" not in options:
        settings[JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {options}".strip()
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    started = _started(builder)
    # Spark finds the source by itself (pyspark_quorum), but only if there is a program `sh` on PATH
    from quorum.spark.source import QuorumSource

    started.dataSource.register(QuorumSource)
    return started


def _started(builder: SparkSession.Builder) -> SparkSession:
    """Spark forks to start its JVM, and gRPC's threads in this process can end the forked process at once. So an
    attempt without a JVM is repeated if this process has used gRPC."""
    from pyspark.errors import PySparkRuntimeError

    for _ in range(STARTS - 1):
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED" or "grpc" not in sys.modules:
                raise
    return builder.getOrCreate()


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process and its children."""
    return master == "local" or master.startswith("local[")


def _for_executors(environment: Mapping[str, str]) -> dict[str, str]:
    """This process's additional module paths for executors, which do not inherit them.

    Entries are absolute, because executors run in other directories.
    """
    path = environment.get("PYTHONPATH")
    if not path:
        return {}
    return {EXECUTOR_PATH: os.pathsep.join(os.path.abspath(each) for each in path.split(os.pathsep))}


def require_spark() -> None:
    """Raise SetupError if PySpark or PyArrow is missing, or if its version does not fit."""
    for module, name in (("pyspark", "PySpark"), ("pyarrow", "PyArrow")):
        if importlib.util.find_spec(module) is None:
            raise SetupError(f"{name} is not installed; {INSTALL}")
    import pyspark

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if not (4, 2) <= version < (4, 4):
        raise SetupError(f"PySpark is {pyspark.__version__}; 4.2 or 4.3 is needed; {INSTALL}")


def prepare_environment(master: str) -> None:
    """Set the environment that Spark's launcher and workers read."""
    os.environ["JAVA_HOME"] = str(java_home())
    # workers would run the first `python3` on PATH, which may lack pyarrow and this package
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
