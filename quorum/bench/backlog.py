"""`quorum bench backlog`: the cost of messages that are not consumed, and of a member's restart with them.

The bench publishes all messages with confirms and without consumers. It measures memory and disk of the members, kills
one member with SIGKILL and restarts it, and then settles all messages. Memory is the growth of a member's process since
the queue was declared, the largest of all members; disk is the growth of its directory.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from quorum.bench.plan import Load, Plan, Tally
from quorum.bench.run import (
    QUEUE,
    STOP_TIMEOUT_S,
    BenchFailed,
    Note,
    Places,
    Worker,
    loads_for,
    prepare,
    resident_mb,
)
from quorum.client import connect
from quorum.local_cluster.cluster import LocalCluster

LIMIT_S = 7_200.0
"""A phase that takes longer has failed."""
PROGRESS_S = 5.0
SETTLE_S = 3.0
"""Pause before memory is measured, in which members write and page out their data."""
IDLE_LIMIT_S = 5.0
"""A consumer ends after this time without a message."""
RESTART_POLL_S = 0.02
RESTART_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class BacklogResult:
    plan: Plan
    publish_s: float
    first_tenth_per_s: float
    last_tenth_per_s: float
    drain_s: float
    added_mb: tuple[float, ...]
    disk_bytes: int
    restart_s: float

    def to_dict(self) -> dict[str, Any]:
        count = self.plan.backlog
        return {
            "mode": "backlog",
            "messages": count,
            "publish_per_s": round(count / self.publish_s),
            "publish_first_tenth_per_s": round(self.first_tenth_per_s),
            "publish_last_tenth_per_s": round(self.last_tenth_per_s),
            "drain_per_s": round(count / self.drain_s),
            "memory_bytes_per_message": round(max(self.added_mb) * 1e6 / count, 2),
            "disk_bytes_per_message": round(self.disk_bytes / count, 1),
            "restart_s": round(self.restart_s, 2),
            "added_mb": [round(size, 1) for size in self.added_mb],
            "members": self.plan.members,
            "body_bytes": self.plan.body_bytes,
            "batch": self.plan.batch,
            "window": self.plan.window,
            "producers": self.plan.producers,
            "consumers": self.plan.consumers,
            "filter_enabled": self.plan.filter_enabled,
            "lazy": self.plan.lazy,
        }


def table(result: BacklogResult) -> Table:
    values, plan = result.to_dict(), result.plan
    title = f"bench backlog: {plan.backlog:,} messages of {plan.body_bytes} bytes, batches of {plan.batch}"
    view = Table(title=title, show_header=False)
    view.add_column("what")
    view.add_column("value", justify="right")
    for name, text in (
        ("published a second", f"{values['publish_per_s']:,}"),
        ("  the first tenth", f"{values['publish_first_tenth_per_s']:,}"),
        ("  the last tenth", f"{values['publish_last_tenth_per_s']:,}"),
        ("settled a second", f"{values['drain_per_s']:,}"),
        ("memory that the members have added", ", ".join(f"{size} MB" for size in values["added_mb"])),
        ("memory for each message", f"{values['memory_bytes_per_message']} bytes"),
        ("disk for each message", f"{values['disk_bytes_per_message']} bytes"),
        ("restart of a killed member", f"{values['restart_s']} s"),
    ):
        view.add_row(name, text)
    return view


def run(plan: Plan, note: Note) -> BacklogResult:
    """Run the whole bench on its own cluster, which is removed afterwards."""
    count = -(-plan.backlog // (plan.batch * plan.producers)) * plan.batch * plan.producers
    plan = replace(plan, backlog=count)  # whole batches, as many from each producer
    with tempfile.TemporaryDirectory(prefix="quorum-bench-") as directory:
        note(f"starting {plan.members} members")
        with LocalCluster(Path(directory), members=plan.members) as cluster:
            places = asyncio.run(prepare(plan, cluster.url))
            time.sleep(SETTLE_S)
            before = [resident_mb(pid) for pid in cluster.processes.pids]
            disk_before = [directory_bytes(cluster.files.directory / name) for name in cluster.names]
            start, tallies, loads = asyncio.run(_publish(plan, places, cluster.url, note))
            time.sleep(SETTLE_S)
            added = tuple(
                resident_mb(pid) - size for pid, size in zip(cluster.processes.pids, before, strict=True)
            )
            disk_after = [directory_bytes(cluster.files.directory / name) for name in cluster.names]
            disk = max(after - size for after, size in zip(disk_after, disk_before, strict=True))
            note(f"members have added {', '.join(f'{size:.1f} MB' for size in added)}")
            restart_s = _restart(cluster, note)
            drain_s = asyncio.run(_drain(plan, places, cluster.url, note))
    first, last = tenths(start, tallies, [count // plan.producers * load.sessions for load in loads])
    publish_s = max(tally.last_at for tally in tallies) - start
    return BacklogResult(plan, publish_s, first, last, drain_s, added, disk, restart_s)


def tenths(start: float, tallies: Sequence[Tally], messages: Sequence[int]) -> tuple[float, float]:
    """Messages a second while the first and the last tenth were published, all producers together.
    messages: those of each tally."""
    pairs = list(zip(tallies, messages, strict=True))
    first = sum(each / 10 / (tally.tenths_at[0] - start) for tally, each in pairs)
    last = sum(each / 10 / (tally.tenths_at[9] - tally.tenths_at[8]) for tally, each in pairs)
    return first, last


def directory_bytes(directory: Path) -> int:
    """Disk space of the directory's files."""
    return sum(512 * path.stat().st_blocks for path in directory.rglob("*") if path.is_file())


async def _publish(plan: Plan, places: Places, url: str, note: Note) -> tuple[float, list[Tally], list[Load]]:
    batches = plan.backlog // plan.batch // plan.producers
    loads = [
        replace(load, total_batches=batches)
        for load in loads_for(replace(plan, mode="publish", rate=0), places)
    ]
    start, tallies = await _work(loads, url, lambda ready: note(f"{ready:,} of {plan.backlog:,} published"))
    return start, tallies, loads


async def _drain(plan: Plan, places: Places, url: str, note: Note) -> float:
    loads = [
        replace(load, selector=None, idle_limit_s=IDLE_LIMIT_S)
        for load in loads_for(replace(plan, mode="consume"), places)
    ]
    start, tallies = await _work(loads, url, lambda ready: note(f"{ready:,} left to settle"))
    settled = sum(tally.messages for tally in tallies)
    if settled < plan.backlog:
        raise BenchFailed(f"{settled:,} of {plan.backlog:,} messages were settled")
    return max(tally.last_at for tally in tallies) - start


async def _work(
    loads: Sequence[Load], url: str, progress: Callable[[int], None]
) -> tuple[float, list[Tally]]:
    """Run load processes to their end. Returns their start time and their tallies."""
    workers: list[Worker] = []
    try:
        for load in loads:
            workers.append(await Worker.start(load))
        await asyncio.gather(*(worker.ready() for worker in workers))
        start = time.monotonic()
        for worker in workers:
            worker.go(start, start + LIMIT_S)
        watching = asyncio.create_task(_watch(url, progress))
        try:
            tallies = await asyncio.gather(*(worker.tally(LIMIT_S + STOP_TIMEOUT_S) for worker in workers))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
    return start, list(tallies)


async def _watch(url: str, progress: Callable[[int], None]) -> None:
    async with connect(url) as client:
        while True:
            await asyncio.sleep(PROGRESS_S)
            progress((await client.describe(QUEUE)).queue.ready)


def _restart(cluster: LocalCluster, note: Note) -> float:
    """Kill a member and restart it. Returns the seconds until it serves and has applied all earlier commits."""
    name = cluster.names[-1]
    status = cluster.status(cluster.names[0])
    if status is None:
        raise BenchFailed("no member reports the groups' commit indexes")
    wanted = {group.group: group.commit_index for group in status.groups}
    note(f"killing {name}, and restarting it")
    cluster.kill(name)
    began = time.monotonic()
    cluster.start([name])
    while time.monotonic() < began + RESTART_LIMIT_S:
        if cluster.is_serving(name):
            found = cluster.status(name)
            if found is not None and all(
                group.applied_index >= wanted[group.group] for group in found.groups
            ):
                return time.monotonic() - began
        time.sleep(RESTART_POLL_S)
    raise BenchFailed(
        f"{name} did not serve within {RESTART_LIMIT_S:g} s:\n{cluster.processes.last_output(name)}"
    )
