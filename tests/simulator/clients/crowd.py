"""A client with many tasks, each of which publishes to two queues in transactions.

A task waits between its messages, so its transaction may come to the second queue's group later than those that other
tasks began after it. Once the cluster is healed, nothing may refuse them (`World._progress`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorum.client.client import Client
from quorum.client.errors import OutcomeUnknown, RolledBack, UnavailableError
from simulator.clients.apps import App, Place
from simulator.rules.rules import Broken

if TYPE_CHECKING:
    from simulator.world import World

TASKS = 6
PAUSES_S = (0.0, 0.01, 0.04)
RESTS_S = (0.0, 0.2)
"""What a task waits between two transactions,"""
LONG_REST_S = 1.0
"""and while faults happen, and while nothing new is to be published."""
COMMIT_TIMEOUT_MS = 4_000


class Crowd(App):
    """See the module's text."""

    def __init__(self, world: World, number: int, places: list[Place]) -> None:
        self._places = places
        self.in_a_row = 0
        """transactions committed since one failed"""
        super().__init__(world, f"crowd-{number}")

    def successor(self, name: str) -> App:
        return Crowd(self.world, self.world.next_producer(), self._places)

    async def work(self, client: Client) -> None:
        await asyncio.gather(*(self._repeat(client) for _ in range(TASKS)))

    async def _repeat(self, client: Client) -> None:
        while True:
            if not (self.world.is_draining or self.world.is_ebb):
                await self._transact(client)
            is_healed = self.world.phase == "healed"
            await asyncio.sleep(self.chance.choice(RESTS_S) if is_healed else LONG_REST_S)

    async def _transact(self, client: Client) -> None:
        """Publishes one message to each queue."""
        rules = self.world.rules
        producer = self.world.next_producer()  # there is no order between transactions
        rules.transacts([(producer, n) for n in range(1, len(self._places) + 1)])
        sent = []
        try:
            async with client.transaction(timeout_ms=COMMIT_TIMEOUT_MS) as tx:
                for n, place in enumerate(self.chance.sample(self._places, len(self._places)), 1):
                    body = b"%d:%d:" % (producer, n)
                    rules.sent[body] = None
                    sent.append(rules.history.sends(place.name, producer, range(n, n + 1)))
                    await tx.publish(place.name, body)
                    await asyncio.sleep(self.chance.choice(PAUSES_S))
        except OutcomeUnknown:
            rules.counts["transactions of unknown outcome"] += 1
            self.in_a_row = 0
            return
        except (RolledBack, UnavailableError) as error:
            if isinstance(error, RolledBack) and error.reason != "ROLLED_BACK":
                raise Broken(f"{self.name} has committed and was answered {error!r}") from error
            for each in sent:
                rules.refuse(each, "rollback")
            rules.counts["transactions rolled back"] += 1
            self.in_a_row = 0
            return
        for each in sent:
            rules.confirm(each)
        rules.counts["transactions committed"] += 1
        self.in_a_row += 1
