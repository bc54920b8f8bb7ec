"""Work of every kind on members that differ in what must not matter: the seed of Python's hashes, time zone, locale."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import quorum
from quorum.client import Message
from support.processes.cluster import UNLIKE, FaultyCluster, all_equal
from support.processes.load import CONNECT_LIMIT_MS, RESUME_LIMIT_S

BATCH = 20
TTL_MS = 60_000
POLL_S = 0.02
SELECTORS = (
    "colour LIKE 'I%' OR colour = 'ISTANBUL'",
    "weight > 0.1 AND weight * 3 <= 2.7 AND urgent",
    "size BETWEEN -5 AND 9223372036854775807 AND colour IN ('red', '\u0131I', 'straße')",
    "NOT (missing IS NOT NULL) AND size / 3 = 1",
)
COLOURS = ("red", "ISTANBUL", "istanbul", "\u0131I", "straße", "STRASSE", "\U0001f600")
WEIGHTS = (0.1, 0.2, 0.30000000000000004, 1e300, -0.0, 0.9)
SIZES = (3, 4, -7, 2**63 - 1, -(2**63), 0)


OUTCOMES = ("settle", "return", "discard", "fail")
FEW_RETURNS = (6, 1, 1, 2)


async def unlike_members(cluster: FaultyCluster, queue: str, rounds: int) -> str:
    """Publishes, and takes with selectors through every member, with every outcome; all members are equal then."""
    assert len({tuple(sorted(each.items())) for each in UNLIKE}) == len(UNLIKE) >= len(cluster.names)
    chance = random.Random(queue)
    outcomes: Counter[str] = Counter()
    async with quorum.connect(cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        await client.declare(
            queue, {"x-filter-enabled": True, "x-delivery-limit": 3, "x-message-ttl": TTL_MS}
        )
        takers = [
            asyncio.create_task(
                _take(cluster.url_of(cluster.names[number % len(cluster.names)]), queue, number, outcomes)
            )
            for number in range(len(SELECTORS))
        ]
        try:
            for _ in range(rounds):
                await client.publish_batch(queue, [_message(chance) for _ in range(BATCH)])
                for message in await client.get(queue, chance.randint(1, 3)):
                    await message.settle()
                    outcomes["get"] += 1
            deadline = time.monotonic() + RESUME_LIMIT_S
            while not all(outcomes[each] >= rounds for each in ("get", *OUTCOMES)):
                assert time.monotonic() < deadline, f"only {dict(outcomes)}"
                for taker in takers:
                    assert not taker.done(), taker.exception()
                await client.publish_batch(queue, [_message(chance) for _ in range(BATCH)])
                await asyncio.sleep(POLL_S)
        finally:
            for taker in takers:
                taker.cancel()
            await asyncio.gather(*takers, return_exceptions=True)
        await client.purge(queue)
    said = ", ".join(f"{name} {count:,}" for name, count in sorted(outcomes.items()))
    return f"{said}; {await all_equal(cluster)}"


def _message(chance: random.Random) -> Message:
    fields: dict[str, bool | int | float | str] = {}
    if chance.random() < 0.9:
        fields["colour"] = chance.choice(COLOURS)
    if chance.random() < 0.9:
        fields["weight"] = chance.choice(WEIGHTS)
    if chance.random() < 0.9:
        fields["size"] = chance.choice(SIZES)
    fields["urgent"] = chance.random() < 0.8
    return Message(b"unlike", None, fields)


async def _take(url: str, queue: str, number: int, outcomes: Counter[str]) -> None:
    chance = random.Random(number)
    async with quorum.connect(url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
        async for message in client.consume(
            queue, selector=SELECTORS[number], consumer_tag=f"taker-{number}", prefetch=50
        ):
            (outcome,) = chance.choices(OUTCOMES, FEW_RETURNS)
            if outcome == "settle":
                await message.settle()
            elif outcome == "return":
                await message.return_()
            elif outcome == "discard":
                await message.discard()
            else:
                await message.modify(delivery_failed=True)
            outcomes[outcome] += 1
