"""The whole driver is killed, Python and Java, in the middle of batches; what it moved has arrived exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quorum import sync
from quorum.bulk import BulkClient
from quorum.cli.local_cluster import LocalCluster
from support.repository import ROOT

MESSAGES = 1_200
KILLS = 2
LIMIT_S = 240.0
POLL_S = 0.01


def start(cluster: LocalCluster, source: str, target: str, checkpoint: Path) -> subprocess.Popen[bytes]:
    folders = (ROOT, ROOT / "selectors", ROOT / "spark", ROOT / "tests")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "support.spark_transfer", cluster.url, source, target, str(checkpoint)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )


def kill(driver: subprocess.Popen[bytes]) -> None:
    """Its whole session: Java, and the Python processes that Java has started."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.mark.timeout(LIMIT_S * (KILLS + 1))
def test_a_driver_that_is_killed_loses_and_repeats_nothing(
    cluster: LocalCluster, client: sync.Client, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    target = f"{queue[:60]}-to"
    client.declare(target)
    client.publish_batch(queue, [b"%d" % number for number in range(MESSAGES)])
    for _ in range(KILLS):
        before = bulk.queue_info(target).ready
        driver = start(cluster, queue, target, tmp_path)
        try:
            deadline = time.monotonic() + LIMIT_S
            # right after a batch was published, most likely before Spark has written its commit log
            while bulk.queue_info(target).ready == before:
                assert driver.poll() is None and time.monotonic() < deadline
                time.sleep(POLL_S)
        finally:
            kill(driver)
        assert bulk.queue_info(target).ready < MESSAGES
    last = start(cluster, queue, target, tmp_path)
    try:
        assert last.wait(LIMIT_S) == 0
    finally:
        if last.poll() is None:
            kill(last)
    assert sorted(int(each.body) for each in client.browse(target)) == list(range(MESSAGES))
    info = bulk.queue_info(queue)
    assert (info.ready, info.held) == (0, 0)
