"""A majority of real members is lost for ever, and the last one begins a new cluster."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import quorum
from quorum.cli.commands.members import ask
from quorum.client import Message
from quorum.client.connection.endpoints import parse_url
from quorum.client.errors import QuorumError, RefusedError
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.cluster_file import STATE_FILE
from support.processes import membership
from support.processes.load import CONNECT_LIMIT_MS, POLL_S

QUEUE = "orders"
SYNCED = 600
"""messages that all members have, before anything fails"""
SETTLED = 100
"""of these, the first ones are settled"""
HELD = 20
"""of the others, the first ones are checked out by a client that is lost"""
LEAST_UNDER_WAY = 200
"""messages that are confirmed while the members are about to be lost"""
LIMIT_S = 60.0
ACCEPT = "--i-accept-that-confirmed-messages-may-be-lost"


def body(number: int) -> bytes:
    return b"%d:" % number + hashlib.sha256(b"%d" % number).digest()


def messages(first: int, end: int) -> list[Message]:
    return [Message(body(number)) for number in range(first, end)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-m", "quorum", *map(str, arguments)),
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


async def publish_first(cluster: LocalCluster) -> None:
    """Messages that all members have on disk, of which the first are settled."""
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        await client.declare(QUEUE)
        await client.declare("empty")
        for first in range(0, SYNCED, 50):
            await client.publish_batch(QUEUE, messages(first, first + 50))
        await client.settle(await client.get(QUEUE, SETTLED), wait=True)
    deadline = time.monotonic() + LIMIT_S
    while not await asyncio.to_thread(_all_applied, cluster):
        assert time.monotonic() < deadline, "the members have not applied the same"
        await asyncio.sleep(POLL_S)


def _all_applied(cluster: LocalCluster) -> bool:
    seen = [cluster.status(name) for name in cluster.names]
    ends = {tuple((each.group, each.applied_index) for each in one.groups) for one in seen if one is not None}
    return None not in seen and len(ends) == 1


class Load:
    """Publishes one message after the other until the service is gone."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._url = cluster.url
        self.sent = self.confirmed = SYNCED
        """numbers below these"""

    async def run(self) -> None:
        async with quorum.connect(self._url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            try:
                while True:
                    self.sent += 1
                    await client.publish(QUEUE, body(self.sent - 1), timeout_ms=1_500)
                    self.confirmed = self.sent
            finally:
                await client.close(timeout_ms=0)  # nothing confirms the last message now


async def lose_two(cluster: LocalCluster) -> Load:
    """Two of three members under load, killed and emptied; the third is stopped. A client of a lost member holds
    messages."""
    load = Load(cluster)
    task = asyncio.create_task(load.run())
    holder = await quorum.connect(
        cluster.url_of("node-1"), connect_timeout_ms=CONNECT_LIMIT_MS, near_leader=False
    )
    assert len(await holder.get(QUEUE, HELD)) == HELD
    deadline = time.monotonic() + LIMIT_S
    while load.confirmed < SYNCED + LEAST_UNDER_WAY:
        assert not task.done() and time.monotonic() < deadline, f"{load.confirmed} messages are confirmed"
        await asyncio.sleep(POLL_S)
    for name in ("node-1", "node-2"):
        cluster.kill(name)
    with pytest.raises(QuorumError):
        await asyncio.wait_for(task, LIMIT_S)
    cluster.kill("node-3")
    await holder.close()
    shutil.rmtree(cluster.member("node-1").data)
    return load


def recover_killed(source: Path, target: Path) -> None:
    """The command, killed while it works."""
    process = subprocess.Popen(
        (sys.executable, "-m", "quorum", "cluster", "recover", str(source), str(target), ACCEPT),
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + LIMIT_S
    partial = target.with_name(target.name + ".partial")
    while not partial.exists():
        assert process.poll() is None and time.monotonic() < deadline, "it has not begun"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait(LIMIT_S)
    assert partial.exists() and not target.exists(), "it was killed in the middle"


def use(cluster: LocalCluster, name: str, data: Path, cluster_name: str) -> None:
    """The member of this name uses this data directory, and nodes made from now on are of this cluster."""
    member = cluster.member(name)
    member.data.rename(member.folder / "data.before")
    data.rename(member.data)
    text = member.config.read_text(encoding="utf-8")
    changed = re.sub(r'^cluster = ".*"$', f'cluster = "{cluster_name}"', text, flags=re.MULTILINE)
    assert changed != text
    member.config.write_text(changed, encoding="utf-8")
    state = json.loads((cluster.files.directory / STATE_FILE).read_text(encoding="utf-8"))
    state["settings"]["cluster"] = cluster_name
    (cluster.files.directory / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")


async def take_all(url: str) -> list[bytes]:
    """All messages of the queue, settled, in the order in which they came, also those that lost clients held."""
    found: list[bytes] = []
    deadline = time.monotonic() + LIMIT_S
    async with quorum.connect(url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        while (await client.describe(QUEUE)).queue.total:
            taken = await client.get(QUEUE, 500)
            found += [bytes(message.body) for message in taken]
            if taken:
                await client.settle(taken, wait=True)
            else:
                assert time.monotonic() < deadline, "messages of lost clients are not back"
                await asyncio.sleep(POLL_S)
    return found


async def work(cluster: LocalCluster, count: int) -> None:
    """Publishes and consumes through all members."""
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        await client.publish_batch(QUEUE, messages(0, count))
    assert await take_all(cluster.url) == [body(number) for number in range(count)]


async def grow(cluster: LocalCluster) -> None:
    """Adds node-1, with an emptied directory, under its old address. Then node-2 comes back with its old data, is
    refused by both ways in, and is added with an emptied directory."""
    await membership.bring_in(cluster, cluster.files.prepare("node-1"))
    await membership.until(cluster, "node-3", membership.are_voters("node-1", "node-3"), "node-1 votes")
    assert cluster.member("node-2").data.is_dir(), "its old data"
    cluster.start(["node-2"])
    await membership.said(cluster, "node-1", "a node of another cluster")
    async with quorum.connect(cluster.url_of("node-3"), connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        seen = await asyncio.to_thread(ask, parse_url(cluster.url), cluster.member("node-2").client)
        assert seen is not None
        with pytest.raises(RefusedError, match="was a member and has been removed"):
            await client.add_member(seen.own)
    assert not await asyncio.to_thread(cluster.is_serving, "node-2")
    await asyncio.to_thread(cluster.stop, ["node-2"])
    await membership.bring_in(cluster, cluster.files.prepare("node-2"))
    names = ("node-1", "node-2", "node-3")
    await membership.until(cluster, "node-3", membership.are_voters(*names), f"{names} vote")
