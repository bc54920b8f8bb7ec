"""A Spark session that the data source `quorum` works well in: Java found, no noise."""

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
"""Left as Spark has it, off: where it is on, Spark may read a DataFrame by the filter of an earlier query of it."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

WORKER_TIMEOUT = "spark.python.authenticate.socketTimeout"
"""How long Spark's two halves wait for each other when they open a connection."""

DEFAULTS = {
    # Spark's own 15 s are too short where the machine has more to do than it can
    WORKER_TIMEOUT: "300s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
LOCAL_DEFAULTS = {
    # as many as there are cores here; Spark's own 200 are for clusters
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
EXECUTOR_PATH = "spark.executorEnv.PYTHONPATH"


def session(app_name: str = "quorum", master: str = LOCAL, **conf: Any) -> SparkSession:
    """The session, started or, if there is one, the one there is, with what may be changed of it changed.

    master: local[threads,attempts] (Spark tries no task twice under plain local[2]), or a cluster's,
    spark://host:port: its machines need Python at the same place and this package (docs/spark.md, On a cluster).
    PYTHONPATH, where it is set, is handed on to them. conf: settings of Spark by their names,
    `**{"spark.driver.memory": "4g"}`; they win over the defaults here. Sets JAVA_HOME, PYSPARK_PYTHON and, for a local
    master, SPARK_LOCAL_IP in the environment where they are not set. Raises SetupError.
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
    started = builder.getOrCreate()
    # Spark finds it by itself (pyspark_quorum), but only where there is a program `sh` on PATH
    from quorum.spark.source import QuorumSource

    started.dataSource.register(QuorumSource)
    return started


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process and its children."""
    return master == "local" or master.startswith("local[")


def _for_executors(environment: Mapping[str, str]) -> dict[str, str]:
    """Where this process finds modules besides those that are installed, so do executors: they inherit nothing.

    They run in other directories, so that no entry may be relative.
    """
    path = environment.get("PYTHONPATH")
    if not path:
        return {}
    return {EXECUTOR_PATH: os.pathsep.join(os.path.abspath(each) for each in path.split(os.pathsep))}


def require_spark() -> None:
    """Raises SetupError where PySpark or PyArrow is missing, or a version that has not what is needed."""
    for module, name in (("pyspark", "PySpark"), ("pyarrow", "PyArrow")):
        if importlib.util.find_spec(module) is None:
            raise SetupError(f"{name} is not installed; {INSTALL}")
    import pyspark

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if not (4, 2) <= version < (4, 4):
        raise SetupError(f"PySpark is {pyspark.__version__}; 4.2 or 4.3 is needed; {INSTALL}")


def prepare_environment(master: str) -> None:
    """What Spark's launcher and its workers read from the environment."""
    os.environ["JAVA_HOME"] = str(java_home())
    # workers would run whatever `python3` is first on PATH, which may miss pyarrow and this package
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
