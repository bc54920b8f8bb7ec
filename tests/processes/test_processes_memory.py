"""A long backlog in little memory: the kernel gives a member no more than docs/sizing.md says that it needs."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import quorum
from quorum import Message, encode_batch
from quorum.local_cluster.cluster import LocalCluster
from support.processes.load import CONNECT_LIMIT_MS

MIB = 1 << 20
QUEUE_MEMORY_BYTES = 8 * MIB
CACHES_BYTES = 35_000_000
"""What a member's caches grow by at most (docs/sizing.md)."""
UNDER_WAY_BYTES = 32 * MIB
"""Publishes and deliveries of the one session."""
BATCH = 5_000
BATCHES = 160
"""800,000 messages, whose fields take 140 MB where they are all in memory."""
PUBLISH_LIMIT_MS = 60_000


def data_bytes(pid: int) -> int:
    """The memory of a process that RLIMIT_DATA counts."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    [size] = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return int(size) * 1024


def test_a_member_with_a_long_backlog_stays_within_its_memory(tmp_path: Path) -> None:
    """The fields of most messages are not in memory while they wait, and the member serves them all."""
    cluster = LocalCluster(tmp_path / "cluster", 1, settings={"queue_memory_bytes": QUEUE_MEMORY_BYTES})
    name = cluster.names[0]
    batch = encode_batch(
        [
            Message(b"x", application_properties={"number": n, "key": f"{n:064}", "other": f"{n:063}o"})
            for n in range(BATCH)
        ]
    )

    async def scenario() -> None:
        async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.declare("orders", {"x-filter-enabled": True})
            await client.publish_batch("orders", batch, timeout_ms=PUBLISH_LIMIT_MS)
            process = cluster.process(name)
            assert process is not None
            most = data_bytes(process.pid) + QUEUE_MEMORY_BYTES + CACHES_BYTES + UNDER_WAY_BYTES
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (most, most))
            for _ in range(BATCHES - 1):
                await client.publish_batch("orders", batch, timeout_ms=PUBLISH_LIMIT_MS)
            found = await client.describe("orders")
            assert found.queue.ready == BATCHES * BATCH
            assert found.storage.delta > found.queue.ready // 2
            settled = 0
            async with client.consume("orders", prefetch=4 * BATCH) as consumer:
                async for delivery in consumer.deliveries():
                    await consumer.settle_batch(delivery)
                    settled += delivery.count
                    if settled == BATCHES * BATCH:
                        break
            assert cluster.process(name) == process, cluster.processes.last_output(name)

    with cluster:
        asyncio.run(scenario())
