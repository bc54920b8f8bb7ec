"""`quorum bench sizing`: what one queue, session, consumer and message costs the members.

The bench adds many things of a kind to a cluster and divides the growth of the members by their number. Memory is
resident memory, descriptors are those that the member has open, and CPU is user and system time. Queues and consumers
are replicated, so the largest growth of a member counts; a session is at one member, so the sum of all members counts.
Bytes between members are read with `ss` (iproute2), headers of TCP and IP not included.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from quorum.bench.backlog import directory_bytes
from quorum.bench.plan import Plan
from quorum.bench.run import QUEUE, BenchFailed, Note, cpu_seconds, prepare, resident_mb
from quorum.client import Client, connect
from quorum.local_cluster.cluster import LocalCluster

FILTERED = "bench-filtered"
AT_ONCE = 64
COUNTED = re.compile(r"bytes_(?:sent|received):(\d+)")


@dataclass(frozen=True, slots=True)
class Sizes:
    """settle_s: pause before a reading. idle_s: time over which idle members are measured. consumers: of each kind;
    a session has at most 1,000. messages: published in batches; a tenth of them also one by one."""

    queues: int = 10_000
    sessions: int = 200
    consumers: int = 5_000
    of_a_session: int = 500
    messages: int = 200_000
    settle_s: float = 5.0
    idle_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure of each member: resident memory, open descriptors, and the CPU time so far."""

    resident_mb: tuple[float, ...]
    descriptors: tuple[int, ...]
    cpu_s: tuple[float, ...]


@dataclass(slots=True)
class SizingResult:
    plan: Plan
    sizes: Sizes
    figures: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        sizes = {name: value for name, value in asdict(self.sizes).items() if not name.endswith("_s")}
        return {
            "mode": "sizing",
            **self.figures,
            **sizes,
            "members": self.plan.members,
            "body_bytes": self.plan.body_bytes,
        }


ROWS = (
    ("member_mb", "resident memory of an idle member, MB"),
    ("member_descriptors", "descriptors of an idle member"),
    ("member_disk_mb", "disk of an idle member, MB"),
    ("idle_cpu_percent", "CPU of an idle member, % of a core"),
    ("queue_bytes", "memory of a queue, bytes"),
    ("idle_cpu_percent_with_queues", "CPU of an idle member with these queues, % of a core"),
    ("session_bytes", "memory of a session, bytes"),
    ("session_descriptors", "descriptors of a session"),
    ("consumer_bytes", "memory of a consumer, bytes"),
    ("selector_consumer_bytes", "memory of a consumer with its own selector, bytes"),
    ("peer_bytes_per_message", "bytes between members for a message, in batches"),
    ("peer_bytes_per_single_message", "bytes between members for a message that is published alone"),
)


def table(result: SizingResult) -> Table:
    view = Table(title=f"bench sizing: {result.plan.members} members", show_header=False)
    view.add_column("what")
    view.add_column("value", justify="right")
    for name, text in ROWS:
        view.add_row(text, f"{result.figures[name]:,}")
    return view


def run(plan: Plan, note: Note, sizes: Sizes | None = None) -> SizingResult:
    """Run the whole bench on its own cluster, which is removed afterwards."""
    made = SizingResult(plan, sizes or Sizes())
    with tempfile.TemporaryDirectory(prefix="quorum-bench-") as directory:
        note(f"starting {plan.members} members")
        with LocalCluster(Path(directory), members=plan.members) as cluster:
            places = asyncio.run(prepare(plan, cluster.url))
            asyncio.run(_measure(made, cluster, f"quorum://{places.leader}", note))
    return made


async def _measure(made: SizingResult, cluster: LocalCluster, leader: str, note: Note) -> None:
    sizes, figures = made.sizes, made.figures
    async with connect(leader) as client:
        idle, figures["idle_cpu_percent"] = await _idle(cluster, sizes)
        figures["member_mb"] = round(max(idle.resident_mb), 1)
        figures["member_descriptors"] = max(idle.descriptors)
        disk = max(directory_bytes(cluster.files.directory / name) for name in cluster.names)
        figures["member_disk_mb"] = round(disk / 1e6, 1)

        note(f"publishing {sizes.messages:,} messages, and {sizes.messages // 10:,} one by one")
        figures["peer_bytes_per_message"], figures["peer_bytes_per_single_message"] = await _traffic(
            made, cluster, client
        )

        note(f"declaring {sizes.queues:,} queues")
        before = await _settled(cluster, sizes)
        await _each(range(sizes.queues), lambda number: client.declare(f"{QUEUE}-{number}"))
        after, figures["idle_cpu_percent_with_queues"] = await _idle(cluster, sizes)
        figures["queue_bytes"] = _largest_growth(before, after, sizes.queues)

        note(f"{sizes.sessions:,} sessions, then {sizes.consumers:,} consumers of two kinds")
        await client.declare(FILTERED, {"x-filter-enabled": True})
        await _sessions(made, cluster, leader)
        figures["consumer_bytes"] = await _consumers(made, cluster, leader, QUEUE, lambda _: None)
        figures["selector_consumer_bytes"] = await _consumers(
            made, cluster, leader, FILTERED, lambda number: f"customer = 'c{number:05}' AND amount > {number}"
        )


async def _sessions(made: SizingResult, cluster: LocalCluster, leader: str) -> None:
    """Sessions that have published one message each, and stay open."""
    sizes = made.sizes
    before = await _settled(cluster, sizes)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(leader)) for _ in range(sizes.sessions)]
        await _each(clients, lambda each: each.publish(QUEUE, b"first"))
        after = await _settled(cluster, sizes)
    made.figures["session_bytes"] = _sum_of_growth(before, after, sizes.sessions)
    opened = sum(after.descriptors) - sum(before.descriptors)
    made.figures["session_descriptors"] = round(opened / sizes.sessions, 2)


async def _consumers(
    made: SizingResult,
    cluster: LocalCluster,
    leader: str,
    queue: str,
    selector_of: Callable[[int], str | None],
) -> float:
    """Memory of a consumer. Its session is open before."""
    sizes = made.sizes
    async with AsyncExitStack() as stack:
        count = -(-sizes.consumers // sizes.of_a_session)
        clients = [await stack.enter_async_context(connect(leader)) for _ in range(count)]
        await _each(clients, lambda each: each.publish(QUEUE, b"first"))
        before = await _settled(cluster, sizes)
        consumers = [
            clients[number % count].consume(queue, selector_of(number), prefetch=1)
            for number in range(sizes.consumers)
        ]
        await _each(consumers, lambda each: each.start())
        after = await _settled(cluster, sizes)
    return _largest_growth(before, after, sizes.consumers)


async def _traffic(made: SizingResult, cluster: LocalCluster, client: Client) -> tuple[float, float]:
    """Bytes between members for a message: in batches, and one by one without waiting for the others."""
    plan, sizes = made.plan, made.sizes
    body = bytes(plan.body_bytes)
    began = peer_bytes(cluster)
    for _ in range(sizes.messages // plan.batch):
        await client.publish_batch(QUEUE, [body] * plan.batch)
    batches = peer_bytes(cluster) - began
    count, began = sizes.messages // 10, peer_bytes(cluster)
    await _each(range(count), lambda _: client.publish(QUEUE, body))
    singles = peer_bytes(cluster) - began
    await client.purge(QUEUE)
    return round(batches / (sizes.messages // plan.batch * plan.batch), 1), round(singles / count, 1)


async def _each(items: Iterable[Any], do: Callable[[Any], Awaitable[object]]) -> None:
    """Do it for all items, AT_ONCE at a time."""
    left = iter(items)

    async def work() -> None:
        for each in left:
            await do(each)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


# ---- readings


async def _settled(cluster: LocalCluster, sizes: Sizes) -> Reading:
    await asyncio.sleep(sizes.settle_s)
    return reading(cluster)


async def _idle(cluster: LocalCluster, sizes: Sizes) -> tuple[Reading, float]:
    """A reading of idle members, and the CPU of the busiest one of them in percent of a core."""
    before, began = await _settled(cluster, sizes), time.monotonic()
    await asyncio.sleep(sizes.idle_s)
    after, passed = reading(cluster), time.monotonic() - began
    used = max(late - early for early, late in zip(before.cpu_s, after.cpu_s, strict=True))
    return after, round(100 * used / passed, 1)


def reading(cluster: LocalCluster) -> Reading:
    pids = cluster.processes.pids
    return Reading(
        tuple(resident_mb(pid) for pid in pids),
        tuple(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
        tuple(cpu_seconds(pid) for pid in pids),
    )


def _growth(before: Reading, after: Reading) -> list[float]:
    return [late - early for early, late in zip(before.resident_mb, after.resident_mb, strict=True)]


def _largest_growth(before: Reading, after: Reading, count: int) -> int:
    return round(max(_growth(before, after)) * 1e6 / count)


def _sum_of_growth(before: Reading, after: Reading, count: int) -> int:
    return round(sum(_growth(before, after)) * 1e6 / count)


def peer_bytes(cluster: LocalCluster) -> int:
    """Bytes that the members' connections with each other have carried in both directions."""
    ports = {member.peer.rpartition(":")[2] for member in cluster.members}
    try:
        shown = subprocess.run(["ss", "-tinOH"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchFailed(f"ss (of iproute2) does not show connections: {error}") from error
    return counted_bytes(shown.stdout, ports)


def counted_bytes(shown: str, ports: set[str]) -> int:
    """Bytes of the connections whose own end has one of the ports; so each connection counts once."""
    total = 0
    for line in shown.splitlines():
        words = line.split()
        if len(words) > 3 and words[3].rpartition(":")[2] in ports:
            total += sum(int(each) for each in COUNTED.findall(line))
    return total
