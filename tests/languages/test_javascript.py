"""A client in another language, from the .proto files alone: JavaScript, with the packages of npm."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from pathlib import Path

import google.rpc.status_pb2
import pytest

from quorum.local_cluster.cluster import LocalCluster
from support.repository import ROOT

EXAMPLE = ROOT / "tests" / "languages" / "javascript"
GOOGLE = pathlib.Path(google.rpc.status_pb2.__file__).parents[2]
LIMIT_S = 120


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The example with its packages. Skipped where npm is not installed, or reaches no registry."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path / "javascript"
    shutil.copytree(EXAMPLE, folder)
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--silent"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"npm reaches no registry: {done.stderr[-300:]}")
    return folder


def test_javascript_declares_publishes_and_consumes_with_a_selector(installed: Path, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", 1) as cluster:
        address = cluster.url.removeprefix("quorum://")
        done = subprocess.run(
            ["node", "client.js", address, str(ROOT / "proto"), str(GOOGLE)],
            cwd=installed,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["confirmed 1..3", "received an anvil, a rose"]
