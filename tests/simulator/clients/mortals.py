"""A queue "mortal", whose messages die, and its dead-letter targets "grave" and "tomb".

Every message of "mortal" dies: it expires, or its consumer discards it. So each one that was confirmed has to come to a
target, and no message comes to a queue twice. The history knows a message in the queue that it was published to, so it
does not know these messages: `Deaths` judges them.

A seed has one of the WAYS to the targets. In some seeds, a client tries to take the place of the node that forwards the
letters: it opens sessions with a producer that it can compute from what clients know of the queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from quorum.client.client import Client
from quorum.client.errors import UnavailableError, VoidDelivery
from quorum.v1 import admin_pb2, queue_pb2, queue_pb2_grpc
from simulator.clients.apps import UNCONFIRMED, App, NumberedProducer, Place
from simulator.rules.rules import GRAVE, MORTAL, TOMB, Broken

if TYPE_CHECKING:
    from simulator.world import World

AT_MOST = 20
WAYS = ("one", "one", "purged", "purged", "both", "both", "either")
"""one: to "grave". purged: the same, and dead messages are purged. both: through an exchange to both targets. either: a
policy says which one, and is changed."""
GUESSING_PART = 0.3
MOURNING, ALL_GRAVES = "mourning", "all-graves"
"""The exchanges of `both`. One binding leads from the first one to the other, so a letter comes to both or to none."""
ROBBER = b"robber:"


def guessed_producer(queue: int) -> bytes:
    return hashlib.blake2b(b"dead letters of queue %d" % queue, digest_size=16).digest()


@dataclass
class Deaths:
    """way: one of WAYS; empty in seeds without these queues. confirmed: messages of "mortal". sent: the same, and those
    in doubt. excused: those that a purge may have removed. found: by queue and message, its sequence there. is_ready:
    the way to the targets is there."""

    way: str = ""
    is_guessed: bool = False
    confirmed: dict[bytes, None] = field(default_factory=dict)
    sent: dict[bytes, None] = field(default_factory=dict)
    excused: set[bytes] = field(default_factory=set)
    found: dict[tuple[str, bytes], int] = field(default_factory=dict)
    is_ready: bool = False

    @classmethod
    def of(cls, chance: random.Random) -> Deaths:
        way = chance.choice(WAYS)
        return cls(way, is_guessed=chance.random() < GUESSING_PART, is_ready=way in ("one", "purged"))

    def places(self, chance: random.Random) -> list[Place]:
        """The queues. One target is small in some seeds, so that dead letters wait."""
        if not self.way:
            return []
        small = {
            "x-max-length": chance.choice((2, 8) if self.way in ("one", "purged") else (8, 20)),
            "x-overflow": "reject-publish",
        }
        target: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVE}
        if self.way == "both":
            target = {"x-dead-letter-exchange": MOURNING}
        elif self.way == "either":
            target = {"x-dead-letter-exchange": ""}
        target["x-message-ttl"] = chance.choice((200, 1_000, 4_000))
        is_small = chance.random() < (0.8 if self.way == "purged" else 0.4)
        graves = [Place(GRAVE, small if is_small else {})]
        if self.way in ("both", "either"):
            graves.append(Place(TOMB, {} if is_small else small))
        return [Place(MORTAL, target), *graves]

    @property
    def graves(self) -> tuple[str, ...]:
        return (GRAVE, TOMB) if self.way in ("both", "either") else (GRAVE,)

    def find(self, queue: str, body: bytes, sequence: int) -> None:
        if body not in self.sent:
            raise Broken(f"{body!r} is in {queue!r} and was never published")
        if (before := self.found.setdefault((queue, body), sequence)) != sequence:
            raise Broken(f"{body!r} is in {queue!r} twice: {before} and {sequence}")

    def judge(self) -> None:
        """To be called when all queues are empty."""
        needed = any if self.way == "either" else all
        lost = [
            body
            for body in self.confirmed
            if body not in self.excused and not needed([(queue, body) in self.found for queue in self.graves])
        ]
        if lost:
            raise Broken(f"{len(lost)} messages have died and never came to {self.graves}: {lost[:3]}")


class Sexton(App):
    """Makes the way to the targets, and changes it."""

    def successor(self, name: str) -> App:
        return Sexton(self.world, f"sexton-{self.world.next_producer()}")

    async def work(self, client: Client) -> None:
        deaths = self.world.deaths
        while True:
            try:
                if deaths.way == "both" and not deaths.is_ready:
                    await self._bind(client)
                elif deaths.way == "either":
                    target = {"x-dead-letter-routing-key": self.chance.choice(deaths.graves)}
                    await client.set_policy("way", MORTAL, target)
                elif deaths.way == "purged" and not self.world.is_draining:
                    await self._purge(client)
                deaths.is_ready = True
            except UnavailableError:
                pass
            await asyncio.sleep(self.chance.choice((0.5, 2.0, 6.0)))

    async def _bind(self, client: Client) -> None:
        await client.declare_exchange(MOURNING, "fanout")
        await client.declare_exchange(ALL_GRAVES, "fanout")
        for queue in (GRAVE, TOMB):
            await client.bind(ALL_GRAVES, queue)
        await client.bind(MOURNING, ALL_GRAVES, to="exchange")

    async def _purge(self, client: Client) -> None:
        """Remove those that died first, perhaps between others that have numbers already."""
        found = (await client.describe(MORTAL)).queue
        if found.dead < 2:
            return
        deaths = self.world.deaths
        deaths.excused.update(deaths.sent)
        request = admin_pb2.PurgeQueueRequest(
            queue=MORTAL,
            id=found.id,
            before_sequence=max(1, found.next_sequence - self.chance.choice((3, 10, 30))),
            dead_only=self.chance.random() < 0.7,
        )
        purged = await client._admin("PurgeQueue", request, None)
        self.world.rules.counts["dead messages purged"] += purged.message_count


class Robber(App):
    """Opens sessions as the producer that would bring the letters to "grave" if its name were no secret."""

    def successor(self, name: str) -> App:
        return Robber(self.world, f"robber-{self.world.next_producer()}")

    async def work(self, client: Client) -> None:
        while True:
            await asyncio.sleep(self.chance.choice((1.0, 3.0)))
            if self.world.is_draining:
                continue
            try:
                await self._rob((await client.describe(MORTAL)).queue.id)
            except (UnavailableError, grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
                continue

    async def _rob(self, queue: int) -> None:
        stub = queue_pb2_grpc.QueueStub(self.channel(f"{self.chance.choice(list(self.world.machines))}:7400"))
        number = 1 << self.chance.choice((8, 20, 40))
        batch = queue_pb2.MessageBatch(count=1, bodies=ROBBER, body_ends=[len(ROBBER)])
        publish = queue_pb2.PublishBatch(
            routing_key=GRAVE,
            first_sequence=number,
            lowest_unconfirmed=number,
            batch=batch.SerializeToString(),
        )
        opening = queue_pb2.Open(producer_id=guessed_producer(queue), epoch=self.chance.choice((3, 1 << 30)))
        call = stub.Session()
        try:
            async with asyncio.timeout(2.0):
                await call.write(queue_pb2.SessionRequest(open=opening))
                await call.read()
                await call.write(queue_pb2.SessionRequest(publish=publish))
                await call.read()
        finally:
            call.cancel()


class MortalProducer(NumberedProducer):
    """Publishes to "mortal"."""

    async def work(self, client: Client) -> None:
        chance, world = self.chance, self.world
        while True:
            await asyncio.sleep(chance.choice((0.03, 0.1, 0.3)))
            is_resting = world.is_draining or world.is_ebb or not world.deaths.is_ready
            if not (is_resting or len(self.unconfirmed) >= UNCONFIRMED):
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
                if self.chance.random() < 0.3:  # later messages die before these
                    await asyncio.sleep(self.chance.choice((0.3, 1.5)))
                half = self.chance.randint(0, len(found))
                for some in (found[half:], found[:half]):
                    if some:
                        await client.discard(some, wait=self.chance.random() < 0.5)
            except (UnavailableError, VoidDelivery):
                continue


class Mourner(App):
    """Settles what comes to the targets."""

    def successor(self, name: str) -> App:
        return Mourner(self.world, f"mourner-{self.world.next_producer()}")

    async def work(self, client: Client) -> None:
        counts, deaths = self.world.rules.counts, self.world.deaths
        while True:
            await asyncio.sleep(0.02 if self.world.is_draining else self.chance.choice((0.02, 0.1, 0.5)))
            queue = self.chance.choice(deaths.graves)
            try:
                for message in await client.get(queue, AT_MOST):
                    if message.body != ROBBER:
                        deaths.find(queue, message.body, message.sequence)
                        counts["dead letters"] += 1
                    await client.settle(message)
            except (UnavailableError, VoidDelivery):
                continue


def mortal_apps(world: World) -> list[App]:
    apps: list[App] = [MortalProducer(world, 90), Reaper(world, "reaper-91"), Mourner(world, "mourner-92")]
    if world.deaths.way != "one":
        apps.append(Sexton(world, "sexton-93"))
    if world.deaths.is_guessed:
        apps.append(Robber(world, "robber-94"))
    return apps
