"""Fixtures for the tests of programs that use Quorum (pytest finds them by itself).

    quorum_cluster    a real cluster of member processes, for the whole session
    quorum_url        its URL for clients
    quorum_queue      the name of a new queue, which is deleted after the test

`--quorum-members N` says how many members the cluster has: 1 without it. The cluster needs the extra `server`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quorum.local_cluster.cluster import LocalCluster


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("quorum")
    group.addoption(
        "--quorum-members", type=int, default=1, metavar="N", help="members of the cluster of quorum_cluster"
    )


@pytest.fixture(scope="session")
def quorum_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """A cluster that serves. `kill(name)`, `start([name])` and `leader_of(group)` are for tests of failures."""
    from quorum.local_cluster.cluster import LocalCluster

    members = int(request.config.getoption("--quorum-members"))
    with LocalCluster(tmp_path_factory.mktemp("quorum") / "cluster", members) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def quorum_url(quorum_cluster: LocalCluster) -> str:
    """For `quorum.connect` and `quorum.sync.connect`."""
    return quorum_cluster.url


@pytest.fixture
def quorum_queue(quorum_url: str) -> Iterator[str]:
    """A queue that keeps filter fields, so that selectors can be tried."""
    from quorum import sync

    name = f"test-{uuid.uuid4().hex[:12]}"
    with sync.connect(quorum_url) as client:
        client.declare(name, {"x-filter-enabled": True})
        yield name
        if client.queues(name):  # else the test has deleted it
            client.delete(name)
