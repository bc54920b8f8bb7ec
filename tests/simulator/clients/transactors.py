"""A client that takes messages from one queue and puts others into queues of any group, in transactions.

Each transaction settles what it has taken, and publishes a message for each. Some are rolled back by the client. What
was committed counts as confirmed and settled, and what was rolled back as refused and not settled: history.py judges
both halves. If the outcome is not known, all messages of the transaction are found, or none (`Rules.transacts`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorum.client.client import Client
from quorum.client.errors import OutcomeUnknown, RolledBack, UnavailableError, VoidDelivery
from quorum.client.messages.delivery import DeliveredMessage
from simulator.clients.apps import App, Consumer, Place
from simulator.rules.rules import Broken, Key

if TYPE_CHECKING:
    from simulator.world import World

HASTE = 0.5
PART = 0.8
"""Share of the messages that it settles in transactions; it settles the others without one."""
ABANDONED_PART = 0.2
COMMIT_TIMEOUT_MS = 4_000

REASONS = ("ROLLED_BACK", "NOT_CHECKED_OUT", "NOT_ATTACHED", "WRONG_ATTACH")
"""Why a commit may be refused: the last three, because the consumer was cancelled or has begun anew meanwhile."""


class _Abandoned(Exception):
    """The client gives a transaction up."""


class Transactor(Consumer):
    """See the module's text."""

    def __init__(self, world: World, number: int, place: Place) -> None:
        self._targets: list[str] = []
        self._open: dict[int, tuple[int, list[DeliveredMessage]]] = {}
        """transactions under way, by the number of their producer: since when, and what they settle"""
        super().__init__(world, number, place, None, HASTE)

    def successor(self, name: str) -> App:
        return Transactor(self.world, self.world.next_producer(), self.place)

    def die(self) -> None:
        """Nobody hears any more whether the transactions under way count."""
        settles = self.world.rules.history.settles
        for began_us, messages in self._open.values():
            self._asks(lambda *asked, began=began_us: settles(*asked, began_us=began), messages)
        self._open.clear()
        super().die()

    async def work(self, client: Client) -> None:
        places = [*self.world.places, *self.world.outputs]
        self._targets = [place.name for place in places if not place.has_fields]
        await super().work(client)

    async def _end(self, messages: list[DeliveredMessage]) -> None:
        if self.is_hasty or self.chance.random() >= PART:
            await super()._end(messages)
        else:
            await self._transact(messages)

    async def _transact(self, messages: list[DeliveredMessage]) -> None:
        assert self.client is not None
        rules, history = self.world.rules, self.world.rules.history
        keys: list[Key] = [(message.queue, message.sequence) for message in messages]
        began_us, sent, bodies = history.now_us(), [], []
        producer = self.world.next_producer()  # there is no order between transactions
        for n in range(1, len(messages) + 1):
            name, body = self.chance.choice(self._targets), b"%d:%d:" % (producer, n)
            rules.sent[body] = None
            bodies.append((name, body))
            sent.append(history.sends(name, producer, range(n, n + 1)))
        rules.transacts([(producer, n) for n in range(1, len(messages) + 1)])
        self._open[producer] = began_us, messages
        try:
            async with self.client.transaction(timeout_ms=COMMIT_TIMEOUT_MS) as tx:
                for place, (name, body) in enumerate(bodies):
                    if place == len(bodies) // 2:
                        await tx.settle(messages)
                    await tx.publish(name, body)
                    if self.chance.random() < 0.1:
                        await asyncio.sleep(self.chance.choice((0.01, 0.3)))
                if self.chance.random() < ABANDONED_PART:
                    raise _Abandoned
        except asyncio.CancelledError:  # the run is over; a client that dies has said so already
            if producer in self._open:
                self._asks(lambda *asked: history.settles(*asked, began_us=began_us), messages)
            raise
        except OutcomeUnknown:
            self._asks(history.settles, messages)
            rules.counts["transactions of unknown outcome"] += 1
            return
        except (_Abandoned, RolledBack, UnavailableError, VoidDelivery) as error:
            if isinstance(error, RolledBack) and error.reason not in REASONS:
                raise Broken(f"{self.name} has committed and was answered {error!r}") from error
            for each in sent:
                rules.refuse(each, "rollback")
            rules.counts["transactions rolled back"] += 1
            self.held += [message for message in messages if not message.delivery.is_void]
            return
        finally:
            self._open.pop(producer, None)
        for each in sent:
            rules.confirm(each)
        rules.settle(keys, self._asks(lambda *asked: history.settles(*asked, began_us=began_us), messages))
        rules.counts["transactions committed"] += 1
