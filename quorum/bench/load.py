"""One load process: `python -m quorum.bench.load PLAN`, where PLAN is a `plan.Load` as JSON.

The process opens its sessions, prints "ready", and reads "go START END" (monotonic seconds, the same clock in all
processes of a machine). It starts at once, counts the messages between START and END, and prints its `plan.Tally` as
JSON. Batches are encoded before it is ready; no code here handles single messages.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial

from quorum.bench.plan import Load, Tally, url_of
from quorum.bench.receivers import properties_of
from quorum.client import Client, Message, PreparedBatch, connect, encode_batch
from quorum.client.values import FieldValue

REGIONS = ("north", "east", "south", "west")
DIFFERENT_BATCHES = 4
"""Encoded batches that a producer sends in turn, so that field values also differ between batches."""
STOP_PATIENCE_S = 30.0
"""Time that a producer waits for unconfirmed batches at the end."""
CONNECT_TIMEOUT_MS = 30_000


def make_batches(load: Load) -> list[PreparedBatch]:
    """Encode the batches. With fields, each message has five application properties for five kinds of use."""
    generator = random.Random(load.number)
    body = bytes(generator.randrange(256) for _ in range(load.body_bytes))
    if load.receivers:
        return [
            encode_batch(
                Message(body, None, properties_of(generator.randrange(load.receivers)))
                for _ in range(load.batch)
            )
            for _ in range(DIFFERENT_BATCHES)
        ]
    if not load.with_fields:
        return [encode_batch([body] * load.batch)]
    return [
        encode_batch(Message(body, None, _fields(generator)) for _ in range(load.batch))
        for _ in range(DIFFERENT_BATCHES)
    ]


def _fields(generator: random.Random) -> dict[str, FieldValue]:
    return {
        "region": generator.choice(REGIONS),
        "amount": generator.randrange(100_000),
        "price": round(generator.random() * 1000, 2),
        "urgent": generator.random() < 0.1,
        "customer": f"customer-{generator.randrange(1000):04}",
    }


class Clockwork:
    """The measured time span, which the parent process sends with "go"."""

    def __init__(self) -> None:
        self.start = self.end = 0.0
        self.cpu_at_start = 0.0
        self.tally = Tally()

    async def go(self) -> None:
        """Report "ready", wait for "go", and record CPU time from the start on."""
        print("ready", flush=True)
        loop = asyncio.get_running_loop()
        words = (await loop.run_in_executor(None, sys.stdin.readline)).split()
        if len(words) != 3 or words[0] != "go":
            raise SystemExit(f"expected: go START END; got {words}")
        self.start, self.end = float(words[1]), float(words[2])
        gc.collect()
        gc.freeze()
        loop.call_later(max(0.0, self.start - time.monotonic()), self._started)

    def _started(self) -> None:
        self.cpu_at_start = time.process_time()

    def count(self, messages: int, now: float) -> bool:
        """Count messages if `now` is in the measured span."""
        if not self.start <= now < self.end:
            return False
        self.tally.messages += messages
        self.tally.batches += 1
        self.tally.last_at = now
        return True

    def note_tenths(self, total_batches: int, now: float) -> None:
        tally = self.tally
        while tally.batches * 10 >= total_batches * (len(tally.tenths_at) + 1):
            tally.tenths_at.append(now)

    def finish(self) -> None:
        self.tally.cpu_s = time.process_time() - self.cpu_at_start


async def produce(clients: Sequence[Client], load: Load, clock: Clockwork) -> None:
    """Run all producer sessions of the process until the end."""
    batches = make_batches(load)
    await clock.go()
    try:
        await asyncio.gather(*(_produce(client, load, clock, batches) for client in clients))
    finally:
        clock.finish()


async def _produce(client: Client, load: Load, clock: Clockwork, batches: Sequence[PreparedBatch]) -> None:
    """Keep `window` batches unconfirmed, or send at a fixed rate and measure from when each batch was due."""
    room = asyncio.Semaphore(load.window)
    failures: list[BaseException] = []
    sent = 0
    due = time.monotonic()

    def confirmed(begun: float, confirmation: asyncio.Future[int]) -> None:
        room.release()
        error = confirmation.exception()
        if error is not None:
            failures.append(error)
            return
        now = time.monotonic()
        if clock.count(load.batch, now):
            if load.total_batches:
                clock.note_tenths(load.total_batches * load.sessions, now)
            else:
                clock.tally.latencies_us.append(round((now - begun) * 1_000_000))

    while (
        not failures
        and time.monotonic() < clock.end
        and (not load.total_batches or sent < load.total_batches)
    ):
        if load.batches_per_s:
            due += 1 / load.batches_per_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await room.acquire()
        begun = due if load.batches_per_s else time.monotonic()
        batch = batches[sent % len(batches)]
        if load.exchange:
            confirmation = await client.send_batch_to(load.exchange, load.queue, batch)
        else:
            confirmation = await client.send_batch(load.queue, batch)
        confirmation.add_done_callback(partial(confirmed, begun))
        sent += 1
    async with asyncio.timeout(STOP_PATIENCE_S):
        for _ in range(load.window):
            await room.acquire()
    if failures:
        raise failures[0]


async def consume(client: Client, load: Load, clock: Clockwork) -> None:
    """Settle whole deliveries as they arrive, until the end."""
    consumer = client.consume(load.queue, load.selector, prefetch=load.prefetch)
    if load.attach_at_start:
        await clock.go()
        await asyncio.sleep(clock.start - time.monotonic())
    async with consumer:
        if not load.attach_at_start:
            await clock.go()

        async def settle_all() -> None:
            while True:
                async with asyncio.timeout(load.idle_limit_s or None):
                    delivery = await consumer.next_delivery()
                if delivery is None:
                    return
                if await consumer.settle_batch(delivery):
                    clock.count(delivery.count, time.monotonic())

        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + clock.end - time.monotonic()):
                await settle_all()
        except TimeoutError:
            pass  # the measured time is over, or no more messages arrive
        clock.finish()


async def work(load: Load) -> Tally:
    clock = Clockwork()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                connect(url_of(load.endpoint, load.login), connect_timeout_ms=CONNECT_TIMEOUT_MS)
            )
            for _ in range(load.sessions)
        ]
        if load.role == "producer":
            await produce(clients, load, clock)
        else:
            await consume(clients[0], load, clock)
        lost = sum(client.reconnect_count for client in clients)
        if lost:
            raise SystemExit(f"sessions were lost {lost} times: the figures would not be valid")
    return clock.tally


def main() -> None:
    tally = asyncio.run(work(Load.from_json(sys.argv[1])))
    print(json.dumps(asdict(tally)), flush=True)


if __name__ == "__main__":
    main()
