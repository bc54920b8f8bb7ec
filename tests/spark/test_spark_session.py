"""What a session and the commands give to Spark for a cluster. Nothing here starts Spark."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkRuntimeError
from typer.testing import CliRunner

import quorum.spark
from quorum.cli.console import CliError
from quorum.cli.main import app
from quorum.cli.pipelines.spark_options import settings_of
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark import SetupError
from quorum.spark.errors import QuorumSparkError
from quorum.spark.pipelines.output_check import check_written
from quorum.spark.session import EXECUTOR_PATH, STARTS, _for_executors, _started, is_local


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]"])
def test_masters_in_the_drivers_own_process(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize(
    "master", ["spark://a:7077", "spark://local:7077", "local-cluster[2,1,1024]", "yarn"]
)
def test_masters_with_processes_elsewhere(master: str) -> None:
    assert not is_local(master)


class Builder:
    """A builder of sessions whose JVM does not start for a while."""

    def __init__(self, failures: int, condition: str = "JAVA_GATEWAY_EXITED") -> None:
        self.failures = failures
        self.condition = condition

    def getOrCreate(self) -> str:
        if self.failures:
            self.failures -= 1
            raise PySparkRuntimeError(errorClass=self.condition, messageParameters={})
        return "started"


def test_a_jvm_that_grpcs_threads_have_ended_is_started_again() -> None:
    started: Any = _started
    assert started(Builder(STARTS - 1)) == "started"
    with pytest.raises(PySparkRuntimeError):
        started(Builder(STARTS))
    other = Builder(1, "CONTEXT_ONLY_VALID_ON_DRIVER")
    with pytest.raises(PySparkRuntimeError):
        started(other)


def test_executors_get_the_drivers_pythonpath_as_absolute_paths() -> None:
    assert _for_executors({}) == _for_executors({"PYTHONPATH": ""}) == {}
    given = os.pathsep.join(["/opt/code", "lib", ""])
    assert _for_executors({"PYTHONPATH": given}) == {
        EXECUTOR_PATH: os.pathsep.join(["/opt/code", os.path.abspath("lib"), os.getcwd()])
    }


def test_settings_are_names_and_values() -> None:
    assert settings_of(None) == {}
    assert settings_of(["spark.a=1", "spark.b=x=y", "spark.c="]) == {
        "spark.a": "1",
        "spark.b": "x=y",
        "spark.c": "",
    }
    for wrong in ("spark.a", "a=1", "=1", ""):
        with pytest.raises(CliError, match=r"allowed: spark\.NAME=VALUE"):
            settings_of([wrong])
    with pytest.raises(CliError, match="use --master"):
        settings_of(["spark.master=local"])


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.jsonl"
    path.write_text('{"op":"left","queue":"q","count":0}\n', encoding="utf-8")
    return path


@pytest.mark.parametrize("command", ["archive", "selectivity", "deadletters", "verify"])
def test_every_pipeline_hands_master_and_settings_on(
    command: str,
    cluster: LocalCluster,
    queue: str,
    history: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def session(name: str, master: str, **conf: Any) -> None:
        asked.append((master, conf))
        raise SetupError("no further")

    monkeypatch.setattr(quorum.spark, "session", session)
    limits = importlib.import_module("quorum.histories.judge")
    monkeypatch.setattr(limits, "MAX_OPERATIONS", -1)  # any history is too large for this process
    arguments = {
        "archive": [queue, "--to", str(tmp_path / "archive"), "--url", cluster.url],
        "selectivity": [str(tmp_path), "-s", "TRUE"],
        "deadletters": [queue, "--url", cluster.url],
        "verify": [str(history), "--scratch", str(tmp_path)],
    }[command]
    elsewhere = ["--master", "spark://far:7077", "--conf", "spark.x=1", "--conf", "spark.driver.memory=3g"]
    for given in ([], elsewhere):
        done = CliRunner().invoke(app, ["pipeline", command, *arguments, *given])
        assert "no further" in str(done.exception)
    (here, _), (there, conf) = asked
    assert is_local(here)
    assert (there, conf["spark.x"], conf["spark.driver.memory"]) == ("spark://far:7077", "1", "3g")


def test_on_a_cluster_a_verification_wants_a_directory_that_all_see(history: Path, tmp_path: Path) -> None:
    command = ["pipeline", "verify", str(history), "--master", "spark://far:7077"]
    assert "needs --scratch DIR" in str(CliRunner().invoke(app, command).exception)
    none = [*command, "--scratch", str(tmp_path / "none")]
    assert "this directory does not exist" in str(CliRunner().invoke(app, none).exception)


def test_what_workers_wrote_elsewhere_is_missed(tmp_path: Path) -> None:
    here = tmp_path / "date=1"
    here.mkdir()
    for name in ("a", "b"):
        pq.write_table(pa.table({"n": range(5)}), here / f"{name}.parquet")
    check_written(tmp_path, [here], 10)
    check_written(tmp_path, [tmp_path / "none"], 0)
    with pytest.raises(QuorumSparkError, match=r"11 rows were written to .*, and 10 are there"):
        check_written(tmp_path, [here], 11)
    (here / "c.parquet").write_bytes(b"PAR1")
    with pytest.raises(QuorumSparkError, match="cannot be read"):
        check_written(tmp_path, [here], 10)
