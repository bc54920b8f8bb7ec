"""One process of `quorum bench singles` or `select`: `python -m quorum.bench.singles_load PLAN`, where PLAN is a
`plan.SinglesLoad` as JSON.

The process is an ordinary program of the public client: each message is published by itself, received as an object and
settled by itself. It talks to the bench as `quorum.bench.load` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

from quorum import sync
from quorum.bench.load import CONNECT_TIMEOUT_MS, Clockwork
from quorum.bench.plan import SinglesLoad, Tally, url_of
from quorum.bench.receivers import properties_of, selector_of
from quorum.client import Client, Consumer, connect

HEAD = struct.Struct("<dI")
"""The start of each body: the time of the publish, and the number of the consumer that must receive the message."""
PREFETCH = 1_000
SELECTIVE_PREFETCH = 100
CONNECTED_AT_ONCE = 16
MOST_UNCONFIRMED = 5_000
"""Highest number of publishes that a producer with a rate awaits at a time."""
IDLE_LIMIT_S = 2.0
"""After the measured time, consumers receive what was published at a rate, until no message has arrived for this
time."""
DRAIN_LIMIT_S = 20.0


class WrongReceiver(Exception):
    """A message went to a consumer whose selector it does not match."""


class SinglesClock(Clockwork):
    """Takes the CPU time at the end of the measured time, because some processes have work after it."""

    async def go(self) -> None:
        await super().go()
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, self.end - time.monotonic()), self.finish)

    def note(self, when: float, begun: float, now: float, messages: int = 1) -> None:
        """Count messages, and one latency for all, if `when` is in the measured time."""
        if self.count(messages, when):
            self.tally.latencies_us.append(round((now - begun) * 1_000_000))


# ---- publishing


class Producer:
    """Publishes single messages, either as many as its tasks can await, or at a rate."""

    def __init__(self, client: Client, load: SinglesLoad, clock: SinglesClock) -> None:
        self._client = client
        self._load = load
        self._clock = clock
        self._filler = os.urandom(load.body_bytes - HEAD.size)
        self._generator = random.Random(load.number)
        self._properties: Sequence[Mapping[str, str]] = [properties_of(n) for n in range(load.receivers)]

    async def run(self) -> None:
        if self._load.rate:
            await self._at_rate()
        else:
            one_by_one = self._transactions if self._load.transaction else self._one_by_one
            await asyncio.gather(*(one_by_one() for _ in range(self._load.tasks)))

    async def _one_by_one(self) -> None:
        """An ordinary task: each publish follows the confirm of the last."""
        while (begun := time.monotonic()) < self._clock.end:
            await self._publish(begun)
            now = time.monotonic()
            self._clock.note(now, begun, now)

    async def _transactions(self) -> None:
        """The same with transactions: publish, commit, and wait for the answer. The time is that of a transaction."""
        count, queues = self._load.transaction, (self._load.queue, *self._load.others)
        shares = [count // len(queues) + (place < count % len(queues)) for place in range(len(queues))]
        while (begun := time.monotonic()) < self._clock.end:
            body = HEAD.pack(begun, 0) + self._filler
            async with self._client.transaction() as transaction:
                for queue, share in zip(queues, shares, strict=True):
                    await transaction.publish_batch(queue, [body] * share)
            now = time.monotonic()
            self._clock.note(now, begun, now, count)

    async def _at_rate(self) -> None:
        """Publish each message when it is due, in a task of its own. Its times count from then."""
        due = time.monotonic()
        room = asyncio.Semaphore(MOST_UNCONFIRMED)
        async with asyncio.TaskGroup() as publishing:
            while due < self._clock.end:
                if (early_s := due - time.monotonic()) > 0:
                    await asyncio.sleep(early_s)
                await room.acquire()
                publishing.create_task(self._due(due, room))
                due += 1 / self._load.rate

    async def _due(self, due: float, room: asyncio.Semaphore) -> None:
        await self._publish(due)
        self._clock.note(due, due, time.monotonic())
        room.release()

    async def _publish(self, begun: float) -> None:
        receivers = self._load.receivers
        number = self._generator.randrange(receivers) if receivers else 0
        body = HEAD.pack(begun, number) + self._filler
        await self._client.publish(
            self._load.queue, body, None, self._properties[number] if receivers else None
        )


async def publish_in_threads(client: sync.Client, load: SinglesLoad, clock: SinglesClock) -> None:
    """Threads that publish as `Producer` does with tasks. Each notes for itself what it has published."""
    filler = os.urandom(load.body_bytes - HEAD.size)

    def one_by_one() -> list[tuple[float, float]]:
        noted: list[tuple[float, float]] = []
        while (begun := time.monotonic()) < clock.end:
            client.publish(load.queue, HEAD.pack(begun, 0) + filler)
            noted.append((begun, time.monotonic()))
        return noted

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(load.threads) as pool:
        running = [loop.run_in_executor(pool, one_by_one) for _ in range(load.threads)]
        for noted in await asyncio.gather(*running):
            for begun, now in noted:
                clock.note(now, begun, now)


# ---- consuming


class Consumers:
    """Consumers that settle each message by itself, with a client each."""

    def __init__(self, load: SinglesLoad, clock: SinglesClock) -> None:
        self._load = load
        self._clock = clock
        self._received = 0

    async def attach(self, client: Client, number: int, stack: AsyncExitStack) -> Consumer:
        selector = selector_of(number) if self._load.receivers else None
        prefetch = SELECTIVE_PREFETCH if self._load.receivers else PREFETCH
        consumer = client.consume(self._load.queue, selector, prefetch=prefetch)
        return await stack.enter_async_context(consumer)

    async def run(self, consumers: Sequence[tuple[int, Consumer]]) -> None:
        """Receive until the measured time is over, and if there is a rate, until no message arrives any more."""
        receiving = [asyncio.create_task(self._receive(*each)) for each in consumers]
        try:
            await self._watch(receiving, self._clock.end - time.monotonic())
            limit = self._clock.end + DRAIN_LIMIT_S
            before = -1
            while self._load.rate and before < self._received and time.monotonic() < limit:
                before = self._received
                await self._watch(receiving, IDLE_LIMIT_S)
        finally:
            for task in receiving:
                task.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)

    async def _watch(self, receiving: Sequence[asyncio.Task[None]], seconds: float) -> None:
        done, _ = await asyncio.wait(
            receiving, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()
            raise SystemExit("a consumer has ended")

    async def _receive(self, number: int, consumer: Consumer) -> None:
        is_paced = bool(self._load.rate)
        async for message in consumer:
            now = time.monotonic()
            begun, receiver = HEAD.unpack_from(message.body)
            if self._load.receivers and receiver != number:
                raise WrongReceiver(f"consumer {number} received a message for consumer {receiver}")
            await message.settle()
            self._received += 1
            self._clock.note(begun if is_paced else now, begun, now)


# ---- the process


async def _clients(load: SinglesLoad, options: Mapping[str, Any], stack: AsyncExitStack) -> list[Client]:
    """One client for each endpoint. options: of `connect`."""
    turn = asyncio.Semaphore(CONNECTED_AT_ONCE)

    async def opened(endpoint: str) -> Client:
        async with turn:
            return await connect(url_of(endpoint, load.login), **options).open()

    clients = await asyncio.gather(*(opened(endpoint) for endpoint in load.endpoints))
    for client in clients:
        stack.push_async_callback(client.close)
    return clients


def _require_sessions(clients: Sequence[Client | sync.Client]) -> None:
    lost = sum(client.reconnect_count for client in clients)
    if lost:
        raise SystemExit(f"sessions were lost {lost} times: the figures would not be valid")


async def work(load: SinglesLoad) -> Tally:
    clock = SinglesClock()
    options: dict[str, Any] = {"connect_timeout_ms": CONNECT_TIMEOUT_MS, "linger_ms": load.linger_ms}
    if load.threads and load.role == "producer":
        url = url_of(load.endpoints[0], load.login)
        with sync.connect(url, **options) as client:
            await clock.go()
            await publish_in_threads(client, load, clock)
            _require_sessions([client])
        return clock.tally
    async with AsyncExitStack() as stack:
        clients = await _clients(load, options, stack)
        if load.role == "producer":
            await clock.go()
            await asyncio.gather(*(Producer(client, load, clock).run() for client in clients))
        else:
            consumers = Consumers(load, clock)
            attached = [
                (number, await consumers.attach(client, number, stack))
                for number, client in zip(load.numbers, clients, strict=True)
            ]
            await clock.go()
            await consumers.run(attached)
        _require_sessions(clients)
    return clock.tally


def main() -> None:
    tally = asyncio.run(work(SinglesLoad.from_json(sys.argv[1])))
    print(json.dumps(asdict(tally)), flush=True)


if __name__ == "__main__":
    main()
