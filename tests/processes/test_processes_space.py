"""Real members whose disks are low, and quite full: publishes are refused, queues are emptied, nothing needs a restart.

The first test has disks of its own making (a budget of bytes); the second has file systems of 64 MiB, where mounting
them is permitted.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import quorum
from quorum.client.errors import PublishRejected, PublishUnknown, QuorumError
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.member import LocalMember
from quorum.local_cluster.processes import LineSink, MemberProcess
from support.log.faulty_files import Faults
from support.processes.cluster import FaultyCluster, all_equal
from support.processes.load import CONNECT_LIMIT_MS, leader_of
from support.repository import IMPORT_PATH

MIB = 1 << 20
SEGMENT = 4 * MIB
LIMIT = 16 * MIB
TMPFS_MIB = 64
WAIT_S = 60.0
"""For what takes a second or two on an idle machine."""
PACE_S = 0.1
"""Members look at their disks once a second: the limit has to last as long as that, at the rate of publishing."""
PROBE_MS = 2_000
"""A probe that is not answered in this time is sent again."""
BATCH = [bytes(64 << 10)] * 16


SETTINGS = {"disk_free_limit_bytes": LIMIT}

MEMBER = f"""
import sys
from pathlib import Path
from quorum.api.process import Disk, run
from quorum.cli.commands.serve import log_to_stderr
from quorum.config import load

config = load(Path(sys.argv[sys.argv.index("--config") + 1]))
log_to_stderr(config.log_level)
sys.exit(run(config, Disk(segment_bytes={SEGMENT})))
"""


def with_small_segments(member: LocalMember, sink: LineSink | None) -> MemberProcess:
    """A member as it is, but for the size of its segments."""
    variables = {"PYTHONPATH": IMPORT_PATH}
    return MemberProcess(member.name, member.config, member.output, sink, ("-c", MEMBER), variables)


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        await asyncio.sleep(0.1)


async def publish_until_refused(client: quorum.Client, queue: str) -> tuple[int, PublishRejected]:
    """Messages confirmed, and the refusal."""
    deadline = time.monotonic() + WAIT_S
    confirmed = 0
    while True:
        assert time.monotonic() < deadline, f"never refused; {confirmed} taken"
        try:
            confirmed += await client.publish_batch(queue, BATCH)
        except PublishRejected as error:
            return confirmed, error
        await asyncio.sleep(PACE_S)


async def refusal_of(client: quorum.Client, queue: str) -> PublishRejected:
    """By a node that has just heard who is low; its sessions hear it a moment later. What it took meanwhile may never
    be answered there: a full member does not apply what its log cannot take."""
    deadline = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < deadline, "never refused"
        try:
            await client.publish_batch(queue, [b"x"], timeout_ms=PROBE_MS)
        except PublishRejected as error:
            return error
        except PublishUnknown:
            continue


async def publish_when_there_is_room(client: quorum.Client, queue: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            await client.publish_batch(queue, [b"there is room again"])
            return
        except PublishRejected as error:
            if error.reason != "DISK_LOW" or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def empty(client: quorum.Client, queue: str, count: int) -> None:
    """Takes and settles exactly so many."""
    settled = 0
    async with await client.consume(queue, consumer_tag="emptying") as consumer:
        while settled < count:
            delivery = await asyncio.wait_for(consumer.next_delivery(), WAIT_S)
            assert delivery is not None
            assert await consumer.settle_batch(delivery, wait=True)
            settled += delivery.count
    assert settled == count
    assert (await client.describe(queue)).queue.total == 0


def knows_low(cluster: LocalCluster, asked: str, low: list[str]) -> bool:
    status = cluster.status(asked)
    return status is not None and [each.name for each in status.members if each.disk.low] == low


async def one_low_disk(cluster: FaultyCluster) -> None:
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        await client.declare("orders")
        await client.declare("spare")
        leader = await leader_of(cluster, "orders")
        cluster.set_faults(leader, Faults(room=LIMIT + 2 * SEGMENT))
        confirmed, refused = await publish_until_refused(client, "orders")
        assert confirmed > 0
        assert refused.reason == "DISK_LOW"
        assert refused.metadata["member"] == leader
        assert refused.metadata["limit_bytes"] == str(LIMIT)
        for name in cluster.names:
            await until(partial(knows_low, cluster, name, [leader]), f"{name} knows who is low")
            async with quorum.connect(cluster.url_of(name), connect_timeout_ms=CONNECT_LIMIT_MS) as one:
                assert "disk_free_limit_bytes" in str(await refusal_of(one, "spare"))
        await client.declare("new while low")
        await client.delete("spare")
        assert await client.purge("new while low") == 0
        await client.settle(await client.get("orders"), wait=True)
        await empty(client, "orders", confirmed - 1)
        cluster.set_faults(leader, Faults())
        await publish_when_there_is_room(client, "orders")
    assert not cluster.processes.ended(), cluster.processes.last_output(leader)
    for said in ("disk space low: publishes are refused", "disk space is back"):
        assert said in cluster.output(leader)
    await all_equal(cluster)


def test_publishes_are_refused_while_one_disk_is_low_and_everything_else_goes_on(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", segment_bytes=SEGMENT, settings=SETTINGS) as cluster:
        asyncio.run(one_low_disk(cluster))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three members, each with a file system of its own."""
    cluster = LocalCluster(tmp_path / "cluster", settings=SETTINGS, launch=with_small_segments)
    places = [cluster.member(name).folder / "data" for name in cluster.names]
    done: list[Path] = []
    try:
        for place in places:
            place.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MIB}m", "tmpfs", str(place)]
            if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip("mounting is not permitted here")
            done.append(place)
        with cluster:
            yield cluster
    finally:
        for place in done:
            subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> None:
    """Somebody else takes every block that is left."""
    with (place / "somebody-elses").open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


async def all_disks_full(cluster: LocalCluster) -> None:
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        await client.declare("orders")
        confirmed, refused = await publish_until_refused(client, "orders")
        assert refused.reason == "DISK_LOW"
        assert confirmed * len(BATCH[0]) >= 16 * MIB, "a disk of 64 MiB takes some"
        for name in cluster.names:
            fill(cluster.member(name).folder / "data")
            assert os.statvfs(cluster.member(name).folder / "data").f_bavail == 0
        await empty(client, "orders", confirmed)
        await asyncio.to_thread(cluster.restart, cluster.names[0], WAIT_S)
        with pytest.raises(QuorumError):
            await client.publish_batch("orders", [b"x"])
        for name in cluster.names:
            place = cluster.member(name).folder / "data"
            (place / "somebody-elses").unlink()
            subprocess.run(["mount", "-o", f"remount,size={2 * TMPFS_MIB}m", str(place)], check=True)
        await publish_when_there_is_room(client, "orders")
    assert not cluster.processes.ended(), {
        name: cluster.processes.last_output(name) for name in cluster.processes.ended()
    }
    await all_equal(cluster)


def test_queues_are_emptied_on_file_systems_without_a_free_block(mounted: LocalCluster) -> None:
    asyncio.run(all_disks_full(mounted))
