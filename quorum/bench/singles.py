"""`quorum bench singles` and `select`: ordinary programs, in which each message is published and settled by itself.

`singles` has many tasks (or threads) that publish one message after the other, and, if wanted, consumers. With a rate,
each message has a task of its own. `select` has many consumers with different selectors. It publishes at a fixed rate,
and each message matches one of the selectors. Clients connect to members as in the other modes, and time is measured in
the same way. `singles_load` is the program of the processes.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from quorum.bench.plan import Plan, SinglesLoad, Tally, percentile_ms
from quorum.bench.run import QUEUE, BenchFailed, Note, Places, prepare, timed
from quorum.bench.singles_load import HEAD
from quorum.client import connect
from quorum.local_cluster.cluster import LocalCluster

MOST_CONSUMER_PROCESSES = 2
"""Maximum number of processes for consumers. Each consumer has its own client. More processes than cores would only
take processor time from the members."""
MOST_DECLARED = 100
"""Queues that are declared at most to find one in each group."""


@dataclass(frozen=True, slots=True)
class SinglesResult:
    """published, delivered: messages of the measured time. If the plan has a rate, these are the messages that were due
    in it. publish_us: from publish (with a rate: from when it was due) to confirm. delivery_us: the same to delivery.
    CPU times are of the measured time."""

    plan: Plan
    published: int
    delivered: int
    publish_us: Sequence[int]
    delivery_us: Sequence[int]
    server_cpu_s: float
    publisher_cpu_s: float
    consumer_cpu_s: float

    @property
    def messages(self) -> int:
        """The main count: delivered messages, or published messages if there are no consumers."""
        return self.delivered if self.plan.consumers else self.published

    def to_dict(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "mode": plan.mode,
            "messages_per_s": round(self.messages / plan.seconds),
            "published_per_s": round(self.published / plan.seconds),
            "delivered_per_s": round(self.delivered / plan.seconds),
            "publish_p50_ms": percentile_ms(self.publish_us, 0.50),
            "publish_p99_ms": percentile_ms(self.publish_us, 0.99),
            "delivery_p50_ms": percentile_ms(self.delivery_us, 0.50),
            "delivery_p99_ms": percentile_ms(self.delivery_us, 0.99),
            "server_cpu_s_per_100k": _per_100k(self.server_cpu_s, self.messages),
            "publisher_cpu_s_per_100k": _per_100k(self.publisher_cpu_s, self.published),
            "consumer_cpu_s_per_100k": _per_100k(self.consumer_cpu_s, self.delivered),
            "undelivered": self.published - self.delivered if plan.rate and plan.consumers else None,
            "members": plan.members,
            "body_bytes": plan.body_bytes,
            "tasks": 0 if plan.rate or plan.threads else plan.tasks,
            "threads": plan.threads,
            "transaction": plan.transaction,
            "groups": plan.groups,
            "producers": plan.producers,
            "consumers": plan.consumers,
            "rate": plan.rate,
            "linger_ms": plan.linger_ms,
            "secured": plan.secured,
            "seconds": plan.seconds,
        }


def _per_100k(cpu_s: float, messages: int) -> float | None:
    return round(cpu_s * 100_000 / messages, 2) if messages else None


def loads_for(plan: Plan, places: Places, others: tuple[str, ...] = ()) -> list[SinglesLoad]:
    """The processes: one for each producer, and at most two for all consumers. others: queues of other groups."""
    receivers = plan.consumers if plan.mode == "select" else 0
    common = SinglesLoad("producer", 0, (), QUEUE, plan.body_bytes, plan.tasks, plan.rate, receivers)
    common = replace(
        common, threads=plan.threads, transaction=plan.transaction, others=others, login=places.login
    )
    loads = [
        replace(
            common,
            number=n,
            endpoints=(places.producer(n),),
            rate=plan.rate / plan.producers,
            linger_ms=plan.linger_ms,
        )
        for n in range(plan.producers)
    ]
    processes = min(plan.consumers, MOST_CONSUMER_PROCESSES)
    for process in range(processes):
        numbers = tuple(range(process, plan.consumers, processes))
        endpoints = tuple(places.consumer(number) for number in numbers)
        loads.append(replace(common, role="consumer", number=process, endpoints=endpoints, numbers=numbers))
    return loads


async def measure(
    plan: Plan, places: Places, pids: Sequence[int], note: Note, others: tuple[str, ...] = ()
) -> SinglesResult:
    """Run the plan against running members and existing queues. others: those of other groups."""
    loads = loads_for(plan, places, others)
    measured = await timed(loads, plan.warmup_s, plan.seconds, pids, note)
    pairs = list(zip(loads, measured.tallies, strict=True))
    publishers = [tally for load, tally in pairs if load.role == "producer"]
    consumers = [tally for load, tally in pairs if load.role == "consumer"]
    result = SinglesResult(
        plan=plan,
        published=sum(tally.messages for tally in publishers),
        delivered=sum(tally.messages for tally in consumers),
        publish_us=_latencies(publishers),
        delivery_us=_latencies(consumers),
        server_cpu_s=measured.server_cpu_s,
        publisher_cpu_s=math.fsum(tally.cpu_s for tally in publishers),
        consumer_cpu_s=math.fsum(tally.cpu_s for tally in consumers),
    )
    if not result.messages:
        raise BenchFailed("no message was measured")
    return result


async def declare_others(url: str, groups: int) -> tuple[str, ...]:
    """Declare one queue in each of so many groups, that of the bench's queue included, and return the new ones."""
    others: list[str] = []
    async with connect(url) as client:
        found = {(await client.describe(QUEUE)).queue.group}
        for number in range(1, MOST_DECLARED + 1):
            if len(found) == groups:
                return tuple(others)
            name = f"{QUEUE}-{number}"
            await client.declare(name)
            group = (await client.describe(name)).queue.group
            if group in found:
                await client.delete(name)
            else:
                found.add(group)
                others.append(name)
    raise BenchFailed(f"{len(found)} groups took {MOST_DECLARED} queues; {groups} are wanted")


def _latencies(tallies: Sequence[Tally]) -> list[int]:
    return [latency for tally in tallies for latency in tally.latencies_us]


def run(plan: Plan, note: Note) -> SinglesResult:
    """Run the bench on its own cluster, which is removed afterwards."""
    if plan.body_bytes < HEAD.size:
        raise BenchFailed(f"bodies of {plan.body_bytes} bytes; mode {plan.mode} needs {HEAD.size} or more")
    if plan.threads and plan.rate:
        raise BenchFailed("threads publish as fast as they are answered; they have no rate")
    if plan.transaction and (plan.threads or plan.rate):
        raise BenchFailed("transactions are for tasks; give neither --threads nor --rate")
    if plan.groups > max(plan.transaction, 1):
        raise BenchFailed(
            f"{plan.groups} groups; give each a message with --transaction {plan.groups} or more"
        )
    plan = replace(plan, filter_enabled=plan.mode == "select")
    with tempfile.TemporaryDirectory(prefix="quorum-bench-") as directory:
        note(f"starting {plan.members} members")
        with LocalCluster(Path(directory), members=plan.members, secured=plan.secured) as cluster:
            places = asyncio.run(prepare(plan, cluster.url))
            others = asyncio.run(declare_others(cluster.url, plan.groups)) if plan.groups > 1 else ()
            return asyncio.run(measure(plan, places, cluster.processes.pids, note, others))


def table(result: SinglesResult) -> Table:
    values, plan = result.to_dict(), result.plan
    each = f"{plan.threads} threads" if plan.threads else f"{plan.tasks} tasks"
    load = f"{plan.rate:,} messages a second" if plan.rate else f"{plan.producers} x {each}"
    view = Table(
        title=f"bench {plan.mode}: {plan.members} members, {plan.body_bytes} bytes, {load}, "
        f"{plan.consumers} consumers",
        show_header=False,
    )
    view.add_column("what")
    view.add_column("value", justify="right")
    view.add_row("messages confirmed a second", f"{values['published_per_s']:,}")
    if plan.transaction:
        per_s = round(result.published / plan.transaction / plan.seconds)
        where = f" over {plan.groups} groups" if plan.groups > 1 else ""
        view.add_row(f"transactions of {plan.transaction}{where} committed a second", f"{per_s:,}")
    view.add_row("publish to confirm, p50", f"{values['publish_p50_ms']} ms")
    view.add_row("publish to confirm, p99", f"{values['publish_p99_ms']} ms")
    if plan.consumers:
        view.add_row("messages delivered a second", f"{values['delivered_per_s']:,}")
        view.add_row("publish to delivery, p50", f"{values['delivery_p50_ms']} ms")
        view.add_row("publish to delivery, p99", f"{values['delivery_p99_ms']} ms")
    if values["undelivered"]:
        view.add_row("messages published and not delivered", f"{values['undelivered']:,}")
    view.add_row("CPU of all members for 100,000 messages", f"{values['server_cpu_s_per_100k']} s")
    view.add_row("CPU of the publishers for 100,000 messages", f"{values['publisher_cpu_s_per_100k']} s")
    if plan.consumers:
        view.add_row("CPU of the consumers for 100,000 messages", f"{values['consumer_cpu_s_per_100k']} s")
    view.add_row("measured", f"{values['seconds']:g} s")
    return view
