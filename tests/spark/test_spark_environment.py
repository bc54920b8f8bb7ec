"""Spark's tests run without a Java of the machine: in this process, and in those it starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorum.spark.java import packaged_runtime
from quorum.spark.session import DEFAULTS, LOCAL_DEFAULTS, PUSH_DOWN, WORKER_TIMEOUT
from support.spark import environment as spark_environment
from support.spark import kills as spark_kills
from support.spark.jvm import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAY = """
import json, os, shutil
print(json.dumps([shutil.which("java"), os.environ.get("JAVA_HOME"), sorted(os.listdir(os.environ["PATH"]))]))
"""


def is_known(spark: SparkSession, setting: str) -> bool:
    """Whether Spark reads a setting of this name. It takes any other one without a word."""
    entries = spark.sparkContext._jvm.org.apache.spark.internal.config.ConfigEntry  # type: ignore[union-attr]
    return entries.findEntry(setting) is not None


def test_the_end_of_a_jvm_is_told_with_its_exit_code_and_what_it_said(tmp_path: Path) -> None:
    jvm = Jvm(tmp_path)
    assert "has not started" in jvm.last_words()
    with jvm.starting():
        process = subprocess.Popen(
            ["bash", "-c", "echo no more room >&2; read; exit 50"], stdin=subprocess.PIPE
        )
    jvm.watch(process)
    assert not jvm.has_ended()
    process.communicate(b"\n")
    assert jvm.has_ended()
    (tmp_path / "jvm-crash.txt").write_text("a frame\n")
    assert jvm.last_words().splitlines() == [
        "Spark's JVM ended by itself, with exit code 50",
        "no more room",
        "a frame",
    ]


def test_spark_knows_every_setting_of_a_session(spark: SparkSession) -> None:
    for setting in {**DEFAULTS, **LOCAL_DEFAULTS, PUSH_DOWN: ""}:
        assert is_known(spark, setting), setting
    assert not is_known(spark, WORKER_TIMEOUT.lower())


def test_a_session_waits_longer_for_python_workers_than_spark_does_by_itself(spark: SparkSession) -> None:
    entries = spark.sparkContext._jvm.org.apache.spark.internal.config.ConfigEntry  # type: ignore[union-attr]
    assert entries.findEntry(WORKER_TIMEOUT).defaultValueString() == "15s"
    assert spark.sparkContext.getConf().get(WORKER_TIMEOUT) == "300s"


@pytest.fixture(scope="module")
def early() -> str:
    """What fixtures of modules see: some start drivers."""
    return os.environ["PATH"]


def test_path_has_the_named_tools_and_nothing_else(early: str) -> None:
    assert os.environ["PATH"] == early
    found = {file.name: os.path.realpath(file) for file in Path(early).iterdir()}
    assert set(found) <= set(spark_environment.TOOLS)
    assert {"bash", "chmod", "ps", "ls", "env", "dirname"} <= set(found)
    assert shutil.which("java") is None and shutil.which("python3") is None
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("given", [None, "spark_kills"])
def test_a_driver_that_is_a_process_of_its_own_finds_no_java(given: str | None) -> None:
    environment = spark_kills.environment() if given else None
    done = subprocess.run(
        [sys.executable, "-c", SAY], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [None, None, sorted(os.listdir(os.environ["PATH"]))]


def test_sparks_java_is_the_one_from_pypi(spark: SparkSession) -> None:
    runtime = packaged_runtime()
    assert runtime is not None
    system = spark.sparkContext._jvm.java.lang.System
    assert Path(system.getProperty("java.home")).resolve() == runtime.resolve()
    assert system.getenv("PATH") == os.environ["PATH"]
