"""A queue with a single active consumer, a consumer timeout, or both; and its clients.

One of its consumers is slow: it holds messages for seconds, so the timeout takes them. rules.py knows both: no two
consumers hold messages of a queue with a single active consumer at a time, and nobody is handed what another one has
held for less than the timeout.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from quorum.client.client import Client
from quorum.histories.records import Record
from simulator.clients.apps import UNCONFIRMED, App, Consumer, Place, Producer
from simulator.rules.rules import Key

if TYPE_CHECKING:
    from simulator.world import World

PART = 0.3
"""Of all seeds."""
SINGLE, TIMEOUT = {"x-single-active-consumer": True}, {"x-consumer-timeout": 2_000}
HASTES = (0.3, 0.3, 0.01)


def alone_places(chance: random.Random, is_wanted: bool) -> list[Place]:
    """The seed's queue, perhaps none. is_wanted: it is there, with both."""
    if is_wanted:
        return [Place("alone", SINGLE | TIMEOUT)]
    if chance.random() >= PART:
        return []
    return [Place("alone", chance.choice((SINGLE, TIMEOUT, SINGLE | TIMEOUT)))]


class AloneConsumer(Consumer):
    """As the other consumers. What the timeout has taken may be settled in vain, with the same answer."""

    def successor(self, name: str) -> App:
        return AloneConsumer(self.world, self.world.next_producer(), self.place, None, self.haste)

    def settled(self, keys: list[Key], asked: list[Record]) -> None:
        if self.place.name not in self.world.consumer_timeouts:
            super().settled(keys, asked)


class AloneProducer(Producer):
    """Publishes to this queue."""

    async def work(self, client: Client) -> None:
        world = self.world
        while True:
            await asyncio.sleep(self.chance.choice((0.03, 0.1, 0.3)))
            if not (world.is_draining or world.is_ebb or len(self.unconfirmed) >= UNCONFIRMED):
                await self.publish(client, world.alone[0], self.chance.choice((1, 1, 3, 6)))


def alone_apps(world: World) -> list[App]:
    if not world.alone:
        return []
    place = world.alone[0]
    consumers = [AloneConsumer(world, number, place, None, haste) for number, haste in enumerate(HASTES, 91)]
    return [AloneProducer(world, 90), *consumers]
