"""How hypothesis runs: `make test` draws few cases, the same ones every time; `make campaign` draws new ones, and four
times as many (support/examples.py). Neither is timed.

And which ports the members that tests start listen on. `make test` runs several parts at the same time, and two tests
that look for free ports at the same time may find the same ones. So each part has a range of its own."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("steady"), derandomize=False, max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

PORTS = {
    "api": range(10_000, 11_000),
    "languages": range(11_000, 12_000),
    "spark": range(12_000, 14_000),
    "processes": range(14_000, 20_000),
}
"""The ports of a folder's tests. The other folders that start members are all in the part `commands`; their ports are
those of a local cluster (quorum/local_cluster/ports.py), because they also start clusters with the command."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    ports = PORTS.get(item.path.relative_to(Path(__file__).parent).parts[0])
    if ports is None:
        return (yield)
    from quorum.local_cluster import ports as ports_of_clusters

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports_of_clusters, "PORTS", ports)
        return (yield)
