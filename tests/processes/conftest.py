"""Clusters of real member processes for tests; nothing is left behind.

Starting members is most of the time these tests take, so one cluster serves many of them, each with queues of its own.
A test that fails takes its cluster along: the next one gets a new one. Members cost processor time when they are idle,
too: the tests that share a cluster run one after the other, and it is stopped after the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from quorum.local_cluster.cluster import LocalCluster
from support.processes.cluster import FaultyCluster

C = TypeVar("C", bound=LocalCluster)
HAS_FAILED = pytest.StashKey[bool]()
SHARED = ("real", "faulty")
"""The fixtures that hold a shared cluster, in the order in which their tests run."""
STARTED: dict[str, Shared[Any]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[place] for place in places), key=_turn)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def _turn(item: pytest.Item) -> int:
    return next((turn for turn, name in enumerate(SHARED) if _uses(item, name)), len(SHARED))


def _uses(item: pytest.Item | None, fixture: str) -> bool:
    return isinstance(item, pytest.Function) and fixture in item.fixturenames


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    result = yield
    for name, shared in STARTED.items():
        if not _uses(nextitem, name):
            shared.stop()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
    return report


class Shared(Generic[C]):
    """One cluster, made when it is first used, and again after a test that failed with it."""

    def __init__(self, make: Callable[[int], C]) -> None:
        self._make = make
        self._made = 0
        self._idle: C | None = None

    @contextmanager
    def use(self, test: pytest.Item | pytest.Collector) -> Iterator[C]:
        cluster, self._idle = self._idle, None
        if cluster is None:
            self._made += 1
            cluster = self._make(self._made)
            cluster.__enter__()
        try:
            yield cluster
            ended = cluster.processes.ended()
            outputs = "\n".join(cluster.processes.last_output(name) for name in ended)
            assert not ended, f"members ended by themselves: {ended}\n{outputs}"
        except BaseException:
            cluster.stop()
            raise
        if test.stash.get(HAS_FAILED, False):
            cluster.stop()
        else:
            self._idle = cluster

    def stop(self) -> None:
        cluster, self._idle = self._idle, None
        if cluster is not None:
            cluster.stop()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[LocalCluster]]:
    """Three members, started as everybody starts them."""
    folder = tmp_path_factory.mktemp("real")
    shared = STARTED["real"] = Shared(lambda number: LocalCluster(folder / f"cluster-{number}"))
    yield shared
    shared.stop()


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[FaultyCluster]]:
    """Three members on disks that can fail, behind proxies that can be cut."""
    folder = tmp_path_factory.mktemp("faulty")
    shared = STARTED["faulty"] = Shared(
        lambda number: FaultyCluster(folder / f"cluster-{number}", seed=number, with_proxies=True)
    )
    yield shared
    shared.stop()


@pytest.fixture
def cluster(real: Shared[LocalCluster], request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three members."""
    with real.use(request.node) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared_cluster(real: Shared[LocalCluster], request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three members for all tests of a module: they must survive every one of them."""
    with real.use(request.node) as cluster:
        yield cluster


@pytest.fixture
def faulty_cluster(faulty: Shared[FaultyCluster], request: pytest.FixtureRequest) -> Iterator[FaultyCluster]:
    with faulty.use(request.node) as cluster:
        yield cluster


@pytest.fixture
def cluster_of_five(tmp_path: Path) -> Iterator[FaultyCluster]:
    with FaultyCluster(tmp_path / "cluster", 5, with_proxies=True) as cluster:
        yield cluster
        assert not cluster.processes.ended(), f"members ended by themselves: {cluster.processes.ended()}"
