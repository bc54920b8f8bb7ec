"""The last part of the demo against a real member: one flight through an exchange, a dead-letter queue, a commit."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import quorum
from quorum.demo import one_flight
from quorum.demo.flights import carried
from support.members.served import served


def test_the_latest_flight_is_routed_rejected_and_filed() -> None:
    said: list[str] = []

    async def scenario() -> bool:
        async with served() as url:
            return await one_flight.follow(url, one_flight.latest(carried()), said.append, timeout_ms=20_000)

    assert asyncio.run(scenario())
    assert [line.split(":")[0] for line in said] == ["routed", "dead letter", "transaction"]
    assert "reason rejected, queue desk" in said[1]


def test_a_flight_that_is_not_alone_in_its_queues_is_noticed() -> None:
    async def scenario() -> bool:
        async with served() as url, quorum.connect(url) as client:
            await client.declare(one_flight.FILED)
            flight = one_flight.latest(carried())
            await client.publish(one_flight.FILED, replace(flight, row=1).body)
            return await one_flight.follow(url, flight, lambda line: None, timeout_ms=20_000)

    assert not asyncio.run(scenario())
