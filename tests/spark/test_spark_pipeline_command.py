"""`quorum pipeline verify` as its users meet it: a process, its exit status, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quorum.cli.console import CliError
from quorum.cli.pipelines.spark_options import heap
from quorum.histories import Recorder, Run
from support.repository import environment
from support.spark.environment import FAST_START

LIMIT_S = 600.0
"""A JVM starts, on a machine that may be busy."""


def pipeline(*arguments: str | Path, status: int) -> tuple[str, str]:
    """(stdout, stderr); neither shows a traceback, of Python or of the JVM."""
    done = subprocess.run(
        [sys.executable, "-m", "quorum", "pipeline", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    for sign in ("Traceback", "\tat ", "Exception"):
        assert sign not in done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.timeout(900)
def test_violations_are_told_and_are_status_1(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Recorder(path) as recorder:
        recorder.publish("orders", "shop", 0, count=10, invoked_us=1, returned_us=2, outcome="confirmed")
        messages = [Run(5, "shop", 0, count=9)]
        recorder.deliver("orders", "billing/1", messages, at_us=3)
        recorder.settle("orders", "billing/1", messages, invoked_us=4, returned_us=5, outcome="ok")
        recorder.left("orders")
    fast = f"spark.driver.extraJavaOptions={FAST_START}"
    out, err = pipeline("verify", path, "--json", "--memory", "512m", "--conf", fast, status=1)
    told = json.loads(out)
    assert (told["clean"], told["operations"]) == (False, 28)
    (line,) = told["lines"]
    assert (line["queue"], line["producer"]) == ("orders", "shop")
    assert {kind: count for kind, count in line["broken"].items() if count} == {"lost": 1}
    assert [each["number"] for each in told["culprits"]["lost"]] == [9]
    assert "28 operations in 4 records" in err


def test_what_cannot_be_read_is_status_2_and_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"op":"left","queue":"q","count":0}\n{"op":"settle"}\n', encoding="utf-8")
    assert pipeline("verify", path, status=2) == (
        "",
        f"error: {path.resolve()}, line 2: a record 'settle' needs 'queue'\n",
    )
    assert pipeline("verify", tmp_path / "none", status=2) == (
        "",
        f"error: {tmp_path}/none: this file or directory does not exist\n",
    )
    _, err = pipeline("verify", path, "--memory", "4 GB", status=2)
    assert err == "error: --memory '4 GB'; allowed: 512m and more, written as 800m or 4g\n"


@pytest.mark.parametrize(("given", "taken"), [("4g", "4g"), ("512m", "512m"), ("1G", "1g"), ("900M", "900m")])
def test_sizes_of_the_heap(given: str, taken: str) -> None:
    assert heap(given) == taken


@pytest.mark.parametrize("given", ["", "4", "511m", "0g", "-1g", "1.5g", "4gb", "1t"])
def test_sizes_that_spark_would_choke_on_are_refused(given: str) -> None:
    with pytest.raises(CliError, match="allowed: 512m and more"):
        heap(given)
