"""A producer of single messages, published by several tasks at a time, as ordinary programs do. The client gathers them
into batches; each message has its own outcome.

Every task publishes bursts, so that messages have neighbours in their batch. A burst goes to a plain queue, or to the
seed's queue that refuses messages when it is full. Some messages are wrong in themselves: the service refuses them and
confirms their neighbours. Others are immediate: the service refuses those that no consumer can take at once.
"""

from __future__ import annotations

import asyncio

from quorum.client.client import Client
from quorum.client.errors import PublishRejected, PublishUnknown, UnavailableError
from quorum.client.values import Properties
from simulator.clients.apps import NumberedProducer, Place
from simulator.rules.rules import Broken

TASKS = 2
BURSTS = (1, 1, 2, 3, 8)
"""Messages that a task publishes at once."""
PAUSES_S = (0.0, 0.02, 0.2, 1.0)
"""Between two bursts of a task."""
WRONG_PART = 0.08
IMMEDIATE_PART = 0.15
WRONG = Properties(priority=300)
"""No message may have this priority."""


class SingleProducer(NumberedProducer):
    """See the module's text."""

    async def work(self, client: Client) -> None:
        await asyncio.gather(*(self._publish_bursts(client) for _ in range(TASKS)))

    async def _publish_bursts(self, client: Client) -> None:
        chance, world = self.chance, self.world
        places = [place for place in world.places if not place.has_fields]
        places += [place for place in world.bounded if place.name == "strict"]
        while True:
            await asyncio.sleep(chance.choice(PAUSES_S))
            if world.is_draining or world.is_ebb:
                await asyncio.sleep(0.1)
                continue
            place = chance.choice(places)
            taken = await asyncio.gather(
                *(self._publish(client, place) for _ in range(chance.choice(BURSTS)))
            )
            world.rules.counts["bursts refused in part"] += len(set(taken)) == 2

    async def _publish(self, client: Client, place: Place) -> bool:
        """Whether the message is confirmed. Raises Broken if its outcome is not its own."""
        world, n = self.world, self._next
        self._next += 1
        body = b"%d:%d:" % (self.number, n)
        kind = self.chance.random()
        is_wrong, is_immediate = kind < WRONG_PART, kind > 1 - IMMEDIATE_PART
        world.rules.sent[body] = None
        world.ledger.send((self.number, n), None)
        self.unconfirmed[n] = 1
        sent = world.rules.history.sends(place.name, self.number, range(n, n + 1))
        try:
            try:
                await client.publish(place.name, body, WRONG if is_wrong else None, immediate=is_immediate)
            except PublishUnknown as late:
                await late.confirmation
        except PublishRejected as error:
            self._judge(error, place, is_wrong=is_wrong, is_immediate=is_immediate)
            why = "priority" if is_wrong else "consumers" if error.reason == "NO_CONSUMERS" else "max-length"
            world.rules.refuse(sent, why)
            return False
        except UnavailableError:  # it was not sent
            return False
        finally:
            del self.unconfirmed[n]
        if is_wrong:
            raise Broken(f"{self.name} published {n} with priority {WRONG.priority}, and it was confirmed")
        world.rules.confirm(sent)
        world.rules.counts["published one by one"] += 1
        world.rules.counts["immediate messages"] += is_immediate
        return True

    def _judge(self, error: PublishRejected, place: Place, *, is_wrong: bool, is_immediate: bool) -> None:
        """A message is refused for a fault of its own, because its queue is full or has no consumer for it, or because
        that was so when it came first."""
        allowed: list[str] = ["QUEUE_FULL"] * (place.name == "strict") + ["NO_CONSUMERS"] * is_immediate
        if not is_wrong and error.reason not in (*allowed, *["REFUSED_EARLIER"] * bool(allowed)):
            raise Broken(f"{self.name} published to {place.name!r} and was answered {error!r}") from error
