"""`quorum pipeline` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import quorum.spark
from quorum.cli.console import Complaint
from quorum.cli.main import app
from support.histories import healthy
from support.repository import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Kept:
    """The session of the tests, which a command must not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        pass


def test_verify_tells_what_it_found_and_ends_with_1(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum.spark, "session", lambda *_, **__: Kept(spark))
    history = healthy(3, messages=30)
    history.operations.append(
        {"kind": "publish", "queue": "orders", "producer": "p9", "number": 4, "invoked": 1, "returned": 2}
    )
    file = str(history.write(tmp_path / "h.jsonl"))
    done = CliRunner().invoke(app, ["pipeline", "verify", file])
    assert done.exit_code == 1
    line = (
        "lost: queue orders: producer p9 number 4 was confirmed at 2, was never delivered, and is not there\n"
    )
    assert done.stdout == line
    done = CliRunner().invoke(app, ["pipeline", "verify", file, "--incomplete", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["findings"] == {}


def test_what_was_written_wrongly_is_a_complaint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum.spark, "session", lambda *_, **__: Kept(spark))
    done = CliRunner().invoke(app, ["pipeline", "verify", str(tmp_path / "nowhere")])
    assert isinstance(done.exception, Complaint)
    assert "there is no history" in str(done.exception)


def test_without_a_java_that_works_one_sentence_is_told() -> None:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "selectors")))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "quorum", "pipeline", "verify", "x.jsonl"],
        env={**os.environ, "JAVA_HOME": "/nowhere", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: JAVA_HOME is /nowhere, and there is no /nowhere/bin/java that can be run\n"
