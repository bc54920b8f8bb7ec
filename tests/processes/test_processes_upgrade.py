"""Running clusters change to another release: real processes, started from wheels, under load.

1. From 0.1.0, all members at once, as its upgrade demands.
2. Member by member: from a commit before 0.2.0 to 0.2.0, and from there to this release, which knows a newer machine
   version. Without the history: from this release to a copy that gets another number in `fifo/versions.py`.

The wheels of earlier releases are built from the history of this repository.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quorum.sync
from fifo.versions import CURRENT
from support.histories import checkers
from support.processes.cluster import all_equal
from support.processes.load import CONNECT_LIMIT_MS, Load, Recorder
from support.repository import ROOT
from support.versions.releases import (
    BEFORE_0_2_0,
    MACHINE_OF_0_2_0,
    RELEASE_0_1_0,
    RELEASE_0_2_0,
    ReleasesCluster,
    installed,
    is_in_history,
    source_of,
    with_a_newer_machine,
)

LIMIT_S = 60.0
POLL_S = 0.05
BATCH = 20
PUBLISHED = 25 * BATCH
"""Messages that are confirmed before all members stop; the client goes on publishing."""
LOAD = Load(batch=20, pause_s=0.2, progress=60)
REFUSED = "start it with a newer release"

OLD_CLIENT = f"""
import sys, quorum.sync
with quorum.sync.connect(sys.argv[1]) as client:
    client.declare("before")
    for first in range(0, 1 << 30, {BATCH}):
        client.publish_batch("before", [b"%d" % n for n in range(first, first + {BATCH})])
        print("confirmed", first + {BATCH}, flush=True)
        if first % {5 * BATCH} == 0:
            for message in client.get("before", 3):
                client.settle(message, wait=True)
                print("settled", message.body.decode(), flush=True)
"""
"""A program of a user of 0.1.0: it publishes numbers, settles some of them, and prints what it was told."""


@pytest.fixture(scope="module")
def this_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(ROOT, tmp_path_factory.mktemp("releases") / "this")


@pytest.fixture
def cluster(this_release: Path, tmp_path: Path) -> Iterator[ReleasesCluster]:
    """Its members are not started yet."""
    cluster = ReleasesCluster(tmp_path / "cluster", this_release)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.skipif(not is_in_history(RELEASE_0_1_0), reason="the history has no commit of release 0.1.0")
def test_a_cluster_of_0_1_0_starts_with_this_release_and_has_every_message(
    cluster: ReleasesCluster, this_release: Path, tmp_path: Path
) -> None:
    old = installed(source_of(RELEASE_0_1_0, tmp_path / "source"), tmp_path / "old")
    cluster.releases = dict.fromkeys(cluster.names, old)
    cluster.start()
    cluster.wait_ready()
    client = subprocess.Popen(
        [sys.executable, "-P", "-c", OLD_CLIENT, cluster.url],
        env={"PYTHONPATH": str(old)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert client.stdout is not None
    told = []
    try:
        for line in client.stdout:
            told.append(line.split())
            if told[-1] == ["confirmed", str(PUBLISHED)]:
                break
        cluster.stop()  # the client still publishes
    finally:
        client.kill()
        told += [line.split() for line in client.stdout.read().splitlines()]
        client.wait()
        client.stdout.close()
    confirmed = max(int(number) for what, number in told if what == "confirmed")
    settled = {int(number) for what, number in told if what == "settled"}
    assert confirmed >= PUBLISHED and settled

    cluster.releases = dict.fromkeys(cluster.names, this_release)
    cluster.start()
    cluster.wait_ready()
    found = []
    with quorum.sync.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as reader:
        while messages := reader.get("before", 200):
            found += [int(message.body) for message in messages]
            reader.settle(messages, wait=True)
    assert len(set(found)) == len(found), "a message is there twice"
    assert not settled & set(found), "a settled message is there again"
    missing = set(range(confirmed)) - settled - set(found)
    assert len(missing) <= 1, (
        f"confirmed messages are missing: {sorted(missing)}"
    )  # one: its settlement was not told
    asyncio.run(all_equal(cluster))


def test_members_are_upgraded_one_by_one_under_load_and_go_back_until_the_version_is_switched(
    cluster: ReleasesCluster, this_release: Path, tmp_path: Path
) -> None:
    earlier = [
        installed(source_of(commit, tmp_path / f"source-{commit}"), tmp_path / commit)
        for commit in (BEFORE_0_2_0, RELEASE_0_2_0)
        if is_in_history(commit)
    ]
    if earlier:
        told = upgraded(cluster, earlier, MACHINE_OF_0_2_0, this_release, CURRENT)
    else:
        newer = with_a_newer_machine(this_release, tmp_path / "newer", CURRENT)
        told = upgraded(cluster, [this_release], CURRENT, newer, CURRENT + 1)
    print(asyncio.run(told))


async def upgraded(
    cluster: ReleasesCluster, releases: list[Path], before: int, newer: Path, after: int
) -> str:
    """releases: they know the machine version `before`, the oldest one first. after: the version of `newer`."""
    first, *_, last = cluster.names
    oldest, *others = releases
    older = releases[-1]
    cluster.releases = dict.fromkeys(cluster.names, oldest)
    cluster.start()
    cluster.wait_ready()
    async with Recorder(cluster, "rolling", load=LOAD) as load:
        await load.progress()
        for release in others:
            for name in cluster.names:
                await asyncio.to_thread(cluster.change, name, release)
                await load.progress()
        await asyncio.to_thread(cluster.change, first, newer)
        await load.progress()
        known = {**dict.fromkeys(cluster.names, before), first: after}
        await until(lambda: known_versions(cluster) == known, f"members know {known}")
        await asyncio.to_thread(cluster.change, first, older)
        await load.progress()
        for name in cluster.names:
            assert versions(cluster) == {before}, f"the version is switched before {name} is upgraded"
            await asyncio.to_thread(cluster.change, name, newer)
            await load.progress()
        await until(lambda: versions(cluster) == {after}, "all groups have switched")
        await load.progress()
        await load.finish()
    checkers.judged(load.history.records)

    await asyncio.to_thread(cluster.stop, [last])
    cluster.releases[last] = older
    cluster.start([last])
    await until(lambda: REFUSED in cluster.processes.last_output(last), f"{last} says that it is too old")
    assert not cluster.is_serving(last)
    await asyncio.to_thread(cluster.change, last, newer)
    return await all_equal(cluster)


def versions(cluster: ReleasesCluster) -> set[int]:
    """The machine versions of all groups, as a running member says."""
    status = cluster.status()
    assert status is not None
    return {group.version for group in status.groups}


def known_versions(cluster: ReleasesCluster) -> dict[str, int]:
    """The newest machine version that each member knows."""
    status = cluster.status()
    assert status is not None
    return {each.name: each.known_version for each in status.members}


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}"
        await asyncio.sleep(POLL_S)
