"""A majority is lost for ever: what the last member had is the beginning of a new cluster. With real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorum.local_cluster.cluster import LocalCluster
from support.log.data_directories import tree
from support.processes import recovery
from support.processes.recovery import ACCEPT, SETTLED, SYNCED, body, run


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three members, of which a test loses two."""
    with LocalCluster(tmp_path / "cluster") as cluster:
        yield cluster


def test_the_last_member_becomes_a_cluster_again(doomed: LocalCluster, tmp_path: Path) -> None:
    asyncio.run(recovery.publish_first(doomed))
    data, new = doomed.member("node-3").data, tmp_path / "new"
    said = run("cluster", "recover", data, new, ACCEPT)
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert "a process uses" in said.stderr

    load = asyncio.run(recovery.lose_two(doomed))
    backup = tmp_path / "backup"
    assert run("backup", "create", data, backup).returncode == 0
    before = tree(data)
    said = run("cluster", "recover", data, new)
    assert said.returncode == 1
    assert "members that the new cluster drops: node-1, node-2" in said.stdout
    assert "was not accepted" in said.stderr
    assert not new.exists()
    assert tree(data) == before

    recovery.recover_killed(data, new)
    said = run("cluster", "recover", data, new, ACCEPT, "--json")
    assert said.returncode == 0, said.stderr
    assert tree(data) == before, "the source is only read"
    made = json.loads(said.stdout)
    assert made["found"]["dropped"] == ["node-1", "node-2"]
    assert made["found"]["queues"] == 2

    elsewhere = tmp_path / "elsewhere"
    said = run("cluster", "recover", backup, elsewhere, ACCEPT, "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["found"]["messages"] == made["found"]["messages"]
    assert json.loads(said.stdout)["cluster"] != made["cluster"], (
        "two clusters made from one are not the same"
    )

    recovery.use(doomed, "node-3", new, made["cluster"])
    doomed.start(["node-3"])
    doomed.wait_ready(["node-3"])
    found = asyncio.run(recovery.take_all(doomed.url_of("node-3")))
    assert len(found) == made["found"]["messages"]
    assert sorted(found) == sorted(body(number) for number in range(SETTLED, SETTLED + len(found))), (
        "each once"
    )
    assert SYNCED - SETTLED <= len(found) <= load.sent - SETTLED

    asyncio.run(recovery.grow(doomed))
    asyncio.run(recovery.work(doomed, 300))
    doomed.kill("node-3")
    asyncio.run(recovery.work(doomed, 100))
