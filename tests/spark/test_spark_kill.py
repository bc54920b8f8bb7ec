"""The whole driver of a data flow is killed at any moment, and nothing is lost and nothing there twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorum.local_cluster.cluster import LocalCluster
from support.spark.kills import queue_to_queue

LIMIT_S = 900
"""Two lives of a JVM, on a machine with other work."""


@pytest.mark.timeout(LIMIT_S)
def test_from_queue_to_queue_through_a_shuffle(cluster: LocalCluster, tmp_path: Path) -> None:
    said = queue_to_queue(cluster, tmp_path, messages=1_000, per_trigger=250, kills=1, longest_s=1.0, seed=1)
    assert said == "1,000 messages through a shuffle, driver killed 1 times, none lost, none twice"
