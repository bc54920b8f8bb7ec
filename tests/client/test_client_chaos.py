"""Streams broken at random under load: each message arrives once, in its producer's order, and is settled."""

from __future__ import annotations

import asyncio
import random

import pytest

import quorum
from quorum.client.errors import QuorumError
from support.fake_server.harness import World, eventually, on_cluster

BATCHES = 60
BATCH = 7


@pytest.mark.parametrize("seed", range(3))
def test_random_faults_lose_and_repeat_nothing(seed: int) -> None:
    on_cluster(nodes=3)(lambda world: _chaos(world, random.Random(seed)))()


async def _chaos(world: World, rng: random.Random) -> None:
    queue = world.cluster.queues["q"]
    consumers = [asyncio.create_task(_consume(world)) for _ in range(2)]
    trouble = asyncio.create_task(_trouble(world, rng))
    await asyncio.gather(*(_produce(world, f"p{number}", number) for number in range(3)))
    trouble.cancel()
    await asyncio.gather(trouble, return_exceptions=True)
    for node in world.nodes:
        node.muted = False
        node.cut()  # what a muted node did not say is lost with its streams
    await eventually(lambda: len(queue.settled) == 3 * BATCHES * BATCH, "everything settled")
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    arrived = [body.decode().split(":") for body in queue.arrived]
    for name in ("p0", "p1", "p2"):
        assert [int(number) for producer, number in arrived if producer == name] == [*range(BATCHES * BATCH)]
    assert sorted(queue.settled) == list(range(1, 3 * BATCHES * BATCH + 1))
    assert max(epoch for epoch, _, _ in world.cluster.publish_requests) > 1, "no stream was ever broken"


async def _produce(world: World, name: str, number: int) -> None:
    addresses = [node.address for node in world.nodes]
    url = "quorum://" + ",".join([*addresses[number:], *addresses[:number]])
    async with quorum.connect(url, silence_ms=2_000) as client:
        confirmations = []
        for batch in range(BATCHES):
            bodies = [f"{name}:{batch * BATCH + n}".encode() for n in range(BATCH)]
            confirmations.append(await client.send_batch("q", bodies))
            await asyncio.sleep(0.005)
        assert await asyncio.gather(*confirmations) == [BATCH] * BATCHES


async def _consume(world: World) -> None:
    async with quorum.connect(world.url, silence_ms=2_000) as client:
        consumer = await client.consume("q", prefetch=20)
        async for delivery in consumer.deliveries():
            try:
                await consumer.settle_batch(delivery, wait=True)
            except QuorumError:
                continue


async def _trouble(world: World, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(0.01, 0.06))
        node = rng.choice(world.nodes)
        kind = rng.randrange(4)
        if kind == 0:
            node.cut()
        elif kind == 1:
            world.cluster.cut_after = 1
            await asyncio.sleep(0.02)
            world.cluster.cut_after = -1
        elif kind == 2:
            node.muted = True
            await asyncio.sleep(rng.uniform(0.01, 0.5))
            node.cut()
            node.muted = False
        else:
            await node.stop()
            await asyncio.sleep(0.02)
            await node.start()
