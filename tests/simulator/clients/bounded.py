"""Queues whose messages may leave without having been settled: with a TTL, a length limit or a delivery limit; a queue
with priorities; a queue with delayed messages; and the clients that use them.

Which of them a seed has is drawn by name, so the other queues of the run stay what they are. What may leave, and when,
is judged by ledger.py.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from quorum.client.client import Client
from quorum.client.errors import PublishRejected, UnavailableError, VoidDelivery
from quorum.client.messages.batch import Message
from quorum.client.messages.delivery import DeliveredMessage
from quorum.client.values import Properties
from quorum.histories.records import Record
from simulator.clients.apps import UNCONFIRMED, App, Consumer, NumberedProducer, Place
from simulator.rules.rules import Broken

if TYPE_CHECKING:
    from simulator.world import World

PART = 0.6
"""Of all seeds."""
NEEDED = {"singles": "strict"}
"""By scenario: the queue that it needs, besides those that are named like it."""
KINDS = 2
"""Of the five queues that such a seed has."""
LAZY_PART = 0.4
"""Of these queues."""
TTLS_MS = (None, None, 0, 150, 1_000, 6_000)
"""Of single messages; the queue's own TTL may be shorter."""
PRIORITIES = (None, 0, 1, 5, 9, 200)
"""Of single messages; the queue lowers them to its highest one."""
FAILING_PART = 0.65
"""Of what is received from a queue with a delivery limit."""
DELAYS_MS = (None, None, 1, 150, 1_000, 4_000)
"""Of single messages."""
DELAYED_PART = 0.15
"""Of all seeds have a queue with delayed messages."""
HASTE = {"brief": 0.04, "short": 0.04, "strict": 0.08, "patient": 0.6, "urgent": 0.3, "later": 0.3}


def bounded_places(chance: random.Random, scenario: str = "") -> list[Place]:
    """The seed's bounded queues, perhaps none. scenario: the name of one that has to be there, or in NEEDED."""
    needed = NEEDED.get(scenario, scenario)
    if chance.random() >= PART and needed not in HASTE:
        return []
    found = [
        Place("brief", {"x-message-ttl": chance.choice((300, 1_500, 4_000))}),
        Place("short", {"x-max-length": chance.choice((3, 10, 40))}),
        Place("strict", {"x-max-length": chance.choice((3, 10, 40)), "x-overflow": "reject-publish"}),
        Place("patient", {"x-delivery-limit": chance.choice((0, 1, 3))}),
        Place("urgent", {"x-max-priority": chance.choice((1, 9, 31))}),
    ]
    chosen = chance.sample(found, KINDS)
    if needed in HASTE and needed not in {place.name for place in chosen}:
        chosen[0] = next(place for place in found if place.name == needed)
    return [
        replace(place, arguments={**place.arguments, "x-queue-mode": "lazy"})
        if chance.random() < LAZY_PART
        else place
        for place in chosen
    ]


def delayed_places(chance: random.Random, *, is_needed: bool) -> list[Place]:
    """The seed's queue with delayed messages, perhaps none. It delays what is returned, too."""
    if chance.random() >= DELAYED_PART and not is_needed:
        return []
    delays = {"x-delayed-retry-min": chance.choice((1, 100, 500)), "x-delayed-retry-max": 1_000}
    return [Place("later", delays)]


class BoundedProducer(NumberedProducer):
    """Publishes to bounded queues; a refusal is an answer like any other."""

    async def work(self, client: Client) -> None:
        chance, world = self.chance, self.world
        while True:
            await asyncio.sleep(chance.choice((0.03, 0.1, 0.3)))
            if not (world.is_draining or world.is_ebb or len(self.unconfirmed) >= UNCONFIRMED):
                await self._publish(client, chance.choice(world.bounded), chance.choice((1, 1, 3, 6)))

    async def _publish(self, client: Client, place: Place, count: int) -> None:
        numbers = range(self._next, self._next + count)
        self._next += count
        world, messages = self.world, []
        same = self.chance.choice(TTLS_MS)
        for n in numbers:
            ttl = same if self.chance.random() < 0.7 else self.chance.choice(TTLS_MS)
            if place.name != "brief":
                ttl = None
            priority = self.chance.choice(PRIORITIES) if place.name == "urgent" else None
            body = b"%d:%d:" % (self.number, n)
            world.rules.sent[body] = None
            delay = self.chance.choice(DELAYS_MS) if place.name == "later" else None
            world.ledger.send((self.number, n), ttl, priority or 0, delay or 0)
            messages.append(Message(body, Properties(ttl_ms=ttl, priority=priority, delivery_delay_ms=delay)))
        self.unconfirmed[numbers[0]] = count
        sent = world.rules.history.sends(place.name, self.number, numbers)
        try:
            future = await client.send_batch(place.name, messages)
        except UnavailableError:  # it was not sent
            del self.unconfirmed[numbers[0]]
            return
        future.add_done_callback(lambda done: self._decided(done, numbers, place, sent))

    def _decided(self, done: asyncio.Future[int], numbers: range, place: Place, sent: Record) -> None:
        del self.unconfirmed[numbers[0]]
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.world.rules.confirm(sent)
            return
        if not isinstance(error, PublishRejected) or place.arguments.get("x-overflow") != "reject-publish":
            raise Broken(f"{self.name} published to {place.name!r} and was answered {error!r}") from error
        if error.rejected != ((0, len(numbers) - 1),):
            raise Broken(f"a batch of {len(numbers)} was refused in parts: {error.rejected}")
        self.world.rules.refuse(sent, "max-length")


class BoundedConsumer(Consumer):
    """As the other consumers; from a queue with a delivery limit it returns most messages as failed."""

    def __init__(self, world: World, number: int, place: Place) -> None:
        super().__init__(world, number, place, None, HASTE[place.name])

    def successor(self, name: str) -> App:
        return BoundedConsumer(self.world, self.world.next_producer(), self.place)

    async def _end(self, messages: list[DeliveredMessage]) -> None:
        if self.place.name != "patient" or self.chance.random() >= FAILING_PART:
            await super()._end(messages)
            return
        try:
            await self.fail(messages)
        except (VoidDelivery, UnavailableError):
            self.world.rules.counts["dispositions lost"] += 1


def bounded_apps(world: World) -> list[App]:
    """The clients of the seed's bounded queues."""
    if not world.bounded:
        return []
    consumers = [BoundedConsumer(world, number, place) for number, place in enumerate(world.bounded, 71)]
    return [BoundedProducer(world, 70), *consumers]
