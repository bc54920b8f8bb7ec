"""A queue with message groups, and its clients.

Every fourth message of a producer has no group. Some consumers are slow and have little credit, so groups wait for them
while others want more. rules.py knows the groups: no two consumers hold messages of one at a time.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from quorum.client.client import Client
from quorum.client.messages.batch import Message
from simulator.clients.apps import UNCONFIRMED, App, Consumer, Place, Producer
from simulator.rules.rules import message_group

if TYPE_CHECKING:
    from simulator.world import World

PART = 0.3
"""Of all seeds."""
HASTES = (0.3, 0.1, 0.02)


def grouped_places(chance: random.Random, is_wanted: bool) -> list[Place]:
    """The seed's queue, perhaps none. is_wanted: it is there."""
    return [Place("grouped", {"x-message-groups": True})] if chance.random() < PART or is_wanted else []


class GroupedProducer(Producer):
    """Publishes to this queue."""

    async def work(self, client: Client) -> None:
        world = self.world
        while True:
            await asyncio.sleep(self.chance.choice((0.03, 0.1, 0.3)))
            if not (world.is_draining or world.is_ebb or len(self.unconfirmed) >= UNCONFIRMED):
                await self.publish(client, world.grouped[0], self.chance.choice((1, 2, 5, 9)))

    def _message(self, n: int, place: Place, shared: dict[str, Any] | None, size: int) -> Message:
        made = super()._message(n, place, shared, size)
        group = message_group(n)
        self.world.rules.counts["messages with a group"] += bool(group)
        return Message(made.body, {"group-id": group})


def grouped_apps(world: World) -> list[App]:
    if not world.grouped:
        return []
    place = world.grouped[0]
    consumers = [Consumer(world, number, place, None, haste) for number, haste in enumerate(HASTES, 96)]
    return [GroupedProducer(world, 95), *consumers]
