"""Idle connections without end, against a real member: it keeps running, as does the session that was open."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import quorum
from quorum.local_cluster.cluster import LocalCluster
from support.processes.load import CONNECT_LIMIT_MS

SPARE_FOR_CLIENTS = 60
"""Descriptors that the member may open beside what it has."""
CONNECTIONS = 300
BODY_BYTES = 1 << 20
BODIES = 140
"""So many that the log begins segments, and a snapshot is due."""
PUBLISH_LIMIT_MS = 30_000


@pytest.fixture
def member(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", 1) as cluster:
        yield cluster


def flood(address: str) -> list[socket.socket]:
    host, port = address.rsplit(":", 1)
    made = []
    for _ in range(CONNECTIONS):
        idle = socket.socket()
        idle.setblocking(False)
        idle.connect_ex((host, int(port)))
        made.append(idle)
    return made


def test_a_member_without_a_free_descriptor_writes_its_log_all_the_same(member: LocalCluster) -> None:
    name, address = member.members[0].name, member.members[0].client
    process = member.process(name)

    async def scenario() -> None:
        async with quorum.connect(member.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.declare("q")
            await client.publish("q", b"before")
            most = len(os.listdir(f"/proc/{process.pid}/fd")) + SPARE_FOR_CLIENTS
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
            held: list[socket.socket] = []
            try:
                for number in range(BODIES):
                    if number % 20 == 0:  # the member closes those that say nothing
                        held += flood(address)
                    await client.publish("q", bytes(BODY_BYTES), timeout_ms=PUBLISH_LIMIT_MS)
            finally:
                for each in held:
                    each.close()
        async with quorum.connect(member.url, connect_timeout_ms=CONNECT_LIMIT_MS) as newcomer:
            await newcomer.publish("q", b"after")
            assert (await newcomer.describe("q")).queue.ready == BODIES + 2

    asyncio.run(scenario())
    assert member.process(name) == process, member.processes.last_output(name)
