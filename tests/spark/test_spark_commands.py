"""`quorum pipeline archive` as a process: what it says where something is wrong, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quorum import sync
from quorum.local_cluster.cluster import LocalCluster
from support.repository import IMPORT_PATH
from support.spark.environment import FAST_START, PATHS

LIMIT_S = 300.0
"""For a JVM's start, on a machine with other work."""


@pytest.mark.parametrize(
    "command", [("archive", "flights", "--to", "archive"), ("selectivity", "archive", "-s", "TRUE")]
)
def test_without_a_java_that_works_one_sentence_is_told(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "quorum", "pipeline", *command],
        env={
            **os.environ,
            "JAVA_HOME": "/nowhere",
            "PYTHONPATH": IMPORT_PATH,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == "error: JAVA_HOME is /nowhere, but /nowhere/bin/java does not exist or cannot be run\n"
    )


@pytest.mark.timeout(2 * LIMIT_S)
def test_an_archive_that_runs_on_ends_quietly_with_ctrl_c(
    cluster: LocalCluster, client: sync.Client, queue: str, tmp_path: Path
) -> None:
    client.publish_batch(queue, [b"%d" % number for number in range(10)])
    command = [sys.executable, "-P", "-m", "quorum", "pipeline", "archive", queue, "--to", "archive"]
    command += ["--interval", "0.2", "--fields", "color STRING", "--url", cluster.url]
    command += ["--conf", f"spark.driver.extraJavaOptions={FAST_START}"]
    with (tmp_path / "output").open("wb") as output:
        archive = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))},
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + LIMIT_S
        while client.describe(queue).queue.total:
            assert archive.poll() is None and time.monotonic() < end, (tmp_path / "output").read_text()
            time.sleep(0.1)
        os.killpg(archive.pid, signal.SIGINT)  # as a terminal does: to the JVM, too
        assert archive.wait(LIMIT_S) == 0, (tmp_path / "output").read_text()
    finally:
        archive.kill()
        archive.wait()
    said = (tmp_path / "output").read_text().splitlines()
    assert said == ["starting Spark", "archived 10 messages to archive"]


def test_what_is_wrong_is_told_before_spark_starts(cluster: LocalCluster, queue: str, tmp_path: Path) -> None:
    for arguments, words in (
        ((queue, "--memory", "lots"), "--memory 'lots'; allowed: 512m and more"),
        ((queue, "--selector", "color ="), "option selector: "),
        ((queue, "--fields", "color TEXT"), "allowed: STRING"),
        ((f"{queue}-nowhere",), f"there is no queue '{queue}-nowhere'"),
        (("a,b",), "a queue named 'a,b' cannot be archived"),
    ):
        command = [sys.executable, "-P", "-m", "quorum", "pipeline", "archive", *arguments, "--to", "archive"]
        done = subprocess.run(
            [*command, "--url", cluster.url],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (1, 2) and words in done.stderr, done.stderr
        assert "starting Spark" not in done.stderr and "Traceback" not in done.stderr
