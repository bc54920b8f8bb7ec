"""Starts members and load processes, measures, and adds up the results.

For each producer on the leader of the queue's group there are two on followers. Consumers are on followers in turn,
because a follower reads deliveries from its own log, at no cost for the leader. CPU time is that of the member
processes, user and system, only over the measured time.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quorum.bench.plan import Load, Plan, Result, SinglesLoad, Tally
from quorum.bench.receivers import selector_of
from quorum.client import Client, connect
from quorum.client.connection.endpoints import parse_url
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.processes import ProcessId

QUEUE = "bench"
EXCHANGE = "bench"
USER = "bench"
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
START_DELAY_S = 0.2
EXIT_LIMIT_S = 3.0
BACKLOG_LIMIT_S = 600.0
FEW_RECEIVERS = 10
"""Receivers of all messages that go through selector bindings: few and many bindings get the same messages."""
BOUND_AT_ONCE = 64
MOST_PRODUCER_PROCESSES = 6
"""If there are more producers, they share one process for each address, with a session each: more processes than cores
only take time from the members."""

Note = Callable[[str], None]


class BenchFailed(Exception):
    """A load process failed, or there is no valid measurement."""


@dataclass(frozen=True, slots=True)
class Places:
    """Client addresses: the leader of the queue's group, and the others in order of name. login: see plan.url_of."""

    leader: str
    followers: tuple[str, ...]
    login: str = ""

    def producer(self, number: int) -> str:
        """The producer's address: follower, follower, leader, and so on."""
        if not self.followers or number % 3 == 2:
            return self.leader
        return self.followers[(number - number // 3) % len(self.followers)]

    def consumer(self, number: int) -> str:
        return self.followers[number % len(self.followers)] if self.followers else self.leader


class Worker:
    """One load process."""

    def __init__(self, load: Load | SinglesLoad, process: asyncio.subprocess.Process) -> None:
        self.load = load
        self._process = process

    @classmethod
    async def start(cls, load: Load | SinglesLoad) -> Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            load.program,
            load.to_json(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=64 * 1024 * 1024,
        )
        return cls(load, process)

    async def ready(self) -> None:
        if await self._line(READY_TIMEOUT_S) != "ready":
            raise BenchFailed(f"{self.load.role} {self.load.number} did not get ready")

    def go(self, start: float, end: float) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(f"go {start!r} {end!r}\n".encode())

    async def tally(self, timeout_s: float) -> Tally:
        line = await self._line(timeout_s)
        if not line.startswith("{"):
            raise BenchFailed(f"{self.load.role} {self.load.number} ended without a result")
        return Tally(**json.loads(line))

    async def stop(self) -> None:
        """Wait until the process ends by itself; kill it if it does not."""
        try:
            async with asyncio.timeout(EXIT_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _line(self, timeout_s: float) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                return (await stdout.readline()).decode().strip()
        except TimeoutError:
            return ""


def cpu_seconds(pid: int) -> float:
    """User and system time of a member so far."""
    return _member(pid).cpu_seconds()


def resident_mb(pid: int) -> float:
    return _member(pid).resident_bytes() / 1e6


def _member(pid: int) -> ProcessId:
    found = ProcessId.of(pid)
    if found is None:
        raise BenchFailed(f"a member has ended, process {pid}")
    return found


def loads_for(plan: Plan, places: Places) -> list[Load]:
    """The load processes of the measured part."""
    common = Load("producer", 0, "", QUEUE, plan.body_bytes, plan.batch, plan.window, 0, plan.filter_enabled)
    common = replace(common, login=places.login)
    if plan.bindings or plan.queues > 1:
        common = replace(common, exchange=EXCHANGE, receivers=FEW_RECEIVERS if plan.bindings else 0)
    prefetch = max(1000, 2 * plan.window * plan.batch)
    loads: list[Load] = []
    if plan.mode != "consume":
        per_producer = plan.rate / plan.batch / plan.producers
        endpoints = [places.producer(n) for n in range(plan.producers)]
        if plan.producers > MOST_PRODUCER_PROCESSES:
            shared = sorted(Counter(endpoints).items())
        else:
            shared = [(endpoint, 1) for endpoint in endpoints]
        loads += [
            replace(common, number=n, endpoint=endpoint, sessions=sessions, batches_per_s=per_producer)
            for n, (endpoint, sessions) in enumerate(shared)
        ]
    if plan.mode != "publish":
        for number in range(plan.consumers):
            selector = plan.selectors[number % len(plan.selectors)] if plan.selectors else None
            loads.append(
                replace(
                    common,
                    role="consumer",
                    number=number,
                    endpoint=places.consumer(number),
                    prefetch=prefetch,
                    selector=selector,
                    attach_at_start=plan.mode == "consume",
                )
            )
    return loads


async def measure(plan: Plan, places: Places, pids: Sequence[int], note: Note) -> Result:
    """Run the load of a plan against running members and an existing queue."""
    if plan.mode == "consume":
        note(f"publishing {plan.backlog:,} messages to consume")
        await publish_backlog(plan, places)
    loads = loads_for(plan, places)
    measured = await timed(loads, 0.0 if plan.mode == "consume" else plan.warmup_s, plan.seconds, pids, note)
    return add_up(
        plan,
        loads,
        measured.tallies,
        start=measured.start,
        server_cpu_s=measured.server_cpu_s,
        sizes=measured.sizes,
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """What load processes counted from `start` (monotonic seconds) on, and what the members took meanwhile.

    sizes: resident memory of the members at the end, in MB."""

    tallies: Sequence[Tally]
    start: float
    server_cpu_s: float
    sizes: tuple[float, ...]


async def timed(
    loads: Sequence[Load] | Sequence[SinglesLoad],
    warmup_s: float,
    seconds: float,
    pids: Sequence[int],
    note: Note,
) -> Measured:
    """Start the load processes, and measure when all are ready and the warm-up is over."""
    workers: list[Worker] = []
    try:
        for load in loads:
            workers.append(await Worker.start(load))
        await asyncio.gather(*(worker.ready() for worker in workers))
        start = time.monotonic() + START_DELAY_S + warmup_s
        end = start + seconds
        for worker in workers:
            worker.go(start, end)
        note(f"{warmup_s:g} s of warm-up, {seconds:g} s measured")
        await asyncio.sleep(start - time.monotonic())
        began = [cpu_seconds(pid) for pid in pids]
        await asyncio.sleep(end - time.monotonic())
        used = sum(cpu_seconds(pid) for pid in pids) - sum(began)
        sizes = tuple(resident_mb(pid) for pid in pids)
        tallies = await asyncio.gather(*(worker.tally(STOP_TIMEOUT_S) for worker in workers))
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
    return Measured(tallies, start, used, sizes)


def add_up(
    plan: Plan,
    loads: Sequence[Load],
    tallies: Sequence[Tally],
    *,
    start: float,
    server_cpu_s: float,
    sizes: tuple[float, ...],
) -> Result:
    pairs = list(zip(loads, tallies, strict=True))
    published = sum(tally.messages for load, tally in pairs if load.role == "producer")
    settled = sum(tally.messages for load, tally in pairs if load.role == "consumer")
    measured_s = plan.seconds
    if (
        plan.mode == "consume" and settled >= plan.backlog
    ):  # all messages were taken before the end of the time
        measured_s = max(tally.last_at for tally in tallies) - start
    result = Result(
        plan=plan,
        published=published,
        settled=settled,
        measured_s=measured_s,
        latencies_us=tuple(latency for tally in tallies for latency in tally.latencies_us),
        server_cpu_s=server_cpu_s,
        client_cpu_s=sum(tally.cpu_s for tally in tallies),
        resident_mb=sizes,
    )
    if not result.messages:
        raise BenchFailed("no message was measured")
    return result


async def publish_backlog(plan: Plan, places: Places) -> None:
    """Fill the queue with plan.backlog messages, rounded up to whole batches, the same number from each producer."""
    each = -(-plan.backlog // (plan.batch * plan.producers))
    workers: list[Worker] = []
    try:
        for load in loads_for(replace(plan, mode="publish", rate=0), places):
            workers.append(await Worker.start(replace(load, total_batches=each)))
        await asyncio.gather(*(worker.ready() for worker in workers))
        now = time.monotonic()
        for worker in workers:
            worker.go(now, now + BACKLOG_LIMIT_S)
        tallies = await asyncio.gather(
            *(worker.tally(BACKLOG_LIMIT_S + STOP_TIMEOUT_S) for worker in workers)
        )
        published = sum(tally.messages for tally in tallies)
        if published < plan.backlog:
            raise BenchFailed(f"only {published:,} of {plan.backlog:,} messages were confirmed")
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))


async def prepare(plan: Plan, url: str) -> Places:
    """Declare the queue and find the leader of its group. In a secured cluster, make the user of the load."""
    arguments: dict[str, object] = {"x-filter-enabled": True} if plan.filter_enabled else {}
    if plan.lazy:
        arguments["x-queue-mode"] = "lazy"
    async with connect(url, connect_timeout_ms=int(READY_TIMEOUT_S * 1000)) as client:
        await client.declare(QUEUE, arguments)
        leader = ""
        while not leader:
            leader = (await client.describe(QUEUE)).queue.leader
        if plan.bindings:
            await bind_selectors(client, plan.bindings)
        elif plan.queues > 1:
            await bind_queues(client, plan.queues)
        status = await client.cluster_status()
        login = await make_user(client, url) if plan.secured else ""
    places = places_of({member.name: member.client_address for member in status.members}, leader)
    return replace(places, login=login)


async def make_user(client: Client, url: str) -> str:
    """Make the user of the load, which may use all queues and nothing else, and return its URL. url: of the
    administrator, who is the first user."""
    service = parse_url(url)
    await client.set_user(service.user, service.password, administers=True)
    password = secrets.token_hex(16)
    await client.set_user(USER, password)
    await client.set_permissions(USER, configure="*", write="*", read="*")
    return replace(service, user=USER, password=password).url_of(*service.endpoints)


async def bind_selectors(client: Client, count: int) -> None:
    """Declare a selector exchange with so many bindings to the queue, each with another selector."""
    await client.declare_exchange(EXCHANGE, "selector")
    numbers = iter(range(count))

    async def bind() -> None:
        for number in numbers:
            await client.bind(EXCHANGE, QUEUE, arguments={"x-selector": selector_of(number)})

    await asyncio.gather(*(bind() for _ in range(BOUND_AT_ONCE)))


async def bind_queues(client: Client, count: int) -> None:
    """Declare a fanout exchange with so many queues, all in the group of the queue. Queues of other groups are deleted
    again."""
    await client.declare_exchange(EXCHANGE, "fanout")
    group = (await client.describe(QUEUE)).queue.group
    bound, others, number = [QUEUE], list[str](), 0
    while len(bound) < count:
        number += 1
        name = f"{QUEUE}-{number}"
        await client.declare(name)
        is_near = (await client.describe(name)).queue.group == group
        (bound if is_near else others).append(name)
    for name in bound:
        await client.bind(EXCHANGE, name)
    for name in others:
        await client.delete(name)


def places_of(addresses: Mapping[str, str], leader: str) -> Places:
    others = tuple(address for name, address in sorted(addresses.items()) if name != leader)
    return Places(addresses[leader], others)


def run(plan: Plan, note: Note) -> Result:
    """Run the whole bench on its own cluster, which is removed afterwards."""
    if plan.selectors and plan.consumers < len(plan.selectors):
        plan = replace(plan, consumers=len(plan.selectors))
    with tempfile.TemporaryDirectory(prefix="quorum-bench-") as directory:
        note(f"starting {plan.members} members")
        with LocalCluster(Path(directory), members=plan.members, secured=plan.secured) as cluster:
            places = asyncio.run(prepare(plan, cluster.url))
            return asyncio.run(measure(plan, places, cluster.processes.pids, note))
