"""The pytest plugin, as a user's own tests meet it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.repository import ROOT

OF_A_USER = """
import quorum.sync


def test_a_message_comes_back(quorum_url, quorum_queue):
    with quorum.sync.connect(quorum_url) as client:
        client.publish(quorum_queue, b"hello", application_properties={"colour": "red"})
        [message] = client.get(quorum_queue, 1)
        assert message.body == b"hello"


def test_every_test_has_a_queue_of_its_own(quorum_url, quorum_queue):
    with quorum.sync.connect(quorum_url) as client:
        assert client.get(quorum_queue, 1) == []


def test_a_test_may_delete_its_queue(quorum_url, quorum_queue):
    with quorum.sync.connect(quorum_url) as client:
        client.delete(quorum_queue)


def test_the_cluster_is_a_real_one(quorum_cluster):
    assert len(quorum_cluster.running()) == 1
"""


def test_a_users_tests_get_a_cluster_and_a_queue_each(tmp_path: Path) -> None:
    (tmp_path / "test_of_a_user.py").write_text(OF_A_USER, encoding="utf-8")
    path = os.pathsep.join([str(ROOT), str(ROOT / "selectors")])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(tmp_path),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
