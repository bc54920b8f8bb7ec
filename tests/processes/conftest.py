"""Clusters of real member processes for tests; nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quorum.cli.local_cluster import LocalCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three members."""
    yield from running(tmp_path / "cluster", 3)


@pytest.fixture
def cluster_of_five(tmp_path: Path) -> Iterator[LocalCluster]:
    yield from running(tmp_path / "cluster", 5)


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three members for all tests of a module: they must survive every one of them."""
    yield from running(tmp_path_factory.mktemp("shared") / "cluster", 3)


def running(directory: Path, members: int) -> Iterator[LocalCluster]:
    with LocalCluster(directory, members=members) as cluster:
        yield cluster
        ended = cluster.ended()
        outputs = "\n".join(cluster.last_output(name) for name in ended)
    assert not ended, f"members ended by themselves: {ended}\n{outputs}"
