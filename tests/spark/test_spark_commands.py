"""`quorum pipeline` where Spark cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import ROOT


@pytest.mark.parametrize(
    "command", [("archive", "flights", "--to", "archive"), ("selectivity", "archive", "-s", "TRUE")]
)
def test_without_a_java_that_works_one_sentence_is_told(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "quorum", "pipeline", *command],
        env={
            **os.environ,
            "JAVA_HOME": "/nowhere",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "selectors"))),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: JAVA_HOME is /nowhere, and there is no /nowhere/bin/java that can be run\n"
