"""A client that publishes through exchanges, each message to none, one or several of the queues "copy-1" to "copy-3".

The history knows a message in one queue only. So it knows each copy as a message of its own, from a producer that is
counted for this queue (`origin_in`). Whether a copy is lost or doubled is judged for each queue.

A message for no queue is dropped and confirmed; with `mandatory` it is refused, together with its batch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorum.client.client import Client
from quorum.client.errors import PublishRejected, UnavailableError
from quorum.client.messages.batch import Message
from quorum.histories.records import Record
from simulator.clients.apps import UNCONFIRMED, App, Consumer, NumberedProducer, Place
from simulator.rules.rules import Broken, origin_in

if TYPE_CHECKING:
    from simulator.world import World

NUMBERS = (1, 2, 3)
PLACES = [Place(f"copy-{number}", {}) for number in NUMBERS]
"""Two of them are in one group."""
CHOSEN, ALL = "chosen", "all"
"""The exchanges: a topic exchange where each word of a key is the number of a queue, and one that leads to it with the
key of every queue."""
KEYS = ("to", "to.1", "to.2", "to.3", "to.1.2", "to.1.3", "to.2.3", "to.1.2.3")
ALL_PART = 0.2
MANDATORY_PART = 0.5


def numbers_of(key: str) -> list[int]:
    return [int(word) for word in key.split(".")[1:]]


class CopyProducer(NumberedProducer):
    """See the module's text."""

    async def work(self, client: Client) -> None:
        chance, world = self.chance, self.world
        await self._bind(client)
        while True:
            await asyncio.sleep(chance.choice((0.03, 0.1, 0.3)))
            if not (world.is_draining or world.is_ebb or len(self.unconfirmed) >= UNCONFIRMED):
                await self._publish(client, chance.choice((1, 2, 4, 8)))

    async def _bind(self, client: Client) -> None:
        while True:
            try:
                await client.declare_exchange(CHOSEN, "topic")
                await client.declare_exchange(ALL, "fanout")
                for number, place in zip(NUMBERS, PLACES, strict=True):
                    await client.bind(CHOSEN, place.name, f"#.{number}.#")
                    await client.bind(ALL, place.name)
                return
            except UnavailableError:
                await asyncio.sleep(0.2)

    async def _publish(self, client: Client, count: int) -> None:
        chance, world = self.chance, self.world
        numbers = range(self._next, self._next + count)
        self._next += count
        is_for_all, is_mandatory = chance.random() < ALL_PART, chance.random() < MANDATORY_PART
        keys = [KEYS[-1] if is_for_all else chance.choice(KEYS) for _ in numbers]
        messages, sent = [], []
        for n, key in zip(numbers, keys, strict=True):
            body = b"%d:%d:" % (self.number, n)
            world.rules.sent[body] = None
            messages.append(Message(body))
            copies: list[Record] = []
            for number in numbers_of(key):
                name = PLACES[number - 1].name
                copies.append(world.rules.history.sends(name, origin_in(name, body)[0], range(n, n + 1)))
            sent.append(copies)
        self.unconfirmed[numbers[0]] = count
        exchange = ALL if is_for_all else CHOSEN
        try:
            future = await client.send_batch_to(exchange, keys, messages, mandatory=is_mandatory)
        except UnavailableError:  # it was not sent
            del self.unconfirmed[numbers[0]]
            return
        future.add_done_callback(lambda done: self._decided(done, numbers[0], sent, is_mandatory))

    def _decided(
        self, done: asyncio.Future[int], first: int, sent: list[list[Record]], is_mandatory: bool
    ) -> None:
        del self.unconfirmed[first]
        if done.cancelled():
            return
        error, rules = done.exception(), self.world.rules
        if is_mandatory and not all(sent):
            if not isinstance(error, PublishRejected) or error.reason != "UNROUTABLE":
                raise Broken(f"{self.name} published a message without a queue and was answered {error!r}")
            for copies in sent:
                for each in copies:
                    rules.refuse(each, "exchange")
            return
        if error is not None:
            raise Broken(f"{self.name} published through an exchange and was answered {error!r}") from error
        for copies in sent:
            rules.counts["messages for several queues"] += len(copies) > 1
            for each in copies:
                rules.confirm(each)


def copy_apps(world: World) -> list[App]:
    """The client and the consumers of its queues."""
    consumers = [Consumer(world, 80 + number, place, None, 0.3) for number, place in enumerate(PLACES, 1)]
    return [CopyProducer(world, 80), *consumers]
