"""The cost of selectors through a cluster: many consumers with different selectors, and attaching to a long queue.

Consumers are sessions of this process, on followers as in the other benches. A message carries the time at which its
batch was *due*, so that a stall shows in all messages that it delays. Batches are encoded before the measurement.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quorum.bench.plan import Plan, percentile_ms
from quorum.bench.run import QUEUE, BenchFailed, Note, Places, cpu_seconds
from quorum.bench.selectors_fields import (
    DIGITS,
    MATCHES,
    RECEIVERS,
    UNIQUE_SELECTOR,
    WANTED,
    row_for,
    selector_of,
    spread_matches,
    unique_text,
    waiting_row,
)
from quorum.bench.transfer import Phase, Pulse
from quorum.client import Client, Consumer, Message, PreparedBatch, connect, encode_batch
from quorum_selectors.known_fields import APPLICATION

CONSUMERS = 100
SESSIONS = 4
DIFFERENT_BATCHES = 100
PREFETCH = 100
WAITING = "bench-waiting"
OTHER = "bench-other"
BACKLOG = 1_000_000
BACKLOG_BATCH = 500
PULSE_BATCH, PULSE_BATCHES_PER_S = 10, 100.0
ROUNDS = 5
"""Number of times that a consumer is attached to the long queue; the result is the median."""
LIMIT_S = 600.0
"""A phase that takes longer has failed."""

DUE = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class ClusterSizes:
    """consumers: number of consumers with different selectors; messages for them may take `patience_s` to arrive.
    messages: number of waiting messages to which a consumer is attached `rounds` times; before that, members have
    `settle_s` to write their data."""

    consumers: int = CONSUMERS
    messages: int = BACKLOG
    batch: int = BACKLOG_BATCH
    rounds: int = ROUNDS
    settle_s: float = 3.0
    patience_s: float = 10.0


@dataclass(slots=True)
class Arrivals:
    """Delivered messages that were due in the measured time, with the times from due to delivered."""

    start: float = 0.0
    end: float = 0.0
    latencies_us: list[int] = field(default_factory=list)
    total: int = 0

    def note(self, due: float, now: float) -> None:
        self.total += 1
        if self.start <= due < self.end:
            self.latencies_us.append(round((now - due) * 1_000_000))


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """latencies_us: from the time when a publish was due to its delivery. firsts_s, lasts_s: from attaching to the
    first and to the last match, one for each round. before, meanwhile: publish to confirm on another queue."""

    sizes: ClusterSizes
    seconds: float
    rate: int
    latencies_us: Sequence[int]
    server_cpu_s: float
    client_cpu_s: float
    backlog_s: float
    firsts_s: Sequence[float]
    lasts_s: Sequence[float]
    before: Phase
    meanwhile: Phase

    def to_dict(self) -> dict[str, Any]:
        delivered = len(self.latencies_us)
        before, meanwhile = (percentile_ms(each.latencies_us, 0.99) for each in (self.before, self.meanwhile))
        return {
            "cluster_consumers": self.sizes.consumers,
            "cluster_rate": self.rate,
            "cluster_delivered_per_s": round(delivered / self.seconds),
            "cluster_p50_ms": percentile_ms(self.latencies_us, 0.50),
            "cluster_p99_ms": percentile_ms(self.latencies_us, 0.99),
            "cluster_server_cpu_s_per_100k": round(self.server_cpu_s * 100_000 / delivered, 3),
            "cluster_client_cpu_s_per_100k": round(self.client_cpu_s * 100_000 / delivered, 3),
            "cluster_attach_messages": self.sizes.messages,
            "cluster_attach_publish_per_s": round(self.sizes.messages / self.backlog_s),
            "cluster_attach_first_ms": round(statistics.median(self.firsts_s) * 1e3, 1),
            "cluster_attach_last_ms": round(statistics.median(self.lasts_s) * 1e3, 1),
            "cluster_attach_longest_ms": round(max(self.lasts_s) * 1e3, 1),
            "cluster_publish_p99_before_ms": before,
            "cluster_publish_p99_ms": meanwhile,
            "cluster_publish_p99_ratio": round(meanwhile / before, 2) if before and meanwhile else None,
            "cluster_publish_batches": len(self.meanwhile.latencies_us),
        }


async def measure(
    plan: Plan, sizes: ClusterSizes, places: Places, url: str, pids: Sequence[int], note: Note
) -> ClusterResult:
    """Run both parts against running members and an existing queue."""
    note(f"{sizes.consumers} consumers, {plan.rate:,} messages a second: {plan.seconds:g} s")
    arrivals, server_cpu_s, client_cpu_s = await _dispatch(plan, sizes, places, pids)
    note(f"publishing {sizes.messages:,} messages with unique strings")
    began = time.monotonic()
    await _publish_waiting(plan, sizes, places, url)
    backlog_s = time.monotonic() - began
    await asyncio.sleep(sizes.settle_s)
    note(f"attaching to them, {sizes.rounds} times")
    firsts, lasts, before, meanwhile = await _attach(plan, sizes, places, url)
    return ClusterResult(
        sizes,
        plan.seconds,
        plan.rate,
        arrivals.latencies_us,
        server_cpu_s,
        client_cpu_s,
        backlog_s,
        firsts,
        lasts,
        before,
        meanwhile,
    )


# ---- many consumers


class TimedBatch:
    """A batch that is encoded once; its bodies begin with the time at which it was due."""

    def __init__(self, numbers: Sequence[int], body_bytes: int, generator: random.Random) -> None:
        self._body_bytes = max(body_bytes, DUE.size)
        self._count = len(numbers)
        bodies = [os.urandom(self._body_bytes) for _ in numbers]
        batch = encode_batch(
            Message(body, None, {key.removeprefix(APPLICATION): value for key, value in row.items()})
            for body, row in zip(bodies, [row_for(number, generator) for number in numbers], strict=True)
        )
        self._data = bytearray(batch.data)
        self._start = self._data.index(b"".join(bodies))

    def at(self, due: float) -> PreparedBatch:
        for place in range(self._count):
            DUE.pack_into(self._data, self._start + place * self._body_bytes, due)
        return PreparedBatch(bytes(self._data), self._count)


async def _dispatch(
    plan: Plan, sizes: ClusterSizes, places: Places, pids: Sequence[int]
) -> tuple[Arrivals, float, float]:
    generator = random.Random(1)
    receivers = min(RECEIVERS, sizes.consumers)
    batches = [
        TimedBatch(generator.sample(range(sizes.consumers), receivers), plan.body_bytes, generator)
        for _ in range(DIFFERENT_BATCHES)
    ]
    arrivals = Arrivals()
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(connect(f"quorum://{places.consumer(number)}"))
            for number in range(SESSIONS)
        ]
        publisher = await stack.enter_async_context(connect(f"quorum://{places.producer(0)}"))
        consumers = [
            sessions[number % SESSIONS].consume(QUEUE, selector_of("equal", number), prefetch=PREFETCH)
            for number in range(sizes.consumers)
        ]
        for consumer in consumers:
            await consumer.start()
        receiving = [asyncio.create_task(_receive(consumer, arrivals)) for consumer in consumers]
        try:
            return await _paced(plan, sizes, publisher, batches, arrivals, pids, receiving)
        finally:
            for task in receiving:
                task.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)
            _require_sessions([*sessions, publisher])


async def _receive(consumer: Consumer, arrivals: Arrivals) -> None:
    while (delivery := await consumer.next_delivery()) is not None:
        now = time.monotonic()
        for ordinal in range(delivery.count):
            arrivals.note(DUE.unpack_from(delivery.reader.body(ordinal))[0], now)
        await consumer.settle_batch(delivery)


async def _paced(
    plan: Plan,
    sizes: ClusterSizes,
    publisher: Client,
    batches: Sequence[TimedBatch],
    arrivals: Arrivals,
    pids: Sequence[int],
    receiving: Sequence[asyncio.Task[None]],
) -> tuple[Arrivals, float, float]:
    """Publish at the plan's rate and wait until all messages have arrived. Returns the arrivals, the members' CPU time
    and that of this process."""
    receivers = min(RECEIVERS, sizes.consumers)
    interval_s = receivers / plan.rate
    arrivals.start = time.monotonic() + plan.warmup_s
    arrivals.end = arrivals.start + plan.seconds
    due = time.monotonic()
    sent = 0
    cpu_began, own_began = -1.0, 0.0
    while due < arrivals.end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        if cpu_began < 0 and due >= arrivals.start:
            cpu_began, own_began = sum(cpu_seconds(pid) for pid in pids), time.process_time()
        await publisher.send_batch(QUEUE, batches[sent % len(batches)].at(due))
        sent += 1
        due += interval_s
    await _until(lambda: arrivals.total >= sent * receivers, receiving, sizes.patience_s)
    if arrivals.total != sent * receivers:
        raise BenchFailed(f"{arrivals.total:,} of {sent * receivers:,} messages were delivered")
    used = sum(cpu_seconds(pid) for pid in pids) - cpu_began
    return arrivals, used, time.process_time() - own_began


async def _until(is_done: Callable[[], bool], tasks: Sequence[asyncio.Task[None]], patience_s: float) -> None:
    """Wait until `is_done`, a task has failed, or `patience_s` has passed."""
    deadline = time.monotonic() + patience_s
    while not is_done() and time.monotonic() < deadline:
        done, _ = await asyncio.wait(tasks, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
            raise BenchFailed("a consumer has ended")


def _require_sessions(clients: Sequence[Client]) -> None:
    lost = sum(client.reconnect_count for client in clients)
    if lost:
        raise BenchFailed(f"sessions were lost {lost} times: the figures would not be valid")


# ---- a long queue


class WaitingBatches:
    """Batches of messages with five fields. A batch is encoded once; for each further one only the unique strings are
    overwritten. `matches` messages of `total`, evenly spread, match the selector."""

    def __init__(self, size: int, total: int, matches: int, body_bytes: int) -> None:
        self.size = size
        self._matches = spread_matches(size, total, matches)
        rows = [waiting_row(ordinal) for ordinal in range(size)]
        batch = encode_batch(
            Message(os.urandom(body_bytes), None, {key.removeprefix(APPLICATION): row[key] for key in row})
            for row in rows
        )
        self._data = np.frombuffer(bytearray(batch.data), np.uint8)
        starts, place = [], 0
        for ordinal in range(size):
            place = batch.data.index(unique_text(ordinal).encode(), place)
            starts.append(place)
        self._letters = np.array(starts)[:, None] + np.arange(len(WANTED))
        self._powers = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)

    def batch(self, number: int) -> PreparedBatch:
        numbers = np.arange(number * self.size, (number + 1) * self.size, dtype=np.int64)
        matches = self._matches.get(number, [])
        self._data[self._letters[:, -DIGITS:]] = numbers[:, None] // self._powers % 10 + ord("0")
        self._data[self._letters[matches]] = np.frombuffer(WANTED.encode(), np.uint8)
        data = self._data.tobytes()
        self._data[self._letters[matches]] = np.frombuffer(unique_text(0).encode(), np.uint8)
        return PreparedBatch(data, self.size)


async def _publish_waiting(plan: Plan, sizes: ClusterSizes, places: Places, url: str) -> None:
    """Fill the queue from one session for each producer of the plan."""
    async with connect(url) as client:
        await client.declare(WAITING, {"x-filter-enabled": True})
        await client.declare(OTHER)
    batches = WaitingBatches(sizes.batch, sizes.messages, MATCHES, plan.body_bytes)
    count = -(-sizes.messages // sizes.batch)

    async def publish(first: int) -> None:
        room = asyncio.Semaphore(plan.window)
        failures: list[BaseException] = []

        def confirmed(confirmation: asyncio.Future[int]) -> None:
            room.release()
            error = confirmation.exception()
            if error is not None:
                failures.append(error)

        async with connect(f"quorum://{places.producer(first)}") as publisher:
            for number in range(first, count, plan.producers):
                await room.acquire()
                if failures:
                    break
                confirmation = await publisher.send_batch(WAITING, batches.batch(number))
                confirmation.add_done_callback(confirmed)
            for _ in range(plan.window):
                await room.acquire()
        if failures:
            raise failures[0]

    await _within(asyncio.gather(*(publish(first) for first in range(plan.producers))))


async def _within(doing: Awaitable[Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        await doing


async def _attach(
    plan: Plan, sizes: ClusterSizes, places: Places, url: str
) -> tuple[list[float], list[float], Phase, Phase]:
    """Measure attaching. Returns the seconds to the first and to the last match of each round, and the latencies of
    publishes to another queue before the rounds and during them."""
    async with connect(url) as client:
        addresses = {member.name: member.client_address for member in (await client.cluster_status()).members}
        leader = (await client.describe(OTHER)).queue.leader
    pulse = Pulse(
        addresses[leader] if leader else places.leader,
        plan.body_bytes,
        PULSE_BATCH,
        PULSE_BATCHES_PER_S,
        OTHER,
    )
    publishing = asyncio.create_task(pulse.run())
    before, meanwhile = Phase(), Phase()
    firsts: list[float] = []
    lasts: list[float] = []
    try:
        await asyncio.sleep(plan.warmup_s)
        async with connect(f"quorum://{places.consumer(0)}") as client:
            for _ in range(sizes.rounds):
                with pulse.noting(before):
                    await asyncio.wait({publishing}, timeout=plan.seconds / sizes.rounds)
                if publishing.done():
                    publishing.result()
                with pulse.noting(meanwhile):
                    first_s, last_s = await asyncio.wait_for(_find(client), LIMIT_S)
                firsts.append(first_s)
                lasts.append(last_s)
            _require_sessions([client])
        pulse.stop()
        await publishing
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    return firsts, lasts, before, meanwhile


async def _find(client: Client) -> tuple[float, float]:
    """Attach a consumer until it has all matches, which are then returned."""
    began = time.monotonic()
    first_s, found = 0.0, 0
    async with client.consume(WAITING, UNIQUE_SELECTOR, prefetch=10 * MATCHES) as consumer:
        while found < MATCHES:
            delivery = await consumer.next_delivery()
            if delivery is None:
                raise BenchFailed(f"the consumer has ended after {found} of {MATCHES} matches")
            first_s = first_s or time.monotonic() - began
            found += delivery.count
        return first_s, time.monotonic() - began
