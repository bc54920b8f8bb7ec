"""A queue "mortal", whose messages die, and its dead-letter target "grave".

Every message of "mortal" dies: it expires, or its consumer discards it. So each one that was confirmed has to come to
"grave", and no message comes there twice. The history knows a message in the queue that it was published to, so it
does not know these messages: `Deaths` judges them.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorum.client.client import Client
from quorum.client.errors import UnavailableError, VoidDelivery
from simulator.clients.apps import UNCONFIRMED, App, NumberedProducer, Place
from simulator.rules.rules import GRAVE, MORTAL, Broken

if TYPE_CHECKING:
    from simulator.world import World

AT_MOST = 20


def mortal_places(chance: random.Random) -> list[Place]:
    """The two queues. The grave is small in some seeds, so that dead letters wait."""
    small = {"x-max-length": chance.choice((2, 8)), "x-overflow": "reject-publish"}
    arguments = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": GRAVE,
        "x-message-ttl": chance.choice((200, 1_000, 4_000)),
    }
    return [Place(MORTAL, arguments), Place(GRAVE, small if chance.random() < 0.4 else {})]


@dataclass
class Deaths:
    """confirmed: messages of "mortal". found: the sequence of each message in "grave"."""

    confirmed: dict[bytes, None] = field(default_factory=dict)
    sent: dict[bytes, None] = field(default_factory=dict)
    found: dict[bytes, int] = field(default_factory=dict)

    def find(self, body: bytes, sequence: int) -> None:
        if body not in self.sent:
            raise Broken(f"{body!r} is in {GRAVE!r} and was never published")
        if self.found.setdefault(body, sequence) != sequence:
            raise Broken(f"{body!r} is in {GRAVE!r} twice: {self.found[body]} and {sequence}")

    def judge(self) -> None:
        """To be called when both queues are empty."""
        lost = [body for body in self.confirmed if body not in self.found]
        if lost:
            raise Broken(f"{len(lost)} messages have died and never came to {GRAVE!r}: {lost[:3]}")


class MortalProducer(NumberedProducer):
    """Publishes to "mortal"."""

    async def work(self, client: Client) -> None:
        chance, world = self.chance, self.world
        while True:
            await asyncio.sleep(chance.choice((0.03, 0.1, 0.3)))
            if not (world.is_draining or world.is_ebb or len(self.unconfirmed) >= UNCONFIRMED):
                await self._publish(client, chance.choice((1, 1, 3, 6)))

    def successor(self, name: str) -> App:
        return MortalProducer(self.world, self.world.next_producer())

    async def _publish(self, client: Client, count: int) -> None:
        first, deaths = self._next, self.world.deaths
        self._next += count
        bodies = [b"mortal:%d:%d" % (self.number, n) for n in range(first, first + count)]
        deaths.sent.update(dict.fromkeys(bodies))
        self.unconfirmed[first] = count
        try:
            future = await client.send_batch(MORTAL, bodies)
        except UnavailableError:  # it was not sent
            del self.unconfirmed[first]
            return
        future.add_done_callback(lambda done: self._decided(done, first, bodies))

    def _decided(self, done: asyncio.Future[int], first: int, bodies: list[bytes]) -> None:
        del self.unconfirmed[first]
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            raise Broken(f"{self.name} published to {MORTAL!r} and was answered {error!r}") from error
        self.world.deaths.confirmed.update(dict.fromkeys(bodies))


class Reaper(App):
    """Discards messages of "mortal"."""

    def successor(self, name: str) -> App:
        return Reaper(self.world, f"reaper-{self.world.next_producer()}")

    async def work(self, client: Client) -> None:
        while True:
            await asyncio.sleep(self.chance.choice((0.05, 0.3, 1.0)))
            try:
                found = await client.get(MORTAL, self.chance.randint(1, AT_MOST))
                if found:
                    await client.discard(found, wait=self.chance.random() < 0.5)
            except (UnavailableError, VoidDelivery):
                continue


class Mourner(App):
    """Settles what comes to "grave"."""

    def successor(self, name: str) -> App:
        return Mourner(self.world, f"mourner-{self.world.next_producer()}")

    async def work(self, client: Client) -> None:
        counts = self.world.rules.counts
        while True:
            await asyncio.sleep(self.chance.choice((0.02, 0.1, 0.5)))
            try:
                for message in await client.get(GRAVE, AT_MOST):
                    self.world.deaths.find(message.body, message.sequence)
                    counts["dead letters"] += 1
                    await client.settle(message)
            except (UnavailableError, VoidDelivery):
                continue


def mortal_apps(world: World) -> list[App]:
    return [MortalProducer(world, 90), Reaper(world, "reaper-91"), Mourner(world, "mourner-92")]
