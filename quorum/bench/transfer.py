"""`quorum bench transfer`: the cost for the others while a member that has lost its log is rebuilt.

The bench publishes a backlog, kills a member that does not lead the queue's group, removes its log and starts it. The
member gets the group's snapshot and every body that the snapshot refers to. All the time one publisher at the leader
sends small batches at a fixed rate. Each is timed from when it was *due* to its confirm.

Three phases are compared: all members run; one is down; it is being rebuilt. Several rounds are combined, because a
single stall of the disk would dominate one round.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from quorum.bench.backlog import directory_bytes
from quorum.bench.plan import Plan, percentile_ms
from quorum.bench.run import QUEUE, BenchFailed, Note, prepare, publish_backlog
from quorum.client import connect, encode_batch
from quorum.local_cluster.cluster import LocalCluster

SETTLE_S = 3.0
"""Pause before a measurement, in which members write, page out and elect a leader."""
POLL_S = 0.1
LIMIT_S = 1_800.0
"""A transfer that takes longer has failed."""
WINDOW = 1_024
"""Highest number of unconfirmed batches; enough for every stall that does not fail the bench."""


@dataclass(slots=True)
class Phase:
    """Times from publish to confirm of the batches that were due in this phase, in all rounds."""

    seconds: float = 0.0
    latencies_us: list[int] = field(default_factory=list)


class Pulse:
    """A publisher at a fixed rate. A batch's latency belongs to the phase in which the batch was due."""

    def __init__(
        self, endpoint: str, body_bytes: int, batch: int, batches_per_s: float, queue: str = QUEUE
    ) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._batch = encode_batch([os.urandom(body_bytes)] * batch)
        self._interval_s = 1 / batches_per_s
        self._phase: Phase | None = None
        self._is_over = False
        self._room = asyncio.Semaphore(WINDOW)
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Publish until `stop`. Raises the error of a failed publish."""
        async with connect(f"quorum://{self._endpoint}") as client:
            due = time.monotonic()
            while not self._is_over and self._failure is None:
                due += self._interval_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._room.acquire()
                confirmation = await client.send_batch(self._queue, self._batch)
                confirmation.add_done_callback(self._confirmed(due, self._phase))
            for _ in range(WINDOW):
                await self._room.acquire()
            if client.reconnect_count:
                raise BenchFailed(f"the publisher's session was lost {client.reconnect_count} times")
        if self._failure is not None:
            raise self._failure

    def _confirmed(self, due: float, phase: Phase | None) -> Callable[[asyncio.Future[int]], None]:
        def confirmed(confirmation: asyncio.Future[int]) -> None:
            self._room.release()
            error = confirmation.exception()
            if error is not None:
                self._failure = error
            elif phase is not None:
                phase.latencies_us.append(round((time.monotonic() - due) * 1_000_000))

        return confirmed

    @contextmanager
    def noting(self, phase: Phase) -> Iterator[None]:
        """Record batches that are due in the block to `phase`; others are not recorded."""
        began, self._phase = time.monotonic(), phase
        try:
            yield
        finally:
            self._phase = None
            phase.seconds += time.monotonic() - began

    def stop(self) -> None:
        self._is_over = True


@dataclass(frozen=True, slots=True)
class TransferResult:
    plan: Plan
    well: Phase
    away: Phase
    transfer: Phase
    received_bytes: int
    load: float

    def to_dict(self) -> dict[str, Any]:
        before, while_at_it = (percentile_ms(each.latencies_us, 0.99) for each in (self.well, self.transfer))
        return {
            "mode": "transfer",
            "messages": self.plan.backlog,
            "body_bytes": self.plan.body_bytes,
            "transfer_s": round(self.transfer.seconds / self.plan.rounds, 2),
            "received_mb": round(self.received_bytes / 1e6 / self.plan.rounds, 1),
            "received_mb_per_s": round(self.received_bytes / 1e6 / self.transfer.seconds, 1),
            **_percentiles("well", self.well),
            **_percentiles("away", self.away),
            **_percentiles("transfer", self.transfer),
            "p99_ratio": round(while_at_it / before, 2) if before and while_at_it else math.nan,
            "members": self.plan.members,
            "rate": self.plan.rate,
            "batch": self.plan.batch,
            "seconds": self.plan.seconds,
            "rounds": self.plan.rounds,
            "load_average": round(self.load, 1),
        }


def _percentiles(name: str, phase: Phase) -> dict[str, float | int | None]:
    return {
        f"{name}_p50_ms": percentile_ms(phase.latencies_us, 0.50),
        f"{name}_p99_ms": percentile_ms(phase.latencies_us, 0.99),
        f"{name}_max_ms": percentile_ms(phase.latencies_us, 1.0),
        f"{name}_batches": len(phase.latencies_us),
    }


def table(result: TransferResult) -> Table:
    values, plan = result.to_dict(), result.plan
    title = (
        f"bench transfer: {plan.backlog:,} messages of {plan.body_bytes} bytes waiting, "
        f"{plan.rate:,} published a second in batches of {plan.batch}"
    )
    view = Table(title=title)
    for column in ("publish to confirm", "p50", "p99", "max", "batches"):
        view.add_column(column, justify="left" if column == "publish to confirm" else "right")
    for name, text in (
        ("well", "all members are well"),
        ("away", "one is away"),
        ("transfer", "it is brought up"),
    ):
        times = (f"{values[f'{name}_{what}_ms']} ms" for what in ("p50", "p99", "max"))
        view.add_row(text, *times, f"{values[f'{name}_batches']:,}")
    view.caption = (
        f"brought up in {values['transfer_s']} s with {values['received_mb']} MB "
        f"({values['received_mb_per_s']} MB/s); p99 is {values['p99_ratio']} times the one before; "
        f"load average of the machine {values['load_average']}"
    )
    return view


def run(plan: Plan, note: Note) -> TransferResult:
    """Run the whole bench on its own cluster, which is removed afterwards."""
    if plan.members < 3:
        raise BenchFailed("with fewer than 3 members nothing is confirmed while one is away; use 3 or more")
    with tempfile.TemporaryDirectory(prefix="quorum-bench-") as directory:
        note(f"starting {plan.members} members")
        with LocalCluster(Path(directory), members=plan.members) as cluster:
            return asyncio.run(_measure(plan, cluster, note))


async def _measure(plan: Plan, cluster: LocalCluster, note: Note) -> TransferResult:
    places = await prepare(plan, cluster.url)
    note(f"publishing {plan.backlog:,} messages")
    await publish_backlog(replace(plan, mode="publish", batch=Plan().batch), places)
    lost = next(
        name for name in reversed(cluster.names) if cluster.member(name).client == places.followers[-1]
    )
    folder = cluster.member(lost).folder
    log = folder / "data" / "log"
    await asyncio.sleep(SETTLE_S)
    pulse = Pulse(places.leader, plan.body_bytes, plan.batch, plan.rate / plan.batch)
    publishing = asyncio.create_task(pulse.run())
    well, away, transfer, received = Phase(), Phase(), Phase(), 0
    try:
        async with asyncio.timeout(LIMIT_S):
            for number in range(1, plan.rounds + 1):
                count = f" ({number} of {plan.rounds})" if plan.rounds > 1 else ""
                await asyncio.sleep(plan.warmup_s)
                note(f"all members are well: {plan.seconds:g} s{count}")
                await _measure_phase(pulse, well, plan.seconds, publishing)
                await asyncio.to_thread(cluster.kill, lost)
                log.rename(folder / f"lost-{number}")  # renamed, because removing files loads the disk
                await asyncio.sleep(SETTLE_S + plan.warmup_s)
                note(f"{lost} is away: {plan.seconds:g} s{count}")
                await _measure_phase(pulse, away, plan.seconds, publishing)
                note(f"{lost} begins again without its log{count}")
                await _bring_up(cluster, lost, pulse, transfer, publishing)
                received += _log_bytes(log)
        pulse.stop()
        await publishing
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    return TransferResult(plan, well, away, transfer, received, os.getloadavg()[0])


async def _measure_phase(pulse: Pulse, phase: Phase, seconds: float, publishing: asyncio.Task[None]) -> None:
    with pulse.noting(phase):
        await asyncio.wait({publishing}, timeout=seconds)
    if publishing.done():
        publishing.result()


async def _bring_up(
    cluster: LocalCluster, name: str, pulse: Pulse, phase: Phase, publishing: asyncio.Task[None]
) -> None:
    """Start the member and wait until it has everything that was committed at its start."""
    status = await asyncio.to_thread(cluster.status, _another(cluster.names, name))
    if status is None:
        raise BenchFailed("no member reports the groups' commit indexes")
    wanted = {group.group: group.commit_index for group in status.groups}
    with pulse.noting(phase):
        await asyncio.to_thread(cluster.start, [name])
        while not await asyncio.to_thread(_has_all, cluster, name, wanted):
            if publishing.done():
                publishing.result()
            await asyncio.sleep(POLL_S)


def _log_bytes(log: Path) -> int:
    """Disk space of a log, without its reserve for a full disk."""
    return directory_bytes(log) - sum(512 * path.stat().st_blocks for path in log.glob("reserve-*"))


def _another(names: Sequence[str], than: str) -> str:
    return next(name for name in names if name != than)


def _has_all(cluster: LocalCluster, name: str, wanted: dict[int, int]) -> bool:
    status = cluster.status(name)
    if status is None:
        return False
    found = {group.group: group.applied_index for group in status.groups}
    return all(found.get(group, 0) >= index for group, index in wanted.items())
