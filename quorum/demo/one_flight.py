"""The way of one flight, after all others have arrived: it is routed, rejected, and filed in a transaction.

1. It is published to an exchange, whose binding leads it to the queue of a desk.
2. The desk rejects it. It becomes a dead letter, and the service moves it to the queue of rejected flights.
3. A transaction takes it from there and publishes it to the queue of filed flights: both, or neither.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence

from quorum.client import Client, connect
from quorum.client.messages.delivery import DeliveredMessage
from quorum.demo.flights import Flight, row_of
from quorum.errors import ClusterError

EXCHANGE = "departures"
DESK, REJECTED, FILED = "desk", "rejected", "filed"
TARGET: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": REJECTED}
ARRIVAL_LIMIT_S = 60.0
"""After this time without a message, the demo ends."""


def latest(flights: Sequence[Flight]) -> Flight:
    """The flight with the longest delay."""
    return max(flights, key=lambda flight: flight.dep_delay or 0)


async def follow(url: str, flight: Flight, say: Callable[[str], None], *, timeout_ms: int) -> bool:
    """Run the steps, and say what happens. Returns whether the flight is where it should be, and nowhere else."""
    async with connect(url, timeout_ms=timeout_ms) as client:
        await client.declare(REJECTED)
        await client.declare(FILED)
        await client.declare(DESK, TARGET)
        await client.declare_exchange(EXCHANGE, "topic")
        await client.bind(EXCHANGE, DESK, f"{flight.origin}.*")
        key = f"{flight.origin}.{flight.dest}"
        await client.publish_to(EXCHANGE, key, flight.body, {"subject": "flight"}, mandatory=True)
        say(
            f"routed: the latest flight, {flight.dep_delay} minutes late, is published to the exchange {EXCHANGE!r} "
            f"with the key {key!r}; a binding leads it to the queue {DESK!r}"
        )
        await client.discard(await _arrived(client, DESK), wait=True)
        letter = await _arrived(client, REJECTED)
        death = json.loads(str(letter.application_properties["x-death"]))[0]
        say(
            f"dead letter: it is rejected there, and arrives in {REJECTED!r} with its history: "
            f"reason {death['reason']}, queue {death['queue']}"
        )
        async with client.transaction() as transaction:
            await transaction.settle(letter)
            await transaction.publish(FILED, letter.body)
        filed = await _arrived(client, FILED)
        await client.settle(filed, wait=True)
        say(f"transaction: one commit takes it from {REJECTED!r} and adds it to {FILED!r}")
        left = [(await client.describe(queue)).queue.total for queue in (DESK, REJECTED, FILED)]
        return row_of(filed.body) == flight.row and not any(left)


async def _arrived(client: Client, queue: str) -> DeliveredMessage:
    """The next message of a queue. ClusterError if none comes."""
    deadline = time.monotonic() + ARRIVAL_LIMIT_S
    while not (messages := await client.get(queue)):
        if time.monotonic() > deadline:
            raise ClusterError(f"no message has arrived in the queue {queue!r} in {ARRIVAL_LIMIT_S:g} s")
        await asyncio.sleep(0.05)
    return messages[0]
