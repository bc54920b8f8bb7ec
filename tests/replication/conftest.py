"""The peers' networks and certificates that tests of them share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quorum.cli.commands.certificates import create
from support.peers.cluster import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of two authorities, in the folders "own" and "other"."""
    folder = tmp_path_factory.mktemp("certificates")
    for authority in ("own", "other"):
        create(["a", "b"], folder / authority, 30)
    return folder
