"""Messages of the fake server's queues: what is ready, taken and settled."""

from __future__ import annotations

from quorum.client import Client, Consumer, DeliveredMessage
from support.fake_server.harness import World


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def bodies(world: World, queue: str = "q") -> list[bytes]:
    """Of the ready messages."""
    return [message.body for message in world.cluster.queues[queue].ready.values()]


async def filled(client: Client, count: int) -> None:
    await client.publish_batch("q", numbered(0, count))


async def take(consumer: Consumer, count: int) -> list[DeliveredMessage]:
    """The next messages, not settled."""
    taken: list[DeliveredMessage] = []
    while len(taken) < count:
        delivery = await consumer.next_delivery()
        assert delivery is not None
        taken.extend(delivery)
    assert len(taken) == count
    return taken


def settled(world: World) -> list[int]:
    return world.cluster.queues["q"].settled
