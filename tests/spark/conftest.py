"""One Spark session for all tests here, on the Java runtime from PyPI: there is no java on their PATH."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorum import sync
from quorum.bulk import BulkClient
from quorum.cli.local_cluster import LocalCluster
from support.repository import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TOOLS = (
    "bash",
    "sh",
    "env",
    "ps",
    "chmod",
    "dirname",
    "basename",
    "uname",
    "cat",
    "ls",
    "rm",
    "readlink",
    "sed",
    "nice",
)
"""What Spark's scripts call."""


def path_without_java(directory: Path) -> str:
    """A PATH on which there is all that Spark needs, and no java."""
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is not None:
            (directory / tool).symlink_to(found)
    return str(directory)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from quorum.spark import session

    folder = tmp_path_factory.mktemp("spark")
    tools = folder / "tools"
    tools.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path_without_java(tools))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.delenv("JAVA_HOME", raising=False)
        # workers are processes of their own: they have to find the same code
        paths = [ROOT, ROOT / "selectors", ROOT / "spark", ROOT / "tests"]
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
        started = session(
            "quorum-tests",
            **{
                "spark.driver.extraJavaOptions": FAST_START,
                "spark.driver.memory": "1g",
                "spark.sql.shuffle.partitions": 2,
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.local.dir": str(folder / "local"),
            },
        )
        yield started
        started.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three members, for all tests; each test has queues of its own."""
    with LocalCluster(tmp_path_factory.mktemp("members") / "cluster", 3) as started:
        yield started


@pytest.fixture(scope="session")
def client(cluster: LocalCluster) -> Iterator[sync.Client]:
    with sync.connect(cluster.url) as connected:
        yield connected


@pytest.fixture(scope="session")
def bulk(cluster: LocalCluster) -> Iterator[BulkClient]:
    with BulkClient(cluster.url) as made:
        yield made


@pytest.fixture
def queue(client: sync.Client, request: pytest.FixtureRequest) -> str:
    """A new queue that keeps filter fields."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)[:100]
    client.declare(name, {"x-filter-enabled": True})
    return name
