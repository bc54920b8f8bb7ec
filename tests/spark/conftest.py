"""One Spark session for all tests here, on the Java runtime from PyPI: there is no java on their PATH."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from quorum import sync
from quorum.bulk import BulkClient
from quorum.local_cluster.cluster import LocalCluster
from support.spark import environment
from support.spark.jvm import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM = pytest.StashKey[Jvm]()


@pytest.fixture(scope="session")
def without_java(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the tests here."""
    return environment.without_java(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module", autouse=True)
def _environment(without_java: dict[str, str]) -> Iterator[None]:
    """Every test's, and of each process that it starts; other rooms' tests have theirs as it was."""
    with patch.dict(os.environ, without_java, clear=True):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    jvm = item.config.stash.get(JVM, None)
    if report.failed and jvm is not None and "spark" in getattr(item, "fixturenames", ()):
        report.sections.append(("Spark's JVM", jvm.last_words()))
    return report


@pytest.fixture(autouse=True)
def _jvm_runs(request: pytest.FixtureRequest) -> None:
    """Tests behind the end of the JVM would only say that nobody listens on its port."""
    jvm = request.config.stash.get(JVM, None)
    if jvm is not None and jvm.has_ended() and "spark" in request.fixturenames:
        pytest.fail("Spark's JVM has ended before this test", pytrace=False)


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, without_java: dict[str, str], pytestconfig: pytest.Config
) -> Iterator[SparkSession]:
    from pyspark import SparkContext

    from quorum.spark import session

    folder = tmp_path_factory.mktemp("spark")
    jvm = pytestconfig.stash[JVM] = Jvm(folder)
    with patch.dict(os.environ, without_java, clear=True), jvm.starting():
        started = session(
            "quorum-tests",
            **{
                **environment.SMALL_DATA,
                "spark.driver.extraJavaOptions": f"{environment.FAST_START} {jvm.options}",
                "spark.driver.memory": "1g",
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.local.dir": str(folder / "local"),
            },
        )
    jvm.watch(SparkContext._gateway.proc)  # type: ignore[union-attr]
    yield started
    if jvm.has_ended():
        pytest.fail(jvm.last_words(), pytrace=False)
    started.stop()


@pytest.fixture(scope="session")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One member, for all tests; each test has queues of its own. Three cost processor time while the JVM works;
    tests/processes reads and stages in bulk at three, and the campaign's data flows have three that are killed.

    Spark comes first: it forks to start its JVM, which a process with gRPC's threads does not always survive.
    """
    with LocalCluster(tmp_path_factory.mktemp("members") / "cluster", 1) as started:
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
